"""The common part of functions of rows: operands, reading and writing, and results that are remembered."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from refsim.causes.amax_changes import ChangedStep
from refsim.causes.placing import PlacedSubject, placing_causes
from refsim.causes.reading import kept_columns
from refsim.causes.rows import Cause, Codes, DoesNotApplyError, Family, Sample
from refsim.causes.writing import Writing, writing_causes
from refsim.conversions import decode, encode
from refsim.formats import BF16, F16, F32, Format
from refsim.sources import IEEE754, PTX, TORCH

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Rows = NDArray[np.int64] | slice
KEPT = 64
NAN_CODES = {2: 0x7FFF, 4: 0x7FFFFFFF}
"""The NaN that PTX's cvt and arithmetic write, by the size of a code in bytes."""
ROW_WIDTHS = (8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True, eq=False)
class RowSubject(PlacedSubject):
    """The operands of a function of rows: `x` (rows, columns), float32 values of codes of `x_format`.

    `format` is the output's; `w` and `bias` (columns) and `gate` (rows, columns) are float32 too, None where absent.
    `number`: the scale of softmax, the epsilon of a norm.
    """

    x: Floats
    x_format: Format
    format: Format
    number: float
    w: Floats | None = None
    bias: Floats | None = None
    gate: Floats | None = None
    exact: bool = False
    made: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    is_sampled = True

    @property
    def shape(self) -> tuple[int, ...]:
        return self.x.shape

    def codes(self, plan: Any, sample: Sample | None = None) -> Codes:
        """Return the codes that a plan writes: all rows, or a sample's. Raises DoesNotApplyError."""
        rows, key = rows_of(sample)
        with np.errstate(all="ignore"):
            if plan.wide == STEPS_IN_FLOAT32:
                values: Any = self.computed(plan, rows, key)
            else:
                values = narrowed_from(self.computed_wide(plan, rows), plan.wide)
            codes = written(values, plan.written, self.format)
        return plan.placed.put(codes) if sample is None else codes[:, sample[1]]

    def computed(self, plan: Any, rows: Rows, key: tuple[Any, ...]) -> Floats:
        """Return the output of some rows, with steps in float32; `key` names these rows to `remembered`."""
        raise NotImplementedError

    def computed_wide(self, plan: Any, rows: Rows) -> Doubles:
        """Return the output of some rows, with all steps in float64."""
        raise NotImplementedError

    def another(self, seed: int, *, wide: bool = False) -> Self:
        """Return rows of other numbers, somewhat longer."""
        return replace(self, **self.drawn(seed), format=F32 if wide else self.format)

    def remembered(self, key: tuple[Any, ...], make: Any) -> Any:
        """Return the result of `make`, remembered under a key; an empty key remembers nothing."""
        if not key or self.x.size == 0:
            return make()
        if key not in self.made:
            if len(self.made) >= KEPT:
                self.made.clear()
            self.made[key] = make()
        return self.made[key]

    def drawn(self, seed: int) -> dict[str, Any]:
        """Return other operands as keyword arguments: rows of several magnitudes with a few zeros."""
        random = np.random.default_rng(seed)
        rows, columns = min(16, len(self.x)) or 1, self.x.shape[1] + 64 * seed
        values = random.normal(0, 1, (rows, columns)) * 2.0 ** random.integers(-2, 3, (rows, 1))
        x = np.where(random.random(values.shape) < 0.02, 0, values)
        others = {
            name: None if given is None else self._rounded(random.normal(0, 1, shape))
            for name, given, shape in (
                ("w", self.w, columns),
                ("bias", self.bias, columns),
                ("gate", self.gate, (rows, columns)),
            )
        }
        return {"x": self._rounded(x), **others, "made": {}}

    def _rounded(self, values: Any) -> Floats:
        return decode(encode(np.asarray(values, np.float32), self.x_format), self.x_format, np.float32)


def rows_of(sample: Sample | None) -> tuple[Rows, tuple[Any, ...]]:
    """Return the rows of a sample, and a key for results of at most 16 rows; () for more."""
    if sample is None:
        return slice(None), ()
    return sample[0], (sample[0].tobytes(),) if len(sample[0]) <= 16 else ()


def written(values: Floats | Doubles, way: Writing, format: Format) -> Codes:
    """Return the codes of values, with NaN as the hardware writes it."""
    codes = way.codes(np.where(np.isnan(values), values.dtype.type(0), values), format)
    nan = NAN_CODES.get(codes.dtype.itemsize)
    return codes if nan is None else np.where(np.isnan(values), codes.dtype.type(nan), codes)


