"""Arithmetic on f32 and f64: each result rounded once; special functions return the recorded bits of the unit."""

from collections.abc import Callable
from functools import partial

import numpy as np

from refsim.mufu import upper_words
from refsim.mufu.instructions import approximate, divided
from refsim.numerics import ieee
from refsim.numerics.ieee.fused import fma_to_nearest
from refsim.numerics.ieee.roots import rsqrt_approximate
from refsim.numerics.special import RECORDED_ON
from refsim.ptx.isa.definedness.bits import bitwise
from refsim.ptx.isa.forms import instruction
from refsim.ptx.memory.arrays import Array
from refsim.sources import PTX

_MAYBE = "{.rounding:rn|rz|rm|rp}"
_MODE = ".{rounding:rn|rz|rm|rp}"


def _binary(name: str, compute: Callable[..., Array], nearest: np.ufunc) -> None:
    """Register add, sub or mul: without a modifier they round to nearest even (and may be contracted, see
    `Contraction` in refsim.ptx.lowering.liveness).

    NumPy rounds to nearest even as well; only NaN has other bits than on the chip, so a result without NaN is final.
    """

    @instruction(f"{name}{_MAYBE}{{.ftz}}{{.sat}}.{{type:f32}} d, a, b", ignores=("type",))
    def single(a: Array, b: Array, *, rounding: ieee.RoundingModifier | None, ftz: bool, sat: bool) -> Array:
        """Return the sum, difference or product of f32 numbers, rounded once."""
        if not (ftz or sat) and rounding in (None, "rn"):
            result: Array = nearest(a, b)
            if not np.count_nonzero(np.isnan(result)):
                return result
        return compute(a, b, rounding or "rn", ftz=ftz, sat=sat)

    @instruction(f"{name}{_MAYBE}{{.ftz}}.{{type:f32x2}} d, a, b", ignores=("type",), since="sm_100")
    @instruction(f"{name}{_MAYBE}.{{type:f64}} d, a, b", ignores=("type",))
    def double(a: Array, b: Array, *, rounding: ieee.RoundingModifier | None, ftz: bool = False) -> Array:
        """Return the sum, difference or product of f64 numbers or of each f32 half, rounded once."""
        return compute(a, b, rounding or "rn", ftz=ftz)


_binary("add", ieee.add, np.add)
_binary("sub", ieee.sub, np.subtract)
_binary("mul", ieee.mul, np.multiply)


@instruction(f"fma{_MODE}{{.ftz}}{{.sat}}.f32 d:f32, a:f32, b:f32, c:f32", together=True)
def fma_single(a: Array, b: Array, c: Array, *, rounding: ieee.RoundingModifier, ftz: bool, sat: bool) -> Array:
    """Return a x b + c with one rounding."""
    if rounding == "rn" and not (ftz or sat):
        result = fma_to_nearest(a, b, c)
        if not np.count_nonzero(np.isnan(result)):
            return result
    return ieee.fma(a, b, c, rounding, ftz=ftz, sat=sat)


@instruction(f"mad{_MODE}.f64 d:f64, a:f64, b:f64, c:f64")
@instruction(f"mad{_MODE}{{.ftz}}{{.sat}}.f32 d:f32, a:f32, b:f32, c:f32")
@instruction(f"fma{_MODE}.f64 d:f64, a:f64, b:f64, c:f64")
@instruction(f"fma{_MODE}{{.ftz}}.f32x2 d:f32x2, a:f32x2, b:f32x2, c:f32x2", since="sm_100")
def fma(
    a: Array, b: Array, c: Array, *, rounding: ieee.RoundingModifier, ftz: bool = False, sat: bool = False
) -> Array:
    """Return a x b + c, in x2 in each half, with one rounding: from sm_20 on mad equals fma."""
    return ieee.fma(a, b, c, rounding, ftz=ftz, sat=sat)


@instruction(f"div{_MODE}.f64 d:f64, a:f64, b:f64")
@instruction(f"div{_MODE}{{.ftz}}.f32 d:f32, a:f32, b:f32")
def div(a: Array, b: Array, *, rounding: ieee.RoundingModifier, ftz: bool = False) -> Array:
    """Return the IEEE quotient."""
    return ieee.div(a, b, rounding, ftz=ftz)


UNIT_RECORDED_ON = (RECORDED_ON, f"{RECORDED_ON}a")
"""Targets whose special-function unit was recorded over all its inputs, on an H200 and an H100."""
_approximate = partial(instruction, inexact=True, recorded=UNIT_RECORDED_ON)


@_approximate("div.full{.ftz}.f32 d:f32, a:f32, b:f32")
def div_full(a: Array, b: Array, *, ftz: bool) -> Array:
    """Return a times the approximate reciprocal of b, both scaled where b is near the ends of the range: within 2
    ulp."""
    return divided(_words(a), _words(b), ftz=ftz, full=True).view(np.float32)


@_approximate("div.approx{.ftz}.f32 d:f32, a:f32, b:f32")
def div_approximate(a: Array, b: Array, *, ftz: bool) -> Array:
    """Return a times the approximate reciprocal of b, which is 0 for a divisor above 2^126: within 2 ulp elsewhere."""
    return divided(_words(a), _words(b), ftz=ftz, full=False).view(np.float32)


def _words(a: Array) -> Array:
    return a.view(np.uint32)


