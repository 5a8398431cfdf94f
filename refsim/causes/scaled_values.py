"""Outputs that are known values rounded, alone or times scales of rows or blocks.

Causes of values alone: which way they are rounded, once or twice, and what overflows. Values with scales also have
causes in the scale of an element.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refsim.computations.placing import PlacedSubject, placing_causes
from refsim.computations.ways import Cause, Codes, DoesNotApplyError, Family, Sample
from refsim.computations.writing import WrittenPlan, writing_causes
from refsim.conversions import decode, encode
from refsim.errors import RefsimError
from refsim.formats import BF16, F16, F32, Format
from refsim.integers import array_of
from refsim.numerics import ieee
from refsim.sources import IEEE754, OCP_MX, PTX

Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]
WIDTHS = (128, 64, 32, 16, 256, 512, 8)
"""Numbers of columns that may share a scale, usual ones first."""
GROUPS = (2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class ScalePlaces:
    """A grid of scales (outer, inner), `pitch` apart: `outer` and `inner` hold the indices of each element's scale."""

    outer: Numbers
    inner: Numbers
    column: Numbers
    extents: tuple[int, int]
    pitch: int
    width: int


Place = Callable[[ScalePlaces], Any]


def _own(grid: ScalePlaces) -> Any:
    return grid.outer * grid.pitch + grid.inner


def _at(outer: Callable[[Any, int], Any], inner: Callable[[Any, int], Any], grid: ScalePlaces) -> Any:
    """Return places with another outer or inner index; both functions take an index and the number of indices."""
    return outer(grid.outer, grid.extents[0]) * grid.pitch + inner(grid.inner, grid.extents[1])


def _same(number: Any, count: int) -> Any:
    return number


def _moved(step: int, wraps: bool, number: Any, count: int) -> Any:
    return (number + step) % count if wraps else np.clip(number + step, 0, count - 1)


def _first(number: Any, count: int) -> Any:
    return 0 * number


def _again(of: int, number: Any, count: int) -> Any:
    if count <= of:
        raise DoesNotApplyError
    return number % of


