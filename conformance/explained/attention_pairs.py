"""Planted pairs of attention, in NumPy alone: an online softmax over tiles of 64 keys with one step done otherwise.

Operands are exact in bf16, so that every product is exact in float32; sums go one after the other. That is what
`special="exact"` calls usual.
"""

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.explained import arithmetic as own
from conformance.explained.pairs import Pair
from conformance.explained.row_pairs import exp, through_bf16
from refsim.causes import AttentionOperands, Family

Floats = NDArray[np.float32]
HEADS, KV_HEADS, QUERIES, KEYS, DEPTH, TILE = 4, 2, 40, 150, 32, 64


@dataclass(frozen=True)
class Steps:
    """What one attention does; the defaults are right."""

    scale: float = DEPTH**-0.5
    base: float = np.e
    causal: bool = False
    more: int = 0
    first_sees_one: bool = False
    tile: int = TILE
    last_tile: bool = True
    pads: bool = False
    rescales_values: bool = True
    rescales_sums: bool = True
    keeps_maximum: bool = True
    subtracts: bool = True
    head: Callable[[int], int] = lambda head: head // 2
    narrowed: Callable[[Floats], Floats] = through_bf16
    summed: Callable[[Floats], Floats] = lambda p: p
    divided: Callable[[Floats, Floats], Floats] = lambda o, total: o / total


RIGHT = Steps()


def running(beginning: Floats, a: Floats, b: Floats) -> Floats:
    """(rows, columns) + a (rows, K) b (K, columns), one k after the other."""
    total = beginning
    for k in range(a.shape[1]):
        total = total + a[:, k : k + 1] * b[k : k + 1]
    return total


@dataclass(frozen=True)
class Heads:
    """Operands of one seed."""

    q: Floats
    k: Floats
    v: Floats
    made: dict[Any, Floats] = field(default_factory=dict)

    @staticmethod
    def drawn(seed: int) -> "Heads":
        random = np.random.default_rng(seed)
        shapes = (HEADS, QUERIES, DEPTH), (KV_HEADS, KEYS, DEPTH), (KV_HEADS, KEYS, DEPTH)
        return Heads(*(through_bf16(random.normal(0, 1.5, shape).astype(np.float32)) for shape in shapes))

    def operands(self, **more: Any) -> AttentionOperands:
        q, k, v = (own.bf16(each) for each in (self.q, self.k, self.v))
        return AttentionOperands(q=q, k=k, v=v, format="bf16", special="exact", **more)

    def scores(self, head: int, key_head: int) -> Floats:
        if (head, key_head) not in self.made:
            zeros = np.zeros((QUERIES, KEYS), np.float32)
            self.made[head, key_head] = running(zeros, self.q[head], self.k[key_head].T)
        return self.made[head, key_head]

    def attended(self, how: Steps = RIGHT, *, wants_lse: bool = False) -> Floats:
        return np.stack([self._of_head(how, head, wants_lse=wants_lse) for head in range(HEADS)])

    def _of_head(self, how: Steps, head: int, *, wants_lse: bool) -> Floats:
        scores, v = self.scores(head, how.head(head)), self.v[how.head(head)]
        if how.pads:
            scores, v = (np.pad(each, pads) for each, pads in ((scores, ((0, 0), (0, 42))), (v, ((0, 42), (0, 0)))))
        row, key = np.indices(scores.shape)
        hidden = 0 if how.first_sees_one else KEYS - QUERIES
        scores = np.where(~np.bool_(how.causal) | (key <= row + hidden + how.more), scores, np.float32(-np.inf))
        top, total = np.full((QUERIES, 1), -np.inf, np.float32), np.zeros((QUERIES, 1), np.float32)
        o, factor = np.zeros((QUERIES, DEPTH), np.float32), np.float32(how.scale)
        ends = range(0, scores.shape[1], how.tile)
        for first in ends if how.last_tile else ends[:-1]:
            s = scores[:, first : first + how.tile]
            before, top = (
                top,
                np.maximum(top if how.keeps_maximum else -np.inf, s.max(axis=1, keepdims=True)).astype(np.float32),
            )
            used = np.where(np.isinf(top) | (not how.subtracts), np.float32(0), top)
            p = exp((s - used) * factor, how.base)
            kept = exp((before - used) * factor, how.base) if how.subtracts else np.ones_like(used)
            each = np.zeros_like(total)
            for column in range(s.shape[1]):
                each = each + how.summed(p[:, column : column + 1])
            total = total * (kept if how.rescales_sums else np.float32(1)) + each
            o = running(
                o * (kept if how.rescales_values else np.float32(1)), how.narrowed(p), v[first : first + how.tile]
            )
        if wants_lse:
            return (used * factor + np.log(total.astype(np.float64)).astype(np.float32))[:, 0]
        return how.divided(o, total)


