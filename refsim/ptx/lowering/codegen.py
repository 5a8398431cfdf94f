"""From a block to one Python function: a line per PTX instruction, registers as local variables.

The generated text of `add.s32 %r3, %r1, %r2` is `r3 = f0(r1, r2)`; f0 is the instruction implementation bound to its
types. Registers are written back once at the end. Inactive lanes keep theirs: `put` writes only the active set.

One call computes a run of statements: one operation on different registers, and none reads another's result.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from types import CodeType
from typing import Any

import numpy as np

from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.registers import check_written, get, mark_written, put
from refsim.ptx.execution.types import PtxType, is_plain, unviewer, view, viewer
from refsim.ptx.lowering.blocks import BasicBlock, Code
from refsim.ptx.lowering.steps import (
    AddressOperand,
    BranchTarget,
    BranchTargets,
    Constant,
    Source,
    Step,
    place,
    registers_of,
)
from refsim.ptx.memory.arrays import Array
from refsim.ptx.text.syntax import Negated, Register, Special, Symbol

_FEWEST = 4  # statements that are worth a call of their own
_MOST = 1 << 13  # numbers of one operand; with more of them their memory costs more than calls


def runs(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """Yield the steps in order, as lists of steps that one call may compute."""
    run: list[Step] = []
    for step in steps:
        if not (run and _goes_on(run, step)):
            yield from _cut(run)
            run = []
        run.append(step)
    yield from _cut(run)


def _cut(run: list[Step]) -> Iterator[list[Step]]:
    if len(run) >= _FEWEST:
        yield run
    else:
        yield from ([step] for step in run)


def _goes_on(run: list[Step], step: Step) -> bool:
    """Return whether a step repeats the operation of the run, and neither reads nor writes its results."""
    before = run[-1]
    written = {index for each in run for index in each.writes()}
    return (
        step.bound.clause.together
        and step.guard is None
        and before.guard is None
        and step.bound.clause is before.bound.clause
        and step.bound.keywords == before.bound.keywords
        and all(isinstance(source, Register) for each in (before, step) for source, _ in each.sources)
        and written.isdisjoint((*step.reads(), *step.writes()))
    )


def in_one_call(
    function: Callable[..., Array], unviewed: Callable[[Array], Array], count: int, *operands: list[Array] | Array
) -> list[Array]:
    """Return the result bits of `count` statements. Each operand is a list of bits, one per statement, or one array for
    all statements. One call computes as many statements as caches hold."""
    columns = [each if isinstance(each, list) else [each] * count for each in operands]
    lanes = max(len(each) for column in columns for each in column)
    if (rows := _MOST // lanes) < _FEWEST:
        return [unviewed(function(*each)) for each in zip(*columns, strict=True)]
    found: list[Array] = []
    for first in range(0, count, rows):
        some = slice(first, min(first + rows, count))
        shape = some.stop - first, lanes
        stacked = [_stacked(each[some] if isinstance(each, list) else each, shape) for each in operands]
        found += [unviewed(row) for row in function(*stacked)]
    return found


def _stacked(operands: list[Array] | Array, shape: tuple[int, int]) -> Array:
    """Return an operand of several statements as rows (statements, lanes)."""
    if not isinstance(operands, list):
        return np.broadcast_to(operands, shape)
    if all(len(each) == shape[1] for each in operands):
        return np.concatenate(operands).reshape(shape)
    return np.stack([np.broadcast_to(each, shape[1:]) for each in operands])


def typed(source: Source, type: PtxType) -> Callable[[Any], Any]:
    """Return the function from an operand's fetched bits to the values that an instruction implementation takes."""
    if isinstance(source, AddressOperand | BranchTarget | BranchTargets) or source is None:
        return lambda bits: bits
    values = viewer(type)
    if not isinstance(source, tuple):
        return values
    if any(isinstance(element, AddressOperand | BranchTarget) or element is None for element in source):
        parts = [typed(element, type) for element in source]
        return lambda bits: [part(element) for part, element in zip(parts, bits, strict=True)]
    return lambda bits: list(map(values, bits))


def clause_function(step: Step, register_bits: list[int]) -> Callable[..., Any]:
    """Return the step's instruction implementation over register bits. The function takes the lanes first if the
    implementation wants them. It returns one result as an array, several as a list."""
    bound = step.bound
    function, keywords, wants_lanes = bound.clause.function, step.keywords, bound.clause.wants_lanes
    operands = [typed(source, type) for source, type in step.sources]
    results = [_result_function(result, type, register_bits) for result, type in step.results]
    if bound.clause.keeps_registers:
        operands = [
            part if not isinstance(one, tuple) else tuple for part, (one, _) in zip(operands, step.sources, strict=True)
        ]
    is_silent = not results or bound.clause.flow or bound.clause.keeps_registers

    def call(*arguments: Any) -> Any:
        """Return the result bits of the implementation; take the lanes first if it wants them."""
        if wants_lanes:
            lanes, *bits = arguments
            value = function(lanes, *[part(one) for part, one in zip(operands, bits, strict=True)], **keywords)
        else:
            value = function(*[part(one) for part, one in zip(operands, arguments, strict=True)], **keywords)
        if is_silent:
            return None
        if len(results) == 1:
            return results[0](value[0] if isinstance(value, tuple) else value)
        return [out(part) for part, out in zip(value, results, strict=False)]

    return call


