"""Steps of fused kernels that change each element: sum, product, quotient, GELU, rotary embedding."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from refsim.computations.engine import Aspect, Computation
from refsim.computations.row_functions import Floats
from refsim.computations.silu import places_of
from refsim.computations.special import DIVIDED, DIVISIONS, ERFS, EXP_CUDA, TANHS
from refsim.computations.ways import Choices, Family, Way, ways_of
from refsim.formats import F32
from refsim.numerics import ieee
from refsim.sources import PTX, TORCH, VLLM

_ROPE = VLLM["csrc/pos_encoding_kernels.cu"]
ADD, MULTIPLY, DIVIDE = "added to", "multiplied by", "divided by"
_OPERATIONS: Mapping[str, tuple[Way, ...]] = {
    ADD: ways_of(
        Family.ZERO_SIGN, PTX["add"], {"the operand is added": np.add, "the operand is subtracted": np.subtract}
    ),
    MULTIPLY: ways_of(
        Family.SCALE_TWICE,
        PTX["mul"],
        {
            "x is multiplied by the operand": np.multiply,
            "x is multiplied by the operand twice": lambda x, by: x * by * by,
            "x is divided by the operand": np.divide,
            "x is multiplied by the operand plus one": lambda x, by: x * (np.float32(1) + by),
        },
    ),
    DIVIDE: (
        DIVIDED,
        *(way for way in DIVISIONS if way is not DIVIDED),
        Way("x is multiplied by the operand, not divided", Family.SCALE_TWICE, PTX["mul"], np.multiply),
    ),
}


class FusedStage(Computation):
    """A step of a composition: float32 values (rows, columns) in, and others out. `name` is its operand's."""

    def applied(self, plan: Choices, x: Floats) -> Floats:
        """Return the values after the step."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Elementwise(FusedStage):
    """Values `kind` (added to, multiplied by, divided by) an operand, which is spread over rows and columns."""

    shape: tuple[int, ...]
    kind: str
    name: str
    operand: Floats
    format = F32
    aspects = (
        Aspect("operation", lambda own: _OPERATIONS[own.kind], says=lambda own: f"{{}}: {own.name}"),
        Aspect("taken", lambda own: own.places),
    )

    @cached_property
    def places(self) -> tuple[Way, ...]:
        return places_of(self.name, Family.GATE, PTX["ld"])

    @cached_property
    def usual(self) -> Choices:
        return Choices(operation=_OPERATIONS[self.kind][0], taken=self.places[0])

    def applied(self, plan: Choices, x: Floats) -> Floats:
        operand = np.broadcast_to(self.operand, x.shape)
        return np.asarray(plan.operation.apply(x, plan.taken.apply(operand)), np.float32)


# ---- GELU --------------------------------------------------------------------------------------------------------------

_fma: Callable[..., Floats] = ieee.fma
_GELU, _AS_FMA = TORCH["nn.functional.gelu"], (Family.CONTRACTION, PTX["fma"])
_ONE, _HALF, _FACTOR, _CUBIC = (np.float32(each) for each in (1, 0.5, 0.7978845608028654, 0.044715))


INNERS = (
    Way("tanh is of b * fma(k, x^3, x)", *_AS_FMA, lambda x: _FACTOR * _fma(x * x * x, _CUBIC, x)),
    Way("tanh is of b * (x + k * x^3)", *_AS_FMA, lambda x: _FACTOR * (x + _CUBIC * (x * x * x))),
    Way("tanh is of (b * x) * fma(k * x, x, 1)", *_AS_FMA, lambda x: _FACTOR * x * _fma(_CUBIC * x, x, _ONE)),
    Way("tanh is of b * x: no cubic term", Family.FACTOR, _GELU, lambda x: _FACTOR * x),
)
GELUS = ways_of(
    Family.VALUES,
    _GELU,
    {
        "GELU is by tanh": lambda plan, x: (_HALF * x) * (_ONE + plan.tanh.apply(plan.inner.apply(x))),
        "GELU is by erf": lambda plan, x: (_HALF * x) * (_ONE + plan.erf.apply(x * np.sqrt(_HALF))),
        "GELU is x * sigmoid(1.702 x)": lambda plan, x: x / (_ONE + EXP_CUDA.apply(np.float32(-1.702) * x)),
        "GELU is SiLU": lambda plan, x: x / (_ONE + EXP_CUDA.apply(-x)),
        "GELU is ReLU": lambda plan, x: np.maximum(x, 0),
    },
)
APPROXIMATIONS = {"tanh": GELUS[0], "none": GELUS[1]}


@dataclass(frozen=True, eq=False)
class Gelu(FusedStage):
    """GELU by tanh or, with `approximate` "none", by erf; b is sqrt(2 / pi) and k is 0.044715."""

    shape: tuple[int, ...]
    approximate: str
    format = F32
    name = "gelu"
    aspects = (
        Aspect("gelu", GELUS, lambda own: APPROXIMATIONS[own.approximate]),
        Aspect("inner", INNERS),
        Aspect("tanh", TANHS),
        Aspect("erf", ERFS),
    )

    def applied(self, plan: Choices, x: Floats) -> Floats:
        return np.asarray(plan.gelu.apply(plan, x), np.float32)


# ---- rotary embedding --------------------------------------------------------------------------------------------------

HALVES, PAIRS = PAIRINGS = ways_of(
    Family.ROTATION,
    _ROPE,
    {
        "element i turns with element i + dim / 2": lambda x: (x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]),
        "elements 2i and 2i + 1 turn together": lambda x: (x[..., 0::2], x[..., 1::2]),
    },
)
_TURNS = ways_of(
    Family.ROTATION,
    _ROPE,
    {
        "x cos - y sin, y cos + x sin": lambda cos, sin: (cos, sin),
        "the rotation is the other way: x cos + y sin": lambda cos, sin: (cos, -sin),
        "cos and sin are exchanged": lambda cos, sin: (sin, cos),
    },
)


def _fused(x: Floats, cos: Floats, y: Floats, sin: Floats) -> Floats:
    return ieee.fma(np.ascontiguousarray(x), np.ascontiguousarray(cos), np.ascontiguousarray(y * sin))


CONTRACTIONS = ways_of(
    Family.CONTRACTION,
    PTX["fma"],
    {
        "both products of a rotation are rounded": lambda x, cos, y, sin: x * cos + y * sin,
        "the product with cos is added by fma": _fused,
        "the product with sin is added by fma": lambda x, cos, y, sin: _fused(y, sin, x, cos),
    },
)


@dataclass(frozen=True, eq=False)
class Rope(FusedStage):
    """Rotary embedding of heads of `head` columns; `cos` and `sin` (rows, at most head / 2) turn the first columns."""

    shape: tuple[int, ...]
    cos: Floats
    sin: Floats
    head: int
    pairs: bool
    format = F32
    name = "rope"
    aspects = (
        Aspect("pairing", PAIRINGS, lambda own: PAIRS if own.pairs else HALVES),
        Aspect("turn", _TURNS),
        Aspect("contraction", CONTRACTIONS),
        Aspect("angle", places_of("angle", Family.ROTATION, _ROPE)),
    )

    def applied(self, plan: Choices, x: Floats) -> Floats:
        turned = x.reshape(len(x), -1, self.head).copy()
        width = 2 * self.cos.shape[1]
        tables = (np.asarray(plan.angle.apply(each))[:, None, :] for each in plan.turn.apply(self.cos, self.sin))
        first, second = plan.pairing.apply(turned[..., :width])
        first, second, cos, sin = (np.array(each) for each in np.broadcast_arrays(first, second, *tables))
        into = plan.pairing.apply(turned[..., :width])
        into[0][...] = plan.contraction.apply(first, cos, second, -sin)
        into[1][...] = plan.contraction.apply(second, cos, first, sin)
        return turned.reshape(x.shape)


# ---- where rows lie in a cache -----------------------------------------------------------------------------------------

Slots = Any


def slot_ways(page: int) -> Sequence[Way]:
    """Return the slots in which rows may be written: aspect `slots`; `page` is the number of slots in a page."""
    rows = {
        "rows lie at their slots": lambda slots, count: slots,
        "row r lies at slot r": lambda slots, count: np.arange(len(slots)),
        "rows lie at the slot before their own": lambda slots, count: np.where(slots > 0, slots - 1, slots),
        "rows lie at the slot after their own": lambda slots, count: np.where(slots >= 0, slots + 1, slots),
        "rows lie at the slot of the row before": lambda slots, count: slots[np.maximum(np.arange(len(slots)) - 1, 0)],
        "rows of slot -1 are written to slot 0": lambda slots, count: np.maximum(slots, 0),
    }
    if page > 1:
        rows |= {
            "page and offset in the page are exchanged": partial(_exchanged, page),
            "the page is left out of the slot": lambda slots, count: slots % page,
            "the offset in the page is left out of the slot": lambda slots, count: slots // page * page,
        }
    return ways_of(Family.SLOTS, VLLM["csrc/cache_kernels.cu"], rows)


def _exchanged(page: int, slots: Slots, count: int) -> Slots:
    return np.where(slots >= 0, slots % page * (count // page) + slots // page, slots)
