"""Compare every build with the simulator's results, and decide which one is to blame; without a GPU, examine the PTX alone."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from refsim.blame.builds import Build, OnSimulator
from refsim.blame.running import RunWords, Silicon, measured, simulated
from refsim.blame.statements import Candidate, pieces_of
from refsim.blame.subjects import BlameSubject
from refsim.device.assembling import Cubin
from refsim.errors import Kind, RefsimError
from refsim.ptx.findings.table import CHECKS, SCHEDULE_DEPENDENT
from refsim.render.cards import FieldsCard

Item = TypeVar("Item")
EQUAL, OPEN_WORDS, OTHER_WORDS, VARIES, FAULTS = "equal", "open", "differs", "varies", "faults"
NOT_BUILT, ASSEMBLED = "refused", "assembled"
RACES = frozenset({SCHEDULE_DEPENDENT} | {row.name for row in CHECKS if "race" in (row.name, row.part_of)})
"""Findings of the simulator after which a GPU may write different elements in each run."""

NONE, PTXAS, EDITED, MODEL, RACE, KERNEL = "none", "ptxas", "edited", "model", "race", "kernel"
LEFT_OPEN, UNDECIDED, SIMULATED, NOTHING_RAN = "open", "undecided", "simulated", "not-run"
BLAME_MEANING = {
    NONE: "every build writes the simulator's results",
    PTXAS: "the builds of one PTX disagree: ptxas made something else of it",
    EDITED: "what was edited differs, and the PTX as it was does not",
    MODEL: "every build writes the same other results: the model is wrong, or the kernel uses what PTX leaves undefined",
    RACE: "what is written depends on who comes first",
    KERNEL: "the simulator finds a fault that is no race: it comes before any comparison",
    LEFT_OPEN: "all differing results depend on bits that arithmetic leaves unspecified, or on the chip of another target",
    UNDECIDED: "one build alone differs, and there is no other to compare it with: ptxas or the model",
    SIMULATED: "only the simulator ran: a GPU's results, and the cause of any difference, are not known",
    NOTHING_RAN: "no machine code was run",
}
"""A sentence that explains each verdict."""
SHRINKABLE = frozenset({PTXAS, EDITED, MODEL, UNDECIDED})
_CODES = {NONE: 0} | dict.fromkeys((LEFT_OPEN, SIMULATED, NOTHING_RAN), Kind.INCONCLUSIVE.value)


@dataclass(frozen=True)
class BuildRow:
    """One build: whether it writes the simulator's elements, which of the `problems` differ, and the first difference.

    `differing` holds indices of the subject's problems (test cases); `runs` holds the last run of each.
    """

    build: Build
    state: str
    cubin: Cubin | None = None
    seconds: float = 0.0
    differing: tuple[int, ...] = ()
    first: str = ""
    runs: tuple[RunWords, ...] = ()

    @property
    def has_run(self) -> bool:
        """Return whether the build's machine code was run."""
        return self.state not in (NOT_BUILT, ASSEMBLED)


@dataclass(frozen=True, repr=False)
class Blame(FieldsCard):
    """The result: `verdict` is a key of BLAME_MEANING; `because` lists the findings and arithmetic that it depends on.

    `rows` are the builds, `facts` describe the GPU and the tools, `launched` are the entries that some test case
    launched. The exit code is 0 where nothing differs, 5 where bits are unspecified or nothing ran, else 1.
    """

    subject: BlameSubject
    verdict: str
    rows: tuple[BuildRow, ...]
    because: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    pieces: Candidate | None = None
    launched: frozenset[str] = frozenset()

    @property
    def never_launched(self) -> tuple[str, ...]:
        """Return the entries that no test case launched, which the verdict does not cover; () where nothing ran."""
        return tuple(each for each in self.subject.entries if each not in self.launched) if self.launched else ()

    @property
    def exit_code(self) -> int:
        """Return the exit code: 0, 1 or 5; 0 where the builds were only to be assembled and one was."""
        if self.verdict == NOTHING_RAN and any(row.state == ASSEMBLED for row in self.rows):
            return 0
        return _CODES.get(self.verdict, Kind.FAULT.value)

    @property
    def culprits(self) -> tuple[BuildRow, ...]:
        """Return the builds that write other elements than the simulator, or fault."""
        return tuple(row for row in self.rows if row.state in (OTHER_WORDS, FAULTS))

    @property
    def is_shrinkable(self) -> bool:
        """Return whether a smaller text would make the verdict clearer."""
        return self.verdict in SHRINKABLE and bool(self.culprits)

    @property
    def healthy(self) -> BuildRow | None:
        """Return a build that agrees with the simulator and compiles smaller texts; None where there is none."""
        right = (row for state in (EQUAL, OPEN_WORDS) for row in self.rows if row.state == state)
        return next((row for row in right if row.build.takes_any_text), None)


