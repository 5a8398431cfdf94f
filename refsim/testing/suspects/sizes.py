"""A tail left out: the test cases fail whose size is no multiple of a step, and only at the end."""

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from refsim.errors import RefsimError
from refsim.testing.suspects.budget import Budget
from refsim.testing.suspects.feeding import Array, Diet, differing
from refsim.testing.suspects.suspicion import Suspicion

STEPS = (256, 128, 64, 32, 16, 8, 4, 2)
BASES = 4  # test cases whose size is changed
FILLING = 0x38


def tail_left_out(
    diet: Diet, failing: Sequence[Any], agreeing: Sequence[Any], *, budget: Budget
) -> tuple[Suspicion, ...]:
    """Return the recipe's field that is a size, and the largest step: the kernel agrees exactly at its multiples.

    Failed test cases run again at other sizes; the size of a test case that agrees must be a multiple too, unless it
    agrees at every size. A wrong stride fails at the same sizes. So the last elements must be unread, or be the only
    wrong ones.
    """
    found = []
    for name in sizes(failing[0]):
        largest = max(sizes(problem).get(name, 0) for problem in (*failing, *agreeing))
        bases = [problem for problem in failing if name in sizes(problem)][:BASES]
        budget.check()
        step = _least_step(diet, bases, name, largest)
        if step and (tried := _parted(diet, bases, name, step, largest)):
            found.append((name, step, tried))
    if len(found) != 1:
        return ()
    name, step, tried = found[0]
    if any(sizes(problem).get(name, 0) % step == 0 for problem in failing):
        return ()
    says = f"it agrees where {name} is a multiple of {step} and nowhere else"
    return (Suspicion("tail", says, (f"recipe field {name}",), tried, by_size=True),)


def _least_step(diet: Diet, bases: Sequence[Any], name: str, largest: int) -> int:
    """Return the smallest power of two at which the first base that fails below it agrees; 0 if all or none agree."""
    for base in bases:
        agree = [
            step for step in STEPS if 2 * step <= largest + 1 and _is_wrong(diet, resized(base, name, step)) is False
        ]
        if not agree:
            return 0
        if _is_wrong(diet, resized(base, name, 2 * min(agree) - 1)):
            return min(agree)
    return 0


def _parted(diet: Diet, bases: Sequence[Any], name: str, step: int, largest: int) -> int:
    """Return how many sizes were tried if multiples of `step` agree, others fail, and only the end is lost; else 0."""
    multiples = [step, 2 * step, largest // step * step]
    others = [size for size in (2 * step - 1, step + 1, step + step // 2) if size % step]
    tried, size = 0, 2 * step - 1
    for base in bases:
        seen = [_is_wrong(diet, resized(base, name, multiple)) for multiple in dict.fromkeys(multiples)]
        if any(is_wrong is None or is_wrong for is_wrong in seen):
            return 0
        if not all(_is_wrong(diet, resized(base, name, other)) for other in dict.fromkeys(others)):
            continue  # for example a sum that is NaN anyway
        if not _loses_its_end(diet, resized(base, name, size), size, step):
            return 0
        tried += len(seen) + len(set(others))
    return tried


def _is_wrong(diet: Diet, problem: Any) -> bool | None:
    """Return whether a test case fails by its bits; None if the recipe, the oracle or the device refuses it."""
    if problem is None:
        return None
    try:
        return any(wrong.any() for wrong in diet.wrong(problem).values())
    except (RefsimError, ValueError, TypeError, IndexError, KeyError, ZeroDivisionError):
        return None


def _loses_its_end(diet: Diet, problem: Any, size: int, step: int) -> bool:
    """Return whether only elements after the last multiple of `step` are wrong, or an input's last is not read."""
    kept = size // step * step
    wrong = [each for each in diet.wrong(problem).values() if each.any()]
    if all(any(not part[:kept].any() for part in _along(each, size)) for each in wrong):
        return True
    return any(
        not _is_heard(diet, problem, name, size, size - 1) and _is_heard(diet, problem, name, size, 0)
        for name in diet.uploads(problem)
    )


def _is_heard(diet: Diet, problem: Any, name: str, size: int, place: int) -> bool:
    """Return whether outputs depend on the elements of an input at one index of the dimension with `size` elements."""

    def changed(given: str, array: Array) -> Array:
        if given != name:
            return array
        other = array.copy()
        for part in _along(other, size):
            line = np.full(part[place].nbytes, FILLING, np.uint8).view(array.dtype).reshape(part[place].shape)
            part[place] = np.where(part[place] == line, line ^ 1 if line.dtype.kind in "ui" else -line, line)
            break
        return other

    try:
        return any(each.any() for each in differing(diet.fed(problem, changed), diet.outputs(problem)).values())
    except RefsimError:
        return True


def _along(array: Array, size: int) -> Iterator[Array]:
    """Yield views of an array with the dimension of `size` elements, or a longer one, in front."""
    exact = [axis for axis in range(array.ndim) if array.shape[axis] == size]
    longer = [axis for axis in range(array.ndim) if array.ndim > 1 and array.shape[axis] > size]
    for axis in (*exact, *longer):
        yield np.moveaxis(array, axis, 0)
    if array.ndim == 1 and array.size % size == 0 and array.size > size:
        yield array.reshape(-1, size).T


def sizes(problem: Any, prefix: str = "") -> dict[str, int]:
    """Return the whole numbers of a recipe and its nested recipes from 1 on, without seeds: {"x.n": 2049, "rows": 3}."""
    found: dict[str, int] = {}
    for each in fields(problem):
        value = getattr(problem, each.name)
        if is_dataclass(value):
            found |= sizes(value, f"{prefix}{each.name}.")
        elif isinstance(value, int) and not isinstance(value, bool) and "seed" not in each.name and value > 0:
            found[f"{prefix}{each.name}"] = value
    return found


def resized(problem: Any, name: str, size: int) -> Any:
    """Return the test case with another number in one field; None if the recipe refuses it."""
    head, _, rest = name.partition(".")
    try:
        return replace(problem, **{head: resized(getattr(problem, head), rest, size) if rest else size})
    except (RefsimError, ValueError, TypeError):
        return None
