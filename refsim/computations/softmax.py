"""Softmax of rows: the maximum, the exponent, the order of sums, the division."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from refsim.computations import special
from refsim.computations.engine import Aspect
from refsim.computations.row_functions import (
    COMMON,
    SUMS,
    Doubles,
    Floats,
    Key,
    RowFunction,
    Rows,
    added_wide,
    host_causes,
    kept,
    padded_widths,
    tail_causes,
)
from refsim.computations.row_sums import own_kernel
from refsim.computations.ways import Cause, Choices, Family, Way, rounded_to, ways_of
from refsim.formats import F32
from refsim.numerics import ieee
from refsim.sources import PTX, TORCH

_SOFTMAX = TORCH["nn.functional.softmax"]
LOG2_E_DOUBLE = float(np.log2(np.e))


# ---- the exponent ------------------------------------------------------------------------------------------------------------

EXPONENTS = ways_of(
    Family.CONTRACTION,
    PTX["fma"],
    {
        "t = fma(x, scale, -fl(m * scale))": lambda x, top, factor, own: ieee.fma(
            x, np.broadcast_to(factor, x.shape), np.broadcast_to(-(top * factor), x.shape)
        ),
        "t = fl(fl(x * scale) - fl(m * scale))": lambda x, top, factor, own: x * factor - top * factor,
        "t = fl(fl(x - m) * scale)": lambda x, top, factor, own: (x - top) * factor,
        # as exp of CUDA's intrinsics
        "t = fl(fl(fl(x - m) * own) * log2(e)), own without log2(e)": lambda x, top, factor, own: (
            ((x - top) * own) * special.LOG2_OF_E
        ),
        "t = fl(fl(fl(x * own) - fl(m * own)) * log2(e)), own without log2(e)": lambda x, top, factor, own: (
            (x * own - top * own) * special.LOG2_OF_E
        ),
    },
    usual_rank=1,
)
PRODUCTS_APART, DIFFERENCE = EXPONENTS[1:3]


# ---- the maximum, weights before they are added --------------------------------------------------------------------------


def _largest(x: Floats) -> Floats:
    """Return the maximum of each row without NaN; 0 where every element is -infinity."""
    top = np.fmax.reduce(x, axis=1, initial=-np.inf)
    return np.where(np.isneginf(top), np.float32(0), top).astype(np.float32)


TOPS = (
    *ways_of(
        Family.MAXIMUM,
        _SOFTMAX,
        {
            "m is the maximum of the row": _largest,
            "m is 0: no maximum is subtracted": lambda x: np.zeros(len(x), np.float32),
            "m is the maximum of the row and 0": lambda x: np.fmax.reduce(x, axis=1, initial=0),
        },
    ),
    Way("a row of -infinity becomes NaN", Family.NAN, _SOFTMAX, lambda x: np.fmax.reduce(x, axis=1, initial=-np.inf)),
    Way("m is the largest magnitude of the row", Family.MAXIMUM, _SOFTMAX, lambda x: _largest(np.abs(x)), 2),
)
ROUNDED_WEIGHTS = ways_of(
    Family.DOUBLE_ROUNDING,
    _SOFTMAX,
    {
        "weights are float32 until they are divided": lambda p, format: (p, p),
        "weights are rounded to the output before they are added": lambda p, format: (p, rounded_to(p, format)),
        "weights are rounded to the output, then added and divided": lambda p, format: (rounded_to(p, format),) * 2,
        "weights are rounded to the output before they are divided": lambda p, format: (rounded_to(p, format), p),
    },
)
"""Weights that are divided, and weights that are added."""


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


def pad_causes(columns: int) -> Iterator[Cause]:
    """Yield the causes in pads that count in sum and maximum: aspect `pads`, a number of columns of zeros."""
    yield Cause(Family.TAIL, "no pads count", "pads", 0, _SOFTMAX, 0)
    for width in padded_widths(columns):
        says = f"{width - columns} pads after the row count, which hold zeros"
        yield Cause(Family.TAIL, says, "pads", width - columns, _SOFTMAX)


@dataclass(frozen=True, eq=False)
class Softmax(RowFunction):
    """e^(scale (x - m)) over its sum, for each row; `number` is the scale."""

    title = "softmax: "
    aspects = (
        *COMMON,
        *SUMS,
        Aspect("tail", lambda own: tail_causes(own.x.shape[1], "sum and maximum"), 0),
        Aspect("exponent", EXPONENTS, exact=DIFFERENCE, told="{}"),
        Aspect("function", special.EXPONENTIALS, special.EX2_FLUSHED, special.EXP_EXACT, told="{}"),
        Aspect(
            "quotient",
            special.DIVISIONS,
            lambda own: special.FULL if own.format is F32 else special.BY_RCP,
            special.DIVIDED,
            told="p divided {}",
        ),
        Aspect("top", TOPS),
        Aspect("rounded", ROUNDED_WEIGHTS, when=lambda own, way: own.format is not F32),
        Aspect("pads", lambda own: pad_causes(own.x.shape[1]), 0),
        Aspect("factor", lambda own: factor_causes(own.number), lambda own: own.number),
    )

    def references(self) -> Sequence[Cause]:
        """Return the causes that take all steps of a host library, or of refsim's kernel on a GPU."""
        own = replace(self, exact=False).usual
        steps = {"exponent": own.exponent, "function": own.function, "quotient": own.quotient}
        exponents = (DIFFERENCE, PRODUCTS_APART) if self.number != 1 else (DIFFERENCE,)
        ways = {"function": (special.EXP_NUMPY, special.EXP_EXACT), "exponent": exponents}
        return [own_kernel(own.order, PTX["ex2"], **steps), *host_causes(_SOFTMAX, ways, quotient=special.DIVIDED)]

    def value(self, plan: Choices, rows: Rows, key: Key) -> Floats:
        """Return the quotients of weights and their sum."""
        of_weights = "factor exponent function read top rounded tail pads"
        divided, added = self.once(key, plan, of_weights, lambda: self._weights(plan, rows))
        total = self.once(key, plan, f"{of_weights} order held", lambda: plan.order.sum(added, plan.held))[:, None]
        divisor, columns = np.where(total == 0, np.float32(1), total), self.x.shape[1]
        normed = plan.quotient.apply(np.ascontiguousarray(divided[:, :columns]), divisor)
        return np.where(total == 0, np.float32(0), normed)

    def wide(self, plan: Choices, rows: Rows) -> Doubles:
        """Return the output with all steps in float64."""
        x = self._padded(plan, rows).astype(np.float64)
        p = np.exp((x - plan.top.apply(kept(x, plan.tail))[:, None]) * plan.factor)
        total = added_wide(kept(p, plan.tail))
        return np.where(total == 0, 0, p[:, : self.x.shape[1]] / np.where(total == 0, 1, total))

    def _padded(self, plan: Choices, rows: Rows) -> Floats:
        return np.pad(self.read(plan, rows), ((0, 0), (0, plan.pads)))

    def _weights(self, plan: Choices, rows: Rows) -> tuple[Floats, Floats]:
        """Return the numerator weights and the weights that are summed."""
        x, own = self._padded(plan, rows), np.float32(plan.factor)
        top = plan.top.apply(kept(x, plan.tail))[:, None]
        factor = own if plan.function in special.NATURAL else np.float32(plan.factor * LOG2_E_DOUBLE)
        p = plan.function.apply(plan.exponent.apply(x, top, factor, own))
        divided, added = plan.rounded.apply(p, self.format)
        return divided, kept(added, plan.tail)
