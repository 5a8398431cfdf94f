"""What a clause of the instruction set looks like, and how an opcode finds its clause.

A clause is one function under `@instruction("form", since=..., source=...)`. The form is the line that the PTX ISA
prints, as a small grammar:

    add{.sat}.{type:u16|s16|u32|s32} d, a, b
    cvt.rn.satfinite{.relu}.{to:e4m3x2|e5m2x2}.f32 d:b16, a:f32, b:f32
    setp.{test:eq|ne}{.boolean:and|or|xor}.{type:b16|b32} dp:pred|dq:pred, a, b, c:pred?

Modifiers may be written in other orders than the form's, as opcodes.py says.
`{.name}` is an optional flag (True or False), `.{name:x|y}` a required choice, `{.name:x|y}` an optional one (or None).
Operands whose names begin with `d` are results, all others are read; `name:T` gives the PTX type (a literal type, or the
name of a choice, or `wide`: twice the width of `type`), no `:T` means `type`; a trailing `?` may be absent, `[a]` is an
address, `a*` one register or a vector of them (a list, also for one), `a*4` a vector of four, `a**` a vector of as many
as the clause accepts, `a:part*` one register or a vector whose elements share its bits. `[a, {c:s32}]` is an address with
coordinates (a list), `+d` a result that is read as well: its values come first among the sources. The function gets one
array per source in order, viewed as that type, then the modifiers as keywords, and returns one array per result. `::` in
a flag becomes `_` in its keyword.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType
from typing import Any, Literal

from refsim.ptx.isa.opcodes import OpcodeForm, parse_opcode
from refsim.ptx.isa.unmodelled import missing
from refsim.sources import Source

Clause = Callable[..., Any]
# How undefined bits pass an instruction, see refsim.ptx.checks.undefined_bits: "whole", or a function.
Rule = str | Callable[..., Any]
# How much is known of the bits that an instruction returns on a target, the surest first.
Certainty = Literal["exact", "assumed", "inexact"]

_OPERAND = re.compile(
    r"(?P<open>\[?)(?P<inside>\{?)(?P<both>\+?)(?P<name>\w+)(?::(?P<type>\w+))?\}?\]?(?P<many>\*\*|\*\d*)?(?P<optional>\??)$"
)


@dataclass(frozen=True)
class OperandForm:
    """One operand of a form: a result, a source, an address or a vector of registers (`count` of them, 0: the opcode says).

    `inside` stands in the brackets of the address before it, `both` is a result that is read too, `any_count` a vector
    whose length the clause checks, `apart` a result that stands behind a comma, not behind a bar.
    """

    name: str
    type: str
    address: bool = False
    many: bool = False
    optional: bool = False
    count: int = 0
    inside: bool = False
    both: bool = False
    any_count: bool = False
    apart: bool = False

    @property
    def is_result(self) -> bool:
        return self.name.startswith("d")

    @property
    def is_read(self) -> bool:
        """Whether the clause gets its value."""
        return self.both or not self.is_result

    @property
    def single(self) -> "OperandForm":
        """The form of one element of a vector."""
        return OperandForm(self.name, self.type)


@dataclass(frozen=True)
class Instruction:
    """One clause: its form, its meaning, the first target that has it, and the section it was taken from.

    `rendezvous` says who must meet before it runs: None nobody, "warp" all lanes of the warp that have not exited, "mask"
    the lanes that its operand "mask" names, "warpgroup" all of four warps. `flow` marks a clause that itself tells the
    machine where its lanes go on. `inexact` marks results that the ISA leaves open (`.approx`); those of a clause with
    `recorded` are the bits of the chip of these targets, and assumed on every other. `since` is the first target that has it,
    `later` that of single words of the opcode. `undefined` says which bits of the results are undefined where bits of the
    sources are: "whole", any makes all undefined, or a function. `stacks`
    promises that whole warps are computed each for itself, and that the clause asks its lanes for no more than their number
    and the arithmetic. `keeps_registers` hands its vectors over as registers, which it goes on to use behind the
    instruction; `length` says of how many registers a vector `**` is. `by_kind`: what kinds of operands stand in the text
    tells the clause from others of the same opcode. `together`: every number by itself, so that statements side by side may be
    rows of one call.
    """

    form: str
    mnemonic: str
    opcode: OpcodeForm
    flags: frozenset[str]
    operands: tuple[OperandForm, ...]
    function: Clause
    since: str
    later: dict[str, str]
    source: Source
    wants_lanes: bool
    rendezvous: str | None = None
    flow: bool = False
    inexact: bool = False
    keywords: frozenset[str] = field(default_factory=frozenset)
    counts_results: bool = False
    undefined: Rule = "whole"
    stacks: bool = False
    keeps_registers: bool = False
    length: Callable[[dict[str, Any]], int] | None = None
    by_kind: bool = False
    together: bool = False
    recorded: tuple[str, ...] = ()

    def certainty(self, target: str) -> Certainty:
        """Whether its bits are those of a target's chip: "exact"; "assumed", they are those of a recorded chip, and nobody
        looked at this one; "inexact", they are those of no chip."""
        if not self.inexact or target in self.recorded:
            return "exact"
        return "assumed" if self.recorded else "inexact"

    @property
    def ends_block(self) -> bool:
        """Whether the scheduler decides, after this instruction, which lanes go on where."""
        return self.flow or self.rendezvous is not None

    @property
    def converges(self) -> bool:
        """Whether a program means lanes of a warp to meet here, without any order of their accesses to memory; matrix
        instructions meet only to share their work."""
        return self.mnemonic in ("shfl", "vote", "match", "redux", "elect")

    def first_target(self, opcode: str) -> str:
        """The first target that has an opcode of this clause: sm_90 for `xorsign` from sm_86 and `bf16` from sm_90."""
        targets = [self.since, *(self.later[word] for word in opcode.split(".") if word in self.later)]
        return max(targets, key=lambda target: (int(re.sub(r"\D", "", target)), target))

    @property
    def kinds(self) -> str:
        """The kinds of its operands, a letter each: an address, a vector, a predicate, the rest; `?` behind one that may be
        left out."""
        return "".join(
            ("A" if form.address else "V" if form.many else "P" if form.type == "pred" else "R") + "?" * form.optional
            for form in self.operands
        )

    def takes(self, operands: int, predicates: int | None = None, vectors: int | None = None) -> bool:
        """Whether so many operands may stand in the text; results d|dq count as one, the carry flag is never there.

        predicates: how many of the sources are predicates; vectors: how many operands are vectors, which counts where
        the length of one is the clause's to say; None where that is not known.
        """
        if (
            vectors is not None
            and self.length is not None
            and vectors != sum(form.many and not form.inside for form in self.operands)
        ):
            return False
        sources = [form for form in self.operands if not form.is_result and form.name != "cc"]
        results = int(any(form.is_result and form.name != "dcc" for form in self.operands))
        results += sum(form.apart for form in self.operands)
        if not sum(not form.optional for form in sources) <= operands - results <= len(sources):
            return False
        flags = [form for form in sources if form.type == "pred"]
        return predicates is None or sum(not form.optional for form in flags) <= predicates <= len(flags)


_CLAUSES: dict[str, list[Instruction]] = {}


@lru_cache(maxsize=1 << 10)
def _parse_operands(text: str) -> tuple[OperandForm, ...]:
    forms: list[OperandForm] = []
    separators = ["", *re.findall(r"[,|]", text)]
    for word, separator in zip(re.split(r"[,|]\s*", text) if text else [], separators, strict=False):
        piece = _OPERAND.match(word.strip())
        assert piece, f"operand {word!r} of a form does not parse"
        forms.append(
            OperandForm(
                piece["name"],
                piece["type"] or "type",
                bool(piece["open"]),
                bool(piece["many"] or piece["inside"]),
                bool(piece["optional"]),
                int((piece["many"] or "*").strip("*") or 0),
                bool(piece["inside"]),
                bool(piece["both"]),
                piece["many"] == "**",
                separator == "," and piece["name"].startswith("d") and forms[-1].is_result,
            )
        )
    return tuple(forms)


def _parameters(code: CodeType) -> list[str]:
    """The names of a function's parameters; inspect.signature takes a third of the time that loading the families takes."""
    return list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def instruction(
    form: str,
    *,
    source: Source,
    since: str = "sm_50",
    later: dict[str, str] | None = None,
    ignores: tuple[str, ...] = (),
    rendezvous: str | None = None,
    flow: bool = False,
    inexact: bool = False,
    undefined: Rule = "whole",
    stacks: bool = False,
    keeps_registers: bool = False,
    length: Callable[[dict[str, Any]], int] | None = None,
    by_kind: bool = False,
    together: bool = False,
    recorded: tuple[str, ...] = (),
) -> Callable[[Clause], Clause]:
    """Register the function below as the meaning of `form`; a modifier it does not take must stand in `ignores`.
    A first parameter named `lanes` receives the lanes that run (`refsim.ptx.execution.lanes.Lanes`), a keyword `results` how many
    registers a vector result has. An operand that is left out arrives as None.
    """
    text, _, operands = form.partition(" ")
    opcode = parse_opcode(text)
    kinds = frozenset(slot.keyword for slot in opcode.slots if slot.keyword is not None)

    def register(function: Clause) -> Clause:
        parameters = _parameters(function.__code__)
        keywords = kinds & frozenset(parameters)
        operand_forms = _parse_operands(operands.strip())
        typing = {{"wide": "type", "part": "type"}.get(operand.type, operand.type) for operand in operand_forms}
        assert not (unread := kinds - keywords - set(ignores) - typing), f"{form}: modifiers {unread} change nothing"
        clause = Instruction(
            form,
            opcode.mnemonic,
            opcode,
            kinds,
            operand_forms,
            function,
            since,
            later or {},
            source,
            parameters[:1] == ["lanes"],
            rendezvous,
            flow,
            inexact,
            keywords,
            "results" in parameters,
            undefined,
            stacks,
            keeps_registers,
            length,
            by_kind,
            together,
            recorded,
        )
        _CLAUSES.setdefault(opcode.mnemonic, []).append(clause)
        return function

    return register


