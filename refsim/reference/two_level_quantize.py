"""NVFP4 a second time: one block, in fractions rounded to float32, with the formulas of the libraries."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import product

from refsim.reference.block_quantize import BLOCK_ELEMENTS, RULE_OF_RECIPE, block_quantize, nearest_code
from refsim.reference.group_quantize import NARROW_VALUES, narrow_code
from refsim.reference.rational_float import GRIDS, ExactNumber, add, div, mul, negated

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

    def __add__(self, other: "Single") -> "Single":
        """Return the sum rounded to float32."""
        return Single(GRID.decode(GRID.encode(add(self.number, other.number))))

    def __neg__(self) -> "Single":
        """Return the number with the other sign."""
        return Single(negated(self.number))

    def __lt__(self, other: "Single") -> bool:
        """Return whether the number is smaller."""
        return self.number.signed < other.number.signed

    @property
    def magnitude(self) -> Fraction:
        """Return the magnitude as a fraction."""
        return Fraction(self.number.magnitude)


SIX, SINGLE_ONE, PRODUCT, HALF_MORE = Single.of(6), Single.of(1), Single.of(2688), Single.of(1.5)
Formula = Callable[[Single, Single], Single]


@dataclass(frozen=True)
class TwoLevels:
    """One recipe's formulas: `kept` from the tensor's amax, the scale of a block's amax, the scaled value of an
    element."""

    kept: Callable[[Single], Single]
    scale: Formula
    scaled: Callable[[Single, Single, Single], Single]
    least: Fraction = Fraction(0)
    four: Formula | None = None
    """The scale that makes the largest of a block 4, where 4over6 may choose it."""
    value: Callable[[Single, Single, Single], Single] | None = None
    """The value of a code's value by a scale and the kept value, of which 4over6 takes the error."""
    kind: str = ""


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


def _of_amax(most: Single, kind: str) -> TwoLevels:
    """Return the formulas of 4over6 where amax is kept."""
    return TwoLevels(
        lambda amax: amax,
        lambda peak, amax: peak / SIX * (most / amax),
        lambda x, v, amax: x * (SINGLE_ONE / (v * (SINGLE_ONE / (most / amax)))),
        four=lambda peak, amax: peak / SIX * (most / amax) * HALF_MORE,
        value=lambda q, v, amax: q * v * amax / most,
        kind=kind,
    )


def _four_over_six() -> Iterator[tuple[str, TwoLevels]]:
    """Yield the names and formulas of 4over6."""
    for bound, kind in product((256, 448), ("mae", "mse")):
        most, end = Single.of(6 * bound), "_mse" if kind == "mse" else ""
        yield f"te_4over6{'' if bound == 256 else '_448'}{end}", _of_amax(most, kind)
    for kind in ("mse", "mae", "abs_max"):
        yield "fouroversix" if kind == "mse" else f"fouroversix_{kind}", _of_amax(Single.of(1536), kind)
    yield (
        "modelopt_4over6",
        TwoLevels(
            lambda amax: amax,
            lambda peak, amax: peak / SIX * Single.of(256) / (amax / SIX),
            lambda x, v, amax: x / (v * (amax / Single.of(1536))),
            Fraction(1, 512),
            lambda peak, amax: peak * HALF_MORE / SIX * Single.of(256) / (amax / SIX),
            lambda q, v, amax: q * (v * (amax / Single.of(1536))),
            "mse",
        ),
    )


TWO_LEVELS |= dict(_four_over_six())
LEAST = 2**-12


def two_level_quantize(
    block: list[float], amax: float, recipe: str, tensor_scale: float | None = None
) -> tuple[list[int], int]:
    """Return the codes and the scale code of a block of finite numbers, in a tensor with that amax or that kept value.
    The codes of a block whose scale is zero are left out."""
    kept = TWO_LEVELS[recipe].kept(Single.of(amax)) if tensor_scale is None else Single.of(tensor_scale)
    peak, four = max(abs(value) for value in block), TWO_LEVELS[recipe].four
    code = scale_code(peak, kept, recipe)
    codes = [element_code(element, code, kept, recipe) for element in block] if code else []
    if four is not None and codes:
        other = _code_of(four(Single.of(peak), kept), recipe)
        others = [element_code(element, other, kept, recipe) for element in block]
        if block_error(block, others, other, kept, recipe) < block_error(block, codes, code, kept, recipe):
            return others, other
    return codes, code


def block_error(block: list[float], codes: list[int], code: int, kept: Single, recipe: str) -> Single:
    """Return the error of a block in rows of 16: each row is added in order, the rows in a tree."""
    value, scale = TWO_LEVELS[recipe].value, Single.of(NARROW_VALUES["e4m3"].values[code])
    assert value is not None
    apart = []
    for element, each in zip(block, codes, strict=True):
        found = value(Single.of(BLOCK_ELEMENTS["mxfp4"].values[each & 7] * (-1 if each & 8 else 1)), scale, kept)
        one = found + -Single.of(element)
        apart.append(one * one if TWO_LEVELS[recipe].kind == "mse" else -one if one.number.negative else one)
    rows = []
    for first in range(0, len(apart), 16):
        rows.append(reduce(Single.__add__, apart[first : first + 16]))
    if TWO_LEVELS[recipe].kind == "abs_max":
        return max(apart, key=lambda each: each.magnitude)
    while len(rows) > 1:
        rows = [one + other for one, other in zip(rows, rows[len(rows) // 2 :], strict=False)]
    return rows[0]


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
    return _code_of(TWO_LEVELS[recipe].scale(Single.of(peak), kept), recipe)


def _code_of(scale: Single, recipe: str) -> int:
    return narrow_code(ExactNumber(False, max(scale.magnitude, TWO_LEVELS[recipe].least)), "e4m3")


def element_code(element: float, code: int, kept: Single, recipe: str) -> int:
    """Return the e2m1 code of one element of a block with that scale code."""
    value = Single.of(NARROW_VALUES["e4m3"].values[code])
    scaled = TWO_LEVELS[recipe].scaled(Single.of(element), value, kept)
    return nearest_code(scaled.magnitude, scaled.number.negative, BLOCK_ELEMENTS["mxfp4"])