def _result_function(result: Any, type: PtxType, register_bits: list[int]) -> Callable[[Any], Any]:
    """Return the function from an implementation's values to the bits of a result register, or of a vector of them."""
    if isinstance(result, tuple):
        parts = [unviewer(type, type.bits if index is None else register_bits[index]) for index in result]
        return lambda values: [part(value) for part, value in zip(parts, values, strict=True)]
    return unviewer(type, type.bits if result is None else register_bits[result])


def terminator_function(code: Code, pc: int) -> Callable[..., Any]:
    """Return the implementation of the statement at `pc` over register bits, made once for all launches."""
    if pc not in code.functions:
        code.functions[pc] = clause_function(code.steps[pc], code.register_bits)
    return code.functions[pc]


def operands_function(code: Code, pc: int) -> Callable[[Lanes], list[Any]]:
    """Return the function that fetches the operands of the statement at `pc`, made once for all launches."""
    if pc not in code.fetchers:
        names: dict[str, Any] = {"__name__": __name__, "get": get, "place": place}
        kept = code.steps[pc].bound.clause.keeps_registers
        text = ", ".join(
            str(tuple(registers_of(source)))
            if kept and isinstance(source, tuple)
            else _fetching(source, "get(lanes, {})".format, partial(_named, names))
            for source, _ in code.steps[pc].sources
        )
        code.fetchers[pc] = eval(f"lambda lanes: [{text}]", names)
    return code.fetchers[pc]


def _fetching(source: Source, read: Callable[[int], str], constant: Callable[[Any], str]) -> str:
    """Return the source text that fetches an operand: `read` gives the text of a register, `constant` a value's name."""
    match source:
        case Constant(bits):
            return constant(bits)
        case Register(index):
            return read(index)
        case Negated(register):
            return f"~{read(register.index)}"
        case Special(name):
            return f"lanes.machine.special(lanes, {name!r})"
        case Symbol(name, offset):
            return f"lanes.symbol({name!r}, {offset})"
        case BranchTarget(pc):
            return str(pc)
        case BranchTargets(pcs):
            return constant(pcs)
        case AddressOperand(base, offset):
            return f"place({_fetching(base, read, constant)}, {constant(np.array([offset])) if offset else 0})"
        case None:
            return "None"
    return "[" + ", ".join(_fetching(element, read, constant) for element in source) + "]"


def _named(names: dict[str, Any], value: Any) -> str:
    """Return a new name for a value that a text refers to."""
    name = f"k{len(names)}"
    names[name] = value
    return name


