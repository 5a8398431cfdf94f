"""A check of a user's index arithmetic against a layout: the first difference, and the layouts that would agree."""

import csv
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.cli.delivery import AGREED, FAILED, Answer
from refsim.cli.spelled import number_in
from refsim.errors import Kind, RefsimError
from refsim.files.access import read_whole
from refsim.layouts.families import Fragment, fragment, fragments
from refsim.layouts.holders import spoken
from refsim.render import Document, Wording

Map = tuple[NDArray[np.int64], NDArray[np.int64]]
NONE = (-1, -1)
SHOWN, LISTED = 6, 16
MOST_BYTES = 1 << 26


def sound(layout: Fragment) -> Answer:
    """Return whether every element has its holders and the inverse map returns to it."""
    rows, cols = layout.elements
    held = rows >= 0
    threads, values = layout.holders(*np.ogrid[: layout.shape[0], : layout.shape[1]])
    back = layout.coord(threads, values)
    grid = np.ogrid[: layout.shape[0], : layout.shape[1]]
    agree = bool((back[0] == grid[0][..., None]).all() and (back[1] == grid[1][..., None]).all())
    inside = bool(((rows < layout.shape[0]) & (cols < layout.shape[1]) & (cols[held].min() >= 0)).all())
    count = int(held.sum())
    facts = {
        "layout": layout.name,
        "agrees": agree and inside,
        "elements": layout.shape[0] * layout.shape[1],
        "places": count,
        "copies": layout.copies,
        "evidence": layout.evidence.what,
    }
    copies = "once" if layout.copies == 1 else f"{layout.copies} times"
    unused = f", {rows.size - count} places hold none" if rows.size > count else ""
    line = f"{layout.name}: each of {facts['elements']} elements is held {copies}, the inverse agrees{unused}"
    if not facts["agrees"]:
        line = f"{layout.name}: formula and inverse disagree"
    report = Wording((line, f"evidence {layout.evidence.what}"), facts)
    return Answer(Document((report,), layout.name, (layout.source,)), AGREED if facts["agrees"] else FAILED)


def against(layout: Fragment, file: Path) -> Answer:
    """Return the comparison of a map in a file with the map of the layout, place by place."""
    rows, cols = _read(file, layout)
    want = layout.elements
    wrong = np.argwhere((rows != want[0]) | (cols != want[1]))
    facts: dict[str, Any] = {"layout": layout.name, "file": str(file), "places": rows.size, "differing": len(wrong)}
    if not len(wrong):
        return Answer(Document((Wording((f"{rows.size} places agree with {layout.name}",), facts),), layout.name))
    thread, value = (int(each) for each in wrong[0])
    got, wanted = (rows[thread, value], cols[thread, value]), (want[0][thread, value], want[1][thread, value])
    agreeing = _agreeing(rows, cols, layout)
    facts |= {
        "first": {
            "thread": thread,
            "value": value,
            "got": [int(each) for each in got],
            "want": [int(each) for each in wanted],
        },
        "agreeing": agreeing,
    }
    lines = [
        f"{len(wrong)} of {rows.size} places differ from {layout.name}",
        f"first   {spoken(layout, thread, value)}   got {_place(got)}   want {_place(wanted)}",
    ]
    if agreeing:
        more = f" and {len(agreeing) - SHOWN} more" if len(agreeing) > SHOWN else ""
        lines.append(f"this is the layout of {', '.join(agreeing[:SHOWN])}{more}")
    lines += _suspects((rows, cols), want)
    return Answer(Document((Wording(tuple(lines), facts),), layout.name, (layout.source,)), FAILED)


def _suspects(got: Map, want: Map) -> list[str]:
    """Return simple mistakes that would explain the whole difference: exchanged axes, or another order."""
    if np.array_equal(got[0], want[1]) and np.array_equal(got[1], want[0]):
        return ["row and col are exchanged"]
    size = 1 + max(int(each.max()) for each in (*got, *want))
    found, wanted = got[0] * size + got[1], want[0] * size + want[1]
    lines = []
    for axis, what in ((1, "the values of every thread"), (0, "threads")):
        order = _order(np.moveaxis(found, axis, 0), np.moveaxis(wanted, axis, 0))
        if order is not None:
            more = " ..." if len(order) > LISTED else ""
            lines.append(f"{what} come in another order: {' '.join(map(str, order[:LISTED]))}{more}")
    return lines


