"""The operands of a product with narrow weights as a user has them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refsim.causes import scale_changes
from refsim.causes.grids_of_scales import SCALE_PLACES, SCALE_VALUES
from refsim.causes.integer_operands import integer_codes, narrow_codes
from refsim.causes.integer_products import ZERO_READ, values_of
from refsim.causes.operands import ProductOperands
from refsim.causes.products import ProductOfPlans, ProductPlan
from refsim.computations.reading import AS_IT_IS, OperandReading, readings_of
from refsim.computations.ways import Cause, Codes, DoesNotApplyError, Family, Sample
from refsim.conversions import decode, encode
from refsim.conversions.coding import checked_codes
from refsim.errors import RefsimError
from refsim.formats import BF16, F16, F32, ElementType, Format, float_named
from refsim.integers import array_of
from refsim.numerics.rows import Unit
from refsim.render.cards import FieldsCard
from refsim.scaling.quantizing import scale_values
from refsim.sources import TORCHAO, VLLM
from refsim.typed_arrays import codes_with_format, format_held, held_codes, integers, native

Matrix = NDArray[Any]
Floats = NDArray[np.float32]


def _rounded(values: Floats, format: Format) -> Floats:
    return np.asarray(decode(encode(values, format), format, np.float32))


Weighing = Callable[[Floats, Floats, Floats, Format], Floats]
"""Weights from (values, scales, zero points), float32 and (N, K) each, for activations of a format."""
WEIGHINGS: dict[str, tuple[Weighing, Family]] = {
    "(q - z) * s": (lambda q, s, z, to: (q - z) * s, Family.DOUBLE_ROUNDING),
    "q * s - z * s, each product rounded": (
        lambda q, s, z, to: _rounded(q * s, to) - _rounded(z * s, to),
        Family.DOUBLE_ROUNDING,
    ),
    "q * s - z * s by fma, z * s rounded": (lambda q, s, z, to: q * s - _rounded(z * s, to), Family.CONTRACTION),
    "q - z * s": (lambda q, s, z, to: q - z * s, Family.SCALE_RULE),
    "q * s - z": (lambda q, s, z, to: q * s - z, Family.ZERO_POINT),
    "in bf16, then as it is used": (lambda q, s, z, to: _rounded((q - z) * s, BF16), Family.DOUBLE_ROUNDING),
    "in f16, then as it is used": (lambda q, s, z, to: _rounded((q - z) * s, F16), Family.DOUBLE_ROUNDING),
}
USUAL_WEIGHING = next(iter(WEIGHINGS))
BEFORE, BEHIND = "weights are scaled before the product", "the sum of a group is scaled after the product"

Change = Callable[[Matrix, int], Matrix]


def _of_pairs(codes: Matrix, limit: int) -> Matrix:
    if codes.shape[1] % 2:
        raise DoesNotApplyError
    return codes.reshape(len(codes), -1, 2)[:, :, ::-1].reshape(codes.shape)


def _interleaved(codes: Matrix, limit: int) -> Matrix:
    """Return the eight codes of each 32-bit word in the order 0, 2, 4, 6, 1, 3, 5, 7."""
    if codes.shape[1] % 8 or limit > 16:
        raise DoesNotApplyError
    return codes.reshape(len(codes), -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(codes.shape)


def _interleaved_back(codes: Matrix, limit: int) -> Matrix:
    if codes.shape[1] % 8 or limit > 16:
        raise DoesNotApplyError
    return codes.reshape(len(codes), -1, 8)[:, :, [0, 4, 1, 5, 2, 6, 3, 7]].reshape(codes.shape)


def _sign_turned(codes: Matrix, limit: int) -> Matrix:
    return np.asarray(codes ^ codes.dtype.type(limit // 2))


ORDERS: dict[str, tuple[Change | None, Family]] = {
    "as they lie": (None, Family.PACKING),
    "with the two codes of a byte exchanged": (_of_pairs, Family.PACKING),
    "with codes 0, 2, 4, 6, 1, 3, 5, 7 of each eight": (_interleaved, Family.PACKING),
    "with codes 0, 4, 1, 5, 2, 6, 3, 7 of each eight": (_interleaved_back, Family.PACKING),
    "with the highest bit turned: an offset for two's complement": (_sign_turned, Family.ZERO_POINT),
}
USUAL_ORDER = next(iter(ORDERS))


@dataclass(frozen=True)
class WeightPlan(ProductPlan):
    """The choices of a product, and the choices that make its weights."""

    ordered: str = USUAL_ORDER
    weight_read: OperandReading = AS_IT_IS
    scale_read: OperandReading = AS_IT_IS
    zero: str = next(iter(ZERO_READ))
    weighed: str = USUAL_WEIGHING
    scaled_where: str = BEFORE


@dataclass(frozen=True, eq=False)
class WeightProduct:
    """D (M, N) = A W^T: A in bf16 or f16; W (N, K) from codes, scales and zero points, rounded to A's format.

    `product` is A times the usual W; `scales` (N, T) are float32, `zeros` (N, T) whole numbers, one for each `group` of
    columns of K.
    """

    product: ProductOfPlans
    codes_of_weights: Matrix
    row: ElementType
    scales: Floats
    zeros: Floats
    group: int
    usual: WeightPlan
    made: dict[tuple[object, ...], ProductOfPlans] = field(default_factory=dict)

    is_sampled = True
    summed_over, sums_held = "columns of K", F32

    @property
    def format(self) -> Format:
        return self.product.format

    @property
    def shape(self) -> tuple[int, ...]:
        return self.product.shape

    def causes(self) -> Sequence[Cause]:
        """Return every cause that applies to these operands."""
        return [
            *self._of_weights(),
            *(each for each in self.product.causes() if each.aspect not in ("b_read", "both_read")),
        ]

    def _of_weights(self) -> Iterator[Cause]:
        """Yield the causes in the weights."""
        for says, (_, family) in ORDERS.items():
            rank = 0 if says == USUAL_ORDER else 1
            yield Cause(family, f"weights are read {says}", "ordered", says, TORCHAO["packed weights"], rank)
        for row in readings_of(self.row):
            yield Cause(row.family, f"weights are read {row.name}", "weight_read", row, row.source, row.rank)
        for row in (AS_IT_IS, *SCALE_VALUES, *scale_changes.ROWS, *SCALE_PLACES):
            yield Cause(row.family, f"scales are read {row.name}", "scale_read", row, row.source, row.rank)
        has_zeros = bool(self.zeros.any())
        if has_zeros:
            for number, says in enumerate(ZERO_READ):
                words = f"the zero point {says}"
                yield Cause(Family.ZERO_POINT, words, "zero", says, VLLM["GPTQ and AWQ weights"], min(number, 1))
        for says, (_, family) in WEIGHINGS.items():
            if has_zeros or "z * s" not in says:
                rank = 0 if says == USUAL_WEIGHING else 1
                yield Cause(family, f"a weight is {says}", "weighed", says, VLLM["GPTQ and AWQ weights"], rank)
        for says in (BEFORE, BEHIND):
            rank = 0 if says == BEFORE else 1
            yield Cause(Family.PROMOTION_ORDER, says, "scaled_where", says, TORCHAO["weight-only quantisation"], rank)

    def codes(self, plan: WeightPlan, sample: Sample | None = None) -> Codes:
        product, own = self._planned(plan)
        return product.codes(own, sample)

    def sums_of(self, plan: WeightPlan, at: tuple[int, int], most: int) -> list[tuple[int, int]]:
        """Return pairs (columns, float32 pattern): one element's sum before each of `most` ends in K."""
        product, own = self._planned(plan)
        return product.sums_of(own, at, most)

    def _planned(self, plan: WeightPlan) -> tuple[ProductOfPlans, WeightPlan]:
        """Return the product with the weights of a plan, remembered, and the plan of its sums."""
        key = plan.ordered, plan.weight_read, plan.scale_read, plan.zero, plan.weighed, plan.scaled_where
        if key not in self.made:
            if len(self.made) > 64:
                self.made.clear()
            self.made[key] = self._made(plan)
        if plan.scaled_where == BEHIND and not plan.interval and self.scales.shape[1] > 1:
            plan = replace(plan, interval=self.group)
        return self.made[key], plan

    def _made(self, plan: WeightPlan) -> ProductOfPlans:
        """Return the product with the weights of a plan."""
        change = ORDERS[plan.ordered][0]
        codes = self.codes_of_weights if change is None else change(self.codes_of_weights, self.row.code_limit)
        codes, row = plan.weight_read.read(codes, self.row)
        values = decode(codes, row, np.float32) if isinstance(row, Format) else values_of(codes, row).astype(np.float32)
        scales = np.asarray(plan.scale_read.read(self.scales, F32)[0], np.float32)
        zeros = ZERO_READ[plan.zero](self.zeros)  # type: ignore[arg-type]
        of = np.arange(values.shape[1]) // self.group
        to = self.product.formats[0]
        assert isinstance(to, Format)
        if plan.scaled_where == BEHIND:
            weights = encode(values - zeros[:, of], to)
            ones = np.ones((self.shape[0], scales.shape[1]), np.float32)
            return replace(self.product, b=weights, a_scales=ones, b_scales=scales, group=self.group, sums={})
        weights = encode(
            WEIGHINGS[plan.weighed][0](values, scales[:, of], np.asarray(zeros[:, of], np.float32), to), to
        )
        return replace(self.product, b=weights, sums={})

    def undone(self, plan: WeightPlan, got: Codes) -> tuple[WeightPlan, Codes]:
        plain, codes = self.product.undone(plan, got)
        return replace(plan, placed=plain.placed), codes

    def another(self, seed: int, *, wide: bool = False) -> "WeightProduct":
        """Return a 24 x 24 product of drawn activations, weights, scales and zero points, one group longer."""
        random = np.random.default_rng(seed)
        blocks = self.scales.shape[1] + 1
        drawn = self.product.another(seed, wide=wide)
        columns = self.group * blocks
        a = encode(random.normal(0, 1, (24, columns)), self.product.formats[0])  # type: ignore[arg-type]
        codes = random.integers(0, self.row.code_limit, (24, columns)).astype(self.row.code_dtype)
        scales = random.uniform(0.5, 2, (24, blocks)).astype(np.float32)
        zeros = np.rint(random.uniform(-1, 1, (24, blocks)) * self.zeros.max()).astype(np.float32)
        product = replace(drawn, a=a, b=np.zeros_like(a), sums={})
        return WeightProduct(product, codes, self.row, scales, zeros, self.group, self.usual)

    def described(self, plan: WeightPlan) -> str:
        """Return the plan as text."""
        where = "" if plan.scaled_where == BEFORE else f", {plan.scaled_where}"
        return (
            f"weights {self.row} as {plan.weighed} in {self.product.formats[0]}{where}, {self.product.described(plan)}"
        )


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
        assert isinstance(product, ProductOfPlans)
        if product.shape != shape:
            raise RefsimError("bad-shape", f"the output has shape {shape}, the product {product.shape}")
        usual = WeightPlan(**vars(product.usual))
        return WeightProduct(product, codes, row, scales, zeros, codes.shape[1] // groups, usual)

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
