"""From one statement to a step: its implementation is found, and every operand is matched to an operand of the form.

The text gives operands in the order of the form. `d|p` are two results. An address with coordinates is an address and
its groups. If too few operands are given, the last optional ones are absent. The carry flag `cc` never appears in the
text. A result that is also read (`+d`) comes first among the sources as well.

How an operand of a step is fetched: a constant, a register, an address, a branch target."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from refsim.errors import RefsimError, UnfitTargetError
from refsim.ptx.execution.context import Context
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.registers import get
from refsim.ptx.execution.types import TYPES, PtxType
from refsim.ptx.isa.forms import Bound, Certainty, OperandForm, bind
from refsim.ptx.memory.arrays import Array
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
    RegisterPart,
    Special,
    Statement,
    Symbol,
    Vector,
    location_of,
    with_selectors,
)
from refsim.targets import has, lacking

_BITS, _WIDE = np.dtype(np.uint64), np.dtype(np.int64)


@dataclass(frozen=True)
class Constant:
    """An operand known when the program is loaded: one element for all lanes."""

    bits: Array


@dataclass(frozen=True)
class AddressOperand:
    """An address operand: fetched base plus a byte offset."""

    base: "Source"
    offset: int


@dataclass(frozen=True)
class BranchTarget:
    """A branch target, as the number of the statement it leads to."""

    pc: int


@dataclass(frozen=True)
class BranchTargets:
    """A table of branch targets: a return from a shared function has thousands."""

    pcs: tuple[int, ...]


Source = (
    Constant
    | Register
    | Negated
    | Special
    | Symbol
    | AddressOperand
    | BranchTarget
    | BranchTargets
    | tuple[Any, ...]
    | None
)


def fetch(lanes: Lanes, source: Source, type: PtxType) -> Any:
    """Return an operand's value for a set of lanes, straight from the registers, as a terminator needs it."""
    match source:
        case Constant(bits):
            return bits
        case Register(index):
            return get(lanes, index)
        case Negated(register):
            return ~get(lanes, register.index)
        case Special(name):
            return lanes.machine.special(lanes, name)
        case Symbol(name, offset):
            return lanes.symbol(name, offset)
        case BranchTarget(pc):
            return pc
        case BranchTargets(pcs):
            return pcs
        case AddressOperand(base, offset):
            return place(fetch(lanes, base, type), offset)
        case None:
            return None
    return [fetch(lanes, element, type) for element in source]


def place(base: Array, offset: int | Array) -> Array:
    """Return byte addresses: a register, zero-extended, plus the offset, which may be an array of one."""
    wide: Array = base.view(_WIDE) if base.dtype == _BITS else base.astype(_WIDE, copy=False)
    return wide + offset if offset else wide


def registers_of(source: Source) -> Iterator[int]:
    """Yield the registers that an operand reads."""
    match source:
        case Register(index):
            yield index
        case Negated(Register(index)):
            yield index
        case AddressOperand(base, _):
            yield from registers_of(base)
        case tuple():
            for element in source:
                yield from registers_of(element)


_PARTS = r"-|-?b[0-3]|-?h[01]"
_SELECTORS = {"": ("b[0-3]|h[01]", _PARTS), "2": ("h[01]|h10", "h[0-3]{2}"), "4": ("b(?=.)3?2?1?0?", "b[0-7]{4}")}
"""What selects the parts of d and of a source, by the last letter of a video instruction's name."""
Result = int | tuple[int | None, ...] | None


