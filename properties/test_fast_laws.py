"""Laws of refsim.numerics.fast: NumPy tiles and compiled loops equal the definition arrays, bit for bit, for every row."""

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from refsim.conversions import encode
from refsim.formats import BF16, E2M1, E4M3, E8M0, F16, F32, TF32, ElementType, Format, float_named, format_named
from refsim.numerics.dot import chains
from refsim.numerics.dot.chains import Operands, accumulator
from refsim.numerics.fast import compiled, operands, product, tiles
from refsim.numerics.fast.product import Plan, fast_product
from refsim.numerics.fast.reals import covers
from refsim.numerics.methods import GROUPED, TRUNCATED
from refsim.numerics.profiles import PROFILES
from refsim.numerics.rows import Profile
from refsim.reference.operands import CLASSES, at_exponents, cancel, drawn
from refsim.testing.strategies import share

OPERANDS = tuple(CLASSES)
ACCUMULATORS = ("none", "codes", "moderate", "subnormal", "specials", "zeros", "full", "largest")
SCALES = ("codes", "moderate", "subnormal", "specials", "zeros")
ROWS = list({row.arithmetic: row for row in PROFILES if row.method in (TRUNCATED, GROUPED)}.values())
"""One row of each arithmetic: paths never ask for the chip."""
PATHS = [
    "numpy",
    pytest.param(
        "compiled",
        marks=pytest.mark.skipif(
            compiled.kernels() is None, reason="numba is not installed: pip install 'refsim[fast]'"
        ),
    ),
]


@dataclass(frozen=True)
class Recipe:
    """A problem: formats, sizes, what kind of numbers, and the seed they are drawn from."""

    formats: tuple[ElementType, ElementType]
    k: int
    chain: int
    shape: tuple[int, int, int]
    kinds: tuple[str, str, str]
    scale: tuple[Format, int] | None
    scales: str
    seed: int


@st.composite
def recipes(draw: st.DrawFn, row: Profile) -> Recipe:
    columns = draw(st.one_of(st.integers(1, 9), st.integers(126, 131)))
    across = st.integers(columns + 1, columns + 3) if columns < 10 else st.nothing()  # loops run over the batch
    kind = draw(st.sampled_from(OPERANDS))
    return Recipe(
        (draw(st.sampled_from(row.a_formats)), draw(st.sampled_from(row.b_formats))),
        draw(st.sampled_from(row.k)),
        draw(st.integers(1, 3)),
        (draw(st.integers(1, 2) | across), draw(st.integers(1, 5)), columns),
        (kind, draw(st.just(kind) | st.sampled_from(OPERANDS)), draw(st.sampled_from(ACCUMULATORS))),
        draw(st.sampled_from(row.scales)) if row.scales else None,
        draw(st.sampled_from(SCALES)),
        draw(st.integers(0, 1 << 32)),
    )


