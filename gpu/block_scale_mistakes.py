"""Mistakes of quantisers of block scaling: what a kernel that makes one would write, by the catalogue of the field's bugs.

A mistake takes what a quantiser was given and what it must make of that, and returns codes and shuffled scales.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import refsim
from refsim import scaling
from refsim.conversions import decode, encode, round_bits
from refsim.conversions.coding import encode_rule
from refsim.conversions.policies import policy_row
from refsim.conversions.rounding import TIES_AWAY, TOWARD_ZERO
from refsim.formats import E8M0, FORMATS, Specials
from refsim.layouts import SCALE_LAYOUTS
from refsim.scaling.block_pass import largest
from refsim.scaling.mx_recipes import multiplier_table, mx_scale_codes
from refsim.scaling.nvfp4_recipes import nvfp4_scale_codes
from refsim.scaling.rows import NAN_RULES
from refsim.testing.kernel_files import load_kernel_file

places = load_kernel_file(Path(__file__).with_name("block_scale_places.py"))
of, right, LAYOUT = places.of, places.right, places.LAYOUT
POISON = 0xFF
Bytes = NDArray[np.uint8]
Singles = NDArray[np.float32]


@dataclass(frozen=True)
class Quantising:
    """X as codes (rows, K) of a wide format, K filled up with zeros from `columns` on, and the blocks it makes."""

    x: NDArray[Any]
    wide: str
    columns: int
    made: scaling.Blocks

    @property
    def row(self) -> scaling.BlockFormat:
        return self.made.format

    @property
    def values(self) -> Singles:
        """X in blocks (rows, blocks, width)."""
        return decode(self.x, self.wide, np.float32).reshape(*self.made.scales.shape, self.row.width)

    @property
    def peaks(self) -> Singles:
        return largest(self.values, ignores_nan=self.made.recipe.nan == NAN_RULES[1])

    def again(self, **other: Any) -> scaling.Blocks:
        """X by other arguments of `refsim.quantize`."""
        arguments = {"recipe": self.made.recipe, "tensor_scale": self.made.tensor_scale} | other
        return refsim.quantize(self.x, self.row, input_format=self.wide, **arguments)

    def scaled(self, scales: Bytes) -> Singles:
        """What is converted to elements under these scales: (rows, K)."""
        recipe, values = self.made.recipe, self.values
        with np.errstate(all="ignore"):
            if not self.row.two_levels:
                return (values * multiplier_table(recipe)[scales][..., None]).reshape(self.x.shape)
            of_blocks = decode(scales, self.row.scale, np.float32)[..., None], self.peaks[..., None]
            return np.asarray(recipe.scaled(values, *of_blocks, self.kept), np.float32).reshape(self.x.shape)

    @property
    def kept(self) -> Singles:
        return np.array([self.made.tensor_scale], np.float32)

    @property
    def rule(self) -> Any:
        """The conversion of the elements."""
        return policy_row(self.made.recipe.policy, self.row.element).rule


Written = tuple[Bytes, Bytes]
Mistake = Callable[[Quantising], Written]


# ---- elements --------------------------------------------------------------------------------------------------------


def nibbles_swapped(given: Quantising) -> Written:
    if given.row.element.bits != 4:
        return right(given)
    codes = given.made.codes.reshape(len(given.x), -1, 2)[:, :, ::-1].reshape(given.x.shape)
    return codes, LAYOUT.shuffle(given.made.scales)


def halves_of(run: int, given: Quantising) -> Written:
    """Byte i of a run of elements has those of i and of the middle + i, as GGML packs blocks."""
    if given.row.element.bits != 4 or given.x.shape[1] % run:
        return right(given)
    codes = given.made.codes.reshape(len(given.x), -1, 2, run // 2).swapaxes(2, 3).reshape(given.x.shape)
    return np.ascontiguousarray(codes), LAYOUT.shuffle(given.made.scales)


def zeros_without_sign(given: Quantising) -> Written:
    codes = given.made.codes
    return np.where(codes == given.row.element.sign_mask, 0, codes).astype(np.uint8), LAYOUT.shuffle(given.made.scales)


def converted(change: Callable[[Quantising, Singles], Bytes], given: Quantising) -> Written:
    """Elements that are converted another way under the right scales."""
    with np.errstate(all="ignore"):
        codes = change(given, given.scaled(given.made.scales))
    return codes.astype(np.uint8), LAYOUT.shuffle(given.made.scales)


def _rounded(rounding: str, given: Quantising, scaled: Singles) -> Bytes:
    return encode_rule(scaled, replace(given.rule, rounding=rounding))


def _ties_down(given: Quantising, scaled: Singles) -> Bytes:
    return encode_rule(np.nextafter(scaled, np.float32(0)), given.rule)


def _through(narrow: str, given: Quantising, scaled: Singles) -> Bytes:
    return encode_rule(decode(round_bits(scaled, narrow), narrow, np.float32), given.rule)


def _factor_through(narrow: str, given: Quantising, scaled: Singles) -> Bytes:
    """x times the factor, which was rounded first."""
    values = given.values.reshape(scaled.shape)
    factors = np.where(values == 0, np.float32(0), scaled / np.where(values == 0, np.float32(1), values))
    return encode_rule(values * decode(encode(factors, narrow), narrow, np.float32), given.rule)


def _not_saturated(given: Quantising, scaled: Singles) -> Bytes:
    element = given.row.element
    if not element.has_nan:
        return encode_rule(scaled, given.rule)
    return encode_rule(scaled, policy_row("cuda.nosat", element).rule)


def _nan_beyond_the_largest(given: Quantising, scaled: Singles) -> Bytes:
    element, codes = given.row.element, encode_rule(scaled, given.rule)
    if not element.has_nan:
        return codes
    return np.where(np.abs(scaled) > element.max_value, element.nan_code, codes)


def _fnuz(given: Quantising, scaled: Singles) -> Bytes:
    """Codes of MI300's FP8, whose exponent is one more."""
    element = given.row.element
    fields = element.exponent_bits, element.mantissa_bits
    others = [row for row in FORMATS if row.specials is Specials.NAN_NEGATIVE_ZERO]
    found = [row for row in others if (row.exponent_bits, row.mantissa_bits) == fields]
    return encode(scaled, found[0]) if found else encode_rule(scaled, given.rule)


