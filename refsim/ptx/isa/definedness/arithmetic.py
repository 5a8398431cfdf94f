"""Rules for undefined bits in comparisons, sums, products, quotients, extremes and counts of integers.

Carries only grow with the numbers, so a sum is exact: a carry is known if the least and the greatest numbers have the
same one. A product is a sum of shifted numbers. Other results lie between those for the ends of the possible numbers:
the bits above the first bit that differs are known.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from refsim.ptx.execution.types import PtxType
from refsim.ptx.isa.definedness.bits import RuleOperands, exact, full, outcomes, rule_of, varying
from refsim.ptx.memory.arrays import Array


@dataclass(frozen=True)
class Known:
    """Unsigned numbers of which some bits are undefined: the least numbers, and the mask."""

    least: Array
    mask: Array

    @property
    def most(self) -> Array:
        """Return the greatest numbers."""
        return np.asarray(self.least | self.mask)

    def mapped(self, function: Callable[[Array], Array]) -> "Known":
        """Return the numbers after a function that moves bits."""
        return Known(function(self.least), function(self.mask))

    def inverted(self) -> "Known":
        """Return the numbers with each bit inverted."""
        return Known(~self.most, self.mask)


def _source(operands: RuleOperands, position: int) -> Known:
    """Return a source as numbers, one for each lane or, of packed operands, for each element."""
    value, mask = np.broadcast_to(operands.values[position], (operands.lanes.count,)), operands.bits(position)
    if operands.types[position].lanes > 1:
        value, mask = (np.ascontiguousarray(each).view(np.uint16) for each in (value, mask))
    return Known(value & ~mask, mask)


def _packed(operands: RuleOperands, bits: Array) -> list[Any]:
    """Return the mask of the first result from the bits of its elements."""
    return operands.answer(bits.view(operands.results[0][1].bits_dtype))


def lowest_bit(bits: Array) -> Array:
    """Return the lowest set bit alone."""
    return np.asarray(bits & (~bits + bits.dtype.type(1)))


def _smeared(bits: Array) -> Array:
    """Return all bits from the highest set bit down."""
    for shift in (1, 2, 4, 8, 16, 32)[: (bits.itemsize * 8).bit_length() - 1]:
        bits = bits | bits >> bits.dtype.type(shift)
    return bits


# ---- comparison
def compared(operands: RuleOperands) -> list[Any]:
    """Return the masks of setp and set: the bits that differ between numbers that pass the test and numbers that fail,
    combined with what c can be. An undefined bit of a float leaves every test open."""
    rest = [operands.values[2:]]
    if len(operands.values) > 2 and operands.masks[2] is not None:
        rest = [[operands.values[2] & ~operands.bits(2)], [operands.values[2] | operands.bits(2)]]
    trials = [outcomes(operands, [*pair, *more]) for pair in _pairs(operands) for more in rest]
    return operands.answer(
        *(np.bitwise_or.reduce([each ^ one[0] for each in one]) for one in zip(*trials, strict=True))
    )


def _pairs(operands: RuleOperands) -> list[tuple[Array, Array]]:
    """Return pairs of numbers that take both results of a comparison, if the undefined bits do: of integers the ends,
    of which one pair differs if a bit is undefined, and two equal numbers where there are such."""
    a, b, type = _source(operands, 0), _source(operands, 1), operands.types[0]
    if type.dtype.kind in "iu" and type.lanes == 1 and type.name != "bf16":
        if operands.same[1] == 0:
            return [(operands.values[0], operands.values[1])]
        (least, most), (low, high) = _ends(a, type), _ends(b, type)
        one = a.least | (b.least & a.mask)
        return [(least, high), (most, low), (one, b.least | (one & b.mask))]
    unknown, size = (a.mask | b.mask) != 0, a.least.itemsize * 8
    floats = 0, 0x3F80 << size - 16, (1 << size) - 1  # 0, a normal number, a NaN
    numbers = [
        [np.where(unknown, a.least.dtype.type(each), known.least).view(type.bits_dtype) for each in floats]
        for known in (a, b)
    ]
    return [(numbers[0][x], numbers[1][y]) for x, y in ((0, 0), (0, 1), (1, 0), (2, 0))]


def _ends(a: Known, type: PtxType) -> tuple[Array, Array]:
    """Return the least and the greatest number of a type, as bits."""
    sign = a.least.dtype.type(1 << type.bits - 1 if type.is_signed else 0)
    return a.least | (a.mask & sign), a.most & ~(a.mask & sign)


# ---- sums
def _sum(a: Known, b: Known, carry: Known | None = None) -> tuple[Known, Array]:
    """Return the sum of numbers, and where its carry out is undefined. `carry`: 0 or 1, of the numbers' type."""
    low, high = a.least + b.least, a.most + b.most
    if carry is not None:
        low, high = low + carry.least, high + carry.most
    mask = a.mask | b.mask | (low ^ high)
    ends = ((a.least, b.least, low), (a.most, b.most, high))
    one, other = (((x & y) | ((x | y) & ~total)) >> x.dtype.type(x.itemsize * 8 - 1) for x, y, total in ends)
    return Known(low & ~mask, mask), one != other


