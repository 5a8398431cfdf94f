"""Chips without block scales: the bf16 products of Triton's `tl.dot_scaled`.

Every element times the scale of its block is rounded to bf16, and bf16 products follow. A scale of E8M0 becomes bf16 by
a shift of its byte, so code 0 needs care. The bit pattern of E5M2 becomes bf16 by one multiplication, which turns its
infinities and NaN into numbers. A converted fragment of mma.sync keeps `k_width` consecutive k in a lane, where the
instruction has two: its steps then take other k together.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import decode, encode
from refsim.errors import RefsimError, named
from refsim.formats import BF16, E4M3, UE4M3, Format, Specials
from refsim.integers import is_whole
from refsim.sources import TRITON, Source

BlockScaledUpcast = Literal["triton_3.9", "byte_shift"]
LANES_OF_ROW, HALVES, PAIR = 4, 2, 2  # mma.sync m16n8k16: lanes that share a row, halves of its K, k of a register
INSTRUCTION_K = LANES_OF_ROW * HALVES * PAIR


@dataclass(frozen=True)
class Upcast:
    """One conversion of codes and scales to bf16: `zero_code` is the value of E8M0's code 0, 2^-127."""

    name: BlockScaledUpcast
    zero_code: float
    source: Source


UPCASTS = (
    Upcast("triton_3.9", 2.0**-127, TRITON["DecomposeScaledBlocked of 3.9: max(byte << 7, 0x40); its PTX, run"]),
    Upcast("byte_shift", 0.0, TRITON["DecomposeScaledBlocked before that: byte << 7 alone; 255 is masked to NaN"]),
)


def upcast_named(name: str) -> Upcast:
    """Return the upcast of a name; raise RefsimError `unknown-name` with the names."""
    return named("upcast", name, {row.name: row for row in UPCASTS})


def multiplied(codes: NDArray[Any], format: Format, scales: NDArray[Any], kind: Format, row: Upcast) -> NDArray[Any]:
    """Return the bf16 codes of codes (rows, K) times the scales (rows, blocks): one rounding, to nearest even.

    A scale of NVFP4 counts as an E4M3 number, with its sign. E2M1 code 7 (6) in a block of code 254 (2^127) is
    infinity.
    """
    block = codes.shape[-1] // scales.shape[-1]
    if kind is UE4M3:
        factors = decode(scales, E4M3)
    else:
        factors = np.where(scales == 0, row.zero_code, decode(scales, kind))
    with np.errstate(all="ignore"):
        return encode(_values(codes, format) * np.repeat(factors, block, axis=-1), BF16)


def _values(codes: NDArray[Any], format: Format) -> NDArray[np.float64]:
    """Return the values of codes as float64; infinities and NaN of E5M2 count as 2^16 to 1.75 * 2^16."""
    values = decode(codes, format)
    if format.specials is not Specials.IEEE:
        return values
    magnitude = codes & (format.magnitude_limit - 1)
    field, mantissa = magnitude >> format.mantissa_bits, magnitude & ((1 << format.mantissa_bits) - 1)
    top = (1 << format.exponent_bits) - 1
    number = np.ldexp(1 + mantissa / (1 << format.mantissa_bits), top - format.bias)
    return np.where(field == top, np.where(codes & format.sign_mask, -number, number), values)


def k_order(k: int, k_width: int, tile_k: int | None) -> NDArray[np.int64]:
    """Return the k in the order of m16n8k16, 16 at a time, where a lane holds `k_width` consecutive k of a tile.

    A lane's registers are its runs one after another, two for a tile of 8 * k_width. An instruction takes a pair of
    each run, or two pairs of the run where the tile has only one. k_order(32, 4, None)[:16] is 0 1 4 5 8 9 12 13 16 17
    .. 28 29. Raises RefsimError `bad-value` for widths other than 2, 4, 8 and tiles without a whole run.
    """
    run = LANES_OF_ROW * (k_width if is_whole(k_width) and k_width in (2, 4, 8) else 0)
    if run == 0 or (tile_k is not None and (not is_whole(tile_k, INSTRUCTION_K) or tile_k % run)):
        raise RefsimError("bad-value", f"k_width={k_width!r}, tile_k={tile_k!r}", rule="2, 4 or 8 k a lane; whole runs")
    pairs = k_width // PAIR
    if tile_k == run and pairs > 1:
        shape, axes = (-1, 1, LANES_OF_ROW, pairs // HALVES, HALVES, PAIR), (0, 3, 1, 4, 2, 5)
    else:
        shape, axes = (-1, HALVES, LANES_OF_ROW, pairs, 1, PAIR), (0, 3, 1, 4, 2, 5)
    whole = -(-k // (HALVES * run)) * HALVES * run
    return np.arange(whole).reshape(shape).transpose(axes).ravel()
