"""Outputs of a quantiser: codes or scales of a known tensor, under every recipe that a library has for them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refsim.causes.placing import IN_PLACE, Placing, placing_causes
from refsim.causes.rows import Cause, Codes, Family, Sample
from refsim.errors import RefsimError, unknown
from refsim.formats import E4M3, E8M0, F32, Format
from refsim.scaling.block_formats import BLOCK_FORMATS, block_format
from refsim.scaling.blocks import quantize as in_blocks
from refsim.scaling.quantizing import quantize as in_groups
from refsim.scaling.recipes import recipe_named, recipes_of
from refsim.scaling.rows import NAN_RULES, QUOTIENTS, SCALE_KINDS
from refsim.sources import DEEPGEMM, Source

GROUPS = {"1x128": (1, 128), "128x128": (128, 128)}
Pair = tuple[NDArray[Any], NDArray[Any]]


@dataclass(frozen=True)
class ScaleRule:
    """A way to quantise: `apply(x, format)` gives codes and scales."""

    name: str
    source: Source
    apply: Callable[[NDArray[Any], str | Format | None], Pair]


@dataclass(frozen=True, kw_only=True)
class QuantizedFrom:
    """What a quantiser read: `x`, values of bfloat16, float16 or float32, or codes with their `x_format`.

    `to`: a block format (mxfp8, mxfp4, nvfp4, ...), or FP8 groups of "1x128" or "128x128". `recipe` is what is usual there, by
    default what `refsim.quantize` takes. QuantizedFrom(x=x, to="mxfp8") explains codes of x's shape, or scales of its blocks.
    """

    x: ArrayLike
    to: str
    x_format: str | Format | None = None
    recipe: str | None = None

    def rules(self) -> tuple[ScaleRule, ...]:
        """Every rule for `to`, the usual one first. Raises RefsimError for what is neither blocks nor groups."""
        if self.to in GROUPS:
            return _group_rules(GROUPS[self.to])
        if self.to not in {name for row in BLOCK_FORMATS for name in (row.name, *row.aliases)}:
            raise unknown("quantisation", self.to, [*(row.name for row in BLOCK_FORMATS), *GROUPS])
        usual = recipe_named(self.recipe, self.to)
        rows = [usual, *(row for row in recipes_of(self.to) if row is not usual)]
        return tuple(ScaleRule(row.name, row.source, _block_rule(self.to, row.name)) for row in rows)

    def explained(self, shape: tuple[int, ...], format: Format) -> "QuantizedTensor":
        """Codes or scales, whichever has that shape. Raises RefsimError where neither has."""
        x, rules = np.asarray(self.x), self.rules()
        made = rules[0].apply(x, self.x_format)
        fitting = [at for at, each in enumerate(made) if each.shape == shape]
        if not fitting:
            shapes = " or ".join(str(each.shape) for each in made)
            raise RefsimError("shape-mismatch", f"the output has shape {shape}", rule=f"codes or scales: {shapes}")
        wanted = (self._element, self._scale)[fitting[0]]
        if format is not wanted:
            raise RefsimError(
                "format-mismatch", f"the output holds {format}", rule=f"a quantiser to {self.to}: {wanted}"
            )
        return QuantizedTensor(x, self.x_format, rules, fitting[0], shape, format, QuantizingPlan(rules[0]))

    @property
    def _element(self) -> Format:
        return E4M3 if self.to in GROUPS else block_format(self.to).element

    @property
    def _scale(self) -> Format:
        return F32 if self.to in GROUPS else block_format(self.to).scale


@dataclass(frozen=True)
class QuantizingPlan:
    """The choices: the rule of scales, and where outputs are put."""

    rule: ScaleRule
    placed: Placing = IN_PLACE


@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """Codes (`which` 0) or scales (1) of a tensor."""

    x: NDArray[Any]
    x_format: str | Format | None
    rules: tuple[ScaleRule, ...]
    which: int
    shape: tuple[int, ...]
    format: Format
    usual: QuantizingPlan
    made: dict[str, Codes] = field(default_factory=dict)

    is_sampled = False

    def causes(self) -> Sequence[Cause]:
        rules = [Cause(Family.SCALE_RULE, f"the rule {row.name}", "rule", row, row.source) for row in self.rules]
        return [*rules, *placing_causes()]

    def codes(self, plan: QuantizingPlan, sample: Sample | None = None) -> Codes:
        name = plan.rule.name
        if name not in self.made:
            self.made[name] = _as_codes(plan.rule.apply(self.x, self.x_format)[self.which], self.format)
        return plan.placed.put(self.made[name])

    def undone(self, plan: QuantizingPlan, got: Codes) -> tuple[QuantizingPlan, Codes]:
        return replace(plan, placed=IN_PLACE), plan.placed.back(got)

    def another(self, seed: int, *, wide: bool = False) -> "QuantizedTensor":
        """Values of many magnitudes, blocks of subnormals and of zeros among them."""
        random = np.random.default_rng(seed)
        x = random.normal(0, 1, self.x.shape) * 2.0 ** random.integers(-130, 100, (*self.x.shape[:-1], 1))
        rows = np.where(random.random(self.x.shape) < 0.05, 0, x).astype(np.float32)
        return QuantizedTensor(rows, None, self.rules, self.which, self.shape, self.format, self.usual)

    def described(self, plan: QuantizingPlan) -> str:
        return f"quantised by the rule {plan.rule.name}"


def _as_codes(array: NDArray[Any], format: Format) -> Codes:
    if array.dtype.kind != "f":
        return array
    return np.ascontiguousarray(array).view(format.code_dtype)


def _block_rule(to: str, recipe: str) -> Callable[[NDArray[Any], str | Format | None], Pair]:
    def apply(x: NDArray[Any], x_format: str | Format | None) -> Pair:
        found = in_blocks(x, to, recipe=recipe, input_format=x_format)
        return found.codes, found.scales

    return apply


def _group_rules(group: tuple[int, int]) -> tuple[ScaleRule, ...]:
    """Every kind of scale that is float32, quotient and way of NaN."""
    source = DEEPGEMM["per_token_cast_to_fp8 and per_block_cast_to_fp8"]
    found = []
    for kind, quotient, nan in product(SCALE_KINDS, QUOTIENTS, NAN_RULES):
        if kind.format is E8M0:
            continue

        def apply(
            x: NDArray[Any], x_format: str | Format | None, kind: Any = kind, quotient: Any = quotient, nan: Any = nan
        ) -> Pair:
            made = in_groups(x, x_format, group=group, scale=kind, quotient=quotient, nan=nan)
            return made.codes, made.scales

        words = {"reciprocal": "times the reciprocal of the scale", "divide": "divided by the scale"}[quotient]
        name = f"{kind.name}: {kind.summary}; {words}, NaN {nan}"
        found.append(ScaleRule(name, source, apply))
    return tuple(found)
