"""CUDA's vector types as NumPy types with fields x, y, z, w: float3, int4 and the others."""

from collections.abc import Callable
from typing import Any

import numpy as np

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
