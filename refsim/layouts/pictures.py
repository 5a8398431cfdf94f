"""Pictures of layouts: fragments, tiles, swizzles, scales, accesses and walks as matrices of cells.

In a notebook `draw(fragment)` shows the drawing; in Python `draw(fragment).svg()` is its text.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from refsim.errors import unknown
from refsim.layouts.banks import BANK_BYTES, BANKS, BankConflicts
from refsim.layouts.descriptors.walking import Walk
from refsim.layouts.drawing import paints
from refsim.layouts.families.core import Fragment
from refsim.layouts.holders import BY_THREAD, places
from refsim.layouts.scales import ScaleLayout
from refsim.layouts.swizzles import Swizzle
from refsim.layouts.tiles import Tile
from refsim.render import ALERT, EMPTY, Entry, Fact, Picture

CHUNK_BYTES, LINE_BYTES = 16, 128
TENSOR, HARDWARE = "tensor", "hardware"
VIEWS = (TENSOR, HARDWARE)
_SYMBOLS = {"thread": "t", "value": "v", "TMEM lane": "t", "column": "c", "byte": "b"}


@paints(Fragment)
def fragment_picture(
    fragment: Fragment,
    *,
    view: str = TENSOR,
    by: str = "thread",
    rows: Sequence[int] | None = None,
    cols: Sequence[int] | None = None,
    thread: int | None = None,
    memory: Tile | None = None,
) -> Picture:
    """Draw the holder of each element (view "tensor"), or the element that each place holds ("hardware").

    `rows` and `cols` choose labels of the picture's axes; `thread` leaves only the elements of one thread. `by` is the
    fact that selects the color: thread, warp, value, register, or bank of a tile in `memory`, which adds the byte at
    which each element lies there. wgmma.m64n128k32.e4m3.d has t37 v20 at row 17, col 42.
    """
    if view == HARDWARE:
        return _places_picture(fragment, rows, cols)
    down, across = _chosen(rows, fragment.shape[0]), _chosen(cols, fragment.shape[1])
    grid = np.array(down)[:, None], np.array(across)[None, :]
    threads, values = fragment.holder(*grid)
    named = places(fragment, threads, values)
    if fragment.units == BY_THREAD:
        named["thread"] = threads
    if memory is not None:
        named["byte"] = memory.address(*grid)
        named["bank"] = named["byte"] // BANK_BYTES % BANKS
    key = fragment.units[0] if by == "thread" else by
    if key not in named:
        raise unknown("fact of this picture", by, list(named), where=fragment.name)
    spread = {"warp": 4, "register": 1}.get(key, 1)
    colours = (
        np.where(threads == thread, named[key] * spread % BANKS, EMPTY)
        if thread is not None
        else (named[key] * spread % BANKS)
    )
    symbols = {name: _SYMBOLS.get(name, "") for name in fragment.units}
    facts = tuple(Fact(name, _flat(each), symbols.get(name, ""), tip=name != "thread") for name, each in named.items())
    about = (
        Entry("shape", fragment.shape),
        Entry(
            "held_by", f"{fragment.threads} {fragment.units[0]}s of {fragment.values} {fragment.units[1]}s", "held by"
        ),
        Entry("copies", fragment.copies if fragment.copies > 1 else None, "copies, the first shown:"),
        Entry("since", fragment.since),
        Entry("evidence", fragment.evidence.what),
    )
    return Picture(down, across, facts, fragment.units, _flat(colours), key, about=_given(about))


def _places_picture(fragment: Fragment, rows: Sequence[int] | None, cols: Sequence[int] | None) -> Picture:
    """Draw the element that each (thread, value) holds; `rows` choose threads and `cols` values."""
    down, across = _chosen(rows, fragment.threads), _chosen(cols, fragment.values)
    row, col = (each[np.ix_(np.array(down), np.array(across))] for each in fragment.elements)
    colours = np.where(row < 0, EMPTY, row % 8 * 4 + col % 4)
    facts = (Fact("row", _flat(row), "r"), Fact("col", _flat(col), "c"))
    about = (Entry("shape", fragment.shape), Entry("evidence", fragment.evidence.what))
    blocks = (4 if fragment.units == BY_THREAD else 32, fragment.per_register if fragment.per_register > 1 else 8)
    return Picture(
        down, across, facts, ("row", "col"), _flat(colours), "row", axes=fragment.units, blocks=blocks, about=about
    )


@paints(Swizzle, title=lambda pattern: f"swizzle {pattern}")
def swizzle_picture(swizzle: Swizzle, start: int = 0, lines: int | None = None) -> Picture:
    """Draw the contents of each chunk of at most 16 bytes of shared memory, 128 bytes (all banks) a line.

    A chunk is named and colored by its column in a tile of 128-byte rows, and has its address before the swizzle.
    """
    size = min(CHUNK_BYTES, swizzle.chunk_bytes)
    down = range(lines or max(min(swizzle.repeat_bytes, 64 * LINE_BYTES) // LINE_BYTES, 8))
    across = range(LINE_BYTES // size)
    at = start + np.array(down)[:, None] * LINE_BYTES + np.array(across)[None, :] * size
    logical = swizzle(at)
    column = logical % LINE_BYTES // size
    bank = Fact("bank", _flat(at // BANK_BYTES % BANKS))
    facts = Fact("column", _flat(column), "c"), Fact("address", _flat(logical), "@"), Fact("byte", _flat(at)), bank
    about = (Entry("repeat", swizzle.repeat_bytes, "repeats every", "B"), Entry("evidence", swizzle.evidence.what))
    axes = ("line", "chunk")
    return Picture(
        down, across, facts, ("column", "address"), _flat(column % 8 * 4 + 1), "column", axes=axes, about=about
    )


@paints(Tile)
def tile_picture(
    tile: Tile, start: int = 0, rows: Sequence[int] | None = None, cols: Sequence[int] | None = None
) -> Picture:
    """Draw the byte and the bank of every element of an operand tile."""
    down, across = _chosen(rows, tile.shape[0]), _chosen(cols, tile.shape[1])
    byte = tile.address(np.array(down)[:, None], np.array(across)[None, :], start=start)
    bank = byte // BANK_BYTES % BANKS
    facts = (Fact("byte", _flat(byte), "@"), Fact("bank", _flat(bank), "b"))
    about = (
        Entry("tile", f"{tile.major}-major, swizzle {tile.swizzle}, {tile.element_bytes}-byte elements"),
        Entry("size", tile.size_bytes, unit="B"),
        Entry("evidence", tile.swizzle.evidence.what),
    )
    return Picture(
        down, across, facts, ("byte", "bank"), _flat(bank), "bank", axes=("mn", "k"), blocks=tile.atom, about=about
    )


@paints(ScaleLayout)
def scale_picture(
    layout: ScaleLayout,
    shape: tuple[int, int] | None = None,
    *,
    view: str = TENSOR,
    rows: Sequence[int] | None = None,
    cols: Sequence[int] | None = None,
) -> Picture:
    """Draw the place of each scale ("tensor"), or the scale in each byte ("hardware"); padding has an alert color."""
    shape = shape or layout.tile
    padded = layout.padded(shape)
    size, evidence = Entry("size", layout.size_bytes(shape), unit="B"), Entry("evidence", layout.evidence.what)
    about = Entry("shape", shape), Entry("padded", padded), size, evidence
    if view == HARDWARE:
        width = max(CHUNK_BYTES // layout.element_bytes, 1)
        down, across = _chosen(rows, -(-padded[0] * padded[1] // width)), _chosen(cols, width)
        index = np.array(down)[:, None] * width + np.array(across)[None, :]
        there = index < padded[0] * padded[1]
        row, block = layout.coord(np.where(there, index, 0) * layout.element_bytes, shape)
        colours = np.where(there, _scale_colours(row, block, shape, layout.tile), EMPTY)
        byte = index * layout.element_bytes
        held = (Fact("row", _flat(row), "r"), Fact("block", _flat(block), "k"), Fact("byte", _flat(byte)))
        return Picture(
            down, across, held, ("row", "block"), _flat(colours), "row", ("line", "place"), (32, 4), about=about
        )
    down, across = _chosen(rows, padded[0]), _chosen(cols, padded[1])
    row, block = np.broadcast_arrays(np.array(down)[:, None], np.array(across)[None, :])
    byte = layout.offset(row, block, shape)
    colours = _scale_colours(row, block, shape, layout.tile)
    facts = (Fact("byte", _flat(byte), "@"), Fact("line", _flat(byte // CHUNK_BYTES)))
    return Picture(
        down, across, facts, ("byte",), _flat(colours), "line", ("row", "block"), (32, layout.tile[1]), about=about
    )


def _scale_colours(
    row: NDArray[np.int64], block: NDArray[np.int64], shape: tuple[int, int], tile: tuple[int, int]
) -> NDArray[np.int64]:
    """Return a hue for each eighth of a tile's rows and a shade for each block; ALERT for padding."""
    colour = row % tile[0] * 8 // max(tile[0], 8) * 4 + block % 4
    return np.where((row < shape[0]) & (block < shape[1]), colour, ALERT)


