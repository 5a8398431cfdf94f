"""Block-scaled matrix products, bit for bit, from codes and scales, by each target's arithmetic.

    native   one chain of the unit's own instructions over K, from C: the scales take part in the alignment of each step
             (`numerics.mma`); an E8M0 scale therefore rounds no product, and code 255 makes its row NaN
    in bf16  where the chip has no such unit, or where a kernel does not use it: the products of Triton's `tl.dot_scaled`

K is padded with zeros, as a kernel's loads give them. F is the sum, in float32. With a global scale, the product of
both operands' per-tensor scales, D = fl(global * F). For bf16 or f16 output, D is rounded once more.

In bf16, every element times the scale of its block is rounded to bf16, and bf16 products follow. A scale of E8M0
becomes bf16 by a shift of its byte, so code 0 needs care. The bit pattern of E5M2 becomes bf16 by one multiplication,
which turns its infinities and NaN into numbers. A converted fragment of mma.sync keeps `k_width` consecutive k in a
lane, where the instruction has two: its steps then take other k together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from refsim.conversions import decode, encode, round_bits
from refsim.errors import RefsimError, named
from refsim.formats import BF16, E4M3, E8M0, F16, F32, UE4M3, Format, Specials, format_named
from refsim.integers import array_of, is_whole
from refsim.layouts import ScaleLayout, scale_layout
from refsim.numerics import ieee, mma
from refsim.numerics.profiles import PROFILES, chip, rows_of, unit_named
from refsim.numerics.rows import Profile, Unit
from refsim.sources import TRITON, Source
from refsim.typed_arrays import format_of, is_typed, typed, with_format

Floats = NDArray[np.float32]
RESULT_FORMATS = (F32, BF16, F16)
BF16_UNITS: tuple[Unit, ...] = ("wgmma", "tcgen05.f16", "mma.sync")
WITH_LANES: tuple[Unit, ...] = ("mma.sync",)  # operands lie in registers: a conversion may choose the k of a lane
TILE_ROWS = 1 << 9  # rows and columns of D that are computed together
BLOCKS: dict[Format, int] = {E8M0: 32, UE4M3: 16}
"""The default number of elements of K that share a scale, by the scale's format."""
PAIRS = tuple(dict.fromkeys(pair for row in PROFILES for pair in row.scales))
"""Every pair of scale format and block size that some unit takes."""
BYTE = 8
BlockScaledUpcast = Literal["triton_3.9", "byte_shift"]
LANES_OF_ROW, HALVES, PAIR = 4, 2, 2  # mma.sync m16n8k16: lanes that share a row, halves of its K, k of a register
INSTRUCTION_K = LANES_OF_ROW * HALVES * PAIR