def _padded(to: int, grid: ScalePlaces) -> Any:
    return grid.outer * (-(-grid.extents[1] // to) * to) + grid.inner


def _of_two(tile: int, grid: ScalePlaces) -> Any:
    """Return the place in one of the first two blocks of a tile of columns, although a tile may have three."""
    begin = grid.column // tile * tile
    return grid.outer * grid.pitch + begin // grid.width + (grid.column >= (begin // grid.width + 1) * grid.width)


def _other_width(width: int, grid: ScalePlaces) -> Any:
    return grid.outer * grid.pitch + grid.column // width


def _lines() -> Iterator[tuple[str, Callable[[Any, int], Any]]]:
    """Yield texts and functions that map an index and the number of indices to another index."""
    for step, words in ((-1, "before"), (1, "behind")):
        for wraps in (False, True):
            yield f"the {{}} {words}" + (", around the end" if wraps else ""), partial(_moved, step, wraps)
    yield "the first {}", _first
    for of in GROUPS:
        yield f"the first {of} {{}}s again", partial(_again, of)
        yield f"the first {{}} of each {of}", partial(lambda of, number, count: number // of * of, of)


def _places(width: int) -> Iterator[tuple[str, Place, int]]:
    """Yield a text, a place and its rank, the right place first."""
    yield "its own", _own, 0
    for says, line in _lines():
        yield says.format("block"), partial(_at, _same, line), 1
        yield says.format("row"), partial(_at, line, _same), 1
    yield "lines that are not padded", lambda grid: grid.outer * grid.extents[1] + grid.inner, 1
    for to in (4, 128):
        yield f"lines that are padded to {to}", partial(_padded, to), 1
    yield "a grid that is turned", lambda grid: grid.inner * grid.extents[0] + grid.outer, 1
    for other in WIDTHS:
        yield f"blocks of {other} columns", partial(_other_width, other), 2
    for tile in range(16, 513, 16):
        if tile > width:
            yield f"the first two blocks of tiles of {tile} columns", partial(_of_two, tile), 2


def _as_given(scales: Floats) -> Floats:
    return scales


def _narrow(format: Format, scales: Floats) -> Floats:
    return np.asarray(decode(encode(scales, format), format, np.float32), np.float32)


def _inverse(scales: Floats) -> Floats:
    return np.asarray(np.float32(1) / scales, np.float32)


def _ones(scales: Floats) -> Floats:
    return np.ones_like(scales)


def _squares(scales: Floats) -> Floats:
    return ieee.mul(scales, scales)


@dataclass(frozen=True)
class ScaledValuesPlan(WrittenPlan):
    """The choices: the place of an element's scale, the scale's value, how the product is written, and where."""

    place: Place = _own
    scale: Callable[[Floats], Floats] = _as_given


@dataclass(frozen=True, eq=False)
class ScaledValues(PlacedSubject):
    """`values` (..., rows, columns) times `scales`; `grid` gives the place of each element's scale."""

    values: Floats
    scales: Floats
    grid: ScalePlaces
    format: Format
    made: dict[Any, Floats] = field(default_factory=dict)

    usual = ScaledValuesPlan()
    is_sampled = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def causes(self) -> Sequence[Cause]:
        return list(self._causes())

    def _causes(self) -> Iterator[Cause]:
        """Yield every cause that applies to these values."""
        blocks, mul = OCP_MX["section 5.2, scales of blocks"], PTX["mul.rn"]
        seen: set[bytes] = set()
        for says, place, rank in _places(self.grid.width):
            try:
                key = np.broadcast_to(place(self.grid), self.shape).tobytes()
            except DoesNotApplyError:
                continue
            if key not in seen:
                seen.add(key)
                yield Cause(Family.SCALE_LAYOUT, f"elements have the scale of {says}", "place", place, blocks, rank)
        yield Cause(Family.SCALE_RULE, "scales are as they were given", "scale", _as_given, mul, 0)
        for says, scale in (("inverted", _inverse), ("taken for ones", _ones), ("applied twice", _squares)):
            yield Cause(Family.SCALE_RULE, f"scales are {says}", "scale", scale, mul)
        for narrow in (BF16, F16):
            rounded, source = partial(_narrow, narrow), IEEE754["section 4.3"]
            yield Cause(Family.DOUBLE_ROUNDING, f"scales are rounded to {narrow}", "scale", rounded, source, 2)
        yield from writing_causes(self.format, F32)
        yield from placing_causes()

    def codes(self, plan: ScaledValuesPlan, sample: Sample | None = None) -> Codes:
        """Return the codes that a plan writes. Raises DoesNotApplyError for places outside the scales."""
        key = (plan.place, plan.scale)
        if key not in self.made:
            flat = self.scales.reshape(-1)
            places = np.broadcast_to(plan.place(self.grid), self.shape)
            if int(places.max(initial=0)) >= flat.size or int(places.min(initial=0)) < 0:
                raise DoesNotApplyError
            with np.errstate(all="ignore"):
                self.made[key] = ieee.mul(self.values, plan.scale(flat)[places])
        return plan.placed.apply(plan.written.codes(self.made[key], self.format))

    def another(self, seed: int, *, wide: bool = False) -> "ScaledValues":
        """Return a subject with drawn values and distinct scales."""
        random = np.random.default_rng(seed)
        values = random.normal(0, 1, self.shape).astype(np.float32)
        scales = random.uniform(0.5, 2, self.scales.shape).astype(np.float32)
        return replace(self, values=values, scales=scales, made={})

    def described(self, plan: ScaledValuesPlan) -> str:
        return f"values times scales, {plan.written}"


def scaled_values(values: NDArray[Any], scales: ArrayLike, format: Format) -> ScaledValues:
    """Return the values with the scales of their rows, or of blocks of their columns, padded or not.

    Raises RefsimError for scales that are not float32, or that do not cover each row or block.
    """
    given: Any = array_of("scales", scales)
    if {given.dtype, values.dtype} != {np.dtype(np.float32)} or given.ndim not in (1, 2) or values.ndim < 2:
        what = f"scales are {given.dtype} of shape {given.shape}, values {values.dtype} of shape {values.shape}"
        raise RefsimError("bad-shape", what, rule="float32 both; scales of rows or blocks, values (..., rows, columns)")
    rows, columns = values.shape[-2], values.shape[-1]
    index: Any = np.indices(values.shape, sparse=True)
    row, column = index[-2], index[-1]
    if given.ndim == 1 and given.size == rows and values.ndim == 2 and rows > 1:
        grid = ScalePlaces(row, 0 * row, column, (rows, 1), 1, columns)
    elif values.ndim == 3 and given.ndim == 2 and given.shape[0] == values.shape[0] and given.shape[1] >= rows:
        grid = ScalePlaces(index[0], row, column, (values.shape[0], rows), given.size // len(given), columns)
    else:
        table = given.reshape(1, -1) if given.ndim == 1 else given
        width = _width(columns, table.shape[1])
        if values.ndim != 2 or len(table) != rows or width is None:
            what = f"scales have shape {given.shape}, values {values.shape}"
            raise RefsimError("bad-shape", what, rule="a scale for each row, or for each block of columns")
        grid = ScalePlaces(row, column // width, column, (rows, -(-columns // width)), table.shape[1], width)
    return ScaledValues(values, np.ascontiguousarray(given), grid, format)


def _width(columns: int, blocks: int) -> int | None:
    """Return the columns of a block where `blocks` blocks, padding included, make up a row; None for no such width."""
    fitting = [columns] if blocks == 1 else [width for width in WIDTHS if -(-columns // width) == blocks]
    return next(iter(fitting), next((width for width in sorted(WIDTHS) if -(-columns // width) <= blocks), None))


@dataclass(frozen=True, eq=False)
class WideValues(PlacedSubject):
    """The values from which an output was rounded, in the format `wide`: float32 or float64."""

    values: NDArray[Any]
    wide: Format
    format: Format

    usual = WrittenPlan()
    is_sampled = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def causes(self) -> Sequence[Cause]:
        return [*writing_causes(self.format, self.wide), *placing_causes()]

    def codes(self, plan: WrittenPlan, sample: Sample | None = None) -> Codes:
        return plan.placed.apply(plan.written.codes(self.values, self.format))

    def another(self, seed: int, *, wide: bool = False) -> "WideValues":
        """Return drawn values: ties, numbers between codes, subnormals, and numbers that overflow."""
        random = np.random.default_rng(seed)
        fine = random.integers(-(1 << 15), 1 << 15, self.shape).astype(self.values.dtype)
        scales = 2.0 ** random.integers(-self.format.bias - 16, self.format.bias + 2, self.shape).clip(-140, 120)
        with np.errstate(over="ignore"):
            return WideValues(fine * scales.astype(self.values.dtype), self.wide, self.format)

    def described(self, plan: WrittenPlan) -> str:
        return str(plan.written)
