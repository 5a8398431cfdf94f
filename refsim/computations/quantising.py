"""Rules of quantizers in steps that a cause can change: amax of a block, its stored scale, the converted value."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.computations.ways import Cause, Family
from refsim.conversions import decode
from refsim.conversions.policies import policy_row
from refsim.conversions.rounding import EncodingRule
from refsim.errors import RefsimError, named, unknown
from refsim.formats import E8M0, F32, MXINT8, UE4M3, Format
from refsim.mufu import unit
from refsim.oracles import fp8_quantize
from refsim.scaling import quantizing
from refsim.scaling.block_formats import block_format
from refsim.scaling.mx_recipes import MxRecipe, multiplier_table, mx_scale_codes
from refsim.scaling.nvfp4_recipes import Nvfp4Recipe, nvfp4_scale_codes, nvfp4_scales
from refsim.scaling.quantizing import scales_of
from refsim.scaling.recipes import recipe_named, recipes_of
from refsim.scaling.rows import NAN_RULES, QUOTIENTS, SCALE_KINDS, ScaleKind, scale_kind
from refsim.sources import DEEPGEMM, PTX, Source

Singles = NDArray[np.float32]
Grid = tuple[int, int]
_ONE = np.float32(1)
WHOLE_BYTE = replace(MXINT8, name="int8", aliases=("s8",), bias=-6, source=PTX["cvt.rni.sat.s8.f32"])
"""Whole numbers from -128 to 127, as a format."""
WHOLE_NIBBLE = replace(WHOLE_BYTE, name="int4", aliases=("s4",), mantissa_bits=3, bias=-2)
ONE_SCALE = "tensor"
_VARIED = {"nan": Family.NAN, "infinity": Family.SATURATION, "scale": Family.SCALE_RULE}
CASTS = DEEPGEMM["per_token_cast_to_fp8 and per_block_cast_to_fp8"]


@dataclass(frozen=True, eq=False)
class ScaleGrid:
    """The scales of all blocks: largest magnitudes, the tensor's factor `kept`, and stored codes or float32.

    `value`: the scales before rounding, float32; `is_unrounded`: elements use those. Scales map amax to `largest`.
    """

    peak: Singles
    kept: Singles
    stored: NDArray[Any]
    value: Singles
    is_unrounded: bool = False
    largest: float = 1.0


@dataclass(frozen=True, eq=False)
class QuantizingRule:
    """The rule of one library: `scale(peak, kept, limit)` returns stored scales and their values before rounding.

    `scaled(x, grid)` returns the value that the conversion `element` takes; all arrays of the grid are spread over x.
    Scales map amax to the largest value of `limit`; `floor` bounds amax from below; `stored_as` is the format of a
    scale. `tensor_counts_nan`: whether a NaN counts as the tensor's largest value, where that differs from blocks.
    `chosen(x, peak, kept)` replaces `scale` where elements decide between two scales: 4over6.
    """

    name: str
    source: Source
    group: Grid
    element: EncodingRule
    stored_as: Format
    counts_nan: bool
    tensor: Callable[[Singles], Singles]
    scale: Callable[[Singles, Singles, Format], tuple[NDArray[Any], Singles]]
    scaled: Callable[[Singles, ScaleGrid], Singles]
    floor: float = 0.0
    tensor_counts_nan: bool | None = None
    chosen: Callable[[Singles, Singles, Singles], tuple[NDArray[Any], Singles]] | None = None

    def decoded(self, stored: NDArray[Any]) -> Singles:
        """Return stored scales as float32."""
        return stored if stored.dtype == np.float32 else decode(stored, self.stored_as, np.float32)


def _one(peak: Singles) -> Singles:
    return np.ones(1, np.float32)


# ---- blocks of MX ----------------------------------------------------------------------------------------------------------


def _mx(to: str, recipe: MxRecipe) -> QuantizingRule:
    """Return the rule of an MX recipe for a block format."""
    row, table, unbounded = block_format(to), multiplier_table(recipe), replace(recipe, eps=())
    element, floor = policy_row(recipe.policy, row.element).rule, dict(recipe.eps).get(row.element.name, 0.0)

    def scale(peak: Singles, kept: Singles, limit: Format) -> tuple[NDArray[Any], Singles]:
        return mx_scale_codes(peak, unbounded, limit), np.asarray(peak / np.float32(limit.max_value), np.float32)

    def scaled(x: Singles, grid: ScaleGrid) -> Singles:
        factors = _ONE / grid.value if grid.is_unrounded else table[grid.stored]
        if recipe.flushes:
            x = np.where(grid.peak < np.finfo(np.float32).tiny, np.float32(0), x)
        return np.asarray(x * factors, np.float32)

    counts = recipe.nan != NAN_RULES[1]
    return QuantizingRule(recipe.name, recipe.source, (1, row.width), element, E8M0, counts, _one, scale, scaled, floor)


# ---- NVFP4 -----------------------------------------------------------------------------------------------------------------


def _nvfp4(to: str, recipe: Nvfp4Recipe) -> QuantizingRule:
    """Return the rule of an NVFP4 recipe."""
    row = block_format(to)

    def scale(peak: Singles, kept: Singles, limit: Format) -> tuple[NDArray[Any], Singles]:
        return nvfp4_scale_codes(peak, recipe, kept), np.asarray(recipe.scale(peak, kept), np.float32)

    def chosen(x: Singles, peak: Singles, kept: Singles) -> tuple[NDArray[Any], Singles]:
        found = nvfp4_scales(x.reshape(-1, row.width), peak.reshape(-1), recipe, kept, element)
        return found[0].reshape(peak.shape), found[1].reshape(peak.shape)

    def scaled(x: Singles, grid: ScaleGrid) -> Singles:
        scales = grid.value if grid.is_unrounded else decode(grid.stored, UE4M3, np.float32)
        return np.asarray(recipe.scaled(x, scales, grid.peak, grid.kept), np.float32)

    element, counts = policy_row(recipe.policy, row.element).rule, recipe.nan != NAN_RULES[1]
    steps: dict[str, Any] = {"scale": scale, "scaled": scaled, "chosen": chosen if recipe.four else None}
    block = recipe.name, recipe.source, (1, row.width), element, UE4M3, counts
    return QuantizingRule(*block, recipe.tensor, **steps)


# ---- groups of FP8 ---------------------------------------------------------------------------------------------------------

_APPROXIMATE = "rcp.approx.ftz.f32"
QUOTIENT_WORDS = {
    QUOTIENTS[0]: "times the reciprocal of the scale",
    QUOTIENTS[1]: "divided by the scale",
    "largest": "times MAX / amax",
    "approximate": f"times {_APPROXIMATE} of the scale",
}


def element_rule(to: Format) -> EncodingRule:
    """Return how CUDA converts float32 to a small format or to int8: it saturates; NaN is 0 in int8."""
    return (
        EncodingRule(WHOLE_BYTE, "nearest-even", "saturate", 0, 0)
        if to is WHOLE_BYTE
        else policy_row("cuda.satfinite", to).rule
    )


def _quotient(name: str, x: Singles, scales: Singles, grid: ScaleGrid) -> Singles:
    """Return x scaled in the named way: quotient, reciprocal, approximate reciprocal, or MAX / amax."""
    if name == QUOTIENTS[1]:
        return np.asarray(x / scales, np.float32)
    if name == "approximate":
        return np.asarray(x * unit.rcp(np.ascontiguousarray(scales).view(np.uint32)).view(np.float32), np.float32)
    return np.asarray(x * (np.float32(grid.largest) / grid.peak if name == "largest" else _ONE / scales), np.float32)


def _group_rule(group: Grid, to: Format, kind: ScaleKind, quotient: str, nan: str) -> QuantizingRule:
    """Return the rule of FP8 groups with one kind of scale, one quotient and one treatment of NaN."""

    def scale(peak: Singles, kept: Singles, limit: Format) -> tuple[NDArray[Any], Singles]:
        return np.asarray(scales_of(peak, limit, kind)[1]), np.asarray(peak / np.float32(limit.max_value), np.float32)

    def scaled(x: Singles, grid: ScaleGrid) -> Singles:
        stored = grid.stored if kind.format is F32 else decode(grid.stored, E8M0, np.float32)
        return _quotient(quotient, x, grid.value if grid.is_unrounded else stored, grid)

    source = PTX["rcp.approx.ftz.f32"] if quotient == "approximate" else CASTS
    name = f"{kind.name}: {kind.summary}; {QUOTIENT_WORDS[quotient]}, NaN {nan}"
    element, counts, floor = element_rule(to), nan != NAN_RULES[1], 0.0 if to is WHOLE_BYTE else quantizing.EPS
    return QuantizingRule(name, source, group, element, kind.format, counts, _one, scale, scaled, floor)


def group_rules(group: Grid, to: Format, scale: Format) -> Iterator[QuantizingRule]:
    """Yield a rule for every kind of scale that `scale` holds, every quotient and treatment of NaN, usual first."""
    for kind, quotient, nan in product(SCALE_KINDS, QUOTIENT_WORDS, NAN_RULES):
        if kind.format is scale and not (kind.is_power_of_two and quotient != QUOTIENTS[0]):
            yield _group_rule(group, to, kind, quotient, nan)


# ---- one scale for the tensor ----------------------------------------------------------------------------------------------


def tensor_rules(shape: Grid, to: Format) -> Iterator[QuantizingRule]:
    """Yield the rules with one scale for the tensor: 1 / (MAX / amax) or amax / MAX is stored, with each quotient."""

    def scale(stores: str, peak: Singles, kept: Singles, limit: Format) -> tuple[NDArray[Any], Singles]:
        value = np.asarray(peak / np.float32(limit.max_value), np.float32)
        inverse = np.asarray(_ONE / (np.float32(limit.max_value) / peak), np.float32)
        return (inverse if stores == "1 / (MAX / amax)" else value), value

    def scaled(quotient: str, x: Singles, grid: ScaleGrid) -> Singles:
        return _quotient(quotient, x, grid.stored, grid)

    for stores, quotient in product(("1 / (MAX / amax)", "amax / MAX"), ("largest", *QUOTIENTS, "approximate")):
        name = f"{stores} is stored; {QUOTIENT_WORDS[quotient]}"
        steps = partial(scale, stores), partial(scaled, quotient), fp8_quantize.EPS
        yield QuantizingRule(name, CASTS, shape, element_rule(to), F32, False, _one, *steps)


def fp8_rules(
    shape: Grid, to: Format, per: str | Grid, scale: str, quotient: str, nan: str
) -> tuple[QuantizingRule, ...]:
    """Return the rules of FP8 codes with one scale (`per` "tensor") or one a group, the chosen one first."""
    kind, words = scale_kind(scale), named("quotient", quotient, QUOTIENT_WORDS)
    if per == ONE_SCALE:
        rules, begins, ends = tuple(tensor_rules(shape, to)), "amax / MAX", ""
    elif isinstance(per, str):
        raise unknown("group", per, [ONE_SCALE, "row"])
    else:
        rules, begins, ends = tuple(group_rules(per, to, kind.format)), f"{kind.name}:", f"NaN {nan}"
    first = [row for row in rules if row.name.startswith(begins) and words in row.name and row.name.endswith(ends)]
    if not first:
        what = f"no rule has scale {scale!r}, quotient {quotient!r} and nan {nan!r}"
        kinds = ", ".join(each.name for each in SCALE_KINDS)
        raise RefsimError("bad-kernel", what, "quantize(...)", f"scale: {kinds}; a power of two takes reciprocals")
    return (first[0], *(rule for rule in rules if rule is not first[0]))


def settled(rule: QuantizingRule, eps: float | None, factor: Any) -> QuantizingRule:
    """Return a rule with the given bound of amax and factor of the tensor."""
    if factor is not None:
        kept = np.array([factor], np.float32)
        rule = replace(rule, tensor=lambda peak: kept)
    return rule if eps is None else replace(rule, floor=float(eps))


def block_causes(to: str, recipe: str | None, eps: float | None, factor: Any) -> tuple[Cause, ...]:
    """Return the causes that change one setting of the rule of `recipe`."""
    return tuple(
        Cause(_VARIED[kind], says, "rule", settled(rule, eps, factor), rule.source, 2)
        for kind, says, rule in block_variants(to, recipe)
    )


def block_variants(to: str, recipe: str | None) -> Iterator[tuple[str, str, QuantizingRule]]:
    """Yield the rule of `recipe` with one setting changed: the kind of change, its text, and the rule."""
    usual = recipe_named(recipe, to)
    other_nan = NAN_RULES[0] if usual.nan == NAN_RULES[1] else NAN_RULES[1]
    counts = "counts" if other_nan == NAN_RULES[0] else "does not count"
    if isinstance(usual, Nvfp4Recipe):
        other, own = _nvfp4(to, replace(usual, nan=other_nan)), usual.nan != NAN_RULES[1]
        yield "nan", f"a NaN {counts} among the largest of its block", replace(other, tensor_counts_nan=own)
        yield "nan", f"a NaN {counts} among the largest of its block and of the tensor", other
        return
    yield "nan", f"a NaN {counts} among the largest", _mx(to, replace(usual, nan=other_nan))
    way = f"what lies at 2^-127 or below {'goes down to 2^-127' if usual.lifts_subnormals else 'is lifted to 2^-126'}"
    yield "scale", way, _mx(to, replace(usual, lifts_subnormals=not usual.lifts_subnormals))
    for code in (0, 127, 254, 255):
        if code != usual.nan_code:
            yield "nan", f"a block with a NaN has the scale code {code:#04x}", _mx(to, replace(usual, nan_code=code))
        if code != usual.infinity:
            says = f"a block with an infinity has the scale code {code:#04x}"
            yield "infinity", says, _mx(to, replace(usual, infinity=code))
    if usual.divisor == "power":
        return
    quotient = QUOTIENTS[0] if usual.quotient == QUOTIENTS[1] else QUOTIENTS[1]
    says = "amax is multiplied by 1 / MAX, rounded" if quotient == QUOTIENTS[0] else "amax is divided by MAX"
    yield "scale", says, _mx(to, replace(usual, quotient=quotient))


def block_rules(to: str, recipe: str | None) -> Iterator[QuantizingRule]:
    """Yield the rules of a block format, the rule of `recipe` first."""
    usual = recipe_named(recipe, to)
    for row in (usual, *(row for row in recipes_of(to) if row is not usual)):
        yield _mx(to, row) if isinstance(row, MxRecipe) else _nvfp4(to, row)
