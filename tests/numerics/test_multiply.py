"""numerics.mma: the smoke vector of every chip, shapes, chaining, and what is refused."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import refsim
from refsim import numerics
from refsim.errors import RefsimError
from refsim.numerics.dot import chains
from refsim.numerics.dot.definition import dot_product
from refsim.numerics.profiles import profile

A, B, C = (-(2.0**13), -0.5, -0.25, -0.125), (2.0**10, 1.0, 1.0, 1.0), 2.0**23
CONTAINERS = {"f64": np.uint64, "f32": np.uint32, "tf32": np.uint32}
# fmt: off
SMOKE = [
    (-0.875, [("sm_80", "mma.sync", "f64"), ("gfx90a", "mfma", "f64"), ("gfx908", "mfma", "f32"), ("gfx908", "mfma", "f16"),
              ("gfx908", "mfma", "bf16")]),
    (0.0, [("sm_70", "mma.sync", "f16"), ("sm_89", "mma.sync", "e5m2"), ("sm_90a", "wgmma", "e5m2"), ("gfx90a", "mfma", "f16"),
           ("gfx90a", "mfma.1k", "bf16")]),
    (-0.5, [(target, "mma.sync", types) for target in ("sm_80", "sm_86", "sm_89") for types in ("f16", "bf16", "tf32")]
     + [("sm_75", "mma.sync", "f16"), *(("gfx942", "mfma", types) for types in ("f16", "bf16", "tf32"))]),
    (-0.75, [(target, "mma.sync", types) for target in ("sm_90", "sm_100", "sm_120") for types in ("f16", "bf16", "tf32")]
     + [("sm_90a", "wgmma", types) for types in ("f16", "bf16", "tf32")]
     + [("sm_100a", "tcgen05.f16", "f16"), ("sm_100a", "tcgen05.tf32", "tf32"), ("sm_100a", "tcgen05.f8f6f4", "e5m2"),
        ("sm_120a", "mma.sync", "e5m2")]),
    (-0.375, [("gfx90a", "mfma", "bf16")]),
    (-1.0, [("gfx942", "mfma", "e5m2fnuz")]),
]
# fmt: on
CASES = [(want, *unit) for want, units in SMOKE for unit in units]
FP8 = {"unit": "wgmma", "a_format": "e4m3", "b_format": "e4m3", "d_format": "f32"}


def codes(values: Any, types: str) -> Any:
    array = np.asarray(values, np.float64)
    if types == "f64":
        return array.view(np.uint64)
    return array.astype(np.float32).view(np.uint32) if types in CONTAINERS else refsim.encode(array, types)


@pytest.mark.parametrize(("want", "target", "unit", "types"), CASES, ids=[" ".join(case[1:]) for case in CASES])
def test_smoke_vector_tells_the_chips_apart(want: float, target: str, unit: str, types: str) -> None:
    """-2^23 - 0.5 - 0.25 - 0.125 + 2^23 is -0.875; each chip keeps its own share of it."""
    d_format = "f64" if types == "f64" else "f32"
    k = max(profile(target, unit, types, types, d_format).k)
    a, b = (np.pad(np.array([row]), ((0, 0), (0, max(k - 4, 0)))) for row in (A, B))
    c = np.full((1, 1), C, np.float64 if types == "f64" else np.float32)
    d = numerics.mma(
        codes(a, types), codes(b, types), c, unit=unit, a_format=types, b_format=types, d_format=d_format, target=target
    )
    assert d.item() == want


def random_problem(m: int = 5, n: int = 7, k: int = 64) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(7)
    a, b = (random.integers(0, 256, (rows, k), np.uint8) & 0xF7 for rows in (m, n))
    return a, b, random.standard_normal((m, n)).astype(np.float32)


def same(got: Any, want: Any) -> bool:
    return got.dtype == want.dtype and got.shape == want.shape and (got.view(np.uint32) == want.view(np.uint32)).all()


def test_k_is_a_chain_of_instructions_in_ascending_order() -> None:
    a, b, c = random_problem()
    first = numerics.mma(a[:, :32], b[:, :32], c, **FP8)
    assert same(numerics.mma(a, b, c, **FP8), numerics.mma(a[:, 32:], b[:, 32:], first, **FP8))


def test_the_instruction_k_decides_where_hopper_adds_c() -> None:
    a, b, c = random_problem()
    kinds = {**FP8, "unit": "mma.sync", "target": "sm_90"}
    by_16 = c
    for start in range(0, 64, 16):
        by_16 = numerics.mma(a[:, start : start + 16], b[:, start : start + 16], by_16, k=16, **kinds)
    assert same(numerics.mma(a, b, c, k=16, **kinds), by_16)
    assert not same(numerics.mma(a, b, c, k=32, **kinds), by_16)


def test_no_c_is_zero() -> None:
    a, b, c = random_problem()
    assert same(numerics.mma(a, b, None, **FP8), numerics.mma(a, b, np.zeros_like(c), **FP8))


def test_leading_dimensions_broadcast() -> None:
    a, b, c = random_problem()
    got = numerics.mma(np.stack([a, a[::-1]])[:, None], b, c[None, None], **FP8)
    assert got.shape == (2, 1, 5, 7)
    assert same(got[1, 0], numerics.mma(a[::-1], b, c, **FP8))


def test_no_rows_give_no_results() -> None:
    a, b, _ = random_problem()
    assert numerics.mma(a[:0], b, None, **FP8).shape == (0, 7)
    assert numerics.mma(np.stack([a])[:0], b, None, **FP8).shape == (0, 5, 7)


def test_tiles_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = random_problem(9, 5)
    stacked = (np.stack([a] * 3), np.stack([b, b[::-1], b]), np.stack([c] * 3))
    whole = numerics.mma(*stacked, **FP8)
    for tile in (1, 5 * 32 * 4, 5 * 32 * 9 * 2):
        monkeypatch.setattr(chains, "_TILE", tile)
        assert same(numerics.mma(*stacked, **FP8), whole)


def test_a_missing_c_is_a_zero_that_bounds_the_alignment() -> None:
    """2^-149 less 2^-159, fourteen products that cancel: units of 2^-158 lose the small one, finer ones would give 0."""
    a = codes([[2.0**-70, -(2.0**-70)] + [2.0**-80, -(2.0**-80)] * 7], "bf16")
    b = codes([[2.0**-79, 2.0**-89] + [2.0**-80] * 14], "bf16")
    kinds = {"unit": "wgmma", "a_format": "bf16", "b_format": "bf16", "d_format": "f32"}
    assert numerics.mma(a, b, None, **kinds).view(np.uint32).item() == 1


def test_cdna2_flushes_a_negative_result_to_negative_zero() -> None:
    """2^-126 - 1.0625 x 2^-126 is subnormal."""
    a, b = codes([[-1.0625 * 2.0**-63, 0.0]], "bf16"), codes([[2.0**-63, 0.0]], "bf16")
    kinds = {"unit": "mfma", "a_format": "bf16", "b_format": "bf16", "d_format": "f32", "target": "gfx90a", "k": 2}
    d = numerics.mma(a, b, np.full((1, 1), 2.0**-126, np.float32), **kinds)
    assert d.view(np.uint32).item() == 0x80000000


@pytest.mark.parametrize(("k", "word"), [(4, 0x80000000), (2, 0)])
def test_cdna2_flushes_c_once_an_instruction(k: int, word: int) -> None:
    """The first step ends with -0, and the second adds -0: within an instruction that is -0, but C of the next is +0."""
    small = 2.0**-70
    a, b = codes([[-1.0625 * 2.0**-63, 0, -small, -small]], "bf16"), codes([[2.0**-63, 0, small, small]], "bf16")
    kinds = {"unit": "mfma", "a_format": "bf16", "b_format": "bf16", "d_format": "f32", "target": "gfx90a", "k": k}
    d = numerics.mma(a, b, np.full((1, 1), 2.0**-126, np.float32), **kinds)
    assert d.view(np.uint32).item() == word


def test_cdna2_keeps_the_smallest_normal_c() -> None:
    a = codes([[0.0, 0.0]], "bf16")
    kinds = {"unit": "mfma", "a_format": "bf16", "b_format": "bf16", "d_format": "f32", "target": "gfx90a", "k": 2}
    for c, word in ((2.0**-126, 0x00800000), (-(2.0**-126), 0x80800000), (2.0**-127, 0)):
        given = np.full((1, 1), c, np.float32)
        assert numerics.mma(a, a, given, **kinds).view(np.uint32).item() == word
        row = profile("gfx90a", "mfma", "bf16", "bf16", "f32")
        found = dot_product([0, 0], [0, 0], int(given.view(np.uint32)[0, 0]), row, 2, a_format="bf16", b_format="bf16")
        assert found.result == word


def test_integers_are_exact_and_wrap() -> None:
    a, b = np.full((1, 32), 0x80, np.uint8), np.full((1, 32), 0xFF, np.uint8)
    kinds = {"unit": "wgmma", "d_format": "s32"}
    exact = numerics.mma(a, b, None, a_format="s8", b_format="u8", **kinds)
    assert (exact.dtype, exact.item()) == (np.int32, -128 * 255 * 32)
    top = np.array([[2**31 - 1]], np.int32)
    assert numerics.mma(a, b, top, a_format="u8", b_format="u8", **kinds).item() == 128 * 255 * 32 - 2**31 - 1


def scaled(a_scale: int, b_scale: int, **options: Any) -> Any:
    one = np.full((1, 64), 0x2, np.uint8)
    factors = [np.full((1, 4), scale, np.uint8) for scale in (a_scale, b_scale)]
    kinds = {"unit": "tcgen05.mxf4nvf4", "a_format": "e2m1", "b_format": "e2m1", "d_format": "f32", "target": "sm_100a"}
    return numerics.mma(
        one, one, None, a_scale=factors[0], b_scale=factors[1], **{**kinds, "scale_format": "ue4m3", **options}
    )


def test_ue4m3_scales_ignore_their_top_bit_and_spread_nan() -> None:
    assert scaled(0x38, 0x40).item() == 128.0
    assert scaled(0xB8, 0xC0).item() == 128.0
    assert scaled(0x7F, 0x00).view(np.uint32).item() == 0x7FFFFFFF


def test_cdna4_is_marked_unverified() -> None:
    kinds = {"unit": "mfma", "a_format": "f16", "b_format": "f16", "d_format": "f32", "target": "gfx950"}
    one = np.full((1, 32), 0x3C00, np.uint16)
    with pytest.warns(numerics.UnverifiedProfileWarning, match="unverified") as caught:
        assert numerics.mma(one, one, None, **kinds).item() == 32.0
    assert caught[0].filename == __file__, "the warning points at the caller"


E4M3, HALF, SCALE = np.zeros((2, 64), np.uint8), np.zeros((2, 64), np.uint16), np.zeros((2, 2), np.uint8)
MX = {"unit": "tcgen05.mxf8f6f4", "target": "sm_100a"}
NVFP4 = {"unit": "tcgen05.mxf4nvf4", "a_format": "e2m1", "b_format": "e2m1", "target": "sm_100a"}
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("bad-dtype", {"a": HALF}),
    ("bad-dtype", {"a": np.zeros((2, 64), np.float32)}),
    ("bad-shape", {"a": E4M3[0]}),
    ("bad-shape", {"b": E4M3[:, :32]}),
    ("bad-shape", {"c": np.zeros((2, 3), np.float32)}),
    ("bad-shape", {"c": np.zeros(2, np.float32)}),
    ("bad-shape", {"a": np.zeros((2, 2, 64), np.uint8), "b": np.zeros((3, 2, 64), np.uint8)}),
    ("bad-dtype", {"c": np.zeros((2, 2))}),
    ("bad-shape", {"a": E4M3[:, :48], "b": E4M3[:, :48]}),
    ("bad-shape", {"a": E4M3[:, :0], "b": E4M3[:, :0]}),
    ("instruction-k", {"k": 16}),
    ("unknown-format", {"a_format": "e9m9"}),
    ("unknown-arithmetic", {"a_format": "e2m1"}),
    ("bad-modifier", {"unit": "mma.sync", "negate_a": True}),
    ("bad-scale", {"a_scale": SCALE, "b_scale": SCALE, "scale_format": "e8m0"}),
    ("bad-scale", MX),
    ("bad-scale", {**MX, "a_scale": SCALE, "b_scale": SCALE[:, :1], "scale_format": "e8m0"}),
    ("bad-scale", {**MX, "a_scale": SCALE, "b_scale": SCALE, "scale_format": "ue4m3"}),
    ("bad-scale", {**NVFP4, "a_scale": np.zeros((2, 4), np.uint8), "b_scale": SCALE, "scale_format": "e8m0"}),
    ("bad-dtype", {**MX, "a_scale": SCALE.astype(np.float32), "b_scale": SCALE, "scale_format": "e8m0"}),
    ("bad-shape", {"a": [[1, 2], [3]]}),
    ("bad-shape", {"c": [[1.0, 2.0], [3.0]]}),
    ("bad-shape", {**MX, "a_scale": [[1, 2], [3]], "b_scale": SCALE, "scale_format": "e8m0"}),
    ("instruction-k", {"k": 32.0}),
    ("instruction-k", {"k": np.array([32, 16])}),
    ("instruction-k", {"k": True, "unit": "mfma", "a_format": "f32", "b_format": "f32", "target": "gfx942"}),
    ("unknown-target", {"target": None}),
    ("unknown-name", {"unit": None}),
    ("unknown-name", {"unit": ["wgmma"]}),
    ("unknown-format", {"d_format": np.float32}),
    ("unknown-format", {**MX, "a_scale": SCALE, "b_scale": SCALE, "scale_format": 8}),
    ("bad-modifier", {"negate_a": "no"}),
    ("bad-modifier", {"negate_b": np.array([True, False])}),
    ("out-of-range", {"unit": "tcgen05.f8f6f4", "target": "sm_100a", "a_format": "e2m1", "a": E4M3 + np.uint8(0x10)}),
]


@pytest.mark.parametrize(("code", "changes"), REFUSED)
def test_arguments_that_do_not_fit_are_refused(code: str, changes: dict[str, Any]) -> None:
    with pytest.raises(RefsimError) as error:
        numerics.mma(**{"a": E4M3, "b": E4M3, "c": None, **FP8, **changes})
    assert error.value.code == code


def test_the_package_loads_tensor_cores_only_when_they_are_used() -> None:
    program = (
        "import sys, refsim.numerics.ieee; assert 'refsim.numerics.profiles' not in sys.modules; refsim.numerics.mma"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
