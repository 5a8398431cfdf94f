"""The result of a campaign: one record with everything that is needed to believe it and to repeat it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from refsim.compare import Mismatch
from refsim.errors import Kind, RefsimError, check_named, counted
from refsim.render import Command
from refsim.render.cards import Card, Facts
from refsim.silicon.witness import SiliconWitness

PASS, FAIL, INEXACT, ASSUMED = "pass", "fail", "inexact", "assumed"
UNSUPPORTED, TIMEOUT, NOT_RUN, ERROR = "unsupported", "timeout", "not-run", "error"
GRAVITY = (PASS, ASSUMED, INEXACT, UNSUPPORTED, TIMEOUT, FAIL, ERROR)
"""The statuses of a kernel that was run; of several the last one in this order decides."""

HELD_TO = "held to  "
"""The prefix of lines that report the checks in addition to the oracle."""

KIND_OF = {PASS: None, FAIL: Kind.FAULT, **dict.fromkeys((INEXACT, ASSUMED, UNSUPPORTED, TIMEOUT), Kind.INCONCLUSIVE)}
KIND_OF |= {NOT_RUN: Kind.MISSING, ERROR: Kind.USAGE}
"""The kind of failure of each status; None for no failure."""

MEANING = {
    PASS: "every bit is as the oracle says, or within the bound that the kernel promises",
    FAIL: "a fault of the device, elements beyond the promise, or a witness that contradicts the model",
    INEXACT: "bits agree, the promise is bitwise, and arithmetic on their way has no fixed bits",
    ASSUMED: "the bits agree, but some instructions were computed with another chip's recordings or an unconfirmed rule: "
    "unverified on this target",
    UNSUPPORTED: "the launch asks for what the device, or --arithmetic known, does not have",
    TIMEOUT: "a launch did not end within the time limit",
    NOT_RUN: "left out: a kernel before it failed, or something that it needs is missing",
    ERROR: "the declaration is wrong, or its files cannot be read or compiled; other kernels still run",
}
"""The meaning of each status in one sentence; docs/verdicts.md has the rules and their order."""


@dataclass(frozen=True)
class Recomputed:
    """How many outputs the slow definition computed, how many differ, and where the `first` difference is.

    `is_declared` is False for a kernel without a definition; then nothing is computed again. `judges` names the
    definitions: "definition=", "products=", and refsim's own, such as "softmax".
    """

    outputs: int = 0
    differing: int = 0
    first: str = ""
    is_declared: bool = False
    judges: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return a sentence: "24 outputs computed again by the slow definition (softmax), 0 differ"."""
        if not self.is_declared:
            return "no second definition was asked: declare definition= or products="
        judges = f" ({', '.join(self.judges)})" if self.judges else ""
        return (
            f"{counted(self.outputs, 'output')} computed again by the slow definition{judges}, {self.differing} differ"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain numbers, strings and booleans."""
        return asdict(self)

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> "Recomputed":
        """Return the record that `to_json` wrote; raise TypeError for any other record."""
        return Recomputed(**{**record, "judges": tuple(record.get("judges", ()))})


@dataclass(frozen=True, repr=False)
class Verdict(Card):
    """The outcome of a campaign: `status` is a key of KIND_OF, `exit_code` the exit code of commands.

    Counts: `cases` test cases and `elements` output elements were compared; `differing` of them break the accuracy
    contract; `counts` has (elements, differing) of each output and each read-only input. `worst` is the mismatch with
    the largest distance.

    Finding: `finding` is the text. `problem` and `problem_text` are the smallest known test case as JSON and as text.
    `mismatches` has one mismatch for each differing output; `mismatch` is the worst of them. `replay` is the file of
    the replay case.

    `notes` make no kernel wrong: an unused read of uninitialized memory, a case that could not be written. `silicon`
    names the hardware recordings that the model was compared with for the instructions that ran; `recomputed` counts
    outputs that a slow definition computed again. `waived` holds the finding that each waiver allowed, "" for a waiver
    that should have allowed one: then a campaign fails. `device` describes the device with hashes, flags and tools;
    `seconds` is wall-clock time. `error` is the error that ended the campaign, whose kind decides the exit code. `unfit`
    lists the entries that the target cannot launch.
    """

    kernel: str
    status: str
    device: Mapping[str, str]
    profile: str
    seed: int | None = None
    cases: int = 0
    elements: int = 0
    seconds: float = 0.0
    finding: str = ""
    mismatch: Mismatch | None = None
    problem: Any = None
    problem_text: str = ""
    replay: str = ""
    promise: str = "bitwise"
    notes: tuple[str, ...] = ()
    differing: int = 0
    worst: Mismatch | None = None
    mismatches: tuple[Mismatch, ...] = ()
    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    silicon: SiliconWitness = field(default_factory=SiliconWitness)
    recomputed: Recomputed = field(default_factory=Recomputed)
    waived: Mapping[str, str] = field(default_factory=dict)
    error: RefsimError | None = None
    unfit: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_named("status", self.status, KIND_OF)

    @staticmethod
    def of_error(kernel: str, error: RefsimError, profile: str, **facts: Any) -> "Verdict":
        """Return the verdict of a kernel, or of a file of kernels, that an error ended."""
        return Verdict(kernel, ERROR, {}, profile, finding=str(error), error=error, **facts)

    def __bool__(self) -> bool:
        return self.status == PASS

    @property
    def checks(self) -> tuple[str, ...]:
        """Return the independent checks: what the model of the instructions that ran was compared with ("recorded",
        "published", "definition"), and "outputs" if a slow definition computed some again; empty for none."""
        return (*self.silicon.judges, *(("outputs",) if self.recomputed.outputs else ()))

    @property
    def exit_code(self) -> int:
        """Return the exit code of commands: 0 for pass, else the value of the kind of the error or status."""
        kind = self.error.kind if self.error else KIND_OF[self.status]
        return 0 if kind is None else kind.value

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_summary(self) -> str:
        return self.lines()[0]

    def _facts(self) -> Facts:
        yield from (("", line) for line in self.lines()[1:])

    @property
    def unused(self) -> list[str]:
        """Return the waivers that should have allowed a finding of this kernel and did not; [] unless it ended well."""
        return [name for name, what in self.waived.items() if not what and self.status in (PASS, INEXACT, ASSUMED)]

    def with_unused(self, unused: Sequence[str]) -> "Verdict":
        """Return the verdict; it fails if it would pass, but these waivers allowed no finding."""
        if not unused or self.status not in (PASS, INEXACT, ASSUMED):
            return self
        what = f"{', '.join(unused)} allowed no finding in {counted(self.cases, 'case')}"
        rule = "a waiver names the check and a line of a finding"
        error = RefsimError("unused-waiver", what, rule=rule, help="remove the waiver, or correct its check and line")
        return replace(self, status=FAIL, finding=str(error))

    def lines(self) -> list[str]:
        """Return the verdict as lines: status and counts, the finding, the test case and how to repeat it."""
        where = "".join(f" {self.device[key]}" for key in ("name", "target") if key in self.device)
        where = f" on{where}" if where else ""
        seed = "" if self.seed is None else f", seed {self.seed}"
        lines = [
            f"{self.status}  {self.kernel}{where}: {counted(self.cases, 'case')}, {counted(self.elements, 'element')}, "
            f"{self.seconds:.1f} s, profile {self.profile}{seed}"
        ]
        lines += self.finding.splitlines()
        if self.differing and self.worst is not None and self.cases > 1:
            name = f" in {self.worst.name}" if self.worst.name else ""
            lines += [
                f"over all cases {self.differing} of {counted(self.elements, 'element')}, {self.worst.worst_text}{name}"
            ]
        lines += [f"waived  {name}: {what}" for name, what in self.waived.items() if what]
        lines += [f"note  {line}" for line in self.notes]
        lines += [f"{HELD_TO}{line}" for line in self.silicon.lines()]
        lines += [f"{HELD_TO}{self.recomputed.text}"]
        lines += [] if self.checks else [f"{HELD_TO}none: no independent check was made"]
        lines += [f"test case {self.problem_text}"] if self.problem_text else []
        return lines + ([Command(f"repeat  refsim replay {self.replay}")] if self.replay else [])

    def to_json(self) -> dict[str, Any]:
        """Return plain dictionaries, lists, numbers and strings; `from_json` returns an equal verdict."""
        record = {key: getattr(self, key) for key in self.__dataclass_fields__}
        record |= {"device": dict(self.device), "exit_code": self.exit_code}
        record |= {"notes": list(self.notes), "waived": dict(self.waived)}
        record["mismatches"] = [mismatch.to_json() for mismatch in self.mismatches]
        record["counts"] = {name: {"elements": of, "differing": bad} for name, (of, bad) in self.counts.items()}
        record |= {"silicon": self.silicon.to_json(), "recomputed": self.recomputed.to_json()}
        record |= {"error": self.error.to_json() if self.error else None, "unfit": list(self.unfit)}
        record["checks"] = list(self.checks)
        found = {"mismatch": self.mismatch, "worst": self.worst}
        return record | {key: mismatch.to_json() if mismatch else None for key, mismatch in found.items()}

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> "Verdict":
        """Return the verdict that `to_json` wrote; raise RefsimError for any other record."""
        try:
            return Verdict._of(record)
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as problem:
            what = f"not a verdict: {type(problem).__name__}: {problem}"
            raise RefsimError("bad-file", what, kind=Kind.UNREADABLE) from problem

    @staticmethod
    def _of(record: Mapping[str, Any]) -> "Verdict":
        """Return the verdict of a record; raise RefsimError for unknown or missing fields."""
        known = {key: value for key, value in record.items() if key not in ("exit_code", "checks")}
        for key in known:
            check_named("field of Verdict", key, Verdict.__dataclass_fields__)
        missing = [key for key in ("kernel", "status", "device", "profile") if key not in known]
        if missing:
            raise RefsimError("bad-file", f"a verdict needs {missing[0]!r}")
        known |= {key: tuple(known.get(key, ())) for key in ("notes", "unfit")}
        known["error"] = RefsimError.from_json(known["error"]) if known.get("error") else None
        for key in ("mismatch", "worst"):
            record_of = known.get(key)
            known[key] = Mismatch.from_json(record_of) if record_of else None
        known["mismatches"] = tuple(map(Mismatch.from_json, known.get("mismatches", ())))
        for key, kind in (("silicon", SiliconWitness), ("recomputed", Recomputed)):
            if key in known:
                known[key] = kind.from_json(known[key])
        counts = known.get("counts", {})
        known["counts"] = {name: (each["elements"], each["differing"]) for name, each in counts.items()}
        return Verdict(**known)