def clauses() -> list[Instruction]:
    """Every registered clause, by mnemonic."""
    _load()
    return [clause for mnemonic in sorted(_CLAUSES) for clause in _CLAUSES[mnemonic]]


def _load() -> None:
    from refsim.ptx import isa

    isa.load_families()


@lru_cache(maxsize=1 << 15)  # more than all that the forms spell
def _matches(opcode: str) -> list[tuple[Instruction, dict[str, Any]]]:
    """The clauses of an opcode, those that print its words in this order first."""
    _load()
    mnemonic, *words = opcode.split(".")
    given = frozenset(words)
    known = [clause for clause in _CLAUSES.get(mnemonic, []) if given <= clause.opcode.vocabulary]  # few are left
    found = [(clause, match) for clause in known if (match := clause.opcode.match(words))]
    found.sort(key=lambda pair: not pair[1][1])
    return [(clause, modifiers) for clause, (modifiers, _) in found]


def find(
    opcode: str,
    where: str = "",
    operands: int | None = None,
    predicates: int | None = None,
    vectors: int | None = None,
    kinds: str | None = None,
) -> tuple[Instruction, dict[str, Any]]:
    """The clause of a full opcode such as `add.rn.f32`, and the modifiers it is to be called with.

    Two clauses may differ in their operands alone: `max.f32` has two sources, or three; the last one of `cp.async` is a
    size or a predicate, the first one of wgmma a descriptor or a vector. Raises RefsimError `unknown-instruction`: what
    the instruction is, or the nearest known form.
    """
    mnemonic = opcode.split(".", 1)[0]
    matches = _matches(opcode)
    for flags in (predicates, None):
        for clause, modifiers in matches:
            if clause.by_kind and kinds is not None and not re.fullmatch(clause.kinds, kinds):
                continue
            if operands is None or len(matches) == 1 or clause.takes(operands, flags, vectors):
                return clause, modifiers
    family = [clause.form for clause in _CLAUSES.get(mnemonic, [])]
    raise missing(opcode, where, family, [clause.form for clause in clauses()])
