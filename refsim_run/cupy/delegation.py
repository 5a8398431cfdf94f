"""Functions of CuPy that NumPy computes: arrays go in as NumPy sees them, results are put on the device."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim_run.cupy.arrays import from_host, ndarray, view_at
from refsim_run.cupy.names import COMPLEX_BITS, GIVEN_UP, RENAMED, SAME_BITS
from refsim_run.session import current


def answer(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a NumPy function's result on the device; views of an argument stay views, and `out` is returned itself.

    Elements of the result that depend on uninitialized bytes are uninitialized too.
    """
    out = kwargs.get("out")
    with current().memory.alone(), wrapped_indices():
        flat = current().memory.memory.space.bytes
        depends = _dependent(function, args, kwargs, flat)
        found = function(*_inward(args), **{key: _inward(value) for key, value in kwargs.items()})
    _noted(name, (*args, *kwargs.values()), found)
    if any(each.any() for each in depends) and name != "ndarray.__getitem__":
        for each in args:
            if isinstance(each, ndarray):
                each.is_read(f"cupy.{name} reads")
    if out is not None:
        for each in out if isinstance(out, tuple) else (out,):
            if each is not None:
                each.wrote()
        made = out
    else:
        made = _outward(_placed(found, flat))
    for each, mask in zip(made if isinstance(made, tuple | list) else [made], depends, strict=False):
        if mask.any() and isinstance(each, ndarray):
            each.wrote(np.broadcast_to(mask, each.shape), is_open=True)
    return made


def _dependent(function: Callable[..., Any], args: Any, kwargs: dict[str, Any], flat: Any) -> list[NDArray[np.bool_]]:
    """Return for each result of a function which elements depend on uninitialized bytes, [] where there are none.

    The function runs twice, the second time with these bytes inverted.
    """
    if kwargs.get("where", True) is not True or not _has_open((args, list(kwargs.values()))):
        return []
    more = {key: value for key, value in kwargs.items() if key != "out"}
    found = []
    for seen in (_host, partial(_copied, is_inverted=False), partial(_copied, is_inverted=True)):
        found.append(function(*_inward(args, seen), **{key: _inward(value, seen) for key, value in more.items()}))
        if _is_view(_placed(found[0], flat)):
            return []
    pairs = zip(*found[1:], strict=True) if isinstance(found[1], tuple | list) else [found[1:]]
    return [_differs(np.asarray(one), np.asarray(other)) for one, other in pairs]


def _has_open(value: Any) -> bool:
    """Return whether an array of the device has uninitialized bytes, also inside tuples and lists."""
    if isinstance(value, tuple | list):
        return any(map(_has_open, value))
    return isinstance(value, ndarray) and value.open_bytes() is not None


def _copied(array: ndarray, *, is_inverted: bool) -> NDArray[Any]:
    """Return a copy on the host, if asked with inverted uninitialized bytes: what depends on them changes."""
    held, marks = np.array(array.host, order="C"), array.open_bytes()
    if is_inverted and marks is not None:
        held.reshape(*held.shape, 1).view(np.uint8)[marks] ^= 0xFF
    return held