def problem_of(recipe: Recipe, row: Profile) -> tuple[Operands, NDArray[Any]]:
    """Operands and codes of C."""
    random = np.random.default_rng(recipe.seed)
    batch, m, n = recipe.shape
    length, sizes = recipe.k * recipe.chain, (m, n)
    codes = []
    for element, kind, size in zip(recipe.formats, recipe.kinds, sizes, strict=False):
        format = float_named(element)
        codes.append(drawn(format, kind, (batch, size, length), random).astype(format.code_dtype))
    a, b = codes
    if recipe.kinds[0] == "cancelling":
        cancel(a, b, recipe.formats[0])
    scales: list[NDArray[Any] | None] = [None, None]
    if recipe.scale:
        format, block = recipe.scale
        scales = [
            drawn(format, recipe.scales, (batch, size, length // block), random).astype(np.uint8)
            & np.uint8(format.code_limit - 1)
            for size in sizes
        ]
    format = accumulator(row)
    assert format is not None
    c = np.zeros(recipe.shape, format.code_dtype)
    if recipe.kinds[2] != "none":
        c = drawn(format, recipe.kinds[2], recipe.shape, random).astype(format.code_dtype)
    return Operands(a, b, *recipe.formats, *scales, recipe.scale[0] if recipe.scale else None), c


def assert_same_bits(recipe: Recipe, row: Profile, *how: Plan) -> None:
    operands, c = problem_of(recipe, row)
    want = chains.matrix_product(operands, c.copy(), row, recipe.k)
    for path in how:
        got = fast_product(operands, c, replace(path, profile=row, k=recipe.k))
        different = np.argwhere(got != want)
        at = tuple(different[0]) if len(different) else ()
        assert not at, f"{'compiled' if path.compiled else 'numpy'} {at}: {got[at]:#x}, want {want[at]:#x}"


def plan_of(path: str, threads: int = 1) -> Plan:
    return Plan(ROWS[0], 1, threads, path == "compiled", may_compile=True)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_path_equals_the_definition(row: Profile) -> None:
    paths = ("numpy",) if compiled.kernels() is None else ("numpy", "compiled")

    @given(recipe=recipes(row))
    def law(recipe: Recipe) -> None:
        assert_same_bits(recipe, row, *map(plan_of, paths))

    law()


@pytest.mark.parametrize("path", PATHS)
def test_products_at_the_ends_of_float32_equal_the_definition(path: str) -> None:
    """Where narrow arithmetic stops being exact, and where the smallest results begin: products near 2^-150 to 2^-100 and
    2^95, with C near them, near the limits, or zero."""
    rows = [row for row in ROWS if row.d_format is F32 and {BF16, TF32} & {*row.a_formats}]

    @given(
        row=st.sampled_from(rows),
        product=st.integers(-150, -94) | st.integers(90, 128),
        near=st.integers(-30, 30),
        limit=st.sampled_from([None, -150, -110, 125, 127, "zero", "zero"]),
        seed=st.integers(0, 1 << 32),
    )
    def law(row: Profile, product: int, near: int, limit: int | str | None, seed: int) -> None:
        random, k = np.random.default_rng(seed), max(row.k)
        format, f32 = float_named(row.a_formats[0]), F32
        half = product // 2
        a, b = (at_exponents(format, e + random.integers(0, 3, (1, 5, 2 * k)), random) for e in (half, product - half))
        centre = limit if isinstance(limit, int) else product + near
        c = at_exponents(f32, centre + random.integers(0, 3, (1, 5, 5)), random)
        if limit == "zero":
            c[:] = 0
        operands = Operands(a, b, format, format)
        want = chains.matrix_product(operands, c, row, k)
        assert (fast_product(operands, c, replace(plan_of(path), profile=row, k=k)) == want).all()

    law()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.d_format is F16 and F16 in row.a_formats], ids=lambda r: r.name
)
def test_the_least_exponents_of_f16_results_hold_to_the_bit(row: Profile, path: str) -> None:
    """2^-25 is a tie between two results: one more product decides while the zero exponent, or that of a subnormal C,
    keeps it."""
    k = max(row.k)
    a, b = np.zeros((1, 2, k), np.float64), np.zeros((1, 20, k), np.float64)
    a[..., 0], b[..., 0] = 2.0**-12, 2.0**-13
    a[..., 1], b[..., 1] = 2.0**-23, 2.0 ** -np.arange(5, 25)
    operands = Operands(encode(a, "f16"), encode(b, "f16"), F16, F16)
    c = np.repeat(np.array([[[0], [2]]], np.uint16), 20, axis=2)
    want = chains.matrix_product(operands, c, row, k)
    assert np.unique(want).tolist() == [0, 1, 2, 3]
    assert (fast_product(operands, c, replace(plan_of(path), profile=row, k=k)) == want).all()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("row", [row for row in ROWS if row.method == GROUPED], ids=lambda row: row.name)
def test_the_zero_exponent_of_groups_holds_to_the_bit(row: Profile, path: str) -> None:
    """2^-149 less a group that is kept is cut to 0; less one that is lost it stays."""
    a, b = np.zeros((1, 1, 64), np.uint8), np.zeros((1, 16, 64), np.uint8)
    a[..., [0, 32]], b[..., [0, 32]] = 0x2, [0x2, 0xA]  # 1 x 1 and 1 x -1
    a_scale, b_scale = np.full((1, 1, 2), 127 - 80, np.uint8), np.full((1, 16, 2), 127 - 69, np.uint8)
    b_scale[0, :, 1] = 127 - np.arange(85, 101)
    operands = Operands(a, b, E2M1, E2M1, a_scale, b_scale, E8M0)
    c = np.zeros((1, 1, 16), np.uint32)
    want = chains.matrix_product(operands, c, row, 64)
    assert np.unique(want).tolist() == [0, 1]
    assert (fast_product(operands, c, replace(plan_of(path), profile=row, k=64)) == want).all()


