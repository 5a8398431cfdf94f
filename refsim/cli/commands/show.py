"""refsim show: a dump as numbers, seen through its format, its layout and its scales."""

import math
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refsim.cli.arguments import format_field, require_few
from refsim.cli.delivery import answering
from refsim.cli.extents import GridWindow, ShapeParam
from refsim.cli.names import FORMAT
from refsim.cli.options import Options, argument, option
from refsim.errors import Kind, RefsimError
from refsim.render import ALERT, Bits, Document, Entry, Fact, Number, Picture

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from refsim.cli.answers.dumps import Dump
    from refsim.formats import Format
    from refsim.layouts.tiles import Major

POSITIVE, NEGATIVE = 0, 16  # blue and orange of the palette, four shades by magnitude
LINE = 16


class ShowOptions(Options):
    """The options of `refsim show`."""

    file: Path = argument()
    row: "Format | None" = format_field(arrays=True)
    key: str | None = option("Name of the tensor, if the file holds several.")
    layout: str | None = option("Layout of the dump: a fragment, a swizzle or a scale layout.")
    shape: tuple[int, int] | None = option("The matrix, if file and layout do not give it.", type=ShapeParam())
    major: "Major" = option("Contiguous dimension of a swizzled tile.", metavar="K|MN", default="K")
    scales: Path | None = option("File of scale factors.")
    scale_format: "Format | None" = option("Format of the scales, if not in their file.", type=FORMAT)
    scale_layout: str | None = option("Layout of the scales (default: row by row).")
    block: tuple[int, int] = option("Elements that share a scale.", type=ShapeParam(), default="1x32")
    window: GridWindow = GridWindow()


@answering()
def command(asked: ShowOptions) -> Document:
    """Print the numbers of a dump in the order of the matrix, multiplied by their scale factors.

    --layout says how the dump is laid out. With a fragment, the dump holds the registers of each thread in turn. With a
    swizzle, it holds shared memory with a K-major tile. With a scale layout, it holds scales. A number with ~ is rounded;
    JSON holds its code. In SVG, each cell shows the code, the scale and the place in the dump.

    \b
      refsim show acc.bin -t f32 --layout wgmma.m64n128k32.e4m3.d
      refsim show tile.bin -t e4m3 --layout 128B --shape 64x128 \\
          --scales sf.bin --scale-format e8m0 --scale-layout nvidia_128x4
    """
    from refsim.cli.answers import dumps

    dump = dumps.read(asked.file, asked.row, asked.key, asked.layout, asked.shape, asked.major)
    if not dump.codes.size:
        raise RefsimError("empty-file", "the dump holds no codes", str(asked.file), kind=Kind.UNREADABLE)
    factors = None
    if asked.scales is not None:
        extent = tuple(-(-size // of) for size, of in zip(dump.codes.shape, asked.block, strict=True))
        factors = dumps.read(asked.scales, asked.scale_format, None, asked.scale_layout, (extent[0], extent[1]))
    elif asked.scale_layout or asked.scale_format:
        raise RefsimError(
            "missing-argument", "the scales have a format or a layout, and no file", help="give --scales FILE"
        )
    if dump.axes == ("line", "index"):
        dump = _in_lines(dump)
    down, across = asked.window.chosen(dump.codes.shape, dump.axes)
    require_few(len(down) * len(across), "--rows and --cols show a part")
    picture = _picture(dump, factors, asked.block, down, across)
    named = [asked.layout] if asked.layout else []
    entries = [f"{dump.format}", *named, *([f"scales {factors.format}"] if factors else [])]
    return Document((picture,), f"{asked.file.name}: {', '.join(entries)}", (dump.format.source,))


def _in_lines(dump: "Dump") -> "Dump":
    """Reshape a vector to lines of 16 where its length allows, and return the dump."""
    count = dump.codes.size
    if count % LINE == 0 and count > LINE:
        dump.codes = dump.codes.reshape(-1, LINE)
        dump.axes = ("line", "place")
    return dump


def _picture(dump: "Dump", factors: "Dump | None", block: tuple[int, int], down: Any, across: Any) -> Picture:
    """Return the chosen part of a dump, multiplied by its scales; each cell shows number, code, scale and place."""
    import numpy as np

    from refsim.conversions import decode
    from refsim.formats import ARRAY_TYPES

    rows, cols = np.array(down), np.array(across)
    codes = dump.codes[np.ix_(rows, cols)]
    values = codes.view(dump.format.array_dtype) if dump.format in ARRAY_TYPES else decode(codes, dump.format)
    extra: tuple[Fact, ...] = ()
    if factors is not None:
        picked = np.ix_(rows // block[0], cols // block[1])
        scale_codes, scale_values = factors.codes[picked], decode(factors.codes, factors.format)[picked]
        with np.errstate(all="ignore"):
            values = values * scale_values
        extra = (
            Fact("scale", _numbers(scale_values)),
            Fact("scale_code", _bits(scale_codes, factors.format), tip=False),
            Fact("block", [f"{r // block[0]}, {c // block[1]}" for r in down for c in across], tip=False),
        )
    facts = (Fact("number", _numbers(values)), Fact("code", _bits(codes, dump.format)), *extra, *dump.facts(rows, cols))
    together = next(
        (name for name in ("thread", "TMEM lane", "bank") if name in dump.where), "block" if extra else "code"
    )
    about = (Entry("format", str(dump.format)), Entry("shape", tuple(dump.codes.shape)))
    return Picture(down, across, facts, ("number",), _colours(values), together, dump.axes, (8, 8), about)


def _bits(codes: "NDArray[Any]", row: "Format") -> list[Bits]:
    width = row.code_bits
    made = {code: Bits(code, width) for code in set(codes.ravel().tolist())}
    return [made[code] for code in codes.ravel().tolist()]


def _numbers(values: "NDArray[Any]") -> list[Number]:
    """Return integers, and other numbers with four digits; ~ marks a rounded number: 0.4375, ~0.1001, ~9.155e-4."""
    flat = values.ravel().tolist()
    spelled: dict[str, Number] = {}
    for value in flat:
        if (key := str(value)) not in spelled:
            spelled[key] = Number(value, _short(value))
    return [spelled[str(value)] for value in flat]


def _short(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    text = f"{value:.4g}"
    exact = not math.isfinite(value) or Fraction(text) == Fraction(value)
    if len(text) > 7:
        digits, _, power = f"{value:.3e}".partition("e")
        text = f"{digits.rstrip('0').rstrip('.')}e{int(power)}"
    return text if exact else f"~{text}"


def _colours(values: "NDArray[Any]") -> list[int]:
    """Return colors: blue above zero, orange below, darker for larger magnitudes. NaN and infinity are marked."""
    import numpy as np

    finite = np.isfinite(values)
    sizes = np.abs(np.where(finite, values, 0.0))
    largest = float(sizes.max(initial=0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        octaves = np.log2(np.where(sizes > 0, sizes, 1.0)) - (math.log2(largest) if largest else 0.0)
    shade = np.clip(3 + np.floor((octaves + 1e-9) / 2 + 0.5), 0, 3).astype(int)
    shade = np.where(sizes == 0, 0, shade)
    return np.where(finite, np.where(np.signbit(values), NEGATIVE, POSITIVE) + shade, ALERT).ravel().tolist()
