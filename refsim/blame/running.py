"""Run a subject's PTX on the simulator, or its machine code on a GPU: return what it wrote, or the fault."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from refsim.blame.subjects import BlameSubject
from refsim.device.sim import SimDevice, SimLauncher
from refsim.errors import Kind, RefsimError
from refsim.kernels import Buffer, Launcher

FILL = bytes.fromhex("c3a55a3c")
"""Initial bytes of every output on both sides, so that elements which no thread writes are equal."""
_ORDERED = re.compile(r"\b(atom|red|multimem|cp\.reduce)\b[\w.:]*\.(f16|bf16|f32|f64)")
"""Float sums whose order is unspecified: their results may differ from run to run."""
Words = Mapping[str, NDArray[Any]]


class Silicon(Protocol):
    """A device that runs machine code, such as `refsim.device.open("cuda")`."""

    @property
    def target(self) -> str: ...

    def describe(self) -> dict[str, str]: ...

    def loaded_cubin(self, cubin: bytes, text: str, source: str) -> AbstractContextManager[Launcher]:
        """Load a cubin and return its launcher; `text` is the PTX that the cubin was made of."""


@dataclass(frozen=True)
class RunWords:
    """The outputs of one run as unsigned integers; None with the `fault` that ended it.

    For runs on the simulator: `entries` were launched, `open_bits` names statements whose results have unspecified
    bits, `open_words` masks the elements that depend on them, None where any element may.
    """

    words: Words | None
    fault: RefsimError | None = None
    open_bits: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    open_words: Mapping[str, NDArray[np.bool_]] | None = None
    entries: frozenset[str] = frozenset()

    def agrees(self, other: "RunWords") -> bool:
        """Return whether two runs wrote equal outputs, or ended with one kind of fault."""
        if self.words is None or other.words is None:
            return self.fault is not None and other.fault is not None and self.fault.code == other.fault.code
        mine, theirs = self.words, other.words
        return mine.keys() == theirs.keys() and all(np.array_equal(mine[name], theirs[name]) for name in mine)

    def excuses(self, one: "RunWords", other: "RunWords") -> bool:
        """Return whether two runs differ only in elements that depend on unspecified bits of this simulated run."""
        if not self.open_bits or self.open_words is None:
            return bool(self.open_bits)
        if one.words is None or other.words is None:
            return False
        return one.words.keys() == other.words.keys() == self.open_words.keys() and all(
            one.words[name].shape == other.words[name].shape == where.shape
            and not (one.words[name] != other.words[name])[~where].any()
            for name, where in self.open_words.items()
        )

    @property
    def depends_on_order(self) -> bool:
        """Return whether unspecified bits come from sums that a GPU may add in any order."""
        return any(_ORDERED.search(text) for text in self.open_bits)

    def first_difference(self, other: "RunWords", without: Mapping[str, NDArray[np.bool_]] | None = None) -> str:
        """Return the first difference as text: `y[3]: 0x40400000, model 0x3f800000; 2 of 8 differ`.

        A fault gives its code and message, equal runs give "". `without` masks elements that are skipped.
        """
        if self.words is None or other.words is None:
            fault = self.fault or other.fault
            return "" if fault is None else f"[{fault.code}] {fault.what}"
        for name, mine in self.words.items():
            theirs = other.words.get(name)
            if theirs is None or theirs.shape != mine.shape:
                return f"{name} has another shape"
            unlike = mine != theirs if without is None else (mine != theirs) & ~without[name]
            different = np.flatnonzero(unlike)
            if different.size:
                at, digits = int(different[0]), 2 * mine.itemsize
                place = np.unravel_index(at, mine.shape)
                got, want = (int(array.ravel()[at]) for array in (mine, theirs))
                spot = ", ".join(str(int(each)) for each in place)
                return f"{name}[{spot}]: 0x{got:0{digits}x}, model 0x{want:0{digits}x}; {different.size} of {mine.size} differ"
        return ""


def simulated(subject: BlameSubject, text: str, problem: Any, seconds: float = 600.0) -> RunWords:
    """Return the run under the simulator's schedules, with its faults and findings; raise other errors."""

    def run(launcher: Launcher) -> Words:
        return subject.words(problem, subject.run(_filled(launcher), problem))

    with SimDevice(subject.target).loaded(text, subject.name, follow_open=True) as launcher:
        launcher.seconds = seconds
        noted = ReadNote(launcher)
        try:
            words = run(launcher)
        except RefsimError as error:
            if error.kind is not Kind.FAULT:
                raise
            return RunWords(None, error)
        found = launcher.findings()
        open_bits = (*found.inexact, *found.assumed)
        open_words = noted.open_words(run, words) if open_bits else None
        entries = frozenset(trace.entry for trace in launcher.traces)
        return RunWords(words, None, open_bits, found.notes, open_words, entries)


