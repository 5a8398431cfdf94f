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

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from refsim.conversions import encode, round_bits
from refsim.errors import RefsimError, check_named
from refsim.formats import BF16, E4M3, Format
from refsim.mufu.instructions import approximate
from refsim.numerics import ieee, mma
from refsim.typed_arrays import codes_with_format, typed

Floats = NDArray[np.float32]
ROWS, KEYS, LANES = 64, 64, 4  # rows and keys of a tile; lanes that share a row
LOG2_E, LN_2 = np.float32(1.4426950408889634), np.array(0.6931471805599453, np.float32)
SHIFTS = {BF16: np.array(0, np.float32), E4M3: np.array(8, np.float32)}
"""F of each operand format: weights of E4M3 are scaled by 2^8, since most would be subnormal otherwise."""


class Attention(NamedTuple):
    """`o`: bf16 codes (heads, Lq, D). `lse`: float32 (heads, Lq), the logarithm of each row's sum of exponentials."""

    o: NDArray[np.uint16]
    lse: Floats


@dataclass
class _State:
    """For every row, (heads, Lq): the largest score, the base of the last exponents, sums by lane, weighted values."""

    top: Floats
    base: Floats
    sums: Floats
    values: Floats


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
    factors = _factors(np.float32(np.float32(scale) * LOG2_E), scales, row, len(queries), len(keys))
    group = len(queries) // len(keys)
    keys, values = np.repeat(keys, group, axis=0), np.repeat(values, group, axis=0)
    seen, ends = _visible(queries.shape[1], keys.shape[1], causal=causal)
    heads, length, _ = queries.shape
    start = np.full((heads, length), -np.inf, np.float32)
    zero: Floats = np.zeros((heads, length), np.float32)
    state = _State(start, zero, np.zeros((heads, length, LANES), np.float32), np.zeros(queries.shape, np.float32))
    for first in range(0, keys.shape[1], KEYS):
        mine = np.flatnonzero(ends > first)
        part = slice(first, first + KEYS)
        tile = _padded(keys[:, part]), _padded(values[:, part])
        seen_here = first + np.arange(KEYS) < seen[mine, None]
        _take(state, mine, queries[:, mine], tile, seen_here, factors[0], row)
    found = _finished(state, factors)
    return found._replace(o=typed(found.o, BF16, dtype))


