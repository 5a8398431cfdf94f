"""A simulated GPU: it executes the PTX of a compiled kernel over all lanes at once in NumPy."""

from refsim.ptx.contraction import Contraction
from refsim.ptx.faults import FAULT_CODES, FAULT_EXIT, is_fault
from refsim.ptx.machine import Checks
from refsim.ptx.memory import GlobalMemory
from refsim.ptx.program import DEFAULT_TARGET, POLICIES, Program, Trace, load

__all__ = [
    "DEFAULT_TARGET", "FAULT_CODES", "FAULT_EXIT", "POLICIES", "Checks", "Contraction", "GlobalMemory", "Program", "Trace",
    "is_fault", "load",
]  # fmt: skip
