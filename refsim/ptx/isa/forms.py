"""The form of an instruction, its registration, the search for the form of an opcode, and its binding to a function over
register bits.

An instruction implementation is one function under `@instruction("form", since=..., source=...)`. The form is the line
that the PTX ISA prints, as a small grammar:

    add{.sat}.{type:u16|s16|u32|s32} d, a, b
    cvt.rn.satfinite{.relu}.{to:e4m3x2|e5m2x2}.f32 d:b16, a:f32, b:f32
    setp.{test:eq|ne}{.boolean:and|or|xor}.{type:b16|b32} dp:pred|dq:pred, a, b, c:pred?

Modifiers may be written in other orders than the form's, see below. `{.name}` is an optional flag (True or
False), `.{name:x|y}` a required choice, `{.name:x|y}` an optional one (or None).

Operands whose names begin with `d` are results, all others are read. `name:T` gives the PTX type (a literal type, the
name of a choice, or `wide`: twice the width of `type`); without `:T` the type is `type`. A trailing `?` marks an optional
operand and `[a]` an address. `a*` is one register or a vector of them (a list, also for one), `a*4` a vector of four,
`a**` a vector as long as the implementation accepts, `a:part*` one register or a vector whose elements share its bits.
`[a, {c:s32}]` is an address with coordinates (a list), `+d` a result that is read as well: its values come first among
the sources. The function gets one array per source in order, viewed as that type, then the modifiers as keywords, and
returns one array per result. `::` in a flag becomes `_` in its keyword.

The ISA prints one order, compilers and libraries write others, and ptxas accepts `atom.global.gpu.acq_rel.add.u32`,
`div.ftz.rn.f32` and `ld.global.acquire.gpu.b32` as well as the printed order. Permutations of every form were given to
ptxas to find the words that must not move (tests/ptx/test_modifier_order.py repeats this):

- words that make the instruction stay in front, as in the form: `cp.async`, `mad.hi`, `bar.red`;
- types keep their order: cvt.f16.f32 is not cvt.f32.f16;
- a few words of one meaning keep their order: .row before .col, the written space before the read one."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from types import CodeType
from typing import Any, Literal

import numpy as np

from refsim.errors import RefsimError
from refsim.ptx.execution.types import TYPES, WIDE, Bits, PtxType, unview, view
from refsim.ptx.isa.unmodelled import missing
from refsim.sources import PTX, Source

FIELD = re.compile(
    r"\.\{(?P<need>\w+):(?P<needs>[^}]*)\}|\{\.(?P<maybe>\w+):(?!:)(?P<mays>[^}]*)\}|\{\.(?P<flag>[\w:]+)\}"
)
_TYPE = re.compile(r"(?!b1024$)(?:[usb]\d+|b?f\d+|tf32|u?e\d+m\d+|pred)(?:x\d+)?")
# b1024, the size of a tensor map, moves freely.
_HALVES = frozenset({"hi", "lo", "wide"})

# fmt: off
FRONT: dict[str, frozenset[str]] = {
    "bar": frozenset({"warp", "cta", "sync", "arrive", "red"}),
    "barrier": frozenset({"cta", "cluster", "arrive", "wait", "red"}),
    "clusterlaunchcontrol": frozenset({"try_cancel", "async", "query_cancel"}),
    "cp": frozenset({"async", "commit_group", "wait_group", "wait_all", "mbarrier", "arrive", "bulk", "reduce",
                     "tensor", "prefetch"}),
    "createpolicy": frozenset({"fractional", "range", "cvt"}),
    "cvt": frozenset({"pack"}),
    "cvta": frozenset({"to"}),
    "div": frozenset({"full"}),
    "dp2a": _HALVES,
    "fence": frozenset({"proxy"}),
    "griddepcontrol": frozenset({"launch_dependents", "wait"}),
    "mad": _HALVES, "mad24": _HALVES, "madc": _HALVES, "mul": _HALVES, "mul24": _HALVES,
    "mbarrier": frozenset({
        "init", "inval", "arrive", "arrive_drop", "test_wait", "try_wait", "expect_tx", "complete_tx", "pending_count",
        "parity",
    }),
    "red": frozenset({"async"}),
    "st": frozenset({"async"}),
    "setmaxnreg": frozenset({"inc", "dec"}),
    "shf": frozenset({"l", "r"}),
    "tcgen05": frozenset({
        "alloc", "dealloc", "relinquish_alloc_permit", "ld", "st", "wait::ld", "wait::st", "fence::before_thread_sync",
        "fence::after_thread_sync", "mma", "ws", "red", "commit", "cp", "shift",
    }),
    "tensormap": frozenset({"replace", "cp_fenceproxy"}),
    "wgmma": frozenset({"fence", "mma_async", "commit_group", "wait_group"}),
    "wmma": frozenset({"load", "mma", "store", "a", "b", "c", "d"}),
}
# fmt: on
"""By mnemonic, the words that stay in front of all others in a form that begins with them."""

_LAYOUTS = {"row": "layout", "col": "layout"}
_PRIORITIES = {f"L2::evict_{name}": "priority" for name in ("last", "normal", "first", "unchanged")}
_PLACES = dict.fromkeys(("shared::cta", "shared::cluster", "shared", "global"), "place")
_REDUCTION = {"and": "reduction", "popc": "reduction"}
SEQUENCES: dict[str, dict[str, str]] = {
    "mma": _LAYOUTS,
    "wmma": _LAYOUTS,
    "wgmma": _REDUCTION,
    "createpolicy": _PRIORITIES,
    "tcgen05": dict.fromkeys(("b6x16_p32", "b4x16_p64"), "type"),
    "cp": _PLACES,
    "tensormap": _PLACES,
}
"""By mnemonic, words that keep their order among words of one class, and the class."""


def _kind(mnemonic: str, word: str) -> str | None:
    """Return the class of words among which a word keeps its order (types with types); None for a word that moves
    freely."""
    return "type" if _TYPE.fullmatch(word) else SEQUENCES.get(mnemonic, {}).get(word)


@dataclass(frozen=True)
class Slot:
    """One place of a form: its words, whether one is required, and the keyword that it sets (None: a fixed word)."""

    words: tuple[str, ...]
    is_required: bool
    keyword: str | None = None
    is_flag: bool = False

    @property
    def spellings(self) -> list[str]:
        """Return the texts that may fill the slot: `{.sat}` is "" or ".sat"."""
        return [*([] if self.is_required else [""]), *(f".{word}" for word in self.words)]


@dataclass(frozen=True)
class OpcodeForm:
    """The opcode of a form: a mnemonic and slots in the ISA's printed order."""

    mnemonic: str
    slots: tuple[Slot, ...]

    @cached_property
    def front(self) -> int:
        """Return how many leading slots hold only words that stay in front."""
        fixed = FRONT.get(self.mnemonic, frozenset())
        for number, slot in enumerate(self.slots):
            if not fixed.issuperset(slot.words):
                return number
        return len(self.slots)

    @cached_property
    def vocabulary(self) -> frozenset[str]:
        """Return every word that some slot may hold."""
        return frozenset().union(*(slot.words for slot in self.slots))

    @cached_property
    def least(self) -> int:
        """Return how many words an opcode has at least after its mnemonic."""
        return sum(slot.is_required for slot in self.slots)

    def match(self, words: list[str]) -> tuple[dict[str, Any], bool] | None:
        """Return the keywords that the words after the mnemonic set, and whether their order is the printed one.
        Returns None if the words do not match."""
        if not self.least <= len(words) <= len(self.slots) or not self.vocabulary.issuperset(words):
            return None
        taken: list[int] = []
        found: dict[str, Any] = {}
        left = list(range(len(words)))
        for number, slot in enumerate(self.slots):
            candidates = left[:1] if number < self.front else left
            at = next((index for index in candidates if words[index] in slot.words), None)
            if at is None and slot.is_required:
                return None
            if slot.keyword is not None:
                found[slot.keyword] = at is not None if slot.is_flag else None if at is None else words[at]
            if at is not None:
                left.remove(at)
                taken.append(at)
        if left or not self._keeps_order(words, taken):
            return None
        return found, taken == sorted(taken)

    def _keeps_order(self, words: list[str], taken: list[int]) -> bool:
        last: dict[str, int] = {}
        for at in taken:
            kind = _kind(self.mnemonic, words[at])
            if kind is not None and last.setdefault(kind, at) > at:
                return False
            if kind is not None:
                last[kind] = at
        return True


