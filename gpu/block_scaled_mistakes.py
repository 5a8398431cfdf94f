"""Mistakes of kernels that multiply what is scaled by blocks, as what they make of the operands.

A mistake takes the entry and (codes of A, codes of B, scales of A, scales of B, factor) and returns others, with which the
right product is what the wrong kernel writes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.formats import Format, format_named
from refsim.layouts import SCALE_LAYOUTS, ScaleLayout, scale_layout

SHUFFLED = scale_layout("nvidia_128x4")
Codes = NDArray[np.uint8]


@dataclass(frozen=True)
class Operands:
    """Codes (rows, K) and logical scales of A and of B, their formats, the scales' format, and the factor of D."""

    codes: tuple[Codes, Codes]
    scales: tuple[Codes, Codes]
    formats: tuple[str, str]
    stored: Format
    block: int
    factor: float
    upcast: str = "triton_3.9"

    @property
    def k(self) -> int:
        return int(self.codes[0].shape[1])


Mistake = Callable[[Operands], Operands]


def with_one(name: str, which: int, array: Any, of: Operands) -> Operands:
    """The operands with the codes, the scales or the format of A (0) or of B (1) replaced."""
    pair = list(getattr(of, name))
    pair[which] = array
    return replace(of, **{name: tuple(pair)})


def read(packed: Codes, shape: tuple[int, int], fill: int) -> Codes:
    """Bytes that lie in memory, read as shuffled scales of that shape; memory beyond them holds `fill`."""
    size = SHUFFLED.size_bytes(shape)
    flat = packed.reshape(-1)
    return SHUFFLED.unshuffle(np.pad(flat, (0, max(0, size - flat.size)), constant_values=fill)[:size], shape)


def laid_out(layout: ScaleLayout | None, which: int, of: Operands) -> Operands:
    """Scales that lie as another chip or library has them; None: in rows, as they are before the interleave."""
    scales, fill = of.scales[which], 0xFF
    if layout is not None:
        try:
            packed = layout.shuffle(scales, fill=fill)
        except RefsimError:  # tiles that the matrix does not fill
            return of
    else:
        rows, blocks = SHUFFLED.padded(scales.shape)
        padding = (0, rows - scales.shape[0]), (0, blocks - scales.shape[1])
        packed = np.pad(scales, padding, constant_values=fill)
    return with_one("scales", which, read(packed, scales.shape, fill), of)


def dense_rows(which: int, of: Operands) -> Operands:
    """The shuffled bytes read as rows of blocks."""
    shape = of.scales[which].shape
    flat = SHUFFLED.shuffle(of.scales[which]).reshape(-1)
    return with_one("scales", which, np.resize(flat, shape).astype(np.uint8), of)


def shuffled_twice(which: int, of: Operands) -> Operands:
    scales = of.scales[which]
    once = SHUFFLED.shuffle(scales, fill=0xFF).reshape(SHUFFLED.padded(scales.shape))
    return with_one("scales", which, read(SHUFFLED.shuffle(once), scales.shape, 0xFF), of)


def tiles_at(place: Callable[..., Any], which: int, of: Operands) -> Operands:
    """Tiles of scales are looked for in another place: `place(down, along, tiles down, tiles along)`."""
    scales = of.scales[which]
    rows, blocks = SHUFFLED.padded(scales.shape)
    down, along = rows // SHUFFLED.tile[0], blocks // SHUFFLED.tile[1]
    tiles = SHUFFLED.shuffle(scales, fill=0xFF).reshape(down * along, -1)
    at = place(*np.ogrid[:down, :along], down, along, scales.shape) % len(tiles)
    return with_one("scales", which, read(tiles[at.reshape(-1)], scales.shape, 0xFF), of)


def _transposed(row: Any, column: Any, down: int, along: int, shape: tuple[int, int]) -> Any:
    return column * down + row


