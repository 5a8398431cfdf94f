"""Integer products: zero points, the type of the sum, scales, and the conversion to the output."""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.computations import scale_changes
from refsim.computations.engine import PLACED, WRITTEN, Aspect
from refsim.computations.products import ProductOverK, scales_are_read
from refsim.computations.reading import (
    AS_IT_IS,
    STEPS_TWICE,
    OperandReading,
    cause_of_both,
    kept_columns,
    readings_of,
    readings_of_b,
    scales_read,
    scales_read_as,
    tail_causes,
)
from refsim.computations.scale_changes import SCALE_VALUES
from refsim.computations.ways import Cause, Choices, Codes, Family, Sample, Way, beside, ways_of, worded
from refsim.computations.writing import writing_causes
from refsim.formats import F32, S8, S32, U8, ElementType, Format
from refsim.formats.elements import Integer
from refsim.sources import CUBLAS, IEEE754, ONNX, PTX, Source

Whole = NDArray[np.int64]
Floats = NDArray[np.float32]
S16 = 1 << 15


def values_of(codes: NDArray[Any], row: Integer) -> Whole:
    """Return the integers that codes stand for: 0xff is -1 in s8, 255 in u8."""
    found = codes.astype(np.int64)
    return np.where(found & row.sign_mask, found - row.code_limit, found) if row.signed else found


def _held(values: Whole, row: Integer, *, wraps: bool) -> Whole:
    """Return values in the range of a type, wrapped around or saturated."""
    least, most = row.limits
    return (values - least) % row.code_limit + least if wraps else np.clip(values, least, most)


# ---- how products are added ---------------------------------------------------------------------------------------------


def _exact(a: Whole, b: Whole, c: Whole) -> Whole:
    product = a.astype(np.float64) @ b.T.astype(np.float64)  # exact: all sums are far below 2^53
    return np.asarray(product, np.int64) + c


def _by_pairs(a: Whole, b: Whole, c: Whole) -> Whole:
    """Return the sums where two products are added in 16 bits, saturated, before they join the sum."""
    if a.shape[1] % 2:
        a, b = (np.pad(each, ((0, 0), (0, 1))) for each in (a, b))
    total = c.copy()
    for at in range(0, a.shape[1], 2):
        total += np.clip(a[:, at : at + 2] @ b[:, at : at + 2].T, -S16, S16 - 1)
    return _held(total, S32, wraps=True)


def _in_float32(a: Whole, b: Whole, c: Whole) -> Whole:
    """Return the sums in float32, added column by column and rounded above 2^24."""
    total = c.astype(np.float32)
    for one, other in zip(a.T.astype(np.float32), b.T.astype(np.float32), strict=True):
        total = total + one[:, None] * other
    return total.astype(np.int64)


_SUMS = PTX["mma, .satfinite"]
SUMS_OF_INTEGERS = (
    *ways_of(
        Family.SATURATION,
        _SUMS,
        {
            "the sum wraps around in 32 bits": lambda a, b, c: _held(_exact(a, b, c), S32, wraps=True),
            "the sum saturates at 32 bits": lambda a, b, c: _held(_exact(a, b, c), S32, wraps=False),
            "pairs of products saturate at 16 bits": _by_pairs,
        },
    ),
    Way(
        "the sum wraps around in 16 bits",
        Family.ACCUMULATOR,
        _SUMS,
        lambda a, b, c: (_exact(a, b, c) + S16) % (2 * S16) - S16,
    ),
    Way("products are added in float32", Family.ACCUMULATOR, _SUMS, _in_float32),
)
"""The sum of A B^T + C from whole numbers."""

# ---- zero points ----------------------------------------------------------------------------------------------------------