def parse_opcode(text: str) -> OpcodeForm:
    """Return the opcode of a form: `add{.sat}.{type:u32|s32}` has an optional slot and a required one."""
    mnemonic = re.split(r"[.{]", text, maxsplit=1)[0]
    slots: list[Slot] = []
    position = len(mnemonic)

    def fixed(part: str) -> None:
        """Append a required slot for each fixed word."""
        slots.extend(Slot((word,), True) for word in part.split(".")[1:])

    for piece in FIELD.finditer(text):
        fixed(text[position : piece.start()])
        position = piece.end()
        if need := piece["need"]:
            slots.append(Slot(tuple(piece["needs"].split("|")), True, need))
        elif maybe := piece["maybe"]:
            slots.append(Slot(tuple(piece["mays"].split("|")), False, maybe))
        else:
            slots.append(Slot((piece["flag"],), False, piece["flag"].replace("::", "_").lower(), is_flag=True))
    fixed(text[position:])
    return OpcodeForm(mnemonic, tuple(slots))


Clause = Callable[..., Any]
# How undefined bits pass through an instruction, see refsim.ptx.isa.definedness.bits: "whole", or a function.
Rule = str | Callable[..., Any]
# The certainty of the bits that an instruction returns on a target, the most certain first.
Certainty = Literal["exact", "assumed", "inexact"]