def _counted_down(row: Any, column: Any, down: int, along: int, shape: tuple[int, int]) -> Any:
    return row * max(1, shape[1] // SHUFFLED.tile[1]) + column


def _of_the_first(row: Any, column: Any, down: int, along: int, shape: tuple[int, int]) -> Any:
    return 0 * row + column


def late(which: int, of: Operands) -> Operands:
    return with_one("scales", which, np.roll(of.scales[which], 1, 1), of)


def of_the_first_rows(rows: int, which: int, of: Operands) -> Operands:
    scales = of.scales[which]
    return with_one("scales", which, scales[np.arange(len(scales)) % rows], of)


def first_of_four(of: Operands) -> Operands:
    """The scales of a word's first block serve its other three too."""
    first = np.arange(of.scales[0].shape[1]) // SHUFFLED.tile[1] * SHUFFLED.tile[1]
    return replace(of, scales=tuple(each[:, first] for each in of.scales))


def of_another_binade(step: int, which: int, of: Operands) -> Operands:
    """Values by a bias that is one off: as if the scales of E8M0 were."""
    scales = of.scales[which]
    if of.stored.mantissa_bits:
        return of
    moved = np.clip(scales.astype(np.int16) + step, 0, 0xFE)
    return with_one("scales", which, np.where(scales == 0xFF, 0xFF, moved).astype(np.uint8), of)


def nan_at(code: int, of: Operands) -> Operands:
    """A scale's code that is taken for NaN."""
    return replace(of, scales=tuple(np.where(each == code, of.stored.nan_code, each) for each in of.scales))


def exchanged(of: Operands) -> Operands:
    return replace(of, scales=of.scales[::-1]) if of.scales[0].shape == of.scales[1].shape else of


def pads_counted(of: Operands) -> Operands:
    """An instruction has more blocks than K is long: what pads the scales takes part, with codes of zero."""
    step = 64 if all(format_named(each).bits == 4 for each in of.formats) else of.block
    more = -of.k % step
    codes = tuple(np.pad(each, ((0, 0), (0, more))) for each in of.codes)
    fill = of.stored.nan_code
    scales = tuple(np.pad(each, ((0, 0), (0, more // of.block)), constant_values=fill) for each in of.scales)
    return replace(of, codes=codes, scales=scales)


def last_block_left_out(of: Operands) -> Operands:
    if of.k == of.block:
        return of
    codes = tuple(each[:, : -of.block] for each in of.codes)
    return replace(of, codes=codes, scales=tuple(each[:, :-1] for each in of.scales))


def last_block_without_a_scale(which: int, of: Operands) -> Operands:
    """The scale of the last block of K is one."""
    scales = of.scales[which].copy()
    scales[:, -1] = of.stored.bias if not of.stored.mantissa_bits else of.stored.bias << of.stored.mantissa_bits
    return with_one("scales", which, scales, of)


def nibbles_swapped(which: int, of: Operands) -> Operands:
    return halves_of(2, which, of)


def halves_of(run: int, which: int, of: Operands) -> Operands:
    """Byte i of a run of elements has those of i and of the middle + i, as GGML packs blocks; 2: the high half is the first."""
    codes = of.codes[which]
    if format_named(of.formats[which]).bits != 4 or of.k % run:
        return of
    if run == 2:
        mixed = codes.reshape(len(codes), -1, 2)[..., ::-1]
    else:
        mixed = codes.reshape(len(codes), -1, 2, run // 2).swapaxes(2, 3)
    return with_one("codes", which, np.ascontiguousarray(mixed).reshape(codes.shape), of)


def read_as(name: str, which: int, of: Operands) -> Operands:
    mine, other = format_named(of.formats[which]), format_named(name)
    return with_one("formats", which, name, of) if mine.bits == other.bits else of


def offsets_wrapped(bits: int, which: int, of: Operands) -> Operands:
    """Rows of codes whose bytes begin beyond 2^bits are read as those of so many before; rows lie dense."""
    codes = of.codes[which]
    row_bytes = -(-of.k * format_named(of.formats[which]).bits // 8)
    pitch = -(-row_bytes // 16) * 16
    first = np.arange(len(codes)) * pitch
    if first[-1] < 1 << bits or (1 << bits) % pitch:
        return of
    return with_one("codes", which, codes[(first % (1 << bits)) // pitch], of)


def factor_by(change: Callable[[np.float32], Any], of: Operands) -> Operands:
    return replace(of, factor=float(np.float32(change(np.float32(of.factor)))))


_OTHERS = [row for row in SCALE_LAYOUTS if row.element_bytes == 1 and not row.name.startswith("nvidia_128x4")]
_PLACES = {
    "transposed": ("the grid of the tiles of {} scales is transposed", _transposed),
    "down": ("tiles of {} scales along K are counted down", _counted_down),
    "first": ("all rows of {} have the scales of the first tile", _of_the_first),
}


def _of_both() -> dict[str, Mistake]:
    found: dict[str, Mistake] = {}
    for which, name in enumerate("AB"):
        found |= {
            f"scales of {name} not shuffled": partial(dense_rows, which),
            f"scales of {name} lie in rows": partial(laid_out, None, which),
            f"scales of {name} shuffled twice": partial(shuffled_twice, which),
            **{f"scales of {name} lie as {row.name} has them": partial(laid_out, row, which) for row in _OTHERS},
            **{
                text.format(name + "'s" if "of {} scales" in text else name): partial(tiles_at, place, which)
                for text, place in _PLACES.values()
            },
            f"scales of {name} taken one block of K late": partial(late, which),
            **{
                f"every {rows} rows of {name} have the scales of the first": partial(of_the_first_rows, rows, which)
                for rows in (8, 16, 32, 64)
            },
            f"the last block of {name} has no scale": partial(last_block_without_a_scale, which),
            f"the high half of a byte of {name} is the first element": partial(nibbles_swapped, which),
            **{
                f"a byte of {name} has an element of either half of {run}": partial(halves_of, run, which)
                for run in (8, 16, 32)
            },
            **{
                f"{name} is read as {other}": partial(read_as, other, which)
                for other in ("e4m3", "e5m2", "e2m3", "e3m2")
            },
            f"{name} is half as large": partial(of_another_binade, -1, which),
            f"{name} is twice as large": partial(of_another_binade, 1, which),
            f"offsets of {name} wrap at 16 bits": partial(offsets_wrapped, 16, which),
            f"offsets of {name} wrap at 32 bits": partial(offsets_wrapped, 32, which),
        }
    return found


MISTAKES: dict[str, Mistake] = {
    **_of_both(),
    "A has the scales of B, and B those of A": exchanged,
    "the first of four scales serves all": first_of_four,
    "what pads the scales takes part": pads_counted,
    "the last block of K is left out": last_block_left_out,
    "scale code 0 is 0": lambda of: replace(of, upcast="byte_shift"),
    **{f"scale code {code} is a NaN": partial(nan_at, code) for code in (128, 134)},
    "the factor is left out": partial(factor_by, lambda factor: 1),
    "the factor is inverted": partial(factor_by, lambda factor: np.float32(1) / factor),
}
