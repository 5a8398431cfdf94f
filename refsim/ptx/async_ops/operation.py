"""The common protocol of work that goes on while the threads that started it compute."""

from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray


class AsyncOp(Protocol):
    """Work in flight: from its issue until a thread has observed that it is complete.

    Its reads and writes are checked and shown to the observers at issue, so an error does not depend on when the bytes
    move. Only the policy decides when `performed` is called; `completion` models who waits for it.
    """

    @property
    def number(self) -> int:
        """Return its number, which rises from issue to issue."""

    @property
    def is_performed(self) -> bool:
        """Return whether its bytes have moved."""

    @property
    def units(self) -> NDArray[np.int64]:
        """Return the unit of each of its parts, rising; parts of one unit take effect together."""

    def part(self, chosen: NDArray[np.bool_]) -> Self:
        """Return the chosen parts as an operation of their own."""

    def performed(self) -> Self:
        """Move its bytes now and return the performed operation."""

    def complete(self) -> None:
        """Mark it as complete for the checks, after a thread has waited for it."""

    def writes_to(self, start: int, width: int) -> NDArray[Any]:
        """Return which of its parts write to these bytes of the flat shared memory."""
