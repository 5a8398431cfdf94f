"""refsim verify and refsim replay: compare compiled kernels with their oracles, on a simulated or a real GPU."""

import os
import re
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import click

from refsim.cli import console
from refsim.cli.answers import verdicts
from refsim.cli.answers.verdicts import Judged, judged, junit
from refsim.cli.arguments import kernels_field
from refsim.cli.campaigns import Division, outcome
from refsim.cli.delivery import Answer, answering, require_writable, save
from refsim.cli.devices import CheckedDevice, need
from refsim.cli.extents import Whole
from refsim.cli.names import KERNEL_NAME
from refsim.cli.options import DIRECTORY_PATH, Options, argument, option
from refsim.cli.progress import reporting
from refsim.errors import RefsimError, counted, internal_error
from refsim.render import facts_of

if TYPE_CHECKING:
    from refsim.device import Device
    from refsim.kernels import Kernel
    from refsim.testing.campaign import Progress

Chooser = Callable[[str], bool]

MOST_WORDS = 500
_WORD = re.compile(r"\s*(?:([()])|([A-Za-z0-9_.<>:+\-\[\]/]+))")


@dataclass
class _Reader:
    """The words of an expression, and how many are read. "or" binds less than "and", "and" less than "not"."""

    text: str
    words: list[str]
    at: int = 0

    @property
    def next(self) -> str:
        """Return the next word, "" at the end."""
        return self.words[self.at] if self.at < len(self.words) else ""

    def taken(self, word: str) -> bool:
        """Read the next word if it is `word`, and return whether it was."""
        if self.next == word:
            self.at += 1
            return True
        return False

    def either(self) -> Chooser:
        """Read terms that "or" joins."""
        terms = [self.both()]
        while self.taken("or"):
            terms.append(self.both())
        return lambda name: any(term(name) for term in terms)

    def both(self) -> Chooser:
        """Read terms that "and" joins."""
        terms = [self.one()]
        while self.taken("and"):
            terms.append(self.one())
        return lambda name: all(term(name) for term in terms)

    def one(self) -> Chooser:
        """Read a name or an expression in parentheses, after any number of "not"."""
        turned = False
        while self.taken("not"):
            turned = not turned
        if self.taken("("):
            chosen = self.either()
            if not self.taken(")"):
                raise wrong(self.text, f"{self._found()} where ) is missing")
        elif self.next in ("", ")", "and", "or"):
            raise wrong(self.text, f"{self._found()} where a name is missing")
        else:
            chosen = _contains(self.next)
            self.at += 1
        return (lambda name: not chosen(name)) if turned else chosen

    def _found(self) -> str:
        return repr(self.next) if self.next else "the end"


def chooser(expression: str) -> Chooser:
    """Return a function that tests the name of a kernel: `fp8 and not (amax or linear)`. A word matches part of a
    name, in any case.

    Raises RefsimError bad-expression.
    """
    reader = _Reader(expression, _words(expression))
    chosen = reader.either()
    if reader.next:
        raise wrong(expression, f"{reader.next!r} where and, or, or the end is due")
    return chosen


def _words(expression: str) -> list[str]:
    words, at = [], 0
    text = expression.rstrip()
    while at < len(text):
        match = _WORD.match(text, at)
        if match is None:
            raise wrong(expression, f"{text[at:].strip()[:1]!r} is part of no name")
        words.append(match[1] or match[2])
        at = match.end()
    if len(words) > MOST_WORDS:
        raise wrong(expression, f"{len(words)} words, at most {MOST_WORDS} are read")
    if words.count("(") > MOST_WORDS // 10:
        raise wrong(expression, f"{words.count('(')} parentheses, at most {MOST_WORDS // 10} are read")
    return words


def wrong(expression: str, what: str) -> RefsimError:
    """Return the error of an expression; `what` says what is wrong in it."""
    where = f"-k {expression if len(expression) <= 80 else expression[:77] + '...'}"
    rule = "parts of kernel names, and, or, not, parentheses"
    return RefsimError("bad-expression", what, where=where, rule=rule, help="-k 'fp8 and not (amax or dequantize)'")


def _contains(word: str) -> Chooser:
    return lambda name: word.lower() in name.lower()


Result = TypeVar("Result")
PAUSE = 0.3  # seconds between two looks


