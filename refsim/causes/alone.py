"""Explain two outputs without operands: one output made of the other, in either direction, from the codes alone."""

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from refsim.causes.apart import told_apart
from refsim.causes.explanation import DiffExplanation, DiffOutcome
from refsim.causes.judged import LOOKED_AFTER
from refsim.causes.outputs import OtherOutput
from refsim.causes.rows import Cause, Codes, Family
from refsim.causes.search import CauseSearch, Found, Named
from refsim.causes.unwritten import unwritten_causes
from refsim.compare.readings import Misreading, readings
from refsim.conversions import decode
from refsim.formats import Format
from refsim.sources import PTX

LEAST = 4
_FAMILIES = {
    "NaN dropped": Family.NAN,
    "off-by-one row": Family.SHIFTED,
    "off-by-one column": Family.SHIFTED,
    "flushed subnormals": Family.FLUSHED,
    "infinity saturated": Family.SATURATION,
    "infinity propagated": Family.SATURATION,
    "FN / FNUZ": Family.FNUZ,
}
"""The readings of `compare` that go beyond a rewriting: they leave some elements free, or allow one of two codes."""


def between_outputs(
    got: Codes, want: Codes, format: Format, deadline: float, report: Callable[[str, int, int], None] | None
) -> DiffExplanation:
    """Return the explanation that turns B into A, or A into B."""
    directions = (("A", got, want), ("B", want, got))
    found: list[tuple[str, Found, OtherOutput]] = []
    for made, one, other in directions:
        subject = OtherOutput(other, format)
        tried = CauseSearch(subject, subject.usual, one, deadline, other, report).run()
        if is_nan_alone(one, format):
            tried.whole.clear()
        elif not tried.whole:
            tried.whole += unwritten_causes(one, other, format) or _by_readings(one, other, format, deadline)
        found.append((made, tried, subject))
    fitting = [each for each in found if each[1].whole]
    fitting.sort(key=lambda each: _is_loose(each[1].whole[0]))
    differing = found[0][1].differing
    if differing < LEAST:
        fitting = []
    made, tried, subject = fitting[0] if fitting else found[0]
    named = tuple(_plain(tried.whole)) if fitting else ()
    is_little = differing < LEAST and any(each.whole for _, each, _ in found)
    outcome = DiffOutcome.EXPLAINED if named else DiffOutcome.TOO_LITTLE if is_little else DiffOutcome.UNEXPLAINED
    words = f"what becomes of {'B' if made == 'A' else 'A'}: {named[0]}" if named else ""
    return DiffExplanation(
        outcome,
        differing,
        got.size,
        got.size,
        named,
        tuple(tried.parts),
        tuple(tried.excluded),
        tuple(tried.unseen),
        tried.pairs,
        tried.untried,
        words if made == "A" else "",
        words if made == "B" else "",
        _apart(subject, named),
        made=made,
    )


def is_nan_alone(codes: Codes, format: Format) -> bool:
    """Return whether every element is a NaN, which any mistake can cause."""
    return bool(np.isnan(decode(codes, format)).all())


def _is_loose(named: Named) -> bool:
    """Return whether an explanation leaves values free, as a dropped NaN may be any number."""
    return any(cause.family == Family.NAN for cause in named.causes)


def _plain(whole: list[Named]) -> list[Named]:
    """Return single causes before pairs, each in the order of rank."""
    return sorted(whole, key=lambda each: (len(each.causes), sum(cause.rank for cause in each.causes)))


def _apart(subject: OtherOutput, named: tuple[Named, ...]) -> tuple[str, ...]:
    """Return sentences that distinguish rewritings; readings and tails have no plans to distinguish."""
    plans = tuple(each for each in named if all(cause.aspect for cause in each.causes))
    return told_apart(subject, subject.usual, plans)


def _by_readings(got: Codes, want: Codes, format: Format, deadline: float) -> list[Named]:
    """Return the readings of `compare` that fit every element, as causes."""
    differing, source = int((got != want).sum()), PTX["cvt, ld, st"]
    return [
        Named((Cause(_FAMILIES[reading.suspect], reading.says, "", None, source),), differing, is_whole=True)
        for reading in readings()
        if got.size <= LOOKED_AFTER or time.process_time() < deadline
        if reading.suspect in _FAMILIES and differing >= reading.least and reading.fits(got, want, format)
        if _FAMILIES[reading.suspect] is not Family.NAN or differing < want.size  # an output of only NaN fits anything
        if _FAMILIES[reading.suspect] is not Family.SHIFTED or _is_seen(reading, got != want)
    ]


def _is_seen(reading: Misreading, differing: NDArray[np.bool_]) -> bool:
    """Return whether enough elements differ where a shift decides; the line at the edge may hold anything."""
    lines = np.moveaxis(differing, -2 if reading.suspect.endswith("row") else -1, 0)
    return int((lines[1:] if "behind" in reading.says else lines[:-1]).sum()) >= LEAST
