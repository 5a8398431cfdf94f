"""Elements, views, operators and methods of CuPy's arrays, most of which NumPy computes."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.text.words import pairs_in
from refsim_run.cupy import delegation
from refsim_run.cupy.arrays import kind_of, ndarray
from refsim_run.seams import names_in
from refsim_run.session import current

_OPERATORS = pairs_in("""
    add:add sub:subtract mul:multiply truediv:true_divide floordiv:floor_divide mod:remainder pow:power
    lshift:left_shift rshift:right_shift and:bitwise_and or:bitwise_or xor:bitwise_xor matmul:matmul
""")
_COMPARISONS = pairs_in("""
    eq:equal ne:not_equal lt:less le:less_equal gt:greater ge:greater_equal
""")
_UNARY = pairs_in("""
    neg:negative pos:positive abs:absolute invert:invert
""")
_METHODS = names_in("""
    all any argmax argmin argpartition argsort choose clip compress conj conjugate cumprod cumsum diagonal dot flatten
    max mean min nonzero prod ravel repeat reshape round searchsorted squeeze std sum swapaxes take trace transpose
    var
""")


class Elements(ndarray):
    """The methods that are added to `ndarray`."""

    @property
    def T(self) -> "ndarray":  # noqa: N802 - NumPy's own name
        return self.transpose()  # type: ignore[no-any-return]

    @property
    def mT(self) -> Any:  # noqa: N802 - NumPy's own name
        return delegation.answer("ndarray.mT", lambda a: np.swapaxes(a, -1, -2), (self,), {})

    @property
    def real(self) -> Any:
        return delegation.answer("real", np.real, (self,), {})

    @real.setter
    def real(self, value: Any) -> None:
        self.real[...] = value

    @property
    def imag(self) -> Any:
        return delegation.answer("imag", np.imag, (self,), {})

    @imag.setter
    def imag(self, value: Any) -> None:
        self.imag[...] = value

    def __getitem__(self, index: Any) -> Any:
        return delegation.answer("ndarray.__getitem__", _element, (self, delegation.index_of(index)), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(value, np.ndarray) and value.ndim:
            raise TypeError(f"Unsupported type {type(value)}")
        place = delegation.index_of(index)
        with delegation.wrapped_indices():
            left = value.open_bytes() if isinstance(value, ndarray) else None
            self.host[place] = value.host.copy() if isinstance(value, ndarray) else value
        self.wrote(place)
        if left is not None:
            depends = np.zeros(self.shape, np.bool_)
            depends[place] = left.any(axis=-1)
            self.wrote(depends, is_open=True)

    def __iter__(self) -> Iterator[Any]:
        return (self[position] for position in range(len(self)))

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any())

    def fill(self, value: Any) -> None:
        self[...] = value

    def put(self, indices: Any, values: Any, mode: str = "wrap") -> None:
        delegation.changed("put", np.put, (self, indices, values), {"mode": mode})

    def view(self, dtype: Any = None, type: Any = None) -> Any:
        kind = self.dtype if dtype is None else kind_of(dtype)
        return delegation.answer("ndarray.view", lambda a: a.view(kind), (self,), {})

    def astype(self, dtype: Any, order: Any = "K", casting: Any = None, subok: Any = None, copy: bool = True) -> Any:
        """Return the array converted to another type; itself if `copy` is false and the type is equal."""
        kind = kind_of(dtype)
        if not copy and kind == self.dtype:
            return self
        rule: Any = "unsafe" if casting is None else casting
        return delegation.answer("astype", lambda a: a.astype(kind, order, rule), (self,), {})

    def copy(self, order: Any = "C") -> Any:
        return delegation.answer("copy", lambda a: a.copy(order), (self,), {})

    def __copy__(self) -> Any:
        return self.copy()

    def __deepcopy__(self, known: Any) -> Any:
        return self.copy()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if not method.startswith("__"):
            raise current().unsupported(f"cupy.{ufunc.__name__}.{method}")
        out = kwargs.pop("out", None)
        more = {} if out is None else {"out": out[0] if len(out) == 1 else out}
        return delegation.named(ufunc.__name__)(*inputs, **more, **kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return delegation.named(function.__name__)(*args, **kwargs)


def _element(view: NDArray[Any], index: Any) -> Any:
    return view[index]


def _is_operand(value: Any) -> bool:
    """Return whether a value is a number or an array of the device; TypeError for arrays of the host."""
    delegation.refused_hosts((value,))
    return isinstance(value, ndarray | np.generic | np.ndarray | bool | int | float | complex)


def _binary(name: str, way: str = "") -> Callable[..., Any]:
    """Return the method of an operator of two operands: on the left, on the right (`r`), or in place (`i`)."""
    function = getattr(np, name)

    def compute(self: ndarray, other: Any) -> Any:
        if not _is_operand(other):
            return NotImplemented
        pair = (other, self) if way == "r" else (self, other)
        return delegation.answer(name, function, pair, {"out": self} if way == "i" else {})

    return compute


def _unary(name: str) -> Callable[..., Any]:
    function = getattr(np, name)
    return lambda self: delegation.answer(name, function, (self,), {})


def _method(name: str) -> Callable[..., Any]:
    inner, said = getattr(np.ndarray, name), {"flatten": "copy"}.get(name, name)

    def method(self: ndarray, *args: Any, **kwargs: Any) -> Any:
        delegation.refused_hosts(args)
        if name == "dot" and "b" in kwargs:
            args = (kwargs.pop("b"), *args)
        return delegation.answer(said, inner, (self, *args), kwargs)

    method.__name__ = name
    return method


_ADDED = {
    **{name: value for name, value in vars(Elements).items() if callable(value) or isinstance(value, property)},
    **{f"__{way}{name}__": _binary(ufunc, way) for name, ufunc in _OPERATORS.items() for way in ("", "r", "i")},
    **{f"__{way}divmod__": _binary("divmod", way) for way in ("", "r")},
    **{f"__{name}__": _binary(ufunc) for name, ufunc in _COMPARISONS.items()},
    **{f"__{name}__": _unary(ufunc) for name, ufunc in _UNARY.items()},
    **{name: _method(name) for name in _METHODS},
}
for _name, _added in _ADDED.items():
    setattr(ndarray, _name, _added)
