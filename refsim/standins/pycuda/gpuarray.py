"""pycuda.gpuarray on the simulated GPU: arrays in device memory, with arithmetic by compiled kernels."""

import importlib
from collections.abc import Callable, Sequence
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.standins.complex_numbers import including_complex
from refsim.standins.pycuda.compiler import SourceModule
from refsim.standins.pycuda.driver import mem_alloc, memcpy_dtod, memcpy_dtoh, memcpy_htod
from refsim.standins.pycuda.functions import PycudaFunction
from refsim.standins.pycuda.tools import dtype_to_ctype
from refsim.standins.seams import names_in, refuse
from refsim.standins.session import current

__all__ = ["GPUArray", "arange", "empty", "empty_like", "ones", "to_gpu", "to_gpu_async", "vec", "zeros", "zeros_like"]

_THREADS = 256
_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/"}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_FUNCTIONS = names_in("""
    dot if_positive logical_and logical_not logical_or max maximum min minimum sum take where
""")
_BASES = {
    "char": "i1",
    "uchar": "u1",
    "short": "i2",
    "ushort": "u2",
    "int": "i4",
    "uint": "u4",
    "longlong": "i8",
    "ulonglong": "u8",
    "float": "f4",
    "double": "f8",
}


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


class GPUArray:
    """A contiguous array of the device; `gpudata` is its memory, `shape`, `strides` and `dtype` are NumPy's."""

    __array_priority__ = 100

    def __init__(
        self,
        shape: Any,
        dtype: Any,
        allocator: Any = mem_alloc,
        base: Any = None,
        gpudata: Any = None,
        strides: Any = None,
        order: str = "C",
    ) -> None:
        """Allocate an array, or wrap the memory `gpudata`; strides with gaps are refused."""
        self.shape = tuple(int(each) for each in np.atleast_1d(np.asarray(shape, np.int64)))
        self.dtype = np.dtype(dtype)
        self.size, self.order, self.base, self.allocator = prod(self.shape), order, base, allocator
        self.nbytes = self.size * self.dtype.itemsize
        self.strides = _strides(self.shape, self.dtype.itemsize, order)
        if strides is not None and tuple(strides) != self.strides:
            raise current().unsupported("pycuda.gpuarray.GPUArray with strides", "arrays with gaps")
        self.gpudata = gpudata if gpudata is not None else allocator(self.nbytes) if self.nbytes else None

    @property
    def ptr(self) -> int:
        return 0 if self.gpudata is None else int(self.gpudata)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "strides": self.strides,
            "data": (self.ptr, False),
            "typestr": self.dtype.str,
            "stream": None,
            "version": 3,
        }

    def set(self, array: NDArray[Any], stream: Any = None) -> None:
        """Copy a host array of equal size and type to the device."""
        if array.size != self.size or array.dtype != self.dtype:
            raise ValueError("ary and self must be the same size and dtype")
        memcpy_htod(self.gpudata, np.asarray(array, order="F" if self.order == "F" else "C"))

    def get(self, ary: NDArray[Any] | None = None, pagelocked: bool = False) -> NDArray[Any]:
        """Return a copy on the host."""
        made: NDArray[Any] = np.empty(self.shape, self.dtype, "F" if self.order == "F" else "C") if ary is None else ary
        if self.size:
            memcpy_dtoh(made, self.gpudata)
        return made

    def copy(self) -> "GPUArray":
        made = empty_like(self)
        memcpy_dtod(made.gpudata, self.gpudata, self.nbytes)
        return made

    def fill(self, value: Any, stream: Any = None) -> "GPUArray":
        self.set(np.full(self.shape, value, self.dtype))
        return self

    def reshape(self, *shape: Any, order: str = "C") -> "GPUArray":
        """Return an array with another shape over this memory; one extent may be -1."""
        if order != self.order and self.ndim > 1:
            raise current().unsupported(
                "pycuda.gpuarray.GPUArray.reshape", f"of an array in order {self.order} to {order}"
            )
        wanted = tuple(shape[0]) if len(shape) == 1 and not np.isscalar(shape[0]) else shape
        wanted = np.empty(self.shape, np.bool_).reshape(wanted).shape
        return GPUArray(wanted, self.dtype, self.allocator, self, self.gpudata, order=self.order)

    def ravel(self) -> "GPUArray":
        return self.reshape(self.size)

    def astype(self, dtype: Any) -> "GPUArray":
        return self if self.dtype == dtype else _elementwise("x[i]", dtype, self)

    def __getitem__(self, index: Any) -> "GPUArray":
        """Return a range of whole rows: a slice of the first axis without a step."""
        if not isinstance(index, slice) or index.step not in (None, 1) or self.order == "F":
            raise current().unsupported("pycuda.gpuarray.GPUArray indexing", f"[{index!r}]: a slice of whole rows is")
        first, last, _ = index.indices(self.shape[0])
        shape = (max(last - first, 0), *self.shape[1:])
        return GPUArray(shape, self.dtype, self.allocator, self, self.ptr + first * self.strides[0])

    def __setitem__(self, index: Any, value: Any) -> None:
        """Set whole rows to a number or to an array of their shape."""
        rows = self if index is Ellipsis else self[index]
        if isinstance(value, GPUArray):
            if (value.shape, value.dtype) != (rows.shape, rows.dtype):
                raise current().unsupported("pycuda.gpuarray.GPUArray.__setitem__", f"{value.shape} into {rows.shape}")
            memcpy_dtod(rows.ptr, value.ptr, rows.nbytes)
        elif rows.size:
            rows.set(np.array(np.broadcast_to(np.asarray(value, rows.dtype), rows.shape)))

    @property
    def flags(self) -> Any:
        """Return the flags c_contiguous, f_contiguous and forc (either or both)."""
        found = np.empty(self.shape, np.bool_, "F" if self.order == "F" else "C").flags
        return SimpleNamespace(c_contiguous=found.c_contiguous, f_contiguous=found.f_contiguous, forc=found.forc)

    def __bool__(self) -> bool:
        """Return the truth of the only element; ValueError for several, as in NumPy."""
        return bool(self.get())

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0

    def __neg__(self) -> "GPUArray":
        return _elementwise("-(T)x[i]", self.dtype, self)

    def __abs__(self) -> "GPUArray":
        return _elementwise("fabs((T)x[i])" if self.dtype.kind == "f" else "abs((T)x[i])", self.dtype, self)

    def __pow__(self, other: Any) -> Any:
        return _functions().power(self, other)

    def __rpow__(self, other: Any) -> Any:
        return _functions().power(other, self)

    def any(self, stream: Any = None, allocator: Any = None) -> Any:
        return _functions().any(self, stream)

    def all(self, stream: Any = None, allocator: Any = None) -> Any:
        return _functions().all(self, stream)

    def reverse(self, stream: Any = None) -> Any:
        return _functions().reverse(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise current().unsupported(f"pycuda.gpuarray.GPUArray.{name}")


def _functions() -> Any:
    """Return the module array_functions, which itself imports this module."""
    return importlib.import_module("refsim.standins.pycuda.array_functions")


def _operation(name: str, sign: str) -> None:
    """Add an operator to GPUArray: on the left, on the right, and in place."""

    def left(self: GPUArray, other: Any) -> GPUArray:
        kind = _common(self, other, sign)
        return _elementwise(f"(T)x[i] {sign} {_second(other, kind, sign)}", kind, self, other)

    def right(self: GPUArray, other: Any) -> GPUArray:
        kind = _common(self, other, sign)
        return _elementwise(f"(T)y {sign} ({_operand(self, kind, sign)})x[i]", kind, self, other)

    def in_place(self: GPUArray, other: Any) -> GPUArray:
        made = _elementwise(f"(T)x[i] {sign} {_second(other, self.dtype, sign)}", self.dtype, self, other)
        memcpy_dtod(self.gpudata, made.gpudata, self.nbytes)
        return self

    setattr(GPUArray, f"__{name}__", left)
    setattr(GPUArray, f"__r{name}__", right)
    setattr(GPUArray, f"__i{name}__", in_place)


def _comparison(name: str, sign: str) -> None:
    setattr(GPUArray, f"__{name}__", lambda self, other: _functions().compared(sign, self, other))


for _word, _sign in _OPERATORS.items():
    _operation(_word, _sign)
for _word, _sign in _COMPARISONS.items():
    _comparison(_word, _sign)
GPUArray.__hash__ = object.__hash__  # type: ignore[method-assign]


def _second(other: Any, kind: Any, sign: str) -> str:
    return f"({_operand(other, kind, sign)})y[i]" if isinstance(other, GPUArray) else "(T)y"


def _operand(array: GPUArray, kind: Any, sign: str) -> str:
    """Return the type of an array on the right; complex numbers are divided by real numbers part by part."""
    return "T::value_type" if sign == "/" and np.dtype(kind).kind == "c" != array.dtype.kind else "T"


def _common(one: GPUArray, other: Any, sign: str) -> np.dtype[Any]:
    kind = np.result_type(one.dtype, other.dtype if isinstance(other, GPUArray) else other)
    return np.dtype(np.result_type(kind, np.float32)) if sign == "/" and kind.kind in "iub" else kind


def _elementwise(expression: str, dtype: Any, one: GPUArray, other: Any = None) -> GPUArray:
    """Return a new array of `dtype`; element i is an expression of x[i] and y[i] (or y), where T is that type."""
    made = GPUArray(one.shape, dtype, one.allocator, order=one.order)
    kinds: list[str] = [dtype_to_ctype(made.dtype), dtype_to_ctype(one.dtype)]
    if isinstance(other, GPUArray):
        if other.shape != one.shape:
            raise current().unsupported("pycuda.gpuarray broadcasting", f"{one.shape} with {other.shape}")
        second = f", const {dtype_to_ctype(other.dtype)} *y"
    else:
        second = "" if other is None else f", {kinds[0]} y"
    source = (
        f"typedef {kinds[0]} T;\n"
        f"__global__ void elementwise(T *z, const {kinds[1]} *x{second}, unsigned n) {{\n"
        f"    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)\n"
        f"        z[i] = {expression};\n}}\n"
    )
    values = [] if other is None else [other if isinstance(other, GPUArray) else made.dtype.type(other)]
    if one.size:
        kernel = _kernel(source)
        kernel(
            made,
            one,
            *values,
            np.uint32(one.size),
            grid=(min(-(-one.size // _THREADS), 1024), 1),
            block=(_THREADS, 1, 1),
        )
    return made


_KERNELS: dict[str, PycudaFunction] = {}


def _kernel(source: str) -> PycudaFunction:
    if source not in _KERNELS:
        _KERNELS[source] = SourceModule(including_complex(source)).get_function("elementwise")
    return _KERNELS[source]


def _strides(shape: Sequence[int], itemsize: int, order: str) -> tuple[int, ...]:
    """Return the bytes from one element to the next along each axis of a contiguous array."""
    if order == "F":
        return tuple(itemsize * prod(shape[:axis]) for axis in range(len(shape)))
    return tuple(itemsize * prod(shape[axis + 1 :]) for axis in range(len(shape)))


def empty(shape: Any, dtype: Any, allocator: Any = mem_alloc, order: str = "C") -> GPUArray:
    return GPUArray(shape, dtype, allocator, order=order)


def zeros(shape: Any, dtype: Any = np.float64, allocator: Any = mem_alloc, order: str = "C") -> GPUArray:
    return GPUArray(shape, dtype, allocator, order=order).fill(0)


def ones(shape: Any, dtype: Any = np.float64, allocator: Any = mem_alloc, order: str = "C") -> GPUArray:
    return GPUArray(shape, dtype, allocator, order=order).fill(1)


def empty_like(other: GPUArray, dtype: Any = None) -> GPUArray:
    return GPUArray(other.shape, dtype or other.dtype, other.allocator, order=other.order)


def zeros_like(other: GPUArray, dtype: Any = None) -> GPUArray:
    return empty_like(other, dtype).fill(0)


def to_gpu(array: NDArray[Any], allocator: Any = mem_alloc) -> GPUArray:
    """Return a copy of a host array on the device."""
    host = np.asarray(array)
    is_fortran = host.flags.f_contiguous and not host.flags.c_contiguous
    made = GPUArray(host.shape, host.dtype, allocator, order="F" if is_fortran else "C")
    if made.size:
        made.set(host)
    return made


def to_gpu_async(array: NDArray[Any], allocator: Any = mem_alloc, stream: Any = None) -> GPUArray:
    return to_gpu(array, allocator)


def arange(*args: Any, dtype: Any = None) -> GPUArray:
    return to_gpu(np.arange(*args, dtype=dtype))


def __getattr__(name: str) -> Any:
    if name in _FUNCTIONS:
        return getattr(_functions(), name)
    raise refuse("pycuda.gpuarray", name)
