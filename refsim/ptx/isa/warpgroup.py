"""Registers that warpgroups pass to each other."""

from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.isa.forms import instruction
from refsim.ptx.memory.arrays import Array


@instruction("setmaxnreg.{action:inc|dec}.sync.aligned.u32 registers:u32", rendezvous="warp", flow=True, since="sm_90a")
def setmaxnreg(lanes: Lanes, registers: Array, *, action: str) -> None:
    """Set the warp's number of registers per thread: release registers, or wait until its block has enough."""
    lanes.machine.register_pool.change(lanes, int(registers[0]), grows=action == "inc")
