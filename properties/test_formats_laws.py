"""Laws of encode, decode, convert and pack, against a slow definition over the sorted list of a format's values."""

from bisect import bisect_left
from fractions import Fraction
from functools import cache

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from refsim.conversions import CONVERSIONS, convert, decode, encode, pack, unpack
from refsim.conversions.coding import encode_rule
from refsim.conversions.packing import BYTE, CONTAINERS, DENSE
from refsim.conversions.registers import gather_bits
from refsim.conversions.rounding import NAN, ROUNDINGS, SATURATE, STOCHASTIC, EncodingRule, encode_exact
from refsim.formats import BF16, F16, FORMATS, MXINT8, Format

TABLED = [format for format in FORMATS if format.bits + format.padding_bits <= 16]
NARROW = [format for format in TABLED if format.code_dtype.itemsize == 1]
DIRECTED = ("toward-zero", "up", "down")
STOCHASTIC_NAMES = [name for name, row in CONVERSIONS.items() if row.rounding == STOCHASTIC]

formats = st.sampled_from(TABLED)
narrow_formats = st.sampled_from(NARROW)
roundings = st.sampled_from(ROUNDINGS)
doubles = st.floats(allow_nan=False, allow_infinity=False)
singles = st.floats(allow_nan=False, allow_infinity=False, width=32)


@cache
def sorted_values(format: Format) -> tuple[list[Fraction], list[int]]:
    """Finite values in ascending order with their codes, -0 left out."""
    pairs = {}
    for code, value in enumerate(format.table.tolist()):
        if np.isfinite(value):
            pairs.setdefault(value, code)
    values = sorted(pairs)
    return [Fraction(value) for value in values], [pairs[value] for value in values]


@st.composite
def near_values(draw: st.DrawFn, format: Format) -> float:
    """A number at, halfway between or a hair beside neighbouring values of a format: where rounding is decided."""
    values, _ = sorted_values(format)
    at = draw(st.integers(0, len(values) - 2))
    low, high = values[at], values[at + 1]
    point = float(low + (high - low) * draw(st.sampled_from([Fraction(0), Fraction(1, 2), Fraction(1, 4)])))
    return float(np.nextafter(point, draw(st.sampled_from([-np.inf, point, np.inf]))))


@st.composite
def problems(draw: st.DrawFn, source: st.SearchStrategy[Format] = formats) -> tuple[Format, float]:
    format = draw(source)
    return format, draw(st.one_of(near_values(format), doubles, st.integers(-(2**70), 2**70).map(float)))


def definition(value: float, format: Format, rounding: str) -> Fraction:
    """The value that `rounding` chooses from the sorted list: no bit patterns, no arithmetic but comparison."""
    values, codes = sorted_values(format)
    exact = Fraction(value)
    exact = min(max(exact, values[0]), values[-1])
    at = bisect_left(values, exact)
    if values[at] == exact:
        return exact
    low, high = values[at - 1], values[at]
    inner, outer = (low, high) if exact > 0 else (high, low)
    if rounding in DIRECTED:
        return {"toward-zero": inner, "up": high, "down": low}[rounding]
    distance = (exact - low) - (high - exact)
    if distance != 0:
        return high if distance > 0 else low
    even = high if codes[at] % 2 == 0 else low
    return outer if rounding == "ties-away" else even


@given(problem=problems(), rounding=roundings)
def test_rounding_is_the_slow_definition(problem: tuple[Format, float], rounding: str) -> None:
    format, value = problem
    code = encode(value, format, rounding=rounding, overflow=SATURATE)
    assert Fraction(float(decode(code, format))) == definition(value, format, rounding)


@given(format=formats)
def test_encode_inverts_decode(format: Format) -> None:
    """Every code that is a number comes back, -0 with its sign; NaN codes give the NaN."""
    codes = np.arange(format.code_limit).astype(format.code_dtype)
    values = decode(codes, format)
    again = encode(values, format, overflow="inf" if format.has_infinity else SATURATE)
    number = ~np.isnan(values)
    np.testing.assert_array_equal(again[number], codes[number])
    if format.has_nan:
        assert set(again[~number].tolist()) == {format.nan_code}


@given(format=formats, rounding=roundings, values=st.lists(doubles, min_size=2, max_size=40))
def test_encode_is_monotonic(format: Format, rounding: str, values: list[float]) -> None:
    ordered = np.sort(np.array(values))
    rounded = decode(encode(ordered, format, rounding=rounding), format)
    assert np.all(rounded[1:] >= rounded[:-1])


@given(problem=problems())
def test_directed_roundings_bracket(problem: tuple[Format, float]) -> None:
    """Within the range: down <= value <= up, every other rounding gives one of the two, toward-zero the inner one."""
    format, value = problem
    inside = min(max(value, format.min_value), format.max_value)
    low, high, inner, nearest, away = (
        float(decode(encode(inside, format, rounding=rounding), format))
        for rounding in ("down", "up", "toward-zero", "nearest-even", "ties-away")
    )
    assert low <= inside <= high
    assert {nearest, away} <= {low, high}
    assert inner == (low if inside > 0 else high)


