"""A pass over blocks: the largest magnitude, the scale, the elements; a part at a time, on two threads.

Patterns of bf16 take the short way: a product with a power of two shifts the exponent, and a table has the code of every
bf16. Blocks whose products leave the normal range go the long way, through float32, as all others do.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import decode
from refsim.conversions.coding import code_table, encode_rule
from refsim.conversions.policies import policy_row
from refsim.conversions.rounding import EncodingRule
from refsim.formats import BF16, Format
from refsim.scaling.block_formats import BlockFormat
from refsim.scaling.mx_recipes import LARGEST_SCALE, MxRecipe, multiplier_table, mx_scale_codes
from refsim.scaling.rows import NAN_RULES

PART = 1 << 17  # elements at a time: what one step reads and writes stays in the cache
ALONE = 1 << 20  # below this a second thread costs more than it saves
SAFE_SCALE = 32  # of a block with a larger code, bf16 subnormals and what is shifted below the normal range are zeros
INFINITE_BITS = np.uint32(0x7F800000)
MAGNITUDES = np.uint32(0x7FFFFFFF)

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class WideBlocks:
    """Patterns (blocks, width) of one of the wide formats: each row is a block."""

    patterns: NDArray[Any]
    format: Format

    def values(self, part: slice | NDArray[Any]) -> NDArray[np.float32]:
        """Some blocks as exact float32 values."""
        return decode(self.patterns[part], self.format, np.float32)


def quantized_rows(rows: WideBlocks, recipe: MxRecipe, row: BlockFormat) -> tuple[Bytes, Bytes]:
    """Codes (blocks, width) and scale codes (blocks,)."""
    count, width = rows.patterns.shape
    codes, scales = np.empty((count, width), np.uint8), np.empty(count, np.uint8)
    rule = policy_row(recipe.policy, row.element).rule
    short = rows.format is BF16 and _zero_is_small(rule)

    def run(first: int) -> None:
        part = slice(first, first + step)
        scale = _shifted if short else _multiplied
        scale(rows, part, recipe, rule, codes[part], scales[part])

    step = max(1, PART // width)
    in_parts(run, range(0, count, step), alone=count * width < ALONE)
    return codes, scales


def _zero_is_small(rule: EncodingRule) -> bool:
    """Whether a zero has the code of the smallest numbers of its sign: the short way takes one for the other."""
    table = code_table(rule)
    return bool(table[0] == table[1] and table[0x8000] == table[0x8001])


def in_parts(run: Callable[[int], None], firsts: range, *, alone: bool) -> None:
    """`run` for every first row, on the threads that help; an error of any of them is raised."""
    threads = 1 if alone else min(2, os.cpu_count() or 1)
    if threads == 1:
        for first in firsts:
            run(first)
        return
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(run, firsts):
            pass


def largest(values: NDArray[np.float32], *, ignores_nan: bool) -> NDArray[np.float32]:
    """The largest magnitude of each block; a NaN where one counts."""
    bits = values.view(np.uint32) & MAGNITUDES
    if ignores_nan:
        bits[bits > INFINITE_BITS] = 0
    peak: NDArray[np.uint32] = bits.max(axis=-1, initial=0)
    return peak.view(np.float32)


def _multiplied(
    rows: WideBlocks, part: slice | NDArray[Any], recipe: MxRecipe, rule: EncodingRule, codes: Bytes, scales: Bytes
) -> None:
    """The definition: scales from the largest magnitudes, one float32 product, one conversion."""
    values = rows.values(part)
    peak = largest(values, ignores_nan=recipe.nan == NAN_RULES[1])
    scales[...] = mx_scale_codes(peak, recipe, rule.to)
    with np.errstate(all="ignore"):
        codes[...] = encode_rule(values * multiplier_table(recipe)[scales][:, None], rule)


def _shifted(rows: WideBlocks, part: slice, recipe: MxRecipe, rule: EncodingRule, codes: Bytes, scales: Bytes) -> None:
    """The same bits from bf16 patterns: where the multiplier is a power of two, the exponent is shifted."""
    patterns = rows.patterns[part]
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
        _multiplied(rows, again, recipe, rule, codes_again, scales_again)
        codes[odd], scales[odd] = codes_again, scales_again
