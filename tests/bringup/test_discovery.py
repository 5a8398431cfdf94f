"""Discovery against tensor cores whose parameters are known: every truncated row, and cores that nobody makes."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from refsim.bringup.discovery import discover
from refsim.conversions import decode, encode
from refsim.errors import RefsimError
from refsim.formats import format_named
from refsim.numerics.dot.chains import Operands, matrix_product
from refsim.numerics.methods import ASCENDING, BYTE_PAIRS, EARLY, LATE, RNE_F16, RNE_F32, RZ_E8M13, RZ_F32, TRUNCATED
from refsim.numerics.profiles import PROFILES, profile

KNOWN = [row for row in PROFILES if row.method == TRUNCATED and not row.scales]


def core(row, k, a_format=None, b_format=None):
    """A tensor core that computes as the definition's arrays say for a row, all its dot products at once."""
    formats = {"a_format": a_format or row.a_formats[0], "b_format": b_format or row.b_formats[0]}

    def dots(a, b, c):
        operands = Operands(a[:, None], b[:, None], **formats)
        return matrix_product(operands, c[:, None, None], row, k)[:, 0, 0]

    return dots


def found(row, k):
    return discover(core(row, k), row.a_formats[0], row.b_formats[0], row.d_format, k)


def unseen_parameters(discovery):
    return {line.partition(":")[0] for line in discovery.unseen}


def check(row, k):
    """Everything that was seen is what the row says, and everything else is named as unseen."""
    discovery = found(row, k)
    assert discovery.contradicts(row) == [], discovery
    missing = {name for name, value in discovery.parameters().items() if value is None}
    assert {"steps" if name in ("order", "length") else name for name in missing} == unseen_parameters(discovery)
    return discovery


@pytest.mark.parametrize("row", KNOWN, ids=lambda row: row.name)
def test_the_parameters_of_every_known_core_are_found(row):
    k = max(row.k)
    discovery = check(row, k)
    assert discovery.fraction == row.fraction
    assert discovery.c_enters == row.c_enters
    assert discovery.steps == tuple(map(tuple, row.steps(k)))
    assert discovery.rounding == row.rounding
    least = 2 * math.log2(row.a_formats[0].quantum)  # a product that is cut beside a zero tells where the zero stands
    is_seen = least < row.zero_exponent - row.fraction
    assert discovery.zero_exponent == (row.zero_exponent if is_seen else None)


MADE = [
    ("bf16", "f32", 4, 16, 24, RZ_F32, -132),
    ("bf16", "f32", 8, 8, 30, RZ_F32, -140),
    ("bf16", "f32", 16, 64, 14, RZ_E8M13, -133),
    ("bf16", "f32", 32, 32, 20, RNE_F32, -131),
    ("tf32", "f32", 4, 8, 26, RNE_F32, -128),
    ("f16", "f32", 64, 64, 22, RZ_F32, -133),
    ("f16", "f32", 8, 16, 28, RNE_F32, -133),
    ("f16", "f32", 8, 8, 12, RZ_F32, -133),
    ("bf16", "f32", 8, 8, 25, RZ_F32, -155),
    ("f16", "f16", 16, 16, 12, RNE_F16, -19),
    ("e4m3", "f32", 64, 64, 13, RZ_E8M13, -133),
    ("e4m3", "f32", 16, 32, 10, RZ_E8M13, -132),
    ("e4m3", "f32", 8, 32, 30, RZ_F32, -132),
    ("e5m2", "f32", 32, 32, 25, RZ_F32, -133),
    ("e5m2", "f16", 4, 32, 17, RNE_F16, -20),
]


def made(format, d_format, length, fraction, rounding, zero, **changes):
    """A row that no chip has."""
    like = profile("sm_90", "mma.sync", "f16", "f16", d_format)
    return replace(
        like,
        a_formats=(format_named(format),),
        b_formats=(format_named(format),),
        length=length,
        fraction=fraction,
        rounding=rounding,
        zero_exponent=zero,
        **changes,
    )


@pytest.mark.parametrize("c_enters", [EARLY, LATE])
@pytest.mark.parametrize(("format", "d", "length", "k", "fraction", "rounding", "zero"), MADE)
def test_the_parameters_of_a_core_that_nobody_makes_are_found(format, d, length, k, fraction, rounding, zero, c_enters):
    row = made(format, d, length, fraction, rounding, zero, c_enters=c_enters)
    discovery = check(row, k)
    assert (discovery.fraction, discovery.length, discovery.c_enters) == (fraction, length, c_enters)


