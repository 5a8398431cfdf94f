"""RMSNorm and LayerNorm of rows: sums, mean, epsilon, root, weights, bias, gate."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from refsim.computations.engine import Aspect
from refsim.computations.row_functions import (
    COMMON,
    ROW_WIDTHS,
    SUMS,
    Doubles,
    Floats,
    Key,
    RowFunction,
    Rows,
    added_wide,
    has,
    host_causes,
    kept,
    tail_causes,
)
from refsim.computations.row_sums import own_kernel
from refsim.computations.silu import GATE, SIGMOID, silu_of, silu_wide
from refsim.computations.special import BY_ROOT, DIVIDED, DIVISIONS, FULL, ONE_BY_ROOT, ROOTS
from refsim.computations.ways import (
    Cause,
    Choices,
    DoesNotApplyError,
    Family,
    Way,
    beside,
    rounded_to,
    seen_by,
    ways_of,
)
from refsim.formats import BF16
from refsim.numerics import ieee
from refsim.sources import PTX, TORCH

_NORM = TORCH["nn.RMSNorm and nn.LayerNorm"]

# ---- squares -----------------------------------------------------------------------------------------------------------------

FUSED_SQUARES = Way(
    "squares are added by fma", Family.CONTRACTION, PTX["fma"], lambda order, x, held: order.sum_of_squares(x, held)
)
ROUNDED_SQUARES = Way(
    "squares are rounded, then added", Family.CONTRACTION, PTX["fma"], lambda order, x, held: order.sum(x * x, held)
)

# ---- the count and the mean ---------------------------------------------------------------------------------------------


MEANS = (
    *DIVISIONS,
    Way("times 1 / N, rounded once", Family.SPECIAL, PTX["mul"], lambda total, n: total * (np.float32(1) / n)),
)


def counts(columns: int, *, centred: bool) -> Iterator[Cause]:
    """Yield the causes in the divisors of sums: aspect `count`, for x and for squares; 0 is the number of columns."""
    yield Cause(Family.COUNT, "N is the number of columns", "count", (0, 0), _NORM, 0)
    others = {columns - 1: "one fewer than columns", columns + 1: "one more than columns"}
    for width in ROW_WIDTHS:
        if columns > width:
            others.setdefault(columns // width * width, f"the columns that fill whole {width}")
        others.setdefault(-(-columns // width) * width, f"the columns and pads, whole {width}")
    others.setdefault(1 << (columns - 1).bit_length(), "the next power of two")
    others.update({1: "1: the sum itself"})
    for count, says in others.items():
        if count not in (0, columns):
            yield Cause(Family.COUNT, f"N is {count}, {says}", "count", (count if centred else 0, count), _NORM)
            if centred:
                of = "of the squares alone"
                yield Cause(Family.COUNT, f"N {of} is {count}, {says}", "count", (0, count), _NORM)


# ---- epsilon -----------------------------------------------------------------------------------------------------------------

BEFORE_MEAN = Way("epsilon is added to the sum, before the mean", Family.EPSILON, _NORM, lambda mean, eps: mean)
OUTSIDE = Way("epsilon is added to the root", Family.EPSILON, _NORM)
PLACES = (
    Way("epsilon is added to the mean", Family.EPSILON, _NORM, np.add, 0),
    BEFORE_MEAN,
    OUTSIDE,
    Way("epsilon bounds the mean from below", Family.EPSILON, _NORM, np.maximum),
)
SIZES = (1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-10, 1e-12, 1e-3, 1.1920928955078125e-07, 2.0**-7)


def epsilons(own: float) -> Iterator[Cause]:
    """Yield the causes in epsilon: aspect `eps`."""
    yield Cause(Family.EPSILON, f"epsilon is {own:g}", "eps", float(np.float32(own)), _NORM, 0)
    if own:
        yield Cause(Family.NO_EPSILON, "epsilon is left out", "eps", 0.0, _NORM)
    others = [(size, f"epsilon is {size:g}, not {own:g}") for size in SIZES]
    others += [(own * own, f"epsilon is the square of {own:g}"), (own**0.5, f"epsilon is the root of {own:g}")]
    seen = {float(np.float32(own)), 0.0}
    for size, says in others:
        with np.errstate(over="ignore"):
            number = float(np.float32(size))
        if number not in seen:
            seen.add(number)
            yield Cause(Family.EPSILON, says, "eps", number, _NORM)


def as_written(eps: float, own: float) -> float:
    """Return the decimal number that a float32 epsilon stands for, since float64 1e-5 differs from float32 1e-5."""
    return next((size for size in (own, *SIZES, own * own, own**0.5) if float(np.float32(size)) == eps), eps)


# ---- weights -----------------------------------------------------------------------------------------------------------------


def _again(turn: int, w: Floats) -> Floats:
    if len(w) <= turn:
        raise DoesNotApplyError
    return w[np.arange(len(w)) % turn]


WEIGHTS = (
    *ways_of(
        Family.NO_WEIGHTS,
        _NORM,
        {
            "weights are those of the column": lambda w: w,
            "weights are left out": np.ones_like,
            "weights are 1 + w": lambda w: np.float32(1) + w,
            "weights are 1 + w, rounded to bf16": lambda w: rounded_to(np.float32(1) + w, BF16),
        },
    ),
    Way("weights are those of the column before", Family.WEIGHTS, _NORM, partial(beside, -1)),
    Way("weights are those of the next column", Family.WEIGHTS, _NORM, partial(beside, 1)),
    Way("weights are those of the columns from the end", Family.WEIGHTS, _NORM, lambda w: w[::-1]),
    *(
        Way(f"weights are those of the first {turn} columns again", Family.WEIGHTS, _NORM, partial(_again, turn))
        for turn in (32, 64, 128, 256, 512, 1024)
    ),
)
ROUNDED_PRODUCT = Way(
    "x * r is rounded to the output before the weights",
    Family.DOUBLE_ROUNDING,
    _NORM,
    lambda x, r, w, format: rounded_to(x * r, format) * w,
)
WEIGHINGS = (
    *ways_of(
        Family.PROMOTION_ORDER,
        _NORM,
        {
            "y = fl(fl(x * r) * w)": lambda x, r, w, format: (x * r) * w,
            "y = fl(x * fl(r * w))": lambda x, r, w, format: x * (r * w),
            "y = fl(fl(x * w) * r)": lambda x, r, w, format: (x * w) * r,
        },
    ),
    ROUNDED_PRODUCT,
)


# ---- the bias ----------------------------------------------------------------------------------------------------------------


def _fused_bias(x: Floats, r: Floats, w: Floats, y: Floats, bias: Floats) -> Floats:
    product, factors, addends = (np.ascontiguousarray(each) for each in np.broadcast_arrays(x * r, w, bias))
    return ieee.fma(product, factors, addends)


ADDED = Way("the bias is added to the product", Family.CONTRACTION, _NORM, lambda x, r, w, y, bias: y + bias)
BIASES = (
    ADDED,
    Way("the bias is added by fma(x * r, w, bias)", Family.CONTRACTION, PTX["fma"], _fused_bias),
    Way("the bias is left out", Family.NO_WEIGHTS, _NORM, lambda x, r, w, y, bias: y),
)


NOT_CENTRED = Way("no mean is subtracted", Family.MEAN, _NORM)
CENTRED = Way("the mean is subtracted", Family.MEAN, _NORM)
CENTRED_IN_VARIANCE = Way("the mean is subtracted for the variance alone", Family.MEAN, _NORM, rank=2)
ONE_PASS = Way("the variance is the mean of squares less the square of the mean", Family.CONTRACTION, _NORM)
RAW_VARIANCE = Way("the mean is subtracted, but not for the variance", Family.MEAN, _NORM)
CENTRINGS = (NOT_CENTRED, CENTRED, CENTRED_IN_VARIANCE, ONE_PASS, RAW_VARIANCE)


@dataclass(frozen=True, eq=False)
class Norm(RowFunction):
    """x / sqrt(mean(x^2) + eps) * w, times silu(gate); `centres`: x is x less its mean. `number` is eps."""

    centres: bool = False
    aspects = (
        *COMMON,
        *SUMS,
        Aspect("tail", lambda own: tail_causes(own.x.shape[1], "the mean"), 0),
        Aspect("count", lambda own: counts(own.x.shape[1], centred=own.centres), (0, 0)),
        Aspect("eps", lambda own: epsilons(own.number), lambda own: float(np.float32(own.number))),
        Aspect("eps_place", PLACES),
        Aspect("mean", MEANS, FULL, DIVIDED, "the mean: the sum {}", told="the mean {}"),
        Aspect(
            "centred",
            lambda own: seen_by(own.usual.centred, "centred", CENTRINGS),
            lambda own: CENTRED if own.centres else NOT_CENTRED,
        ),
        Aspect("squares", (FUSED_SQUARES, ROUNDED_SQUARES)),
        Aspect("root", ROOTS, exact=ONE_BY_ROOT, told="{}"),
        Aspect("weights", WEIGHTS, when=has("w")),
        Aspect("product", WEIGHINGS, when=has("w")),
        Aspect("bias", BIASES, when=has("bias")),
        *(replace(each, when=has("gate"), told="") for each in SIGMOID),
        *GATE,
    )

    @property
    def title(self) -> str:
        return f"{'layer' if self.centres else 'RMS'} norm: "

    def references(self) -> Sequence[Cause]:
        """Return the causes that take all steps of a host library, or of refsim's kernel on a GPU."""
        own = replace(self, exact=False).usual
        ways = {"root": (BY_ROOT, ONE_BY_ROOT)}
        hosts = host_causes(_NORM, ways, mean=DIVIDED, squares=ROUNDED_SQUARES)
        return [own_kernel(own.order, PTX["rsqrt"], mean=own.mean, root=own.root), *hosts]

    def value(self, plan: Choices, rows: Rows, key: Key) -> Floats:
        """Return x times its factor, weighted and gated."""
        of_x = "order eps centred squares held tail count mean eps_place root read"
        x, root = self.once(key, plan, of_x, lambda: self._normed(plan, rows))
        if plan.root is BY_ROOT:
            x, root = x / root, np.ones_like(root)
        w = np.ones(x.shape[1], np.float32) if self.w is None else plan.weights.apply(self.w)
        y: Floats = plan.product.apply(x, root, w, self.format)
        if self.bias is not None:
            y = plan.bias.apply(x, root, w, y, self.bias)
        if self.gate is not None:
            gate = plan.gate.apply(self.gate)[rows]
            y = plan.gating.apply(y, silu_of(plan, gate), gate, self.format)
        return y

    def wide(self, plan: Choices, rows: Rows) -> Doubles:
        """Return the output with all steps in float64."""
        x = self.read(plan, rows).astype(np.float64)
        of_x, of_squares = (count or x.shape[1] for count in plan.count)
        shift = added_wide(kept(x, plan.tail)) / of_x if plan.centred is not NOT_CENTRED else np.float64(0)
        mean = added_wide(kept(x - shift * (plan.centred is not RAW_VARIANCE), plan.tail) ** 2) / of_squares
        y = (x - shift * (plan.centred is not CENTRED_IN_VARIANCE)) / np.sqrt(mean + as_written(plan.eps, self.number))
        if self.w is not None:
            y = y * plan.weights.apply(self.w)
        if self.bias is not None and plan.bias is ADDED:
            y = y + self.bias
        if self.gate is not None:
            y = y * silu_wide(plan.gate.apply(self.gate)[rows])
        return np.asarray(y, np.float64)

    def _normed(self, plan: Choices, rows: Rows) -> tuple[Floats, Floats]:
        """Return x, less its mean where the plan subtracts it, and its factor (rows, 1)."""
        x = shown = read = self.read(plan, rows)
        of_x, of_squares = (np.full(len(x), count or x.shape[1], np.float32) for count in plan.count)
        shift, eps = np.zeros(len(x), np.float32), np.float32(plan.eps)
        if plan.centred is not NOT_CENTRED:
            shift = np.asarray(plan.mean.apply(plan.order.sum(kept(x, plan.tail), plan.held), of_x))
            x = x - shift[:, None]
            shown = read if plan.centred in (ONE_PASS, RAW_VARIANCE) else x
        squares = plan.squares.apply(plan.order, kept(shown, plan.tail), plan.held)
        mean = np.asarray(plan.mean.apply(squares + eps if plan.eps_place is BEFORE_MEAN else squares, of_squares))
        if plan.centred is ONE_PASS:
            mean = mean - shift * shift
        if plan.centred is CENTRED_IN_VARIANCE:
            x = read
        if plan.eps_place is OUTSIDE:
            return x, np.asarray(np.float32(1) / (np.sqrt(mean) + eps), np.float32)[:, None]
        return x, np.asarray(plan.root.apply(plan.eps_place.apply(mean, eps)), np.float32)[:, None]
