"""General shapes of a difference: planted ones are named, and differences of another kind have no shape."""

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import refsim
from refsim.causes import explain_diff
from refsim.causes.regions import seen
from refsim.causes.shapes import shapes_of
from refsim.computations.ways import Family
from refsim.formats import BF16, E4M3, F32, S32, array_type, format_named

DRAWN = np.random.default_rng(7)
VALUES = DRAWN.normal(0, 1, (64, 64))
OTHER = DRAWN.normal(0, 1, (64, 64))
ROWS, COLUMNS = DRAWN.uniform(1.5, 4, (64, 1)), DRAWN.uniform(1.5, 4, (1, 64))
BLOCKS = DRAWN.uniform(1.5, 4, (64, 4)).repeat(16, 1)
CODES = DRAWN.integers(110, 125, (64, 2)).repeat(32, 1)
EIGHT = [0, 2, 4, 6, 1, 3, 5, 7]
Change = Callable[[Any], Any]

NUMBERS: list[tuple[str, Change, str]] = [
    ("f32 bf16 f16 e4m3", lambda x: x * 1.7, r"every element is 1\.[678][0-9]*( to 1\.[678][0-9]*)? times as large"),
    ("f32 bf16 f16", lambda x: x * -1.7, "every element is -1.7 times as large"),
    ("f32 bf16", lambda x: x * np.log2(np.e), r"\(log2\(e\)\)"),
    ("f32 bf16", lambda x: x / np.sqrt(128), r"\(1 / sqrt\(128\)\)"),
    ("f32 bf16 f16", lambda x: x / 64, "every element is 0.015625 times as large"),
    ("f32 bf16 f16 e4m3", lambda x: x * ROWS, "one factor for each row"),
    ("f32 bf16 f16 e4m3", lambda x: x * COLUMNS, "one factor for each column"),
    ("f32 bf16 e4m3", lambda x: x * np.where(np.arange(64)[:, None] < 32, 2.5, 3.5), "one factor for each row"),
    ("f32 bf16 f16", lambda x: x * BLOCKS, "one factor for each block of 1 x 16"),
    ("f32 bf16", lambda x: x * CODES * 2.0 ** (127 - CODES), "E8M0 codes s were used as numbers"),
    ("f32", lambda x: np.where(np.arange(64)[:, None] < 32, x, x * ROWS), "it is 1 for 32 of 64"),
    ("f32 bf16 f16", lambda x: x + 3, "3 was added to every element"),
    ("f32 bf16 f16", lambda x: x - 2.5, "-2.5 was added to every element"),
    ("f32 bf16", lambda x: x + 10 * ROWS, "one number was added to each row"),
    ("f32 bf16 e4m3", lambda x: np.clip(x, -0.5, 0.5), "values above 0.5 are 0.5, those below -0.5 are -0.5"),
    ("f32 bf16", lambda x: np.maximum(x, 0), "^a map of values: values below 0 are 0$"),
    ("f32 bf16", lambda x: np.minimum(x, 0.5), "^a map of values: values above 0.5 are 0.5$"),
    (
        "f32 bf16 f16",
        lambda x: np.where(np.abs(x) < 0.3, 0, x),
        "magnitudes below a bound from 0.2.* to 0.3.* are zero",
    ),
    ("e4m3 e5m2", lambda x: np.where(x > 0, x * x, x), "each value always becomes the same other value"),
]
PLACES: list[tuple[Change, str]] = [
    (lambda x: x.reshape(64, 8, 8)[:, :, EIGHT].reshape(64, 64), r"columns 0 2 4 6 1 3 5 7 of every 8 \(even ones"),
    (lambda x: np.concatenate([x[:, ::2], x[:, 1::2]], 1), "columns even ones, then odd ones$"),
    (lambda x: x.reshape(64, 2, 32).swapaxes(1, 2).reshape(64, 64), "columns the two halves interleaved"),
    (lambda x: x[:, ::-1], "columns reversed"),
    (lambda x: x[::-1], "rows reversed"),
    (lambda x: np.roll(x, 3, 1), "columns rotated by 61"),
    (lambda x: x.reshape(64, 32, 2)[:, :, ::-1].reshape(64, 64), r"columns 1 0 of every 2 \(exchanged\)"),
    (lambda x: x.reshape(64, 4, 16)[:, [0, 2, 1, 3]].reshape(64, 64), "groups of 16 columns 0 2 1 3"),
    (lambda x: x.reshape(8, 8, 64)[[1, 0, 3, 2, 5, 4, 7, 6]].reshape(64, 64), "groups of 8 rows 1 0 of every 16"),
    (
        lambda x: np.stack([x[r].reshape(16, 4)[np.arange(16) ^ (r // 2 % 8)].reshape(64) for r in range(64)]),
        r"chunk c \^ f\(r\) at chunk c of row r, chunks of 4 elements .*, f = 0 0 1 1 2 2 3 3 4 4 5 5 6 6 7 7 over 16",
    ),
    (lambda x: x.reshape(8, 8, 8, 8).swapaxes(1, 2).reshape(64, 64), "bits 0 1 2 6 7 8 3 4 5 9 10 11 of A's index"),
    (lambda x: x[DRAWN.permutation(64)], "A holds B's rows in another order$"),
    (lambda x: np.stack([DRAWN.permutation(row) for row in x]), "in another order within each row"),
    (lambda x: DRAWN.permutation(x.reshape(-1)).reshape(x.shape), "A holds the values of B in another order$"),
]


def encoded(values: Any, name: str) -> Any:
    return refsim.encode(values, name)


@pytest.mark.parametrize(("name", "change", "says"), [(f, c, s) for names, c, s in NUMBERS for f in names.split()])
def test_number(name: str, change: Change, says: str) -> None:
    right = refsim.decode(encoded(VALUES, name), name)
    (named,) = shapes_of(encoded(change(right), name), encoded(right, name), format_named(name))
    assert re.search(says, str(named)), str(named)


@pytest.mark.parametrize(("change", "says"), PLACES)
def test_place(change: Change, says: str) -> None:
    right = VALUES.astype(np.float32).view(np.uint32)
    (named,) = shapes_of(np.ascontiguousarray(change(right)), right, F32)
    assert re.search(says, str(named)), str(named)


@pytest.mark.parametrize("name", ["f32", "bf16", "f16", "e4m3", "e5m2", "e2m1", "e2m3"])
def test_no_shape(name: str) -> None:
    """Other numbers, numbers nearby, other roundings and single flips of bits have no shape."""
    row, right = format_named(name), encoded(VALUES, name)
    step = 2.0 ** -(row.mantissa_bits + 1)
    pairs = {
        "other": encoded(OTHER, name),
        "near": encoded(VALUES * (1 + step * DRAWN.normal(0, 1, VALUES.shape)), name),
        "cut": refsim.encode(VALUES, name, rounding="toward_zero"),
        "added noise": encoded(VALUES + 0.01 * OTHER, name),
        "product": encoded(VALUES * OTHER, name),
    }
    few = right.copy()
    few.reshape(-1)[DRAWN.choice(few.size, 9)] ^= 1
    pairs["few"] = few
    for what, got in pairs.items():
        found = [str(each) for each in shapes_of(got, right, row)]
        if what == "cut" and found:  # what is left of a mantissa is cut in a way that every value shows
            assert "mantissa" in found[0]
            continue
        assert not found, (what, found)


CHOSEN = OTHER > 0
FLAT, OTHER_FLAT = (each[:, :1].repeat(64, 1) for each in (VALUES, OTHER))


@pytest.mark.parametrize(
    ("name", "right", "change"),
    [
        ("e4m3", 300 * VALUES, lambda x: np.where(np.abs(x) == 448, OTHER, x * 0.7)),
        ("e4m3", 300 * VALUES, lambda x: np.where(np.abs(x) == 448, OTHER, x - 37)),
        ("f32", np.where(CHOSEN, np.inf, VALUES), lambda x: np.where(CHOSEN, 3, x * 0.7)),
        ("f32", 5 * np.abs(VALUES) / 4, lambda x: np.where(CHOSEN, 0, 5)),
        ("f32", np.round(9 * FLAT), lambda x: OTHER_FLAT),
        ("s32", np.round(9 * FLAT), lambda x: np.round(1000 * OTHER_FLAT)),
    ],
)
def test_no_shape_of_some(name: str, right: Any, change: Change) -> None:
    """What holds for most elements alone, or for groups of one value, is no shape."""
    if name == "s32":
        got, want = (each.astype(np.int32).view(np.uint32) for each in (change(right), right))
    else:
        want = encoded(right, name)
        got = encoded(change(refsim.decode(want, name)), name)
    assert not shapes_of(got, want, array_type(name))


def test_numbers_beyond_the_largest() -> None:
    """Of a largest number, a product may be anything from its own product on."""
    want = encoded(300 * VALUES, "e4m3")
    got = encoded(300 * VALUES * 0.7, "e4m3")
    (named,) = shapes_of(got, want, E4M3)
    assert "every element is 0.7 times as large" in str(named)


def test_bits_of_runs_are_counted_in_columns() -> None:
    """Runs of 2 elements, two of which lie in each row twice."""
    runs = np.array([[a, b] * 2 for a in range(1, 9) for b in range(9, 17)])[DRAWN.permutation(64)]
    at = np.arange(64)
    moved = runs[(at & ~17) | (at & 1) << 4 | at >> 4 & 1]
    got, want = (each.reshape(8, 32).astype(np.uint32) for each in (moved, runs))
    (named,) = shapes_of(got, want, F32)
    assert (
        "runs of 2 elements with two bits of their place exchanged, that of columns 4 apart and that of rows 2"
        in str(named)
    )


def test_scales_that_are_given() -> None:
    scales = DRAWN.uniform(0.1, 0.5, (64, 1)).astype(np.float32)
    right = VALUES.astype(np.float32)
    for wrong, says in (
        (right * scales, ": the scales was applied once more"),
        (right / scales, ": 1 / the scales: it was left out"),
        (right * scales**2, ": the square of the scales"),
        (right / scales**2, ": 1 / the square of the scales"),
    ):
        (named,) = shapes_of(wrong.view(np.uint32), right.view(np.uint32), F32, {"the scales": scales})
        assert says in str(named)


LINES = np.arange(64)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (63 - LINES, "the last - i"),
        (np.minimum(LINES + 1, 63), "i + 1"),
        (np.maximum(LINES - 1, 0), "i - 1"),
        (LINES ^ 4, "i ^ 4"),
        (LINES & ~8, "i without bit 3"),
    ],
)
def test_scales_of_another_place(place: Any, words: str) -> None:
    scales, right = DRAWN.uniform(0.5, 2, (64, 1)).astype(np.float32), VALUES.astype(np.float32)
    for wrong, want in ((right * scales[place], right * scales), (right / scales[place], right / scales)):
        (named,) = shapes_of(wrong.view(np.uint32), want.view(np.uint32), F32, {"s": scales})
        assert f"the number of another group of s was used: {words} for group i" in str(named)


def test_a_row_that_a_scale_left_alone() -> None:
    """Five elements of it tell that its factor is 1."""
    scales, right = DRAWN.uniform(0.1, 0.5, (32, 1)).astype(np.float32), VALUES[:32, :5].astype(np.float32)
    wrong = np.where(np.arange(32)[:, None] == 3, right, right * scales)
    (named,) = shapes_of(wrong.view(np.uint32), right.view(np.uint32), F32, {"the scales": scales})
    assert "it is 1 for 1 of 32: the scales" in str(named)


def test_two_values_of_one_row_are_no_factor() -> None:
    right = VALUES[:, :8].astype(np.float32)
    right[0] = 1 + 2 * (LINES[:8] % 2)
    wrong = np.where(LINES[:, None] == 0, 2 * right, right)
    assert not shapes_of(wrong.view(np.uint32), right.view(np.uint32), F32)


def test_a_map_of_five_values() -> None:
    right = DRAWN.integers(0, 8, (16, 16)).astype(np.uint8)
    (named,) = shapes_of(np.array([0, 1, 2, 7, 3, 6, 5, 5], np.uint8)[right], right, format_named("e2m1"))
    assert str(named).endswith("1.5 -> 6, 2 -> 1.5, 3 -> 4, 4 -> 3, 1 more")


def test_e2m1_has_no_factors_of_rows() -> None:
    """Its values tell a factor by too few bits."""
    right = DRAWN.integers(1, 3, (64, 64)).astype(np.uint8)
    wrong = np.where(LINES[:, None] % 3 == 0, right, encoded(refsim.decode(right, "e2m1") * 4, "e2m1"))
    assert not shapes_of(wrong, right, format_named("e2m1"))


def test_sixteen_elements_in_other_places() -> None:
    right = VALUES[:8].astype(np.float32).view(np.uint32)
    wrong = right[:, [1, 0, *range(2, 64)]]
    (named,) = shapes_of(wrong, right, F32)
    assert str(named).endswith("A holds B's columns in another order")
    assert not shapes_of(wrong[1:], right[1:], F32)


def test_lines_that_repeat_have_no_order() -> None:
    """Ten rows, each several times: which of them went where stays open."""
    right = VALUES.astype(np.float32).view(np.uint32)[LINES % 10]
    (named,) = shapes_of(right[DRAWN.permutation(64)], right, F32)
    assert str(named).endswith("A holds the values of B in another order within each column")


@pytest.mark.parametrize(
    ("factors", "given"),
    [
        (0.5, 2.0892),
        (0.25, 2.0),
        ([[1.03], [2.52]] * 2, [0.404, 1 / 2.52] * 2),
    ],
)
def test_scales_of_another_number(factors: Any, given: Any) -> None:
    """A number that e4m3 hardly tells from the factor, a power of two, and a scale that fits some rows."""
    right = refsim.decode(encoded(VALUES[:4], "e4m3"), "e4m3")
    scales = {"the scales": np.array(given, np.float32)}
    (named,) = shapes_of(encoded(right * np.array(factors), "e4m3"), encoded(right, "e4m3"), E4M3, scales)
    assert named.causes[0].family == Family.FACTOR, str(named)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda x: x + 5, "5 was added to every element$"),
        (lambda x: x * 2, "every element is 2 times as large"),
        (lambda x: np.clip(x, -100, 99), "values above 99 are 99, those below -100 are -100"),
        (lambda x: x[:, ::-1], "columns reversed"),
    ],
)
def test_integers(change: Change, says: str) -> None:
    right = DRAWN.integers(-500, 500, (32, 32)).astype(np.int32)
    answer = explain_diff(np.ascontiguousarray(change(right)), right)
    assert re.search(says, str(answer.named[0])), str(answer)


