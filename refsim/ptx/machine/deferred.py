"""Warp instructions whose results are computed later, many by one call.

A kernel multiplies its tiles by runs of mma, each for few warps, and no mma of a run reads the result of another. Such
an instruction fetches its operands at once, and no register array changes after that. Before a block runs that touches
one of the result registers, all waiting instructions are computed, with their lanes stacked like more warps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from refsim.ptx.execution.lanes import Lanes, Machine
from refsim.ptx.execution.registers import mark_written, put
from refsim.ptx.lowering.blocks import BasicBlock, Code
from refsim.ptx.lowering.codegen import operands_function, terminator_function
from refsim.ptx.lowering.steps import Step
from refsim.ptx.text.syntax import Statement

MANY = 64  # warps that one call computes about as fast, each, as any number of them


@dataclass(frozen=True)
class Stack:
    """The lanes of several executions, one after the other; it has all that a stacking instruction uses of lanes."""

    machine: Machine
    statement: Statement
    count: int
    in_whole_warps = True

    def arithmetic(self, *, is_settled: bool) -> str:
        """Return the machine's arithmetic, which the first execution of the statement has noted already."""
        return self.machine.arithmetic


@dataclass(frozen=True)
class DeferredKind:
    """The operands and result registers of a statement that may wait. One call computes all waiting executions of one
    `number`: one opcode, and equal widths of the registers that it reads and writes."""

    step: Step
    number: int
    operands: Callable[[Lanes], list[Any]]
    function: Callable[..., Any]
    results: tuple[int | None, ...]
    slots: frozenset[int]


class Execution(NamedTuple):
    """One instruction of some lanes, with its operands fetched."""

    kind: DeferredKind
    lanes: Lanes
    arguments: list[Any]


class Deferred:
    """The waiting executions of a machine; `slots` are the places of the registers that they will write."""

    def __init__(self, machine: Machine, code: Code) -> None:
        self.machine, self.code = machine, code
        self.has_waiting = np.zeros(machine.geometry.lanes, np.bool_)
        self.waiting: dict[int, list[Execution]] = {}
        self.signatures: dict[Any, int] = {}
        self.slots: set[int] = set()
        self.warps = 0
        self.tried: set[Any] = set()
        self.kinds: dict[int, DeferredKind] = {}
        self.touched: dict[int, frozenset[int]] = {}

    def takes(self, lanes: Lanes, pc: int, step: Step) -> bool:
        """Return whether an execution may wait, and keep it if so. The first execution of an opcode does not wait, so
        that it reports its findings (unknown arithmetic of a target, for example). Where every statement reports,
        the first execution of each statement does not wait."""
        if lanes.count >= 32 * MANY or not lanes.in_whole_warps:
            return False
        kind = self.kinds.get(pc)
        if kind is None:
            first = step.bound.opcode if self.machine.arithmetic == "silicon" else pc
            if first not in self.tried:
                self.tried.add(first)
                return False
            kind = self.kinds[pc] = _deferred_kind(self.code, pc, self.signatures)
        self.waiting.setdefault(kind.number, []).append(Execution(kind, lanes, kind.operands(lanes)))
        self.slots |= kind.slots
        self.has_waiting[lanes.key] = True
        if self.machine.registers.unwritten:
            mark_written(lanes, *step.writes())
        self.warps += lanes.count // 32
        if self.warps >= MANY:
            self.settle()
        return True

    def before(self, block: BasicBlock, lanes: Lanes) -> None:
        """Compute the waiting executions if the block about to run touches their registers."""
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
        """Compute all waiting executions and write their results to the registers."""
        waiting, self.waiting, self.warps = self.waiting, {}, 0
        self.slots = set()
        self.has_waiting[:] = False
        for alike in waiting.values():
            self._compute(alike)

    def _compute(self, alike: list[Execution]) -> None:
        """Compute executions of one number by one call."""
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


def _deferred_kind(code: Code, pc: int, signatures: dict[Any, int]) -> DeferredKind:
    """Return the kind of the statement at `pc`. Its number is looked up in `signatures` (opcode, register widths,
    source types); a new signature is added there."""
    step, bits = code.steps[pc], code.register_bits
    writes = tuple(step.writes())
    widths = tuple(bits[index] for index in (*writes, *step.reads()))
    signature = step.bound.opcode, widths, tuple(type.name for _, type in step.sources)
    slots = frozenset(code.slots[index] for index in writes)
    ((results, _),) = step.results
    assert isinstance(results, tuple)
    number = signatures.setdefault(signature, len(signatures))
    return DeferredKind(step, number, operands_function(code, pc), terminator_function(code, pc), results, slots)


def _stacked(operands: Sequence[list[Any]], counts: list[int]) -> list[Any]:
    """Return each operand of all executions, with the lanes of one execution after the other."""
    return [_one_behind_other(values, counts) for values in zip(*operands, strict=True)]


def _one_behind_other(values: Sequence[Any], counts: list[int]) -> Any:
    """Return one operand of all executions as one array, or as a list for a list of registers; None stays None."""
    if isinstance(values[0], list):
        return [_one_behind_other(each, counts) for each in zip(*values, strict=True)]
    if values[0] is None:
        return None
    parts = [one if len(one) == count else one.repeat(count) for one, count in zip(values, counts, strict=True)]
    return np.concatenate(parts)
