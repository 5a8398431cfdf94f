"""Causes in the state that attention keeps between tiles of keys, and in its last steps."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.causes.amax_changes import ChangedStep
from refsim.causes.rows import Cause, Family
from refsim.causes.special import EX2_FLUSHED, EX2_SUBNORMAL
from refsim.numerics import ieee
from refsim.sources import FLASHINFER, PTX, TORCH

Floats = NDArray[np.float32]
_ATTENTION = TORCH["nn.functional.scaled_dot_product_attention"]
_ONLINE = FLASHINFER["prefill.cuh: update_mdo_states"]

# ---- what becomes of older sums ------------------------------------------------------------------------------------------------

RESCALED, VALUES_KEPT, SUMS_KEPT, BOTH_KEPT, UNSCALED_FACTOR, DROPPED = (
    "older sums are multiplied by 2^((m - u) C)",
    "older values are not rescaled under a new maximum",
    "older sums of weights are not rescaled under a new maximum",
    "neither older values nor older sums of weights are rescaled",
    "the factor of older sums lacks the scale",
    "older sums are dropped",
)
RESCALINGS = (RESCALED, VALUES_KEPT, SUMS_KEPT, BOTH_KEPT, UNSCALED_FACTOR, DROPPED)
RUNNING_MAXIMUM, TILE_MAXIMUM, STALE_MAXIMUM, ZERO_MAXIMUM = (
    "u is the maximum so far",
    "u is the maximum of the tile alone",
    "the maximum is not kept: each tile begins anew, older sums are dropped",
    "u is 0: no maximum is subtracted",
)
MAXIMA = (RUNNING_MAXIMUM, TILE_MAXIMUM, STALE_MAXIMUM, ZERO_MAXIMUM)
QUAD, COLUMN_BY_COLUMN, IN_HALVES = (
    "l: four lanes, each with two columns of eight, which meet at the end",
    "l: one column after the other",
    "l: the columns of a tile in halves",
)
LANE_ORDERS = (QUAD, COLUMN_BY_COLUMN, IN_HALVES)
BY_FMA, BY_PRODUCT = "l = fma(l, a, t)", "l = fl(fl(l * a) + t)"


def lane_sums(order: str, p: Floats) -> Floats:
    """Return the sums of a tile's weights by lane, (rows, lanes), from p (rows, keys); keys is a multiple of 8."""
    if order == QUAD:
        lanes = p.reshape(len(p), -1, 4, 2).swapaxes(1, 2).reshape(len(p), 4, -1)
        return np.add.accumulate(lanes, axis=2, dtype=np.float32)[:, :, -1]
    if order == COLUMN_BY_COLUMN:
        return np.add.accumulate(p, axis=1, dtype=np.float32)[:, -1:]
    while p.shape[1] % 2 == 0:
        p = p[:, : p.shape[1] // 2] + p[:, p.shape[1] // 2 :]
    return np.add.accumulate(p, axis=1, dtype=np.float32)[:, -1:]


def factor_of_older(
    function: ChangedStep, rescaled: str, maximum: str, before: Floats, used: Floats, factor: np.float32
) -> Floats:
    """Return the factor of older sums after a new tile."""
    function = EX2_FLUSHED if function is EX2_SUBNORMAL else function
    if rescaled == DROPPED:
        return np.zeros_like(used)
    if maximum == ZERO_MAXIMUM:
        return np.ones_like(used)
    less = before - used
    return np.asarray(function.apply(less if rescaled == UNSCALED_FACTOR else less * factor), np.float32)


def lanes_met(sums: Floats) -> Floats:
    """Return the sums (rows) of lanes (rows, lanes): neighbors are added first."""
    while sums.shape[1] > 1:
        sums = sums[:, 0::2] + sums[:, 1::2]
    return sums[:, 0]


def state_causes(usual_order: str) -> Iterator[Cause]:
    """Yield the causes in the state between tiles: aspects `rescaled`, `top`, `lanes`, `joined`."""
    for way in RESCALINGS:
        yield Cause(Family.RESCALING, way, "rescaled", way, _ONLINE, int(way != RESCALED))
    for way in MAXIMA:
        yield Cause(Family.MAXIMUM, way, "top", way, _ONLINE, int(way != RUNNING_MAXIMUM))
    for way in LANE_ORDERS:
        yield Cause(Family.REDUCTION_ORDER, way, "lanes", way, _ONLINE, int(way != usual_order))
    for way in (BY_FMA, BY_PRODUCT):
        yield Cause(Family.CONTRACTION, way, "joined", way, PTX["fma"])


# ---- the end -------------------------------------------------------------------------------------------------------------------


def _lse_by_product(base: Floats, log2: Floats, natural: Floats, ln2: np.float32) -> Floats:
    return (base + log2) * ln2


def _lse_by_fma(base: Floats, log2: Floats, natural: Floats, ln2: np.float32) -> Floats:
    return ieee.fma(log2, np.full_like(log2, ln2), base * ln2)


def _lse_apart(base: Floats, log2: Floats, natural: Floats, ln2: np.float32) -> Floats:
    return base * ln2 + log2 * ln2


def _lse_natural(base: Floats, log2: Floats, natural: Floats, ln2: np.float32) -> Floats:
    return base * ln2 + natural


LSE = ChangedStep("lse = fl(fl(base + lg2(L)) * ln(2))", Family.CONTRACTION, PTX["fma"], _lse_by_product)
LOGARITHMS = (
    LSE,
    ChangedStep("lse = fma(lg2(L), ln(2), fl(base * ln(2)))", Family.CONTRACTION, PTX["fma"], _lse_by_fma),
    ChangedStep("lse = fl(base * ln(2)) + fl(lg2(L) * ln(2))", Family.CONTRACTION, PTX["fma"], _lse_apart),
    ChangedStep("lse = fl(base * ln(2)) + ln(L), rounded once", Family.SPECIAL, _ATTENTION, _lse_natural),
    ChangedStep(
        "lse is a logarithm to the base of 2", Family.BASE, _ATTENTION, lambda base, log2, natural, ln2: base + log2
    ),
    ChangedStep("lse lacks the maximum", Family.MAXIMUM, _ATTENTION, lambda base, log2, natural, ln2: log2 * ln2),
)


def _then_scale(o: Floats, divided: Callable[[Floats], Floats], inverse: Floats, scale: np.float32) -> Floats:
    return divided(o) * scale


def _scale_of_inverse(o: Floats, divided: Callable[[Floats], Floats], inverse: Floats, scale: np.float32) -> Floats:
    return o * (inverse * scale)


def _scale_first(o: Floats, divided: Callable[[Floats], Floats], inverse: Floats, scale: np.float32) -> Floats:
    return divided(o * scale)


def _in_both(o: Floats, divided: Callable[[Floats], Floats], inverse: Floats, scale: np.float32) -> Floats:
    return (o * (inverse * scale)) * scale


SCALED_LAST = ChangedStep("o = fl(fl(o / L) * v_scale)", Family.PROMOTION_ORDER, _ONLINE, _then_scale, 0)
VALUE_SCALINGS: tuple[Any, ...] = (
    SCALED_LAST,
    ChangedStep("o = fl(o * fl(rcp(L) * v_scale))", Family.PROMOTION_ORDER, _ONLINE, _scale_of_inverse),
    ChangedStep("o = fl(fl(o * v_scale) / L)", Family.PROMOTION_ORDER, _ONLINE, _scale_first),
    ChangedStep("v_scale is in the reciprocal and applied again", Family.SCALE_RULE, _ONLINE, _in_both),
)
