"""Products with a sparse A: against whole rows over Python integers, and matrices and metadata that do not fit."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from refsim import numerics
from refsim.errors import RefsimError
from refsim.evidence import Level
from refsim.formats import element_named
from refsim.numerics import sparse
from refsim.numerics.sparse import SPARSE_FORMS, SparseForm, sparsity_of
from tests.numerics.sparse_product import expanded, sparse_dot_product

pytestmark = pytest.mark.filterwarnings("ignore::refsim.numerics.UnverifiedProfileWarning")
CASES = [(form, d, k) for form in SPARSE_FORMS for d in form.results for k in form.k]
DTYPES = {"f32": np.float32, "f16": np.float16, "s32": np.int32}


def name(value: Any) -> str:
    return f"{value.unit}-{value.types[0]}" if isinstance(value, SparseForm) else str(value)


def stored(generator: np.random.Generator, type: str, *shape: int, unit: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Codes of any bits, among them groups with fewer nonzeros than they may hold, and positions in any order."""
    row = element_named(type)
    sparsity = sparsity_of(row, unit)
    codes = generator.integers(0, row.code_limit, shape, np.uint64).astype(row.code_dtype)
    codes[generator.random(shape) < 0.3] = 0
    runs = sparsity.group // sparsity.together
    ranks = np.argsort(generator.random((*shape[:-1], shape[-1] // sparsity.kept, runs)), axis=-1)
    ranks = ranks[..., : sparsity.kept // sparsity.together, None] * sparsity.together + np.arange(sparsity.together)
    return codes, ranks.reshape(shape).astype(np.uint8)


def codes_of(generator: np.random.Generator, type: str, *shape: int) -> np.ndarray:
    row = element_named(type)
    return generator.integers(0, row.code_limit, shape, np.uint64).astype(row.code_dtype)


def tame(codes: np.ndarray, type: str) -> np.ndarray:
    """Codes near each other, so that sums lose bits but are no infinities."""
    row = element_named(type)
    if row.is_integer:
        return codes
    numbers = np.random.default_rng(int(codes.ravel()[:1].sum())).normal(size=codes.shape)
    from refsim import encode

    return encode(numbers.astype(np.float32), row)


@pytest.mark.parametrize(("form", "d", "k"), CASES, ids=name)
@pytest.mark.parametrize("kind", ["any bits", "numbers"])
def test_a_product_is_that_of_whole_rows(form: SparseForm, d: Any, k: int, kind: str) -> None:
    generator = np.random.default_rng(k + len(kind))
    a_type, b_type, length = form.types[0].name, form.types[-1].name, 2 * k
    sparsity, target = sparsity_of(form.types[0], form.unit), "sm_100a" if form.since == "sm_100a" else "sm_90a"
    a, positions = stored(generator, a_type, 3, length // 2, unit=form.unit)
    b = codes_of(generator, b_type, 2, length)
    if kind == "numbers":
        a, b = np.where(a == 0, a, tame(a, a_type)), tame(b, b_type)
    c = generator.integers(-1000, 1000, (3, 2)).astype(DTYPES[d.name])
    how: dict[str, Any] = {"a_format": a_type, "b_format": b_type}
    profile = numerics.sparse_profile(target, form.unit, a_type, b_type, d, k)
    scales: list[np.ndarray] = []
    if profile.scales:
        (scale, block), low = profile.scales[-1], 40 if kind == "numbers" else 0
        scales = [generator.integers(low, 128, (rows, length // 2 // block)).astype(np.uint8) for rows in (3, 2)]
        how["scale_format"] = scale
    given = dict(zip(("a_scale", "b_scale"), scales, strict=False))
    got = numerics.mma(a, b, c, unit=form.unit, target=target, d_format=d, k=k, metadata=positions, **how, **given)
    codes = c.view(np.int32 if d.name == "s32" else f"u{c.itemsize}")
    for i in range(3):
        row = expanded(a[i].tolist(), positions[i].tolist(), sparsity.kept, sparsity.group)
        for j in range(2):
            own = {name: each[at].tolist() for (name, each), at in zip(given.items(), (i, j), strict=False)}
            want = sparse_dot_product(row, b[j].tolist(), int(codes[i, j]), profile, k, **how, **own)
            assert got.view(codes.dtype)[i, j] == want


@pytest.mark.parametrize("type", ["s8", "u8"])
def test_integers_are_the_product_of_the_whole_matrix(type: str) -> None:
    generator = np.random.default_rng(3)
    (a, positions), b = stored(generator, type, 2, 5, 64), codes_of(generator, "u8", 2, 3, 128)
    whole = numerics.decompress(a, positions, type).view("i1" if type == "s8" else "u1").astype(np.int64)
    got = numerics.mma(a, b, unit="wgmma", a_format=type, b_format="u8", d_format="s32", metadata=positions)
    np.testing.assert_array_equal(got, whole @ b.astype(np.int64).swapaxes(1, 2))


def test_leading_dimensions_broadcast_and_large_products_come_in_parts(monkeypatch) -> None:
    generator = np.random.default_rng(4)
    a, positions = stored(generator, "f16", 4, 6, 16)
    a = tame(a, "f16")
    b = tame(codes_of(generator, "f16", 5, 32), "f16")
    how: dict[str, Any] = {"unit": "mma.sync", "a_format": "f16", "b_format": "f16"}
    got = numerics.mma(a, b, metadata=positions, **how)
    monkeypatch.setattr(sparse, "_TILE", 100)
    np.testing.assert_array_equal(got, numerics.mma(a, b, metadata=positions, **how))
    alone = [numerics.mma(a[i], b, metadata=positions[i], **how) for i in range(4)]
    np.testing.assert_array_equal(got, np.stack(alone))
    assert got.shape == (4, 6, 5)


def test_many_accumulators_share_one_pair_of_matrices() -> None:
    """A C of shape (3, M, N) beside one A and one B makes three results."""
    a, b, c = (
        np.full((16, 16), 0x3F80, np.uint16),
        np.full((8, 32), 0x3F80, np.uint16),
        np.zeros((3, 16, 8), np.float32),
    )
    c[1], c[2] = 1, 2
    metadata = np.tile(np.uint8([0, 1]), (16, 8))
    how = {"unit": "mma.sync", "a_format": "bf16", "b_format": "bf16", "target": "sm_90a", "metadata": metadata}
    assert numerics.mma(a, b, c, **how)[:, 0, 0].tolist() == [16, 17, 18]
    two = np.stack([a, a])
    with pytest.raises(RefsimError, match="do not broadcast"):
        numerics.mma(two, b, c, **{**how, "metadata": np.stack([metadata, metadata])})


def test_a_bound_holds_for_sparse_products() -> None:
    generator = np.random.default_rng(5)
    a, positions = stored(generator, "bf16", 6, 32)
    a = np.where(a == 0, a, tame(a, "bf16"))
    b = tame(codes_of(generator, "bf16", 4, 64), "bf16")
    how: dict[str, Any] = {"a_format": "bf16", "b_format": "bf16"}
    exact = numerics.exact_product(numerics.decompress(a, positions, "bf16"), b, **how)
    got = numerics.mma(a, b, unit="wgmma", metadata=positions, **how)
    bound = numerics.error_bound(a, b, unit="wgmma", metadata=positions, **how)
    assert bound.shape == got.shape
    assert (np.abs(got.astype(np.float64) - exact) <= bound + np.spacing(np.abs(exact))).all()


@pytest.mark.parametrize("bad", [0x7E00, 0x7C00, 0xFC00], ids=hex)
def test_what_no_stored_element_meets_has_no_effect(bad: int) -> None:
    """A NaN or an infinity in B at a place that is not stored; a stored zero meets its own as any product does."""
    a, positions = np.full((1, 16), 0x3C00, np.uint16), np.tile(np.uint8([1, 3]), 8)[None]
    b = np.full((1, 32), 0x3C00, np.uint16)
    b[0, ::2] = bad
    how: dict[str, Any] = {"unit": "mma.sync", "a_format": "f16", "b_format": "f16"}
    assert numerics.mma(a, b, metadata=positions, **how) == 16
    a[0, 0], b[0, 1] = 0, bad
    assert np.isnan(numerics.mma(a, b, metadata=positions, **how))


def test_one_row_of_data_says_where_a_step_ends(monkeypatch) -> None:
    """2^12 and -2^12 in different halves of the stored products, and 2^-14: one step of 16 loses what two steps of 8 keep."""
    a = np.zeros((1, 16), np.uint16)
    a[0, [0, 7, 15]] = 0x6C00, 0xEC00, 0x0400
    b, positions = np.full((1, 32), 0x3C00, np.uint16), np.tile(np.uint8([0, 1]), 8)[None]
    how: dict[str, Any] = {"unit": "mma.sync", "a_format": "f16", "b_format": "f16", "metadata": positions}
    one = numerics.mma(a, b, **how)
    changed = [replace(form, changes={"length": 8}) if form.unit == "mma.sync" else form for form in SPARSE_FORMS]
    monkeypatch.setattr(sparse, "SPARSE_FORMS", tuple(changed))
    assert (one.item(), numerics.mma(a, b, **how).item()) == (0.0, 2.0**-14)


def test_what_is_inferred_says_so() -> None:
    row = numerics.sparse_profile("sm_90a", "mma.sync", "f16", "f16", "f32")
    assert (row.k, row.evidence.level, row.source.place) == ((16, 8), Level.SILICON, "mma.sp")
    row = numerics.sparse_profile("sm_80", "mma.sync", "f16", "f16", "f32")
    assert (row.k, row.evidence.level, row.source.place) == ((16, 8), Level.UNVERIFIED, "mma.sp")
    assert "not measured" in row.evidence.what
    assert numerics.sparse_profile("sm_80", "mma.sync", "s8", "u8", "s32", 64).evidence.level is Level.FORMULA
    assert numerics.sparse_profile("sm_90a", "wgmma", "e4m3", "e5m2", "f16").k == (32,)


@pytest.mark.filterwarnings("error")
def test_a_product_that_is_inferred_warns() -> None:
    a, positions = np.zeros((1, 16), np.uint16), np.tile(np.uint8([0, 1]), 8)[None]
    with pytest.warns(numerics.UnverifiedProfileWarning, match="inferred, not measured"):
        numerics.mma(
            a,
            np.zeros((1, 32), np.uint16),
            target="sm_80",
            unit="mma.sync",
            a_format="f16",
            b_format="f16",
            metadata=positions,
        )


@pytest.mark.parametrize(
    "asked",
    [
        ("sm_75", "mma.sync", "f16", "f16", "f32"),
        ("sm_80", "mma.sync", "e4m3", "e4m3", "f32"),
        ("sm_90a", "mma.sync", "e4m3", "e4m3", "f16"),
        ("sm_89", "mma.sync", "e4m3", "e4m3", "f32", 32),  # half of it is the K of a dense one
        ("sm_90a", "mma.sync", "f64", "f64", "f64"),
        ("sm_90a", "mma.sync", "f16", "f16", "f32", 64),
        ("sm_90a", "mma.sync", "f16", "f16", "f32", 8),
        ("sm_90a", "wgmma", "f16", "f16", "f32", 16),
        ("gfx942", "mfma", "f16", "f16", "f32"),
    ],
    ids=str,
)
def test_what_no_instruction_multiplies_is_refused(asked: tuple[Any, ...]) -> None:
    with pytest.raises(RefsimError) as caught:
        numerics.sparse_profile(*asked)
    assert caught.value.code in ("unknown-arithmetic", "instruction-k")


@pytest.mark.parametrize("type", ["f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8"])
def test_storage_goes_both_ways(type: str) -> None:
    generator = np.random.default_rng(7)
    a, positions = stored(generator, type, 2, 3, 24)
    whole = numerics.decompress(a, positions, type)
    again, found = numerics.compress(whole, type)
    np.testing.assert_array_equal(numerics.decompress(again, found, type), whole)
    assert found.dtype == np.uint8
    if sparsity_of(element_named(type)).kept == 2:
        assert (found[..., ::2] < found[..., 1::2]).all()


@pytest.mark.parametrize("unit", ["tcgen05.f8f6f4", "tcgen05.mxf4"])
def test_fp4_is_stored_by_pairs_where_its_containers_are_of_four_bits(unit: Any) -> None:
    generator = np.random.default_rng(8)
    a, positions = stored(generator, "e2m1", 2, 3, 32, unit=unit)
    a[a == 8] = 0  # a zero of either sign may be left out
    whole = numerics.decompress(a, positions, "e2m1", unit=unit)
    again, found = numerics.compress(whole, "e2m1", unit=unit)
    np.testing.assert_array_equal(numerics.decompress(again, found, "e2m1", unit=unit), whole)
    spread = np.uint8([[1, 0, 1, 0, 0, 0, 0, 0]])
    assert numerics.compress(spread, "e2m1", unit=unit)[1].tolist() == (
        [[0, 1, 2, 3]] if unit == "tcgen05.mxf4" else [[0, 2, 0, 1]]
    )
    spread[0, 6] = 1
    if unit == "tcgen05.mxf4":
        with pytest.raises(RefsimError, match=r"3 of the 4 pairs from \(0, 0\) on are nonzero"):
            numerics.compress(spread, "e2m1", unit=unit)
        with pytest.raises(RefsimError, match="side by side"):
            numerics.decompress(spread[:, :4], np.uint8([[0, 1, 3, 4]]), "e2m1", unit=unit)
        with pytest.raises(RefsimError, match="positions 2 and 2"):
            numerics.decompress(spread[:, :4], np.uint8([[2, 3, 2, 3]]), "e2m1", unit=unit)


def test_groups_with_fewer_nonzeros_take_the_first_places() -> None:
    whole = np.uint16([[0, 0, 0, 0], [0, 0, 0, 9], [9, 0, 0, 0], [0, 9, 0, 0], [0, 0, 8, 9], [0x8000, 0, 9, 0]])
    stored_codes, positions = numerics.compress(whole, "f16")
    assert positions.tolist() == [[0, 1], [0, 3], [0, 1], [0, 1], [2, 3], [0, 2]]
    assert stored_codes.tolist() == [[0, 0], [0, 9], [9, 0], [0, 9], [8, 9], [0x8000, 9]]
    low = np.uint32([[0x1FFF, 0x3F800000]])  # the bits that tf32 ignores
    assert [each.tolist() for each in numerics.compress(low, "tf32")] == [[[0x3F800000]], [[1]]]


def test_a_group_that_holds_too_much_is_named() -> None:
    whole = np.zeros((2, 8), np.uint8)
    whole[1, 4:7] = 1
    with pytest.raises(RefsimError, match=r"3 of the 4 elements from \(1, 4\) on are nonzero") as caught:
        numerics.compress(whole, "e4m3")
    assert caught.value.code == "not-sparse"
    with pytest.raises(RefsimError, match="not whole groups of 4"):
        numerics.compress(np.zeros((2, 6), np.uint8), "s8")
    with pytest.raises(RefsimError, match="type of a sparse matrix"):
        numerics.compress(np.zeros((2, 8), np.uint8), "s4")
    with pytest.raises(RefsimError, match="codes of f16 are uint16"):
        numerics.compress(np.zeros((2, 8), np.float16), "f16")


@pytest.mark.parametrize(
    ("positions", "what"),
    [
        (np.uint8([[1, 1]]), "positions 1 and 1"),
        (np.uint8([[0, 4]]), r"position 4 of stored element \(0, 1\)"),
        (np.int8([[-1, 0]]), "position -1"),
        (np.uint8([[0]]), r"shape \(1, 1\)"),
        (np.float32([[0, 1]]), "float32"),
    ],
    ids=str,
)
def test_metadata_that_names_no_places_is_refused(positions: np.ndarray, what: str) -> None:
    with pytest.raises(RefsimError, match=what) as caught:
        numerics.decompress(np.uint16([[1, 2]]), positions, "f16")
    assert caught.value.code == "not-sparse"


def test_shapes_that_do_not_fit_are_refused() -> None:
    a, b, positions = np.zeros((1, 16), np.uint16), np.zeros((2, 16), np.uint16), np.tile(np.uint8([0, 1]), 8)[None]
    how: dict[str, Any] = {"unit": "mma.sync", "a_format": "f16", "b_format": "f16", "metadata": positions}
    with pytest.raises(RefsimError, match="2:4"):
        numerics.mma(a, b, **how)
    with pytest.raises(RefsimError, match=r"c has shape \(2, 2\)"):
        numerics.mma(a, np.zeros((2, 32), np.uint16), np.zeros((2, 2), np.float32), **how)
    with pytest.raises(RefsimError, match="multiple of the instruction's"):
        numerics.mma(a[:, :4], np.zeros((2, 8), np.uint16), **(how | {"metadata": positions[:, :4]}))
