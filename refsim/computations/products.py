"""D of a matrix product: every choice from operands to bits."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from refsim.computations import scale_changes
from refsim.computations.accumulating import (
    BEGINNINGS,
    COUNTED,
    IN_FLOAT32,
    ONE_SUM,
    SUM_ASPECTS,
    Adder,
    Floats,
    Sharing,
    is_scaled,
)
from refsim.computations.engine import PLACED, WRITTEN, Aspect, Computation
from refsim.computations.reading import (
    ADDEND_READINGS,
    AS_IT_IS,
    STEPS_TWICE,
    ends_of_parts,
    formats_read,
    kept_columns,
    readings_of,
    readings_of_b,
    scale_readings,
    scales_read,
    scales_read_as,
    side_read,
    tail_causes,
)
from refsim.computations.scale_changes import SCALE_BLOCKS, SCALE_PLACES, SCALE_VALUES
from refsim.computations.ways import Cause, Choices, Codes, DoesNotApplyError, Family, Sample, Way, worded
from refsim.conversions import decode, encode
from refsim.formats import F32, ElementType, Format
from refsim.numerics import ieee
from refsim.sources import PTX

Matrix = NDArray[Any]
_OF_C = "the chain begins with C", "C is added to the sum", "C is added to the output, rounded again", "C is left out"
ACCUMULANDS = worded(Family.ACCUMULAND, PTX["mma: D = A B + C"], *_OF_C, usual_rank=1)
FIRST, LAST, ROUNDED_AGAIN, NOWHERE = ACCUMULANDS
LARGEST = 1 << 12  # the most elements of a sample whose sums are remembered
TILE_SIDE, SUMS_AT_ONCE = 1 << 10, 1 << 22  # lines of D, and sums of intervals, that are computed together
READ_ASPECTS = (
    Aspect("a_read", lambda own: readings_of(own.formats[0]), AS_IT_IS, says="A is read {}", far=STEPS_TWICE),
    Aspect(
        "b_read",
        lambda own: readings_of_b(*map(readings_of, own.formats)),
        AS_IT_IS,
        says="B is read {}",
        far=lambda own: readings_of_b(*map(readings_of, own.formats), far=True),
    ),
)
WRITING = Aspect("tail", lambda own: tail_causes(own.columns), 0), WRITTEN, PLACED


def _causes_of_scales(own: "PlainProduct") -> Iterator[Cause]:
    """Yield the causes in how float32 scales are read: of A, of B, of both."""
    if is_scaled(own, None):
        yield from scales_read_as(*scale_readings()[: None if own.blocks > 1 else 1])
        yield from scales_read_as(*scale_changes.ROWS, *SCALE_PLACES, *SCALE_BLOCKS, *SCALE_VALUES)


def _adds_c(own: "PlainProduct", way: Any) -> bool:
    return own.c is not None


def scales_are_read(causes: Any) -> tuple[Aspect, ...]:
    """Return the aspects of scales of A, of B and of both, whose causes come together."""
    return Aspect("a_scales_read", causes, AS_IT_IS), Aspect("b_scales_read", usual=AS_IT_IS)


class ProductOverK(Computation):
    """D (M, N) of A (M, K) and B (N, K), each element the sum over K."""

    summed_over = "columns of K"

    if TYPE_CHECKING:

        @property
        def a(self) -> Any: ...
        @property
        def b(self) -> Any: ...

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.a), len(self.b)

    @property
    def columns(self) -> int:
        return int(self.a.shape[1])

    @property
    def addends(self) -> int:  # type: ignore[override]
        return self.columns

    def sums_of(self, plan: Choices, at: tuple[int, int], most: int) -> list[tuple[int, int]]:
        """Return pairs (columns, 32-bit word): one element's sum before each of `most` ends in K."""
        sample = np.array([at[0]]), np.array([at[1]])
        sums = ((end, self._total(plan, sample, end)) for end in ends_of_parts(self.columns, most))
        return [(end, (x.view(np.uint32) if x.dtype == np.float32 else x % (1 << 32)).item()) for end, x in sums]

    def _total(self, plan: Choices, sample: Sample | None, end: int | None = None) -> Any:
        """Return the sums of a plan over the columns of K before `end`."""
        raise NotImplementedError

    def of_sample(self, plan: Choices, sample: Sample | None, aspects: str, make: Any, *more: Any) -> Any:
        """Return a stage that depends on some aspects and on `more`, remembered where the sample is small."""
        is_small = sample is not None and sample[0].size * sample[1].size <= LARGEST
        key = (*(each.tobytes() for each in sample), *more) if sample is not None and is_small else ()
        return self.once(key, plan, aspects, make)


