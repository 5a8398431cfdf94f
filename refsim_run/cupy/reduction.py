"""ReductionKernel of CuPy: a loop around C++ expressions, with one block of threads per output.

The order of sums differs from CuPy's: the report counts reductions of floating-point numbers.
"""

from math import prod
from typing import Any

import numpy as np

from refsim_run.cupy.arrays import kind_of, ndarray
from refsim_run.cupy.elementwise import (
    Seen,
    c_type,
    checked,
    launched,
    parameters,
    seen,
    source_of,
    type_of,
    types_of,
)
from refsim_run.cupy.raw import KernelSource
from refsim_run.seams import refusing
from refsim_run.session import current

_THREADS = 256
WHO = "cupy.ReductionKernel"


class ReductionKernel:
    """Applies `map_expr` to each element, combines pairs (a, b) by `reduce_expr`, then applies `post_map_expr` to
    the result a."""

    def __init__(
        self,
        in_params: str,
        out_params: str,
        map_expr: str,
        reduce_expr: str,
        post_map_expr: str,
        identity: Any,
        name: str = "reduce_kernel",
        reduce_type: str | None = None,
        reduce_dims: bool = True,
        preamble: str = "",
        options: tuple[str, ...] = (),
    ) -> None:
        """Store the expressions and parse the parameters; raw parameters and several outputs are refused."""
        self.in_params, self.out_params = parameters(in_params), parameters(out_params)
        if len(self.out_params) != 1 or any(each.is_raw for each in (*self.in_params, *self.out_params)):
            raise current().unsupported(WHO, "with raw parameters, or with another number of outputs than one")
        self.map_expr, self.reduce_expr, self.post_map_expr = map_expr, reduce_expr, post_map_expr
        self.identity = None if identity is None or identity == "" else str(identity)
        self.nin, self.nout, self.nargs = len(self.in_params), 1, len(self.in_params) + 1
        self.name, self.__name__, self.preamble, self.options = name, name, preamble, tuple(options)
        self.reduce_type = reduce_type
        self._compiled: dict[str, KernelSource] = {}

    def __call__(
        self, *args: Any, out: Any = None, axis: Any = None, keepdims: bool = False, stream: Any = None
    ) -> Any:
        """Reduce over `axis` and return the output, new unless given; ValueError for no elements without identity."""
        if len(args) not in (self.nin, self.nargs):
            raise TypeError(f"Wrong number of arguments for '{self.name}': {self.nin} or {self.nargs}, not {len(args)}")
        out = args[self.nin] if len(args) > self.nin else out
        args = args[: self.nin]
        checked(args)
        given = list(zip(self.in_params, args, strict=True))
        into = self.out_params[0]
        known = types_of([*given, (into, out)])
        shape = np.broadcast_shapes(*(value.shape for value in args if isinstance(value, ndarray)))
        reduced = _axes(axis, len(shape))
        kept = tuple(number for number in range(len(shape)) if number not in reduced)
        inner, outer = prod(shape[each] for each in reduced), tuple(shape[each] for each in kept)
        if not inner and self.identity is None:
            raise ValueError(f"zero-size array to reduction operation {self.name} which has no identity")
        wanted = tuple(1 if each in reduced else size for each, size in enumerate(shape)) if keepdims else outer
        made = ndarray(wanted, type_of(into, known)) if out is None else out
        if made.shape != wanted:
            raise ValueError(f"Out shape is mismatched: {made.shape}, not {wanted}")
        order = (*kept, *reduced)
        if made.size:
            views = [
                _turned(seen(value, shape, WHO, const=True), order) if isinstance(value, ndarray) else value
                for value in args
            ]
            self._run(views, seen(made, wanted, WHO, const=False), known, inner)
        return made

    def _run(self, args: list[Any], out: Seen, known: dict[str, np.dtype[Any]], inner: int) -> None:
        """Compile and launch the kernel: `inner` elements for each element of `out`."""
        into, values, heads, names = self.out_params[0], [], [], []
        for parameter, value in zip(self.in_params, args, strict=True):
            kind = type_of(parameter, known)
            is_array = isinstance(value, Seen)
            values.append(value.packed() if is_array else np.asarray(value).astype(kind).tobytes())
            heads.append(
                f"{value.c_type if is_array else f'const {c_type(kind, WHO)}'} {'_' * is_array}{parameter.name}"
            )
            if is_array:
                names.append(f"const {c_type(kind, WHO)} &{parameter.name} = _{parameter.name}[_o * _inner + _j];")
        kind = np.dtype(type_of(into, known))
        sums = self._sum_type(known, c_type(kind, WHO))
        source = self._source([*heads, f"{out.c_type} _out", "long long _inner"], names, known, sums)
        outputs = prod(out.shape)
        if kind.kind == "f":
            current().answered_by_host(f"{WHO} {self.name}, in an order of its own")
        compiled = self._compiled.setdefault(source, KernelSource(source, self.options))
        launched(compiled, self.name, outputs, _THREADS, [*values, out.packed(), np.int64(inner).tobytes()])

    def _sum_type(self, known: dict[str, np.dtype[Any]], of_output: str) -> str:
        """Return the C++ type of the reduction, by default the output's."""
        if self.reduce_type is None:
            return of_output
        if len(self.reduce_type) == 1:
            return c_type(known[self.reduce_type], WHO)
        try:
            return c_type(kind_of(self.reduce_type), WHO)
        except TypeError:  # a type of C++
            return self.reduce_type

    def _source(self, heads: list[str], names: list[str], known: dict[str, np.dtype[Any]], sums: str) -> str:
        """Return the kernel's CUDA C++ from declarations, lines that bind elements, and the type of sums."""
        into, out = self.out_params[0], "_out[_o]"
        first = f"_type_reduce({self.identity})" if self.identity is not None else "_type_reduce()"
        has_first = str(self.identity is not None).lower()
        return source_of(
            *(f"typedef {c_type(kind, WHO)} {letter};" for letter, kind in known.items()),
            f"typedef {sums} _type_reduce;",
            self.preamble,
            "__device__ _type_reduce _reduced(const _type_reduce &a, const _type_reduce &b) {",
            f'#line 1 "{self.name}"',
            f"return ({self.reduce_expr}); }}",
            f'extern "C" __global__ void {self.name}({", ".join(heads)}) {{',
            f"__shared__ __align__(16) unsigned char _room[{_THREADS} * sizeof(_type_reduce)];",
            "_type_reduce *_sums = reinterpret_cast<_type_reduce *>(_room);",
            f"const long long _o = blockIdx.x; _type_reduce _sum = {first}; bool _has = {has_first};",
            f"for (long long _j = threadIdx.x; _j < _inner; _j += {_THREADS}) {{",
            *names,
            f'#line 1 "{self.name}"',
            f"const _type_reduce _mapped = static_cast<_type_reduce>({self.map_expr});",
            "_sum = _has ? _reduced(_sum, _mapped) : _mapped; _has = true; }",
            "_sums[threadIdx.x] = _sum; __syncthreads();",
            f"const int _used = {'_inner < ' + str(_THREADS) + ' ? (int)_inner : ' + str(_THREADS)};",
            f"for (int _half = {_THREADS // 2}; _half; _half >>= 1) {{",
            "if (threadIdx.x < _half && threadIdx.x + _half < _used)",
            "_sums[threadIdx.x] = _reduced(_sums[threadIdx.x], _sums[threadIdx.x + _half]);",
            "__syncthreads(); }",
            "if (!threadIdx.x) {",
            f"_type_reduce &a = _sums[0]; auto &{into.name} = {out};",
            f'#line 1 "{self.name}"',
            f"{self.post_map_expr}; }}",
            "}",
        )

    def __repr__(self) -> str:
        return f"<ReductionKernel '{self.name}'>"

    __getattr__ = refusing(WHO)


def _axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return the reduced axes in order; numpy.exceptions.AxisError for an axis that does not exist."""
    if axis is None:
        return tuple(range(ndim))
    return tuple(sorted(np.lib.array_utils.normalize_axis_tuple(axis, ndim)))


def _turned(view: Seen, order: tuple[int, ...]) -> Seen:
    """Return an array with its axes in another order."""
    shape, strides = (tuple(each[axis] for axis in order) for each in (view.shape, view.strides))
    return Seen(view.kind, view.address, shape, strides, view.itemsize)
