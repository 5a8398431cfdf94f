"""Arithmetic on f16 and bf16, single and in pairs: each result rounded once to nearest even; ex2 and tanh as on the chip."""

from collections.abc import Callable
from functools import partial

import numpy as np

from refsim.mufu.halves import approximate
from refsim.numerics import ieee
from refsim.ptx.isa.forms import instruction
from refsim.ptx.isa.real import UNIT_RECORDED_ON
from refsim.ptx.memory.arrays import Array
from refsim.sources import PTX

_OUT_OF_BOUNDS = 0x7FF7
_F16, _BF16 = ".{type:f16|f16x2}", ".{type:bf16|bf16x2}"


def _binary(name: str, compute: Callable[..., Array]) -> None:
    """Register add, sub or mul."""

    ignored, section = ("rn", "type"), PTX[f"{name} (half)"]

    @instruction(f"{name}{{.rn}}{_BF16} d, a, b", ignores=ignored, since="sm_90", source=section)
    @instruction(f"{name}{{.rn}}{{.ftz}}{{.sat}}{_F16} d, a, b", ignores=ignored, since="sm_53", source=section)
    def half(a: Array, b: Array, *, ftz: bool = False, sat: bool = False) -> Array:
        """Return the sum, difference or product of f16 or bf16 numbers, each rounded once to nearest even."""
        return compute(a, b, ftz=ftz, sat=sat)


_binary("add", ieee.add)
_binary("sub", ieee.sub)
_binary("mul", ieee.mul)


@instruction(f"fma.rn{{.ftz}}{{.sat}}{_F16} d, a, b, c", ignores=("type",), since="sm_53", source=PTX["fma (half)"])
def fma_half(a: Array, b: Array, c: Array, *, ftz: bool, sat: bool) -> Array:
    """Return a x b + c with one rounding."""
    return ieee.fma(a, b, c, ftz=ftz, sat=sat)


@instruction(f"fma.rn{{.ftz}}.relu{_F16} d, a, b, c", ignores=("type",), since="sm_80", source=PTX["fma (half)"])
def fma_half_relu(a: Array, b: Array, c: Array, *, ftz: bool) -> Array:
    """Return a x b + c with one rounding; a negative result becomes +0, a NaN the canonical one."""
    return ieee.fma(a, b, c, ftz=ftz, relu=True)


@instruction(f"fma.rn{{.relu}}{_BF16} d, a, b, c", ignores=("type",), since="sm_80", source=PTX["fma (half)"])
def fma_bfloat(a: Array, b: Array, c: Array, *, relu: bool) -> Array:
    """Return a x b + c with one rounding."""
    return ieee.fma(a, b, c, relu=relu)


@instruction(f"fma.rn.oob{{.relu}}{_F16[:-1]}|bf16|bf16x2}} d, a, b, c", since="sm_90", source=PTX["fma (half)"])
def fma_out_of_bounds(a: Array, b: Array, c: Array, *, relu: bool, type: str) -> Array:
    """Return a x b + c; the product is zero if a factor is the NaN 0x7ff7 or 0xfff7, the fill of out-of-bounds
    loads."""
    factors = (a.view(np.uint16) & 0x7FFF, b.view(np.uint16) & 0x7FFF)
    outside = (factors[0] == _OUT_OF_BOUNDS) | (factors[1] == _OUT_OF_BOUNDS)
    return np.where(outside, a.dtype.type(0), ieee.fma(a, b, c, relu=relu))


def _mixed(name: str, compute: Callable[..., Array]) -> None:
    """Register add or sub of an f16 or bf16 operand in f32 arithmetic."""

    @instruction(
        f"{name}{{.rounding:rn|rz|rm|rp}}{{.sat}}.f32.{{type:f16|bf16}} d:f32, a, b:f32",
        since="sm_100",
        source=PTX[f"{name} (mixed precision)"],
    )
    def mixed(a: Array, b: Array, *, rounding: ieee.RoundingModifier | None, sat: bool, type: str) -> Array:
        """Return the sum or difference of a, widened to f32, and b, with one rounding."""
        return compute(ieee.float_to_float(a, "f32"), b, rounding or "rn", sat=sat)


