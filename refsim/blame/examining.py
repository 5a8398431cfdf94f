"""The table of builds beside the simulator's words, and what it says of who is to blame."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from refsim.blame.builds import Build
from refsim.blame.running import RunWords, Silicon, measured, simulated
from refsim.blame.statements import Candidate, pieces_of
from refsim.blame.subjects import BlameSubject
from refsim.device.assembling import Cubin
from refsim.errors import Kind, RefsimError
from refsim.ptx.findings.table import CHECKS, SCHEDULE_DEPENDENT

Item = TypeVar("Item")
EQUAL, OTHER_WORDS, VARIES, FAULTS, REFUSED, ASSEMBLED = "equal", "differs", "varies", "faults", "refused", "assembled"
RACES = frozenset({SCHEDULE_DEPENDENT} | {row.name for row in CHECKS if "race" in (row.name, row.part_of)})
"""Findings of the simulator after which a chip may write other words each time."""

NONE, PTXAS, EDITED, MODEL, RACE, KERNEL = "none", "ptxas", "edited", "model", "race", "kernel"
OPEN, UNDECIDED, NOTHING_RAN = "open", "undecided", "not-run"
BLAME_MEANING = {
    NONE: "every build writes the simulator's words",
    PTXAS: "the builds of one PTX disagree: ptxas made something else of it",
    EDITED: "what was edited differs, and no build of the PTX as it was does",
    MODEL: "every build writes the same other words: the model is wrong, or the kernel asks for what PTX leaves undefined",
    RACE: "what is written depends on who comes first",
    KERNEL: "the simulator finds a fault that is no race: it comes before any comparison",
    OPEN: "words differ, and instructions on their way have no fixed bits, or those of another target's chip",
    UNDECIDED: "one build alone differs, and there is no other to compare it with: ptxas or the model",
    NOTHING_RAN: "no build was run",
}
"""What each verdict says, in a sentence."""
SHRINKABLE = frozenset({PTXAS, EDITED, MODEL, UNDECIDED})
_CODES = {NONE: 0, OPEN: Kind.INCONCLUSIVE.value, NOTHING_RAN: Kind.INCONCLUSIVE.value}


@dataclass(frozen=True)
class BuildRow:
    """One build: whether it writes the simulator's words, on how many of the `problems`, and where it first does not."""

    build: Build
    state: str
    cubin: Cubin | None = None
    seconds: float = 0.0
    differing: tuple[int, ...] = ()
    first: str = ""
    runs: tuple[RunWords, ...] = ()

    @property
    def has_run(self) -> bool:
        return self.state not in (REFUSED, ASSEMBLED)


@dataclass(frozen=True)
class Blame:
    """Who is to blame: `verdict` is a key of BLAME_MEANING; `because` the findings and arithmetic that it rests on.

    `rows` are the builds, `facts` the silicon with hashes and tools. The exit code is 0 where nobody is to blame, 5 where bits
    are open or nothing ran, else 1.
    """

    subject: BlameSubject
    verdict: str
    rows: tuple[BuildRow, ...]
    because: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    pieces: Candidate | None = None

    @property
    def exit_code(self) -> int:
        if self.verdict == NOTHING_RAN and any(row.state == ASSEMBLED for row in self.rows):
            return 0
        return _CODES.get(self.verdict, Kind.FAULT.value)

    @property
    def culprits(self) -> tuple[BuildRow, ...]:
        return tuple(row for row in self.rows if row.state in (OTHER_WORDS, FAULTS))

    @property
    def is_shrinkable(self) -> bool:
        """Whether a smaller text would make the verdict clearer."""
        return self.verdict in SHRINKABLE and bool(self.culprits)

    @property
    def healthy(self) -> BuildRow | None:
        """A build whose words are the simulator's and that takes smaller texts, to hold others to."""
        return next((row for row in self.rows if row.state == EQUAL and row.build.takes_any_text), None)


@dataclass(frozen=True)
class Examination:
    """How far it is: what a line of progress says."""

    kernel: str
    phase: str
    done: int
    planned: int


Report = Callable[[Examination], None]


