"""The operands of a product as a user has them: floats, integers or narrow weights, with scales and the instruction."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refsim.computations.accumulating import Adder, Floats, adder_of
from refsim.computations.block_scaled import BlockScaledProduct, usual_adder
from refsim.computations.grouped import GroupedProduct
from refsim.computations.integer_products import IntegerProduct, Whole
from refsim.computations.products import PlainProduct
from refsim.computations.scale_changes import BLOCK
from refsim.computations.ways import Codes
from refsim.computations.weights import WeightProduct
from refsim.conversions import decode
from refsim.conversions.coding import checked_codes
from refsim.errors import RefsimError
from refsim.formats import (
    F16,
    F32,
    S4,
    S8,
    S32,
    U4,
    U8,
    ElementType,
    Format,
    Integer,
    element_named,
    float_named,
    format_named,
)
from refsim.integers import array_of, is_whole
from refsim.numerics.calls import codes_and_format
from refsim.numerics.profiles import chip, profile, rows_of, unit_rank
from refsim.numerics.rows import Profile, Unit
from refsim.oracles.block_scaled import ScaleForm, side, start_of
from refsim.render.cards import FieldsCard
from refsim.scaling.quantizing import scale_values
from refsim.typed_arrays import (
    codes_with_format,
    disagreeing,
    format_held,
    held_codes,
    integer_held,
    integers,
    is_typed,
    native,
    words,
)

Operands = Any
"""A `ProductOperands`; its module imports this one."""
NOBODY = -1
"""The index of a row without an expert, as DeepGEMM pads its groups."""


@dataclass(frozen=True, kw_only=True, repr=False)
class ProductOperands(FieldsCard):
    """The operands of D = A B^T + C, from which outputs are recomputed.

    `a` (M, K), `b` (N, K): codes with `a_format` and `b_format`, or arrays of ml_dtypes. `c`: float32 (M, N).
    `a_scale`, `b_scale`: float32, or E8M0 codes as uint8: one number, one for each row, or (rows, T) or (ceil(rows /
    128), T) for T blocks of K. `unit`, `target` and `k` select the instruction, as in `numerics.mma`; `interval` is the
    number of columns of K after which sums are added in float32 (0: none; by default the blocks of the scales). With a
    `scale_format`, "e8m0" or "ue4m3", scales are codes, (rows, K / 32) or (rows, K / 16), row by row before any
    shuffle. They take part in the product as in `oracles.block_scaled_matmul`; `global_scale` is NVFP4's. `a`
    (B, M, K) are batches: `b` is (B, N, K) or (N, K), and the shapes of scales and `c` begin with B. With `m_indices`
    (M,), int32, `b` (G, N, K) and its scales are those of G experts, one for each row of `a`; -1: the row is not
    compared.
    ProductOperands(a=a, b=b, a_format="e4m3", b_format="e4m3") is one chain of Hopper's wgmma.
    """

    a: ArrayLike
    b: ArrayLike
    a_format: str | ElementType | None = None
    b_format: str | ElementType | None = None
    c: ArrayLike | None = None
    a_scale: ArrayLike | None = None
    b_scale: ArrayLike | None = None
    unit: Unit | None = None
    target: str = "sm_90a"
    k: int | None = None
    interval: int | None = None
    scale_format: str | Format | None = None
    global_scale: float | None = None
    m_indices: ArrayLike | None = None

    def product(self, format: Format) -> PlainProduct | BlockScaledProduct | GroupedProduct:
        """Return the product whose output has `format`. Raises RefsimError for operands that do not fit."""
        if self.m_indices is not None or np.ndim(self.a) == 3:
            return grouped_product(self, format)
        if self.scale_format is not None:
            return self._of_blocks(format, format_named(self.scale_format))
        if self.global_scale is not None:
            raise RefsimError("usage", "a global scale without a format of scales", help="scale_format='ue4m3'")
        a, a_format = _matrix("a", self.a, self.a_format)
        b, b_format = _matrix("b", self.b, self.b_format)
        if a.shape[1] != b.shape[1]:
            raise RefsimError("bad-shape", f"a has K = {a.shape[1]}, b has K = {b.shape[1]}", rule="(M, K), (N, K)")
        c = self._c((len(a), len(b)))
        a_scales, b_scales, group = self._scales(len(a), len(b), a.shape[1])
        adder = self._adder(a_format, b_format)
        if self.interval is not None and not is_whole(self.interval):
            raise RefsimError("out-of-range", f"interval is {self.interval!r}", rule="columns of K, 0: one chain")
        own = group if a_scales is not None and a_scales.shape[1] > 1 else 0
        interval = own if self.interval is None else min(int(self.interval), a.shape[1])
        return PlainProduct(a, b, (a_format, b_format), c, a_scales, b_scales, group, format, adder, interval)

    def _of_blocks(self, format: Format, kind: Format) -> BlockScaledProduct:
        """Return the product whose blocks of K have scale codes."""
        if self.a_scale is None or self.b_scale is None:
            raise RefsimError("bad-shape", "blocks of one operand have scales", rule="a_scale and b_scale")
        if self.k is not None or self.interval is not None:
            raise RefsimError("usage", "k or interval with codes of scales", rule="the unit's own K, one chain")
        form = ScaleForm(kind, None, None)
        formats = [None if each is None else format_named(str(each)) for each in (self.a_format, self.b_format)]
        left = side("a", self.a, formats[0], self.a_scale, form)
        right = side("b", self.b, formats[1], self.b_scale, form)
        if left.k != right.k:
            raise RefsimError("bad-shape", f"a has K = {left.k}, b has K = {right.k}", rule="(M, K), (N, K)")
        c = self._c((len(left.codes), len(right.codes)))
        adder = usual_adder(left, right, self.target, self.unit)
        factor = None if self.global_scale is None else np.float32(self.global_scale)
        sides = left.codes, right.codes, (left.format, right.format), (left.scales, right.scales)
        return BlockScaledProduct(*sides, left.kind, left.block, c, factor, format, adder)

    def _c(self, shape: tuple[int, int]) -> Floats | None:
        return None if self.c is None else start_of(self.c, *shape)

    def _adder(self, a: ElementType, b: ElementType) -> Adder:
        """Return the adder of the reference."""
        row = self._row(a, b)
        return adder_of(row, (a, b), max(row.k) if self.k is None else self.k)

    def _row(self, a: ElementType, b: ElementType) -> Profile:
        """Return the profile of the instruction."""
        if self.unit is not None:
            return profile(self.target, self.unit, a, b, F32, self.k)
        chip(self.target)
        here = [row for row in rows_of(self.target) if a in row.a_formats and b in row.b_formats and not row.scales]
        fitting = [row for row in here if row.d_format in (F32, F16)]
        if not fitting:
            what = f"{self.target} multiplies no {a} by {b} into floats"
            raise RefsimError("unknown-arithmetic", what, help="target=, unit=")
        return min(fitting, key=lambda row: (unit_rank(row.unit), row.d_format is not F32))

    def _scales(self, m: int, n: int, k: int) -> tuple[Floats | None, Floats | None, int]:
        """Return scales by row of A and of B, (rows, T), and the number of columns of K that share one."""
        if self.a_scale is None and self.b_scale is None:
            return None, None, k
        left, right = (
            _by_row(name, scale_values(1.0 if each is None else each), rows, shared=BLOCK)
            for name, each, rows in (("a_scale", self.a_scale, m), ("b_scale", self.b_scale, n))
        )
        blocks = max(left.shape[1], right.shape[1])
        if any(each.shape[1] not in (1, blocks) for each in (left, right)):
            what = f"{left.shape[1]} and {right.shape[1]} blocks of K have scales"
            raise RefsimError("bad-shape", what, rule="as many of A as of B, or one")
        group = BLOCK if -(-k // BLOCK) == blocks else k // blocks if k % blocks == 0 else 0
        if not group:
            what = f"{blocks} blocks of scales for K = {k}"
            raise RefsimError("bad-shape", what, rule=f"a divisor of K, or one for every {BLOCK} columns")
        if blocks == 1:
            group = k
        return _spread(left, (m, blocks)), _spread(right, (n, blocks)), group


def _matrix(name: str, codes: ArrayLike, format: str | ElementType | None) -> tuple[NDArray[Any], ElementType]:
    words, row = codes_and_format(array_of(name, codes), format, name, None)
    array = np.asarray(words)
    if array.dtype != row.code_dtype:
        raise RefsimError("bad-dtype", f"{name} holds {array.dtype}, codes of {row} are {row.code_dtype}")
    if array.ndim != 2 or 0 in array.shape:
        raise RefsimError("bad-shape", f"{name} has shape {array.shape}", rule="(rows, K), neither of them empty")
    return array, row


def _by_row(name: str, values: Floats, rows: int, *, shared: int = 0) -> Floats:
    """Return values (rows, T) of one number, one for each row or (rows, T), or of that for `shared` rows each."""
    if values.size == 1:
        return np.full((rows, 1), values.reshape(-1)[0], np.float32)
    grid = values[:, None] if values.ndim == 1 else values
    if shared and grid.ndim == 2 and len(grid) == -(-rows // shared) != rows:
        grid = np.repeat(grid, shared, axis=0)[:rows]
    if grid.ndim != 2 or len(grid) not in (1, rows) or not grid.shape[1]:
        many = f", {rows} rows or {-(-rows // shared)} of {shared} rows each" if shared else f", {rows}, or ({rows}, T)"
        raise RefsimError("bad-shape", f"{name} has shape {values.shape}", rule=f"one number{many}")
    return _spread(grid, (rows, grid.shape[1]))


def _spread(values: NDArray[Any], shape: tuple[int, int]) -> NDArray[Any]:
    return np.ascontiguousarray(np.broadcast_to(values, shape))


def grouped_product(given: Operands, format: Format) -> GroupedProduct:
    """Return the product of batches, or of rows with experts. Raises RefsimError for shapes that do not match."""
    if given.scale_format is not None:
        raise RefsimError("usage", "batches or experts with codes of scales", help="one of them at a time")
    a, b = array_of("a", given.a), array_of("b", given.b)
    if given.m_indices is not None:
        return _of_experts(given, a, b, format)
    batches, rows = a.shape[:2]
    if b.ndim == 3 and len(b) != batches:
        raise RefsimError("bad-shape", f"a has {batches} batches, b has {len(b)}", rule="(B, M, K), (B, N, K)")
    c = None if given.c is None else _rows_of_c(given.c, batches)
    left = replace(given, a=a.reshape(-1, a.shape[2]), a_scale=_behind_each_other(given.a_scale, batches, rows), c=c)
    products = _products(left, b, format)
    groups = np.repeat(np.arange(batches), rows)
    return GroupedProduct(products, groups, (batches, rows, products[0].shape[1]), batches)


def _of_experts(given: Operands, a: NDArray[Any], b: NDArray[Any], format: Format) -> GroupedProduct:
    """Return the product of rows whose experts `m_indices` selects; rows without an expert are dropped."""
    index = array_of("m_indices", given.m_indices)
    if index.dtype.kind not in "iu" or index.shape != a.shape[:1] or a.ndim != 2 or b.ndim != 3:
        what = f"m_indices is {index.dtype} of shape {index.shape}, a has shape {a.shape}, b has shape {b.shape}"
        raise RefsimError("bad-shape", what, rule="integers (M,), (M, K), (G, N, K)")
    kept = index != NOBODY
    if not kept.any() or index[kept].min() < 0 or index[kept].max() >= len(b):
        raise RefsimError("out-of-range", f"m_indices has {index.min()}..{index.max()}", rule=f"-1, 0..{len(b) - 1}")
    scale = given.a_scale
    if scale is not None and np.ndim(scale) and np.shape(scale)[0] == len(a):
        scale = array_of("a_scale", scale)[kept]
    c = None if given.c is None else array_of("c", given.c)[kept]
    products = _products(replace(given, a=a[kept], a_scale=scale, c=c, m_indices=None), b, format)
    groups = index[kept].astype(np.int64)
    return GroupedProduct(products, groups, (len(a), products[0].shape[1]), kept=kept)


def _products(left: Operands, b: NDArray[Any], format: Format) -> tuple[PlainProduct, ...]:
    """Return the product of all rows of A with each matrix of B."""
    matrices = b if b.ndim == 3 else b[None]
    found = []
    for at, matrix in enumerate(matrices):
        scale = None if left.b_scale is None else _of_group(left.b_scale, at, b)
        product = replace(left, b=matrix, b_scale=scale).product(format)
        assert isinstance(product, PlainProduct)
        found.append(product)
    return tuple(found)


def _of_group(scales: ArrayLike, at: int, b: NDArray[Any]) -> Any:
    """Return the scales of one group; a single scale applies to every group."""
    held = array_of("b_scale", scales)
    if held.ndim == 0 or held.size == 1 or b.ndim == 2:
        return held
    if len(held) != len(b):
        raise RefsimError("bad-shape", f"b_scale has shape {held.shape}", rule=f"{len(b)} groups before their shapes")
    return held[at]


def _behind_each_other(scales: ArrayLike | None, batches: int, rows: int) -> Any:
    """Return scales (B, M, T), (B, M) or (B,) as those of B M rows."""
    if scales is None or np.size(scales) == 1:
        return scales
    held = array_of("a_scale", scales)
    if len(held) != batches:
        rule = f"{batches} batches before their shapes"
        raise RefsimError("bad-shape", f"a_scale has shape {held.shape}", rule=rule)
    if held.ndim == 1:
        return np.repeat(held, rows)
    if held.shape[1] == 1 != rows:
        held = np.repeat(held, rows, axis=1)
    return held.reshape(batches * held.shape[1], *held.shape[2:])


def _rows_of_c(c: ArrayLike, batches: int) -> Any:
    """Return C (B, M, N) as (B M, N)."""
    held = array_of("c", c)
    if held.ndim != 3 or len(held) != batches:
        raise RefsimError("bad-shape", f"c has shape {held.shape}", rule=f"({batches}, M, N)")
    return held.reshape(-1, held.shape[2])


@dataclass(frozen=True, kw_only=True, repr=False)
class IntegerOperands(FieldsCard):
    """The operands of D = (A - za)(B - zb)^T + C over integers, from which outputs are recomputed.

    `a` (M, K), `b` (N, K): int8, uint8, int4 and uint4 of ml_dtypes, or codes, one a byte, with `a_format` and
    `b_format` "s8", "u8", "s4" or "u4". `c` (M, N) or (N,): int32. `a_zero`, `b_zero`: a number, or one for each row.
    Without scales the sum is D: s32, or f32, bf16 or f16. With `a_scale` and `b_scale`, float32, a number or one for
    each row, D is the sum times the scales; in s8 or u8 it is rounded, `d_zero` is added, and it saturates.
    IntegerOperands(a=a, b=b) of int8 is what a tensor core returns in s32.
    """

    a: ArrayLike
    b: ArrayLike
    a_format: str | Integer | None = None
    b_format: str | Integer | None = None
    c: ArrayLike | None = None
    a_zero: ArrayLike = 0
    b_zero: ArrayLike = 0
    d_zero: int = 0
    a_scale: ArrayLike | None = None
    b_scale: ArrayLike | None = None

    def explained(self, shape: tuple[int, ...], format: ElementType) -> Any:
        """Return the product whose output has that shape and type. Raises RefsimError for operands that do not fit."""
        a, left = _integer_matrix("a", self.a, self.a_format)
        knows = integer_held(array_of("b", self.b).dtype) is not None
        b, right = _integer_matrix("b", self.b, self.b_format or (None if knows else self.a_format))
        if a.shape[1] != b.shape[1]:
            raise RefsimError("bad-shape", f"a has K = {a.shape[1]}, b has K = {b.shape[1]}", rule="(M, K), (N, K)")
        if shape != (len(a), len(b)):
            what = f"the output has shape {shape}, the product {(len(a), len(b))}"
            raise RefsimError("bad-shape", what)
        zeros = _zeros("a_zero", self.a_zero, len(a)), _zeros("b_zero", self.b_zero, len(b))
        scales = None
        if self.a_scale is not None or self.b_scale is not None:
            scales = _scales("a_scale", self.a_scale, len(a)), _scales("b_scale", self.b_scale, len(b))
        elif isinstance(format, Integer) and format is not S32:
            raise RefsimError("usage", f"an output of {format} without scales", help="a_scale=, b_scale=")
        if scales is not None and format is S32:
            raise RefsimError("usage", "scales of an output in s32", help="the sum is not scaled")
        c = None if self.c is None else _c(self.c, shape)
        return IntegerProduct(a, b, (left, right), c, (*zeros, int(self.d_zero)), scales, format)


def integer_codes(name: str, array: ArrayLike, format: str | ElementType | None) -> tuple[NDArray[Any], Integer] | None:
    """Return codes of integers with their type, from `format` or the dtype; None where they are floats.

    int8 is s8, int32 is s32, int4 and uint4 of ml_dtypes are s4 and u4; uint8 needs a format, as all codes do.
    """
    given = native(array_of(name, array))
    row = None if format is None else element_named(format)
    if is_typed(given.dtype):
        own = integer_held(given.dtype)
        if (own is not None or isinstance(row, Integer)) and row not in (None, own):
            raise disagreeing(given.dtype, row, name)
        return None if own is None else (words(given), own)
    if isinstance(row, Format) or (row is None and given.dtype.kind != "i"):
        return None
    if row is None:
        row = next((each for each in (S32, *_TYPES) if each.array_dtype == given.dtype), None)
        if row is None:
            raise RefsimError("bad-dtype", f"{name} holds {given.dtype}", rule="int8 or int32, or codes with a format")
    if given.dtype.kind not in "iu" or given.dtype.itemsize != row.code_dtype.itemsize:
        raise RefsimError("bad-dtype", f"{name} holds {given.dtype}, codes of {row} are {row.code_dtype}")
    return np.ascontiguousarray(given).view(row.code_dtype).reshape(given.shape), row


_TYPES = S8, U8, S4, U4


def _integer_matrix(name: str, given: ArrayLike, format: str | Integer | None) -> tuple[NDArray[Any], Integer]:
    """Return an operand (rows, K) as codes of 4 or 8 bits, with their type."""
    array = array_of(name, given)
    if format is None and array.dtype == np.uint8:
        format = U8
    found = integer_codes(name, array, format)
    if found is None or found[1] not in _TYPES:
        rule = f"int8, uint8, or codes of {', '.join(map(str, _TYPES))}"
        raise RefsimError("bad-dtype", f"{name} holds {array.dtype}, of {format}", rule=rule)
    codes, row = found
    if codes.ndim != 2 or 0 in codes.shape:
        raise RefsimError("bad-shape", f"{name} has shape {codes.shape}", rule="(rows, K), neither of them empty")
    return narrow_codes(name, codes, row), row


def narrow_codes(name: str, codes: NDArray[Any], row: Integer) -> NDArray[Any]:
    """Return codes without the sign bits that fill their bytes. Raises RefsimError for other values above them."""
    are_codes = codes_or_extended(codes, row)
    if not are_codes.all():
        rule = f"codes of {row} are 0 to {row.code_limit - 1:#x}, one a place; above them no more than their sign"
        raise RefsimError("out-of-range", f"{name} holds {int(codes[~are_codes].flat[0]):#x}", rule=rule)
    return codes & (row.code_limit - 1)


def codes_or_extended(codes: NDArray[Any], row: Integer) -> NDArray[np.bool_]:
    """Return which elements are codes, or negative numbers sign-extended: 0xf8 is -8 of s4 in int8."""
    extended = codes.astype(np.int64) >= (1 << 8 * codes.dtype.itemsize) - row.sign_mask
    return (codes < row.code_limit) | extended & row.signed


def _c(given: ArrayLike, shape: tuple[int, int]) -> Whole:
    c = array_of("c", given)
    if c.dtype.kind not in "iu" or c.shape not in (shape, shape[1:]):
        raise RefsimError("bad-shape", f"c is {c.dtype} of shape {c.shape}", rule=f"int32, {shape} or {shape[1:]}")
    return np.broadcast_to(c.astype(np.int64), shape)


def _zeros(name: str, given: ArrayLike, rows: int) -> Whole:
    """Return whole zero points, one for each row."""
    zero = array_of(name, given)
    narrow = integers(zero)
    whole = (zero if narrow is None else narrow).reshape(-1)
    if whole.size not in (1, rows) or not np.isfinite(whole).all() or (whole != np.rint(whole)).any():
        raise RefsimError("bad-shape", f"{name} is {zero.dtype} of shape {zero.shape}", rule=f"integers, one or {rows}")
    return np.broadcast_to(whole.astype(np.int64), (rows,))


def _scales(name: str, given: ArrayLike | None, rows: int) -> NDArray[np.float32]:
    values = scale_values(np.float32(1) if given is None else given)
    if values.size not in (1, rows):
        raise RefsimError("bad-shape", f"{name} has shape {values.shape}", rule=f"one number, or {rows}")
    return _spread(values.reshape(-1, 1), (rows, 1))


@dataclass(frozen=True, kw_only=True, repr=False)
class WeightOperands(FieldsCard):
    """The operands of D = A W^T with narrow weights (w8a16, w4a16), from which outputs are recomputed.

    `a` (M, K): bf16 or f16. `b` (N, K): codes of `b_format`, "e4m3", "s8", "u8", "s4", "u4", one for each element, or
    an array of such a dtype. `b_scale`: a number, (N,) or (N, K / group), in float32, float16, bfloat16 or E8M0 codes;
    `b_zero`, whole numbers, in such a shape too. With a `scale_format`, "e8m0" or "ue4m3", scales are its codes. The
    reference computes w = (q - zero) * scale in float32, rounds it to A's format and multiplies on tensor cores;
    `unit`, `target`, `k`, `interval` and `c` are as for ProductOperands.
    WeightOperands(a=a, b=q, a_format="bf16", b_format="u4", b_scale=s, b_zero=8) is GPTQ's product.
    """

    a: ArrayLike
    b: ArrayLike
    a_format: str | Format | None = None
    b_format: str | ElementType | None = None
    b_scale: ArrayLike
    b_zero: ArrayLike = 0
    c: ArrayLike | None = None
    unit: Unit | None = None
    target: str = "sm_90a"
    k: int | None = None
    interval: int | None = None
    scale_format: str | Format | None = None

    def explained(self, shape: tuple[int, ...], format: Format) -> Any:
        """Return the product with output of that shape and format. Raises RefsimError for operands that do not fit."""
        codes, row = self._weights()
        scales = _by_row("b_scale", _weight_scales(self.b_scale, self.scale_format), len(codes))
        zeros = _by_row("b_zero", _numbers("b_zero", self.b_zero), len(codes))
        groups = max(scales.shape[1], zeros.shape[1])
        fits = all(each.shape[1] in (1, groups) for each in (scales, zeros))
        if not fits or codes.shape[1] % groups or (zeros != np.rint(zeros)).any():
            what = f"{groups} groups of K = {codes.shape[1]}"
            raise RefsimError("bad-shape", what, rule="a divisor of K, whole zeros")
        scales, zeros = (_spread(each, (len(codes), groups)) for each in (scales, zeros))
        own = {name: getattr(self, name) for name in ("a", "a_format", "c", "unit", "target", "k", "interval")}
        blank = ProductOperands(b=np.zeros(codes.shape, np.uint16), b_format=self._format(), **own)
        product = blank.product(format)
        assert isinstance(product, PlainProduct)
        if product.shape != shape:
            raise RefsimError("bad-shape", f"the output has shape {shape}, the product {product.shape}")
        return WeightProduct(product, codes, row, scales, zeros, codes.shape[1] // groups)

    def _weights(self) -> tuple[Codes, ElementType]:
        """Return the codes of B, one for each element, and their type."""
        found = integer_codes("b", self.b, self.b_format)
        codes, row = codes_with_format("b", self.b, self._float_format()) if found is None else found
        if codes.ndim != 2 or 0 in codes.shape:
            raise RefsimError("bad-shape", f"b has shape {codes.shape}", rule="(N, K), neither of them empty")
        return (checked_codes(codes, row) if isinstance(row, Format) else narrow_codes("b", codes, row)), row

    def _float_format(self) -> Format | None:
        return None if self.b_format is None else float_named(self.b_format)

    def _format(self) -> Format:
        """Return A's format, to which weights are rounded."""
        _, row = codes_and_format(array_of("a", self.a), self.a_format, "a", None)
        if not isinstance(row, Format) or row.bits != 16 or row.exponent_bits < 5:
            raise RefsimError("bad-dtype", f"a holds {row}", rule="bf16 or f16")
        return row


def _weight_scales(given: ArrayLike, named: str | Format | None) -> NDArray[np.float32]:
    """Return scales as float32, of codes of a format where it is given; uint8 holds E8M0 codes, as for all scales."""
    array = array_of("b_scale", given)
    if named is not None:
        format = format_named(named)
        return np.asarray(decode(codes_with_format("b_scale", array, format)[0], format), np.float32)
    return scale_values(array) if array.dtype == np.uint8 else _numbers("b_scale", array)


def _numbers(name: str, given: ArrayLike) -> NDArray[np.float32]:
    """Return numbers as float32, for narrow dtypes exactly the values of the array."""
    array = native(array_of(name, given))
    held = format_held(array.dtype)
    narrow = integers(array)
    if narrow is not None:
        return narrow.astype(np.float32)
    if held is not None:
        return decode(np.asarray(held_codes(array, held)[0]), held, np.float32)
    if array.dtype.kind not in "iuf":
        raise RefsimError("bad-dtype", f"{name} holds {array.dtype}", rule="numbers")
    return array.astype(np.float32)
