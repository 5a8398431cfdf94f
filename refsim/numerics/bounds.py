"""Yardsticks for a tensor core's result: the exact sum, a sequential float32 FMA, and a derived error bound."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refsim.conversions import decode
from refsim.errors import RefsimError, check_named
from refsim.evidence import Evidence, Level
from refsim.formats import F32, F64, FORMATS, ElementType, Format, element_named, float_named
from refsim.numerics import methods
from refsim.numerics.calls import Arguments, Call, arguments_of, fitted, takes_arguments_of
from refsim.numerics.dot.chains import ABSENT, fields, floats, operand_fields
from refsim.numerics.methods import GROUP, TO_NEAREST, Method, Rounding
from refsim.numerics.multiply import call_asked_for
from refsim.numerics.rows import Profile, Unit
from refsim.numerics.sparse import SparseCall
from refsim.sources import IEEE754

Doubles = NDArray[np.float64]
_DEFINED = Evidence(Level.FORMULA, "defined by IEEE 754")
_SLACK = 1 + 2.0**-30  # above the rounding of the bound's own float64 sums for K up to 2^20


def exact_product(
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike | None = None,
    *,
    a_format: str | ElementType | None = None,
    b_format: str | ElementType | None = None,
    d_format: str | ElementType = "f32",
    a_scale: ArrayLike | None = None,
    b_scale: ArrayLike | None = None,
    scale_format: str | Format | None = None,
) -> NDArray[Any]:
    """Return A B^T + C summed exactly over all of K and rounded once to nearest even; an exact zero is +0.

    Arguments as for `mma`; `d_format` f32, f16 or f64, scales in blocks of any size. 2^23 + 2^-1 - 2^23 is 2^-1.
    exact_product(np.uint8([[0x38, 0x40]]), np.uint8([[0x38, 0x38]]), a_format="e4m3", b_format="e4m3") is [[3.0]].
    Raises RefsimError for arguments that do not fit. Source: IEEE 754 section 4.3.1.
    """
    arguments = arguments_of(
        a, b, c, a_format=a_format, b_format=b_format, a_scale=a_scale, b_scale=b_scale, scale_format=scale_format
    )
    d = element_named(d_format)
    check_named("result format", d.name, [row.name for row in TO_NEAREST])
    length = _columns(arguments.a)
    row = _in_software("exact sum", arguments, d, method=methods.EXACT, length=length, source=IEEE754["section 4.3.1"])
    return _computed(arguments, replace(row, k=(length,), scales=_any_block(arguments)))


def _in_software(name: str, arguments: Arguments, d: ElementType, **fields: Any) -> Profile:
    """Return a profile of arithmetic that IEEE 754 defines and no chip has; `name` is "chip unit" in errors."""
    target, unit = name.split()
    fixed: dict[str, Any] = {"a_formats": (arguments.a_format,), "b_formats": (arguments.b_format,), "d_format": d}
    fixed |= {"k": (1,), "rounding": TO_NEAREST[d], "evidence": _DEFINED}
    return Profile(target=target, unit=cast("Unit", unit), **fixed, **fields)


def _computed(arguments: Arguments, row: Profile) -> NDArray[Any]:
    """Return the product of the arguments by `row`; raise for integer operands and for f64 operands into f32."""
    for format in (arguments.a_format, arguments.b_format):
        if format.is_integer or (format is F64 and row.d_format is F32):
            what = f"{format} operands are not offered here"
            raise RefsimError("unsupported-format", what, row.name, help="use numerics.mma")
    return fitted(arguments, row, row.k[0]).result()


def _any_block(arguments: Arguments) -> tuple[tuple[Format, int], ...]:
    """Return the scales of a profile that takes blocks of any size; scale formats have no sign."""
    if arguments.scale_format is None:
        return ()
    scale_format = float_named(arguments.scale_format)
    if scale_format.signed or scale_format.bits > 8:
        names = [row.name for row in FORMATS if not row.signed]
        what = f"{scale_format} is not a format of scales"
        raise RefsimError("bad-scale", what, "exact sum", help=f"known: {', '.join(names)}")
    length, blocks = (0 if array is None else _columns(array) for array in (arguments.a, arguments.a_scale))
    return ((scale_format, length // blocks if blocks else 1),)


def _columns(array: ArrayLike) -> int:
    """Return the length of the last axis; 0 for an array without axes, which is refused later."""
    try:
        return np.shape(array)[-1] if np.ndim(array) else 0
    except ValueError:
        return 0


def fma_product(
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike | None = None,
    *,
    a_format: str | ElementType | None = None,
    b_format: str | ElementType | None = None,
) -> NDArray[Any]:
    """Return A B^T + C by one float32 FMA per k in ascending order, as a loop on a CUDA core computes it.

    Arguments as for `mma`; C and the result are float32. With C = 2^24 two products of 1 leave 2^24; their exact sum is
    2^24 + 2.
    fma_product(np.uint8([[0x38, 0x40]]), np.uint8([[0x38, 0x38]]), a_format="e4m3", b_format="e4m3") is [[3.0]].
    Raises RefsimError for arguments that do not fit. Source: IEEE 754 section 5.4.1.
    """
    arguments = arguments_of(a, b, c, a_format=a_format, b_format=b_format)
    row = _in_software(
        "float32 fma", arguments, F32, method=methods.FMA_CHAIN, length=1, source=IEEE754["section 5.4.1"]
    )
    return _computed(arguments, row)


@dataclass(frozen=True)
class _Sizes:
    """Describe upper bounds of one step for every (m, n).

    `magnitude` is the sum of |products|, `subnormal` the part of it that subnormal operands contribute (it may be
    flushed), `exponent` the largest product exponent, `terms` the number of products.
    """

    magnitude: Doubles
    subnormal: Doubles
    exponent: NDArray[np.int64]
    terms: int


@takes_arguments_of(call_asked_for)
def error_bound(call: Call | SparseCall) -> Doubles:
    """Return an upper bound of |mma(...) - (A B^T + C)| for every output, float64 of shape (..., M, N).

    The profile and the magnitudes of the operands decide it. Arguments and defaults as for `mma`. A step that aligns n
    terms to exponent E cuts each by less than 2^(E - F). Rounding loses less than one unit of the result (half a unit
    to nearest). E is at most the largest exponent of the products, of the bound U = |C| + sum of |products| and of the
    zero exponent. The losses of the steps add. The bound is infinite where the result may overflow or an operand is not
    finite, and 0 for integers, which are exact. Hopper's FP8 wgmma with 32 products of 1 and C = 0: 33 x 2^-13 + 2^-8 =
    0.0079346, because E = 0 and U = 32.
    error_bound(np.uint8([[1] * 32]), np.uint8([[1] * 32]), None, unit="mma.sync", a_format="s8", b_format="s8",
    d_format="s32") is [[0.0]].
    Raises RefsimError as `mma` does. Where `mma` warns, this bounds the placeholder. Source: the profile's.
    """
    if call.row.d_format.is_integer:
        return np.zeros(call.shape)
    with np.errstate(all="ignore"):
        bound = np.concatenate([_bounded(part).reshape(part.shape) for part in call.parts()], axis=-2)
    return np.where(np.isfinite(bound), bound * _SLACK, np.inf)


def _bounded(call: Call) -> Doubles:
    """Return the bound (batch, M, N) of a dense call with floating-point results, inf where the sum may overflow."""
    row, rounding = call.row, call.row.rounding
    reach = np.abs(floats(call.c, rounding.format).astype(np.float64))
    error = np.zeros_like(reach)
    late = row.adds_c_last
    for start in range(0, call.operands.a.shape[-1], call.k):
        inner = np.zeros_like(reach) if late else reach
        for places in row.steps(call.k):
            sizes = _sizes(call, [start + place for place in places])
            loss = _LOSSES[row.method](sizes, inner, row, rounding)
            inner, error = (inner + sizes.magnitude) * _SLACK + loss, error + loss
        if late:
            inner = (inner + reach) * _SLACK
            loss = _rounding_loss(inner, rounding.format, rounding.format.mantissa_bits + 1)
            inner, error = inner + loss, error + loss
        reach = inner
    largest = 2.0**rounding.format.bias * (2 - 2.0 ** (-rounding.fraction_bits - 1))
    return np.where(reach * _SLACK < largest, error, np.inf)


def _sizes(call: Call, places: list[int]) -> _Sizes:
    """Return the bounds of a step at these places of K; FP4 groups align by their scales alone."""
    operands, row = call.operands, call.row
    flushes = row.method.flushes
    values, exponents = [], []
    sides = ((operands.a, operands.a_format, operands.a_scale), (operands.b, operands.b_format, operands.b_scale))
    for codes, format, scale in sides:
        part = codes[..., places]
        value = np.abs(floats(part, format).astype(np.float64))
        if row.method.rounds_each:
            exponent = np.zeros(part.shape, np.int64)
        else:
            exponent = operand_fields(part, float_named(format), row).exponent
        if scale is not None:
            assert operands.scale_format is not None
            block = np.asarray(places) // (codes.shape[-1] // scale.shape[-1])
            factor = scale[..., block]
            value = value * decode(factor, operands.scale_format)
            own = fields(factor, operands.scale_format).exponent
            exponent = own if row.method.groups else exponent + own
        values.append(value)
        exponents.append(exponent)
    top = np.full((*values[0].shape[:-1], values[1].shape[-2]), ABSENT)
    for place in range(len(places)):
        top = np.maximum(top, exponents[0][:, :, None, place] + exponents[1][:, None, :, place])
    x, y = values[0], values[1].swapaxes(-1, -2)
    small = (
        [np.where(value < float_named(operands.a_format).min_normal, value, 0) for value in (x, y)] if flushes else []
    )
    subnormal = (small[0] @ y + x @ small[1]) * _SLACK if flushes else np.zeros(top.shape)
    return _Sizes((x @ y) * _SLACK, subnormal, top, len(places))


def _exponent(magnitude: Doubles, format: Format) -> NDArray[np.int64]:
    """Return floor(log2) of a magnitude, at least the exponent of the format's subnormals."""
    return np.maximum(np.frexp(magnitude)[1].astype(np.int64) - 1, 1 - format.bias)


