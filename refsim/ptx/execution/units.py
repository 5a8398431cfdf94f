"""Interfaces of the units that threads share, as instruction implementations see them: types only. `lanes` is a set of
lanes of the machine."""

from typing import Any, Protocol

from numpy.typing import NDArray

from refsim.ptx.execution.geometry import Ids
from refsim.ptx.memory.tensor_memory import TensorMemory

Array = NDArray[Any]


class ClusterBarrier(Protocol):
    """The barrier of every cluster. `waiting` lists (pc, lanes); `question` describes what a lane waits for."""

    def arrive(self, lanes: Any, *, releases: bool) -> None: ...
    def wait(self, lanes: Any) -> None: ...
    def waiting(self) -> list[tuple[int, Ids]]: ...
    def question(self, lane: int) -> str: ...


class CopyEngine(Protocol):
    """The unit that copies runs (`run`) and boxes (`box`) of bytes for threads, and stores of registers (`send`).

    `look` and `hint` check the operands of prefetches. `land` completes transfers. `describe` gives the transfer to
    some bytes of shared memory and the wait that it needs.
    """

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
    ) -> None:
        """Start copies of `amount` bytes, each end given as (state space, addresses)."""

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
    ) -> None:
        """Start copies of boxes: into shared memory if there is a `barrier`, else out of it."""

    def send(self, lanes: Any, to: Array, words: Array, barrier: Array, update: Any = None) -> None: ...
    def look(
        self,
        lanes: Any,
        map_address: Array,
        coordinates: list[Array] | None = None,
        offsets: list[Array] | None = None,
    ) -> None:
        """Check the tensor map, and the box if there are coordinates, of a prefetch."""

    def map_changes(self, lanes: Any, space: str, address: int) -> None: ...
    def hint(self, lanes: Any, address: Array, amount: Array) -> None: ...
    def commit(self, lanes: Any) -> None: ...
    def wait(self, lanes: Any, pending: int, *, read: bool) -> None: ...
    def land(self, transfers: Any) -> dict[int, int]: ...
    def describe(self, start: int, width: int) -> str: ...


class TensorColumns(Protocol):
    """Warps that wait for columns of tensor memory."""

    def ask(self, asked: Any) -> None: ...
    def release(self) -> None: ...
    def waiting(self) -> list[tuple[int, Ids]]: ...
    def question(self, lane: int) -> str: ...


class TensorPipe(Protocol):
    """Tensor memory, and the unit that multiplies in it. `demand` raises a finding if an access conflicts with
    operations in flight; `moved` and `waited` count a warp's loads and stores."""

    @property
    def memory(self) -> TensorMemory: ...
    @property
    def words(self) -> Array: ...
    def holds(self, lanes: Any, first: int, columns: int) -> None: ...
    def fenced(self, lanes: Any, *, is_before: bool) -> None: ...
    def demand(self, lanes: Any, box: Any, *, writes: bool) -> None: ...
    def moved(self, lanes: Any, boxes: Any, *, is_load: bool) -> None: ...
    def waited(self, lanes: Any, *, is_load: bool) -> None: ...
    def copy(self, one: Any, asked: Any) -> None: ...
    def move_down(self, one: Any, address: int, ctas: int) -> None: ...
    def multiply(self, one: Any, asked: Any) -> None: ...
    def commit(self, lanes: Any, space: str, addresses: Array, mask: Array | None) -> None: ...
