"""The campaign: special values, then generated test cases, and after a failure the smallest failing test case.

Since 6.131 Hypothesis also draws numbers that it finds in the source of every loaded module, so that one seed gives
other test cases in each process. A campaign uses only the numbers in its kernel's own file.
"""

import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from refsim.compare import Mismatch
from refsim.device import Device
from refsim.errors import RefsimError, check_named, counted
from refsim.integers import is_whole
from refsim.kernels import ComputedKind, Kernel
from refsim.testing import heard, verdicts
from refsim.testing.decisions import DecisionBits, Finding, Observation, badness, graver, with_open_bits
from refsim.testing.explained import likely_causes
from refsim.testing.laws import check_computes, check_oracle_repeats
from refsim.testing.oracle_checks import NO_SLACK, Slack
from refsim.testing.replay import write_case
from refsim.testing.runs import Examined, describe, described, examine
from refsim.testing.suspects import OutOfTimeError, Witness
from refsim.testing.user_code import code_fails
from refsim.testing.verdicts import Verdict
from refsim.testing.witnesses import Witnesses, contradicted


@contextmanager
def drawn_from(kernel: Kernel) -> Iterator[None]:
    """Restrict Hypothesis, inside the block, to the constants in the modules where a kernel is declared.

    The names are private to Hypothesis: without them, a version of Hypothesis is left unchanged.
    """
    try:
        from hypothesis.internal.conjecture import providers

        everything, cached = providers._get_local_constants, providers.CONSTANTS_CACHE.cache
        own = _constants(providers, kernel)
    except (ImportError, AttributeError):
        yield
        return
    cached.clear()
    providers._get_local_constants = lambda: own
    try:
        yield
    finally:
        providers._get_local_constants = everything
        cached.clear()


def _constants(providers: Any, kernel: Kernel) -> Any:
    """Return the constants in the modules of a kernel's recipe and `run`, in Hypothesis's own container."""
    sets, order = providers.SortedSet, providers.float_to_int
    own = providers.Constants(integers=sets(), floats=sets(key=order), bytes=sets(), strings=sets())
    names = dict.fromkeys((kernel.recipe.__module__, getattr(kernel.run, "__module__", "")))
    for module in filter(None, map(sys.modules.get, names)):
        own |= providers.constants_from_module(module)
    return own


FOLLOWED = 3  # cases in which unspecified bits are followed to the branches and addresses they reach


@dataclass(frozen=True)
class SearchBudget:
    """The size of a campaign: generated `cases`, seconds for shrinking and candidate causes, a new seed per run."""

    name: str
    cases: int
    shrink_seconds: float
    suspect_seconds: float
    new_seed: bool = False


_BUDGETS = (
    SearchBudget("quick", 25, 20.0, 10.0),
    SearchBudget("ci", 200, 60.0, 60.0),
    SearchBudget("night", 5000, 600.0, 300.0, new_seed=True),
)
SEARCH_BUDGETS = {row.name: row for row in _BUDGETS}


@dataclass(frozen=True)
class Progress:
    """The state of a campaign: `phase` is corpus, generated, shrinking or suspects; `done` of `planned` have run."""

    kernel: str
    phase: str
    done: int
    planned: int
    elements: int
    seed: int | None


class _Failed(Exception):  # noqa: N818 (a signal, not an error)
    """Signals Hypothesis that the test case fails, so that Hypothesis shrinks it."""


class _Stopped(BaseException):
    """Ends the search at once: Hypothesis lets a BaseException pass."""


