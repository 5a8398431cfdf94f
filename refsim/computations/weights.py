"""Products with narrow weights: how weights are read, scaled and rounded before they are multiplied."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.computations import scale_changes
from refsim.computations.engine import Aspect, Computation
from refsim.computations.integer_products import ZERO_READ, values_of
from refsim.computations.products import PlainProduct
from refsim.computations.reading import AS_IT_IS, readings_of
from refsim.computations.scale_changes import SCALE_PLACES, SCALE_VALUES
from refsim.computations.ways import Choices, Codes, DoesNotApplyError, Family, Sample, Way, ways_of, worded
from refsim.conversions import decode, encode
from refsim.formats import BF16, F16, F32, ElementType, Format
from refsim.sources import TORCHAO, VLLM

Matrix = NDArray[Any]
Floats = NDArray[np.float32]


def _rounded(values: Floats, format: Format) -> Floats:
    return np.asarray(decode(encode(values, format), format, np.float32))


_LIBRARY = VLLM["GPTQ and AWQ weights"]
_ROUNDING = Family.DOUBLE_ROUNDING
WEIGHINGS_OF_CODES = (
    Way("(q - z) * s", _ROUNDING, _LIBRARY, lambda q, s, z, to: (q - z) * s, 0),
    Way(
        "q * s - z * s, each product rounded",
        _ROUNDING,
        _LIBRARY,
        lambda q, s, z, to: _rounded(q * s, to) - _rounded(z * s, to),
    ),
    Way(
        "q * s - z * s by fma, z * s rounded",
        Family.CONTRACTION,
        _LIBRARY,
        lambda q, s, z, to: q * s - _rounded(z * s, to),
    ),
    Way("q - z * s", Family.SCALE_RULE, _LIBRARY, lambda q, s, z, to: q - z * s),
    Way("q * s - z", Family.ZERO_POINT, _LIBRARY, lambda q, s, z, to: q * s - z),
    Way("in bf16, then as it is used", _ROUNDING, _LIBRARY, lambda q, s, z, to: _rounded((q - z) * s, BF16)),
    Way("in f16, then as it is used", _ROUNDING, _LIBRARY, lambda q, s, z, to: _rounded((q - z) * s, F16)),
)
"""Weights from (values, scales, zero points), float32 and (N, K) each, for activations of a format."""
BEFORE, BEHIND = PLACES_OF_SCALES = worded(
    Family.PROMOTION_ORDER,
    TORCHAO["weight-only quantisation"],
    "weights are scaled before the product",
    "the sum of a group is scaled after the product",
)


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


ORDERS_OF_CODES = (
    *ways_of(
        Family.PACKING,
        TORCHAO["packed weights"],
        {
            "as they lie": lambda codes, limit: codes,
            "with the two codes of a byte exchanged": _of_pairs,
            "with codes 0, 2, 4, 6, 1, 3, 5, 7 of each eight": _interleaved,
            "with codes 0, 4, 1, 5, 2, 6, 3, 7 of each eight": _interleaved_back,
        },
    ),
    Way(
        "with the highest bit turned: an offset for two's complement",
        Family.ZERO_POINT,
        TORCHAO["packed weights"],
        lambda codes, limit: codes ^ codes.dtype.type(limit // 2),
    ),
)


def _has_zeros(own: "WeightProduct", way: Way) -> bool:
    return bool(own.zeros.any())


@dataclass(frozen=True, eq=False)
class WeightProduct(Computation):
    """D (M, N) = A W^T: A in bf16 or f16; W (N, K) from codes, scales and zero points, rounded to A's format.

    `product` is A times the usual W; `scales` (N, T) are float32, `zeros` (N, T) whole numbers, one for each `group` of
    columns of K.
    """

    product: PlainProduct
    codes_of_weights: Matrix
    row: ElementType
    scales: Floats
    zeros: Floats
    group: int

    summed_over, sums_held = "columns of K", F32
    aspects = (
        Aspect("ordered", ORDERS_OF_CODES, says="weights are read {}"),
        Aspect("weight_read", lambda own: readings_of(own.row), AS_IT_IS, says="weights are read {}"),
        Aspect("scale_read", (AS_IT_IS, *SCALE_VALUES, *scale_changes.ROWS, *SCALE_PLACES), says="scales are read {}"),
        Aspect("zero", ways_of(Family.ZERO_POINT, _LIBRARY, ZERO_READ), says="the zero point {}", when=_has_zeros),
        Aspect(
            "weighed",
            WEIGHINGS_OF_CODES,
            says="a weight is {}",
            when=lambda own, way: _has_zeros(own, way) or "z * s" not in way.name,
            told="as {}",
        ),
        Aspect("scaled_where", PLACES_OF_SCALES),
    )
    of_weights = " ".join(each.name for each in aspects)

    @property
    def title(self) -> str:
        return f"weights {self.row} in {self.product.formats[0]}, "

    @property
    def choices(self) -> Sequence[tuple[Aspect, Computation]]:
        """Return the aspects of the weights, and those of the product, which reads B as it is."""
        of_product = (
            (replace(each, ways=()) if each.name == "b_read" else each, of)
            for each, of in self.product.choices
        )
        return [*super().choices, *of_product]

    @property
    def format(self) -> Format:
        return self.product.format

    @property
    def shape(self) -> tuple[int, ...]:
        return self.product.shape

    def coded(self, plan: Choices, sample: Sample | None) -> Codes:
        product, own = self._planned(plan)
        return product.coded(own, sample)

    def sums_of(self, plan: Choices, at: tuple[int, int], most: int) -> list[tuple[int, int]]:
        """Return pairs (columns, float32 pattern): one element's sum before each of `most` ends in K."""
        product, own = self._planned(plan)
        return product.sums_of(own, at, most)

    def _planned(self, plan: Choices) -> tuple[PlainProduct, Choices]:
        """Return the product with the weights of a plan, remembered, and the plan of its sums."""
        product = self.once(("weights",), plan, self.of_weights, lambda: self._made(plan))
        if plan.scaled_where is BEHIND and not plan.interval and self.scales.shape[1] > 1:
            plan = plan.but(interval=self.group)
        return product, plan

    def _made(self, plan: Choices) -> PlainProduct:
        """Return the product with the weights of a plan."""
        codes = plan.ordered.apply(self.codes_of_weights, self.row.code_limit)
        codes, row = plan.weight_read.read(codes, self.row)
        values = decode(codes, row, np.float32) if isinstance(row, Format) else values_of(codes, row).astype(np.float32)
        scales = np.asarray(plan.scale_read.read(self.scales, F32)[0], np.float32)
        zeros = plan.zero.apply(self.zeros)
        of = np.arange(values.shape[1]) // self.group
        to = self.product.formats[0]
        assert isinstance(to, Format)
        if plan.scaled_where is BEHIND:
            weights = encode(values - zeros[:, of], to)
            ones = np.ones((self.shape[0], scales.shape[1]), np.float32)
            return replace(self.product, b=weights, a_scales=ones, b_scales=scales, group=self.group)
        weights = encode(plan.weighed.apply(values, scales[:, of], np.asarray(zeros[:, of], np.float32), to), to)
        return replace(self.product, b=weights)

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
        product = replace(drawn, a=a, b=np.zeros_like(a))
        return WeightProduct(product, codes, self.row, scales, zeros, self.group)
