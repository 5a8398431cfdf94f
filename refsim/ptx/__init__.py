"""A simulated GPU: it executes the PTX of a compiled kernel over all lanes at once in NumPy."""

from typing import TYPE_CHECKING

from refsim.lazy import exports

if TYPE_CHECKING:
    from refsim.ptx.async_ops.queue import POLICIES as POLICIES
    from refsim.ptx.async_ops.queue import SchedulePolicy as SchedulePolicy
    from refsim.ptx.findings.record import FAULT_CODES as FAULT_CODES
    from refsim.ptx.findings.record import BankUse as BankUse
    from refsim.ptx.findings.record import Crowd as Crowd
    from refsim.ptx.findings.record import is_fault as is_fault
    from refsim.ptx.findings.table import CHECKS as CHECKS
    from refsim.ptx.findings.table import STOPS as STOPS
    from refsim.ptx.findings.table import Check as Check
    from refsim.ptx.findings.table import Checks as Checks
    from refsim.ptx.isa.products import ARITHMETICS as ARITHMETICS
    from refsim.ptx.isa.products import Arithmetic as Arithmetic
    from refsim.ptx.lowering.liveness import Contraction as Contraction
    from refsim.ptx.machine.launch_rules import Extents as Extents
    from refsim.ptx.machine.program import DEFAULT_TARGET as DEFAULT_TARGET
    from refsim.ptx.machine.program import Program as Program
    from refsim.ptx.machine.program import Trace as Trace
    from refsim.ptx.machine.program import load as load
    from refsim.ptx.machine.program import stretch_named as stretch_named
    from refsim.ptx.memory.global_memory import GlobalMemory as GlobalMemory
    from refsim.ptx.observers.log import EventLog as EventLog
    from refsim.ptx.observers.log import RecordedEvent as RecordedEvent
    from refsim.ptx.observers.steps import AddressWatch as AddressWatch
    from refsim.ptx.observers.steps import WarpTrace as WarpTrace
else:
    __getattr__, __dir__ = exports(__name__)
