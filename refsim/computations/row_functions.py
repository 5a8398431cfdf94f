"""The common part of functions of rows: operands, reading and writing, widths, tails, references of a host."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from refsim.computations.engine import PLACED, WRITTEN, Aspect, Computation
from refsim.computations.host_sums import HOST_ORDERS
from refsim.computations.reading import kept_columns
from refsim.computations.row_sums import RowOrder, sum_causes
from refsim.computations.ways import Cause, Choices, Codes, DoesNotApplyError, Family, Sample, Way, rounded_to
from refsim.computations.writing import Writing
from refsim.conversions import decode, encode
from refsim.formats import BF16, F16, F32, Format
from refsim.sources import IEEE754, PTX, TORCH, Source

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Rows = NDArray[np.int64] | slice
Key = tuple[Any, ...]
NAN_CODES = {2: 0x7FFF, 4: 0x7FFFFFFF}
"""The NaN that PTX's cvt and arithmetic write, by the size of a code in bytes."""
ROW_WIDTHS = (8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True, eq=False)
class RowFunction(Computation):
    """The operands of a function of rows: `x` (rows, columns), float32 values of codes of `x_format`.

    `format` is the output's; `w` and `bias` (columns) and `gate` (rows, columns) are float32 too, None where absent.
    `number`: the scale of softmax, the epsilon of a norm. `exact`: the usual plan rounds quotients, roots and powers
    once.
    """

    x: Floats
    x_format: Format
    format: Format
    number: float
    w: Floats | None = None
    bias: Floats | None = None
    gate: Floats | None = None
    exact: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.x.shape

    def coded(self, plan: Choices, sample: Sample | None) -> Codes:
        rows, key = rows_of(sample)
        values: Any = self.wide(plan, rows) if plan.wide.rank else self.value(plan, rows, key)
        codes = written(plan.wide.apply(values), plan.written, self.format)
        return codes if sample is None else codes[:, sample[1]]

    def value(self, plan: Choices, rows: Rows, key: Key) -> Floats:
        """Return the output of some rows, with steps in float32; `key` names these rows to `once`."""
        raise NotImplementedError

    def wide(self, plan: Choices, rows: Rows) -> Doubles:
        """Return the output of some rows, with all steps in float64."""
        raise NotImplementedError

    def applied(self, plan: Choices, x: Floats) -> Floats:
        """Return the function of other values, (rows, columns), before it is rounded to the output."""
        return replace(self, x=x).value(plan, slice(None), ())

    def read(self, plan: Choices, rows: Rows) -> Floats:
        """Return some rows of x as the plan reads them."""
        return np.asarray(plan.read.apply(self.x[rows], self.x_format), np.float32)

    def another(self, seed: int, *, wide: bool = False) -> Self:
        """Return rows of other numbers, somewhat longer: of several magnitudes, with a few zeros."""
        random = np.random.default_rng(seed)
        rows, columns = min(16, len(self.x)) or 1, self.x.shape[1] + 64 * seed
        values = random.normal(0, 1, (rows, columns)) * 2.0 ** random.integers(-2, 3, (rows, 1))
        drawn = {"x": np.where(random.random(values.shape) < 0.02, 0, values)}
        for name, shape in (("w", columns), ("bias", columns), ("gate", (rows, columns))):
            if getattr(self, name) is not None:
                drawn[name] = random.normal(0, 1, shape)
        held: dict[str, Any] = {
            name: rounded_to(np.asarray(each, np.float32), self.x_format) for name, each in drawn.items()
        }
        return replace(self, **held, format=F32 if wide else self.format)


def rows_of(sample: Sample | None) -> tuple[Rows, tuple[Any, ...]]:
    """Return the rows of a sample, and a key for results of at most 16 rows; () for more."""
    if sample is None:
        return slice(None), ()
    return sample[0], (sample[0].tobytes(),) if len(sample[0]) <= 16 else ()


