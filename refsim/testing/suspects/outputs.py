"""Candidate causes in the outputs alone: a mistake in coding or placement that explains every wrong output."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from refsim.compare.readings import Codes, Misreading, readings
from refsim.conversions import decode
from refsim.formats import Format, format_named
from refsim.kernels import Bounded
from refsim.testing.suspects.feeding import Diet
from refsim.testing.suspects.suspicion import Suspicion

Pair = tuple[Codes, Codes, Format | None]


def betrayed(diet: Diet, problems: Sequence[Any]) -> tuple[Suspicion, ...]:
    """Return the one misreading that fits every wrong output on all test cases; none if several fit.

    Unwritten elements fit nothing. More test cases may distinguish two misreadings that fit.
    """
    wrong: dict[str, list[Pair]] = {}
    for problem in problems:
        for name, pair in _pairs(diet, problem):
            wrong.setdefault(name, []).append(pair)
    guilty = {name: pairs for name, pairs in wrong.items() if any((got != want).any() for got, want, _ in pairs)}
    fitting = [reading for reading in readings() if guilty and all(_fits(reading, pairs) for pairs in guilty.values())]
    if len(fitting) != 1:
        return ()
    suspect, says = fitting[0].suspect, fitting[0].says
    if suspect.startswith("off-by-one") and all(want.ndim < 2 for pairs in guilty.values() for _, want, _ in pairs):
        suspect, says = "off by one", says.replace("each column", "each element")  # the output has no rows and columns
    return (Suspicion(suspect, says, tuple(f"output {name}" for name in guilty), len(problems)),)


def _pairs(diet: Diet, problem: Any) -> list[tuple[str, Pair]]:
    """Return (name, (output, oracle's output, format)) of a test case; outputs with bounds are left out.

    NaN codes are replaced by one code if the accuracy contract allows any NaN.
    """
    kernel, got, want = diet.kernel, diet.outputs(problem), diet.expected(problem)
    rows = {name: format_named(format) if format else None for name, format in kernel.output_formats(problem).items()}
    one_nan = kernel.promise.nan != "bitwise"
    return [
        (name, (_codes(got[name], row, one_nan), _codes(want[name], row, one_nan), row))
        for name, row in rows.items()
        if not isinstance(want[name], Bounded)
    ]


def _fits(reading: Misreading, pairs: Sequence[Pair]) -> bool:
    """Return whether a misreading turns every right output into the wrong one, and enough elements differ."""
    differing = sum(int(np.count_nonzero(got != want)) for got, want, _ in pairs)
    return differing >= reading.least and all(reading.fits(*pair) for pair in pairs)


def _codes(array: Any, row: Format | None, one_nan: bool) -> Codes:
    """Return an array as unsigned codes, with `one_nan` every NaN as one code."""
    codes = np.ascontiguousarray(array).reshape(np.shape(array)).view(f"u{np.asarray(array).dtype.itemsize}")
    if not one_nan or row is None or row.nan_code is None:
        return codes
    return np.where(np.isnan(decode(codes, row)), codes.dtype.type(row.nan_code), codes)
