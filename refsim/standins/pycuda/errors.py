"""The errors that PyCUDA raises, and what of the simulated GPU becomes which."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from refsim.errors import RefsimError
from refsim.ptx import is_fault
from refsim.standins.session import UnsupportedError


class Error(Exception):
    """Anything that the driver refuses."""


class MemoryError(Error):
    """Device memory that is not there."""


class LogicError(Error):
    """A call that cannot be: of a context, a module, an argument."""


class LaunchError(Error):
    """A kernel that failed."""


class RuntimeError(Error):
    """Everything else."""


class CompileError(Error):
    """CUDA C++ that does not compile: the text of PyCUDA's own, with the compiler's log as `stderr`."""

    def __init__(self, msg: str, command_line: Any, stdout: str | None = None, stderr: str | None = None) -> None:
        super().__init__(msg, command_line, stdout, stderr)
        self.msg, self.command_line, self.stdout, self.stderr = msg, command_line, stdout, stderr

    def __str__(self) -> str:
        return "\n".join((self.msg, *(f"[stderr:\n{text}]" for text in (self.stderr,) if text)))


@contextmanager
def as_pycuda(call: str) -> Iterator[None]:
    """Errors of the simulated GPU as PyCUDA's: `cuMemAlloc failed: ...`; what is not simulated stays as it is."""
    try:
        yield
    except UnsupportedError:
        raise
    except RefsimError as error:
        kind = LaunchError if is_fault(error) else MemoryError if error.code == "out-of-memory" else LogicError
        raise kind(f"{call} failed: {error}") from error
