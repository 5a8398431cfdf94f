"""Work that goes on while the threads that started it compute: one shape for copies of threads and, later, for copy engines
and tensor cores."""

from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray


class AsyncOp(Protocol):
    """Work in flight: from its issue until somebody has observed that it is complete.

    What it reads and writes is checked, and told to those that watch, when it is issued: an error does not depend on when
    the bytes move. A policy alone decides when `perform` runs; who waits for it, and how, is the matter of completion.
    """

    @property
    def number(self) -> int:
        """Rises from issue to issue."""

    @property
    def is_performed(self) -> bool:
        """Whether its bytes have moved."""

    @property
    def units(self) -> NDArray[np.int64]:
        """For each of its parts, rising, the unit that does it; parts of one unit take effect together."""

    def part(self, chosen: NDArray[np.bool_]) -> Self:
        """Some of its parts, as an operation of their own."""

    def performed(self) -> Self:
        """The same, its bytes moved now."""

    def complete(self) -> None:
        """Somebody has waited for it: for the checks it is over."""

    def writes_to(self, start: int, width: int) -> NDArray[Any]:
        """Which of its parts write to these bytes of the flat shared memory."""