@paints(BankConflicts)
def access_picture(found: BankConflicts, access: int = 0) -> Picture:
    """Draw the wavefronts of one access from top to bottom: the lanes that each bank serves in each of them.

    The n-th 32-bit word that lanes of a phase read from a bank is served in the phase's n-th wavefront. A conflict is
    more than one line in a phase; lanes that share a word share its cell.
    """
    served: list[tuple[int, dict[int, tuple[int, tuple[int, ...]]]]] = []
    for phase, wanted in enumerate(found.wanted(access)):
        for turn in range(max((len(words) for words in wanted.values()), default=0)):
            line = {bank: list(words.items())[turn] for bank, words in wanted.items() if turn < len(words)}
            served.append((phase, line))
    cells = [(phase, line.get(bank)) for phase, line in served for bank in range(BANKS)]
    facts = (
        Fact("lanes", ["+".join(map(str, cell[1])) if cell else None for _, cell in cells], "t"),
        Fact("lane", [cell[1][0] if cell else None for _, cell in cells], tip=False),
        Fact("phase", [phase for phase, _ in cells]),
        Fact("byte", [cell[0] if cell else None for _, cell in cells]),
    )
    turns = {sum(1 for served_in, _ in served if served_in == phase) for phase, _ in served}
    blocks = (turns.pop() if len(turns) == 1 else len(served), 4)
    about = (
        Entry("width", found.width, "each lane asks for", "B"),
        Entry("phase_lanes", found.phase_lanes, "lanes of a phase"),
    )
    colours = [cell[1][0] % BANKS if cell else EMPTY for _, cell in cells]
    return Picture(
        range(len(served)), range(BANKS), facts, ("lanes",), colours, "lane", ("wavefront", "bank"), blocks, about
    )