@dataclass
class _Ledger:
    """The running counts of one campaign, and the best finding so far."""

    kernel: Kernel
    device: Device
    profile: SearchBudget
    seed: int | None
    planned: int
    deadline: float
    on_progress: Callable[[Progress], None] | None
    phase: str = "corpus"
    cases: int = 0
    elements: int = 0
    failure: Finding | None = None
    failed_at: float = 0.0
    doubt: Finding | None = None
    surveyed: Finding | None = None
    differing: int = 0
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)
    worst: Mismatch | None = None
    crash: Exception | None = None
    notes: dict[str, None] = field(default_factory=dict)
    witnesses: list[Witness] = field(default_factory=list)
    open_bits: DecisionBits = field(default_factory=DecisionBits)
    waived: dict[str, str] = field(default_factory=dict)
    slack: Slack = NO_SLACK
    first: tuple[Any, Observation] | None = None
    unfit: dict[str, None] = field(default_factory=dict)
    beside: Witnesses = field(init=False)

    def __post_init__(self) -> None:
        self.beside = Witnesses(self.kernel, self.device.target, self.planned)

    def check(self, problem: Any) -> bool:
        """Run one test case; return False if it fails. Raises _Stopped if further cases would add nothing."""
        now = time.monotonic()
        if self.failure and self.phase == "shrinking" and now - self.failed_at > self.profile.shrink_seconds:
            raise _Stopped
        if not self.failure and now > self.deadline:
            self.doubt = Finding(
                verdicts.TIMEOUT, f"the time limit ended the campaign after {counted(self.cases, 'case')}", None
            )
            raise _Stopped
        found = examine(self.kernel, problem, self.device, follow_open=self.open_bits.followed < FOLLOWED)
        finding = found.finding
        differs = finding is not None and finding.status == verdicts.FAIL and finding.mismatch is not None
        if finding is None or differs:
            self.witnesses.append(Witness(problem, found.elements, differs))
        self._count(problem, found)
        self._report()
        if found.seen and not self.failure and (finding is None or finding.status != verdicts.FAIL):
            self.beside.saw(problem, found.seen)
        if finding is None:
            return True
        if finding.status == verdicts.FAIL:
            if finding.is_open and finding.mismatch and self.phase != "shrinking":
                # Unspecified bits may differ in every case: survey all cases before the search for the smallest.
                self.surveyed = self.surveyed or finding
                return True
            if self.failure and finding.mismatch and not self.failure.mismatch:
                return True  # a simpler case, but a fault outranks differing elements
            # While it shrinks, Hypothesis tries only test cases simpler than the last failing one.
            self.failed_at = self.failed_at or time.monotonic()
            self.failure = finding
            return False
        if finding.unfit:
            self.unfit[finding.unfit] = None
        elif finding.status in (verdicts.UNSUPPORTED, verdicts.TIMEOUT):
            self.doubt = finding
            raise _Stopped
        self.doubt = graver(self.doubt, finding)
        return True

    def _count(self, problem: Any, found: Examined) -> None:
        """Add a case to the counts, unless it only serves to shrink a failure."""
        self.notes |= dict.fromkeys(found.notes)
        if found.seen:
            self.open_bits.note(found.seen)
            self.waived |= {name: self.waived.get(name) or what for name, what in found.seen.waived.items()}
        if self.failure:
            return
        self.cases += not (found.finding and found.finding.unfit)  # such a case was not launched
        self.elements += found.elements
        self.differing += found.differing
        if found.seen:
            self.slack += found.seen.slack.of_corpus() if self.phase == "corpus" else found.seen.slack
            if found.elements and found.finding is None:
                self.first = self.first or (problem, found.seen)
        for name, (total, differing) in found.counts.items():
            before = self.counts.get(name, (0, 0))
            self.counts[name] = before[0] + total, before[1] + differing
        mismatch = found.finding.mismatch if found.finding else None
        if mismatch and (self.worst is None or badness(mismatch) > badness(self.worst)):
            self.worst = mismatch

    def begin_shrinking(self) -> None:
        """Start the search for the smallest failing case, after all cases have been surveyed."""
        self.failure, self.phase, self.failed_at = self.surveyed, "shrinking", time.monotonic()

    def _report(self) -> None:
        if self.on_progress is not None:
            self.on_progress(Progress(self.kernel.name, self.phase, self.cases, self.planned, self.elements, self.seed))


