"""pycuda.gpuarray on the simulated GPU: arrays with operators and functions, by kernels around an expression."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from refsim.ptx.text.words import pairs_in
from refsim_run.pycuda.arrays import (
    GPUArray,
    arange,
    empty,
    empty_like,
    ones,
    to_gpu,
    to_gpu_async,
    zeros,
    zeros_like,
)
from refsim_run.pycuda.driver import memcpy_dtod
from refsim_run.pycuda.elementwise import PycudaElementwise
from refsim_run.pycuda.reduction import PycudaReduction
from refsim_run.pycuda.tools import dtype_to_ctype
from refsim_run.seams import refusing
from refsim_run.session import current

__all__ = ["GPUArray", "arange", "empty", "empty_like", "ones", "to_gpu", "to_gpu_async", "vec", "zeros", "zeros_like"]
__getattr__ = refusing("pycuda.gpuarray")

_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/"}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_BASES = pairs_in("""
    char:i1 uchar:u1 short:i2 ushort:u2 int:i4 uint:u4 longlong:i8 ulonglong:u8 float:f4 double:f8
""")


class vec:  # noqa: N801 - PyCUDA's own name
    """vec.float3 is a type, vec.make_float3(1, 2, 3) a scalar of it."""


def _maker(kind: np.dtype[Any]) -> Callable[..., Any]:
    def make(*parts: Any) -> Any:
        return np.array(tuple(parts), kind)[()]

    return make


for _name, _code in _BASES.items():
    for _width in (1, 2, 3, 4):
        _kind = np.dtype([(each, _code) for each in "xyzw"[:_width]])
        setattr(vec, f"{_name}{_width}", _kind)
        setattr(vec, f"make_{_name}{_width}", staticmethod(_maker(_kind)))


def of_elements(expression: str, dtype: Any, *operands: Any, out: Any = None, stream: Any = None) -> GPUArray:
    """Return `out` or a new array of type `dtype`: an expression in which $0, $1, ... are elements of the operands."""
    arrays = [each for each in operands if isinstance(each, GPUArray)]
    if {each.shape for each in arrays} != {arrays[0].shape}:
        raise current().unsupported("pycuda.gpuarray broadcasting", " with ".join(str(each.shape) for each in arrays))
    made = GPUArray(arrays[0].shape, dtype, arrays[0].allocator, order=arrays[0].order) if out is None else out
    number = np.dtype(_common(*operands)).type
    given = [each if isinstance(each, GPUArray) else number(each) for each in operands]
    kinds = tuple((dtype_to_ctype(each.dtype), isinstance(each, GPUArray)) for each in given)
    _kernel(expression, dtype_to_ctype(made.dtype), kinds)(made, *given, stream=stream)
    return made


@lru_cache(maxsize=1024)
def _kernel(expression: str, out: str, kinds: tuple[tuple[str, bool], ...]) -> PycudaElementwise:
    heads = [f"{kind} {'*' * is_array}x{number}" for number, (kind, is_array) in enumerate(kinds)]
    for number, (_, is_array) in enumerate(kinds):
        expression = expression.replace(f"${number}", f"x{number}[i]" if is_array else f"x{number}")
    return PycudaElementwise(", ".join([f"{out} *z", *heads]), f"z[i] = {expression}", "of_elements")


@lru_cache(maxsize=256)
def _reduction(kind: Any, neutral: str, reduce_expr: str, map_expr: str, arguments: str, name: str) -> PycudaReduction:
    return PycudaReduction(kind, neutral, reduce_expr, map_expr, arguments, name)


def _reduced(
    name: str, a: GPUArray, kind: Any, neutral: str, combined: str, stream: Any, value: str = "x[i]"
) -> GPUArray:
    heads = f"const {dtype_to_ctype(a.dtype)} *x"
    return _reduction(np.dtype(kind), neutral, combined, value, heads, f"{name}_of_all")(a, stream=stream)


def sum(a: GPUArray, dtype: Any = None, stream: Any = None, allocator: Any = None) -> GPUArray:
    return _reduced("sum", a, dtype or a.dtype, "0", "a + b", stream)


def dot(a: GPUArray, b: GPUArray, dtype: Any = None, stream: Any = None, allocator: Any = None) -> GPUArray:
    kind = np.dtype(dtype or np.result_type(a.dtype, b.dtype))
    heads = f"const {dtype_to_ctype(a.dtype)} *x, const {dtype_to_ctype(b.dtype)} *y"
    return _reduction(kind, "0", "a + b", "x[i] * y[i]", heads, "dot_of_all")(a, b, stream=stream)


def _any(a: GPUArray, stream: Any = None, allocator: Any = None) -> GPUArray:
    return _reduced("any", a, np.bool_, "false", "a || b", stream, "x[i] != 0")


def _all(a: GPUArray, stream: Any = None, allocator: Any = None) -> GPUArray:
    return _reduced("all", a, np.bool_, "true", "a && b", stream, "x[i] != 0")


def _largest(name: str, a: GPUArray, stream: Any) -> GPUArray:
    """Return the largest or smallest element; the first element is the start value, so that no type limit is needed."""
    return _reduced(name, a, a.dtype, "x[0]", _larger(name, a.dtype, "a", "b"), stream)


def _larger(name: str, kind: Any, one: str, other: str) -> str:
    """Return C++ for the larger or smaller of two numbers: fmaxf(a, b) for floats, a > b ? a : b for integers."""
    if np.dtype(kind).kind == "f":
        return f"f{name}{'f' * (kind == np.float32)}({one}, {other})"
    return f"{one} {'>' if name == 'max' else '<'} {other} ? {one} : {other}"


def max(a: GPUArray, stream: Any = None, allocator: Any = None) -> GPUArray:
    return _largest("max", a, stream)


def min(a: GPUArray, stream: Any = None, allocator: Any = None) -> GPUArray:
    return _largest("min", a, stream)


def _common(*operands: Any) -> Any:
    return np.result_type(*(each.dtype if isinstance(each, GPUArray) else each for each in operands))


def maximum(a: Any, b: Any, out: Any = None, stream: Any = None) -> GPUArray:
    return of_elements(_larger("max", _common(a, b), "$0", "$1"), _common(a, b), a, b, out=out, stream=stream)


def minimum(a: Any, b: Any, out: Any = None, stream: Any = None) -> GPUArray:
    return of_elements(_larger("min", _common(a, b), "$0", "$1"), _common(a, b), a, b, out=out, stream=stream)


def if_positive(criterion: GPUArray, then_: Any, else_: Any, out: Any = None, stream: Any = None) -> GPUArray:
    return of_elements("$0 > 0 ? $1 : $2", _common(then_, else_), criterion, then_, else_, out=out, stream=stream)


def where(condition: GPUArray, if_true: Any, if_false: Any, out: Any = None, stream: Any = None) -> GPUArray:
    return of_elements("$0 ? $1 : $2", _common(if_true, if_false), condition, if_true, if_false, out=out, stream=stream)


def take(a: GPUArray, indices: GPUArray, out: Any = None, stream: Any = None) -> GPUArray:
    """Return the elements at the given positions in memory."""
    made = GPUArray(indices.shape, a.dtype, a.allocator) if out is None else out
    heads = (
        f"{dtype_to_ctype(a.dtype)} *z, const {dtype_to_ctype(indices.dtype)} *at, const {dtype_to_ctype(a.dtype)} *x"
    )
    _elements(heads, "z[i] = x[at[i]]", "take")(made, indices, a, stream=stream)
    return made


@lru_cache(maxsize=256)
def _elements(heads: str, operation: str, name: str) -> PycudaElementwise:
    return PycudaElementwise(heads, operation, name)


def logical_and(x1: Any, x2: Any, /, out: Any = None, stream: Any = None) -> GPUArray:
    return of_elements("$0 && $1", np.bool_, x1, x2, out=out, stream=stream)


def logical_or(x1: Any, x2: Any, /, out: Any = None, stream: Any = None) -> GPUArray:
    return of_elements("$0 || $1", np.bool_, x1, x2, out=out, stream=stream)


def logical_not(x: GPUArray, /, out: Any = None, stream: Any = None) -> GPUArray:
    return of_elements("!$0", np.bool_, x, out=out, stream=stream)


def _power(base: Any, exponent: Any) -> GPUArray:
    """Return base ** exponent for float32 and float64; other types are refused: PyCUDA computes them in double."""
    kind = _common(base, exponent)
    if kind not in (np.float32, np.float64):
        raise current().unsupported("pycuda.gpuarray.GPUArray.__pow__", f"of {kind}")
    function, c_type = ("powf", "float") if kind == np.float32 else ("pow", "double")
    return of_elements(f"{function}(({c_type})$0, ({c_type})$1)", kind, base, exponent)


def _reverse(a: GPUArray, stream: Any = None) -> GPUArray:
    """Return a copy with the elements in reverse order, as PyCUDA does."""
    made = GPUArray(a.shape, a.dtype, a.allocator)
    c_type = dtype_to_ctype(a.dtype)
    _elements(f"{c_type} *z, const {c_type} *x", "z[i] = x[n - 1 - i]", "reverse")(made, a)
    return made


def _cast(operand: Any, place: int, kind: Any, sign: str) -> str:
    """Return an operand in the type of the result; complex numbers are divided by real numbers part by part."""
    element = np.dtype(kind)
    if place and sign == "/" and isinstance(operand, GPUArray) and element.kind == "c" != operand.dtype.kind:
        element = np.empty(0, element).real.dtype
    return f"({dtype_to_ctype(element)})${place}"


def _computed(sign: str, one: Any, other: Any, kind: Any = None) -> GPUArray:
    """Return a new array of type `kind`, by default the operands' common type; quotients of integers are floats."""
    if kind is None:
        kind = _common(one, other)
        kind = np.result_type(kind, np.float32) if sign == "/" and kind.kind in "iub" else kind
    expression = f" {sign} ".join(_cast(each, place, kind, sign) for place, each in enumerate((one, other)))
    return of_elements(expression, kind, one, other)


