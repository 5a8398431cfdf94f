"""Planted pairs of functions of rows, in NumPy alone: softmax, RMSNorm, LayerNorm and SiLU with one step done otherwise.

Exponentials are those of float64, rounded; sums go column after column. That is what `special="exact"` calls usual.
"""

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.explained import arithmetic as own
from conformance.explained.pairs import Pair
from refsim.causes import Family, RowOperands

Matrix = NDArray[Any]
Floats = NDArray[np.float32]
SHAPE = (24, 300)
ONE = np.float32(1)


def exp(x: Floats, base: float = np.e) -> Floats:
    return (np.exp(x.astype(np.float64)) if base == np.e else base ** x.astype(np.float64)).astype(np.float32)


def added(values: Floats, held: Callable[[Floats], Floats] = lambda total: total) -> Floats:
    """One column after the other."""
    total = np.zeros((len(values), 1), np.float32)
    for column in range(values.shape[1]):
        total = held(total + values[:, column : column + 1])
    return total


def by_lanes(values: Floats) -> Floats:
    """32 lanes in turn, which meet at distances 16, 8, 4, 2, 1."""
    padded = np.pad(values, ((0, 0), (0, -values.shape[1] % 32)))
    lanes = np.stack([added(padded[:, lane::32])[:, 0] for lane in range(32)], axis=1)
    for distance in (16, 8, 4, 2, 1):
        lanes = lanes[:, :distance] + lanes[:, distance : 2 * distance]
    return lanes


def of_numpy(p: Matrix) -> Floats:
    return np.asarray(p / p.sum(axis=1, keepdims=True), np.float32)


def through_bf16(x: Floats) -> Floats:
    return own.of_bf16(own.bf16(x))


@dataclass(frozen=True)
class Rows:
    """Operands of one seed, all of them exact in bf16."""

    x: Floats
    w: Floats
    bias: Floats
    gate: Floats

    @staticmethod
    def drawn(seed: int, shape: tuple[int, int] = SHAPE) -> "Rows":
        random = np.random.default_rng(seed)
        made = [random.normal(mean, 1, size) for mean, size in ((0.5, shape), (1, shape[1]), (0, shape[1]), (0, shape))]
        return Rows(*(through_bf16(each.astype(np.float32)) for each in made))

    def softmax(
        self,
        *,
        scale: float = 1,
        base: float = np.e,
        top: Floats | None = None,
        summed: Any = None,
        total: Callable[[Floats], Floats] = added,
    ) -> Floats:
        """`summed` is what becomes of the weights before they are added."""
        top = self.x.max(axis=1, keepdims=True) if top is None else top
        p = exp((self.x - top) * np.float32(scale), base)
        return p / total(p if summed is None else summed(p))

    def rms(
        self,
        *,
        x: Floats | None = None,
        w: Floats | None = None,
        eps: float = 1e-5,
        count: int = 0,
        outside: float = 0,
        total: Callable[[Floats], Floats] = added,
    ) -> Floats:
        x = self.x if x is None else x
        mean = total(x * x) / np.float32(count or x.shape[1]) + np.float32(eps)
        root = ONE / (np.sqrt(mean) + np.float32(outside))
        return (x * root) * (self.w if w is None else w)

    def root(self, eps: float = 1e-5) -> Floats:
        return ONE / np.sqrt(added(self.x * self.x) / np.float32(self.x.shape[1]) + np.float32(eps))

    def layer(self, *, shift: bool = True, count: int = 0, bias: bool = True) -> Floats:
        n = np.float32(self.x.shape[1])
        x = self.x - added(self.x) / n * np.float32(shift)
        total = np.zeros((len(x), 1), np.float32)
        for column in range(x.shape[1]):
            each = x[:, column : column + 1]
            total = own.fma(each, each, total)
        root = ONE / np.sqrt(total / np.float32(count or n) + np.float32(1e-5))
        y = (x * root) * self.w
        return y + self.bias if bias else y

    def wide(self) -> Matrix:
        return self.x.astype(np.float64)

    def host_layer(self, x: Matrix, eps: Any) -> Matrix:
        """As people write it."""
        root = np.sqrt(x.var(axis=1, keepdims=True) + eps)
        return (x - x.mean(axis=1, keepdims=True)) / root * self.w + self.bias

    def silu(self, z: Floats, base: float = np.e) -> Floats:
        return z / (ONE + exp(-z, base))


