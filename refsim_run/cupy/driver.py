"""cupy.cuda.driver on the simulated GPU: the error that its calls raise."""

from collections.abc import Iterator
from contextlib import contextmanager

from refsim.errors import RefsimError
from refsim_run.seams import refusing
from refsim_run.session import UnsupportedError

__getattr__ = refusing("cupy.cuda.driver")


class CUDADriverError(RuntimeError):
    """A call of the driver that failed."""

    def __init__(self, status: int, said: str = "") -> None:
        super().__init__(said or f"error {status}")
        self.status = status


@contextmanager
def as_cupy(status: int, name: str) -> Iterator[None]:
    """Raise the simulated GPU's errors as CUDADriverError with number and name, except what is not simulated."""
    try:
        yield
    except UnsupportedError:
        raise
    except RefsimError as error:
        raise CUDADriverError(status, f"{name}: {error}") from error