def measured(
    silicon: Silicon, subject: BlameSubject, cubin: bytes, text: str, problem: Any, repeats: int
) -> Sequence[RunWords]:
    """Return `repeats` runs of the machine code, each on a newly loaded module; a fault ends the series.

    Raises the driver's error where it refuses to load or to launch, such as too many registers for the block.
    """
    runs: list[RunWords] = []
    for _ in range(repeats):
        try:
            with silicon.loaded_cubin(cubin, text, subject.name) as launcher:
                runs.append(RunWords(subject.words(problem, subject.run(_filled(launcher), problem))))
        except RefsimError as error:
            if error.kind is not Kind.FAULT:
                raise
            return [*runs, RunWords(None, error)]
    return runs


def _filled(launcher: Launcher) -> Launcher:
    """Return the launcher with outputs that hold FILL, since poison differs from device to device."""

    def output(count: int, dtype: Any, *, name: str, misalign_bytes: int = 0) -> Buffer:
        element = np.dtype(dtype)
        fill = np.resize(np.frombuffer(FILL, np.uint8), int(count) * element.itemsize).view(element)
        return launcher.upload(fill, name=name, misalign_bytes=misalign_bytes, writable=True)

    launcher.output = output  # type: ignore[method-assign]
    return launcher


@dataclass
class ReadNote:
    """Every read that the host made of a simulated launcher, in order, with a mask of its unspecified bits.

    The mask is None where the launcher does not know it. The note replaces the launcher's `read`.
    """

    launcher: SimLauncher
    reads: list[tuple[NDArray[Any], NDArray[np.uint8] | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.read = self.launcher.read
        self.launcher.read = self.noted  # type: ignore[method-assign]

    def noted(self, buffer: Buffer) -> NDArray[Any]:
        """Read a buffer as `SimLauncher.read` does, and remember the values and their mask."""
        values = self.read(buffer)
        self.reads.append((values.copy(), self.launcher.open_bits(buffer)))
        return values

    def open_words(self, run: Callable[[Launcher], Words], words: Words) -> dict[str, NDArray[np.bool_]] | None:
        """Return for each output a mask of the elements that depend on unspecified bits; None where unknown.

        `run` is the function that gave `words` before. It runs again on reads whose unspecified bits are all inverted;
        an element that changes depends on them.
        """
        masks = [mask for _, mask in self.reads if mask is not None]
        if len(masks) < len(self.reads):
            return None
        if not any(mask.any() for mask in masks):
            return {name: np.zeros(each.shape, np.bool_) for name, each in words.items()}
        turned = (
            (values.view(np.uint8) ^ mask).view(values.dtype)
            for values, mask in ((values, mask) for values, mask in self.reads if mask is not None)
        )
        try:
            other = run(_Replay(self.launcher.target, iter(self.launcher.buffers), turned))
        except (RefsimError, StopIteration):
            return None  # the host branches on what it reads, so anything may depend on it
        if other.keys() != words.keys() or any(other[name].shape != each.shape for name, each in words.items()):
            return None
        return {name: np.asarray(other[name] != each) for name, each in words.items()}


@dataclass
class _Replay:
    """A launcher that executes nothing: it returns the buffers of an earlier run, and the values given as `reads`."""

    target: str
    buffers: Iterator[Buffer]
    reads: Iterator[NDArray[Any]]

    def upload(self, array: NDArray[Any], **how: Any) -> Buffer:
        return next(self.buffers)

    def output(self, count: int, dtype: Any, **how: Any) -> Buffer:
        return next(self.buffers)

    def launch(self, *given: Any, **how: Any) -> None:
        pass

    def read(self, buffer: Buffer) -> NDArray[Any]:
        return next(self.reads)

    def __getattr__(self, name: str) -> Any:
        raise RefsimError("unsupported-feature", f"a host function asks for {name}")
