"""The FP8 GEMM of cuBLASLt on Hopper, bit for bit, where measurements prove what it computes; elsewhere it refuses.

With F from +0, P a chain of wgmma of K = 32 from +0 in the tensor core's own arithmetic, T = ceil(K / 128) blocks of K:

    tensor, fast       F = one chain over all of K;                                    D = fl(fl(scale_a * scale_b) * F)
    tensor, slow       F = fl(F + P) for the chain P of each block, ascending;         D = fl(fl(scale_a * scale_b) * F)
    blockwise          F = fma(fl(scale_a * scale_b), P, F) for each block, ascending; D = F

and bf16 output is D rounded to nearest even. The library chooses a kernel by the shape, and every kernel that does not split
K returned these bits. With few outputs and a large K it splits K: S ranges of ceil(T / S) blocks (blockwise: of the next
multiple of 4), F of each from +0, added in float32, the first first, before the scales of tensor-wise scaling. S is the
choice of its heuristic: `CUBLASLT_REGIONS` says for each version and chip where it is proven to be 1, and where it follows
from the shape.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from math import ceil
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from refsim.conversions import round_bits
from refsim.errors import Kind, RefsimError, unknown
from refsim.evidence import Evidence, Level, Run
from refsim.formats import BF16, E4M3, F32, Format, format_named
from refsim.integers import array_of, is_whole, whole
from refsim.numerics import ieee, mma
from refsim.oracles.gemm_1d2d import BLOCK, OUT_FORMATS, WGMMA_K, fp8_gemm_1d2d
from refsim.render.cards import FieldsCard
from refsim.typed_arrays import native, typed, with_format

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]
Picked = ArrayLike | None
CublasltScaling = Literal["tensor", "blockwise"]
CublasltAccumulation = Literal["fast", "slow"]
HOPPER = "sm_90a"
TENSOR_WISE: CublasltScaling = "tensor"
BLOCKWISE: CublasltScaling = "blockwise"
SCALINGS = (TENSOR_WISE, BLOCKWISE)
NAN_CODE = 0x7F  # of E4M3, whatever its sign
TILE_SIDE = 1 << 10  # rows and columns of D that are computed together: bounded memory
Extent = tuple[int, int, int]


@dataclass(frozen=True, repr=False)
class CublasltRegion(FieldsCard):
    """Where one cuBLASLt on one chip is proven to compute what this file says, and in how many ranges of K.

    `shapes`: the least M, N and K, the largest, and their steps, for each scaling. K up to `unsplit_k`, or more than
    `unsplit_outputs` outputs: one range. Where a product needs at most so many tiles of so many rows and columns of D as
    `split_tiles` says for its scaling: K // `range_k` ranges, but no more sums than `workspace` holds. `scales`: the
    least and the largest, between which no sum leaves the normal numbers.
    """

    version: int
    chip: str
    shapes: Mapping[str, tuple[Extent, Extent, Extent]]
    unsplit_k: int
    unsplit_outputs: int
    split_tiles: Mapping[str, tuple[int, int, int]]
    range_k: int
    workspace: int
    scales: tuple[float, float]
    evidence: Evidence

    def splits(self, m: int, n: int, k: int, scaling: CublasltScaling = "tensor") -> int | None:
        """In how many ranges K is split: 1 for 4096 x 4096 x 7168, 3 for 1 x 64 x 8192, None where nobody knows."""
        for size, (least, most, step) in zip((m, n, k), self.shapes[scaling], strict=True):
            if not least <= size <= most or size % step:
                return None
        if k <= self.unsplit_k or m * n > self.unsplit_outputs:
            return 1
        most, rows, columns = self.split_tiles[scaling]
        if ceil(m / rows) * ceil(n / columns) > most:
            return None
        return max(1, min(k // self.range_k, self.workspace // (m * n)))


def _measured(chip: str, shapes: str, block_tiles: int) -> CublasltRegion:
    """The row of cuBLASLt 13.1.0 as PyTorch calls it. With `block_tiles` tiles at most both chips gave the same bits; with 16,
    at 8 x 2032 x 16144, an H200 splits K into 6 ranges and an H100 into 5."""
    columns, depth = (16, 16384, 16), (16, 16384, 16)
    return CublasltRegion(
        version=130100,
        chip=chip,
        shapes={TENSOR_WISE: ((1, 8192, 1), columns, depth), BLOCKWISE: ((4, 8192, 4), columns, (144, 16384, 16))},
        unsplit_k=4096,  # the least that was seen split is 5152
        unsplit_outputs=1 << 18,  # the most outputs of a split product were 128,896
        split_tiles={TENSOR_WISE: (12, 8, 64), BLOCKWISE: (block_tiles, 128, 128)},  # with more some are split less
        range_k=2560,
        workspace=1 << 18,  # sums: 1 MiB
        scales=(
            2.0**-40,
            2.0**40,
        ),  # P is 0 or from 2^-18 to 2^32: its product is normal, and powers of two change no bit
        evidence=Evidence(
            Level.SILICON,
            f"{chip.upper()}, driver 580.159.04, torch 2.11: {shapes}",
            runs=(Run(chip.upper(), "2026-11-22", f"conformance/vectors/{chip}/cublaslt.npz"),),
        ),
    )


CUBLASLT_REGIONS = (
    _measured("h200", "660 recorded shapes, and 1,700 more for where K is split", 16),
    _measured("h100", "660 recorded shapes", 15),
)
"""What is proven, a row for each version and chip."""


def cublaslt_fp8(
    a: ArrayLike,
    b: ArrayLike,
    scale_a: ArrayLike,
    scale_b: ArrayLike,
    *,
    scaling: CublasltScaling = "tensor",
    accumulation: CublasltAccumulation = "fast",
    out: str | Format = BF16,
    version: int = 130100,
    chip: str = "h200",
    splits: int | None = None,
    rows: Picked = None,
    cols: Picked = None,
    dtype: DTypeLike | None = None,
) -> NDArray[Any]:
    """What `torch._scaled_mm` returns by cuBLASLt: D (M, N) of A (M, K) and B (N, K), E4M3 codes as uint8.

    scaling="tensor": the scales are two float32 numbers; "blockwise": float32 (M, T) and (ceil(N / 128), T), T =
    ceil(K / 128), and `accumulation` says nothing, there is one. Returns bf16 codes as uint16, with dtype="ml_dtypes" as
    bfloat16, with out="f32" float32.
    `version`: what cublasLtGetVersion returns; `chip`: where it runs. `rows`, `cols`: indices of D; only these outputs are
    computed, D[rows][:, cols]. `splits`: the ranges of K, for one who knows them from elsewhere; left out, they are what
    `CUBLASLT_REGIONS` proves for the shape. Blockwise the library takes M in multiples of 4: other M are the rows of a
    call with more rows behind them, which change no bit.
    cublaslt_fp8(np.full((1, 16), 0x38, np.uint8), np.full((16, 16), 0x38, np.uint8), 1, 0.5)[0, 0] is 0x4100, 16 * 0.5.
    Raises RefsimError `unmodelled` for what no row proves: another version or chip, a shape where K may be split, NaN
    among the codes, scales that are not positive numbers from 2^-40 to 2^40; other codes for operands
    that do not fit.
    Source: measured on an H200 and an H100, `CUBLASLT_REGIONS` names the recordings; wgmma as `numerics.mma`.
    """
    for kind, name, known in (
        ("scaling", scaling, SCALINGS),
        ("accumulation", accumulation, ACCUMULATIONS),
    ):
        if str(name) not in known:
            raise unknown(kind, str(name), list(known))
    written = format_named(out)
    if written not in OUT_FORMATS:
        raise RefsimError("format-not-here", f"out is {written.name}", rule="bf16, or f32")
    left, right = _codes("a", a), _codes("b", b)
    m, n, k = len(left), len(right), left.shape[1]
    if right.shape[1] != k:
        raise RefsimError("shape", f"a has K = {k}, b has K = {right.shape[1]}", rule="a (M, K), b (N, K)")
    region = _region(version, chip)
    ranges = _ranges(region, (m, n, k), scaling, splits)
    picked = _indices("row", rows, m), _indices("col", cols, n)
    where = f"cuBLASLt {region.version} on {region.chip.upper()}, {m} x {n} x {k}"
    sides = left[picked[0]], right[picked[1]]
    if any(((codes & NAN_CODE) == NAN_CODE).any() for codes in sides):
        raise _unmodelled("a code is NaN", where, "only numbers were measured")
    if scaling == BLOCKWISE:
        scales = _block_scales("a", scale_a, m, k, 1)[picked[0]], _block_scales("b", scale_b, n, k, BLOCK)[picked[1]]
    else:
        scales = _scalar("a", scale_a), _scalar("b", scale_b)
    by_row, by_column = (_proven_scales(region, *each, where) for each in zip("ab", scales, strict=True))
    found = computed(*sides, by_row, by_column, scaling, accumulation, ranges, out)
    return found if written is F32 else typed(found, written, dtype)


def computed(
    a: Codes,
    b: Codes,
    by_row: Floats,
    by_column: Floats,
    scaling: str,
    accumulation: str,
    splits: int,
    out: str | Format,
) -> NDArray[Any]:
    """D by the formulas above for any operands: the scales are (M, T) and (N, T), or (1, 1) both.

    Whether the library computes this is what `CUBLASLT_REGIONS` says.
    """
    unit, blocks = RANGE_BLOCKS[scaling], ceil(a.shape[1] / BLOCK)
    width = ceil(ceil(blocks / splits) / unit) * unit
    parts = []
    for first in range(0, blocks, width):
        some, codes = slice(first, first + width), slice(first * BLOCK, (first + width) * BLOCK)
        if scaling == BLOCKWISE:
            parts.append(fp8_gemm_1d2d(a[:, codes], b[:, codes], by_row[:, some], by_column[:, some], out=F32))
        else:
            parts.append(TENSOR_SUMS[accumulation](a[:, codes], b[:, codes]))
    total = reduce(ieee.add, parts)
    if scaling != BLOCKWISE:
        total = ieee.mul(ieee.mul(by_row, by_column), total)
    return total if format_named(out) is F32 else round_bits(total, BF16).astype(BF16.code_dtype)


def _fast(a: Codes, b: Codes) -> Floats:
    """One chain over all of K; the tensor core keeps 14 bits of every sum on the way."""
    total = np.zeros((len(a), len(b)), np.float32)
    a, b = (np.pad(side, ((0, 0), (0, -side.shape[1] % WGMMA_K))) for side in (a, b))
    for top in range(0, len(a), TILE_SIDE):
        for left in range(0, len(b), TILE_SIDE):
            tile = slice(top, top + TILE_SIDE), slice(left, left + TILE_SIDE)
            total[tile] = mma(
                a[tile[0]], b[tile[1]], unit="wgmma", a_format=E4M3, b_format=E4M3, target=HOPPER, k=WGMMA_K
            )
    return total


def _slow(a: Codes, b: Codes) -> Floats:
    """The blocks' chains added in float32: a promotion by scales of one, whose fma rounds once, as the sum does."""
    ones = (np.ones((len(side), ceil(a.shape[1] / BLOCK)), np.float32) for side in (a, b))
    return np.asarray(fp8_gemm_1d2d(a, b, *ones, out=F32), np.float32)