class Watched(Generic[Result]):
    """Iterator that runs `once`, and again whenever a file of `files` is written, created or removed.

    `files` is called after each run, since a run may find new headers. `wait` is called between two looks; a test
    passes a function that edits a file, or raises KeyboardInterrupt as Ctrl-C does. That ends the iteration and is no
    error.
    """

    def __init__(
        self,
        once: Callable[[], Result],
        files: Callable[[], Sequence[Path]],
        wait: Callable[[], None] = lambda: time.sleep(PAUSE),
        waiting: Callable[[Sequence[Path]], None] = lambda files: None,
    ) -> None:
        self.once, self.files, self.wait, self.waiting = once, files, wait, waiting

    def __iter__(self) -> Iterator[Result]:
        before: dict[Path, tuple[int, int] | None] = {}
        while True:
            before = states({*before, *self.files()})
            yield self.once()
            known = self.files()
            seen = before | {file: state for file, state in states(known).items() if file not in before}
            self.waiting(known)
            try:
                while states(seen) == seen:
                    self.wait()
            except KeyboardInterrupt:
                return


def states(
    files: "Sequence[Path] | set[Path] | dict[Path, tuple[int, int] | None]",
) -> dict[Path, tuple[int, int] | None]:
    """Return the time of the last write and the size of each file; None for a file that does not exist."""
    return {file: _state(file) for file in files}


