"""The test cases that a candidate cause is checked on: the cases of a campaign, and more until there are enough."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from refsim.device import Device
from refsim.kernels import Kernel
from refsim.testing.runs import examine
from refsim.testing.suspects.budget import Budget, CountedDevice
from refsim.testing.verdicts import FAIL

WANTED = 8  # test cases of each kind: differing and agreeing
DRAWN = 60
MOST_ELEMENTS = 1 << 18


@dataclass(frozen=True)
class Witness:
    """A test case that was run: the elements of its outputs, and whether its bits differed."""

    problem: Any
    elements: int
    failed: bool


def witnesses_of(
    kernel: Kernel, device: Device, problem: Any, known: Sequence[Witness], *, budget: Budget
) -> list[Witness]:
    """Return the failing `problem`, then other failing test cases (the largest first), then passing ones.

    Known test cases are supplemented from the corpus and the strategy until there are enough of both, or the budget is
    spent.
    """
    kept = [each for each in known if each.problem != problem and each.elements <= MOST_ELEMENTS]
    seen = {repr(each.problem) for each in kept} | {repr(problem)}
    for other in cases_of(kernel):
        short = any(sum(each.failed == failed for each in kept) < WANTED for failed in (True, False))
        if not short or budget.left <= 0:
            break
        if repr(other) in seen:
            continue
        seen.add(repr(other))
        found = examine(kernel, other, CountedDevice(device, budget))
        finding = found.finding
        differs = finding is not None and finding.status == FAIL and finding.mismatch is not None
        if finding is None or differs:
            kept.append(Witness(other, found.elements, differs))
    failed = sorted((each for each in kept if each.failed), key=lambda each: -each.elements)
    passed = sorted((each for each in kept if not each.failed), key=lambda each: each.elements)
    took = next((each.elements for each in known if each.problem == problem), MOST_ELEMENTS)
    return [Witness(problem, took, failed=True), *failed[:WANTED], *passed[:WANTED]]


def smallest_first(witnesses: Sequence[Witness]) -> list[Any]:
    """Return the test cases with the smallest failing ones first, because the first ones run most often."""
    return [each.problem for each in sorted(witnesses, key=lambda each: (not each.failed, each.elements))]


def cases_of(kernel: Kernel) -> Iterator[Any]:
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
