"""Instructions of whole warps whose results wait until somebody needs them, so that many are computed by one call.

A kernel multiplies its tiles by runs of mma, each for few warps and none of them reading what the others wrote. Such an
instruction is done as far as anyone can see once its operands are fetched: no register array changes after it was given
away. Before a block runs that reads or writes one of the registers in question, all that wait are computed, lanes behind
lanes as if they were so many more warps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.execution.lanes import Lanes, Machine
from refsim.ptx.execution.registers import mark_written, put
from refsim.ptx.lowering.blocks import BasicBlock, Code
from refsim.ptx.lowering.codegen import operands_function, terminator_function
from refsim.ptx.lowering.steps import Step
from refsim.ptx.text.syntax import Statement

Array = NDArray[Any]
MANY = 64  # warps that one call computes about as fast, each, as any number of them


@dataclass(frozen=True)
class Stack:
    """The lanes of several executions one behind the other: all that a clause which stacks asks of its lanes."""

    machine: Machine
    statement: Statement
    count: int
    in_whole_warps = True

    def arithmetic(self, *, is_settled: bool) -> str:
        """What the first execution of the statement has noted already."""
        return self.machine.arithmetic


@dataclass(frozen=True)
class DeferredKind:
    """What is known of a statement that may wait: its operands, and the places of its results. One call computes those of
    one `name`: the opcode, and how wide the registers are that it reads and writes."""

    step: Step
    name: int
    operands: Callable[[Lanes], list[Any]]
    function: Callable[..., Any]
    results: tuple[int | None, ...]
    slots: frozenset[int]


class Execution(NamedTuple):
    """One instruction of some lanes, its operands fetched."""

    kind: DeferredKind
    lanes: Lanes
    arguments: list[Any]


class Deferred:
    """The executions of a machine that wait. `slots` are the places of the registers that they will write."""

    def __init__(self, machine: Machine, code: Code) -> None:
        self.machine, self.code = machine, code
        self.has_waiting = np.zeros(machine.geometry.lanes, np.bool_)
        self.waiting: dict[int, list[Execution]] = {}
        self.names: dict[Any, int] = {}
        self.slots: set[int] = set()
        self.warps = 0
        self.tried: set[Any] = set()
        self.kinds: dict[int, DeferredKind] = {}
        self.touched: dict[int, frozenset[int]] = {}

    def takes(self, lanes: Lanes, pc: int, step: Step) -> bool:
        """Whether an execution may wait, and then it does. The first of an opcode does not: what is to be said of it, that
        a target's arithmetic is not known for example, is said there; so it is for every statement where it is noted."""
        if lanes.count >= 32 * MANY or not lanes.in_whole_warps:
            return False
        kind = self.kinds.get(pc)
        if kind is None:
            name = step.bound.opcode if self.machine.arithmetic == "silicon" else pc
            if name not in self.tried:
                self.tried.add(name)
                return False
            kind = self.kinds[pc] = _kind(self.code, pc, self.names)
        self.waiting.setdefault(kind.name, []).append(Execution(kind, lanes, kind.operands(lanes)))
        self.slots |= kind.slots
        self.has_waiting[lanes.key] = True
        if self.machine.registers.unwritten:
            mark_written(lanes, *step.writes())
        self.warps += lanes.count // 32
        if self.warps >= MANY:
            self.settle()
        return True

    def before(self, block: BasicBlock, lanes: Lanes) -> None:
        """A block is about to run: compute what waits if it reads or writes any of it."""
        touched = self.touched.get(block.pc)
        if touched is None:
            slots = self.code.slots
            touched = frozenset(
                slots[index] for step in block.everything() for index in (*step.reads(), *step.writes())
            )
            self.touched[block.pc] = touched
        if not self.slots.isdisjoint(touched) and self.has_waiting[lanes.key].any():
            self.settle()

    def settle(self) -> None:
        """Compute all that waits, and write it to the registers."""
        waiting, self.waiting, self.warps = self.waiting, {}, 0
        self.slots = set()
        self.has_waiting[:] = False
        for alike in waiting.values():
            self._compute(alike)

    def _compute(self, alike: list[Execution]) -> None:
        """Executions of one opcode by one call."""
        kind = alike[0].kind
        counts = [each.lanes.count for each in alike]
        stack = Stack(self.machine, kind.step.statement, sum(counts))
        values = kind.function(stack, *_stacked([each.arguments for each in alike], counts))
        begin = 0
        for each, count in zip(alike, counts, strict=True):
            for index, bits in zip(each.kind.results, values, strict=True):
                if index is not None:
                    put(each.lanes, index, bits[begin : begin + count])
            begin += count


def _kind(code: Code, pc: int, names: dict[Any, int]) -> DeferredKind:
    step, bits = code.steps[pc], code.register_bits
    writes = tuple(step.writes())
    widths = tuple(bits[index] for index in (*writes, *step.reads()))
    name = step.bound.opcode, widths, tuple(type.name for _, type in step.sources)
    slots = frozenset(code.slots[index] for index in writes)
    ((results, _),) = step.results
    assert isinstance(results, tuple)
    number = names.setdefault(name, len(names))
    return DeferredKind(step, number, operands_function(code, pc), terminator_function(code, pc), results, slots)


def _stacked(operands: Sequence[list[Any]], counts: list[int]) -> list[Any]:
    """The operands of all executions, place by place, lanes behind lanes."""
    return [_one_behind_other(values, counts) for values in zip(*operands, strict=True)]


def _one_behind_other(values: Sequence[Any], counts: list[int]) -> Any:
    if isinstance(values[0], list):
        return [_one_behind_other(each, counts) for each in zip(*values, strict=True)]
    if values[0] is None:
        return None
    parts = [one if len(one) == count else one.repeat(count) for one, count in zip(values, counts, strict=True)]
    return np.concatenate(parts)
