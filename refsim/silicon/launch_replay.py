"""What the instructions of a launch returned on silicon, replayed: the witness that neither a clause nor an oracle can deceive.

A kernel and its oracle both multiply by `numerics.mma` and both round by `conversions`: where the model is wrong they agree on
what is wrong. A recording does not. Of every instruction that ran a fixed part of its recording is replayed: stored words one
by one, others by digests of 65,536 or more. What was recorded of Hopper's tensor cores says nothing of another chip's;
arithmetic on single numbers is one clause for all targets.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache

from refsim.errors import RefsimError
from refsim.ptx.isa import load_families
from refsim.ptx.isa.forms import find
from refsim.silicon import conversion_replay, copy_arithmetic, scalar_replay, special_functions, tensor_witness
from refsim.silicon.copy_arithmetic import COPY_FORMS, code_of
from refsim.silicon.vectors import Recording, recorded_devices, shelf
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


@dataclass
class Replays:
    """Replays instructions, each once: what a kernel was held to need not be computed for the next."""

    known: dict[tuple[str, str], tuple[Replay, ...]] = field(default_factory=dict)

    def of(self, opcodes: Iterable[str], target: str) -> SiliconWitness:
        """What the instructions of launches on a target are held to.

        Opcodes that compute no numbers (moves, loads, barriers) are passed over. Recordings that are damaged are RefsimError
        bad-sidecar; where none are installed the witness says so.
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
    """The replays of this process, for those who ask again and again: the model does not change while it runs."""
    return Replays()


def afresh() -> None:
    """Whoever asks `shared` from now on has everything replayed anew: a command of the program begins so."""
    shared.cache_clear()


def replayed(opcode: str, target: str) -> Iterator[Replay]:
    """What one instruction is held to, for each chip that was recorded; nothing where it computes no numbers."""
    mnemonic = opcode.partition(".")[0]
    if mnemonic in ("mma", "wgmma", "wmma", "tcgen05"):
        for name, compared in tensor_witness.compared(opcode, target):
            yield Replay(TENSOR_CORE, name, target, **compared)
    elif opcode.startswith("cp.reduce.async.bulk"):
        yield from _copied(opcode, target)
    else:
        yield from _computed(opcode, target)


def _computed(opcode: str, target: str) -> Iterator[Replay]:
    """Conversions, special functions and arithmetic on single numbers."""
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
"""Words compared one by one, words behind digests, and what differs of both."""


def _added(*counts: _Counts) -> _Counts:
    stored, digested, differing = (sum(each[place] for each in counts) for place in range(3))
    return stored, digested, differing


def _conversion(row: Recording) -> tuple[int, int, int]:
    return conversion_replay.differing_words(row)


def _scalar(row: Recording) -> tuple[int, int, int]:
    """The stored rows, and a chunk of digests where that takes no machine."""
    stored, wrong = scalar_replay.differing_rows(row)
    chunks = range(1) if scalar_replay.is_pure(row) else range(0)
    digested, also = scalar_replay.differing_chunks(row, chunks)
    return stored, digested, wrong + also


_COMPARISONS: tuple[tuple[str, Callable[[Recording], _Counts]], ...] = (
    ("conversions", _conversion),
    ("scalar", _scalar),
)


def _functions(opcode: str) -> Iterator[tuple[str, _Counts]]:
    """A function of the special-function unit: groups of 2^20 of its inputs, or every result of 16 bits."""
    for device in recorded_devices(special_functions.STEM):
        counts = special_functions.differing_words(opcode, device)
        if any(counts):
            yield shelf(special_functions.STEM, device).chips, counts


def _copied(opcode: str, target: str) -> Iterator[Replay]:
    """Runs of one type by their opcode; of boxes the map has the type, so that all of an operation are replayed."""
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
                with open_device("sim", RECORDED_TARGET).launcher(code_of(form)) as launcher:
                    got, want = form.run(launcher), rows[form.name].arrays["words"]
                total, wrong = total + want.size, wrong + int((got != want).sum())
        if total:
            yield Replay(COPY_ENGINE, opcode, target, opened.chips, total, 0, wrong)
            return
    yield Replay(COPY_ENGINE, opcode, target)


def _recorded_as(opcode: str, stem: str, device: str) -> tuple[str, ...]:
    """The recordings of an instruction under any of its spellings."""
    index = _index(stem, device)
    return next((index[spelling] for spelling in _spellings(opcode) if spelling in index), ())


def _spellings(opcode: str) -> Iterator[str]:
    """An opcode as recordings may have it: with its default rounding, atomics without order and scope."""
    yield opcode
    yield conversion_replay.other_spelling(opcode)
    first, *rest = opcode.split(".")
    yield ".".join([first, "rn", *rest])
    if first in ("atom", "red"):
        space = [] if {"global", "shared"} & set(rest) else ["global"]
        yield ".".join(["atom", *space, *(word for word in rest if word.partition("::")[0] not in _ORDERS)])


@lru_cache(maxsize=8)
def _index(stem: str, device: str) -> dict[str, tuple[str, ...]]:
    """The recordings that hold an instruction: by its opcode, or by those of the few that a form consists of."""
    found: dict[str, tuple[str, ...]] = {}
    for name in shelf(stem, device).rows:
        if stem == "scalar" and (scalar_replay.open_reason(name) or name.startswith(("ld.", "st."))):
            continue
        for opcode in name.replace(",", " ").split():
            if "." in opcode:
                found[opcode] = (*found.get(opcode, ()), name)
    alone: dict[str, tuple[str, ...]] = {opcode: (opcode,) for opcode in found if opcode in found[opcode]}
    return found | alone
