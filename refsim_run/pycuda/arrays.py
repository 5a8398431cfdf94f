"""Arrays of PyCUDA: a shape over memory of the simulated GPU. `gpuarray` adds their operators."""

from collections.abc import Sequence
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim_run.pycuda.driver import mem_alloc, memcpy_dtod, memcpy_dtoh, memcpy_htod
from refsim_run.seams import refusing
from refsim_run.session import current


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

    __getattr__ = refusing("pycuda.gpuarray.GPUArray")


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
