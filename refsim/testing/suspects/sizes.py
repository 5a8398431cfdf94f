"""A tail left out shows in which problems fail: those whose size is no multiple of what the kernel takes at once."""

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from refsim.testing.suspects.suspicion import Suspicion
from refsim.testing.suspects.witnesses import Witness

STEPS = (2, 4, 8, 16, 32, 64, 128, 256)
LEAST = 3  # witnesses of each kind, or a step is not believed


def tail_left_out(witnesses: Sequence[Witness]) -> tuple[Suspicion, ...]:
    """The one size of the recipe, and its largest step, that tells every problem that agrees from every one that fails."""
    found = []
    for name in sizes(witnesses[0].problem):
        held = [(sizes(each.problem).get(name, 0), each.failed) for each in witnesses]
        failed, passed = ([size for size, fails in held if size and fails == kind] for kind in (True, False))
        if min(len(failed), len(passed)) < LEAST or len(set(passed)) == 1:
            continue  # a problem of no size agrees whatever the mistake, and one size alone is no rule
        for step in reversed(STEPS):
            if all((size % step != 0) == fails for size, fails in held):
                found.append((name, step))
                break
    if len({name for name, _ in found}) != 1:
        return ()
    name, step = found[0]
    says = f"it agrees where {name} is a multiple of {step} and nowhere else"
    return (Suspicion("tail", says, (f"recipe field {name}",), len(witnesses), by_size=True),)


def sizes(problem: Any) -> dict[str, int]:
    """The whole numbers of a recipe from 1 on, seeds aside: {"x.n": 2049, "rows": 3}."""
    return dict(_sizes(problem, ""))


def _sizes(problem: Any, prefix: str) -> Iterator[tuple[str, int]]:
    for each in fields(problem):
        value = getattr(problem, each.name)
        if is_dataclass(value):
            yield from _sizes(value, f"{prefix}{each.name}.")
        elif isinstance(value, int) and not isinstance(value, bool) and "seed" not in each.name and value > 0:
            yield f"{prefix}{each.name}", value
