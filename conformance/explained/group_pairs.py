"""Planted pairs of batches and of experts, in NumPy alone: whose operands and scales rows get, and where outputs lie."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.explained import arithmetic as own
from conformance.explained.pairs import Pair
from refsim.causes import Family, ProductOperands

Matrix = NDArray[Any]
Product = Callable[[Matrix, Matrix], own.Floats]
BATCHES, ROWS, COLUMNS, K = 5, 12, 24, 256
EXPERTS, TOKENS = 4, 160


def codes_of(random: np.random.Generator, *shape: int) -> Matrix:
    spread = 2.0 ** random.integers(-4, 5, shape[-1])
    codes = own.e4m3((random.normal(0, 1, shape) * spread).reshape(-1, shape[-1])).reshape(shape)
    return np.where(codes == 0x80, 0, codes).astype(np.uint8)  # -0 is the NaN of FNUZ


def in_two(a: Matrix, b: Matrix) -> own.Floats:
    half = a.shape[1] // 2
    return own.hopper(a[:, :half], b[:, :half]) + own.hopper(a[:, half:], b[:, half:])


@dataclass(frozen=True)
class Batches:
    """Operands of one seed, with a scale for each row of A."""

    a: Matrix
    b: Matrix
    scales: own.Floats

    @staticmethod
    def drawn(seed: int) -> "Batches":
        random = np.random.default_rng(seed)
        a, b = codes_of(random, BATCHES, ROWS, K), codes_of(random, BATCHES, COLUMNS, K)
        return Batches(a, b, random.uniform(0.5, 2, (BATCHES, ROWS)).astype(np.float32))

    def products(self, a: Any = slice(None), b: Any = slice(None), product: Product = own.hopper) -> own.Floats:
        return np.stack([product(one, other) for one, other in zip(self.a[a], self.b[b], strict=True)])

    def scaled(self, of: Any = slice(None)) -> own.Floats:
        return self.products() * self.scales[of][:, :, None]


BEHIND, BEFORE, CLAMPED = [1, 2, 3, 4, 0], [4, 0, 1, 2, 3], [0, 0, 1, 2, 3]
Planted = tuple[Family, Callable[[Batches], own.Floats]]
OF_BATCHES: dict[str, Planted] = {
    "B of the batch behind": (Family.BATCH, lambda p: p.products(b=BEHIND)),
    "B of the batch before, the first again": (Family.BATCH, lambda p: p.products(b=CLAMPED)),
    "A of the batch before": (Family.BATCH, lambda p: p.products(a=BEFORE)),
    "A of the first batch": (Family.BATCH, lambda p: p.products(a=[0] * BATCHES)),
    "B from the last on": (Family.BATCH, lambda p: p.products(b=slice(None, None, -1))),
    "B of two exchanged": (Family.BATCH, lambda p: p.products(b=[0, 3, 2, 1, 4])),
    "outputs one batch on": (Family.BATCH, lambda p: np.roll(p.products(), 1, axis=0)),
    "rows before batches": (
        Family.BATCH,
        lambda p: p.products().swapaxes(0, 1).reshape(BATCHES, ROWS, COLUMNS),
    ),
    "ada": (Family.ACCUMULATOR, lambda p: p.products(product=own.ada)),
    "split 2": (Family.SPLIT_K, lambda p: p.products(product=in_two)),
    "last 32 left out": (Family.TAIL, lambda p: p.products(product=lambda a, b: own.hopper(a[:, :-32], b[:, :-32]))),
    "A as FNUZ": (Family.FNUZ, lambda p: p.products() / 2),
}
OF_SCALES: dict[str, Planted] = {
    "scales of the batch behind": (Family.BATCH, lambda p: p.scaled(BEHIND)),
    "scales of the first batch": (Family.BATCH, lambda p: p.scaled([0] * BATCHES)),
    "no scales": (Family.SCALE_RULE, lambda p: p.products()),
}


@dataclass(frozen=True)
class Experts:
    """Tokens and the matrices of experts, of which each token has one, or none."""

    a: Matrix
    b: Matrix
    scales: own.Floats
    index: NDArray[np.int32]

    @staticmethod
    def drawn(seed: int) -> "Experts":
        random = np.random.default_rng(100 + seed)
        index = np.sort(random.integers(0, EXPERTS, TOKENS)).astype(np.int32)
        index[random.integers(0, TOKENS, 6)] = -1
        scales = random.uniform(0.5, 2, (EXPERTS, COLUMNS)).astype(np.float32)
        return Experts(codes_of(random, TOKENS, K), codes_of(random, EXPERTS, COLUMNS, K), scales, index)

    def products(self, index: Matrix, product: Product = own.hopper) -> own.Floats:
        """Rows of nobody hold what lay there."""
        output = np.full((TOKENS, COLUMNS), 7, np.float32)
        for expert in range(EXPERTS):
            mine = (index == expert) & (self.index >= 0)
            if mine.any():
                output[mine] = product(self.a[mine], self.b[expert])
        return output

    def moved(self, table: list[int]) -> Matrix:
        return np.where(self.index < 0, -1, np.array(table)[self.index])

    def of_tiles(self, rows: int) -> Matrix:
        """The expert of the first token that has one, for a whole tile of those."""
        kept = self.index[self.index >= 0]
        index = self.index.copy()
        index[self.index >= 0] = np.repeat(kept[::rows], rows)[: len(kept)]
        return index

    def scaled(self, index: Matrix) -> own.Floats:
        return self.products(self.index) * np.where(self.index[:, None] < 0, 1, self.scales[index])


OF_EXPERTS: dict[str, tuple[Family, Callable[[Experts], own.Floats]]] = {
    "the expert behind": (Family.BATCH, lambda p: p.products(p.moved([1, 2, 3, 0]))),
    "the expert before, the first again": (Family.BATCH, lambda p: p.products(p.moved([0, 0, 1, 2]))),
    "the first expert": (Family.BATCH, lambda p: p.products(p.moved([0] * EXPERTS))),
    "two experts exchanged": (Family.BATCH, lambda p: p.products(p.moved([0, 2, 1, 3]))),
    "the expert of a tile's first row": (Family.BATCH, lambda p: p.products(p.of_tiles(64))),
    "in two ranges": (Family.SPLIT_K, lambda p: p.products(p.index, in_two)),
    "blackwell": (Family.ACCUMULATOR, lambda p: p.products(p.index, own.blackwell)),
}
OF_EXPERT_SCALES: dict[str, tuple[Family, Callable[[Experts], own.Floats]]] = {
    "scales of the expert behind": (Family.BATCH, lambda p: p.scaled(p.moved([1, 2, 3, 0]))),
    "scales of the last expert": (Family.BATCH, lambda p: p.scaled(p.moved([EXPERTS - 1] * EXPERTS))),
}


def noise(right: own.Floats) -> own.Floats:
    random = np.random.default_rng(3)
    return right * np.where(random.random(right.shape) < 0.2, np.float32(1 + 2**-12), np.float32(1))


def of_groups(seed: int) -> Iterator[Pair]:
    """Planted, held-out and equal pairs of one seed: batches, experts, with scales and without."""
    batches, experts = Batches.drawn(seed), Experts.drawn(seed)
    formats = {"a_format": "e4m3", "b_format": "e4m3"}
    plain = ProductOperands(a=batches.a, b=batches.b, **formats)
    scaled = ProductOperands(a=batches.a, b=batches.b, a_scale=batches.scales, **formats)
    moe = ProductOperands(a=experts.a, b=experts.b, m_indices=experts.index, **formats)
    moe_scaled = ProductOperands(a=experts.a, b=experts.b, m_indices=experts.index, b_scale=experts.scales, **formats)
    cases: tuple[tuple[str, Any, Matrix, dict[str, Any], ProductOperands], ...] = (
        ("batches", batches, batches.products(), OF_BATCHES, plain),
        ("scaled batches", batches, batches.scaled(), OF_SCALES, scaled),
        ("experts", experts, experts.products(experts.index), OF_EXPERTS, moe),
        ("scaled experts", experts, experts.scaled(experts.index), OF_EXPERT_SCALES, moe_scaled),
    )
    for title, drawn, right, causes, operands in cases:
        two = right if seed % 2 else None
        for name, (family, planted) in causes.items():
            yield Pair(f"{title}: {name}", family, planted(drawn), two, "f32", operands)
        yield Pair(f"equal: {title}", None, right, None, "f32", operands)
        yield Pair(f"held out: {title}, noise", "", noise(right), two, "f32", operands)
    others = batches.products(b=[2, 3, 4, 0, 1])
    yield Pair("held out: batches, B of the batch after the next", "", others, None, "f32", plain)
    scattered = np.random.default_rng(4).permutation(experts.index[experts.index >= 0])
    index = experts.index.copy()
    index[index >= 0] = scattered
    yield Pair("held out: experts, tokens in another order", "", experts.products(index), None, "f32", moe)
