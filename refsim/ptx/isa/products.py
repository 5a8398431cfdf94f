"""The matrix products of one mma instruction, for all warps at once: as the chip computes them, or exactly.

Silicon: `refsim.numerics.mma` with the program's target. Exact: all products and C are summed exactly and rounded once
to nearest even, as `refsim.numerics.exact_product` defines it, but computed in float64. If all terms of a warp lie on a
grid that 53 bits span, the float64 sum is exact. Otherwise it is off by at most e. If s - e and s + e round to one
number, the result is that number; the definition settles the rest.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from refsim import numerics
from refsim.conversions import decode
from refsim.evidence import Evidence, Level
from refsim.formats import (
    BF16,
    F16,
    F32,
    F64,
    S8,
    S32,
    TF32,
    U8,
    ElementType,
    Format,
    Integer,
    element_named,
    float_named,
)
from refsim.numerics.profiles import unit_named
from refsim.numerics.rows import Unit
from refsim.numerics.sparse import gathered, sparse_profile, sparsity_of

Array = NDArray[Any]
Doubles = NDArray[np.float64]

Arithmetic = Literal["silicon", "exact", "known"]
ARITHMETICS: tuple[Arithmetic, ...] = get_args(Arithmetic)
KNOWN: Arithmetic = "known"  # as "silicon", in a launch that refuses unspecified bits
INTEGERS = (S8.name, U8.name)
SETTLED = (S32, F64)  # accumulators with equal results in both arithmetics
DOUBLE_BITS = 53
# A float64 sum of n terms is off by less than n ulp of the largest partial sum: 2^-53 n (n + 1) of the largest term.
SLACK = 2.0**-52
NO_BITS = 1 << 16
_ONE_THREAD = 1 << 18  # up to so many products OpenBLAS uses one thread
_TILE = 64  # warps at once: arrays of 128 KiB stay in the cache, and the allocator keeps them


@dataclass(frozen=True)
class MmaKind:
    """The types that one matrix instruction multiplies, the type of C and D, and its unit, as `numerics.mma` names it.
    `satfinite` clamps an integer sum instead of wrapping it."""

    a: ElementType
    b: ElementType
    d: ElementType
    satfinite: bool = False
    unit: Unit = "mma.sync"


@cache
def mma_kind(a: str, b: str, d: str, satfinite: bool = False) -> MmaKind:
    """Return the kind of an mma.sync whose opcode names these types."""
    return MmaKind(element_named(a), element_named(b), element_named(d), satfinite)


@cache
def wgmma_kind(a: str, b: str, d: str, satfinite: bool = False) -> MmaKind:
    """Return the kind of a wgmma whose opcode names these types."""
    return MmaKind(element_named(a), element_named(b), element_named(d), satfinite, "wgmma")


@cache
def scaled_kind(kind: str, a: str, b: str) -> MmaKind:
    """Return the kind of a block-scaled mma.sync of a PTX kind: mxf8f6f4, mxf4 or mxf4nvf4."""
    return MmaKind(element_named(a), element_named(b), F32, unit=unit_named(f"mma.sync.{kind}"))


@cache
def tensor_kind(kind: str, a: str, b: str, d: str, satfinite: bool = False) -> MmaKind:
    """Return the kind of a tcgen05.mma of a PTX kind whose descriptor names these types."""
    unit = unit_named(f"tcgen05.{kind}")
    return MmaKind(element_named(a), element_named(b), element_named(d), satfinite, unit)


@cache
def unrecorded(kind: MmaKind, k: int, target: str, is_sparse: bool = False) -> Evidence | None:
    """Return the evidence for a product's model if no chip recorded it; None if one did or if the sum is defined.

    unrecorded(tensor_kind("f16", "bf16", "bf16", "f32"), 16, "sm_100a") says that published models agree. Products with
    a sparse A were recorded on sm_90 only. Raises RefsimError if a target has no model.
    """
    if kind.d in SETTLED:
        return None
    row_of = sparse_profile if is_sparse else numerics.profile
    evidence = row_of(target, kind.unit, kind.a, kind.b, kind.d, k).evidence
    return None if evidence.level is Level.SILICON else evidence


def multiply_in_turn(
    a: Array, b: Array, c: Array, kind: MmaKind, columns: int, k: int, target: str, arithmetic: str
) -> Array:
    """Multiply by a chain of instructions that each take `columns` columns of A and B; arguments as for `multiply`. The
    chip's own chain is one call of `multiply`."""
    if columns == a.shape[-1] or (arithmetic == "silicon" and not kind.a.is_integer):
        return multiply(a, b, c, kind, k, target, arithmetic)
    for start in range(0, a.shape[-1], columns):
        part = slice(start, start + columns)
        some = np.ascontiguousarray(a[..., part]), np.ascontiguousarray(b[..., part])
        c = multiply(*some, c, kind, k, target, arithmetic)
    return c


