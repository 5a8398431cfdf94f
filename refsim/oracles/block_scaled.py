"""Block-scaled matrix products, bit for bit, from codes and scales, by each target's arithmetic.

    native   one chain of the unit's own instructions over K, from C: the scales take part in the alignment of each step
             (`numerics.mma`); an E8M0 scale therefore rounds no product, and code 255 makes its row NaN
    in bf16  where the chip has no such unit, or where a kernel does not use it: see `block_scaled_upcast`

K is padded with zeros, as a kernel's loads give them. F is the sum, in float32. With a global scale, the product of
both operands' per-tensor scales, D = fl(global * F). For bf16 or f16 output, D is rounded once more.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from refsim.conversions import encode, round_bits
from refsim.errors import RefsimError
from refsim.formats import BF16, F16, F32, Format, format_named
from refsim.integers import array_of
from refsim.layouts import ScaleLayout
from refsim.numerics import ieee, mma
from refsim.numerics.profiles import chip, rows_of, unit_named
from refsim.numerics.rows import Profile, Unit
from refsim.oracles.block_scaled_operands import ScaledSide, ScaleForm, side
from refsim.oracles.block_scaled_upcast import (
    INSTRUCTION_K,
    BlockScaledUpcast,
    Upcast,
    k_order,
    multiplied,
    upcast_named,
)
from refsim.typed_arrays import typed

Floats = NDArray[np.float32]
Product = Callable[[ScaledSide, ScaledSide, Floats], Floats]
RESULT_FORMATS = (F32, BF16, F16)
BF16_UNITS: tuple[Unit, ...] = ("wgmma", "tcgen05.f16", "mma.sync")
WITH_LANES: tuple[Unit, ...] = ("mma.sync",)  # operands lie in registers: a conversion may choose the k of a lane
TILE_ROWS = 1 << 9  # rows and columns of D that are computed together


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
    total = _tiled(left, right, _start(c, len(left.codes), len(right.codes)), multiply)
    if global_scale is not None:
        total = ieee.mul(total, np.full_like(total, _factor(global_scale)))
    return total if written is F32 else typed(round_bits(total, written).astype(written.code_dtype), written, dtype)


def _start(c: ArrayLike | None, m: int, n: int) -> Floats:
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
    scaled = [row for row in here if (a.kind, a.block) in row.scales and _takes(row, a.format, b.format)]
    if scaled:
        return min(scaled, key=lambda row: len(row.a_formats))
    wide = [row for name in BF16_UNITS for row in here if row.unit == name and _takes(row, BF16, BF16)]
    if wide and (unit is not None or not any(row.scales for row in here)):
        return wide[0]
    asked = f"{a.format} x {b.format} with {a.kind.name} scales of {a.block}"
    known = [f"{row.name}, {kind.name} of {size}" for row in here for kind, size in row.scales]
    known += [f"unit={name!r}, in bf16" for name in dict.fromkeys(row.unit for row in wide)]
    what = f"{target} has no {unit or 'unit'} for {asked}"
    raise RefsimError("unknown-arithmetic", what, help="; ".join(known) or "another target")


def _takes(row: Profile, a: Format, b: Format) -> bool:
    return a in row.a_formats and b in row.b_formats and row.d_format is F32


def _order(a: ScaledSide, b: ScaledSide, row: Profile, k_width: int | None, tile_k: int | None) -> NDArray[np.int64]:
    """Return the order of k in the bf16 instructions."""
    if k_width is None:
        narrow = min(a.format.bits, b.format.bits)
        k_width = (8 if narrow <= 4 else 4) if row.unit in WITH_LANES else 2
    return k_order(a.k, k_width, tile_k)


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