Planted = Callable[[Rows], Floats]
SOFTMAX: dict[str, tuple[Family, Planted]] = {
    "no maximum": (Family.MAXIMUM, lambda r: r.softmax(top=np.zeros((len(r.x), 1), np.float32))),
    "2^x": (Family.BASE, lambda r: r.softmax(base=2.0)),
    "the last column is not added": (
        Family.TAIL,
        lambda r: r.softmax(top=r.x[:, :-1].max(axis=1, keepdims=True), summed=lambda p: p[:, :-1]),
    ),
    "whole 128 columns are added": (
        Family.TAIL,
        lambda r: r.softmax(top=r.x[:, :256].max(axis=1, keepdims=True), summed=lambda p: p[:, :256]),
    ),
    "the sum in bf16": (Family.ACCUMULATOR, lambda r: r.softmax(total=lambda p: added(p, through_bf16))),
    "by lanes": (Family.REDUCTION_ORDER, lambda r: r.softmax(total=by_lanes)),
    "in float64": (
        Family.REDUCTION_ORDER,
        lambda r: r.softmax(total=lambda p: p.astype(np.float64).sum(axis=1, keepdims=True).astype(np.float32)),
    ),
    "by np.sum": (Family.REDUCTION_ORDER, lambda r: r.softmax(total=lambda p: p.sum(axis=1, keepdims=True))),
    "by np.exp and np.sum": (Family.HOST, lambda r: of_numpy(np.exp(r.x - r.x.max(axis=1, keepdims=True)))),
    "all in float64": (Family.HOST, lambda r: of_numpy(np.exp(r.wide() - r.wide().max(axis=1, keepdims=True)))),
    "times a reciprocal": (
        Family.SPECIAL,
        lambda r: exp(r.x - r.x.max(axis=1, keepdims=True)) * (ONE / added(exp(r.x - r.x.max(axis=1, keepdims=True)))),
    ),
}
SCALED: dict[str, tuple[Family, Planted]] = {
    "the scale left out": (Family.NO_SCALE, lambda r: r.softmax()),
    "the scale twice": (Family.SCALE_TWICE, lambda r: r.softmax(scale=0.015625)),
}
"""Where the scale is 1/8."""
RMS: dict[str, tuple[Family, Planted]] = {
    "no epsilon": (Family.NO_EPSILON, lambda r: r.rms(eps=0)),
    "epsilon 1e-6": (Family.EPSILON, lambda r: r.rms(eps=1e-6)),
    "epsilon outside": (Family.EPSILON, lambda r: r.rms(eps=0, outside=1e-5)),
    "N - 1": (Family.COUNT, lambda r: r.rms(count=299)),
    "N with pads": (Family.COUNT, lambda r: r.rms(count=384)),
    "less the mean": (Family.MEAN, lambda r: Rows(r.x, r.w, r.bias, r.gate).layer(bias=False)),
    "no weights": (Family.NO_WEIGHTS, lambda r: r.rms(w=np.ones_like(r.w))),
    "1 + w": (Family.NO_WEIGHTS, lambda r: r.rms(w=ONE + r.w)),
    "weights of the first 128": (Family.WEIGHTS, lambda r: r.rms(w=r.w[np.arange(300) % 128])),
    "weights of the column before": (Family.WEIGHTS, lambda r: r.rms(w=r.w[[0, *range(299)]])),
    "x (r w)": (Family.PROMOTION_ORDER, lambda r: r.x * (r.root() * r.w)),
    "the sum in f16": (Family.ACCUMULATOR, lambda r: r.rms(total=lambda p: added(p, own.f16_of))),
    "of the first 256": (Family.TAIL, lambda r: r.rms(total=lambda p: added(p[:, :256]))),
    "by np.mean": (Family.REDUCTION_ORDER, lambda r: r.rms(total=lambda p: p.sum(axis=1, keepdims=True))),
    "divided by np.sqrt": (
        Family.HOST,
        lambda r: r.x / np.sqrt(np.mean(r.x * r.x, axis=1, keepdims=True) + np.float32(1e-5)) * r.w,
    ),
    "all in float64": (
        Family.HOST,
        lambda r: np.float32(r.wide() / np.sqrt((r.wide() ** 2).mean(axis=1, keepdims=True) + 1e-5) * r.w),
    ),
}
LAYER: dict[str, tuple[Family, Planted]] = {
    "no mean": (Family.MEAN, lambda r: r.layer(shift=False)),
    "N - 1 in the mean of squares": (Family.COUNT, lambda r: r.layer(count=299)),
    "no bias": (Family.NO_WEIGHTS, lambda r: r.layer(bias=False)),
    "by np.mean and np.var": (Family.HOST, lambda r: r.host_layer(r.x, np.float32(1e-5))),
    "all in float64": (Family.HOST, lambda r: np.float32(r.host_layer(r.wide(), 1e-5))),
}
SILU: dict[str, tuple[Family, Planted]] = {
    "no gate": (Family.GATE, lambda r: r.x),
    "2^z": (Family.BASE, lambda r: r.x * r.silu(r.gate, 2.0)),
    "silu of the other half": (Family.GATE, lambda r: r.gate * r.silu(r.x)),
    "the gate of the first row": (Family.GATE, lambda r: r.x * r.silu(r.gate[:1])),
    "all in float64": (
        Family.HOST,
        lambda r: np.float32(r.wide() * (r.gate / (1 + np.exp(-r.gate.astype(np.float64))))),
    ),
    "silu rounded before": (Family.DOUBLE_ROUNDING, lambda r: r.x * through_bf16(r.silu(r.gate))),
}
WRITTEN: dict[str, tuple[Family, Callable[[Floats], Matrix]]] = {
    "toward zero": (Family.ROUNDING, lambda y: own.bf16(y, "zero")),
    "through f16": (Family.DOUBLE_ROUNDING, lambda y: own.bf16(own.f16_of(y))),
}


