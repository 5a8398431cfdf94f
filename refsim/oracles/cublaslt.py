"""The FP8 GEMM of cuBLASLt on Hopper, bit for bit, for recorded shapes; other shapes raise an error.

With F from +0, P a chain of wgmma of K = 32 from +0 in the tensor core's own arithmetic, T = ceil(K / 128) blocks of K:

    tensor, fast       F = one chain over all of K;                                    D = fl(fl(scale_a * scale_b) * F)
    tensor, slow       F = fl(F + P) for the chain P of each block, ascending;         D = fl(fl(scale_a * scale_b) * F)
    blockwise          F = fma(fl(scale_a * scale_b), P, F) for each block, ascending; D = F

and bf16 output is D rounded to nearest even. The library chooses a kernel by the shape, and every recorded kernel that
does not split K returned these bits. With few outputs and a large K the library splits K into S ranges of ceil(T / S)
blocks (blockwise: rounded up to a multiple of 4). F of each range starts from +0; the ranges are added in float32, in
ascending order, before the scales of tensor-wise scaling. The library's heuristic chooses S. `CUBLASLT_REGIONS`
records, for each version and chip, the shapes where S is 1 and the shapes from which S follows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from refsim.computations.scale_changes import BLOCK
from refsim.conversions import round_bits
from refsim.errors import Kind, RefsimError, check_named
from refsim.evidence import Evidence, Level, Run
from refsim.formats import BF16, E4M3, F32, Format, format_named
from refsim.integers import array_of, is_whole
from refsim.oracles.gemm_1d2d import OUT_FORMATS, in_ranges, picked_indices, promoted, wgmma_product
from refsim.render.cards import FieldsCard
from refsim.typed_arrays import native, typed, with_format

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]
Picked = ArrayLike | None
CublasltScaling = Literal["tensor", "blockwise"]
CublasltAccumulation = Literal["fast", "slow"]
TENSOR_WISE: CublasltScaling = "tensor"
BLOCKWISE: CublasltScaling = "blockwise"
SCALINGS = (TENSOR_WISE, BLOCKWISE)
NAN_CODE = 0x7F  # the NaN of E4M3, without its sign
Extent = tuple[int, int, int]


@dataclass(frozen=True, repr=False)
class CublasltRegion(FieldsCard):
    """The recorded shapes of one cuBLASLt version on one chip, and the number of ranges of K for each shape.

    - `version`, `chip`: the cuBLASLt version and the chip of the recording.
    - `shapes`: for each scaling, the least and largest M, N and K, and their steps.
    - `unsplit_k`: K is one range up to this K.
    - `unsplit_outputs`: K is one range for more outputs than these.
    - `split_tiles`: for each scaling, a number of tiles of D, and the rows and columns of a tile.
    - `range_k`: a product of at most that many tiles has K // `range_k` ranges.
    - `workspace`: the most sums of ranges.
    - `scales`: the least and the largest scale, between which every sum stays a normal number.
    - `evidence`: the recording.
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
        """Return the number of ranges of K, or None where it was not recorded.

        It is 1 for 4096 x 4096 x 7168 and 3 for 1 x 64 x 8192.
        """
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
    """Return the region of cuBLASLt 13.1.0 as PyTorch calls it. Up to `block_tiles` tiles, an H200 and an H100 gave
    equal bits; with 16, at 8 x 2032 x 16144, an H200 splits K into 6 ranges and an H100 into 5."""
    columns, depth = (16, 16384, 16), (16, 16384, 16)
    return CublasltRegion(
        version=130100,
        chip=chip,
        shapes={TENSOR_WISE: ((1, 8192, 1), columns, depth), BLOCKWISE: ((4, 8192, 4), columns, (144, 16384, 16))},
        unsplit_k=4096,  # the smallest K that was split is 5152
        unsplit_outputs=1 << 18,  # the most outputs of a split product were 128,896
        split_tiles={
            TENSOR_WISE: (12, 8, 64),
            BLOCKWISE: (block_tiles, 128, 128),
        },  # with more tiles, some products are split into fewer ranges
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
"""The recorded shapes, one entry for each version and chip."""


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
    """Return D (M, N) of A (M, K) and B (N, K), E4M3 codes as uint8, as `torch._scaled_mm` returns it by cuBLASLt.

    scaling="tensor": the scales are two float32 numbers. scaling="blockwise": the scales are float32 (M, T) and (ceil(N
    / 128), T), T = ceil(K / 128), and `accumulation` has no effect. Returns bf16 codes as uint16, with
    dtype="ml_dtypes" bfloat16, with out="f32" float32. `version`: the result of cublasLtGetVersion; `chip`: the GPU.
    `rows`, `cols`: indices of D; only these outputs are computed, D[rows][:, cols]. `splits`: the number of ranges of
    K, if you know it; by default it is the recorded number of `CUBLASLT_REGIONS` for the shape. Blockwise the library
    takes M in multiples of 4: another M stands for the first rows of a larger call, whose extra rows change no bit.
    cublaslt_fp8(np.full((1, 16), 0x38, np.uint8), np.full((16, 16), 0x38, np.uint8), 1, 0.5)[0, 0] is 0x4100, 16 * 0.5.

    Raises RefsimError `unsupported-feature` for inputs that were not recorded: another version or chip, a shape where K
    may be split, NaN among the codes, scales that are not positive numbers from 2^-40 to 2^40; and other codes for
    operands that do not fit. Source: measured on an H200 and an H100, `CUBLASLT_REGIONS` names the recordings; wgmma as
    `numerics.mma`.
    """
    for kind, name, known in (("scaling", scaling, SCALINGS), ("accumulation", accumulation, ACCUMULATIONS)):
        check_named(kind, name, known)
    written = format_named(out)
    if written not in OUT_FORMATS:
        raise RefsimError("unsupported-format", f"out is {written.name}", rule="bf16, or f32")
    left, right = _codes("a", a), _codes("b", b)
    m, n, k = len(left), len(right), left.shape[1]
    if right.shape[1] != k:
        raise RefsimError("bad-shape", f"a has K = {k}, b has K = {right.shape[1]}", rule="a (M, K), b (N, K)")
    region = _region(version, chip)
    ranges = _ranges(region, (m, n, k), scaling, splits)
    picked = picked_indices("row", rows, m), picked_indices("col", cols, n)
    where = f"cuBLASLt {region.version} on {region.chip.upper()}, {m} x {n} x {k}"
    sides = left[picked[0]], right[picked[1]]
    if any(((codes & NAN_CODE) == NAN_CODE).any() for codes in sides):
        raise _unmodelled("a code is NaN", where, "only numbers were measured")
    if scaling == BLOCKWISE:
        scales = _block_scales("a", scale_a, m, k, 1)[picked[0]], _block_scales("b", scale_b, n, k, BLOCK)[picked[1]]
    else:
        scales = _scalar("a", scale_a), _scalar("b", scale_b)
    by_row, by_column = (_recorded_scales(region, *each, where) for each in zip("ab", scales, strict=True))
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
    """Return D by the formulas above for any operands: the scales are (M, T) and (N, T), or both (1, 1).

    `CUBLASLT_REGIONS` records where the library computes this.
    """
    shared = in_ranges(a.shape[1], BLOCK * RANGE_BLOCKS[scaling], splits)
    if scaling == BLOCKWISE:
        total = promoted((a, b), (E4M3, E4M3), (by_row, by_column), shared)
    else:
        scales = by_row.repeat(len(a), 0), by_column.repeat(len(b), 0)
        interval = 0 if accumulation == FAST else BLOCK
        product = replace(wgmma_product((a, b), (E4M3, E4M3), scales), interval=interval, shared=shared)
        total = product.totals(product.usual)
    return total if format_named(out) is F32 else round_bits(total, BF16).astype(BF16.code_dtype)


FAST: CublasltAccumulation = "fast"
SLOW: CublasltAccumulation = "slow"
ACCUMULATIONS = (FAST, SLOW)
RANGE_BLOCKS: dict[str, int] = {TENSOR_WISE: 1, BLOCKWISE: 4}
"""Every range of K except the last holds a multiple of so many blocks."""


def _region(version: int, chip: str) -> CublasltRegion:
    """Return the region of a version and chip; raise `unsupported-feature` where there is none."""
    for row in CUBLASLT_REGIONS:
        if is_whole(version) and (row.version, row.chip) == (version, str(chip).lower()):
            return row
    known = ", ".join(f"{row.version} on {row.chip.upper()}" for row in CUBLASLT_REGIONS)
    raise _unmodelled(
        "no measurement of this library on this chip", f"cuBLASLt {version} on {chip}", f"measured: {known}"
    )


def _ranges(region: CublasltRegion, shape: tuple[int, int, int], scaling: CublasltScaling, splits: int | None) -> int:
    """Return the number of ranges of K, given or recorded; raise `unsupported-feature` without a record."""
    if splits is not None:
        if not is_whole(splits, 1):
            raise RefsimError("out-of-range", f"splits is {splits!r}", rule="1 or more")
        return int(splits)
    m, n, k = shape
    step = region.shapes[scaling][0][2]
    recorded = region.splits(m + -m % step, n, k, scaling)
    if recorded is None:
        raise RefsimError(
            "unsupported-feature",
            f"{m} x {n} x {k} (M, N, K), {scaling}: how this library splits this K was not recorded",
            where=f"cuBLASLt {region.version} on {region.chip.upper()}",
            rule=f"recorded: K up to {region.unsplit_k}, or more than {region.unsplit_outputs} outputs, M up to"
            f" {region.shapes[scaling][0][1]}, N and K up to {region.shapes[scaling][1][1]} in steps of 16",
            help="splits=S computes S ranges of K, if you know the number",
            kind=Kind.INCONCLUSIVE,
        )
    return recorded


def _unmodelled(what: str, where: str, rule: str) -> RefsimError:
    return RefsimError("unsupported-feature", what, where=where, rule=rule, kind=Kind.INCONCLUSIVE)


def _recorded_scales(region: CublasltRegion, name: str, scales: Floats, where: str) -> Floats:
    """Return the scales; raise unless all are positive numbers for which every product stays normal."""
    least, most = region.scales
    outside = ~((scales >= least) & (scales <= most))
    if outside.any():
        wrong = scales[outside].flat[0]
        raise _unmodelled(f"scale_{name} holds {wrong!s}", where, f"only scales from {least!s} to {most!s} were tested")
    return scales


def _codes(name: str, codes: ArrayLike) -> Codes:
    """Return the operand's codes (rows, K); raise unless they are E4M3."""
    bare = array_of(name, codes)
    codes, format = with_format(bare, E4M3 if bare.dtype == E4M3.code_dtype else None, name)
    if format is not E4M3:
        raise RefsimError("unsupported-format", f"{name} holds {format.name}", rule="E4M3, as it was measured")
    array = np.asarray(codes)
    if array.ndim != 2 or 0 in array.shape:
        raise RefsimError("bad-shape", f"{name} has shape {array.shape}", rule="(rows, K), none of them 0")
    return array


def _scalar(name: str, scale: ArrayLike) -> Floats:
    """Return the scale of a whole tensor (1, 1): float32, or a Python number rounded to it."""
    if isinstance(scale, int | float) and not isinstance(scale, bool):
        scale = _rounded(scale)
    array = native(array_of(f"scale_{name}", scale))
    if array.dtype != np.float32:
        raise RefsimError("bad-dtype", f"scale_{name} is {array.dtype}", rule="float32")
    if array.size != 1:
        raise RefsimError("bad-shape", f"scale_{name} has shape {array.shape}", rule="one number for a tensor")
    return array.reshape(1, 1)


def _rounded(scale: float) -> np.float32:
    """Return a Python number rounded to float32, infinite where it is too large."""
    with np.errstate(over="ignore"):
        return np.float32(scale if abs(scale) < 2**1000 else np.inf if scale > 0 else -np.inf if scale < 0 else np.nan)


def _block_scales(name: str, scales: ArrayLike, rows: int, k: int, each: int) -> Floats:
    """Return a scale for each row of the operand and each block of K; one scale covers `each` rows."""
    array = native(array_of(f"scale_{name}", scales))
    wanted = ceil(rows / each), ceil(k / BLOCK)
    if array.dtype != np.float32:
        raise RefsimError("bad-dtype", f"scale_{name} holds {array.dtype}", rule="float32")
    if array.shape != wanted:
        what = f"scale_{name} has shape {array.shape}"
        raise RefsimError("bad-shape", what, rule=f"scales of blocks have shape {wanted}")
    return np.repeat(array, each, axis=0)[:rows]