def _changed(array: GPUArray, sign: str, other: Any) -> GPUArray:
    made = _computed(sign, array, other, array.dtype)
    memcpy_dtod(array.gpudata, made.gpudata, array.nbytes)
    return array


def _magnitude(array: GPUArray) -> GPUArray:
    function = "fabs" if array.dtype.kind == "f" else "abs"
    return of_elements(f"{function}({_cast(array, 0, array.dtype, '')})", array.dtype, array)


def _operator(sign: str) -> dict[str, Callable[..., Any]]:
    """Return the functions of an operator: on the left, on the right (`r`), and in place (`i`)."""
    return {
        "": lambda self, other: _computed(sign, self, other),
        "r": lambda self, other: _computed(sign, other, self),
        "i": lambda self, other: _changed(self, sign, other),
    }


def _comparison(sign: str) -> Callable[..., Any]:
    return lambda self, other: of_elements(f"$0 {sign} $1", np.bool_, self, other)


_METHODS: dict[str, Callable[..., Any]] = {
    "__abs__": _magnitude,
    "__hash__": object.__hash__,
    "__neg__": lambda self: of_elements(f"-{_cast(self, 0, self.dtype, '')}", self.dtype, self),
    "__pow__": _power,
    "__rpow__": lambda self, other: _power(other, self),
    "all": _all,
    "any": _any,
    "astype": lambda self, dtype: self if self.dtype == dtype else of_elements("$0", dtype, self),
    "reverse": _reverse,
    **{f"__{name}__": _comparison(sign) for name, sign in _COMPARISONS.items()},
    **{f"__{way}{name}__": call for name, sign in _OPERATORS.items() for way, call in _operator(sign).items()},
}
for _name, _method in _METHODS.items():
    setattr(GPUArray, _name, _method)
