"""The operands of a product with narrow weights as a user has them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refsim.causes.integer_operands import integer_codes, narrow_codes
from refsim.causes.operands import ProductOperands
from refsim.computations.products import PlainProduct
from refsim.computations.ways import Codes
from refsim.computations.weights import WeightProduct
from refsim.conversions import decode
from refsim.conversions.coding import checked_codes
from refsim.errors import RefsimError
from refsim.formats import ElementType, Format, float_named
from refsim.integers import array_of
from refsim.numerics.rows import Unit
from refsim.render.cards import FieldsCard
from refsim.scaling.quantizing import scale_values
from refsim.typed_arrays import codes_with_format, format_held, held_codes, integers, native

Matrix = NDArray[Any]
Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, repr=False)
class WeightOperands(FieldsCard):
    """The operands of D = A W^T with narrow weights (w8a16, w4a16), from which outputs are recomputed.

    `a` (M, K): bf16 or f16. `b` (N, K): codes of `b_format`, "e4m3", "s8", "u8", "s4", "u4", one for each element, or
    an array of such a dtype. `b_scale`: a number, (N,) or (N, K / group), in float32, float16, bfloat16 or E8M0 codes;
    `b_zero`, whole numbers, in such a shape too. The reference computes w = (q - zero) * scale in float32, rounds it to
    A's format and multiplies on tensor cores; `unit`, `target`, `k`, `interval` and `c` are as for ProductOperands.
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

    def explained(self, shape: tuple[int, ...], format: Format) -> Any:
        """Return the product with output of that shape and format. Raises RefsimError for operands that do not fit."""
        codes, row = self._weights()
        scales = _grid("b_scale", _scales(self.b_scale), codes.shape)
        zeros = _grid("b_zero", _numbers("b_zero", self.b_zero), codes.shape)
        groups = max(scales.shape[1], zeros.shape[1])
        fits = all(each.shape[1] in (1, groups) for each in (scales, zeros))
        if not fits or codes.shape[1] % groups or (zeros != np.rint(zeros)).any():
            raise RefsimError(
                "bad-shape", f"{groups} groups of K = {codes.shape[1]}", rule="a divisor of K, whole zeros"
            )
        scales, zeros = (np.ascontiguousarray(np.broadcast_to(each, (len(codes), groups))) for each in (scales, zeros))
        blank = ProductOperands(
            a=self.a,
            b=np.zeros(codes.shape, np.uint16),
            a_format=self.a_format,
            b_format=self._format(),
            c=self.c,
            unit=self.unit,
            target=self.target,
            k=self.k,
            interval=self.interval,
        )
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
        from refsim.numerics.calls import codes_and_format

        _, row = codes_and_format(array_of("a", self.a), self.a_format, "a", None)
        if not isinstance(row, Format) or row.bits != 16 or row.exponent_bits < 5:
            raise RefsimError("bad-dtype", f"a holds {row}", rule="bf16 or f16")
        return row


def _scales(given: ArrayLike) -> NDArray[np.float32]:
    """Return scales as float32; uint8 holds E8M0 codes, as for all scales."""
    array = array_of("b_scale", given)
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


def _grid(name: str, values: NDArray[np.float32], shape: tuple[int, ...]) -> Any:
    """Return (N, T) values of a number, (N,) or (N, T)."""
    if values.size == 1:
        return np.full((shape[0], 1), values.reshape(-1)[0], np.float32)
    grid = values[:, None] if values.ndim == 1 else values
    if grid.ndim != 2 or len(grid) != shape[0] or not grid.shape[1]:
        raise RefsimError(
            "bad-shape", f"{name} has shape {values.shape}", rule=f"one number, {shape[0]}, or ({shape[0]}, T)"
        )
    return grid