TENSOR_SUMS: dict[str, Callable[[Codes, Codes], Floats]] = {"fast": _fast, "slow": _slow}
ACCUMULATIONS = tuple(TENSOR_SUMS)
RANGE_BLOCKS: dict[str, int] = {TENSOR_WISE: 1, BLOCKWISE: 4}
"""Ranges of K hold a multiple of so many blocks, the last one aside."""


def _region(version: int, chip: str) -> CublasltRegion:
    for row in CUBLASLT_REGIONS:
        if is_whole(version) and (row.version, row.chip) == (version, str(chip).lower()):
            return row
    known = ", ".join(f"{row.version} on {row.chip.upper()}" for row in CUBLASLT_REGIONS)
    raise _unmodelled(
        "no measurement of this library on this chip", f"cuBLASLt {version} on {chip}", f"measured: {known}"
    )


def _ranges(region: CublasltRegion, shape: tuple[int, int, int], scaling: CublasltScaling, splits: int | None) -> int:
    """The ranges of K: the caller's, or those that are proven."""
    if splits is not None:
        if not is_whole(splits, 1):
            raise RefsimError("splits", f"splits is {splits!r}", rule="1 or more")
        return int(splits)
    m, n, k = shape
    step = region.shapes[scaling][0][2]
    proven = region.splits(m + -m % step, n, k, scaling)
    if proven is None:
        raise RefsimError(
            "unmodelled",
            f"{m} x {n} x {k} (M, N, K), {scaling}: how this library splits K there is not proven",
            where=f"cuBLASLt {region.version} on {region.chip.upper()}",
            rule=f"proven: K up to {region.unsplit_k}, or more than {region.unsplit_outputs} outputs, M up to"
            f" {region.shapes[scaling][0][1]}, N and K up to {region.shapes[scaling][1][1]} in steps of 16",
            help="splits=S computes S ranges of K, where you know them",
            kind=Kind.INCONCLUSIVE,
        )
    return proven


