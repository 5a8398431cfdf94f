"""Replay of a launch's instructions against recorded hardware: a check that is independent of model and oracle.

A kernel and its oracle both multiply by `numerics.mma` and both round by `conversions`: a wrong model gives both the
wrong result. A recording is independent of the model. For every instruction of a launch a fixed part of its recording
is replayed: stored results one by one, others by digests of 65,536 or more. Recordings of Hopper's tensor cores cover
only Hopper; arithmetic on single numbers has one implementation for all targets.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import CONVERSIONS
from refsim.errors import RefsimError
from refsim.formats import Format
from refsim.ptx.isa import load_families
from refsim.ptx.isa.forms import find
from refsim.silicon import copy_arithmetic, scalar_probe, special_functions, tensor_witness
from refsim.silicon.copy_arithmetic import COPY_FORMS
from refsim.silicon.scalar_probe import clause_words
from refsim.silicon.vectors import (
    CHUNK,
    PARTNER,
    PARTNER_F16,
    Recording,
    chunk_patterns,
    digest,
    recorded_devices,
    shelf,
)
from refsim.silicon.witness import (
    ARITHMETIC,
    CONVERSION,
    COPY_ENGINE,
    FUNCTION,
    RECORDED_TARGET,
    TENSOR_CORE,
    Replay,
    SiliconWitness,
)

_NUMERIC = {"integer", "logic", "real", "half", "convert", "atomic", "async_store"}
_ORDERS = {"relaxed", "acquire", "release", "acq_rel", "cta", "cluster", "gpu", "sys"}
Words = NDArray[np.unsignedinteger]
PAIRS = ("F32_PAIR_TO_16", "F32_PAIR_TO_32")
_MAGNITUDES = (0x0000, 0x0001, 0x0040, 0x007F, 0x0080, 0x3F7F, 0x3F80, 0x4B00, 0x4F00, 0x5F00, 0x7F7F, 0x7F80, 0x7FC1)


@dataclass
class Replays:
    """Replays of instructions, each computed once and then kept in `known`."""

    known: dict[tuple[str, str], tuple[Replay, ...]] = field(default_factory=dict)

    def of(self, opcodes: Iterable[str], target: str) -> SiliconWitness:
        """Return the comparison of a launch's instructions on a target with their recordings.

        Opcodes that compute no numbers (moves, loads, barriers) are skipped. Raises RefsimError `bad-file` for
        damaged recordings; without any recordings the result says so.
        """
        wanted = sorted(opcodes)
        if wanted and not any(map(recorded_devices, ("numerics", "conversions", "scalar"))):
            return SiliconWitness(absent="none is installed here (conformance/vectors): nothing was replayed")
        found: dict[Replay, None] = {}
        for opcode in wanted:
            if (opcode, target) not in self.known:
                self.known[opcode, target] = tuple(replayed(opcode, target))
            found |= dict.fromkeys(self.known[opcode, target])
        return SiliconWitness(tuple(found))


@cache
def shared() -> Replays:
    """Return the replays of this process: the model does not change while it runs."""
    return Replays()


def afresh() -> None:
    """Forget the shared replays, so that later callers of `shared` replay everything again."""
    shared.cache_clear()


def replayed(opcode: str, target: str) -> Iterator[Replay]:
    """Yield the replay of one instruction for each recorded chip; nothing where it computes no numbers."""
    mnemonic = opcode.partition(".")[0]
    if mnemonic in ("mma", "wgmma", "wmma", "tcgen05"):
        for name, compared in tensor_witness.compared(opcode, target):
            yield Replay(TENSOR_CORE, name, target, **compared)
    elif opcode.startswith("cp.reduce.async.bulk"):
        yield from _copied(opcode, target)
    else:
        yield from _computed(opcode, target)


def _computed(opcode: str, target: str) -> Iterator[Replay]:
    """Yield the replays of a conversion, a special function or arithmetic on single numbers."""
    load_families()
    kind = CONVERSION if opcode.startswith("cvt.") else ARITHMETIC
    try:
        clause, _ = find(opcode)
    except RefsimError:
        return
    if clause.inexact:
        kind = FUNCTION
        if not clause.recorded:
            yield Replay(kind, opcode, target, evidence="no bits are known")
            return
    found: dict[str, tuple[int, int, int]] = {}
    for stem, compare in _COMPARISONS:
        for device in recorded_devices(stem):
            names, opened = _recorded_as(opcode, stem, device), shelf(stem, device)
            if names and opened.chips not in found:
                found[opened.chips] = _added(*map(compare, opened.take(names).values()))
    if clause.inexact:
        for chip, counts in _functions(opcode):
            found[chip] = _added(found.get(chip, (0, 0, 0)), counts)
    for chip, (stored, digested, wrong) in found.items():
        yield Replay(kind, opcode, target, chip, stored + digested, digested, wrong)
    family = clause.function.__module__.rpartition(".")[2]
    if not found and family in _NUMERIC and not opcode.endswith((".pred", ".b128")):
        yield Replay(kind, opcode, target)


_Counts = tuple[int, int, int]
"""Results compared one by one, results behind digests, and the differences of both."""


def _added(*counts: _Counts) -> _Counts:
    stored, digested, differing = (sum(each[place] for each in counts) for place in range(3))
    return stored, digested, differing


def _scalar(row: Recording) -> tuple[int, int, int]:
    """Return the counts of the stored results, and of one chunk of digests where no machine is needed."""
    stored, wrong = scalar_probe.differing_rows(row)
    chunks = range(1) if scalar_probe.is_pure(row) else range(0)
    digested, also = scalar_probe.differing_chunks(row, chunks)
    return stored, digested, wrong + also


def _functions(opcode: str) -> Iterator[tuple[str, _Counts]]:
    """Yield chip and counts of a special function: groups of 2^20 of its inputs, or every 16-bit result."""
    for device in recorded_devices(special_functions.STEM):
        counts = special_functions.differing_words(opcode, device)
        if any(counts):
            yield shelf(special_functions.STEM, device).chips, counts


def _copied(opcode: str, target: str) -> Iterator[Replay]:
    """Yield the replay of a copy engine's reduction: a run of the opcode's type, or all box forms of its operation."""
    words = opcode.split(".")
    if "tensor" in words:
        names = [form.name for form in COPY_FORMS if form.way == "box" and form.of.partition(" ")[0] in words]
    else:
        names = [form.name for form in COPY_FORMS if form.way == "run" and opcode.endswith(f".{form.of}")]
    from refsim.device import open as open_device  # only here: a launch by the copy engine needs a launcher

    for device in recorded_devices(copy_arithmetic.STEM):
        opened = shelf(copy_arithmetic.STEM, device)
        rows = opened.take(name for name in names if name in opened.rows)
        total = wrong = 0
        for form in COPY_FORMS:
            if form.name in rows:
                with open_device("sim", RECORDED_TARGET).launcher(form.code) as launcher:
                    got, want = form.run(launcher), rows[form.name].arrays["words"]
                total, wrong = total + want.size, wrong + int((got != want).sum())
        if total:
            yield Replay(COPY_ENGINE, opcode, target, opened.chips, total, 0, wrong)
            return
    yield Replay(COPY_ENGINE, opcode, target)


def _recorded_as(opcode: str, stem: str, device: str) -> tuple[str, ...]:
    """Return the names of an instruction's recordings under any of its spellings."""
    index = _index(stem, device)
    return next((index[spelling] for spelling in _spellings(opcode) if spelling in index), ())


