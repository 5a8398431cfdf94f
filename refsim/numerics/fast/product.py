"""Whole matrix products by the fast steps, in tiles of bounded memory; the definition computes other profiles.

A block is some columns of some products: its part of B is decoded once. Its rows of A are decoded and multiplied tile
by tile. `tiles` and `compiled` have the steps; outputs that NaN or infinities decide are written afterwards.

`Plan` divides a product into blocks of columns, tiles of rows, threads and compiled loops. The division changes no bit.

FP4 with scales: each group of 16 products is one term. A group's sum times its scales is below 2^20 units of its
smallest product, so a float64 matrix product is exact.
"""

import itertools
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from refsim.formats import F32, ElementType, Format, float_named
from refsim.numerics.dot import chains
from refsim.numerics.dot.chains import Codes, Operands, added
from refsim.numerics.fast import compiled, tiles
from refsim.numerics.fast.compiled import Packed
from refsim.numerics.fast.operands import (
    NAN_TERM,
    ZERO,
    FastOperand,
    GroupedOperand,
    grouped_operand_of,
    loses_no_bit,
    operand_of,
)
from refsim.numerics.fast.reals import REAL_F32, REAL_F64, Values, codes_of, covers, real_of, values_of
from refsim.numerics.fast.tiles import matmul, round_sums
from refsim.numerics.methods import EARLY, GROUP, Rounding
from refsim.numerics.rows import Profile

OUTPUTS = 1 << 16  # of one tile: a core's own cache holds them
COLUMNS = 1 << 10  # of one block
DECODED_AT_ONCE = 1 << 22  # elements of B decoded at once
FEW = 128  # columns; with fewer columns than this and than rows, the two are exchanged: loops run over columns
Marks = NDArray[np.int8]  # +1 and -1 infinities, 2 NaN, 0 finite numbers


