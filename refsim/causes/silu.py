"""SiLU as a plan, z * sigmoid(z): alone, or as the gate of another function of rows."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from refsim.causes.amax_changes import ChangedStep
from refsim.causes.row_subject import AS_READ, STEPS_IN_FLOAT32, Doubles, Floats, RowSubject, common_causes
from refsim.causes.rows import Cause, Family
from refsim.causes.special import DIVIDED, DIVISIONS, EX2_SUBNORMAL, EXP_EXACT, EXPONENTIALS, FULL, LOG2_OF_E, NATURAL
from refsim.causes.writing import WrittenPlan
from refsim.conversions import decode, encode
from refsim.formats import F32, Format
from refsim.sources import TORCH

_SILU = TORCH["nn.functional.silu"]
WITH_LOG2_E, NO_LOG2_E = "2^(-z log2(e)) is in silu", "2^-z is in silu: no log2(e)"
UNIT_VALUE = np.float32(1)


def _next_row(step: int, z: Floats) -> Floats:
    """Return the row `step` rows on; at the edge the row itself."""
    return z[np.clip(np.arange(len(z)) + step, 0, len(z) - 1)]


def _first_row(z: Floats) -> Floats:
    return np.broadcast_to(z[:1], z.shape).astype(np.float32)


def _next_column(step: int, z: Floats) -> Floats:
    return z[:, np.clip(np.arange(z.shape[1]) + step, 0, z.shape[1] - 1)]


OWN_GATE = ChangedStep("the gate is that of the element", Family.GATE, _SILU, lambda z: z, 0)
GATES = (
    OWN_GATE,
    ChangedStep("the gate is that of the row before", Family.GATE, _SILU, partial(_next_row, -1)),
    ChangedStep("the gate is that of the next row", Family.GATE, _SILU, partial(_next_row, 1)),
    ChangedStep("the gate is that of the first row", Family.GATE, _SILU, _first_row),
    ChangedStep("the gate is that of the column before", Family.GATE, _SILU, partial(_next_column, -1)),
    ChangedStep("the gate is that of the next column", Family.GATE, _SILU, partial(_next_column, 1)),
)


def _rounded_before(y: Floats, silu: Floats, gate: Floats, format: Format) -> Floats:
    return y * decode(encode(silu, format), format, np.float32)


def _y_rounded_before(y: Floats, silu: Floats, gate: Floats, format: Format) -> Floats:
    return decode(encode(y, format), format, np.float32) * silu


def _both_rounded(y: Floats, silu: Floats, gate: Floats, format: Format) -> Floats:
    return _y_rounded_before(y, decode(encode(silu, format), format, np.float32), gate, format)


def _linear(y: Floats, silu: Floats, gate: Floats, format: Format) -> Floats:
    return y * gate


GATED = ChangedStep(
    "y is multiplied by silu(gate) in float32", Family.GATE, _SILU, lambda y, silu, gate, format: y * silu, 0
)
GATINGS = (
    GATED,
    ChangedStep("the gate is left out", Family.GATE, _SILU, lambda y, silu, gate, format: y),
    ChangedStep("the gate is multiplied without silu", Family.GATE, _SILU, _linear),
    ChangedStep(
        "silu(gate) is rounded to the output before the product", Family.DOUBLE_ROUNDING, _SILU, _rounded_before
    ),
    ChangedStep("y is rounded to the output before the product", Family.DOUBLE_ROUNDING, _SILU, _y_rounded_before),
    ChangedStep("y and silu(gate) are rounded before the product", Family.DOUBLE_ROUNDING, _SILU, _both_rounded),
)


@dataclass(frozen=True)
class Sigmoid:
    """The choices in silu(z) = z / (1 + e^-z)."""

    function: ChangedStep = EX2_SUBNORMAL
    quotient: ChangedStep = FULL
    base: str = WITH_LOG2_E

    def silu(self, z: Floats) -> Floats:
        """Return silu of float32 values."""
        if self.function in NATURAL:
            power = self.function.apply(-z if self.base == WITH_LOG2_E else -z / LOG2_OF_E)
        else:
            power = self.function.apply(-z * LOG2_OF_E if self.base == WITH_LOG2_E else -z)
        return np.asarray(self.quotient.apply(z, UNIT_VALUE + power), np.float32)


def silu_wide(z: Floats) -> Doubles:
    """Return z / (1 + e^-z) in float64."""
    wide = z.astype(np.float64)
    return np.asarray(wide / (1 + np.exp(-wide)), np.float64)


EXACT_SIGMOID = Sigmoid(EXP_EXACT, DIVIDED)


def sigmoid_causes() -> Iterator[Cause]:
    """Yield the causes in silu: aspects `silu_function`, `silu_quotient` and `silu_base`."""
    for row in EXPONENTIALS:
        yield row.cause("silu_function")
    for row in DIVISIONS:
        yield replace(row.cause("silu_quotient"), says=f"silu: z {row.name}, of 1 + e^-z")
    for base in (WITH_LOG2_E, NO_LOG2_E):
        yield Cause(Family.BASE, base, "silu_base", base, _SILU, int(base == NO_LOG2_E))


def gate_causes(format: Format) -> Iterator[Cause]:
    """Yield the causes in the gate of an element and in its product with y: aspects `gate` and `gating`."""
    for row in GATES:
        yield row.cause("gate")
    for row in GATINGS:
        if row.family is not Family.DOUBLE_ROUNDING or format is not F32:
            yield row.cause("gating")


@dataclass(frozen=True)
class SiluPlan(WrittenPlan):
    """The choices; `exchanged`: silu is applied to x and not to the gate."""

    silu_function: ChangedStep = EX2_SUBNORMAL
    silu_quotient: ChangedStep = FULL
    silu_base: str = WITH_LOG2_E
    read: ChangedStep = AS_READ
    gate: ChangedStep = OWN_GATE
    gating: ChangedStep = GATED
    exchanged: bool = False
    wide: str = STEPS_IN_FLOAT32


@dataclass(frozen=True, eq=False)
class SiluOfPlans(RowSubject):
    """silu(x), or x * silu(gate) where there is a gate."""

    @property
    def usual(self) -> SiluPlan:
        """Return the silu of refsim's kernel; `exact`: e^z and quotients rounded once."""
        own = EXACT_SIGMOID if self.exact else Sigmoid()
        return SiluPlan(own.function, own.quotient, own.base)

    def causes(self) -> Sequence[Cause]:
        """Return every cause that applies to these operands."""
        found = [*common_causes(self.format), *sigmoid_causes()]
        if self.gate is not None:
            found += gate_causes(self.format)
            for exchanged, says in ((False, "silu is of the gate"), (True, "silu is of x, not of the gate")):
                found.append(Cause(Family.GATE, says, "exchanged", exchanged, _SILU, int(exchanged)))
        return found

    def computed(self, plan: SiluPlan, rows: Any, key: tuple[Any, ...]) -> Any:
        """Return silu, or its product, with the plan's own silu."""
        return self._gated(plan, rows, Sigmoid(plan.silu_function, plan.silu_quotient, plan.silu_base).silu)

    def computed_wide(self, plan: SiluPlan, rows: Any) -> Any:
        return self._gated(plan, rows, silu_wide)

    def _gated(self, plan: SiluPlan, rows: Any, silu: Callable[[Floats], Any]) -> Any:
        x = plan.read.apply(self.x, self.x_format)[rows]
        if self.gate is None:
            return silu(x)
        gate = plan.gate.apply(self.gate)[rows]
        x, gate = (gate, x) if plan.exchanged else (x, gate)
        return plan.gating.apply(x, silu(gate), gate, self.format)

    def described(self, plan: SiluPlan) -> str:
        """Return the plan as text."""
        if plan.wide != STEPS_IN_FLOAT32:
            return f"silu: {plan.wide}"
        steps: tuple[Any, ...] = (plan.read, plan.gate, plan.gating)
        words = [f"silu: {plan.silu_function.name}, divided {plan.silu_quotient.name}"]
        words += [plan.silu_base] if plan.silu_base == NO_LOG2_E else []
        words += [step.name for step in steps if step.rank]
        return ", ".join(words)
