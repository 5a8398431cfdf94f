"""refsim scales: the places of scale factors in memory, files shuffled and unshuffled, values quantized by groups."""

import os
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from refsim.cli.arguments import (
    ARRAY_SUFFIXES,
    format_field,
    load_codes,
    parse_code,
    refuse_options,
    require_few,
    words_in,
)
from refsim.cli.delivery import Answer, answering, answers
from refsim.cli.extents import AddressParam, GridWindow, ShapeParam, Whole, parse_whole
from refsim.cli.names import WEIGHT_LAYOUT, Name
from refsim.cli.options import Options, argument, option
from refsim.cli.registry import Group
from refsim.errors import Kind, RefsimError, check_named, counted
from refsim.render import Bits, Cell, Column, Document, Table, Wording, number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from refsim.cli.values import Value
    from refsim.files import Stored
    from refsim.formats import Format
    from refsim.layouts.scales import ScaleLayout
    from refsim.scaling import NanRule, Quotient, ScaleKind

LARGEST_TABLE = 1 << 24
USUAL = "nvidia_128x4"  # the layout of cuBLAS, CUTLASS and tcgen05
LAYOUTS = (
    Column("layout", strong=True, of="name"),
    Column("tile", of=lambda row: f"{row.tile[0]} x {row.tile[1]}"),
    Column("element", unit="B", align="right", drop=3, of="element_bytes"),
    Column("pads", drop=4),
    Column("summary", drop=1),
    Column("evidence", drop=2, of="evidence.what"),
    Column("source", citation=True),
)
PLACE = (
    Column("row", label="row", strong=True),
    Column("block", label="block", strong=True),
    Column("byte", label="byte", gap=3, strong=True),
    Column("hex", label="=", gap=1),
    Column("pad", label="", gap=3),
    Column("size", label="of", unit="B", gap=3),
    Column("source", gap=8),
)
GROUPS_OF_VALUES = (
    Column("group", label="group", strong=True),
    Column("values", unit="", gap=1),
    Column("amax", label="amax", gap=3),
    Column("scale", label="scale", gap=3, strong=True),
    Column("factor", label="=", gap=1),
)
QUANTIZED_VALUES = (
    Column("group", text=False),
    Column("given", strong=True),
    Column("code", strong=True),
    Column("fields"),
    Column("value", gap=3),
    Column("back", label="times the scale", gap=3),
)


SCALES = Name(
    "scale layout", "refsim.layouts.scales:SCALE_LAYOUTS", by="name", row="refsim.layouts.scales:scale_layout"
)
SCALE_KIND = Name("scale kind", "refsim.scaling:SCALE_KINDS", by="name", row="refsim.scaling:scale_kind")
_layout = click.argument("layout", metavar="NAME", type=SCALES)
_shape = click.option("--shape", metavar="ROWSxBLOCKS", type=ShapeParam(), help="Matrix of scales (default: one tile).")


@click.group(cls=Group)
def command() -> None:
    """Show where scale factors lie in memory, and convert them: nvidia_128x4, cdna4_32, deepgemm_mn_f32 and others."""


