"""Who arrived at mbarriers, phase by phase: what a deadlock report says of those that never came."""

from dataclasses import dataclass, field

import numpy as np

from refsim.ptx.execution.geometry import Ids
from refsim.ptx.execution.lanes import Machine
from refsim.ptx.text.syntax import Statement

Came = list[tuple[Ids, Statement]]


@dataclass
class Arrivals:
    """The arrivals at each object (its byte in the flat shared memory) in its current phase and in the one before."""

    machine: Machine
    came: dict[int, dict[int, Came]] = field(default_factory=dict)
    executed: set[int] = field(default_factory=set)

    def note(self, flat: int, phase: int, lanes: Ids, statement: Statement) -> None:
        """Lanes arrive at an object in a phase."""
        self.executed.add(id(statement))
        phases = self.came.setdefault(flat, {})
        if phase not in phases:
            phases[phase] = []
            for old in [each for each in phases if each < phase - 1]:
                del phases[old]
        phases[phase].append((lanes, statement))

    def forget(self, flat: int) -> None:
        """The object ends."""
        self.came.pop(flat, None)

    def missing(self, flat: int, phase: int) -> Came:
        """Who came in the phase before and not in this one, and by which statement."""
        phases = self.came.get(flat, {})
        here = np.array(sorted({lane for ids, _ in phases.get(phase, []) for lane in ids.tolist()}), np.int64)
        rest = [(ids[~np.isin(ids, here)], statement) for ids, statement in phases.get(phase - 1, [])]
        return [(ids, statement) for ids, statement in rest if len(ids)]

    def never_executed(self) -> list[Statement]:
        """The statements that arrive at mbarriers and that no thread has executed."""
        steps = (step.statement for step in self.machine.code.steps)
        return [each for each in steps if "mbarrier.arrive" in each.opcode and id(each) not in self.executed]

    def named(self, position: int) -> str:
        """`0x408 (full+8)`: an address in shared memory with the variable that it lies in, where there is one."""
        machine = self.machine
        names = machine.in_shared & machine.symbols.keys()  # those that the entry names
        starts = [(machine.symbols[name], name) for name in names if not name.startswith("generic(")]
        start, name = max((each for each in starts if each[0] <= position), default=(0, ""))
        name, offset = name.partition("@")[0], f"+{position - start}" if position > start else ""
        return f"{position:#x} ({name}{offset})" if name else f"{position:#x}"