@dataclass(frozen=True)
class Examination:
    """The progress of an examination, as a line of progress prints it."""

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
    models: Sequence[RunWords] | None = None,
    assembled: Sequence["BuildRow"] | None = None,
    on_progress: Report | None = None,
) -> Blame:
    """Run every build of a subject's PTX and decide which is to blame for elements that differ from the simulator's.

    `silicon` None: the builds are assembled and nothing is run. `edited`: an edited copy of the text, for edited
    builds. `repeats`: runs of each cubin; elements that differ from run to run are blamed on a race and not on ptxas.
    `models`, `assembled`: results of `simulated` for each test case and of `assembled_row` for each build, where they
    are known already.
    Raises RefsimError for what the simulator cannot execute, or where the GPU is lost.
    Source: defined here.
    """
    tell = partial(told, on_progress, subject)
    candidate = pieces_of(subject.text, edited).all
    if silicon is None:
        rows = assembled or [assembled_row(subject, build, candidate) for build in tell("assembling", builds)]
        return Blame(subject, NOTHING_RAN, tuple(rows), facts=subject.facts, pieces=candidate)
    if models is None:
        models = [simulated(subject, subject.text, problem) for problem in tell("simulator", subject.problems)]
    facts = {**subject.facts, **silicon.describe()}
    if (found := faulty(subject, models, facts, candidate)) is not None:
        return found
    rows = []
    for number, build in enumerate(tell("builds", builds)):
        made = assembled[number] if assembled is not None else assembled_row(subject, build, candidate)
        rows.append(run_row(subject, made, candidate, silicon, models, repeats))
    facts |= silicon.describe()
    verdict, because = _verdict(rows, models)
    return Blame(subject, verdict, tuple(rows), because, facts, candidate, launched(models))


def launched(models: Sequence[RunWords]) -> frozenset[str]:
    """Return the entries that the runs launched."""
    return frozenset().union(*(model.entries for model in models))


def run_row(
    subject: BlameSubject,
    made: BuildRow,
    candidate: Candidate,
    silicon: Silicon,
    models: Sequence[RunWords],
    repeats: int,
) -> BuildRow:
    """Return a build after runs of every test case of the subject, compared with the simulator's elements."""
    if made.cubin is None:
        return made
    runs = []
    for problem in subject.problems:
        try:
            runs.append(measured(silicon, subject, made.cubin.image, candidate.text, problem, repeats))
        except RefsimError as error:
            if error.kind is Kind.MISSING:
                raise
            return replace(made, state=NOT_BUILT, first=_said(error))
    return compared_rows(made, models, runs)


def compared_rows(made: BuildRow, models: Sequence[RunWords], runs: Sequence[Sequence[RunWords]]) -> BuildRow:
    """Return a build with its state after comparing its runs of each test case with the simulator's elements."""
    compared: dict[str, list[int]] = {VARIES: [], FAULTS: [], OTHER_WORDS: [], OPEN_WORDS: []}
    firsts: dict[str, str] = {}
    for number, (model, tried) in enumerate(zip(models, runs, strict=True)):
        state, first = compared_with(model, tried)
        if state != EQUAL:
            compared[state].append(number)
            firsts.setdefault(state, first)
    state = next((each for each in compared if compared[each]), EQUAL)
    problems = compared[FAULTS] + compared[OTHER_WORDS] if state == FAULTS else compared.get(state, [])
    last = tuple(tried[-1] for tried in runs)
    return replace(made, state=state, differing=tuple(problems), first=firsts.get(state, ""), runs=last)


