"""refsim desc: decode, encode and walk descriptors of tensor cores and TMA."""

import re
from typing import TYPE_CHECKING, Any

import click

from refsim.cli.arguments import format_field, require_few
from refsim.cli.delivery import AGREED, FAILED, Answer, answering, answers
from refsim.cli.extents import AddressParam, ShapeParam, Whole
from refsim.cli.names import Name
from refsim.cli.options import Options, argument, option
from refsim.cli.registry import Group
from refsim.cli.spelled import number_in
from refsim.errors import RefsimError, counted
from refsim.render import ALERT, Bits, Column, Document, Entry, Fact, Part, Picture, Record, Table, Wording, facts_of

if TYPE_CHECKING:
    from refsim.formats import Format
    from refsim.layouts.descriptors import Descriptor, Explanation, TensorMapForm, Walk
    from refsim.layouts.tiles import Major
    from refsim.layouts.tma import Placement

READINGS = (
    Column("bits", drop=1),
    Column("field", strong=True),
    Column("stored", align="right", drop=2),
    Column("value", strong=True),
    Column("meaning"),
)


KIND = Name(
    "descriptor", "refsim.layouts.descriptors:DESCRIPTORS", by="kind", row="refsim.layouts.descriptors:descriptor"
)
_kind = click.argument("kind", metavar="KIND", type=KIND)


@click.group(cls=Group)
def command() -> None:
    """Decode, encode and walk descriptors: wgmma-smem, tcgen05-smem, tcgen05-instr.f8f6f4 and others, tensormap.

    The bits of the driver's tensor map are not published. The KIND tensormap takes the arguments of cuTensorMapEncodeTiled
    or cuTensorMapEncodeIm2col as NAME=VALUE; a list has commas.
    """


@command.command()
@_kind
@click.argument("words", nargs=-1, required=True, metavar="WORD|NAME=VALUE...")
@answers
def decode(kind: "Descriptor | TensorMapForm", words: tuple[str, ...]) -> Answer:
    """Print the fields of a descriptor.

    The exit code is 1 if no hardware accepts the descriptor.

    \b
      refsim desc decode wgmma-smem 0x4000004000000040
      refsim desc decode tensormap tensorDataType=9 tensorRank=2 \\
          globalAddress=0 globalDim=256,64 globalStrides=512 boxDim=64,8 \\
          elementStrides=1,1 interleave=0 swizzle=3 l2Promotion=0 oobFill=0
    """
    from refsim.layouts.descriptors import TensorMapForm

    if isinstance(kind, TensorMapForm):
        explained = kind.explain(_arguments(words))
    else:
        explained = kind.explain(_parse_descriptor(words, kind.kind))
    rows = tuple((each.bits, each.name, each.stored, each.value, each.meaning) for each in explained.readings)
    parts: tuple[Part, ...] = (Table(READINGS, rows, key="fields"), _remarks(explained))
    document = Document(parts, f"{explained.kind} {explained.word}", (explained.source,))
    return Answer(document, FAILED if explained.problems else AGREED)


class DescEncodeOptions(Options):
    """The options of `refsim desc encode`."""

    kind: "Descriptor | TensorMapForm" = argument("KIND", type=KIND)
    fields: tuple[str, ...] = argument("FIELD=VALUE...")
    tile: tuple[int, int] | None = option("Compute the byte offsets of an operand tile.", type=ShapeParam("MNxK"))
    row: "Format | None" = format_field()
    major: "Major" = option("Contiguous dimension of the tile.", metavar="K|MN", default="K")


@answering(command)
def encode(asked: DescEncodeOptions) -> Document:
    """Build a descriptor from its fields.

    A field that you leave out takes its default. Sizes and addresses are bytes. With --tile and -t, the leading and the stride
    byte offset follow from tile, type, major and swizzle; mn= and k= choose the element where the operand begins.

    \b
      refsim desc encode wgmma-smem start_address=1024 swizzle=128B \\
          stride_byte_offset=1024
      refsim desc encode wgmma-smem start_address=1024 swizzle=128B k=16 \\
          --tile 128x64 -t bf16
      refsim desc encode tensormap data_type=bfloat16 dims=256,64 box=64,8 \\
          swizzle=128B
      refsim desc encode tensormap data_type=uint8 dims=64,9,14,2 \\
          channels=16 pixels=64 lower=-1,-1 upper=-1,-1
    """
    from refsim.layouts.descriptors import TensorMapForm

    kind, tile, given = asked.kind, asked.tile, _arguments(asked.fields)
    if isinstance(kind, TensorMapForm):
        if tile is not None:
            raise RefsimError("usage", "--tile is for descriptors of shared memory", help="give dims= and box=")
        encoded = kind.encode(**given)
        record = Record(tuple(Entry(name, value) for name, value in encoded.items()))
        return Document((record,), "tensormap", (kind.source,))
    word = kind.encode(**given) if tile is None else _of_tile(kind, given, tile, asked)
    spelled = str(Bits(word, kind.bits))
    facts = {"word": spelled, "fields": kind.decode(word)}
    lines = [] if tile is None else [f"{name} = {value}" for name, value in kind.decode(word).items() if "byte" in name]
    return Document((Wording((spelled, *lines), facts),), kind.kind, (kind.source,))


