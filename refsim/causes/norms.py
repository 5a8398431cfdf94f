"""RMSNorm and LayerNorm of rows as a plan: sums, mean, epsilon, root, weights, bias, gate."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from refsim.causes.amax_changes import ChangedStep
from refsim.causes.host_sums import HOST_ORDERS
from refsim.causes.row_subject import (
    AS_READ,
    ROW_WIDTHS,
    STEPS_IN_FLOAT32,
    Doubles,
    Floats,
    RowSubject,
    added_wide,
    common_causes,
    kept,
    tail_causes,
)
from refsim.causes.row_sums import Order, RowOrder, own_kernel, sum_causes
from refsim.causes.rows import Cause, DoesNotApplyError, Family
from refsim.causes.silu import (
    EXACT_SIGMOID,
    GATED,
    OWN_GATE,
    WITH_LOG2_E,
    Sigmoid,
    gate_causes,
    sigmoid_causes,
    silu_wide,
)
from refsim.causes.special import BY_ROOT, DIVIDED, DIVISIONS, EX2_SUBNORMAL, FULL, ONE_BY_ROOT, ROOTS, RSQRT_APPROX
from refsim.causes.writing import USUAL_WRITING, WrittenPlan
from refsim.conversions import decode, encode
from refsim.formats import F32, Format
from refsim.numerics import ieee
from refsim.sources import PTX, TORCH

_NORM = TORCH["nn.RMSNorm and nn.LayerNorm"]

# ---- squares -----------------------------------------------------------------------------------------------------------------

FUSED_SQUARES, ROUNDED_SQUARES = "squares are added by fma", "squares are rounded, then added"
SQUARES = (FUSED_SQUARES, ROUNDED_SQUARES)

# ---- the count and the mean ---------------------------------------------------------------------------------------------


def _by_factor(total: Floats, count: Floats) -> Floats:
    return total * (np.float32(1) / count)


MEANS = (*DIVISIONS, ChangedStep("times 1 / N, rounded once", Family.SPECIAL, PTX["mul"], _by_factor))


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

INSIDE, BEFORE_MEAN, OUTSIDE, BOUNDING = (
    "epsilon is added to the mean",
    "epsilon is added to the sum, before the mean",
    "epsilon is added to the root",
    "epsilon bounds the mean from below",
)
PLACES = (INSIDE, BEFORE_MEAN, OUTSIDE, BOUNDING)
SIZES = (1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-10, 1e-12, 1e-3, 1.1920928955078125e-07, 2.0**-7)


def epsilons(own: float) -> Iterator[Cause]:
    """Yield the causes in epsilon: aspects `eps` and `eps_place`."""
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
    for place in PLACES:
        yield Cause(Family.EPSILON, place, "eps_place", place, _NORM, int(place != INSIDE))


def as_written(eps: float, own: float) -> float:
    """Return the decimal number that a float32 epsilon stands for, since float64 1e-5 differs from float32 1e-5."""
    return next((size for size in (own, *SIZES, own * own, own**0.5) if float(np.float32(size)) == eps), eps)


# ---- weights -----------------------------------------------------------------------------------------------------------------


def _beside(step: int, w: Floats) -> Floats:
    """Return the weights of the column `step` places on; at the edge the column's own."""
    return w[np.clip(np.arange(len(w)) + step, 0, len(w) - 1)]


def _again(turn: int, w: Floats) -> Floats:
    if len(w) <= turn:
        raise DoesNotApplyError
    return w[np.arange(len(w)) % turn]


OWN_WEIGHTS = ChangedStep("weights are those of the column", Family.NO_WEIGHTS, _NORM, lambda w: w, 0)
WEIGHTS = (
    OWN_WEIGHTS,
    ChangedStep("weights are left out", Family.NO_WEIGHTS, _NORM, np.ones_like),
    ChangedStep("weights are 1 + w", Family.NO_WEIGHTS, _NORM, lambda w: np.float32(1) + w),
    ChangedStep("weights are those of the column before", Family.WEIGHTS, _NORM, partial(_beside, -1)),
    ChangedStep("weights are those of the next column", Family.WEIGHTS, _NORM, partial(_beside, 1)),
    ChangedStep("weights are those of the columns from the end", Family.WEIGHTS, _NORM, lambda w: w[::-1]),
    *(
        ChangedStep(
            f"weights are those of the first {turn} columns again", Family.WEIGHTS, _NORM, partial(_again, turn)
        )
        for turn in (32, 64, 128, 256, 512, 1024)
    ),
)


def _narrowed(x: Floats, r: Floats, w: Floats, format: Format) -> Floats:
    return decode(encode(x * r, format), format, np.float32) * w


X_THEN_W = ChangedStep("y = fl(fl(x * r) * w)", Family.PROMOTION_ORDER, _NORM, lambda x, r, w, format: (x * r) * w, 0)
WEIGHINGS = (
    X_THEN_W,
    ChangedStep("y = fl(x * fl(r * w))", Family.PROMOTION_ORDER, _NORM, lambda x, r, w, format: x * (r * w)),
    ChangedStep("y = fl(fl(x * w) * r)", Family.PROMOTION_ORDER, _NORM, lambda x, r, w, format: (x * w) * r),
    ChangedStep("x * r is rounded to the output before the weights", Family.DOUBLE_ROUNDING, _NORM, _narrowed),
)