def block_scaled_matmul(
    a: ArrayLike,
    b: ArrayLike,
    a_scale: ArrayLike,
    b_scale: ArrayLike,
    *,
    a_format: str | Format | None = None,
    b_format: str | Format | None = None,
    scale_format: str | Format | None = None,
    block: int | None = None,
    layout: str | ScaleLayout | None = None,
    c: ArrayLike | None = None,
    global_scale: float | None = None,
    target: str = "sm_100a",
    unit: Unit | None = None,
    upcast: BlockScaledUpcast = "triton_3.9",
    k_width: int | None = None,
    tile_k: int | None = None,
    out: str | Format = F32,
    dtype: DTypeLike | None = None,
) -> NDArray[Any]:
    """Return D (M, N) of A (M, K) and B (N, K) whose blocks of K share scales: float32, or bf16 or f16 codes as uint16.

    dtype="ml_dtypes" returns bfloat16 or float16. `a`, `b`: FP8, FP6 or FP4 codes, one uint8 an element, or arrays of
    ml_dtypes, whose dtype gives the format; mixed as the unit allows. `a_scale` (M, K / block), `b_scale` (N, K /
    block): codes of `scale_format`, by default E8M0 (blocks of 32), or UE4M3 (blocks of 16); with `layout`
    ("nvidia_128x4", "cdna4_32" and others) shuffled by that layout, padding included. `c`: float32 (M, N), the start of
    the sums. `global_scale`: both per-tensor scales of NVFP4, multiplied in float32. `unit`: by default the target's
    unit with block scales that takes both formats and the fewest others; "wgmma", "tcgen05.f16" and "mma.sync" multiply
    in bf16 by the rule `upcast`, the default of a target without block scales. With "mma.sync" a lane holds `k_width`
    consecutive k (8 where one operand is FP4, else 4), of tiles of `tile_k` (if less than 64).
    block_scaled_matmul(*[np.full((1, 32), 0x38, np.uint8)] * 2, *[np.uint8([[128]])] * 2, a_format="e4m3",
    b_format="e4m3") is [[128.0]], 32 ones times 2 times 2.

    Raises RefsimError for shapes, blocks, formats and units that do not fit. Warns with UnverifiedProfileWarning on
    gfx950, whose arithmetic is not published. Source: `numerics.profile` of the unit; Triton, DecomposeScaledBlocked.
    """
    written = format_named(out)
    if written not in RESULT_FORMATS:
        raise RefsimError("unsupported-format", f"out is {written.name}", rule="f32, or bf16 or f16: that, rounded")
    form = ScaleForm(scale_format, block, layout)
    left, right = side("a", a, a_format, a_scale, form), side("b", b, b_format, b_scale, form)
    if left.k != right.k or (left.kind, left.block) != (right.kind, right.block):
        shapes = ", ".join(f"K = {each.k} in blocks of {each.block}, {each.kind.name}" for each in (left, right))
        raise RefsimError("bad-shape", f"A and B have {shapes}", rule="(M, K) and (N, K): one K and one kind of scales")
    row = _row(left, right, target, unit)
    if row.scales:
        multiply = _native(row, target)
    else:
        multiply = _in_bf16(row, target, upcast_named(upcast), _order(left, right, row, k_width, tile_k))
    total = _tiled(left, right, start_of(c, len(left.codes), len(right.codes)), multiply)
    if global_scale is not None:
        total = ieee.mul(total, np.full_like(total, _factor(global_scale)))
    return total if written is F32 else typed(round_bits(total, written).astype(written.code_dtype), written, dtype)


# ---- operands: codes and logical scales that fit each other, or one clear error


@dataclass(frozen=True)
class ScaledSide:
    """The rows of an operand: codes (rows, K), scales (rows, K / block), and both formats."""

    codes: NDArray[Any]
    format: Format
    scales: NDArray[Any]
    kind: Format

    @property
    def k(self) -> int:
        """Return the number of elements of K."""
        return int(self.codes.shape[1])

    @property
    def block(self) -> int:
        """Return the number of elements that share a scale."""
        return self.k // int(self.scales.shape[1])

    def rows(self, part: slice) -> "ScaledSide":
        """Return a part of the rows as an operand."""
        return ScaledSide(self.codes[part], self.format, self.scales[part], self.kind)


@dataclass(frozen=True)
class ScaleForm:
    """The caller's description of scales: their format and block, None for the default, and their layout."""

    format: str | Format | None
    block: int | None
    layout: str | ScaleLayout | None


