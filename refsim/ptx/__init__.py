"""A simulated GPU: it executes the PTX of a compiled kernel over all lanes at once in NumPy."""

from refsim.ptx.async_ops.queue import POLICIES, SchedulePolicy
from refsim.ptx.findings.faults import FAULT_CODES, is_fault
from refsim.ptx.findings.record import BankUse, Crowd
from refsim.ptx.findings.table import CHECKS, STOPS, Check, Checks
from refsim.ptx.isa.products import ARITHMETICS, Arithmetic
from refsim.ptx.lowering.contraction import Contraction
from refsim.ptx.machine.launch_rules import Extents
from refsim.ptx.machine.program import DEFAULT_TARGET, Program, Trace, load
from refsim.ptx.machine.stretches import stretch_named
from refsim.ptx.memory.global_memory import GlobalMemory
from refsim.ptx.observers.accesses import AddressWatch
from refsim.ptx.observers.steps import WarpTrace

__all__ = [
    "ARITHMETICS",
    "CHECKS",
    "DEFAULT_TARGET",
    "FAULT_CODES",
    "POLICIES",
    "STOPS",
    "AddressWatch",
    "Arithmetic",
    "BankUse",
    "Check",
    "Checks",
    "Contraction",
    "Crowd",
    "Extents",
    "GlobalMemory",
    "Program",
    "SchedulePolicy",
    "Trace",
    "WarpTrace",
    "is_fault",
    "load",
    "stretch_named",
]


def __dir__() -> list[str]:
    return sorted(__all__)
