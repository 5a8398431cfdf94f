"""pycuda.elementwise on the simulated GPU: an operation in CUDA C++ is compiled in a loop over all elements."""

import re
from typing import Any

import numpy as np

from refsim.ptx.text.source_names import code_of, declared_type
from refsim_run.complex_numbers import including_complex
from refsim_run.pycuda.arrays import GPUArray
from refsim_run.pycuda.compiler import SourceModule
from refsim_run.pycuda.context import LogicError
from refsim_run.seams import refusing
from refsim_run.session import current

__getattr__ = refusing("pycuda.elementwise")
_THREADS = 128


class PycudaElementwise:
    """A kernel that runs `operation` for each i below the first array's size; `arguments` are C++ declarations."""

    def __init__(
        self,
        arguments: str,
        operation: str,
        name: str = "kernel",
        keep: bool = False,
        options: Any = None,
        *,
        preamble: str = "",
        loop_prep: str = "",
        after_loop: str = "",
        **more: Any,
    ) -> None:
        """Compile the kernel; options of PyCUDA that are not simulated are refused by name."""
        if more:
            raise current().unsupported(f"pycuda.elementwise.ElementwiseKernel with {', '.join(more)}")
        self.arguments = declared_types(arguments)
        source = "\n".join(
            (
                preamble,
                f"__global__ void {name}({arguments}, long n) {{",
                "unsigned tid = threadIdx.x, total_threads = gridDim.x * blockDim.x, cta_start = blockDim.x * blockIdx.x, i;",
                f"{loop_prep};",
                "for (i = cta_start + tid; i < n; i += total_threads) {",
                f'#line 1 "{name}"',
                f"{operation};",
                "}",
                f"{after_loop};",
                "}",
            )
        )
        self._function = SourceModule(including_complex(source), options=options, keep=keep).get_function(name)

    def __call__(self, *args: Any, range: Any = None, slice: Any = None, stream: Any = None) -> None:
        if range is not None or slice is not None:
            raise current().unsupported("pycuda.elementwise.ElementwiseKernel with range or slice")
        given, arrays = scalars(self.arguments, args)
        if count := arrays[0].size:
            grid = (min(-(-count // _THREADS), 65535), 1)
            self._function(*given, np.int64(count), grid=grid, block=(_THREADS, 1, 1), stream=stream)


ElementwiseKernel = PycudaElementwise


def declared_types(arguments: str) -> "list[np.dtype[Any] | None]":
    """Return the types of a kernel's arguments, declared as in C++; None for a pointer."""
    found = [_argument(each) for each in arguments.split(",")]
    if None not in found:
        raise RuntimeError("a kernel around an expression has at least one vector argument")
    return found


def scalars(kinds: "list[np.dtype[Any] | None]", args: tuple[Any, ...]) -> tuple[list[Any], list[GPUArray]]:
    """Return the arguments, with numbers in their declared types, and the arrays among the arguments."""
    if len(args) != len(kinds):
        raise LogicError(f"{len(args)} arguments where {len(kinds)} were declared")
    pairs = list(zip(kinds, args, strict=True))
    given = [value if kind is None or isinstance(value, np.generic) else np.array(value, kind) for kind, value in pairs]
    arrays = [value for kind, value in pairs if kind is None and isinstance(value, GPUArray)]
    if not arrays:
        raise LogicError("no array of the device is among the arguments")
    return given, arrays


def _argument(declared: str) -> "np.dtype[Any] | None":
    """Return the type of a number declared as in C++; None for a pointer."""
    if "*" in declared or "[" in declared:
        return None
    parts = re.search(r"complex\s*<\s*(float|double)", declared)
    code = {"float": "c8", "double": "c16"}[parts[1]] if parts else code_of(declared_type(declared))
    if code[:1] not in tuple("biufc"):
        raise current().unsupported("pycuda.elementwise.ElementwiseKernel", f"with an argument {declared.strip()!r}")
    return np.dtype(code)
