"""One run of one test case: its result as a finding and as a verdict."""

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from refsim import ptx
from refsim.device import Device
from refsim.device.compile import compiled
from refsim.device.sim import SimDevice
from refsim.errors import Kind, RefsimError, UnfitTargetError
from refsim.kernels import Kernel
from refsim.ptx.checks.first_nan import NanRow, NonFinite
from refsim.ptx.text.source_names import entry_named
from refsim.testing import verdicts
from refsim.testing.decisions import DecisionBits, Finding, Observation, blamed, decide, with_open_bits
from refsim.testing.laws import observe
from refsim.testing.recipes import from_json, spelled, to_json
from refsim.testing.user_code import called, shortened
from refsim.testing.verdicts import FAIL, Verdict
from refsim.testing.witnesses import Witnesses, contradicted

TARGETS = ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a")
"""The targets that are tried for code that does not compile for the target of a run."""


@dataclass(frozen=True)
class Examined:
    """The result of one run: the finding (None if it agrees), and the observation (None if it ended in an error)."""

    finding: Finding | None
    seen: Observation | None = None

    @property
    def elements(self) -> int:
        """Return how many elements of outputs were compared."""
        return self.seen.elements if self.seen else 0

    @property
    def differing(self) -> int:
        """Return how many elements break the accuracy contract, including changed elements of inputs."""
        return sum(mismatch.count for mismatch in self.seen.mismatches) if self.seen else 0

    @property
    def counts(self) -> Mapping[str, tuple[int, int]]:
        """Return (elements, differing) of each output, and of each read-only input."""
        return self.seen.counts if self.seen else {}

    @property
    def notes(self) -> tuple[str, ...]:
        return self.seen.notes if self.seen else ()


def run_problem(kernel: Kernel, problem: Any, device: Device, *, replay: str = "") -> Verdict:
    """Return the verdict of one test case, run once; nothing is generated or shrunk."""
    started = time.monotonic()
    found, known = examine(kernel, problem, device, follow_open=True), DecisionBits()
    if found.seen:
        known.note(found.seen)
    beside = Witnesses(kernel, device.target, 1)
    if found.seen:
        beside.saw(problem, found.seen)
    silicon, recomputed = beside.silicon(), beside.recomputed()
    finding = found.finding if found.finding and found.finding.status == FAIL else contradicted(silicon, recomputed)
    finding = finding or found.finding
    said, open_notes = with_open_bits(kernel, finding, known)
    record, text, remarks = described(kernel, problem)
    return Verdict(
        kernel.name,
        finding.status if finding else verdicts.PASS,
        describe(device),
        "replay",
        cases=1,
        elements=found.elements,
        differing=found.differing,
        seconds=time.monotonic() - started,
        finding=said,
        mismatch=finding.mismatch if finding else None,
        mismatches=finding.mismatches if finding else (),
        counts=found.counts,
        worst=finding.mismatch if finding else None,
        problem=record,
        problem_text=text,
        replay=replay,
        promise=kernel.contract,
        notes=(*found.notes, *open_notes, *remarks),
        silicon=silicon,
        recomputed=recomputed,
        waived=found.seen.waived if found.seen else {},
    )


def with_first_nan(kernel: Kernel, verdict: Verdict, device: SimDevice) -> Verdict:
    """Return a verdict with notes on where NaN and infinities come from: in its failing test case, or else in the first
    case of the corpus with some in an output."""
    problems = kernel.corpus if verdict.problem is None else (from_json(kernel.recipe, verdict.problem),)
    rows: list[NanRow] = []
    for problem in problems:
        with suppress(RefsimError), device.probing().launcher(kernel.code) as launcher:
            launcher.following, launcher.formats, rows = NonFinite(), kernel.output_formats(problem), launcher.nan_rows
            called(kernel, "run", kernel.run, launcher, problem, problem=problem)
        if rows:
            break
    said = [f"first NaN: {' | '.join(filter(None, row))}" for row in rows]
    return replace(verdict, notes=(*verdict.notes, *(said or ["first NaN: no output holds NaN or an infinity"])))


def examine(kernel: Kernel, problem: Any, device: Device, *, follow_open: bool = False) -> Examined:
    """Run a test case once and decide about it; raise an error that is not the kernel's."""
    try:
        seen = observe(kernel, problem, device, follow_open=follow_open)
    except RefsimError as error:
        return Examined(blamed(_with_target(error, kernel, device), problem))
    except Exception as error:
        error.add_note(f"while {kernel.name} ran {shortened(problem)}")
        raise
    return Examined(decide(kernel, seen, problem), seen)


def _with_target(error: RefsimError, kernel: Kernel, device: Device) -> RefsimError:
    """Return the error of code that does not compile, or lacks an entry, with the target for which it does, if any."""
    if error.code not in ("compile-error", "unknown-entry") or error.kind is Kind.MISSING:
        return error
    asked = [*kernel.entries, *(re.findall("'(.*)'", error.what) if error.code == "unknown-entry" else [])]
    for target in (device.target, *TARGETS):
        with suppress(RefsimError):
            program = ptx.load(compiled(kernel.code, target).text, target)
            for entry in asked:
                entry_named(entry, program.entries, program.text)
            if target == device.target:
                return error
            help = f"{target} has all of it: --target {target}"
            return UnfitTargetError("wrong-target", f"{device.target}: {error.what}", error.where, error.rule, help)
    return error


def described(kernel: Kernel, problem: Any) -> tuple[Any, str, tuple[str, ...]]:
    """Return a test case as JSON (None if impossible), on one line, and a note if it has no JSON."""
    try:
        return to_json(problem), spelled(problem), ()
    except RefsimError as error:
        return None, shortened(problem), (f"this test case cannot be written: {error.what}",)


def describe(device: Device) -> dict[str, str]:
    """Return the device's name and description; after a run it includes hashes, flags and tools."""
    return {"name": device.name, **device.describe()}
