"""Products of 16-bit activations with narrow weights: causes in how a weight becomes a number."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.causes import scale_changes
from refsim.causes.grids_of_scales import SCALE_PLACES, SCALE_VALUES
from refsim.causes.integer_products import ZERO_READ, values_of
from refsim.causes.products import ProductOfPlans, ProductPlan
from refsim.causes.reading import AS_IT_IS, OperandReading, readings_of
from refsim.causes.rows import Cause, Codes, DoesNotApplyError, Family, Sample
from refsim.conversions import decode, encode
from refsim.formats import BF16, F16, F32, ElementType, Format
from refsim.sources import TORCHAO, VLLM

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
