"""Products whose operands have scales by block: as the chip computes them, or summed exactly and rounded once."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim import numerics
from refsim.formats import ElementType, Format, float_named
from refsim.ptx.isa.products import DOUBLE_BITS, NO_BITS, SLACK, MmaKind, lowest_bits, settled, values

Array = NDArray[Any]
Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Scales:
    """Codes of the scales of A (warps, M, blocks) and of B (warps, N, blocks), and their format."""

    a: Array
    b: Array
    format: Format

    def part(self, codes: Array, start: int, k: int) -> "Scales":
        """Those of k columns of the codes."""
        block = codes.shape[-1] // self.a.shape[-1]
        some = slice(start // block, (start + k) // block)
        return Scales(self.a[..., some], self.b[..., some], self.format)


def multiply_scaled(
    a: Array, b: Array, c: Array, scales: Scales, kind: MmaKind, k: int, target: str, arithmetic: str
) -> Array:
    """D (warps, M, N) = (A scaled) (B scaled)^T + C; a (warps, M, K), b (warps, N, K) are codes, each block of K / blocks
    of them has one scale. `k` is that of one instruction, which a chain of them repeats."""
    if arithmetic == "exact":
        for start in range(0, a.shape[-1], k):
            c = exact_scaled(a[..., start : start + k], b[..., start : start + k], c, scales.part(a, start, k), kind)
        return c
    result: Array = numerics.mma(
        a, b, c, unit=kind.unit, target=target, k=k, d_format=kind.d, **_given(a, b, scales, kind)
    )
    return result


def _given(a: Array, b: Array, scales: Scales, kind: MmaKind) -> dict[str, Any]:
    return {
        "a_format": kind.a,
        "b_format": kind.b,
        "a_scale": scales.a,
        "b_scale": scales.b,
        "scale_format": scales.format,
    }


def exact_scaled(a: Array, b: Array, c: Array, scales: Scales, kind: MmaKind) -> Array:
    """The bits of `numerics.exact_product` with these scales: by float64 where that is exact, or near enough to round to
    one number, and by the definition elsewhere."""
    x, y = _scaled(a, kind.a, scales.a, scales.format), _scaled(b, kind.b, scales.b, scales.format)
    addend = c.astype(np.float64)
    total = np.matmul(x, y.swapaxes(-1, -2))
    total += addend
    result = settled(total, kind.d)
    if _is_exact(x, y, addend, kind, scales.format):
        return result
    error = _error(x, y, addend, kind, scales.format)
    low, high = (total - error).astype(result.dtype), (total + error).astype(result.dtype)
    doubtful = (low.view(kind.d.code_dtype) != high.view(kind.d.code_dtype)) & np.isfinite(total)
    if doubtful.any():
        warp, row, column = np.nonzero(doubtful)
        own = Scales(scales.a[warp, row][:, None], scales.b[warp, column][:, None], scales.format)
        codes = a[warp, row][:, None], b[warp, column][:, None], c[warp, row, column][:, None, None]
        single = numerics.exact_product(*codes, d_format=kind.d, **_given(*codes[:2], own, kind))
        result[warp, row, column] = single[:, 0, 0]
    return result


def _scaled(codes: Array, row: ElementType, scale: Array, format: Format) -> Doubles:
    """The numbers that codes and scales mean together: a float64 holds every such product."""
    factors = values(scale & np.uint8(format.code_limit - 1), format)
    return values(codes, row) * factors.repeat(codes.shape[-1] // scale.shape[-1], axis=-1)


def _is_exact(x: Doubles, y: Doubles, addend: Doubles, kind: MmaKind, format: Format) -> bool:
    """Whether all terms of all sums lie on one grid that 53 bits span."""
    held, terms = format.mantissa_bits + 1, x.shape[-1] + 1
    grid = min(
        sum(
            int(lowest_bits(side, float_named(row).mantissa_bits + 1 + held).min())
            for side, row in ((x, kind.a), (y, kind.b))
        ),
        int(lowest_bits(addend, float_named(kind.d).mantissa_bits + 1).min()),
    )
    size = np.abs(x).max() * np.abs(y).max() * terms + np.abs(addend).max()
    return bool(np.isfinite(size)) and int(np.frexp(size)[1]) + 1 - grid <= DOUBLE_BITS


def _error(x: Doubles, y: Doubles, addend: Doubles, kind: MmaKind, format: Format) -> Doubles:
    """How far a float64 sum may be off: nothing where all its terms lie on a grid that 53 bits span."""
    terms = x.shape[-1] + 1
    size = np.abs(x).max(axis=-1)[:, :, None] * np.abs(y).max(axis=-1)[:, None, :]
    held = format.mantissa_bits + 1
    sides = ((x, kind.a), (y, kind.b))
    low_x, low_y = (lowest_bits(side, float_named(row).mantissa_bits + 1 + held).min(axis=-1) for side, row in sides)
    grid = np.minimum(low_x[:, :, None] + low_y[:, None, :], lowest_bits(addend, float_named(kind.d).mantissa_bits + 1))
    _, highest = np.frexp(size * terms + np.abs(addend))
    exact = (highest + 1 - grid <= DOUBLE_BITS) | (grid >= NO_BITS)
    error: Doubles = np.where(exact, 0.0, np.maximum(size, np.abs(addend)) * (SLACK * terms * terms))
    return error
