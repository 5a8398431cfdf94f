"""rsqrt, ex2, lg2, sin, cos and tanh, rounded once to nearest: by float64 where it decides, else by fifty digits.

A float64 result is accurate to a few ulp. If every number that near rounds to one number of f32, f16 or bf16, it is the
result. The others, one in some millions, are computed again (`precise.py`).
"""

import numpy as np

from refsim.conversions.rounding import odd_double
from refsim.errors import RefsimError
from refsim.numerics.ieee.arithmetic import check_modifiers, float_to_float
from refsim.numerics.ieee.patterns import DOUBLE, NEAREST, Array, flushed, flushed_result, kind_of, widen
from refsim.numerics.ieee.precise import DOUBLES, precise

_ERROR = 2.0**-47
"""More than the relative error of any of NumPy's functions (4 ulp where it computes several at once)."""


@np.errstate(all="ignore")
def _rounded(name: str, a: Array, *, ftz: bool) -> Array:
    """Return a function of DOUBLES, correctly rounded to the kind of `a`; raise RefsimError for f64."""
    kind = kind_of(a)
    if kind is DOUBLE:
        raise RefsimError("bad-dtype", f"{name} does not take {a.dtype}", rule="f32, f16, and bf16 in uint16")
    check_modifiers(kind, ftz=ftz, sat=False)
    operand = widen(flushed(a, kind) if ftz else a, kind).astype(np.float64)
    values = np.asarray(DOUBLES[name](operand))
    low, high = (float_to_float(values * factor, kind.name).view(kind.unsigned) for factor in (1 - _ERROR, 1 + _ERROR))
    unsure = np.flatnonzero((low != high) & np.isfinite(values))
    if len(unsure):
        values = values.copy()
        for place in unsure.tolist():
            values.flat[place] = odd_double(precise(name, float(operand.flat[place])))
    result = float_to_float(values, kind.name)
    result = np.where(np.isnan(values), np.asarray(kind.nan, kind.unsigned), result.view(kind.unsigned)).view(
        kind.dtype
    )
    return flushed_result(result, lambda: values, NEAREST, kind) if ftz else result


def rsqrt(a: Array, *, ftz: bool = False) -> Array:
    """Return 1 / sqrt(a) for f32, f16 and bf16 (uint16 patterns), rounded once to nearest even.

    -0 gives -infinity, a negative number NaN. `ftz` (f32, f16) flushes subnormal operands and results. 1 / sqrt(2) is
    0x3f3504f3. Raises RefsimError for f64 and another dtype. Source: IEEE 754, 9.2 (rSqrt).
    """
    return _rounded("rsqrt", a, ftz=ftz)


def ex2(a: Array, *, ftz: bool = False) -> Array:
    """Return 2^a, rounded once: 0x3fb504f3 for 0.5. Operands, ftz and errors as for rsqrt; IEEE 754, 9.2 (exp2)."""
    return _rounded("ex2", a, ftz=ftz)


def lg2(a: Array, *, ftz: bool = False) -> Array:
    """Return log2(a), rounded once: 0x3fcae00d for 3. Operands, ftz and errors as for rsqrt; IEEE 754, 9.2 (log2)."""
    return _rounded("lg2", a, ftz=ftz)


def sin(a: Array, *, ftz: bool = False) -> Array:
    """Return sin(a), a in radians, rounded once: 0x3f576aa4 for 1. Operands and errors as for rsqrt; IEEE 754, 9.2."""
    return _rounded("sin", a, ftz=ftz)


def cos(a: Array, *, ftz: bool = False) -> Array:
    """Return cos(a), a in radians, rounded once: 0x3f0a5140 for 1. Operands and errors as for rsqrt; IEEE 754, 9.2."""
    return _rounded("cos", a, ftz=ftz)


def tanh(a: Array, *, ftz: bool = False) -> Array:
    """Return tanh(a), rounded once: 0x3eec9a9f for 0.5. Operands, ftz and errors as for rsqrt; IEEE 754, 9.2 (tanh)."""
    return _rounded("tanh", a, ftz=ftz)