ZERO_READ: dict[str, Callable[[Any], Any]] = {
    "is subtracted": lambda zero: zero,
    "is left out": np.zeros_like,
    "is added": np.negative,
    "is one too small": lambda zero: zero - 1,
    "is one too large": lambda zero: zero + 1,
    "is that of the first row for all": lambda zero: zero[np.zeros(len(zero), np.int64)],
    "is that of the row before": partial(beside, -1),
    "is that of the next row": partial(beside, 1),
}
_POINTS = ONNX["QLinearMatMul, zero points"]
ZERO_WIDTHS = (2, 3, 4, 8)
FAR, MOST_MAPPED = 16, 3
"""The largest distance of a wrong zero point that is no power of two; the most wrong zero points that are listed."""


def _kept(by: int, back: int, over: int, zero: Any) -> Any:
    """Return zero points moved by a number, wrapped around at `over`, and moved back."""
    return (zero + by) % over - back


def _within(over: int, change: Callable[[Any], Any], zero: Any) -> Any:
    """Return changed zero points, saturated below `over`."""
    return np.clip(change(zero), 0, over - 1)


def _numbers(bits: int) -> Iterator[tuple[str, int, Callable[[Any], Any]]]:
    """Yield what may become of zero points that are kept in so many bits, with a rank."""
    over, sign = 1 << bits, 1 << bits - 1
    yield f"is taken for a signed number of {bits} bits", 1, partial(_kept, sign, sign, over)
    yield f"is taken for an unsigned number of {bits} bits", 1, partial(_kept, 0, 0, over)
    for by in (1, -1, sign, *range(2, min(sign, FAR)), *range(1 - min(sign, FAR), -1)):
        moved = f"{abs(by)} {'larger' if by > 0 else 'smaller'}, in {bits} bits,"
        yield f"is {moved} where it wraps around", 2, partial(_kept, by, 0, over)
        yield f"is {moved} where it saturates", 2, partial(_within, over, partial(np.add, by))
        stored = f"was stored {moved} wrapped around, and moved back"
        yield stored, 2, partial(_kept, by, by, over)
        yield f"{stored}, where it saturates", 2, partial(_within, over, partial(_kept, by, by, over))


@functools.cache
def zero_ways(source: Source, bits: int) -> tuple[Way, ...]:
    """Return what may become of the zero points of codes of so many bits, the right way first."""
    found = [*ways_of(Family.ZERO_POINT, source, ZERO_READ)]
    powers = {1 << each for each in range(1, 9)}
    for size in sorted({*range(2, FAR + 1), *powers}, key=lambda each: each not in powers):
        for sign, word in ((1, "large"), (-1, "small")):
            name, rank = f"is {size} too {word}", 1 if size in powers else 2
            found.append(Way(name, Family.ZERO_POINT, source, partial(np.add, sign * size), rank))
    for width in sorted({bits, *ZERO_WIDTHS}, key=lambda each: each != bits):
        found += [Way(name, Family.ZERO_POINT, source, apply, rank) for name, rank, apply in _numbers(width)]
    return tuple(found)


def _distinct(ways: Sequence[Way], *zeros: NDArray[Any]) -> Iterator[Way]:
    """Yield the ways that change zero points differently, the first of those that are alike."""
    seen: set[bytes] = set()
    for way in ways:
        made = b"".join((np.asarray(way.apply(each), np.float64) + 0.0).tobytes() for each in zeros)
        if made not in seen:
            seen.add(made)
            yield way


def zero_causes(
    aspect: str, ways: Sequence[Way], zeros: NDArray[Any], says: str, *, far: bool = False
) -> Iterator[Cause]:
    """Yield the causes in zero points, those that come to the same numbers once: the likely ones, or the far ones."""
    near = ways[: len(ZERO_READ)]
    for way in _distinct(ways if far else near, zeros):
        if far and way in near:
            continue
        made = np.asarray(way.apply(zeros))
        moved = sorted({*zip(zeros[made != zeros].tolist(), made[made != zeros].tolist(), strict=True)})
        words = ", ".join(f"{had:g} became {has:g}" for had, has in moved[: MOST_MAPPED + 1])
        is_map = way.rank == 2 and 0 < len(moved) <= MOST_MAPPED
        yield way.cause(aspect, f"{says}: {words}" if is_map else says)