@dataclass(frozen=True)
class Plan:
    """Describe how a profile with the K of one instruction is computed: threads, and compiled loops or NumPy alone.

    `may_compile`: loops that are not compiled yet are compiled first.
    """

    profile: Profile
    k: int
    threads: int
    compiled: bool
    may_compile: bool

    @property
    def length(self) -> int:
        """Return the products of one step."""
        return len(self.profile.steps(self.k)[0])

    def exchanges(self, shape: tuple[int, ...], length: int) -> bool:
        """Return whether rows and columns are exchanged: few columns would leave the loops over them short."""
        _, m, n = shape
        return n < min(m, FEW) and not self.batch_innermost(self._extent(shape, length)[0], n)

    def batch_innermost(self, batch: int, columns: int) -> bool:
        """Return whether loops run over the batch: if it is larger than the columns, and never for FP4."""
        return not self.profile.method.groups and batch > columns

    def blocks(self, shape: tuple[int, ...], length: int) -> list[tuple[slice, slice]]:
        """Return the batches and columns that are computed together, for (batch, M, N) and K; each decodes B once."""
        batches, columns = self._extent(shape, length)
        places = itertools.product(range(0, shape[0], batches), range(0, shape[2], columns))
        return [(slice(start, start + batches), slice(first, first + columns)) for start, first in places]

    def _extent(self, shape: tuple[int, ...], length: int) -> tuple[int, int]:
        """Return how many batches and columns a block has; the compiled loops take one batch at a time."""
        batch, m, n = shape
        columns = max(1, min(n, COLUMNS, DECODED_AT_ONCE // length))
        most = 1 if self.compiled else OUTPUTS // max(m * columns, 1)
        return max(1, min(batch, most, DECODED_AT_ONCE // (length * max(columns, m, 1)))), columns

    def row_tiles(self, shape: tuple[int, ...], length: int) -> list[slice]:
        """Return the rows of A that are computed together, in a block of this (batch, M, N) and K."""
        batch, m, n = shape
        rows = max(1, min(-(-m // self.threads), OUTPUTS // (batch * n), DECODED_AT_ONCE // (batch * length)))
        return [slice(row, row + rows) for row in range(0, m, rows)]

    def outputs_at_once(self, length: int) -> int:
        """Return how many outputs, each with a row of A and of B of its own, are computed at once."""
        return max(1, DECODED_AT_ONCE // length)


def plan_for(shape: tuple[int, ...], length: int, profile: Profile, k: int) -> Plan:
    """Return the plan for a product of this (batch, M, N) and K: threads and compiled loops where they pay."""
    with_kernels = compiled.takes(profile, len(profile.steps(k)[0])) and compiled.wins(shape, length, profile)
    threads = threads_for(math.prod(shape) * length, compiled=with_kernels)
    return Plan(profile, k, threads, with_kernels, compiled.worth_compiling(shape, length))


def matrix_product(operands: Operands, c: NDArray[Any], profile: Profile, k: int) -> NDArray[Any]:
    """Return d (batch, M, N), bit for bit the result of `refsim.numerics.dot.chains.matrix_product`."""
    if not covers(profile):
        return chains.matrix_product(operands, c, profile, k)
    return fast_product(operands, c, plan_for(c.shape, operands.a.shape[-1], profile, k))


def fast_product(operands: Operands, c: Codes, plan: Plan) -> Codes:
    """Return the product by a profile that `covers` allows; C that enters late is added after each instruction."""
    profile, length = plan.profile, operands.a.shape[-1]
    if plan.exchanges(c.shape, length):
        transposed = fast_product(_exchanged(operands), np.ascontiguousarray(c.swapaxes(1, 2)), plan)
        return np.ascontiguousarray(transposed.swapaxes(1, 2))
    if not profile.adds_c_last:
        return _chained(operands, c, plan)
    products_alone = replace(plan, profile=replace(profile, c_enters=EARLY))
    for start in range(0, length, plan.k):
        d = _chained(operands.chunk(start, plan.k), np.zeros_like(c), products_alone)
        c = added(d, c, profile.rounding.format)
    return c


def _exchanged(own: Operands) -> Operands:
    return Operands(own.b, own.a, own.b_format, own.a_format, own.b_scale, own.a_scale, own.scale_format)


def _chained(operands: Operands, c: Codes, plan: Plan) -> Codes:
    """Return the result of all steps from C on, block by block.

    Threads share the blocks, or the rows of each block if there are fewer blocks than threads.
    """
    result, length = np.empty_like(c), operands.a.shape[-1]
    places = plan.blocks(c.shape, length)

    def compute(place: tuple[slice, slice], threads: int) -> None:
        block = _block(operands, c, result, place, plan)
        on_threads(lambda rows: _compute_rows(block, rows, plan), plan.row_tiles(block.c.shape, length), threads)

    if len(places) >= plan.threads:
        on_threads(lambda place: compute(place, 1), places, plan.threads)
    else:
        for place in places:
            compute(place, plan.threads)
    return result


# ---- one block -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Block:
    """Describe some columns of some products: codes, decoded B (packed for compiled loops), C and the result."""

    operands: Operands
    b: FastOperand | GroupedOperand
    packed: Packed | None
    c: Codes
    result: Codes
    batch_innermost: bool


def _block(operands: Operands, c: Codes, result: Codes, place: tuple[slice, slice], plan: Plan) -> _Block:
    """Return the block at `place`, (batches, columns), with B decoded."""
    batch, columns = place
    outputs = (batch, slice(None), columns)
    b_scale = None if operands.b_scale is None else operands.b_scale[place]
    part = replace(operands.tile(batch, slice(None)), b=operands.b[place], b_scale=b_scale)
    batches, _, width = c[outputs].shape
    innermost = plan.batch_innermost(batches, width)
    b = _decoded(part.b, part.b_format, part.b_scale, part.scale_format, plan, innermost)
    return _Block(part, b, compiled.packed(b) if plan.compiled else None, c[outputs], result[outputs], innermost)


def _decoded(
    codes: Codes, format: ElementType, scale: Codes | None, scale_format: Format | None, plan: Plan, innermost: bool
) -> FastOperand | GroupedOperand:
    row = float_named(format)
    with np.errstate(all="ignore"):
        if not plan.profile.method.groups:
            return operand_of(codes, row, scale, scale_format, plan.profile, plan.k, batch_innermost=innermost)
        assert scale is not None
        assert scale_format is not None
        return grouped_operand_of(codes, row, scale, scale_format)


def _compute_rows(block: _Block, rows: slice, plan: Plan) -> None:
    """Compute the outputs of some rows and write them to the result."""
    some = block.operands.tile(slice(None), rows)
    a = _decoded(some.a, some.a_format, some.a_scale, some.scale_format, plan, block.batch_innermost)
    c = block.c[:, rows]
    if block.batch_innermost:
        c = np.ascontiguousarray(c.transpose(1, 2, 0)).transpose(2, 0, 1)
    with np.errstate(all="ignore"):
        values, c_special = values_of(c, plan.profile, REAL_F32 if plan.compiled else real_of(plan.profile))
        sums = _sums(a, block, values, plan)
        codes = codes_of(sums, plan.profile)
        special = decided((a.values, block.b.values), (a.special, block.b.special), c_special, codes.shape)
        if special is not None:
            put(codes, special, plan.profile.rounding)
            opposite = np.isinf(sums) & (special == -np.sign(sums))
            _define(codes, np.argwhere(opposite), some, c, plan)
    block.result[:, rows] = codes


def _sums(a: FastOperand | GroupedOperand, block: _Block, c: Values, plan: Plan) -> Values:
    """Return the rounded sums of all steps, as if every number were finite."""
    b, profile = block.b, plan.profile
    if block.packed is not None:
        return compiled.chain(a, block.packed, c, profile, plan.length, may_compile=plan.may_compile)
    if isinstance(a, GroupedOperand):
        assert isinstance(b, GroupedOperand)
        return _grouped_chain(a, b, c, profile, plan.length)
    assert isinstance(b, FastOperand)
    return tiles.chain(a, b, c, profile, plan.length)


def _define(codes: Codes, places: NDArray[np.intp], operands: Operands, c: Codes, plan: Plan) -> None:
    """Compute outputs by the definition if a sum overflowed and a term is the opposite infinity: order counts there."""
    some = plan.outputs_at_once(operands.a.shape[-1])
    for start in range(0, len(places), some):
        batch, m, n = places[start : start + some].T
        each = operands.parts(lambda codes: codes[batch, m][:, None], lambda codes: codes[batch, n][:, None])  # noqa: B023
        found = chains.matrix_product(each, c[batch, m, n][:, None, None], plan.profile, plan.k)
        codes[batch, m, n] = found[:, 0, 0]


def decided(
    values: tuple[Values, Values], marks: tuple[Marks | None, Marks | None], c: Marks | None, shape: tuple[int, ...]
) -> Marks | None:
    """Return the mark of every output (batch, M, N) that its terms make infinite or NaN; None if nothing is marked.

    `values` and `marks` of A and B are (K, batch, rows), a marked value is 0. NaN terms, infinity times zero and
    infinities of both signs give NaN.
    """
    if marks[0] is None and marks[1] is None and c is None:
        return None
    own = np.zeros(shape, np.int8) if c is None else c
    plus, minus, nan = own == 1, own == -1, own == NAN_TERM
    for mark, axis in zip(marks, (2, 1), strict=True):
        if mark is not None:
            nan |= np.expand_dims((mark == NAN_TERM).any(0), axis)
    infinite = [np.zeros(1, np.bool_) if mark is None else (mark % NAN_TERM != 0).any((1, 2)) for mark in marks]
    places = np.flatnonzero(infinite[0] | infinite[1])
    if places.size:
        x = _indicators(values[0][places], marks[0], places)
        y = [part.swapaxes(1, 2) for part in _indicators(values[1][places], marks[1], places)]
        for left, right in ((0, 1), (1, 0)):
            count, difference = np.abs(x[left]) @ np.abs(y[right]), x[left] @ y[right]
            plus |= count + difference > 0
            minus |= count - difference > 0
        nan |= np.abs(x[0]) @ (y[1] == 0) + (x[1] == 0) @ np.abs(y[0]) > 0
    return np.where(nan | (plus & minus), NAN_TERM, plus.astype(np.int8) - minus).astype(np.int8)


def _indicators(values: Values, marks: Marks | None, places: NDArray[np.intp]) -> tuple[Values, Values]:
    """Return the signs of the infinities and of all numbers at some places of K, float32 (batch, rows, places)."""
    mark = np.zeros(values.shape, np.int8) if marks is None else marks[places]
    infinities = np.where(mark == NAN_TERM, 0, mark)
    signs = np.sign(values).astype(np.int8) + infinities
    first, second = (part.astype(np.float32).transpose(1, 2, 0) for part in (infinities, signs))
    return first, second


def put(codes: Codes, marks: Marks, rounding: Rounding) -> None:
    """Write the NaN and the infinities of a rounding where `marks` has them."""
    codes[marks == NAN_TERM] = rounding.nan
    codes[marks == 1] = rounding.infinity
    codes[marks == -1] = rounding.infinity | rounding.sign


def _grouped_chain(a: GroupedOperand, b: GroupedOperand, c: Values, profile: Profile, length: int) -> Values:
    """Return the rounded sums of all steps, starting with C (batch, M, N); `c` is overwritten."""
    for start in range(0, len(a.values), length):
        _step(a, b, slice(start, start + length), c, profile)
    return c


def _step(a: GroupedOperand, b: GroupedOperand, part: slice, c: Values, profile: Profile) -> None:
    """Add one step to `c` in place: cut C and each group's sum below the largest exponent, add them, round."""
    assert profile.fraction is not None
    exponent = _exponent(a, b, slice(part.start // GROUP, part.stop // GROUP), c, profile)
    exponent -= profile.fraction
    coarsest = int(exponent.max())
    scale = REAL_F64.power(-exponent)
    np.multiply(c, scale, out=c)
    np.trunc(c, out=c)
    x, y, size = a.weighted(part), b.weighted(part), GROUP
    if loses_no_bit(coarsest, a, b):
        size = part.stop - part.start  # no term loses a bit: the groups add up in one matrix product
    for first in range(0, len(x), size):
        some = slice(first, first + size)
        sums = matmul(x[some].transpose(1, 2, 0), y[some].transpose(1, 0, 2), np.empty_like(c))
        sums *= scale
        c += np.trunc(sums, out=sums)
    np.multiply(c, REAL_F64.power(exponent), out=c)
    round_sums(c, profile, REAL_F64, careful=True)


def _exponent(a: GroupedOperand, b: GroupedOperand, groups: slice, c: Values, profile: Profile) -> NDArray[np.int64]:
    """Return the largest exponent of C and of the groups with a product; a C of zero has the zero exponent."""
    assert profile.zero_exponent is not None
    top = np.full(c.shape, ZERO, np.int16)
    for x, y, p, q in zip(a.exponents[groups], b.exponents[groups], a.present[groups], b.present[groups], strict=True):
        own = x[:, :, None] + y[:, None, :]
        own[(p[:, :, None] & q[:, None, :]) == 0] = ZERO
        np.maximum(top, own, out=top)
    exponent = REAL_F64.exponent(c)
    np.maximum(exponent, 1 - F32.bias, out=exponent)
    exponent[c == 0] = profile.zero_exponent
    np.maximum(exponent, top, out=exponent)
    return exponent


FROM = 1 << 22  # products of a matrix product from which threads pay
MOST = 8  # threads with NumPy alone; more would wait for the interpreter's lock, which compiled loops release

_Item = TypeVar("_Item")


def threads_for(products: int, *, compiled: bool) -> int:
    """Return the number of threads for a matrix product of so many products."""
    if products < FROM:
        return 1
    return cores() if compiled else min(cores(), MOST)


def on_threads(function: Callable[[_Item], None], items: Sequence[_Item], threads: int) -> None:
    """Call the function for every item; an exception of a call is raised here."""
    if threads == 1 or len(items) == 1:
        for item in items:
            function(item)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(function, items))


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
