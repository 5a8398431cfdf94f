"""A block to one Python function: a line per PTX instruction, registers as local variables, written back once at the end.

The generated text of `add.s32 %r3, %r1, %r2` is `r3 = f0(r1, r2)`, where f0 is the clause bound to its types. Lanes that
do not run keep their registers: `put` writes only the set that ran.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.lanes import Lanes
from refsim.ptx.lower import Block, Code, Constant, Place, Source, Step, Target
from refsim.ptx.syntax import Negated, Register, Special, Symbol
from refsim.ptx.types import PtxType, unview, view

Array = NDArray[Any]


def get(lanes: Lanes, index: int) -> Array:
    """A register's bits for a set of lanes: (n,), or (1,) when they are the same for all. Never a view that `put` may
    change: the whole array is given away only together with its ownership."""
    registers = lanes.machine.registers
    array = registers.arrays[index]
    if len(array) == 1:
        return array
    if lanes.is_full:
        registers.owned[index] = False
        return array
    part = array[lanes.key]
    return part.copy() if isinstance(lanes.key, slice) else part


def put(lanes: Lanes, index: int, bits: Array) -> None:
    """Write a register for a set of lanes."""
    registers = lanes.machine.registers
    if lanes.is_full:
        registers.arrays[index] = bits
        registers.owned[index] = False
        return
    array = registers.arrays[index]
    if not registers.owned[index]:
        array = np.broadcast_to(array, (lanes.machine.geometry.lanes,)).copy()
        registers.arrays[index] = array
        registers.owned[index] = True
    array[lanes.key] = bits


def fetch(lanes: Lanes, source: Source, type: PtxType) -> Any:
    """An operand's value for a set of lanes, straight from the registers: what a terminator uses."""
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
            return lanes.machine.symbol(name, offset)
        case Target(pc):
            return pc
        case Place(base, offset):
            return place(fetch(lanes, base, type), offset)
        case None:
            return None
    return [fetch(lanes, element, type) for element in source]


def place(base: Array, offset: int) -> Array:
    """Byte addresses: a register, zero-extended, plus the offset."""
    wide: Array = base.astype(np.int64, copy=False) if base.dtype != np.uint64 else base.view(np.int64)
    return wide + offset if offset else wide


def typed(source: Source, bits: Any, type: PtxType) -> Any:
    """Fetched bits as the values that a clause takes."""
    if isinstance(source, Place | Target) or source is None:
        return bits
    if isinstance(source, tuple):
        return [typed(element, part, type) for element, part in zip(source, bits, strict=True)]
    return view(bits, type)


def clause_function(step: Step, register_bits: list[int]) -> Callable[..., Any]:
    """The step's clause over register bits: one result as an array, several as a list; lanes first where it wants them."""
    bound = step.bound
    function, keywords, wants_lanes = bound.clause.function, dict(bound.keywords), bound.clause.wants_lanes
    sources = step.sources
    if bound.clause.counts_results:
        result = step.results[0][0]
        keywords["results"] = len(result) if isinstance(result, tuple) else 1
    plain = all(isinstance(source, Register | Negated | Constant | Special | Symbol) for source, _ in sources)
    types = [type for _, type in sources]

    def result_widths(result: Any, type: PtxType) -> Any:
        if isinstance(result, tuple):
            return [type.bits if index is None else register_bits[index] for index in result]
        return type.bits if result is None else register_bits[result]

    results = [(type, result_widths(result, type)) for result, type in step.results]

    def out(value: Any, type: PtxType, width: Any) -> Any:
        if isinstance(width, list):
            return [unview(element, type, bits) for element, bits in zip(value, width, strict=True)]
        return unview(value, type, width)

    def call(*arguments: Any) -> Any:
        lanes, bits = (arguments[:1], arguments[1:]) if wants_lanes else ((), arguments)
        if plain:
            values = list(map(view, bits, types))
        else:
            values = [typed(source, part, type) for part, (source, type) in zip(bits, sources, strict=True)]
        value = function(*lanes, *values, **keywords)
        if not results or bound.clause.flow:
            return None
        if len(results) == 1:
            return out(value[0] if isinstance(value, tuple) else value, *results[0])
        return [out(part, *result) for part, result in zip(value, results, strict=False)]

    return call


