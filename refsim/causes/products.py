"""D of a matrix product as a plan: every choice from operands to bits, with the usual one as default."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.causes.grids_of_scales import scale_place_causes, scale_value_causes
from refsim.causes.scale_changes import scale_change_causes
from refsim.computations.accumulating import (
    BEGINNINGS,
    COUNTED,
    EVERY_RANGE,
    FROM_THE_BEGINNING,
    FUSED,
    IN_FLOAT32,
    Adder,
    Floats,
    Promotion,
    Running,
    Sharing,
    accumulation_causes,
)
from refsim.computations.placing import IN_PLACE, PlacedSubject, placing_causes
from refsim.computations.reading import (
    AS_IT_IS,
    OperandReading,
    ends_of_parts,
    kept_columns,
    reading_causes,
    scale_causes,
    tail_causes,
)
from refsim.computations.ways import Cause, Codes, DoesNotApplyError, Family, Sample
from refsim.computations.writing import USUAL_WRITING, WrittenPlan, writing_causes
from refsim.conversions import decode, encode
from refsim.formats import F32, ElementType, Format
from refsim.numerics import ieee
from refsim.sources import PTX

Matrix = NDArray[Any]
FIRST, LAST, ROUNDED_AGAIN, NOWHERE = (
    "the chain begins with C",
    "C is added to the sum",
    "C is added to the output, rounded again",
    "C is left out",
)
KEPT, LARGEST = 512, 1 << 12  # number of remembered sums of samples, and the most elements of one


@dataclass(frozen=True, kw_only=True)
class ReadPlan(WrittenPlan):
    """The choices in how operands and their scales are read, and how the result is written; `tail` 0: all of K."""

    a_read: OperandReading = AS_IT_IS
    b_read: OperandReading = AS_IT_IS
    both_read: OperandReading = AS_IT_IS
    a_scales_read: OperandReading = AS_IT_IS
    b_scales_read: OperandReading = AS_IT_IS
    both_scales_read: OperandReading = AS_IT_IS
    tail: int = 0

    def formats(self, own: tuple[ElementType, ElementType]) -> tuple[ElementType, ElementType]:
        """Return the formats as which the codes of both operands are read, given their own formats."""
        rows = (self.a_read, self.b_read)
        found = [row.format or self.both_read.format or mine for row, mine in zip(rows, own, strict=True)]
        return found[0], found[1]

    def side(self, at: int, codes: Matrix, format: ElementType) -> Matrix:
        """Return the codes of A (`at` 0) or B as they are read."""
        for row in (self.both_read, (self.a_read, self.b_read)[at]):
            codes, _ = row.read(codes, format)
        return codes

    def scales(self, at: int, scales: Matrix, format: ElementType) -> Matrix:
        """Return the scales of A (`at` 0) or B as they are read."""
        for row in (self.both_scales_read, (self.a_scales_read, self.b_scales_read)[at]):
            scales, _ = row.read(scales, format)
        return scales


@dataclass(frozen=True)
class ProductPlan(ReadPlan):
    """The choices; `interval` 0 is one chain."""

    adder: Adder
    interval: int = 0
    sharing: Sharing = field(default_factory=Sharing)
    counted: str = EVERY_RANGE
    counted_from: str = FROM_THE_BEGINNING
    descends: bool = False
    running: Running = IN_FLOAT32
    promotion: Promotion = FUSED[0]
    accumuland: str = FIRST


@dataclass(frozen=True, eq=False)
class ProductOfPlans(PlacedSubject):
    """D (M, N) of A (M, K) and B (N, K), codes; C (M, N) in float32 or None.

    `a_scales` (M, T) and `b_scales` (N, T), float32, or None: `group` columns of K share one, T = 1: a whole row.
    `usual` is the plan of the reference.
    """

    a: Matrix
    b: Matrix
    formats: tuple[ElementType, ElementType]
    c: Floats | None
    a_scales: Floats | None
    b_scales: Floats | None
    group: int
    format: Format
    usual: ProductPlan
    sums: dict[tuple[object, ...], Floats] = field(default_factory=dict)

    is_sampled = True
    summed_over, sums_held = "columns of K", F32

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.a), len(self.b)

    @cached_property
    def blocks(self) -> int:
        """Return how many blocks of K have their own scale."""
        return 1 if self.a_scales is None else self.a_scales.shape[1]

    def causes(self) -> Sequence[Cause]:
        """Return every cause that applies to these operands."""
        columns, is_scaled = self.a.shape[1], self.a_scales is not None
        found = [*accumulation_causes(*self.formats, columns, is_scaled), *reading_causes(self.formats)]
        found += [*tail_causes(columns), *writing_causes(self.format), *placing_causes()]
        if self.blocks > 1:
            found += scale_causes()
        if is_scaled:
            found += [*scale_change_causes(), *scale_place_causes(), *scale_value_causes()]
        if self.c is not None:
            for way in (FIRST, LAST, ROUNDED_AGAIN, NOWHERE):
                found.append(Cause(Family.ACCUMULAND, way, "accumuland", way, PTX["mma: D = A B + C"]))
        return found

    def codes(self, plan: ProductPlan, sample: Sample | None = None) -> Codes:
        """Return the codes that a plan writes: all, or those of a sample. Raises DoesNotApplyError."""
        rows, cols = (slice(None), slice(None)) if sample is None else sample
        total = self.total(plan, sample)
        codes = plan.written.codes(total, self.format)
        if self.c is not None and plan.accumuland == ROUNDED_AGAIN:
            again = decode(codes, self.format, np.float32) + self.c[rows][:, cols]
            codes = plan.written.codes(again, self.format)
        return codes if sample is not None else plan.placed.apply(codes)

    def sums_of(self, plan: ProductPlan, at: tuple[int, int], most: int) -> list[tuple[int, int]]:
        """Return pairs (columns, float32 pattern): one element's sum before each of `most` ends in K."""
        sample = np.array([at[0]]), np.array([at[1]])
        ends = ends_of_parts(self.a.shape[1], most)
        return [(end, int(self._total(plan, sample, end).view(np.uint32).item())) for end in ends]

    def total(self, plan: ProductPlan, sample: Sample | None = None) -> Floats:
        """Return the float32 sums before they are written; those of small samples are remembered."""
        if sample is None:
            return self._total(plan, sample)
        if sample[0].size * sample[1].size > LARGEST:
            return self._total(plan, sample)
        key = (sample[0].tobytes(), sample[1].tobytes(), replace(plan, written=USUAL_WRITING, placed=IN_PLACE))
        if key not in self.sums:
            if len(self.sums) >= KEPT:
                self.sums.clear()
            self.sums[key] = self._total(plan, sample)
        return self.sums[key]

    def _total(self, plan: ProductPlan, sample: Sample | None, end: int | None = None) -> Floats:
        """Return the float32 sums of a plan over the columns of K before `end`."""
        rows, cols = (slice(None), slice(None)) if sample is None else sample
        sides = [plan.side(0, self.a, self.formats[0])[rows], plan.side(1, self.b, self.formats[1])[cols]]
        formats = plan.formats(self.formats)
        columns = kept_columns(self.a.shape[1], plan.tail)[:end]
        sides = [np.ascontiguousarray(side[:, columns]) for side in sides]
        scales = [self._scales(plan, at, part) for at, part in enumerate((rows, cols))]
        chain = plan.sharing.ranges.chain_of(self.a.shape[1])[columns]
        c = None if self.c is None else self.c[rows][:, cols]
        begins = c if c is not None and plan.accumuland == FIRST and scales[0] is None else None
        splits = plan.sharing.ranges.splits
        if splits == 1 and (plan.counted, plan.counted_from) != (EVERY_RANGE, FROM_THE_BEGINNING):
            raise DoesNotApplyError
        partials = []
        for number in range(splits)[COUNTED[plan.counted]]:
            mine = chain == number
            if mine.any():
                of_range = _Range(
                    sides[0][:, mine], sides[1][:, mine], scales, columns[mine] // self.group, self.blocks
                )
                partials.append(of_range.sum(plan, formats, begins if number == 0 else None))
        held = np.stack(partials or [np.zeros((len(sides[0]), len(sides[1])), np.float32)])
        total = plan.sharing.met(held)
        return self._ended(plan, total, scales, c)

    def _ended(self, plan: ProductPlan, total: Floats, scales: list[Floats | None], c: Floats | None) -> Floats:
        """Return sums after the last steps: scales of rows or of the tensor, and C."""
        if scales[0] is not None and scales[1] is not None and self.blocks == 1:
            is_in = c is not None and plan.accumuland not in (ROUNDED_AGAIN, NOWHERE)
            beginning = c if c is not None and is_in else np.full_like(total, -0.0)
            return plan.promotion.meet(total, scales[0], scales[1].T, beginning)
        if c is not None and (plan.accumuland == LAST or (plan.accumuland == FIRST and scales[0] is not None)):
            return np.asarray(ieee.add(total, c), np.float32)
        return total

    def _scales(self, plan: ProductPlan, at: int, part: Any) -> Floats | None:
        scales = (self.a_scales, self.b_scales)[at]
        return None if scales is None else np.asarray(plan.scales(at, scales, self.formats[0])[part], np.float32)

    def another(self, seed: int, *, wide: bool = False) -> "ProductOfPlans":
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
        written = F32 if wide else self.format
        return ProductOfPlans(sides[0], sides[1], self.formats, c, scales[0], scales[1], group, written, self.usual)

    def _drawn(self, random: np.random.Generator, format: ElementType, shape: tuple[int, int]) -> Matrix:
        if not isinstance(format, Format):
            return random.integers(0, format.code_limit, shape).astype(format.code_dtype)
        return np.asarray(encode(random.normal(0, 1, shape) * 2.0 ** random.integers(-6, 7, shape), format))

    def described(self, plan: ProductPlan) -> str:
        """Return the plan as text, without its usual choices."""
        words = [plan.adder.name]
        if plan.interval:
            words.append(f"a chain for every {plan.interval} columns")
        else:
            words.append("one chain")
        if self.a_scales is not None:
            words.append(plan.promotion.name)
        if plan.sharing.ranges.splits > 1:
            words.append(str(plan.sharing))
        if plan.descends:
            words.append("from the end of K")
        if plan.written != USUAL_WRITING:
            words.append(str(plan.written))
        return ", ".join(words)


