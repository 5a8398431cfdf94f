"""Replay of recorded conversions by the simulated GPU's instruction implementations."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import CONVERSIONS
from refsim.formats import Format
from refsim.silicon.scalar_replay import clause_words
from refsim.silicon.vectors import CHUNK, PARTNER, PARTNER_F16, Recording, chunk_patterns, digest

Words = NDArray[np.unsignedinteger]
PAIRS = ("F32_PAIR_TO_16", "F32_PAIR_TO_32")
_MAGNITUDES = (0x0000, 0x0001, 0x0040, 0x007F, 0x0080, 0x3F7F, 0x3F80, 0x4B00, 0x4F00, 0x5F00, 0x7F7F, 0x7F80, 0x7FC1)


def other_spelling(opcode: str) -> str:
    """Return the opcode with .relu and .satfinite exchanged: PTX 9.0 orders them differently for FP8 and f16."""
    swapped = opcode.replace(".relu.satfinite", ".satfinite.relu")
    return swapped if swapped != opcode else opcode.replace(".satfinite.relu", ".relu.satfinite")


def spelled(name: str) -> str | None:
    """Return the model's name of a recorded conversion, or None where the model has none."""
    return next((each for each in (name, other_spelling(name)) if each in CONVERSIONS), None)


def interesting_chunks(name: str, *, is_pair: bool) -> list[int]:
    """Return the chunks of the float32 inputs near a conversion's ties and limits, and a few others. For a pair the
    second operand's chunk is the first's ^ PARTNER: every chunk is visited from both sides."""
    magnitudes = list(_MAGNITUDES)
    row = CONVERSIONS.get(spelled(name) or "")
    if row is not None and row.to.bits <= 16:
        magnitudes += [upper_half(value) + step for value in _turns(row.to) for step in (-1, 0)]
    both_signs = [chunk | sign for chunk in magnitudes for sign in (0, 0x8000)]
    partners = [chunk ^ PARTNER >> 16 for chunk in both_signs] if is_pair else []
    return sorted({*both_signs, *partners, *_drawn()})


def _turns(format: Format) -> list[float]:
    """Return the inputs where a conversion to a format changes: ties, the least normal, the largest number,
    overflow."""
    if format.bits > 16:
        return []
    smallest, largest = float(format.min_normal), float(format.max_value)
    above = largest + (largest - format.magnitude_value((format.max_code >> format.padding_bits) - 1)) / 2
    values = [format.quantum / 2, format.quantum * 1.5, smallest, largest, above, 1.0625, 1.1875]
    return [value for value in values if 2.0**-149 < value < 2.0**128]


@cache
def _drawn() -> tuple[int, ...]:
    return tuple(np.random.default_rng(9).integers(0, CHUNK, 4).tolist())


def upper_half(value: float) -> int:
    """Return the chunk that holds a positive value: 0x3f80 for 1."""
    return max(int(np.float32(value).view(np.uint32)) >> 16, 1)


def chunk_operands(kind: str, chunk: int) -> tuple[Words, ...]:
    """Return the recorded operands of one chunk."""
    patterns = chunk_patterns(chunk)
    return (patterns, patterns ^ np.uint32(PARTNER)) if kind in PAIRS else (patterns,)


def table_operands(kind: str) -> Words:
    """Return all 65,536 inputs of a recorded table: f16 or bf16 patterns, or FP8 pairs. An f16x2 has pattern ^
    PARTNER_F16 in its upper half."""
    halves = np.arange(CHUNK, dtype=np.uint32)
    if kind == "F16_PAIR_TO_16":
        return halves | (halves ^ np.uint32(PARTNER_F16)) << np.uint32(16)
    return halves.astype(np.uint16)


def telling_chunks(name: str, *, is_pair: bool) -> list[int]:
    """Return a few chunks: with ties, with the limits of the format, with NaN. There are 24 for a conversion to 8 bits,
    else 12."""
    row = CONVERSIONS.get(spelled(name) or "")
    first = [] if row is None else [upper_half(value) for value in _turns(row.to)]
    rest = [each for each in interesting_chunks(name, is_pair=is_pair) if each not in first]
    count = (24 if row is not None and row.to.bits <= 8 else 12) - len(first)
    return sorted({*first, *rest[:: max(1, len(rest) // count)], 0x7F80})


def differing_words(recording: Recording) -> tuple[int, int, int]:
    """Return the number of results compared one by one, of results behind digests, and of differences. A difference is
    a result, or the digest of a chunk, that the instruction implementation does not give."""
    kind, name = recording.facts["kind"], recording.name
    bits = int(kind.rsplit("_", maxsplit=1)[1])
    if "results" in recording.arrays:
        want = recording.arrays["results"]
        return want.size, 0, int(np.count_nonzero(clause_words(name, bits, table_operands(kind)) != want))
    wanted, chunks = recording.arrays["digests"], telling_chunks(name, is_pair=kind in PAIRS)
    results = ((chunk, clause_words(name, bits, *chunk_operands(kind, chunk))) for chunk in chunks)
    wrong = sum(words is None or int(digest(words)) != wanted[chunk] for chunk, words in results)
    return 0, CHUNK * len(chunks), int(wrong)
