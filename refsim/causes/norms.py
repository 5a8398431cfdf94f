"""RMSNorm and LayerNorm of rows as a plan: sums, mean, epsilon, root, weights, bias, gate."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from refsim.causes import norm_steps as steps
from refsim.causes.amax_changes import ChangedStep
from refsim.causes.host_sums import HOST_ORDERS
from refsim.causes.row_subject import (
    AS_READ,
    STEPS_IN_FLOAT32,
    Doubles,
    Floats,
    RowSubject,
    added_wide,
    common_causes,
    kept,
    narrowed_from,
    rows_of,
    tail_causes,
    written,
)
from refsim.causes.row_sums import Order, RowOrder, own_kernel, sum_causes
from refsim.causes.rows import Cause, Codes, Family, Sample
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
from refsim.causes.special import BY_ROOT, DIVIDED, EX2_SUBNORMAL, FULL, ONE_BY_ROOT, ROOTS, RSQRT_APPROX
from refsim.causes.writing import USUAL_WRITING, WrittenPlan
from refsim.formats import F32, Format
from refsim.sources import PTX, TORCH

_NORM = TORCH["nn.RMSNorm and nn.LayerNorm"]
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
    squares: str = steps.FUSED_SQUARES
    held: Format = F32
    tail: int = 0
    count: tuple[int, int] = (0, 0)
    mean: ChangedStep = FULL
    eps_place: str = steps.INSIDE
    root: ChangedStep = RSQRT_APPROX
    weights: ChangedStep = steps.OWN_WEIGHTS
    product: ChangedStep = steps.X_THEN_W
    bias: ChangedStep = steps.ADDED
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
        found += [*steps.counts(columns, centred=self.centres), *steps.epsilons(self.number)]
        for row in steps.MEANS:
            found.append(replace(row.cause("mean"), says=f"the mean: the sum {row.name}"))
        for way in (NOT_CENTRED, CENTRED, CENTRED_IN_VARIANCE, ONE_PASS):
            rank = int(way != usual.centred) + (way == CENTRED_IN_VARIANCE)
            family = Family.CONTRACTION if way == ONE_PASS else Family.MEAN
            found.append(Cause(family, way, "centred", way, _NORM, rank))
        for squares in steps.SQUARES:
            found.append(Cause(Family.CONTRACTION, squares, "squares", squares, PTX["fma"]))
        found += [row.cause("root") for row in ROOTS]
        if self.w is not None:
            found += [row.cause("weights") for row in steps.WEIGHTS]
            found += [
                row.cause("product")
                for row in steps.WEIGHINGS
                if row.rank == 0 or self.format is not F32 or row.family is not Family.DOUBLE_ROUNDING
            ]
        if self.bias is not None:
            found += [row.cause("bias") for row in steps.BIASES]
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
                beside = ("mean", DIVIDED), ("root", root), ("squares", steps.ROUNDED_SQUARES)
                found.append(Cause(Family.HOST, says, "order", order, _NORM, beside=beside))
        return found

    def codes(self, plan: NormPlan, sample: Sample | None = None) -> Codes:
        """Return the codes that a plan writes: all rows, or a sample's. Raises DoesNotApplyError."""
        rows, key = rows_of(sample)
        with np.errstate(all="ignore"):
            if plan.wide != STEPS_IN_FLOAT32:
                codes = written(narrowed_from(self._wide(plan, rows), plan.wide), plan.written, self.format)
                return plan.placed.put(codes) if sample is None else codes[:, sample[1]]
            parts = (plan.order, plan.eps, plan.centred, plan.squares, plan.held, plan.tail, plan.count, plan.mean)
            own = key and (*key, *parts, plan.eps_place, plan.root, plan.read)
            x, root = self.remembered(own, partial(self._normed, plan, rows))
            if plan.root is BY_ROOT:
                x, root = x / root, np.ones_like(root)
            w = np.ones(x.shape[1], np.float32) if self.w is None else plan.weights.apply(self.w)
            y = plan.product.apply(x, root, w, self.format)
            if self.bias is not None:
                y = plan.bias.apply(x, root, w, y, self.bias)
            if self.gate is not None:
                y = self._gated(plan, y, rows)
            codes = written(y, plan.written, self.format)
        return plan.placed.put(codes) if sample is None else codes[:, sample[1]]

    def _wide(self, plan: NormPlan, rows: Any) -> Doubles:
        """Return the output with all steps in float64."""
        x = np.asarray(plan.read.apply(self.x[rows], self.x_format), np.float64)
        of_x, of_squares = (count or x.shape[1] for count in plan.count)
        shift = added_wide(kept(x, plan.tail)) / of_x if plan.centred != NOT_CENTRED else np.float64(0)
        mean = added_wide(kept(x - shift, plan.tail) ** 2) / of_squares
        y = (x - shift * (plan.centred != CENTRED_IN_VARIANCE)) / np.sqrt(
            mean + steps.as_written(plan.eps, self.number)
        )
        if self.w is not None:
            y = y * plan.weights.apply(self.w)
        if self.bias is not None and plan.bias is steps.ADDED:
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
        if plan.squares == steps.ROUNDED_SQUARES:
            squares = plan.order.sum(added * added, plan.held)
        else:
            squares = plan.order.sum_of_squares(added, plan.held)
        eps = np.float32(plan.eps)
        if plan.eps_place == steps.BEFORE_MEAN:
            squares = squares + eps
        mean = np.asarray(plan.mean.apply(squares, of_squares))
        if plan.centred == ONE_PASS:
            mean = mean - shift * shift
        return x, self._root(plan, mean, eps)[:, None]

    def _root(self, plan: NormPlan, mean: Floats, eps: np.float32) -> Floats:
        if plan.eps_place == steps.INSIDE:
            mean = mean + eps
        if plan.eps_place == steps.BOUNDING:
            mean = np.maximum(mean, eps)
        if plan.eps_place == steps.OUTSIDE:
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
