"""NVFP4 a second time: one block, in fractions rounded to float32, with the formulas of the libraries."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from refsim.reference.block_quantize import BLOCK_ELEMENTS, RULE_OF_RECIPE, block_quantize, nearest_code
from refsim.reference.group_quantize import NARROW_VALUES, narrow_code
from refsim.reference.rational_float import GRIDS, ExactNumber, div, mul

GRID = GRIDS["f32"]


@dataclass(frozen=True)
class Single:
    """A float32; each product and quotient is exact, then rounded once."""

    number: ExactNumber

    @classmethod
    def of(cls, value: float | Fraction) -> "Single":
        """Return a number rounded to float32."""
        return cls(GRID.decode(GRID.encode(ExactNumber(str(value).startswith("-"), abs(Fraction(value))))))

    def __mul__(self, other: "Single") -> "Single":
        """Return the product rounded to float32."""
        return Single(GRID.decode(GRID.encode(mul(self.number, other.number))))

    def __truediv__(self, other: "Single") -> "Single":
        """Return the quotient rounded to float32."""
        return Single(GRID.decode(GRID.encode(div(self.number, other.number))))

    @property
    def magnitude(self) -> Fraction:
        """Return the magnitude as a fraction."""
        return Fraction(self.number.magnitude)


SIX, SINGLE_ONE, PRODUCT = Single.of(6), Single.of(1), Single.of(2688)
Formula = Callable[[Single, Single], Single]


@dataclass(frozen=True)
class TwoLevels:
    """One recipe's formulas: `kept` from the tensor's amax, the scale of a block's amax, the scaled value of an
    element."""

    kept: Callable[[Single], Single]
    scale: Formula
    scaled: Callable[[Single, Single, Single], Single]
    least: Fraction = Fraction(0)


TWO_LEVELS = {
    "te": TwoLevels(
        lambda amax: PRODUCT / amax,
        lambda amax, s: amax * (s * (SINGLE_ONE / SIX)),
        lambda x, v, s: x * (SINGLE_ONE / (v * (SINGLE_ONE / s))),
    ),
    "te_cpp_2d": TwoLevels(lambda amax: PRODUCT / amax, lambda amax, s: amax / SIX * s, lambda x, v, s: x * (s / v)),
    "vllm_reference": TwoLevels(
        lambda amax: SINGLE_ONE / amax * PRODUCT,
        lambda amax, s: s * (amax * (SINGLE_ONE / SIX)),
        lambda x, v, s: x * (SINGLE_ONE / (v * (SINGLE_ONE / s))),
    ),
    "torchao": TwoLevels(
        lambda amax: amax / PRODUCT,
        lambda amax, s: amax / SIX / s,
        lambda x, v, s: x * (SINGLE_ONE / s / v),
        Fraction(1, 64),
    ),
    "modelopt": TwoLevels(
        lambda amax: amax / PRODUCT, lambda amax, s: amax / (SIX * s), lambda x, v, s: x / (v * s), Fraction(1, 512)
    ),
    "compressed_tensors": TwoLevels(
        lambda amax: SINGLE_ONE / amax * PRODUCT, lambda amax, s: s * (amax / SIX), lambda x, v, s: x / (v / s)
    ),
}


TWO_LEVELS |= dict.fromkeys(("te_cpp", "te_reference"), TWO_LEVELS["te"])
LEAST = 2**-12


def two_level_quantize(
    block: list[float], amax: float, recipe: str, tensor_scale: float | None = None
) -> tuple[list[int], int]:
    """Return the codes and the scale code of a block of finite numbers, in a tensor with that amax or that kept value.
    The codes of a block whose scale is zero are left out."""
    kept = TWO_LEVELS[recipe].kept(Single.of(amax)) if tensor_scale is None else Single.of(tensor_scale)
    code = scale_code(max(abs(value) for value in block), kept, recipe)
    return [element_code(element, code, kept, recipe) for element in block] if code else [], code


def ordinary_block(block: list[float], amax: float, recipe: str, format: str, tensor_scale: float | None) -> list[int]:
    """Return the codes of a block and, behind them, of its scale; -1 for a zero whose sign the recipe's library loses.

    `recipe` and `format` are names of `refsim.scaling`. The list is empty for other recipes, for blocks with NaN or
    infinities or of zeros only, for magnitudes far from 1 and for scales of zero.
    """
    peak = max(map(abs, block)) if all(map(math.isfinite, block)) else math.inf
    if format != "nvfp4":
        is_known = recipe in RULE_OF_RECIPE and (recipe, format) != ("deepgemm", "mxfp4")
        codes, code = (
            block_quantize(block, RULE_OF_RECIPE[recipe], format) if is_known and LEAST <= peak < 2**100 else ([], 0)
        )
        return [*codes, code] if codes else []
    is_ordinary = LEAST <= peak < 2**60 and 2**-60 <= (amax if tensor_scale is None else tensor_scale) < 2**60
    codes, code = (
        two_level_quantize(block, amax, recipe, tensor_scale) if is_ordinary and recipe in TWO_LEVELS else ([], 0)
    )
    loses_sign = not recipe.startswith("te") or recipe == "te_reference"
    codes = [-1 if loses_sign and not value else each for value, each in zip(block, codes, strict=False)]
    return [*codes, code] if code else []


def scale_code(peak: float, kept: Single, recipe: str) -> int:
    """Return the scale code of a block whose largest magnitude is `peak`; `kept` is the tensor's kept value."""
    scale = TWO_LEVELS[recipe].scale(Single.of(peak), kept)
    return narrow_code(ExactNumber(False, max(scale.magnitude, TWO_LEVELS[recipe].least)), "e4m3")


def element_code(element: float, code: int, kept: Single, recipe: str) -> int:
    """Return the e2m1 code of one element of a block with that scale code."""
    value = Single.of(NARROW_VALUES["e4m3"].values[code])
    scaled = TWO_LEVELS[recipe].scaled(Single.of(element), value, kept)
    return nearest_code(scaled.magnitude, scaled.number.negative, BLOCK_ELEMENTS["mxfp4"])
