"""A pass over blocks: the largest magnitude, the scale, the elements; a part at a time, on two threads.

Patterns of bf16 take the short way: a product with a power of two shifts the exponent, and a table has the code of
every bf16. Blocks whose products leave the normal range go the long way, through float32, as do all other inputs.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import decode
from refsim.conversions.coding import code_table, encode_rule
from refsim.conversions.policies import policy_row
from refsim.conversions.rounding import STOCHASTIC, EncodingRule, encode_exact
from refsim.formats import BF16, UE4M3, Format
from refsim.scaling.block_formats import BlockFormat
from refsim.scaling.mx_recipes import LARGEST_SCALE, MxRecipe, multiplier_table, mx_scale_codes
from refsim.scaling.nvfp4_recipes import nvfp4_scales
from refsim.scaling.recipes import Recipe
from refsim.scaling.rows import NAN_RULES

PART = 1 << 17  # elements at a time: the data of one step stays in the cache
ALONE = 1 << 20  # below this a second thread costs more than it saves
SAFE_SCALE = 32  # above it, bf16 subnormals and products below the normal range convert to zeros
INFINITE_BITS = np.uint32(0x7F800000)
MAGNITUDES = np.uint32(0x7FFFFFFF)

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class WideBlocks:
    """Patterns (blocks, width) in bf16, f16 or f32; one block for each index of the first axis."""

    patterns: NDArray[Any]
    format: Format

    def values(self, part: slice | NDArray[Any]) -> NDArray[np.float32]:
        """Return the blocks of `part` as exact float32 values (blocks, width)."""
        return decode(self.patterns[part], self.format, np.float32)


@dataclass(frozen=True)
class BlockPlan:
    """How blocks are quantized: the recipe, the conversion of the elements, and the kept value of the whole tensor.

    `kept` (1,) is the scale of the tensor as the recipe's library stores it. With `random` (blocks, width) elements are
    rounded stochastically, by as many bits as the integers of `random` have.
    """

    recipe: Recipe
    rule: EncodingRule
    kept: NDArray[np.float32]
    random: NDArray[Any] | None = None


def planned(
    recipe: Recipe, row: BlockFormat, kept: NDArray[np.float32], random: NDArray[Any] | None = None
) -> BlockPlan:
    """Return the plan of a recipe for a block format; `random` (blocks, width) makes the rounding stochastic."""
    rule = policy_row(recipe.policy, row.element).rule
    return BlockPlan(recipe, rule if random is None else replace(rule, rounding=STOCHASTIC), kept, random)


def quantized_blocks(blocks: WideBlocks, plan: BlockPlan) -> tuple[Bytes, Bytes]:
    """Return the codes of the elements (blocks, width) and of the scales (blocks,)."""
    count, width = blocks.patterns.shape
    codes, scales = np.empty((count, width), np.uint8), np.empty(count, np.uint8)
    short = blocks.format is BF16 and isinstance(plan.recipe, MxRecipe) and plan.random is None
    if short:  # it assumes that zero and the smallest magnitude of each sign convert to one code
        table = code_table(plan.rule)
        short = bool(table[0] == table[1] and table[0x8000] == table[0x8001])

    def run(first: int) -> None:
        part = slice(first, first + step)
        scale = _shifted if short else _multiplied
        scale(blocks, part, plan, codes[part], scales[part])

    step = max(1, PART // width)
    in_parts(run, range(0, count, step), alone=count * width < ALONE)
    return codes, scales


def in_parts(run: Callable[[int], None], firsts: range, *, alone: bool) -> None:
    """Call `run` with every first index, on up to two threads unless `alone`, and raise an error of any call."""
    threads = 1 if alone else min(2, os.cpu_count() or 1)
    if threads == 1:
        for first in firsts:
            run(first)
        return
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(run, firsts):
            pass


def largest(values: NDArray[np.float32], *, ignores_nan: bool) -> NDArray[np.float32]:
    """Return the largest magnitude of each block (blocks,); a NaN counts as the largest unless `ignores_nan`."""
    bits = values.view(np.uint32) & MAGNITUDES
    if ignores_nan:
        bits[bits > INFINITE_BITS] = 0
    peak: NDArray[np.uint32] = bits.max(axis=-1, initial=0)
    return peak.view(np.float32)


def largest_of_tensor(blocks: WideBlocks, *, ignores_nan: bool) -> NDArray[np.float32]:
    """Return the largest magnitude of a whole tensor, shape (1,), comparing patterns a part at a time."""
    row, peak = blocks.format, 0
    patterns = blocks.patterns.reshape(-1)
    for first in range(0, patterns.size, PART):
        magnitudes = patterns[first : first + PART] & row.code_dtype.type(row.sign_mask - 1)
        if ignores_nan:
            magnitudes = magnitudes[magnitudes <= row.code_dtype.type(row.infinity_code or 0)]
        peak = max(peak, int(magnitudes.max(initial=0)))
    return decode(np.array([peak], row.code_dtype), row, np.float32)


def _multiplied(blocks: WideBlocks, part: slice | NDArray[Any], plan: BlockPlan, codes: Bytes, scales: Bytes) -> None:
    """Write the codes and scales of a part by the definition: largest magnitude, float32 product, one conversion."""
    values, recipe, rule = blocks.values(part), plan.recipe, plan.rule
    peak = largest(values, ignores_nan=recipe.nan == NAN_RULES[1])
    with np.errstate(all="ignore"):
        if isinstance(recipe, MxRecipe):
            scales[...] = mx_scale_codes(peak, recipe, rule.to)
            if recipe.flushes:
                values = np.where((peak < np.finfo(np.float32).tiny)[:, None], np.float32(0), values)
            scaled = values * multiplier_table(recipe)[scales][:, None]
        else:
            scales[...], _ = nvfp4_scales(values, peak, recipe, plan.kept, rule)
            scaled = recipe.scaled(values, decode(scales, UE4M3, np.float32)[:, None], peak[:, None], plan.kept)
        if plan.random is None:
            codes[...] = encode_rule(scaled, rule)
        else:
            bits = plan.random[part].astype(np.uint32).reshape(-1)
            flat = scaled.astype(np.float64).reshape(-1)
            codes[...] = encode_exact(flat, rule, bits, 8 * plan.random.itemsize).reshape(codes.shape)


def _shifted(blocks: WideBlocks, part: slice, plan: BlockPlan, codes: Bytes, scales: Bytes) -> None:
    """Write the codes and scales of a part of bf16 blocks by shifting exponents; the bits equal `_multiplied`'s. Blocks
    whose products may leave the normal range are computed again by `_multiplied`."""
    recipe, rule = plan.recipe, plan.rule
    assert isinstance(recipe, MxRecipe)
    patterns = blocks.patterns[part]
    count = len(patterns)
    magnitudes = patterns & np.uint16(0x7FFF)
    peak = magnitudes
    while (half := peak.shape[1] // 2) * 2 == peak.shape[1] and half:
        peak = np.maximum(peak[:, :half], peak[:, half:])
    largest_patterns = peak.max(axis=1)
    found = mx_scale_codes(decode(largest_patterns, BF16, np.float32), recipe, rule.to)
    scales[...] = found
    shift = (found.astype(np.int16) - np.int16(127)) << np.int16(7)
    index = magnitudes.view(np.int16)
    np.subtract(index, shift[:, None], out=index)
    np.maximum(index, np.int16(0), out=index)
    magnitudes |= patterns & np.uint16(0x8000)
    np.take(code_table(rule), magnitudes, out=codes, mode="wrap")
    odd = np.flatnonzero((largest_patterns >= 0x7F80) | (found < SAFE_SCALE) | (found > LARGEST_SCALE))
    if odd.size:
        again, codes_again, scales_again = np.arange(part.start, part.start + count)[odd], codes[odd], scales[odd]
        _multiplied(blocks, again, plan, codes_again, scales_again)
        codes[odd], scales[odd] = codes_again, scales_again