def operands_of(rows: Rows, function: str, **more: Any) -> RowOperands:
    return RowOperands(function=function, x=own.bf16(rows.x), x_format="bf16", special="exact", **more)


def held_out_rows(r: Rows, usual: Floats, title: str) -> dict[str, Callable[[], Floats]]:
    """What no row of causes stands for."""
    order = np.random.default_rng(7).permutation(len(r.w))

    def noise() -> Floats:
        return usual * np.where(np.random.default_rng(3).random(usual.shape) < 0.2, np.float32(1 + 2**-12), ONE)

    def flipped() -> Floats:
        other = usual.copy()
        other.view(np.uint32)[3, 5] ^= 1 << 20
        return other

    more: dict[str, dict[str, Callable[[], Floats]]] = {
        "rms_norm": {
            "weights in another order": lambda: r.rms(w=r.w[order]),
            "the mean of fourth powers": lambda: r.x / np.sqrt(np.sqrt(added(r.x * r.x * r.x * r.x))) * r.w,
        },
        "softmax": {
            "colder": lambda: r.softmax(scale=1.3),
            "one more in the sum": lambda: r.softmax(summed=lambda p: np.pad(p, ((0, 0), (0, 1)), constant_values=1)),
        },
    }
    return {"noise": noise, "one bit": flipped, **more.get(title, {})}


def of_rows(seed: int, only: Container[str] | None = None) -> Iterator[Pair]:
    """Planted, held-out and equal pairs of one seed: float32 or bf16 outputs, one output or two; `only` those of some names."""
    r = Rows.drawn(seed)
    w = {"weight": r.w, "eps": 1e-5}
    kinds: tuple[tuple[str, Planted, dict[str, tuple[Family, Planted]], RowOperands], ...] = (
        ("softmax", Rows.softmax, SOFTMAX, operands_of(r, "softmax")),
        ("scaled softmax", lambda r: r.softmax(scale=0.125), SCALED, operands_of(r, "softmax", scale=0.125)),
        ("rms_norm", Rows.rms, RMS, operands_of(r, "rms_norm", **w)),
        ("layer_norm", Rows.layer, LAYER, operands_of(r, "layer_norm", bias=r.bias, **w)),
        ("silu", lambda r: r.x * r.silu(r.gate), SILU, operands_of(r, "silu", gate=r.gate)),
    )
    for title, right, causes, operands in kinds:
        usual = right(r)
        two = usual if seed % 2 else None

        def is_asked(name: str) -> bool:
            return only is None or name in only

        for name, (family, planted) in causes.items():
            if is_asked(f"{title}: {name}"):
                is_wide = family is not Family.DOUBLE_ROUNDING
                out = planted(r) if is_wide else own.bf16(planted(r))
                beside = two if is_wide or two is None else own.bf16(two)
                yield Pair(f"{title}: {name}", family, out, beside, "f32" if is_wide else "bf16", operands)
        for name, (family, way) in WRITTEN.items():
            if is_asked(f"{title}: {name}"):
                beside = None if two is None else own.bf16(two)
                yield Pair(f"{title}: {name}", family, way(usual), beside, "bf16", operands)
        if is_asked(f"equal: {title}"):
            yield Pair(f"equal: {title}", None, usual, None, "f32", operands)
        for name, other in held_out_rows(r, usual, title).items():
            if is_asked(f"held out: {title}, {name}"):
                yield Pair(f"held out: {title}, {name}", "", other(), two, "f32", operands)


def names() -> list[str]:
    """Of all planted and equal pairs."""
    kinds = {"softmax": SOFTMAX, "scaled softmax": SCALED, "rms_norm": RMS, "layer_norm": LAYER, "silu": SILU}
    found = [f"{title}: {name}" for title, causes in kinds.items() for name in (*causes, *WRITTEN)]
    return [*found, *(f"equal: {title}" for title in kinds)]