@dataclass(frozen=True)
class _Range:
    """A range of K: codes of both operands, all scales, and the block of scales of each column."""

    a: Matrix
    b: Matrix
    scales: list[Floats | None]
    block_of: NDArray[np.int64]
    blocks: int

    def sum(self, plan: ProductPlan, formats: tuple[ElementType, ElementType], c: Floats | None) -> Floats:
        """Return the sum of the range from +0, or from C."""
        interval, columns = plan.interval, self.a.shape[1]
        if not interval:
            if self.blocks > 1 or plan.running is not IN_FLOAT32:
                raise DoesNotApplyError  # block scales cannot be applied within a chain
            step = max(plan.adder.k, 1)
            sides = (
                (_chunks_reversed(self.a, step), _chunks_reversed(self.b, step)) if plan.descends else (self.a, self.b)
            )
            return plan.adder.sum(*sides, c, formats)
        missing = -columns % interval
        parts = [
            np.pad(side, ((0, 0), (0, missing))).reshape(len(side), -1, interval).swapaxes(0, 1)
            for side in (self.a, self.b)
        ]
        sums = plan.adder.sum(parts[0], parts[1], None, formats)
        total = np.zeros(sums.shape[1:], np.float32) if c is None else c
        order = range(len(sums))
        for at in reversed(order) if plan.descends else order:
            if self.blocks > 1:
                total = self._promoted(plan, sums[at], at * interval, min((at + 1) * interval, columns), total)
            else:
                total = ieee.add(total, sums[at])
            total = plan.running.kept(np.asarray(total, np.float32))
        return np.asarray(total, np.float32)

    def _promoted(self, plan: ProductPlan, product: Floats, first: int, end: int, total: Floats) -> Floats:
        block = self.block_of[first:end]
        if block[0] != block[-1]:
            raise DoesNotApplyError
        assert self.scales[0] is not None
        assert self.scales[1] is not None
        before = [int(self.block_of[0]) * restarts for restarts in BEGINNINGS[plan.counted_from]]
        a, b = self.scales[0][:, block[0] - before[0], None], self.scales[1][None, :, block[0] - before[1]]
        return plan.promotion.meet(product, a, b, total)


def _chunks_reversed(codes: Matrix, step: int) -> Matrix:
    """Return the columns in chunks of `step`, the last chunk first, each in its own order."""
    padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % step)))
    return np.ascontiguousarray(padded.reshape(len(codes), -1, step)[:, ::-1].reshape(len(codes), -1))
