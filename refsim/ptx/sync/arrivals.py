"""Record of the threads that arrived at each mbarrier, phase by phase, for deadlock reports."""

from dataclasses import dataclass, field

import numpy as np

from refsim.ptx.execution.geometry import Ids
from refsim.ptx.execution.lanes import Machine
from refsim.ptx.text.syntax import Statement

Came = list[tuple[Ids, Statement]]


@dataclass
class Arrivals:
    """The arrivals at each mbarrier object in its current phase and in the previous one. `came` maps the object's byte
    in the flat shared memory to {phase: [(lanes, statement)]}; `executed` holds the ids of the statements that arrived
    anywhere."""

    machine: Machine
    came: dict[int, dict[int, Came]] = field(default_factory=dict)
    executed: set[int] = field(default_factory=set)

    def note(self, flat: int, phase: int, lanes: Ids, statement: Statement) -> None:
        """Record that lanes arrive at an object in a phase; phases older than the previous one are dropped."""
        self.executed.add(id(statement))
        phases = self.came.setdefault(flat, {})
        if phase not in phases:
            phases[phase] = []
            for old in [each for each in phases if each < phase - 1]:
                del phases[old]
        phases[phase].append((lanes, statement))

    def forget(self, flat: int) -> None:
        """Drop the arrivals at an object that ended."""
        self.came.pop(flat, None)

    def missing(self, flat: int, phase: int) -> Came:
        """Return the lanes that arrived in the previous phase and not in this one, with each arrival's statement."""
        phases = self.came.get(flat, {})
        here = np.array(sorted({lane for ids, _ in phases.get(phase, []) for lane in ids.tolist()}), np.int64)
        rest = [(ids[~np.isin(ids, here)], statement) for ids, statement in phases.get(phase - 1, [])]
        return [(ids, statement) for ids, statement in rest if len(ids)]

    def never_executed(self) -> list[Statement]:
        """Return the statements that arrive at mbarriers and that no thread has executed."""
        steps = (step.statement for step in self.machine.code.steps)
        return [each for each in steps if "mbarrier.arrive" in each.opcode and id(each) not in self.executed]

    def named(self, position: int) -> str:
        """Return an address in shared memory with the variable that contains it, if any: `0x408 (full+8)`."""
        machine = self.machine
        names = machine.in_shared & machine.symbols.keys()  # variables that the entry names
        starts = [(machine.symbols[name], name) for name in names if not name.startswith("generic(")]
        start, name = max((each for each in starts if each[0] <= position), default=(0, ""))
        name, offset = name.partition("@")[0], f"+{position - start}" if position > start else ""
        return f"{position:#x} ({name}{offset})" if name else f"{position:#x}"
