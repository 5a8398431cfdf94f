"""Launches of kernels that Triton compiles: arguments, and what they must hold afterwards, bit for bit or within a bound.

Bounds: u = 2^-24 is half an ulp of a float32. The PTX ISA gives ex2.approx, sqrt.approx, div.full two ulps = 4u, lg2.approx
4u, absolute between 1/2 and 2 and relative elsewhere, rsqrt.approx 2^-22.9 < 4u, sin.approx 2^-20.5 up to 2 pi. A sum of n
float32 in any order is off by at most n u times the sum of magnitudes. A tensor core truncates each of its addends, and the
running sum, to 2^-23 = 2u of the largest: n products in steps of 8 or more are off by at most 2u (n + n/8) times the sum of
magnitudes. FLUSHED stands for subnormals that a conversion or `.ftz` flushes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import numpy as np

from refsim import numerics
from refsim.conversions import decode, encode

U = 2.0**-24
FLUSHED = 2.0**-120
I32, I64, F32, F16, BF16 = "*i32", "*i64", "*fp32", "*fp16", "*bf16"


@dataclass(frozen=True)
class Launch:
    """One launch: arguments by name in order (arrays are pointers), constants, and what the arrays must hold after it.

    `pointers` names Triton's types of arrays whose NumPy dtype does not say them (bf16, fp8)."""

    kernel: str
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    constants: dict[str, Any]
    check: Callable[[dict[str, Any]], None]
    pointers: dict[str, str] = field(default_factory=dict)
    warps: int = 4
    stages: int = 3


def same(got: Any, want: Any) -> None:
    assert np.asarray(got).tobytes() == np.asarray(want, got.dtype).tobytes()


def within(got: Any, want: Any, bound: Any) -> None:
    error = np.abs(np.asarray(got, np.float64) - want)
    assert (error <= bound).all(), f"{(error / bound).max()} of the bound"