@pytest.mark.parametrize("c_enters", [EARLY, LATE])
def test_byte_pairs_are_told_from_ascending_chunks(c_enters):
    row = made("e4m3", "f32", 16, 25, RZ_F32, -133, order=BYTE_PAIRS, c_enters=c_enters)
    assert check(row, 32).order == BYTE_PAIRS


def test_what_cannot_be_seen_is_said():
    """13 bits below the largest exponent and 23 kept: no sum is long enough to be rounded."""
    discovery = check(made("e4m3", "f32", 16, 13, RZ_F32, -133), 16)
    assert discovery.rounding is None
    assert discovery.zero_exponent is None
    assert any("no sum has more than 17 bits" in line for line in discovery.unseen)
    assert str(discovery) == "L = 16, order = ascending, C = early, F = 13"


def test_narrow_products_cannot_show_the_steps():
    discovery = discover(core(made("e2m1", "f32", 32, 25, RZ_F32, -133), 64), "e2m1", "e2m1", "f32", 64)
    assert discovery.steps is None
    assert any("products span 2^-2 to 2^4" in line for line in discovery.unseen)


@pytest.mark.parametrize(
    ("format", "d", "k", "length", "fraction", "rounding", "zero"),
    [
        ("e2m3", "f32", 16, 8, 14, RZ_F32, -133),  # cut at 14 bits by every step: not a rounding to 14
        ("e3m2", "f32", 32, 8, 19, RNE_F32, -135),
        ("e2m1", "f32", 32, 16, 11, RZ_E8M13, -133),
        ("e2m1", "f16", 16, 1, 34, RNE_F16, -21),  # a result of f16 between steps has 10 bits
        ("e2m3", "f32", 16, 1, 34, RZ_F32, -133),
    ],
)
def test_without_steps_no_fraction_is_taken_from_the_results_between_them(
    format, d, k, length, fraction, rounding, zero
):
    discovery = check(made(format, d, length, fraction, rounding, zero), k)
    assert (discovery.steps, discovery.fraction, discovery.rounding) == (None, None, None)
    assert any("fraction: needs the steps" in line for line in discovery.unseen)


def test_without_steps_more_bits_than_a_result_has_are_the_fraction():
    discovery = check(made("e2m1", "f32", 16, 25, RZ_F32, -133), 32)
    assert (discovery.steps, discovery.fraction, discovery.rounding) == (None, 25, RZ_F32)


@pytest.mark.parametrize(
    ("format", "k", "length", "fraction", "zero", "c_enters"),
    [
        ("f16", 8, 2, 17, -133, EARLY),  # two subnormal factors are cut 17 bits below 2^-28
        ("f16", 16, 8, 10, -129, EARLY),
        ("e5m2", 16, 2, 31, 0, LATE),
        ("bf16", 16, 8, 28, -28, EARLY),
        ("tf32", 8, 4, 27, -15, LATE),
    ],
)
def test_products_that_are_cut_even_alone_are_not_used(format, k, length, fraction, zero, c_enters):
    discovery = check(made(format, "f32", length, fraction, RZ_F32, zero, c_enters=c_enters), k)
    assert discovery.length == length
    assert discovery.fraction in (fraction, None)


@pytest.mark.parametrize(
    ("format", "k", "fraction"), [("f16", 32, 38), ("e3m2", 8, 38), ("e2m3", 16, 38), ("e2m1", 16, 29)]
)
def test_a_c_that_no_distance_of_f16_can_hide_is_not_called_late(format, k, fraction):
    assert check(made(format, "f16", 4, fraction, RNE_F16, -21), k).c_enters is None


def test_c_after_a_rounding_to_f16_is_late():
    assert check(made("e3m2", "f16", 4, 30, RNE_F16, -21, c_enters=LATE), 8).c_enters == LATE


