"""The surroundings of a running set of lanes, described without naming lanes: types only. `Machine` in
refsim.ptx.execution.lanes adds the operations that take lanes. The scheduler implements both."""

from collections.abc import Container, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.ptx.execution.geometry import Geometry, Ids
from refsim.ptx.execution.register_file import Registers
from refsim.ptx.findings.record import LaunchFindings
from refsim.ptx.findings.table import Checks
from refsim.ptx.memory.access import WEAK, Port, Semantics
from refsim.ptx.memory.arrays import Bools
from refsim.ptx.memory.global_memory import GlobalMemory
from refsim.ptx.memory.space import Space
from refsim.ptx.text.syntax import NO_STATEMENT, Function, Statement


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


class Pending(Protocol):
    """The clusters of a launch that have not started."""

    def cancel(self) -> int | None: ...


class Context(Protocol):
    """The CTAs that run at the same time: their threads, memory, registers, and the receivers of their events.

    `asked` is the requested arithmetic, `arithmetic` the arithmetic of products ("silicon" for "known"). `choice` draws
    the order of a random schedule. `is_on_trial`: an access is tried out, and any finding undoes it. `heard`: the verbs
    of events that somebody hears. Packages above narrow some properties: `code` and `tracking` have their concrete
    types there.
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
    def heard(self) -> Container[str]: ...
    @property
    def tracking(self) -> object | None: ...
    @property
    def pending(self) -> Pending | None: ...
    @property
    def first_thread(self) -> int: ...
    def symbol(self, name: str, offset: int) -> NDArray[np.uint64]: ...
    def warp_bits(self, ids: Ids) -> NDArray[np.int64]: ...
    def saw_unwritten(self) -> None: ...
    def emit(
        self,
        verb: str,
        lanes: Ids,
        statement: Statement = NO_STATEMENT,
        meaning: Semantics = WEAK,
        payload: Any = None,
    ) -> None: ...
    def report(self, error: RefsimError, statement: Statement) -> None: ...
    def record(self, error: RefsimError, statement: Statement) -> None: ...
    @property
    def asked(self) -> str: ...
    def mark_inexact(self, statement: Statement) -> None: ...
    def mark_assumed(self, statement: Statement, recorded: str) -> None: ...
    def go(self, pc: int, ids: Ids) -> None: ...
    def retire(self, ids: Ids, pc: int = -1) -> None: ...