_mixed("add", ieee.add)
_mixed("sub", ieee.sub)


@instruction(
    "fma.{rounding:rn|rz|rm|rp}{.sat}.f32.{type:f16|bf16} d:f32, a, b, c:f32",
    ignores=("type",),
    since="sm_100",
    source=PTX["fma (mixed precision)"],
)
def fma_mixed(a: Array, b: Array, c: Array, *, rounding: ieee.RoundingModifier, sat: bool) -> Array:
    """Return the exact product of two halves plus an f32, with one rounding."""
    return ieee.fma(ieee.float_to_float(a, "f32"), ieee.float_to_float(b, "f32"), c, rounding, sat=sat)


def _extremum(name: str, compute: Callable[..., Array]) -> None:
    """Register min or max: a NaN is ignored unless .NaN; -0 is below +0."""
    choice = partial(instruction, ignores=("type",), source=PTX[f"{name} (half)"])

    @choice(f"{name}{{.NaN}}{_BF16} d, a, b", since="sm_80")
    @choice(f"{name}{{.ftz}}{{.NaN}}{_F16} d, a, b", since="sm_80")
    def half(a: Array, b: Array, *, ftz: bool = False, nan: bool) -> Array:
        """Return the smaller (min) or larger (max) number; a NaN is ignored unless .NaN, and -0 is below +0."""
        return compute(a, b, ftz=ftz, nan=nan)

    @choice(f"{name}{{.NaN}}.xorsign.abs{_BF16} d, a, b", since="sm_86")
    @choice(f"{name}{{.ftz}}{{.NaN}}.xorsign.abs{_F16} d, a, b", since="sm_86")
    def half_signed(a: Array, b: Array, *, ftz: bool = False, nan: bool) -> Array:
        """Return the smaller (min) or larger (max) magnitude, negative if exactly one operand is negative."""
        return compute(a, b, ftz=ftz, nan=nan, xorsign=True, absolute=True)


_extremum("min", ieee.minimum)
_extremum("max", ieee.maximum)


def _sign(name: str, compute: Callable[..., Array]) -> None:
    """Register abs or neg."""

    @instruction(f"{name}{_BF16} d, a", ignores=("type",), since="sm_80", source=PTX[f"{name} (half)"])
    @instruction(f"{name}{{.ftz}}{_F16} d, a", ignores=("type",), since="sm_53", source=PTX[f"{name} (half)"])
    def half(a: Array, *, ftz: bool = False) -> Array:
        """Return a number with its sign bit cleared (abs) or inverted (neg); a NaN becomes the canonical one."""
        return compute(a, ftz=ftz)


_sign("abs", ieee.absolute)
_sign("neg", ieee.negate)


def _of_unit(form: str, name: str, since: str) -> None:
    """Register a function of the special-function unit; its NaN is the canonical one."""

    @instruction(f"{form} d, a", since=since, inexact=True, recorded=UNIT_RECORDED_ON, source=PTX[f"{name} (half)"])
    def of_unit(a: Array, *, type: str) -> Array:
        """Return the special-function unit's approximation, with the bits that were recorded over all its inputs."""
        return approximate(name, a.view(np.uint16), bf16=type.startswith("bf16")).view(a.dtype)


_of_unit("ex2.approx.{type:f16|f16x2}", "ex2", "sm_75")
_of_unit("ex2.approx.ftz.{type:bf16|bf16x2}", "ex2", "sm_90")
_of_unit("tanh.approx.{type:f16|f16x2}", "tanh", "sm_75")
_of_unit("tanh.approx.{type:bf16|bf16x2}", "tanh", "sm_90")