def _state(file: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


class VerifyOptions(Options):
    """The options of `refsim verify`."""

    names: tuple[str, ...] = argument("[KERNEL...]", type=KERNEL_NAME)
    expression: str | None = option("Select kernels by name: 'fp8 and not (amax or linear)'.", "-k", metavar="EXPR")
    on: CheckedDevice = CheckedDevice()
    profile: str = option("Generated cases: quick, ci or night.", metavar="PROFILE", default="quick")
    cases: int | None = option("Number of generated cases for each kernel, instead of the profile's.", type=Whole(0))
    seed: int | None = option("Seed of the generated cases.", type=Whole(0))
    failures: Path = option("Folder for replay cases.", type=DIRECTORY_PATH, metavar=None, default=Path("failures"))
    files: tuple[Path, ...] = kernels_field()
    suspect_seconds: int | None = option(
        "Time to search for the likely mistake (default: by profile; 0: no search).",
        "--suspects",
        type=Whole(0),
        metavar="SECONDS",
    )
    first_nan: bool = option("Run a failing case again, and note where NaN and infinities in outputs come from.")
    fail_fast: bool = option("Stop after the first kernel that fails.")
    junit: Path | None = option("Also write JUnit XML.")
    rerun: bool = option("Run again whenever a file of a kernel changes, until Ctrl-C.")
    division: Division = Division()
    shard_cases: int = option("Generated cases in a shard.", type=Whole(1), default=100)
    examples: str | None = option("Store failing test cases there, and try them first.", metavar="DIR|redis://")


@answering()
def verify(asked: VerifyOptions) -> "Answer | Iterator[Answer | RefsimError]":
    """Run compiled kernels on generated test cases and compare every bit with the oracle.

    The first cases are the kernel's corpus, which may hold special values: NaN, infinities, ties, values near overflow, odd
    sizes and offsets. Hypothesis generates the others. Kernel and oracle share one numerical model, so refsim makes two
    independent checks at the end. It replays recorded hardware results for the instructions that ran, and it computes a few
    outputs again with a slow definition.

    A failure is reduced and written as a case that `refsim replay` runs again. Many cases are divided into shards, each with
    a seed of its own. This process, --jobs processes or a cluster run the shards; the report is the same.

    \b
      refsim verify
      refsim verify fp8_quantize --device cuda --profile ci
      refsim verify -k 'fp8 and not amax' --as github --junit verify.xml
      refsim verify linear --cases 100000 --jobs 8 --journal night.sqlite
    """
    need("testing", "hypothesis")
    from refsim.campaigns.verifying import quiet_hypothesis

    quiet_hypothesis()
    return _Run(asked).answered()


class ReplayOptions(Options):
    """The options of `refsim replay`."""

    case: Path = argument()
    on: CheckedDevice = CheckedDevice()
    trust: bool = option("Run the Python file that the case names, wherever the file lies.")
    suspect_seconds: int = option(
        "Time to search for the likely mistake.", "--suspects", type=Whole(0), metavar="SECONDS", default=10
    )


@answering()
def replay(asked: ReplayOptions) -> Answer:
    """Run the test case of a CASE file again; a failed `refsim verify` writes such files.

    A case names the Python file that declares its kernel, and refsim executes that file. If the file lies outside this
    project, refsim asks first, or you pass --trust. The project is the folder with pyproject.toml or .git above the working
    directory or above the case.

    \b
      refsim replay failures/fp8_quantize-0123456789.json
    """
    need("testing", "hypothesis")
    from refsim.campaigns.verifying import quiet_hypothesis

    quiet_hypothesis()
    from refsim.testing import replay_case
    from refsim.testing.replay import file_to_trust, load_case

    case, trust = asked.case, asked.trust
    file = None if trust else file_to_trust(case)
    if file is not None and sys.stdin.isatty() and sys.stderr.isatty():
        trust = click.confirm(f"{case} names {file}, which lies outside this project. Run it?", err=True)
    kernel, _ = load_case(case, trust=trust)
    verdict = replay_case(case, asked.on.opened(), kernel, suspect_seconds=asked.suspect_seconds)
    return verdicts.answer([judged(kernel, verdict)])


@dataclass
class _Run:
    """The request of one command line. `declared` holds the kernels chosen last, whose files are watched."""

    asked: VerifyOptions
    declared: "list[Kernel]" = field(default_factory=list)
    device: "Device | None" = None
    loaded: frozenset[str] = field(default_factory=lambda: frozenset(sys.modules))
    python_files: "dict[Path, None]" = field(default_factory=dict)

    def answered(self) -> "Answer | Iterator[Answer | RefsimError]":
        """Return the answer of one run, or an iterator of runs until Ctrl-C."""
        self.check()
        if not self.asked.rerun:
            return self.once()
        self.device = self.asked.on.opened()
        return iter(Watched(self.attempt, self.watched, waiting=_say_waiting))

    def check(self) -> None:
        """Raise RefsimError before anything runs for faults that no edit of a kernel fixes: -k, and files to write."""
        if self.asked.expression is not None:
            chooser(self.asked.expression)
        for file in (self.asked.junit, self.asked.division.report):
            if file is not None:
                require_writable(file)

    def once(self) -> Answer:
        """Verify the kernels that are chosen now. The JUnit file records an error of the request before it is raised."""
        from refsim.silicon import launch_replay
        from refsim.testing import Verdict

        launch_replay.afresh()
        found: list[Judged] = []
        try:
            self.declared, wrong = self._chosen()
            self.device = self.device or self.asked.on.opened()
            profile = self.asked.profile
            found = [judged(None, Verdict.of_error(name, error, profile)) for name, error in wrong.items()]
            if self._is_divided():
                found += self._divided(self.device)
            else:
                with reporting(sys.stderr) as report:
                    for kernel in self.declared:
                        found.append(self._one(kernel, self.device, found, report))
                found = self._with_unused(found)
            found = [self._with_first_nan(each, self.device) for each in found] if self.asked.first_nan else found
        except RefsimError as error:
            self._write_junit(found, ("refsim verify", error))
            raise
        for each in found:
            if each.verdict.error is not None and each.verdict.error.place is not None:
                self.python_files[Path(each.verdict.error.place[0])] = None
        self._write_junit(found)
        return verdicts.answer(found)

    def _with_first_nan(self, found: Judged, device: "Device") -> Judged:
        """Return a verdict of a simulated device with notes on where NaN and infinities come from."""
        from refsim.device.sim import SimDevice
        from refsim.testing.runs import with_first_nan

        if found.kernel is None or not isinstance(device, SimDevice):
            return found
        return judged(found.kernel, with_first_nan(found.kernel, found.verdict, device))

    def _with_unused(self, found: list[Judged]) -> list[Judged]:
        """Return the verdicts; those fail whose waivers, or waivers of --without, no kernel of the run needs."""
        from refsim.campaigns.verifying import with_unused

        verdicts = with_unused([(each.kernel, each.verdict) for each in found], self.asked.on.without)
        pairs = zip(found, verdicts, strict=True)
        return [each if made is each.verdict else judged(each.kernel, made) for each, made in pairs]

    def attempt(self) -> Answer | RefsimError:
        """Return the answer or the error of one run, such as a source that does not compile while it is edited.

        Every Python file of the user is read anew. No bytecode is written: Python reuses it for a file of equal size
        and time.
        """
        from refsim.testing.kernel_files import forget_modules, imported_files

        before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        forget_modules(self.loaded)
        try:
            return self.once()
        except RefsimError as error:
            self.python_files |= dict.fromkeys([Path(error.place[0])] if error.place else [])
            return error
        finally:
            sys.dont_write_bytecode = before
            self.python_files |= dict.fromkeys(imported_files(self.loaded))

    def watched(self) -> list[Path]:
        """Return all files of a verdict: declarations and imports, sources, possible headers, pyproject.toml."""
        from refsim.device.kernel_sources import watched_files
        from refsim.testing.kernel_files import kernel_paths

        files = dict.fromkeys(file for kernel in self.declared for file in watched_files(kernel.code))
        declaring = [kernel.declared_in for kernel in self.declared if kernel.declared_in is not None]
        try:
            named = list(self.asked.files) or kernel_paths()
        except RefsimError:  # a pyproject.toml that is being written
            named = []
        own = [Path("pyproject.toml").absolute(), *map(Path.absolute, named)]
        return list(dict.fromkeys([*own, *declaring, *self.python_files, *files]))

    def _chosen(self) -> "tuple[list[Kernel], dict[str, RefsimError]]":
        """Return the kernels that names and -k select, and the errors of files and names that may be among them.

        Raises RefsimError where -k selects no kernel, and the error of the only file.
        """
        from refsim.testing import kernel_named
        from refsim.testing.kernel_files import kernels_and_errors

        files, errors, expression = self.asked.files or None, dict[str, RefsimError](), self.asked.expression
        if self.asked.names:
            chosen = [kernel_named(name, files) for name in self.asked.names]
        else:
            declared, errors = kernels_and_errors(files)
            if not declared and len(errors) == 1:
                raise next(iter(errors.values()))
            chosen = list(declared)
        if expression is None:
            return chosen, errors
        wanted = chooser(expression)
        fitting = [kernel for kernel in chosen if wanted(kernel.name)]
        if not fitting and not errors:
            what = f"-k {expression!r} chooses none of {counted(len(chosen), 'kernel')}"
            help = f"there are {', '.join(kernel.name for kernel in chosen[:8])}{', ...' if len(chosen) > 8 else ''}"
            raise RefsimError("no-kernels", what, rule="nothing that was verified is no pass", help=help)
        return fitting, errors

    def _one(
        self, kernel: "Kernel", device: "Device", found: list[Judged], report: "Callable[[Progress], None] | None"
    ) -> Judged:
        """Return the verdict of a kernel, or not-run after a failure or an error with --fail-fast."""
        from refsim.testing.campaign import completed, run_part
        from refsim.testing.verdicts import ERROR, FAIL, NOT_RUN, Verdict

        promise, asked = kernel.contract, self.asked
        if asked.fail_fast and any(each.verdict.status in (FAIL, ERROR) for each in found):
            return Judged(kernel, Verdict(kernel.name, NOT_RUN, {}, asked.profile, promise=promise))
        try:
            given = facts_of(asked, "profile cases seed suspect_seconds failures_dir=failures")
            verdict = completed(*run_part(kernel, device, **given, on_progress=report))
        except Exception as problem:
            if isinstance(problem, RefsimError):
                error = problem
            elif click.get_current_context().find_root().params.get("debug"):
                raise
            else:
                files = [f"--kernels={file}" for file in asked.files]
                error = internal_error(problem, shlex.join(["refsim", "--debug", "verify", kernel.name, *files]))
            verdict = Verdict.of_error(kernel.name, error, asked.profile, seed=asked.seed, promise=promise)
        return judged(kernel, verdict)

    def _is_divided(self) -> bool:
        """Return whether the campaign is divided into shards; its cases do not depend on the workers."""
        from refsim.testing.campaign import checked_budget

        asked = self.asked
        planned = checked_budget(asked.profile, asked.cases, asked.seed).cases if asked.cases is None else asked.cases
        return asked.division.is_asked_for or asked.examples is not None or planned > asked.shard_cases

    def _divided(self, device: "Device") -> list[Judged]:
        """Run the campaign in shards and return the verdicts of all kernels."""
        from refsim.campaigns.journal import facts_of
        from refsim.campaigns.shards import report
        from refsim.campaigns.verifying import Request, plan_of, recorded, verdict_of, watched
        from refsim.testing.campaign import checked_budget

        asked = self.asked
        seed, division = asked.seed, asked.division
        if seed is None and checked_budget(asked.profile, asked.cases, None).new_seed:
            before = facts_of(division.journal).get("seed", "None")
            seed = int(before) if before != "None" else secrets.randbits(32)
        known = vars(asked) | vars(asked.on) | {"device": asked.on.name_of(device), "seed": seed}
        known["examples"] = asked.examples or ""
        request = Request(**{each.name: known[each.name] for each in fields(Request)})
        plan = plan_of(self.declared, request)
        with reporting(sys.stderr) as line, watched(line):
            records = outcome(plan, division, request.device)
        verdicts = [verdict_of(each, records[each.name], request, asked.failures) for each in self.declared]
        found = self._with_unused([judged(*pair) for pair in zip(self.declared, verdicts, strict=True)])
        if division.report is not None:
            text = report(plan.name, plan.rests_on, [recorded(each.verdict) for each in found])
            save(division.report, text.encode())
        return found

    def _write_junit(self, found: list[Judged], ended: tuple[str, RefsimError] | None = None) -> None:
        if self.asked.junit is not None:
            save(self.asked.junit, junit(found, ended).encode())


def _say_waiting(files: Sequence[Path]) -> None:
    console.tell(f"waiting for a change of {counted(len(files), 'file')}; Ctrl-C ends")