@dataclass(frozen=True, eq=False)
class PlainProduct(ProductOverK):
    """D (M, N) of A (M, K) and B (N, K), codes; C (M, N) in float32 or None.

    `a_scales` (M, T) and `b_scales` (N, T), float32, or None: `group` columns of K share one, T = 1: a whole row.
    `chain` is the adder of the reference, `interval` the columns of one of its chains; 0 is one chain. K is usually
    `shared` so, and C enters at `enters`.
    """

    a: Matrix
    b: Matrix
    formats: tuple[ElementType, ElementType]
    c: Floats | None
    a_scales: Floats | None
    b_scales: Floats | None
    group: int
    format: Format
    chain: Adder
    interval: int = 0
    shared: Sharing = ONE_SUM
    enters: Way = FIRST

    remembers = 512
    work_of_plan, work_of_addend = 1.5e-3, 2e-9
    aspects = (
        *SUM_ASPECTS,
        *READ_ASPECTS,
        *WRITING,
        *scales_are_read(_causes_of_scales),
        Aspect("accumuland", ACCUMULANDS, lambda own: own.enters, when=_adds_c),
        Aspect("c_read", ADDEND_READINGS, AS_IT_IS, says="C is read {}", when=_adds_c),
    )
    of_sums = " ".join(each.name for each in aspects if each.name not in ("written", "placed"))
    of_range = of_sums.replace("sharing counted ", "")

    @cached_property
    def blocks(self) -> int:
        """Return how many blocks of K have their own scale."""
        return 1 if self.a_scales is None else self.a_scales.shape[1]

    def coded(self, plan: Choices, sample: Sample | None) -> Codes:
        rows, cols = (slice(None), slice(None)) if sample is None else sample
        codes = plan.written.codes(self.total(plan, sample), self.format)
        if self.c is not None and plan.accumuland is ROUNDED_AGAIN:
            again = decode(codes, self.format, np.float32) + plan.c_read.read(self.c, F32)[0][rows][:, cols]
            codes = plan.written.codes(again, self.format)
        return codes  # type: ignore[no-any-return]

    def total(self, plan: Choices, sample: Sample | None = None) -> Floats:
        """Return the float32 sums before they are written; those of small samples are remembered."""
        return self.of_sample(plan, sample, self.of_sums, lambda: self._total(plan, sample))  # type: ignore[no-any-return]

    def totals(self, plan: Choices) -> Floats:
        """Return all float32 sums of a plan, in tiles of bounded memory."""
        total = np.empty(self.shape, np.float32)
        for rows, columns in product(*(range(0, extent, TILE_SIDE) for extent in self.shape)):
            tile = slice(rows, rows + TILE_SIDE), slice(columns, columns + TILE_SIDE)
            sample = np.arange(self.shape[0])[tile[0]], np.arange(self.shape[1])[tile[1]]
            total[tile] = self._total(plan, sample)
        return total

    def _total(self, plan: Choices, sample: Sample | None, end: int | None = None) -> Floats:
        """Return the float32 sums of a plan over the columns of K before `end`."""
        rows, cols = (slice(None), slice(None)) if sample is None else sample
        sides = [side_read(plan, 0, self.a, self.formats[0])[rows], side_read(plan, 1, self.b, self.formats[1])[cols]]
        formats = formats_read(plan, self.formats)
        columns = kept_columns(self.a.shape[1], plan.tail)[:end]
        if len(columns) < self.a.shape[1]:
            sides = [np.ascontiguousarray(side[:, columns]) for side in sides]
        scales = [self._scales(plan, at, part) for at, part in enumerate((rows, cols))]
        chain = plan.sharing.ranges.chain_of(self.a.shape[1])[columns]
        c = None if self.c is None else plan.c_read.read(self.c, F32)[0][rows][:, cols]
        begins = c if c is not None and plan.accumuland is FIRST and scales[0] is None else None
        splits = plan.sharing.ranges.splits
        if splits == 1 and (plan.counted, plan.counted_from) != (COUNTED[0], BEGINNINGS[0]):
            raise DoesNotApplyError
        counted = plan.counted.apply(range(splits))
        partials = np.zeros((len(counted), len(sides[0]), len(sides[1])), np.float32)
        for at, number in enumerate(counted):
            mine = chain == number
            if mine.any():
                held = sides if mine.all() else [side[:, mine] for side in sides]
                own, first = columns[mine], begins if number == 0 else None
                of_range = _Range(held[0], held[1], scales, own // self.group, self.blocks)
                make = partial(of_range.sum, plan, formats, first)
                partials[at] = self.of_sample(plan, sample, self.of_range, make, own.tobytes(), first is None)
        return self._ended(plan, plan.sharing.met(partials), scales, c)

    def _ended(self, plan: Choices, total: Floats, scales: list[Floats | None], c: Floats | None) -> Floats:
        """Return sums after the last steps: scales of rows or of the tensor, and C."""
        if scales[0] is not None and scales[1] is not None and self.blocks == 1:
            is_in = c is not None and plan.accumuland not in (ROUNDED_AGAIN, NOWHERE)
            beginning = c if c is not None and is_in else np.full_like(total, -0.0)
            return plan.promotion.apply(total, scales[0], scales[1].T, beginning)  # type: ignore[no-any-return]
        if c is not None and (plan.accumuland is LAST or (plan.accumuland is FIRST and scales[0] is not None)):
            return np.asarray(ieee.add(total, c), np.float32)
        return total

    def _scales(self, plan: Choices, at: int, part: Any) -> Floats | None:
        scales = (self.a_scales, self.b_scales)[at]
        return None if scales is None else np.asarray(scales_read(plan, at, scales, self.formats[0])[part], np.float32)

    def another(self, seed: int, *, wide: bool = False) -> "PlainProduct":
        """Return a product of drawn codes, 24 x 24 with a longer K, and scales of the same shape."""
        random = np.random.default_rng(seed)
        size, more = 24, seed % 3 + 1
        columns = self.group * (self.blocks + more) if self.blocks > 1 else self.a.shape[1] + 64 * more
        sides = [self._drawn(random, each, (size, columns)) for each in self.formats]
        blocks = self.blocks + more if self.blocks > 1 else 1
        scales = [
            None if each is None else random.uniform(0.5, 2, (size, blocks)).astype(np.float32)
            for each in (self.a_scales, self.b_scales)
        ]
        c = None if self.c is None else random.normal(0, 4, (size, size)).astype(np.float32)
        group = self.group if self.blocks > 1 else columns
        more_of: dict[str, Any] = {"a": sides[0], "b": sides[1], "c": c, "a_scales": scales[0], "b_scales": scales[1]}
        return replace(self, **more_of, group=group, format=F32 if wide else self.format)

    def _drawn(self, random: np.random.Generator, format: ElementType, shape: tuple[int, int]) -> Matrix:
        if not isinstance(format, Format):
            return random.integers(0, format.code_limit, shape).astype(format.code_dtype)
        return np.asarray(encode(random.normal(0, 1, shape) * 2.0 ** random.integers(-6, 7, shape), format))


@dataclass(frozen=True)
class _Range:
    """A range of K: codes of both operands, all scales, and the block of scales of each column."""

    a: Matrix
    b: Matrix
    scales: list[Floats | None]
    block_of: NDArray[np.int64]
    blocks: int

    def sum(self, plan: Choices, formats: tuple[ElementType, ElementType], c: Floats | None) -> Floats:
        """Return the sum of the range from +0, or from C."""
        interval, columns = plan.interval, self.a.shape[1]
        if not interval:
            if self.blocks > 1 or plan.running is not IN_FLOAT32:
                raise DoesNotApplyError  # block scales cannot be applied within a chain
            step = max(plan.adder.k, 1)
            sides = (
                (_chunks_reversed(self.a, step), _chunks_reversed(self.b, step)) if plan.descends else (self.a, self.b)
            )
            return plan.adder.sum(*sides, c, formats)  # type: ignore[no-any-return]
        missing = -columns % interval
        padded = (np.pad(side, ((0, 0), (0, missing))) for side in (self.a, self.b))
        parts = [side.reshape(len(side), -1, interval).swapaxes(0, 1) for side in padded]
        total = np.zeros((len(self.a), len(self.b)), np.float32) if c is None else c
        for at, chain in _chains(plan, parts, formats):
            if self.blocks > 1:
                total = self._promoted(plan, chain, at * interval, min((at + 1) * interval, columns), total)
            else:
                total = ieee.add(total, chain)
            total = plan.running.kept(np.asarray(total, np.float32))
        return np.asarray(total, np.float32)

    def _promoted(self, plan: Choices, product: Floats, first: int, end: int, total: Floats) -> Floats:
        block = self.block_of[first:end]
        if block[0] != block[-1]:
            raise DoesNotApplyError
        assert self.scales[0] is not None
        assert self.scales[1] is not None
        before = [int(self.block_of[0]) * restarts for restarts in plan.counted_from.apply]
        a, b = self.scales[0][:, block[0] - before[0], None], self.scales[1][None, :, block[0] - before[1]]
        return plan.promotion.apply(product, a, b, total)  # type: ignore[no-any-return]


def _chains(
    plan: Choices, parts: list[Matrix], formats: tuple[ElementType, ElementType]
) -> Iterator[tuple[int, Floats]]:
    """Yield the number and the sum of each interval in the order of the plan, several computed together."""
    count, together = len(parts[0]), max(1, SUMS_AT_ONCE // max(1, parts[0].shape[1] * parts[1].shape[1]))
    firsts = range(0, count, together)
    for first in reversed(firsts) if plan.descends else firsts:
        some = slice(first, first + together)
        found = list(enumerate(plan.adder.sum(parts[0][some], parts[1][some], None, formats), first))
        yield from reversed(found) if plan.descends else found


def _chunks_reversed(codes: Matrix, step: int) -> Matrix:
    """Return the columns in chunks of `step`, the last chunk first, each in its own order."""
    padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % step)))
    return np.ascontiguousarray(padded.reshape(len(codes), -1, step)[:, ::-1].reshape(len(codes), -1))