@pytest.mark.parametrize("path", PATHS)
def test_scaled_products_near_the_smallest_results_equal_the_definition(path: str) -> None:
    """Scales of 2^-85 to 2^-60 each: where the zero exponent and the subnormals of C decide."""
    rows = [row for row in ROWS if row.scales]

    @given(
        row=st.sampled_from(rows),
        scale=st.integers(-85, -60),
        kinds=st.tuples(
            st.sampled_from(["codes", "sparse", "moderate"]), st.sampled_from(["none", "subnormal", "moderate"])
        ),
        seed=st.integers(0, 1 << 32),
    )
    def law(row: Profile, scale: int, kinds: tuple[str, str], seed: int) -> None:
        name = row.a_formats[0]
        recipe = Recipe(
            (name, name), max(row.k), 2, (1, 5, 6), (kinds[0], kinds[0], kinds[1]), (E8M0, 32), "codes", seed
        )
        random, (operands, c) = np.random.default_rng(seed), problem_of(recipe, row)
        a_scale, b_scale = (
            (127 + scale + random.integers(-2, 3, (1, rows, operands.a.shape[-1] // 32))).astype(np.uint8)
            for rows in (5, 6)
        )
        operands = replace(operands, a_scale=a_scale, b_scale=b_scale)
        want = chains.matrix_product(operands, c, row, recipe.k)
        assert (fast_product(operands, c, replace(plan_of(path), profile=row, k=recipe.k)) == want).all()

    law()


def test_loops_compute_every_row_of_a_chip() -> None:
    assert all(compiled.takes(row, len(row.steps(k)[0])) for row in ROWS for k in row.k)


@pytest.mark.skipif(compiled.kernels() is None, reason="numba is not installed: pip install 'refsim[fast]'")
@pytest.mark.parametrize("result", [pytest.param(F16, marks=pytest.mark.ci("as for f32")), F32], ids=str)
def test_rows_of_any_length_and_fraction_equal_the_definition_where_loops_win(
    result: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Discovery tries such rows: a step of 2 or 6 products, or F so large that fewer than four add up in int32."""
    monkeypatch.setattr(compiled, "wins", lambda *_: True)
    some = next(row for row in ROWS if row.d_format is result and F16 in row.a_formats and row.fraction == 25)
    random, tried = np.random.default_rng(0), set()
    for length, fraction, format in itertools.product((1, 2, 4, 6, 8, 16), range(24, 30), (F16, E4M3)):
        row = replace(some, a_formats=(format,), b_formats=(format,), length=length, fraction=fraction, k=(48,))
        assert covers(row)
        a, b = (at_exponents(format, random.integers(-3, 4, (1, 33, 96)), random) for _ in "ab")
        c = at_exponents(result, random.integers(-3, 4, (1, 33, 33)), random)
        operands = Operands(a, b, format, format)
        want = chains.matrix_product(operands, c.copy(), row, 48)
        assert (product.matrix_product(operands, c, row, 48) == want).all(), (length, fraction, format.name)
        tried.add(compiled.takes(row, length))
    assert tried == {True, False}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("fraction", [4, 12, 14, 20, 22])
def test_rows_of_fewer_bits_than_their_results_equal_the_definition(fraction: int, path: str) -> None:
    """A term that stands alone loses bits too, C among them: a wrong tensor core is tried as fast as a right one."""
    made = [replace(row, fraction=fraction) for row in ROWS if row.d_format is F32 and row.method == TRUNCATED]
    rows = [row for row in made if covers(row)]
    assert {row.rounding.fraction_bits for row in rows} >= {23}

    @share(1 / 2)
    @given(choice=st.sampled_from(rows).flatmap(lambda row: st.tuples(st.just(row), recipes(row))))
    def law(choice: tuple[Profile, Recipe]) -> None:
        assert_same_bits(choice[1], choice[0], plan_of(path))

    law()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("fraction", [14, 20])
def test_a_c_alone_is_cut_to_the_bits_of_a_step(fraction: int, path: str) -> None:
    row = replace(next(row for row in ROWS if BF16 in row.a_formats and row.fraction == 25), fraction=fraction)
    k = max(row.k)
    zeros, ones = np.zeros((1, 1, k), np.uint16), np.full((1, 1, k), 0x3F80, np.uint16)
    c = np.array([[[0x3F800000 | (1 << 23) - 1]]], np.uint32)
    found = fast_product(Operands(zeros, ones, BF16, BF16), c, replace(plan_of(path), profile=row, k=k))
    assert int(found[0, 0, 0]) == 0x3F800000 | (1 << 23) - (1 << 23 - fraction)


@pytest.mark.parametrize("path", PATHS)
def test_wide_arithmetic_equals_the_definition_on_narrow_operands(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (tiles, compiled):
        monkeypatch.setattr(module, "narrow", lambda a, b: False)
    rows = [row for row in ROWS if row.method == TRUNCATED and row.fraction != 13]

    @given(choice=st.sampled_from(rows).flatmap(lambda row: st.tuples(st.just(row), recipes(row))))
    def law(choice: tuple[Profile, Recipe]) -> None:
        assert_same_bits(choice[1], choice[0], plan_of(path))

    law()


@pytest.mark.parametrize("path", PATHS)
def test_tiles_and_threads_never_matter(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, small in (("OUTPUTS", 64), ("COLUMNS", 5), ("DECODED_AT_ONCE", 1 << 9)):
        monkeypatch.setattr(product, name, small)
    monkeypatch.setattr(tiles, "IN_FLIGHT", 192)
    monkeypatch.setattr(tiles, "SERIAL", 1 << 10)

    @given(
        choice=st.sampled_from(ROWS).flatmap(lambda row: st.tuples(st.just(row), recipes(row))),
        threads=st.integers(1, 3),
    )
    def law(choice: tuple[Profile, Recipe], threads: int) -> None:
        assert_same_bits(choice[1], choice[0], plan_of(path, threads))

    law()


@pytest.mark.parametrize("path", PATHS)
def test_terms_that_lose_no_bit_may_be_cut_one_by_one(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The matrix product for sums that lose no bit is a shortcut; so is adding the largest terms in int32."""
    for module in (tiles, product):
        monkeypatch.setattr(module, "loses_no_bit", lambda *_: False)
    rows = [row for row in ROWS if row.fraction is not None and row.fraction > 13]

    @given(choice=st.sampled_from(rows).flatmap(lambda row: st.tuples(st.just(row), recipes(row))), full=st.booleans())
    def law(choice: tuple[Profile, Recipe], full: bool) -> None:
        row, recipe = choice
        recipe = replace(recipe, kinds=("full", "full", recipe.kinds[2])) if full else recipe
        assert_same_bits(recipe, row, plan_of(path))

    law()


@given(seed=st.integers(0, 1 << 32), name=st.sampled_from(["e4m3", "e5m2", "f16", "bf16", "e2m1"]))
def test_a_table_and_the_fields_give_the_same_operand(seed: int, name: str) -> None:
    """Formats of more than 8 bits are decoded by a table only where there are many codes."""
    random, format = np.random.default_rng(seed), format_named(name)
    row = next(row for row in ROWS if format in row.a_formats)
    few = random.integers(0, format.code_limit, (1, 3, 32)).astype(format.code_dtype)
    many = np.resize(few, (1, -(-format.code_limit // 96) * 3, 32))
    first, second = (operands.operand_of(codes, format, None, None, row, 32) for codes in (few, many))
    assert (second.values[..., :3] == first.values).all()
    assert (second.exponents[..., :3] == first.exponents).all()
    assert (second.special is None) == (first.special is None)
    assert first.special is None or (second.special[..., :3] == first.special).all()
    assert (second.low, second.high) == (first.low, first.high)