@paints(Walk)
def walk_picture(walk: Walk) -> Picture:
    """Draw the address of every 16-byte chunk that an instruction reads through a descriptor; overlaps alert."""
    per = CHUNK_BYTES * 8 // walk.operand.container_bits
    along_k = walk.major == "K"
    byte = walk.addresses[:, ::per] if along_k else walk.addresses[::per, :]
    rows, k = byte.shape
    bank = byte // BANK_BYTES % BANKS
    wrong = np.isin(byte, walk.overlaps) | np.isin(byte, walk.out_of_range)
    facts = (Fact("byte", _flat(byte), "@"), Fact("bank", _flat(bank), "b"), Fact("line", _flat(byte // LINE_BYTES)))
    chunk = Entry("chunk", f"{per} elements along {walk.major}")
    about = Entry("operand", walk.operand.name), Entry("major", walk.major), chunk
    down, across = (1, per) if along_k else (per, 1)
    colours = _flat(np.where(wrong, ALERT, bank))
    ranges = range(0, rows * down, down), range(0, k * across, across)
    return Picture(*ranges, facts, ("byte", "bank"), colours, "bank", ("mn", "k"), about=about)


def _chosen(labels: Sequence[int] | None, extent: int) -> Sequence[int]:
    return range(extent) if labels is None else labels


def _flat(array: NDArray[np.int64]) -> list[int]:
    return [int(each) for each in array.ravel()] if array.dtype == object else array.ravel().tolist()


def _given(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    return tuple(entry for entry in entries if entry.value is not None)
