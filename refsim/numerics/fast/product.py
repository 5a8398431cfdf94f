"""Whole matrix products by the fast steps, in tiles of bounded memory; rows without one go to the definition."""

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from refsim.formats import ElementType, Format, float_named
from refsim.numerics.dot import chains
from refsim.numerics.dot.arrays import Codes, added
from refsim.numerics.dot.chains import Operands
from refsim.numerics.fast import compiled, groups, tiles
from refsim.numerics.fast.compiled import Packed
from refsim.numerics.fast.domain import covers
from refsim.numerics.fast.reals import SINGLE, codes_of, real_of, values_of
from refsim.numerics.fast.sides import GroupSide, Side, group_side, side
from refsim.numerics.fast.specials import decided, put
from refsim.numerics.methods import EARLY
from refsim.numerics.rows import Profile

OUTPUTS = 1 << 16  # of one tile: what a core's own cache holds
COLUMNS = 1 << 10
ELEMENTS = 1 << 22  # of B decoded at once
FEW = 128  # columns; fewer are exchanged with the rows, if those are more, where loops run over columns
THREADED = 1 << 22  # products from which threads pay
MOST_THREADS = 8  # of NumPy alone; more wait for the interpreter's lock

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Course:
    """How a product is computed: by which row with which K of an instruction, on how many threads, in compiled loops or
    in NumPy alone, and whether loops that are not compiled yet may be."""

    profile: Profile
    k: int
    threads: int
    compiled: bool
    patient: bool

    @property
    def length(self) -> int:
        """Products of one step."""
        return len(self.profile.steps(self.k)[0])


def matrix_product(operands: Operands, c: NDArray[Any], profile: Profile, k: int) -> NDArray[Any]:
    """d (batch, M, N), bit for bit what `refsim.numerics.dot.chains.matrix_product` returns for the same arguments."""
    if not covers(profile):
        return chains.matrix_product(operands, c, profile, k)
    return fast_product(operands, c, chosen(c.shape, operands.a.shape[-1], profile, k))


def chosen(shape: tuple[int, ...], length: int, profile: Profile, k: int) -> Course:
    """The course for a product of that (batch, M, N) and K: threads and compiled loops where they pay."""
    with_kernels = compiled.takes(profile, len(profile.steps(k)[0])) and compiled.wins(shape, length, profile)
    threads = _cores() if with_kernels else min(_cores(), MOST_THREADS)
    if math.prod(shape) * length < THREADED:
        threads = 1
    return Course(profile, k, threads, with_kernels, compiled.patient(shape, length))


def fast_product(operands: Operands, c: Codes, course: Course) -> Codes:
    """A truncated or grouped row; C that enters late is added after each instruction."""
    profile, (_, m, n) = course.profile, c.shape
    together = _extent(c.shape, operands.a.shape[-1], course)[0]
    if n < min(m, FEW) and not _across(together, n, course):
        transposed = fast_product(_swapped(operands), np.ascontiguousarray(c.swapaxes(1, 2)), course)
        return np.ascontiguousarray(transposed.swapaxes(1, 2))
    if not profile.adds_c_last:
        return _fused(operands, c, course)
    early, format = replace(course, profile=replace(profile, c_enters=EARLY)), profile.rounding.format
    for start in range(0, operands.a.shape[-1], course.k):
        d = _fused(operands.chunk(start, course.k), np.zeros_like(c), early)
        c = added(d, c, format)
    return c


def _swapped(operands: Operands) -> Operands:
    return Operands(
        operands.b,
        operands.a,
        operands.b_format,
        operands.a_format,
        operands.b_scale,
        operands.a_scale,
        operands.scale_format,
    )


@dataclass(frozen=True)
class _Block:
    """Some columns of some products: B decoded, C and the place of the result; `across`: loops run over the batch."""

    operands: Operands
    right: Side | GroupSide
    packed: Packed | None
    c: Codes
    result: Codes
    across: bool


def _fused(operands: Operands, c: Codes, course: Course) -> Codes:
    result = np.empty_like(c)
    places = _places(c.shape, operands.a.shape[-1], course)

    def compute(place: tuple[slice, slice], threads: int) -> None:
        block = _block(operands, c, result, place, course)
        _spread(lambda rows: _rows(block, rows, course), _row_tiles(block, course), threads)

    if len(places) >= course.threads:
        _spread(lambda place: compute(place, 1), places, course.threads)
    else:
        for place in places:
            compute(place, course.threads)
    return result


def _places(shape: tuple[int, ...], length: int, course: Course) -> list[tuple[slice, slice]]:
    """Batches and columns that are computed together."""
    parts, columns = _extent(shape, length, course)
    return [
        (slice(start, start + parts), slice(first, first + columns))
        for start in range(0, shape[0], parts)
        for first in range(0, shape[2], columns)
    ]


