"""Suspects that show in what a kernel does not hear: subnormals it takes for zeros, a tail of its inputs that it never reads."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import decode, encode
from refsim.errors import RefsimError
from refsim.formats import FORMATS, Format
from refsim.testing.suspects.feeding import Array, Diet, differing
from refsim.testing.suspects.suspicion import Suspicion

LEAST = 4  # elements that have nothing to do with a subnormal, and agree


def subnormals_unheard(diet: Diet, problems: Sequence[Any]) -> tuple[Suspicion, ...]:
    """An input whose subnormals might as well be zeros, where whatever is wrong depends on one of them."""
    for name, array in diet.uploads(problems[0]).items():
        for row in FORMATS:
            if row.bits >= 8 and row.has_zero and row.exponent_bits and row.code_bits == 8 * array.dtype.itemsize:
                try:
                    fits = _flushes(diet, problems, name, row)
                except (RefsimError, KeyError):
                    continue
                if fits:
                    says = f"a subnormal {row.name} is taken for a zero"
                    return (Suspicion("flushed subnormals", says, (f"input {name}",), len(problems)),)
    return ()


def _flushes(diet: Diet, problems: Sequence[Any], name: str, row: Format) -> bool:
    """Whether zeros in their place change nothing, and the smallest normal number in their place changes all that is wrong."""
    agreeing = wrong = 0
    for problem in problems:
        codes = diet.uploads(problem)[name]
        outputs, expected = diet.outputs(problem), diet.wrong(problem)
        subnormal = _subnormal(codes, row)
        heard = {each: np.zeros(np.shape(outputs[each]), bool) for each in outputs}
        if subnormal.any():
            for value, is_heard in ((0.0, False), (row.min_normal, True)):
                made = diet.fed(problem, partial(_replaced, name, subnormal, row, value))
                changed = differing(made, outputs)
                if is_heard:
                    heard = changed
                elif any(each.any() for each in changed.values()):
                    return False
        for each, is_wrong in expected.items():
            if (is_wrong & ~heard[each]).any():
                return False
            wrong += int(is_wrong.sum())
            agreeing += int((~is_wrong & ~heard[each]).sum())
        if not wrong:
            return False
    return agreeing >= LEAST


def _subnormal(codes: Array, row: Format) -> NDArray[np.bool_]:
    values = np.abs(decode(codes.view(row.code_dtype), row))
    return (values > 0) & (values < row.min_normal)


def _replaced(name: str, where: NDArray[np.bool_], row: Format, value: float, given: str, array: Array) -> Array:
    if given != name:
        return array
    codes = array.view(row.code_dtype)
    numbers = np.copysign(value, decode(codes, row))
    return np.where(where, encode(numbers, row), codes).astype(row.code_dtype).view(array.dtype)
