"""Operands of a product with narrow weights, as a user has them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from refsim.causes.integer_operands import integer_codes
from refsim.causes.operands import ProductOperands
from refsim.causes.products import ProductOfPlans
from refsim.causes.weight_products import WeightPlan, WeightProduct
from refsim.errors import RefsimError
from refsim.formats import ElementType, Format, element_named
from refsim.integers import array_of
from refsim.numerics.rows import Unit
from refsim.scaling.quantizing import scale_values


@dataclass(frozen=True, kw_only=True)
class WeightOperands:
    """The operands of D = A W^T with narrow weights (w8a16, w4a16): what outputs are computed from again.

    `a` (M, K): bf16 or f16. `b` (N, K): codes of `b_format`, "e4m3", "s8", "u8", "s4", "u4", one a place. `b_scale`: a number,
    (N,) or (N, K / group); `b_zero`, whole numbers, likewise. Usual is w = (q - zero) * scale in float32, rounded to A's format,
    and the product of both on tensor cores; `unit`, `target`, `k`, `interval` and `c` as of ProductOperands.
    WeightOperands(a=a, b=q, a_format="bf16", b_format="u4", b_scale=s, b_zero=8) is GPTQ's product.
    """

    a: ArrayLike
    b: ArrayLike
    a_format: str | Format | None = None
    b_format: str | ElementType
    b_scale: ArrayLike
    b_zero: ArrayLike = 0
    c: ArrayLike | None = None
    unit: Unit | None = None
    target: str = "sm_90a"
    k: int | None = None
    interval: int | None = None

    def explained(self, shape: tuple[int, ...], format: Format) -> Any:
        """The product whose output has that shape and format. Raises RefsimError for operands that do not fit."""
        row = element_named(self.b_format)
        codes = array_of("b", self.b)
        if not isinstance(row, Format):
            found = integer_codes("b", codes, row)
            codes = codes if found is None else found[0] % np.uint64(row.code_limit)
        codes = np.asarray(codes).astype(row.code_dtype)
        if codes.ndim != 2 or 0 in codes.shape or int(codes.max()) >= row.code_limit:
            raise RefsimError("operand-shape", f"b has shape {codes.shape}", rule=f"(N, K), codes of {row}")
        scales, zeros = (_grid(*each, codes.shape) for each in (("b_scale", self.b_scale), ("b_zero", self.b_zero)))
        groups = max(scales.shape[1], zeros.shape[1])
        fits = all(each.shape[1] in (1, groups) for each in (scales, zeros))
        if not fits or codes.shape[1] % groups or (zeros != np.rint(zeros)).any():
            raise RefsimError(
                "scale-shape", f"{groups} groups of K = {codes.shape[1]}", rule="a divisor of K, whole zeros"
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
        assert isinstance(product, ProductOfPlans)
        if product.shape != shape:
            raise RefsimError("shape-mismatch", f"the output has shape {shape}, the product {product.shape}")
        usual = WeightPlan(**{name: getattr(product.usual, name) for name in product.usual.__dataclass_fields__})
        return WeightProduct(product, codes, row, scales, zeros, codes.shape[1] // groups, usual)

    def _format(self) -> Format:
        """A's format, which weights are rounded to."""
        from refsim.numerics.calls import codes_and_format

        _, row = codes_and_format(array_of("a", self.a), self.a_format, "a", None)
        if not isinstance(row, Format) or row.bits != 16 or row.exponent_bits < 5:
            raise RefsimError("code-type", f"a holds {row}", rule="bf16 or f16")
        return row


def _grid(name: str, given: ArrayLike, shape: tuple[int, ...]) -> Any:
    """(N, T) of a number, (N,) or (N, T)."""
    values = scale_values(np.asarray(given, np.float32))
    if values.size == 1:
        return np.full((shape[0], 1), values.reshape(-1)[0], np.float32)
    grid = values[:, None] if values.ndim == 1 else values
    if grid.ndim != 2 or len(grid) != shape[0] or not grid.shape[1]:
        raise RefsimError(
            "scale-shape", f"{name} has shape {values.shape}", rule=f"one number, {shape[0]}, or ({shape[0]}, T)"
        )
    return grid
