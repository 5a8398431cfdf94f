"""A verdict with its kernel and the source lines that the finding names."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from refsim.render import Excerpt
from refsim.testing.verdicts import HELD_TO

if TYPE_CHECKING:
    from refsim.kernels import Kernel
    from refsim.testing import Verdict


@dataclass(frozen=True)
class Judged:
    """A verdict with its kernel, None for a file that declares none, and the source lines that the finding names."""

    kernel: "Kernel | None"
    verdict: "Verdict"
    excerpts: tuple[Excerpt, ...] = field(default=())

    @property
    def was_run(self) -> bool:
        """Return whether the kernel was run."""
        return self.verdict.status != "not-run"

    @property
    def is_told(self) -> bool:
        """Return whether the verdict has more to say than its line in the table: a finding, a waiver or a note."""
        return not self.verdict or bool(self.verdict.notes or self.verdict.waived)

    @property
    def place(self) -> tuple[str, int | None] | None:
        """Return (file, line) of the error, else of the first excerpt that comes from a file."""
        if self.verdict.error is not None and self.verdict.error.place is not None:
            return self.verdict.error.place
        return next(((str(each.file), each.file_line) for each in self.excerpts if each.file is not None), None)

    @property
    def code(self) -> str:
        """Return the label of the kernel's code."""
        return self.kernel.code.label if self.kernel is not None else ""

    @property
    def headline(self) -> str:
        """Return the first line of the finding."""
        return next(iter(self.verdict.finding.splitlines()), "")

    def lines(self) -> list[str]:
        """Return the lines of the verdict without its independent checks, with the excerpts after the finding."""
        lines = [line for line in self.verdict.lines() if not line.startswith(HELD_TO)]
        behind = 1 + len(self.verdict.finding.splitlines())
        return [*lines[:behind], *(line for excerpt in self.excerpts for line in excerpt.lines()), *lines[behind:]]


def judged(kernel: "Kernel | None", verdict: "Verdict") -> Judged:
    """Return a verdict with its kernel. The source is read now, before anybody edits it."""
    from refsim.testing.excerpts import excerpts, place_of

    if kernel is None:
        return Judged(kernel, verdict)
    if verdict.error is not None:
        verdict.error.place = place_of(verdict.error, kernel)
    return Judged(kernel, verdict, excerpts(verdict, kernel) if verdict.finding else ())