def _take(
    state: _State,
    mine: NDArray[np.int64],
    q: NDArray[Any],
    tile: tuple[NDArray[Any], NDArray[Any]],
    seen: NDArray[np.bool_],
    factor: Floats,
    row: Format,
) -> None:
    """Apply one more tile of keys and values to the rows `mine` of the state."""
    s = np.where(seen, mma(q, tile[0], unit="wgmma", a_format=row, b_format=row), np.float32(-np.inf))
    top = before = state.top[:, mine]
    for column in range(KEYS):
        top = ieee.maximum(top, np.ascontiguousarray(s[:, :, column]))
    used = np.where(np.isneginf(top), np.float32(0), top)
    base = ieee.add(ieee.mul(used, factor), ieee.negate(SHIFTS[row]))
    kept = _approx("ex2", ieee.mul(ieee.sub(before, used), factor))
    p = _approx("ex2", ieee.fma(s, factor[:, :, None], ieee.negate(base)[:, :, None]))
    lanes = p.reshape(*p.shape[:2], KEYS // 8, LANES, 2).swapaxes(2, 3).reshape(*p.shape[:2], LANES, -1)
    total: Floats = np.zeros(lanes.shape[:3], np.float32)
    for each in range(lanes.shape[3]):
        total = ieee.add(total, np.ascontiguousarray(lanes[:, :, :, each]))
    weights = encode(p, E4M3, overflow="saturate") if row is E4M3 else round_bits(p, BF16).astype(np.uint16)
    older = ieee.mul(state.values[:, mine], kept[:, :, None])
    state.values[:, mine] = mma(weights, tile[1].swapaxes(1, 2), older, unit="wgmma", a_format=row, b_format=row)
    state.sums[:, mine] = ieee.fma(state.sums[:, mine], kept[:, :, None], total)
    state.top[:, mine], state.base[:, mine] = top, base


def _finished(state: _State, factors: tuple[Floats, Floats | None]) -> Attention:
    """Return O and lse from the state after the last tile."""
    lanes = [np.ascontiguousarray(state.sums[:, :, lane]) for lane in range(LANES)]
    total = ieee.add(ieee.add(lanes[0], lanes[1]), ieee.add(lanes[2], lanes[3]))
    o = ieee.mul(state.values, _approx("rcp", total)[:, :, None])
    if factors[1] is not None:
        o = ieee.mul(o, factors[1][:, :, None])
    lse = ieee.mul(ieee.add(state.base, _approx("lg2", total)), LN_2)
    o = np.where(total[:, :, None] == 0, np.float32(0), o)
    return Attention(round_bits(o, BF16).astype(np.uint16), lse)


def _approx(name: str, x: Floats) -> Floats:
    return approximate(name, np.ascontiguousarray(x).view(np.uint32), ftz=True).view(np.float32)


def _visible(queries: int, keys: int, *, causal: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the number of keys that each row sees, and the number that the last row of its tile sees."""
    row = np.arange(queries)
    if not causal:
        return np.full(queries, keys), np.full(queries, keys)
    last = np.minimum(row // ROWS * ROWS + ROWS, queries) - 1
    return np.maximum(row + 1 + keys - queries, 0), np.maximum(last + 1 + keys - queries, 0)


def _padded(tile: NDArray[Any]) -> NDArray[Any]:
    """Return the tile with zeros for keys beyond the last."""
    return np.pad(tile, ((0, 0), (0, KEYS - tile.shape[1]), (0, 0)))


def _operands(
    given: tuple[ArrayLike, ArrayLike, ArrayLike], format: str | Format | None
) -> tuple[Format, tuple[NDArray[Any], ...]]:
    """Return the format of q, k and v, and their codes; raise where formats or shapes do not fit."""
    _, row = codes_with_format("q", given[0], format, BF16)
    check_named("format of attention", row.name, [each.name for each in SHIFTS])
    arrays = tuple(codes_with_format(name, each, row)[0] for name, each in zip("qkv", given, strict=True))
    for name, array in zip("qkv", arrays, strict=True):
        if array.ndim != 3 or 0 in array.shape:
            raise RefsimError("bad-shape", f"{name} has shape {array.shape}", rule="(heads, length, depth)")
    q, k, v = arrays
    if k.shape != v.shape or q.shape[2] != k.shape[2] or len(q) % len(k):
        what = f"q {q.shape}, k {k.shape}, v {v.shape}"
        rule = "(heads, Lq, D), (kv_heads, Lk, D) twice, heads a multiple of kv_heads"
        raise RefsimError("bad-shape", what, rule=rule)
    return row, arrays


def _factors(
    of_scores: np.float32, scales: tuple[ArrayLike, ArrayLike, ArrayLike] | None, row: Format, heads: int, kv_heads: int
) -> tuple[Floats, Floats | None]:
    """Return C and the scale of v for each head, (heads, 1); None for the scale of bf16."""
    if (scales is None) != (row is BF16):
        what = f"scales of {row} attention"
        raise RefsimError("bad-scale", what, rule="e4m3 has scales of q, k and v, bf16 has none")
    common = np.full((heads, 1), of_scores, np.float32)
    if scales is None:
        return common, None
    of_q, of_k, of_v = (np.asarray(each, np.float32) for each in scales)
    if of_q.shape != (heads,) or of_k.shape != (kv_heads,) or of_v.shape != (kv_heads,):
        what = f"scales of shapes {of_q.shape}, {of_k.shape}, {of_v.shape}"
        raise RefsimError("bad-shape", what, rule=f"({heads},), ({kv_heads},), ({kv_heads},): one for each head")
    group = heads // kv_heads
    of_scores_and_q = ieee.mul(common, of_q[:, None])
    return ieee.mul(of_scores_and_q, np.repeat(of_k, group)[:, None]), np.repeat(of_v, group)[:, None]
