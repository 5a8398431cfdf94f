"""Elements and views of CuPy's arrays, and methods of `ndarray` that replace NumPy's."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.standins.cupy import delegation
from refsim.standins.cupy.arrays import kind_of, ndarray
from refsim.standins.session import current


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


for _name in (name for name, value in vars(Elements).items() if callable(value) or isinstance(value, property)):
    setattr(ndarray, _name, vars(Elements)[_name])
