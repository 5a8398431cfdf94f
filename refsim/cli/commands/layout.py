"""refsim layout: who holds an element of a fragment, what a thread holds, and a check of your index arithmetic."""

import csv
import io
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from refsim.cli.delivery import AGREED, FAILED, Answer, answers
from refsim.cli.extents import GridWindow, parse_whole
from refsim.cli.names import LAYOUT, Name
from refsim.cli.registry import Group
from refsim.cli.spelled import number_in
from refsim.errors import Kind, RefsimError, check_named, counted, unknown
from refsim.evidence import Evidence
from refsim.files.access import read_whole
from refsim.layouts import pictures
from refsim.layouts.descriptors import DESCRIPTORS
from refsim.layouts.evidence import evidence as evidence_of
from refsim.layouts.families import FAMILIES, Fragment, family_of, fragment, fragments, meant_by
from refsim.layouts.holders import BY_THREAD, bits_of, spoken, warp_lanes
from refsim.layouts.pictures import fragment_picture
from refsim.layouts.scales import SCALE_LAYOUTS
from refsim.layouts.swizzles import SWIZZLES
from refsim.layouts.tiles import Tile, tile
from refsim.render import ALERT, Cell, Column, Document, Picture, Table, Wording
from refsim.sources import Source

GATHERED = (
    Column("kind", strong=True),
    Column("layout"),
    Column("varying", label="where", drop=3),
    Column("count", align="right", drop=2),
    Column("level", drop=4),
    Column("evidence"),
    Column("source", citation=True),
)
NAMES = (
    Column("layout", strong=True, of="name"),
    Column("shape", of=lambda each: f"{each.shape[0]} x {each.shape[1]}"),
    Column("threads", align="right", drop=2),
    Column("values", align="right", drop=2),
    Column("since", drop=3),
    Column("evidence", drop=1, of="evidence.what"),
    Column("source", citation=True),
)
# a part of a name that varies without changing the formula, and the letter that stands for it
_VARYING = (
    (re.compile(r"(?<=^wgmma\.m64n)\d+"), "N"),
    (re.compile(r"(?<=^tcgen05\.n)\d+"), "N"),
    (re.compile(r"(?<=^tcgen05\.m)(?<!\d)(\d+n)\d+"), "N"),
    (re.compile(r"(?<=\.x)\d+(?=\.|$)"), "R"),
)
_OPERAND = re.compile(r"(?<=\.)(sfa|sfb|meta|[abcd])(?=\.|$)")
_SELECTOR = re.compile(r"\.byte\d(\.thread\d)?$|\.id\d$|\.sel\d$")


def matching(pattern: str) -> Document:
    """Return an entry for each name that matches a pattern or belongs to a family."""
    names = [
        name for name in fragments() if fnmatchcase(name, pattern) or name == pattern or family_of(name) == pattern
    ]
    names = names or list(meant_by(pattern))
    if not names:
        raise unknown("layout", pattern, [*FAMILIES, *fragments()])
    table = Table.of(NAMES, map(fragment, names), key="layouts")
    return Document((table,), f"layouts: {pattern}", hints=(f"{len(names)} layouts",))


def everything() -> Document:
    """Return all layouts, grouped by their evidence: fragments first, then layouts of memory."""
    rows = (*_fragments(), *_others())
    count = len(fragments())
    hints = (f"{count} fragments; refsim layout list PATTERN lists their names",)
    return Document((Table(GATHERED, rows, key="layouts"),), "layouts and what they rest on", hints=hints)


def _fragments() -> Iterator[tuple[Cell, ...]]:
    """Yield an entry for each group of fragments that share their formula and evidence."""
    groups: dict[tuple[str, Evidence], list[tuple[str, str, str]]] = {}
    for name in fragments():
        stem, operand, number = _parts(name)
        groups.setdefault((stem, evidence_of(name)), []).append((operand, number, name))
    for (stem, evidence), members in groups.items():
        operands = list(dict.fromkeys(operand for operand, _, _ in members if operand))
        braced = operands[0] if len(operands) == 1 else f"{{{','.join(operands)}}}"
        first = fragment(members[0][2])
        yield _row(
            family_of(first.name),
            stem.replace("OPERAND", braced),
            _numbers(stem, members),
            len(members),
            evidence,
            first.source,
        )


def _parts(name: str) -> tuple[str, str, str]:
    """Return the name with letters for varying parts, operand and number: wgmma.m64nNk16.f16.OPERAND, d, 128."""
    number = ""
    for pattern, letter in _VARYING:
        if match := pattern.search(name):
            kept = match[1] if match.groups() else ""
            number = match[0].removeprefix(kept)
            name = name[: match.start()] + kept + letter + name[match.end() :]
            break
    name = _SELECTOR.sub("", name)
    operand = _OPERAND.search(name)
    return (_OPERAND.sub("OPERAND", name, 1), operand[0], number) if operand else (name, "", number)


