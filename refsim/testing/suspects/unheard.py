"""Candidate causes in what a kernel ignores: subnormals that it takes for zeros."""

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

LEAST = 4  # elements that do not depend on a subnormal, and agree


def subnormals_unheard(diet: Diet, problems: Sequence[Any]) -> tuple[Suspicion, ...]:
    """Return the input whose subnormals the kernel treats as zeros, if every wrong element depends on one of them."""
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
    """Return whether zeros in place of subnormals change nothing, and normal numbers change every wrong element."""
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
    """Return which codes are subnormal."""
    values = np.abs(decode(codes.view(row.code_dtype), row))
    return (values > 0) & (values < row.min_normal)


def _replaced(name: str, where: NDArray[np.bool_], row: Format, value: float, given: str, array: Array) -> Array:
    """Return the codes of input `name` with `value`, of equal sign, at the marked elements; other inputs unchanged."""
    if given != name:
        return array
    codes = array.view(row.code_dtype)
    numbers = np.copysign(value, decode(codes, row))
    return np.where(where, encode(numbers, row), codes).astype(row.code_dtype).view(array.dtype)
