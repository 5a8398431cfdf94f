"""A simulated GPU: it executes the PTX of a compiled kernel over all lanes at once in NumPy."""

from refsim.ptx.asynchrony import POLICIES
from refsim.ptx.checks import Checks
from refsim.ptx.conflicts import BankUse
from refsim.ptx.contraction import Contraction
from refsim.ptx.faults import FAULT_CODES, FAULT_EXIT, is_fault
from refsim.ptx.memory import GlobalMemory
from refsim.ptx.products import ARITHMETICS
from refsim.ptx.program import DEFAULT_TARGET, Program, Trace, load

__all__ = [
    "ARITHMETICS", "DEFAULT_TARGET", "FAULT_CODES", "FAULT_EXIT", "POLICIES", "BankUse", "Checks", "Contraction",
    "GlobalMemory", "Program", "Trace", "is_fault", "load",
]  # fmt: skip