# ---- the bias ----------------------------------------------------------------------------------------------------------------


def _fused_bias(x: Floats, r: Floats, w: Floats, y: Floats, bias: Floats) -> Floats:
    product, factors, addends = (np.ascontiguousarray(each) for each in np.broadcast_arrays(x * r, w, bias))
    return ieee.fma(product, factors, addends)


ADDED = ChangedStep("the bias is added to the product", Family.CONTRACTION, _NORM, lambda x, r, w, y, bias: y + bias)
BIASES = (
    ADDED,
    ChangedStep("the bias is added by fma(x * r, w, bias)", Family.CONTRACTION, PTX["fma"], _fused_bias),
    ChangedStep("the bias is left out", Family.NO_WEIGHTS, _NORM, lambda x, r, w, y, bias: y),
)


NOT_CENTRED, CENTRED, CENTRED_IN_VARIANCE, ONE_PASS = (
    "no mean is subtracted",
    "the mean is subtracted",
    "the mean is subtracted for the variance alone",
    "the variance is the mean of squares less the square of the mean",
)


@dataclass(frozen=True)
class NormPlan(WrittenPlan):
    """The choices; `count`: the divisors of the sums of x and of squares, 0: the columns; `tail`: columns left out."""

    order: Order
    eps: float
    centred: str = NOT_CENTRED
    squares: str = FUSED_SQUARES
    held: Format = F32
    tail: int = 0
    count: tuple[int, int] = (0, 0)
    mean: ChangedStep = FULL
    eps_place: str = INSIDE
    root: ChangedStep = RSQRT_APPROX
    weights: ChangedStep = OWN_WEIGHTS
    product: ChangedStep = X_THEN_W
    bias: ChangedStep = ADDED
    read: ChangedStep = AS_READ
    silu_function: ChangedStep = EX2_SUBNORMAL
    silu_quotient: ChangedStep = FULL
    silu_base: str = WITH_LOG2_E
    gate: ChangedStep = OWN_GATE
    gating: ChangedStep = GATED
    wide: str = STEPS_IN_FLOAT32


