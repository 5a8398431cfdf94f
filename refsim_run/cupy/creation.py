"""Functions of CuPy that make arrays: empty ones, copies of host arrays, and views of other packages' memory."""

from typing import Any

import numpy as np

from refsim_run.cupy.arrays import from_host, kind_of, ndarray, of_interface


def empty(shape: Any, dtype: Any = float, order: Any = "C") -> ndarray:
    """Return an uninitialized array; a kernel that reads it before a write is reported."""
    return ndarray(shape, dtype, order=order)


def empty_like(prototype: Any, dtype: Any = None, order: Any = "K", subok: Any = None, shape: Any = None) -> ndarray:
    """Return an uninitialized array with the shape, type and order of `prototype`, unless given."""
    kind = prototype.dtype if dtype is None else dtype
    wanted = prototype.shape if shape is None else shape
    flags = prototype.flags
    is_fortran = order == "F" or (order in ("K", "A") and flags.f_contiguous and not flags.c_contiguous)
    return ndarray(wanted, kind, order="F" if is_fortran else "C")


def full_like(
    a: Any, fill_value: Any, dtype: Any = None, order: Any = "K", subok: Any = None, shape: Any = None
) -> ndarray:
    """Return an array with the shape and type of `a`, filled with one value."""
    made = empty_like(a, dtype, order, subok, shape)
    made.fill(fill_value)
    return made


def zeros_like(a: Any, dtype: Any = None, order: Any = "K", subok: Any = None, shape: Any = None) -> ndarray:
    return full_like(a, 0, dtype, order, subok, shape)


def ones_like(a: Any, dtype: Any = None, order: Any = "K", subok: Any = None, shape: Any = None) -> ndarray:
    return full_like(a, 1, dtype, order, subok, shape)


def array(
    obj: Any,
    dtype: Any = None,
    copy: Any = True,
    order: Any = "K",
    subok: bool = False,
    ndmin: int = 0,
    *,
    blocking: bool = False,
) -> ndarray:
    """Return an array of the device: `obj` itself without `copy`, a view of __cuda_array_interface__, else a copy."""
    if not isinstance(obj, ndarray) and hasattr(obj, "__cuda_array_interface__"):
        obj = of_interface(obj)
    if isinstance(obj, ndarray):
        is_same = dtype is None or kind_of(dtype) == obj.dtype
        if not copy and is_same and obj.ndim >= ndmin and order in ("K", "A", None):
            return obj
        source = obj.host
    else:
        source = np.asarray(_on_host(obj))
    kind = source.dtype if dtype is None else dtype
    return from_host(np.array(source, kind_of(kind), order=order or "K", ndmin=ndmin))


def _on_host(values: Any) -> Any:
    """Return nested lists with arrays of the device replaced by NumPy arrays."""
    if isinstance(values, ndarray):
        return values.host
    if isinstance(values, list | tuple):
        return [_on_host(each) for each in values]
    return values


def asarray(a: Any, dtype: Any = None, order: Any = None, *, copy: Any = None, blocking: bool = False) -> ndarray:
    return array(a, dtype, bool(copy), order)


asanyarray = asarray


def ascontiguousarray(a: Any, dtype: Any = None) -> ndarray:
    made = asarray(a, dtype)
    return made if made.flags.c_contiguous and made.ndim else from_host(np.ascontiguousarray(made.host))


def asfortranarray(a: Any, dtype: Any = None) -> ndarray:
    made = asarray(a, dtype)
    return made if made.flags.f_contiguous else from_host(np.asfortranarray(made.host))


def asnumpy(a: Any, stream: Any = None, order: Any = "C", out: Any = None, *, blocking: bool = True) -> Any:
    """Return a copy on the host; a host array is returned as it is."""
    if not isinstance(a, ndarray) and hasattr(a, "__cuda_array_interface__"):
        a = of_interface(a)
    if isinstance(a, ndarray):
        return a.get(stream, order, out)
    made = np.asarray(a, order=order)
    if out is None:
        return made
    out[...] = made
    return out


def copy(a: Any, order: Any = "K") -> ndarray:
    return array(a, copy=True, order=order)


def get_array_module(*args: Any) -> Any:
    """Return cupy if any argument is an array of the device, else numpy."""
    import importlib

    is_ours = any(isinstance(each, ndarray) for each in args)
    return importlib.import_module("refsim_run.cupy") if is_ours else np
