"""Planted pairs of products with narrow weights, in NumPy alone: scales, zero points, packing, how a weight is rounded.

Each row of A picks one column of the weights, times a small number: every tensor core returns that product as it is, and what
is planted is how the weight was made.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.explained import arithmetic as own
from conformance.explained.pairs import Pair
from refsim.causes import Family, WeightOperands

Matrix = NDArray[Any]
ROWS, COLUMNS, K, GROUP = 48, 24, 128, 32
MIXED = [0, 2, 4, 6, 1, 3, 5, 7]


def as_bf16(values: Matrix) -> own.Floats:
    return own.of_bf16(own.bf16(np.asarray(values, np.float32)))


def as_f16(values: Matrix) -> own.Floats:
    return own.f16_of(np.asarray(values, np.float32))


HELD = {"bf16": as_bf16, "f16": as_f16}


@dataclass(frozen=True)
class Weights:
    """Operands of one seed; what A is held in, weights are rounded to."""

    held: str
    factors: own.Floats
    picked: Matrix
    codes: Matrix
    scales: own.Floats
    zeros: Matrix

    @staticmethod
    def drawn(seed: int, held: str) -> "Weights":
        random = np.random.default_rng(seed)
        factors = (3 * 2.0 ** random.integers(-2, 3, ROWS)).astype(np.float32)
        picked = random.permutation(K)[:ROWS]
        codes = random.integers(0, 16, (COLUMNS, K)).astype(np.uint8)
        scales = random.uniform(0.02, 0.3, (COLUMNS, K // GROUP)).astype(np.float32)
        return Weights(held, factors, picked, codes, scales, random.integers(5, 11, (COLUMNS, K // GROUP)))

    def operands(self) -> WeightOperands:
        a = np.zeros((ROWS, K), np.float32)
        a[np.arange(ROWS), self.picked] = self.factors
        codes = own.bf16(a) if self.held == "bf16" else a.astype(np.float16).view(np.uint16)
        return WeightOperands(
            a=codes, a_format=self.held, b=self.codes, b_format="u4", b_scale=self.scales, b_zero=self.zeros
        )

    def spread(self, grid: Matrix) -> own.Floats:
        return np.repeat(grid, GROUP, axis=1).astype(np.float32)

    def product(self, weights: own.Floats) -> own.Floats:
        """D (rows, columns) of weights as they are used; no zero has a sign."""
        return np.asarray(self.factors[:, None] * weights[:, self.picked].T + np.float32(0), np.float32)

    def made(self, codes: Any = None, scales: Any = None, zeros: Any = None, through: Any = None) -> own.Floats:
        q = np.asarray(self.codes if codes is None else codes, np.float32)
        s, z = (
            self.spread(own_ if given is None else given)
            for own_, given in ((self.scales, scales), (self.zeros, zeros))
        )
        w = (q - z) * s
        return self.product(HELD[self.held](w if through is None else through(w)))

    def apart(self) -> own.Floats:
        rounded, s = HELD[self.held], self.spread(self.scales)
        return self.product(rounded(rounded(self.codes * s) - rounded(self.spread(self.zeros) * s)))

    def behind(self) -> own.Floats:
        """The sum of a group, which is one product, times its scale."""
        exact = self.factors[:, None] * (self.codes - self.spread(self.zeros))[:, self.picked].T
        return np.asarray(exact * self.spread(self.scales)[:, self.picked].T + np.float32(0), np.float32)


OTHER = {"bf16": ("in f16 first", as_f16), "f16": ("in bf16 first", as_bf16)}
PLANTED: dict[str, tuple[Family, Callable[[Weights], own.Floats]]] = {
    "no zero points": (Family.ZERO_POINT, lambda p: p.made(zeros=0 * p.zeros)),
    "zero points one too large": (Family.ZERO_POINT, lambda p: p.made(zeros=p.zeros + 1)),
    "zero points added": (Family.ZERO_POINT, lambda p: p.made(zeros=-p.zeros)),
    "an offset for two's complement": (Family.ZERO_POINT, lambda p: p.made(codes=p.codes ^ 8)),
    "scales a group late": (Family.SCALE_LAYOUT, lambda p: p.made(scales=p.scales[:, [0, 0, 1, 2]])),
    "scales of the row before": (Family.SCALE_LAYOUT, lambda p: p.made(scales=p.scales[[0, *range(COLUMNS - 1)]])),
    "scales inverted": (Family.SCALE_RULE, lambda p: p.made(scales=np.float32(1) / p.scales)),
    "scales in bf16": (Family.SCALE_RULE, lambda p: p.made(scales=as_bf16(p.scales))),
    "no scales": (Family.SCALE_RULE, lambda p: p.made(scales=np.ones_like(p.scales))),
    "codes of a byte exchanged": (
        Family.PACKING,
        lambda p: p.made(codes=p.codes.reshape(COLUMNS, -1, 2)[:, :, ::-1].reshape(COLUMNS, K)),
    ),
    "codes of a word in another order": (
        Family.PACKING,
        lambda p: p.made(codes=p.codes.reshape(COLUMNS, -1, 8)[:, :, MIXED].reshape(COLUMNS, K)),
    ),
    "q s and z s rounded": (Family.DOUBLE_ROUNDING, Weights.apart),
    "rounded otherwise first": (Family.DOUBLE_ROUNDING, lambda p: p.made(through=OTHER[p.held][1])),
    "scaled behind": (Family.PROMOTION_ORDER, Weights.behind),
}


def of_weights(seed: int) -> Iterator[Pair]:
    """Planted, held-out and equal pairs of one seed, for activations in bf16 and in f16."""
    for held in HELD:
        p = Weights.drawn(seed, held)
        operands, right, random = p.operands(), p.made(), np.random.default_rng(5)
        two = right if seed % 2 else None
        title = f"u4 weights in {held}"
        for name, (family, planted) in PLANTED.items():
            yield Pair(f"{title}: {name}", family, planted(p), two, "f32", operands)
        cut = own.bf16(right, "zero")
        yield Pair(
            f"{title}: written toward zero",
            Family.ROUNDING,
            cut,
            None if two is None else own.bf16(right),
            "bf16",
            operands,
        )
        yield Pair(f"equal: {title}", None, right, None, "f32", operands)
        noise = right * random.uniform(0.9, 1.1, right.shape).astype(np.float32)
        yield Pair(f"held out: {title}, noise", "", noise, two, "f32", operands)
        mixed = p.made(zeros=p.zeros[random.permutation(COLUMNS)])
        yield Pair(f"held out: {title}, zero points of other rows", "", mixed, two, "f32", operands)
        larger = p.made(scales=p.scales * np.float32(1.01))
        yield Pair(f"held out: {title}, larger scales", "", larger, two, "f32", operands)
