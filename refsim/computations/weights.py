"""Products with narrow weights: how weights are read, scaled and rounded before they are multiplied."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.computations import scale_changes
from refsim.computations.element_changes import RUNS_OF_CODES, halves_joined
from refsim.computations.engine import Aspect, Computation
from refsim.computations.integer_products import values_of, zero_causes, zero_ways
from refsim.computations.products import PlainProduct
from refsim.computations.reading import (
    AS_IT_IS,
    STEPS_TWICE,
    OperandReading,
    exchanged,
    fragment_readings,
    readings_of,
    scale_readings,
)
from refsim.computations.scale_changes import SCALE_PLACES, SCALE_VALUES
from refsim.computations.ways import Cause, Choices, Codes, DoesNotApplyError, Family, Sample, Way, rounded_to, worded
from refsim.conversions import CONVERSIONS, convert, decode, encode
from refsim.formats import BF16, E4M3, F16, F32, ElementType, Format, Integer
from refsim.sources import OCP_MX, TORCHAO, VLLM

Matrix = NDArray[Any]
Floats = NDArray[np.float32]


_LIBRARY = VLLM["GPTQ and AWQ weights"]
_ROUNDING = Family.DOUBLE_ROUNDING
WEIGHINGS_OF_CODES = (
    Way("(q - z) * s", _ROUNDING, _LIBRARY, lambda q, s, z, to: (q - z) * s, 0),
    Way(
        "q * s - z * s, each product rounded",
        _ROUNDING,
        _LIBRARY,
        lambda q, s, z, to: rounded_to(q * s, to) - rounded_to(z * s, to),
    ),
    Way(
        "q * s - z * s by fma, z * s rounded",
        Family.CONTRACTION,
        _LIBRARY,
        lambda q, s, z, to: q * s - rounded_to(z * s, to),
    ),
    Way("q - z * s", Family.SCALE_RULE, _LIBRARY, lambda q, s, z, to: q - z * s),
    Way("q * s - z", Family.ZERO_POINT, _LIBRARY, lambda q, s, z, to: q * s - z),
    Way(
        "(q - z) * s, rounded, times s again",
        Family.SCALE_TWICE,
        _LIBRARY,
        lambda q, s, z, to: rounded_to((q - z) * s, to) * s,
    ),
    Way("in bf16, then as it is used", _ROUNDING, _LIBRARY, lambda q, s, z, to: rounded_to((q - z) * s, BF16)),
    Way("in f16, then as it is used", _ROUNDING, _LIBRARY, lambda q, s, z, to: rounded_to((q - z) * s, F16)),
)
"""Weights from (values, scales, zero points), float32 and (N, K) each, for activations of a format."""
BEFORE, BEHIND = PLACES_OF_SCALES = worded(
    Family.PROMOTION_ORDER,
    TORCHAO["weight-only quantisation"],
    "weights are scaled before the product",
    "the sum of a group is scaled after the product",
)


def _orders() -> Iterator[Way]:
    """Yield the orders of codes: of pairs, of eights, and of the halves of a run packed next to each other."""
    source = TORCHAO["packed weights"]
    yield Way("as they lie", Family.PACKING, source, lambda codes: codes, 0)
    yield Way("with the two codes of a byte exchanged", Family.PACKING, source, exchanged)
    for run in (8, *RUNS_OF_CODES):
        eight = ("0, 4, 1, 5, 2, 6, 3, 7", "0, 2, 4, 6, 1, 3, 5, 7") if run == 8 else ()
        of = f"each {run}" if run else "a row"
        halves = f"with code i of the second half of {of} next to code i of the first"
        parted = f"with the even codes of {of} before the odd ones"
        for back, says in enumerate((halves, parted)):
            name = f"with codes {eight[back]} of each eight" if eight else says
            yield Way(name, Family.PACKING, source, partial(halves_joined, run, bool(back)), 1 + (run not in (8, 32)))
    for words, width in (("16-bit half", 4), ("group of eight", 8)):
        flip = partial(_reversed, width)
        yield Way(f"with the codes of each {words} reversed", Family.PACKING, source, flip, 2)


def _reversed(width: int, codes: Matrix) -> Matrix:
    if codes.shape[1] % width:
        raise DoesNotApplyError
    return codes.reshape(len(codes), -1, width)[:, :, ::-1].reshape(codes.shape)


ORDERS_OF_CODES = tuple(_orders())


def _orders_of(own: "WeightProduct") -> Iterator[Way]:
    """Yield the orders, and the codes of another offset."""
    yield from ORDERS_OF_CODES
    if isinstance(own.row, Integer):
        turned = own.row.code_dtype.type(own.row.sign_mask or own.row.code_limit // 2)
        name = "with the highest bit turned: an offset for two's complement"
        yield Way(name, Family.ZERO_POINT, TORCHAO["packed weights"], lambda codes: codes ^ turned)


def _readings_of(own: "WeightProduct") -> Iterator[OperandReading]:
    """Yield the ways in which weights are read, also in the fragments of A's format, and decoded by a shorter rule."""
    yield from readings_of(own.row)
    used = own.product.formats[0]
    if own.row.bits != used.bits:
        yield from fragment_readings(128 // used.bits)
    for policy, says in _DECODERS.items() if own.row is E4M3 else ():
        row = CONVERSIONS[f"{policy}.bf16.e4m3"]
        decoded = partial(_converted, row.name)
        yield OperandReading(says, Family.FORMAT, row.source, decoded, format=BF16)


_DECODERS = {
    "mirage": "with zero, subnormal and NaN codes decoded by adding 120 to the exponent",
    "marlin": "with NaN codes decoded to 480",
}
"""The names of shorter rules from E4M3 to bf16, and what they do."""


def _converted(conversion: str, codes: Matrix, format: ElementType) -> Matrix:
    return convert(conversion, codes)


def _zeros(far: bool, own: "WeightProduct") -> Iterator[Cause]:
    """Yield the causes in zero points, which integers have."""
    ways = zero_ways(_LIBRARY, own.row.bits)
    ways = ways if isinstance(own.row, Integer) else ways[:1]
    yield from zero_causes("zero", ways, own.zeros, "the zero point {}", far=far)


def _powers(change: Callable[[Floats], Any], scales: Floats, format: ElementType) -> Floats:
    """Return changed exponents of scales that are powers of two. Raises DoesNotApplyError for other scales."""
    mantissas, exponents = np.frexp(scales)
    if (mantissas != 0.5).any():
        raise DoesNotApplyError
    with np.errstate(over="ignore"):
        return np.asarray(change(exponents - 1), np.float32)


_CODED = OCP_MX["section 5.4.1"]
SCALE_CODES = tuple(
    OperandReading(name, Family.SCALE_RULE, _CODED, partial(_powers, change), rank=2)
    for name, change in (
        ("as the numbers of their codes", lambda power: power + 127),
        ("with an exponent bias of 126", lambda power: np.exp2(power + 1.0)),
        ("with an exponent bias of 128", lambda power: np.exp2(power - 1.0)),
        ("with the exponent negated", lambda power: np.exp2(-1.0 * power)),
    )
)
"""The scales of E8M0 codes read otherwise."""


def _of_rows(order: Sequence[int], zeros: Floats, format: ElementType) -> Floats:
    """Return zero points of rows in another order within groups."""
    if len(zeros) % len(order):
        raise DoesNotApplyError
    return np.ascontiguousarray(zeros.reshape(-1, len(order), zeros.shape[1])[:, list(order)].reshape(zeros.shape))


def _zero_places() -> Iterator[OperandReading]:
    """Yield the places from which zero points are read, the right one first."""
    yield AS_IT_IS
    for each in (*scale_changes.ROWS[:-1], *SCALE_PLACES):
        yield replace(each, family=Family.ZERO_POINT, rank=2)
    for order in ((1, 0), (0, 2, 4, 6, 1, 3, 5, 7), (0, 4, 1, 5, 2, 6, 3, 7)):
        says = f"of rows {', '.join(map(str, order))} of every {len(order)}"
        yield OperandReading(says, Family.ZERO_POINT, _LIBRARY, partial(_of_rows, order), 2)


ZERO_PLACES = tuple(_zero_places())


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

    summed_over = "columns of K"
    work_of_plan, work_of_addend = 2.6e-3, 4e-9
    aspects = (
        Aspect("ordered", _orders_of, ORDERS_OF_CODES[0], says="weights are read {}"),
        Aspect("weight_read", _readings_of, AS_IT_IS, says="weights are read {}", far=STEPS_TWICE),
        Aspect(
            "scale_read",
            lambda own: (*scale_readings(), *SCALE_VALUES, *SCALE_CODES),
            AS_IT_IS,
            says="scales of B are read {}",
            far=(*scale_changes.ROWS, *SCALE_PLACES),
        ),
        Aspect("zero", partial(_zeros, False), zero_ways(_LIBRARY, 4)[0], far=partial(_zeros, True)),
        Aspect(
            "zero_place",
            ZERO_PLACES[:1],
            says="zero points are read {}",
            when=lambda own, way: np.ptp(own.zeros) > 0,
            far=ZERO_PLACES[1:],
        ),
        Aspect(
            "weighed",
            WEIGHINGS_OF_CODES,
            says="a weight is {}",
            when=lambda own, way: own.zeros.any() or "z * s" not in way.name,
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
            (replace(each, ways=(), far=()) if each.name == "b_read" else each, of) for each, of in self.product.choices
        )
        return [*super().choices, *of_product]

    @property
    def addends(self) -> int:  # type: ignore[override]
        return self.product.columns

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
        codes = plan.ordered.apply(self.codes_of_weights)
        codes, row = plan.weight_read.read(codes, self.row)
        values = decode(codes, row, np.float32) if isinstance(row, Format) else values_of(codes, row).astype(np.float32)
        scales = np.asarray(plan.scale_read.read(self.scales, F32)[0], np.float32)
        zeros = plan.zero.apply(np.asarray(plan.zero_place.read(self.zeros, F32)[0], np.float32))
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
