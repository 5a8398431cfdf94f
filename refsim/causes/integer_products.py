"""Integer products as a plan: zero points, the type of the sum, scales, and the conversion to the output."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.causes import scale_changes
from refsim.causes.grids_of_scales import SCALE_VALUES
from refsim.computations.placing import PlacedSubject, placing_causes
from refsim.computations.reading import AS_IT_IS, OperandReading, ends_of_parts, kept_columns, readings_of, tail_causes
from refsim.computations.ways import Cause, Codes, Family, Sample
from refsim.computations.writing import WrittenPlan, writing_causes
from refsim.formats import F32, S8, S32, U8, ElementType, Format
from refsim.formats.elements import Integer
from refsim.sources import CUBLAS, IEEE754, ONNX, PTX

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

Adding = Callable[[Whole, Whole, Whole], Whole]


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


ADDING: dict[str, tuple[Adding, Family]] = {
    "the sum wraps around in 32 bits": (lambda a, b, c: _held(_exact(a, b, c), S32, wraps=True), Family.SATURATION),
    "the sum saturates at 32 bits": (lambda a, b, c: _held(_exact(a, b, c), S32, wraps=False), Family.SATURATION),
    "pairs of products saturate at 16 bits": (_by_pairs, Family.SATURATION),
    "the sum wraps around in 16 bits": (lambda a, b, c: (_exact(a, b, c) + S16) % (2 * S16) - S16, Family.ACCUMULATOR),
    "products are added in float32": (_in_float32, Family.ACCUMULATOR),
}
USUAL_ADDING = next(iter(ADDING))

# ---- zero points ----------------------------------------------------------------------------------------------------------

ZERO_READ: dict[str, Callable[[Whole], Whole]] = {
    "is subtracted": lambda zero: zero,
    "is left out": np.zeros_like,
    "is added": np.negative,
    "is one too small": lambda zero: zero - 1,
    "is one too large": lambda zero: zero + 1,
    "is that of the first row for all": lambda zero: zero[np.zeros(len(zero), np.int64)],
    "is that of the row before": lambda zero: zero[np.maximum(np.arange(len(zero)) - 1, 0)],
    "is that of the next row": lambda zero: zero[np.minimum(np.arange(len(zero)) + 1, len(zero) - 1)],
}
USUAL_ZERO = next(iter(ZERO_READ))
CORRECTIONS = ("every term of the zero points", "no K za zb", "no sum of A's rows", "no sum of B's rows")

SCALED: dict[str, Callable[[Floats, Floats, Floats], Floats]] = {
    "P * (sa * sb)": lambda p, a, b: p * (a * b),
    "(P * sa) * sb": lambda p, a, b: (p * a) * b,
    "(P * sb) * sa": lambda p, a, b: (p * b) * a,
}
USUAL_SCALED = next(iter(SCALED))

ROUNDED: dict[str, tuple[Callable[[Floats], Floats], Family]] = {
    "to nearest even": (np.rint, Family.ROUNDING),
    "ties away from zero": (lambda x: np.trunc(x + np.copysign(np.float32(0.5), x)), Family.TIES),
    "floor(x + 0.5)": (lambda x: np.floor(x + np.float32(0.5)), Family.TIES),
    "toward zero": (np.trunc, Family.ROUNDING),
    "down": (np.floor, Family.ROUNDING),
    "up": (np.ceil, Family.ROUNDING),
}
USUAL_ROUNDED = next(iter(ROUNDED))
SATURATES, WRAPS, SYMMETRIC = "saturates", "wraps around", "saturates at both limits alike, -127 and 127"


@dataclass(frozen=True)
class IntegerPlan(WrittenPlan):
    """The choices; the defaults are the reference."""

    a_read: OperandReading = AS_IT_IS
    b_read: OperandReading = AS_IT_IS
    a_zero: str = USUAL_ZERO
    b_zero: str = USUAL_ZERO
    d_zero: str = USUAL_ZERO
    corrected: str = CORRECTIONS[0]
    adding: str = USUAL_ADDING
    adds_c: bool = True
    tail: int = 0
    a_scales_read: OperandReading = AS_IT_IS
    b_scales_read: OperandReading = AS_IT_IS
    both_scales_read: OperandReading = AS_IT_IS
    scaled: str = USUAL_SCALED
    rounded: str = USUAL_ROUNDED
    overflow: str = SATURATES


@dataclass(frozen=True, eq=False)
class IntegerProduct(PlacedSubject):
    """D (M, N) of integers: the sum of (A - za)(B - zb) + C, which is D, or is scaled and rounded to D's type.

    `zeros` are those of A's rows, of B's rows, and D's; `scales` (M, 1) and (N, 1) are float32, or None.
    """

    a: NDArray[Any]
    b: NDArray[Any]
    types: tuple[Integer, Integer]
    c: Whole | None
    zeros: tuple[Whole, Whole, int]
    scales: tuple[Floats, Floats] | None
    format: ElementType

    usual = IntegerPlan()
    is_sampled = True
    summed_over, sums_held = "columns of K", S32

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.a), len(self.b)

    def causes(self) -> Sequence[Cause]:
        return [*self._of_operands(), *self._of_output(), *placing_causes()]

    def _of_operands(self) -> Iterator[Cause]:
        """Yield the causes in operands, zero points and how products are added."""
        other = {S8: U8, U8: S8}
        for aspect, name, row in (("a_read", "A", self.types[0]), ("b_read", "B", self.types[1])):
            for each in readings_of(row):
                yield Cause(each.family, f"{name} is read {each.name}", aspect, each, each.source, each.rank)
            if row in other:
                says = f"as codes of {other[row]}, not of {row}"
                read = OperandReading(says, Family.FORMAT, PTX["mma, .s8 and .u8"], format=other[row])
                yield Cause(read.family, f"{name} is read {says}", aspect, read, read.source)
        yield from tail_causes(self.a.shape[1])
        for aspect, name, zero in (("a_zero", "A", self.zeros[0]), ("b_zero", "B", self.zeros[1])):
            if zero.any():
                for says in ZERO_READ:
                    yield _zero(aspect, f"the zero point of {name} {says}", says)
        if any(each.any() for each in self.zeros[:2]):
            for says in CORRECTIONS:
                yield _zero("corrected", f"what zero points subtract: {says}", says, usual=CORRECTIONS[0])
        for says, (_, family) in ADDING.items():
            rank = 0 if says == USUAL_ADDING else 1
            yield Cause(family, says, "adding", says, PTX["mma, .satfinite"], rank)
        if self.c is not None:
            for adds in (True, False):
                says = "C is added" if adds else "C is left out"
                yield Cause(Family.ACCUMULAND, says, "adds_c", adds, PTX["mma: D = A B + C"], 0 if adds else 1)

    def _of_output(self) -> Iterator[Cause]:
        """Yield the causes in scales, rounding and overflow."""
        if self.scales is not None:
            sides = ("a_scales_read", "A"), ("b_scales_read", "B"), ("both_scales_read", "A and B")
            for aspect, name in sides:
                for row in (AS_IT_IS, *SCALE_VALUES, *scale_changes.ROWS):
                    says = f"the scales of {name} are read {row.name}"
                    yield Cause(row.family, says, aspect, row, row.source, row.rank)
            for says in SCALED:
                yield Cause(Family.PROMOTION_ORDER, says, "scaled", says, CUBLAS["scaling modes"])
        if isinstance(self.format, Format):
            yield from writing_causes(self.format)
            return
        if self.scales is None:
            return
        for says, (_, family) in ROUNDED.items():
            rank = 0 if says == USUAL_ROUNDED else 1
            yield Cause(family, f"{self.format} is rounded {says}", "rounded", says, IEEE754["section 4.3"], rank)
        for says in (SATURATES, WRAPS, SYMMETRIC) if self.format.signed else (SATURATES, WRAPS):
            rank = 0 if says == SATURATES else 1
            yield Cause(Family.SATURATION, f"{self.format} {says}", "overflow", says, PTX["cvt, .sat"], rank)
        if self.zeros[2]:
            for says in list(ZERO_READ)[:5]:
                yield _zero("d_zero", f"the zero point of D {says.replace('subtracted', 'added as it is')}", says)

    def codes(self, plan: IntegerPlan, sample: Sample | None = None) -> Codes:
        """Return the codes that a plan writes: all, or those of a sample."""
        total = self._sums(plan, sample)
        made = self._written(plan, total, sample)
        return made if sample is not None else plan.placed.apply(made)

    def sums_of(self, plan: IntegerPlan, at: tuple[int, int], most: int) -> list[tuple[int, int]]:
        """Return pairs (columns, 32-bit word): one element's unscaled sum before each of `most` ends."""
        sample = np.array([at[0]]), np.array([at[1]])
        ends = ends_of_parts(self.a.shape[1], most)
        return [(end, int(self._sums(plan, sample, end).item()) % (1 << 32)) for end in ends]

    def _sums(self, plan: IntegerPlan, sample: Sample | None, end: int | None = None) -> Whole:
        """Return the unscaled sums of a plan over the columns of K before `end`."""
        parts: Any = (slice(None), slice(None)) if sample is None else sample
        columns = kept_columns(self.a.shape[1], plan.tail)
        columns = columns if end is None else columns[columns < end]
        sides, zeros = [], []
        kinds = (self.a, plan.a_read, plan.a_zero), (self.b, plan.b_read, plan.b_zero)
        for (codes, reading, way), row, own, part in zip(kinds, self.types, self.zeros[:2], parts, strict=True):
            read, format = reading.read(codes, row)
            assert isinstance(format, Integer)
            sides.append(values_of(read[part][:, columns], format))
            zeros.append(ZERO_READ[way](own)[part][:, None])
        c = np.zeros((len(sides[0]), len(sides[1])), np.int64)
        if self.c is not None and plan.adds_c:
            c = self.c[parts[0]][:, parts[1]]
        add = ADDING[plan.adding][0]
        if plan.corrected == CORRECTIONS[0]:
            return add(sides[0] - zeros[0], sides[1] - zeros[1], c)
        rows, others = sides[0].sum(1, keepdims=True) * zeros[1].T, sides[1].sum(1) * zeros[0]
        terms = [len(columns) * zeros[0] * zeros[1].T, -rows, -others]
        left_out = CORRECTIONS.index(plan.corrected) - 1
        kept = [np.broadcast_to(each, c.shape) for at, each in enumerate(terms) if at != left_out]
        return add(sides[0], sides[1], c + sum(kept, np.zeros_like(c)))

    def _written(self, plan: IntegerPlan, total: Whole, sample: Sample | None) -> Codes:
        """Return the codes of sums: scaled, rounded and limited as the plan says."""
        if self.scales is None:
            if isinstance(self.format, Format):
                return plan.written.codes(total.astype(np.float32), self.format)
            return _codes(_held(total, self.format, wraps=True), self.format)
        scaled = SCALED[plan.scaled](total.astype(np.float32), *self._scales(plan, sample))
        if isinstance(self.format, Format):
            return plan.written.codes(scaled, self.format)
        zero = int(ZERO_READ[plan.d_zero](np.array([self.zeros[2]]))[0])
        with np.errstate(invalid="ignore"):
            rounded = np.nan_to_num(ROUNDED[plan.rounded][0](scaled), nan=0.0, posinf=2.0**31, neginf=-(2.0**31))
        whole = rounded.astype(np.int64) + zero
        if plan.overflow == SYMMETRIC:
            whole = np.maximum(whole, -self.format.limits[1])
        return _codes(_held(whole, self.format, wraps=plan.overflow == WRAPS), self.format)

    def _scales(self, plan: IntegerPlan, sample: Sample | None) -> tuple[Floats, Floats]:
        """Return the scales (M, 1) and (1, N) as the plan reads them."""
        assert self.scales is not None
        found = []
        parts: Any = sample or (slice(None), slice(None))
        for own, reading, part in zip(self.scales, (plan.a_scales_read, plan.b_scales_read), parts, strict=True):
            scales = own
            for each in (plan.both_scales_read, reading):
                scales = np.asarray(each.read(scales, F32)[0], np.float32)
            found.append(scales[part])
        return found[0], found[1].T

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

    def described(self, plan: IntegerPlan) -> str:
        """Return the plan as text, without its usual choices."""
        words = [f"{self.types[0]} x {self.types[1]}, {plan.adding}"]
        if self.scales is not None:
            words.append(plan.scaled)
            if not isinstance(self.format, Format):
                words.append(f"rounded {plan.rounded} to {self.format}, which {plan.overflow}")
        return ", ".join(words)


def _zero(aspect: str, says: str, value: str, usual: str = USUAL_ZERO) -> Cause:
    source = ONNX["QLinearMatMul, zero points"]
    return Cause(Family.ZERO_POINT, says, aspect, value, source, 0 if value == usual else 1)


def _codes(values: Whole, row: Integer) -> Codes:
    return (values % row.code_limit).astype(row.code_dtype)
