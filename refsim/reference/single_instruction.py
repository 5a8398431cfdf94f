"""One PTX instruction alone: a program around it for the simulator, and a module of many for an assembler.

The program gives every lane its own operands. An instruction with an address gets a pool of bytes in the state space
that the opcode names. The pool's final contents come back: one pool, or one per lane for local memory.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim import ptx
from refsim.errors import RefsimError
from refsim.ptx.execution.types import TYPES, PtxType
from refsim.ptx.isa.forms import Bound, bind
from refsim.ptx.isa.instances import CARRY, FIRST_LINE, register_type
from refsim.targets import has

Bits = NDArray[np.unsignedinteger]
_TARGETS = ("sm_75", "sm_80", "sm_90a", "sm_100a")


@dataclass(frozen=True)
class InstructionResult:
    """The results of one instruction: an array of bits per result register, and its memory pool afterwards."""

    results: tuple[Bits, ...]
    pool: NDArray[np.uint8]
    trace: ptx.Trace


@dataclass(frozen=True)
class Written:
    """One operand in the text: its registers, their grouping, and their type."""

    name: str
    type: PtxType
    count: int
    address: bool
    is_result: bool
    braced: bool = False
    inside: bool = False

    def registers(self, suffix: str = "") -> list[str]:
        """Return the names of the operand's registers."""
        return [f"{self.name}{'' if self.count == 1 else place}{suffix}" for place in range(self.count)]

    def text(self, suffix: str = "") -> str:
        """Return the operand's text, in brackets for an address and in braces for a vector."""
        names = ", ".join(self.registers(suffix))
        return f"[{names}]" if self.address else f"{{{names}}}" if self.braced else names


def written(bound: Bound, optional: tuple[str, ...] = ()) -> list[Written]:
    """Return the operands of the statement's text: `ld.global.v2.f32` has d (two registers) and the address a. Optional
    operands count only where `optional` names them; a cache hint implies its policy."""
    wanted = (*optional, "policy") if "cache_hint" in bound.opcode else optional
    count = int((bound.modifiers.get("vec") or "v1")[1:]) if bound.clause.mnemonic != "cvt" else 4
    found = []
    for operand, type in bound.operands:
        if operand.name in CARRY or (operand.optional and operand.name not in wanted):
            continue
        held = _address_type(bound) if operand.address else type
        dimensions = int((bound.modifiers.get("dim") or bound.opcode.partition("tensor.")[2] or "1")[0])
        registers = dimensions if operand.inside else operand.count or (count if operand.many else 1)
        braced = operand.inside or operand.count > 0 or registers > 1
        found.append(Written(operand.name, held, registers, operand.address, operand.is_result, braced, operand.inside))
    return found


def _address_type(bound: Bound) -> PtxType:
    """Return the type of an address: 32 bits for tensor memory and for tcgen05's shared addresses, else 64."""
    is_narrow = bound.clause.mnemonic == "tcgen05" and ("space" not in bound.clause.flags or bound.modifiers["space"])
    return TYPES["u32" if is_narrow else "u64"]


def statement(
    bound: Bound, optional: tuple[str, ...] = (), *, typed: bool = False, words: dict[str, str] | None = None
) -> str:
    """Return one PTX statement with any instruction: `atom.global.add.u32 d, [a], b;`.

    With `typed` register names end in their type, so statements of all types can share a function. `words` holds the
    text of operands, by their names in the form. Optional operands appear only if named.
    """
    texts = {
        operand.name: (words or {}).get(operand.name)
        or operand.text(f"_{register_type(operand.type)}" if typed else "")
        for operand in written(bound, optional)
    }
    separate = {form.name for form, _ in bound.operands if form.apart}
    kept = [operand.name for operand in written(bound, optional) if operand.is_result]
    joined = "|".join(texts[name] for name in kept if name not in separate)
    results = ", ".join([joined, *(texts[name] for name in kept if name in separate)])
    sources: list[str] = []
    for operand in written(bound, optional):
        if operand.inside:  # coordinates stand in the brackets of the address before them
            sources[-1] = f"{sources[-1][:-1]}, {texts[operand.name]}]"
        elif not operand.is_result:
            sources.append(texts[operand.name])
    return f"{bound.opcode} {', '.join([results, *sources] if results else sources)}".rstrip() + ";"


