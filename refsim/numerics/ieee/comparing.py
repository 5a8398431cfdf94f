"""min, max, abs, neg and the comparisons of setp: order and signs, no rounding."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError, check_named
from refsim.numerics.ieee.arithmetic import check_modifiers
from refsim.numerics.ieee.patterns import BRAIN, Array, FloatKind, flushed, is_nan, kind_of, widen, with_nan

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
    """Return the smallest of two or three operands, -0 below +0; NaN only if all are NaN, or with `nan` if any is.

    Arrays of one dtype as for add. `ftz` (f32, f16) flushes subnormal operands. `absolute` takes magnitudes first
    (.abs). `xorsign` then gives a result other than NaN the exclusive or of the operands' signs (.xorsign.abs, two
    operands). min(-0, +0) is -0. Raises RefsimError for another number of operands. Source: PTX ISA, min.
    """
    kind, terms = _terms(operands, ftz=ftz, xorsign=xorsign, absolute=absolute)
    return _extremum(_SMALLEST, terms, kind, nan=nan, signs=operands if xorsign else ())


@np.errstate(all="ignore")
def maximum(
    *operands: Array, ftz: bool = False, nan: bool = False, xorsign: bool = False, absolute: bool = False
) -> Array:
    """Return the largest of two or three operands, +0 above -0; the rest as for minimum. PTX ISA, max."""
    kind, terms = _terms(operands, ftz=ftz, xorsign=xorsign, absolute=absolute)
    return _extremum(_LARGEST, terms, kind, nan=nan, signs=operands if xorsign else ())


def _terms(
    operands: tuple[Array, ...], *, ftz: bool, xorsign: bool, absolute: bool
) -> tuple[FloatKind, tuple[Array, ...]]:
    """Return the kind of the operands, and the operands flushed and made absolute as the modifiers say."""
    if len(operands) not in (2, 3) or (xorsign and not (absolute and len(operands) == 2)):
        what = f"{len(operands)} operands with xorsign={xorsign}, absolute={absolute}"
        rule = "PTX ISA, min and max: two operands, or three; .xorsign comes with .abs and two operands"
        raise RefsimError("operand-count", what, rule=rule)
    kind = kind_of(*operands)
    check_modifiers(kind, ftz=ftz, sat=False)
    if ftz:
        operands = tuple(flushed(operand, kind) for operand in operands)
    return kind, tuple(_magnitude(operand, kind) for operand in operands) if absolute else operands


@dataclass(frozen=True)
class _Choice:
    """Describe the choice of an instruction: of two floats (a NaN if there is one), and of two zeros by their bits."""

    of_floats: Callable[[Array, Array], Array]
    of_zeros: Callable[[Array, Array], Array]


# NumPy does not order -0 and +0. -0 | +0 is -0, the smaller; -0 & +0 is +0.
_SMALLEST = _Choice(np.minimum, np.bitwise_or)
_LARGEST = _Choice(np.maximum, np.bitwise_and)


def _extremum(
    choice: _Choice, terms: tuple[Array, ...], kind: FloatKind, *, nan: bool, signs: tuple[Array, ...]
) -> Array:
    """Return the extremum of all terms; with `signs` a number gets the exclusive or of their signs."""
    wide = [_as_floats(term, kind) for term in terms]
    chosen = wide[0]
    for term in wide[1:]:
        chosen = _chosen(choice, chosen, term, nan)
    if kind is BRAIN:
        chosen = (chosen.view(np.uint32) >> 16).astype(np.uint16)
    result = with_nan(chosen, terms, kind)
    if not signs:
        return result
    a, b = (operand.view(kind.unsigned) for operand in signs)
    sign = np.where(is_nan(result, kind), 0, (a ^ b) & kind.unsigned.type(kind.sign)).astype(kind.unsigned)
    signed: Array = (result.view(kind.unsigned) | sign).view(kind.dtype)
    return signed


def _as_floats(a: Array, kind: FloatKind) -> Array:
    return widen(a, kind) if kind is BRAIN else a


def _chosen(choice: _Choice, a: Array, b: Array, nan: bool) -> Array:
    result = choice.of_floats(a, b)
    if not result.all():
        unsigned = f"u{a.dtype.itemsize}"
        zeros: Array = choice.of_zeros(a.view(unsigned), b.view(unsigned)).view(a.dtype)
        result = np.where((a == 0) & (b == 0), zeros, result)
    # numpy.fmin would ignore NaN, but takes a signalling one for a number in some lanes and not in others.
    if nan or not np.isnan(result).any():
        return result
    numbers: Array = np.where(np.isnan(a), b, np.where(np.isnan(b), a, result))
    return numbers


def _magnitude(a: Array, kind: FloatKind) -> Array:
    magnitude: Array = (a.view(kind.unsigned) & kind.unsigned.type(kind.sign - 1)).view(kind.dtype)
    return magnitude


@np.errstate(all="ignore")
def absolute(a: Array, *, ftz: bool = False) -> Array:
    """Return the operand with its sign bit cleared; an f64 NaN keeps its sign, as in arithmetic (measured on an H200).

    `ftz` (f32, f16) flushes a subnormal. -1.0f gives 0x3f800000. Source: PTX ISA, abs.
    """
    kind = kind_of(a)
    check_modifiers(kind, ftz=ftz, sat=False)
    return with_nan(_magnitude(flushed(a, kind) if ftz else a, kind), (a,), kind)


@np.errstate(all="ignore")
def negate(a: Array, *, ftz: bool = False) -> Array:
    """Return the operand with its sign bit turned; an f64 NaN keeps its sign, as in arithmetic (measured on an H200).

    `ftz` (f32, f16) flushes a subnormal. +0.0f gives 0x80000000. Source: PTX ISA, neg.
    """
    kind = kind_of(a)
    check_modifiers(kind, ftz=ftz, sat=False)
    bits = (flushed(a, kind) if ftz else a).view(kind.unsigned) ^ kind.unsigned.type(kind.sign)
    return with_nan(bits.view(kind.dtype), (a,), kind)


@np.errstate(all="ignore")
def compare(comparison: str, a: Array, b: Array, *, ftz: bool = False) -> NDArray[np.bool_]:
    """Return whether the comparison of setp holds, lane by lane.

    eq ne lt le gt ge are false where an operand is NaN; equ neu ltu leu gtu geu are true there; num is true where
    neither is NaN, nan where one is. Arrays of one dtype as for add; -0 equals +0. `ftz` (f32, f16) compares subnormal
    operands as zeros. compare("ne", NaN, 1) is False. Raises RefsimError for another name or dtype.
    Source: PTX ISA, floating point comparisons.
    """
    check_named("comparison", comparison, COMPARISONS)
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
            holds = unordered
        case "num":
            holds = ~unordered
        case "ne":
            holds = (x != y) & ~unordered
        case _:
            holds = _ORDERED[comparison[:-1]](x, y) | unordered
    return holds
