"""Kernels of our own in Triton, one of each kind that its users write; `test_triton_kernels.py` compiles and runs them."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def elementwise(x, y, low, half, count, n, BLOCK: tl.constexpr):
    """y = 3x + y in one rounding, its casts, and integers of each kind of arithmetic."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    a = tl.load(x + at, mask=inside, other=0.0)
    b = tl.load(y + at, mask=inside, other=0.0, cache_modifier=".cg")
    r = tl.fma(a, 3.0, b)
    tl.store(y + at, tl.where(r > 0, r, -r), mask=inside)
    tl.store(low + at, r.to(tl.bfloat16), mask=inside, eviction_policy="evict_first")
    tl.store(half + at, tl.clamp(r, -2.0, 2.0).to(tl.float16), mask=inside)
    i = tl.load(count + at, mask=inside, other=1)
    i = (i // 7) * 3 + i % 5 + (i << 2) - (i >> 1) ^ tl.umulhi(i.to(tl.uint32), 0x9E3779B9).to(tl.int32)
    tl.store(count + at, i, mask=inside)


@triton.jit
def activations(x, out, n, BLOCK: tl.constexpr):
    """Rows of out: sigmoid(x), exp(x), exp2(x), log2(1 + x * x), the reciprocal of the root of 1 + x * x, sin(x)."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    a = tl.load(x + at, mask=inside, other=0.0)
    b = 1.0 + a * a
    tl.store(out + at, 1.0 / (1.0 + tl.exp(-a)), mask=inside)
    tl.store(out + n + at, tl.exp(a), mask=inside)
    tl.store(out + 2 * n + at, tl.exp2(a), mask=inside)
    tl.store(out + 3 * n + at, tl.log2(b), mask=inside)
    tl.store(out + 4 * n + at, tl.rsqrt(b), mask=inside)
    tl.store(out + 5 * n + at, tl.sin(a), mask=inside)


@triton.jit
def softmax(x, y, n, stride, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    a = tl.load(x + row * stride + at, mask=at < n, other=-float("inf"))
    e = tl.exp(a - tl.max(a, axis=0))
    tl.store(y + row * stride + at, e / tl.sum(e, axis=0), mask=at < n)


@triton.jit
def layernorm(x, y, weight, bias, n, stride, epsilon, BLOCK: tl.constexpr):
    """A row in steps of BLOCK, as one too long for registers is read: three passes."""
    row = tl.program_id(0)
    sums = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        sums += tl.load(x + row * stride + at, mask=at < n, other=0.0).to(tl.float32)
    mean = tl.sum(sums, axis=0) / n
    squares = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        a = tl.load(x + row * stride + at, mask=at < n, other=0.0).to(tl.float32)
        d = tl.where(at < n, a - mean, 0.0)
        squares += d * d
    scale = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / n + epsilon)
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        a = tl.load(x + row * stride + at, mask=at < n, other=0.0).to(tl.float32)
        w = tl.load(weight + at, mask=at < n)
        b = tl.load(bias + at, mask=at < n)
        tl.store(y + row * stride + at, (a - mean) * scale * w + b, mask=at < n)


@triton.jit
def every_atomic(words, values, old, N: tl.constexpr, SEM: tl.constexpr, SCOPE: tl.constexpr):
    """Each operation on N words of its own; all programs meet there, and `old` has what each of them got back."""
    at = tl.arange(0, N)
    mine = old + tl.program_id(0) * 8 * N + at
    v = tl.load(values + tl.program_id(0) * N + at)
    tl.store(mine, tl.atomic_add(words + at, v, sem=SEM, scope=SCOPE))
    tl.store(mine + N, tl.atomic_min(words + N + at, v, sem=SEM, scope=SCOPE))
    tl.store(mine + 2 * N, tl.atomic_max(words + 2 * N + at, v, sem=SEM, scope=SCOPE))
    tl.store(mine + 3 * N, tl.atomic_and(words + 3 * N + at, v, sem=SEM, scope=SCOPE))
    tl.store(mine + 4 * N, tl.atomic_or(words + 4 * N + at, v, sem=SEM, scope=SCOPE))
    tl.store(mine + 5 * N, tl.atomic_xor(words + 5 * N + at, v, sem=SEM, scope=SCOPE))
    tl.store(mine + 6 * N, tl.atomic_xchg(words + 6 * N + at, v, sem=SEM, scope=SCOPE))
    zero = tl.zeros((N,), words.dtype.element_ty)
    tl.store(mine + 7 * N, tl.atomic_cas(words + 7 * N + at, zero, v, sem=SEM, scope=SCOPE))


@triton.jit
def atomics(words, values, old, PROGRAMS: tl.constexpr, N: tl.constexpr):
    """Every operation with every order, at the scopes of the device and of the system, which hold all programs."""
    step: tl.constexpr = 8 * N
    every_atomic(words, values, old, N, "relaxed", "gpu")
    every_atomic(words + step, values, old + PROGRAMS * step, N, "acquire", "gpu")
    every_atomic(words + 2 * step, values, old + PROGRAMS * 2 * step, N, "release", "gpu")
    every_atomic(words + 3 * step, values, old + PROGRAMS * 3 * step, N, "acq_rel", "gpu")
    every_atomic(words + 4 * step, values, old + PROGRAMS * 4 * step, N, "relaxed", "sys")
    every_atomic(words + 5 * step, values, old + PROGRAMS * 5 * step, N, "acquire", "sys")
    every_atomic(words + 6 * step, values, old + PROGRAMS * 6 * step, N, "release", "sys")
    every_atomic(words + 7 * step, values, old + PROGRAMS * 7 * step, N, "acq_rel", "sys")


@triton.jit
def atomics_of_a_block(words, values, old, PROGRAMS: tl.constexpr, N: tl.constexpr):
    """The scope of a block is enough where each program has words of its own."""
    step: tl.constexpr = 8 * N
    words += tl.program_id(0) * 4 * step
    every_atomic(words, values, old, N, "relaxed", "cta")
    every_atomic(words + step, values, old + PROGRAMS * step, N, "acquire", "cta")
    every_atomic(words + 2 * step, values, old + PROGRAMS * 2 * step, N, "release", "cta")
    every_atomic(words + 3 * step, values, old + PROGRAMS * 3 * step, N, "acq_rel", "cta")


@triton.jit
def sums_by_atomics(x, halves, singles, bins, n, BLOCK: tl.constexpr, BINS: tl.constexpr):
    """Sums of small integers in two formats, exact in any order, and how often each occurs."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n, other=0)
    slot = v % BINS
    tl.atomic_add(halves + slot, v.to(halves.dtype.element_ty), mask=at < n)
    tl.atomic_add(singles + slot, v.to(tl.float32), mask=at < n, sem="relaxed")
    tl.atomic_add(bins + tl.arange(0, BINS), tl.histogram(slot, BINS))
    tl.atomic_max(singles + BINS, tl.max(v, axis=0).to(tl.float32))


@triton.jit
def locked(lock, total, x, n, BLOCK: tl.constexpr, SEM: tl.constexpr):
    """Programs add a row each to one row, one after the other: a spin lock; its holder releases it with order SEM."""
    at = tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * n + at, mask=at < n, other=0)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(total + at, tl.load(total + at, mask=at < n) + v, mask=at < n)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0, sem=SEM)


