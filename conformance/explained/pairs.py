"""Pairs of results that differ by a planted cause, by a cause that no row stands for, or not at all."""

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.explained import arithmetic as own
from refsim.causes import (
    AttentionOperands,
    Family,
    IntegerOperands,
    ProductOperands,
    QuantizedFrom,
    RowOperands,
    WeightOperands,
)

Matrix = NDArray[Any]
SMALL, LARGE = (24, 40, 512), (128, 128, 512)
BLOCK = 128


@dataclass(frozen=True)
class Pair:
    """What is asked, and the answer: the `planted` family, "" where no row stands for it, None where both are equal.

    `want` is None where the operands alone say what is usual.
    """

    name: str
    planted: str | None
    got: Matrix
    want: Matrix | None
    format: str | None
    operands: ProductOperands | RowOperands | AttentionOperands | IntegerOperands | WeightOperands | None = None
    values: Matrix | None = None
    quantized: QuantizedFrom | None = None

    @property
    def is_large(self) -> bool:
        return isinstance(self.operands, ProductOperands) and np.shape(self.operands.a) == (LARGE[0], LARGE[2])


@dataclass(frozen=True)
class Problem:
    """ProductOperands of one seed."""

    a: Matrix
    b: Matrix
    sa: Matrix
    sb: Matrix

    @staticmethod
    def drawn(seed: int, shape: tuple[int, int, int]) -> "Problem":
        random = np.random.default_rng(seed)
        m, n, k = shape
        spread = 2.0 ** random.integers(-5, 6, (1, k))
        a, b = (own.e4m3(random.normal(0, 1, (rows, k)) * spread) for rows in (m, n))
        a, b = (np.where(codes == 0x80, 0, codes).astype(np.uint8) for codes in (a, b))  # -0 is the NaN of FNUZ
        sa, sb = (random.uniform(0.5, 2, (rows, -(-k // BLOCK))).astype(np.float32) for rows in (m, n))
        return Problem(a, b, sa, sb)

    def operands(self, *, scaled: bool = False, **more: Any) -> ProductOperands:
        scales = {"a_scale": self.sa, "b_scale": self.sb} if scaled else {}
        return ProductOperands(a=self.a, b=self.b, a_format="e4m3", b_format="e4m3", **scales, **more)

    def chunks(self) -> list[own.Floats]:
        return own.chunks(self.a, self.b, BLOCK)

    def promoted(self, order: str = "product", *, fused: bool = True, splits: int = 1) -> own.Floats:
        """The sums of blocks, each times its scales in that order, in one range of blocks or in several."""
        products, sums = self.chunks(), []
        width = -(-len(products) // splits)
        for first in range(0, len(products), width):
            total = np.zeros(products[0].shape, np.float32)
            for at in range(first, min(first + width, len(products))):
                a, b, p = self.sa[:, at, None], self.sb[None, :, at], products[at]
                one, other = {"product": (a * b, p), "a": (p * a, b), "b": (p * b, a)}[order]
                total = own.fma(one, other, total) if fused else one * other + total
            sums.append(total)
        total = sums[0]
        for later in sums[1:]:
            total = total + later
        return total


Planted = Callable[[Problem], Matrix]


def _sum(parts: list[own.Floats]) -> own.Floats:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _ranges(p: Problem, splits: int) -> list[own.Floats]:
    return own.chunks(p.a, p.b, -(-p.a.shape[1] // splits // 32) * 32)


def _in_turn(p: Problem, splits: int, tile: int) -> own.Floats:
    owner = np.arange(p.a.shape[1]) // tile % splits
    return _sum([own.hopper(p.a[:, owner == at], p.b[:, owner == at]) for at in range(splits)])


def _flushed(codes: Matrix) -> Matrix:
    return np.where(codes & 0x78, codes, codes & 0x80).astype(np.uint8)


def _swizzled(codes: Matrix, count: int) -> Matrix:
    """Chunks of 16 bytes where an XOR with the row puts them."""
    found = codes.copy().reshape(len(codes), -1, count, 16)
    for row in range(len(codes)):
        found[row] = found[row][:, np.arange(count) ^ row % count]
    return found.reshape(codes.shape)


def _tensor_bytes(codes: Matrix, bits: int) -> Matrix:
    """Bytes of an array where the swizzle of `bits` bits of shared memory has them."""
    flat = np.ascontiguousarray(codes).reshape(-1).view(np.uint8)
    address = np.arange(flat.size)
    moved = np.empty_like(flat)
    moved[address ^ (address >> 3 & ((1 << bits) - 1) << 4)] = flat
    return moved.view(codes.dtype).reshape(codes.shape)


def _usual(p: Problem) -> Matrix:
    return own.hopper(p.a, p.b)


SUMS: dict[str, tuple[Family, Planted]] = {
    "blackwell": (Family.ACCUMULATOR, lambda p: own.blackwell(p.a, p.b)),
    "ada": (Family.ACCUMULATOR, lambda p: own.ada(p.a, p.b)),
    "float32 loop": (Family.ACCUMULATOR, lambda p: own.float32_loop(p.a, p.b)),
    "slow 128": (Family.FAST_SLOW, lambda p: _sum(p.chunks())),
    "slow 64": (Family.FAST_SLOW, lambda p: _sum(own.chunks(p.a, p.b, 64))),
    "split 2": (Family.SPLIT_K, lambda p: _sum(_ranges(p, 2))),
    "split 3": (Family.SPLIT_K, lambda p: _sum(_ranges(p, 3))),
    "split 3, last first": (Family.SPLIT_K, lambda p: _sum(_ranges(p, 3)[::-1])),
    "split 4 in turn": (Family.SPLIT_K, lambda p: _in_turn(p, 4, 32)),
    "split 2 in bf16": (Family.SPLIT_K, lambda p: _sum([own.of_bf16(own.bf16(each)) for each in _ranges(p, 2)])),
    "split 3 in f16": (Family.SPLIT_K, lambda p: _sum([own.f16_of(each) for each in _ranges(p, 3)])),
    "from the end": (
        Family.REDUCTION_ORDER,
        lambda p: own.hopper(*(x.reshape(len(x), -1, 32)[:, ::-1].reshape(len(x), -1) for x in (p.a, p.b))),
    ),
    "A as FNUZ": (Family.FNUZ, lambda p: own.hopper(p.a, p.b) / 2),
    "both as FNUZ": (Family.FNUZ, lambda p: own.hopper(p.a, p.b, bias=8)),
    "A flushed": (Family.FLUSHED, lambda p: own.hopper(_flushed(p.a), p.b)),
    "both flushed": (Family.FLUSHED, lambda p: own.hopper(_flushed(p.a), _flushed(p.b))),
    "B swizzled": (Family.SWIZZLE, lambda p: own.hopper(p.a, _swizzled(p.b, 8))),
    "A swizzled by 4": (Family.SWIZZLE, lambda p: own.hopper(_swizzled(p.a, 4), p.b)),
    "output transposed": (Family.TRANSPOSED, lambda p: _usual(p).T.reshape(_usual(p).shape)),
    "output swizzled": (Family.SWIZZLE, lambda p: _tensor_bytes(_usual(p), 3)),
    "last 32 left out": (Family.TAIL, lambda p: own.hopper(p.a[:, :-32], p.b[:, :-32])),
    "last 128 left out": (Family.TAIL, lambda p: own.hopper(p.a[:, :-128], p.b[:, :-128])),
    "kept in f16": (Family.DOUBLE_ROUNDING, lambda p: own.f16_of(_usual(p))),
}
"""Sums of a product with one thing done otherwise, all in float32."""

SCALED: dict[str, tuple[Family, Planted]] = {
    "(P sa) sb": (Family.PROMOTION_ORDER, lambda p: p.promoted("a")),
    "(P sb) sa": (Family.PROMOTION_ORDER, lambda p: p.promoted("b")),
    "mul and add": (Family.CONTRACTION, lambda p: p.promoted(fused=False)),
    "(P sa) sb, mul and add": (Family.PROMOTION, lambda p: p.promoted("a", fused=False)),
    "scaled split 2": (Family.SPLIT_K, lambda p: p.promoted(splits=2)),
    "scales of A by columns": (
        Family.SCALE_LAYOUT,
        lambda p: Problem(p.a, p.b, p.sa.reshape(p.sa.shape[::-1]).T.copy(), p.sb).promoted(),
    ),
}

WRITTEN: dict[str, tuple[Family, Callable[[own.Floats], Matrix]]] = {
    "toward zero": (Family.ROUNDING, lambda x: own.bf16(x, "zero")),
    "up": (Family.ROUNDING, lambda x: own.bf16(x, "up")),
    "down": (Family.ROUNDING, lambda x: own.bf16(x, "down")),
    "ties away": (Family.TIES, lambda x: own.bf16(x, "away")),
    "through f16": (Family.DOUBLE_ROUNDING, lambda x: own.bf16(own.f16_of(x))),
}


def with_operands(seed: int, shape: tuple[int, int, int], only: Container[str] | None = None) -> Iterator[Pair]:
    """One output, or two, and the operands of their product; `only` those of some names."""
    p = Problem.drawn(seed, shape)
    usual = _usual(p)
    for name, (family, planted) in SUMS.items():
        two = usual if seed % 2 else None
        if only is None or name in only:
            yield Pair(name, family, planted(p), two, "f32", p.operands())
    scaled = p.promoted()
    for name, (family, planted) in SCALED.items():
        two = scaled if seed % 2 else None
        if only is None or name in only:
            yield Pair(name, family, planted(p), two, "f32", p.operands(scaled=True))
    for name, (family, written) in WRITTEN.items():
        if name != "ties away" and (only is None or name in only):
            yield Pair(f"bf16 {name}", family, written(scaled), own.bf16(scaled), "bf16", p.operands(scaled=True))


def with_values(seed: int) -> Iterator[Pair]:
    """Two roundings of the same values."""
    random = np.random.default_rng(seed)
    x = (random.integers(-(2**12), 2**12, (32, 64)) * 2.0 ** random.integers(-12, 4, (32, 64))).astype(np.float32)
    for name, (family, written) in WRITTEN.items():
        yield Pair(f"values {name}", family, written(x), own.bf16(x) if seed % 2 else None, "bf16", values=x)
    narrow = (random.integers(-60, 60, (32, 64)) * 2.0 ** random.integers(-10, 4, (32, 64))).astype(np.float32)
    wide = narrow * np.float32(4)
    right = own.e4m3(narrow)
    tie = own.e4m3(narrow, ties="away")
    yield Pair("e4m3 ties away", Family.TIES, tie, right, "e4m3", values=narrow)
    yield Pair("e4m3 NaN beyond", Family.SATURATION, own.e4m3(wide, past="nan"), own.e4m3(wide), "e4m3", values=wide)
    twice = own.e4m3(own.of_bf16(own.bf16(np.float32(1.0001) * narrow)))
    yield Pair(
        "e4m3 through bf16",
        Family.DOUBLE_ROUNDING,
        twice,
        own.e4m3(np.float32(1.0001) * narrow),
        "e4m3",
        values=np.float32(1.0001) * narrow,
    )
    yield Pair("e4m3 flushed", Family.FLUSHED, _flushed(right), right, "e4m3", values=narrow)


def alone(seed: int) -> Iterator[Pair]:
    """Two outputs and nothing else."""
    random = np.random.default_rng(seed)
    x = random.normal(0, 2, (48, 64)) * 2.0 ** random.integers(-9, 3, (48, 64))
    right = own.e4m3(x)
    wide = own.bf16(x.astype(np.float32))
    x32 = x.astype(np.float32)
    infinite = np.where(random.random(x.shape) < 0.02, np.copysign(np.inf, x32), x32).astype(np.float32)
    largest = np.nan_to_num(infinite, posinf=np.finfo(np.float32).max, neginf=-np.finfo(np.float32).max)
    for name, family, got, want, format in (
        ("codes of FNUZ", Family.FNUZ, own.e4m3(own.e4m3_fields(right)[0], bias=8, special=0), right, "e4m3"),
        ("transposed", Family.TRANSPOSED, right.T.reshape(right.shape), right, "e4m3"),
        ("swizzle 128B", Family.SWIZZLE, _tensor_bytes(wide, 3), wide, "bf16"),
        ("swizzle 32B", Family.SWIZZLE, _tensor_bytes(wide, 1), wide, "bf16"),
        ("swizzled rows", Family.SWIZZLE, _swizzled(right, 4), right, "e4m3"),
        ("flushed", Family.FLUSHED, _flushed(right), right, "e4m3"),
        ("four times", Family.SCALE_RULE, own.bf16(4 * own.of_bf16(wide)), wide, "bf16"),
        ("infinities are the largest", Family.SATURATION, largest, infinite, "f32"),
        ("held in bf16", Family.ROUNDING, own.of_bf16(own.bf16(x32)), x32, "f32"),
    ):
        yield Pair(f"alone: {name}", family, *((got, want) if seed % 2 else (want, got)), format)
    cut = wide[:, :60].copy()
    tail = cut.copy()
    tail[:, 56:] = 0xFFFF
    yield Pair("alone: tail", Family.TAIL, tail, cut, "bf16")
    behind = np.roll(wide, -1, axis=0)
    behind[-1] = wide[7]
    yield Pair("alone: a row behind", Family.SHIFTED, behind, wide, "bf16")


def with_quantiser(seed: int) -> Iterator[Pair]:
    """Codes or scales of known values: powers of two that go up, down or by the exponents; quotients."""
    random = np.random.default_rng(seed)
    x = (random.normal(0, 1, (16, 256)) * 2.0 ** random.integers(-8, 9, (16, 256))).astype(np.float32)
    largest = np.abs(x.reshape(16, 8, 32)).max(axis=2).astype(np.float64)
    up = np.ceil(np.log2(largest / 448)).astype(int)
    floor = np.floor(np.log2(largest)).astype(int) - 8
    mx = QuantizedFrom(x=x, to="mxfp8")
    two = (up + 127).astype(np.uint8) if seed % 2 else None
    yield Pair("scales by exponents", Family.SCALE_RULE, (floor + 127).astype(np.uint8), two, "e8m0", quantized=mx)
    spread = np.repeat(2.0**floor, 32, axis=1)
    yield Pair("codes by exponents", Family.SCALE_RULE, own.e4m3(x / spread), None, "e4m3", quantized=mx)
    scale = np.abs(x.reshape(16, 2, 128)).max(axis=2) / np.float32(448)
    wide = np.repeat(scale, 128, axis=1)
    groups = QuantizedFrom(x=x, to="1x128")
    divided, multiplied = own.e4m3(x / wide), own.e4m3(x * (np.float32(1) / wide))
    if (divided != multiplied).sum() > 3:
        yield Pair("divided", Family.SCALE_RULE, divided, multiplied if seed % 2 else None, "e4m3", quantized=groups)
    power = (2.0 ** np.ceil(np.log2(scale.astype(np.float64)))).astype(np.float32)
    yield Pair("powers of two", Family.SCALE_RULE, power, scale if seed % 2 else None, "f32", quantized=groups)
    other = (up + 127 + (largest > np.median(largest))).astype(np.uint8)
    yield Pair("held out: some scales larger", "", other, None, "e8m0", quantized=mx)
    yield Pair("equal: scales", None, scale, None, "f32", quantized=groups)


def held_out(seed: int, shape: tuple[int, int, int]) -> Iterator[Pair]:
    """Causes that no row stands for: the answer is that nothing explains them."""
    p, random = Problem.drawn(seed, shape), np.random.default_rng(seed)
    usual, scaled = _usual(p), p.promoted()
    noise = np.where(random.random(usual.shape) < 0.3, np.float32(1 + 2**-13), np.float32(1))
    flipped = usual.copy()
    flipped.view(np.uint32)[3, 5] ^= 1 << 20
    owner = np.arange(p.a.shape[1]) * 7 % 5
    x = random.normal(0, 3, (32, 64)).astype(np.float32)
    dithered = own.bf16(
        (x.view(np.uint32) + random.integers(0, 1 << 16, x.shape, dtype=np.uint32)).view(np.float32), "zero"
    )
    relu = np.maximum(usual, 0)
    shuffled = own.hopper(p.a[:, random.permutation(p.a.shape[1])], p.b)
    yield Pair("held out: noise", "", usual * noise, None, "f32", p.operands())
    yield Pair("held out: one bit", "", flipped, usual, "f32", p.operands())
    yield Pair(
        "held out: 22 bits", "", own.core_chain(p.a, p.b, length=32, fraction=17, kept=17), None, "f32", p.operands()
    )
    yield Pair(
        "held out: odd ranges",
        "",
        _sum([own.hopper(p.a[:, owner == i], p.b[:, owner == i]) for i in range(5)]),
        usual,
        "f32",
        p.operands(),
    )
    yield Pair("held out: relu", "", relu, usual, "f32", p.operands())
    yield Pair("held out: shuffled K", "", shuffled, None, "f32", p.operands())
    yield Pair(
        "held out: scales in any order",
        "",
        Problem(p.a, p.b, random.permutation(p.sa), p.sb).promoted(),
        scaled,
        "f32",
        p.operands(scaled=True),
    )
    yield Pair("held out: ada times", "", own.ada(p.a, p.b) * np.float32(1.5), _sum(p.chunks()), "f32", p.operands())
    yield Pair("held out: stochastic", "", dithered, own.bf16(x), "bf16", values=x)
    yield Pair("held out: alone", "", own.bf16(x * np.float32(1.01)), own.bf16(x), "bf16")


def equal(seed: int, shape: tuple[int, int, int]) -> Iterator[Pair]:
    """Outputs that do not differ, whatever they were computed by."""
    p = Problem.drawn(seed, shape)
    x = np.random.default_rng(seed).normal(0, 1, (16, 32)).astype(np.float32)
    exact = own.e4m3(np.round(x))
    yield Pair("equal: product", None, _usual(p), None, "f32", p.operands())
    yield Pair("equal: two", None, _usual(p), _usual(p), "f32", p.operands())
    yield Pair("equal: rounding of exact values", None, own.bf16(np.round(x), "zero"), None, "bf16", values=np.round(x))
    yield Pair("equal: alone", None, exact, exact.copy(), "e4m3")


def all_pairs(small: int, large: int, outputs: int) -> Iterator[Pair]:
    """So many seeds of products of the small shapes, so many of 128 x 128 x 512, so many of outputs without operands."""
    for seed in range(small + large):
        shape = SMALL if seed < small else LARGE
        yield from with_operands(seed, shape)
        yield from held_out(seed, shape)
        yield from equal(seed, shape)
    for seed in range(outputs):
        yield from with_values(seed)
        yield from alone(seed)
        yield from with_quantiser(seed)