_OPERAND = re.compile(
    r"(?P<open>\[?)(?P<inside>\{?)(?P<both>\+?)(?P<name>\w+)(?::(?P<type>\w+))?\}?\]?(?P<many>\*\*|\*\d*)?(?P<optional>\??)$"
)


@dataclass(frozen=True)
class OperandForm:
    """One operand of a form: a result, a source, an address or a vector of registers (`count` of them, 0: the opcode
    says).

    `inside` marks an operand in the brackets of the address before it, and `both` a result that is read too.
    `any_count` marks a vector whose length the implementation checks. `apart` marks a result that follows a comma
    instead of a bar.
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
        """Return whether the operand is a result: its name begins with d."""
        return self.name.startswith("d")

    @property
    def is_read(self) -> bool:
        """Return whether the implementation receives the operand's value."""
        return self.both or not self.is_result

    @property
    def single(self) -> "OperandForm":
        """Return the form of one element of a vector."""
        return OperandForm(self.name, self.type)


@dataclass(frozen=True)
class Instruction:
    """One instruction form with its implementation, the first target that has it, and its section of the ISA.

    - `rendezvous`: the lanes that must meet first: None, "warp" (all unexited lanes of the warp), "mask" (the
      lanes of operand "mask"), "warpgroup" (all four warps) or "converged" (those of the warp that can come first);
    - `flow`: the implementation itself tells the machine where its lanes continue;
    - `inexact`: the ISA leaves the bits of the result open (`.approx`);
    - `recorded`: the targets whose bits an inexact form returns; on every other target its bits are assumed;
    - `since`, `later`: the first target of the form, and the first target of single words of the opcode;
    - `undefined`: the undefined bits of the results: "whole" (one undefined source bit spoils all), or a function;
    - `stacks`: each warp is computed independently, from nothing but the number of lanes and the arithmetic;
    - `keeps_registers`: vectors arrive as register numbers, which the implementation uses after the instruction;
    - `length`: returns how many registers a vector `**` has;
    - `by_kind`: the kinds of operands in the text tell the form from other forms of one opcode;
    - `together`: elements are independent, so that adjacent statements may be rows of one call.
    """

    form: str
    mnemonic: str
    opcode: OpcodeForm
    flags: frozenset[str]
    operands: tuple[OperandForm, ...]
    function: Clause
    source: Source
    wants_lanes: bool
    since: str = "sm_50"
    later: dict[str, str] = field(default_factory=dict)
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
        """Return how certain the result bits are on a target's chip. "exact": they are the chip's. "assumed": they are
        the bits of a recorded chip, unverified on this target. "inexact": no chip was recorded."""
        if not self.inexact or target in self.recorded:
            return "exact"
        return "assumed" if self.recorded else "inexact"

    @property
    def ends_block(self) -> bool:
        """Return whether the scheduler decides after this instruction which lanes continue where."""
        return self.flow or self.rendezvous is not None

    @property
    def converges(self) -> bool:
        """Return whether programs use the instruction to let lanes of a warp meet, without ordering their memory
        accesses. Matrix instructions do not count: their lanes meet only to share the work."""
        return self.mnemonic in ("shfl", "vote", "match", "redux", "elect")

    def first_target(self, opcode: str) -> str:
        """Return the first target that has an opcode of this form. Example: sm_90 for an opcode with `xorsign` (sm_86)
        and `bf16` (sm_90)."""
        targets = [self.since, *(self.later[word] for word in opcode.split(".") if word in self.later)]
        return max(targets, key=lambda target: (int(re.sub(r"\D", "", target)), target))

    @property
    def kinds(self) -> str:
        """Return the kinds of its operands as a pattern, a letter each. A is an address, V a vector, P a predicate, R
        another register; `?` follows an optional operand."""
        return "".join(
            ("A" if form.address else "V" if form.many else "P" if form.type == "pred" else "R") + "?" * form.optional
            for form in self.operands
        )

    def takes(self, operands: int, predicates: int | None = None, vectors: int | None = None) -> bool:
        """Return whether the text may have this many operands; results d|dq count as one, the carry flag never appears.

        predicates: how many of the sources are predicates. vectors: how many operands are vectors, which matters where
        the implementation determines the length of one. None for either: unknown.
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
    """Return the operand forms of the text that follows the opcode of a form."""
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
    """Return the names of a function's parameters. inspect.signature would take a third of the time to load all
    families."""
    return list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def instruction(
    form: str, *, ignores: tuple[str, ...] = (), source: Source | None = None, **facts: Any
) -> Callable[[Clause], Clause]:
    """Register the decorated function as the implementation of `form`; `ignores` lists modifiers that it does not take.
    `source`: by default the ISA's section of the mnemonic. `facts` are other fields of Instruction. A parameter `lanes`
    receives the lanes, `results` a vector result's registers. An omitted operand is None."""
    text, _, operands = form.partition(" ")
    opcode = parse_opcode(text)
    kinds = frozenset(slot.keyword for slot in opcode.slots if slot.keyword is not None)

    def register(function: Clause) -> Clause:
        """Build the Instruction of a function, and add it to the table of its mnemonic."""
        parameters = _parameters(function.__code__)
        keywords = kinds & frozenset(parameters)
        operand_forms = _parse_operands(operands.strip())
        typing = {{"wide": "type", "part": "type"}.get(operand.type, operand.type) for operand in operand_forms}
        assert not (unread := kinds - keywords - set(ignores) - typing), f"{form}: modifiers {unread} change nothing"
        read: dict[str, Any] = {"form": form, "mnemonic": opcode.mnemonic, "opcode": opcode, "flags": kinds}
        read |= {"operands": operand_forms, "function": function, "keywords": keywords}
        read |= {"wants_lanes": parameters[:1] == ["lanes"], "counts_results": "results" in parameters}
        read["source"] = source or PTX[opcode.mnemonic]
        _CLAUSES.setdefault(opcode.mnemonic, []).append(Instruction(**read, **facts))
        return function

    return register


