"""Dumps of registers, shared memory and shuffled scales as matrices: each code at the place of its element."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.cli.arguments import load_codes
from refsim.errors import Kind, RefsimError, unknown
from refsim.files import Stored
from refsim.files.access import read_whole
from refsim.formats import Format
from refsim.layouts.families import FAMILIES, Fragment, family_of, fragment, fragments
from refsim.layouts.holders import BY_THREAD, places
from refsim.layouts.scales import SCALE_LAYOUTS, ScaleLayout, scale_layout
from refsim.layouts.swizzles import SWIZZLES, Swizzle, swizzle
from refsim.layouts.tiles import Major, tile
from refsim.render import Fact

Codes = NDArray[Any]
TILE_BYTES = (1, 2, 4)
RAW = (".bin", ".raw")
MOST_BYTES = 1 << 28
Where = dict[str, NDArray[np.int64]]


class Dump:
    """A matrix of codes. `where` maps a name, such as byte or thread, to the place of each code in the dump."""

    def __init__(self, codes: Codes, row: Format, where: Where, axes: tuple[str, str] = ("row", "col")) -> None:
        self.codes, self.format, self.where, self.axes = codes, row, where, axes

    def facts(self, rows: NDArray[np.int64], cols: NDArray[np.int64]) -> tuple[Fact, ...]:
        """Return the places in the dump of the chosen rows and columns, for a picture."""
        return tuple(
            Fact(name, at[np.ix_(rows, cols)].ravel().tolist(), tip=name != "thread") for name, at in self.where.items()
        )


def layout_named(name: str) -> Fragment | Swizzle | ScaleLayout:
    """Return the fragment, swizzle or scale layout of a name. Raises RefsimError with the three nearest names."""

    if family_of(name) in FAMILIES:
        return fragment(name)
    if name in {row.name for row in SCALE_LAYOUTS}:
        return scale_layout(name)
    if name.lower() in {row.name.lower() for row in SWIZZLES} or name.lower().startswith("swizzle<"):
        return swizzle(name)
    known = [*(row.name for row in SCALE_LAYOUTS), *(row.name for row in SWIZZLES), *fragments()]
    raise unknown("layout", name, known)


def read(
    file: Path,
    row: Format | None,
    key: str | None,
    layout: str | None,
    shape: tuple[int, int] | None,
    major: Major = "K",
) -> Dump:
    """Return the dump of a file, seen through a layout if one is given. Size errors give the expected and found bytes."""
    if layout is None:
        return _plain(load_codes(file, row, key, windowed=shape is None), shape, file)
    try:
        found = layout_named(layout)
    except RefsimError:
        from refsim.checkpoints.layouts import CHECKPOINT_LAYOUTS

        if layout not in {each.name for each in CHECKPOINT_LAYOUTS}:
            raise
        return _plain(load_codes(file, row, key, layout=layout, windowed=shape is None), shape, file)
    match type(found).__name__:
        case "Fragment":
            return _registers(found, file, row, key)  # type: ignore[arg-type]
        case "ScaleLayout":
            return _scales(found, load_codes(file, row, key), shape, file)  # type: ignore[arg-type]
    return _tile(found, load_codes(file, row, key), shape, major, file)  # type: ignore[arg-type]


def _plain(stored: Stored, shape: tuple[int, int] | None, file: Path) -> Dump:
    codes = stored.codes
    if shape is not None:
        if codes.size != shape[0] * shape[1]:
            bits, what = stored.format.bits + stored.format.padding_bits, f"{shape[0]} x {shape[1]} {stored.format}"
            raise _wrong_size(file, f"the dump is {what}", shape[0] * shape[1] * bits // 8, codes.size * bits // 8)
        return Dump(codes.reshape(shape), stored.format, {})
    if codes.ndim >= 2:
        return Dump(codes.reshape(-1, codes.shape[-1]), stored.format, {})
    return Dump(codes.reshape(1, -1), stored.format, {}, ("line", "index"))


def _registers(fragment: Fragment, file: Path, row: Format | None, key: str | None) -> Dump:
    """Return a dump of registers: thread by thread, all registers of a thread in order, little-endian."""
    if file.suffix.lower() in RAW:
        if row is None:
            raise RefsimError(
                "format-needed", "a raw file does not say which format its codes have", str(file), help="give -t FORMAT"
            )
        held = _slots(fragment, file, row)
    else:
        stored = load_codes(file, row, key)
        row, count = stored.format, fragment.threads * fragment.values
        if stored.codes.size != count:
            what = f"{fragment.threads} {fragment.units[0]}s of {fragment.values} {row}"
            raise _wrong_size(file, f"the dump is {what}", count * stored.codes.dtype.itemsize, stored.codes.nbytes)
        held = stored.codes.reshape(fragment.threads, fragment.values)
    threads, values = fragment.holder(*np.ogrid[: fragment.shape[0], : fragment.shape[1]])
    where = places(fragment, threads, values)
    if fragment.units == BY_THREAD:
        where["thread"] = threads
    return Dump(held[threads, values], row, where)


def _slots(fragment: Fragment, file: Path, row: Format) -> Codes:
    """Return the elements (threads, values) of a raw dump. FP4 of kind::f8f6f4 is bits 2 to 5 of its byte."""
    if row.bits + row.padding_bits != fragment.element_bits:
        where, rule = fragment.name, f"elements of this fragment have {fragment.element_bits} bits"
        raise RefsimError("format-mismatch", f"{row} has {row.bits + row.padding_bits} bits", where=where, rule=rule)
    expected = fragment.threads * fragment.values * fragment.slot_bits // 8
    content = np.frombuffer(read_whole(file, MOST_BYTES, "a dump of registers"), np.uint8)
    if content.size != expected:
        what = f"{fragment.threads} {fragment.units[0]}s of {fragment.values} values of {fragment.slot_bits} bits"
        raise _wrong_size(file, f"the dump is {what}", expected, content.size)
    bits = np.unpackbits(content, bitorder="little").reshape(fragment.threads, fragment.values, fragment.slot_bits)
    kept = bits[..., fragment.element_shift : fragment.element_shift + fragment.element_bits].astype(row.code_dtype)
    weights = np.left_shift(np.ones(1, row.code_dtype), np.arange(fragment.element_bits, dtype=row.code_dtype))
    return np.asarray((kept * weights).sum(axis=-1, dtype=row.code_dtype))


def _tile(mode: Swizzle, stored: Stored, shape: tuple[int, int] | None, major: Major, file: Path) -> Dump:
    """Return a dump of shared memory that begins at the tile: codes gathered from their swizzled addresses."""

    if shape is None:
        raise _shape_needed(mode.name)
    made = tile(major, mode, element_bytes(stored.format), shape)
    if stored.codes.nbytes != made.size_bytes:
        what = f"{shape[0]} x {shape[1]} {stored.format}, {major}-major, swizzle {mode}"
        raise _wrong_size(file, f"the dump is {what}", made.size_bytes, stored.codes.nbytes)
    mn, k = np.ogrid[: shape[0], : shape[1]]
    byte = made.address(mn, k)
    codes = stored.codes.reshape(-1)[byte // made.element_bytes]
    return Dump(codes, stored.format, {"byte": byte, "bank": byte // 4 % 32}, ("mn", "k"))


def element_bytes(row: Format) -> int:
    """Return the bytes of a code. Raises RefsimError unless tiles can hold the format."""
    size = row.code_dtype.itemsize
    if row.bits + row.padding_bits < 8 or size not in TILE_BYTES:
        raise RefsimError(
            "bad-dtype", f"codes of {row} have {row.bits} bits", rule="tiles hold elements of 8, 16 or 32 bits"
        )
    return size


def _scales(layout: ScaleLayout, stored: Stored, shape: tuple[int, int] | None, file: Path) -> Dump:
    if shape is None:
        raise _shape_needed(layout.name)
    codes = unshuffled(layout, stored, shape, file)
    rows, blocks = np.ogrid[: shape[0], : shape[1]]
    return Dump(codes, stored.format, {"byte": layout.offset(rows, blocks, shape)}, ("row", "block"))


def unshuffled(layout: ScaleLayout, stored: Stored, shape: tuple[int, int], file: Path) -> NDArray[Any]:
    """Return the scales of a dump as (rows, blocks). Raises RefsimError for a dump of another size."""
    expected, found = layout.size_bytes(shape), stored.codes.nbytes
    if expected != found:
        rows, blocks = layout.padded(shape)
        rule = f"{layout.name}: {shape[0]} x {shape[1]} pads to {rows} x {blocks} elements of {layout.element_bytes} B"
        raise _wrong_size(file, rule, expected, found, help="")
    return layout.unshuffle(stored.codes.reshape(-1), shape)


def _shape_needed(name: str) -> RefsimError:
    return RefsimError("shape-needed", f"layout {name} has no extent of its own", help="give --shape ROWSxCOLS")


OTHERWISE = "give the file and the -t FORMAT of this layout; without --layout the file is shown as it is"


def _wrong_size(file: Path, rule: str, expected: int, found: int, help: str = OTHERWISE) -> RefsimError:
    return RefsimError(
        "truncated-file" if found < expected else "trailing-bytes",
        f"expected {expected} bytes, found {found}",
        str(file),
        rule=rule,
        help=help,
        kind=Kind.UNREADABLE,
    )
