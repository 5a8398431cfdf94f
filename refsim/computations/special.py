"""Exponentials, tanh, erf, roots and quotients of kernels: the GPU's approximations, CUDA's functions, or rounded once."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.computations.ways import Family, Way
from refsim.mufu.instructions import approximate, divided
from refsim.numerics import ieee
from refsim.sources import CUDA_GUIDE, IEEE754, NUMPY_LIBRARY, PTX

Floats = NDArray[np.float32]
LOG2_OF_E = np.float32(1.4426950408889634)


def _singles(*patterns: int) -> Floats:
    return np.array(patterns, np.uint32).view(np.float32)


_fma: Callable[..., Floats] = ieee.fma
_ONE, _QUOTIENT = np.float32(1), IEEE754["section 5.4.1"]
TO_WHOLE = np.float32(1.5 * 2**23)
LN_2_PARTS = _singles(0xBF317200, 0xB5BFBE8E)
EXP_ABOVE = _singles(0x3A053DD8, 0x3BDD7159, 0x3D517D8C, 0x3E7D4C58, 0x3F39CBD5, 0x3F800000)
EXP_BELOW = _singles(0x3CB0E832, 0xBE8C6857, 0x3F800000)
CUDA_EXP = _singles(0x3BBB989D, 0x437C0000, 0x4B400001, 0xCB40007F, 0x32A57060)
CUDA_TANH = _singles(0x3C80F082, 0xBD563CAE, 0x3E085941, 0xBEAAA9ED, 0)
ERF_BELOW = _singles(0x38B1E96A, 0xBA574D20, 0x3BAAD5EA, 0xBCDC1BE7, 0x3DE718AF, 0xBEC093AC, 0x3E0375D3)
ERF_ABOVE = _singles(0x38EB4C3A, 0xBAAE005B, 0x3C09919F, 0xBD24D99A, 0x3E235519, 0x3F69B4F9, 0x3F210A14)
EXP_MOST, EXP_LEAST = np.float32(88.72283935546875), np.float32(-103.97208404541015625)


def words(x: Floats) -> NDArray[np.uint32]:
    """Return float32 values as bit patterns."""
    return np.ascontiguousarray(x, np.float32).view(np.uint32)


def _approx(name: str, ftz: bool, x: Floats) -> Floats:
    return approximate(name, words(x), ftz=ftz).view(np.float32)


def _exact(function: Callable[[Any], Any], x: Floats) -> Floats:
    """Return a function rounded once; float64 rounds wrongly about once in some hundred million cases."""
    return np.asarray(function(np.asarray(x, np.float64)), np.float32)


def _horner(x: Floats, coefficients: Floats) -> Floats:
    """Return a polynomial with one fma for each step, its highest coefficient first."""
    total = np.full_like(x, coefficients[0])
    for each in coefficients[1:]:
        total = ieee.fma(total, x, np.full_like(x, each))
    return total


def _numpy_exp(x: Floats) -> Floats:
    """Return e^x as NumPy's vector code does: a quotient of polynomials of x less a multiple of ln 2."""
    left = np.ascontiguousarray(x, np.float32)
    whole = (x * LOG2_OF_E + TO_WHOLE) - TO_WHOLE
    for part in LN_2_PARTS:
        left = ieee.fma(whole, np.full_like(left, part), left)
    with np.errstate(all="ignore"):
        ratio = _horner(left, EXP_ABOVE) / _horner(left, EXP_BELOW)
        power = np.ldexp(ratio, np.nan_to_num(whole.clip(-300, 300)).astype(np.int32))
    within = np.where(x < EXP_LEAST, np.float32(0), power)
    return np.asarray(np.where(np.isnan(x), x, np.where(x > EXP_MOST, np.float32(np.inf), within)), np.float32)


def _cuda_exp(x: Floats) -> Floats:
    """Return e^x as expf of CUDA: 2^n by the exponent, 2^rest by ex2.approx.ftz."""
    unit, span, shift, back, low = CUDA_EXP
    whole = _fma(_fma(x, unit, np.float32(0.5), sat=True), span, shift, "rm")
    rest = _fma(x, low, _fma(x, LOG2_OF_E, -(whole + back)))
    return np.asarray(_approx("ex2", True, rest) * (words(whole) << 23).view(np.float32), np.float32)


def _cuda_tanh(x: Floats) -> Floats:
    """Return tanh x as tanhf of CUDA: a polynomial below 0.6, then 1 - 2 / (e^2x + 1)."""
    size = np.abs(x)
    divided = _approx("rcp", True, _approx("ex2", True, size * np.float32(2.885390043258667)) + _ONE)
    far = np.where(size >= np.float32(9.010913848876953), _ONE, _fma(divided, np.float32(-2), _ONE))
    near = _fma(_horner(x * x, CUDA_TANH), x, x)
    return np.where(size < np.float32(0.6), near, np.copysign(far, x)).astype(np.float32)


