"""Laws of refsim.numerics.ieee: every function against exact rational arithmetic and one rounding by integers."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsim.numerics import ieee
from refsim.reference import rational_float
from refsim.reference.rational_float import GRIDS, Binary, ExactNumber
from refsim.testing.strategies import share

MODES = ("rn", "rz", "rm", "rp")
INTEGRAL = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}
INTEGERS = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")
F16, BF16, F32, F64 = (GRIDS[name] for name in ("f16", "bf16", "f32", "f64"))
NAMES = {grid: name for name, grid in GRIDS.items()}
DTYPES = {F16: np.float16, BF16: np.uint16, F32: np.float32, F64: np.float64}


def width(grid: Binary) -> int:
    return grid.sign.bit_length()


def is_nan(grid: Binary, pattern: int) -> bool:
    return grid.decode(pattern).is_nan


def title(part: object) -> object:
    """The name of a grid, for the ids of tests."""
    return NAMES[part] if isinstance(part, Binary) else part


@dataclass(frozen=True)
class Operation:
    """One operation: the function under test, its exact value, how many operands, whose NaN f64 passes on first."""

    function: Callable[..., np.ndarray]
    value: Callable[..., ExactNumber]
    operands: int
    priority: tuple[int, ...]


OPERATIONS = {
    "add": Operation(ieee.add, rational_float.add, 2, (1, 0)),
    "sub": Operation(ieee.sub, lambda x, y, mode: rational_float.add(x, rational_float.negated(y), mode), 2, (1, 0)),
    "mul": Operation(ieee.mul, lambda x, y, mode: rational_float.mul(x, y), 2, (1, 0)),
    "fma": Operation(ieee.fma, rational_float.fma, 3, (1, 2, 0)),
    "div": Operation(ieee.div, lambda x, y, mode: rational_float.div(x, y), 2, (0, 1)),
    "rcp": Operation(ieee.rcp, lambda x, mode: rational_float.div(rational_float.ONE, x), 1, (0,)),
    "sqrt": Operation(ieee.sqrt, lambda x, mode: rational_float.sqrt(x), 1, (0,)),
}
CASES = [(name, grid) for name in OPERATIONS for grid in (F32, F64)]
CASES += [(name, grid) for name in ("add", "sub", "mul", "fma") for grid in (F16, BF16)]


def modes_of(grid: Binary) -> tuple[str, ...]:
    return MODES if grid in (F32, F64) else ("rn",)


def _nan_pattern(grid: Binary, operands: tuple[int, ...], priority: tuple[int, ...]) -> int:
    if grid is not F64:
        return grid.sign - 1
    found = [operands[i] | 1 << 51 for i in priority if is_nan(grid, operands[i])]
    return found[0] if found else 0xFFF8 << 48


def _flush(grid: Binary, pattern: int) -> int:
    return pattern if pattern & grid.infinity else pattern & grid.sign


def defined(name: str, grid: Binary, operands: tuple[int, ...], mode: str, *, ftz: bool = False) -> int:
    """The pattern that the operation must give, from rationals."""
    operation = OPERATIONS[name]
    if ftz:
        operands = tuple(_flush(grid, pattern) for pattern in operands)
    exact = operation.value(*map(grid.decode, operands), mode)
    return _nan_pattern(grid, operands, operation.priority) if exact.is_nan else grid.encode(exact, mode, ftz=ftz)


def as_array(grid: Binary, patterns: list[int]) -> np.ndarray:
    return np.array(patterns, dtype=f"u{width(grid) // 8}").view(DTYPES[grid])


def as_patterns(array: np.ndarray) -> list[int]:
    return [int(pattern) for pattern in array.view(f"u{array.dtype.itemsize}").ravel()]


def assert_defined(name: str, grid: Binary, lanes: list[tuple[int, ...]], mode: str, *, ftz: bool = False) -> None:
    columns = [as_array(grid, list(column)) for column in zip(*lanes, strict=True)]
    options = {"ftz": True} if ftz else {}
    got = as_patterns(OPERATIONS[name].function(*columns, mode, **options))
    want = [defined(name, grid, lane, mode, ftz=ftz) for lane in lanes]
    wrong = [(*map(hex, lane), hex(g), hex(w)) for lane, g, w in zip(lanes, got, want, strict=True) if g != w]
    assert not wrong, f"{name}.{mode}.{NAMES[grid]}{' ftz' * ftz}: (operands, got, want) {wrong[:5]}"


def corners(grid: Binary) -> list[int]:
    """Patterns where rounding, range and special values change, of both signs."""
    m, one = grid.mantissa_bits, ((1 << (grid.exponent_bits - 1)) - 1) << grid.mantissa_bits
    low = [0, 1, 2, 3, (1 << m) - 1, 1 << m, (1 << m) + 1, (2 << m) + 1]
    middle = [one - 2, one - 1, one, one + 1, one + 2, one + (1 << m) - 1, one + (1 << (m // 2)), one - (1 << (m // 2))]
    far = [one - (m << m), one + (m << m), one - ((m + 1) << m) + 1, one + ((m + 1) << m), one // 2, one + one // 2]
    high = [grid.infinity - 1, grid.infinity - (1 << m), grid.infinity]
    nan = [grid.infinity + 1, grid.infinity | 1 << (m - 1), grid.sign - 1]
    return [pattern | sign for pattern in low + middle + far + high + nan for sign in (0, grid.sign)]


@st.composite
def lanes_of(draw: st.DrawFn, grid: Binary, operands: int) -> list[tuple[int, ...]]:
    """Operand patterns, corners and sparse mantissas weighted in; a third operand that often cancels the product."""
    m = grid.mantissa_bits
    one = (1 << (grid.exponent_bits - 1)) - 1
    any_pattern = st.integers(0, (1 << width(grid)) - 1)
    sparse = st.builds(
        lambda field, bit, other, sign: field << m | 1 << bit | 1 << other | sign,
        st.integers(0, (1 << grid.exponent_bits) - 2),
        st.integers(0, m - 1),
        st.integers(0, m - 1),
        st.sampled_from([0, grid.sign]),
    )
    close = st.builds(
        lambda field, fraction, sign: (one + field) << m | fraction | sign,
        st.integers(-3, 3),
        st.integers(0, (1 << m) - 1),
        st.sampled_from([0, grid.sign]),
    )
    pattern = st.one_of(st.sampled_from(corners(grid)), any_pattern, sparse, close)
    lanes = draw(st.lists(st.tuples(*[pattern] * operands), min_size=1, max_size=10))
    if operands < 3 or not draw(st.booleans()):
        return lanes
    steps = draw(st.integers(-2, 2))
    product = [defined("mul", grid, lane[:2], "rn") for lane in lanes]
    return [
        (a, b, max((p ^ grid.sign) + steps, 0) % (1 << width(grid)))
        for (a, b, _), p in zip(lanes, product, strict=True)
    ]


@pytest.mark.parametrize(("name", "grid"), CASES, ids=title)
@share(3 / 5)
@given(draws=st.data())
def test_operation_is_the_exact_value_rounded_once(name: str, grid: Binary, draws: st.DataObject) -> None:
    ftz = grid in (F32, F16) and draws.draw(st.booleans())
    mode = draws.draw(st.sampled_from(modes_of(grid)))
    assert_defined(name, grid, draws.draw(lanes_of(grid, OPERATIONS[name].operands)), mode, ftz=ftz)


@pytest.mark.parametrize(("name", "grid"), CASES, ids=title)
def test_operation_at_pairs_of_corners(name: str, grid: Binary) -> None:
    count = OPERATIONS[name].operands
    lanes = list(itertools.product(corners(grid), repeat=min(count, 2)))
    if count == 3:
        lanes = [(a, b, c) for (a, b), c in zip(lanes, itertools.cycle([*corners(grid)[::-1], 0]), strict=False)]
    for number, mode in enumerate(modes_of(grid)):
        part = lanes if count == 1 else lanes[number :: len(modes_of(grid))]
        assert_defined(name, grid, part, mode)
        if grid in (F32, F16):
            assert_defined(name, grid, part[::3], mode, ftz=True)


@pytest.mark.parametrize("name", ["add", "mul", "fma"])
def test_half_precision_on_a_grid_of_all_exponents(name: str) -> None:
    patterns = np.arange(0, 1 << 16, 331, dtype=np.uint16)
    a, b = (side.ravel() for side in np.meshgrid(patterns, patterns))
    count = OPERATIONS[name].operands
    chosen = np.random.default_rng(3).permutation(a.size)[:4000]
    columns = [a[chosen], b[chosen], np.roll(a[chosen], 7)][:count]
    assert_defined(name, F16, list(zip(*(column.tolist() for column in columns), strict=True)), "rn")


@pytest.mark.parametrize("grid", [F32, F64], ids=title)
@pytest.mark.parametrize(
    ("name", "function"), [("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("div", np.divide)]
)
@given(draws=st.data())
def test_nearest_operation_is_that_of_the_processor(
    name: str, function: np.ufunc, grid: Binary, draws: st.DataObject
) -> None:
    a, b = (as_array(grid, list(c)) for c in zip(*draws.draw(lanes_of(grid, 2)), strict=True))
    with np.errstate(all="ignore"):
        want = function(a, b)
    got = OPERATIONS[name].function(a, b)
    number = ~np.isnan(want)
    assert (np.isnan(got) == ~number).all()
    assert as_patterns(got[number]) == as_patterns(want[number])


def _define_extremum(
    grid: Binary, lane: tuple[int, ...], largest: bool, *, nan: bool, xorsign: bool, absolute: bool
) -> int:
    terms = tuple(pattern & (grid.sign - 1) for pattern in lane) if absolute else lane
    exact = rational_float.extremum([grid.decode(pattern) for pattern in terms], largest, nan=nan)
    if exact.is_nan:
        return _nan_pattern(grid, terms, tuple(range(len(terms)))[::-1])
    return grid.encode(exact) | ((lane[0] ^ lane[1]) & grid.sign if xorsign else 0)


@st.composite
def modifiers(draw: st.DrawFn, grid: Binary, operands: int) -> dict[str, bool]:
    """The modifiers of min and max that PTX has for the format."""
    absolute = draw(st.booleans())
    return {
        "absolute": absolute,
        "xorsign": absolute and operands == 2 and draw(st.booleans()),
        "nan": grid is not F64 and draw(st.booleans()),
        "ftz": grid in (F32, F16) and draw(st.booleans()),
    }


@pytest.mark.parametrize("grid", GRIDS.values(), ids=title)
@pytest.mark.parametrize("largest", [False, True], ids=["min", "max"])
@given(draws=st.data(), operands=st.integers(2, 3))
def test_extremum_orders_zeros_and_handles_nan(
    grid: Binary, largest: bool, draws: st.DataObject, operands: int
) -> None:
    lanes = draws.draw(lanes_of(grid, operands))
    options = draws.draw(modifiers(grid, operands))
    columns = [as_array(grid, list(column)) for column in zip(*lanes, strict=True)]
    got = (ieee.maximum if largest else ieee.minimum)(*columns, **options)
    if options.pop("ftz"):
        lanes = [tuple(_flush(grid, pattern) for pattern in lane) for lane in lanes]
    assert as_patterns(got) == [_define_extremum(grid, lane, largest, **options) for lane in lanes]


@pytest.mark.parametrize("grid", GRIDS.values(), ids=title)
@given(draws=st.data(), comparison=st.sampled_from(ieee.COMPARISONS), ftz=st.booleans())
def test_comparison_is_that_of_the_exact_values(grid: Binary, draws: st.DataObject, comparison: str, ftz: bool) -> None:
    ftz = ftz and grid in (F32, F16)
    lanes = draws.draw(lanes_of(grid, 2))
    a, b = (as_array(grid, list(column)) for column in zip(*lanes, strict=True))
    want = []
    for x, y in lanes:
        unordered = is_nan(grid, x) or is_nan(grid, y)
        if comparison in ("num", "nan"):
            want.append(unordered == (comparison == "nan"))
        elif unordered:
            want.append(comparison.endswith("u"))
        else:
            left, right = (grid.decode(_flush(grid, p) if ftz else p).signed for p in (x, y))
            holds = {
                "eq": left == right,
                "ne": left != right,
                "lt": left < right,
                "le": left <= right,
                "gt": left > right,
                "ge": left >= right,
            }
            want.append(holds[comparison[:2]])
    assert ieee.compare(comparison, a, b, ftz=ftz).tolist() == want


@pytest.mark.parametrize("source", GRIDS.values(), ids=title)
@given(draws=st.data(), target=st.sampled_from(list(GRIDS.values())), mode=st.sampled_from((*MODES, "rna")))
def test_conversion_between_floats_rounds_once(source: Binary, target: Binary, draws: st.DataObject, mode: str) -> None:
    lanes = [lane for lane in draws.draw(lanes_of(source, 1)) if not is_nan(source, lane[0])] or [(0,)]
    got = as_patterns(ieee.float_to_float(as_array(source, [p for (p,) in lanes]), NAMES[target], mode))
    assert got == [target.encode(source.decode(p), mode) for (p,) in lanes]


@pytest.mark.parametrize("grid", GRIDS.values(), ids=title)
@given(draws=st.data(), mode=st.sampled_from(list(INTEGRAL)), to=st.sampled_from(INTEGERS))
def test_conversion_to_integer_rounds_and_clamps(grid: Binary, mode: str, draws: st.DataObject, to: str) -> None:
    lanes = draws.draw(lanes_of(grid, 1))
    limits = np.iinfo(to)
    want = []
    for (pattern,) in lanes:
        number = grid.decode(pattern)
        if number.is_nan:
            top = 1 << (limits.bits - 1)
            want.append((-top if to[0] == "i" else top) if grid is F64 or limits.bits == 64 else 0)
            continue
        if number.is_infinite:
            want.append(int(limits.min if number.negative else limits.max))
            continue
        whole = INTEGRAL[mode](number.signed)
        want.append(min(max(whole, int(limits.min)), int(limits.max)))
    got = ieee.float_to_integer(as_array(grid, [p for (p,) in lanes]), to, mode)
    assert got.dtype == np.dtype(to)
    assert got.tolist() == want


@pytest.mark.parametrize("grid", GRIDS.values(), ids=title)
@given(draws=st.data(), mode=st.sampled_from(MODES), source=st.sampled_from(INTEGERS))
def test_conversion_from_integer_rounds_once(grid: Binary, mode: str, draws: st.DataObject, source: str) -> None:
    limits = np.iinfo(source)
    near_power = st.builds(
        lambda power, half, step, sign: sign * ((1 << power) + (1 << power >> half) + step),
        st.integers(0, limits.bits),
        st.integers(1, 60),
        st.integers(-1, 1),
        st.sampled_from([1, -1]),
    )
    number = st.one_of(st.integers(int(limits.min), int(limits.max)), near_power)
    values = [min(max(n, int(limits.min)), int(limits.max)) for n in draws.draw(st.lists(number, min_size=1))]
    got = as_patterns(ieee.integer_to_float(np.array(values, source), NAMES[grid], mode))
    assert got == [grid.encode(ExactNumber(n < 0, Fraction(abs(n))), mode) for n in values]


@pytest.mark.parametrize("grid", GRIDS.values(), ids=title)
@given(draws=st.data(), mode=st.sampled_from(list(INTEGRAL)))
def test_integral_rounding_keeps_the_sign_of_zero(grid: Binary, mode: str, draws: st.DataObject) -> None:
    lanes = [lane for lane in draws.draw(lanes_of(grid, 1)) if not is_nan(grid, lane[0])] or [(0,)]
    got = as_patterns(ieee.round_to_integral(as_array(grid, [p for (p,) in lanes]), mode))
    want = []
    for (pattern,) in lanes:
        number = grid.decode(pattern)
        whole = 0 if number.is_infinite else INTEGRAL[mode](number.signed)
        want.append(pattern if number.is_infinite else grid.encode(ExactNumber(number.negative, Fraction(abs(whole)))))
    assert got == want


@pytest.mark.parametrize("grid", [F16, BF16, F32], ids=title)
@given(draws=st.data())
def test_clamping_follows_the_rounding(grid: Binary, draws: st.DataObject) -> None:
    lanes = draws.draw(lanes_of(grid, 3))
    columns = [as_array(grid, list(column)) for column in zip(*lanes, strict=True)]
    one = ((1 << (grid.exponent_bits - 1)) - 1) << grid.mantissa_bits
    plain = [defined("fma", grid, lane, "rn") for lane in lanes]
    clamped = [0 if is_nan(grid, p) or p & grid.sign else min(p, one) for p in plain]
    rectified = [0 if p & grid.sign else p for p in plain]
    if grid is not BF16:
        assert as_patterns(ieee.fma(*columns, sat=True)) == clamped
    if grid is not F32:
        assert as_patterns(ieee.fma(*columns, relu=True)) == rectified


def _fma_with_two_roundings(a: np.ndarray, b: np.ndarray, c: np.ndarray, mode: str) -> np.ndarray:
    return (a.astype(np.float64) * b + c).astype(a.dtype)


def _fma_in_float32(a: np.ndarray, b: np.ndarray, c: np.ndarray, mode: str) -> np.ndarray:
    return (a.astype(np.float32) * b + c).astype(np.float16)


def _fma_by_parts(a: np.ndarray, b: np.ndarray, c: np.ndarray, mode: str) -> np.ndarray:
    return ieee.add(ieee.mul(a, b), c)


def _add_to_nearest(a: np.ndarray, b: np.ndarray, mode: str) -> np.ndarray:
    return (a.astype(np.float64) + b).astype(np.float32)


def _add_without_directed_zero(a: np.ndarray, b: np.ndarray, mode: str) -> np.ndarray:
    return ieee.add(a, b, mode) + np.float32(0.0)


def _mul_that_flushes_late(a: np.ndarray, b: np.ndarray, mode: str, *, ftz: bool) -> np.ndarray:
    product = ieee.mul(a, b, mode)
    return np.where(np.abs(product) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), product), product)


@dataclass(frozen=True)
class Mutant:
    """A plausible wrong implementation, and operands where the definition tells it from the right one."""

    name: str
    grid: Binary
    mode: str
    lane: tuple[int, ...]
    function: Callable[..., np.ndarray]
    ftz: bool = False


MUTANTS = [
    # 24929 * 673 = 2^24 + 1 is a midpoint of f32, and 2^-30 beyond it is lost in float64.
    Mutant("fma", F32, "rn", (0x46C2C200, 0x44284000, 0x30800000), _fma_with_two_roundings),
    Mutant("fma", F32, "rn", (0x46C2C200, 0x44284000, 0x30800000), _fma_by_parts),
    # 2^-150 (1 - 2^-46) is less than half a unit of the subnormal range, and float64 makes it half beside 2^-127.
    Mutant("fma", F32, "rn", (0x1A000001, 0x19FFFFFE, 0x00400001), _fma_with_two_roundings),
    Mutant("fma", F32, "rn", (0x1A000001, 0x19FFFFFE, 0x007FFFFF), _fma_with_two_roundings),
    # (1 + 2^-27)^2 - (1 + 2^-26) is 2^-54.
    Mutant("fma", F64, "rn", (0x3FF0000002000000, 0x3FF0000002000000, 0xBFF0000004000000), _fma_by_parts),
    # 3 * 683 = 2049 is a midpoint of f16, and 2^-14 beyond it is lost in float32.
    Mutant("fma", F16, "rn", (0x4200, 0x6156, 0x0400), _fma_in_float32),
    Mutant("add", F32, "rz", (0x3F800000, 0x33C00000), _add_to_nearest),
    Mutant("add", F32, "rm", (0x3F800000, 0xBF800000), _add_without_directed_zero),
    Mutant("mul", F32, "rn", (0x00800000, 0x3F7FFFFF), _mul_that_flushes_late, ftz=True),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.function.__name__[1:] + "_" + NAMES[mutant.grid])
def test_definition_catches_a_mutant(monkeypatch: pytest.MonkeyPatch, mutant: Mutant) -> None:
    def check() -> None:
        assert_defined(mutant.name, mutant.grid, [mutant.lane], mutant.mode, ftz=mutant.ftz)

    check()
    monkeypatch.setitem(OPERATIONS, mutant.name, replace(OPERATIONS[mutant.name], function=mutant.function))
    with pytest.raises(AssertionError, match=mutant.name):
        check()
