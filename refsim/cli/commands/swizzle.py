"""refsim swizzle: map addresses through a swizzle, or draw it and the tiles in it."""

from typing import TYPE_CHECKING

from refsim.cli.arguments import format_field, require_few, words_in
from refsim.cli.delivery import answering
from refsim.cli.extents import AddressParam, GridWindow, ShapeParam, parse_address
from refsim.cli.names import SWIZZLE
from refsim.cli.options import Options, argument, option
from refsim.errors import RefsimError
from refsim.render import Bits, Cell, Column, Document, Table

if TYPE_CHECKING:
    from refsim.formats import Format
    from refsim.layouts.swizzles import Swizzle
    from refsim.layouts.tiles import Major

MODES = (
    Column("swizzle", strong=True, of="name"),
    Column(
        "cute", label="CuTe, bytes", of=lambda row: f"Swizzle<{row.bits},{row.base},{row.shift}>" if row.bits else None
    ),
    Column("chunk", unit="B", align="right", drop=2, of="chunk_bytes"),
    Column("span", unit="B", align="right", drop=3, of="span_bytes"),
    Column("repeat", unit="B", align="right", of="repeat_bytes"),
    Column("evidence", drop=1, of="evidence.what"),
    Column("source", citation=True),
)
MOVED = (
    Column("address", strong=True),
    Column("swizzled", label="->", gap=1, strong=True),
    Column("line", label="line", gap=3),
    Column("chunk", label="chunk"),
    Column("bank", label="bank"),
    Column("before", label="without swizzle bank", gap=3, drop=1),
)
ADDRESS_BITS = 18


class SwizzleOptions(Options):
    """The options of `refsim swizzle`."""

    mode: "Swizzle | None" = argument("[NAME]", type=SWIZZLE)
    addresses: tuple[str, ...] = argument("[ADDRESS...|-]")
    tile: tuple[int, int] | None = option("Draw an operand tile of this many elements.", type=ShapeParam("MNxK"))
    row: "Format | None" = format_field()
    major: "Major" = option("Contiguous dimension of the tile.", metavar="K|MN", default="K")
    start: int = option("Address of the tile.", type=AddressParam(), default=0)
    window: GridWindow = GridWindow()


@answering()
def command(asked: SwizzleOptions) -> Document:
    """List all swizzles, draw one, move byte ADDRESSes through it, or draw an operand tile in it.

    NAME is none, 32B, 64B, 128B, 128B_32B_atom, or CuTe's 'Swizzle<B,M,S>' on bytes. Addresses are bytes of shared memory,
    decimal or 0x... A swizzle is its own inverse, so the same command also maps back. In a drawing, a cell reads
    column:address of its 16 bytes; with --tile it reads byte:bank of an element.

    \b
      refsim swizzle 128B 0x3a0
      refsim swizzle 128B --tile 8x64 -t bf16 -o tile.svg
    """
    from refsim.layouts import pictures

    mode, shape, row = asked.mode, asked.tile, asked.row
    if mode is None:
        from refsim.layouts.swizzles import SWIZZLES

        return Document((Table.of(MODES, SWIZZLES, key="swizzles"),), "swizzles")
    if asked.addresses:
        return _moved(mode, asked.addresses)
    if shape is None:
        return Document((pictures.swizzle_picture(mode, asked.start),), f"swizzle {mode}", (mode.source,))
    from refsim.cli.answers.dumps import element_bytes
    from refsim.layouts.tiles import tile

    if row is None:
        what = "a tile needs the format of its elements"
        raise RefsimError("missing-argument", what, "refsim swizzle --tile", help="give -t FORMAT")
    made = tile(asked.major, mode, element_bytes(row), shape)
    down, across = asked.window.chosen(shape)
    require_few(len(down) * len(across), "--rows and --cols show a part")
    drawn = pictures.tile_picture(made, asked.start, down, across)
    return Document((drawn,), f"{shape[0]} x {shape[1]} {row}, {asked.major}-major, swizzle {mode}", (made.source,))


def _moved(mode: "Swizzle", words: tuple[str, ...]) -> Document:
    asked = [parse_address(word) for word in words_in(words)]
    require_few(len(asked), "refsim.layouts.swizzle(name)(addresses) in Python takes arrays of any size")
    rows = tuple(_cells(address, int(moved)) for address, moved in zip(asked, mode(asked), strict=True))
    return Document((Table(MOVED, rows, key="addresses", headings=False),), f"swizzle {mode}", (mode.source,))


def _cells(address: int, moved: int) -> tuple[Cell, ...]:
    width = max(ADDRESS_BITS, address.bit_length(), moved.bit_length())
    places = moved // 128, moved % 128 // 16, moved // 4 % 32, address // 4 % 32
    return Bits(address, width), Bits(moved, width), *places