def _extent(shape: tuple[int, ...], length: int, course: Course) -> tuple[int, int]:
    """How many batches and columns are computed together; the compiled loops take one batch at a time."""
    batch, m, n = shape
    columns = max(1, min(n, COLUMNS, ELEMENTS // length))
    most = 1 if course.compiled else OUTPUTS // max(m * columns, 1)
    return max(1, min(batch, most, ELEMENTS // (length * max(columns, m, 1)))), columns


def _row_tiles(block: _Block, course: Course) -> list[slice]:
    parts, m, n = block.c.shape
    length = block.operands.a.shape[-1]
    rows = max(1, min(-(-m // course.threads), OUTPUTS // (parts * n), ELEMENTS // (parts * length)))
    return [slice(row, row + rows) for row in range(0, m, rows)]


def _block(operands: Operands, c: Codes, result: Codes, place: tuple[slice, slice], course: Course) -> _Block:
    batch, columns = place
    parts, _, width = c[batch, :, columns].shape
    across = _across(parts, width, course)
    part = replace(
        operands.tile(batch, slice(None)),
        b=operands.b[place],
        b_scale=None if operands.b_scale is None else operands.b_scale[place],
    )
    right = _side(part.b, part.b_format, part.b_scale, part.scale_format, course, across=across)
    outputs = (batch, slice(None), columns)
    return _Block(part, right, compiled.packed(right) if course.compiled else None, c[outputs], result[outputs], across)


def _across(batch: int, columns: int, course: Course) -> bool:
    """Whether loops run over the batch, of which more are computed together than columns; FP4 has no such loops."""
    return not course.profile.method.groups and batch > columns


def _side(
    codes: Codes, format: ElementType, scale: Codes | None, scale_format: Format | None, course: Course, *, across: bool
) -> Side | GroupSide:
    with np.errstate(all="ignore"):
        if not course.profile.method.groups:
            return side(codes, float_named(format), scale, scale_format, course.profile, course.k, across=across)
        assert scale is not None
        assert scale_format is not None
        return group_side(codes, float_named(format), scale, scale_format)


def _rows(block: _Block, rows: slice, course: Course) -> None:
    """Compute the outputs of some rows and write them to the result."""
    some = block.operands.tile(slice(None), rows)
    left = _side(some.a, some.a_format, some.a_scale, some.scale_format, course, across=block.across)
    with np.errstate(all="ignore"):
        block.result[:, rows] = _tile(block, some, left, block.c[:, rows], course)


def _tile(block: _Block, operands: Operands, left: Side | GroupSide, c: Codes, course: Course) -> Codes:
    profile, right = course.profile, block.right
    if block.across:
        c = np.ascontiguousarray(c.transpose(1, 2, 0)).transpose(2, 0, 1)
    values, marks = values_of(c, profile, SINGLE if course.compiled else real_of(profile))
    if block.packed is not None:
        sums = compiled.chain(left, block.packed, values, profile, course.length, patient=course.patient)
    elif isinstance(left, GroupSide) and isinstance(right, GroupSide):
        sums = groups.chain(left, right, values, profile, course.length)
    elif isinstance(left, Side) and isinstance(right, Side):
        sums = tiles.chain(left, right, values, profile, course.length)
    codes = codes_of(sums, profile)
    special = decided((left.values, right.values), (left.special, right.special), marks, codes.shape)
    if special is None:
        return codes
    overflowed = np.isinf(sums) & (special == -np.sign(sums))
    put(codes, special, profile.rounding)
    if overflowed.any():
        _define(codes, np.argwhere(overflowed), operands, c, course)
    return codes


def _define(codes: Codes, places: NDArray[np.intp], operands: Operands, c: Codes, course: Course) -> None:
    """Overwrite outputs by the definition: a sum overflowed and a term is the opposite infinity, so their order counts."""
    some = max(1, ELEMENTS // operands.a.shape[-1])
    for start in range(0, len(places), some):
        batch, m, n = places[start : start + some].T
        each = Operands(
            operands.a[batch, m][:, None],
            operands.b[batch, n][:, None],
            operands.a_format,
            operands.b_format,
            None if operands.a_scale is None else operands.a_scale[batch, m][:, None],
            None if operands.b_scale is None else operands.b_scale[batch, n][:, None],
            operands.scale_format,
        )
        found = chains.matrix_product(each, c[batch, m, n][:, None, None], course.profile, course.k)
        codes[batch, m, n] = found[:, 0, 0]


def _spread(function: Callable[[_Item], None], items: Sequence[_Item], threads: int) -> None:
    if threads == 1 or len(items) == 1:
        for item in items:
            function(item)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(function, items))


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
