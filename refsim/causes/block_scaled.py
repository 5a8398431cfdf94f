"""D of a product whose blocks of K share E8M0 or UE4M3 scales (MXFP8, MXFP6, MXFP4, NVFP4), as a plan of choices."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.causes.products import ReadPlan
from refsim.causes.scale_changes import scale_change_causes
from refsim.computations.accumulating import MEETING_ORDERS, Floats, Sharing, narrowed, sharings
from refsim.computations.placing import PlacedSubject, placing_causes
from refsim.computations.reading import OperandReading, kept_columns, reading_causes, scale_causes, tail_causes
from refsim.computations.ways import Cause, Codes, DoesNotApplyError, Family, Sample
from refsim.computations.writing import USUAL_WRITING, writing_causes
from refsim.conversions import decode, encode
from refsim.errors import RefsimError
from refsim.evidence import Level
from refsim.formats import BF16, F32, Format
from refsim.numerics import fma_product, ieee
from refsim.numerics.profiles import PROFILES, rows_of
from refsim.numerics.rows import Profile, Unit
from refsim.oracles.block_scaled import BF16_UNITS, WITH_LANES, block_scaled_matmul
from refsim.oracles.block_scaled_upcast import UPCASTS
from refsim.sources import CUBLAS, IEEE754, OCP_MX, Source

Matrix = NDArray[Any]
MULTIPLIED, WITHOUT, INVERTED = "D is multiplied by it", "it is left out", "D is multiplied by its inverse"
INTERVALS = (0, 128, 256, 64, 512)
LOOP = "a float32 fma for every k of codes times scales, as a loop on CUDA cores"


@dataclass(frozen=True)
class ScaledAdder:
    """An adder of codes times scales: a unit of a target, with block scales or in bf16 by an `upcast`; or a loop.

    `core` identifies the arithmetic of the tensor core.
    """

    name: str
    source: Source
    target: str = ""
    unit: Unit | None = None
    upcast: str = ""
    core: tuple[object, ...] = ()

    def sum(
        self,
        sides: tuple[Matrix, Matrix],
        scales: tuple[Matrix, Matrix],
        given: "BlockScaledProduct",
        formats: tuple[Format, Format],
        c: Floats | None,
    ) -> Floats:
        """Return the float32 sums of codes (rows, K) times scales (rows, K / block), starting from C."""
        if not self.target:
            values = [
                (decode(side, format) * np.repeat(decode(scale, given.kind), given.block, axis=1)).astype(np.float32)
                for side, format, scale in zip(sides, formats, scales, strict=True)
            ]
            codes = [each.view(np.uint32) for each in values]
            return np.asarray(fma_product(codes[0], codes[1], c, a_format=F32, b_format=F32), np.float32)
        more: dict[str, Any] = {"upcast": self.upcast} if self.upcast else {}
        try:
            return np.asarray(
                block_scaled_matmul(
                    sides[0],
                    sides[1],
                    scales[0],
                    scales[1],
                    a_format=formats[0],
                    b_format=formats[1],
                    scale_format=given.kind,
                    block=given.block,
                    c=c,
                    target=self.target,
                    unit=self.unit,
                    **more,
                ),
                np.float32,
            )
        except RefsimError:
            raise DoesNotApplyError from None  # the unit does not take these formats


def _core(row: Profile) -> tuple[object, ...]:
    steps = row.length, row.order, row.c_enters, row.method, row.fraction, row.zero_exponent, row.rounding
    return (max(row.k), *steps, row.operands, row.unit in WITH_LANES)


def _multiplied_otherwise(had: ScaledAdder, adder: ScaledAdder) -> str:
    """Return the family of a change: tensor cores that differ only in their upcast count as a scale rule."""
    is_same = had.upcast and adder.upcast and had.core == adder.core
    return Family.SCALE_RULE if is_same else Family.ACCUMULATOR


def scaled_adders(a: Format, b: Format, kind: Format, block: int) -> tuple[ScaledAdder, ...]:
    """Return every adder of such operands; GPUs with equal arithmetic share one."""
    found: dict[tuple[object, ...], ScaledAdder] = {}
    for row in PROFILES:
        if row.d_format is not F32 or row.evidence.level is Level.UNVERIFIED:
            continue
        key = _core(row)
        if (kind, block) in row.scales and a in row.a_formats and b in row.b_formats:
            said = f"{row.target} {row.unit} K = {max(row.k)}: scales within its steps"
            found.setdefault(key, ScaledAdder(said, row.source, row.target, row.unit))
        elif row.unit in BF16_UNITS and BF16 in row.a_formats and BF16 in row.b_formats:
            for upcast in UPCASTS:
                said = f"{row.target} {row.unit} in bf16, elements times scales by {upcast.name}"
                adder = ScaledAdder(said, upcast.source, row.target, row.unit, upcast.name, key)
                found.setdefault((*key, upcast.name), adder)
    return (*found.values(), ScaledAdder(LOOP, IEEE754["section 5.4.1"]))


def usual_adder(a: Format, b: Format, kind: Format, block: int, target: str, unit: Unit | None) -> ScaledAdder:
    """Return the adder of a target's unit with block scales that takes the fewest formats; else its bf16 unit."""
    rows = [row for row in rows_of(target) if unit in (None, row.unit)]
    own = [
        row
        for row in rows
        if (kind, block) in row.scales and a in row.a_formats and b in row.b_formats and row.d_format is F32
    ]
    if own:
        row = min(own, key=lambda each: len(each.a_formats))
        said = f"{row.target} {row.unit} K = {max(row.k)}: scales within its steps"
        return ScaledAdder(said, row.source, row.target, row.unit)
    for name in BF16_UNITS:
        for row in rows:
            if row.unit == name and BF16 in row.a_formats and row.d_format is F32:
                said = f"{row.target} {row.unit} in bf16, elements times scales by {UPCASTS[0].name}"
                return ScaledAdder(said, UPCASTS[0].source, row.target, row.unit, UPCASTS[0].name, _core(row))
    what = f"{target} has no {unit or 'unit'} for {a} x {b} with {kind} scales of {block}"
    raise RefsimError("unknown-arithmetic", what, help="target=, unit=")