def _numbers(stem: str, members: Iterable[tuple[str, str, str]]) -> str | None:
    """Return the numbers of a group, as "N 8..256 by 8" where they are regular; None where the names have no number."""
    numbers = sorted({int(number) for _, number, _ in members if number})
    if not numbers:
        return None
    letter = "N" if re.search(r"nN|\.n?N", stem) else "R"
    steps = {after - before for before, after in pairwise(numbers)}
    if len(numbers) > 3 and len(steps) == 1:
        return f"{letter} {numbers[0]}..{numbers[-1]} by {steps.pop()}"
    if len(numbers) > 8:
        return f"{letter} {numbers[0]}..{numbers[-1]}, {len(numbers)} of them"
    return f"{letter} {', '.join(map(str, numbers))}"


def _others() -> Iterator[tuple[Cell, ...]]:

    for swizzle in SWIZZLES:
        yield _row("swizzle", swizzle.name, None, 1, swizzle.evidence, swizzle.source)
    for layout in SCALE_LAYOUTS:
        yield _row("scales", layout.name, None, 1, layout.evidence, layout.source)
    for descriptor in DESCRIPTORS:
        yield _row("descriptor", descriptor.kind, None, 1, descriptor.evidence, descriptor.source)


def _row(kind: str, name: str, varying: str | None, count: int, evidence: Evidence, source: Source) -> tuple[Cell, ...]:
    return (kind, name, varying, count, evidence.level.word, evidence.what, source)


MEMORY_BITS = (8, 16, 32)


@click.group(cls=Group)
def command() -> None:
    """Show which thread holds which element of mma, wgmma, ldmatrix, stmatrix, tcgen05 and mfma operands.

    A name is family.shape.type.operand: wgmma.m64n128k32.e4m3.d, mma.m16n8k16.bf16.a, ldmatrix.m8n8.x4.b16.trans.
    """


@command.command("list")
@click.argument(
    "pattern", metavar="[PATTERN]", required=False, type=Name("layout", "refsim.layouts.families:fragments")
)
@answers
def list_layouts(pattern: str | None) -> Document:
    """List the evidence for every layout, or the names that match.

    With PATTERN (wgmma, 'mma.m16n8k16.*') the matching names are listed. Evidence is a formula, the packages that agree
    with it in a test, or the chip and the date of a recorded run.

    \b
      refsim layout list
      refsim layout list 'wgmma.m64n128*.d' --as csv
    """

    return everything() if pattern is None else matching(pattern)


@command.command()
@click.argument("fragment", metavar="NAME", type=LAYOUT)
@click.option(
    "--view", metavar="VIEW", default="tensor", help="tensor: who holds an element; hardware: what a register holds."
)
@click.option("--by", metavar="FACT", default="thread", help="Color cells by thread, warp, value or bank.")
@click.option("--memory", metavar="SWIZZLE", help="Also show byte and bank in a K-major tile: none, 32B, 64B, 128B.")
@answers
def show(fragment: Fragment, view: str, by: str, memory: str | None, window: GridWindow) -> Document:
    """Draw a whole layout.

    Text shows a grid, SVG and HTML a drawing with tooltips, CSV one line for each element. A cell reads thread:value; in
    the hardware view it reads row:col. If the terminal is too narrow, the last columns are left out.

    \b
      refsim layout show mma.m16n8k16.bf16.a
      refsim layout show wgmma.m64n128k32.e4m3.d --memory 128B -o d.svg
    """

    check_named("view", view, pictures.VIEWS, where="--view")
    if view == pictures.TENSOR:
        rows, cols = window.chosen(fragment.shape)
    else:
        rows, cols = window.chosen((fragment.threads, fragment.values), fragment.units)
    tile = _memory(fragment, memory) if memory else None
    drawn = pictures.fragment_picture(fragment, view=view, by=by, memory=tile, rows=rows, cols=cols)
    return Document((drawn,), fragment.name, (fragment.source,))


