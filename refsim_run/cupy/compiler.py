"""cupy.cuda.compiler on the simulated GPU: NVRTC compiles CUDA C++, and the simulator runs its PTX."""

from collections.abc import Sequence

from refsim.errors import Kind, RefsimError
from refsim.kernel_code import COMPILERS
from refsim.targets import target_named
from refsim_run.complex_numbers import with_complex
from refsim_run.seams import refusing
from refsim_run.session import current

__getattr__ = refusing("cupy.cuda.compiler")


class CompileException(Exception):  # noqa: N818 - CuPy's own name
    """CUDA C++ that does not compile; `get_message` returns the compiler's log."""

    def __init__(self, msg: str, source: str, name: str, options: Sequence[str], backend: str = "nvrtc") -> None:
        super().__init__(msg)
        self._msg, self.source, self.name, self.options, self.backend = msg, source, name, options, backend

    def get_message(self) -> str:
        return self._msg

    def __str__(self) -> str:
        return self._msg


def ptx_of(source: str, options: Sequence[str], backend: str, entries: Sequence[str] = ()) -> str:
    """Return the PTX of a source for the GPU as CuPy names it: sm_90 where the run's target is sm_90a."""
    if backend not in COMPILERS:
        raise ValueError(f"Invalid backend {backend!r}: nvrtc or nvcc")
    plain = f"sm_{target_named(current().target).number}"
    try:
        return current().compiled(with_complex(source), options, target=plain, compiler=backend, entries=tuple(entries))
    except RefsimError as error:
        if error.kind is Kind.MISSING:
            raise
        raise CompileException(str(error), source, "kern.cu", tuple(options), backend) from error
