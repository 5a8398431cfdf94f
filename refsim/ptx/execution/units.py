"""Units that threads share, as clauses see them: types alone. The lanes that ask are lanes of the machine."""

from typing import Any, Protocol

from numpy.typing import NDArray

from refsim.ptx.execution.geometry import Ids
from refsim.ptx.memory.tensor_memory import TensorMemory

Array = NDArray[Any]


class ClusterBarrier(Protocol):
    """The barrier of every cluster."""

    def arrive(self, lanes: Any, *, releases: bool) -> None: ...
    def wait(self, lanes: Any) -> None: ...
    def waiting(self) -> list[tuple[int, Ids]]: ...
    def question(self, lane: int) -> str: ...


class CopyEngine(Protocol):
    """What copies runs and boxes of bytes for threads."""

    def run(
        self,
        lanes: Any,
        to: tuple[str, Array],
        source: tuple[str, Array],
        amount: Array,
        *,
        barrier: Array | None = None,
        mask: Array | None = None,
        reduction: tuple[str, str] | None = None,
    ) -> None: ...
    def box(
        self,
        lanes: Any,
        map_address: Array,
        coordinates: list[Array],
        shared: Array,
        *,
        barrier: Array | None = None,
        mask: Array | None = None,
        reduction: str | None = None,
        offsets: list[Array] | None = None,
    ) -> None: ...
    def send(self, lanes: Any, to: Array, words: Array, barrier: Array, update: Any = None) -> None: ...
    def look(
        self,
        lanes: Any,
        map_address: Array,
        coordinates: list[Array] | None = None,
        offsets: list[Array] | None = None,
    ) -> None: ...
    def map_changes(self, lanes: Any, space: str, address: int) -> None: ...
    def hint(self, lanes: Any, address: Array, amount: Array) -> None: ...
    def commit(self, lanes: Any) -> None: ...
    def wait(self, lanes: Any, pending: int, *, read: bool) -> None: ...
    def land(self, transfers: Any) -> dict[int, int]: ...
    def describe(self, start: int, width: int) -> str: ...


class TensorPipe(Protocol):
    """Tensor memory, and what multiplies in it."""

    @property
    def memory(self) -> TensorMemory: ...
    @property
    def words(self) -> Array: ...
    def holds(self, cta: int, statement: Any) -> None: ...
    def demand(self, lanes: Any, box: Any, *, writes: bool) -> None: ...
    def moved(self, lanes: Any, boxes: Any, *, is_load: bool) -> None: ...
    def waited(self, lanes: Any, *, is_load: bool) -> None: ...
    def copy(self, one: Any, asked: Any) -> None: ...
    def multiply(self, one: Any, asked: Any) -> None: ...
    def commit(self, lanes: Any, space: str, addresses: Array, mask: Array | None) -> None: ...