def _spellings(opcode: str) -> Iterator[str]:
    """Yield the recorded spellings of an opcode: with its default rounding, atomics without order and scope."""
    yield opcode
    yield other_spelling(opcode)
    first, *rest = opcode.split(".")
    yield ".".join([first, "rn", *rest])
    if first in ("atom", "red"):
        space = [] if {"global", "shared"} & set(rest) else ["global"]
        yield ".".join(["atom", *space, *(word for word in rest if word.partition("::")[0] not in _ORDERS)])


@lru_cache(maxsize=8)
def _index(stem: str, device: str) -> dict[str, tuple[str, ...]]:
    """Return the names of the recordings that contain an opcode; a recording of the opcode alone is preferred."""
    found: dict[str, tuple[str, ...]] = {}
    for name in shelf(stem, device).rows:
        if stem == "scalar" and (scalar_probe.open_reason(name) or name.startswith(("ld.", "st."))):
            continue
        for opcode in name.replace(",", " ").split():
            if "." in opcode:
                found[opcode] = (*found.get(opcode, ()), name)
    alone: dict[str, tuple[str, ...]] = {opcode: (opcode,) for opcode in found if opcode in found[opcode]}
    return found | alone


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


_COMPARISONS: tuple[tuple[str, Callable[[Recording], _Counts]], ...] = (
    ("conversions", differing_words),
    ("scalar", _scalar),
)