def test_integers_through_floats() -> None:
    right = DRAWN.integers(1 << 25, 1 << 27, (32, 32)).astype(np.int32)
    got = (right.astype(np.float32) + np.float32(0)).astype(np.int32)
    (named,) = shapes_of(got.view(np.uint32), right.view(np.uint32), S32)
    assert "each integer passed through float32" in str(named)
    got[0, 0] += 64
    assert not shapes_of(got.view(np.uint32), right.view(np.uint32), array_type("s32"))


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ((slice(8, 16),), "rows 8 to 15: "),
        ((slice(None), slice(3, None, 8)), "columns 3 of every 8: "),
        ((slice(4, 6), slice(0, 32)), "rows 4 to 5, columns 0 to 31: "),
        (np.tril_indices(64, -17), "elements with column - row <= -17: "),
        (np.diag_indices(64), "elements with column - row = 0: "),
    ],
)
def test_regions(where: Any, says: str) -> None:
    right = encoded(VALUES, "bf16")
    got = right.copy()
    got[where] = 0
    assert seen(got, right, BF16) == (f"{says}B holds other values, A holds +0 alone (0x0000)",)
    assert seen(right, got, BF16, "the right result") == (
        f"{says}the right result holds +0 alone (0x0000), A holds other values",
    )
    assert seen(encoded(OTHER, "bf16"), right, BF16) == ()


