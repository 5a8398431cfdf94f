"""Blocks of elements that share a scale: a tensor quantized by a recipe, and the values of its codes."""

from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from refsim.conversions import decode, pack
from refsim.conversions.coding import checked_codes
from refsim.errors import RefsimError
from refsim.formats import E4M3, UE4M3, Format
from refsim.integers import array_of
from refsim.oracle_calls import reported
from refsim.render.cards import Card, Facts
from refsim.scaling.block_formats import BLOCK_FORMATS, BlockFormat, block_format
from refsim.scaling.block_pass import WideBlocks, largest_of_tensor, planned, quantized_blocks
from refsim.scaling.grids import Pair, checked_group
from refsim.scaling.mx_recipes import MxRecipe
from refsim.scaling.recipes import Recipe, recipe_named
from refsim.scaling.rows import NAN_RULES
from refsim.scaling.wide import WIDE_FORMATS, one_of
from refsim.typed_arrays import format_held, held_codes, typed, with_format


@dataclass(frozen=True, eq=False, repr=False)
class Blocks(Card):
    """Codes of elements (..., K) and codes of their scales (..., K / width), as a block-scaled kernel reads them.

    The value of an element is its code's value times its scale's value, times the factor of the tensor where the format
    has one. Blocks([[7] * 32], [[127]], "mxfp4") is 32 times 6. `tensor_scale` is S, 1 / S or amax, as the recipe's
    library keeps it. `block` (rows, columns) is (1, width), or (16, 16): scales are then (..., M / 16, K / 16), and
    `row_scales` repeats them. `layouts.scale_layout("nvidia_128x4").shuffle(blocks.row_scales)` is the form in which
    tensor cores read scales.
    """

    codes: NDArray[Any]
    scales: NDArray[Any]
    format: BlockFormat
    recipe: Recipe | None = None
    tensor_scale: np.float32 | None = None
    block: Pair | None = None

    def __post_init__(self) -> None:
        """Check names, codes and shapes; raise RefsimError where they do not fit together."""
        row = block_format(self.format)
        codes = checked_codes(*with_format(self.codes, row.element))
        scales = checked_codes(*with_format(self.scales, row.scale, "scales"))
        recipe = None if self.recipe is None else recipe_named(self.recipe, row)
        kept = tensor_factor(self.tensor_scale, row)
        block = checked_block(self.block, row)
        checked = {
            "codes": codes,
            "scales": scales,
            "format": row,
            "recipe": recipe,
            "tensor_scale": kept,
            "block": block,
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        require_shapes(codes.shape, scales.shape, row, block)

    @property
    def packed(self) -> NDArray[Any]:
        """Return the elements as bytes of memory.

        Two e2m1 share a byte, the first in the low half. Four 6-bit codes share three bytes.
        """
        return pack(self.codes, self.format.element)

    def typed(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return codes and scales as arrays of their formats' ml_dtypes types, without a copy.

        Scales of NVFP4 become float8_e4m3fn. Raises RefsimError `unsupported-dtype` for elements without a dtype (mxint8).
        """
        scale = E4M3 if self.format.scale is UE4M3 else self.format.scale  # without a sign its codes are E4M3's
        return typed(self.codes, self.format.element, "ml_dtypes"), typed(self.scales, scale, "ml_dtypes")

    @property
    def row_scales(self) -> NDArray[Any]:
        """Return a scale for each row and each `width` of K (..., M, K / width); a square's scale repeats for its
        rows."""
        down = 1 if self.block is None else self.block[0]
        return self.scales if down == 1 else np.repeat(self.scales, down, axis=-2)

    @property
    def factor(self) -> np.float32:
        """Return the factor of the whole tensor by the recipe's rule: 1 where the format has one level."""
        if self.tensor_scale is None:
            return np.float32(1)
        if self.recipe is None or isinstance(self.recipe, MxRecipe):
            return self.tensor_scale
        with np.errstate(all="ignore"):
            return np.float32(self.recipe.factor(np.array([self.tensor_scale], np.float32))[0])

    @overload
    def dequantize(self) -> NDArray[np.float32]: ...
    @overload
    def dequantize(self, dtype: DTypeLike) -> NDArray[Any]: ...
    def dequantize(self, dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """Return the value of every element: code times scale times factor, exact in float64, rounded once to float32.

        Code 0x7e of e4m3 with scale code 126 is 224. A scale of NaN makes its block NaN.
        Raises RefsimError `bad-dtype` for another dtype. Source: OCP MX, section 6.1.
        """
        if dtype not in (np.float32, np.float64, "float32", "float64"):
            raise RefsimError("bad-dtype", f"dequantize to {dtype!r} is not offered", help="np.float32 or np.float64")
        two_levels = self.tensor_scale is not None
        kind = np.float64 if two_levels else np.dtype(dtype).type
        values = decode(self.codes, self.format.element, kind)
        factors = decode(self.row_scales, self.format.scale, kind)
        grouped = values.reshape(*factors.shape, self.format.width)
        with np.errstate(all="ignore"):
            np.multiply(grouped, factors[..., None], out=grouped)
            if two_levels:
                np.multiply(values, np.float64(self.factor), out=values)
            return values.astype(dtype, copy=False)

    def _repr_summary(self) -> str:
        by = f" by {self.recipe}" if self.recipe is not None else ""
        return f"{self.format}: {' x '.join(map(str, self.codes.shape))}{by}"

    def _facts(self) -> Facts:
        yield "codes", f"{self.codes.shape} of {self.format.element}"
        yield "scales", f"{self.scales.shape} of {self.format.scale}"
        yield "of the tensor", "" if self.tensor_scale is None else f"{self.tensor_scale}, kept by the recipe"
        yield "recipe", self.recipe or "not given"


@reported("block quantizer")
def quantize(
    x: ArrayLike,
    format: str | BlockFormat,
    *,
    recipe: str | Recipe | None = None,
    block: Pair | None = None,
    tensor_scale: float | np.floating[Any] | None = None,
    random: NDArray[Any] | None = None,
    input_format: str | Format | None = None,
) -> Blocks:
    """Quantize `x` (..., K) in blocks along K: return codes of elements and of scales, as the recipe's library does.

    `x`: an array of bfloat16, float16 or float32 values, or codes with their `input_format`. `format`: mxfp8 (e4m3),
    mxfp8_e5m2, mxfp6_e2m3, mxfp6_e3m2, mxfp4, nvfp4. `recipe`: a name of `scaling.RECIPES`, by default "rceil", and
    "te" for nvfp4; most libraries have their own recipe. K is a multiple of the block; the caller pads a tail. `block`:
    (1, width), or (16, 16) for nvfp4 and (32, 32) for MX, where as many rows share the scale. `tensor_scale`, for
    nvfp4: a calibrated scale of the tensor as the recipe keeps it (S, 1 / S or amax); by default it is computed from x.
    `random`: unsigned integers of x's shape, for stochastic rounding: they are added to as many of the discarded bits,
    and the carry rounds up (uint8: 8 bits, as Transformer Engine). quantize(np.float32([[448] + 31 * [1]]),
    "mxfp8").scales is [[127]]; with recipe="ceil" it is [[128]].

    Raises RefsimError for unknown names, a recipe of another format, K that is no multiple of the block, values of
    another type. Source: the recipe's entry.
    """
    row = block_format(format)
    chosen = recipe_named(recipe, row)
    array, held = _input(x, input_format)
    if array.ndim < 1 or array.shape[-1] % row.width:
        what = f"x has shape {array.shape}: its last dimension is not a multiple of {row.width}"
        rule = f"{row.width} neighbors along K share a scale [{row.source.document.title}]"
        help = f"pad K with zeros to a multiple of {row.width}, or quantize the transpose"
        raise RefsimError("bad-shape", what, where=str(row), rule=rule, help=help)
    extent = checked_block(block, row)
    bits = _random_bits(random, array.shape)
    if bits is not None and getattr(chosen, "four", None):
        raise RefsimError("random-bits", f"recipe {chosen} rounds to nearest only", rule=str(chosen.source))
    blocks = WideBlocks(by_blocks(array, extent), held)
    given = tensor_factor(tensor_scale, row)
    kept = _kept(blocks, chosen) if given is None else np.array([given], np.float32)
    plan = planned(chosen, row, kept, None if bits is None else by_blocks(bits, extent))
    codes, scales = quantized_blocks(blocks, plan)
    grid = (*array.shape[:-2], *_grid(array.shape, extent))
    keeps = np.float32(kept[0]) if row.two_levels else None
    return Blocks(by_rows(codes, array.shape, extent), scales.reshape(grid), row, chosen, keeps, extent)


def _grid(shape: tuple[int, ...], extent: Pair) -> tuple[int, ...]:
    """Return the shape of the scales over the last two axes, or over the last one of a vector."""
    across = shape[-1] // extent[1]
    return (across,) if len(shape) == 1 else (shape[-2] // extent[0], across)


def _kept(blocks: WideBlocks, recipe: Recipe) -> NDArray[np.float32]:
    """Return the recipe's value for the whole tensor, shape (1,); 1 where the format has one level."""
    if isinstance(recipe, MxRecipe):
        return np.ones(1, np.float32)
    with np.errstate(all="ignore"):
        return np.asarray(recipe.tensor(largest_of_tensor(blocks, ignores_nan=recipe.nan == NAN_RULES[1])), np.float32)


def _random_bits(random: NDArray[Any] | None, shape: tuple[int, ...]) -> NDArray[Any] | None:
    """Return the integers of stochastic rounding, or None; raise for another dtype or shape."""
    if random is None:
        return None
    bits = array_of("random", random)
    if bits.dtype not in (np.uint8, np.uint16) or bits.shape != shape:
        what = f"random bits are {bits.dtype} of shape {bits.shape}"
        help = "np.random.default_rng(seed).integers(0, 256, x.shape, np.uint8)"
        raise RefsimError("random-bits", what, rule=f"uint8 or uint16, one for each element: {shape}", help=help)
    return bits


def _input(x: ArrayLike, input_format: str | Format | None) -> tuple[NDArray[Any], Format]:
    """Return the patterns of `x` and their format: bf16, f16 or f32."""
    array = array_of("x", x)
    if array.dtype.kind == "f" and format_held(array.dtype) is None:
        raise RefsimError(
            "bad-dtype",
            f"x holds {array.dtype}",
            rule="a quantizer reads bfloat16, float16 or float32",
            help="codes of bf16 or f16 go in as they are, with input_format=; x.astype(np.float32) rounds what float32 does not "
            "hold, which is another result in rare cases",
        )
    codes, named = held_codes(x, input_format, "x")
    row = one_of(named, WIDE_FORMATS, "x")
    return checked_codes(codes, row), row


# ---- the place of blocks in a tensor: (1, width) along K, or squares of several rows


def checked_block(block: Pair | None, row: BlockFormat) -> Pair:
    """Return (rows, columns) of a block: one row of `width`, or a square; None means one row."""
    if block is None:
        return 1, row.width
    extent = checked_group(block)
    if extent not in ((1, row.width), (row.width, row.width)):
        raise RefsimError(
            "bad-value",
            f"a block of {extent[0]} x {extent[1]}",
            where=str(row),
            rule=f"(1, {row.width}), or ({row.width}, {row.width}) with one scale for as many rows [{row.source.document.title}]",
        )
    return extent


def by_blocks(array: NDArray[Any], extent: Pair) -> NDArray[Any]:
    """Return an array (..., M, K) as (blocks, elements of a block), blocks in the order of their scales."""
    down, across = extent
    if down == 1:
        return np.ascontiguousarray(array).reshape(-1, across) if array.size else array.reshape(0, across)
    if array.ndim < 2 or array.shape[-2] % down:
        what = f"x has shape {array.shape}: its rows are not a multiple of {down}"
        raise RefsimError("bad-shape", what, rule=f"blocks of {down} x {across}", help="pad rows with zeros")
    cut = array.reshape(*array.shape[:-2], array.shape[-2] // down, down, array.shape[-1] // across, across)
    return np.ascontiguousarray(np.swapaxes(cut, -3, -2)).reshape(array.size // (down * across), down * across)


def by_rows(blocks: NDArray[Any], shape: tuple[int, ...], extent: Pair) -> NDArray[Any]:
    """Return an array (blocks, elements of a block) in the shape (..., M, K): the inverse of `by_blocks`."""
    down, across = extent
    if down == 1:
        return blocks.reshape(shape)
    cut = blocks.reshape(*shape[:-2], shape[-2] // down, shape[-1] // across, down, across)
    return np.ascontiguousarray(np.swapaxes(cut, -3, -2)).reshape(shape)


def tensor_factor(value: Any, row: BlockFormat) -> np.float32 | None:
    """Return the scale of a whole tensor as float32, or None without one; raise for a format of one level."""
    if value is None:
        return None
    if not row.two_levels:
        what = f"{row} has no scale of the tensor"
        raise RefsimError("bad-scale", what, rule=str(row.source), help="leave tensor_scale= out")
    array = array_of("tensor_scale", value)
    if array.shape not in ((), (1,)) or array.dtype.kind not in "fiu":
        what = f"tensor_scale is {array.dtype} of shape {array.shape}"
        raise RefsimError("bad-scale", what, where=str(row), rule="one float32 for the tensor")
    with np.errstate(all="ignore"):
        found = np.float32(array.reshape(()))
    if found < 0 or (np.isinf(found) and np.isfinite(array.astype(np.float64)).all()):
        rule = "one number from 0 on, which float32 holds or rounds"
        raise RefsimError("bad-scale", f"tensor_scale is {value!r}", where=str(row), rule=rule)
    return found


def require_shapes(codes: tuple[int, ...], scales: tuple[int, ...], row: BlockFormat, extent: Pair) -> None:
    """Raise where the codes are not whole blocks, or the number of scales is not one for each block."""
    down, across = extent
    if not codes or codes[-1] % across or (down > 1 and (len(codes) < 2 or codes[-2] % down)):
        what = f"codes of shape {codes} are not in blocks of {down} x {across}"
        raise RefsimError("bad-shape", what, where=str(row), rule=str(row.source))
    wanted = (*codes[:-1], codes[-1] // across)
    wanted = wanted if down == 1 else (*codes[:-2], codes[-2] // down, codes[-1] // across)
    if scales == wanted:
        return
    others = sorted({each.width for each in BLOCK_FORMATS if scales == (*codes[:-1], codes[-1] // each.width)})
    names = ", ".join(each.name for each in BLOCK_FORMATS if each.width in others)
    what, rule = f"scales have shape {scales}, codes of shape {codes} need {wanted}", f"{down} x {across} {row.element}"
    help = f"a scale for {others[0]} along K is {names}" if others else ""
    raise RefsimError("bad-shape", what, where=str(row), rule=f"one {row.scale} for {rule}", help=help)
