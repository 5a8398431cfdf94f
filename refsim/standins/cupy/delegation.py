"""Functions of CuPy that NumPy answers: arrays of the device go in as NumPy sees them, what comes out is put on the device."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from refsim.standins.cupy.arrays import from_host, ndarray, view_at
from refsim.standins.cupy.names import COMPLEX_BITS, GIVEN_UP, RENAMED, SAME_BITS
from refsim.standins.session import current


def answer(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function returns, on the device; views of an argument's memory stay views, `out` is what is returned."""
    out = kwargs.get("out")
    with current().memory.alone(), wrapped_indices():
        flat = current().memory.memory.space.bytes
        found = function(*_inward(args), **{key: _inward(value) for key, value in kwargs.items()})
    _noted(name, (*args, *kwargs.values()), found)
    placed = _placed(found, flat)
    if (out is not None or not _is_view(placed)) and name != "ndarray.__getitem__":
        for each in args:
            if isinstance(each, ndarray):
                each.is_read(f"cupy.{name} reads")
    if out is not None:
        for each in out if isinstance(out, tuple) else (out,):
            if each is not None:
                each.wrote()
        return out
    return _outward(placed)


def changed(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A function that changes its first argument."""
    with current().memory.alone(), wrapped_indices():
        function(*_inward(args), **{key: _inward(value) for key, value in kwargs.items()})
    _noted(name, args, None)
    args[0].wrote()


def told(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function says of arrays, as it is."""
    return function(*_inward(args), **{key: _inward(value) for key, value in kwargs.items()})


def named(name: str) -> Any:
    """The function of CuPy that NumPy dispatches to."""
    return getattr(importlib.import_module("refsim.standins.cupy"), name)


@contextmanager
def wrapped_indices() -> Iterator[None]:
    """CuPy takes indices out of range from the other end, which is no answer of NumPy's."""
    try:
        yield
    except IndexError as error:
        if "out of bounds for axis" not in str(error) or "index" not in str(error):
            raise
        raise IndexError(f"{error}: CuPy would take such an index of an array from the other end") from error


def index_of(index: Any) -> Any:
    """An index as NumPy takes it."""
    return _inward(index)


def _inward(value: Any) -> Any:
    """Arrays as NumPy sees them, in tuples and lists too; an array of the host is no operand."""
    if isinstance(value, ndarray):
        return value.host
    if type(value) in (tuple, list):
        return type(value)(_inward(each) for each in value)
    if isinstance(value, Ufunc):
        return value.function
    return value


def refused_hosts(args: tuple[Any, ...]) -> None:
    """Arrays of the host are no operands of CuPy's: TypeError."""
    for value in args:
        if isinstance(value, np.ndarray) and value.ndim:
            raise TypeError(f"Unsupported type {type(value)}")


def _placed(found: Any, flat: Any) -> Any:
    """Results before any of them is put on the device: (address, view) where one lies there already."""
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
    """A result of NumPy's, and where it lies on the device, if it does."""

    def __init__(self, address: int | None, view: Any) -> None:
        self.address, self.view = address, view


def _is_view(placed: Any) -> bool:
    """Whether results lie in memory of arguments, of which nothing was read."""
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
    """The report says which functions of real numbers need not have the bits of CuPy's kernels."""
    if name.startswith("ndarray.") or name in COMPLEX_BITS:
        return
    arrays = ndarray | np.ndarray | np.generic  # not a type, which is an argument, too
    kinds = {np.dtype(each.dtype).kind for each in (*args, found) if isinstance(each, arrays)}
    if kinds & {"c"} or (kinds & {"f", "V"} and name not in SAME_BITS):
        current().answered_by_host(f"cupy.{name}")


class Ufunc:
    """A function of elements."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.name = name
        self.function = getattr(np, name)
        self.nin, self.nout, self.nargs = self.function.nin, self.function.nout, self.function.nargs
        self.types = self.function.types

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        refused_hosts(args)
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
    """Arguments by the names that NumPy has for them."""
    names = RENAMED.get(name, {})
    spelt = {names.get(key, key): value for key, value in kwargs.items()}
    return ((spelt.pop(""), *args), spelt) if "" in spelt else (args, spelt)


def function_of(name: str, module: Any, label: str = "") -> Callable[..., Any]:
    """A function of CuPy that is NumPy's of the same name, by a module of NumPy."""
    inner, said = getattr(module, GIVEN_UP.get(name, name)), label + name

    def call(*args: Any, **kwargs: Any) -> Any:
        refused_hosts(args)
        return answer(said, inner, *renamed(said, args, kwargs))

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"NumPy's {said}, of arrays on the device."
    return call