@command.command()
@click.argument("layout", metavar="[NAME]", required=False, type=SCALES)
@_shape
@click.option(
    "--view", metavar="VIEW", default="tensor", help="tensor: the byte of each scale; hardware: the scale in each byte."
)
@answers
def show(layout: "ScaleLayout | None", shape: tuple[int, int] | None, view: str, window: GridWindow) -> Document:
    """List all scale layouts, or draw one.

    In the drawing of NAME, a cell reads the byte of the scale; in the hardware view it reads row:block. Padding is marked;
    hardware reads it too.

    \b
      refsim scales show nvidia_128x4 --shape 120x3 --view hardware -o scales.svg
    """
    from refsim.layouts import pictures

    if layout is None:
        from refsim.layouts.scales import SCALE_LAYOUTS

        return Document((Table.of(LAYOUTS, SCALE_LAYOUTS, key="layouts"),), "scale layouts")
    check_named("view", view, pictures.VIEWS, where="--view")
    shape = shape or layout.tile
    padded = layout.padded(shape)
    if view == pictures.HARDWARE:
        _require_table(layout, shape)
        width = max(pictures.CHUNK_BYTES // layout.element_bytes, 1)
        extents = (-(-padded[0] * padded[1] // width), width)
    else:
        extents = padded
    down, across = window.chosen(extents)
    require_few(len(down) * len(across), "--rows and --cols show a part")
    drawn = pictures.scale_picture(layout, shape, view=view, rows=down, cols=across)
    return Document((drawn,), f"{layout.name}, {shape[0]} x {shape[1]}", (layout.source,))


@command.command(context_settings={"ignore_unknown_options": True})
@_layout
@click.argument("row", metavar="[ROW]", required=False)
@click.argument("block", metavar="[BLOCK]", required=False)
@_shape
@click.option("--byte", metavar="OFFSET", type=AddressParam(), help="Find the scale that lies in this byte.")
@answers
def where(
    *, layout: "ScaleLayout", row: str | None, block: str | None, shape: tuple[int, int] | None, byte: int | None
) -> Document:
    """Show the byte of one scale, or the scale of one byte.

    Give ROW and BLOCK to find the byte, or --byte to find the scale.

    \b
      refsim scales where nvidia_128x4 33 5 --shape 128x8
      refsim scales where nvidia_128x4 --byte 533 --shape 128x8
    """

    extent = shape or layout.tile
    if byte is not None:
        if row is not None:
            raise RefsimError(
                "usage", "ROW contradicts --byte", "refsim scales where", help="give ROW and BLOCK, or --byte"
            )
        _require_table(layout, extent)
        at_row, at_block = (int(each) for each in layout.coord(byte, extent))
        offset = byte
    elif row is None or block is None:
        raise RefsimError("usage", "a place is ROW and BLOCK", "refsim scales where", help="give both, or --byte BYTE")
    else:
        at_row, at_block = parse_whole(row, "row"), parse_whole(block, "block")
        offset = _offset(layout, at_row, at_block, shape)
    pad = "a pad" if at_row >= extent[0] or at_block >= extent[1] else None
    cells: tuple[Cell, ...] = (
        at_row,
        at_block,
        offset,
        Bits(offset, 16),
        pad,
        layout.size_bytes(extent),
        layout.source.bracketed,
    )
    title = f"{layout.name}, {extent[0]} x {extent[1]}"
    return Document((Table(PLACE, (cells,), key="scales", headings=False),), title, (layout.source,))


def _require_table(layout: "ScaleLayout", shape: tuple[int, int]) -> None:
    """Raise RefsimError for a matrix whose table of places would fill the memory. No formula maps bytes to scales."""
    size = layout.size_bytes(shape)
    if size > LARGEST_TABLE:
        what = f"{shape[0]} x {shape[1]} scales are {size} bytes"
        raise RefsimError("too-large", what, rule=f"at most {LARGEST_TABLE} from byte to scale")


def _offset(layout: "ScaleLayout", row: int, block: int, shape: tuple[int, int] | None) -> int:
    try:
        return int(layout.offset(row, block, shape))
    except RefsimError as error:
        error.help = (
            "" if shape else f"give --shape ROWSxBLOCKS: without it only the first tile of {layout.name} is known"
        )
        raise


class ScaleFile(Options):
    """The files of a conversion of scales."""

    words: tuple[str, ...] = argument("[NAME] FILE [TO]", required=True)
    row: "Format | None" = format_field()
    key: str | None = option("Name of the tensor, if a file holds several.")

    def places(self, done: str) -> "tuple[ScaleLayout, Path, Path]":
        """Return the layout, the input and the output. The first of two words is a layout unless it names a file."""
        from refsim.layouts.scales import scale_layout

        words = self.words
        is_file = words[0].endswith(ARRAY_SUFFIXES) or os.path.isfile(words[0])  # a word may be longer than a path
        named = len(words) == 3 or (len(words) == 2 and not is_file)
        layout = scale_layout(words[0] if named else USUAL)
        file, *rest = words[named:]
        if len(rest) > 1:
            where, what = click.get_current_context().command_path, f"{counted(len(words), 'argument')} given"
            raise RefsimError("usage", what, where, help=f"{where} [NAME] FILE [TO]")
        path = Path(file)
        if not path.name:
            raise RefsimError("not-a-file", f"{file!r} names no file", where="FILE")
        return layout, path, Path(rest[0]) if rest else path.with_suffix(f".{done}{path.suffix}")


class ShuffleOptions(ScaleFile):
    """The options of `refsim scales shuffle`."""

    shape: tuple[int, int] | None = option("Matrix of scales (default: one tile).", type=ShapeParam("ROWSxBLOCKS"))
    fill: str | None = option("Code of the padding (default: 0); 0xff is a NaN in e8m0.", metavar="CODE")


@answering(command)
def shuffle(asked: ShuffleOptions) -> Document:
    """Write scales in the order that hardware reads.

    FILE holds rows x blocks. NAME is a scale layout, nvidia_128x4 by default. TO is FILE with .shuffled before its suffix
    by default.

    \b
      refsim scales shuffle nvidia_128x4 scales.npy shuffled.bin \\
          -t e8m0 --fill 0xff
      refsim scales shuffle scales.npy -t e8m0
    """

    layout, file, _ = places = asked.places("shuffled")
    stored = load_codes(file, asked.row, asked.key)
    matrix = stored.codes if asked.shape is None else _shaped(stored, asked.shape, file)
    if matrix.ndim != 2:
        raise RefsimError(
            "bad-shape", f"scales are rows x blocks; {file} has shape {matrix.shape}", help="give --shape"
        )
    packed = layout.shuffle(matrix, fill=0 if asked.fill is None else parse_code(asked.fill, stored.format))
    return _written("shuffled", places, packed, stored.format, matrix.shape, packed.size - matrix.size)


class UnshuffleOptions(ScaleFile):
    """The options of `refsim scales unshuffle`."""

    shape: tuple[int, int] = option("Matrix of scales, without padding.", type=ShapeParam("ROWSxBLOCKS"), required=True)


@answering(command)
def unshuffle(asked: UnshuffleOptions) -> Document:
    """Write shuffled scales as rows x blocks, without padding.

    NAME is a scale layout, nvidia_128x4 by default. TO is FILE with .unshuffled before its suffix by default.

    \b
      refsim scales unshuffle nvidia_128x4 dump.bin scales.npy \\
          -t e8m0 --shape 128x8
      refsim scales unshuffle scales.shuffled.npy -t e8m0 --shape 128x8
    """
    from refsim.cli.answers.dumps import unshuffled

    layout, file, _ = places = asked.places("unshuffled")
    stored = load_codes(file, asked.row, asked.key)
    matrix = unshuffled(layout, stored, asked.shape, file)
    pads = stored.codes.size - matrix.size
    return _written("unshuffled", places, matrix, stored.format, asked.shape, pads)


class ScalesCheckOptions(Options):
    """The options of `refsim scales check`."""

    file: Path = argument("FILE")
    row: "Format | None" = format_field()
    key: str | None = option("Name of the tensor, if a file holds several.")
    shape: tuple[int, int] | None = option("Matrix of scales, without padding.", type=ShapeParam("ROWSxBLOCKS"))
    values: Path | None = option("The tensor that was quantized: bf16, f16 or f32.")
    values_key: str | None = option("Name of the tensor in the file of --values, if it holds several.")
    layout: str | None = option("Layout of a checkpoint's weights.", type=WEIGHT_LAYOUT, metavar="NAME")


@answering(command)
def check(asked: ScalesCheckOptions) -> Document | Answer:
    """Find the layouts, chips and recipes that fit a file of scales.

    The size decides which layouts fit, the bytes decide which formats. The answer shows the padding, because hardware reads
    it. With --values, the tensor that was quantized, refsim compares the scales of every recipe in every layout that fits.
    The exit code is 1 if nothing fits.

    \b
      refsim scales check scales.bin -t e8m0 --shape 130x12
      refsim scales check model.safetensors --key w.scales \\
          --values original.safetensors --values-key w
    """
    from refsim.cli.answers.scalecheck import checked

    stored, shape = load_codes(asked.file, asked.row, asked.key, scales=True, layout=asked.layout), asked.shape
    tensor = None if asked.values is None else load_codes(asked.values, None, asked.values_key)
    if shape is None:
        if stored.codes.ndim != 2:
            what = f"the buffer has shape {stored.codes.shape}"
            raise RefsimError("bad-shape", what, where=str(asked.file), help="give --shape ROWSxBLOCKS")
        shape = stored.codes.shape[0], stored.codes.shape[1]
    if tensor is not None and (tensor.codes.ndim < 1 or prod(tensor.codes.shape[:-1]) != shape[0]):
        what = f"a tensor of shape {tensor.codes.shape} has no {shape[0]} rows"
        rule = "a row of scales for each row of the tensor, all dimensions but the last"
        raise RefsimError("bad-shape", what, where="--values", rule=rule)
    return checked(stored, shape, tensor)


class ScalesQuantizeOptions(Options):
    """The options of `refsim scales quantize`."""

    row: "Format | None" = format_field()
    group: int = option("Neighbors that share a scale.", type=Whole(1), default=128)
    scale: "ScaleKind" = option("f32, f32_power or e8m0.", metavar="KIND", type=SCALE_KIND, default="f32")
    divide: bool = option("Compute fl(x / s) instead of fl(x * fl(1 / s)).")
    ignore_nan: bool = option("Ignore NaN in the maximum of a group.")
    values: tuple[str, ...] = argument("VALUE...|-", required=True)


@answering(command, context_settings={"ignore_unknown_options": True})
def quantize(asked: ScalesQuantizeOptions) -> Document:
    """Quantize one row of VALUEs in groups.

    The answer shows the codes (e4m3 by default) and the scale of each group. `refsim encode --help` explains how a VALUE is
    written; it is rounded to float32. The last column is code times scale.

    \b
      refsim scales quantize 1 -2 0.3 0 --scale e8m0
      refsim scales quantize 13 2.4375 --divide
    """
    from refsim.cli.values import parse_value

    words = list(words_in(asked.values))
    require_few(len(words), "refsim.scaling.quantize in Python takes arrays of any size")
    refuse_options(words)
    return _quantized([parse_value(word) for word in words], asked)


def _quantized(values: "list[Value]", asked: ScalesQuantizeOptions) -> Document:
    """Return every group with its scale, then every value with its code and the float32 product of code and scale."""
    import numpy as np

    from refsim.cli.answers.anatomy import anatomy, as_bits, exact_value
    from refsim.cli.values import to_double
    from refsim.conversions import encode
    from refsim.formats import E4M3, F32
    from refsim.scaling import dequantize
    from refsim.scaling import quantize as by_groups

    row, width, kind = asked.row or E4M3, asked.group, asked.scale
    nan: NanRule = "ignored" if asked.ignore_nan else "spreads"
    quotient: Quotient = "divide" if asked.divide else "reciprocal"
    patterns = encode([to_double(value) for value in values], F32).reshape(1, -1)
    made = by_groups(patterns, F32, group=(1, width), to=row, scale=kind, quotient=quotient, nan=nan)
    back = dequantize(made.codes, made.scales, row, group=(1, width))[0]
    with np.errstate(all="ignore"):
        magnitudes = np.abs(patterns[0].view(np.float32))
    if nan == "ignored":
        magnitudes = np.nan_to_num(magnitudes, nan=0.0, posinf=np.inf)
    groups: list[tuple[Cell, ...]] = []
    for at, (scale, factor) in enumerate(zip(made.scales[0], made.factors[0], strict=True)):
        mine = magnitudes[at * width : (at + 1) * width]
        bits = as_bits(int(scale.view(kind.format.code_dtype)), kind.format)
        groups.append((at, counted(len(mine), "value"), number(float(mine.max())), bits, number(float(factor))))
    elements: list[tuple[Cell, ...]] = []
    for place, (value, code, result) in enumerate(zip(values, made.codes[0], back, strict=True)):
        shown = anatomy(int(code), row)
        product = number(exact_value(int(result), F32))
        elements.append((place // width, value.written, shown.code, shown.fields, shown.value, product))
    tables = (
        Table(GROUPS_OF_VALUES, tuple(groups), key="groups", headings=False),
        Table(QUANTIZED_VALUES, tuple(elements), key="values"),
    )
    return Document(tables, f"{row} in groups of {width}", (kind.source,))


def _shaped(stored: "Stored", shape: tuple[int, int], file: Path) -> "NDArray[Any]":
    if stored.codes.size != shape[0] * shape[1]:
        what = f"expected {shape[0] * shape[1]} codes of {stored.format}, found {stored.codes.size}"
        raise RefsimError("bad-shape", what, str(file), kind=Kind.UNREADABLE)
    return stored.codes.reshape(shape)


def _written(
    done: str,
    places: "tuple[ScaleLayout, Path, Path]",
    codes: "NDArray[Any]",
    row: "Format",
    shape: tuple[int, ...],
    pads: int,
) -> Document:
    """Write the codes of a conversion, and return its answer: layout, files, shapes, number of padding elements."""
    from refsim import files

    layout, file, to = places
    files.save(to, codes, row)
    line = f"{shape[0]} x {shape[1]} {row} {done} ({layout.name}) to {to}: shape {' x '.join(map(str, codes.shape))}"
    facts = {"layout": layout.name, "file": str(file), "to": str(to), "format": str(row), "rows": shape[0]}
    facts |= {"blocks": shape[1], "shape": list(codes.shape), "pads": pads}
    return Document((Wording((f"{line}, {pads} pads",), facts),), layout.name, (layout.source,))
