"""The matrix products of one mma instruction, for all warps at once: as the chip computes them, or exactly.

Silicon: `refsim.numerics.mma` with the program's target. Exact: all products and C are summed exactly and rounded once
to nearest even, as `refsim.numerics.exact_product` defines it, but computed in float64. If all terms of a warp lie on a
grid that 53 bits span, the float64 sum is exact. Otherwise it is off by at most e. If s - e and s + e round to one
number, the result is that number; the definition settles the rest.

The exact sum of one instruction is the sum of a few float64 numbers. One number is enough if all products of an
instruction lie on a grid that 53 bits span. Otherwise there is one number per block, whose products share a scale. If a
block needs more bits, its large and small elements are summed separately. `numerics.exact_product` settles sums that
stay undecided.

`rounded_sum` adds a few arrays of float64 and rounds once: no part of any term is lost before the rounding. The error
of adding two numbers is a number too (Knuth's TwoSum). A sum is therefore `total + rest`, and the part that does not
fit there is `lost`. A `total` that is not the whole sum becomes its neighbor with an odd last bit. Rounding this
neighbor to 51 bits or fewer is rounding the sum. Source: Boldo and Melquiond, Emulation of FMA and correctly rounded
sums, 2008."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
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
from refsim.ptx.memory.arrays import Array, Bools

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
    a: Array,
    b: Array,
    c: Array,
    positions: Array,
    kind: MmaKind,
    k: int,
    target: str,
    arithmetic: str,
    scales: "Scales | None" = None,
) -> Array:
    """Return D (warps, M, N) = A B^T + C for a sparse A: a (warps, M, stored) has the elements of A at `positions`.

    positions count inside the groups; `k` is the instruction's own. Integer and exact sums multiply each row by the
    elements of B that it meets. A's `scales` belong to blocks of stored elements. Each scale of B covers twice as many
    elements: as many as a block of A has in the whole row.
    """
    if arithmetic == "silicon" and not kind.a.is_integer:
        return _silicon(a, b, c, kind, k, target, scales, positions)
    rows = met_rows(a, b, c, positions, kind)
    if scales is not None:
        own = Scales(scales.a.reshape(-1, 1, scales.a.shape[-1]), scales.b.repeat(a.shape[-2], axis=0), scales.format)
        return exact_scaled(*rows, own, kind, a.shape[-1]).reshape(c.shape)
    return (_integers(*rows, kind) if kind.a.is_integer else exact(*rows, kind)).reshape(c.shape)


def met_rows(a: Array, b: Array, c: Array, positions: Array, kind: MmaKind) -> tuple[Array, Array, Array]:
    """Return a sparse product as one product per row of A, with the elements of B that its stored elements meet."""
    met = gathered(b, positions, sparsity_of(kind.a, kind.unit))
    return (
        a.reshape(-1, 1, a.shape[-1]),
        met.reshape(-1, *met.shape[2:]),
        np.ascontiguousarray(c).reshape(-1, 1, c.shape[-1]),
    )


def _silicon(
    a: Array,
    b: Array,
    c: Array,
    kind: MmaKind,
    k: int,
    target: str,
    scales: "Scales | None" = None,
    positions: Array | None = None,
) -> Array:
    more = _formats(kind, scales)
    result: Array = numerics.mma(a, b, c, unit=kind.unit, target=target, k=k, metadata=positions, **more)
    return result


def _formats(kind: MmaKind, scales: "Scales | None" = None) -> dict[str, Any]:
    """Return what the numerics need of a kind, and of scales: formats and codes."""
    found: dict[str, Any] = {"a_format": kind.a, "b_format": kind.b, "d_format": kind.d}
    if scales is not None:
        found |= {"a_scale": scales.a, "b_scale": scales.b, "scale_format": scales.format}
    return found


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


def _decide(doubtful: Bools, codes: tuple[Array, ...], wide: tuple[Doubles, ...], result: Array, kind: MmaKind) -> None:
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
    result: Array = numerics.exact_product(a, b, c, **_formats(kind))
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


_LOW = np.int64(1)


def rounded_sum(terms: list[Doubles], row: ElementType) -> tuple[Array, NDArray[np.intp]]:
    """Return the sums of at least two terms, rounded once to nearest even, and the flat indices of undecided sums.

    A sum is undecided if the lost part may change the rounding: 2^-60 and less is left of 2^53 + 2^-60 - 2^53 - 2^-120.
    """
    total, rest = two_sum(terms[0], terms[1])
    lost: Doubles | None = None
    for term in terms[2:]:
        total, error = two_sum(total, term)
        if not error.any():
            continue
        rest, left = two_sum(rest, error)
        if left.any():
            lost = np.abs(left) if lost is None else lost + np.abs(left)
    if lost is None and not rest.any():
        return settled(total, row), np.zeros(0, np.intp)
    if len(terms) > 2:
        total, rest = two_sum(total, np.where(np.isfinite(total), rest, 0.0))
    is_open = np.zeros(0, np.intp)
    if lost is not None:
        is_open = np.flatnonzero(np.isfinite(total) & (lost != 0) & ~(lost < 0.5 * np.abs(rest)))
    return settled(_odd(total, rest), row), is_open


def two_sum(x: Doubles, y: Doubles) -> tuple[Doubles, Doubles]:
    """Return x + y rounded to float64, and the rounding error: their sum is x + y exactly. The error of a non-finite
    sum is NaN."""
    total = x + y
    of_y = total - x
    missing = y - of_y
    np.subtract(total, of_y, out=of_y)
    missing += x - of_y
    return total, missing


def _odd(total: Doubles, rest: Doubles) -> Doubles:
    """Return the sums rounded to odd: the neighbor toward `rest` where there is a rest and the last bit is even."""
    bits = total.view(np.int64)
    even = np.flatnonzero((rest != 0) & (bits & _LOW == 0) & np.isfinite(total))
    if not even.size:
        return total
    grows = (rest.ravel()[even] > 0) == (total.ravel()[even] > 0)
    found = bits.copy()
    found.ravel()[even] += np.where(grows, 1, -1)
    return found.view(np.float64)


@dataclass(frozen=True)
class Scales:
    """The codes of the scales of A (warps, M, blocks) and of B (warps, N, blocks), and their format."""

    a: Array
    b: Array
    format: Format

    def part(self, codes: Array, start: int, k: int) -> "Scales":
        """Return the scales of `k` columns of the codes, beginning at column `start`."""
        block = codes.shape[-1] // self.a.shape[-1]
        some = slice(start // block, (start + k) // block)
        return Scales(self.a[..., some], self.b[..., some], self.format)


def multiply_scaled(
    a: Array, b: Array, c: Array, scales: Scales, kind: MmaKind, k: int, target: str, arithmetic: str
) -> Array:
    """Return D (warps, M, N) = (A scaled) (B scaled)^T + C; a (warps, M, K), b (warps, N, K) are codes. Each block of K
    / blocks codes has one scale. `k` is the depth of one instruction, which a chain repeats."""
    if arithmetic == "exact":
        return exact_scaled(a, b, c, scales, kind, k)
    return _silicon(a, b, c, kind, k, target, scales)


def exact_scaled(a: Array, b: Array, c: Array, scales: Scales, kind: MmaKind, k: int) -> Array:
    """Return the bits of `numerics.exact_product` with these scales, instruction by instruction."""
    sides = _Side.of(a, kind.a, scales.a, scales.format), _Side.of(b, kind.b, scales.b, scales.format)
    for start, terms in zip(range(0, a.shape[-1], k), _terms(*sides, k), strict=True):
        d, is_open = rounded_sum([*terms, c.astype(np.float64)], kind.d)
        if is_open.size:
            part, some = scales.part(a, start, k), slice(start, start + k)
            warp, row, column = np.unravel_index(is_open, d.shape)
            own = Scales(part.a[warp, row][:, None], part.b[warp, column][:, None], scales.format)
            codes = a[warp, row, some][:, None], b[warp, column, some][:, None]
            addend = c[warp, row, column][:, None, None]
            single = numerics.exact_product(*codes, addend, **_formats(kind, own))
            d[warp, row, column] = single[:, 0, 0]
        c = d
    return c


@dataclass(frozen=True)
class _Side:
    """An operand in numbers: elements (warps, rows, K), and scales (warps, rows, blocks) of `scale_bits` bits.

    An extent is the exponent of the lowest bit and of a power of two above every magnitude: `extent` of elements,
    `scaled` of elements with their scales.
    """

    elements: Doubles
    scales: Doubles
    scale_bits: int
    extent: tuple[float, float]
    scaled: tuple[float, float]

    @classmethod
    def of(cls, codes: Array, row: ElementType, scale: Array, format: Format) -> "_Side":
        """Return an operand from its codes and the codes of its scales."""
        factors, bits = values(scale & np.uint8(format.code_limit - 1), format), format.mantissa_bits + 1
        lowest, highest = code_extent(codes, row)
        low, high = int(lowest.min()), int(highest.max())
        first, last = np.frexp(factors.min(initial=np.inf, where=factors != 0))[1], np.frexp(factors.max())[1]
        is_known = np.isfinite(factors).all() and factors.any()
        scaled = (low + int(first) - bits, high + int(last)) if is_known else (-np.inf, np.inf)
        return cls(values(codes, row), factors, bits, (low, high), scaled)

    @property
    def block(self) -> int:
        """Return how many elements share a scale."""
        return self.elements.shape[-1] // self.scales.shape[-1]

    def folded(self) -> Doubles:
        """Return elements times their scales: a float64 holds every such product."""
        apart = self.elements.reshape(*self.scales.shape, -1) * self.scales[..., None]
        return apart.reshape(self.elements.shape)

    @cached_property
    def halves(self) -> tuple[Doubles, Doubles]:
        """Return the small elements and the large ones; zeros replace the elements of the other half and non-finite
        ones."""
        is_small = np.abs(self.elements) < 2.0 ** (sum(self.extent) // 2)
        is_large = ~is_small & np.isfinite(self.elements)
        return np.where(is_small, self.elements, 0.0), np.where(is_large, self.elements, 0.0)


def _bits_of_sum(a: tuple[float, float], b: tuple[float, float], terms: int) -> float:
    """Return how many bits a sum of `terms` products needs at most."""
    return a[1] + b[1] + terms.bit_length() - a[0] - b[0]


def _terms(a: _Side, b: _Side, k: int) -> Iterator[list[Doubles]]:
    """Yield for each instruction numbers (warps, M, N) whose exact sum is the sum of its products."""
    if _bits_of_sum(a.scaled, b.scaled, k) <= DOUBLE_BITS:
        x, y = a.folded(), b.folded()
        for start in range(0, x.shape[-1], k):
            yield [matmul(x[..., start : start + k], y[..., start : start + k])]
        return
    pairs, block = [(a.elements, b.elements)], a.block
    if _bits_of_sum(a.extent, b.extent, block) + a.scale_bits + b.scale_bits > DOUBLE_BITS:
        pairs = [(x, y) for x in a.halves for y in b.halves]
    for start in range(0, a.elements.shape[-1], k):
        found = []
        for at in range(start, start + k, block):
            some, factor = slice(at, at + block), a.scales[:, :, None, at // block] * b.scales[:, None, :, at // block]
            sums = [matmul(x[..., some], y[..., some]) for x, y in pairs]
            if len(pairs) > 1:
                sums.append(_non_finite(matmul(a.elements[..., some], b.elements[..., some])))
            found += [each * factor for each in sums]
        yield found


def _non_finite(sums: Doubles) -> Doubles:
    """Return the infinities and NaN of sums, and zeros elsewhere."""
    return np.where(np.isfinite(sums), 0.0, sums)
