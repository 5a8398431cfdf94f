"""Shared parts of CuPy's ElementwiseKernel and ReductionKernel: parsed parameters, and arrays as kernels see them."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from refsim.ptx.text.source_names import C_NAMES
from refsim.standins.cupy.arrays import contiguous, kind_of, ndarray
from refsim.standins.session import current

_C_TYPES = {**C_NAMES, "float16": "float16", "complex64": "complex<float>", "complex128": "complex<double>"}

_PRELUDE = """
#include <cuda_fp16.h>
struct float16 {  // computes in float, and is rounded where it is stored
    __half held_;
    __device__ float16() {}
    __device__ float16(float value) : held_(__float2half_rn(value)) {}
    __device__ operator float() const { return __half2float(held_); }
};
template <typename T, int D, bool DENSE>
struct Array {
    T *data_;
    long long size_, shape_[D], strides_[D];
    __device__ long long size() const { return size_; }
    __device__ const long long *shape() const { return shape_; }
    __device__ const long long *strides() const { return strides_; }
    __device__ T &operator[](long long i) const {
        if (DENSE)
            return data_[i];
        long long at = 0;
        for (int d = D - 1; d > 0; --d) {
            at += i % shape_[d] * strides_[d];
            i /= shape_[d];
        }
        return *(T *)((char *)data_ + at + i * strides_[0]);
    }
};
struct Indexer {
    long long size_;
    __device__ long long size() const { return size_; }
};
"""
"""`Array` finds an element by its position in C order, for any strides."""


def source_of(*parts: str) -> str:
    """Return a generated kernel's source: common types, complex numbers where used, and the given parts."""
    own = "\n".join(parts)
    return "\n".join((*(["#include <cupy/complex.cuh>"] if "complex<" in own else []), _PRELUDE, own))


@dataclass(frozen=True)
class Parameter:
    """A parameter such as `raw T x`: its type (one letter for any), its name, and whether the kernel indexes it."""

    kind: str
    name: str
    is_raw: bool = False

    @property
    def is_open(self) -> bool:
        return len(self.kind) == 1


def parameters(text: str) -> tuple[Parameter, ...]:
    """Return the parameters of a list: parameters("float32 x, raw T y")[1] is Parameter("T", "y", True)."""
    found = []
    for part in filter(None, map(str.strip, text.split(","))):
        *words, kind, name = ["", *part.split()] if len(part.split()) == 1 else part.split()
        if not kind or words not in ([], ["raw"]):
            raise ValueError(f"Invalid parameter: {part}" if kind else f"Syntax error: {part}")
        if name.startswith("_") or name in ("i", "n"):
            raise ValueError(f"Can not use {name!r} as a parameter name")
        if len(kind) > 1:
            kind = kind_of(kind).name
        found.append(Parameter(kind, name, bool(words)))
    return tuple(found)


def c_type(kind: np.dtype[Any], who: str) -> str:
    """Return a type's name in generated kernels; other types are refused."""
    if kind.name not in _C_TYPES:
        raise current().unsupported(f"{who} of {kind.name}")
    return _C_TYPES[kind.name]


def types_of(given: Sequence[tuple[Parameter, Any]]) -> dict[str, np.dtype[Any]]:
    """Return the types of one-letter parameters from their arrays, by letter; TypeError for a mismatch."""
    known: dict[str, np.dtype[Any]] = {}
    for parameter, value in given:
        if isinstance(value, ndarray):
            wanted = known.setdefault(parameter.kind, value.dtype) if parameter.is_open else np.dtype(parameter.kind)
            if value.dtype != wanted:
                raise TypeError(f"Type is mismatched. {parameter.name} {value.dtype} {wanted}")
    return known


def type_of(parameter: Parameter, known: dict[str, np.dtype[Any]]) -> np.dtype[Any]:
    """Return a parameter's type; TypeError where no array decides its letter."""
    if parameter.is_open and parameter.kind not in known:
        raise TypeError(f"Type of {parameter.name} is not known: no array has the type {parameter.kind}")
    return known[parameter.kind] if parameter.is_open else np.dtype(parameter.kind)


@dataclass(frozen=True)
class Seen:
    """An array as a kernel gets it: its type in C, its address, and its strides in bytes."""

    kind: str
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @property
    def is_dense(self) -> bool:
        return prod(self.shape) <= 1 or self.strides == contiguous(self.shape, self.itemsize, "C")

    @property
    def flat(self) -> "Seen":
        """Return a dense array with one axis."""
        return Seen(self.kind, self.address, (prod(self.shape),), (self.itemsize,), self.itemsize)

    @property
    def c_type(self) -> str:
        return f"Array<{self.kind}, {max(len(self.shape), 1)}, {str(self.is_dense).lower()}>"

    def packed(self) -> bytes:
        numbers = (self.address, prod(self.shape), *(self.shape or (1,)), *(self.strides or (0,)))
        return np.array(numbers, np.int64).tobytes()


def seen(array: ndarray, shape: tuple[int, ...], who: str, *, const: bool) -> Seen:
    """Return an array broadcast to a shape: axes that it lacks or that have one element get stride 0."""
    lacking = len(shape) - array.ndim
    axes = zip(shape[lacking:], array.shape, array.strides, strict=True)
    strides = (*(0,) * lacking, *(0 if have == 1 and want != 1 else step for want, have, step in axes))
    kind = f"{'const ' if const else ''}{c_type(array.dtype, who)}"
    return Seen(kind, array.data.ptr if array.size else 0, shape, strides, array.itemsize)


def checked(args: Sequence[Any]) -> None:
    """Raise TypeError unless all arguments are arrays of the device or numbers."""
    for value in args:
        if not isinstance(value, ndarray | np.generic | bool | int | float | complex):
            raise TypeError(f"Unsupported type {type(value)}")