def _times(factor: float, given: Quantising, scaled: Singles) -> Bytes:
    return encode_rule(scaled * np.float32(factor), given.rule)


# ---- scales ----------------------------------------------------------------------------------------------------------


def by_peaks(change: Callable[[Quantising], Singles], given: Quantising) -> Written:
    """Scales of other largest magnitudes, elements under them."""
    peaks, recipe = change(given), given.made.recipe
    with np.errstate(all="ignore"):
        if given.row.two_levels:
            scales = nvfp4_scale_codes(peaks.reshape(-1), recipe, given.kept)
        else:
            scales = mx_scale_codes(peaks.reshape(-1), recipe, given.row.element)
        scales = scales.reshape(peaks.shape)
        return encode_rule(given.scaled(scales), given.rule), LAYOUT.shuffle(scales)


def _positive(given: Quantising) -> Singles:
    return largest(np.where(np.signbit(given.values), np.float32(0), given.values), ignores_nan=False)


def _shared_by(rows: int, given: Quantising) -> Singles:
    """`rows` neighbouring rows have one scale: a square of a block."""
    bits = given.peaks.view(np.uint32)
    whole = np.pad(bits, ((0, -len(bits) % rows), (0, 0)))
    peaks = np.repeat(whole.reshape(-1, rows, bits.shape[1]).max(axis=1), rows, axis=0)[: len(bits)]
    return np.ascontiguousarray(peaks).view(np.float32)


def of_another_binade(step: int, given: Quantising) -> Written:
    """Codes of E8M0 that are one more or less, and elements under them: the bias is one off."""
    if given.row.two_levels:
        return right(given)
    scales = np.clip(given.made.scales.astype(np.int16) + step, 0, 0xFE)
    scales = np.where(given.made.scales == 0xFF, 0xFF, scales).astype(np.uint8)
    return encode_rule(given.scaled(scales), given.rule), LAYOUT.shuffle(scales)


def _decoded_by_the_factor(x: Singles, scale: Singles, peak: Singles, kept: Singles) -> Singles:
    """What Transformer Engine multiplies by, with S where 1 / S belongs."""
    return np.asarray(x * np.minimum(np.float32(1) / (scale * kept), np.finfo(np.float32).max), np.float32)


