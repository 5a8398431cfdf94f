"""Softmax of rows as a plan: the maximum, the exponent, the order of sums, the division."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

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
    padded_widths,
    tail_causes,
)
from refsim.causes.row_sums import Order, RowOrder, own_kernel, sum_causes
from refsim.causes.rows import Cause, Family
from refsim.causes.special import (
    BY_RCP,
    DIVIDED,
    DIVISIONS,
    EX2_FLUSHED,
    EXP_EXACT,
    EXP_NUMPY,
    EXPONENTIALS,
    FULL,
    LOG2_OF_E,
    NATURAL,
)
from refsim.causes.writing import USUAL_WRITING, WrittenPlan
from refsim.conversions import decode, encode
from refsim.formats import F32, Format
from refsim.numerics import ieee
from refsim.sources import PTX, TORCH

_SOFTMAX = TORCH["nn.functional.softmax"]
LOG2_E_DOUBLE = float(np.log2(np.e))


# ---- the exponent ------------------------------------------------------------------------------------------------------------


def _fused(x: Floats, top: Floats, factor: np.float32, own: np.float32) -> Floats:
    return ieee.fma(x, np.broadcast_to(factor, x.shape), np.broadcast_to(-(top * factor), x.shape))


def _product_less_product(x: Floats, top: Floats, factor: np.float32, own: np.float32) -> Floats:
    return x * factor - top * factor


def _two_products(x: Floats, top: Floats, factor: np.float32, own: np.float32) -> Floats:
    """Return exponents with the scale applied first and log2(e) second, as exp of CUDA's intrinsics does."""
    return ((x - top) * own) * LOG2_OF_E


FUSED_EXPONENT = ChangedStep("t = fma(x, scale, -fl(m * scale))", Family.CONTRACTION, PTX["fma"], _fused)
DIFFERENCE = ChangedStep(
    "t = fl(fl(x - m) * scale)", Family.CONTRACTION, PTX["fma"], lambda x, top, factor, own: (x - top) * factor
)
PRODUCTS_APART = ChangedStep(
    "t = fl(fl(x * scale) - fl(m * scale))", Family.CONTRACTION, PTX["fma"], _product_less_product
)
EXPONENTS = (
    FUSED_EXPONENT,
    PRODUCTS_APART,
    DIFFERENCE,
    ChangedStep(
        "t = fl(fl(fl(x - m) * own) * log2(e)), own without log2(e)", Family.CONTRACTION, PTX["fma"], _two_products
    ),
    ChangedStep(
        "t = fl(fl(fl(x * own) - fl(m * own)) * log2(e)), own without log2(e)",
        Family.CONTRACTION,
        PTX["fma"],
        lambda x, top, factor, own: (x * own - top * own) * LOG2_OF_E,
    ),
)


# ---- the maximum, weights before they are added --------------------------------------------------------------------------


def _largest(x: Floats) -> Floats:
    """Return the maximum of each row without NaN; 0 where every element is -infinity."""
    top = np.fmax.reduce(x, axis=1, initial=-np.inf)
    return np.where(np.isneginf(top), np.float32(0), top).astype(np.float32)


def _from_zero(x: Floats) -> Floats:
    return np.asarray(np.fmax.reduce(x, axis=1, initial=0), np.float32)


LARGEST = ChangedStep("m is the maximum of the row", Family.MAXIMUM, _SOFTMAX, _largest, 0)
TOPS = (
    LARGEST,
    ChangedStep("m is 0: no maximum is subtracted", Family.MAXIMUM, _SOFTMAX, lambda x: np.zeros(len(x), np.float32)),
    ChangedStep("m is the maximum of the row and 0", Family.MAXIMUM, _SOFTMAX, _from_zero),
    ChangedStep("m is the largest magnitude of the row", Family.MAXIMUM, _SOFTMAX, lambda x: _largest(np.abs(x)), 2),
)


def _narrow(p: Floats, format: Format) -> Floats:
    """Return weights rounded to a format."""
    return decode(encode(p, format), format, np.float32)


def _round_denominator_only(p: Floats, format: Format) -> tuple[Floats, Floats]:
    """Return (numerator weights, weights that are summed): only the summed copy is rounded to `format`."""
    return p, _narrow(p, format)


