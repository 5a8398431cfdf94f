"""Recordings of the special functions (gpu/probes/record_special_functions.py), and their replay.

A GPU gave digests of all 65,536 chunks of a form. The file stores one word for 16 chunks, a group of 2^20 patterns: the
sum of their digests, each with the weight of its place. A group is therefore compared as reliably as a chunk, in a
sixteenth of the space.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.silicon.scalar_probe import clause_words
from refsim.silicon.vectors import CHUNK, digest, recordings, shelf, splitmix64, weights

STEM = "special_functions"
CHUNKS_OF_A_GROUP = 16
GROUPS = CHUNK // CHUNKS_OF_A_GROUP


def folded(digests: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return one word for every 16 digests; for chunks of only ones the first word is 0x73044388b74387f8."""
    weighted = digests.reshape(-1, CHUNKS_OF_A_GROUP) * weights()[:CHUNKS_OF_A_GROUP]
    return np.asarray(weighted.sum(axis=1, dtype=np.uint64))


def recorded(form: str, device: str = "h200") -> NDArray[np.uint64]:
    """Return the 4,096 recorded words of a form over all its inputs: recorded("rcp_approx_ftz_f32")."""
    stored = recordings(STEM, device)
    row = stored[form]
    words = row.arrays["groups"]
    return np.asarray(words + recorded(row.facts["less"], device) if row.facts["less"] else words)


def pairs(chunks: range) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return the operands of div, one chunk a row: mantissas and signs by a hash, exponents chunk >> 10 and chunk >> 2
    & 255."""
    chunk = np.arange(chunks.start, chunks.stop, dtype=np.uint64)[:, None]
    h = splitmix64(np.arange(CHUNK, dtype=np.uint64) | chunk << np.uint64(16))
    a, b, kind = ((h >> np.uint64(at) & np.uint64(mask)).astype(np.uint32) for at, mask in _OF_THE_HASH)
    special = _MANTISSAS[(h >> np.uint64(52) & np.uint64(3)).astype(np.intp)]
    a = np.where(kind < 2, special, a)
    b = np.where((kind == 1) | (kind == 2), special, np.where(kind == 3, a, b))
    signs = [(h >> np.uint64(at) & np.uint64(1)).astype(np.uint32) << np.uint32(31) for at in (63, 62)]
    exponents = [(chunk >> np.uint64(at) & np.uint64(0xFF)).astype(np.uint32) << np.uint32(23) for at in (10, 2)]
    return a | signs[0] | exponents[0], b | signs[1] | exponents[1]


def patterns(chunks: range) -> NDArray[np.uint32]:
    """Return the float32 patterns of some chunks, one chunk a row: chunk 0x3f80 begins with 0x3f800000."""
    first = np.arange(chunks.start, chunks.stop, dtype=np.uint32)[:, None]
    return first << np.uint32(16) | np.arange(CHUNK, dtype=np.uint32)


def doubles(uppers: NDArray[np.uint32], *, lower: bool) -> NDArray[np.float64]:
    """Return float64 operands with these upper halves; the lower halves are a hash of them, or 0."""
    wide = uppers.astype(np.uint64)
    words = wide << np.uint64(32)
    if lower:
        words |= splitmix64(wide) & np.uint64(0xFFFFFFFF)
    return words.view(np.float64)


def results(form: str, device: str = "h200") -> NDArray[np.unsignedinteger]:
    """Return the recorded results of a 16-bit form for all 65,536 codes: results("ex2_approx_f16")[0] is 0x3c00. In a
    form of pairs, code i is in the lower half and i ^ 0x5a35 in the upper half."""
    return recordings(STEM, device)[form].arrays["results"]


_OF_THE_HASH = ((0, 0x7FFFFF), (23, 0x7FFFFF), (48, 15))
_MANTISSAS = np.array([0, 0x7FFFFF, 1, 0x400000], np.uint32)
_CHUNKS_OF_PAIRS = 4
"""Chunks of one pair of exponents: their digests were added with weights before they were recorded."""


def replayed_pairs(divisions: Sequence[Callable[..., NDArray[np.uint32]]], group: int, at_once: int = 1) -> list[int]:
    """Return the word of 16 pairs of exponents by each of some divisions, `at_once` chunks at a time."""
    count = CHUNKS_OF_A_GROUP * _CHUNKS_OF_PAIRS
    digests: list[list[NDArray[np.uint64]]] = [[] for _ in divisions]
    for first in range(group * count, (group + 1) * count, at_once):
        operands = pairs(range(first, first + at_once))
        for kept, division in zip(digests, divisions, strict=True):
            kept.append(digest(division(*operands)))
    return [int(folded_pairs(np.concatenate(kept))[0]) for kept in digests]


def folded_pairs(digests: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return one word for every 64 digests of pairs: four of one pair of exponents first, then 16 pairs of
    exponents."""
    weighted = digests.reshape(-1, _CHUNKS_OF_PAIRS) * weights()[:_CHUNKS_OF_PAIRS]
    return folded(weighted.sum(axis=1, dtype=np.uint64))


