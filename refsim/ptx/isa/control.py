"""Control flow: branches, exits, traps; the machine holds the lanes, the implementation decides where they go."""

import numpy as np

from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.isa.forms import instruction
from refsim.ptx.memory.arrays import Array
from refsim.ptx.memory.space import FUNCTION_BASE
from refsim.sources import PTX


@instruction("bra{.uni} target", flow=True, ignores=("uni",))
def bra(lanes: Lanes, target: int) -> None:
    """Send every running lane to the label; a guard holds the others back."""
    lanes.machine.branch(lanes, target)


@instruction("brx.idx{.uni} index:u32, targets", flow=True, ignores=("uni",), source=PTX["brx.idx"])
def brx_idx(lanes: Lanes, index: Array, targets: tuple[int, ...]) -> None:
    """Send each lane to the label of the table at its index; an index beyond the table is undefined."""
    numbers = lanes.full(index)
    if (numbers >= len(targets)).any():
        stray = int(np.argmax(numbers >= len(targets)))
        raise lanes.fault("trap", stray, f"index {int(numbers[stray])} of a branch table of {len(targets)}")
    for number in np.unique(numbers):
        lanes.machine.go(targets[int(number)], lanes.ids[numbers == number])


@instruction("ret{.uni}", flow=True, ignores=("uni",))
def ret(lanes: Lanes) -> None:
    """Finish the thread: the return of an entry."""
    lanes.machine.retire(lanes.ids, lanes.pc)


@instruction("call{.uni} a:u64", flow=True, ignores=("uni",))
def call(lanes: Lanes, a: Array) -> None:
    """Raise a fault for a call that inlining could not replace: its address is no reachable function, or one that is
    running."""
    names = {address: name for name, address in lanes.machine.symbols.items() if address >= FUNCTION_BASE}
    address = int(lanes.full(a)[0])
    known = f", {names[address]}, which is running already or takes other parameters" if address in names else ""
    what = f"a call of the address {address:#x}{known or ', where no function begins that the call may reach'}"
    raise lanes.fault("invalid-call", 0, what, "PTX ISA, call: the address of a function that fits the prototype")


@instruction("exit", flow=True)
def leave(lanes: Lanes) -> None:
    """Finish the thread."""
    lanes.machine.retire(lanes.ids, lanes.pc)


@instruction("trap", flow=True)
def trap(lanes: Lanes) -> None:
    """Stop the kernel: a failed assertion."""
    raise lanes.fault("trap", 0, "the kernel executed trap")


@instruction("nanosleep.u32 a:u32", since="sm_70")
def nanosleep(a: Array) -> tuple[()]:
    """Do nothing: time does not pass in the simulator."""
    return ()


@instruction("brkpt", flow=True)
def brkpt(lanes: Lanes) -> None:
    """End the launch: without a debugger a breakpoint is a launch failure, as on an H200."""
    raise lanes.fault("trap", 0, "the kernel executed brkpt, which without a debugger is a launch failure")


@instruction("pmevent{.mask} event:u32", ignores=("mask",))
def pmevent(event: Array) -> tuple[()]:
    """Do nothing: the simulator counts no events."""
    return ()
