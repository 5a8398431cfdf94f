"""A parsed function to steps and blocks: every opcode bound to its clause, every operand to how it is fetched.

A block is a straight-line run: it starts at a label or behind a terminator and ends before the next start. A terminator is
a statement after which the scheduler decides who goes on (branches, exits, barriers, meetings of a warp).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.ptx.isa.binding import Bound, bind
from refsim.ptx.isa.forms import OperandForm, supports
from refsim.ptx.isa.types import TYPES, PtxType
from refsim.ptx.lowering.contraction import Contraction, contractions
from refsim.ptx.lowering.operands import Constant, Place, Source, Target, registers_of
from refsim.ptx.lowering.register_slots import shared_slots
from refsim.ptx.text.lexer import malformed
from refsim.ptx.text.syntax import (
    Address,
    Dual,
    Function,
    Guard,
    Immediate,
    Label,
    Negated,
    Operand,
    Register,
    Special,
    Statement,
    Symbol,
    Vector,
)


@dataclass(frozen=True)
class Step:
    """One statement ready to run: its clause with modifiers, the sources to fetch and the registers to write."""

    statement: Statement
    bound: Bound
    sources: tuple[tuple[Source, PtxType], ...]
    results: tuple[tuple[int | tuple[int | None, ...] | None, PtxType], ...]
    guard: Guard | None

    @property
    def is_terminator(self) -> bool:
        return self.bound.clause.ends_block

    def reads(self) -> Iterator[int]:
        """Registers that the step reads, its guard included."""
        if self.guard:
            yield self.guard.register.index
        for source, _ in self.sources:
            yield from registers_of(source)

    def writes(self) -> Iterator[int]:
        """Registers that the step writes."""
        for result, _ in self.results:
            yield from (index for index in (result if isinstance(result, tuple) else (result,)) if index is not None)


@dataclass
class Block:
    """Steps of a straight-line run, the terminator behind them, and the registers that later blocks read."""

    pc: int
    steps: list[Step]
    terminator: Step | None
    next_pc: int
    live_out: set[int] = field(default_factory=set)
    run: Any = None


@dataclass
class Code:
    """An entry, lowered: blocks by first statement, the register table (carry flag last), and where registers are kept."""

    function: Function
    blocks: dict[int, Block]
    register_bits: list[int]
    steps: list[Step]
    carry: int
    slots: list[int] = field(default_factory=list)
    slot_bits: list[int] = field(default_factory=list)
    functions: dict[int, Callable[..., Any]] = field(default_factory=dict)

    @cached_property
    def contractions(self) -> tuple[Contraction, ...]:
        """The products that ptxas may fuse with a sum."""
        return contractions(self.function)

    @cached_property
    def is_asynchronous(self) -> bool:
        """Whether it starts copies that go on while threads compute."""
        return any(step.statement.opcode.startswith("cp.async.") for step in self.steps)

    @cached_property
    def granule(self) -> int:
        """The bytes of the narrowest access to shared memory, 16 where there is none: every access covers whole ones."""
        return min((width for step in self.steps if (width := _shared_width(step))), default=16)


def _shared_width(step: Step) -> int:
    """The bytes of one access to what may be shared memory, by a load, a store, an atomic or a copy; 0 for all else."""
    modifiers, mnemonic = step.bound.modifiers, step.bound.clause.mnemonic
    if mnemonic == "cp":
        sizes = [source for (form, _), (source, _) in zip(step.bound.sources, step.sources, strict=True)
                 if form.name == "bytes"]  # fmt: skip
        return max((int(size.bits[0]) & 0b11100 for size in sizes if isinstance(size, Constant)), default=0)
    space = modifiers.get("space")
    if mnemonic not in ("ld", "st", "atom", "red") or not (space is None or space.startswith("shared")):
        return 0
    vector = modifiers.get("vec") if mnemonic in ("ld", "st") else None
    return min(16, TYPES[modifiers["type"]].bits // 8 * int((vector or "v1")[1:]))


def lower(function: Function, target: str) -> Code:
    """Bind every statement of a function and cut it into blocks; unknown or ill-formed instructions are RefsimError."""
    if max(function.register_bits, default=0) > 64:
        wide = function.register_names[int(np.argmax(function.register_bits))]
        raise RefsimError(
            "unsupported-register", f"{function.name} uses {wide}, of 128 bits", rule="registers have up to 64 bits"
        )
    carry = len(function.register_bits)
    register_bits = [*function.register_bits, 1]
    steps = [_step(statement, function, target, carry) for statement in function.statements]
    starts = {0, *function.labels.values()} | {pc + 1 for pc, step in enumerate(steps) if step.is_terminator}
    blocks = {}
    for pc in sorted(start for start in starts if start < len(steps)):
        end = pc
        while end < len(steps) and not steps[end].is_terminator and (end == pc or end not in starts):
            end += 1
        ended = end < len(steps) and steps[end].is_terminator and (end == pc or end not in starts)
        blocks[pc] = Block(pc, steps[pc:end], steps[end] if ended else None, end + 1 if ended else end)
    code = Code(function, blocks, register_bits, steps, carry)
    _mark_live(code)
    return code


def _step(statement: Statement, function: Function, target: str, carry: int) -> Step:
    where = f"PTX line {statement.line}" + (f" ({statement.location})" if statement.location else "")
    bound = bind(statement.opcode, where, len(statement.operands), _predicates(statement, function))
    if not supports(target, bound.since):
        raise RefsimError(
            "unsupported-target", f"{statement.opcode} exists from {bound.since} on, the target is {target}",
            where=where, rule=str(bound.clause.source), help="compile or load for a newer target",
        )  # fmt: skip
    _check_vectors(statement, bound)
    if statement.guard:
        _check_register(statement.guard.register, TYPES["pred"], function, statement)
    operands = list(statement.operands)
    if operands and isinstance(operands[0], Dual):
        operands[:1] = [operands[0].first, operands[0].second]
        given_results = 2
    else:
        given_results = min(1, sum(form.name != "dcc" for form, _ in bound.results))
    results: list[Any] = [
        (_result(operand, form, type, function, statement), type)
        for operand, (form, type) in zip(operands[:given_results], bound.results, strict=False)
    ]
    forms = bound.sources
    if any(form.name == "dcc" for form, _ in bound.results):
        results.append((carry, bound.results[-1][1]))
    has_carry = any(form.name == "cc" for form, _ in forms)
    forms = [pair for pair in forms if pair[0].name != "cc"]
    given = operands[given_results:]
    needed = sum(not form.optional for form, _ in forms)
    if not needed <= len(given) <= len(forms):
        raise malformed(f"{statement.opcode} takes {bound.clause.form.partition(' ')[2]!r}, found {len(given)} sources",
                        statement.line)  # fmt: skip
    left_out = len(forms) - len(given)
    sources: list[Any] = []
    for form, type in reversed(forms):
        if form.optional and left_out:
            left_out -= 1
            sources.insert(0, (None, type))
        else:
            sources.insert(0, (_source(given.pop(), form, type, function, statement), type))
    if has_carry:
        sources.append((Register(carry), next(type for form, type in bound.sources if form.name == "cc")))
    return Step(statement, bound, tuple(sources), tuple(results), statement.guard)


def _predicates(statement: Statement, function: Function) -> int:
    """How many operands behind the first are predicates."""
    return sum(
        isinstance(operand, Negated) or (isinstance(operand, Register) and function.register_bits[operand.index] == 1)
        for operand in statement.operands[1:]
    )


def _check_vectors(statement: Statement, bound: Bound) -> None:
    """Vectors have as many elements as the opcode says (a single register may stand in braces, as Triton writes it);
    mov has one on one side, whose elements share its bits."""
    counts = [len(operand.elements) for operand in statement.operands if isinstance(operand, Vector)]
    many = sum(form.many for form, _ in bound.operands)
    if bound.clause.mnemonic == "mov" and many:
        bits = bound.operands[0][1].bits
        fits = not counts or (len(counts) == 1 and counts[0] in (2, 4, 8) and bits // counts[0] >= 8)
    elif "vec" in bound.clause.flags:
        length = int((bound.modifiers["vec"] or "v1")[1:])
        fits = counts == [length] * many or (length == 1 and not counts)
    else:
        fits = counts == [form.count or 4 for form, _ in bound.operands if form.many]
    if not fits:
        raise malformed(f"{statement.opcode} has vectors of {counts or 'no'} elements", statement.line)


def _check_register(register: Register, type: PtxType, function: Function, statement: Statement) -> None:
    """A predicate stands where the instruction wants one, and nowhere else."""
    if (function.register_bits[register.index] == 1) != (type.name == "pred"):
        wanted = "a predicate" if type.name == "pred" else f"a value of type {type.name}"
        name = function.register_names[register.index]
        raise malformed(f"{statement.opcode} wants {wanted}, {name} is none", statement.line)


def _result(operand: Operand | None, form: OperandForm, type: PtxType, function: Function, statement: Statement) -> Any:
    if operand is None:
        return None
    if isinstance(operand, Register):
        _check_register(operand, type, function, statement)
        return (operand.index,) if form.many else operand.index
    if form.many and isinstance(operand, Vector):
        single = OperandForm(form.name, form.type)
        return tuple(_result(element, single, type, function, statement) for element in operand.elements)
    raise malformed(f"operand {form.name!r} of {statement.opcode} must be a register", statement.line)


def _source(
    operand: Operand | None, form: OperandForm, type: PtxType, function: Function, statement: Statement
) -> Source:
    if form.many:
        elements = operand.elements if isinstance(operand, Vector) else (operand,)
        single = OperandForm(form.name, form.type)
        return tuple(_source(element, single, type, function, statement) for element in elements)
    if form.name in ("target", "targets"):
        return _target(operand, form, function, statement)
    match operand:
        case Immediate():
            return Constant(constant_bits(operand, type))
        case Address(base, offset):
            return Place(_source(base, OperandForm("a", "b64"), _B64, function, statement), offset)
        case Register():
            _check_register(operand, type, function, statement)
            return operand
        case Negated(register):
            _check_register(register, type, function, statement)
            return operand
        case Special() | Symbol():
            return operand
    raise malformed(f"operand {form.name!r} of {statement.opcode} is of the wrong kind", statement.line)


def _target(operand: Operand | None, form: OperandForm, function: Function, statement: Statement) -> Source:
    """Where a branch goes: the statement behind a label, or those of a table."""
    is_table = form.name == "targets"
    match operand:
        case Label(name) if (name in function.branch_tables) == is_table:
            if is_table:
                return tuple(Target(function.labels[label]) for label in function.branch_tables[name])
            if name not in function.labels:
                raise malformed(f"label {name!r} stands nowhere", statement.line)
            return Target(function.labels[name])
    raise malformed(
        f"{statement.opcode} takes a {'table of labels' if is_table else 'label of this function'}", statement.line
    )


_B64 = TYPES["b64"]


def constant_bits(constant: Immediate, type: PtxType) -> NDArray[Any]:
    """The bits of a constant as an operand of a type, shape (1,): 1.0 written for f64 becomes 0x3f800000 for f32."""
    value = constant.value
    if type.name == "pred":
        return np.array([bool(value)])
    if constant.kind == "f64" and type.name in ("f32", "f16"):
        double = np.array([value], np.uint64).view(np.float64)
        return double.astype(type.dtype).view(type.bits_dtype)
    if constant.kind == "int" and type.dtype.kind == "f":
        return np.array([value], np.float64).astype(type.dtype).view(type.bits_dtype)
    return np.array([value & ((1 << type.bits) - 1)], type.bits_dtype)


def _mark_live(code: Code) -> None:
    """Which registers each block must keep: a backward pass until nothing changes."""
    used, killed, successors = {}, {}, {}
    for pc, block in code.blocks.items():
        reads: set[int] = set()
        writes: set[int] = set()
        for step in [*block.steps, *([block.terminator] if block.terminator else [])]:
            reads |= set(step.reads()) - writes
            if step.guard:
                reads |= set(step.writes()) - writes
            else:
                writes |= set(step.writes())
        used[pc], killed[pc] = reads, writes
        targets = [block.next_pc] if block.next_pc in code.blocks and not _never_goes_on(block.terminator) else []
        if block.terminator:
            targets += [pc for source, _ in block.terminator.sources for pc in _targets(source)]
        successors[pc] = [target for target in targets if target in code.blocks]
    live_in = {pc: set(reads) for pc, reads in used.items()}
    changed = True
    while changed:
        changed = False
        for pc in sorted(code.blocks, reverse=True):
            block = code.blocks[pc]
            block.live_out = set().union(*(live_in[target] for target in successors[pc]))
            entering = used[pc] | (block.live_out - killed[pc])
            if entering != live_in[pc]:
                live_in[pc], changed = entering, True
    for block in code.blocks.values():
        if block.terminator:
            block.live_out = block.live_out | set(block.terminator.reads()) | set(block.terminator.writes())
    borders = [*live_in.values(), *(block.live_out for block in code.blocks.values())]
    code.slots, code.slot_bits = shared_slots(code.register_bits, borders)


def _never_goes_on(terminator: Step | None) -> bool:
    """Whether no lane reaches the statement behind a terminator from it: a branch, or an exit, without a guard."""
    leaving = ("bra", "brx", "ret", "exit", "trap")
    return terminator is not None and terminator.guard is None and terminator.bound.clause.mnemonic in leaving


def _targets(source: Source) -> Iterator[int]:
    if isinstance(source, Target):
        yield source.pc
    elif isinstance(source, tuple):
        for element in source:
            yield from _targets(element)