def run_campaign(
    kernel: Kernel,
    device: Device,
    *,
    profile: str = "quick",
    cases: int | None = None,
    seed: int | None = None,
    failures_dir: str | Path | None = None,
    time_limit: float | None = None,
    suspect_seconds: float | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Verdict:
    """Run a kernel on its corpus and on generated test cases, and return the verdict on its agreement with its oracle.

    `device` is the result of `refsim.device.open`. The profiles quick (25 generated cases) and ci (200) draw equal test
    cases every time; night (5000) draws a new seed, which the verdict contains; `cases` and `seed` override both. A
    failure is shrunk and, with `failures_dir`, written as a replay case. `time_limit` is in seconds. `suspect_seconds`
    limits the search for candidate causes in seconds of processor time, by default the profile's 10, 60 or 300; 0: no
    search. Raises RefsimError if the request, not the kernel, is at fault: an unknown profile, a missing package.
    Source: defined here.
    """
    verdict, slack = run_part(
        kernel,
        device,
        profile=profile,
        cases=cases,
        seed=seed,
        failures_dir=failures_dir,
        time_limit=time_limit,
        suspect_seconds=suspect_seconds,
        on_progress=on_progress,
    )
    verdict = completed(verdict, slack)
    verdict = verdict.with_unused(verdict.unused)
    heard.tell(verdict)
    return verdict


def run_part(
    kernel: Kernel,
    device: Device,
    *,
    profile: str,
    cases: int | None,
    seed: int | None,
    failures_dir: str | Path | None = None,
    time_limit: float | None = None,
    suspect_seconds: float | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> tuple[Verdict, Slack]:
    """Return the verdict and the slack of a campaign or of one part of it.

    Checks that need the whole campaign (something was compared, and bounds could be broken) are left to `completed`.
    """
    row = checked_budget(profile, cases, seed)
    if seed is None and row.new_seed:
        seed = secrets.randbits(32)
    planned = row.cases if cases is None else cases
    started = time.monotonic()
    deadline = started + (float("inf") if time_limit is None else time_limit)
    ledger = _Ledger(kernel, device, row, seed, len(kernel.corpus) + planned, deadline, on_progress)
    try:
        _run_corpus(ledger)
        ledger.phase = "shrinking" if ledger.failure else "generated"
        if planned:
            _search(ledger, planned)
    except _Stopped:
        pass
    if ledger.surveyed and not ledger.failure:
        ledger.begin_shrinking()
        with suppress(_Stopped):
            if planned:
                _search(ledger, planned)
    if not ledger.failure and ledger.first is not None and ledger.cases > 1:
        check_oracle_repeats(kernel, *ledger.first, device.target)
    if not ledger.failure and ledger.first is not None:
        ledger.beside.ask_products(device)
    _check_computes(ledger)
    _inquire(ledger, row.suspect_seconds if suspect_seconds is None else suspect_seconds)
    return _verdict(ledger, started, failures_dir), ledger.slack


def completed(verdict: Verdict, slack: Slack) -> Verdict:
    """Return the verdict of a whole campaign, with notes on what it could not see.

    Raises RefsimError if a campaign without a failure compared nothing (`nothing-compared`), or compared only with
    bounds that every finite number keeps (`bad-bound`). Waivers that allowed no finding are judged with those of other kernels.
    """
    ended_well = verdict.status != verdicts.FAIL
    if verdict.status == verdicts.PASS and not verdict.elements:
        what = f"{verdict.cases} cases of kernel {verdict.kernel} have no element of an output between them"
        help = "ask for cases" + (", or declare test cases whose outputs are not empty" if verdict.cases else "")
        raise RefsimError("nothing-compared", what, rule="nothing that was compared is no pass", help=help)
    if ended_well and slack.elements and slack.any_number == slack.elements == verdict.elements:
        what = f"oracle of kernel {verdict.kernel} gives all {slack.elements} elements a bound that every finite number keeps"
        raise RefsimError("bad-bound", what, rule="a promise that nothing can break is none")
    return replace(verdict, notes=(*verdict.notes, *slack.notes())) if ended_well else verdict


def checked_budget(profile: str, cases: int | None, seed: int | None) -> SearchBudget:
    """Return the budget of a profile; raise RefsimError for unknown profiles and for `cases` or `seed` below 0."""
    check_named("profile", profile, SEARCH_BUDGETS)
    for name, value in (("cases", cases), ("seed", seed)):
        if value is not None and not (isinstance(value, int) and is_whole(value)):
            raise RefsimError("bad-campaign", f"{name} must be an integer from 0, not {value!r}")
    return SEARCH_BUDGETS[profile]


def _run_corpus(ledger: _Ledger) -> None:
    for problem in ledger.kernel.corpus:
        if not ledger.check(problem):
            return


def _search(ledger: _Ledger, cases: int) -> None:
    """Let Hypothesis generate test cases; after a failure of the corpus, search for a simpler failing test case."""
    import hypothesis

    def agrees(problem: Any) -> None:
        try:
            if ledger.check(problem):
                return
        except Exception as error:
            ledger.crash = error
            raise
        ledger.phase = "shrinking"
        raise _Failed

    chosen = hypothesis.settings(
        max_examples=cases,
        database=None,
        derandomize=ledger.seed is None,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
        verbosity=hypothesis.Verbosity.quiet,
    )
    kernel = ledger.kernel
    try:
        search = chosen(hypothesis.given(problem=kernel.problem)(agrees))
        if ledger.seed is not None:
            search = hypothesis.seed(ledger.seed)(search)
        with drawn_from(kernel):
            search()
    except _Failed:
        pass
    except RefsimError:
        raise
    except hypothesis.errors.Flaky as flaky:
        if ledger.failure is None:
            raise ledger.crash or flaky from None
        text = f"{ledger.failure.text}\nnot every run of this test case fails: the kernel does not repeat its results"
        ledger.failure = replace(ledger.failure, text=text)
    except (KeyboardInterrupt, _Stopped):
        raise
    except BaseException as error:
        if ledger.crash is not None:
            raise ledger.crash from None
        raise code_fails(kernel, "problem", error) from error  # the strategy of test cases, or their class


def _check_computes(ledger: _Ledger) -> None:
    """Compare a kind of `computes` with the oracle; where they differ, raise RefsimError, or in a failure do not use it."""
    kernel, failure = ledger.kernel, ledger.failure
    cases = [ledger.first[0]] if ledger.first else [failure.problem] if failure and failure.mismatch else []
    if not isinstance(kernel.computes, ComputedKind) or kernel.oracle is None or not cases:
        return
    try:
        check_computes(kernel, cases[0], ledger.device.target)
    except RefsimError as error:
        if failure is None:
            raise
        ledger.kernel = replace(kernel, computes=None)
        ledger.notes[f"computes= is not used: {error.what}"] = None


def _inquire(ledger: _Ledger, seconds: float) -> None:
    """Search for a cause of differing bits and add it to the failure, unless a declared mistake explains them."""
    found = ledger.failure
    if found is None or found.mismatch is None or seconds <= 0:
        return
    if any(line.startswith(f"{name}: ") for name in ledger.kernel.suspects for line in found.mismatch.suspects):
        return
    ledger.phase = "suspects"
    ledger._report()
    try:
        suspects = likely_causes(ledger.kernel, ledger.device, found.problem, ledger.witnesses, seconds=seconds)
    except OutOfTimeError as ended:
        ledger.notes[ended.note(seconds)] = None
        return
    if not (suspects or found.mismatch.suspects):
        limit = f"the search ended before its limit of {seconds:g} s of processor time"
        ledger.notes[f"no likely cause found: {limit}"] = None
    lines = tuple(map(str, suspects))
    mismatch = replace(found.mismatch, suspects=(*found.mismatch.suspects, *lines))
    text = "\n".join((found.text, *(f"likely cause: {line}" for line in lines)))
    mismatches = tuple(mismatch if each is found.mismatch else each for each in found.mismatches)
    ledger.failure = replace(found, text=text, mismatch=mismatch, mismatches=mismatches)


def _verdict(ledger: _Ledger, started: float, failures_dir: str | Path | None) -> Verdict:
    """Return the verdict of a finished campaign; write the replay case of a failure if there is a folder for it."""
    silicon, recomputed = ledger.beside.silicon(), ledger.beside.recomputed()
    kernel, found = ledger.kernel, ledger.failure or contradicted(silicon, recomputed) or ledger.doubt
    device, problem = describe(ledger.device), found.problem if found else None
    record, text, remarks = described(kernel, problem) if problem is not None else (None, "", ())
    if ledger.unfit and found and found.status == verdicts.UNSUPPORTED:
        unfit = f"{device['target']} cannot launch {', '.join(ledger.unfit)}; all other test cases ran"
        found = replace(found, text=f"{found.text}\n{unfit}")
    said, open_notes = with_open_bits(kernel, found, ledger.open_bits)
    replay = ""
    if found and record is not None and failures_dir is not None and found.status in (verdicts.FAIL, verdicts.TIMEOUT):
        try:
            replay = str(write_case(Path(failures_dir), kernel, problem, device, said))
        except (OSError, ValueError) as error:
            remarks = (*remarks, f"no replay case in {failures_dir}: {error}")
    return Verdict(
        kernel.name,
        found.status if found else verdicts.PASS,
        device,
        ledger.profile.name,
        ledger.seed,
        ledger.cases,
        ledger.elements,
        time.monotonic() - started,
        finding=said,
        mismatch=found.mismatch if found else None,
        mismatches=found.mismatches if found else (),
        counts=ledger.counts,
        problem=record,
        problem_text=text,
        replay=replay,
        promise=kernel.contract,
        notes=(*ledger.notes, *open_notes, *remarks),
        differing=ledger.differing,
        worst=ledger.worst,
        silicon=silicon,
        recomputed=recomputed,
        waived=ledger.waived,
        unfit=tuple(ledger.unfit),
    )
