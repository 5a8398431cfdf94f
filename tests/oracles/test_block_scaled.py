"""The block-scaled product: worked numbers, the definition over fractions, what Triton's conversion does, and what is refused."""

import warnings
from collections.abc import Iterator
from fractions import Fraction
from itertools import islice
from typing import Any, get_args

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from refsim import layouts, oracles
from refsim.conversions import decode
from refsim.errors import RefsimError
from refsim.formats import format_named
from refsim.numerics import UnverifiedProfileWarning, ieee
from refsim.oracles.block_scaled import UPCASTS, k_order
from refsim.reference import block_scaled as slow
from refsim.reference.block_scaled import AMPERE_BF16, BLACKWELL, BLACKWELL_FP4, HOPPER_BF16, Alignment

Codes = NDArray[np.uint8]
matmul = oracles.block_scaled_matmul
KINDS = {
    "mxfp8": ("e4m3", "e4m3", "e8m0", 32),
    "mxfp8_e5m2": ("e5m2", "e4m3", "e8m0", 32),
    "mxfp6_e2m3": ("e2m3", "e2m3", "e8m0", 32),
    "mxfp6_e3m2": ("e3m2", "e2m3", "e8m0", 32),
    "mixed": ("e4m3", "e2m1", "e8m0", 32),
    "mxfp4": ("e2m1", "e2m1", "e8m0", 32),
    "nvfp4": ("e2m1", "e2m1", "ue4m3", 16),
}
UNITS = {  # target, unit that is meant if none is named for FP4 and for others
    "sm_100a": ("tcgen05.mxf8f6f4", "tcgen05.mxf4", "tcgen05.mxf4nvf4"),
    "sm_120a": ("mma.sync.mxf8f6f4", "mma.sync.mxf4", "mma.sync.mxf4nvf4"),
}


