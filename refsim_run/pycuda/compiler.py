"""pycuda.compiler on the simulated GPU: NVRTC compiles CUDA C++, and the simulator runs its PTX."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from refsim.device.compile import compiled
from refsim.errors import Kind, RefsimError
from refsim.kernel_code import KernelCode
from refsim_run.complex_numbers import with_complex
from refsim_run.pycuda.driver import CompileError, Function, Module, module_from_buffer
from refsim_run.seams import names_in, refusing
from refsim_run.session import current

__getattr__ = refusing("pycuda.compiler")
DEFAULT_NVCC_FLAGS: list[str] = []
_OF_OTHERS = re.compile(
    r"-O\d|-m64|-w$|-Xcompiler[=,]|-Xptxas[=,]|--(optimize|ptxas-options|compiler-options|compiler-bindir)=|-ccbin="
)
_OF_OTHERS_WITH_A_VALUE = names_in("""
    -Xcompiler -Xptxas -ccbin -O --ptxas-options --compiler-options --compiler-bindir
""")


class SourceModule:
    """A module of CUDA C++, wrapped in extern "C" as PyCUDA wraps it; line numbers are the program's own."""

    def __init__(
        self,
        source: str,
        nvcc: str = "nvcc",
        options: Sequence[str] | None = None,
        keep: bool = False,
        no_extern_c: bool = False,
        arch: str | None = None,
        code: str | None = None,
        cache_dir: Any = None,
        include_dirs: Sequence[str] = (),
    ) -> None:
        """Compile and load a source; CompileError with NVRTC's log. Options of nvcc's run have no effect."""
        text = ptx(source, options, no_extern_c, arch, include_dirs)
        self.module: Module = module_from_buffer(text)
        self.module._loaded.source = source
        self.get_global = self.module.get_global

    def get_function(self, name: str) -> Function:
        return self.module.get_function(name)

    __getattr__ = refusing("pycuda.compiler.SourceModule")


def ptx(
    source: str,
    options: Sequence[str] | None = None,
    no_extern_c: bool = False,
    arch: str | None = None,
    include_dirs: Sequence[str] = (),
) -> str:
    """Return the PTX of a source for the run's target, or for `arch`; CompileError with NVRTC's log."""
    text = with_complex(source if no_extern_c else f'extern "C" {{\n#line 1\n{source}\n}}\n')
    flags = of_device(DEFAULT_NVCC_FLAGS if options is None else options)
    code = KernelCode(source=text, options=flags, include=tuple(map(Path, include_dirs)))
    try:
        return compiled(code, arch or current().target).text
    except RefsimError as error:
        if error.kind is Kind.MISSING:
            raise
        raise CompileError("nvcc compilation of a source failed", ["nvrtc", *flags], stderr=str(error)) from error


def of_device(options: Sequence[str]) -> tuple[str, ...]:
    """Return nvcc's flags without flags for ptxas and the host's compiler, which do not change PTX."""
    found, rest = [], iter(map(str, options))
    for flag in rest:
        if flag in _OF_OTHERS_WITH_A_VALUE:
            next(rest, None)
        elif not _OF_OTHERS.match(flag):
            found.append(flag)
    return tuple(found)
