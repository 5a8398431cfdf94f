"""Examine a kernel without a GPU: races and faults of the PTX, unspecified bits, and the results of an edited PTX."""

from collections.abc import Sequence
from dataclasses import dataclass

from refsim.blame.builds import Build
from refsim.blame.examining import (
    EDITED,
    FAULTS,
    LEFT_OPEN,
    OPEN_WORDS,
    OTHER_WORDS,
    SIMULATED,
    Blame,
    BuildRow,
    Report,
    assembled_row,
    compared_rows,
    faulty,
    launched,
    told,
)
from refsim.blame.running import RunWords, simulated
from refsim.blame.statements import Candidate, pieces_of
from refsim.blame.subjects import BlameSubject
from refsim.device.assembling import Cubin
from refsim.errors import RefsimError


@dataclass(frozen=True)
class OnSimulator:
    """The edited text as the simulator executes it, without machine code."""

    label: str = "simulator"
    level: int | None = None
    is_edited: bool = True
    takes_any_text: bool = True

    def cubin(self, candidate: Candidate, target: str) -> Cubin:
        """Raise RefsimError: the simulator has no machine code."""
        raise RefsimError("needs-a-gpu", "the simulated GPU executes PTX, and not what ptxas makes of it")


def examined_without_gpu(
    subject: BlameSubject, builds: Sequence[Build], *, edited: str | None = None, on_progress: Report | None = None
) -> Blame:
    """Return the simulator's verdict: `race`, `kernel`, `simulated`; for an edited text also `edited` or `open`.

    The builds are assembled, and not run. `because` lists what was examined and which bits are unspecified. Raises
    RefsimError for what the simulator cannot execute. A kernel whose threads race for an element is `race` here as on a
    GPU: exit code 1.
    Source: defined here.
    """
    candidate = pieces_of(subject.text, edited).all
    models = [
        simulated(subject, subject.text, each) for each in told(on_progress, subject, "simulator", subject.problems)
    ]
    if (found := faulty(subject, models, subject.facts, candidate)) is not None:
        return found
    rows = [assembled_row(subject, each, candidate) for each in told(on_progress, subject, "assembling", builds)]
    verdict, because = SIMULATED, [_looked_at(models), *_open(models)]
    if edited is not None:
        problems = told(on_progress, subject, "edited", subject.problems)
        runs = [(simulated(subject, edited, each),) for each in problems]
        row = compared_rows(BuildRow(OnSimulator(), ""), models, runs)
        verdict = EDITED if row.state in (OTHER_WORDS, FAULTS) else LEFT_OPEN if row.state == OPEN_WORDS else SIMULATED
        rows.append(row)
    return Blame(subject, verdict, tuple(rows), tuple(because), subject.facts, candidate, launched(models))


def _looked_at(models: Sequence[RunWords]) -> str:
    """Return a sentence on how much the simulator ran without a race or a fault."""
    words = sum(each.size for model in models for each in (model.words or {}).values())
    return (
        f"the simulator finds no race and no fault: {len(models)} test case{'s' * (len(models) > 1)}, {words} elements"
    )


def _open(models: Sequence[RunWords]) -> list[str]:
    """Return lines on how many elements a GPU may write differently, and after which statements."""
    lines = list(dict.fromkeys(line for model in models for line in model.open_bits))
    if not lines:
        return ["every bit is fixed: on a GPU each build must write these results"]
    counts = [
        None if model.open_words is None else sum(int(each.sum()) for each in model.open_words.values())
        for model in models
        if model.open_bits
    ]
    known = [each for each in counts if each is not None]
    many = (
        "any element may differ on a GPU" if len(known) < len(counts) else f"{sum(known)} elements may differ on a GPU"
    )
    return [f"{many}, after:", *(f"  {line}" for line in lines)]
