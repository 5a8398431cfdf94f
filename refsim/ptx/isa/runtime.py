"""Functions of the device runtime that have no body in any module: printf, assert. Inlining turns a call of such a
function into a statement, whose arguments and result are registers."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.checks.undefined_bits import RuleOperands, defined
from refsim.ptx.checks.undefined_memory import ADDRESS
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.masks import Mask
from refsim.ptx.isa.forms import instruction
from refsim.ptx.isa.printing import formatted, text_at
from refsim.sources import CUDA_GUIDE

Array = NDArray[Any]


def _addresses(operands: RuleOperands) -> list[Mask | None]:
    """Demand that all arguments are defined; return the masks of the results."""
    for mask in operands.masks:
        operands.demand(mask, ADDRESS)
    results: list[Mask | None] = defined(operands)
    return results


@instruction("call.vprintf d:b32, format:u64, buffer:u64", undefined=_addresses, source=CUDA_GUIDE["formatted output"])
def vprintf(lanes: Lanes, format: Array, buffer: Array) -> Array:
    """Record each thread's text in the launch; return the number of arguments that the text took."""
    counts = np.zeros(lanes.count, np.uint32)
    formats, buffers = lanes.full(format), lanes.full(buffer)
    for number in range(lanes.count):
        one = Lanes(lanes.machine, lanes.ids[number : number + 1], lanes.statement)
        text, taken = formatted(one, int(formats[number]), int(buffers[number]))
        counts[number] = taken
        thread, block = lanes.machine.geometry.describe(int(one.ids[0])).split(" of ")
        lanes.machine.findings.printed.append((f"{block} {thread}", text))
    return counts


@instruction(
    "call.__assertfail message:u64, file:u64, line:u32, function:u64, size:u64",
    undefined=_addresses,
    source=CUDA_GUIDE["assertion"],
)
def assertion(lanes: Lanes, message: Array, file: Array, line: Array, function: Array, size: Array) -> None:
    """End the kernel because an assertion failed; the message is the first failing thread's."""
    one = Lanes(lanes.machine, lanes.ids[:1], lanes.statement)
    said, where, inside = (text_at(one, int(lanes.full(each)[0])) for each in (message, file, function))
    raise lanes.fault("trap", 0, f"{where}:{int(lanes.full(line)[0])}: {inside}: assertion `{said}` failed")