@dataclass(frozen=True, eq=False)
class NormOfPlans(RowSubject):
    """x / sqrt(mean(x^2) + eps) * w, times silu(gate); `centres`: x is x less its mean. `number` is eps."""

    centres: bool = False

    @property
    def usual(self) -> NormPlan:
        """Return the order of operations of refsim's kernel; `exact`: quotients, roots and powers rounded once."""
        plan = NormPlan(RowOrder(), float(np.float32(self.number)), CENTRED if self.centres else NOT_CENTRED)
        if not self.exact:
            return plan
        silu = {"silu_function": EXACT_SIGMOID.function, "silu_quotient": EXACT_SIGMOID.quotient}
        return replace(plan, order=RowOrder(1), mean=DIVIDED, root=ONE_BY_ROOT, **silu)  # type: ignore[arg-type]

    def causes(self) -> Sequence[Cause]:
        """Return every cause that applies to these operands."""
        usual, columns = self.usual, self.x.shape[1]
        found = [*common_causes(self.format), *sum_causes(usual.order), *tail_causes(columns, "the mean")]
        found += [*counts(columns, centred=self.centres), *epsilons(self.number)]
        for row in MEANS:
            found.append(replace(row.cause("mean"), says=f"the mean: the sum {row.name}"))
        for way in (NOT_CENTRED, CENTRED, CENTRED_IN_VARIANCE, ONE_PASS):
            rank = int(way != usual.centred) + (way == CENTRED_IN_VARIANCE)
            family = Family.CONTRACTION if way == ONE_PASS else Family.MEAN
            found.append(Cause(family, way, "centred", way, _NORM, rank))
        for squares in SQUARES:
            found.append(Cause(Family.CONTRACTION, squares, "squares", squares, PTX["fma"]))
        found += [row.cause("root") for row in ROOTS]
        if self.w is not None:
            found += [row.cause("weights") for row in WEIGHTS]
            found += [
                row.cause("product")
                for row in WEIGHINGS
                if row.rank == 0 or self.format is not F32 or row.family is not Family.DOUBLE_ROUNDING
            ]
        if self.bias is not None:
            found += [row.cause("bias") for row in BIASES]
        if self.gate is not None:
            found += [*sigmoid_causes(), *gate_causes(self.format)]
        return found

    def references(self) -> Sequence[Cause]:
        """Return the causes that take all steps of a host library, or of refsim's kernel on a GPU."""
        own = replace(self, exact=False).usual
        found = [own_kernel(own.order, PTX["rsqrt"], mean=own.mean, root=own.root)]
        for order in (*HOST_ORDERS, RowOrder(1)):
            for root in (BY_ROOT, ONE_BY_ROOT):
                says = f"in float32, {order}; {root.name}"
                beside = ("mean", DIVIDED), ("root", root), ("squares", ROUNDED_SQUARES)
                found.append(Cause(Family.HOST, says, "order", order, _NORM, beside=beside))
        return found

    def computed(self, plan: NormPlan, rows: Any, key: tuple[Any, ...]) -> Floats:
        """Return x times its factor, weighted and gated."""
        parts = (plan.order, plan.eps, plan.centred, plan.squares, plan.held, plan.tail, plan.count, plan.mean)
        own = key and (*key, *parts, plan.eps_place, plan.root, plan.read)
        x, root = self.remembered(own, partial(self._normed, plan, rows))
        if plan.root is BY_ROOT:
            x, root = x / root, np.ones_like(root)
        w = np.ones(x.shape[1], np.float32) if self.w is None else plan.weights.apply(self.w)
        y: Floats = plan.product.apply(x, root, w, self.format)
        if self.bias is not None:
            y = plan.bias.apply(x, root, w, y, self.bias)
        return y if self.gate is None else self._gated(plan, y, rows)

    def computed_wide(self, plan: NormPlan, rows: Any) -> Doubles:
        """Return the output with all steps in float64."""
        x = np.asarray(plan.read.apply(self.x[rows], self.x_format), np.float64)
        of_x, of_squares = (count or x.shape[1] for count in plan.count)
        shift = added_wide(kept(x, plan.tail)) / of_x if plan.centred != NOT_CENTRED else np.float64(0)
        mean = added_wide(kept(x - shift, plan.tail) ** 2) / of_squares
        y = (x - shift * (plan.centred != CENTRED_IN_VARIANCE)) / np.sqrt(mean + as_written(plan.eps, self.number))
        if self.w is not None:
            y = y * plan.weights.apply(self.w)
        if self.bias is not None and plan.bias is ADDED:
            y = y + self.bias
        if self.gate is not None:
            y = y * silu_wide(plan.gate.apply(self.gate)[rows])
        return np.asarray(y, np.float64)

    def _gated(self, plan: NormPlan, y: Floats, rows: Any) -> Floats:
        assert self.gate is not None
        gate = plan.gate.apply(self.gate)[rows]
        silu = Sigmoid(plan.silu_function, plan.silu_quotient, plan.silu_base).silu(gate)
        gated: Floats = plan.gating.apply(y, silu, gate, self.format)
        return gated

    def _normed(self, plan: NormPlan, rows: Any) -> tuple[Floats, Floats]:
        """Return x, less its mean where the plan subtracts it, and its factor (rows, 1)."""
        x = np.asarray(plan.read.apply(self.x[rows], self.x_format), np.float32)
        of_x, of_squares = (np.full(len(x), count or x.shape[1], np.float32) for count in plan.count)
        shown, shift = x, np.zeros(len(x), np.float32)
        if plan.centred != NOT_CENTRED:
            shift = np.asarray(plan.mean.apply(plan.order.sum(kept(x, plan.tail), plan.held), of_x))
            less = x - shift[:, None]
            shown, x = (x, less) if plan.centred == ONE_PASS else (less, less)
        if plan.centred == CENTRED_IN_VARIANCE:
            x = np.asarray(plan.read.apply(self.x[rows], self.x_format), np.float32)
        added = kept(shown, plan.tail)
        if plan.squares == ROUNDED_SQUARES:
            squares = plan.order.sum(added * added, plan.held)
        else:
            squares = plan.order.sum_of_squares(added, plan.held)
        eps = np.float32(plan.eps)
        if plan.eps_place == BEFORE_MEAN:
            squares = squares + eps
        mean = np.asarray(plan.mean.apply(squares, of_squares))
        if plan.centred == ONE_PASS:
            mean = mean - shift * shift
        return x, self._root(plan, mean, eps)[:, None]

    def _root(self, plan: NormPlan, mean: Floats, eps: np.float32) -> Floats:
        if plan.eps_place == INSIDE:
            mean = mean + eps
        if plan.eps_place == BOUNDING:
            mean = np.maximum(mean, eps)
        if plan.eps_place == OUTSIDE:
            return np.asarray(np.float32(1) / (np.sqrt(mean) + eps), np.float32)
        return np.asarray(plan.root.apply(mean), np.float32)

    def described(self, plan: NormPlan) -> str:
        """Return the plan as text."""
        usual = self.usual
        if plan.wide != STEPS_IN_FLOAT32:
            return f"{'layer' if self.centres else 'RMS'} norm: {plan.wide}"
        words = [f"{'layer' if self.centres else 'RMS'} norm: the mean {plan.mean.name}", plan.root.name]
        words += [step.name for step in (plan.read, plan.weights, plan.product, plan.gate, plan.gating) if step.rank]
        words += [way for way, own in ((plan.centred, usual.centred), (plan.squares, usual.squares)) if way != own]
        if plan.eps != usual.eps or plan.eps_place != usual.eps_place:
            words.append(f"{plan.eps_place}, which is {plan.eps:g}")
        if plan.order != usual.order:
            words.append(str(plan.order))
        if plan.written != USUAL_WRITING:
            words.append(str(plan.written))
        return ", ".join(words)