def _unmodelled(what: str, where: str, rule: str) -> RefsimError:
    return RefsimError("unmodelled", what, where=where, rule=rule, kind=Kind.INCONCLUSIVE)


def _proven_scales(region: CublasltRegion, name: str, scales: Floats, where: str) -> Floats:
    """The scales, all of them positive numbers of the range in which products stay normal; a NaN is in none."""
    least, most = region.scales
    outside = ~((scales >= least) & (scales <= most))
    if outside.any():
        wrong = scales[outside].flat[0]
        raise _unmodelled(f"scale_{name} holds {wrong!s}", where, f"only scales from {least!s} to {most!s} are proven")
    return scales


def _codes(name: str, codes: ArrayLike) -> Codes:
    bare = array_of(name, codes)
    codes, format = with_format(bare, E4M3 if bare.dtype == E4M3.code_dtype else None, name)
    if format is not E4M3:
        raise RefsimError("format-not-here", f"{name} holds {format.name}", rule="E4M3, as it was measured")
    array = np.asarray(codes)
    if array.ndim != 2 or 0 in array.shape:
        raise RefsimError("shape", f"{name} has shape {array.shape}", rule="(rows, K), none of them 0")
    return array


def _indices(name: str, picked: Picked, extent: int) -> NDArray[np.int64]:
    if picked is None:
        return np.arange(extent)
    indices = whole(name, picked, limit=extent)
    if indices.ndim != 1:
        raise RefsimError("shape", f"{name}s have shape {indices.shape}", rule="a list of indices")
    return indices


