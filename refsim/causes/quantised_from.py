"""The input of a quantizer as a user has it: the tensor, the target format, and the outputs that are compared."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from refsim.computations import quantising
from refsim.computations.quantised import QuantizedTensor, QuantizerOutput, grid_of
from refsim.computations.quantising import ONE_SCALE
from refsim.computations.scale_stores import BY_ROWS, ScaleStore, store_for
from refsim.computations.ways import Codes
from refsim.errors import RefsimError, unknown
from refsim.formats import E4M3, E8M0, F32, UE4M3, Format, format_named
from refsim.integers import array_of
from refsim.render.cards import FieldsCard
from refsim.scaling.block_formats import BLOCK_FORMATS, block_format
from refsim.scaling.blocks import tensor_factor
from refsim.scaling.wide import NARROW_FORMATS, wide_values
from refsim.typed_arrays import format_held, held_codes, native

FP8_GROUPS = {"1x128": (1, 128), "128x128": (128, 128)}
_BLOCKS = {name for row in BLOCK_FORMATS for name in (row.name, *row.aliases)}


@dataclass(frozen=True, kw_only=True, repr=False)
class QuantizedFrom(FieldsCard):
    """The input of a quantizer: `x`, values of bfloat16, float16 or float32, or codes with their `x_format`.

    `to`: a block format (mxfp8, mxfp4, nvfp4, ...), FP8 groups of "1x128" or "128x128", or "tensor", FP8 with one
    scale. `recipe` is the reference, by default the recipe of `refsim.quantize`. `scales` and `want_scales` are the
    second outputs, for codes A and B: one cause then has to explain both. `layout` is the intended layout of scales, a
    name of `layouts.scale_layout`, where they are not row by row. `tensor_scale` is the factor of the tensor where it
    was given (NVFP4), `eps` bounds amax from below. A row of x that ends within a block is completed with zeros.
    QuantizedFrom(x=x, to="mxfp8") explains codes of x's shape, or scales.
    """

    x: ArrayLike
    to: str
    x_format: str | Format | None = None
    recipe: str | None = None
    scales: ArrayLike | None = None
    want_scales: ArrayLike | None = None
    layout: str | None = None
    tensor_scale: float | None = None
    eps: float | None = None

    @property
    def codes_of_scales(self) -> Format:
        """Return the format of scale codes: UE4M3 for NVFP4, else E8M0."""
        return E8M0 if self._is_in_groups else block_format(self.to).scale

    def meant(self, format: Format) -> Format:
        """Return the format that an output holds: E4M3 arrays are UE4M3 scales where NVFP4 has no E4M3 codes."""
        is_scale = format is E4M3 and self.to in _BLOCKS and block_format(self.to).scale is UE4M3
        return UE4M3 if is_scale else format

    def explained(self, shape: tuple[int, ...], format: Format) -> "QuantizedTensor":
        """Return the subject of codes or scales, whichever has that shape. Raises RefsimError where neither has it."""
        if self.to not in {*_BLOCKS, *FP8_GROUPS, ONE_SCALE}:
            raise unknown("quantisation", self.to, [*(row.name for row in BLOCK_FORMATS), *FP8_GROUPS, ONE_SCALE])
        x, columns = self._in_blocks()
        held = format_held(array_of("x", self.x).dtype) or format_named(self.x_format or F32)
        are_codes = shape[:-1] == x.shape[:-1] and columns <= shape[-1] <= x.shape[-1]
        if are_codes and _fits(self.to, format):  # scales of rows of one block are a column, as codes of one column are
            return self._tensor(x, held, format, shape, format, None)
        rules = self._rules(x.shape, E4M3, format)
        if not rules:
            raise self._other_format(format)
        grid = grid_of(x.shape, rules[0].group)
        store = store_for(grid, _flattened(shape, x.shape), format.code_dtype.itemsize, self.layout)
        if store is None:
            what, rule = f"the output has shape {shape}", f"codes or scales: {x.shape} or {(*x.shape[:-2], *grid)}"
            raise RefsimError("bad-shape", what, rule=f"{rule}, or the buffer of a layout of scales")
        return self._tensor(x, held, rules[0].element.to, shape, format, store)

    def with_scales(self, subject: "QuantizedTensor") -> "QuantizedTensor":
        """Return the subject of codes with their scales. Raises RefsimError for scales that do not fit x."""
        pairs = (("scales", self.scales), ("want_scales", self.want_scales))
        given = [self._words(name, each) for name, each in pairs if each is not None]
        held = given[0]
        if subject.which != QuantizerOutput.CODES:
            what = "scales of outputs that are not codes"
            raise RefsimError("usage", what, help="A: the codes; scales=: their scales")
        if given[-1].shape != held.shape:
            raise RefsimError("bad-shape", f"scales have shapes {held.shape} and {given[-1].shape}")
        fitting = [kind for kind in (F32, self.codes_of_scales) if kind.code_dtype == held.dtype]
        if not fitting:
            raise RefsimError("bad-dtype", f"scales hold {held.dtype}", rule="float32, or codes as uint8")
        other = self.explained(held.shape, fitting[0])
        rules = self._rules(subject.x.shape, subject.format, fitting[0])
        shape = (int(np.prod(subject.shape)) + held.size,)
        both = QuantizerOutput.BOTH
        return replace(subject, which=both, shape=shape, rules=rules, store=other.store, scales_size=held.size)

    def _words(self, name: str, scales: ArrayLike) -> Codes:
        """Return scales as unsigned codes; an array with a known dtype must have the format of the scales."""
        held = format_held(array_of(name, scales).dtype)
        if held not in (None, F32):
            held_codes(scales, self.codes_of_scales, name)
        return words_of(scales)

    def _in_blocks(self) -> tuple[quantising.Singles, int]:
        """Return x in whole blocks, and the fewest columns that zeros would complete to that width."""
        x = wide_values(self.x, self.x_format)
        if x.ndim < 2:
            raise RefsimError("bad-shape", f"x has shape {x.shape}", rule="(..., rows, columns)")
        if self._is_in_groups:
            return x, x.shape[-1]
        missing = -x.shape[-1] % block_format(self.to).width
        whole = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])
        return np.ascontiguousarray(whole), max(1, whole.shape[-1] - block_format(self.to).width + 1)

    def _tensor(
        self,
        x: quantising.Singles,
        held: Format,
        element: Format,
        shape: tuple[int, ...],
        format: Format,
        store: ScaleStore | None,
    ) -> "QuantizedTensor":
        """Return the subject of codes, or of the scales in a `store`."""
        rules = self._rules(x.shape, element, None if store is None else format)
        which = QuantizerOutput.CODES if store is None else QuantizerOutput.SCALES
        size, columns = (0, shape[-1]) if store is None else (int(np.prod(shape)), np.shape(self.x)[-1])
        variants = () if self._is_in_groups else quantising.block_causes(self.to, self.recipe, self.eps, self._factor)
        limit = rules[0].element.to
        return QuantizedTensor(x, held, rules, which, shape, format, limit, store or BY_ROWS, size, columns, variants)

    @property
    def _is_in_groups(self) -> bool:
        return self.to in (*FP8_GROUPS, ONE_SCALE)

    def _rules(
        self, shape: tuple[int, ...], element: Format, scale: Format | None
    ) -> tuple[quantising.QuantizingRule, ...]:
        """Return the rules for `to` whose scales have a format (None: any), the usual one first."""
        if not self._is_in_groups:
            rules = tuple(map(self._given, quantising.block_rules(self.to, self.recipe)))
            return rules if scale in (None, rules[0].stored_as) else ()
        found: Iterable[quantising.QuantizingRule] = ()
        if self.to == ONE_SCALE and scale in (None, F32):
            found = quantising.tensor_rules((shape[-2], shape[-1]), element)
        elif self.to != ONE_SCALE and scale in (None, F32, E8M0):
            found = quantising.group_rules(FP8_GROUPS[self.to], element, scale or F32)
        return tuple(map(self._given, found))

    @property
    def _factor(self) -> Any:
        """Return the factor of the tensor that was given."""
        return None if self.tensor_scale is None else tensor_factor(self.tensor_scale, block_format(self.to))

    def _given(self, rule: quantising.QuantizingRule) -> quantising.QuantizingRule:
        """Return the rule with the bound of amax and the factor of the tensor that were given."""
        return quantising.settled(rule, self.eps, None if self._is_in_groups else self._factor)

    def _other_format(self, format: Format) -> RefsimError:
        if self._is_in_groups:
            rule = f"{' or '.join(map(str, NARROW_FORMATS))}, scales of f32"
        else:
            rule = f"{block_format(self.to).element}, scales of {block_format(self.to).scale}"
        return RefsimError("format-mismatch", f"the output holds {format}", rule=f"a quantiser to {self.to}: {rule}")


def _fits(to: str, format: Format) -> bool:
    return format in NARROW_FORMATS if to in (*FP8_GROUPS, ONE_SCALE) else block_format(to).element is format


def joined(codes: ArrayLike, scales: ArrayLike) -> Codes:
    """Return codes and scales concatenated in 32 bits, in the order that QuantizedTensor returns both."""
    return np.concatenate([words_of(each).reshape(-1).astype(np.uint32) for each in (codes, scales)])


def words_of(scales: ArrayLike) -> Codes:
    """Return float32 as bit patterns, and codes unchanged."""
    given = native(array_of("scales", scales))
    held = format_held(given.dtype)
    return np.asarray(held_codes(given, held)[0]) if held is not None else given


def _flattened(shape: tuple[int, ...], of: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the scales of one matrix where there are several matrices."""
    return shape[len(of) - 2 :] if shape[: len(of) - 2] == of[:-2] else shape
