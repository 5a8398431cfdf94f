"""Every barrier and every wait of a kernel taken away in turn: what the simulator's checks and policies make of it.

A kernel needs each bar.sync, each wait and each commit that it has, or it should not have it. One statement at a time is
blanked out of the PTX, and the problems that run it are run again on the simulated GPU, under every policy. A removal is
caught by a fault, or by bits that differ from the oracle.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refsim import ptx
from refsim.device.compile import compile_ptx
from refsim.device.sim import SimLauncher
from refsim.errors import RefsimError
from refsim.kernels import Kernel
from refsim.testing import verdicts
from refsim.testing.runs import examine

ORDERING = re.compile(
    r"(bar|barrier|mbarrier)\.|cp\.async\.(commit_group|wait_group|wait_all|bulk\.(commit|wait)_group)\b"
)
ORDERS = 16  # eager, lazy, and random ones until a warp comes last that has to
NEVER_RUN = "no problem runs it"
NO_DIFFERENCE = "every problem gives the same bits without it, under every policy and with no finding"


@dataclass(frozen=True)
class Removal:
    """One statement taken away: `caught` says whether a run noticed, `finding` what it said or why nothing was seen.

    `line` is that of the PTX, `location` the CUDA source line behind it.
    """

    entry: str
    opcode: str
    line: int
    location: str
    caught: bool
    finding: str
    problem: Any = None

    def __str__(self) -> str:
        verdict = "caught" if self.caught else "missed"
        first, *rest = self.finding.splitlines()
        where = next((line.strip() for line in rest if line.strip().startswith("at:")), "")
        return (
            f"{verdict}  {self.entry}: {self.opcode} of {self.location}, PTX line {self.line}: {first} {where}".rstrip()
        )


@dataclass
class ChangedDevice:
    """A simulated GPU that runs a given PTX text whatever kernel file it is asked for, and notes which entries ran."""

    program: ptx.Program
    schedules: int = ORDERS
    name: str = "sim"
    entries: set[str] = field(default_factory=set)

    @property
    def target(self) -> str:
        return self.program.target

    def describe(self) -> dict[str, str]:
        return {"device": f"simulated GPU ({self.target})", "target": self.target}

    @contextmanager
    def launcher(self, kernel_file: Path | None) -> Iterator[SimLauncher]:
        launcher = SimLauncher(self.program, self.schedules)
        run = launcher.launch

        def noted(entry: str, *arguments: Any, **options: Any) -> None:
            self.entries.add(entry)
            run(entry, *arguments, **options)

        launcher.launch = noted  # type: ignore[method-assign]
        yield launcher


def sweep(
    kernel: Kernel,
    problems: Iterable[Any],
    *,
    target: str = "sm_90a",
    ordering: re.Pattern[str] = ORDERING,
    on_removal: Callable[[Removal], None] | None = None,
) -> tuple[Removal, ...]:
    """Takes each statement whose opcode matches `ordering` away in turn, in every entry that `problems` launch.

    The problems run in the order given until one notices; small ones that fill several tiles should come first. What is
    not caught was never run, or changes nothing: `finding` tells the two apart.
    Raises RefsimError for a kernel without a file, and where the kernel fails a problem as it is.
    """
    if kernel.file is None:
        raise RefsimError("no-kernel-file", f"{kernel.name} has no file whose PTX could be changed")
    text = compile_ptx(kernel.file, target).text
    program = ptx.load(text, target)
    launched = [(problem, _entries(kernel, problem, program)) for problem in problems]
    found = []
    for entry in dict.fromkeys(entry for _, entries in launched for entry in sorted(entries)):
        mine = [problem for problem, entries in launched if entry in entries]
        for statement in program.module.functions[entry].statements:
            if ordering.match(statement.opcode):
                found.append(_removed(kernel, entry, statement, text, target, mine))
                if on_removal is not None:
                    on_removal(found[-1])
    return tuple(found)


def without(text: str, line: int, instead: str = "") -> str:
    """PTX with the one statement of a line (counted from 1) blanked, or another `instead`; other lines keep their numbers."""
    lines = text.split("\n")
    if lines[line - 1].count(";") != 1:
        raise RefsimError("no-single-statement", f"line {line} is {lines[line - 1].strip()!r}")
    lines[line - 1] = instead
    return "\n".join(lines)


def _entries(kernel: Kernel, problem: Any, program: ptx.Program) -> set[str]:
    device = ChangedDevice(program, schedules=2)
    finding, *_ = examine(kernel, problem, device)
    if finding is not None:
        raise RefsimError("kernel-fails", f"{kernel.name} fails before anything is removed: {finding.text}")
    return device.entries


def _removed(kernel: Kernel, entry: str, statement: Any, text: str, target: str, problems: list[Any]) -> Removal:
    where = entry, statement.opcode, statement.line, str(statement.location or "no source line")
    changed = ChangedDevice(ptx.load(without(text, statement.line), target))
    for problem in problems:
        finding, *_ = examine(kernel, problem, changed)
        if finding is not None and finding.status in (verdicts.FAIL, verdicts.TIMEOUT):
            return Removal(*where, True, finding.text, problem)
    trapping = ChangedDevice(ptx.load(without(text, statement.line, "trap;"), target), schedules=1)
    runs = any(examine(kernel, problem, trapping)[0] is not None for problem in problems)
    return Removal(*where, False, NO_DIFFERENCE if runs else NEVER_RUN)