_OF_D = {name.replace("subtracted", "added as it is"): apply for name, apply in list(ZERO_READ.items())[:5]}
ZEROS_OF_D = ways_of(Family.ZERO_POINT, _POINTS, _OF_D)
_TERMS = "every term of the zero points", "no K za zb", "no sum of A's rows", "no sum of B's rows"
CORRECTIONS = worded(Family.ZERO_POINT, _POINTS, *_TERMS)
SCALED = ways_of(
    Family.PROMOTION_ORDER,
    CUBLAS["scaling modes"],
    {
        "P * (sa * sb)": lambda p, a, b: p * (a * b),
        "(P * sa) * sb": lambda p, a, b: (p * a) * b,
        "(P * sb) * sa": lambda p, a, b: (p * b) * a,
    },
    usual_rank=1,
)
_MODES = IEEE754["section 4.3"]
ROUNDED = (
    Way("to nearest even", Family.ROUNDING, _MODES, np.rint, 0),
    Way("ties away from zero", Family.TIES, _MODES, lambda x: np.trunc(x + np.copysign(np.float32(0.5), x))),
    Way("floor(x + 0.5)", Family.TIES, _MODES, lambda x: np.floor(x + np.float32(0.5))),
    Way("toward zero", Family.ROUNDING, _MODES, np.trunc),
    Way("down", Family.ROUNDING, _MODES, np.floor),
    Way("up", Family.ROUNDING, _MODES, np.ceil),
)
_LIMITED = "saturates", "wraps around", "saturates at both limits alike, -127 and 127"
OVERFLOWING = worded(Family.SATURATION, PTX["cvt, .sat"], *_LIMITED)
SATURATES, WRAPS, SYMMETRIC = OVERFLOWING
_OF_C = (
    Cause(Family.ACCUMULAND, "C is added", "adds_c", True, PTX["mma: D = A B + C"], 0),
    Cause(Family.ACCUMULAND, "C is left out", "adds_c", False, PTX["mma: D = A B + C"], 1),
)


def _readings(at: int, own: "IntegerProduct") -> Iterator[OperandReading]:
    """Yield the readings of A (`at` 0) or B: as any codes are read, and as codes of the other sign."""
    row = own.types[at]
    yield from readings_of(row)
    if row in (S8, U8):
        other = U8 if row is S8 else S8
        says = f"as codes of {other}, not of {row}"
        yield OperandReading(says, Family.FORMAT, PTX["mma, .s8 and .u8"], format=other)


def _readings_of_b(far: bool, own: "IntegerProduct") -> Iterator[OperandReading | Cause]:
    return readings_of_b([*_readings(0, own)], [*_readings(1, own)], far=far)


def _zeros(at: int, name: str, far: bool, own: "IntegerProduct") -> Iterator[Cause]:
    """Yield the causes in the zero points of A (`at` 0) or B, and with the far ones of B the causes in both."""
    ways = zero_ways(_POINTS, own.types[at].bits)
    yield from zero_causes(f"{name.lower()}_zero", ways, own.zeros[:2][at], f"the zero point of {name} {{}}", far=far)
    if far and at and own.zeros[0].any() and own.zeros[1].any() and own.types[0].bits == own.types[1].bits:
        for way in _distinct(ways, *own.zeros[:2]):
            yield cause_of_both(way, way, "_zero", f"the zero points of A and B: each {way.name}")


def _causes_of_scales(own: "IntegerProduct") -> Iterator[Cause]:
    """Yield the causes in how scales are read: of A, of B, of both."""
    if own.scales is not None:
        yield from scales_read_as(AS_IT_IS, *SCALE_VALUES, *scale_changes.ROWS)