def test_a_computed_output_was_written() -> None:
    """Rows of zeros in refsim's own product are not uninitialized; of two files, either may be."""
    a, b = (
        DRAWN.normal(0, 1, (16, 32)).astype(ml_dtypes.bfloat16),
        DRAWN.normal(0, 1, (8, 32)).astype(ml_dtypes.bfloat16),
    )
    a[8:] = 0
    right = refsim.numerics.mma(a, b, unit="mma.sync", target="sm_90a")
    got = right.copy()
    got[8:] = DRAWN.normal(0, 1, (8, 8)).astype(np.float32).view(np.uint32)
    answer = explain_diff(got, format="f32", operands=refsim.causes.ProductOperands(a=a, b=b))
    assert answer.outcome == "unexplained"
    assert answer.seen == ("rows 8 to 15: the right result holds +0 alone (0x00000000), A holds other values",)
    both = explain_diff(got, right, "f32")
    assert "uninitialized" in str(both.named[0])
    assert both.made == "B"
    assert both.seen == ("rows 8 to 15: B holds +0 alone (0x00000000), A holds other values",)


def test_lines_with_equal_sums_are_told_from_the_same_lines():
    """Columns in another order are named; one other code in them, which keeps the sum of all, is not."""
    want = np.random.default_rng(5).integers(0, 256, (64, 64)).astype(np.uint8)
    got = want[:, [*range(1, 64), 0]].copy()
    assert [named.causes[0].family for named in shapes_of(got, want, E4M3)] == [Family.ORDER]
    got[3, 4], got[5, 6] = got[3, 4] ^ 1, got[5, 6] ^ 1
    assert not shapes_of(got, want, E4M3)


