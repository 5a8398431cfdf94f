"""Two outputs and nothing else: one made of the other, either way round, by what is visible in codes alone."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.causes.apart import told_apart
from refsim.causes.explanation import DiffExplanation, DiffOutcome
from refsim.causes.outputs import OtherOutput
from refsim.causes.rows import Cause, Codes, Family
from refsim.causes.search import CauseSearch, Found, Named
from refsim.compare.readings import Misreading, readings
from refsim.conversions import decode
from refsim.formats import Format
from refsim.sources import PTX

LEAST = 4
LEAST_UNWRITTEN = 64
TILES = (256, 128, 64, 32, 16, 8, 4)
_FAMILIES = {
    "NaN dropped": Family.NAN,
    "off-by-one row": Family.SHIFTED,
    "off-by-one column": Family.SHIFTED,
    "flushed subnormals": Family.FLUSHED,
    "infinity saturated": Family.SATURATION,
    "infinity propagated": Family.SATURATION,
    "FN / FNUZ": Family.FNUZ,
}
"""The readings of `compare` that say more than a rewriting does: some elements are not asked for, or may be one of two."""


def between_outputs(
    got: Codes, want: Codes, format: Format, deadline: float, report: Callable[[str, int, int], None] | None
) -> DiffExplanation:
    """What turns B into A, or A into B."""
    directions = (("A", got, want), ("B", want, got))
    found: list[tuple[str, Found, OtherOutput]] = []
    for made, one, other in directions:
        subject = OtherOutput(other, format)
        tried = CauseSearch(subject, subject.usual, one, deadline, other, report).run()
        if is_nan_alone(one, format):
            tried.whole.clear()
        elif not tried.whole:
            tried.whole += _by_readings(one, other, format) + _tails(one, other, format)
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
    """Whether every element is a NaN, of which any mistake can be the cause."""
    return bool(np.isnan(decode(codes, format)).all())


def stands_for_nan(got: Codes, want: Codes, format: Format) -> bool:
    """Whether one code, of either sign, stands in one output wherever the other one has a NaN and they differ."""
    differing = got != want
    one, other = got[differing], want[differing]
    numbers = np.where(np.isnan(decode(one, format)), other, one)
    return np.unique(np.abs(decode(numbers, format))).size == 1


def _is_loose(named: Named) -> bool:
    """Whether it leaves open which values stand for those that are gone, as a NaN may be any number elsewhere."""
    return any(cause.family == Family.NAN for cause in named.causes)


def _plain(whole: list[Named]) -> list[Named]:
    """Single causes before pairs."""
    return sorted(whole, key=lambda each: (len(each.causes), sum(cause.rank for cause in each.causes)))


def _apart(subject: OtherOutput, named: tuple[Named, ...]) -> tuple[str, ...]:
    """What tells rewritings apart; readings and tails are no plans."""
    plans = tuple(each for each in named if all(cause.aspect for cause in each.causes))
    return told_apart(subject, subject.usual, plans)


def _by_readings(got: Codes, want: Codes, format: Format) -> list[Named]:
    differing = int((got != want).sum())
    return [
        Named((_cause(reading),), differing, is_whole=True)
        for reading in readings()
        if reading.suspect in _FAMILIES and differing >= reading.least and reading.fits(got, want, format)
        if _FAMILIES[reading.suspect] is not Family.NAN or differing < want.size  # of NaN alone anything could be made
        if _FAMILIES[reading.suspect] is not Family.SHIFTED or _is_seen(reading, got != want)
    ]


def _is_seen(reading: Misreading, differing: NDArray[np.bool_]) -> bool:
    """Whether elements differ of which a shift says anything: what the line at the edge holds is nobody's."""
    lines = np.moveaxis(differing, -2 if reading.suspect.endswith("row") else -1, 0)
    return int((lines[1:] if "behind" in reading.says else lines[:-1]).sum()) >= LEAST


def _cause(reading: Misreading) -> Cause:
    return Cause(_FAMILIES[reading.suspect], reading.says, "", None, PTX["cvt, ld, st"])


def _tails(got: Codes, want: Codes, format: Format) -> list[Named]:
    """The last elements, rows or columns hold one code, and all that differs is there.

    Behind the last whole tile that is how a kernel ends too early; elsewhere it takes more elements to be no chance.
    """
    flat: list[tuple[str, Any, Any]] = [("elements", got.reshape(-1), want.reshape(-1))]
    if got.ndim == 2:
        flat += [("columns", got.T, want.T), ("rows", got, want)]
    for what, have, right in flat:
        lines = np.flatnonzero((have != right).reshape(len(have), -1).any(axis=1))
        if lines.size == 0:
            continue
        begins = {len(have) // tile * tile: f", which fill no {tile}," for tile in reversed(TILES) if len(have) % tile}
        if have[lines[0] :].size >= LEAST_UNWRITTEN:
            begins.setdefault(int(lines[0]), "")
        for begin, which in sorted(begins.items()):
            if begin == 0 or lines[0] < begin:
                continue
            if (have[begin:] == have[begin:].reshape(-1)[0]).all():
                says = f"the last {len(have) - begin} {what}{which} hold one code: nobody wrote them"
                cause = Cause(Family.TAIL, says, "", None, PTX["st: guarded by a bound"])
                return [Named((cause,), int((got != want).sum()), is_whole=True)]
    return _tiles(got, want, format)


def _tiles(got: Codes, want: Codes, format: Format) -> list[Named]:
    """Whole tiles of a matrix hold one code, which is no NaN, and all that differs is there."""
    differing = got != want
    codes = np.unique(got[differing])
    if got.ndim != 2 or codes.size != 1 or np.isnan(decode(codes, format)).any():
        return []
    for rows, columns in sorted(itertools.product(TILES[:-1], repeat=2), key=lambda tile: -tile[0] * tile[1]):
        if rows > got.shape[0] or columns > got.shape[1]:
            continue
        down, across = (np.arange(extent) // tile for extent, tile in zip(got.shape, (rows, columns), strict=True))
        place = down[:, None] * (across[-1] + 1) + across[None, :]
        missing = np.isin(place, np.unique(place[differing]))
        if not missing.all() and (got[missing] == codes[0]).all():
            says = f"{np.unique(place[missing]).size} tiles of {rows} x {columns} hold one code: nobody wrote them"
            cause = Cause(Family.TAIL, says, "", None, PTX["st: guarded by a bound"])
            return [Named((cause,), int(differing.sum()), is_whole=True)]
    return []
