"""Causes in the value that is converted to an element, given right scales."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from refsim.computations.quantising import QuantizingRule, ScaleGrid, Singles
from refsim.computations.ways import DoesNotApplyError, Family, Way
from refsim.conversions import decode, encode
from refsim.formats import BF16, F16, Format
from refsim.sources import IEEE754, OCP_MX, PTX

_ONE = np.float32(1)
LARGEST_FLOAT = float(np.finfo(np.float32).max)
Marks = Callable[[ScaleGrid, QuantizingRule], NDArray[np.bool_]]


def _as_ruled(x: Singles, grid: ScaleGrid, rule: QuantizingRule) -> Singles:
    return rule.scaled(x, grid)


# ---- in another order of operations ------------------------------------------------------------------------------------


def _of_amax(way: str, x: Singles, grid: ScaleGrid, rule: QuantizingRule) -> Singles:
    """Return x scaled by its block's amax, regardless of the rounded scale and of the tensor's factor."""
    largest = np.float32(rule.element.to.max_value)
    if way == "times MAX / amax":
        return np.asarray(x * (largest / grid.peak), np.float32)
    scales = grid.peak / largest
    return np.asarray(x / scales if way == "divided by amax / MAX" else x * (_ONE / scales), np.float32)


def _divided(by_reciprocal: bool, x: Singles, grid: ScaleGrid, rule: QuantizingRule) -> Singles:
    """Return x divided by the stored scale. Raises DoesNotApplyError for rules with a factor of the tensor."""
    if not (grid.kept == 1).all():
        raise DoesNotApplyError
    scales = grid.value if grid.is_unrounded else rule.decoded(grid.stored)
    return np.asarray(x * (_ONE / scales) if by_reciprocal else x / scales, np.float32)


def _in(narrow: Format, has_wide_product: bool, x: Singles, grid: ScaleGrid, rule: QuantizingRule) -> Singles:
    """Return the product of x and its factor, both rounded to a narrow format first; the product is rounded to it too.

    `has_wide_product`: the product is rounded to float32 only.
    """
    factors = rule.scaled(np.ones_like(x), grid)
    one, other = (decode(encode(each, narrow), narrow, np.float32) for each in (x, factors))
    product = np.asarray(one * other, np.float32)
    return product if has_wide_product else decode(encode(product, narrow), narrow, np.float32)


# ---- the factor of the tensor ------------------------------------------------------------------------------------------


def _kept(change: str, x: Singles, grid: ScaleGrid, rule: QuantizingRule) -> Singles:
    """Return x scaled with the tensor's factor inverted or left out."""
    if (grid.kept == 1).all():
        raise DoesNotApplyError
    kept = _ONE / grid.kept if change == "inverted" else np.ones_like(grid.kept)
    return rule.scaled(x, replace(grid, kept=np.asarray(kept, np.float32)))


# ---- scales that are no usual numbers ----------------------------------------------------------------------------------


def _is_zero(grid: ScaleGrid, rule: QuantizingRule) -> NDArray[np.bool_]:
    return np.asarray(grid.stored == 0)


def _is_nan(grid: ScaleGrid, rule: QuantizingRule) -> NDArray[np.bool_]:
    return np.asarray(np.isnan(rule.decoded(grid.stored)))


def _times(marked: Marks, factor: float, x: Singles, grid: ScaleGrid, rule: QuantizingRule) -> Singles:
    """Return x times a factor in marked blocks, and scaled by the rule in all others."""
    marks = marked(grid, rule)
    if not marks.any():
        raise DoesNotApplyError
    return np.where(marks, x * np.float32(factor), rule.scaled(x, grid))


AS_RULED = Way("elements are x by its scale as the rule says", Family.SCALE_RULE, OCP_MX["section 6.3"], _as_ruled, 0)
_SPECIAL: tuple[tuple[str, Family, Marks, tuple[float, ...]], ...] = (
    ("the code of the scale is 0", Family.SCALE_RULE, _is_zero, (0.0, 1.0, 2.0**126, 2.0**127, LARGEST_FLOAT, np.inf)),
    ("the scale is NaN", Family.NAN, _is_nan, (0.0, 1.0, -np.inf, np.inf, 2.0**-127, np.nan)),
)


def quotients() -> Iterator[Way]:
    """Yield every way to compute the value that is converted, the rule's first."""
    mul, rule = PTX["mul.rn, div.rn, rcp.rn"], OCP_MX["section 6.3"]
    yield AS_RULED
    for way in ("times MAX / amax", "divided by amax / MAX", "times 1 / (amax / MAX)"):
        says = f"elements are x {way}, whatever the scale is rounded to"
        yield Way(says, Family.SCALE_RULE, mul, partial(_of_amax, way))
    for by_reciprocal, words in ((False, "divided by the scale"), (True, "times the reciprocal of the scale")):
        yield Way(f"elements are x {words}", Family.SCALE_RULE, mul, partial(_divided, by_reciprocal), 2)
    for narrow in (F16, BF16):
        for has_wide_product, words in ((False, f"in {narrow}"), (True, f"by factors in {narrow}")):
            says = f"x is multiplied {words} before it is converted"
            source = IEEE754["section 4.3"]
            yield Way(says, Family.DOUBLE_ROUNDING, source, partial(_in, narrow, has_wide_product), 2)
    for change in ("inverted", "left out"):
        says = f"the tensor's factor is {change} where elements are made"
        yield Way(says, Family.SCALE_RULE, rule, partial(_kept, change))
    for where, family, marked, factors in _SPECIAL:
        for factor in factors:
            says = f"where {where}, elements are multiplied by {factor:g}"
            yield Way(says, family, rule, partial(_times, marked, factor), 2)