def _is_requantised(own: "IntegerProduct", way: Any) -> bool:
    """Return whether scaled sums become integers."""
    return own.scales is not None and not isinstance(own.format, Format)


@dataclass(frozen=True, eq=False)
class IntegerProduct(ProductOverK):
    """D (M, N) of integers: the sum of (A - za)(B - zb) + C, which is D, or is scaled and rounded to D's type.

    `zeros` are those of A's rows, of B's rows, and D's; `scales` (M, 1) and (N, 1) are float32, or None.
    """

    a: NDArray[Any]
    b: NDArray[Any]
    types: tuple[Integer, Integer]
    c: Whole | None
    zeros: tuple[Whole, Whole, int]
    scales: tuple[Floats, Floats] | None
    format: Any

    sums_held = S32
    work_of_plan, work_of_addend = 2e-4, 4e-10
    aspects = (
        Aspect("a_read", partial(_readings, 0), AS_IT_IS, says="A is read {}", far=STEPS_TWICE),
        Aspect(
            "b_read", partial(_readings_of_b, False), AS_IT_IS, says="B is read {}", far=partial(_readings_of_b, True)
        ),
        Aspect("tail", lambda own: tail_causes(own.a.shape[1]), 0),
        *(
            Aspect(
                f"{name.lower()}_zero",
                partial(_zeros, at, name, False),
                zero_ways(_POINTS, 8)[0],
                far=partial(_zeros, at, name, True),
            )
            for at, name in enumerate("AB")
        ),
        Aspect(
            "corrected",
            CORRECTIONS,
            says="what zero points subtract: {}",
            when=lambda own, way: own.zeros[0].any() or own.zeros[1].any(),
        ),
        Aspect("adding", SUMS_OF_INTEGERS, told="{}"),
        Aspect("adds_c", _OF_C, usual=True, when=lambda own, way: own.c is not None),
        *scales_are_read(_causes_of_scales),
        Aspect("scaled", SCALED, when=lambda own, way: own.scales is not None, told="{}"),
        replace(WRITTEN, ways=lambda own: writing_causes(own.format) if isinstance(own.format, Format) else ()),
        Aspect(
            "rounded",
            ROUNDED,
            says=lambda own: f"{own.format} is rounded {{}}",
            when=_is_requantised,
            told=lambda own, way: f"rounded {way.name} to {own.format}",
        ),
        Aspect(
            "overflow",
            OVERFLOWING,
            says=lambda own: f"{own.format} {{}}",
            when=lambda own, way: _is_requantised(own, way) and (own.format.signed or way is not SYMMETRIC),
            told="which {}",
        ),
        Aspect(
            "d_zero",
            ZEROS_OF_D,
            says="the zero point of D {}",
            when=lambda own, way: _is_requantised(own, way) and own.zeros[2] != 0,
        ),
        PLACED,
    )

    @property
    def title(self) -> str:
        return f"{self.types[0]} x {self.types[1]}, "

    def coded(self, plan: Choices, sample: Sample | None) -> Codes:
        return self._written(plan, self._total(plan, sample), sample)

    def _total(self, plan: Choices, sample: Sample | None, end: int | None = None) -> Whole:
        """Return the unscaled sums of a plan over the columns of K before `end`."""
        parts: Any = (slice(None), slice(None)) if sample is None else sample
        columns = kept_columns(self.a.shape[1], plan.tail)
        columns = columns if end is None else columns[columns < end]
        sides, zeros = [], []
        for name, way, own, part in zip("ab", (plan.a_zero, plan.b_zero), self.zeros[:2], parts, strict=True):
            make = partial(self._side, plan, name, part, columns)
            sides.append(self.of_sample(plan, sample, f"{name}_read tail", make, end))
            zeros.append(way.apply(own)[part][:, None])
        c = np.zeros((len(sides[0]), len(sides[1])), np.int64)
        if self.c is not None and plan.adds_c:
            c = self.c[parts[0]][:, parts[1]]
        add = plan.adding.apply
        if plan.corrected is CORRECTIONS[0]:
            return add(sides[0] - zeros[0], sides[1] - zeros[1], c)  # type: ignore[no-any-return]
        rows, others = sides[0].sum(1, keepdims=True) * zeros[1].T, sides[1].sum(1) * zeros[0]
        terms = [len(columns) * zeros[0] * zeros[1].T, -rows, -others]
        left_out = CORRECTIONS.index(plan.corrected) - 1
        kept = [np.broadcast_to(each, c.shape) for at, each in enumerate(terms) if at != left_out]
        return add(sides[0], sides[1], c + sum(kept, np.zeros_like(c)))  # type: ignore[no-any-return]

    def _side(self, plan: Choices, name: str, part: Any, columns: NDArray[np.int64]) -> Whole:
        """Return the numbers of some rows of the operand "a" or "b" in some columns of K."""
        read, format = getattr(plan, f"{name}_read").read(getattr(self, name), self.types["ab".index(name)])
        return values_of(read[part][:, columns], format)

    def _written(self, plan: Choices, total: Whole, sample: Sample | None) -> Codes:
        """Return the codes of sums: scaled, rounded and limited as the plan says."""
        if self.scales is None:
            if isinstance(self.format, Format):
                return plan.written.codes(total.astype(np.float32), self.format)  # type: ignore[no-any-return]
            return _codes(_held(total, self.format, wraps=True), self.format)
        scaled = plan.scaled.apply(total.astype(np.float32), *self._scales(plan, sample))
        if isinstance(self.format, Format):
            return plan.written.codes(scaled, self.format)  # type: ignore[no-any-return]
        zero = int(plan.d_zero.apply(np.array([self.zeros[2]]))[0])
        with np.errstate(invalid="ignore"):
            rounded = np.nan_to_num(plan.rounded.apply(scaled), nan=0.0, posinf=2.0**31, neginf=-(2.0**31))
        whole = rounded.astype(np.int64) + zero
        if plan.overflow is SYMMETRIC:
            whole = np.maximum(whole, -self.format.limits[1])
        return _codes(_held(whole, self.format, wraps=plan.overflow is WRAPS), self.format)

    def _scales(self, plan: Choices, sample: Sample | None) -> tuple[Floats, Floats]:
        """Return the scales (M, 1) and (1, N) as the plan reads them."""
        assert self.scales is not None
        parts: Any = sample or (slice(None), slice(None))
        read = (np.asarray(scales_read(plan, at, own, F32), np.float32) for at, own in enumerate(self.scales))
        left, right = (scales[part] for scales, part in zip(read, parts, strict=True))
        return left, right.T

    def another(self, seed: int, *, wide: bool = False) -> "IntegerProduct":
        """Return a 24 x 24 product of drawn integers and zero points; `wide`: written in 32 bits or float32."""
        random = np.random.default_rng(seed)
        shape = 24, self.a.shape[1] + 16 * (seed % 3)
        a, b = (random.integers(0, row.code_limit, shape).astype(row.code_dtype) for row in self.types)
        zeros = [
            np.full(24, each[0]) if (each == each[0]).all() else random.integers(-8, 9, 24) for each in self.zeros[:2]
        ]
        scales = None
        if self.scales is not None:
            left, right = (random.uniform(0.5, 2, (24, 1)).astype(np.float32) * each.mean() for each in self.scales)
            scales = np.asarray(left, np.float32), np.asarray(right, np.float32)
        c = None if self.c is None else random.integers(-(1 << 31), 1 << 31, (24, 24))
        written: ElementType = self.format if not wide else F32 if isinstance(self.format, Format) else S32
        return IntegerProduct(a, b, self.types, c, (zeros[0], zeros[1], self.zeros[2]), scales, written)


def _codes(values: Whole, row: Integer) -> Codes:
    return (values % row.code_limit).astype(row.code_dtype)