def multiply(a: Array, b: Array, c: Array, kind: MmaKind, k: int, target: str, arithmetic: str) -> Array:
    """Return D (warps, M, N) = A B^T + C of one instruction of `k` products; a (warps, M, k), b (warps, N, k) are
    codes.

    c and the result hold f32, f16, f64 or s32 values as `kind.d` says. Integers are exact in both arithmetics; f64 is a
    chain of fused multiply-adds in both, as IEEE 754 defines them.
    """
    if isinstance(kind.a, Integer):
        return _integers(a, b, c, kind)
    if kind.d is F64:
        return _silicon(a, b, c, kind, k, target)
    rows = _live_rows(a, c, kind)
    if len(rows) < a.shape[1] and _is_finite(b, kind.b):
        d = np.zeros_like(c)
        if len(rows):
            some = np.ascontiguousarray(a[:, rows]), b, np.ascontiguousarray(c[:, rows])
            d[:, rows] = exact(*some, kind) if arithmetic == "exact" else _silicon(*some, kind, k, target)
        return d
    return exact(a, b, c, kind) if arithmetic == "exact" else _silicon(a, b, c, kind, k, target)


def multiply_sparse(
    a: Array, b: Array, c: Array, positions: Array, kind: MmaKind, k: int, target: str, arithmetic: str
) -> Array:
    """Return D (warps, M, N) = A B^T + C for a sparse A: a (warps, M, stored) has the elements of A at `positions`.

    positions count inside the groups; `k` is the instruction's own. Integer and exact sums multiply each row by the
    elements of B that it meets.
    """
    if arithmetic == "silicon" and not kind.a.is_integer:
        how: dict[str, Any] = {"a_format": kind.a, "b_format": kind.b, "d_format": kind.d, "metadata": positions}
        result: Array = numerics.mma(a, b, c, unit=kind.unit, target=target, k=k, **how)
        return result
    rows = met_rows(a, b, c, positions, kind)
    return (_integers(*rows, kind) if kind.a.is_integer else exact(*rows, kind)).reshape(c.shape)


def met_rows(a: Array, b: Array, c: Array, positions: Array, kind: MmaKind) -> tuple[Array, Array, Array]:
    """Return a sparse product as one product per row of A, with the elements of B that its stored elements meet."""
    met = gathered(b, positions, sparsity_of(kind.a, kind.unit))
    return (
        a.reshape(-1, 1, a.shape[-1]),
        met.reshape(-1, *met.shape[2:]),
        np.ascontiguousarray(c).reshape(-1, 1, c.shape[-1]),
    )


def _silicon(a: Array, b: Array, c: Array, kind: MmaKind, k: int, target: str) -> Array:
    result: Array = numerics.mma(
        a, b, c, unit=kind.unit, a_format=kind.a, b_format=kind.b, d_format=kind.d, target=target, k=k
    )
    return result


def _live_rows(a: Array, c: Array, kind: MmaKind) -> NDArray[np.int64]:
    """Return the rows of A and C that hold a nonzero element in some warp; the other rows give +0 if B is finite.
    Kernels fill the rows after their batch with zeros: 15 of 16 rows for a batch of one."""
    held = np.bitwise_or.reduce(a, axis=0) & _magnitude_mask(kind.a)
    return np.flatnonzero(held.any(axis=1) | np.bitwise_or.reduce(c.view(kind.d.code_dtype), axis=0).any(axis=1))


