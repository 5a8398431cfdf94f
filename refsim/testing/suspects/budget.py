"""The work that a search for a cause may do, counted alike on every machine."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from refsim.ptx import Program
from refsim.ptx.text.source_names import entry_named
from refsim.testing.suspects.suspicion import OutOfTimeError

RUN, STATEMENT, INSTRUCTION = 3e-3, 1e-5, 1e-8
"""Seconds of a run, and for each statement of PTX and each thread's instruction, on the machine that was measured."""
OFMATRICES = 5.0
"""A launch with products of matrices takes this many times as long."""
STATEMENT_SECONDS = 8e-5
"""Seconds for each statement of an edited text that is read."""
LINE_SECONDS = 1e-5
"""Seconds for each line of a text that is made ready for edits."""
MATRICES = re.compile(r"(wg|tcgen05\.|)mma\b|ldmatrix\b")


@dataclass
class Budget:
    """Work in seconds of one machine: `limit` may be done, `done` is done.

    A part of the budget `whole` also ends with it; work that is counted in the whole counts in the part, too.
    """

    limit: float
    whole: "Budget | None" = field(default=None, repr=False)
    done: float = 0.0

    def spend(self, seconds: float) -> None:
        """Count work."""
        if self.whole is not None:
            self.whole.spend(seconds)
        else:
            self.done += seconds

    @property
    def left(self) -> float:
        """Return what may still be done."""
        if self.whole is None:
            return max(0.0, self.limit - self.done)
        return max(0.0, self.whole.left - self.done)

    def part(self, part: float) -> "Budget":
        """Return a budget of a part of what is left; the rest of it is what the whole keeps."""
        return Budget(self.left * part, self, self.left * (1 - part))

    def check(self, tried: int = 0) -> None:
        """Raise OutOfTimeError if nothing is left."""
        if self.left <= 0:
            raise OutOfTimeError(tried)


@dataclass
class CountedDevice:
    """A device whose launches are counted in `budget`; everything else is that of `inner`."""

    inner: Any
    budget: Budget

    @contextmanager
    def launcher(self, code: Any, **options: Any) -> Iterator[Any]:
        """Yield the device's launcher."""
        with self.inner.launcher(code, **options) as launcher:
            try:
                yield launcher
            finally:
                self.budget.spend(spent_by(launcher))

    def probing(self) -> "CountedDevice":
        """Return the device with one schedule."""
        return CountedDevice(self.inner.probing(), self.budget)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def spent_by(launcher: Any) -> float:
    """Return the work of a launcher's launches; launches on hardware count as runs alone."""
    traces = getattr(launcher, "traces", ())
    return RUN + sum(_of_launch(launcher.program, trace) for trace in traces)


def _of_launch(program: Program, trace: Any) -> float:
    factor = OFMATRICES if any(map(MATRICES.match, trace.opcodes)) else 1.0
    return float(factor * (STATEMENT * statements(program, [trace.entry]) + INSTRUCTION * trace.instructions))


def statements(program: Program, entries: Any) -> int:
    """Return the number of statements of some entries."""
    names = (entry_named(entry, program.entries, program.text) for entry in entries)
    return sum(len(program.module.functions[name].statements) for name in names)
