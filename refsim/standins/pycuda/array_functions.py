"""Functions of PyCUDA's arrays: of each element, by kernels around an expression; of all, by reductions."""

from functools import lru_cache
from typing import Any

import numpy as np

from refsim.standins.pycuda.elementwise import PycudaElementwise
from refsim.standins.pycuda.gpuarray import GPUArray
from refsim.standins.pycuda.reduction import PycudaReduction
from refsim.standins.pycuda.tools import dtype_to_ctype
from refsim.standins.session import current


def of_elements(expression: str, dtype: Any, *operands: Any, out: Any = None, stream: Any = None) -> GPUArray:
    """Return `out` or a new array of type `dtype`: an expression in which $0, $1, ... are elements of the operands."""
    arrays = [each for each in operands if isinstance(each, GPUArray)]
    if {each.shape for each in arrays} != {arrays[0].shape}:
        raise current().unsupported("pycuda.gpuarray broadcasting", " with ".join(str(each.shape) for each in arrays))
    made = GPUArray(arrays[0].shape, dtype, arrays[0].allocator, order=arrays[0].order) if out is None else out
    number = dtype_to_ctype(_kind(*operands))
    kinds = tuple(
        (dtype_to_ctype(each.dtype), True) if isinstance(each, GPUArray) else (number, False) for each in operands
    )
    _kernel(expression, dtype_to_ctype(made.dtype), kinds)(made, *operands, stream=stream)
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


def sum(a: GPUArray, dtype: Any = None, stream: Any = None, allocator: Any = None) -> GPUArray:
    kind = np.dtype(dtype or a.dtype)
    return _reduction(kind, "0", "a + b", "x[i]", f"const {dtype_to_ctype(a.dtype)} *x", "sum_of_all")(a, stream=stream)


def dot(a: GPUArray, b: GPUArray, dtype: Any = None, stream: Any = None, allocator: Any = None) -> GPUArray:
    kind = np.dtype(dtype or np.result_type(a.dtype, b.dtype))
    heads = f"const {dtype_to_ctype(a.dtype)} *x, const {dtype_to_ctype(b.dtype)} *y"
    return _reduction(kind, "0", "a + b", "x[i] * y[i]", heads, "dot_of_all")(a, b, stream=stream)


def _largest(name: str, a: GPUArray, stream: Any) -> GPUArray:
    """Return the largest or smallest element; the first element is the start value, so that no type limit is needed."""
    heads = f"const {dtype_to_ctype(a.dtype)} *x"
    return _reduction(a.dtype, "x[0]", _larger(name, a.dtype, "a", "b"), "x[i]", heads, f"{name}_of_all")(
        a, stream=stream
    )


def any(a: GPUArray, stream: Any = None) -> GPUArray:
    heads = f"const {dtype_to_ctype(a.dtype)} *x"
    return _reduction(np.dtype(np.bool_), "false", "a || b", "x[i] != 0", heads, "any_of_all")(a, stream=stream)


def all(a: GPUArray, stream: Any = None) -> GPUArray:
    heads = f"const {dtype_to_ctype(a.dtype)} *x"
    return _reduction(np.dtype(np.bool_), "true", "a && b", "x[i] != 0", heads, "all_of_all")(a, stream=stream)


def _larger(name: str, kind: Any, one: str, other: str) -> str:
    """Return C++ for the larger or smaller of two numbers: fmaxf(a, b) for floats, a > b ? a : b for integers."""
    if np.dtype(kind).kind == "f":
        return f"f{name}{'f' * (kind == np.float32)}({one}, {other})"
    return f"{one} {'>' if name == 'max' else '<'} {other} ? {one} : {other}"


def max(a: GPUArray, stream: Any = None, allocator: Any = None) -> GPUArray:
    return _largest("max", a, stream)


def min(a: GPUArray, stream: Any = None, allocator: Any = None) -> GPUArray:
    return _largest("min", a, stream)


def _kind(*operands: Any) -> Any:
    return np.result_type(*(each.dtype if isinstance(each, GPUArray) else each for each in operands))


def maximum(a: Any, b: Any, out: Any = None, stream: Any = None) -> GPUArray:
    return of_elements(_larger("max", _kind(a, b), "$0", "$1"), _kind(a, b), a, b, out=out, stream=stream)


def minimum(a: Any, b: Any, out: Any = None, stream: Any = None) -> GPUArray:
    return of_elements(_larger("min", _kind(a, b), "$0", "$1"), _kind(a, b), a, b, out=out, stream=stream)


def if_positive(criterion: GPUArray, then_: Any, else_: Any, out: Any = None, stream: Any = None) -> GPUArray:
    return of_elements("$0 > 0 ? $1 : $2", _kind(then_, else_), criterion, then_, else_, out=out, stream=stream)


def where(condition: GPUArray, if_true: Any, if_false: Any, out: Any = None, stream: Any = None) -> GPUArray:
    return of_elements("$0 ? $1 : $2", _kind(if_true, if_false), condition, if_true, if_false, out=out, stream=stream)


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


def compared(sign: str, one: GPUArray, other: Any) -> GPUArray:
    return of_elements(f"$0 {sign} $1", np.bool_, one, other)


def power(base: Any, exponent: Any) -> GPUArray:
    """Return base ** exponent for float32 and float64; other types are refused: PyCUDA computes them in double."""
    kind = _kind(base, exponent)
    if kind not in (np.float32, np.float64):
        raise current().unsupported("pycuda.gpuarray.GPUArray.__pow__", f"of {kind}")
    function, c_type = ("powf", "float") if kind == np.float32 else ("pow", "double")
    return of_elements(f"{function}(({c_type})$0, ({c_type})$1)", kind, base, exponent)


def reverse(a: GPUArray) -> GPUArray:
    """Return a copy with the elements in reverse order, as PyCUDA does."""
    made = GPUArray(a.shape, a.dtype, a.allocator)
    c_type = dtype_to_ctype(a.dtype)
    _elements(f"{c_type} *z, const {c_type} *x", "z[i] = x[n - 1 - i]", "reverse")(made, a)
    return made
