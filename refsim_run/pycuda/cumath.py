"""pycuda.cumath on the simulated GPU: CUDA's math functions, applied to each element."""

import re
from functools import lru_cache
from typing import Any

import numpy as np

from refsim_run.pycuda.elementwise import PycudaElementwise
from refsim_run.pycuda.gpuarray import GPUArray, empty_like, of_elements
from refsim_run.pycuda.tools import dtype_to_ctype
from refsim_run.seams import refuse
from refsim_run.session import current

_OF_ONE = re.compile(r"a?(cos|sin|tan)|(cos|sin|tan)h|ceil|exp|fabs|floor|log|log10|sqrt")
_OF_TWO = ("atan2", "fmod")


def _named(name: str, *operands: GPUArray) -> tuple[Any, str]:
    """Return the result's type and the name of CUDA's function for it: sinf for float32."""
    kind = np.result_type(*(each.dtype for each in operands))
    if kind not in (np.float32, np.float64):
        raise current().unsupported(f"pycuda.cumath.{name}", f"of {kind}")
    return kind, f"{name}f" if kind == np.float32 else name


def _of_one(name: str) -> Any:
    def call(array: GPUArray, stream_or_out: Any = None, *, out: Any = None, stream: Any = None) -> GPUArray:
        kind, function = _named(name, array)
        into = stream_or_out if isinstance(stream_or_out, GPUArray) else out
        return of_elements(f"{function}($0)", kind, array, out=into, stream=stream)

    return call


def _of_two(name: str) -> Any:
    def call(one: GPUArray, other: GPUArray, stream: Any = None) -> GPUArray:
        kind, function = _named(name, one, other)
        return of_elements(f"{function}($0, $1)", kind, one, other, stream=stream)

    return call


def ldexp(significand: GPUArray, exponent: GPUArray, stream: Any = None) -> GPUArray:
    kind, function = _named("ldexp", significand, exponent)
    return of_elements(f"{function}($0, int($1))", kind, significand, exponent, stream=stream)


def frexp(arg: GPUArray, stream: Any = None) -> tuple[GPUArray, GPUArray]:
    """Return the fractions and the exponents, both in the array's type."""
    return _in_two("frexp", "int e; z[i] = FUNCTION(x[i], &e); y[i] = e", arg, stream)


def modf(arg: GPUArray, stream: Any = None) -> tuple[GPUArray, GPUArray]:
    """Return the fractions and the whole parts."""
    return _in_two("modf", "z[i] = FUNCTION(x[i], &y[i])", arg, stream)


def _in_two(name: str, operation: str, arg: GPUArray, stream: Any) -> tuple[GPUArray, GPUArray]:
    _, function = _named(name, arg)
    one, other = empty_like(arg), empty_like(arg)
    _kernel(dtype_to_ctype(arg.dtype), operation.replace("FUNCTION", function))(one, other, arg, stream=stream)
    return one, other


@lru_cache(maxsize=64)
def _kernel(kind: str, operation: str) -> PycudaElementwise:
    return PycudaElementwise(f"{kind} *z, {kind} *y, const {kind} *x", operation, "in_two")


def __getattr__(name: str) -> Any:
    if _OF_ONE.fullmatch(name):
        return _of_one(name)
    if name in _OF_TWO:
        return _of_two(name)
    raise refuse("pycuda.cumath", name)