def _memory(fragment: Fragment, mode: str) -> Tile:

    if fragment.element_bits not in MEMORY_BITS:
        what = f"{fragment.name} has elements of {fragment.element_bits} bits"
        raise RefsimError("bad-dtype", what, where="--memory", rule="tiles hold elements of 8, 16 or 32 bits")
    return tile("K", mode, fragment.element_bits // 8, fragment.shape)


@command.command(context_settings={"ignore_unknown_options": True})
@click.argument("fragment", metavar="NAME", type=LAYOUT)
@click.argument("row", metavar="ROW")
@click.argument("col", metavar="COL")
@answers
def where(fragment: Fragment, row: str, col: str) -> Document:
    """Show who holds an element.

    The answer names the warp, the lane, the value, and the bits of the register that hold the element at ROW, COL.

    \b
      refsim layout where wgmma.m64n128k32.e4m3.d 17 42
    """
    threads, values = fragment.holders(parse_whole(row, "row"), parse_whole(col, "col"))
    holders = [(int(thread), int(value)) for thread, value in zip(threads.ravel(), values.ravel(), strict=True)]
    columns = (*holder_columns(fragment), Column("source", gap=8, of=lambda _: fragment.source.bracketed))
    picture = _one_thread(fragment, holders[0][0], int(row) * fragment.shape[1] + int(col))
    return Document(
        (Table.of(columns, holders, key="holders", headings=False),),
        f"{fragment.name}: row {row}, col {col}",
        (fragment.source,),
        drawing=picture,
    )


@command.command(context_settings={"ignore_unknown_options": True})
@click.argument("fragment", metavar="NAME", type=LAYOUT)
@click.argument("place", metavar="THREAD|WARP:LANE")
@click.argument("value", metavar="[VALUE]", required=False)
@answers
def holds(fragment: Fragment, place: str, value: str | None) -> Document:
    """List the elements that a thread holds.

    With VALUE, only that value of the thread is shown. Warp 1 lane 5 is 1:5, or thread 37.

    \b
      refsim layout holds wgmma.m64n128k32.e4m3.d 1:5 20
    """

    thread = _thread(fragment, place)
    wanted = range(fragment.values) if value is None else [parse_whole(value, fragment.units[1])]
    found = [(each, *(int(at) for at in fragment.coord(thread, each))) for each in wanted]
    shared = fragment.per_register > 1
    rows = []
    for each, row, col in found:
        register = (each // fragment.per_register, _bits(bits_of(fragment, each))) if shared else (None, None)
        rows.append((each, *register, *((row, col) if row >= 0 else (None, None))))
    columns = (
        Column("value", label=fragment.units[1], strong=True, align="right"),
        Column("register", align="right", text=shared),
        Column("bits", text=shared),
        Column("row", align="right"),
        Column("col", align="right"),
    )
    holder = _spoken_thread(fragment, thread)
    count = sum(row >= 0 for _, row, _ in found)
    return Document(
        (Table(columns, tuple(rows), key="elements"),),
        f"{fragment.name}: {holder}",
        (fragment.source,),
        () if value is not None else (f"{holder} holds {counted(count, 'element')}",),
        _one_thread(fragment, thread),
    )


@command.command()
@click.argument("fragment", metavar="NAME", type=LAYOUT)
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path))
@answers
def check(fragment: Fragment, file: Path | None) -> Answer:
    """Compare your index arithmetic with a layout.

    FILE gives the element that each value of each thread holds. As npy it is int (threads, values) of row * cols + col, or
    (threads, values, 2) of row and col. As csv it has the columns thread, value, row and col. The exit code is 1 if they
    differ; the answer then lists the layouts that agree. Without FILE, refsim checks that the layout is consistent.

    \b
      refsim layout check mma.m16n8k16.bf16.a tags.npy
    """
    return sound(fragment) if file is None else against(fragment, file)


def holder_columns(fragment: Fragment) -> tuple[Column, ...]:
    """Return the columns that name a (thread, value) of that fragment."""

    if fragment.units != BY_THREAD:
        return tuple(
            Column(unit.lower().replace(" ", "_"), label=unit, strong=True, of=itemgetter(place))
            for place, unit in enumerate(fragment.units)
        )
    lanes, held, several = warp_lanes(fragment), fragment.per_register, fragment.threads > warp_lanes(fragment)
    register = (
        Column("register", label="register", gap=8, of=lambda holder: holder[1] // held),
        Column("bits", gap=2, of=lambda holder: _bits(bits_of(fragment, holder[1]))),
    )
    return (
        *((Column("warp", label="warp", strong=True, of=lambda holder: holder[0] // lanes),) if lanes == 32 else ()),
        Column("lane", label="lane", strong=True, of=lambda holder: holder[0] % lanes),
        Column("value", label="value", strong=True, of=itemgetter(1)),
        *(register if held > 1 else ()),
        Column("thread", label="thread", gap=8, text=several, of=itemgetter(0)),
        Column("threads", label="of", gap=1, text=several, of=lambda _: fragment.threads),
    )


def _bits(ends: tuple[int, int]) -> str:
    return f"bit {ends[0]}" if ends[0] == ends[1] else f"bits {ends[0]}..{ends[1]}"


def _thread(fragment: Fragment, place: str) -> int:

    warp, colon, lane = place.partition(":")
    if not colon:
        return parse_whole(place, fragment.units[0])
    lanes, last = warp_lanes(fragment), fragment.threads // warp_lanes(fragment) - 1
    numbers = parse_whole(warp, "warp"), parse_whole(lane, "lane")
    for what, number, limit in (("warp", numbers[0], last), ("lane", numbers[1], lanes - 1)):
        if not 0 <= number <= limit:
            raise RefsimError("out-of-range", f"{what} {number} is outside 0..{limit}", where=fragment.name)
    return numbers[0] * lanes + numbers[1]


def _spoken_thread(fragment: Fragment, thread: int) -> str:

    lanes = warp_lanes(fragment)
    if fragment.units != BY_THREAD or fragment.threads <= lanes:
        return f"{fragment.units[0]} {thread}"
    return f"thread {thread} (warp {thread // lanes}, lane {thread % lanes})"


def _one_thread(fragment: Fragment, thread: int, asked: int = -1) -> Picture:
    """Return a picture of the elements of one thread; the element at the flat place `asked` is marked."""

    drawn = fragment_picture(fragment, thread=thread)
    return replace(drawn, colours=[ALERT if at == asked else each for at, each in enumerate(drawn.colours)])


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