def listing(bounds: list[Bound], target: str, words: dict[str, str] | None = None, version: str = "9.0") -> str:
    """Return a PTX module that uses each instruction once, number i (from 0) on line FIRST_LINE + i, for an assembler.
    `words` as for `statement`. Loads from .param read the entry's parameter."""
    declared = {
        f".reg .{register_type(operand.type)} {name};"
        for bound in bounds
        for operand in written(bound)
        for name in operand.registers(f"_{register_type(operand.type)}")
    }
    head = [
        f".version {version}",
        f".target {target}",
        ".address_size 64",
        ".entry forms(.param .align 32 .b8 parameter[64]) {",
    ]
    body = []
    for bound in bounds:
        from_parameter = {"a": "[parameter]"} if bound.clause.mnemonic == "ld" and ".param" in bound.opcode else {}
        body.append(statement(bound, typed=True, words=(words or {}) | from_parameter))
    assert len(head) + 2 == FIRST_LINE
    return "\n".join([*head, " ".join(sorted(declared)), *body, "ret;", "}", ""])


def run(
    opcode: str,
    *sources: Any,
    pool: NDArray[np.uint8] | None = None,
    active: NDArray[np.bool_] | None = None,
    policy: ptx.SchedulePolicy = "eager",
    seed: int = 0,
    operands: int | None = None,
    immediate: dict[str, str] | None = None,
    result_bits: int | None = None,
    checks: ptx.Checks | None = None,
) -> InstructionResult:
    """Execute one instruction in one block, one lane for each element of the sources, through parser and machine.

    `sources`: one array of unsigned bits (bool for predicates) per source register, all of one length up to 1024;
    vectors give one array per element, an address the byte's place in the pool. `pool`: bytes of the state space, shape
    (size,), or (lanes, size) for local memory, size a multiple of 4; a copy is returned. `active`: the lanes that
    execute it (default all). `checks`: by default a launch's checks. `immediate`: constants for operands, by name; such
    an operand takes no array. `result_bits`: the width of the result registers, where it differs from the type's.
    Results of inactive lanes are 0. Raises the launch's errors, and RefsimError `operand-count` for a wrong number of
    arrays.
    """
    bound = bind(opcode, operands=operands)
    optional = tuple(form.name for form, _ in bound.operands if form.optional and operands == len(bound.operands))
    text = _Program(bound, optional, immediate or {}, pool, result_bits)
    arrays = [np.ascontiguousarray(source) for source in sources]
    if len(arrays) != len(text.inputs):
        raise RefsimError("operand-count", f"{opcode} takes {len(text.inputs)} arrays, {len(arrays)} were given")
    lanes = len(arrays[0]) if arrays else 32 if active is None else len(active)
    flags = np.ones(lanes, np.uint8) if active is None else active.astype(np.uint8)
    contents = np.zeros(16, np.uint8) if pool is None else pool.copy()
    given = [array.astype(np.uint8) if array.dtype == np.bool_ else array.copy() for array in arrays]
    results = [np.zeros(lanes, np.uint8 if type.name == "pred" else type.bits_dtype) for _, type in text.outputs]
    parameters = [flags, contents, *given, *results]
    if text.space == "param":
        parameters.append(contents)
    trace = ptx.load(text.module()).launch(
        "single", (1,), (lanes,), parameters, policy=policy, seed=seed, checks=checks
    )
    typed: list[Any] = [
        array.astype(np.bool_) if type.name == "pred" else array
        for array, (_, type) in zip(results, text.outputs, strict=True)
    ]
    return InstructionResult(tuple(typed), contents, trace)


