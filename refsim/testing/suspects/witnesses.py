"""The test cases that a candidate cause is checked on: the cases of a campaign, and more until there are enough."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from refsim.device import Device
from refsim.kernels import Kernel
from refsim.testing.runs import examine
from refsim.testing.verdicts import FAIL

WANTED = 8  # test cases of each kind: differing and agreeing
DRAWN = 60
LONGEST_SECONDS = 1.0


@dataclass(frozen=True)
class Witness:
    """A test case that was run: the processor time it took, and whether its bits differed."""

    problem: Any
    seconds: float
    failed: bool


def witnesses_of(
    kernel: Kernel, device: Device, problem: Any, known: Sequence[Witness], *, seconds: float
) -> list[Witness]:
    """Return the failing `problem`, then other failing test cases (the longest first), then passing ones.

    Known test cases are supplemented from the corpus and the strategy until there are enough of both, or the time is
    over.
    """
    deadline = time.process_time() + seconds
    kept = [each for each in known if each.problem != problem and each.seconds <= LONGEST_SECONDS]
    seen = {repr(each.problem) for each in kept} | {repr(problem)}
    for other in _more(kernel):
        short = any(sum(each.failed == failed for each in kept) < WANTED for failed in (True, False))
        if not short or time.process_time() > deadline:
            break
        if repr(other) in seen:
            continue
        seen.add(repr(other))
        started = time.process_time()
        finding = examine(kernel, other, device).finding
        differs = finding is not None and finding.status == FAIL and finding.mismatch is not None
        if finding is None or differs:
            kept.append(Witness(other, time.process_time() - started, differs))
    failed = sorted((each for each in kept if each.failed), key=lambda each: -each.seconds)
    passed = sorted((each for each in kept if not each.failed), key=lambda each: each.seconds)
    took = next((each.seconds for each in known if each.problem == problem), LONGEST_SECONDS)
    return [Witness(problem, took, failed=True), *failed[:WANTED], *passed[:WANTED]]


def quickest_first(witnesses: Sequence[Witness]) -> list[Any]:
    """Return the test cases with the quickest failing ones first, because the first ones run most often."""
    return [each.problem for each in sorted(witnesses, key=lambda each: (not each.failed, each.seconds))]


def _more(kernel: Kernel) -> Iterator[Any]:
    """Yield the corpus, then test cases of the strategy, equal ones every time."""
    import hypothesis

    yield from kernel.corpus
    drawn: list[Any] = []
    chosen = hypothesis.settings(
        max_examples=DRAWN,
        database=None,
        derandomize=True,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )

    def take(problem: Any) -> None:
        drawn.append(problem)

    chosen(hypothesis.given(problem=kernel.problem)(take))()
    yield from drawn