def replayed(
    function: Callable[[NDArray[np.uint32]], NDArray[np.unsignedinteger]], group: int, at_once: int = 1
) -> int:
    """Return the word of a group by a function on float32 patterns, `at_once` of its 16 chunks at a time."""
    chunks = range(group * CHUNKS_OF_A_GROUP, (group + 1) * CHUNKS_OF_A_GROUP)
    digests = [digest(function(patterns(chunks[at : at + at_once]))) for at in range(0, len(chunks), at_once)]
    return int(folded(np.concatenate(digests))[0])


_SINGLES = (*range(0x3F8, 0x408), 0x000, 0x7F8, 0xBF8)
_DOUBLES = (0x3FF, 0x400, 0x000, 0x7FF, 0xBFF)
_PAIRS_OF_ONE = 127 * 16 + 7


def differing_words(opcode: str, device: str = "h200") -> tuple[int, int, int]:
    """Return the number of results compared one by one, of results behind digests, and of differences of a function.

    16-bit functions: every result. f32: all mantissas of [1, 4), the subnormals, NaN and -1, 19 groups of 2^20 inputs.
    f64: the upper halves of these, 5 groups. Division: the 2^22 pairs around 1. (0, 0, 0) where the opcode was not
    recorded.
    """
    form = opcode.replace(".", "_")
    arrays = shelf(STEM, device).rows.get(form, {"arrays": ()})["arrays"]
    if "results" in arrays:
        return 1 << 16, 0, _differing_results(opcode, results(form, device))
    if "groups" not in arrays:
        return 0, 0, 0
    words = recorded(form, device)
    of_singles = partial(_clause, opcode, 32)
    if opcode.startswith("div."):
        return 0, 4 << 20, int(replayed_pairs([of_singles], _PAIRS_OF_ONE)[0] != words[_PAIRS_OF_ONE])
    is_double = opcode.endswith(".f64")
    function = (lambda x: _clause(opcode, 64, doubles(x, lower=True).view(np.uint64))) if is_double else of_singles
    groups = _DOUBLES if is_double else _SINGLES
    wrong = sum(replayed(function, group) != words[group] for group in groups)
    return 0, len(groups) << 20, int(wrong)


def _differing_results(opcode: str, wanted: NDArray[np.unsignedinteger]) -> int:
    """Return the number of differing results over all 65,536 codes; pairs as in `results`."""
    codes = np.arange(1 << 16, dtype=np.uint16)
    if opcode.endswith("x2"):
        upper = (codes ^ np.uint16(0x5A35)).astype(np.uint32) << np.uint32(16)
        return int(np.count_nonzero(_clause(opcode, 32, upper | codes) != wanted))
    return int(np.count_nonzero(_clause(opcode, 16, codes) != wanted))


def _clause(opcode: str, bits: int, *operands: NDArray[np.unsignedinteger]) -> NDArray[Any]:
    """Return an instruction implementation's results, in the shape of its operands."""
    found = clause_words(opcode, bits, *(words.reshape(-1) for words in operands))
    assert found is not None  # arithmetic on numbers needs no machine
    return np.asarray(found.astype(f"u{bits // 8}").reshape(operands[0].shape))