def _differs(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which elements differ in their bits; all, where the shapes differ."""
    if one.shape != other.shape:
        return np.ones(one.shape, np.bool_)
    first, second = (np.array(each, order="C").reshape(*each.shape, 1).view(np.uint8) for each in (one, other))
    return np.asarray((first != second).any(axis=-1))


def changed(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Call a NumPy function that changes its first argument in place."""
    with current().memory.alone(), wrapped_indices():
        function(*_inward(args), **{key: _inward(value) for key, value in kwargs.items()})
    _noted(name, args, None)
    args[0].wrote()


def told(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a NumPy function's result about arrays unchanged, such as a number or a type."""
    return function(*_inward(args), **{key: _inward(value) for key, value in kwargs.items()})


def named(name: str) -> Any:
    """Return the function of CuPy that NumPy dispatches to."""
    return getattr(importlib.import_module("refsim_run.cupy"), name)


@contextmanager
def wrapped_indices() -> Iterator[None]:
    """Raise IndexError with a note that CuPy wraps indices out of range, where NumPy raises."""
    try:
        yield
    except IndexError as error:
        if "out of bounds for axis" not in str(error) or "index" not in str(error):
            raise
        raise IndexError(f"{error}: CuPy would take such an index of an array from the other end") from error


def index_of(index: Any) -> Any:
    """Return an index as NumPy takes it."""
    return _inward(index)


def _host(array: ndarray) -> NDArray[Any]:
    return array.host


def _inward(value: Any, seen: Callable[[ndarray], NDArray[Any]] = _host) -> Any:
    """Return arrays of the device as NumPy arrays, as `seen` does, also in tuples and lists; other values stay."""
    if isinstance(value, ndarray):
        return seen(value)
    if type(value) in (tuple, list):
        return type(value)(_inward(each, seen) for each in value)
    if isinstance(value, Ufunc):
        return value.function
    return value


def refused_hosts(args: tuple[Any, ...]) -> None:
    """Raise TypeError if an argument is an array of the host, as CuPy does."""
    for value in args:
        if isinstance(value, np.ndarray) and value.ndim:
            raise TypeError(f"Unsupported type {type(value)}")


def _placed(found: Any, flat: Any) -> Any:
    """Return results with each array as a `_Place`, before any is copied to the device."""
    if isinstance(found, tuple | list):
        parts = [_placed(each, flat) for each in found]
        made = type(found)
        return made(*parts) if hasattr(found, "_fields") else made(parts)
    if not isinstance(found, np.ndarray | np.generic | bool | int):
        return found
    view = np.asarray(found)
    start, end = flat.ctypes.data, flat.ctypes.data + flat.nbytes
    if view.size and isinstance(found, np.ndarray) and start <= view.ctypes.data < end:
        return _Place(view.ctypes.data - start + current().memory.memory.space.base, view)
    return _Place(None, view)


class _Place:
    """A result of NumPy, and its device address if it lies in device memory."""

    def __init__(self, address: int | None, view: Any) -> None:
        self.address, self.view = address, view


def _is_view(placed: Any) -> bool:
    """Return whether all results are views of arguments' memory, so that no element was read."""
    if isinstance(placed, tuple | list):
        return all(map(_is_view, placed))
    return isinstance(placed, _Place) and placed.address is not None


def _outward(placed: Any) -> Any:
    if isinstance(placed, _Place):
        return from_host(placed.view) if placed.address is None else view_at(placed.address, placed.view)
    if isinstance(placed, tuple | list):
        parts = [_outward(each) for each in placed]
        made = type(placed)
        return made(*parts) if hasattr(placed, "_fields") else made(parts)
    return placed


def _noted(name: str, args: Any, found: Any) -> None:
    """Count a function of real numbers in the report if its bits may differ from the bits of CuPy's kernels."""
    if name.startswith("ndarray.") or name in COMPLEX_BITS:
        return
    arrays = ndarray | np.ndarray | np.generic  # an argument may also be a type, which does not count
    kinds = {np.dtype(each.dtype).kind for each in (*args, found) if isinstance(each, arrays)}
    if kinds & {"c"} or (kinds & {"f", "V"} and name not in SAME_BITS):
        current().answered_by_host(f"cupy.{name}")


class Ufunc:
    """A function of CuPy that NumPy computes for each element."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.name = name
        self.function = getattr(np, name)
        self.nin, self.nout, self.nargs = self.function.nin, self.function.nout, self.function.nargs
        self.types = self.function.types

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        refused_hosts(args)
        args, out = args[: self.nin], args[self.nin :]
        if out:
            kwargs["out"] = out if self.nout > 1 else out[0]
        return answer(self.name, self.function, args, kwargs)

    def outer(self, a: Any, b: Any, **kwargs: Any) -> Any:
        return answer(self.name, self.function.outer, (a, b), kwargs)

    def reduce(self, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        more = {"axis": axis, "dtype": dtype, "out": out, "keepdims": keepdims}
        return answer(f"{self.name}.reduce", self.function.reduce, (array,), more)

    def accumulate(self, array: Any, axis: int = 0, dtype: Any = None, out: Any = None) -> Any:
        return answer(
            f"{self.name}.accumulate", self.function.accumulate, (array,), {"axis": axis, "dtype": dtype, "out": out}
        )

    def at(self, a: Any, indices: Any, b: Any = None) -> None:
        changed(f"{self.name}.at", self.function.at, (a, indices) if b is None else (a, indices, b), {})

    def __repr__(self) -> str:
        return f"<ufunc 'cupy_{self.name}'>"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name) if name.startswith("_") else current().unsupported(f"cupy.{self.name}.{name}")


def renamed(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments with NumPy's names in place of CuPy's."""
    names = RENAMED.get(name, {})
    spelt = {names.get(key, key): value for key, value in kwargs.items()}
    return ((spelt.pop(""), *args), spelt) if "" in spelt else (args, spelt)


def function_of(name: str, module: Any, label: str = "") -> Callable[..., Any]:
    """Return a function of CuPy that NumPy's function of that name computes; `module` is NumPy's."""
    inner, said = getattr(module, GIVEN_UP.get(name, name)), label + name

    def call(*args: Any, **kwargs: Any) -> Any:
        refused_hosts(args)
        return answer(said, inner, *renamed(said, args, kwargs))

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"NumPy's {said}, of arrays on the device."
    return call
