"""cuBLASLt's FP8 GEMM: worked numbers, the slow definition, samples, and above all what it refuses to say."""

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from refsim import oracles
from refsim.errors import Kind, RefsimError
from refsim.numerics import ieee, mma
from refsim.oracles.cublaslt import ACCUMULATIONS, SCALINGS

Codes = NDArray[np.uint8]
gemm = oracles.cublaslt_fp8
H200 = oracles.CUBLASLT_REGIONS[0]
ONE = np.full((16, 256), 0x38, np.uint8)
SCALES = np.float32(0.37), np.float32(1.91)


def operands(m: int, n: int, k: int) -> tuple[Codes, Codes]:
    generator = np.random.default_rng(k)
    a, b = (generator.integers(0, 256, shape).astype(np.uint8) for shape in ((m, k), (n, k)))
    a[a & 0x7F == 0x7F], b[b & 0x7F == 0x7F] = 0x35, 0xB1
    return a, b


def chain(a: Codes, b: Codes, c: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    return mma(a, b, c, unit="wgmma", a_format="e4m3", b_format="e4m3", target="sm_90a", k=32)


def test_names_are_the_rows() -> None:
    assert SCALINGS == ("tensor", "blockwise")
    assert ACCUMULATIONS == ("fast", "slow")
    assert [(row.version, row.chip) for row in oracles.CUBLASLT_REGIONS] == [(130100, "h200"), (130100, "h100")]
    assert all(row.evidence.runs for row in oracles.CUBLASLT_REGIONS)


@pytest.mark.parametrize("accumulation", ACCUMULATIONS)
def test_tensor_wise_is_the_sum_written_out(accumulation: oracles.CublasltAccumulation) -> None:
    """Instruction by instruction: fast carries one accumulator through K, slow begins anew every 128 columns."""
    a, b = operands(3, 16, 400)
    padded = [np.pad(side, ((0, 0), (0, 16))) for side in (a, b)]
    total: NDArray[np.float32] = np.zeros((3, 16), np.float32)
    part = total
    for first in range(0, 416, 32):
        if first % 128 == 0 and accumulation == "slow":
            total, part = ieee.add(total, part), np.zeros_like(part)
        part = chain(*(side[:, first : first + 32] for side in padded), part)
    total = ieee.add(total, part) if accumulation == "slow" else part
    want = ieee.mul(np.float32(SCALES[0] * SCALES[1]), total)
    np.testing.assert_array_equal(gemm(a, b, *SCALES, accumulation=accumulation, out="f32"), want)


def test_blockwise_is_the_gemm_with_block_scales() -> None:
    a, b = operands(8, 144, 400)
    generator = np.random.default_rng(1)
    scales = [generator.uniform(0.1, 2, shape).astype(np.float32) for shape in ((8, 4), (2, 4))]
    for out in ("bf16", "f32"):
        want = oracles.fp8_gemm_1d2d(a, b, *scales, out=out)
        np.testing.assert_array_equal(gemm(a, b, *scales, scaling="blockwise", out=out), want)
        some = gemm(a, b, *scales, scaling="blockwise", out=out, rows=[7, 1], cols=[143])
        np.testing.assert_array_equal(some, want[[7, 1]][:, [143]])
    fewer = gemm(a[:5], b, scales[0][:5], scales[1], scaling="blockwise")
    np.testing.assert_array_equal(fewer, oracles.fp8_gemm_1d2d(a, b, *scales)[:5])


def test_splits_add_sums_of_ranges_before_the_scales() -> None:
    a, b = operands(2, 16, 1040)
    for accumulation in ACCUMULATIONS:
        parts = [slice(0, 384), slice(384, 768), slice(768, 1040)]
        sums = [gemm(a[:, part], b[:, part], 1, 1, accumulation=accumulation, out="f32") for part in parts]
        want = ieee.mul(np.float32(SCALES[0] * SCALES[1]), ieee.add(ieee.add(sums[0], sums[1]), sums[2]))
        found = gemm(a, b, *SCALES, accumulation=accumulation, splits=3, out="f32")
        np.testing.assert_array_equal(found, want)


def test_blockwise_ranges_hold_whole_fours_of_blocks() -> None:
    a, b = operands(4, 16, 9 * 128)
    scales = [
        np.random.default_rng(row).uniform(0.1, 2, (rows, 9)).astype(np.float32) for row, rows in ((0, 4), (1, 1))
    ]
    parts = []
    for first in (0, 4, 8):  # of nine blocks in three ranges three would do
        codes = slice(128 * first, 128 * first + 512)
        some = [scale[:, first : first + 4] for scale in scales]
        parts.append(oracles.fp8_gemm_1d2d(a[:, codes], b[:, codes], *some, out="f32"))
    found = gemm(a, b, *scales, scaling="blockwise", splits=3, out="f32")
    np.testing.assert_array_equal(found, ieee.add(ieee.add(parts[0], parts[1]), parts[2]))
    assert (found != oracles.fp8_gemm_1d2d(a, b, *scales, splits=3, out="f32")).any()


def test_worked_numbers_types_and_arrays_that_know_their_format() -> None:
    found = gemm(ONE[:1], ONE, 1, 0.5)
    assert (found.dtype, found.shape, hex(found[0, 0])) == (np.uint16, (1, 16), "0x4300")
    same = gemm(ONE[:1].view(ml_dtypes.float8_e4m3fn), ONE, np.ones((1, 1), np.float32), np.float32(0.5), out="f32")
    assert (same.dtype, same[0, 0]) == (np.float32, 128)


@pytest.mark.parametrize(
    ("shape", "tensor", "blockwise"),
    [
        ((4096, 4096, 7168), 1, 1),
        ((64, 7168, 16384), 1, 1),
        ((16, 1024, 4096), 1, 1),
        ((1, 64, 8192), 3, None),
        ((8, 768, 5104), 1, 1),
        ((8, 768, 5120), 2, 2),
        ((8, 784, 5120), None, 2),
        ((4, 32, 16384), 6, 6),
        ((128, 736, 13184), None, 2),
        ((24, 2000, 16016), None, 5),
        ((24, 2736, 16016), None, None),
        ((4, 2832, 5120), None, None),
        ((64, 4096, 4112), None, None),
        ((64, 4112, 4112), 1, 1),
        ((8193, 4096, 4096), None, None),
        ((64, 24, 128), None, None),
        ((64, 64, 24), None, None),
        ((64, 64, 128), 1, None),
        ((64, 16, 16), 1, None),
    ],
)
def test_what_the_region_says_of_a_shape(
    shape: tuple[int, int, int], tensor: int | None, blockwise: int | None
) -> None:
    assert (H200.splits(*shape), H200.splits(*shape, "blockwise")) == (tensor, blockwise)


WIDE = np.zeros((128, 8192), np.uint8)
NAN = np.where(np.arange(16 * 256).reshape(16, 256) == 3 * 256 + 5, 0xFF, 0x38).astype(np.uint8)
BLOCKS = np.ones((16, 2), np.float32), np.ones((1, 2), np.float32)


@pytest.mark.parametrize(
    "call",
    [
        lambda: gemm(WIDE, WIDE, 1, 1),
        lambda: gemm(ONE, ONE, 1, 1, version=120900),
        lambda: gemm(ONE, ONE, 1, 1, chip="b200"),
        lambda: gemm(ONE[:, :24], ONE[:, :24], 1, 1),
        lambda: gemm(ONE, ONE[:9], 1, 1),
        lambda: gemm(NAN, ONE, 1, 1),
        lambda: gemm(ONE, NAN, 1, 1),
        lambda: gemm(ONE, ONE, -1, 1),
        lambda: gemm(ONE, ONE, 0, 1),
        lambda: gemm(ONE, ONE, np.float32("nan"), 1),
        lambda: gemm(ONE, ONE, 1, np.float32("inf")),
        lambda: gemm(ONE, ONE, 1, np.float32(2.0**-41)),
        lambda: gemm(ONE, ONE, 10**400, 1),
        lambda: gemm(ONE, ONE, 1, float("nan")),
        lambda: gemm(ONE, ONE, 1, 1, version=np.array([130100, 130100])),  # type: ignore[arg-type]
        lambda: gemm(ONE, ONE, BLOCKS[0] * np.float32(2.0**41), BLOCKS[1], scaling="blockwise"),
        lambda: gemm(ONE[:, :128], ONE[:, :128], BLOCKS[0][:, :1], BLOCKS[1][:, :1], scaling="blockwise"),
    ],
)
def test_what_nobody_measured_is_unmodelled(call) -> None:
    with pytest.raises(RefsimError) as caught:
        call()
    assert (caught.value.code, caught.value.kind) == ("unsupported-feature", Kind.INCONCLUSIVE)


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("unknown-name", lambda: gemm(ONE, ONE, 1, 1, scaling="rowwise")),
        ("unknown-name", lambda: gemm(ONE, ONE, 1, 1, accumulation="exact")),
        ("unsupported-format", lambda: gemm(ONE, ONE, 1, 1, out="f16")),
        ("unsupported-format", lambda: gemm(ONE.view(ml_dtypes.float8_e5m2), ONE, 1, 1)),
        ("format-needed", lambda: gemm(ONE.astype(np.uint16), ONE, 1, 1)),
        ("bad-shape", lambda: gemm(ONE, ONE[:, :16], 1, 1)),
        ("bad-shape", lambda: gemm(ONE[0], ONE, 1, 1)),
        ("bad-shape", lambda: gemm(ONE, ONE, 1, 1, rows=[[0]])),
        ("out-of-range", lambda: gemm(ONE, ONE, 1, 1, rows=[16])),
        ("bad-dtype", lambda: gemm(ONE, ONE, np.float64(1), np.ones(1))),
        ("bad-dtype", lambda: gemm(ONE, ONE, True, 1)),
        ("not-an-array", lambda: gemm(ONE, ONE, [[1], [1, 2]], 1)),
        ("not-an-array", lambda: gemm([[1], [1, 2]], ONE, 1, 1)),
        ("bad-shape", lambda: gemm(ONE, ONE, *BLOCKS)),
        ("bad-shape", lambda: gemm(ONE, ONE, BLOCKS[1], BLOCKS[1], scaling="blockwise")),
        ("bad-dtype", lambda: gemm(ONE, ONE, BLOCKS[0].astype(np.uint8), BLOCKS[1], scaling="blockwise")),
        ("out-of-range", lambda: gemm(ONE, ONE, 1, 1, splits=0)),
    ],
)
def test_what_does_not_fit_is_refused(code: str, call) -> None:
    with pytest.raises(RefsimError) as caught:
        call()
    assert caught.value.code == code


def test_a_nan_elsewhere_does_not_matter_to_a_sample() -> None:
    rows = [row for row in range(16) if row != 3]
    np.testing.assert_array_equal(gemm(NAN, ONE, 1, 1, rows=rows), gemm(ONE, ONE, 1, 1, rows=rows))
