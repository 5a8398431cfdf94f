"""The surroundings of a running set of lanes, described without naming lanes: types only. `Machine` in
refsim.ptx.execution.lanes adds the operations that take lanes. The scheduler implements both."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.ptx.execution.geometry import Geometry, Ids
from refsim.ptx.execution.register_file import Registers
from refsim.ptx.findings.record import LaunchFindings
from refsim.ptx.findings.table import Checks
from refsim.ptx.memory.access import Port, Semantics
from refsim.ptx.memory.arrays import Array, Bools
from refsim.ptx.memory.global_memory import GlobalMemory
from refsim.ptx.memory.space import Region, Space
from refsim.ptx.text.syntax import Function, Statement


class Stated(Protocol):
    """A step, reduced to its statement."""

    @property
    def statement(self) -> Statement: ...


class Lowered(Protocol):
    """The running code, reduced to its registers and statements."""

    register_bits: list[int]
    function: Function

    @property
    def steps(self) -> Sequence[Stated]: ...
    @property
    def has_async_proxy(self) -> bool: ...
    @property
    def has_tensor_memory(self) -> bool: ...
    @property
    def fences_tensor_memory(self) -> bool: ...


class OrderListener(Protocol):
    """The receiver of events that order the accesses of lanes."""

    def warp_met(self, lanes: Ids, group: Array | None, statement: Statement) -> None: ...
    def fence(self, lanes: Ids, meaning: Semantics, statement: Statement) -> None: ...


class RaceWatch(Protocol):
    """The detector of races."""

    @property
    def orders(self) -> OrderListener: ...
    def renew(self, region: Region, start: int, end: int) -> None: ...
    def inits_fenced(self, lanes: Ids) -> None: ...


class ProxyWatch(Protocol):
    """The detector of accesses through different proxies that no fence orders."""

    def fence(self, lanes: Ids, statement: Statement, proxy: str, space: str | None) -> None: ...
    def maps_released(self, lanes: Ids, statement: Statement, scope: int) -> None: ...
    def map_acquired(self, lanes: Ids, statement: Statement, scope: int, address: Array) -> None: ...


class LaunchWatch(Protocol):
    """The detector of accesses to data that an unfinished earlier launch has touched."""

    def wait(self, lanes: Ids, statement: Statement) -> None: ...
    def let_others_begin(self, lanes: Ids) -> None: ...


class Pending(Protocol):
    """The clusters of a launch that have not started."""

    def cancel(self) -> int | None: ...


class Context(Protocol):
    """The CTAs that run at the same time: their threads, memory, registers, and the receivers of their events.

    `asked` is the requested arithmetic, `arithmetic` the arithmetic of products ("silicon" for "known"). `choice` draws
    the order of a random schedule. `is_on_trial`: an access is tried out, and any finding undoes it. Packages above
    narrow some properties: `code`, `races` and `tracking` have their concrete types there.
    """

    geometry: Geometry
    memory: GlobalMemory
    shared: Space
    local: Space
    parameters: Space
    port: Port
    symbols: dict[str, int]
    in_shared: frozenset[str]
    registers: Registers
    checks: Checks
    findings: LaunchFindings
    alive: Bools
    target: str
    clock: int
    clock_began: int
    is_on_trial: bool
    choice: np.random.Generator | None

    @property
    def arithmetic(self) -> str: ...
    @property
    def code(self) -> Lowered: ...
    @property
    def races(self) -> RaceWatch | None: ...
    @property
    def proxies(self) -> ProxyWatch | None: ...
    @property
    def dependency(self) -> LaunchWatch | None: ...
    @property
    def tracking(self) -> object | None: ...
    @property
    def pending(self) -> Pending | None: ...
    @property
    def first_thread(self) -> int: ...
    def symbol(self, name: str, offset: int) -> NDArray[np.uint64]: ...
    def warp_bits(self, ids: Ids) -> NDArray[np.int64]: ...
    def saw_unwritten(self) -> None: ...
    def report(self, error: RefsimError, statement: Statement) -> None: ...
    def record(self, error: RefsimError, statement: Statement) -> None: ...
    @property
    def asked(self) -> str: ...
    def mark_inexact(self, statement: Statement) -> None: ...
    def mark_assumed(self, statement: Statement, recorded: str) -> None: ...
    def go(self, pc: int, ids: Ids) -> None: ...
    def retire(self, ids: Ids, pc: int = -1) -> None: ...