@dataclass(frozen=True)
class Step:
    """One statement ready to run: its implementation with modifiers, sources to fetch and registers to write."""

    statement: Statement
    bound: Bound
    sources: tuple[tuple[Source, PtxType], ...]
    results: tuple[tuple[Result, PtxType], ...]
    guard: Guard | None
    certainty: Certainty

    def mark_open(self, machine: Context) -> None:
        """Tell the machine that result bits are unspecified, or unverified on its target."""
        match self.certainty:
            case "inexact":
                machine.mark_inexact(self.statement)
            case "assumed":
                machine.mark_assumed(self.statement, self.bound.clause.recorded[0])

    @cached_property
    def mask_at(self) -> int | None:
        """Return the place of the member mask among the sources, or None if the instruction has none."""
        names = [form.name for form, _ in self.bound.sources]
        return names.index("mask") if "mask" in names else None

    @property
    def is_terminator(self) -> bool:
        """Return whether its block ends with it."""
        return self.bound.clause.ends_block

    def reads(self) -> Iterator[int]:
        """Yield registers that the step reads, its guard included."""
        if self.guard:
            yield self.guard.register.index
        for source, _ in self.sources:
            yield from registers_of(source)

    @property
    def keywords(self) -> dict[str, Any]:
        """Return the keywords of the implementation: modifiers, and the number of results if it counts them."""
        keywords = dict(self.bound.keywords)
        if self.bound.clause.counts_results:
            result = self.results[0][0]
            keywords["results"] = len(result) if isinstance(result, tuple) else 1
        return keywords

    def fetches(self) -> Iterator[int]:
        """Yield registers whose values the step takes when it runs, except those that it hands over as registers."""
        if self.guard:
            yield self.guard.register.index
        for source, _ in self.sources:
            if not (self.bound.clause.keeps_registers and isinstance(source, tuple)):
                yield from registers_of(source)

    def kept(self) -> Iterator[int]:
        """Yield registers that the step hands over and that are used after it."""
        if self.bound.clause.keeps_registers:
            for source, _ in self.sources:
                if isinstance(source, tuple):
                    yield from registers_of(source)

    def writes(self) -> Iterator[int]:
        """Yield registers that the step writes."""
        for result, _ in self.results:
            yield from (index for index in (result if isinstance(result, tuple) else (result,)) if index is not None)


@dataclass(frozen=True)
class _Group:
    """One `{x, y}` inside the brackets of an address."""

    elements: tuple[Operand | None, ...]


def bind_statement(statement: Statement, function: Function, target: str, carry: int) -> Step:
    """Return the step of a statement; `carry` is the register that keeps the carry flag. Raises RefsimError:
    `unknown-instruction`, `wrong-target`, or `malformed-ptx` for operands that do not fit."""
    given = _flat(with_selectors(statement.operands))
    _check_selectors(statement)
    try:
        bound = _available(statement, given, function, target)
    except RefsimError as error:
        error.where = f"PTX line {statement.line}{location_of(statement)}"
        raise
    _check_vectors(statement, bound)
    match = _Matcher(statement, function, is_generic=bound.is_generic)
    if statement.guard:
        match.check(statement.guard.register, TYPES["pred"])
    written, read = _split(given, bound)
    typed = [(operand, form, _own(operand, form, type)) for operand, form, type in written]
    results = [(match.result(operand, form, type), type) for operand, form, type in typed]
    results += [(carry, type) for form, type in bound.results if form.name == "dcc"]
    sources: list[tuple[Source, PtxType]] = [
        (match.source(operand, form, type), type) for operand, form, type in typed if form.is_read
    ]
    for operand, form, type in match.paired(read, bound):
        if form.name == "cc":
            sources.append((Register(carry), type))
        else:
            own = _own(operand, form, type)
            sources.append((None if operand is _ABSENT else match.source(operand, form, own), own))
    if bound.clause.keeps_registers:
        match.check_kept(sources)
    certainty = bound.clause.certainty(target)
    return Step(statement, bound, tuple(sources), tuple(results), statement.guard, certainty)


_ABSENT: Any = object()


def _available(statement: Statement, given: list[Any], function: Function, target: str) -> Bound:
    """Return the bound implementation of a statement, or raise RefsimError if the target lacks it."""
    _check_unit(statement.opcode, target)
    kinds = _kinds(given, function)
    bound = bind(statement.opcode, "", len(given), _predicates(statement, function), kinds.count("V"), kinds)
    if not _reaches(target, bound.since):
        what = f"{statement.opcode} exists from {bound.since} on, the target is {target}"
        help = f"compile or load for {bound.since}, or for a newer target"
        raise UnfitTargetError("wrong-target", what, rule=str(bound.clause.source), help=help)
    return bound


_reaches = lru_cache(maxsize=1 << 10)(has)  # few questions, asked for every statement


@lru_cache(maxsize=1 << 12)  # only successes are cached: an error is made anew
def _check_unit(opcode: str, target: str) -> None:
    if refused := lacking(target, opcode):
        raise refused


def _flat(operands: tuple[Operand | None, ...]) -> list[Any]:
    """Return the operands; the groups of an address follow it as operands of their own."""
    found: list[Any] = []
    for operand in operands:
        found.append(operand)
        if isinstance(operand, Address):
            found += [_Group(group.elements) for group in operand.coordinates]
    return found