def side(name: str, codes: ArrayLike, format: str | Format | None, scales: ArrayLike, form: ScaleForm) -> ScaledSide:
    """Return the operand of that name, checked; scales of a layout are unshuffled, and their padding is ignored."""
    array, row = _codes(name, codes, format)
    given, kind = _scales(name, scales, form.format)
    size = BLOCKS[kind] if form.block is None else form.block
    if not is_whole(size) or (kind, size) not in PAIRS:
        known = ", ".join(f"{format.name} of {length}" for format, length in PAIRS)
        raise RefsimError("bad-scale", f"{kind.name} scales of blocks of {size!r}", f"{name}_scale", f"known: {known}")
    k = array.shape[1]
    if k % size:
        what = f"K = {k} of {name} is not a multiple of its blocks of {size}"
        raise RefsimError("bad-shape", what, help=f"pad {name} with zeros")
    shape = (len(array), k // size)
    if form.layout is not None:
        given = scale_layout(form.layout).unshuffle(given, shape)
    elif given.shape != shape:
        raise RefsimError(
            "bad-shape",
            f"{name}_scale has shape {given.shape}",
            f"{name} of shape {array.shape}",
            f"{shape}: {kind.name}, one for {size} of K",
            "scales that are shuffled or padded need layout=, those of another format or block scale_format= or block=",
        )
    return ScaledSide(array, row, given, kind)


def _codes(name: str, codes: ArrayLike, format: str | Format | None) -> tuple[NDArray[Any], Format]:
    """Return an operand's codes (rows, K) and their format; raise for other types, shapes or illegal codes."""
    codes, row = with_format(array_of(name, codes), format, name)
    array = np.asarray(codes)
    if row.bits > BYTE or array.dtype != np.uint8:
        what = f"{name} holds {array.dtype}, codes of {row}"
        raise RefsimError("bad-dtype", what, rule="FP8, FP6 or FP4: one uint8 a code")
    if array.ndim != 2 or array.shape[1] == 0:
        raise RefsimError("bad-shape", f"{name} has shape {array.shape}", rule="(rows, K), K at least 1")
    if array.size and int(array.max()) >= row.code_limit:
        what = f"{name} holds {int(array.max()):#x}"
        help = "one code an element; refsim.unpack takes packed bytes apart"
        raise RefsimError("out-of-range", what, rule=f"{row} has codes below {row.code_limit:#x}", help=help)
    if 2 * row.bits <= BYTE and array.shape[1] % 2:
        what = f"{name} has K = {array.shape[1]} of {row}"
        raise RefsimError("bad-shape", what, rule="two of them share a byte: K is even")
    return array, row


def _scales(name: str, scales: ArrayLike, format: str | Format | None) -> tuple[NDArray[Any], Format]:
    """Return the codes of scales and their format: the given format, the dtype's format, or E8M0."""
    given: ArrayLike = array_of(f"{name}_scale", scales)
    own = format_of(given.dtype) if isinstance(given, np.ndarray) and is_typed(given.dtype) else E8M0
    given, kind = with_format(given, format or (UE4M3 if own == E4M3 else own), f"{name}_scale")
    array = np.asarray(given)
    if kind not in BLOCKS or array.dtype != np.uint8:
        what = f"{name}_scale holds {array.dtype}, scales of {kind.name}"
        raise RefsimError("bad-dtype", what, rule=f"codes of {' or '.join(row.name for row in BLOCKS)}: one uint8 each")
    return array, kind


# ---- in bf16


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


# ---- the sum


def start_of(c: ArrayLike | None, m: int, n: int) -> Floats:
    """Return the start of the sums (m, n): `c`, checked, or zeros."""
    if c is None:
        return np.zeros((m, n), np.float32)
    array = array_of("c", c)
    if array.dtype != np.float32 or array.shape != (m, n):
        raise RefsimError("bad-shape", f"c is {array.dtype} of shape {array.shape}", rule=f"float32, ({m}, {n})")
    return array


def _factor(scale: float) -> np.float32:
    """Return the global scale as float32; raise unless it is one number."""
    array = array_of("global_scale", scale)
    if array.shape or array.dtype.kind not in "fiu":
        raise RefsimError("bad-scale", f"global_scale is {scale!r}", rule="one number, which float32 holds or rounds")
    with np.errstate(over="ignore"):
        return np.float32(array)


def _row(a: ScaledSide, b: ScaledSide, target: str, unit: str | None) -> Profile:
    """Return the unit's arithmetic: the given unit, or the unit with block scales that takes the fewest formats.

    Without block scales on the target it is the first unit that multiplies bf16. Raises `unknown-arithmetic` where none
    fits.
    """
    chip(target)
    here = rows_of(target, None if unit is None else unit_named(unit))
    scaled, wide = fitting_units(a, b, here)
    if scaled:
        return scaled[0]
    if wide and (unit is not None or not any(row.scales for row in here)):
        return wide[0]
    asked = f"{a.format} x {b.format} with {a.kind.name} scales of {a.block}"
    known = [f"{row.name}, {kind.name} of {size}" for row in here for kind, size in row.scales]
    known += [f"unit={name!r}, in bf16" for name in dict.fromkeys(row.unit for row in wide)]
    what = f"{target} has no {unit or 'unit'} for {asked}"
    raise RefsimError("unknown-arithmetic", what, help="; ".join(known) or "another target")


def fitting_units(a: ScaledSide, b: ScaledSide, here: Sequence[Profile]) -> tuple[list[Profile], list[Profile]]:
    """Return the units with such block scales, the one with the fewest formats first, and those that multiply bf16."""
    scaled = [row for row in here if (a.kind, a.block) in row.scales and _takes(row, a.format, b.format)]
    wide = [row for name in BF16_UNITS for row in here if row.unit == name and _takes(row, BF16, BF16)]
    return sorted(scaled, key=lambda row: len(row.a_formats)), wide


def _takes(row: Profile, a: Format, b: Format) -> bool:
    return a in row.a_formats and b in row.b_formats and row.d_format is F32


def _order(a: ScaledSide, b: ScaledSide, row: Profile, k_width: int | None, tile_k: int | None) -> NDArray[np.int64]:
    """Return the order of k in the bf16 instructions."""
    if k_width is None:
        narrow = min(a.format.bits, b.format.bits)
        k_width = (8 if narrow <= 4 else 4) if row.unit in WITH_LANES else 2
    return k_order(a.k, k_width, tile_k)


Product = Callable[[ScaledSide, ScaledSide, Floats], Floats]


def _tiled(a: ScaledSide, b: ScaledSide, start: Floats, multiply: Product) -> Floats:
    total = np.empty_like(start)
    for top in range(0, len(a.codes), TILE_ROWS):
        for left in range(0, len(b.codes), TILE_ROWS):
            rows, columns = slice(top, top + TILE_ROWS), slice(left, left + TILE_ROWS)
            total[rows, columns] = multiply(a.rows(rows), b.rows(columns), start[rows, columns])
    return total


def _native(row: Profile, target: str) -> Product:
    """Return the product by the unit's own instructions; K is padded with zeros whose scale is one."""
    k = max(row.k)

    def multiply(a: ScaledSide, b: ScaledSide, c: Floats) -> Floats:
        """Return the sums of a tile (rows of A, rows of B) from C."""
        x, y = (_padded(each.codes, k, 0) for each in (a, b))
        one = int(encode(1.0, a.kind))
        scales = [_padded(each.scales, k // each.block, one) for each in (a, b)]
        formats: dict[str, Any] = {"a_format": a.format, "b_format": b.format, "scale_format": a.kind}
        return mma(x, y, c, unit=row.unit, target=target, k=k, a_scale=scales[0], b_scale=scales[1], **formats)

    return multiply


def _in_bf16(row: Profile, target: str, upcast: Upcast, order: NDArray[np.int64]) -> Product:
    """Return the product of codes times scales in bf16, with k in the order of the instructions."""

    def multiply(a: ScaledSide, b: ScaledSide, c: Floats) -> Floats:
        wide = (multiplied(each.codes, each.format, each.scales, each.kind, upcast) for each in (a, b))
        x, y = (_padded(each, len(order), 0)[:, order] for each in wide)
        return mma(x, y, c, unit=row.unit, a_format=BF16, b_format=BF16, target=target, k=INSTRUCTION_K)

    return multiply


def _padded(array: NDArray[Any], step: int, fill: int) -> NDArray[Any]:
    """Return the array with its columns padded to a multiple of `step`."""
    return np.pad(array, ((0, 0), (0, -array.shape[1] % step)), constant_values=fill)
