"""The last writer of each byte of global memory, for reports after a failure."""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from refsim.ptx.memory.access import READ, Access
from refsim.ptx.memory.space import THREADS


@dataclass(frozen=True)
class Writers:
    """Keeps `Space.writer`: the PTX line and the number of the thread in its grid; lane 0 is thread `first`."""

    first: int

    def before(self, access: Access) -> None:
        """Do nothing: a write is recorded after it was made."""

    def after(self, access: Access) -> None:
        """Record the threads of a write."""
        table = access.space.writer
        if access.kind == READ or table is None:
            return
        threads: NDArray[Any] = access.threads.ids + (self.first + access.statement.line * THREADS)
        index = access.index
        if access.wrote is not None:
            index, threads = index[access.wrote], threads[access.wrote]
        items = table[: len(table) // access.width * access.width].reshape(-1, access.width)
        items[index] = threads[:, None]
