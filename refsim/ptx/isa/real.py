"""Arithmetic on f32 and f64: each result rounded once; `.approx` forms give the correctly rounded value, marked inexact."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.numerics import ieee
from refsim.ptx.isa.forms import instruction
from refsim.sources import PTX

Array = NDArray[Any]

_MAYBE = "{.rounding:rn|rz|rm|rp}"
_MODE = ".{rounding:rn|rz|rm|rp}"


def _binary(name: str, compute: Callable[..., Array]) -> None:
    """add, sub and mul: without a modifier they round to nearest even (and may be contracted, see contraction.py)."""

    @instruction(f"{name}{_MAYBE}{{.ftz}}{{.sat}}.{{type:f32}} d, a, b", ignores=("type",), source=PTX[name])
    def single(a: Array, b: Array, *, rounding: str | None, ftz: bool, sat: bool) -> Array:
        return compute(a, b, rounding or "rn", ftz=ftz, sat=sat)

    @instruction(f"{name}{_MAYBE}.{{type:f64}} d, a, b", ignores=("type",), source=PTX[name])
    def double(a: Array, b: Array, *, rounding: str | None) -> Array:
        return compute(a, b, rounding or "rn")

    @instruction(f"{name}{_MAYBE}{{.ftz}}.{{type:f32x2}} d, a, b", ignores=("type",), since="sm_100", source=PTX[name])
    def pair(a: Array, b: Array, *, rounding: str | None, ftz: bool) -> Array:
        return compute(a, b, rounding or "rn", ftz=ftz)


_binary("add", ieee.add)
_binary("sub", ieee.sub)
_binary("mul", ieee.mul)


@instruction(f"fma{_MODE}{{.ftz}}{{.sat}}.f32 d:f32, a:f32, b:f32, c:f32", source=PTX["fma"])
def fma_single(a: Array, b: Array, c: Array, *, rounding: str, ftz: bool, sat: bool) -> Array:
    """a x b + c with one rounding."""
    return ieee.fma(a, b, c, rounding, ftz=ftz, sat=sat)


@instruction(f"fma{_MODE}{{.ftz}}.f32x2 d:f32x2, a:f32x2, b:f32x2, c:f32x2", since="sm_100", source=PTX["fma"])
def fma_pair(a: Array, b: Array, c: Array, *, rounding: str, ftz: bool) -> Array:
    """Two fused products, one in each half."""
    return ieee.fma(a, b, c, rounding, ftz=ftz)


@instruction(f"fma{_MODE}.f64 d:f64, a:f64, b:f64, c:f64", source=PTX["fma"])
def fma_double(a: Array, b: Array, c: Array, *, rounding: str) -> Array:
    """a x b + c with one rounding."""
    return ieee.fma(a, b, c, rounding)


@instruction(f"mad{_MODE}{{.ftz}}{{.sat}}.f32 d:f32, a:f32, b:f32, c:f32", source=PTX["mad"])
def mad_single(a: Array, b: Array, c: Array, *, rounding: str, ftz: bool, sat: bool) -> Array:
    """From sm_20 on the same as fma."""
    return ieee.fma(a, b, c, rounding, ftz=ftz, sat=sat)


@instruction(f"mad{_MODE}.f64 d:f64, a:f64, b:f64, c:f64", source=PTX["mad"])
def mad_double(a: Array, b: Array, c: Array, *, rounding: str) -> Array:
    """The same as fma."""
    return ieee.fma(a, b, c, rounding)


@instruction(f"div{_MODE}{{.ftz}}.f32 d:f32, a:f32, b:f32", source=PTX["div"])
def div_single(a: Array, b: Array, *, rounding: str, ftz: bool) -> Array:
    """The IEEE quotient."""
    return ieee.div(a, b, rounding, ftz=ftz)


@instruction(f"div{_MODE}.f64 d:f64, a:f64, b:f64", source=PTX["div"])
def div_double(a: Array, b: Array, *, rounding: str) -> Array:
    """The IEEE quotient."""
    return ieee.div(a, b, rounding)


@instruction("div.{kind:approx|full}{.ftz}.f32 d:f32, a:f32, b:f32", ignores=("kind",), inexact=True, source=PTX["div"])
def div_approximate(a: Array, b: Array, *, ftz: bool) -> Array:
    """Within 2 ulp on silicon; here the IEEE quotient."""
    return ieee.div(a, b, ftz=ftz)


def _unary(name: str, compute: Callable[..., Array]) -> None:
    """rcp and sqrt."""

    @instruction(f"{name}{_MODE}{{.ftz}}.f32 d:f32, a:f32", source=PTX[name])
    def single(a: Array, *, rounding: str, ftz: bool) -> Array:
        return compute(a, rounding, ftz=ftz)

    @instruction(f"{name}{_MODE}.f64 d:f64, a:f64", source=PTX[name])
    def double(a: Array, *, rounding: str) -> Array:
        return compute(a, rounding)

    @instruction(f"{name}.approx{{.ftz}}.f32 d:f32, a:f32", inexact=True, source=PTX[name])
    def approximate(a: Array, *, ftz: bool) -> Array:
        return compute(a, ftz=ftz)


_unary("rcp", ieee.rcp)
_unary("sqrt", ieee.sqrt)


def _function(form: str, section: str, compute: Callable[[Array], Array]) -> None:
    """A transcendental function: computed in float64, rounded once, always inexact."""

    @instruction(f"{form} d:f32, a:f32", inexact=True, source=PTX[section])
    def approximate(a: Array, *, ftz: bool = False) -> Array:
        flushed = ieee.add(a, np.zeros(1, a.dtype), ftz=True) if ftz else a
        return ieee.float_to_float(compute(flushed.astype(np.float64)), "f32", ftz=ftz)


_function("rsqrt.approx{.ftz}.f32", "rsqrt", lambda a: 1 / np.sqrt(a))
_function("sin.approx{.ftz}.f32", "sin", np.sin)
_function("cos.approx{.ftz}.f32", "cos", np.cos)
_function("lg2.approx{.ftz}.f32", "lg2", np.log2)
_function("ex2.approx{.ftz}.f32", "ex2", np.exp2)


@instruction("tanh.approx.f32 d:f32, a:f32", since="sm_75", inexact=True, source=PTX["tanh"])
def tanh(a: Array) -> Array:
    """Within 2^-11 relative on silicon; here rounded once."""
    return ieee.float_to_float(np.tanh(a.astype(np.float64)), "f32")


@instruction("{name:rcp|rsqrt}.approx.ftz.f64 d:f64, a:f64", inexact=True, source=PTX["rcp.approx.ftz.f64"])
def reciprocal_double(a: Array, *, name: str) -> Array:
    """About 20 correct bits on silicon."""
    return ieee.rcp(a if name == "rcp" else ieee.sqrt(a))


def _extremum(name: str, compute: Callable[..., Array]) -> None:
    """min and max: a NaN is ignored unless .NaN; -0 is below +0."""

    @instruction(
        f"{name}{{.ftz}}{{.NaN}}{{.sign:xorsign.abs}}.{{type:f32}} d, a, b", ignores=("type",), source=PTX[name]
    )
    def single(a: Array, b: Array, *, ftz: bool, nan: bool, sign: str | None) -> Array:
        return compute(a, b, ftz=ftz, nan=nan, xorsign=sign is not None, absolute=sign is not None)

    @instruction(f"{name}{{.ftz}}{{.NaN}}{{.abs}}.{{type:f32}} d, a, b, c", ignores=("type",), since="sm_100", source=PTX[name])
    def three(a: Array, b: Array, c: Array, *, ftz: bool, nan: bool, abs: bool) -> Array:
        return compute(a, b, c, ftz=ftz, nan=nan, absolute=abs)

    @instruction(f"{name}.{{type:f64}} d, a, b", ignores=("type",), source=PTX[name])
    def double(a: Array, b: Array) -> Array:
        return compute(a, b)


_extremum("min", ieee.minimum)
_extremum("max", ieee.maximum)


@instruction("abs{.ftz}.{type:f32|f64} d, a", ignores=("type",), source=PTX["abs"])
def absolute(a: Array, *, ftz: bool) -> Array:
    """The sign cleared."""
    return ieee.absolute(a, ftz=ftz)


@instruction("neg{.ftz}.{type:f32|f64} d, a", ignores=("type",), source=PTX["neg"])
def negate(a: Array, *, ftz: bool) -> Array:
    """The sign flipped."""
    return ieee.negate(a, ftz=ftz)


@instruction("copysign.{type:f32|f64} d, a, b", ignores=("type",), source=PTX["copysign"])
def copysign(a: Array, b: Array) -> Array:
    """The magnitude of b with the sign of a."""
    return np.copysign(b, a)


@instruction(
    "testp.{test:finite|infinite|number|notanumber|normal|subnormal}.{type:f32|f64} d:pred, a", ignores=("type",),
    source=PTX["testp"],
)  # fmt: skip
def testp(a: Array, *, test: str) -> Array:
    """What kind of number a float is; zero is neither normal nor subnormal."""
    smallest = np.finfo(a.dtype).smallest_normal
    match test:
        case "finite":
            return np.isfinite(a)
        case "infinite":
            return np.isinf(a)
        case "number":
            return ~np.isnan(a)
        case "notanumber":
            return np.isnan(a)
        case "normal":
            return np.isfinite(a) & (np.abs(a) >= smallest)
        case _:
            return (np.abs(a) < smallest) & (a != 0)
