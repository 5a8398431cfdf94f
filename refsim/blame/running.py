"""One run of a subject's PTX on the simulator, or of its machine code on a GPU: what it wrote, or what ended it."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from refsim.blame.subjects import BlameSubject
from refsim.device.sim import SimDevice
from refsim.errors import Kind, RefsimError
from refsim.kernels import Buffer, Launcher

Words = Mapping[str, NDArray[Any]]
FILL = bytes.fromhex("c3a55a3c")
"""What every output begins with, here and there: what a kernel does not write is then the same on both sides."""


class Silicon(Protocol):
    """What runs machine code: `refsim.device.open("cuda")` is one."""

    @property
    def target(self) -> str: ...

    def describe(self) -> dict[str, str]: ...

    def loaded_cubin(self, cubin: bytes, text: str, source: str) -> AbstractContextManager[Launcher]:
        """Memory and the entries of a cubin; `text` is the PTX that it is taken for."""


@dataclass(frozen=True)
class RunWords:
    """What one run wrote, as unsigned words of each output; None with the `fault` that ended it."""

    words: Words | None
    fault: RefsimError | None = None
    open_bits: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def agrees(self, other: "RunWords") -> bool:
        """The same words, or the same kind of fault."""
        if self.words is None or other.words is None:
            return self.fault is not None and other.fault is not None and self.fault.code == other.fault.code
        mine, theirs = self.words, other.words
        return mine.keys() == theirs.keys() and all(np.array_equal(mine[name], theirs[name]) for name in mine)

    def first_difference(self, other: "RunWords") -> str:
        """`y[3]: 0x40400000, and 0x3f800000` of the other, with how many differ; a fault in its own words."""
        if self.words is None or other.words is None:
            fault = self.fault or other.fault
            return "" if fault is None else f"[{fault.code}] {fault.what}"
        for name, mine in self.words.items():
            theirs = other.words.get(name)
            if theirs is None or theirs.shape != mine.shape:
                return f"{name} has another shape"
            different = np.flatnonzero(mine.ravel() != theirs.ravel())
            if different.size:
                at, digits = int(different[0]), 2 * mine.itemsize
                place = np.unravel_index(at, mine.shape)
                got, want = (int(array.ravel()[at]) for array in (mine, theirs))
                spot = ", ".join(str(int(each)) for each in place)
                return f"{name}[{spot}]: 0x{got:0{digits}x}, model 0x{want:0{digits}x}; {different.size} of {mine.size} differ"
        return ""


def simulated(subject: BlameSubject, text: str, problem: Any, seconds: float = 600.0) -> RunWords:
    """The PTX under the simulator's schedules; its faults and findings are part of the answer, other errors are raised."""
    with SimDevice(subject.target).loaded(text, subject.name) as launcher:
        launcher.seconds = seconds
        try:
            words = subject.words(problem, subject.run(_filled(launcher), problem))
        except RefsimError as error:
            if error.kind is not Kind.FAULT:
                raise
            return RunWords(None, error)
        found = launcher.findings()
        return RunWords(words, None, (*found.inexact, *found.assumed), found.notes)


def measured(
    silicon: Silicon, subject: BlameSubject, cubin: bytes, text: str, problem: Any, repeats: int
) -> Sequence[RunWords]:
    """`repeats` runs of the machine code, each over a module loaded anew; a fault ends them."""
    runs: list[RunWords] = []
    for _ in range(repeats):
        try:
            with silicon.loaded_cubin(cubin, text, subject.name) as launcher:
                runs.append(RunWords(subject.words(problem, subject.run(_filled(launcher), problem))))
        except RefsimError as error:
            if error.kind is Kind.MISSING:
                raise
            return [*runs, RunWords(None, error)]
    return runs


def _filled(launcher: Launcher) -> Launcher:
    """The launcher with outputs that hold FILL in place of poison, which differs from device to device."""

    def output(count: int, dtype: Any, *, name: str, misalign_bytes: int = 0) -> Buffer:
        element = np.dtype(dtype)
        fill = np.resize(np.frombuffer(FILL, np.uint8), int(count) * element.itemsize).view(element)
        return launcher.upload(fill, name=name, misalign_bytes=misalign_bytes, writable=True)

    launcher.output = output  # type: ignore[method-assign]
    return launcher