def test_a_cause_of_either_side_is_named_before_a_shape_of_values():
    """Codes of FNUZ are twice as large, and infinities made finite are a map of values: both sides name the cause."""
    finite = refsim.encode(np.abs(VALUES), "e4m3")
    fnuz = refsim.encode(refsim.decode(finite, "e4m3"), "e4m3fnuz")
    infinite = np.where(VALUES > 1.5, np.inf, VALUES).astype(np.float32)
    largest = np.where(VALUES > 1.5, np.finfo(np.float32).max, VALUES).astype(np.float32)
    for one, other, format, family in (
        (finite, fnuz, "e4m3", Family.FNUZ),
        (infinite, largest, "f32", Family.SATURATION),
    ):
        for pair in ((one, other), (other, one)):
            found = explain_diff(*pair, format)
            assert family in [cause.family for each in found.named for cause in each.causes]


def test_a_large_output_has_a_shape_of_values():
    """More than 2^22 elements, the output of a common product: a factor is named, an order is not sought."""
    want = np.random.default_rng(3).normal(0, 1, (2049, 2048)).astype(np.float32)
    named = shapes_of(encoded(want * np.float32(1.7), "bf16"), encoded(want, "bf16"), BF16)
    assert "every element is 1.7 times as large" in str(named[0])