def _split(given: list[Any], bound: Bound) -> tuple[list[tuple[Any, OperandForm, PtxType]], list[Any]]:
    """Return the results in the text with their forms, and the operands after them."""
    forms = [(form, type) for form, type in bound.results if form.name != "dcc"]
    if not forms or not given:
        return [], given
    first, *others = given
    written = [first.first, first.second] if isinstance(first, Dual) else [first]
    behind = sum(form.apart for form, _ in forms)
    written, others = [*written, *others[:behind]], others[behind:]
    return [(operand, form, type) for operand, (form, type) in zip(written, forms, strict=False)], others


def _own(operand: Any, form: OperandForm, type: PtxType) -> PtxType:
    """Return the type of each element, if the elements of a vector share the bits of the form's type."""
    if form.type != "part" or not isinstance(operand, Vector):
        return type
    return TYPES[f"b{type.bits // len(operand.elements)}"]


def _kinds(given: list[Any], function: Function) -> str:
    """Return the kinds of operands, as `Instruction.kinds` has them."""

    bits, kinds = function.register_bits, ""
    for operand in given:
        match operand:
            case Register(index) | Negated(Register(index)):
                kinds += "P" if bits[index] == 1 else "R"
            case Address():
                kinds += "A"
            case Vector():
                kinds += "V"
            case _:
                kinds += "R"
    return kinds


def _predicates(statement: Statement, function: Function) -> int:
    """Return how many operands after the first are predicates."""
    return sum(
        isinstance(operand, Negated) or (isinstance(operand, Register) and function.register_bits[operand.index] == 1)
        for operand in statement.operands[1:]
    )