def _power(exponent: NDArray[np.int64]) -> Doubles:
    """Return 2^exponent, at least the smallest float64."""
    return np.maximum(np.ldexp(1.0, exponent), 5e-324)


def _rounding_loss(magnitude: Doubles, format: Format, fraction_bits: int) -> Doubles:
    return _power(_exponent(magnitude, format) - fraction_bits)


def _truncated_loss(sizes: _Sizes, reach: Doubles, row: Profile, rounding: Rounding) -> Doubles:
    assert row.fraction is not None
    assert row.zero_exponent is not None
    top = np.maximum(np.maximum(sizes.exponent, _exponent(reach, rounding.format)), row.zero_exponent)
    terms = sizes.terms // GROUP if row.method.groups else sizes.terms
    total = (reach + sizes.magnitude) * _SLACK
    return (terms + 1) * _power(top - row.fraction) + _rounding_loss(
        total, rounding.format, rounding.fraction_bits + rounding.nearest
    )


def _nearest_loss(sizes: _Sizes, reach: Doubles, row: Profile, rounding: Rounding) -> Doubles:
    return _rounding_loss((reach + sizes.magnitude) * _SLACK, rounding.format, rounding.fraction_bits + 1)


def _flushed_loss(sizes: _Sizes, reach: Doubles, row: Profile, rounding: Rounding) -> Doubles:
    """Return the loss of a tree that rounds and flushes products and sums; a flushed operand loses its product."""
    total = (reach + sizes.magnitude) * 2
    operations = 2 * sizes.terms + 1
    return operations * (_rounding_loss(total, rounding.format, 24) + F32.min_normal) + sizes.subnormal


def _late_loss(sizes: _Sizes, reach: Doubles, row: Profile, rounding: Rounding) -> Doubles:
    """Return the loss of a CDNA3 step: products are cut toward zero, partial sums and C are rounded down.

    The sum of these is rounded down and then to nearest.
    """
    assert row.fraction is not None
    top = np.maximum(sizes.exponent, _exponent(reach, rounding.format))
    cut = (sizes.terms + 4) * _power(top - row.fraction)
    total = (reach + sizes.magnitude) * _SLACK + cut
    return cut + 2 * _rounding_loss(total, rounding.format, rounding.fraction_bits + 1)


_LOSSES: dict[Method, Callable[[_Sizes, Doubles, Profile, Rounding], Doubles]] = {
    methods.TRUNCATED: _truncated_loss,
    methods.GROUPED: _truncated_loss,
    methods.FMA_CHAIN: _nearest_loss,
    methods.EXACT: _nearest_loss,
    methods.FLUSHED_TREE: _flushed_loss,
    methods.LATE_TRUNCATED: _late_loss,
    methods.LATE_EVEN_ODD: _late_loss,
}