def _cuda_erf(x: Floats) -> Floats:
    """Return erf x as erff of CUDA: a polynomial, from 1.003 on of the logarithm of 1 - erf."""
    size = np.abs(x)
    near, far = (_fma(_horner(t, row), y, y) for t, y, row in ((x * x, x, ERF_BELOW), (size, -size, ERF_ABOVE)))
    return np.where(size >= np.float32(1.0029599666595459), np.copysign(_ONE - _approx("ex2", True, far), x), near)


_ONCE, _CUDA = IEEE754["section 9.2"], CUDA_GUIDE["intrinsic functions"]
EX2_FLUSHED = Way("2^t is ex2.approx.ftz", Family.SPECIAL, PTX["ex2"], partial(_approx, "ex2", True))
EX2_SUBNORMAL = Way(
    "2^t is ex2.approx: subnormals are kept", Family.FLUSHED, PTX["ex2"], partial(_approx, "ex2", False)
)
EXP_EXACT = Way("e^t is rounded once", Family.SPECIAL, _ONCE, partial(_exact, np.exp))
EX2_FOR_EXP = Way("2^t for e^t, rounded once", Family.BASE, _ONCE, partial(_exact, np.exp2))
EXP_NUMPY = Way(
    "e^t is np.exp of float32 on x86 with fma", Family.SPECIAL, NUMPY_LIBRARY["numpy.exp of float32"], _numpy_exp, 2
)
EXP_CUDA = Way("e^t is expf of CUDA", Family.SPECIAL, _CUDA, _cuda_exp)
_EX2_EXACT = Way("2^t is rounded once", Family.SPECIAL, _ONCE, partial(_exact, np.exp2))
EXPONENTIALS = EX2_FLUSHED, EX2_SUBNORMAL, _EX2_EXACT, EXP_EXACT, EX2_FOR_EXP, EXP_NUMPY, EXP_CUDA
NATURAL = (EXP_EXACT, EX2_FOR_EXP, EXP_NUMPY, EXP_CUDA)
"""Exponentials whose argument t is not multiplied by log2(e)."""

TANHS = (
    Way("tanh is tanhf of CUDA", Family.SPECIAL, _CUDA, _cuda_tanh),
    Way("tanh is tanh.approx", Family.SPECIAL, PTX["tanh"], partial(_approx, "tanh", False)),
    Way("tanh is rounded once", Family.SPECIAL, _ONCE, partial(_exact, np.tanh)),
)
ERFS = (
    Way("erf is erff of CUDA", Family.SPECIAL, _CUDA, _cuda_erf),
    Way("erf is rounded once", Family.SPECIAL, _ONCE, partial(_exact, np.vectorize(math.erf, otypes=[float]))),
)


def _quotient(ftz: bool, full: bool, p: Floats, total: Floats) -> Floats:
    """Return p / total as the chip's division computes it."""
    return divided(*map(words, np.broadcast_arrays(p, total)), ftz=ftz, full=full).view(np.float32)


BY_RCP = Way("times rcp.approx.ftz", Family.SPECIAL, PTX["rcp"], lambda p, total: p * _approx("rcp", True, total))
FULL = Way("by div.full", Family.SPECIAL, PTX["div"], partial(_quotient, False, True))
DIVIDED = Way("by a quotient that is rounded once", Family.SPECIAL, _QUOTIENT, lambda p, total: p / total)
DIVISIONS = (
    BY_RCP,
    FULL,
    DIVIDED,
    Way("times a reciprocal that is rounded once", Family.SPECIAL, _QUOTIENT, lambda p, total: p * (_ONE / total)),
    Way("by div.approx.ftz", Family.SPECIAL, PTX["div"], partial(_quotient, True, False)),
    Way("times rcp.approx", Family.SPECIAL, PTX["rcp"], lambda p, total: p * _approx("rcp", False, total)),
)


RSQRT_APPROX = Way("the root is rsqrt.approx", Family.SPECIAL, PTX["rsqrt"], partial(_approx, "rsqrt", False))
ONE_BY_ROOT = Way("the root is 1 / sqrt, each rounded once", Family.SPECIAL, _QUOTIENT, lambda x: _ONE / np.sqrt(x))
BY_ROOT = Way("x is divided by the root, each rounded once", Family.SPECIAL, _QUOTIENT, np.sqrt)
ROOTS = (
    RSQRT_APPROX,
    Way("the root is rsqrt.approx.ftz", Family.FLUSHED, PTX["rsqrt"], partial(_approx, "rsqrt", True)),
    Way("the root is 1 / sqrt, rounded once", Family.SPECIAL, _ONCE, lambda x: ieee.rsqrt(np.ascontiguousarray(x))),
    ONE_BY_ROOT,
    Way(
        "the root is rcp.approx of sqrt.approx",
        Family.SPECIAL,
        _CUDA,
        lambda x: _approx("rcp", True, _approx("sqrt", True, x)),
    ),
    BY_ROOT,
)
