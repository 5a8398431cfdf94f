"""Where two outputs differ, and what each holds there: rows, columns and diagonals, zeros, NaN and single codes."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from refsim.computations.ways import Codes, Indices
from refsim.conversions import decode
from refsim.formats import ElementType, Format

PERIODS = (2, 4, 8, 16, 32, 64, 128)
LEAST_DIFFERING = 4
LEAST_SHARE, MOST_SHARE = 0.5, 0.9


def seen(got: Codes, want: Codes, format: ElementType, right: str = "B") -> tuple[str, ...]:
    """Return sentences on the place of the differences of A and B; none where they are everywhere and hold anything.

    Codes of one shape and `format`; `right` is the name of `want`.
    """
    rows, of = (each.reshape(-1, each.shape[-1]) for each in map(np.atleast_2d, (got, want)))
    differs = rows != of
    if int(differs.sum()) < LEAST_DIFFERING:
        return ()
    where, held = next(_places(differs), ""), _held(rows[differs], of[differs], format, right)
    if where and held:
        return (f"{where}: {held}",)
    if where:
        return (f"only {where} differ",)
    return (f"where they differ, {held}",) if held and not differs.all() else (held,) if held else ()


def _held(got: Codes, want: Codes, format: ElementType, right: str) -> str:
    """Return what each side holds at the differences, where one holds one kind of value; else ""."""
    kinds = [_kind(each, format) for each in (got, want)]
    if not any(kinds):
        return ""
    mine, theirs = kinds[0] or "other values", kinds[1] or "other values"
    return f"{right} holds {theirs}, A holds {mine}"


def _kind(codes: Codes, format: ElementType) -> str:
    values = np.asarray(decode(codes, format)) if isinstance(format, Format) else codes
    if (codes == codes[0]).all():
        digits = -(-format.code_bits // 4)
        value = f"{values[0]:g}" if isinstance(format, Format) else str(codes[0])
        return f"{'+' if value == '0' else ''}{value} alone ({int(codes[0]):#0{2 + digits}x})"
    if not isinstance(format, Format):
        return ""
    if np.isnan(values).all():
        return "NaN"
    if np.isinf(values).all():
        return "infinities"
    return "zeros" if not values.any() else ""


def _places(differs: NDArray[np.bool_]) -> Iterator[str]:
    """Yield the rows and columns, or the diagonals, that contain the differences and little else: the denser first."""
    rows, columns = (np.flatnonzero(differs.any(axis=axis)) for axis in (1, 0))
    words = [_lines(rows, differs.shape[0], "row"), _lines(columns, differs.shape[1], "column")]
    found = []
    if all(each is not None for each in words) and any(words):
        found.append((float(differs[np.ix_(rows, columns)].mean()), ", ".join(each for each in words if each)))
    found += _diagonals(differs)
    yield from (text for share, text in sorted(found, reverse=True) if share >= LEAST_SHARE)


def _lines(lines: Indices, extent: int, what: str) -> str | None:
    """Return lines in words, "" for all of them, None where they have no simple form."""
    if len(lines) == extent:
        return ""
    first, last = int(lines[0]), int(lines[-1])
    if len(lines) == 1:
        return f"{what} {first}"
    if last - first + 1 == len(lines):
        return f"{what}s {first} to {last}"
    for period in PERIODS:
        classes = np.unique(lines % period)
        if (
            3 * period <= extent
            and len(classes) < period
            and len(lines) == sum(len(range(c, extent, period)) for c in classes)
        ):
            return f"{what}s {', '.join(map(str, classes))} of every {period}"
    return f"{what}s {', '.join(map(str, lines))}" if len(lines) <= 8 and len(lines) * 4 <= extent else None


def _diagonals(differs: NDArray[np.bool_]) -> list[tuple[float, str]]:
    """Return the diagonals that contain the differences with their share of them, as a mask off by some places makes."""
    high, wide = differs.shape
    offset = np.arange(wide) - np.arange(high)[:, None]
    first, last = int(offset[differs].min()), int(offset[differs].max())
    band = (offset >= first) & (offset <= last)
    if band.mean() > MOST_SHARE or high < LEAST_DIFFERING or wide < LEAST_DIFFERING:
        return []
    ends = [
        f"column - row >= {first}" if first > 1 - high else "",
        f"column - row <= {last}" if last < wide - 1 else "",
    ]
    text = f"column - row = {first}" if first == last else " and ".join(each for each in ends if each)
    return [(float(differs[band].mean()), f"elements with {text}")]
