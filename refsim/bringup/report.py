"""The results of a bring-up: cases by suite, with everything that a reader, a baseline or a later run needs.

A task is a case that has not run yet; an error of a task becomes a case, too.
"""

import hashlib
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_origin

from refsim.errors import Kind, RefsimError
from refsim.files.access import read_whole, text_of
from refsim.testing.verdicts import PASS, UNSUPPORTED

DIFFERS, LEFT_OUT = "differs", "not run"
STATUSES = (PASS, DIFFERS, UNSUPPORTED, LEFT_OUT)
KIND = "refsim-bringup"
MAX_REPORT_BYTES = 1 << 26


@dataclass(frozen=True)
class Difference:
    """The smallest case that shows a difference, in bits, and its explanation.

    `smallest` is one line a term; `got` and `want` are patterns such as 0x3f800400. `explanation` names the parameters
    that reproduce the device; `known` means that another chip's profile has them, so the difference is no fault.
    """

    smallest: tuple[str, ...]
    got: str
    want: str
    explanation: str = ""
    known: bool = False

    def lines(self) -> list[str]:
        """Return the terms, both results and the explanation."""
        return [*self.smallest, f"got  {self.got}", f"want {self.want}", self.explanation or "unexplained"]


@dataclass(frozen=True)
class Case:
    """One case of the matrix: `words` results were compared and `differing` of them differ.

    `recorded` of these were compared only with an earlier recording, by digests; the others with the model. `coverage`
    describes the tried inputs, `note` the reason why a case could not run or other facts, `parameters` the discovered
    parameters. `bug` marks a case that was not run because refsim itself failed.
    """

    suite: str
    name: str
    status: str
    words: int = 0
    differing: int = 0
    seconds: float = 0.0
    coverage: str = ""
    note: str = ""
    difference: Difference | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    bug: bool = False
    recorded: int = 0

    def __post_init__(self) -> None:
        """Raise `unknown-name` for an unknown status."""
        if self.status not in STATUSES:
            raise RefsimError("unknown-name", f"{self.status!r} is not a status", rule=f"one of {', '.join(STATUSES)}")

    @property
    def key(self) -> str:
        """Return the suite and the name."""
        return f"{self.suite}: {self.name}"

    @property
    def unexplained(self) -> bool:
        """Return whether the case differs and no other chip's profile explains it."""
        return self.status == DIFFERS and not (self.difference and self.difference.known)

    @property
    def shown(self) -> str:
        """Return the status for the matrix: an explained difference is "explained"."""
        return "explained" if self.status == DIFFERS and not self.unexplained else self.status

    def to_json(self) -> dict[str, Any]:
        """Return plain dictionaries, lists, numbers and strings."""
        record = {each.name: getattr(self, each.name) for each in fields(self)}
        record["parameters"] = dict(self.parameters)
        if self.difference:
            record["difference"] = {each.name: getattr(self.difference, each.name) for each in fields(Difference)}
            record["difference"]["smallest"] = list(self.difference.smallest)
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Case":
        """Return the case that `to_json` wrote; raise RefsimError `bad-file` for anything else."""
        try:
            content = dict(record)
            if content.get("difference") is not None:
                difference = dict(content["difference"])
                content["difference"] = Difference(**{**difference, "smallest": tuple(difference["smallest"])})
                _check_kinds(difference, _kinds_of(Difference))
                if not all(isinstance(line, str) for line in difference["smallest"]):
                    raise TypeError("smallest is a list of texts")
            case = cls(**content)
            _check_kinds(content, _kinds_of(cls))
        except (TypeError, KeyError, ValueError) as error:
            raise RefsimError("bad-file", f"not a case of a bring-up: {error}", kind=Kind.UNREADABLE) from error
        return case


_READ: dict[Any, Any] = {str: str, int: int, bool: bool, float: (int, float), tuple: list, Mapping: dict}
"""The type of a field -> the types of its value in JSON."""


def _kinds_of(record: type) -> dict[str, type | tuple[type, ...]]:
    kinds = {each.name: get_origin(each.type) or each.type for each in fields(record)}
    return {name: _READ[kind] for name, kind in kinds.items() if kind in _READ}


