"""Rules for undefined bits in comparisons, shifts by undefined amounts, sums and products of integers.

A comparison of integers is defined if it holds for both ends of the possible values, or for neither. A shift by an
undefined amount is tried with every possible amount. A sum or a product is defined below the lowest bit that can
change; a product by 0 is 0.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.checks.undefined_bits import RuleOperands, combined, full, halves, moved
from refsim.ptx.execution.types import PtxType, view

Array = NDArray[Any]


# ---- comparison
def compared(operands: RuleOperands) -> list[Any]:
    """Return the masks of setp: of the test (of each half, for packed operands), combined with c bit by bit."""
    sources = list(map(view, operands.values[:2], operands.types[:2]))
    keywords = {**operands.keywords, "boolean": None}
    boolean = operands.keywords.get("boolean")
    outcomes = operands.function(*sources, **keywords)
    if operands.types[0].lanes == 2:
        each = (halves(operands.bits(0)) != 0) | (halves(operands.bits(1)) != 0)
        unknown = [each[:, 0], each[:, 1]]
    else:
        unknown = [_open_test(operands, keywords)] * 2
    if boolean is not None:
        c, mask = operands.values[2], operands.bits(2)
        unknown = [
            combined(np.asarray(test), bits, c, mask, boolean) for test, bits in zip(outcomes, unknown, strict=True)
        ]
    return operands.answer(*unknown[: len(operands.results)])


def _open_test(operands: RuleOperands, keywords: dict[str, Any]) -> Array:
    """Return where the undefined bits of two numbers decide a test. One differing defined bit decides equality. The
    other tests of integers only change between the ends of the possible values."""
    first, second = operands.bits(0), operands.bits(1)
    unknown: Array = (first != 0) | (second != 0)
    type = operands.types[0]
    if type.dtype.kind not in "iu" or type.name == "bf16":
        return unknown
    a, b = operands.values[:2]
    if keywords["test"] in ("eq", "ne"):
        unknown &= ((a ^ b) & ~(first | second)) == 0
        return unknown
    (least, most), (low, high) = _ends(a, first, type), _ends(b, second, type)
    one, _ = operands.function(least, high, **keywords)
    other, _ = operands.function(most, low, **keywords)
    unknown &= one != other
    return unknown


def _ends(value: Array, mask: Array, type: PtxType) -> tuple[Array, Array]:
    """Return the least and the greatest possible number of a value with undefined bits."""
    sign = type.bits_dtype.type(1 << (type.bits - 1) if type.is_signed else 0)
    biased = value ^ sign
    return view((biased & ~mask) ^ sign, type), view((biased | mask) ^ sign, type)


# ---- shifts
def shifted(operands: RuleOperands) -> list[Any]:
    """Return the masks of shl and shr; an undefined amount gives all bits that two possible amounts set differently."""
    found = moved("a")(operands)
    if operands.masks[1] is None:
        return found
    type, mask = operands.types[0], operands.bits(0)
    amount, doubt = operands.values[1], operands.bits(1)
    can_be_0, can_be_1 = np.zeros_like(mask), np.zeros_like(mask)
    for tried in range(type.bits + 1):
        is_able = (amount | doubt) >= tried if tried == type.bits else ((amount ^ np.uint32(tried)) & ~doubt) == 0
        if is_able.any():
            value, open_ = (_shift(operands, bits, tried) for bits in (operands.values[0], mask))
            can_be_0 |= np.where(is_able, ~value | open_, type.bits_dtype.type(0))
            can_be_1 |= np.where(is_able, value | open_, type.bits_dtype.type(0))
    known = np.zeros_like(mask) if found[0] is None else found[0].bits
    return operands.answer(np.where(doubt != 0, can_be_0 & can_be_1, known))


def _shift(operands: RuleOperands, bits: Array, amount: int) -> Array:
    """Return bits shifted by one amount, as the instruction shifts them."""
    type = operands.types[0]
    moved_by = operands.function(view(bits, type), np.array([amount], np.uint32), **operands.keywords)
    result: Array = np.ascontiguousarray(moved_by).view(type.bits_dtype)
    return result


# ---- sums and products
def _lowest(bits: Array) -> Array:
    """Return the lowest set bit alone."""
    found: Array = bits & (~bits + bits.dtype.type(1))
    return found


def _from(lowest: Array) -> Array:
    """Return all bits from the lowest set bit up; none if no bit is set."""
    one = _lowest(lowest)
    found: Array = np.where(one != 0, ~(one - one.dtype.type(1)), one.dtype.type(0))
    return found


def summed(operands: RuleOperands) -> list[Any]:
    """Return the mask of add and sub: carries go up, so the bits below every undefined bit are defined."""
    return operands.answer(_from(operands.bits(0) | operands.bits(1)))


def multiplied(operands: RuleOperands) -> list[Any]:
    """Return the mask of mul and mad. Two values of a factor differ by a multiple of its lowest undefined bit. So the
    products differ by a multiple of that bit times the lowest bit that the other factor can have set; not at all if the
    other factor is 0."""
    type = operands.results[0][1]
    dtype = type.bits_dtype
    masks = [operands.bits(place).astype(dtype) for place in (0, 1)]
    able = [_lowest(operands.values[place].astype(dtype) | mask) for place, mask in enumerate(masks)]
    added = operands.bits(2) if len(operands.masks) > 2 else dtype.type(0)
    if operands.keywords.get("half") == "hi":
        unknown = (masks[0] != 0) & (able[1] != 0) | (masks[1] != 0) & (able[0] != 0)
        return operands.answer(full(unknown, type) | _from(operands.zeros(0) | added))
    return operands.answer(_from(_lowest(masks[0]) * able[1] | _lowest(masks[1]) * able[0] | added))
