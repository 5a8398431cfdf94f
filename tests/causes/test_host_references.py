"""What a host computes: sums in the orders of NumPy and math.fsum bit for bit, and references of NumPy named as what they are."""

import math
from fractions import Fraction

import numpy as np
import pytest

from refsim import encode, oracles
from refsim.causes import AttentionOperands, DiffOutcome, Family, ProductOperands, RowOperands, explain_diff
from refsim.computations.host_sums import exactly, in_float64, pairwise
from refsim.computations.row_sums import RowOrder
from refsim.computations.softmax import EXPONENTS
from refsim.computations.special import BY_RCP, DIVISIONS, EXP_NUMPY, LOG2_OF_E
from refsim.computations.ways import Way

LENGTHS = [*range(1, 300), *range(300, 5001, 61), 5000]


def drawn(columns: int, rows: int = 2) -> np.ndarray:
    random = np.random.default_rng(columns)
    return (random.normal(0, 1, (rows, columns)) * 2.0 ** random.integers(-8, 9, (rows, columns))).astype(np.float32)


def test_the_pairwise_sum_is_that_of_np_sum():
    """Along the axis whose elements are neighbours; across it NumPy adds row after row."""
    for columns in LENGTHS:
        x = drawn(columns)
        assert (pairwise(x).view(np.uint32) == x.sum(axis=1).view(np.uint32)).all(), columns
        across = np.asfortranarray(x).sum(axis=1)
        assert (RowOrder(1).sum(x) == across).all(), columns


def test_special_numbers_are_added_as_np_sum_adds_them():
    x = drawn(200, 4)
    x[0, 7], x[1, 150], x[1, 151], x[2] = np.nan, np.inf, -np.inf, -0.0
    with np.errstate(invalid="ignore"):
        got, want = pairwise(x), x.sum(axis=1)
    assert (np.isnan(got) == [True, True, False, False]).all()
    assert (got[2:].view(np.uint32) == want[2:].view(np.uint32)).all()


def nearest(total: Fraction) -> np.float32:
    """Of three neighbours that which is nearest, the even one of two."""
    near = np.float32(float(total))
    around = [np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))]
    return min(around, key=lambda each: (abs(Fraction(float(each)) - total), int(each.view(np.uint32)) & 1))


def test_an_exact_sum_is_rounded_once():
    """The first row and the second lie on either side of a tie by less than float64 shows beside 1."""
    beside = [[1, 2**-24, 2.0**-70], [1, 2**-24, -(2.0**-70)], [1, 2**-24, 0], [-1, -(2**-24), -(2.0**-70)]]
    rows = [*np.float32(beside), *drawn(40, 8)]
    for row in rows:
        assert exactly(row[None])[0] == nearest(sum(map(Fraction, row.tolist()), Fraction(0)))
    assert exactly(np.float32(beside)).tolist() != [np.float32(math.fsum(row)) for row in np.float32(beside).tolist()]


def test_float64_loses_what_the_exact_sum_keeps():
    x = np.float32([[2.0**60, 1, -(2.0**60)], [1, 2, 3]])
    assert (in_float64(x).tolist(), exactly(x).tolist()) == ([0, 6], [1, 6])


def test_exponentials_of_numpy_are_the_same_on_every_host():
    """Words that NumPy 2.4 gave on x86 with fma, and everything anew where this host has fma too."""
    x = np.float32([-20.5, -7.25, -0.3, 0.0, 1.1, 42.0, -103.5, 90.0, -np.inf])
    words = [0x30ABD1D8, 0x3A3A2AFF, 0x3F3DA643, 0x3F800000, 0x40404442, 0x5DC1192A, 0x1, 0x7F800000, 0x0]
    assert EXP_NUMPY.apply(x).view(np.uint32).tolist() == words
    if np._core._multiarray_umath.__cpu_features__.get("FMA3"):
        drawn_x = np.random.default_rng(0).uniform(-100, 80, 4000).astype(np.float32)
        assert (EXP_NUMPY.apply(drawn_x) == np.exp(drawn_x)).all()
    assert np.isnan(EXP_NUMPY.apply(np.float32([np.nan]))).all()


def families(found):
    return {tuple(cause.family for cause in each.causes) for each in found.named}


@pytest.mark.parametrize("special", ["approx", "exact"])
def test_a_reference_of_numpy_is_named_for_a_chip_and_for_a_host(special):
    x, w = drawn(96, 16), drawn(96, 1)[0]
    rms = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(1e-5)) * w
    given = RowOperands(function="rms_norm", x=x, weight=w, eps=1e-5, special=special)
    assert families(explain_diff(rms, operands=given)) == {(Family.HOST,)}


