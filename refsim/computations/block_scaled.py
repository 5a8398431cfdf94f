"""D of a product whose blocks of K share E8M0 or UE4M3 scales (MXFP8, MXFP6, MXFP4, NVFP4), as a plan of choices."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.computations import reading, scale_changes
from refsim.computations.accumulating import ONE_SUM, Floats, chains_told, sharing_causes
from refsim.computations.engine import Aspect
from refsim.computations.products import READ_ASPECTS, WRITING, ProductOverK, scales_are_read
from refsim.computations.ways import Cause, Choices, Codes, DoesNotApplyError, Family, Sample, Way, worded
from refsim.conversions import decode, encode
from refsim.errors import RefsimError
from refsim.evidence import Level
from refsim.formats import BF16, F32, Format
from refsim.numerics import fma_product, ieee
from refsim.numerics.profiles import PROFILES, rows_of
from refsim.numerics.rows import Profile, Unit
from refsim.oracles.block_scaled import (
    BF16_UNITS,
    UPCASTS,
    WITH_LANES,
    ScaledSide,
    Upcast,
    block_scaled_matmul,
    fitting_units,
)
from refsim.sources import CUBLAS, IEEE754, OCP_MX

Matrix = NDArray[Any]
_FACTORED = "D is multiplied by it", "it is left out", "D is multiplied by its inverse"
FACTORS = worded(Family.SCALE_RULE, OCP_MX["section 5.2"], *_FACTORED, usual_rank=1)
MULTIPLIED, WITHOUT, INVERTED = FACTORS
INTERVALS = (0, 128, 256, 64, 512)
LOOP = "a float32 fma for every k of codes times scales, as a loop on CUDA cores"


def _multiplied_otherwise(had: "ScaledAdder", adder: "ScaledAdder") -> str:
    """Return the family of a change: tensor cores that differ only in their upcast count as a scale rule."""
    is_same = had.upcast and adder.upcast and had.core == adder.core
    return Family.SCALE_RULE if is_same else Family.ACCUMULATOR


@dataclass(frozen=True)
class ScaledAdder(Way):
    """An adder of codes times scales: a unit of a target, with block scales or in bf16 by an `upcast`; or a loop.

    `core` identifies the arithmetic of the tensor core.
    """

    target: str = ""
    unit: Unit | None = None
    upcast: str = ""
    core: tuple[object, ...] = ()

    families = staticmethod(_multiplied_otherwise)

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
        more |= {"a_format": formats[0], "b_format": formats[1], "scale_format": given.kind, "block": given.block}
        try:
            found = block_scaled_matmul(*sides, *scales, c=c, target=self.target, unit=self.unit, **more)
        except RefsimError:
            raise DoesNotApplyError from None  # the unit does not take these formats
        return np.asarray(found, np.float32)


def _core(row: Profile) -> tuple[object, ...]:
    steps = row.length, row.order, row.c_enters, row.method, row.fraction, row.zero_exponent, row.rounding
    return (max(row.k), *steps, row.operands, row.unit in WITH_LANES)


def _of_unit(row: Profile) -> ScaledAdder:
    said = f"{row.target} {row.unit} K = {max(row.k)}: scales within its steps"
    return ScaledAdder(said, Family.ACCUMULATOR, row.source, target=row.target, unit=row.unit)


def _upcast(row: Profile, upcast: Upcast) -> ScaledAdder:
    said = f"{row.target} {row.unit} in bf16, elements times scales by {upcast.name}"
    own: dict[str, Any] = {"target": row.target, "unit": row.unit, "upcast": upcast.name, "core": _core(row)}
    return ScaledAdder(said, Family.ACCUMULATOR, upcast.source, None, 2, **own)


def scaled_adders(own: "BlockScaledProduct") -> tuple[ScaledAdder, ...]:
    """Return every adder of the operands of a product; GPUs with equal arithmetic share one."""
    a, b = own.formats
    found: dict[tuple[object, ...], ScaledAdder] = {}
    for row in PROFILES:
        if row.d_format is not F32 or row.evidence.level is Level.UNVERIFIED:
            continue
        key = _core(row)
        if (own.kind, own.block) in row.scales and a in row.a_formats and b in row.b_formats:
            found.setdefault(key, _of_unit(row))
        elif row.unit in BF16_UNITS and BF16 in row.a_formats and BF16 in row.b_formats:
            for upcast in UPCASTS:
                found.setdefault((*key, upcast.name), _upcast(row, upcast))
    return (*found.values(), ScaledAdder(LOOP, Family.ACCUMULATOR, IEEE754["section 5.4.1"]))


def usual_adder(a: ScaledSide, b: ScaledSide, target: str, unit: Unit | None) -> ScaledAdder:
    """Return the adder of a target's unit with block scales that takes the fewest formats; else its bf16 unit."""
    scaled, wide = fitting_units(a, b, rows_of(target, unit))
    if not scaled and not wide:
        what = f"{target} has no {unit or 'unit'} for {a.format} x {b.format} with {a.kind} scales of {a.block}"
        raise RefsimError("unknown-arithmetic", what, help="target=, unit=")
    return _of_unit(scaled[0]) if scaled else _upcast(wide[0], UPCASTS[0])