def clauses() -> list[Instruction]:
    """Return every registered instruction, by mnemonic."""
    _load()
    return [clause for mnemonic in sorted(_CLAUSES) for clause in _CLAUSES[mnemonic]]


def _load() -> None:
    from refsim.ptx import isa

    isa.load_families()


@lru_cache(maxsize=1 << 15)  # more than the opcodes of all forms
def _matches(opcode: str) -> list[tuple[Instruction, dict[str, Any]]]:
    """Return the instructions of an opcode with their modifiers; forms that print its words in this order come
    first."""
    _load()
    mnemonic, *words = opcode.split(".")
    given = frozenset(words)
    known = [clause for clause in _CLAUSES.get(mnemonic, []) if given <= clause.opcode.vocabulary]  # leaves few
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
    """Return the instruction of a full opcode such as `add.rn.f32`, and the modifiers for its call.

    Two forms may differ in their operands only. `max.f32` has two sources or three. The last operand of `cp.async` is a
    size or a predicate, the first operand of wgmma a descriptor or a vector. Raises RefsimError `unknown-instruction`
    with a description of the instruction, or with the nearest known form.
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


STATE_SPACES = ("global", "shared", "local", "const", "param")


@dataclass(frozen=True)
class Bound:
    """An opcode with its instruction found: the typed operands and the modifiers that the implementation takes."""

    opcode: str
    clause: Instruction
    modifiers: dict[str, Any]
    operands: tuple[tuple[OperandForm, PtxType], ...]

    @cached_property
    def since(self) -> str:
        """Return the first target that has the opcode."""
        return self.clause.first_target(self.opcode)

    @cached_property
    def is_generic(self) -> bool:
        """Return whether the opcode names no state space, so that its addresses are generic."""
        return not any(word.partition("::")[0] in STATE_SPACES for word in self.opcode.split("."))

    @cached_property
    def results(self) -> list[tuple[OperandForm, PtxType]]:
        """Return the typed results."""
        return [pair for pair in self.operands if pair[0].is_result]

    @cached_property
    def sources(self) -> list[tuple[OperandForm, PtxType]]:
        """Return the typed operands that the implementation receives, in its order: results that are read, then the
        others."""
        both = [pair for pair in self.operands if pair[0].both]
        return both + [pair for pair in self.operands if not pair[0].is_result]

    @cached_property
    def vectors(self) -> list[OperandForm]:
        """Return the operands that are vectors of registers outside of brackets."""
        return [form for form, _ in self.operands if form.many and not form.inside]

    @cached_property
    def keywords(self) -> dict[str, Any]:
        """Return the modifiers that the implementation takes as keywords."""
        return {name: value for name, value in self.modifiers.items() if name in self.clause.keywords}


def _resolve(operand: OperandForm, modifiers: dict[str, Any]) -> PtxType:
    name = operand.type
    if name == "wide":
        return TYPES[WIDE[modifiers["type"]]]
    name = modifiers["type"] if name == "part" else modifiers.get(name, name)
    return TYPES.get(name, TYPES["b32"])


def bind(
    opcode: str,
    where: str = "",
    operands: int | None = None,
    predicates: int | None = None,
    vectors: int | None = None,
    kinds: str | None = None,
) -> Bound:
    """Find the instruction of an opcode, and resolve the type of each operand.

    operands, predicates, vectors and kinds describe the operands in the text; None for each is unknown. Raises
    RefsimError, located at `where`, for an unknown opcode.
    """
    try:
        return _bound(opcode, operands, predicates, vectors, kinds)
    except RefsimError as error:
        error.where = where
        raise


@lru_cache(maxsize=1 << 15)  # more than the opcodes of all forms
def _bound(opcode: str, operands: int | None, predicates: int | None, vectors: int | None, kinds: str | None) -> Bound:
    clause, modifiers = find(opcode, "", operands, predicates, vectors, kinds)
    forms = clause.operands
    if clause.length is not None:
        count = clause.length(modifiers)
        forms = tuple(replace(form, count=count, any_count=False) if form.any_count else form for form in forms)
    typed = tuple((operand, _resolve(operand, modifiers)) for operand in forms)
    return Bound(opcode, clause, modifiers, typed)


def pure_function(bound: Bound, source_count: int, result_bits: list[int]) -> Callable[..., list[Bits]]:
    """Return the implementation as a function from source bits to result bits, for registers of the given widths.
    `source_count` sources are given (optional ones may be absent); results beyond `result_bits` are dropped."""
    function, keywords = bound.clause.function, bound.keywords
    types = [type for _, type in bound.sources[:source_count]]
    results = list(zip([type for _, type in bound.results], result_bits, strict=False))

    def call(*bits: Bits) -> list[Bits]:
        """Return the bits of each result for the bits of the sources."""
        values = function(*map(view, bits, types), **keywords)
        if not isinstance(values, tuple):
            values = (values,)
        return [unview(value, type, width) for value, (type, width) in zip(values, results, strict=False)]

    return call


def evaluate(opcode: str, *sources: Any) -> tuple[Bits, ...]:
    """Return what one pure instruction computes for arrays of source bits.

    `evaluate("add.f32", a, b)[0]` are f32 bit patterns. sources: unsigned arrays (bool for predicates), shape (n,) or
    (1,), in the order of the PTX operands. The result has one unsigned array per PTX result, as wide as its type.
    Raises RefsimError for an unknown opcode or an instruction that needs a machine (memory, warp, control flow).
    """
    bound = bind(opcode, operands=1 + len(sources))
    if bound.clause.wants_lanes or bound.clause.ends_block:
        raise RefsimError("needs-machine", f"{opcode} depends on more than its operands: launch a program instead")
    widths = [type.bits for _, type in bound.results]
    arrays = [np.atleast_1d(np.asarray(source)) for source in sources]
    with np.errstate(all="ignore"):
        return tuple(pure_function(bound, len(arrays), widths)(*arrays))
