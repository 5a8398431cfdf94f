"""The model's results of recorded conversions: operands as recorded, results, and digests of whole input spaces.

All 65,536 chunks of an instruction are 4,294,967,296 results. One process for each available processor computes a
share: `refsim bringup --exhaustive` does so while no kernel runs.
"""

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import CONVERSIONS, Conversion, convert, decode, encode
from refsim.formats import format_named
from refsim.numerics.fast.threads import cores
from refsim.ptx.isa.binding import bind, evaluate
from refsim.silicon.vectors import CHUNK, PARTNER, PARTNER_F16, Recording, chunk_patterns, digest, recordings

PAIRS = ("F32_PAIR_TO_16", "F32_PAIR_TO_32")
ALONE = 256
"""The number of chunks that one process computes before other processes have started."""
_BAND = 512
Words = NDArray[np.unsignedinteger[Any]]


def operands(row: Recording, chunk: int) -> tuple[Words, ...]:
    """Return the recorded operands of one chunk, or of the whole table."""
    match row.facts["kind"]:
        case "F16_PAIR_TO_16":
            halves = np.arange(CHUNK, dtype=np.uint32)
            return (halves | (halves ^ np.uint32(PARTNER_F16)) << np.uint32(16),)
        case "FP8_PAIR_TO_32" | "HEADER_TABLE":
            return (np.arange(CHUNK, dtype=np.uint16),)
        case kind:
            patterns = chunk_patterns(chunk)
            return (patterns, patterns ^ np.uint32(PARTNER)) if kind in PAIRS else (patterns,)


def conversion_of(row: Recording) -> Conversion | None:
    """Return the conversion of `refsim.conversions`; None for decoding and for other instructions."""
    # PTX 9.0 wants .relu and .satfinite in one order for FP8 and in the other for f16.
    return CONVERSIONS.get(row.name) or CONVERSIONS.get(row.name.replace(".relu.satfinite", ".satfinite.relu"))


def expected(row: Recording, chunk: int) -> Words:
    """Return the model's results of one chunk: by refsim.conversions, a decoder, or the instruction implementation."""
    inputs = operands(row, chunk)
    known = conversion_of(row)
    if known is not None:
        return np.asarray(convert(known.name, *inputs))
    if row.facts["kind"] == "HEADER_TABLE":
        _, _, source, target = row.name.split(".")
        codes = inputs[0] % format_named(source).code_limit  # bits above a code are not read
        return np.asarray(encode(decode(codes.astype(format_named(source).code_dtype), source), target))
    type = bind(row.name, operands=1 + len(inputs)).results[0][1]
    bits = evaluate(row.name, *inputs)[0]
    register = np.dtype(f"u{result_bits(row) // 8}")  # wider than s8, whose sign it repeats
    return bits.view(bits.dtype.str.replace("u", "i")).astype(register) if type.is_signed else bits.astype(register)


def result_bits(row: Recording) -> int:
    """Return the width of the register that an instruction writes: 16, 32 or 64."""
    return int(row.facts["kind"].rsplit("_", maxsplit=1)[1])


def is_of_8_bits(row: Recording) -> bool:
    """Return whether the results are codes of 8 bits: FP8 and E8M0."""
    known = conversion_of(row)
    return known is not None and known.to.bits == 8


def model_digests(row: Recording, chunks: Sequence[int]) -> NDArray[np.uint64]:
    """Return the digest of each chunk; many chunks are shared among all processors."""
    if len(chunks) <= ALONE or cores() == 1:
        return np.array([digest(expected(row, chunk)) for chunk in chunks], np.uint64)
    bands = [chunks[first : first + _BAND] for first in range(0, len(chunks), _BAND)]
    return np.concatenate(list(_others().map(_digests_by_name, [row.name] * len(bands), bands)))


@cache
def _others() -> ProcessPoolExecutor:
    """Return the pool of other processes, which lives to the end; a process with an open GPU must not be forked."""
    return ProcessPoolExecutor(cores(), multiprocessing.get_context("spawn"))


def _digests_by_name(name: str, chunks: Sequence[int]) -> NDArray[np.uint64]:
    """Return the digests of some chunks of a recording, in another process."""
    row = _recorded()[name]
    return np.array([digest(expected(row, chunk)) for chunk in chunks], np.uint64)


@cache
def _recorded() -> dict[str, Recording]:
    return recordings("conversions")