@given(format=formats, rounding=roundings, values=st.lists(singles, min_size=1, max_size=40))
def test_float32_and_float64_inputs_agree(format: Format, rounding: str, values: list[float]) -> None:
    array = np.array(values, np.float32)
    np.testing.assert_array_equal(
        encode(array, format, rounding=rounding), encode(array.astype(np.float64), format, rounding=rounding)
    )


@given(
    format=narrow_formats,
    rounding=roundings,
    overflow=st.sampled_from([SATURATE, NAN]),
    patterns=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=200),
)
def test_tables_equal_the_exact_core_on_float32(
    format: Format, rounding: str, overflow: str, patterns: list[int]
) -> None:
    rule = EncodingRule(format, rounding, overflow if format.has_nan else SATURATE, format.max_code, 1)
    values = np.array(patterns, np.uint32).view(np.float32)
    with np.errstate(invalid="ignore"):
        exact = encode_exact(values.astype(np.float64), rule)
    np.testing.assert_array_equal(encode_rule(values, rule), exact)


@given(problem=problems(narrow_formats), rounding=roundings)
def test_tables_equal_the_exact_core_on_float64(problem: tuple[Format, float], rounding: str) -> None:
    format, value = problem
    rule = EncodingRule(format, rounding, SATURATE, format.max_code, 1)
    values = np.array([value, -value, np.nextafter(value, 0)])
    np.testing.assert_array_equal(encode_rule(values, rule), encode_exact(values, rule))


@given(patterns=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=200), format=st.sampled_from([F16, BF16]))
def test_short_cuts_for_halves_equal_the_exact_core(patterns: list[int], format: Format) -> None:
    values = np.array(patterns, np.uint32).view(np.float32)
    assert format.nan_code is not None
    rule = EncodingRule(format, "nearest-even", "inf", format.nan_code, format.nan_code)
    with np.errstate(invalid="ignore"):
        exact = encode_exact(values.astype(np.float64), rule)
    np.testing.assert_array_equal(encode_rule(values, rule), exact)


@given(
    format=st.sampled_from(NARROW),
    container=st.sampled_from(CONTAINERS),
    rows=st.integers(0, 3),
    groups=st.integers(0, 9),
    bits=st.randoms(use_true_random=False),
)
def test_unpack_inverts_pack(format: Format, container: str, rows: int, groups: int, bits) -> None:  # type: ignore[no-untyped-def]
    codes = np.array(
        [[bits.randrange(format.code_limit) for _ in range(4 * groups)] for _ in range(rows)], np.uint8
    ).reshape(rows, 4 * groups)
    packed = pack(codes, format, container)
    np.testing.assert_array_equal(unpack(packed, format, container), codes)
    if container == DENSE and format.bits in (4, 6, 8):
        assert packed.nbytes * 8 == codes.size * format.bits
    if container == BYTE:
        np.testing.assert_array_equal(packed, codes)


def gathered(name: str, element: int, fields: np.ndarray) -> np.ndarray:
    """Random registers that show each of `fields` to one element of a row."""
    positions = CONVERSIONS[name].random_positions[element]
    registers = np.zeros_like(fields)
    for place, position in enumerate(reversed(positions)):
        registers |= ((fields >> np.uint32(place)) & np.uint32(1)) << np.uint32(position)
    np.testing.assert_array_equal(gather_bits(registers, positions), fields)
    return registers


@given(name=st.sampled_from(STOCHASTIC_NAMES), element=st.integers(0, 3), problem=st.data())
def test_stochastic_rounding_is_fair(name: str, element: int, problem: st.DataObject) -> None:
    """Over all random fields: only the two neighbours occur, and their mean is the value cut to the field's resolution.

    The field is added to the top of the discarded bits, so a value is represented to 2^-width of its ulp; where it has
    no finer bits the mean is the value itself.
    """
    row = CONVERSIONS[name]
    element %= row.elements
    limit = row.to.max_value
    value = np.float32(abs(problem.draw(near_values(row.to).filter(lambda near: abs(near) < limit), label="value")))
    width = len(row.random_positions[element])
    fields = np.arange(1 << width, dtype=np.uint32)
    operands = [np.float32(1)] * row.elements
    operands[element] = value
    registers = convert(name, *operands, random_bits=gathered(name, element, fields))
    slot = 8 * row.result_dtype.itemsize // row.elements
    codes = (registers >> (slot * (row.elements - 1 - element))) & ((1 << slot) - 1)
    low, high = (int(encode(value, row.to, rounding=rounding)) for rounding in ("down", "up"))
    assert set(np.unique(codes).tolist()) <= {low, high}
    if low != high:
        below, above = (Fraction(float(decode(code, row.to))) for code in (low, high))
        share = (Fraction(float(value)) - below) / (above - below)
        assert int(np.count_nonzero(codes == high)) == int(share * (1 << width))


@given(value=doubles)
def test_mxint8_is_nearest_even_of_sixty_fourths(value: float) -> None:
    """Python's round is to even and exact over fractions."""
    steps = min(max(round(Fraction(value) * 64), -128), 127)
    assert int(encode(value, MXINT8)) == steps & 0xFF
