"""Planted pairs of products of integers, with NumPy's integers alone: zero points, limits, scales, rounding to eight bits."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.explained.pairs import Pair
from refsim.causes import Family, IntegerOperands

Matrix = NDArray[Any]
Whole = NDArray[np.int64]
ROWS, COLUMNS, K = 24, 40, 160


@dataclass(frozen=True)
class Integers:
    """Operands of one seed: s8 by s8 with zero points, scales by row, C for each column."""

    a: Matrix
    b: Matrix
    za: int
    zb: Whole
    sa: Matrix
    sb: Matrix
    c: Matrix

    @staticmethod
    def drawn(seed: int) -> "Integers":
        random = np.random.default_rng(seed)
        a, b = (random.integers(-128, 128, (rows, K)).astype(np.int8) for rows in (ROWS, COLUMNS))
        sa, sb = (random.uniform(0.001, 0.01, rows).astype(np.float32) for rows in (ROWS, COLUMNS))
        c = random.integers(-(1 << 18), 1 << 18, COLUMNS).astype(np.int32)
        return Integers(a, b, 5 + seed, random.integers(-20, 20, COLUMNS), sa * np.float32(60), sb, c)

    def whole(self, a: Any = None, b: Any = None, za: int | None = None, zb: Any = None, c: Any = None) -> Whole:
        left, right = (
            np.asarray(own if other is None else other, np.int64) for own, other in ((self.a, a), (self.b, b))
        )
        less = self.zb if zb is None else zb
        total = (left - (self.za if za is None else za)) @ (right - np.reshape(less, (-1, 1))).T
        return np.asarray(total + (self.c if c is None else c), np.int64)

    def scaled(self, sa: Any = None, sb: Any = None) -> Matrix:
        one, other = (own if given is None else given for own, given in ((self.sa, sa), (self.sb, sb)))
        return self.whole().astype(np.float32) * (one[:, None] * other)

    def narrowed(self, values: Matrix, low: int = -128, zero: int = 3) -> Matrix:
        return np.clip(values + zero, low, 127).astype(np.int8)


Planted = tuple[Family, Callable[[Integers], Matrix]]
SUMS: dict[str, Planted] = {
    "no zero point of A": (Family.ZERO_POINT, lambda p: p.whole(za=0)),
    "the zero point of A added": (Family.ZERO_POINT, lambda p: p.whole(za=-p.za)),
    "the zero point of B one too small": (Family.ZERO_POINT, lambda p: p.whole(zb=p.zb - 1)),
    "zero points of the row before": (Family.ZERO_POINT, lambda p: p.whole(zb=p.zb[[0, *range(COLUMNS - 1)]])),
    "the zero point of the first row": (Family.ZERO_POINT, lambda p: p.whole(zb=p.zb[:1])),
    "no K za zb": (Family.ZERO_POINT, lambda p: p.whole() - K * p.za * p.zb),
    "no sum of A's rows": (Family.ZERO_POINT, lambda p: p.whole() + p.a.astype(np.int64).sum(1)[:, None] * p.zb),
    "A as u8": (Family.FORMAT, lambda p: p.whole(a=p.a.view(np.uint8))),
    "last 32 left out": (Family.TAIL, lambda p: p.whole(p.a[:, :-32], p.b[:, :-32])),
    "wraps in 16 bits": (Family.ACCUMULATOR, lambda p: (p.whole() + (1 << 15)) % (1 << 16) - (1 << 15)),
    "no C": (Family.ACCUMULAND, lambda p: p.whole(c=0)),
    "as the transpose": (Family.TRANSPOSED, lambda p: p.whole().T.reshape(ROWS, COLUMNS)),
}
"""Sums in s32."""
NARROW: dict[str, Planted] = {
    "toward zero": (Family.ROUNDING, lambda p: p.narrowed(np.trunc(p.scaled()))),
    "down": (Family.ROUNDING, lambda p: p.narrowed(np.floor(p.scaled()))),
    "wraps": (Family.SATURATION, lambda p: (np.rint(p.scaled()).astype(np.int64) + 3).astype(np.int8)),
    "symmetric": (Family.SATURATION, lambda p: p.narrowed(np.rint(p.scaled()), low=-127)),
    "no zero point of D": (Family.ZERO_POINT, lambda p: p.narrowed(np.rint(p.scaled()), zero=0)),
    "no scales of A": (Family.SCALE_RULE, lambda p: p.narrowed(np.rint(p.scaled(sa=np.ones_like(p.sa))))),
    "scales of B of the first row": (
        Family.SCALE_LAYOUT,
        lambda p: p.narrowed(np.rint(p.scaled(sb=p.sb[[0, *range(COLUMNS - 1)]]))),
    ),
}
"""The same in s8."""
WIDE: dict[str, Planted] = {
    "(P sa) sb": (Family.PROMOTION_ORDER, lambda p: p.whole().astype(np.float32) * p.sa[:, None] * p.sb),
    "scales of A inverted": (Family.SCALE_RULE, lambda p: p.scaled(sa=np.float32(1) / p.sa)),
}
"""The same in float32."""


def of_integers(seed: int) -> Iterator[Pair]:
    """Planted, held-out and equal pairs of one seed: sums in s32, in s8, in float32."""
    p = Integers.drawn(seed)
    plain = IntegerOperands(a=p.a, b=p.b, a_zero=p.za, b_zero=p.zb, c=p.c)
    scaled = replace(plain, a_scale=p.sa, b_scale=p.sb)
    narrow = replace(scaled, d_zero=3)
    random = np.random.default_rng(9)
    right, small, wide = p.whole().astype(np.int32), p.narrowed(np.rint(p.scaled())), p.scaled()
    cases: tuple[tuple[str, Matrix, dict[str, Planted], IntegerOperands, Any], ...] = (
        ("integers", right, SUMS, plain, np.int32),
        ("integers to s8", small, NARROW, narrow, np.int8),
        ("integers to f32", wide, WIDE, scaled, np.float32),
    )
    for title, usual, causes, operands, held in cases:
        two = usual if seed % 2 else None
        for name, (family, planted) in causes.items():
            yield Pair(f"{title}: {name}", family, planted(p).astype(held), two, None, operands)
        yield Pair(f"equal: {title}", None, usual, None, None, operands)
        some = random.random(usual.shape) < 0.2
        yield Pair(
            f"held out: {title}, noise", "", np.where(some, usual + held(3), usual).astype(held), two, None, operands
        )
    shuffled = p.whole(b=p.b[:, random.permutation(K)]).astype(np.int32)
    yield Pair("held out: integers, K of B in another order", "", shuffled, None, None, plain)
    tripled = p.whole(za=3 * p.za).astype(np.int32)
    yield Pair("integers: the zero point three times", Family.ZERO_POINT, tripled, None, None, plain)