def _scalar(name: str, scale: ArrayLike) -> Floats:
    """A scale of a whole tensor: float32, or a number of Python rounded to it."""
    if isinstance(scale, int | float) and not isinstance(scale, bool):
        scale = _rounded(scale)
    array = native(array_of(f"scale_{name}", scale))
    if array.dtype != np.float32:
        raise RefsimError("scale-type", f"scale_{name} is {array.dtype}", rule="float32")
    if array.size != 1:
        raise RefsimError("scale-shape", f"scale_{name} has shape {array.shape}", rule="one number for a tensor")
    return array.reshape(1, 1)


def _rounded(scale: float) -> np.float32:
    with np.errstate(over="ignore"):
        return np.float32(scale if abs(scale) < 2**1000 else np.inf if scale > 0 else -np.inf if scale < 0 else np.nan)


def _block_scales(name: str, scales: ArrayLike, rows: int, k: int, each: int) -> Floats:
    """Scales by row of the operand: those of `each` rows are repeated."""
    array = native(array_of(f"scale_{name}", scales))
    wanted = ceil(rows / each), ceil(k / BLOCK)
    if array.dtype != np.float32:
        raise RefsimError("scale-type", f"scale_{name} holds {array.dtype}", rule="float32")
    if array.shape != wanted:
        raise RefsimError(
            "scale-shape", f"scale_{name} has shape {array.shape}", rule=f"scales of blocks have shape {wanted}"
        )
    return np.repeat(array, each, axis=0)[:rows]
