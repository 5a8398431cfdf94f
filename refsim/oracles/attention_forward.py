"""Attention forward: O = softmax(scale * Q K^T) V with an online softmax, as a kernel for Hopper computes it.

The order of operations is the contract, in float32, rounded to nearest even each time. Row r of Q sees the keys below
Lk; a causal row sees the keys up to r + Lk - Lq. Keys are taken 64 at a time, up to the last tile that any row of r's
tile of 64 rows sees. C = fl(scale * log2(e)) and F = 0 for bf16. For E4M3, C is multiplied by the scales of q and k,
fl(fl(C * q) * k), and F = 8. For each tile

    s = wgmma of q and k from +0; -infinity where the row does not see the key
    m' = max(m, s), NaN ignored, from -infinity; u = m', or 0 where m' is -infinity
    a = ex2(fl(fl(m - u) * C)); p = ex2(fma(s, C, -fl(fl(u * C) - F)))
    l = fma(l, a, t) for each of four lanes, lane i with the columns whose column % 8 // 2 is i; t the sum of its p, from +0
    o = wgmma of p, rounded to bf16 or E4M3, and v, from fl(o * a)

and at the end L = (l0 + l1) + (l2 + l3), O = bf16(fl(o * rcp(L))), for E4M3 bf16(fl(fl(o * rcp(L)) * v_scale)), and
lse = fl(fl(fl(fl(u * C) - F) + lg2(L)) * ln(2)). Where L is 0, O is +0 and lse -infinity, or NaN if fl(u * C)
overflows. ex2, rcp and lg2 are `.approx.ftz`: the bits of `refsim.mufu`, recorded on sm_90.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from refsim.computations.accumulating import Adder
from refsim.computations.attention import OnlineAttention
from refsim.computations.ways import Family
from refsim.conversions import round_bits
from refsim.errors import RefsimError, check_named
from refsim.formats import BF16, E4M3, F32, Format
from refsim.numerics import mma
from refsim.numerics.profiles import profile
from refsim.typed_arrays import codes_with_format, typed

Floats = NDArray[np.float32]
ROWS, SCORES_AT_ONCE = 64, 1 << 24  # rows of a tile; scores that are held together
LOG2_E = np.float32(1.4426950408889634)
FORMATS_OF_OPERANDS = (BF16, E4M3)


class Attention(NamedTuple):
    """`o`: bf16 codes (heads, Lq, D). `lse`: float32 (heads, Lq), the logarithm of each row's sum of exponentials."""

    o: NDArray[np.uint16]
    lse: Floats


def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    scale: float,
    *,
    causal: bool = False,
    format: str | Format | None = None,
    scales: tuple[ArrayLike, ArrayLike, ArrayLike] | None = None,
    dtype: DTypeLike | None = None,
) -> Attention:
    """Return O and the logarithms of the sums for codes `q` (heads, Lq, D), `k` and `v` (kv_heads, Lk, D).

    `heads` is a multiple of `kv_heads`: neighboring heads share keys. `format`: bf16 (the default) or e4m3; a dtype of
    ml_dtypes gives it too. dtype="ml_dtypes" gives O as bfloat16. `scale` is rounded to float32 after the product with
    log2(e). `scales`, for e4m3 only: a float32 for each head of q, k and v. `causal`: the last row sees all keys; where
    Lq > Lk the first rows see none and become +0. attention(*[np.full((1, 1, 16), 0x4000, np.uint16)] * 3, 0.125).o[0,
    0, 0] is 0x4000: one key has the weight 1. Raises RefsimError for other formats and for shapes that do not fit.
    Source: PTX ISA, wgmma, ex2, rcp and lg2; the order of operations is from `gpu/kernels/attention_sm90.cu`.
    """
    row, (queries, keys, values) = _operands((q, k, v), format)
    chip = profile("sm_90a", "wgmma", row, row, F32, None)
    chain = Adder(chip.name, Family.ACCUMULATOR, chip.source, k=max(chip.k), row=chip)
    heads, length, _ = queries.shape
    found = _scales(scales, row, heads, len(keys))
    own = OnlineAttention(queries, keys, values, row, BF16, float(scale), causal, chain, found)
    of_sums, plan, all_heads = replace(own, format=F32, is_lse=True), own.usual, np.arange(heads)
    o, lse = np.zeros(queries.shape, np.float32), np.full((heads, length), -np.inf, np.float32)
    step = max(1, SCORES_AT_ONCE // (heads * keys.shape[1] * ROWS)) * ROWS
    unseeing = max(0, length - keys.shape[1]) if causal else 0  # the first rows, which see no key
    for first in range(unseeing, length, step):
        rows = np.arange(first, min(first + step, length))
        own.made.clear()
        with np.errstate(all="ignore"):
            state = own.states(plan, all_heads, rows)
            o[:, rows] = own.finished(plan, state, all_heads)
            lse[:, rows] = of_sums.finished(of_sums.usual, state, all_heads)[..., 0]
    lse = round_bits(lse, F32).view(np.float32)
    return Attention(typed(round_bits(o, BF16).astype(np.uint16), BF16, dtype), lse)


def _operands(
    given: tuple[ArrayLike, ArrayLike, ArrayLike], format: str | Format | None
) -> tuple[Format, tuple[NDArray[Any], ...]]:
    """Return the format of q, k and v, and their codes; raise where formats or shapes do not fit."""
    _, row = codes_with_format("q", given[0], format, BF16)
    check_named("format of attention", row.name, [each.name for each in FORMATS_OF_OPERANDS])
    arrays = tuple(codes_with_format(name, each, row)[0] for name, each in zip("qkv", given, strict=True))
    for name, array in zip("qkv", arrays, strict=True):
        if array.ndim != 3 or 0 in array.shape:
            raise RefsimError("bad-shape", f"{name} has shape {array.shape}", rule="(heads, length, depth)")
    q, k, v = arrays
    if k.shape != v.shape or q.shape[2] != k.shape[2] or len(q) % len(k):
        what = f"q {q.shape}, k {k.shape}, v {v.shape}"
        rule = "(heads, Lq, D), (kv_heads, Lk, D) twice, heads a multiple of kv_heads"
        raise RefsimError("bad-shape", what, rule=rule)
    mma(q[:1, :1], k[:1, :1], unit="wgmma", a_format=row, b_format=row)  # refuses a depth that no instruction has
    return row, arrays


def _scales(
    scales: tuple[ArrayLike, ArrayLike, ArrayLike] | None, row: Format, heads: int, kv_heads: int
) -> tuple[Floats, Floats, Floats] | None:
    """Return the scales of q, k and v, float32 for each head; None for bf16."""
    if (scales is None) != (row is BF16):
        what = f"scales of {row} attention"
        raise RefsimError("bad-scale", what, rule="e4m3 has scales of q, k and v, bf16 has none")
    if scales is None:
        return None
    of_q, of_k, of_v = (np.asarray(each, np.float32) for each in scales)
    if of_q.shape != (heads,) or of_k.shape != (kv_heads,) or of_v.shape != (kv_heads,):
        what = f"scales of shapes {of_q.shape}, {of_k.shape}, {of_v.shape}"
        raise RefsimError("bad-shape", what, rule=f"({heads},), ({kv_heads},), ({kv_heads},): one for each head")
    return of_q, of_k, of_v
