"""Flash attention in Triton, our own: a softmax in base 2 that goes on as blocks of keys come, between two products.

Every rounding is said: fma where two operations round once, each maximum and each factor by itself. Triton chooses only the
order in which a row is summed.
"""

import triton
import triton.language as tl


@triton.jit
def _seen(at, rows, T, CAUSAL: tl.constexpr):
    """Which keys a row takes part in."""
    inside = at[None, :] < T
    return inside & (rows[:, None] >= at[None, :]) if CAUSAL else inside


@triton.jit
def _weighed(s, y, top, below, sums, scale):
    """One block of scores and values more: the highest score so far, the sum of weights, the weighted sums of values."""
    new = tl.maximum(top, tl.max(s, 1) * scale)
    p = tl.exp2(tl.fma(s, scale, -new[:, None]))
    kept = tl.exp2(top - new)
    below = tl.fma(below, kept, tl.sum(p, 1))
    return new, below, tl.dot(p.to(y.dtype), y, sums * kept[:, None])


@triton.jit
def _none(BM: tl.constexpr, D: tl.constexpr):
    return tl.full((BM,), -float("inf"), tl.float32), tl.zeros((BM,), tl.float32), tl.zeros((BM, D), tl.float32)


@triton.jit
def by_pointers(
    q,
    k,
    v,
    o,
    lse,
    scale,
    T,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    CAUSAL: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Blocks that every row sees whole come first, without masks; then those at the diagonal and at the end."""
    first = tl.program_id(0) * BM
    rows, rd = first + tl.arange(0, BM), tl.arange(0, D)
    head = tl.program_id(1) * T * D
    x = tl.load(q + head + rows[:, None] * D + rd[None, :], mask=rows[:, None] < T, other=0.0)
    top, below, sums = _none(BM, D)
    whole = (min(first, T) if CAUSAL else T) // BN * BN
    for start in tl.range(0, whole, BN, num_stages=STAGES):
        at = start + tl.arange(0, BN)
        kt = tl.load(k + head + at[None, :] * D + rd[:, None])
        s = tl.dot(x, kt)
        y = tl.load(v + head + at[:, None] * D + rd[None, :])
        top, below, sums = _weighed(s, y, top, below, sums, scale)
    for start in tl.range(whole, min(first + BM, T) if CAUSAL else T, BN, num_stages=STAGES):
        at = start + tl.arange(0, BN)
        kt = tl.load(k + head + at[None, :] * D + rd[:, None], mask=at[None, :] < T, other=0.0)
        s = tl.where(_seen(at, rows, T, CAUSAL), tl.dot(x, kt), -float("inf"))
        y = tl.load(v + head + at[:, None] * D + rd[None, :], mask=at[:, None] < T, other=0.0)
        top, below, sums = _weighed(s, y, top, below, sums, scale)
    out = (sums / below[:, None]).to(o.dtype.element_ty)
    tl.store(o + head + rows[:, None] * D + rd[None, :], out, mask=rows[:, None] < T)
    tl.store(lse + tl.program_id(1) * T + rows, top + tl.log2(below), mask=rows < T)


@triton.jit
def by_boxes(
    q,
    k,
    v,
    o,
    lse,
    scale,
    T,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    CAUSAL: tl.constexpr,
    STAGES: tl.constexpr,
):
    """q, k, v and o are descriptors of [heads, T, D]: what lies past T is loaded as zeros and not stored."""
    first, head = tl.program_id(0) * BM, tl.program_id(1)
    rows = first + tl.arange(0, BM)
    x = q.load([head, first, 0]).reshape(BM, D)
    top, below, sums = _none(BM, D)
    for start in tl.range(0, min(first + BM, T) if CAUSAL else T, BN, num_stages=STAGES):
        at = start + tl.arange(0, BN)
        kt = k.load([head, start, 0]).reshape(BN, D).T
        s = tl.where(_seen(at, rows, T, CAUSAL), tl.dot(x, kt), -float("inf"))
        y = v.load([head, start, 0]).reshape(BN, D)
        top, below, sums = _weighed(s, y, top, below, sums, scale)
    o.store([head, first, 0], (sums / below[:, None]).to(o.dtype).reshape(1, BM, D))
    tl.store(lse + head * T + rows, top + tl.log2(below), mask=rows < T)


@triton.jit
def by_own_boxes(
    q,
    k,
    v,
    o,
    lse,
    scale,
    T,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    CAUSAL: tl.constexpr,
    STAGES: tl.constexpr,
    ROLES: tl.constexpr,
):
    """Descriptors made by the kernel, of all rows of all heads; T is a multiple of the blocks. With ROLES Triton gives loads and
    products to warps of their own."""
    total = tl.num_programs(1) * T
    qs = tl.make_tensor_descriptor(q, [total, D], [D, 1], [BM, D])
    os = tl.make_tensor_descriptor(o, [total, D], [D, 1], [BM, D])
    ks = tl.make_tensor_descriptor(k, [total, D], [D, 1], [BN, D])
    vs = tl.make_tensor_descriptor(v, [total, D], [D, 1], [BN, D])
    first, head = tl.program_id(0) * BM, tl.program_id(1) * T
    rows = first + tl.arange(0, BM)
    x = qs.load([head + first, 0])
    top, below, sums = _none(BM, D)
    for start in tl.range(0, first + BM if CAUSAL else T, BN, num_stages=STAGES, warp_specialize=ROLES):
        at = start + tl.arange(0, BN)
        s = tl.where(_seen(at, rows, T, CAUSAL), tl.dot(x, ks.load([head + start, 0]).T), -float("inf"))
        top, below, sums = _weighed(s, vs.load([head + start, 0]), top, below, sums, scale)
    os.store([head + first, 0], (sums / below[:, None]).to(o.dtype.element_ty))
    tl.store(lse + head + rows, top + tl.log2(below))
