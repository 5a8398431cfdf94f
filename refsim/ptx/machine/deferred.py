"""Instructions of whole warps whose results wait until somebody needs them, so that many are computed by one call.

A kernel multiplies its tiles by runs of mma, each for few warps and none of them reading what the others wrote. Such an
instruction is done as far as anyone can see once its operands are fetched: no register array changes after it was given
away. Before a block runs that reads or writes one of the registers in question, all that wait are computed, lanes behind
lanes as if they were so many more warps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.execution.lanes import Lanes, Machine
from refsim.ptx.execution.registers import mark_written, put
from refsim.ptx.lowering.blocks import Block, Code
from refsim.ptx.lowering.codegen import terminator_function
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
class Execution:
    """One instruction of some lanes, its operands fetched."""

    pc: int
    step: Step
    lanes: Lanes
    arguments: list[Any]


class Deferred:
    """The executions of a machine that wait. `slots` are the places of the registers that they will write."""

    def __init__(self, machine: Machine, code: Code) -> None:
        self.machine, self.code = machine, code
        self.has_waiting = np.zeros(machine.geometry.lanes, np.bool_)
        self.waiting: list[Execution] = []
        self.slots: set[int] = set()
        self.warps = 0
        self.tried: set[Any] = set()
        self.touched: dict[int, frozenset[int]] = {}

    def takes(self, lanes: Lanes, step: Step, arguments: list[Any]) -> bool:
        """Whether an execution may wait, and then it does. The first of an opcode does not: what is to be said of it, that
        a target's arithmetic is not known for example, is said there; so it is for every statement where it is noted."""
        if not step.bound.clause.stacks or lanes.count >= 32 * MANY or not lanes.in_whole_warps:
            return False
        name = step.bound.opcode if self.machine.arithmetic == "silicon" else lanes.pc
        if name not in self.tried:
            self.tried.add(name)
            return False
        self.waiting.append(Execution(lanes.pc, step, lanes, arguments))
        for index in step.writes():
            self.slots.add(self.code.slots[index])
            mark_written(lanes, index)
        self.has_waiting[lanes.key] = True
        self.warps += lanes.count // 32
        if self.warps >= MANY:
            self.settle()
        return True

    def before(self, block: Block, lanes: Lanes) -> None:
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
        kinds: dict[Any, list[Execution]] = {}
        for each in self.waiting:
            kinds.setdefault(_kind(each, self.code.register_bits), []).append(each)
        self.waiting, self.warps = [], 0
        self.slots.clear()
        self.has_waiting[:] = False
        for alike in kinds.values():
            self._compute(alike)

    def _compute(self, alike: list[Execution]) -> None:
        """Executions of one opcode by one call."""
        first = alike[0]
        function = terminator_function(self.code, first.pc)
        counts = [each.lanes.count for each in alike]
        stack = Stack(self.machine, first.step.statement, sum(counts))
        values = function(stack, *_stacked([each.arguments for each in alike], counts))
        found = [values] if len(first.step.results) == 1 else values
        begin = 0
        for each in alike:
            end = begin + each.lanes.count
            for (result, _), value in zip(each.step.results, found, strict=True):
                pairs = zip(result, value, strict=True) if isinstance(result, tuple) else [(result, value)]
                for index, bits in pairs:
                    if index is not None:
                        put(each.lanes, index, bits[begin:end])
            begin = end


def _kind(each: Execution, register_bits: list[int]) -> Any:
    """Equal for executions that one call computes: the opcode, and how wide the registers are that it reads and writes."""
    widths = tuple(register_bits[index] for index in each.step.writes())
    return each.step.bound.opcode, widths, _widths(each.arguments)


def _widths(arguments: list[Any]) -> Any:
    return tuple(_widths(one) if isinstance(one, list) else None if one is None else one.dtype for one in arguments)


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