PLANTED: dict[str, tuple[Family, dict[str, Any]]] = {
    "no scale": (Family.NO_SCALE, {"scale": 1.0}),
    "the scale of 64 columns": (Family.HEAD_DEPTH, {"scale": 0.125}),
    "the scale twice": (Family.SCALE_TWICE, {"scale": 1 / DEPTH}),
    "2^x": (Family.BASE, {"base": 2.0}),
    "causal where nothing is hidden": (Family.MASK, {"causal": True}),
    "tiles of 32 keys": (Family.KEY_TILES, {"tile": 32}),
    "the last tile is left out": (Family.TAIL, {"last_tile": False}),
    "pads are seen": (Family.TAIL, {"pads": True}),
    "values are not rescaled": (Family.RESCALING, {"rescales_values": False}),
    "sums are not rescaled": (Family.RESCALING, {"rescales_sums": False}),
    "the maximum of each tile": (Family.MAXIMUM, {"keeps_maximum": False}),
    "no maximum": (Family.MAXIMUM, {"subtracts": False}),
    "heads in turn": (Family.HEADS, {"head": lambda head: head % 2}),
    "P cut": (Family.ROUNDING, {"narrowed": lambda p: own.of_bf16(own.bf16(p, "zero"))}),
    "P rounded, then added": (Family.DOUBLE_ROUNDING, {"summed": through_bf16}),
    "times a reciprocal": (Family.SPECIAL, {"divided": lambda o, total: o * (np.float32(1) / total)}),
}
CAUSAL: dict[str, tuple[Family, dict[str, Any]]] = {
    "one key fewer": (Family.SHIFTED, {"more": -1}),
    "one key more": (Family.SHIFTED, {"more": 1}),
    "the first row sees one": (Family.MASK, {"first_sees_one": True}),
    "no mask": (Family.MASK, {"causal": False}),
}
"""Where attention is causal."""


def of_attention(seed: int, only: Container[str] | None = None) -> Iterator[Pair]:
    """Planted, held-out and equal pairs of one seed: float32 or bf16 outputs, one output or two; `only` those of some names."""
    h = Heads.drawn(seed)
    for title, causes, right in (("attention", PLANTED, RIGHT), ("causal attention", CAUSAL, Steps(causal=True))):
        operands = h.operands(causal=right.causal)
        usual = h.attended(right)
        two = usual if seed % 2 else None
        for name, (family, changes) in causes.items():
            if only is None or f"{title}: {name}" in only:
                yield Pair(f"{title}: {name}", family, h.attended(replace(right, **changes)), two, "f32", operands)
        if only is None or f"equal: {title}" in only:
            yield Pair(f"equal: {title}", None, usual, None, "f32", operands)
            yield Pair(f"equal: {title}, logarithms", None, h.attended(right, wants_lse=True), None, "f32", operands)
        if only is None or f"held out: {title}" in only:
            flipped = usual.copy()
            flipped.view(np.uint32)[1, 3, 5] ^= 1 << 20
            yield Pair(f"held out: {title}, one bit", "", flipped, two, "f32", operands)
            order = np.random.default_rng(seed).permutation(KEYS)
            shuffled = replace(h, v=h.v[:, order], made={}).attended(right)
            yield Pair(f"held out: {title}, values of other keys", "", shuffled, two, "f32", operands)
            colder = h.attended(replace(right, scale=0.3))
            yield Pair(f"held out: {title}, another temperature", "", colder, two, "f32", operands)


def attention_names() -> list[str]:
    """Of all planted and equal pairs."""
    kinds = {"attention": PLANTED, "causal attention": CAUSAL}
    return [
        *(f"{title}: {name}" for title, causes in kinds.items() for name in causes),
        *(f"equal: {title}" for title in kinds),
    ]