@triton.jit
def last_program(x, partial, ticket, out, n, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr):
    """The program that takes the last ticket adds what all the others left."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(partial + tl.program_id(0), tl.sum(tl.load(x + at, mask=at < n, other=0), axis=0))
    tl.debug_barrier()
    if tl.atomic_add(ticket, 1, sem="acq_rel") == PROGRAMS - 1:
        tl.store(out, tl.sum(tl.load(partial + tl.arange(0, PROGRAMS)), axis=0))


@triton.jit
def _after(scale, shift, next_scale, next_shift):
    return next_scale * scale, next_scale * shift + next_shift


@triton.jit
def scan(x, scales, sums, highest, recurrence, N: tl.constexpr, REVERSE: tl.constexpr):
    """Along rows: sums, the highest so far, and y = scale * y + x modulo 2^32, which does not commute."""
    at = tl.program_id(0) * 2 * N + (tl.arange(0, 2) * N)[:, None] + tl.arange(0, N)[None, :]
    v = tl.load(x + at)
    tl.store(sums + at, tl.cumsum(v, axis=1, reverse=REVERSE))
    tl.store(highest + at, tl.associative_scan(v, 1, tl.standard._elementwise_max, reverse=REVERSE))
    _, y = tl.associative_scan((tl.load(scales + at), v), 1, _after, reverse=REVERSE)
    tl.store(recurrence + at, y)


@triton.jit
def sort(x, ascending, descending, most, N: tl.constexpr, K: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    v = tl.load(x + at)
    tl.store(ascending + at, tl.sort(v))
    tl.store(descending + at, tl.sort(v, descending=True))
    tl.store(most + tl.program_id(0) * K + tl.arange(0, K), tl.topk(v, K))


@triton.jit
def matmul(a, b, c, M, N, K, sa, sb, sc, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    """Tiles in groups of rows, pointers that move on, edges wrapped by modulo: as the tutorials write it."""
    program = tl.program_id(0)
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    group = program // (GROUP * columns)
    height = min(rows - group * GROUP, GROUP)
    row = group * GROUP + program % (GROUP * columns) % height
    column = program % (GROUP * columns) // height
    rm = (row * BM + tl.arange(0, BM)) % M
    rn = (column * BN + tl.arange(0, BN)) % N
    rk = tl.arange(0, BK)
    xs = a + rm[:, None] * sa + rk[None, :]
    ys = b + rk[:, None] * sb + rn[None, :]
    sums = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        x = tl.load(xs, mask=rk[None, :] < K - k * BK, other=0.0)
        y = tl.load(ys, mask=rk[:, None] < K - k * BK, other=0.0)
        sums = tl.dot(x, y, sums)
        xs += BK
        ys += BK * sb
    rm = row * BM + tl.arange(0, BM)
    rn = column * BN + tl.arange(0, BN)
    tl.store(c + rm[:, None] * sc + rn[None, :], sums.to(c.dtype.element_ty), (rm[:, None] < M) & (rn[None, :] < N))


@triton.jit
def attention(q, k, v, o, lse, scale, T, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr):
    """Forward, one head a program of axis 1; lse is the base-2 logarithm of the sum of exponentials."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn, rd = tl.arange(0, BN), tl.arange(0, D)
    head = tl.program_id(1) * T * D
    x = tl.load(q + head + rm[:, None] * D + rd[None, :], mask=rm[:, None] < T, other=0.0)
    top = tl.full((BM,), -float("inf"), tl.float32)
    below = tl.zeros((BM,), tl.float32)
    sums = tl.zeros((BM, D), tl.float32)
    end = min((tl.program_id(0) + 1) * BM, T) if CAUSAL else T
    for first in range(0, end, BN):
        at = first + rn
        kt = tl.load(k + head + at[None, :] * D + rd[:, None], mask=at[None, :] < T, other=0.0)
        s = tl.dot(x, kt) * scale
        seen = (at[None, :] < T) & (rm[:, None] >= at[None, :]) if CAUSAL else at[None, :] < T
        s = tl.where(seen, s, -float("inf"))
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        kept = tl.exp2(top - new)
        below = below * kept + tl.sum(p, 1)
        y = tl.load(v + head + at[:, None] * D + rd[None, :], mask=at[:, None] < T, other=0.0)
        sums = tl.dot(p.to(y.dtype), y, sums * kept[:, None])
        top = new
    tl.store(o + head + rm[:, None] * D + rd[None, :], (sums / below[:, None]).to(o.dtype.element_ty), rm[:, None] < T)
    tl.store(lse + tl.program_id(1) * T + rm, top + tl.log2(below), mask=rm < T)


@triton.jit
def early(x, y, BLOCK: tl.constexpr, WAITS: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    gdc_launch_dependents()
    if WAITS:
        gdc_wait()
    tl.store(y + at, tl.load(x + at) + 1)
