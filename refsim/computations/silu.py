"""SiLU, z * sigmoid(z): alone, or as the gate of another function of rows."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from refsim.computations import special
from refsim.computations.engine import Aspect
from refsim.computations.row_functions import COMMON, Doubles, Floats, Key, RowFunction, Rows, has
from refsim.computations.ways import Cause, Choices, Family, Way, beside, rounded_to, ways_of, worded
from refsim.sources import TORCH, Source

_SILU = TORCH["nn.functional.silu"]
BASES = worded(Family.BASE, _SILU, "2^(-z log2(e)) is in silu", "2^-z is in silu: no log2(e)")
UNIT_VALUE = np.float32(1)


def places_of(name: str, family: Family, source: Source) -> tuple[Way, ...]:
    """Return the rows and columns from which the operand `name` (rows, columns) of an element is taken."""
    rows = {
        "element": lambda z: z,
        "row before": partial(beside, -1),
        "next row": partial(beside, 1),
        "first row": lambda z: np.broadcast_to(z[:1], z.shape),
        "column before": partial(beside, -1, axis=1),
        "next column": partial(beside, 1, axis=1),
    }
    return ways_of(family, source, {f"the {name} is that of the {place}": take for place, take in rows.items()})


GATES = places_of("gate", Family.GATE, _SILU)
GATINGS = (
    *ways_of(
        Family.GATE,
        _SILU,
        {
            "y is multiplied by silu(gate) in float32": lambda y, silu, gate, to: y * silu,
            "the gate is left out": lambda y, silu, gate, to: y,
            "the gate is multiplied without silu": lambda y, silu, gate, to: y * gate,
        },
    ),
    *ways_of(
        Family.DOUBLE_ROUNDING,
        _SILU,
        {
            "silu(gate) is rounded to the output before the product": lambda y, silu, gate, to: (
                y * rounded_to(silu, to)
            ),
            "y is rounded to the output before the product": lambda y, silu, gate, to: rounded_to(y, to) * silu,
            "y and silu(gate) are rounded before the product": lambda y, silu, gate, to: (
                rounded_to(y, to) * rounded_to(silu, to)
            ),
        },
        usual_rank=1,
    ),
)


def silu_of(plan: Choices, z: Floats) -> Floats:
    """Return z / (1 + e^-z) of float32 values under the aspects of silu."""
    is_natural, has_factor = plan.silu_function in special.NATURAL, plan.silu_base is BASES[0]
    exponent = -z if is_natural == has_factor else -z * special.LOG2_OF_E if has_factor else -z / special.LOG2_OF_E
    power = plan.silu_function.apply(exponent)
    return np.asarray(plan.silu_quotient.apply(z, UNIT_VALUE + power), np.float32)


def silu_wide(z: Floats) -> Doubles:
    """Return z / (1 + e^-z) in float64."""
    wide = z.astype(np.float64)
    return np.asarray(wide / (1 + np.exp(-wide)), np.float64)


SIGMOID = (
    Aspect("silu_function", special.EXPONENTIALS, special.EX2_SUBNORMAL, special.EXP_EXACT, told="{}"),
    Aspect(
        "silu_quotient", special.DIVISIONS, special.FULL, special.DIVIDED, "silu: z {}, of 1 + e^-z", told="divided {}"
    ),
    Aspect("silu_base", BASES),
)
GATE = Aspect("gate", GATES, when=has("gate")), Aspect("gating", GATINGS, when=has("gate"))
_EXCHANGES = tuple(
    Cause(Family.GATE, says, "exchanged", exchanged, _SILU, int(exchanged))
    for exchanged, says in ((False, "silu is of the gate"), (True, "silu is of x, not of the gate"))
)


@dataclass(frozen=True, eq=False)
class Silu(RowFunction):
    """silu(x), or x * silu(gate) where there is a gate; `exchanged`: silu is applied to x and not to the gate."""

    title = "silu: "
    aspects = (*COMMON, *SIGMOID, *GATE, Aspect("exchanged", _EXCHANGES, usual=False, when=has("gate")))

    def value(self, plan: Choices, rows: Rows, key: Key) -> Any:
        """Return silu, or its product, with the plan's own silu."""
        return self._gated(plan, rows, partial(silu_of, plan))

    def wide(self, plan: Choices, rows: Rows) -> Any:
        return self._gated(plan, rows, silu_wide)

    def _gated(self, plan: Choices, rows: Rows, silu: Callable[[Floats], Any]) -> Any:
        x = self.read(plan, rows)
        if self.gate is None:
            return silu(x)
        gate = plan.gate.apply(self.gate)[rows]
        x, gate = (gate, x) if plan.exchanged else (x, gate)
        return plan.gating.apply(x, silu(gate), gate, self.format)