class Writer:
    """A writer of the text of one block's function."""

    def __init__(self, block: BasicBlock, code: Code) -> None:
        """Start an empty text. `held` are the registers that are local variables, `changed` the registers written,
        `sure` the registers known as initialized."""
        self.block, self.code = block, code
        self.lines: list[str] = []
        self.names: dict[str, Any] = {
            "__name__": __name__,  # a report passes over it as over the rest of refsim
            "get": get,
            "put": put,
            "place": place,
            "merge": merge,
            "part": part,
            "np": np,
            "one": one,
            "in_one_call": in_one_call,
            "check_written": check_written,
            "mark_written": mark_written,
        }
        self.held: set[int] = set()
        self.changed: set[int] = set()
        self.sure: set[int] = set()

    def constant(self, value: Any) -> str:
        """Return a new name for a value that the text refers to."""
        return _named(self.names, value)

    def register(self, index: int) -> str:
        """Return the variable of a register, fetched at its first use."""
        if index not in self.held:
            self.lines.append(f"r{index} = get(lanes, {index})")
            self.held.add(index)
        return f"r{index}"

    def read(self, index: int) -> str:
        """Return the variable of a register that an instruction reads, after a check that it is initialized."""
        name = self.register(index)
        if index in self.code.doubtful and index not in self.sure:
            self.lines.append(f"check_written(lanes, {index})")
            self.sure.add(index)
        return name

    def expression(self, source: Source) -> str:
        """Return the source text of an operand's bits."""
        return _fetching(source, self.read, self.constant)

    def step(self, step: Step) -> None:
        """Write the lines of a step."""
        if self.is_simple(step):
            self.simple(step)
            return
        if step.guard is None and len(step.results) <= 1 and not step.bound.clause.flow:
            self.whole(step)
            return
        arguments = [self.expression(source) for source, _ in step.sources]
        function = self.constant(clause_function(step, self.code.register_bits))
        wants_lanes = step.bound.clause.wants_lanes
        if wants_lanes:
            self.lines.append(f"lanes.statement = {self.constant(step.statement)}")
        if step.guard is None:
            self.marked(step)
        targets = [f"r{index}" for index in step.writes()]
        left = self.left_side(step)
        if step.guard is None:
            call = f"{function}({', '.join((['lanes'] if wants_lanes else []) + arguments)})"
            self.lines.append(f"{left} = {call}" if left else call)
        else:
            self.guarded(step, function, arguments, targets, left)
        self.wrote(step)

    def marked(self, step: Step, indent: str = "") -> None:
        """Write a line that marks results with unspecified or unverified bits."""
        if step.certainty != "exact":
            self.lines.append(f"{indent}{self.constant(step)}.mark_open(lanes.machine)")

    def wrote(self, step: Step) -> None:
        """Record the results of a step as written; in a guarded step, only for the lanes that ran it."""
        written = set(step.writes())
        self.held |= written
        self.changed |= written
        for index in sorted(written & self.code.doubtful):
            self.lines.append(
                f"{'' if step.guard is None else '    '}mark_written({'lanes' if step.guard is None else 'chosen'}, {index})"
            )
        if step.guard is None:
            self.sure |= written

    def whole(self, step: Step) -> None:
        """Write an unguarded step with at most one result: views and implementation in one line. Each element of a
        result is converted by a line: `[r3, r4] = one(f0(lanes, place(r1, 8)))` and `r3 = u0(r3)`."""
        clause, keywords = step.bound.clause, step.keywords
        arguments = [self.operand(source, type) for source, type in step.sources]
        if clause.wants_lanes:
            self.lines.append(f"lanes.statement = {self.constant(step.statement)}")
            arguments.insert(0, "lanes")
        self.marked(step)
        function = self.constant(partial(clause.function, **keywords) if keywords else clause.function)
        call = f"{function}({', '.join(arguments)})"
        for result, type in step.results:
            self.lines.append(f"{self.left_side(step)} = one({call})")
            for index in dict.fromkeys(result if isinstance(result, tuple) else (result,)):
                if index is not None:
                    self.lines.append(
                        f"r{index} = {self.constant(unviewer(type, self.code.register_bits[index]))}(r{index})"
                    )
        if not step.results:
            self.lines.append(call)
        self.wrote(step)

    def operand(self, source: Source, type: PtxType) -> str:
        """Return the source text of an operand, perhaps an address or a vector, as the implementation takes it."""
        if isinstance(source, tuple):
            return "[" + ", ".join(self.operand(element, type) for element in source) + "]"
        if isinstance(source, AddressOperand | BranchTarget | BranchTargets) or source is None:
            return self.expression(source)
        return self.value(source, type)

    def is_simple(self, step: Step) -> bool:
        """Return whether a step is one implementation over whole operands with one result, for all active lanes."""
        clause = step.bound.clause
        return (
            step.guard is None
            and not clause.wants_lanes
            and not clause.counts_results
            and step.certainty == "exact"
            and len(step.results) == 1
            and isinstance(step.results[0][0], int)
            and (len(step.bound.results) == 1 or step.results[0][1].name == "pred")
            and all(isinstance(source, Register | Negated | Constant | Special | Symbol) for source, _ in step.sources)
        )

    def simple(self, step: Step) -> None:
        """Write a step as one line, with views around the implementation: `r3 = u0(f0(r1, v0(r2)))`."""
        clause, ((index, type),) = step.bound.clause, step.results
        function = partial(clause.function, **step.bound.keywords) if step.bound.keywords else clause.function
        arguments = ", ".join(self.value(source, type) for source, type in step.sources)
        assert isinstance(index, int)
        unviewed = self.constant(first if type.name == "pred" else unviewer(type, self.code.register_bits[index]))
        self.lines.append(f"r{index} = {unviewed}({self.constant(function)}({arguments}))")
        self.wrote(step)

    def value(self, source: Source, type: PtxType) -> str:
        """Return the source text of an operand as values of its type."""
        match source:
            case Constant(bits):
                return self.constant(view(bits, type))
            case Register(index) if is_plain(type, self.code.register_bits[index]):
                return self.read(index)
        return f"{self.constant(viewer(type))}({self.expression(source)})"

    def guarded(self, step: Step, function: str, arguments: list[str], targets: list[str], left: str) -> None:
        """Write a step that only the lanes of its guard run; other lanes keep their registers."""
        assert step.guard is not None
        guard = self.read(step.guard.register.index)
        guard = f"~{guard}" if step.guard.negated else guard
        for index in step.writes():
            self.register(index)
        self.lines.append(f"chosen = lanes.select(lanes.full({guard}))")
        self.lines.append("if chosen is not None:")
        self.marked(step, "    ")
        if step.bound.clause.wants_lanes:
            arguments = ["chosen"] + [f"part(lanes, {guard}, {argument})" for argument in arguments]
            fresh = [f"n{name}" for name in targets]
            inner = left.replace("r", "nr") if left else ""
            self.lines.append(f"    {inner + ' = ' if inner else ''}{function}({', '.join(arguments)})")
            for name, new in zip(targets, fresh, strict=True):
                self.lines.append(f"    {name} = merge(lanes, {guard}, {name}, {new})")
        else:
            inner = f"{left.replace('r', 'nr')} = " if left else ""
            self.lines.append(f"    {inner}{function}({', '.join(arguments)})")
            self.lines += [f"    {name} = np.where({guard}, n{name}, {name})" for name in targets]

    def left_side(self, step: Step, letter: str = "r") -> str:
        """Return the variables of a step's results as the left side of an assignment."""

        def name(result: Any) -> str:
            """Return the variable of a result, or a list of variables."""
            if isinstance(result, tuple):
                return "[" + ", ".join(name(element) for element in result) + "]"
            return "_" if result is None else f"{letter}{result}"

        return ", ".join(name(result) for result, _ in step.results)

    def keep(self, index: int) -> None:
        """Write a register that later blocks read back to its place."""
        self.lines.append(f"put(lanes, {index}, r{index})")

    def run(self, steps: list[Step]) -> None:
        """Write steps that one call computes: `[r3, r4] = in_one_call(f0, u0, 2, [r1, r2], r5)`."""
        bound, ((first_result, type),) = steps[0].bound, steps[0].results
        assert isinstance(first_result, int)
        operands = []
        for at, (_, kind) in enumerate(steps[0].sources):
            texts = [self.value(step.sources[at][0], kind) for step in steps]
            is_one = all(step.sources[at] == steps[0].sources[at] for step in steps)
            operands.append(texts[0] if is_one else f"[{', '.join(texts)}]")
        function = self.constant(partial(bound.clause.function, **bound.keywords))
        unviewed = self.constant(unviewer(type, self.code.register_bits[first_result]))
        left = ", ".join(self.left_side(step) for step in steps)
        self.lines.append(f"[{left}] = in_one_call({function}, {unviewed}, {len(steps)}, {', '.join(operands)})")
        for step in steps:
            self.wrote(step)

    def write(self) -> None:
        """Write all steps of the block."""
        for steps in runs(self.block.steps):
            if len(steps) > 1:
                self.run(steps)
            else:
                self.step(steps[0])

    def function(self) -> Callable[[Lanes], None]:
        """Return the compiled function of the block."""
        self.write()
        for index in sorted(self.changed & self.block.live_out):
            self.keep(index)
        body = "\n    ".join(self.lines or ["pass"])
        exec(_compiled(body, self.block.pc), self.names)
        run: Callable[[Lanes], None] = self.names["block"]
        return run


