"""Blocks of elements that share a scale: a tensor quantised by a recipe, and what the codes stand for."""

from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from refsim.conversions import decode, pack
from refsim.conversions.coding import checked_codes
from refsim.errors import RefsimError, unknown
from refsim.formats import Format, format_named
from refsim.render.cards import Card, Facts
from refsim.scaling.block_formats import BLOCK_FORMATS, BlockFormat, block_format
from refsim.scaling.block_pass import WideBlocks, quantized_rows
from refsim.scaling.mx_recipes import MX_RECIPES, MxRecipe
from refsim.scaling.wide import WIDE_FORMATS, one_of
from refsim.typed_arrays import format_held, is_typed, native, with_format

Recipe = MxRecipe
RECIPES: tuple[Recipe, ...] = MX_RECIPES
USUAL_RECIPE = "rceil"


@dataclass(frozen=True, eq=False, repr=False)
class Blocks(Card):
    """Codes of elements (..., K), and the codes of their scales (..., K / width): what a block-scaled kernel reads.

    The value of an element is that of its code times that of its scale. Blocks([[7] * 32], [[127]], "mxfp4") is 32 times
    6. `layouts.scale_layout("nvidia_128x4").shuffle(blocks.scales)` is the form in which tensor cores read scales.
    """

    codes: NDArray[Any]
    scales: NDArray[Any]
    format: BlockFormat
    recipe: Recipe | None = None

    def __post_init__(self) -> None:
        row = block_format(self.format)
        codes = checked_codes(*with_format(self.codes, row.element))
        scales = checked_codes(*with_format(self.scales, row.scale, "scales"))
        for name, value in (("codes", codes), ("scales", scales), ("format", row)):
            object.__setattr__(self, name, value)
        _require_shapes(codes.shape, scales.shape, row)

    @property
    def packed(self) -> NDArray[Any]:
        """The elements as memory holds them: two e2m1 a byte, the first in the low half; four 6-bit codes in three bytes."""
        return pack(self.codes, self.format.element)

    @overload
    def dequantize(self) -> NDArray[np.float32]: ...
    @overload
    def dequantize(self, dtype: DTypeLike) -> NDArray[Any]: ...
    def dequantize(self, dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """The value of every element: code times scale, exact in float64, rounded once to float32.

        Code 0x7e of e4m3 with scale code 126 is 224. A scale of NaN makes its block NaN.
        Raises RefsimError `value-type` for another dtype. Source: OCP MX, section 6.1.
        """
        if dtype not in (np.float32, np.float64, "float32", "float64"):
            raise RefsimError("value-type", f"dequantize to {dtype!r} is not offered", help="np.float32 or np.float64")
        kind = np.dtype(dtype).type
        values = decode(self.codes, self.format.element, kind)
        factors = decode(self.scales, self.format.scale, kind)
        grouped = values.reshape(*self.scales.shape, self.format.width)
        with np.errstate(all="ignore"):
            np.multiply(grouped, factors[..., None], out=grouped)
        return values

    def _line(self) -> str:
        by = f" by {self.recipe}" if self.recipe is not None else ""
        return f"{self.format}: {' x '.join(map(str, self.codes.shape))}{by}"

    def _facts(self) -> Facts:
        yield "codes", f"{self.codes.shape} of {self.format.element}"
        yield "scales", f"{self.scales.shape} of {self.format.scale}"
        yield "recipe", self.recipe or "not said"


def quantize(
    x: ArrayLike,
    format: str | BlockFormat,
    *,
    recipe: str | Recipe | None = None,
    input_format: str | Format | None = None,
) -> Blocks:
    """`x` (..., K) in blocks along K: codes of elements and of scales, as the recipe's library computes them.

    `x`: an array of bfloat16, float16 or float32 values, or codes with their `input_format`. `format`: mxfp8 (e4m3),
    mxfp8_e5m2, mxfp6_e2m3, mxfp6_e3m2, mxfp4. `recipe`: a name of `scaling.RECIPES`, "rceil" where it is left out; most
    libraries have one of their own. K is a multiple of the block: what pads a tail is the caller's choice.
    quantize(np.float32([[448] + 31 * [1]]), "mxfp8").scales is [[127]]; with recipe="ceil" it is [[128]].
    Raises RefsimError for unknown names, a recipe of another format, K that no blocks fill, values of another type.
    Source: the recipe's row.
    """
    row = block_format(format)
    chosen = recipe_named(recipe, row)
    array, held = _input(x, input_format)
    if array.ndim < 1 or array.shape[-1] % row.width:
        raise RefsimError(
            "block-shape",
            f"x has shape {array.shape}: its last dimension is no multiple of {row.width}",
            where=str(row),
            rule=f"{row.width} neighbours along K share a scale [{row.source.document.title}]",
            help=f"pad K with zeros to a multiple of {row.width}, or quantise the transpose",
        )
    rows = WideBlocks(np.ascontiguousarray(array).reshape(-1, row.width), held)
    codes, scales = quantized_rows(rows, chosen, row)
    return Blocks(
        codes.reshape(array.shape), scales.reshape(*array.shape[:-1], array.shape[-1] // row.width), row, chosen
    )


def recipe_named(name: str | Recipe | None, format: str | BlockFormat) -> Recipe:
    """The recipe of that name for a format, the usual one for None; an unknown name is an error with the nearest.

    recipe_named(None, "mxfp8").name is "rceil". Raises RefsimError `unknown-recipe`, and `recipe-format` where the recipe
    is of other formats. Source: the row's.
    """
    row = block_format(format)
    mine = [each for each in RECIPES if row.name in each.formats]
    if isinstance(name, Recipe):
        found = name
    else:
        wanted = USUAL_RECIPE if name is None else str(name)
        rows = [each for each in (*mine, *RECIPES) if each.name == wanted]
        if not rows:
            raise unknown("recipe", wanted, [each.name for each in mine], where=str(row))
        found = rows[0]
    if row.name not in found.formats:
        raise RefsimError(
            "recipe-format",
            f"recipe {found} is not for {row}",
            rule=f"{found} makes {', '.join(found.formats)}",
            help=f"recipes of {row}: {', '.join(each.name for each in mine)}",
        )
    return found


def _input(x: ArrayLike, input_format: str | Format | None) -> tuple[NDArray[Any], Format]:
    """The patterns of bf16, f16 or f32, and which of the three they are."""
    array = np.asarray(x)
    held = None if is_typed(array.dtype) else format_held(array.dtype)
    if held is not None and (input_format is None or format_named(input_format) == held):
        return np.ascontiguousarray(native(array)).view(held.code_dtype).reshape(array.shape), held
    if array.dtype.kind == "f" and held is None:
        raise RefsimError(
            "value-type",
            f"x holds {array.dtype}",
            rule="a quantiser reads bfloat16, float16 or float32",
            help="x.astype(np.float32) rounds first: that is another result in rare cases",
        )
    codes, named = with_format(x, input_format, "x")
    row = one_of(named, WIDE_FORMATS, "x")
    return checked_codes(codes, row), row


def _require_shapes(codes: tuple[int, ...], scales: tuple[int, ...], row: BlockFormat) -> None:
    if not codes or codes[-1] % row.width:
        raise RefsimError(
            "block-shape",
            f"codes of shape {codes} are not in blocks of {row.width}",
            where=str(row),
            rule=str(row.source),
        )
    wanted = (*codes[:-1], codes[-1] // row.width)
    if scales == wanted:
        return
    others = [each for each in BLOCK_FORMATS if scales == (*codes[:-1], codes[-1] // each.width)]
    raise RefsimError(
        "scale-shape",
        f"scales have shape {scales}, codes of shape {codes} need {wanted}",
        where=str(row),
        rule=f"one {row.scale} for {row.width} {row.element} along K",
        help=f"a scale for {others[0].width} is {', '.join(sorted({str(each) for each in others}))}" if others else "",
    )