def _narrow_both(p: Floats, format: Format) -> tuple[Floats, Floats]:
    """Return (numerator weights, weights that are summed): both are rounded to `format`."""
    return _narrow(p, format), _narrow(p, format)


def _narrow_weights(p: Floats, format: Format) -> tuple[Floats, Floats]:
    """Return (numerator weights, weights that are summed): only the numerator is rounded to `format`."""
    return _narrow(p, format), p


UNROUNDED = ChangedStep(
    "weights are float32 until they are divided", Family.DOUBLE_ROUNDING, _SOFTMAX, lambda p, format: (p, p), 0
)
ROUNDED = (
    UNROUNDED,
    ChangedStep(
        "weights are rounded to the output before they are added",
        Family.DOUBLE_ROUNDING,
        _SOFTMAX,
        _round_denominator_only,
    ),
    ChangedStep(
        "weights are rounded to the output, then added and divided", Family.DOUBLE_ROUNDING, _SOFTMAX, _narrow_both
    ),
    ChangedStep(
        "weights are rounded to the output before they are divided", Family.DOUBLE_ROUNDING, _SOFTMAX, _narrow_weights
    ),
)


def factor_causes(own: float) -> Iterator[Cause]:
    """Yield the causes in the factor of x in the exponent of e, each number once: aspect `factor`."""
    base, seen = LOG2_E_DOUBLE, set()
    named = (
        (Family.NO_SCALE, "the scale", own),
        (Family.BASE, "the scale without log2(e)", own / base),
        (Family.BASE, "the scale and log2(e) twice", own * base),
        (Family.NO_SCALE, "no scale", 1.0),
        (Family.SCALE_TWICE, "the scale twice", own * own),
        (Family.SCALE_TWICE, "the scale and log2(e), both of them twice", own * own * base),
    )
    for number, (family, says, scale) in enumerate(named):
        with np.errstate(over="ignore"):
            key = float(np.float32(scale))
        if key not in seen:
            seen.add(key)
            yield Cause(family, f"x is multiplied by {says}", "factor", scale, _SOFTMAX, min(number, 1))


@dataclass(frozen=True)
class SoftmaxPlan(WrittenPlan):
    """The choices; `factor` multiplies x in the exponent of e.

    `pads` columns of zeros count in sum and maximum; the columns of `tail` do not.
    """

    factor: float
    order: Order
    exponent: ChangedStep = FUSED_EXPONENT
    function: ChangedStep = EX2_FLUSHED
    quotient: ChangedStep = BY_RCP
    read: ChangedStep = AS_READ
    top: ChangedStep = LARGEST
    rounded: ChangedStep = UNROUNDED
    held: Format = F32
    tail: int = 0
    pads: int = 0
    wide: str = STEPS_IN_FLOAT32


