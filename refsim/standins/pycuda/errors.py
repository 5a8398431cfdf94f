"""The errors of PyCUDA, and which error of the simulated GPU becomes which."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from refsim.errors import RefsimError
from refsim.ptx import is_fault
from refsim.standins.session import UnsupportedError


class Error(Exception):
    """Any error of the driver."""


class MemoryError(Error):
    """Not enough device memory."""


class LogicError(Error):
    """A call with an invalid context, module or argument."""


class LaunchError(Error):
    """A kernel that failed."""


class RuntimeError(Error):
    """Any other error."""


class CompileError(Error):
    """CUDA C++ that does not compile: PyCUDA's text, with the compiler's log as `stderr`."""

    def __init__(self, msg: str, command_line: Any, stdout: str | None = None, stderr: str | None = None) -> None:
        super().__init__(msg, command_line, stdout, stderr)
        self.msg, self.command_line, self.stdout, self.stderr = msg, command_line, stdout, stderr

    def __str__(self) -> str:
        return "\n".join((self.msg, *(f"[stderr:\n{text}]" for text in (self.stderr,) if text)))


@contextmanager
def as_pycuda(call: str) -> Iterator[None]:
    """Raise the simulated GPU's errors as PyCUDA's (`cuMemAlloc failed: ...`), except what is not simulated."""
    try:
        yield
    except UnsupportedError:
        raise
    except RefsimError as error:
        kind = LaunchError if is_fault(error) else MemoryError if error.code == "out-of-memory" else LogicError
        raise kind(f"{call} failed: {error}") from error