def written(values: Floats | Doubles, way: Writing, format: Format) -> Codes:
    """Return the codes of values, with NaN as the hardware writes it."""
    codes = way.codes(np.where(np.isnan(values), values.dtype.type(0), values), format)
    nan = NAN_CODES.get(codes.dtype.itemsize, 0x7F if format.has_nan else None)
    return codes if nan is None else np.where(np.isnan(values), codes.dtype.type(nan), codes)


# ---- how x is read ---------------------------------------------------------------------------------------------------------


def flushed(x: Floats, format: Format) -> Floats:
    """Return values with those below the normal numbers of a format replaced by zeros of their sign."""
    return np.where(np.abs(x) < format.min_normal, np.copysign(np.float32(0), x), x).astype(np.float32)


def taken_for(other: Format, x: Floats, format: Format) -> Floats:
    """Return codes of x read as another format of that width."""
    if other is format or other.code_bits != format.code_bits:
        raise DoesNotApplyError
    return decode(encode(x, format), other, np.float32)


def _without_nan(number: np.float32, x: Floats, format: Format) -> Floats:
    return np.where(np.isnan(x), number, x)


AS_READ = Way("x is read as it is", Family.FORMAT, PTX["ld"], lambda x, format: x, 0)
X_READINGS = (
    AS_READ,
    Way("subnormals of x are zeros", Family.FLUSHED, PTX["ftz"], flushed),
    *(
        Way(f"NaN in x counts as {name}", Family.NAN, PTX["max, .NaN"], partial(_without_nan, np.float32(number)))
        for name, number in (("0", 0), ("-infinity", -np.inf))
    ),
    *(
        Way(f"codes of x are taken for {other}", Family.FORMAT, PTX["ld"], partial(taken_for, other), 2)
        for other in (BF16, F16)
    ),
)


# ---- in which format the steps are ------------------------------------------------------------------------------------------

_ONCE = IEEE754["section 5.4.1"]
STEPS_IN_FLOAT32 = Way("steps are in float32", Family.HOST, _ONCE, lambda values: values, 0)
WIDTHS = (
    STEPS_IN_FLOAT32,
    Way("every step is in float64, rounded once", Family.HOST, _ONCE, lambda values: values),
    Way(
        "every step is in float64, rounded to float32 and then to the output",
        Family.HOST,
        _ONCE,
        lambda values: values.astype(np.float32),
    ),
)


def added_wide(values: Doubles) -> Doubles:
    """Return the sum of each row (rows, 1), column by column."""
    return np.add.accumulate(values, axis=1)[:, -1:]


def has(operand: str) -> Callable[[RowFunction, Any], bool]:
    """Return whether an operand is given; with float32 outputs, ways that round to the output are no others."""
    return lambda own, way: (
        getattr(own, operand) is not None and (own.format is not F32 or way.family is not Family.DOUBLE_ROUNDING)
    )


WIDE_STEPS = Aspect("wide", lambda own: WIDTHS[:2] if own.format is F32 else WIDTHS, STEPS_IN_FLOAT32)
COMMON = (Aspect("read", X_READINGS), WIDE_STEPS, WRITTEN, PLACED)
SUMS = (
    Aspect("order", lambda own: sum_causes(own.usual.order), RowOrder(), exact=RowOrder(1)),
    Aspect("held", usual=F32),
)


def host_causes(source: Source, ways: Mapping[str, Sequence[Way]], **others: Way) -> Iterator[Cause]:
    """Yield the causes that take all steps of a host library: each order of sums with each combination of `ways`."""
    for order, chosen in product((*HOST_ORDERS, RowOrder(1)), product(*ways.values())):
        says = f"in float32, {order}; {', '.join(way.name for way in chosen)}"
        beside = (*zip(ways, chosen, strict=True), *others.items())
        yield Cause(Family.HOST, says, "order", order, source, beside=beside)


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
