"""Products whose operands have block scales: as the chip computes them, or summed exactly and rounded once.

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
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim import numerics
from refsim.formats import ElementType, Format
from refsim.ptx.isa.products import DOUBLE_BITS, MmaKind, code_extent, matmul, met_rows, settled, values

Array = NDArray[Any]
Doubles = NDArray[np.float64]
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
    result: Array = numerics.mma(
        a, b, c, unit=kind.unit, target=target, k=k, d_format=kind.d, **_given(a, b, scales, kind)
    )
    return result


def multiply_sparse_scaled(
    a: Array, b: Array, c: Array, positions: Array, scales: Scales, kind: MmaKind, k: int, target: str, arithmetic: str
) -> Array:
    """Return `multiply_scaled` of one instruction whose A is sparse: `a` has the stored elements.

    A's scales belong to blocks of stored elements. Each scale of B covers twice as many elements: as many as a block of
    A has in the whole row.
    """
    if arithmetic == "exact":
        rows = met_rows(a, b, c, positions, kind)
        own = scales.a.reshape(-1, 1, scales.a.shape[-1])
        others = scales.b.repeat(a.shape[-2], axis=0)
        return exact_scaled(*rows, Scales(own, others, scales.format), kind, a.shape[-1]).reshape(c.shape)
    how = _given(a, b, scales, kind) | {"metadata": positions, "d_format": kind.d}
    result: Array = numerics.mma(a, b, c, unit=kind.unit, target=target, k=k, **how)
    return result


def _given(a: Array, b: Array, scales: Scales, kind: MmaKind) -> dict[str, Any]:
    return {
        "a_format": kind.a,
        "b_format": kind.b,
        "a_scale": scales.a,
        "b_scale": scales.b,
        "scale_format": scales.format,
    }


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
            single = numerics.exact_product(*codes, addend, d_format=kind.d, **_given(*codes, own, kind))
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


def _span(a: tuple[float, float], b: tuple[float, float], terms: int) -> float:
    """Return how many bits a sum of `terms` products needs at most."""
    return a[1] + b[1] + terms.bit_length() - a[0] - b[0]


def _terms(a: _Side, b: _Side, k: int) -> Iterator[list[Doubles]]:
    """Yield for each instruction numbers (warps, M, N) whose exact sum is the sum of its products."""
    if _span(a.scaled, b.scaled, k) <= DOUBLE_BITS:
        x, y = a.folded(), b.folded()
        for start in range(0, x.shape[-1], k):
            yield [matmul(x[..., start : start + k], y[..., start : start + k])]
        return
    pairs, block = [(a.elements, b.elements)], a.block
    if _span(a.extent, b.extent, block) + a.scale_bits + b.scale_bits > DOUBLE_BITS:
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