@dataclass(frozen=True)
class ScaledPlan(ReadPlan):
    """The choices; `interval` 0 is one chain."""

    adder: ScaledAdder
    interval: int = 0
    sharing: Sharing = field(default_factory=Sharing)
    factor: str = MULTIPLIED


@dataclass(frozen=True, eq=False)
class BlockScaledProduct(PlacedSubject):
    """D (M, N) of A (M, K) and B (N, K) with `kind` scales (rows, K / block) and a global `factor` or None."""

    a: Matrix
    b: Matrix
    formats: tuple[Format, Format]
    scales: tuple[Matrix, Matrix]
    kind: Format
    block: int
    c: Floats | None
    factor: np.float32 | None
    format: Format
    usual: ScaledPlan
    read: dict[tuple[str, OperandReading, OperandReading], Matrix] = field(default_factory=dict)

    is_sampled = True

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.a), len(self.b)

    def causes(self) -> Sequence[Cause]:
        """Return every cause that applies to these operands."""
        columns = self.a.shape[1]
        found = [*self._adding(columns), *reading_causes(self.formats), *scale_causes(), *scale_change_causes()]
        found += [*tail_causes(columns), *writing_causes(self.format), *placing_causes()]
        if self.factor is not None:
            for way in (MULTIPLIED, WITHOUT, INVERTED):
                says = f"the global scale: {way}"
                found.append(Cause(Family.SCALE_RULE, says, "factor", way, OCP_MX["section 5.2"]))
        return found

    def _adding(self, columns: int) -> Iterator[Cause]:
        """Yield the causes in how products are added."""
        for adder in scaled_adders(*self.formats, self.kind, self.block):
            rank = 1 + bool(adder.upcast)
            yield Cause(Family.ACCUMULATOR, adder.name, "adder", adder, adder.source, rank, _multiplied_otherwise)
        for interval in INTERVALS:
            if interval < columns and interval % self.block == 0:
                says = f"a chain for every {interval} columns, their sums added in float32" if interval else "one chain"
                source = CUBLAS["CUBLASLT_MATMUL_DESC_FAST_ACCUM"]
                yield Cause(Family.FAST_SLOW, says, "interval", interval, source)
        for sharing, rank in sharings(columns):
            yield Cause(Family.SPLIT_K, str(sharing), "sharing", sharing, sharing.ranges.source, rank)

    def codes(self, plan: ScaledPlan, sample: Sample | None = None) -> Codes:
        """Return the codes that a plan writes: all, or those of a sample. Raises DoesNotApplyError."""
        codes = plan.written.codes(self._total(plan, sample), self.format)
        return codes if sample is not None else plan.placed.apply(codes)

    def _total(self, plan: ScaledPlan, sample: Sample | None) -> Floats:
        """Return the float32 sums of a plan, all or of a sample, before they are written."""
        parts: tuple[Any, Any] = (slice(None), slice(None)) if sample is None else sample
        sides = [plan.side(at, (self.a, self.b)[at], self.formats[at])[part] for at, part in enumerate(parts)]
        scales = [self._scales(plan, at)[part] for at, part in enumerate(parts)]
        columns = kept_columns(self.a.shape[1], plan.tail)
        owner = plan.sharing.ranges.chain_of(self.a.shape[1])[columns]
        c = None if self.c is None else self.c[parts[0]][:, parts[1]]
        sums = []
        for number in range(plan.sharing.ranges.splits):
            mine = columns[owner == number]
            if mine.size:
                sums.append(self._range(plan, sides, scales, mine, c if number == 0 else None))
        held = np.stack(sums)
        total = MEETING_ORDERS[plan.sharing.meeting](narrowed(held, plan.sharing.kept) if len(held) > 1 else held)
        return self._ended(plan, total)

    def _ended(self, plan: ScaledPlan, total: Floats) -> Floats:
        if self.factor is None or plan.factor == WITHOUT:
            return total
        with np.errstate(all="ignore"):
            factor = self.factor if plan.factor == MULTIPLIED else np.float32(1) / self.factor
        return np.asarray(ieee.mul(total, np.full_like(total, factor)), np.float32)

    def _range(
        self, plan: ScaledPlan, sides: list[Matrix], scales: list[Matrix], mine: NDArray[np.int64], c: Floats | None
    ) -> Floats:
        """Return the sum of some columns from +0, or from C: one chain, or one for every interval."""
        blocks = mine[:: self.block] // self.block
        if mine.size % self.block or (mine.reshape(-1, self.block) // self.block != blocks[:, None]).any():
            raise DoesNotApplyError  # half a block
        step, total = plan.interval or mine.size, c
        formats: tuple[Any, Any] = plan.formats(self.formats)
        for first in range(0, mine.size, step):
            own = mine[first : first + step]
            of_blocks = blocks[first // self.block : (first + step) // self.block]
            codes = sides[0][:, own], sides[1][:, own]
            held = scales[0][:, of_blocks], scales[1][:, of_blocks]
            if plan.interval and first:
                assert total is not None
                total = np.asarray(ieee.add(total, plan.adder.sum(codes, held, self, formats, None)), np.float32)
            else:
                total = plan.adder.sum(codes, held, self, formats, total)
        assert total is not None
        return total

    def _scales(self, plan: ScaledPlan, at: int) -> Matrix:
        key = ("ab"[at], plan.both_scales_read, (plan.a_scales_read, plan.b_scales_read)[at])
        if key not in self.read:
            self.read[key] = plan.scales(at, self.scales[at], self.formats[at])
        return self.read[key]

    def another(self, seed: int, *, wide: bool = False) -> "BlockScaledProduct":
        """Return a product of drawn codes, 24 x 24 with a longer K and scales of several binades."""
        random = np.random.default_rng(seed)
        columns = self.a.shape[1] + 4 * self.block * (seed % 3 + 1)
        drawn = partial(random.normal, 0, 1, (24, columns))
        sides = [
            np.asarray(encode(drawn() * 2.0 ** random.integers(-2, 3, (24, columns)), each)) for each in self.formats
        ]
        one = int(encode(1.0, self.kind))
        scales = [(one + random.integers(-4, 5, (24, columns // self.block))).astype(np.uint8) for _ in sides]
        c = None if self.c is None else random.normal(0, 4, (24, 24)).astype(np.float32)
        return replace(
            self,
            a=sides[0],
            b=sides[1],
            scales=(scales[0], scales[1]),
            c=c,
            format=F32 if wide else self.format,
            read={},
        )

    def described(self, plan: ScaledPlan) -> str:
        """Return the plan as text, without its usual choices."""
        words = [plan.adder.name, f"a chain for every {plan.interval} columns" if plan.interval else "one chain"]
        if plan.sharing.ranges.splits > 1:
            words.append(str(plan.sharing))
        if plan.written != USUAL_WRITING:
            words.append(str(plan.written))
        return ", ".join(words)