@pytest.mark.parametrize("c_enters", [EARLY, LATE])
@pytest.mark.parametrize("apart", [2, 4, 8])
def test_steps_that_take_every_other_place_are_found(c_enters, apart):
    """A core of 16 products whose step i holds the places i, i + apart, i + 2 apart, ..."""
    straight = core(made("bf16", "f32", 16 // apart, 20, RZ_F32, -133, c_enters=c_enters), 16)
    places = np.arange(16).reshape(-1, apart).T.ravel()
    found_steps = discover(lambda a, b, c: straight(a[:, places], b[:, places], c), "bf16", "bf16", "f32", 16).steps
    assert found_steps == tuple(tuple(range(i, 16, apart)) for i in range(apart))


def test_single_products_before_a_late_c_are_not_paired():
    discovery = check(made("bf16", "f32", 1, 24, RZ_F32, -133, c_enters=LATE), 4)
    assert discovery.steps is None


def rational(fraction, kept, direction):
    """A core over fractions, written without the model: one step, cut to `fraction` bits, rounded in any direction."""

    def dots(a, b, c):
        results = []
        for terms, addend in zip(decode(a, "bf16") * decode(b, "bf16"), decode(c, "f32"), strict=True):
            numbers = [Fraction(float(x)) for x in [*terms, addend] if x]
            if not numbers:
                results.append(0.0)
                continue
            top = max(_floor_log(abs(number)) for number in numbers)
            quantum = Fraction(2) ** (top - fraction)
            total = sum(int(number / quantum) for number in numbers) * quantum
            results.append(float(_rounded(total, kept, direction)))
        return encode(np.array(results), "f32")

    return dots


def _floor_log(value):
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    return exponent if Fraction(2) ** exponent <= value else exponent - 1


def _rounded(total, kept, direction):
    if total == 0:
        return Fraction(0)
    unit = Fraction(2) ** (_floor_log(abs(total)) - kept)
    units = abs(total) / unit
    floor, rest = int(units), units - int(units)
    half = Fraction(1, 2)
    grows = {
        "toward-zero": False,
        "nearest-even": rest > half or (rest == half and floor % 2 == 1),
        "up": rest > 0 and total > 0,
        "down": rest > 0 and total < 0,
        "away-from-zero": rest > 0,
        "nearest, ties away": rest >= half,
        "nearest, ties to zero": rest > half,
        "to-odd": rest > 0 and floor % 2 == 0,
    }[direction]
    return (floor + grows) * unit * (1 if total > 0 else -1)


@pytest.mark.parametrize("kept", [11, 16, 23])
@pytest.mark.parametrize(
    "direction",
    [
        "toward-zero",
        "nearest-even",
        "up",
        "down",
        "away-from-zero",
        "nearest, ties away",
        "nearest, ties to zero",
        "to-odd",
    ],
)
def test_every_direction_of_rounding_is_told_apart(direction, kept):
    discovery = discover(rational(26, kept, direction), "bf16", "bf16", "f32", 8)
    assert (discovery.direction, discovery.kept, discovery.fraction) == (direction, kept, 26)


def test_bits_that_are_lost_and_found_again_further_down_are_no_fraction():
    """A core that cuts at 12 bits, yet keeps what lies 20 bits below the largest: no number of bits says that."""
    cut, kept = rational(12, 23, "toward-zero"), rational(60, 23, "toward-zero")

    def dots(a, b, c):
        largest = np.max(np.abs(decode(a, "bf16") * decode(b, "bf16")), axis=1)
        exact = kept(a, b, c)
        return np.where(np.abs(decode(exact, "f32")) * 2.0**20 == largest, exact, cut(a, b, c))

    assert discover(cut, "bf16", "bf16", "f32", 8).fraction == 12
    discovery = discover(dots, "bf16", "bf16", "f32", 8)
    assert discovery.fraction is None
    assert "fraction" in unseen_parameters(discovery)


@pytest.mark.parametrize(
    ("change", "contradiction"),
    [
        ({"fraction": 12}, "fraction 12, not 13"),
        ({"fraction": 14}, "fraction 14, not 13"),
        ({"length": 16}, "length 16, not 32"),
        ({"rounding": RNE_F32, "fraction": 25}, "rounding rne-f32, not rz-e8m13"),
        ({"c_enters": LATE}, "c_enters late, not early"),
    ],
    ids=str,
)
def test_a_core_with_another_parameter_contradicts_the_row(change, contradiction):
    right = profile("sm_90", "wgmma", "e4m3", "e4m3", "f32")
    assert contradiction in found(replace(right, **change), 32).contradicts(right)


def test_a_core_with_other_steps_contradicts_the_row():
    right = profile("sm_90", "mma.sync", "e4m3", "e4m3", "f32")
    assert found(replace(right, order=ASCENDING), 32).contradicts(right) == ["order ascending, not byte-pairs"]


def test_other_sums_are_refused():
    with pytest.raises(RefsimError, match="f64"):
        discover(lambda a, b, c: c, "f32", "f32", "f64", 4)
