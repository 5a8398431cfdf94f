"""ElementwiseKernel of CuPy: a C++ operation in a loop over all elements, run as a RawKernel."""

import sys
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from refsim.standins.cupy.arrays import ndarray
from refsim.standins.cupy.driver import as_cupy
from refsim.standins.cupy.generated import (
    Parameter,
    Seen,
    c_type,
    checked,
    parameters,
    seen,
    source_of,
    type_of,
    types_of,
)
from refsim.standins.cupy.raw import ILLEGAL_ADDRESS, KernelSource
from refsim.standins.seams import refusing

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
        printed = module.launch(source.entry(name), (blocks, 1, 1), (threads, 1, 1), list(values))
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