def _negated(a: Known) -> Known:
    """Return the numbers of opposite sign."""
    one = np.ones(1, a.least.dtype)
    return _sum(a.inverted(), Known(one - one, one - one), Known(one, one - one))[0]


@rule_of
@exact
def summed(operands: RuleOperands, subtract: bool = False) -> list[Any]:
    """Return the rule of add or sub, with or without the carry flag. A difference is a + ~b + 1."""
    a, b = _source(operands, 0), _source(operands, 1)
    dtype = a.least.dtype
    if subtract and operands.same[1] == 0 and operands.names[-1] != "cc":
        return operands.answer(a.mask ^ a.mask, np.zeros(1, bool))[: len(operands.results)]
    one = np.ones(1, dtype)
    carry = Known(one, one - one) if subtract else None
    if operands.names[-1] == "cc":
        carry = _source(operands, len(operands.names) - 1).mapped(lambda bits: bits.astype(dtype))
    total, over = _sum(a, b.inverted() if subtract else b, carry)
    if operands.types[0].lanes > 1:
        return _packed(operands, total.mask)
    return operands.answer(total.mask, over)[: len(operands.results)]


@exact
def negated(operands: RuleOperands) -> list[Any]:
    """Return the mask of neg."""
    return operands.answer(_negated(_source(operands, 0)).mask)


@exact
def magnitude(operands: RuleOperands) -> list[Any]:
    """Return the mask of abs: the bits that vary among the numbers without a sign and the opposites of the others."""
    a = _source(operands, 0)
    sign = a.least.dtype.type(1 << a.least.itemsize * 8 - 1)
    positive, negative = Known(a.least, a.mask & ~sign), _negated(Known(a.least | sign, a.mask & ~sign))
    sets = (positive, (a.least & sign) == 0), (negative, (a.most & sign) != 0)
    can = np.bitwise_or.reduce([np.where(has, [~each.least, each.most], 0) for each, has in sets])
    return operands.answer((can[0] & can[1]).astype(a.least.dtype))


def _widened(a: Known, type: PtxType, bits: int, is_extended: bool) -> Known:
    """Return numbers in 64 bits: the low `bits` of them (0: all), with zeros or, if `is_extended`, their sign above."""
    unused = 64 - (bits or type.bits)
    dtype = np.int64 if type.is_signed and is_extended else np.uint64
    return a.mapped(
        lambda each: ((each.astype(np.uint64) << np.uint64(unused)).view(dtype) >> dtype(unused)).view(np.uint64)
    )


def _product(a: Known, b: Known) -> Known:
    """Return the product modulo two to the width, as a sum of shifted numbers: one for each bit of the factor that can
    have fewer bits."""
    reach = [int(np.bitwise_or.reduce(each.most)) for each in (a, b)]
    if reach[0].bit_count() < reach[1].bit_count():
        a, b, reach = b, a, reach[::-1]
    zero = (a.least ^ a.least) + (b.least ^ b.least)
    total = Known(zero, zero)
    for place in (each for each in range(b.least.itemsize * 8) if reach[1] >> each & 1):
        at = b.least.dtype.type(place)
        one, open_ = (-(each >> at & 1) for each in (b.least, b.mask))
        least, most = a.least << at & one, a.most << at & (one | open_)
        total = _sum(total, Known(least, least ^ most))[0]
    return total