class _Program:
    """The PTX text around one instruction."""

    def __init__(
        self,
        bound: Bound,
        optional: tuple[str, ...],
        immediate: dict[str, str],
        pool: NDArray[np.uint8] | None,
        result_bits: int | None,
    ) -> None:
        """Collect the registers of the instruction's operands and the state space of its pool."""
        self.bound, self.optional, self.immediate, self.pool = bound, optional, immediate, pool
        self.size = 0 if pool is None else pool.shape[-1]
        self.operands = [operand for operand in written(bound, optional) if operand.name not in immediate]
        space = bound.modifiers.get("space")
        self.space = str(space).partition("::")[0] if space and self.size else "generic"
        self.inputs = [
            (name, operand.type) for operand in self.operands if not operand.is_result for name in operand.registers()
        ]
        self.outputs = [
            (name, TYPES[f"b{result_bits}"] if result_bits and operand.type.name != "pred" else operand.type)
            for operand in self.operands
            if operand.is_result
            for name in operand.registers()
        ]

    def module(self) -> str:
        """Return the PTX module."""
        target = next(t for t in _TARGETS if has(t, self.bound.since))
        names = [
            "active",
            "pool",
            *(f"in_{name}" for name, _ in self.inputs),
            *(f"out_{name}" for name, _ in self.outputs),
        ]
        parameters = [f".param .u64 {name}" for name in names]
        if self.space == "param":
            parameters.append(f".param .align 32 .b8 window[{self.size}]")
        constants = ""
        if self.space == "const" and self.pool is not None:
            constants = f".const .align 32 .b8 window[{self.size}] = {{{', '.join(map(str, self.pool.tolist()))}}};"
        return "\n".join(
            [
                ".version 9.0",
                f".target {target}",
                ".address_size 64",
                constants,
                f".entry single({', '.join(parameters)})",
                "{",
                *self.body(),
                "}",
                "",
            ]
        )

    def body(self) -> list[str]:
        """Return the lines of the entry: load operands, execute the instruction, store results."""
        registers = [f".reg .{register_type(type)} {name};" for name, type in [*self.inputs, *self.outputs]]
        lines = [
            *registers,
            ".reg .b64 %at, %base, %to, %end, %step;",
            ".reg .b32 %lane, %word;",
            ".reg .b16 %flag;",
            ".reg .pred %p;",
        ]
        lines += ["mov.u32 %lane, %tid.x;", *self.window()]
        for name, type in self.inputs:
            lines += self.element(f"in_{name}", type)
            if type.name == "pred":
                lines += ["ld.global.u8 %flag, [%at];", f"setp.ne.b16 {name}, %flag, 0;"]
            else:
                lines.append(f"ld.global.b{type.bits} {name}, [%at];")
        for operand in self.operands:
            if operand.address:
                lines.append(f"add.u64 {operand.name}, {operand.name}, %base;")
        lines += [*self.element("active", TYPES["u8"]), "ld.global.u8 %flag, [%at];"]
        lines += ["setp.eq.b16 %p, %flag, 0;", "@%p bra DONE;"]
        lines.append(statement(self.bound, self.optional, words=self.immediate))
        for name, type in self.outputs:
            lines += self.element(f"out_{name}", type)
            if type.name == "pred":
                lines += [f"selp.b16 %flag, 1, 0, {name};", "st.global.u8 [%at], %flag;"]
            else:
                lines.append(f"st.global.b{type.bits} [%at], {name};")
        return [*lines, "DONE:", *self.copy_back(), "ret;"]

    def element(self, array: str, type: PtxType) -> list[str]:
        """Return lines that set %at to the address of the lane's element of an array."""
        return [f"ld.param.u64 %at, [{array}];", f"mad.wide.u32 %at, %lane, {max(type.bits // 8, 1)}, %at;"]

    def window(self) -> list[str]:
        """Return lines that set %base to the address of the pool, filled, in the instruction's state space."""
        if self.space in ("generic", "global"):
            return ["ld.param.u64 %base, [pool];"]
        if self.space in ("const", "param"):
            return ["mov.u64 %base, window;"]
        lines = [f".{self.space} .align 32 .b8 window[{self.size}];", "mov.u64 %base, window;"]
        if self.space == "shared":
            return [*lines, *self.copy("FILL", "shared", fill=True), "bar.sync 0;"]
        return [*lines, *self.copy("FILL", "local", fill=True)]

    def copy_back(self) -> list[str]:
        if self.space == "shared":
            return ["bar.sync 0;", *self.copy("SAVE", "shared", fill=False)]
        return self.copy("SAVE", "local", fill=False) if self.space == "local" else []

    def copy(self, label: str, space: str, *, fill: bool) -> list[str]:
        """Return a loop that copies the pool in 32-bit words: lanes share it, except in local memory."""
        own = space == "local"
        first = [f"mad.wide.u32 %at, %lane, {self.size if own else 4}, %at;"]
        first += [] if own else ["mad.wide.u32 %to, %lane, 4, %to;"]
        step = ["mov.u64 %step, 4;"] if own else ["mov.u32 %word, %ntid.x;", "mul.wide.u32 %step, %word, 4;"]
        move = (
            ["ld.global.b32 %word, [%at];", f"st.{space}.b32 [%to], %word;"]
            if fill
            else [f"ld.{space}.b32 %word, [%to];", "st.global.b32 [%at], %word;"]
        )
        return [
            "ld.param.u64 %at, [pool];",
            "mov.u64 %to, %base;",
            f"add.u64 %end, %base, {self.size};",
            *first,
            *step,
            f"{label}:",
            "setp.ge.u64 %p, %to, %end;",
            f"@%p bra {label}_END;",
            *move,
            "add.u64 %at, %at, %step;",
            "add.u64 %to, %to, %step;",
            f"bra {label};",
            f"{label}_END:",
        ]