def elementwise(n: int, block: int) -> Launch:
    draw = np.random.default_rng(n)
    x, y = (draw.standard_normal(n).astype(np.float32) for _ in range(2))
    count = draw.integers(-(2**31), 2**31, n).astype(np.int32)

    def check(after: dict[str, Any]) -> None:
        r = (x.astype(np.float64) * 3 + y).astype(np.float32)  # 3x + y has at most 53 bits here: rounded once
        same(after["y"], np.abs(r))
        same(after["low"], encode(r, "bf16"))
        same(after["half"], np.clip(r, -2, 2).astype(np.float16))
        i = count.astype(np.int64)
        quotient = np.sign(i) * (np.abs(i) // 7)
        high = (count.view(np.uint32).astype(np.uint64) * 0x9E3779B9 >> 32).astype(np.int64)
        whole = quotient * 3 + np.fmod(i, 5) + (i << 2) - (i >> 1)
        same(after["count"].view(np.uint32), (whole ^ high) & 0xFFFFFFFF)

    arguments = {"x": x, "y": y, "low": np.zeros(n, np.uint16), "half": np.zeros(n, np.float16), "count": count}
    return Launch(
        "elementwise", (-(-n // block),), arguments | {"n": np.int32(n)}, {"BLOCK": block}, check, {"low": BF16}
    )


def activations(n: int, block: int) -> Launch:
    x = np.clip(np.random.default_rng(n).standard_normal(n), -3, 3).astype(np.float32)

    def check(after: dict[str, Any]) -> None:
        a = x.astype(np.float64)
        b = 1 + a * a  # off by 2u: the product and the sum
        exp = 2 * U * np.abs(a) + 4 * U  # x log2(e): the constant and the product, each u of the exponent
        rows = [
            (1 / (1 + np.exp(-a)), exp + U + 4 * U),
            (np.exp(a), exp),
            (np.exp2(a), 4 * U),
            (None, None),
            (1 / np.sqrt(b), 4 * U + U),
        ]
        for row, (want, relative) in enumerate(rows):
            if want is not None:
                within(after["out"][row], want, want * relative * 1.001)  # 1.001 for products of bounds
        logarithm = np.log2(b)
        within(after["out"][3], logarithm, 3 * U + 4 * U * np.maximum(1, logarithm))
        within(after["out"][5], np.sin(a), 2**-20.5 + U)

    arguments = {"x": x, "out": np.zeros((6, n), np.float32), "n": np.int32(n)}
    return Launch("activations", (-(-n // block),), arguments, {"BLOCK": block}, check)


def softmax(rows: int, n: int, block: int, warps: int = 4) -> Launch:
    x = (np.random.default_rng(n).standard_normal((rows, n)) * 4).astype(np.float32)

    def check(after: dict[str, Any]) -> None:
        z = (x - x.max(1, keepdims=True)).astype(np.float64)  # the maximum is exact, the difference the same float32
        e = np.exp(z)
        one = 2 * U * np.abs(z).max(1, keepdims=True) + 4 * U  # as in `activations`
        want = e / e.sum(1, keepdims=True)
        within(after["y"], want, want * (2 * one + n * U + 4 * U) * 1.001 + FLUSHED)

    arguments = {"x": x, "y": np.zeros_like(x), "n": np.int32(n), "stride": np.int32(n)}
    return Launch("softmax", (rows,), arguments, {"BLOCK": block}, check, warps=warps)


def layernorm(rows: int, n: int, block: int, warps: int = 4) -> Launch:
    draw = np.random.default_rng(n)
    x = (draw.standard_normal((rows, n)) * 2 + 1).astype(np.float32)
    weight, bias = (draw.standard_normal(n).astype(np.float32) for _ in range(2))
    epsilon = np.float32(1e-5)

    def check(after: dict[str, Any]) -> None:
        a = x.astype(np.float64)
        d = a - a.mean(1, keepdims=True)
        largest = np.abs(d).max(1, keepdims=True)
        off = (n + 4) * U * np.abs(a).mean(1, keepdims=True) + U * largest  # of d: a sum, div.full, the difference
        variance = (d * d).mean(1, keepdims=True) + epsilon
        wrong = 2 * off * largest + off**2 + (n + 8) * U * variance  # its square, the sum, div.full, epsilon
        scale = 1 / np.sqrt(variance)
        relative = wrong / (2 * variance) + 8 * U  # the root halves it; sqrt.approx, div.full
        y = np.abs(d * scale * weight)
        bound = np.abs(weight) * off * scale + y * (relative + 2 * U) + (y + np.abs(bias)) * 2 * U
        within(after["y"], d * scale * weight + bias, bound * 1.01)

    arguments = {"x": x, "y": np.zeros_like(x), "weight": weight, "bias": bias, "n": np.int32(n), "stride": np.int32(n)}
    return Launch("layernorm", (rows,), arguments | {"epsilon": epsilon}, {"BLOCK": block}, check, warps=warps)


def _swap_if_zero(was: Any, v: Any) -> Any:
    return np.where(was == 0, v, was)


OPERATIONS: tuple[Callable[[Any, Any], Any], ...] = (
    np.add,
    np.minimum,
    np.maximum,
    np.bitwise_and,
    np.bitwise_or,
    np.bitwise_xor,
    lambda was, v: v,
    _swap_if_zero,
)
GROUPS = 8  # of four orders and two scopes


def atomics(type: str, programs: int = 3, n: int = 64) -> Launch:
    """What the programs got back and what is left is what some order of the programs gives, word by word."""
    words, values = _words(type, (GROUPS, 8, n)), _words(type, (programs, n))

    def check(after: dict[str, Any]) -> None:
        for place, operation in enumerate(OPERATIONS):
            explained = np.zeros((GROUPS, n), bool)
            for order in permutations(range(programs)):
                state, fits = words[:, place], np.ones((GROUPS, n), bool)
                for program in order:
                    fits &= after["old"][:, program, place] == state
                    state = operation(state, np.broadcast_to(values[program], state.shape))
                explained |= fits & (after["words"][:, place] == state)
            assert explained.all(), operation

    arguments = {"words": words, "values": values, "old": np.zeros((GROUPS, programs, 8, n), words.dtype)}
    return Launch("atomics", (programs,), arguments, {"PROGRAMS": programs, "N": n}, check)


def atomics_of_a_block(type: str, programs: int = 2, n: int = 64) -> Launch:
    words, values = _words(type, (programs, 4, 8, n)), _words(type, (programs, n))

    def check(after: dict[str, Any]) -> None:
        for place, operation in enumerate(OPERATIONS):
            for program in range(programs):
                was = words[program, :, place]
                same(after["old"][:, program, place], was)
                same(after["words"][program, :, place], operation(was, np.broadcast_to(values[program], was.shape)))

    arguments = {"words": words, "values": values, "old": np.zeros((4, programs, 8, n), words.dtype)}
    return Launch("atomics_of_a_block", (programs,), arguments, {"PROGRAMS": programs, "N": n}, check)


def _words(type: str, shape: tuple[int, ...]) -> Any:
    """Words of any bits, a third of them zero: what compare-and-swap replaces."""
    draw = np.random.default_rng(len(shape))
    dtype = np.dtype(type)
    words = (
        draw.integers(0, 1 << 8 * dtype.itemsize, shape, np.uint64, endpoint=False)
        if dtype.itemsize < 8
        else (draw.integers(0, (1 << 64) - 1, shape, np.uint64, endpoint=True))
    )
    return np.where(draw.integers(0, 3, shape) == 0, 0, words).astype(f"u{dtype.itemsize}").view(dtype)


def sums_by_atomics(type: str, n: int = 200, bins: int = 64, block: int = 128) -> Launch:
    x = np.random.default_rng(n).integers(0, 9, n).astype(np.int32) + bins * (np.arange(n, dtype=np.int32) % 2)

    def check(after: dict[str, Any]) -> None:
        sums = np.bincount(x % bins, weights=x, minlength=bins)
        half = np.float32(2.0**11 if type == F16 else 2.0**8)
        small = sums <= half  # whole numbers up to here are exact in the 16-bit format, in any order
        assert small.sum() > bins // 2
        got = decode(after["halves"].view(np.uint16), "f16" if type == F16 else "bf16")
        same(got[small].astype(np.float32), sums[small])
        same(after["singles"], [*sums, x.max()])
        times = np.bincount(x % bins, minlength=bins)
        times[0] += -n % block  # the histogram counts the zeros that stand for elements outside
        same(after["bins"], times)

    arguments = {
        "x": x,
        "halves": np.zeros(bins, np.uint16),
        "singles": np.zeros(bins + 1, np.float32),
        "bins": np.zeros(bins, np.int32),
        "n": np.int32(n),
    }
    return Launch(
        "sums_by_atomics", (-(-n // block),), arguments, {"BLOCK": block, "BINS": bins}, check, {"halves": type}
    )


def locked(order: str = "release", programs: int = 5, n: int = 100) -> Launch:
    x = np.random.default_rng(n).integers(0, 99, (programs, n)).astype(np.int32)

    def check(after: dict[str, Any]) -> None:
        same(after["total"], x.sum(0))
        same(after["lock"], [0])

    arguments = {"lock": np.zeros(1, np.int32), "total": np.zeros(n, np.int32), "x": x, "n": np.int32(n)}
    return Launch("locked", (programs,), arguments, {"BLOCK": 128, "SEM": order}, check)


def last_program(programs: int = 4, block: int = 128) -> Launch:
    n = programs * block - 12
    x = np.random.default_rng(n).integers(0, 99, n).astype(np.int32)
    arguments = {
        "x": x,
        "partial": np.zeros(programs, np.int32),
        "ticket": np.zeros(1, np.int32),
        "out": np.zeros(1, np.int32),
        "n": np.int32(n),
    }
    return Launch(
        "last_program",
        (programs,),
        arguments,
        {"PROGRAMS": programs, "BLOCK": block},
        lambda after: same(after["out"], [x.sum()]),
    )


def scan(n: int, reverse: bool, warps: int = 4) -> Launch:
    draw = np.random.default_rng(n)
    x, scales = (draw.integers(-(2**31), 2**31, (4, n)).astype(np.int32) for _ in range(2))

    def check(after: dict[str, Any]) -> None:
        turn = slice(None, None, -1 if reverse else 1)
        a, b = x[:, turn].astype(np.uint32), scales[:, turn].astype(np.uint32)
        same(after["sums"].view(np.uint32)[:, turn], np.cumsum(a, 1, dtype=np.uint32))
        same(after["highest"][:, turn], np.maximum.accumulate(x[:, turn], 1))
        want = a.copy()
        for i in range(1, n):
            want[:, i] += b[:, i] * want[:, i - 1]
        same(after["recurrence"].view(np.uint32)[:, turn], want)

    arguments = {"x": x, "scales": scales} | {name: np.zeros_like(x) for name in ("sums", "highest", "recurrence")}
    return Launch("scan", (2,), arguments, {"N": n, "REVERSE": reverse}, check, warps=warps)


def sort(type: str, n: int, most: int, warps: int = 4) -> Launch:
    x = (np.random.default_rng(n).standard_normal((2, n)) * 99).astype(type)  # integers meet their equals

    def check(after: dict[str, Any]) -> None:
        want = np.sort(x, 1)
        same(after["ascending"], want)
        same(after["descending"], want[:, ::-1])
        same(after["most"], want[:, ::-1][:, :most])

    arguments = {"x": x, "ascending": np.zeros_like(x), "descending": np.zeros_like(x), "most": x[:, :most] * 0}
    return Launch("sort", (2,), arguments, {"N": n, "K": most}, check, warps=warps)


FORMATS = {"f16": F16, "bf16": BF16, "e4m3": "*fp8e4nv", "e5m2": "*fp8e5"}


def matmul(
    format: str, sizes: tuple[int, int, int], tile: tuple[int, int, int], warps: int = 4, stages: int = 3
) -> Launch:
    """The bits of the tensor core model, rounded once to the format of the result."""
    draw = np.random.default_rng(sum(sizes))
    m, n, k = sizes
    a, b = (encode(draw.standard_normal((count, k)), format) for count in (m, n))
    result = format if format in {"f16", "bf16"} else "f32"

    def check(after: dict[str, Any], capability: int = 80) -> None:
        x, y = (np.pad(decode(v, format), ((0, 0), (0, -k % 32))) for v in (a, b))
        used, grouped = format, capability == 90 and tile[0] >= 64  # a warpgroup has 64 rows
        if format in {"e4m3", "e5m2"} and capability != 89 and not grouped:
            # No fp8 products in a warp: cast, exactly. A lane has four bytes in a word, of which the first product of 16 takes
            # two, and two of the word 16 further on; the second product takes the others. sm_80 adds 8 at a time.
            used = "f16"
            x, y = (v.reshape(len(v), -1, 2, 4, 2, 2).transpose(0, 1, 4, 2, 3, 5).reshape(len(v), -1) for v in (x, y))
        x, y = encode(x, used), encode(y, used)
        want = numerics.mma(
            x,
            y,
            np.zeros((m, n), np.float32),
            unit="wgmma" if grouped else "mma.sync",
            a_format=used,
            b_format=used,
            target=f"sm_{capability}a" if grouped else f"sm_{capability}",
            k=16 if used in {"f16", "bf16"} else 32,
        )
        same(after["c"], want if result == "f32" else encode(want, result))

    strides = {"sa": np.int32(k), "sb": np.int32(n), "sc": np.int32(n)}
    c = np.zeros((m, n), np.float32 if result == "f32" else np.uint16)
    arguments = {"a": a, "b": np.ascontiguousarray(b.T), "c": c, "M": np.int32(m), "N": np.int32(n), "K": np.int32(k)}
    pointers = {"a": FORMATS[format], "b": FORMATS[format], "c": FORMATS.get(result, F32)}
    grid = (-(-m // tile[0]) * -(-n // tile[1]),)
    constants = dict(zip(("BM", "BN", "BK", "GROUP"), (*tile, 2), strict=True))
    return Launch("matmul", grid, arguments | strides, constants, check, pointers, warps, stages)


def attention(t: int, d: int, tile: tuple[int, int], causal: bool, warps: int = 4, heads: int = 2) -> Launch:
    draw = np.random.default_rng(t + d)
    q, k, v = (draw.standard_normal((heads, t, d)).astype(np.float16) for _ in range(3))
    scale = np.float32(1.44269504 / np.sqrt(d))

    def check(after: dict[str, Any]) -> None:
        x, y, z = (tensor.astype(np.float64) for tensor in (q, k, v))
        s = x @ y.transpose(0, 2, 1) * scale
        seen = np.tril(np.ones((t, t), bool)) if causal else np.ones((t, t), bool)
        s = np.where(seen, s, -np.inf)
        top = s.max(2, keepdims=True)
        p = np.exp2(s - top)
        below = p.sum(2, keepdims=True)
        magnitude = (np.abs(x) @ np.abs(y).transpose(0, 2, 1) * scale).max(2, keepdims=True)
        score = (2 * U * (d + d / 8) + 2 * U) * magnitude  # of s: the product and its scaling
        blocks = -(-t // tile[1])
        # of an exponential: scores and differences (each u of at most 2 magnitudes) times ln 2 in the exponent, of it
        # and of the maximum at every block, where a factor for what came before is multiplied on as well
        power = (blocks + 1) * (np.log(2) * (2 * score + 2 * U * 2 * magnitude) + 4 * U + U)
        sums = (t + blocks) * U  # of `below`
        product = 2 * U * (t + t / 8 + blocks)
        weights = 2.0**-11 + product + power + sums + power + 4 * U  # p as float16, both sums, div.full
        tiny = t * 2.0**-25 * np.abs(z).max() / below  # subnormal p as float16
        o = p @ z / below
        bound = p @ np.abs(z) / below * weights + tiny
        bound = bound * 1.01 + (np.abs(o) + bound) * 2.0**-11 + 2.0**-25  # products of bounds, the result as float16
        within(after["o"], o, bound)
        lse = top + np.log2(below)
        logarithm = 4 * U * np.maximum(1, np.log2(below))
        within(
            after["lse"],
            lse[..., 0],
            (score + (power + sums) / np.log(2) * 1.01 + logarithm + U * np.abs(lse))[..., 0],
        )

    arguments = {
        "q": q,
        "k": k,
        "v": v,
        "o": np.zeros_like(q),
        "lse": np.zeros((heads, t), np.float32),
        "scale": scale,
        "T": np.int32(t),
    }
    constants = {"D": d, "BM": tile[0], "BN": tile[1], "CAUSAL": causal}
    return Launch("attention", (-(-t // tile[0]), heads), arguments, constants, check, warps=warps)


# The first of each row runs in every profile, the others beyond quick.
LAUNCHES = {
    "elementwise": [elementwise(300, 256), elementwise(1000, 1024)],
    "activations": [activations(300, 256), activations(2000, 1024)],
    "softmax": [softmax(3, 300, 512), softmax(2, 1000, 1024, 8), softmax(2, 33, 64, 1)],
    "layernorm": [layernorm(3, 600, 256), layernorm(2, 1500, 1024, 8), layernorm(2, 100, 128, 1)],
    "atomics": [atomics("i4"), atomics("u4", 4), atomics("i8"), atomics("u8", 2, 128)],
    "atomics of a block": [atomics_of_a_block("i4"), atomics_of_a_block("u8"), atomics_of_a_block("u4", 3, 256)],
    "sums by atomics": [sums_by_atomics(F16), sums_by_atomics(BF16)],
    "locked": [locked(), locked("acq_rel", 20)],
    "last program": [last_program(), last_program(16, 256)],
    "scan": [scan(256, False), scan(256, True), scan(1024, False, 8), scan(64, True, 1)],
    "sort": [sort("i4", 64, 8), sort("f4", 256, 16), sort("i4", 512, 32, 8)],
    "matmul f16": [
        matmul("f16", (48, 80, 72), (32, 64, 32)),
        matmul("f16", (130, 70, 136), (64, 64, 32), 8, 4),
        matmul("f16", (48, 80, 72), (32, 32, 64), 2, 1),
    ],
    "matmul bf16": [matmul("bf16", (48, 80, 72), (32, 64, 32)), matmul("bf16", (100, 40, 200), (64, 32, 64), 4, 2)],
    "matmul e4m3": [matmul("e4m3", (48, 80, 80), (32, 64, 32)), matmul("e4m3", (96, 96, 160), (64, 32, 64), 4, 2)],
    "matmul e5m2": [matmul("e5m2", (48, 80, 80), (32, 64, 32)), matmul("e5m2", (96, 96, 160), (64, 32, 64), 4, 2)],
    "attention": [attention(80, 32, (64, 32), False), attention(128, 64, (64, 64), False, 8)],
    "causal attention": [attention(80, 32, (64, 32), True), attention(150, 64, (32, 32), True)],
}