def _between(operands: RuleOperands) -> Array:
    """Return the bits that can vary if results lie between those for the ends of each source."""
    ends = [
        (value,) if mask is None else _ends(Known(value & ~mask.bits, mask.bits), type)
        for value, mask, type in zip(operands.values, operands.masks, operands.types, strict=True)
    ]
    found = [outcomes(operands, each)[0] for each in itertools.product(*ends)]
    return _smeared(np.bitwise_or.reduce([each ^ found[0] for each in found]))


def monotone(operands: RuleOperands) -> list[Any]:
    """Return the mask of an instruction whose result grows or falls with each source."""
    return operands.answer(_between(operands))


@rule_of
def multiplied(operands: RuleOperands, used: int = 0, is_saturated: bool = False) -> list[Any]:
    """Return the rule of mul and mad, and of their carry. `used`: the low bits of each factor that are read (0: all).
    Any undefined bit of a 64-bit product leaves its whole upper half open, and that of a saturated sum the sum."""
    a, b, type, (_, result) = _source(operands, 0), _source(operands, 1), operands.types[0], operands.results[0]
    half = "hi" if is_saturated else operands.keywords.get("half")
    if half == "hi" and type.bits == 64:
        mask = full(((a.mask | b.mask) != 0) & (a.most != 0) & (b.most != 0), result)
        rest = [operands.zeros(at) for at in range(2, len(operands.types))]
        product = Known(outcomes(operands, [a.least, b.least, *rest])[0] & ~mask, mask)
    else:
        factors = (_widened(each, type, used, half != "lo" or used > 0) for each in (a, b))
        down = np.uint64(0 if half != "hi" else 16 if used else type.bits)
        product = _product(*factors).mapped(lambda each: (each >> down).astype(result.bits_dtype))
    names = list(operands.names)
    if "c" not in names:
        return operands.answer(product.mask)
    c, carry = _source(operands, 2), None
    if is_saturated:
        return operands.answer(full((product.mask | c.mask) != 0, result))
    if "cc" in names:
        carry = _source(operands, names.index("cc")).mapped(lambda each: each.astype(result.bits_dtype))
    total, over = _sum(product, c, carry)
    return operands.answer(total.mask, over)[: len(operands.results)]


def dotted(operands: RuleOperands) -> list[Any]:
    """Return the mask of dp4a and dp2a: of c plus the products of the bytes or halves that are read."""
    half, total = operands.keywords.get("half"), _source(operands, 2)
    for place in range(4 if half is None else 2):
        size = 8 if half is None else 16
        first = _piece(operands, 0, size * place, size)
        second = _piece(operands, 1, 8 * place + (16 if half == "hi" else 0), 8)
        total, _ = _sum(total, _product(first, second).mapped(lambda each: each.astype(np.uint32)))
    return operands.answer(total.mask)


def _piece(operands: RuleOperands, position: int, start: int, size: int) -> Known:
    """Return `size` bits of a source from bit `start` on, in 64 bits, extended as its type says."""
    piece = _source(operands, position).mapped(lambda each: each >> np.uint32(start))
    return _widened(piece, operands.types[position], size, True)


def distance(operands: RuleOperands) -> list[Any]:
    """Return the mask of sad: any undefined bit of a or b leaves the whole distance open, which is added to c."""
    a, b, c = (_source(operands, at) for at in range(3))
    mask = full(((a.mask | b.mask) != 0) & (operands.same[1] != 0), operands.types[2])
    apart = outcomes(operands, [a.least, b.least, c.least ^ c.least])[0]
    return operands.answer(_sum(Known(apart & ~mask, mask), c)[0].mask)


# ---- quotients
def divided(operands: RuleOperands) -> list[Any]:
    """Return the mask of div: a quotient of a known divisor lies between those of the ends, except of -1."""
    b, type = _source(operands, 1), operands.types[1]
    is_plain = (b.mask == 0) & ((b.least != ~operands.zeros(1)) | (not type.is_signed))
    unknown = (_source(operands, 0).mask | b.mask) != 0
    return operands.answer(np.where(is_plain, _between(operands), full(unknown, type)))


