"""What stands around a set of lanes while it runs, as far as it can be said without naming lanes: types alone.

`Machine` in refsim.ptx.execution.lanes adds what takes lanes; the scheduler is one.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.ptx.execution.geometry import Geometry, Ids
from refsim.ptx.execution.register_file import Registers
from refsim.ptx.findings.record import LaunchFindings
from refsim.ptx.findings.table import Checks
from refsim.ptx.memory.access import Port
from refsim.ptx.memory.global_memory import GlobalMemory
from refsim.ptx.memory.semantics import Semantics
from refsim.ptx.memory.space import Region, Space
from refsim.ptx.text.syntax import Function, Statement


class Stated(Protocol):
    """A step, as far as its statement."""

    @property
    def statement(self) -> Statement: ...


class Lowered(Protocol):
    """The code that runs, as far as its registers and statements."""

    register_bits: list[int]
    function: Function

    @property
    def steps(self) -> Sequence[Stated]: ...
    @property
    def has_tensor_memory(self) -> bool: ...
    @property
    def fences_tensor_memory(self) -> bool: ...


class OrderListener(Protocol):
    """Who hears of what puts the accesses of lanes in order."""

    def warp_met(self, lanes: Ids, group: NDArray[Any] | None, statement: Statement | None) -> None: ...
    def fence(self, lanes: Ids, meaning: Semantics, statement: Statement | None) -> None: ...


class ProductsInFlight(Protocol):
    """The products of warpgroups on their way, by number from 1 on: what each lacks, and who reads an item of shared memory."""

    @property
    def oldest(self) -> int | None: ...
    def describe(self, number: int, group: int) -> str: ...
    def reader_of(self, item: int) -> str | None: ...


class RaceWatch(Protocol):
    """Who looks for races."""

    @property
    def orders(self) -> OrderListener: ...
    def renew(self, region: Region, start: int, end: int) -> None: ...
    def inits_fenced(self, lanes: Ids) -> None: ...


class ProxyWatch(Protocol):
    """Who looks for accesses through different proxies that no fence keeps in order."""

    def fence(self, lanes: Ids, statement: Statement, proxy: str, space: str | None) -> None: ...
    def maps_released(self, lanes: Ids, statement: Statement, scope: int) -> None: ...
    def map_acquired(self, lanes: Ids, statement: Statement, scope: int, address: NDArray[Any]) -> None: ...


class LaunchWatch(Protocol):
    """Who looks for accesses to what a launch that may still run has touched."""

    def wait(self, lanes: Ids, statement: Statement) -> None: ...
    def let_others_begin(self, lanes: Ids) -> None: ...


class Context(Protocol):
    """The CTAs that run at the same time: their threads, memory and registers, and whom to tell.

    A property is narrower in the rooms above: `code`, `races` and `tracking` are known there as what they are.
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
    alive: NDArray[np.bool_]
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
    def first_thread(self) -> int: ...
    def symbol(self, name: str, offset: int) -> NDArray[np.uint64]: ...
    def warp_bits(self, ids: Ids) -> NDArray[np.int64]: ...
    def saw_unwritten(self) -> None: ...
    def report(self, error: RefsimError, statement: Statement | None) -> None: ...
    def record(self, error: RefsimError, statement: Statement | None) -> None: ...
    @property
    def asked(self) -> str: ...
    def mark_inexact(self, statement: Statement) -> None: ...
    def mark_assumed(self, statement: Statement, recorded: str) -> None: ...
    def go(self, pc: int, ids: Ids) -> None: ...
    def retire(self, ids: Ids, pc: int = -1) -> None: ...
