"""Causes in the steps of RMSNorm and LayerNorm."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from refsim.causes.amax_changes import ChangedStep
from refsim.causes.row_subject import ROW_WIDTHS, Floats
from refsim.causes.rows import Cause, DoesNotApplyError, Family
from refsim.causes.special import DIVISIONS
from refsim.conversions import decode, encode
from refsim.formats import Format
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