def cut_afterwards(given: Quantising) -> Written:
    """The elements are made under a scale that is rounded up; what is stored is its quotient cut to a power of two."""
    recipe = given.made.recipe
    if given.row.two_levels or recipe.direction != "up":
        return right(given)
    lower = mx_scale_codes(given.peaks.reshape(-1), replace(recipe, direction="down"), given.row.element)
    return given.made.codes, LAYOUT.shuffle(lower.reshape(given.made.scales.shape))


def scaled_before_rounding(given: Quantising) -> Written:
    """Elements are divided by the scale before it is rounded to what is stored."""
    largest_element = np.float32(given.row.element.max_value)
    with np.errstate(all="ignore"):
        exact = given.values * (largest_element / given.peaks)[..., None]
    codes = encode_rule(np.nan_to_num(exact, nan=0.0).reshape(given.x.shape), given.rule)
    return codes, LAYOUT.shuffle(given.made.scales)


def zero_block(code: int | None, given: Quantising) -> Written:
    """A block of zeros has this scale; None: its elements are 0 / 0."""
    is_zero = (given.values == 0).all(axis=-1)
    if code is not None:
        return given.made.codes, LAYOUT.shuffle(np.where(is_zero, code, given.made.scales).astype(np.uint8))
    nan = np.where(is_zero[..., None], np.float32(np.nan), np.float32(0)).reshape(*given.made.scales.shape, 1)
    of_nan = encode_rule(np.broadcast_to(nan, given.values.shape).reshape(given.x.shape), given.rule)
    return np.where(np.repeat(is_zero, given.row.width, -1), of_nan, given.made.codes), LAYOUT.shuffle(
        given.made.scales
    )


def another_recipe(name: str, given: Quantising) -> Written:
    if name not in {row.name for row in scaling.recipes_of(given.row)}:
        return right(given)
    return of(given.again(recipe=name))


def changed_recipe(changes: dict[str, Any], given: Quantising) -> Written:
    """A rule of MX with one part of another."""
    return right(given) if given.row.two_levels else of(given.again(recipe=replace(given.made.recipe, **changes)))


def another_order(part: str, other: scaling.Nvfp4Recipe, given: Quantising) -> Written:
    """The scales of blocks, or what elements are multiplied by, as another library rounds them."""
    if not given.row.two_levels:
        return right(given)
    return of(given.again(recipe=replace(given.made.recipe, **{part: getattr(other, part)})))


def decoded_by_the_factor(given: Quantising) -> Written:
    """The scale of a block is decoded by S where 1 / S belongs."""
    if not given.row.two_levels:
        return right(given)
    return of(given.again(recipe=replace(given.made.recipe, scaled=_decoded_by_the_factor)))


def factor_inverted(given: Quantising) -> Written:
    """1 / S for S."""
    if given.made.tensor_scale is None:
        return right(given)
    with np.errstate(all="ignore"):
        return of(given.again(tensor_scale=np.float32(1) / given.made.tensor_scale))


def offsets_wrapped(bits: int, given: Quantising) -> Written:
    """Elements beyond 2^bits are read as those of so many before."""
    flat = given.x[:, : given.columns].reshape(-1)
    if flat.size <= 1 << bits:
        return right(given)
    read = flat[np.arange(flat.size) & ((1 << bits) - 1)].reshape(len(given.x), -1)
    x = np.pad(read, ((0, 0), (0, given.x.shape[1] - given.columns)))
    return of(replace(given, x=x).again())


# ---- all of them -----------------------------------------------------------------------------------------------------

