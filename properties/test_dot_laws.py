"""Laws of refsim.numerics: the arrays, and mma, equal the definition over integers, bit for bit, for every profile."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from refsim.conversions import decode
from refsim.evidence import Level
from refsim.formats import (
    BF16,
    E2M1,
    E2M3,
    E4M3,
    E5M2,
    F16,
    F64,
    TF32,
    ElementType,
    Format,
    Integer,
    float_named,
    format_named,
)
from refsim.numerics import error_bound, exact_product, mma
from refsim.numerics.calls import arguments_of, fitted
from refsim.numerics.dot.chains import accumulator, matrix_product
from refsim.numerics.dot.definition import dot_product
from refsim.numerics.fast.product import matrix_product as fast_matrix_product
from refsim.numerics.fast.reals import covers
from refsim.numerics.methods import EARLY, EXACT, GROUPED, INTEGER, LATE, RNE_F16, RNE_F32, RZ_E8M13, RZ_F32, TRUNCATED
from refsim.numerics.multiply import call_asked_for
from refsim.numerics.profiles import PROFILES, profile
from refsim.numerics.rows import Profile
from refsim.reference.operands import CLASSES, cancel, drawn
from refsim.testing.strategies import share

ROWS, COLUMNS = 2, 3
FUNCTIONS = [
    tuple(row for row in PROFILES if row.arithmetic == key) for key in dict.fromkeys(row.arithmetic for row in PROFILES)
]
ROUNDED_INTO = {RZ_F32: "f32", RZ_E8M13: "f32", RNE_F32: "f32", RNE_F16: "f16"}
OPERANDS = tuple(CLASSES)
ACCUMULATORS = ("none", "codes", "moderate", "subnormal", "specials", "zeros")
SCALES = ("codes", "moderate", "subnormal", "specials")


@dataclass(frozen=True)
class Recipe:
    """A problem: which instruction, how long a chain, what kind of numbers, and the seed they are drawn from."""

    a_format: ElementType
    b_format: ElementType
    k: int
    chain: int
    a: str
    b: str
    c: str
    scale_format: Format | None
    block: int
    scales: str
    seed: int


def of_function(rows: tuple[Profile, ...]) -> str:
    return rows[0].name if len(rows) == 1 else f"{rows[0].name} and {len(rows) - 1} more"


@st.composite
def made_rows(draw: st.DrawFn) -> Profile:
    """Truncated rows that no chip has: any fraction, length, rounding and zero exponent, C early or late."""
    rounding = draw(st.sampled_from(sorted(ROUNDED_INTO, key=str)))
    like = profile("sm_90", "mma.sync", "f16", "f16", ROUNDED_INTO[rounding])
    formats = draw(st.sampled_from([(F16,), (BF16,), (TF32,), (E4M3, E5M2), (E2M3, E2M1)]))
    return replace(
        like,
        a_formats=formats,
        b_formats=formats,
        k=(16,),
        length=draw(st.sampled_from([1, 2, 4, 8, 16])),
        rounding=rounding,
        fraction=draw(st.integers(6, 40)),
        zero_exponent=draw(st.integers(-160, 10)),
        c_enters=draw(st.sampled_from([EARLY, LATE])),
    )


@st.composite
def recipes(draw: st.DrawFn, row: Profile) -> Recipe:
    scale_format, block = draw(st.sampled_from(row.scales)) if row.scales else (None, 1)
    return Recipe(
        draw(st.sampled_from(row.a_formats)),
        draw(st.sampled_from(row.b_formats)),
        draw(st.sampled_from(row.k)),
        draw(st.integers(1, 2)),
        draw(st.sampled_from(OPERANDS)),
        draw(st.sampled_from(OPERANDS)),
        draw(st.sampled_from(ACCUMULATORS)),
        scale_format,
        block,
        draw(st.sampled_from(SCALES)),
        draw(st.integers(0, 1 << 32)),
    )


def operand(format: ElementType, kind: str, shape: tuple[int, ...], random: np.random.Generator) -> NDArray[Any]:
    if isinstance(format, Integer):
        return random.integers(0, 256, shape, np.uint8)
    return drawn(format, kind, shape, random)


def addend(row: Profile, kind: str, random: np.random.Generator) -> NDArray[Any] | None:
    format = accumulator(row)
    if kind == "none":
        return None
    if format is None:
        return random.integers(-(1 << 31), 1 << 31, (ROWS, COLUMNS)).astype(np.int32)
    codes = drawn(format, kind, (ROWS, COLUMNS), random)
    kinds = {16: (np.uint16, np.float16), 32: (np.uint32, np.float32), 64: (np.uint64, np.float64)}[format.bits]
    return codes.astype(kinds[0]).view(kinds[1])


def codes_of(array: NDArray[Any]) -> NDArray[Any]:
    return array if array.dtype == np.int32 else array.view(f"u{array.dtype.itemsize}")


def listed(array: NDArray[Any] | None, row: int) -> Sequence[int]:
    return () if array is None else [int(code) for code in array[row]]


def problem_of(recipe: Recipe, row: Profile) -> tuple[dict[str, Any], NDArray[Any] | None]:
    """The arguments of mma but C, and C."""
    random = np.random.default_rng(recipe.seed)
    length = recipe.k * recipe.chain
    a = operand(recipe.a_format, recipe.a, (ROWS, length), random)
    b = operand(recipe.b_format, recipe.b, (COLUMNS, length), random)
    if recipe.a == "cancelling" and isinstance(recipe.a_format, Format):
        cancel(a, b, recipe.a_format)
    c = addend(row, recipe.c, random)
    scales: list[NDArray[Any] | None] = [None, None]
    if recipe.scale_format:
        scales = [
            operand(recipe.scale_format, recipe.scales, (m, length // recipe.block), random) for m in (ROWS, COLUMNS)
        ]
    arguments = {
        "a": a,
        "b": b,
        "unit": row.unit,
        "a_format": recipe.a_format,
        "b_format": recipe.b_format,
        "target": row.target,
        "d_format": row.d_format,
        "k": recipe.k,
        "a_scale": scales[0],
        "b_scale": scales[1],
        "scale_format": recipe.scale_format,
    }
    return arguments, c


def by_arrays(problem: dict[str, Any], c: NDArray[Any] | None) -> NDArray[Any]:
    """The codes that the definition arrays give; mma may take a faster way."""
    found = call_asked_for(c=c, **problem)
    return matrix_product(found.operands, found.c, found.row, found.k)[0]


@pytest.mark.filterwarnings("ignore::refsim.numerics.UnverifiedProfileWarning")
@pytest.mark.parametrize("rows", FUNCTIONS, ids=of_function)
def test_arrays_and_mma_equal_the_definition(rows: tuple[Profile, ...]) -> None:
    """Rows of one arithmetic share the cases: which of them mma is asked for is drawn."""

    @share(3 / 5)
    @given(recipe=recipes(rows[0]), row=st.sampled_from(rows))
    def law(recipe: Recipe, row: Profile) -> None:
        problem, c = problem_of(recipe, row)
        want = by_definition(recipe, row, problem, c)
        assert by_arrays(problem, c).tolist() == want
        assert codes_of(mma(c=c, **problem)).tolist() == want

    law()


@pytest.mark.parametrize("row", PROFILES, ids=lambda row: row.name)
def test_the_names_of_a_row_lead_to_its_arithmetic(row: Profile) -> None:
    """FP8 of sm_120 stands in two rows, one with every narrow format, which compute alike."""

    def numbers(row: Profile) -> tuple[object, ...]:
        return replace(row, a_formats=(), b_formats=(), k=()).arithmetic

    for a, b, k in product(row.a_formats, row.b_formats, row.k):
        found = profile(row.target, row.unit, a, b, row.d_format, k)
        assert (found.target, found.unit, numbers(found)) == (row.target, row.unit, numbers(row))


def by_definition(recipe: Recipe, row: Profile, problem: dict[str, Any], c: NDArray[Any] | None) -> list[list[int]]:
    """One dot product after the other."""
    a, b, scales = problem["a"], problem["b"], (problem["a_scale"], problem["b_scale"])
    start = np.zeros((ROWS, COLUMNS), np.int32 if row.d_format.is_integer else np.uint64) if c is None else codes_of(c)
    return [
        [
            dot_product(
                listed(a, m),
                listed(b, n),
                int(start[m, n]),
                row,
                recipe.k,
                a_format=recipe.a_format,
                b_format=recipe.b_format,
                a_scale=listed(scales[0], m),
                b_scale=listed(scales[1], n),
                scale_format=recipe.scale_format,
            ).result
            for n in range(COLUMNS)
        ]
        for m in range(ROWS)
    ]


@share(4)
@given(choice=made_rows().flatmap(lambda row: st.tuples(st.just(row), recipes(row))))
def test_arrays_and_fast_paths_equal_the_definition_for_rows_that_no_chip_has(choice: tuple[Profile, Recipe]) -> None:
    """Discovery and explanations of differences try such rows; the fast paths leave those to the arrays that they do not
    cover."""
    row, recipe = choice
    problem, c = problem_of(recipe, row)
    want = by_definition(recipe, row, problem, c)
    arguments = arguments_of(problem["a"], problem["b"], c, a_format=recipe.a_format, b_format=recipe.b_format)
    made = fitted(arguments, row, recipe.k)
    for compute in (matrix_product, fast_matrix_product):
        assert compute(made.operands, made.c, row, made.k)[0].tolist() == want


def test_the_fast_paths_cover_every_row_of_a_chip_and_not_what_they_would_get_wrong() -> None:
    fused = [row for row in PROFILES if row.method in (TRUNCATED, GROUPED)]
    assert all(covers(row) for row in fused)
    wide = profile("sm_90", "mma.sync", "f16", "f16", "f32")
    assert covers(replace(wide, fraction=20))
    for change in (
        {"fraction": 30},
        {"fraction": 0},
        {"rounding": RNE_F32},
        {"zero_exponent": -90},
        {"method": EXACT},
    ):
        assert not covers(replace(wide, **change)), change


@given(seed=st.integers(0, 1 << 32), chain=st.integers(1, 3))
@share(4 / 5)
def test_order_of_k_within_a_step_never_matters(seed: int, chain: int) -> None:
    random = np.random.default_rng(seed)
    a, b = (random.integers(0, 256, (4, 32 * chain), np.uint8) for _ in range(2))
    c = random.standard_normal((4, 4)).astype(np.float32)
    places = np.concatenate([32 * part + random.permutation(32) for part in range(chain)])
    kinds = {"unit": "wgmma", "a_format": "e4m3", "b_format": "e4m3", "d_format": "f32"}
    got, want = mma(a[:, places], b[:, places], c, **kinds), mma(a, b, c, **kinds)
    assert (got.view(np.uint32) == want.view(np.uint32)).all()


@given(seed=st.integers(0, 1 << 32))
@share(4 / 5)
def test_negating_both_operands_changes_nothing_and_one_with_c_turns_the_sign(seed: int) -> None:
    random = np.random.default_rng(seed)
    a, b = (random.integers(0, 1 << 16, (4, 32), np.uint16) for _ in range(2))
    c = random.integers(0, 1 << 32, (4, 4), np.uint32).view(np.float32)
    kinds = {"unit": "wgmma", "a_format": "bf16", "b_format": "bf16", "d_format": "f32"}
    plain = mma(a, b, c, **kinds).view(np.uint32)
    assert (mma(a, b, c, negate_a=True, negate_b=True, **kinds).view(np.uint32) == plain).all()
    turned = mma(a, b, (c.view(np.uint32) ^ 0x80000000).view(np.float32), negate_a=True, **kinds).view(np.uint32)
    kept = (plain == 0) | (plain == 0x7FFFFFFF)
    assert (turned == np.where(kept, plain, plain ^ 0x80000000)).all()


def test_no_row_becomes_unverified_on_a_chip_that_was_published() -> None:
    published = {"sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "gfx908", "gfx90a", "gfx942"}
    unverified = {row.target for row in PROFILES if row.evidence.level is Level.UNVERIFIED}
    assert "gfx950" in unverified
    assert unverified.isdisjoint(published)


def fractions(codes: NDArray[Any], name: str | ElementType) -> list[list[Fraction]]:
    values = codes.view(np.float64) if name is F64 else decode(codes, float_named(name))
    return [[Fraction(float(value)) for value in row] for row in values]


def scale_values(
    codes: NDArray[Any] | None, name: Format | None, block: int, rows: int, length: int
) -> list[list[Fraction]]:
    if codes is None or name is None:
        return [[Fraction(1)] * length for _ in range(rows)]
    return [[scale for scale in row for _ in range(block)] for row in fractions(codes, name)]


@pytest.mark.filterwarnings("ignore::refsim.numerics.UnverifiedProfileWarning")
@pytest.mark.parametrize("rows", [rows for rows in FUNCTIONS if rows[0].method != INTEGER], ids=of_function)
def test_error_stays_within_the_bound(rows: tuple[Profile, ...]) -> None:
    @share(1 / 2)
    @given(recipe=recipes(rows[0]), row=st.sampled_from(rows))
    def law(recipe: Recipe, row: Profile) -> None:
        problem, c = problem_of(recipe, row)
        a, b, scales = problem["a"], problem["b"], (problem["a_scale"], problem["b_scale"])
        bound = error_bound(c=c, **problem)
        got = mma(c=c, **problem)
        assert (np.isfinite(bound) <= np.isfinite(got)).all()
        finite = np.argwhere(np.isfinite(bound))
        if not finite.size:
            return
        length = recipe.k * recipe.chain
        nan_free = [np.nan_to_num(x, posinf=0, neginf=0) for x in (np.zeros((ROWS, COLUMNS)) if c is None else c,)]
        wide = [clean(a, recipe.a_format), clean(b, recipe.b_format)]
        s, t = (
            scale_values(
                None if x is None else clean(x, recipe.scale_format), recipe.scale_format, recipe.block, m, length
            )
            for x, m in zip(scales, (ROWS, COLUMNS), strict=True)
        )
        x, y = fractions(wide[0], recipe.a_format), fractions(wide[1], recipe.b_format)
        for m, n in finite:
            terms = [p * q * u * v for p, q, u, v in zip(x[m], y[n], s[m], t[n], strict=True)]
            exact = Fraction(float(nan_free[0][m, n])) + sum(terms)
            assert abs(Fraction(float(got[m, n])) - exact) <= Fraction(float(bound[m, n]))

    law()


def clean(codes: NDArray[Any], name: str | ElementType | None) -> NDArray[Any]:
    """The codes with NaN and infinity replaced by zero: outputs that they reach have no finite bound."""
    values = codes.view(np.float64) if name is F64 else decode(codes, str(name))
    return np.where(np.isfinite(values), codes, 0).astype(codes.dtype)


@given(
    seed=st.integers(0, 1 << 32),
    format=st.sampled_from(["e4m3", "e5m2", "bf16", "f16", "e2m1"]),
    d=st.sampled_from([np.float32, np.float16]),
)
def test_exact_product_is_the_number_nearest_to_the_rational_sum(seed: int, format: str, d: type) -> None:
    random = np.random.default_rng(seed)
    row = format_named(format)
    a, b = (drawn(row, "moderate" if seed % 2 else "codes", (2, 24), random).astype(row.code_dtype) for _ in range(2))
    a, b = clean(a, format), clean(b, format)
    c = random.standard_normal((2, 2)).astype(d)
    got = exact_product(a, b, c, a_format=format, b_format=format, d_format="f32" if d is np.float32 else "f16")
    x, y = fractions(a, format), fractions(b, format)
    for (m, n), value in np.ndenumerate(got):
        exact = Fraction(float(c[m, n])) + sum(p * q for p, q in zip(x[m], y[n], strict=True))
        with np.errstate(over="ignore", under="ignore"):
            neighbours = [np.nextafter(value, d(limit)) for limit in (-np.inf, np.inf)]
        if np.isfinite([value, *neighbours]).all():
            error, others = abs(Fraction(float(value)) - exact), [abs(Fraction(float(v)) - exact) for v in neighbours]
            even = not value.view(np.uint32 if d is np.float32 else np.uint16) & 1
            assert error <= min(others) if even else error < min(others)
        else:
            assert abs(exact) >= Fraction(float(np.finfo(d).max))