def _check_kinds(record: Mapping[str, Any], kinds: Mapping[str, type | tuple[type, ...]]) -> None:
    """Raise TypeError for a value that to_json does not write."""
    for name, kind in kinds.items():
        if name in record and not isinstance(record[name], kind):
            raise TypeError(f"{name} is {record[name]!r}")


@dataclass(frozen=True)
class Change:
    """A difference from the baseline: its subject, and both sides in a few words."""

    case: str
    before: str
    now: str


@dataclass(frozen=True)
class Report:
    """A whole bring-up: `facts` of device and tools, `cases` in order, `changes` since a baseline if one was given."""

    facts: Mapping[str, str]
    cases: tuple[Case, ...]
    simulated: bool
    changes: tuple[Change, ...] | None = None

    @property
    def title(self) -> str:
        """Return the title of the report."""
        device = self.facts.get("device", "a device")
        return f"Bring-up of {device}" + (" (simulated)" if self.simulated and "simulated" not in device else "")

    @property
    def suites(self) -> tuple[str, ...]:
        """Return the names of the suites, in order."""
        return tuple(dict.fromkeys(case.suite for case in self.cases))

    def of(self, suite: str) -> tuple[Case, ...]:
        """Return the cases of a suite."""
        return tuple(case for case in self.cases if case.suite == suite)

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of cases of each status; explained differences have their own."""
        names = (PASS, DIFFERS, "explained", UNSUPPORTED, LEFT_OUT)
        return {name: sum(case.shown == name for case in self.cases) for name in names}

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the number of cases that did not run, then each reason with its count; empty where all ran."""
        reasons = Counter(case.note or "no reason given" for case in self.cases if case.status == LEFT_OUT)
        if not reasons:
            return ()
        head = f"{reasons.total()} of {len(self.cases)} cases did not run: nothing is known of them"
        return (head, *(f"{count} x {reason}" for reason, count in reasons.most_common()))

    @property
    def verdict(self) -> str:
        """Return one sentence: "131 pass, 2 differ and are explained, 0 differ unexplained, ...". Cases that did not
        run come first."""
        counts = self.counts
        words = sum(case.words for case in self.cases)
        recorded = sum(case.recorded for case in self.cases)
        against = f", {words - recorded:,} with the model, the others with a recording" if recorded else ""
        first = f"{counts[LEFT_OUT]} of {len(self.cases)} not run, " if counts[LEFT_OUT] else ""
        last = "" if counts[LEFT_OUT] else ", 0 not run"
        return (
            f"{first}{counts[PASS]} pass, {counts[DIFFERS]} differ unexplained, {counts['explained']} differ and are explained, "
            f"{counts[UNSUPPORTED]} unsupported{last}; {words:,} words compared{against}"
        )

    @property
    def exit_code(self) -> int:
        """Return the exit code of the command. 70 if a bug of refsim kept a case from running, 1 if any difference is
        unexplained, 5 if a case did not run or nothing was compared, else 0."""
        if any(case.bug for case in self.cases):
            return Kind.BUG.value
        if any(case.unexplained for case in self.cases):
            return Kind.FAULT.value
        compared = any(case.status in (PASS, DIFFERS) for case in self.cases)
        return 0 if compared and not self.missing else Kind.INCONCLUSIVE.value

    def to_json(self) -> dict[str, Any]:
        """Return plain dictionaries, lists, numbers and strings."""
        record: dict[str, Any] = {
            "kind": KIND,
            "missing": list(self.missing),
            "simulated": self.simulated,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "counts": self.counts,
            "facts": dict(self.facts),
            "cases": [case.to_json() for case in self.cases],
        }
        if self.changes is not None:
            record["changes"] = [
                {each.name: getattr(change, each.name) for each in fields(Change)} for change in self.changes
            ]
        return record


