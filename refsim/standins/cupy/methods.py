"""Operators and methods of CuPy's arrays that NumPy computes."""

from typing import Any

import numpy as np

from refsim.standins.cupy import delegation
from refsim.standins.cupy.arrays import ndarray
from refsim.standins.seams import names_in

_OPERATORS = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "true_divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "power",
    "lshift": "left_shift",
    "rshift": "right_shift",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "matmul": "matmul",
}
_COMPARISONS = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}
_UNARY = {"neg": "negative", "pos": "positive", "abs": "absolute", "invert": "invert"}
_METHODS = names_in("""
    all any argmax argmin argpartition argsort choose clip compress conj conjugate cumprod cumsum diagonal dot flatten
    max mean min nonzero prod ravel repeat reshape round searchsorted squeeze std sum swapaxes take trace transpose
    var
""")


def _is_operand(value: Any) -> bool:
    """Return whether a value is a number or an array of the device; TypeError for arrays of the host."""
    delegation.refused_hosts((value,))
    return isinstance(value, ndarray | np.generic | np.ndarray | bool | int | float | complex)


def _operator(name: str) -> None:
    """Add a binary operator to `ndarray`: on the left, on the right, and in place."""
    function = getattr(np, _OPERATORS[name])

    def left(self: ndarray, other: Any) -> Any:
        return (
            delegation.answer(_OPERATORS[name], function, (self, other), {}) if _is_operand(other) else NotImplemented
        )

    def right(self: ndarray, other: Any) -> Any:
        return (
            delegation.answer(_OPERATORS[name], function, (other, self), {}) if _is_operand(other) else NotImplemented
        )

    def in_place(self: ndarray, other: Any) -> Any:
        if not _is_operand(other):
            return NotImplemented
        return delegation.answer(_OPERATORS[name], function, (self, other), {"out": self})

    for prefix, made in (("", left), ("r", right), ("i", in_place)):
        setattr(ndarray, f"__{prefix}{name}__", made)


def _comparison(name: str) -> None:
    function = getattr(np, _COMPARISONS[name])

    def compare(self: ndarray, other: Any) -> Any:
        if not _is_operand(other):
            return NotImplemented
        return delegation.answer(_COMPARISONS[name], function, (self, other), {})

    setattr(ndarray, f"__{name}__", compare)


def _unary(name: str) -> None:
    function = getattr(np, _UNARY[name])

    def one(self: ndarray) -> Any:
        return delegation.answer(_UNARY[name], function, (self,), {})

    setattr(ndarray, f"__{name}__", one)


def _method(name: str) -> None:
    inner, said = getattr(np.ndarray, name), {"flatten": "copy"}.get(name, name)

    def method(self: ndarray, *args: Any, **kwargs: Any) -> Any:
        delegation.refused_hosts(args)
        if name == "dot" and "b" in kwargs:
            args = (kwargs.pop("b"), *args)
        return delegation.answer(said, inner, (self, *args), kwargs)

    method.__name__ = name
    setattr(ndarray, name, method)


def _divmod(self: ndarray, other: Any) -> Any:
    return delegation.answer("divmod", np.divmod, (self, other), {}) if _is_operand(other) else NotImplemented


def _rdivmod(self: ndarray, other: Any) -> Any:
    return delegation.answer("divmod", np.divmod, (other, self), {}) if _is_operand(other) else NotImplemented


for _names, _make in ((_OPERATORS, _operator), (_COMPARISONS, _comparison), (_UNARY, _unary), (_METHODS, _method)):
    for _name in _names:
        _make(_name)
for _name, _made in (("divmod", _divmod), ("rdivmod", _rdivmod)):
    setattr(ndarray, f"__{_name}__", _made)