def _is_finite(codes: Array, row: ElementType) -> bool:
    """Return whether no code is a NaN or an infinity."""
    format = float_named(row)
    special = (
        ((1 << format.exponent_bits) - 1) << format.mantissa_bits if format.has_infinity else format.magnitude_limit - 1
    )
    return int((codes & _magnitude_mask(row)).max()) < special << format.padding_bits


@cache
def _magnitude_mask(row: ElementType) -> Any:
    """Return all bits of a code that form its magnitude, as a scalar of its type."""
    format = float_named(row)
    return np.dtype(format.code_dtype).type((format.magnitude_limit - 1) << format.padding_bits)


def _integers(a: Array, b: Array, c: Array, kind: MmaKind) -> Array:
    """Return products of 8-bit integers: a sum of 32 stays below 2^22, which float64 holds; 32 bits wrap or clamp.
    Single bits come eight to a code, and the sum counts the bits that both operands have."""
    if kind.a.code_bits == 1:
        wide = [np.unpackbits(codes, axis=-1).astype(np.float64) for codes in (a, b)]
    else:
        sides = ((a, kind.a), (b, kind.b))
        wide = [codes.view(row.array_dtype or codes.dtype).astype(np.float64) for codes, row in sides]
    total = np.matmul(wide[0], wide[1].swapaxes(-1, -2)).astype(np.int64) + c
    if kind.satfinite:
        total = np.clip(total, -(1 << 31), (1 << 31) - 1)
    result: Array = total.astype(np.int32)
    return result


def exact(a: Array, b: Array, c: Array, kind: MmaKind) -> Array:
    """Return A B^T + C summed exactly and rounded once, to f32 or f16: the bits of `numerics.exact_product`."""
    result = np.empty(c.shape, array_type(kind.d))
    unproven = _span(a, b, c, kind) > DOUBLE_BITS
    for start in range(0, len(a), _TILE):
        tile = slice(start, start + _TILE)
        x, y = values(a[tile], kind.a), values(b[tile], kind.b)
        total = matmul(x, y)
        total += c[tile]
        result[tile] = settled(total, kind.d)
        if (some := np.flatnonzero(unproven[tile])).size:
            part = tuple(array[tile][some] for array in (a, b, c))
            wide = (x[some], y[some], part[2].astype(np.float64))
            result[start + some] = _repaired(part, wide, total[some], kind)
    return result