def _of_tile(kind: "Descriptor", given: dict[str, Any], shape: tuple[int, int], asked: DescEncodeOptions) -> int:
    """Return the descriptor of an operand tile; `given` holds its address, swizzle and first element."""
    from refsim.layouts import operand_descriptor, tile

    if (row := asked.row) is None:
        raise click.MissingParameter(ctx=click.get_current_context(), param_hint="'-t'", param_type="option")
    bits, of_tiles = row.bits + row.padding_bits, "tiles hold elements of 8, 16 or 32 bits"
    if bits % 8:
        raise RefsimError("bad-dtype", f"{row} has elements of {bits} bits", "--format", of_tiles)
    made = tile(asked.major, given.pop("swizzle", "none"), bits // 8, shape)
    start, mn, k = (given.pop(name, 0) for name in ("start_address", "mn", "k"))
    for name in given:
        raise RefsimError("bad-value", f"{name} with --tile", rule="start_address, swizzle, mn and k go with --tile")
    return operand_descriptor(kind.kind, made, start, mn=mn, k=k)


class WalkOptions(Options):
    """The options of `refsim desc walk`."""

    kind: "Descriptor | TensorMapForm" = argument("KIND", type=KIND)
    words: tuple[str, ...] = argument("WORD OPERAND|NAME=VALUE...", required=True)
    major: "Major" = option("Contiguous dimension.", metavar="K|MN", default="K")
    ctas: int = option("2 for cta_group::2.", metavar="COUNT", type=Whole(1, 2), default=1)
    at: str | None = option("Coordinates of the box of a tensormap (default: 0).", metavar="X,Y...")
    offsets: str | None = option("Offsets of the pixels of an im2col tensormap (default: 0).", metavar="W,H...")
    start: int = option("Address of the box of a tensormap.", type=AddressParam(), default=0)


@answering(command)
def walk(asked: WalkOptions) -> Answer:
    """List every byte that an instruction or a TMA box accesses.

    OPERAND is the operand of an instruction: wgmma.m64n128k16.bf16.a or tcgen05.m128n256k32.f8f6f4.e2m1.b. A cell reads
    byte:bank of 16 bytes. The exit code is 1 if bytes are read twice or lie outside shared memory, or if the fields make no
    sense.

    \b
      refsim desc walk wgmma-smem 0x4000004000000040 wgmma.m64n128k16.bf16.a
    """
    from refsim.layouts.descriptors import TensorMapForm
    from refsim.layouts.descriptors import walk as walked

    kind, words, offsets = asked.kind, asked.words, asked.offsets
    if isinstance(kind, TensorMapForm):
        moved = None if offsets is None else tuple(_number(each) for each in offsets.split(","))
        return Answer(_placed(kind.walk(_arguments(words), _coordinates(words, asked.at), asked.start, moved)))
    if len(words) != 2:
        way = f"refsim desc walk {kind.kind} WORD OPERAND, with an operand such as wgmma.m64n128k16.bf16.a"
        raise RefsimError(
            "usage", f"{counted(len(words), 'argument')} given, not WORD and OPERAND", "refsim desc", help=way
        )
    word = _parse_descriptor(words[:1], kind.kind)
    return _walked(walked(kind, word, words[1], major=asked.major, ctas=asked.ctas))


def _walked(found: "Walk") -> Answer:
    """Return a picture of the bytes that an instruction reads, and whether they are legal."""
    from refsim.layouts.pictures import walk_picture

    facts = {
        "operand": found.operand.name,
        "major": found.major,
        "rows": found.bits.shape[0],
        "k": found.bits.shape[1],
        "bytes": int(found.bytes_read.size),
        "first_byte": int(found.bytes_read[0]),
        "last_byte": int(found.bytes_read[-1]),
        "overlapping": int(found.overlaps.size),
        "out_of_range": int(found.out_of_range.size),
        "wavefronts": found.conflicts.total,
        "assumed": found.assumed,
        "problems": list(found.problems),
    }
    wrong = found.problems or found.overlaps.size or found.out_of_range.size
    parts = (Wording(tuple(line.strip() for line in str(found).splitlines()), facts), walk_picture(found))
    title = f"{found.descriptor.kind} {Bits(found.word, found.descriptor.bits)}"
    return Answer(Document(parts, title, (found.descriptor.source,)), FAILED if wrong else AGREED)


def _placed(found: "Placement") -> Document:
    """Return the picture; columns are the innermost dimension. Elements outside the tensor are marked."""
    import numpy as np

    width = found.shared_bytes.shape[-1]
    require_few(found.shared_bytes.size, "refsim.layouts.descriptor('tensormap').walk in Python has no such limit")
    shared, source = found.shared_bytes.reshape(-1, width), found.global_bytes.reshape(-1, width)
    inside = found.inside.reshape(-1, width)
    bank = shared // 4 % 32
    facts = (
        Fact("byte", shared.ravel().tolist(), "@"),
        Fact("bank", bank.ravel().tolist(), "b"),
        Fact("from_byte", [at if at >= 0 else "the fill" for at in source.ravel().tolist()]),
    )
    outside = int((~inside).sum())
    numbers = {
        "coordinates": list(found.coordinates),
        "shared_address": found.shared_address,
        "box_bytes": found.tensor_map.box_bytes,
        "transaction_bytes": found.transaction_bytes,
        "outside": outside,
        "pads": int(found.pads.size),
    }
    line = (
        f"{found.tensor_map.box_bytes} bytes from {found.shared_address:#x}, {found.transaction_bytes} of them counted by "
        f"the barrier; {outside} elements lie outside the tensor, {found.pads.size} bytes are pads"
    )
    picture = Picture(
        range(shared.shape[0]),
        range(width),
        facts,
        ("byte", "bank"),
        np.where(inside, bank, ALERT).ravel().tolist(),
        "bank",
        ("line", "element"),
        about=(Entry("swizzle", found.tensor_map.swizzle), Entry("type", found.tensor_map.data_type.name)),
    )
    return Document((Wording((line,), numbers), picture), "tensormap box", (found.tensor_map.source,))


def _remarks(explained: "Explanation") -> Wording:
    lines = [f"note: {note}" for note in explained.notes] + [f"problem: {problem}" for problem in explained.problems]
    facts = {"notes": list(explained.notes), "problems": list(explained.problems)}
    return Wording(tuple(lines), facts_of(explained, "kind word") | facts)


def _parse_descriptor(words: tuple[str, ...], kind: str) -> int:
    """Return the descriptor as an integer. Several digits without 0x are refused: they may be hexadecimal."""
    text = words[0] if len(words) == 1 else " ".join(words)
    is_bare = re.fullmatch(r"[0-9a-fA-F]{2,32}", text) is not None
    word = None if is_bare or text[:1] in ("+", "-") else number_in(text)
    if word is not None:
        return word
    ways = [f"0x{text}"] if is_bare else []
    if text.isdecimal() and is_bare:
        ways = [f"0x{text} if it is hexadecimal", f"{int(text):#x} if it is decimal"]
    what = f"{text[:60]!r} is not a word" if not ways else f"{text} stands without 0x"
    rule = "a word is hexadecimal (0x40), binary (0b1000000) or a single digit"
    raise RefsimError("bad-value", what, where=kind, rule=rule, help=f"give {', '.join(ways)}" if ways else "")


def _arguments(words: tuple[str, ...]) -> dict[str, Any]:
    """Return the NAME=VALUE pairs, with integers as numbers and lists as tuples."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier() or not value:
            raise RefsimError("bad-value", f"{word[:60]!r} is no FIELD=VALUE", help="start_address=1024 swizzle=128B")
        if name in found:
            raise RefsimError("bad-value", f"{name} is given twice")
        if name in _LISTS:
            found[name] = tuple(_number(each) for each in value.split(",") if each)
        else:
            found[name] = _number(value) if re.fullmatch(r"-?(0x[0-9a-fA-F]+|[0-9]+)", value) else value
    return found


_LISTS = {"dims", "strides", "box", "element_strides", "globalDim", "globalStrides", "boxDim", "elementStrides"}
_LISTS |= {"lower", "upper", "pixelBoxLowerCorner", "pixelBoxUpperCorner"}


def _number(word: str) -> int:
    number = number_in(word)
    if number is None:
        raise RefsimError("bad-value", f"{word[:40]!r} is not a number", help="dims=256,64")
    return number


def _coordinates(words: tuple[str, ...], at: str | None) -> tuple[int, ...]:
    if at is not None:
        return tuple(_number(each) for each in at.split(","))
    dims = _arguments(words).get("globalDim", ())
    return (0,) * len(dims)