def test_a_kernel_and_a_reference_differ_by_where_they_were_computed():
    x, w = drawn(96, 16), drawn(96, 1)[0]
    ours = oracles.rms_norm(x.view(np.uint32), w.view(np.uint32), 1e-5, format="f32").view(np.float32)
    given = RowOperands(function="rms_norm", x=x, weight=w, eps=1e-5)
    right = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(1e-5)) * w
    found = explain_diff(ours, right, operands=given)
    assert (families(found), found.made) == ({(Family.HOST,)}, "B")
    unweighted = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(1e-5))
    assert (Family.HOST, Family.NO_WEIGHTS) in families(explain_diff(ours, unweighted, operands=given))


def test_a_reference_with_one_wrong_element_explains_a_part():
    x, w = drawn(96, 16), drawn(96, 1)[0]
    rms = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(1e-5)) * w
    rms.view(np.uint32)[3, 5] ^= 1 << 9
    found = explain_diff(rms, operands=RowOperands(function="rms_norm", x=x, weight=w, eps=1e-5), seconds=0.5)
    assert found.outcome is DiffOutcome.UNEXPLAINED
    assert found.parts[0].causes[0].family == Family.HOST
    assert found.parts[0].repaired >= found.differing - 1


def test_an_epsilon_in_float64_is_the_number_that_was_written():
    """Where epsilon is most of the mean, float32's own 1e-5 gives other bits."""
    x = drawn(96, 16) / np.float32(4096)
    wide = x.astype(np.float64)
    for eps in (1e-5, 1e-6):
        y = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + eps)
        given = RowOperands(function="rms_norm", x=x, eps=1e-5)
        found = explain_diff(y.astype(np.float32), operands=given, seconds=4)
        assert (Family.HOST,) in families(found) if eps == 1e-5 else (Family.HOST, Family.EPSILON) in families(found)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_in_float64_is_named(causal):
    random = np.random.default_rng(0)
    q, k, v = (encode(random.normal(0, 1, (2, rows, 32)), "bf16") for rows in (12, 40, 40))
    wide = [(each.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for each in (q, k, v)]
    s = np.einsum("hqd,hkd->hqk", wide[0], wide[1]) / 8
    if causal:
        s = np.where(np.arange(40) <= np.arange(12)[:, None] + 28, s, -np.inf)
    p = np.exp(s)
    o = (np.einsum("hqk,hkd->hqd", p, wide[2]) / p.sum(axis=2, keepdims=True)).astype(np.float32)
    given = AttentionOperands(q=q, k=k, v=v, format="bf16", causal=causal, scale=0.125)
    assert families(explain_diff(o, operands=given)) == {(Family.HOST,)}


def test_products_that_np_sum_adds_are_named():
    random = np.random.default_rng(0)
    x, y = (
        (random.normal(0, 1, (rows, 256)) * 2.0 ** random.integers(-9, 9, 256)).astype(np.float32) for rows in (24, 24)
    )
    a, b = (encode(each, "bf16") for each in (x, y))
    x, y = ((each.astype(np.uint32) << 16).view(np.float32) for each in (a, b))
    given = ProductOperands(a=a, b=b, a_format="bf16", b_format="bf16")
    found = explain_diff((x[:, None] * y).sum(axis=-1), operands=given)
    assert found.named[0].causes[0].says.startswith("products in float32, added as np.sum does")


def fl(number: Fraction) -> Fraction:
    return Fraction(float(nearest(number)))


def test_only_the_flushed_reciprocal_of_a_large_total_is_zero() -> None:
    """2^-127 is subnormal: rcp.approx.ftz gives 0, and rcp.approx and the reciprocal rounded once keep it."""
    one, totals = np.ones(2, np.float32), np.float32([2.0**126, 2.0**127])
    found = {row.name: row.apply(one, totals).tolist() for row in DIVISIONS}
    assert BY_RCP.apply(one, totals).tolist() == [2.0**-126, 0]
    assert found["times rcp.approx"] == found["times a reciprocal that is rounded once"] == [2.0**-126, 2.0**-127]


@pytest.mark.parametrize("step", EXPONENTS, ids=lambda step: step.name)
def test_an_exponent_is_computed_as_its_name_says(step: Way) -> None:
    """The name is a formula: fl rounds an exact number to float32, and fma rounds once."""
    x, m, own = drawn(40)[0], np.float32(3.0625), np.float32(0.1767767)
    scale = np.float32(own * LOG2_OF_E)
    formula = step.name.partition(" = ")[2].partition(", own without")[0]
    exact = {name: Fraction(float(each)) for name, each in {"m": m, "scale": scale, "own": own, "e": LOG2_OF_E}.items()}
    exact |= {"fl": fl, "fma": lambda a, b, c: fl(a * b + c), "log2": lambda of_e: of_e}
    want = [eval(formula, exact | {"x": Fraction(float(each))}) for each in x]
    assert step.apply(x, m, scale, own).tolist() == [float(each) for each in want]