_OTHER_CHIPS = [row for row in SCALE_LAYOUTS if row.element_bytes == 1 and not row.name.startswith("nvidia_128x4")]
_NV = [row for row in scaling.recipes_of("nvfp4") if not getattr(row, "four", None)]
_MX_CHANGES: dict[str, dict[str, Any]] = {
    **{f"amax is rounded {way}": {"direction": way} for way in ("down", "up", "even")},
    "amax is divided by the largest power of two": {"divisor": "power"},
    "amax is divided by the largest element": {"divisor": "largest"},
    **{
        f"amax is rounded to {bits} bits of mantissa": {
            "even_bits": tuple((name, bits) for name in ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1"))
        }
        for bits in range(4)
    },
    "amax is at least 1e-4": {"eps": tuple((name, 1e-4) for name in ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1"))},
    "what is above zero has at least 2^-126": {"lifts_subnormals": True},
    "subnormal quotients have the scale 0": {"lifts_subnormals": False},
    "an infinite amax has the scale 0xff": {"infinity": 0xFF},
    "an infinite amax has the scale 0xfe": {"infinity": 0xFE},
    "an infinite amax is taken for 2^128": {"infinity": None},
    "a NaN has the scale 0xff": {"nan_code": 0xFF},
    "a NaN has the scale 0xfe": {"nan_code": 0xFE},
    "a NaN has the scale 0": {"nan_code": 0},
    "a NaN does not count": {"nan": "ignored"},
    "a NaN counts": {"nan": "spreads"},
    "scale code 0 multiplies by 1": {"multipliers": ((0, 1.0),)},
    "scale code 0 multiplies by 0": {"multipliers": ((0, 0.0),)},
    "scale code 0xfe multiplies by 0": {"multipliers": ((0xFE, 0.0),)},
    "scale code 0xff multiplies by 0": {"multipliers": ((0xFF, 0.0),)},
    "scale code 0xff multiplies by 1": {"multipliers": ((0xFF, 1.0),)},
    "scale code 0xff multiplies by 2^-128": {"multipliers": ((0xFF, 2.0**-128),)},
    "the exponent of scale code 0xff wraps": {"multipliers": ((0xFF, -np.inf),)},
}

MISTAKES: dict[str, Mistake] = {
    "the pads of the scales hold 0xff": partial(places.pads_of, POISON),
    "the pads of the scales hold what a block of zeros gets": partial(places.pads_of, None),
    "the scales are not shuffled": places.not_shuffled,
    "the scales are shuffled twice": places.shuffled_twice,
    "the rows of the scales alone are shuffled": places.rows_alone,
    "the grid of the scales' tiles is transposed": places.grid_transposed,
    "the scale of a block that the row's end cuts is left out": places.tail_without_a_scale,
    **{f"the scales lie as {row.name} has them": partial(places.laid_out, row) for row in _OTHER_CHIPS},
    "the two elements of a byte are swapped": nibbles_swapped,
    **{f"a byte has an element of either half of {run}": partial(halves_of, run) for run in (8, 16, 32)},
    "a zero loses its sign": zeros_without_sign,
    "ties go away from zero": partial(converted, partial(_rounded, TIES_AWAY)),
    "ties go toward zero": partial(converted, _ties_down),
    "elements are cut off": partial(converted, partial(_rounded, TOWARD_ZERO)),
    **{
        f"elements are rounded to {wide} first": partial(converted, partial(_through, wide)) for wide in ("f16", "bf16")
    },
    **{
        f"the factor is rounded to {wide}": partial(converted, partial(_factor_through, wide))
        for wide in ("f16", "bf16")
    },
    "elements do not saturate": partial(converted, _not_saturated),
    "whatever is beyond the largest element is a NaN": partial(converted, _nan_beyond_the_largest),
    "elements are codes of FNUZ": partial(converted, _fnuz),
    "elements are twice as large as their scales say": partial(converted, partial(_times, 2.0)),
    "elements are half as large as their scales say": partial(converted, partial(_times, 0.5)),
    "negative elements do not count among the largest": partial(by_peaks, _positive),
    **{f"{rows} rows share a scale": partial(by_peaks, partial(_shared_by, rows)) for rows in (2, 4, 8, 16, 32, 128)},
    "the stored scale is cut after the elements are made": cut_afterwards,
    "elements are divided by the scale before it is rounded": scaled_before_rounding,
    "a block of zeros has the scale 0x7f": partial(zero_block, int(encode(1.0, E8M0))),
    "a block of zeros has the scale 0x38": partial(zero_block, 0x38),
    "a block of zeros is divided by zero": partial(zero_block, None),
    "scales are half as large": partial(of_another_binade, -1),
    "scales are twice as large": partial(of_another_binade, 1),
    "the factor of the tensor is inverted": factor_inverted,
    "factors multiply by the factor of the tensor": decoded_by_the_factor,
    **{f"offsets wrap at {bits} bits": partial(offsets_wrapped, bits) for bits in (16, 32)},
    **{name: partial(changed_recipe, changes) for name, changes in _MX_CHANGES.items()},
    **{f"scales are rounded as {row.name} has them": partial(another_order, "scale", row) for row in _NV},
    **{f"factors are rounded as {row.name} has them": partial(another_order, "scaled", row) for row in _NV},
    **{
        f"the recipe {name}": partial(another_recipe, name)
        for name in dict.fromkeys(row.name for row in scaling.RECIPES)
    },
}
