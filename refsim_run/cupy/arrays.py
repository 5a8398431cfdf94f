"""Arrays of CuPy: a shape over memory of the simulated GPU, on which NumPy computes."""

import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from refsim_run.cupy.pool import Memory, MemoryPointer, UnownedMemory, memory_at
from refsim_run.memory import left_poison
from refsim_run.seams import refuse
from refsim_run.session import current

TYPE_LETTERS = "?bhilqBHILQefdFD"
"""The types that CuPy has, as NumPy's letters; those of ml_dtypes beside them."""


def kind_of(dtype: Any) -> np.dtype[Any]:
    """Return the NumPy type of a CuPy dtype; types that CuPy lacks are refused by name."""
    kind: np.dtype[Any] = np.dtype(dtype)
    if kind.char not in TYPE_LETTERS and kind.type.__module__ != "ml_dtypes":
        raise current().unsupported(f"cupy.ndarray of {kind}", "an array has numbers of at most 64 bits")
    return kind


class ndarray:  # noqa: N801 - CuPy's own name
    """An array in device memory; results computed from it are new arrays there."""

    __array_priority__ = 100
    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __init__(
        self, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None, order: str = "C"
    ) -> None:
        """Allocate an array, or wrap the memory `memptr`, which `strides` needs."""
        self.dtype = kind_of(dtype)
        wanted = (operator.index(shape),) if hasattr(shape, "__index__") else tuple(int(each) for each in shape)
        if any(each < 0 for each in wanted):
            raise ValueError("Negative dimensions are not allowed")
        self._shape = wanted
        size = prod(wanted) * self.dtype.itemsize
        if strides is None:
            self.strides = contiguous(wanted, self.dtype.itemsize, order)
        elif memptr is None:
            raise ValueError("memptr is required if strides is given.")
        else:
            self.strides = tuple(strides)
        self.data: MemoryPointer = MemoryPointer(Memory(size), 0) if memptr is None else memptr
        self.base: ndarray | None = None

    # -- memory ---------------------------------------------------------------------------------------------------------

    @property
    def host(self) -> NDArray[Any]:
        """Return the array's memory as a NumPy array, valid until the next allocation."""
        return current().memory.array(self.data.ptr, self.shape, self.dtype, self.strides)

    def open_bytes(self) -> NDArray[np.bool_] | None:
        """Return which bytes of each element are uninitialized, None for none."""
        return current().memory.open_bytes(self.data.ptr, self.shape, self.dtype, self.strides)

    def is_read(self, who: str) -> None:
        """Report a read of this array, named `who` in the message, if elements are uninitialized."""
        current().memory.reads(self.data.ptr, self.shape, self.dtype, self.strides, who)

    def wrote(self, index: Any = ..., *, is_open: bool = False) -> "ndarray":
        """Mark the elements at `index` as written, by default all, or as uninitialized if `is_open`; return the array."""
        current().memory.wrote(self.data.ptr, self.shape, self.dtype, self.strides, index, is_open=is_open)
        return self

    def get(self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True) -> NDArray[Any]:
        """Return a copy on the host, or fill `out` of equal shape and type."""
        self.is_read("the host reads")
        if out is None:
            return self.host.copy(order)  # type: ignore[arg-type]
        if not isinstance(out, np.ndarray):
            raise TypeError("Only numpy.ndarray can be obtained from cupy.ndarray")
        if out.dtype != self.dtype:
            raise TypeError(f"{out.dtype.name} array cannot be obtained from {self.dtype.name} array")
        if out.shape != self.shape:
            raise ValueError(f"Shape mismatch. Expected shape: {self.shape}, actual shape: {out.shape}")
        out[...] = self.host
        return out

    def set(self, arr: Any, stream: Any = None) -> None:
        """Copy a host array of equal shape and type to the device."""
        if not isinstance(arr, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if arr.dtype != self.dtype:
            raise TypeError(f"{arr.dtype.name} array cannot be set to {self.dtype.name} array")
        if arr.shape != self.shape:
            raise ValueError(f"Shape mismatch. Old shape: {self.shape}, new shape: {arr.shape}")
        self.host[...] = arr
        left = left_poison(np.ascontiguousarray(arr).reshape(-1).view(np.uint8))
        self.wrote()
        if left is not None:
            self.wrote(left.reshape(*self.shape, -1).any(axis=-1), is_open=True)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "descr": self.dtype.descr,
            "stream": 1,
            "version": 3,
            "strides": None if self.flags.c_contiguous else self.strides,
            "data": (self.data.ptr if self.size else 0, False),
        }

    # -- facts ----------------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @shape.setter
    def shape(self, wanted: Any) -> None:
        view = self.host
        view.shape = wanted
        self._shape, self.strides = view.shape, view.strides

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def flags(self) -> Any:
        return self.host.flags

    @property
    def device(self) -> Any:
        return self.data.device

    # -- elements ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def item(self, *place: Any) -> Any:
        return self.host.item(*place)

    def tolist(self) -> Any:
        return self.host.tolist()

    def tobytes(self, order: Any = "C") -> bytes:
        return self.host.tobytes(order)

    def sort(self, axis: int = -1, kind: Any = None) -> None:
        self.host.sort(axis)
        self.wrote()

    def __reduce__(self) -> Any:
        return from_host, (self.get(),)

    # -- conversions to host values -----------------------------------------------------------------------------------

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. "
            "Please use `.get()` to construct a NumPy array explicitly."
        )

    def __getattr__(self, name: str) -> Any:
        raise refuse("cupy.ndarray", name)


def _of_host(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *how: function(self.host, *how)


for _function in (bool, int, float, complex, operator.index, repr, str, format):
    setattr(ndarray, f"__{_function.__name__}__", _of_host(_function))


def contiguous(shape: Sequence[int], itemsize: int, order: str) -> tuple[int, ...]:
    """Return the strides in bytes of a contiguous array: contiguous((2, 3), 4, "C") is (12, 4)."""
    extents = [max(each, 1) for each in shape]
    if order == "F":
        return tuple(itemsize * prod(extents[:axis]) for axis in range(len(extents)))
    return tuple(itemsize * prod(extents[axis + 1 :]) for axis in range(len(extents)))


def from_host(values: NDArray[Any]) -> ndarray:
    """Return a copy on the device, contiguous in the order of the host array."""
    order = "F" if values.flags.f_contiguous and not values.flags.c_contiguous else "C"
    kind = kind_of(values.dtype)
    flat = np.asarray(values, order=order).ravel(order="K")  # type: ignore[call-overload]
    pointer = MemoryPointer(Memory.of(np.ascontiguousarray(flat).view(np.uint8)), 0)
    return ndarray(values.shape, kind, pointer, contiguous(values.shape, kind.itemsize, order))


def view_at(address: int, view: NDArray[Any]) -> ndarray:
    """Return an array over device memory of which NumPy made a view."""
    memory = memory_at(address)
    return ndarray(view.shape, view.dtype, MemoryPointer(memory, address - memory.ptr), view.strides)


def of_interface(values: Any) -> ndarray:
    """Return an array over device memory of another package, from its __cuda_array_interface__."""
    said = values.__cuda_array_interface__
    kind, shape, address = kind_of(said["typestr"]), tuple(said["shape"]), int(said["data"][0])
    strides = said.get("strides") or contiguous(shape, kind.itemsize, "C")
    return ndarray(shape, kind, MemoryPointer(UnownedMemory(address, 0, values), 0), strides)