def _interval_causes(own: "BlockScaledProduct") -> Iterator[Cause]:
    """Yield the causes in the columns of K of one chain, whole blocks: aspect `interval`."""
    for interval in INTERVALS:
        if interval < own.columns and interval % own.block == 0:
            says = f"a chain for every {interval} columns, their sums added in float32" if interval else "one chain"
            source = CUBLAS["CUBLASLT_MATMUL_DESC_FAST_ACCUM"]
            yield Cause(Family.FAST_SLOW, says, "interval", interval, source)


def _causes_of_scales(own: "BlockScaledProduct") -> Iterator[Cause]:
    """Yield the causes in how codes of scales are read: of A, of B, of both."""
    yield from reading.scales_read_as(*reading.scale_readings(), *scale_changes.ROWS)


@dataclass(frozen=True, eq=False)
class BlockScaledProduct(ProductOverK):
    """D (M, N) of A (M, K) and B (N, K) with `kind` scales (rows, K / block) and a global `factor` or None.

    `chain` is the adder of the reference.
    """

    a: Matrix
    b: Matrix
    formats: tuple[Format, Format]
    scales: tuple[Matrix, Matrix]
    kind: Format
    block: int
    c: Floats | None
    factor: np.float32 | None
    format: Format
    chain: ScaledAdder

    remembers = 512
    work_of_plan, work_of_addend = 5e-3, 2e-9
    summed_over = ""  # sums before each end are not told
    aspects = (
        Aspect("adder", scaled_adders, lambda own: own.chain, told="{}"),
        Aspect("interval", _interval_causes, 0, told=chains_told),
        Aspect("sharing", lambda own: sharing_causes(own.columns), ONE_SUM),
        *READ_ASPECTS,
        *scales_are_read(_causes_of_scales),
        *WRITING,
        Aspect("factor", FACTORS, says="the global scale: {}", when=lambda own, way: own.factor is not None),
    )

    of_sums = " ".join(each.name for each in aspects if each.name not in ("written", "placed"))
    of_range = of_sums.replace("sharing ", "")

    def coded(self, plan: Choices, sample: Sample | None) -> Codes:
        sums = self.of_sample(plan, sample, self.of_sums, lambda: self._sums(plan, sample))
        return np.asarray(plan.written.codes(sums, self.format))

    def _sums(self, plan: Choices, sample: Sample | None) -> Floats:
        """Return the float32 sums of a plan, all or of a sample, before they are written."""
        parts: tuple[Any, Any] = (slice(None), slice(None)) if sample is None else sample
        sides = [
            reading.side_read(plan, at, (self.a, self.b)[at], self.formats[at])[part] for at, part in enumerate(parts)
        ]
        scales = [self._scales(plan, at)[part] for at, part in enumerate(parts)]
        columns = reading.kept_columns(self.a.shape[1], plan.tail)
        owner = plan.sharing.ranges.chain_of(self.a.shape[1])[columns]
        c = None if self.c is None else self.c[parts[0]][:, parts[1]]
        sums = []
        for number in range(plan.sharing.ranges.splits):
            mine = columns[owner == number]
            if mine.size:
                first = c if number == 0 else None
                make = partial(self._range, plan, sides, scales, mine, first)
                sums.append(self.of_sample(plan, sample, self.of_range, make, mine.tobytes(), first is None))
        return self._ended(plan, plan.sharing.met(np.stack(sums)))

    def _ended(self, plan: Choices, total: Floats) -> Floats:
        if self.factor is None or plan.factor is WITHOUT:
            return total
        with np.errstate(all="ignore"):
            factor = self.factor if plan.factor is MULTIPLIED else np.float32(1) / self.factor
        return np.asarray(ieee.mul(total, np.full_like(total, factor)), np.float32)

    def _range(
        self, plan: Choices, sides: list[Matrix], scales: list[Matrix], mine: NDArray[np.int64], c: Floats | None
    ) -> Floats:
        """Return the sum of some columns from +0, or from C: one chain, or one for every interval."""
        blocks = mine[:: self.block] // self.block
        if mine.size % self.block or (mine.reshape(-1, self.block) // self.block != blocks[:, None]).any():
            raise DoesNotApplyError  # half a block
        step, total = plan.interval or mine.size, c
        formats: tuple[Any, Any] = reading.formats_read(plan, self.formats)
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

    def _scales(self, plan: Choices, at: int) -> Matrix:
        aspects = f"{'ab'[at]}_scales_read"
        return self.once((at,), plan, aspects, lambda: reading.scales_read(plan, at, self.scales[at], self.kind))  # type: ignore[no-any-return]

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
            self, a=sides[0], b=sides[1], scales=(scales[0], scales[1]), c=c, format=F32 if wide else self.format
        )