def _unary(name: str, compute: Callable[..., Array]) -> None:
    """Register rcp or sqrt."""

    @instruction(f"{name}{_MODE}.f64 d:f64, a:f64")
    @instruction(f"{name}{_MODE}{{.ftz}}.f32 d:f32, a:f32")
    def unary(a: Array, *, rounding: ieee.RoundingModifier, ftz: bool = False) -> Array:
        """Return the reciprocal (rcp) or square root (sqrt), rounded once."""
        return compute(a, rounding, ftz=ftz)


_unary("rcp", ieee.rcp)
_unary("sqrt", ieee.sqrt)


def _of_unit(name: str, modifiers: str = ".approx{.ftz}", since: str = "sm_50") -> None:
    """Register a function of the special-function unit, as ptxas wraps it."""
    form = f"{name}{modifiers}.f32 d:f32, a:f32"

    @_approximate(form, since=since)
    def of_unit(a: Array, *, ftz: bool = False) -> Array:
        """Return the special-function unit's approximation, with the bits that were recorded over all its inputs."""
        return approximate(name, _words(a), ftz=ftz).view(np.float32)


for _name in ("rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos"):
    _of_unit(_name)
_of_unit("tanh", ".approx", since="sm_75")


@_approximate("rcp.approx.ftz.f64 d:f64, a:f64", source=PTX["rcp.approx.ftz.f64"])
def rcp_approximate_double(a: Array) -> Array:
    """Return the unit's reciprocal of the upper 32 bits: 20 bits of precision, the lower 32 bits zero."""
    return upper_words.approximate("rcp", a)


@_approximate("rsqrt.approx{.ftz}.f64 d:f64, a:f64", source=PTX["rsqrt.approx.ftz.f64"])
def rsqrt_approximate_double(a: Array, *, ftz: bool) -> Array:
    """Return with .ftz the unit's value of the upper 32 bits, the lower 32 bits zero. Without .ftz, ptxas adds a step
    that gives all digits."""
    return upper_words.approximate("rsqrt", a) if ftz else rsqrt_approximate(a)


def _extremum(name: str, compute: Callable[..., Array]) -> None:
    """Register min or max: a NaN is ignored unless .NaN; -0 is below +0."""

    @instruction(f"{name}{{.ftz}}.f32 d:f32, a:f32, b:f32")
    def single(a: Array, b: Array, *, ftz: bool) -> Array:
        """Return the smaller (min) or larger (max) number; a NaN is ignored, and -0 is below +0."""
        return compute(a, b, ftz=ftz)

    @instruction(f"{name}{{.ftz}}.NaN.f32 d:f32, a:f32, b:f32", since="sm_80")
    def single_nan(a: Array, b: Array, *, ftz: bool) -> Array:
        """Return the smaller (min) or larger (max) number, or NaN if either operand is NaN."""
        return compute(a, b, ftz=ftz, nan=True)

    @instruction(f"{name}{{.ftz}}{{.NaN}}.xorsign.abs.f32 d:f32, a:f32, b:f32", since="sm_86")
    def single_signed(a: Array, b: Array, *, ftz: bool, nan: bool) -> Array:
        """Return the smaller (min) or larger (max) magnitude, negative if exactly one operand is negative."""
        return compute(a, b, ftz=ftz, nan=nan, xorsign=True, absolute=True)

    @instruction(f"{name}{{.ftz}}{{.NaN}}{{.abs}}.f32 d:f32, a:f32, b:f32, c:f32", since="sm_100")
    def three(a: Array, b: Array, c: Array, *, ftz: bool, nan: bool, abs: bool) -> Array:
        """Return the smallest (min) or largest (max) of three numbers; a NaN is ignored unless .NaN."""
        return compute(a, b, c, ftz=ftz, nan=nan, absolute=abs)

    @instruction(f"{name}.{{type:f64}} d, a, b", ignores=("type",))
    def double(a: Array, b: Array) -> Array:
        """Return the smaller (min) or larger (max) number; a NaN is ignored, and -0 is below +0."""
        return compute(a, b)


_extremum("min", ieee.minimum)
_extremum("max", ieee.maximum)


def _sign(name: str, compute: Callable[..., Array]) -> None:
    """Register abs or neg."""

    @instruction(f"{name}{{.ftz}}.f32 d:f32, a:f32")
    def single(a: Array, *, ftz: bool) -> Array:
        """Return an f32 with its sign bit cleared (abs) or inverted (neg); a NaN becomes the canonical one."""
        return compute(a, ftz=ftz)

    @instruction(f"{name}.f64 d:f64, a:f64")
    def double(a: Array) -> Array:
        """Return an f64 with its sign bit cleared (abs) or inverted (neg); a NaN keeps its sign."""
        return compute(a)


_sign("abs", ieee.absolute)
_sign("neg", ieee.negate)


@instruction("copysign.{type:f32|f64} d, a, b", ignores=("type",), undefined=bitwise)
def copysign(a: Array, b: Array) -> Array:
    """Return the magnitude of b with the sign of a."""
    return np.copysign(b, a)


@instruction(
    "testp.{test:finite|infinite|number|notanumber|normal|subnormal}.{type:f32|f64} d:pred, a", ignores=("type",)
)
def testp(a: Array, *, test: str) -> Array:
    """Return whether a float is of the tested kind; zero counts as normal."""
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
            normal: Array = np.isfinite(a) & ((np.abs(a) >= smallest) | (a == 0))
            return normal
        case _:
            subnormal: Array = (np.abs(a) < smallest) & (a != 0)
            return subnormal