def read_report(path: Path) -> Report:
    """Return the report in a JSON file of `refsim bringup`; raise RefsimError (exit 3) for any other file."""
    import json

    def bad(what: str) -> RefsimError:
        help = "give the JSON of refsim bringup -o report.json"
        return RefsimError("bad-file", what, str(path), help=help, kind=Kind.UNREADABLE)

    try:
        record = json.loads(text_of(read_whole(path, MAX_REPORT_BYTES, "a report"), "JSON", str(path)))
    except RefsimError as problem:
        raise bad(problem.what) from problem
    except (ValueError, RecursionError) as problem:
        raise bad(f"not JSON: {problem}") from problem
    if not isinstance(record, dict) or record.get("kind") != KIND or not isinstance(record.get("cases"), list):
        raise bad("not the report of a bring-up")
    try:
        cases = tuple(Case.from_json(each) for each in record["cases"])
        facts = dict(record["facts"])
        _check_kinds(facts, dict.fromkeys(facts, str))
        return Report(facts, cases, bool(record["simulated"]))
    except (RefsimError, TypeError, KeyError, ValueError) as problem:
        raise bad(f"not the report of a bring-up: {getattr(problem, 'what', problem)}") from problem


def changes_since(old: Report, cases: tuple[Case, ...], facts: Mapping[str, str]) -> tuple[Change, ...]:
    """Return the changes between two reports: facts, added and removed cases, statuses, counts, parameters. Suites that
    did not run this time are left out; seconds and compared results do not count as changes."""
    changed = [name for name in dict.fromkeys([*old.facts, *facts]) if old.facts.get(name) != facts.get(name)]
    found = [Change(name, old.facts.get(name, "-"), facts.get(name, "-")) for name in changed]
    suites = {case.suite for case in cases}
    before = {case.key: case for case in old.cases if case.suite in suites}
    now = {case.key: case for case in cases}
    for key in dict.fromkeys([*now, *before]):
        sides = [_in_short(before.get(key)), _in_short(now.get(key))]
        if sides[0] != sides[1]:
            found.append(Change(key, *sides))
    return tuple(found)


def _in_short(case: Case | None) -> str:
    """Return status, differences and parameters of a case as text."""
    if case is None:
        return "absent"
    parts = [case.shown]
    if case.differing:
        parts.append(f"{case.differing} words")
    if case.difference and case.difference.explanation:
        parts.append(case.difference.explanation)
    found = ", ".join(f"{name} {value}" for name, value in case.parameters.items() if value is not None)
    return "; ".join([*parts, *([found] if found else [])])


@dataclass(frozen=True)
class Task:
    """A case by name; `run` returns it without suite, name and time, or raises RefsimError."""

    name: str
    run: Callable[[], Case]


def outcome(status: str = "", **facts: object) -> Case:
    """Return a task's result: a Case whose suite and name the run adds; without a status, it differs by a difference."""
    return Case("", "", status or (DIFFERS if facts.get("difference") else PASS), **facts)  # type: ignore[arg-type]


def refused(error: RefsimError) -> Case:
    """Return the case that ended in an error. A fault on the device is a difference. A missing tool means that the case
    was not run. Any other error means that this device or its compiler lacks a requirement of the case."""
    first = f"{error.what}" + (f" ({error.where.strip()})" if error.where and len(error.where) < 80 else "")
    if error.kind is Kind.FAULT:
        return outcome(DIFFERS, note=first, difference=Difference((str(error),), error.code, "a launch that ends"))
    if error.kind is Kind.MISSING:
        return outcome(LEFT_OUT, note=f"{first}: {error.help}" if error.help else first)
    return outcome(UNSUPPORTED, note=first)


def broken(error: Exception) -> Case:
    """Return the case in which refsim itself failed: not run, with the place of the failure."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return outcome(LEFT_OUT, note=f"a bug of refsim: {type(error).__name__}: {error}{place}", bug=True)


def hashed(files: Iterable[Path], root: Path | None = None) -> str:
    """Return SHA-256 over names and contents of files; the names are paths below a `root`, if one is given."""
    state = hashlib.sha256()
    for file in sorted(files):
        name = file.name if root is None else file.relative_to(root).as_posix()
        state.update(f"{name} {file.stat().st_size}\n".encode())
        state.update(file.read_bytes())
    return state.hexdigest()