def problem(kind: str, seed: int, m: int, n: int, k: int, span: int = 6) -> dict[str, Any]:
    """Codes of every number, no NaN and no infinity; scales within 2^span of each other."""
    a_format, b_format, scale_format, block = KINDS[kind]
    generator = np.random.default_rng([seed, k])
    found: dict[str, Any] = {"a_format": a_format, "b_format": b_format, "scale_format": scale_format}
    for name, rows, format in (("a", m, format_named(a_format)), ("b", n, format_named(b_format))):
        codes = generator.integers(0, format.code_limit, (rows, k)).astype(np.uint8)
        codes[~np.isfinite(decode(codes, format))] = 1
        low, high = (127 - span, 128 + span) if scale_format == "e8m0" else (0, 0x7F)
        found |= {name: codes, f"{name}_scale": generator.integers(low, high, (rows, k // block)).astype(np.uint8)}
    return found


def call(given: dict[str, Any], **more: Any) -> NDArray[Any]:
    names = ("a", "b", "a_scale", "b_scale")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnverifiedProfileWarning)
        return matmul(*(given[name] for name in names), **{k: v for k, v in given.items() if k not in names} | more)


def places(d: NDArray[Any]) -> Iterator[tuple[int, int]]:
    return islice(((i, (3 * i + 1) % d.shape[1]) for i in range(d.shape[0])), 3)


def native(given: dict[str, Any], i: int, j: int, step: Alignment, c: Fraction = Fraction(0)) -> int:
    codes, scales = ((given[f"a{s}"][i].tolist(), given[f"b{s}"][j].tolist()) for s in ("", "_scale"))
    return slow.native(codes, (given["a_format"], given["b_format"]), scales, given["scale_format"], step, c)


@pytest.mark.parametrize(("k", "span"), [(64, 90), (96, 3)])
@pytest.mark.parametrize("target", UNITS)
@pytest.mark.parametrize("kind", KINDS)
def test_units_with_block_scales_are_the_slow_definition(kind: str, target: str, k: int, span: int) -> None:
    given = problem(kind, 1, 6, 9, k, span)
    c = np.random.default_rng(k).standard_normal((6, 9)).astype(np.float32)
    step = BLACKWELL_FP4 if given["a_format"] == given["b_format"] == "e2m1" else BLACKWELL
    first, later = (call(given, target=target, **more).view(np.uint32) for more in ({}, {"c": c}))
    for i, j in places(first):
        assert first[i, j] == native(given, i, j, step)
        assert later[i, j] == native(given, i, j, step, Fraction(float(c[i, j])))


@pytest.mark.parametrize(("kind", "at"), [("mxfp8", 0), ("mixed", 0), ("mxfp4", 1), ("nvfp4", 2)])
@pytest.mark.parametrize("target", UNITS)
def test_the_unit_is_the_narrowest_that_takes_the_formats(target: str, kind: str, at: int) -> None:
    given = problem(kind, 2, 8, 8, 128, 60)
    np.testing.assert_array_equal(call(given, target=target), call(given, target=target, unit=UNITS[target][at]))


def test_fp4_in_the_unit_of_fp8_is_another_number() -> None:
    given = problem("mxfp4", 3, 32, 32, 128, 20)
    narrow, wide = (call(given, unit=unit) for unit in ("tcgen05.mxf4", "tcgen05.mxf8f6f4"))
    assert (narrow != wide).any()


@pytest.mark.parametrize(
    ("target", "unit"), [("sm_90a", None), ("sm_90a", "mma.sync"), ("sm_89", None), ("sm_80", None)]
)
@pytest.mark.parametrize("upcast", get_args(oracles.BlockScaledUpcast))
@pytest.mark.parametrize("kind", ["mxfp8", "mxfp8_e5m2", "mixed", "mxfp4", "nvfp4"])
def test_products_in_bf16_are_the_slow_definition(kind: str, upcast: str, target: str, unit: str | None) -> None:
    given = problem(kind, 4, 6, 9, 96)
    generator = np.random.default_rng(5)
    for name in ("a_scale", "b_scale"):  # every byte, with its sign and the two ends of E8M0
        given[name][0] = generator.integers(0, 256, given[name].shape[1])
        given[name][1, 0] = 0
    given["a"][2, 5] = 0x7D if given["a_format"] == "e5m2" else 0
    d = call(given, target=target, unit=unit, upcast=upcast).view(np.uint32)
    zero = Fraction(1, 1 << 127) if upcast == UPCASTS[0].name else Fraction(0)
    step = HOPPER_BF16 if target == "sm_90a" else AMPERE_BF16
    k_width = 2 if (target, unit) == ("sm_90a", None) else 8 if "e2m1" in (given["a_format"], given["b_format"]) else 4
    for i, j in [*places(d), (1, 1), (0, 1), (2, 0)]:
        a, b = (
            slow.in_bf16(
                given[s][r].tolist(), given[f"{s}_format"], given[f"{s}_scale"][r].tolist(), given["scale_format"], zero
            )
            for s, r in (("a", i), ("b", j))
        )
        assert d[i, j] == slow.wide(a, b, slow.steps_of_lanes(96, k_width, step.length), step), (i, j)


def test_the_smallest_scale_is_a_number_in_3_9_and_was_none_before() -> None:
    given: dict[str, Any] = {"a": np.full((1, 32), 7, np.uint8), "b": np.full((1, 32), 7, np.uint8), "a_format": "e2m1"}
    given |= {"b_format": "e2m1", "a_scale": np.uint8([[0]]), "b_scale": np.uint8([[254]]), "target": "sm_90a"}
    assert call(given | {"b_scale": np.uint8([[252]])})[0, 0] == 36 * 32 * 2.0**-2
    assert call(given | {"b_scale": np.uint8([[252]])}, upcast="byte_shift")[0, 0] == 0
    assert np.isnan(call(given | {"b_scale": np.uint8([[255]])}, upcast="byte_shift")[0, 0])
    assert call(given | {"b_scale": np.uint8([[252]])}, target="sm_100a")[0, 0] == 36 * 32 * 2.0**-2
    assert call(given)[0, 0] == np.inf  # 6 * 2^127 is none in bf16
    assert call(given, target="sm_100a")[0, 0] == 36 * 32


def test_a_scale_of_nvfp4_has_a_sign_in_bf16_alone() -> None:
    given: dict[str, Any] = {"a": np.full((1, 16), 2, np.uint8), "b": np.full((1, 16), 2, np.uint8), "a_format": "e2m1"}
    given |= {"b_format": "e2m1", "a_scale": np.uint8([[0xB8]]), "b_scale": np.uint8([[0x38]]), "scale_format": "ue4m3"}
    assert call(given, target="sm_100a")[0, 0] == 16
    assert call(given, target="sm_90a")[0, 0] == -16


@pytest.mark.parametrize("kind", ["mxfp8", "mxfp4", "mixed", "mxfp6_e3m2"])
def test_cdna4_is_a_placeholder_that_says_so(kind: str) -> None:
    given = problem(kind, 6, 5, 7, 96, 120)
    names = ("a", "b", "a_scale", "b_scale")
    with pytest.warns(UnverifiedProfileWarning, match=r"gfx950 mfma\.scale"):
        d = matmul(
            *(given[x] for x in names), a_format=given["a_format"], b_format=given["b_format"], target="gfx950"
        ).view(np.uint32)
    for i, j in places(d):
        codes, scales = ((given[f"a{s}"][i].tolist(), given[f"b{s}"][j].tolist()) for s in ("", "_scale"))
        assert d[i, j] == slow.chained(codes, (given["a_format"], given["b_format"]), scales)


def test_special_codes() -> None:
    ones = np.full((1, 32), 0x38, np.uint8)

    def one(a: Codes = ones, s: int = 127, format: str = "e4m3", **more: Any) -> np.uint32:
        return matmul(a, ones, np.uint8([[s]]), np.uint8([[127]]), a_format=format, b_format="e4m3", **more).view(
            np.uint32
        )[0, 0]

    nan, zeros = 0x7FFFFFFF, np.zeros((1, 32), np.uint8)
    assert one(s=255) == nan
    assert one(zeros, 255) == nan
    assert one(zeros) == one(zeros | 0x80) == 0
    assert one(np.full((1, 32), 0x7F, np.uint8)) == nan
    infinite = zeros.copy()
    infinite[0, 3] = 0xFC
    assert one(infinite, format="e5m2") == 0xFF800000
    assert one(infinite, format="e5m2", target="sm_90a").view(np.float32) == -(2**16)  # the conversion has no infinity


def test_arrays_of_ml_dtypes_know_their_formats() -> None:
    given = problem("nvfp4", 7, 4, 5, 64)
    kinds = (ml_dtypes.float4_e2m1fn, ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fn)
    typed = [given[x].view(t) for x, t in zip(("a", "b", "a_scale", "b_scale"), kinds, strict=True)]
    np.testing.assert_array_equal(matmul(*typed), call(given))
    eights = [np.full((1, 32), 0x38, np.uint8).view(ml_dtypes.float8_e4m3fn)] * 2
    scales = [np.uint8([[s]]).view(ml_dtypes.float8_e8m0fnu) for s in (128, 126)]
    assert matmul(*eights, *scales)[0, 0] == 32


SHUFFLED = (
    ("mxfp8", "sm_100a", "nvidia_128x4"),
    ("nvfp4", "sm_120a", "nvidia_128x4_5d"),
    ("mxfp4", "gfx950", "cdna4_16"),
)


@pytest.mark.parametrize(("kind", "target", "layout"), SHUFFLED)
def test_shuffled_scales_are_the_logical_ones_whatever_their_pads_hold(kind: str, target: str, layout: str) -> None:
    given = problem(kind, 8, 37, 130, 160)
    want = call(given, target=target)
    row = layouts.scale_layout(layout)
    shuffled = {name: row.shuffle(given[name], fill=0xFF) for name in ("a_scale", "b_scale")}
    np.testing.assert_array_equal(call(given | shuffled, target=target, layout=layout), want)
    with pytest.raises(RefsimError, match="pads to") as refused:
        call(given | {"a_scale": shuffled["a_scale"].ravel()[:-4]}, target=target, layout=layout)
    assert refused.value.code == "bad-shape"


def test_the_global_scale_multiplies_once_and_the_output_is_rounded_once_more() -> None:
    given = problem("nvfp4", 9, 12, 16, 64)
    factor = np.float32(1 / 2688)
    wide = ieee.mul(call(given), np.full((12, 16), factor))
    np.testing.assert_array_equal(call(given, global_scale=float(factor)), wide)
    bf16 = call(given, global_scale=float(factor), out="bf16")
    np.testing.assert_array_equal(bf16, wide.astype(ml_dtypes.bfloat16).view(np.uint16))
    f16 = call(given, global_scale=float(factor), out="f16")
    np.testing.assert_array_equal(f16, wide.astype(np.float16).view(np.uint16))


def test_tiles_of_d_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    given = problem("mxfp4", 10, 21, 19, 96)
    c = np.random.default_rng(1).standard_normal((21, 19)).astype(np.float32)
    want = call(given, c=c)
    monkeypatch.setattr("refsim.oracles.block_scaled.TILE_ROWS", 8)
    np.testing.assert_array_equal(call(given, c=c), want)


def test_lanes_with_more_than_two_k_change_the_order_of_the_sum() -> None:
    assert k_order(32, 4, None)[:16].tolist() == [0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29]
    assert k_order(64, 8, 32)[:8].tolist() == [0, 1, 8, 9, 16, 17, 24, 25]
    assert sorted(k_order(96, 8, None).tolist()) == list(range(128))
    np.testing.assert_array_equal(k_order(48, 2, None), np.arange(48))
    given = problem("mxfp8", 11, 16, 16, 128)
    found = [call(given, target="sm_89", k_width=width) for width in (2, 4, 8)]
    assert all((found[i] != found[j]).any() for i, j in ((0, 1), (1, 2), (0, 2)))
    six, width_8 = problem("mxfp6_e2m3", 12, 16, 16, 128), problem("mixed", 12, 16, 16, 128)
    np.testing.assert_array_equal(call(six, target="sm_89"), call(six, target="sm_89", k_width=4))
    np.testing.assert_array_equal(call(width_8, target="sm_89"), call(width_8, target="sm_89", k_width=8))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "K is no multiple of the block": ({"a": np.zeros((2, 48), np.uint8)}, "bad-shape"),
    "an odd count of FP4": ({"a": np.zeros((2, 63), np.uint8), "a_format": "e2m1"}, "bad-shape"),
    "scales of blocks of 16": ({"a_scale": np.zeros((2, 4), np.uint8)}, "bad-shape"),
    "scales of another row count": ({"b_scale": np.zeros((2, 2), np.uint8)}, "bad-shape"),
    "scales that are shuffled": ({"a_scale": np.zeros(512, np.uint8)}, "bad-shape"),
    "scales that are numbers": ({"a_scale": np.ones((2, 2), np.float32)}, "bad-dtype"),
    "scales of another format": ({"scale_format": "e5m2"}, "bad-dtype"),
    "a block no unit has": ({"block": 64}, "bad-scale"),
    "a block that is no whole number": ({"block": 32.0}, "bad-scale"),
    "UE4M3 in blocks of 32": ({"scale_format": "ue4m3", "block": 32}, "bad-scale"),
    "NVFP4's scales for FP8": (
        {"scale_format": "ue4m3", "a_scale": np.zeros((2, 4), np.uint8), "b_scale": np.zeros((3, 4), np.uint8)},
        "unknown-arithmetic",
    ),
    "another K": ({"b": np.zeros((3, 96), np.uint8), "b_scale": np.zeros((3, 3), np.uint8)}, "bad-shape"),
    "codes that are packed": ({"a": np.full((2, 64), 0x22, np.uint8), "a_format": "e2m1"}, "out-of-range"),
    "numbers for codes": ({"a": np.ones((2, 64), np.float32)}, "bad-dtype"),
    "wide operands": ({"a": np.ones((2, 64), np.uint16), "a_format": "bf16"}, "bad-dtype"),
    "no format": ({"a_format": None}, "format-needed"),
    "an accumulator of float64": ({"c": np.zeros((2, 3))}, "bad-shape"),
    "two global scales": ({"global_scale": [1.0, 2.0]}, "bad-scale"),
    "output in FP8": ({"out": "e4m3"}, "unsupported-format"),
    "a unit of another chip": ({"unit": "wgmma"}, "unknown-arithmetic"),
    "a unit nobody has": ({"unit": "wmma"}, "unknown-name"),
    "another target": ({"target": "gfx942"}, "unknown-arithmetic"),
    "an unknown conversion": ({"target": "sm_90a", "upcast": "triton_4"}, "unknown-name"),
    "an odd width of lanes": ({"target": "sm_89", "k_width": 3}, "bad-value"),
    "tiles that cut a lane's run": ({"target": "sm_89", "k_width": 8, "tile_k": 16}, "bad-value"),
    "a width of lanes that is no integer": ({"target": "sm_89", "k_width": 4.0}, "bad-value"),
    "a block that is no integer": ({"block": 32.0}, "bad-scale"),
    "lists of several lengths": ({"a": [[1], [1, 2]]}, "not-an-array"),
    "scales in lists of several lengths": ({"b_scale": [[1], [1, 2]]}, "not-an-array"),
    "an accumulator in lists of several lengths": ({"c": [[1], [1, 2]]}, "not-an-array"),
    "one row": ({"a": np.zeros(64, np.uint8)}, "bad-shape"),
    "no K": ({"a": np.zeros((2, 0), np.uint8), "a_scale": np.zeros((2, 0), np.uint8)}, "bad-shape"),
    "shuffled scales without their pads": ({"layout": "nvidia_128x4"}, "bad-shape"),
    "a global scale that is none": ({"global_scale": 1j}, "bad-scale"),
    "an unknown layout": ({"layout": "nvidia_128x5"}, "unknown-layout"),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_does_not_fit_is_one_clear_error(wrong: str) -> None:
    change, code = REFUSED[wrong]
    given: dict[str, Any] = {"a": np.zeros((2, 64), np.uint8), "b": np.zeros((3, 64), np.uint8), "target": "sm_100a"}
    given |= {"a_scale": np.zeros((2, 2), np.uint8), "b_scale": np.zeros((3, 2), np.uint8), "scale_format": "e8m0"}
    given |= {"a_format": "e4m3", "b_format": "e4m3"}
    call(given)
    with pytest.raises(RefsimError) as refused:
        call(given | change)
    assert refused.value.code == code
    assert refused.value.help or refused.value.rule
