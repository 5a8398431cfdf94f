"""Linear layers on tensor cores: Y = X W^T + R in bf16, W as bf16 or as FP8 codes with group scales.

The order of operations is the contract. acc (f32, from +0) runs through mma.m16n8k16 in ascending K; y1 = RNE_bf16(acc)
is the first rounding, RNE_bf16(y1 + r) the second. The result is therefore not RNE_bf16(acc + r): acc = 1.00390625 +
2^-20 with r = 2^-8 gives 0x3f82 here, and 0x3f81 in one rounding. Without R, y1 itself is written and -0 survives. Rows
beyond the batch and columns beyond K are zeros, which change no bit: an accumulator is never -0.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from refsim.computations.accumulating import K_OF_MMA, Reduction, Sharing, adder_of
from refsim.computations.products import ROUNDED_AGAIN, PlainProduct
from refsim.computations.weights import WeightProduct
from refsim.conversions import CONVERSIONS, convert, decode
from refsim.errors import RefsimError, check_named, named
from refsim.formats import BF16, E4M3, F32, Format, format_named
from refsim.integers import is_whole, read_as_array
from refsim.numerics import ieee
from refsim.numerics.multiply import warn_unverified
from refsim.numerics.profiles import profile
from refsim.sources import MIRAGE, PTX
from refsim.typed_arrays import typed, with_format

Codes = NDArray[np.unsignedinteger]
Floats = NDArray[np.float32]
ReductionName = Literal["one_chain", "mirage_2_warps", "mirage_4_warps"]
WeightDecoder = Literal["exact", "mirage", "marlin"]
MAX_BATCH = 16


ONE_CHAIN = Reduction("one_chain", 1, K_OF_MMA, PTX["mma.m16n8k16, chained through its accumulator"])
_WARPS = MIRAGE["linear_kernel, reduction over NUM_WARPS_K: each warp a part of every tile of 128"]
_TWO_WARPS = Reduction("mirage_2_warps", 2, 64, _WARPS, True, "bf16", "from-zero")
_FOUR_WARPS = Reduction("mirage_4_warps", 4, 32, _WARPS, True, "bf16", "from-zero")
REDUCTIONS = {row.name: row for row in (ONE_CHAIN, _TWO_WARPS, _FOUR_WARPS)}


def linear(
    x: ArrayLike,
    w: ArrayLike,
    residual: ArrayLike | None = None,
    *,
    target: str = "sm_90a",
    reduction: ReductionName | Reduction = ONE_CHAIN,
    dtype: DTypeLike | None = None,
) -> NDArray[Any]:
    """Return the bf16 codes of Y = X W^T + R, shape (batch, output); as bfloat16 with dtype="ml_dtypes".

    `x` (batch, K), `w` (output, K) and `residual` (batch, output), or None, are bf16 codes, uint16 or bfloat16; batch
    is 1 to 16, output and K are at least 1. `target` selects the arithmetic of one mma, `reduction` (an entry of
    REDUCTIONS or your own) the order between them. A NaN makes 0x7fff of the elements that depend on it: its row of X,
    its row of W, or its own place in R; inf - inf and inf * 0 are such NaNs. linear(np.uint16([[0x3f80]]),
    np.uint16([[0x4000]]), np.uint16([[0x3f00]])) is [[0x4020]]: 1 x 2 + 0.5. Raises RefsimError for arrays that are not
    such codes or shapes, unknown reductions and targets. Source: the reduction's; PTX ISA, mma, cvt.rn.bf16.f32 and
    add.rn.bf16.
    """
    x, w = _matrix("x", x, BF16), _matrix("w", w, BF16)
    if x.shape[0] > MAX_BATCH:
        what = f"x has {x.shape[0]} rows"
        raise RefsimError("bad-shape", what, rule=f"a batch is 1 to {MAX_BATCH} rows: one fragment")
    if x.shape[1] != w.shape[1]:
        what = f"x has K = {x.shape[1]}, w has K = {w.shape[1]}"
        raise RefsimError("bad-shape", what, rule="(batch, K), (output, K)")
    r = None if residual is None else _matrix("residual", residual, BF16)
    if r is not None and r.shape != (len(x), len(w)):
        raise RefsimError("bad-shape", f"residual has shape {r.shape}", rule=f"(batch, output) = {(len(x), len(w))}")
    layer = product_of(x, w, r, reduction_named(reduction), target)
    return typed(layer.codes(layer.usual), BF16, dtype)


def product_of(x: Codes, w: Codes, residual: Codes | None, reduction: Reduction, target: str) -> PlainProduct:
    """Return Y = X W^T + R of `linear`, bf16 codes, as a computation."""
    mma = profile(target, "mma.sync", BF16, BF16, F32, K_OF_MMA)
    c = None if residual is None else decode(residual, BF16, np.float32)
    warn_unverified(mma)
    shared = Sharing(reduction, reduction.order, format_named(reduction.partial_format))
    adder = adder_of(mma, (BF16, BF16), K_OF_MMA)
    sums: dict[str, Any] = {"c": c, "a_scales": None, "b_scales": None, "group": x.shape[1], "format": BF16}
    return PlainProduct(x, w, (BF16, BF16), **sums, chain=adder, shared=shared, enters=ROUNDED_AGAIN)


def linear_fp8_weight(
    x: ArrayLike,
    w: ArrayLike,
    scales: ArrayLike,
    residual: ArrayLike | None = None,
    *,
    group: tuple[int, int] = (128, 128),
    decode: WeightDecoder = "exact",
    target: str = "sm_90a",
    reduction: ReductionName | Reduction = ONE_CHAIN,
    dtype: DTypeLike | None = None,
) -> NDArray[Any]:
    """Return the bf16 codes of Y = X V^T + R, shape (batch, output), with V = RNE_bf16(decode(W) * scale of its group).

    `w` (output, K): E4M3 codes in logical order; `layouts.scale_layout("mirage_fp8_16x16").unshuffle` restores that
    order. `scales`: bf16 codes, shape (ceil(output / rows), ceil(K / columns)) for a `group` of (rows, columns).
    `decode` names a policy from E4M3 to bf16: "exact"; "mirage", whose zero is 2^-7; "marlin", exact except for NaN.
    The other arguments are `linear`'s. linear_fp8_weight(np.uint16([[0x3f80]]), np.uint8([[0]]), np.uint16([[0x3f80]]),
    decode="mirage") is [[0x3c00]]: 2^-7. Raises RefsimError as `linear` does, and for another number of scales. Source:
    the policy's entry, PTX ISA, mul.rn.bf16.
    """
    v = weights(w, scales, group=group, decode=decode)
    return linear(x, v, residual, target=target, reduction=reduction, dtype=dtype)


def weight_product_of(
    x: Codes,
    w: Codes,
    scales: Codes,
    residual: Codes | None,
    group: tuple[int, int],
    decode_by: WeightDecoder,
    reduction: Reduction,
    target: str,
) -> WeightProduct:
    """Return `linear_fp8_weight` as a computation, whose causes include the other decoders; arguments as for that."""
    product = product_of(x, np.zeros(w.shape, BF16.code_dtype), residual, reduction, target)
    rows, columns = group
    spread = decode(scales, BF16, np.float32)[np.arange(len(w)) // rows]
    is_exact = decode_by == "exact"
    codes = w if is_exact else convert(f"{_decoder(decode_by)}.bf16.e4m3", w)
    zeros, row = np.zeros_like(spread), E4M3 if is_exact else BF16
    return WeightProduct(product, codes, row, spread, zeros, min(columns, w.shape[1]))


def weights(
    w: ArrayLike, scales: ArrayLike, *, group: tuple[int, int] = (128, 128), decode: WeightDecoder = "exact"
) -> NDArray[np.uint16]:
    """Return V of `linear_fp8_weight`: the bf16 operand of the tensor core, shape (output, K); NaN is 0x7fff."""
    codes, factors = _matrix("w", w, E4M3), _matrix("scales", scales, BF16)
    if np.shape(group) != (2,) or not all(is_whole(each, 1) for each in group):
        raise RefsimError("bad-value", f"a group of {group!r}", rule="(rows, columns), both 1 or more")
    rows, columns = (min(size, extent) for size, extent in zip(group, codes.shape, strict=True))
    wanted = -(-codes.shape[0] // rows), -(-codes.shape[1] // columns)
    if factors.shape != wanted:
        what = f"scales have shape {factors.shape}, groups of {group[0]} x {group[1]} need {wanted}"
        raise RefsimError("bad-shape", what, rule="(ceil(output / rows), ceil(K / columns))")
    spread = factors[np.arange(codes.shape[0])[:, None] // rows, np.arange(codes.shape[1])[None, :] // columns]
    decoded = convert(f"{_decoder(decode)}.bf16.e4m3", codes)
    return np.asarray(ieee.mul(decoded, spread))


def reduction_named(name: ReductionName | Reduction) -> Reduction:
    """Return the reduction of a name, or the given `Reduction`; raise with the nearest name for an unknown one."""
    return name if isinstance(name, Reduction) else named("reduction", name, REDUCTIONS)


def _decoder(policy: str) -> str:
    known = [row.policy for row in CONVERSIONS.values() if row.policy and row.reads is E4M3 and row.to is BF16]
    return check_named("weight decoder", policy, known)


def _matrix(name: str, codes: ArrayLike, format: Format) -> Codes:
    """Return codes of a format as a matrix; raise for other types and shapes."""
    try:
        array = np.asarray(with_format(read_as_array(name, codes), format, name)[0])
    except ValueError:
        raise RefsimError("bad-shape", f"the rows of {name} differ in length") from None
    if array.dtype != format.code_dtype:
        wanted = format.code_dtype
        raise RefsimError("bad-dtype", f"{name} holds {array.dtype}, its codes are {wanted}", help=f"view({wanted})")
    if array.ndim != 2 or 0 in array.shape:
        raise RefsimError("bad-shape", f"{name} has shape {array.shape}", rule="two dimensions, neither of them empty")
    return array