def examined(
    subject: BlameSubject,
    builds: Sequence[Build],
    silicon: Silicon | None,
    *,
    edited: str | None = None,
    repeats: int = 3,
    on_progress: Report | None = None,
) -> Blame:
    """Runs every build of a subject's PTX and says who is to blame where words are not the simulator's.

    `silicon` None: the builds are assembled and nothing is run. edited: a copy of the text, for builds that are of it.
    repeats: runs of each cubin, since words that differ from run to run are a race and not ptxas's.
    Raises RefsimError for what the simulator cannot execute, or where the GPU is lost.
    Source: defined here.
    """
    tell = partial(_tell, on_progress, subject.name)
    candidate = pieces_of(subject.text, edited).all
    if silicon is None:
        rows = [_assembled(subject, build, candidate) for build in tell("assembling", builds)]
        return Blame(subject, NOTHING_RAN, tuple(rows), facts=subject.facts, pieces=candidate)
    models = [simulated(subject, subject.text, problem) for problem in tell("simulator", subject.problems)]
    facts = {**subject.facts, **silicon.describe()}
    for model in models:
        if model.fault is not None:
            verdict = RACE if model.fault.code in RACES else KERNEL
            return Blame(subject, verdict, (), (str(model.fault),), facts, candidate)
    if not any(words.size for model in models for words in (model.words or {}).values()):
        rule = "nothing that was compared blames nobody"
        raise RefsimError(
            "nothing-compared", "no problem has an element of an output", subject.name, rule, "--problems 8"
        )
    rows = [run_row(subject, build, candidate, silicon, models, repeats) for build in tell("builds", builds)]
    facts |= silicon.describe()
    verdict, because = _verdict(rows, models)
    return Blame(subject, verdict, tuple(rows), because, facts, candidate)


def run_row(
    subject: BlameSubject,
    build: Build,
    candidate: Candidate,
    silicon: Silicon,
    models: Sequence[RunWords],
    repeats: int,
) -> BuildRow:
    """One build on every problem of the subject, beside the simulator's words for each."""
    made = _assembled(subject, build, candidate)
    if made.cubin is None:
        return made
    runs, differing, varying, first = [], [], [], ""
    for number, (problem, model) in enumerate(zip(subject.problems, models, strict=True)):
        tried = measured(silicon, subject, made.cubin.image, candidate.text, problem, repeats)
        runs.append(tried[-1])
        if not all(each.agrees(tried[0]) for each in tried):
            varying.append(number)
            first = first or next(each.first_difference(tried[0]) for each in tried if not each.agrees(tried[0]))
        elif not tried[-1].agrees(model):
            differing.append(number)
            first = first or tried[-1].first_difference(model)
    state = VARIES if varying else OTHER_WORDS if differing else EQUAL
    if state == OTHER_WORDS and any(runs[number].words is None for number in differing):
        state = FAULTS
    return BuildRow(build, state, made.cubin, made.seconds, tuple(varying or differing), first, tuple(runs))


def _assembled(subject: BlameSubject, build: Build, candidate: Candidate) -> BuildRow:
    started = time.monotonic()
    try:
        cubin = build.cubin(candidate, subject.target)
    except RefsimError as error:
        return BuildRow(build, REFUSED, seconds=time.monotonic() - started, first=_said(error))
    return BuildRow(build, ASSEMBLED, cubin, time.monotonic() - started)


def _said(error: RefsimError) -> str:
    line = next((each.strip() for each in error.where.splitlines() if each.strip()), "")
    return f"[{error.code}] {error.what}" + (f": {line}" if line else "")


def _verdict(rows: Sequence[BuildRow], models: Sequence[RunWords]) -> tuple[str, tuple[str, ...]]:
    """In this order: words that vary from run to run, no difference, arithmetic that is open, then who differs from whom."""
    ran = [row for row in rows if row.has_run]
    if varying := [row for row in ran if row.state == VARIES]:
        return RACE, tuple(f"runs of one cubin differ, {row.build.label}: {row.first}" for row in varying[:1])
    if not ran:
        return NOTHING_RAN, ()
    differing = [row for row in ran if row.state != EQUAL]
    if not differing:
        return NONE, ()
    open_bits = tuple(dict.fromkeys(line for row in differing for at in row.differing for line in models[at].open_bits))
    if open_bits:
        return OPEN, open_bits
    own = [row for row in ran if not row.build.is_edited]
    if own and all(row.state == EQUAL for row in own):
        return EDITED, ()
    if any(not _alike(row, differing[0]) for row in ran):
        return PTXAS, ()
    return (MODEL if len(own) > 1 else UNDECIDED), ()


def _alike(row: BuildRow, other: BuildRow) -> bool:
    return all(mine.agrees(theirs) for mine, theirs in zip(row.runs, other.runs, strict=True))


def _tell(on_progress: Report | None, name: str, phase: str, items: Sequence[Item]) -> Iterator[Item]:
    for done, item in enumerate(items):
        if on_progress is not None:
            on_progress(Examination(name, phase, done, len(items)))
        yield item