# ---- how x is read ---------------------------------------------------------------------------------------------------------


def _as_it_is(x: Floats, format: Format) -> Floats:
    return x


def _flushed(x: Floats, format: Format) -> Floats:
    return np.where(np.abs(x) < format.min_normal, np.copysign(np.float32(0), x), x).astype(np.float32)


def _taken_for(other: Format, x: Floats, format: Format) -> Floats:
    """Return codes of x read as another format of that width."""
    if other is format or other.code_bits != format.code_bits:
        raise DoesNotApplyError
    return decode(encode(x, format), other, np.float32)


def _number_for_nan(number: float, x: Floats, format: Format) -> Floats:
    return np.where(np.isnan(x), np.float32(number), x)


AS_READ = ChangedStep("x is read as it is", Family.FORMAT, PTX["ld"], _as_it_is, 0)
READINGS = (
    AS_READ,
    ChangedStep("subnormals of x are zeros", Family.FLUSHED, PTX["ftz"], _flushed),
    ChangedStep("NaN in x counts as 0", Family.NAN, PTX["max, .NaN"], partial(_number_for_nan, 0.0)),
    ChangedStep("NaN in x counts as -infinity", Family.NAN, PTX["max, .NaN"], partial(_number_for_nan, -np.inf)),
    *(
        ChangedStep(f"codes of x are taken for {other}", Family.FORMAT, PTX["ld"], partial(_taken_for, other), 2)
        for other in (BF16, F16)
    ),
)


def common_causes(format: Format) -> Iterator[Cause]:
    """Yield the causes in reading x and in writing and placing y: aspects `read`, `wide`, `written`, `placed`."""
    for row in READINGS:
        yield row.cause("read")
    yield from width_causes(format)
    yield from writing_causes(format)
    yield from placing_causes()


# ---- in which format the steps are ------------------------------------------------------------------------------------------

STEPS_IN_FLOAT32, STEPS_IN_FLOAT64, STEPS_IN_FLOAT64_THEN_32 = (
    "steps are in float32",
    "every step is in float64, rounded once",
    "every step is in float64, rounded to float32 and then to the output",
)


def width_causes(format: Format) -> Iterator[Cause]:
    """Yield the causes in the format in which a reference computes: aspect `wide`."""
    for way in (STEPS_IN_FLOAT32, STEPS_IN_FLOAT64, *([] if format is F32 else [STEPS_IN_FLOAT64_THEN_32])):
        yield Cause(Family.HOST, way, "wide", way, IEEE754["section 5.4.1"], int(way != STEPS_IN_FLOAT32))


def narrowed_from(wide: Floats | Doubles, way: str) -> Doubles | Floats:
    """Return float64 results as they are rounded to the output: directly, or through float32."""
    return wide if way == STEPS_IN_FLOAT64 else wide.astype(np.float32)


def added_wide(values: Doubles) -> Doubles:
    """Return the sum of each row (rows, 1), column by column."""
    return np.add.accumulate(values, axis=1)[:, -1:]


# ---- how far a row is gone through -----------------------------------------------------------------------------------------

_GUARD = TORCH["nn.functional: rows of any length"]


def tail_causes(columns: int, what: str) -> Iterator[Cause]:
    """Yield the causes in which columns are added: aspect `tail`, an int as in `kept_columns`."""
    yield Cause(Family.TAIL, f"every column is in {what}", "tail", 0, _GUARD, 0)
    for width in ROW_WIDTHS:
        if columns > width and columns % width:
            says = f"the last {columns % width} columns, which fill no {width}, are not in {what}"
            yield Cause(Family.TAIL, says, "tail", width, _GUARD)
    for width in (1, *ROW_WIDTHS):
        if columns > width and (width == 1 or columns % width == 0):
            lost = f"{width} columns are" if width > 1 else "column is"
            yield Cause(Family.TAIL, f"the last {lost} not in {what}", "tail", -width, _GUARD, 2)


def kept(x: NDArray[Any], tail: int) -> NDArray[Any]:
    """Return the columns that count. Raises DoesNotApplyError where no column is left."""
    return x[:, kept_columns(x.shape[1], tail)] if tail else x


def padded_widths(columns: int) -> list[int]:
    """Return the numbers of columns with padding: whole widths and powers of two."""
    found = {-(-columns // width) * width for width in ROW_WIDTHS} | {1 << (columns - 1).bit_length()}
    return sorted(found - {columns})