def _order(found: NDArray[np.int64], wanted: NDArray[np.int64]) -> list[int] | None:
    """Return the places of `wanted` in the order of `found`, or None unless all lines of `found` occur in `wanted`."""
    places = {line.tobytes(): place for place, line in enumerate(np.ascontiguousarray(wanted))}
    order = [places.get(line.tobytes()) for line in np.ascontiguousarray(found)]
    return [place for place in order if place is not None] if None not in order else None


def _place(at: tuple[Any, Any]) -> str:
    return "no element" if (int(at[0]), int(at[1])) == NONE else f"[{at[0]}, {at[1]}]"


def _agreeing(rows: NDArray[np.int64], cols: NDArray[np.int64], layout: Fragment) -> list[str]:
    """Return the names of other layouts, with as many threads and values, that have this map."""
    found = []
    for name in fragments():
        other = fragment(name)
        if (other.threads, other.values) == rows.shape and name != layout.name:
            theirs = other.elements
            if np.array_equal(theirs[0], rows) and np.array_equal(theirs[1], cols):
                found.append(name)
    return found


def _read(file: Path, layout: Fragment) -> Map:
    """Return the map of an .npy or .csv file. Raises RefsimError for any other content."""
    try:
        if file.suffix.lower() == ".csv":
            return _of_csv(file, layout)
        if file.suffix.lower() != ".npy":
            raise RefsimError("unknown-suffix", f"{file.suffix!r} is not a map", str(file), help=".npy or .csv")
        content = io.BytesIO(read_whole(file, MOST_BYTES, "a map"))
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            array = np.lib.format.read_array(content, allow_pickle=False)
    except RefsimError:
        raise
    except Exception as problem:  # NumPy passes on any error of its tokenizer, parser and allocator
        what = f"no array of integers: {type(problem).__name__}: {str(problem)[:200]}"
        raise RefsimError("bad-file", what, str(file), kind=Kind.UNREADABLE) from problem
    return _of_array(array, file, layout)


def _of_array(array: NDArray[Any], file: Path, layout: Fragment) -> Map:
    """Return the map of an array: (row, col) pairs, or tags row * columns + col; a negative tag is no element."""
    if array.dtype.kind not in "iu":
        raise RefsimError("bad-file", f"a map holds integers, not {array.dtype}", str(file), kind=Kind.UNREADABLE)
    places = layout.threads * layout.values
    array = array.astype(np.int64)
    if array.size == 2 * places and array.shape[-1:] == (2,):
        both = array.reshape(layout.threads, layout.values, 2)
        return both[..., 0], both[..., 1]
    if array.size != places:
        what = f"expected {layout.threads} x {layout.values} places, found an array of shape {array.shape}"
        rule = f"{layout.name}: an element for each value of each thread"
        raise RefsimError("bad-shape", what, str(file), rule=rule, kind=Kind.UNREADABLE)
    tags = array.reshape(layout.threads, layout.values)
    return np.where(tags < 0, -1, tags // layout.shape[1]), np.where(tags < 0, -1, tags % layout.shape[1])


def _cell(text: str) -> int:
    number = number_in(text.strip())
    if number is None or abs(number) >= 1 << 31:
        raise ValueError(text)
    return number


def _of_csv(file: Path, layout: Fragment) -> Map:
    """Return the map of a table with the columns thread, value, row and col."""
    rows = np.full((layout.threads, layout.values), -1, np.int64)
    cols = rows.copy()
    with io.StringIO(read_whole(file, MOST_BYTES, "a map").decode("utf-8"), newline="") as stream:
        for number, line in enumerate(csv.DictReader(stream), start=2):
            try:
                thread, value, row, col = (_cell(line[name]) for name in ("thread", "value", "row", "col"))
            except (KeyError, TypeError, AttributeError, ValueError) as problem:
                what = f"line {number} has no whole thread, value, row and col"
                raise RefsimError("bad-file", what, str(file), kind=Kind.UNREADABLE) from problem
            if not (0 <= thread < layout.threads and 0 <= value < layout.values):
                raise RefsimError(
                    "bad-file",
                    f"line {number}: thread {thread}, value {value} is outside 0..{layout.threads - 1}, "
                    f"0..{layout.values - 1}",
                    str(file),
                    kind=Kind.UNREADABLE,
                )
            rows[thread, value], cols[thread, value] = row, col
    return rows, cols