@dataclass(frozen=True, eq=False)
class SoftmaxOfPlans(RowSubject):
    """e^(scale (x - m)) over its sum, for each row; `number` is the scale."""

    @property
    def usual(self) -> SoftmaxPlan:
        """Return the order of operations of refsim's kernel; `exact`: quotients and powers rounded once."""
        plan = SoftmaxPlan(self.number, RowOrder())
        if self.exact:
            return replace(plan, order=RowOrder(1), exponent=DIFFERENCE, function=EXP_EXACT, quotient=DIVIDED)
        return replace(plan, quotient=FULL) if self.format is F32 else plan

    def causes(self) -> Sequence[Cause]:
        """Return every cause that applies to these operands."""
        usual, columns = self.usual, self.x.shape[1]
        found = [*common_causes(self.format), *sum_causes(usual.order), *tail_causes(columns, "sum and maximum")]
        for aspect, rows in (
            ("exponent", EXPONENTS),
            ("function", EXPONENTIALS),
            ("quotient", DIVISIONS),
            ("top", TOPS),
        ):
            found += [row.cause(aspect) for row in rows]
        if self.format is not F32:
            found += [row.cause("rounded") for row in ROUNDED]
        found.append(Cause(Family.TAIL, "no pads count", "pads", 0, _SOFTMAX, 0))
        for width in padded_widths(columns):
            says = f"{width - columns} pads after the row count, which hold zeros"
            found.append(Cause(Family.TAIL, says, "pads", width - columns, _SOFTMAX))
        return [*found, *factor_causes(self.number)]

    def references(self) -> Sequence[Cause]:
        """Return the causes that take all steps of a host library, or of refsim's kernel on a GPU."""
        own = replace(self, exact=False).usual
        steps = {"exponent": own.exponent, "function": own.function, "quotient": own.quotient}
        found = [own_kernel(own.order, PTX["ex2"], **steps)]
        for order in (*HOST_ORDERS, RowOrder(1)):
            for function in (EXP_NUMPY, EXP_EXACT):
                for exponent in (DIFFERENCE, PRODUCTS_APART) if self.number != 1 else (DIFFERENCE,):
                    says = f"in float32, {order}; {function.name}, {exponent.name}"
                    beside = (("exponent", exponent), ("function", function), ("quotient", DIVIDED))
                    found.append(Cause(Family.HOST, says, "order", order, _SOFTMAX, beside=beside))
        return found

    def computed(self, plan: SoftmaxPlan, rows: Any, key: tuple[Any, ...]) -> Floats:
        """Return the quotients of weights and their sum."""
        weights = self._weights(plan, rows, key)
        total = self._total(plan, weights, key)[:, None]
        divisor, columns = np.where(total == 0, np.float32(1), total), self.x.shape[1]
        normed = plan.quotient.apply(np.ascontiguousarray(weights[0][:, :columns]), divisor)
        return np.where(total == 0, np.float32(0), normed)

    def computed_wide(self, plan: SoftmaxPlan, rows: Any) -> Doubles:
        """Return the output with all steps in float64."""
        x = np.pad(plan.read.apply(self.x[rows], self.x_format), ((0, 0), (0, plan.pads))).astype(np.float64)
        p = np.exp((x - plan.top.apply(kept(x, plan.tail))[:, None]) * plan.factor)
        total = added_wide(kept(p, plan.tail))
        return np.where(total == 0, 0, p[:, : self.x.shape[1]] / np.where(total == 0, 1, total))

    def _weights(self, plan: SoftmaxPlan, rows: Any, key: tuple[Any, ...]) -> tuple[Floats, Floats]:
        """Return the numerator weights and the weights that are summed; those of few rows are remembered."""
        return self.remembered(key and (*key, *_parts(plan)), partial(self._made_weights, plan, rows))  # type: ignore[no-any-return]

    def _made_weights(self, plan: SoftmaxPlan, rows: Any) -> tuple[Floats, Floats]:
        """Return the numerator weights and the weights that are summed."""
        x = np.pad(plan.read.apply(self.x[rows], self.x_format), ((0, 0), (0, plan.pads)))
        top = plan.top.apply(kept(x, plan.tail))[:, None]
        own = np.float32(plan.factor)
        factor = own if plan.function in NATURAL else np.float32(plan.factor * LOG2_E_DOUBLE)
        p = plan.function.apply(plan.exponent.apply(x, top, factor, own))
        divided, added = plan.rounded.apply(p, self.format)
        return divided, kept(added, plan.tail)

    def _total(self, plan: SoftmaxPlan, weights: tuple[Floats, Floats], key: tuple[Any, ...]) -> Floats:
        """Return the sum of each row's weights; those of few rows are remembered."""
        make: Callable[[], Floats] = partial(plan.order.sum, weights[1], plan.held)
        return self.remembered(key and (*key, *_parts(plan), plan.order, plan.held), make)  # type: ignore[no-any-return]

    def described(self, plan: SoftmaxPlan) -> str:
        """Return the plan as text."""
        if plan.wide != STEPS_IN_FLOAT32:
            return f"softmax: {plan.wide}"
        steps = (plan.exponent, plan.function, plan.quotient, plan.read, plan.top, plan.rounded)
        words = [f"softmax: {plan.exponent.name}", plan.function.name, f"p divided {plan.quotient.name}"]
        words += [step.name for step in steps[3:] if step.rank]
        if plan.order != self.usual.order:
            words.append(str(plan.order))
        if plan.written != USUAL_WRITING:
            words.append(str(plan.written))
        return ", ".join(words)


def _parts(plan: SoftmaxPlan) -> tuple[Any, ...]:
    """Return the choices that decide the weights."""
    return plan.factor, plan.exponent, plan.function, plan.read, plan.top, plan.rounded, plan.tail, plan.pads
