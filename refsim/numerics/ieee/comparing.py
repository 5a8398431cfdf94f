"""min, max, abs, neg and the comparisons of setp: order and signs, no rounding."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError, unknown
from refsim.numerics.ieee.arithmetic import check_modifiers, negated
from refsim.numerics.ieee.patterns import Array, Kind, flushed, is_nan, kind_of, widen, with_nan

_ORDERED: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
COMPARISONS = (*_ORDERED, *(f"{name}u" for name in _ORDERED), "num", "nan")


@np.errstate(all="ignore")
def minimum(
    *operands: Array, ftz: bool = False, nan: bool = False, xorsign: bool = False, absolute: bool = False
) -> Array:
    """The smallest of two or three operands, -0 below +0; NaN only counts where all are NaN, or any with `nan`.

    Arrays of one dtype as for add. `ftz` (f32, f16) flushes subnormal operands. `absolute` takes magnitudes first
    (.abs), `xorsign` then gives a result that is no NaN the exclusive or of the operands' signs (.xorsign.abs, two
    operands). min(-0, +0) is -0. Raises RefsimError for another number of operands. Source: PTX ISA, min.
    """
    return _extremum(np.minimum, operands, ftz, nan, xorsign, absolute)


@np.errstate(all="ignore")
def maximum(
    *operands: Array, ftz: bool = False, nan: bool = False, xorsign: bool = False, absolute: bool = False
) -> Array:
    """The largest of two or three operands, +0 above -0; arguments, NaN and errors as for minimum. PTX ISA, max."""
    return _extremum(np.maximum, operands, ftz, nan, xorsign, absolute)


def _extremum(
    choose: Callable[[Array, Array], Array],
    operands: tuple[Array, ...],
    ftz: bool,
    nan: bool,
    xorsign: bool,
    absolute: bool,
) -> Array:
    if len(operands) not in (2, 3) or (xorsign and not (absolute and len(operands) == 2)):
        raise RefsimError(
            "operand-count",
            f"{len(operands)} operands with xorsign={xorsign}, absolute={absolute}",
            rule="PTX ISA, min and max: two operands, or three; .xorsign comes with .abs and two operands",
        )
    kind = kind_of(*operands)
    check_modifiers(kind, ftz=ftz, sat=False)
    if ftz:
        operands = tuple(flushed(operand, kind) for operand in operands)
    signs = operands[0].view(kind.unsigned)
    for operand in operands[1:]:
        signs = signs ^ operand.view(kind.unsigned)
    terms = tuple(_magnitude(operand, kind) for operand in operands) if absolute else operands
    result = terms[0]
    for term in terms[1:]:
        result = _chosen(choose, result, term, kind, nan)
    result = with_nan(result, operands, kind)
    if not xorsign:
        return result
    number = np.where(is_nan(result, kind), 0, signs & kind.unsigned.type(kind.sign)).astype(kind.unsigned)
    return (result.view(kind.unsigned) | number).view(kind.dtype)


def _chosen(choose: Callable[[Array, Array], Array], a: Array, b: Array, kind: Kind, nan: bool) -> Array:
    result = _from_order(choose(_order(a, kind), _order(b, kind)), kind)
    a_nan, b_nan = is_nan(a, kind), is_nan(b, kind)
    if not (a_nan.any() or b_nan.any()):
        return result
    # One NaN: the other operand, or with .NaN the NaN itself. Both: a NaN either way.
    return np.where(a_nan, a if nan else b, np.where(b_nan, b if nan else a, result))


def _order(a: Array, kind: Kind) -> Array:
    """A signed integer that sorts like the value, -0 just below +0: negative patterns have their magnitude inverted."""
    bits = a.view(kind.signed)
    return bits ^ ((bits >> (8 * kind.dtype.itemsize - 1)) & kind.signed.type(kind.sign - 1))


def _from_order(order: Array, kind: Kind) -> Array:
    return _order(order.view(kind.dtype), kind).view(kind.dtype)


def _magnitude(a: Array, kind: Kind) -> Array:
    return (a.view(kind.unsigned) & kind.unsigned.type(kind.sign - 1)).view(kind.dtype)


@np.errstate(all="ignore")
def absolute(a: Array, *, ftz: bool = False) -> Array:
    """The sign bit cleared, also of NaN; `ftz` (f32, f16) flushes a subnormal. -1.0f gives 0x3f800000. PTX ISA, abs."""
    kind = kind_of(a)
    check_modifiers(kind, ftz=ftz, sat=False)
    return _magnitude(flushed(a, kind) if ftz else a, kind)


@np.errstate(all="ignore")
def negate(a: Array, *, ftz: bool = False) -> Array:
    """The sign bit turned, also of NaN; `ftz` (f32, f16) flushes a subnormal. +0 gives 0x80000000. PTX ISA, neg."""
    kind = kind_of(a)
    check_modifiers(kind, ftz=ftz, sat=False)
    return negated(flushed(a, kind) if ftz else a)


@np.errstate(all="ignore")
def compare(comparison: str, a: Array, b: Array, *, ftz: bool = False) -> NDArray[np.bool_]:
    """Whether the comparison of setp holds, lane by lane.

    eq ne lt le gt ge are false where an operand is NaN; equ neu ltu leu gtu geu are true there; num is true where
    neither is NaN, nan where one is. Arrays of one dtype as for add; -0 equals +0. `ftz` (f32, f16) compares
    subnormal operands as zeros. compare("ne", NaN, 1) is False. Raises RefsimError for another name or dtype.
    Source: PTX ISA, floating point comparisons.
    """
    if comparison not in COMPARISONS:
        raise unknown("comparison", comparison, list(COMPARISONS))
    kind = kind_of(a, b)
    check_modifiers(kind, ftz=ftz, sat=False)
    if ftz:
        a, b = flushed(a, kind), flushed(b, kind)
    x, y = widen(a, kind), widen(b, kind)
    if comparison in _ORDERED and comparison != "ne":
        return _ORDERED[comparison](x, y)
    unordered: NDArray[np.bool_] = np.isnan(x) | np.isnan(y)
    match comparison:
        case "nan":
            return unordered
        case "num":
            return ~unordered
        case "ne":
            return (x != y) & ~unordered
        case _:
            return _ORDERED[comparison[:-1]](x, y) | unordered
