"""Outputs that are known values rounded: which way, once or twice, and what overflows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.causes.placing import IN_PLACE, Placing, placing_causes
from refsim.causes.rows import Cause, Codes, Sample
from refsim.causes.writing import USUAL_WRITING, Writing, writing_causes
from refsim.formats import Format


@dataclass(frozen=True)
class WritingPlan:
    """The choices: how a value is rounded, and where it is written."""

    written: Writing = USUAL_WRITING
    placed: Placing = IN_PLACE


@dataclass(frozen=True, eq=False)
class WideValues:
    """The values from which an output was rounded, in the format `wide`: float32 or float64."""

    values: NDArray[Any]
    wide: Format
    format: Format

    usual = WritingPlan()
    is_sampled = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def causes(self) -> Sequence[Cause]:
        return [*writing_causes(self.format, self.wide), *placing_causes()]

    def codes(self, plan: WritingPlan, sample: Sample | None = None) -> Codes:
        return plan.placed.put(plan.written.codes(self.values, self.format))

    def undone(self, plan: WritingPlan, got: Codes) -> tuple[WritingPlan, Codes]:
        return replace(plan, placed=IN_PLACE), plan.placed.back(got)

    def another(self, seed: int, *, wide: bool = False) -> "WideValues":
        """Return drawn values: ties, numbers between codes, subnormals, and numbers that overflow."""
        random = np.random.default_rng(seed)
        fine = random.integers(-(1 << 15), 1 << 15, self.shape).astype(self.values.dtype)
        scales = 2.0 ** random.integers(-self.format.bias - 16, self.format.bias + 2, self.shape).clip(-140, 120)
        with np.errstate(over="ignore"):
            return WideValues(fine * scales.astype(self.values.dtype), self.wide, self.format)

    def described(self, plan: WritingPlan) -> str:
        return str(plan.written)