def remainder(operands: RuleOperands) -> list[Any]:
    """Return the mask of rem. Below the lowest bit that the divisor can have, it is the mask of the dividend. Without
    signs, a remainder is at most the dividend, and smaller than the divisor. A divisor of 0 gives any bits."""
    a, b, type = _source(operands, 0), _source(operands, 1), operands.types[0]
    lowest, one = lowest_bit(b.most), type.bits_dtype.type(1)
    below_ = np.where(lowest != 0, lowest - one, lowest)
    sign = (a.most | b.most) >> type.bits_dtype.type(type.bits - 1) if type.is_signed else operands.zeros(0)
    top = np.where(sign != 0, ~operands.zeros(0), _smeared(np.minimum(a.most, b.most - one)))
    bits = np.where((a.mask | b.mask) != 0, (a.mask & below_) | (top & ~below_), a.mask)
    return operands.answer(bits | full((b.mask != 0) & (b.least == 0), type))


# ---- extremes
def below(a: Known, limit: Array, has: Array) -> Array:
    """Return which bits can be 0 and which can be 1 in the numbers that are at most `limit`, (2, lanes), in the lanes
    `has`; none if no number is. A smaller number has the bits of the limit down to a place where the limit has 1 and it
    has 0, and any bits below."""
    unequal = (limit & ~a.most) | (~limit & a.least)
    places = limit & ~a.least & ~(_smeared(unequal) >> limit.dtype.type(1))
    free, lowest = _smeared(places) >> limit.dtype.type(1), lowest_bit(places)
    same = np.where(unequal == 0, ~(limit ^ limit), ~(lowest | (lowest - (lowest != 0))))
    same = np.where((unequal == 0) | (places != 0), same, 0)
    can = [(free & ~a.least) | (same & ~limit) | places, (free & a.most) | (same & limit)]
    return np.where(has, can, 0).astype(limit.dtype)


def ordered(operands: RuleOperands, position: int, name: str) -> Known:
    """Return a source as numbers without a sign, whose least one is the result of min or max. A maximum is the inverse
    of the minimum of the inverses."""
    a = _source(operands, position)
    sign = a.least.dtype.type(1 << a.least.itemsize * 8 - 1 if operands.types[position].is_signed else 0)
    biased = Known((a.least ^ sign) & ~a.mask, a.mask)
    return biased.inverted() if name == "max" else biased


@rule_of
@exact
def extreme(operands: RuleOperands, name: str, relu: bool = False) -> list[Any]:
    """Return the rule of min or max. The least of two numbers is a number that is at most the greatest number of each
    source. With `relu`, it is the greater of that number and 0."""
    sets = [ordered(operands, at, name) for at in (0, 1)]
    limit = np.minimum(sets[0].most, sets[1].most)
    sign = limit.dtype.type(1 << limit.itemsize * 8 - 1)
    zero, has = Known(np.full_like(limit, sign), limit ^ limit), [np.ones(len(limit), np.bool_)] * 3
    if relu and name == "max":
        sets, limit = [*sets, zero.inverted()], np.minimum(limit, ~sign)
    elif relu:
        has = [*(each.most & sign != 0 for each in sets), (sets[0].least & sets[1].least & sign) == 0]
        sets = [*(Known(each.least | sign, each.mask & ~sign) for each in sets), zero]
    can = np.bitwise_or.reduce([below(each, limit, where) for each, where in zip(sets, has, strict=False)])
    return _packed(operands, can[0] & can[1])


# ---- counts
@exact
def counted(operands: RuleOperands) -> list[Any]:
    """Return the mask of popc, clz and bfind. Numbers with one undefined bit set, with one clear, and with the lower
    ones set take every result."""
    a = _source(operands, 0)
    bits = a.least.dtype.type(1) << np.arange(a.least.itemsize * 8, dtype=a.least.dtype)
    least, most, mask = (each[:, None] for each in (a.least, a.most, a.mask))
    tried = [least, most, least | (mask & bits), most & ~(mask & bits), least | (mask & (bits - bits.dtype.type(1)))]
    return operands.answer(varying(operands, [np.concatenate(tried, axis=1)])[0])
