"""Outputs that are known values rounded, alone or times scales of rows or blocks.

Causes of values alone: which way they are rounded, once or twice, and what overflows. Values with scales also have
causes in the scale of an element.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refsim.computations.engine import PLACED, WRITTEN, Aspect, Computation
from refsim.computations.ways import Cause, Choices, Codes, DoesNotApplyError, Family, Way, rounded_to, ways_of
from refsim.computations.writing import USUAL_WRITING, writing_causes
from refsim.errors import RefsimError
from refsim.formats import BF16, F16, Format
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


_MUL = PTX["mul.rn"]
_SCALES = (
    *ways_of(
        Family.SCALE_RULE,
        _MUL,
        {
            "as they were given": lambda scales: scales,
            "inverted": lambda scales: np.float32(1) / scales,
            "taken for ones": np.ones_like,
            "applied twice": lambda scales: ieee.mul(scales, scales),
        },
    ),
    *(
        Way(f"rounded to {to}", Family.DOUBLE_ROUNDING, IEEE754["section 4.3"], lambda x, to=to: rounded_to(x, to), 2)
        for to in (BF16, F16)
    ),
)


def _place_causes(own: "ScaledValues") -> Iterator[Cause]:
    """Yield the causes in the scale of an element, each place once: aspect `place`."""
    seen: set[bytes] = set()
    for says, place, rank in _places(own.grid.width):
        try:
            key = np.broadcast_to(place(own.grid), own.shape).tobytes()
        except DoesNotApplyError:
            continue
        if key not in seen:
            seen.add(key)
            words, source = f"elements have the scale of {says}", OCP_MX["section 5.2, scales of blocks"]
            yield Cause(Family.SCALE_LAYOUT, words, "place", place, source, rank)


@dataclass(frozen=True, eq=False)
class ScaledValues(Computation):
    """`values` (..., rows, columns) times `scales`; `grid` gives the place of each element's scale."""

    values: Floats
    scales: Floats
    grid: ScalePlaces
    format: Format

    title = "values times scales, "
    is_sampled = False
    remembers = 1 << 20
    aspects = (
        Aspect("place", _place_causes, lambda own: _own),
        Aspect("scale", _SCALES, says="scales are {}"),
        replace(WRITTEN, told=lambda own, way: str(way)),
        PLACED,
    )

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def coded(self, plan: Choices, sample: Any) -> Codes:
        return plan.written.codes(self.once(("made",), plan, "place scale", lambda: self._made(plan)), self.format)  # type: ignore[no-any-return]

    def _made(self, plan: Choices) -> Floats:
        """Return the products. Raises DoesNotApplyError for places outside the scales."""
        flat = self.scales.reshape(-1)
        places = np.broadcast_to(plan.place(self.grid), self.shape)
        if int(places.max(initial=0)) >= flat.size or int(places.min(initial=0)) < 0:
            raise DoesNotApplyError
        return ieee.mul(self.values, np.asarray(plan.scale.apply(flat), np.float32)[places])

    def another(self, seed: int, *, wide: bool = False) -> "ScaledValues":
        """Return a subject with drawn values and distinct scales."""
        random = np.random.default_rng(seed)
        values = random.normal(0, 1, self.shape).astype(np.float32)
        scales = random.uniform(0.5, 2, self.scales.shape).astype(np.float32)
        return replace(self, values=values, scales=scales)


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
class WideValues(Computation):
    """The values from which an output was rounded, in the format `wide`: float32 or float64."""

    values: NDArray[Any]
    wide: Format
    format: Format

    is_sampled = False
    aspects = (
        Aspect(
            "written", lambda own: writing_causes(own.format, own.wide), USUAL_WRITING, told=lambda own, way: str(way)
        ),
        PLACED,
    )

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def coded(self, plan: Choices, sample: Any) -> Codes:
        return plan.written.codes(self.values, self.format)  # type: ignore[no-any-return]

    def another(self, seed: int, *, wide: bool = False) -> "WideValues":
        """Return drawn values: ties, numbers between codes, subnormals, and numbers that overflow."""
        random = np.random.default_rng(seed)
        fine = random.integers(-(1 << 15), 1 << 15, self.shape).astype(self.values.dtype)
        scales = 2.0 ** random.integers(-self.format.bias - 16, self.format.bias + 2, self.shape).clip(-140, 120)
        with np.errstate(over="ignore"):
            return WideValues(fine * scales.astype(self.values.dtype), self.wide, self.format)