@lru_cache(maxsize=1 << 12)
def _compiled(body: str, pc: int) -> CodeType:
    """Return the definition of a block's function; equal texts share it."""
    return compile(f"def block(lanes):\n    {body}\n", f"<block {pc}>", "exec")


def one(values: Any) -> Any:
    """Return the result of a statement with one result, or the first result of its implementation."""
    return values[0] if isinstance(values, tuple) else values


def first(tests: Array | tuple[Array, ...]) -> Array:
    """Return the predicate of a comparison; its complement, the second value, is dropped."""
    test = tests[0] if isinstance(tests, tuple) else tests
    return test if test.dtype == np.bool_ else test.astype(np.bool_)


def part(lanes: Lanes, guard: Array, value: Any) -> Any:
    """Return the guard's lanes of an operand; a value for all lanes stays as it is."""
    if isinstance(value, list):
        return [part(lanes, guard, element) for element in value]
    if not isinstance(value, np.ndarray) or len(value) == 1:
        return value
    return value[lanes.full(guard)]


def merge(lanes: Lanes, guard: Array, old: Array, new: Array) -> Array:
    """Return a register with new values in the lanes of the guard."""
    whole = np.broadcast_to(old, (lanes.count,)).copy()
    whole[lanes.full(guard)] = new
    return whole


def translate(block: BasicBlock, code: Code) -> Callable[[Lanes], None]:
    """Return the Python function that runs a block's steps (not its terminator) for a set of lanes."""
    return Writer(block, code).function()