class _Writer:
    """Writes the text of one block's function."""

    def __init__(self, block: Block, code: Code) -> None:
        self.block, self.code = block, code
        self.lines: list[str] = []
        self.names: dict[str, Any] = {"get": get, "put": put, "place": place, "merge": merge, "part": part, "np": np}
        self.held: set[int] = set()
        self.changed: set[int] = set()

    def constant(self, value: Any) -> str:
        name = f"k{len(self.names)}"
        self.names[name] = value
        return name

    def register(self, index: int) -> str:
        if index not in self.held:
            self.lines.append(f"r{index} = get(lanes, {index})")
            self.held.add(index)
        return f"r{index}"

    def expression(self, source: Source) -> str:
        match source:
            case Constant(bits):
                return self.constant(bits)
            case Register(index):
                return self.register(index)
            case Negated(register):
                return f"~{self.register(register.index)}"
            case Special(name):
                return f"lanes.machine.special(lanes, {name!r})"
            case Symbol(name, offset):
                return f"lanes.machine.symbol({name!r}, {offset})"
            case Target(pc):
                return str(pc)
            case Place(base, offset):
                return f"place({self.expression(base)}, {offset})"
            case None:
                return "None"
        return "[" + ", ".join(self.expression(element) for element in source) + "]"

    def step(self, step: Step) -> None:
        arguments = [self.expression(source) for source, _ in step.sources]
        function = self.constant(clause_function(step, self.code.register_bits))
        wants_lanes = step.bound.clause.wants_lanes
        if wants_lanes:
            self.lines.append(f"lanes.statement = {self.constant(step.statement)}")
        if step.bound.clause.inexact:
            self.lines.append(f"lanes.machine.mark_inexact({self.constant(step.statement)})")
        targets = [f"r{index}" for index in step.writes()]
        left = self.left_side(step)
        if step.guard is None:
            call = f"{function}({', '.join((['lanes'] if wants_lanes else []) + arguments)})"
            self.lines.append(f"{left} = {call}" if left else call)
        else:
            self.guarded(step, function, arguments, targets, left)
        self.held |= set(step.writes())
        self.changed |= set(step.writes())

    def guarded(self, step: Step, function: str, arguments: list[str], targets: list[str], left: str) -> None:
        assert step.guard is not None
        guard = self.register(step.guard.register.index)
        guard = f"~{guard}" if step.guard.negated else guard
        for index in step.writes():
            self.register(index)
        self.lines.append(f"chosen = lanes.select(lanes.full({guard}))")
        self.lines.append("if chosen is not None:")
        if step.bound.clause.wants_lanes:
            arguments = ["chosen"] + [f"part(lanes, {guard}, {argument})" for argument in arguments]
            fresh = [f"n{name}" for name in targets]
            inner = left.replace("r", "nr") if left else ""
            self.lines.append(f"    {inner + ' = ' if inner else ''}{function}({', '.join(arguments)})")
            for name, new in zip(targets, fresh, strict=True):
                self.lines.append(f"    {name} = merge(lanes, {guard}, {name}, {new})")
        else:
            inner = left.replace("r", "nr")
            self.lines.append(f"    {inner} = {function}({', '.join(arguments)})")
            self.lines += [f"    {name} = np.where({guard}, n{name}, {name})" for name in targets]

    def left_side(self, step: Step) -> str:
        def name(result: Any) -> str:
            if isinstance(result, tuple):
                return "[" + ", ".join(name(element) for element in result) + "]"
            return "_" if result is None else f"r{result}"

        return ", ".join(name(result) for result, _ in step.results)

    def function(self) -> Callable[[Lanes], None]:
        for step in self.block.steps:
            self.step(step)
        for index in sorted(self.changed & self.block.live_out):
            self.lines.append(f"put(lanes, {index}, r{index})")
        body = "\n    ".join(self.lines or ["pass"])
        exec(compile(f"def block(lanes):\n    {body}\n", f"<block {self.block.pc}>", "exec"), self.names)
        run: Callable[[Lanes], None] = self.names["block"]
        return run


def part(lanes: Lanes, guard: Array, value: Any) -> Any:
    """The chosen lanes' part of an operand."""
    if isinstance(value, list):
        return [part(lanes, guard, element) for element in value]
    if not isinstance(value, np.ndarray) or len(value) == 1:
        return value
    return value[lanes.full(guard)]


def merge(lanes: Lanes, guard: Array, old: Array, new: Array) -> Array:
    """A register after some of its lanes were written."""
    whole = np.broadcast_to(old, (lanes.count,)).copy()
    whole[lanes.full(guard)] = new
    return whole


def translate(block: Block, code: Code) -> Callable[[Lanes], None]:
    """The Python function that runs a block's steps (not its terminator) for a set of lanes."""
    return _Writer(block, code).function()