def _check_vectors(statement: Statement, bound: Bound) -> None:
    """Raise `malformed-ptx` unless vectors have as many elements as the opcode asks for. A single register may stand in
    braces, as Triton writes it. mov has a vector on one side, whose elements share its bits. Where a form says `**`,
    the implementation itself decides."""
    counts = [len(operand.elements) for operand in statement.operands if isinstance(operand, Vector)]
    forms = bound.vectors
    if not counts and not forms:
        return
    if any(form.any_count for form in forms):
        fits = len(counts) == len(forms)
    elif bound.clause.mnemonic == "mov" and forms and "vec" not in bound.clause.flags:
        bits = bound.operands[0][1].bits
        fits = not counts or (len(counts) == 1 and counts[0] in (2, 4, 8) and bits // counts[0] >= 8)
    elif "vec" in bound.clause.flags or bound.clause.mnemonic in ("ld", "ldu", "st"):
        length = int((bound.modifiers.get("vec") or "v1")[1:])
        fits = counts == [length] * len(forms) or (length == 1 and not counts)
    else:
        lengths = [form.count or 4 for form in forms if form.count or bound.clause.mnemonic == "cvt"]
        fits = (counts if len(counts) == len(lengths) else [count for count in counts if count > 1]) == lengths
    if not fits:
        raise malformed(f"{statement.opcode} has vectors of {counts or 'no'} elements", statement.line)


def _check_selectors(statement: Statement) -> None:
    """Raise `malformed-ptx` for a selector that the operand does not take. A part of d needs the operand c."""
    operands, mnemonic = statement.operands, statement.opcode.partition(".")[0]
    of_d, of_source = _SELECTORS.get(mnemonic[-1], _SELECTORS[""])
    for at, operand in enumerate(operands):
        if isinstance(operand, RegisterPart):
            fits = re.fullmatch((of_d, of_source, of_source, "-")[min(at, 3)], operand.selector)
            if mnemonic[0] != "v" or fits is None or (at == 0 and len(operands) < 4):
                what = f"{statement.opcode} takes no {operand.selector!r} at operand {at + 1} of {len(operands)}"
                raise malformed(what, statement.line)


class _Matcher:
    """The operands of one statement, matched against the operands of its form."""

    def __init__(self, statement: Statement, function: Function, *, is_generic: bool) -> None:
        self.function, self.is_generic = function, is_generic
        self.opcode, self.line = statement.opcode, statement.line

    def paired(self, given: list[Any], bound: Bound) -> Iterator[tuple[Any, OperandForm, PtxType]]:
        """Yield each source of the form with its operand; `_ABSENT` for an operand that was left out."""
        forms = [(form, type) for form, type in bound.sources if not form.is_result]
        in_text = [form for form, _ in forms if form.name != "cc"]
        needed = sum(not form.optional for form in in_text)
        if not needed <= len(given) <= len(in_text):
            raise malformed(
                f"{self.opcode} takes {bound.clause.form.partition(' ')[2]!r}, found {len(given)} sources", self.line
            )
        spare, rest = len(given) - needed, iter(given)
        for form, type in forms:
            if form.name == "cc" or (form.optional and not spare):
                yield _ABSENT, form, type
            else:
                spare -= form.optional
                yield next(rest), form, type

    def check(self, register: Register, type: PtxType) -> None:
        """Raise `malformed-ptx` if a predicate or a 128-bit register is missing, or is where another value belongs."""
        bits = self.function.register_bits[register.index]
        if (bits == 1) != (type.name == "pred") or (bits == 128) != (type.bits == 128):
            wanted = "a predicate" if type.name == "pred" else f"a value of type {type.name}"
            raise malformed(
                f"{self.opcode} wants {wanted}, {self.function.register_names[register.index]} is none", self.line
            )

    def check_kept(self, sources: list[tuple[Source, PtxType]]) -> None:
        """Raise `malformed-ptx` unless registers that are handed over have the width of their type."""
        for source, type in sources:
            if not isinstance(source, tuple):
                continue
            if not all(isinstance(element, Register) for element in source):
                help = "move the constant to a register"
                raise malformed(f"{self.opcode} wants vectors of registers", self.line, help=help)
            for register in registers_of(source):
                if (bits := self.function.register_bits[register]) != type.bits:
                    name = self.function.register_names[register]
                    raise malformed(f"{self.opcode} wants registers of {type.bits} bits, {name} has {bits}", self.line)

    def result(self, operand: Operand | None, form: OperandForm, type: PtxType) -> Result:
        """Return the register of an operand, several for a vector, None for the sink."""
        if not form.many:
            return self.register(operand, form, type)
        if isinstance(operand, Vector):
            return tuple(self.register(element, form, type) for element in operand.elements)
        return None if operand is None else (self.register(operand, form, type),)

    def register(self, operand: Operand | None, form: OperandForm, type: PtxType) -> int | None:
        """Return the number of a register that is written, None for the sink."""
        if operand is None:
            return None
        if not isinstance(operand, Register):
            raise malformed(f"operand {form.name!r} of {self.opcode} must be a register", self.line)
        self.check(operand, type)
        return operand.index

    def source(self, operand: Any, form: OperandForm, type: PtxType) -> Source:
        """Return how an operand is fetched; raise `malformed-ptx` for an operand that the form does not take."""
        if form.inside:
            if isinstance(operand, _Group):
                return tuple(self.source(element, form.single, type) for element in operand.elements)
        elif form.many:
            elements = operand.elements if isinstance(operand, Vector) else (operand,)
            return tuple(self.source(element, form.single, type) for element in elements)
        elif form.name in ("target", "targets"):
            return self.target(operand, is_table=form.name == "targets")
        elif form.address == isinstance(operand, Address):
            match operand:
                case Immediate():
                    return Constant(constant_bits(operand, type))
                case Address(Symbol(name), offset) if self.is_generic:
                    return AddressOperand(Symbol(f"generic({name})"), offset)
                case Address(base, offset):
                    return AddressOperand(self.source(base, form.single, TYPES["b64"]), offset)
                case Register():
                    self.check(operand, type)
                    return operand
                case Negated(register):
                    self.check(register, type)
                    return operand
                case Special() | Symbol():
                    return operand
        raise malformed(f"operand {form.name!r} of {self.opcode} is of the wrong kind", self.line)

    def target(self, operand: Operand | None, *, is_table: bool) -> Source:
        """Return the target of a branch: the statement after a label, or the statements of a table."""
        function = self.function
        match operand:
            case Label(name) if (name in function.branch_tables) == is_table:
                if is_table:
                    return BranchTargets(tuple(function.labels[label] for label in function.branch_tables[name]))
                if name not in function.labels:
                    raise malformed(f"label {name!r} stands nowhere", self.line)
                return BranchTarget(function.labels[name])
        raise malformed(
            f"{self.opcode} takes a {'table of labels' if is_table else 'label of this function'}", self.line
        )


def constant_bits(constant: Immediate, type: PtxType) -> Array:
    """Return the bits of a constant as an operand of a type, shape (1,): 1.0 written for f64 is 0x3f800000 for f32."""
    value = constant.value
    if type.name == "pred":
        return np.array([bool(value)])
    if constant.kind == "f64" and type.name in ("f32", "f16"):
        double = np.array([value], np.uint64).view(np.float64)
        return double.astype(type.dtype).view(type.bits_dtype)
    if constant.kind == "int" and type.dtype.kind == "f":
        return np.array([value], np.float64).astype(type.dtype).view(type.bits_dtype)
    return np.frombuffer((value & ((1 << type.bits) - 1)).to_bytes(type.bits // 8, "little"), type.bits_dtype)