def matmul(x: Doubles, y: Doubles) -> Doubles:
    """Return X Y^T, computed in parts for which NumPy's BLAS starts no thread: threads are slow on busy cores."""
    columns = max(8, _ONE_THREAD // max(1, x.shape[-2] * x.shape[-1]))
    if columns >= y.shape[-2]:
        return np.matmul(x, y.swapaxes(-1, -2))
    found = np.empty((*x.shape[:-1], y.shape[-2]))
    for start in range(0, y.shape[-2], columns):
        part = slice(start, start + columns)
        np.matmul(x, y[..., part, :].swapaxes(-1, -2), out=found[..., part])
    return found


def _span(a: Array, b: Array, c: Array, kind: MmaKind) -> NDArray[np.int64]:
    """Return how many bits a sum of each warp needs at most: from any term's lowest bit to the sum's highest."""
    (a_low, a_high), (b_low, b_high) = code_extent(a, kind.a), code_extent(b, kind.b)
    c_low, c_high = code_extent(c.view(kind.d.code_dtype), kind.d)
    carries = (a.shape[-1] + 1).bit_length()
    span: NDArray[np.int64] = np.maximum(a_high + b_high, c_high) + carries - np.minimum(a_low + b_low, c_low)
    return span


def code_extent(codes: Array, row: ElementType) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each warp's exponents of its lowest bit and of a power of two above every magnitude, without zeros."""
    format = float_named(row)
    magnitude = codes.reshape(len(codes), -1) & _magnitude_mask(row)
    shift = format.mantissa_bits + format.padding_bits
    largest = magnitude.max(axis=1)
    magnitude -= codes.dtype.type(1)  # a zero wraps to the largest number, so that the minimum ignores it
    smallest = magnitude.min(axis=1) + codes.dtype.type(1)
    high = np.maximum(largest.astype(np.int64) >> shift, 1) - format.bias + 1
    low = np.maximum(smallest.astype(np.int64) >> shift, 1) - format.bias - format.mantissa_bits
    return np.where(largest == 0, NO_BITS, low), np.where(largest == 0, -NO_BITS, high)


def _repaired(codes: tuple[Array, ...], wide: tuple[Doubles, ...], total: Doubles, kind: MmaKind) -> Array:
    """Return the results of warps whose float64 sums may be off."""
    x, y, addend = wide
    result, terms = settled(total, kind.d), x.shape[-1] + 1
    size = np.maximum(_largest(x)[:, None, None] * _largest(y)[:, None, None], np.abs(addend))
    error = size * (SLACK * terms * terms)
    code = kind.d.code_dtype
    low, high = (total - error).astype(result.dtype), (total + error).astype(result.dtype)
    doubtful = (low.view(code) != high.view(code)) & np.isfinite(total)
    if doubtful.any():
        _decide(doubtful, codes, wide, result, kind)
    return result


def settled(total: Doubles, row: ElementType) -> Array:
    """Return sums rounded to nearest even; a zero is +0, a NaN has the bits that tensor cores write."""
    result = (total + 0.0).astype(array_type(row))
    if (lost := np.isnan(total)).any():
        result.view(row.code_dtype)[lost] = float_named(row).nan_code
    return result


def array_type(row: ElementType) -> np.dtype[Any]:
    """Return NumPy's own type of an accumulator."""
    dtype = row.array_dtype
    assert dtype is not None
    return dtype


def _largest(values: Doubles) -> Doubles:
    """Return the largest finite magnitude of each warp's matrix."""
    magnitude = np.abs(values).reshape(len(values), -1)
    largest: Doubles = magnitude.max(axis=1)
    if not np.isfinite(largest).all():
        largest = np.where(np.isfinite(magnitude), magnitude, 0).max(axis=1)
    return largest


def _decide(
    doubtful: NDArray[np.bool_], codes: tuple[Array, ...], wide: tuple[Doubles, ...], result: Array, kind: MmaKind
) -> None:
    """Settle in place the sums that float64's error may have changed; a grid common to all terms excludes an error."""
    place = np.nonzero(doubtful)
    warp, row, column = place
    x, y, addend = wide[0][warp, row], wide[1][warp, column], wide[2][place]
    grid = np.minimum(
        _lowest_bit(x, kind.a).min(axis=1) + _lowest_bit(y, kind.b).min(axis=1), _lowest_bit(addend, kind.d)
    )
    _, highest = np.frexp((np.abs(x) * np.abs(y)).sum(axis=1) + np.abs(addend))
    inexact = highest + 1 - grid > DOUBLE_BITS
    if inexact.any():
        warp, row, column = (index[inexact] for index in place)
        a, b, c = codes
        single = _definition(a[warp, row][:, None], b[warp, column][:, None], c[warp, row, column][:, None, None], kind)
        result[warp, row, column] = single[:, 0, 0]


def _lowest_bit(values: Doubles, row: ElementType) -> NDArray[np.int64]:
    return lowest_bits(values, float_named(row).mantissa_bits + 1)


def lowest_bits(values: Doubles, bits: int) -> NDArray[np.int64]:
    """Return the exponent of a power of two that divides each value: the last bit of a significand of `bits` bits. Zero
    gives a high exponent."""
    _, exponent = np.frexp(values)
    return np.where(values == 0, NO_BITS, exponent.astype(np.int64) - bits)


def _definition(a: Array, b: Array, c: Array, kind: MmaKind) -> Array:
    result: Array = numerics.exact_product(a, b, c, a_format=kind.a, b_format=kind.b, d_format=kind.d)
    return result


def values(codes: Array, row: ElementType) -> Doubles:
    """Return the numbers that codes mean, exactly, in float64."""
    if row is BF16:
        return (codes.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    if row is TF32:
        return (codes & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    if row is F16:
        return codes.view(np.float16).astype(np.float64)
    return _table(row).take(codes)


@cache
def _table(row: ElementType) -> Doubles:
    format: Format = float_named(row)
    return decode(np.arange(min(256, format.code_limit), dtype=np.uint8), format).astype(np.float64)
