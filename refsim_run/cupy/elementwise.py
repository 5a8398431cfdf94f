"""ElementwiseKernel of CuPy: a C++ operation in a loop over all elements, run as a RawKernel.

ReductionKernel shares its parsed parameters, and arrays as kernels see them.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from refsim.ptx.machine.launch_rules import LaunchRequest
from refsim.ptx.text.source_names import C_NAMES
from refsim_run.cupy.arrays import contiguous, kind_of, ndarray
from refsim_run.cupy.driver import as_cupy
from refsim_run.cupy.raw import ILLEGAL_ADDRESS, KernelSource
from refsim_run.seams import refusing
from refsim_run.session import current

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


_THREADS = 128
WHO = "cupy.ElementwiseKernel"


class ElementwiseKernel:
    """An operation for each element of arrays that are broadcast together; it indexes `raw` arrays itself."""

    def __init__(
        self,
        in_params: str,
        out_params: str,
        operation: str,
        name: str = "kernel",
        reduce_dims: bool = True,
        preamble: str = "",
        no_return: bool = False,
        return_tuple: bool = False,
        *,
        options: tuple[str, ...] = (),
        loop_prep: str = "",
        after_loop: str = "",
    ) -> None:
        """Store the expressions and parse the parameters; compilation waits for the first call."""
        self.in_params, self.out_params = parameters(in_params), parameters(out_params)
        self.params = (*self.in_params, *self.out_params)
        self.nin, self.nout = len(self.in_params), len(self.out_params)
        self.nargs, self.name, self.__name__ = self.nin + self.nout, name, name
        self.operation, self.preamble, self.options = operation, preamble, tuple(options)
        self.loop_prep, self.after_loop = loop_prep, after_loop
        self.no_return, self.return_tuple, self.reduce_dims = no_return, return_tuple, reduce_dims
        self._compiled: dict[str, KernelSource] = {}

    def __call__(
        self, *args: Any, size: int | None = None, stream: Any = None, block_size: int = _THREADS, out: Any = None
    ) -> Any:
        """Run the kernel and return its outputs, new arrays unless given; CuPy's checks of arguments apply."""
        if len(args) not in (self.nin, self.nargs):
            raise TypeError(
                f"Wrong number of arguments for '{self.name}'. It must be either {self.nin} or {self.nargs} (with outputs), "
                f"but given {len(args)}."
            )
        checked(args)
        given = list(zip(self.params, args, strict=False))
        known = types_of(given)
        shape = _loop(given, size)
        outputs = [value for _, value in given[self.nin :]]
        if not outputs:
            outputs = [self._output(parameter, shape, type_of(parameter, known)) for parameter in self.out_params]
        for parameter, value in zip(self.out_params, outputs, strict=True):
            if not parameter.is_raw and value.shape != shape:
                raise ValueError(f"Out shape is mismatched: {value.shape}, not {shape}")
        if prod(shape):
            self._run([*given[: self.nin], *zip(self.out_params, outputs, strict=True)], known, shape, block_size)
        if self.no_return:
            return None
        return outputs[0] if self.nout == 1 and not self.return_tuple else tuple(outputs)

    def _output(self, parameter: Parameter, shape: tuple[int, ...], kind: Any) -> ndarray:
        if parameter.is_raw:
            raise ValueError("Output array size is Undecided")
        return ndarray(shape, kind)

    def _run(
        self,
        given: Sequence[tuple[Parameter, Any]],
        known: dict[str, np.dtype[Any]],
        shape: tuple[int, ...],
        block: int,
    ) -> None:
        """Compile and launch the kernel for the types and layouts of its arguments."""
        views: dict[str, Seen] = {}
        for number, (parameter, value) in enumerate(given):
            if isinstance(value, ndarray):
                wanted = value.shape if parameter.is_raw else shape
                views[parameter.name] = seen(value, wanted, WHO, const=number < self.nin)
        looped = [views[parameter.name] for parameter, _ in given if parameter.name in views and not parameter.is_raw]
        if all(each.is_dense for each in looped):
            views |= {p.name: views[p.name].flat for p, _ in given if p.name in views and not p.is_raw}
        values, heads, names = [], [], []
        for number, (parameter, value) in enumerate(given):
            kind = type_of(parameter, known)
            view = views.get(parameter.name)
            values.append(view.packed() if view else np.asarray(value).astype(kind).tobytes())
            inner = parameter.name if parameter.is_raw or view is None else f"_{parameter.name}"
            heads.append(f"{view.c_type if view else f'const {c_type(kind, WHO)}'} {inner}")
            if view is not None and not parameter.is_raw:
                const = "const " if number < self.nin else ""
                names.append(f"{const}{c_type(kind, WHO)} &{parameter.name} = {inner}[i];")
        count = prod(shape)
        values.append(np.int64(count).tobytes())
        source = self._source([*heads, "Indexer _ind"], names, known)
        compiled = self._compiled.setdefault(source, KernelSource(source, self.options))
        launched(compiled, self.name, -(-count // block), block, values)

    def _source(self, heads: Sequence[str], names: Sequence[str], known: dict[str, np.dtype[Any]]) -> str:
        """Return the kernel's CUDA C++: `heads` declare parameters, `names` bind elements inside the loop."""
        return source_of(
            *(f"typedef {c_type(kind, WHO)} {letter};" for letter, kind in known.items()),
            self.preamble,
            f'extern "C" __global__ void {self.name}({", ".join(heads)}) {{',
            f"const long long n = _ind.size(); {self.loop_prep};",
            "const long long _step = (long long)gridDim.x * blockDim.x;",
            "for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += _step) {",
            *names,
            f'#line 1 "{self.name}"',
            f"{self.operation};",
            "}",
            f"{self.after_loop};",
            "}",
        )

    def __repr__(self) -> str:
        return f"<ElementwiseKernel '{self.name}'>"

    __getattr__ = refusing(WHO)


def launched(source: KernelSource, name: str, blocks: int, threads: int, values: Sequence[bytes]) -> None:
    """Run a generated kernel and print what its threads printed."""
    module = source.module()
    with as_cupy(*ILLEGAL_ADDRESS):
        printed = module.launch(LaunchRequest(source.entry(name), (blocks, 1, 1), (threads, 1, 1), list(values)))
    sys.stdout.write("".join(printed))


def _loop(given: Sequence[tuple[Parameter, Any]], size: int | None) -> tuple[int, ...]:
    """Return the loop's shape: the broadcast shape of the arrays, or (`size`,) where all are raw."""
    shapes = [value.shape for parameter, value in given if isinstance(value, ndarray) and not parameter.is_raw]
    if size is not None:
        if shapes:
            raise ValueError("Specified 'size' can be used only if all of the ndarray are 'raw'.")
        return (int(size),)
    if not shapes:
        raise ValueError("Loop size is undecided.")
    return np.broadcast_shapes(*shapes)
