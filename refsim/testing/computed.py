"""The explanation of a failing test case by what the kernel computes: the choice, or the pair of choices, it made wrong."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.causes.effort import Clock, Limit
from refsim.causes.explanation import DiffExplanation, DiffOutcome
from refsim.causes.search import CauseSearch, Named
from refsim.compare.code_line import codes_of
from refsim.computations.engine import Computation
from refsim.errors import RefsimError
from refsim.kernels import Kernel

COMPUTED_SHARE = 0.35
"""The part of the work for the choices of the computation; the rest is for the outputs alone, inputs and code."""
LEAST_DIFFERING, LEAST_OF_PAIRS, LEAST_ELEMENTS = 4, 16, 256
"""With fewer differing elements and fewer elements, a choice may fit by chance; a pair with fewer differing elements."""
Report = Callable[[str, int, int], None]
Arrays = Mapping[str, NDArray[Any]]


def of_computation(
    kernel: Kernel,
    problem: Any,
    target: str,
    got: Arrays,
    wrong: Mapping[str, NDArray[np.bool_]],
    seconds: float,
    report: Report | None = None,
) -> dict[str, DiffExplanation]:
    """Return the explanation of each output that the choices of `Kernel(computes=...)` reproduce in every bit.

    One cause must explain all outputs of a computation together. `wrong` marks the elements that differ. The search
    ends after a part of the work that takes about `seconds` on an idle core.
    """
    found: dict[str, DiffExplanation] = {}
    parts = kernel.computed(problem, target) if kernel.computes is not None else {}
    limit = Limit(Clock(False), COMPUTED_SHARE * seconds)
    for name, subject in parts.items():
        if isinstance(subject, np.ndarray):
            continue
        names = [name] if name else list(subject.apart(subject.codes(subject.usual)))
        if not any(wrong[each].any() for each in names):
            continue
        named = _named(subject, {each: codes_of(np.asarray(got[each])) for each in names}, limit, report)
        for each in names if named else ():
            marks = wrong[each]
            count, size = int(marks.sum()), int(marks.size)
            if count:
                found[each] = DiffExplanation(DiffOutcome.EXPLAINED, count, size, size, named)
    return found


def _named(subject: Computation, got: Arrays, limit: Limit, report: Report | None) -> tuple[Named, ...]:
    """Return the choices, or pairs of choices, that reproduce every bit of the outputs of a computation."""
    try:
        codes = subject.together(got)
    except (RefsimError, ValueError):  # outputs of another size than the computation has
        return ()
    found = CauseSearch(subject, subject.usual, codes, limit, None, report).run()
    are_pairs = all(len(each.causes) > 1 for each in found.whole)
    least = LEAST_OF_PAIRS if are_pairs else LEAST_DIFFERING if found.judged < LEAST_ELEMENTS else 1
    return tuple(found.whole) if found.differing >= least and found.judged == codes.size else ()
