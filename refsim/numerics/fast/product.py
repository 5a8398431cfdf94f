"""Whole matrix products by the fast steps, in tiles of bounded memory; the definition computes other profiles.

A block is some columns of some products: its part of B is decoded once. Its rows of A are decoded and multiplied tile
by tile. `tiles`, `groups` and `compiled` have the steps; outputs that NaN or infinities decide are written afterwards.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.formats import ElementType, Format, float_named
from refsim.numerics.dot import chains
from refsim.numerics.dot.arrays import Codes, added
from refsim.numerics.dot.chains import Operands
from refsim.numerics.fast import compiled, groups, tiles
from refsim.numerics.fast.compiled import Packed
from refsim.numerics.fast.domain import covers
from refsim.numerics.fast.operands import FastOperand, GroupedOperand, grouped_operand_of, operand_of
from refsim.numerics.fast.plan import Plan, plan_for
from refsim.numerics.fast.reals import REAL_F32, Values, codes_of, real_of, values_of
from refsim.numerics.fast.specials import decided, put
from refsim.numerics.fast.threads import on_threads
from refsim.numerics.methods import EARLY
from refsim.numerics.rows import Profile


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


def _exchanged(operands: Operands) -> Operands:
    return Operands(
        operands.b,
        operands.a,
        operands.b_format,
        operands.a_format,
        operands.b_scale,
        operands.a_scale,
        operands.scale_format,
    )


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
    part = replace(
        operands.tile(batch, slice(None)),
        b=operands.b[place],
        b_scale=None if operands.b_scale is None else operands.b_scale[place],
    )
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
        return groups.chain(a, b, c, profile, plan.length)
    assert isinstance(b, FastOperand)
    return tiles.chain(a, b, c, profile, plan.length)


def _define(codes: Codes, places: NDArray[np.intp], operands: Operands, c: Codes, plan: Plan) -> None:
    """Compute outputs by the definition if a sum overflowed and a term is the opposite infinity: order counts there."""
    some = plan.outputs_at_once(operands.a.shape[-1])
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
        found = chains.matrix_product(each, c[batch, m, n][:, None, None], plan.profile, plan.k)
        codes[batch, m, n] = found[:, 0, 0]