def compared_with(model: RunWords, tried: Sequence[RunWords]) -> tuple[str, str]:
    """Return how the runs of one cubin compare with the simulator's: a state, and the first difference as text.

    Runs that differ from each other vary, unless they differ only in sums whose order is unspecified.
    """
    for each in tried:
        if not each.agrees(tried[0]) and not (model.depends_on_order and model.excuses(each, tried[0])):
            return VARIES, each.first_difference(tried[0])
    others = [each for each in tried if not each.agrees(model)]
    if not others:
        return EQUAL, ""
    other = next((each for each in others if not model.excuses(each, model)), None)
    if other is None:
        return OPEN_WORDS, others[0].first_difference(model)
    return (FAULTS if other.words is None else OTHER_WORDS), other.first_difference(model, model.open_words)


def faulty(
    subject: BlameSubject, models: Sequence[RunWords], facts: Mapping[str, str], candidate: Candidate
) -> Blame | None:
    """Return the verdict where the simulator finds a fault; None where runs can be compared.

    Raises RefsimError `nothing-compared` where no test case has an element to compare.
    """
    for model in models:
        if model.fault is not None:
            verdict = RACE if model.fault.code in RACES else KERNEL
            return Blame(subject, verdict, (), (str(model.fault),), facts, candidate)
    if not any(words.size for model in models for words in (model.words or {}).values()):
        rule = "without a compared element no cause can be found"
        raise RefsimError(
            "nothing-compared", "no test case has an element of an output", subject.name, rule, "--problems 8"
        )
    return None


def assembled_row(subject: BlameSubject, build: Build, candidate: Candidate) -> BuildRow:
    """Return a build with its cubin, or with the error that refused the text."""
    started = time.monotonic()
    try:
        cubin = build.cubin(candidate, subject.target)
    except RefsimError as error:
        return BuildRow(build, NOT_BUILT, seconds=time.monotonic() - started, first=_said(error))
    return BuildRow(build, ASSEMBLED, cubin, time.monotonic() - started)


def _said(error: RefsimError) -> str:
    """Return an error as one line: its code, its message and the first line of its place."""
    line = next((each.strip() for each in error.where.splitlines() if each.strip()), "")
    return f"[{error.code}] {error.what}" + (f": {line}" if line else "")


def _verdict(rows: Sequence[BuildRow], models: Sequence[RunWords]) -> tuple[str, tuple[str, ...]]:
    """Return the verdict on the builds and the sentences that it depends on.

    Checked in this order: runs that vary, no difference, unspecified arithmetic, then which builds differ from which.
    """
    ran = [row for row in rows if row.has_run]
    own = [row for row in ran if not row.build.is_edited]
    if varying := [row for row in ran if row.state == VARIES]:
        verdict = RACE if any(not row.build.is_edited for row in varying) or not own else EDITED
        return verdict, tuple(f"runs of one cubin differ, {row.build.label}: {row.first}" for row in varying[:1])
    edited = [row for row in rows if row.build.is_edited]
    if not ran or (edited and len(own) == len(ran) and all(row.state == EQUAL for row in own)):
        return NOTHING_RAN, tuple(f"what was edited was not run: {row.first}" for row in edited[:1])
    differing = [row for row in ran if row.state in (OTHER_WORDS, FAULTS)]
    if not differing:
        open_ = (models[at] for row in ran for at in row.differing)
        open_bits = tuple(dict.fromkeys(line for model in open_ for line in model.open_bits))
        return (LEFT_OPEN if open_bits else NONE), open_bits
    if own and all(row.state in (EQUAL, OPEN_WORDS) for row in own):
        return EDITED, ()
    if any(not _alike(row, differing[0], models) for row in ran):
        return PTXAS, ()
    return (MODEL if len(own) > 1 else UNDECIDED), ()


def _alike(row: BuildRow, other: BuildRow, models: Sequence[RunWords]) -> bool:
    """Return whether two builds write equal elements wherever bits are fixed."""
    return all(
        mine.agrees(theirs) or model.excuses(mine, theirs)
        for mine, theirs, model in zip(row.runs, other.runs, models, strict=True)
    )


def told(on_progress: Report | None, subject: BlameSubject, phase: str, items: Sequence[Item]) -> Iterator[Item]:
    """Yield the items, and report progress before each."""
    for done, item in enumerate(items):
        if on_progress is not None:
            on_progress(Examination(subject.name, phase, done, len(items)))
        yield item


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
