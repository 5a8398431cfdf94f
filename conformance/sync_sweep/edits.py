"""What may be taken from the synchronisation of a kernel's PTX: one edit of one statement each.

A removed wait is one that passes at once: its predicate is true, so that nothing else of the program changes. Everything else
that is removed is gone. A weakened statement stays and orders, counts or covers less.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from refsim import ptx
from refsim.ptx.text.syntax import Location

ROOT = Path(__file__).parents[2]
Changed = Callable[[str, list[str]], str | None]
REMOVED = "removed"
RELAXED = {"release": "relaxed", "acquire": "relaxed"}


@dataclass(frozen=True)
class Rule:
    """What is done to the statements of one kind: `family` is their row of the report, `change` the words for the edit.

    `changed` makes the statement's text of its opcode and operands; None where the edit does not apply to it.
    """

    family: str
    change: str
    opcodes: str
    changed: Changed

    @property
    def is_removal(self) -> bool:
        return self.change == REMOVED


@dataclass(frozen=True)
class Edit:
    """One edit of one statement of an entry: the PTX line, and the `text` that stands there then.

    `where` are the lines of CUDA that led to the statement, from the inside out, or its own line of PTX.
    """

    rule: Rule
    entry: str
    line: int
    opcode: str
    where: tuple[str, ...]
    location: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.rule.change} {self.opcode}"

    def applied(self, text: str) -> str:
        """The PTX with the edit made; other lines keep their numbers."""
        lines = text.split("\n")
        lines[self.line - 1] = self.text
        return "\n".join(lines)


def edits_of(program: ptx.Program, entry: str, text: str) -> Iterator[Edit]:
    """Every edit of an entry, statement by statement."""
    lines, seen = text.split("\n"), dict[tuple[int, str], int]()
    for statement in program.module.functions[entry].statements:
        key = statement.line, statement.opcode
        place = seen[key] = seen.get(key, -1) + 1
        for rule in RULES:
            if not re.fullmatch(rule.opcodes, statement.opcode):
                continue
            line = lines[statement.line - 1]
            found = list(re.finditer(rf"(?<![\w.]){re.escape(statement.opcode)}(?![\w.:])([^;]*);", line))[place]
            made = rule.changed(statement.opcode, [word.strip() for word in _operands(found[1])])
            if made is not None:
                guard = re.search(r"(@!?[%\w$]+\s+)?$", line[: found.start()])
                assert guard is not None
                instead = line[: guard.start()] + _written(made, guard[0]) + line[found.end() :]
                at = statement.location
                where = tuple(map(source_line, at.places())) if at else (line.strip(),)
                yield Edit(
                    rule, entry, statement.line, statement.opcode, where, str(at or f"PTX line {key[0]}"), instead
                )


def _operands(text: str) -> list[str]:
    """What stands between commas; a comma in brackets separates nothing."""
    return re.split(r",(?![^\[]*\])", text) if text.strip() else []


def _written(made: str, guard: str) -> str:
    """The new text, the last of its statements guarded as the old one was."""
    *before, last = made.split("; ")
    guarded = "; ".join((*before, guard + last)) if made else ""
    return f"{{ {guarded} }}" if before else guarded


def source_line(place: Location) -> str:
    """The line of one of our kernels that a place names."""
    lines = _sources().get(Path(place.file).name, ())
    return lines[place.line - 1].strip() if 0 < place.line <= len(lines) else ""


@cache
def _sources() -> dict[str, tuple[str, ...]]:
    """The lines of our CUDA files by name."""
    folders = ROOT / "gpu/kernels", ROOT / "tests/ptx", Path(__file__).parent
    files = [file for folder in folders for file in folder.rglob("*.cu*")]
    return {file.name: tuple(file.read_text("utf-8").splitlines()) for file in files}


# ---- what becomes of a statement
def gone(opcode: str, operands: list[str]) -> str:
    return ""


def passes(opcode: str, operands: list[str]) -> str:
    return f"setp.eq.u32 {operands[0]}, 0, 0;"


def announces_nothing(opcode: str, operands: list[str]) -> str:
    return f"{opcode.replace('.expect_tx', '', 1)} {', '.join(operands[:2])};"


@dataclass(frozen=True)
class OtherOperand:
    """One operand combined with a constant first."""

    at: int
    instruction: str
    by: int

    def __call__(self, opcode: str, operands: list[str]) -> str:
        given = [*operands]
        given[self.at] = "other"
        before = f".reg .b32 other; {self.instruction} other, {operands[self.at]}, {self.by}"
        return f"{before}; {opcode} {', '.join(given)};"


def one_more(opcode: str, operands: list[str]) -> str:
    return f"{opcode} {int(operands[0]) + 1};"


def relaxed(opcode: str, operands: list[str]) -> str | None:
    """No release and no acquire; the scope has to be said then."""
    words = opcode.split(".")
    if "relaxed" in words:
        return None
    for given, less in RELAXED.items():
        if given in words:
            return f"{opcode.replace(given, less, 1)} {', '.join(operands)};".replace(" ;", ";")
    if words[0] == "barrier":
        return f"{opcode.replace('arrive', 'arrive.relaxed', 1)};" if "arrive" in words else None
    behind = next(place for place, word in enumerate(words) if word.startswith("shared") or word == "b64")
    return f"{'.'.join((*words[:behind], 'relaxed', 'cta', *words[behind:]))} {', '.join(operands)};"


def of_the_block(opcode: str, operands: list[str]) -> str | None:
    """The scope of the cluster or of the GPU becomes that of the block."""
    less = re.sub(r"\.(cluster|gpu|gl|sys)\b(?!\.barrier)", ".cta", opcode, count=1)
    return None if less == opcode else f"{less} {', '.join(operands)};".replace(" ;", ";")


def of_global_memory(opcode: str, operands: list[str]) -> str:
    return "fence.proxy.async.global;"


def of_reads(opcode: str, operands: list[str]) -> str:
    return f"{opcode}.read {operands[0]};"


_WAIT, _EXPECT = r"mbarrier\.(try|test)_wait\..*", r"mbarrier\.arrive\.expect_tx\..*"
_ARRIVE = r"(mbarrier\.arrive(_drop)?|cp\.async\.mbarrier\.arrive)\..*"
_PARITY = r"mbarrier\.(try|test)_wait\.parity\..*"
_GROUPS = r"cp\.async\.(bulk\.)?(commit_group|wait_group(\.read)?|wait_all)"

RULES = (
    Rule("mbarrier wait", REMOVED, _WAIT, passes),
    Rule("mbarrier arrival", REMOVED, _ARRIVE, gone),
    Rule("expect_tx", REMOVED, _EXPECT, announces_nothing),
    Rule("expect_tx", REMOVED, r"mbarrier\.expect_tx\..*", gone),
    Rule("proxy fence", REMOVED, r"fence\.proxy\..*", gone),
    Rule("memory fence", REMOVED, r"(fence\.(?!proxy)|membar\.).*", gone),
    Rule("barrier of the block", REMOVED, r"(bar|barrier)\.(cta\.)?(sync|arrive|red)\b.*", gone),
    Rule("barrier of the warp", REMOVED, r"bar\.warp\.sync.*", gone),
    Rule("barrier of the cluster", REMOVED, r"barrier\.cluster\..*", gone),
    Rule("wgmma fence, commit, wait", REMOVED, r"wgmma\.(fence|commit_group|wait_group)\..*", gone),
    Rule("commit, wait of copies", REMOVED, _GROUPS, gone),
    Rule("tcgen05 commit, wait, fence", REMOVED, r"tcgen05\.(commit|wait::|fence::).*", gone),
    Rule("wait for the grid before", REMOVED, r"griddepcontrol\.wait", gone),
    Rule("mbarrier wait", "turned", _PARITY, OtherOperand(2, "xor.b32", 1)),
    Rule("mbarrier wait", "relaxed", _WAIT, relaxed),
    Rule("mbarrier wait", "in the block", _WAIT, of_the_block),
    Rule("mbarrier arrival", "relaxed", _ARRIVE, relaxed),
    Rule("mbarrier arrival", "in the block", _ARRIVE, of_the_block),
    Rule("mbarrier count", "one more", r"mbarrier\.init\..*", OtherOperand(1, "add.u32", 1)),
    Rule("mbarrier count", "one less", r"mbarrier\.init\..*", OtherOperand(1, "sub.u32", 1)),
    Rule("expect_tx", "16 bytes more", _EXPECT, OtherOperand(2, "add.u32", 16)),
    Rule("expect_tx", "16 bytes less", _EXPECT, OtherOperand(2, "sub.u32", 16)),
    Rule("proxy fence", "of global memory", r"fence\.proxy\.async(\.shared::\w+)?", of_global_memory),
    Rule("memory fence", "in the block", r"(fence\.(?!proxy|mbarrier)|membar\.).*", of_the_block),
    Rule("barrier of the cluster", "relaxed", r"barrier\.cluster\.arrive.*", relaxed),
    Rule("wgmma fence, commit, wait", "a group more in flight", r"wgmma\.wait_group\..*", one_more),
    Rule("commit, wait of copies", "a group more in flight", r"cp\.async\.(bulk\.)?wait_group(\.read)?", one_more),
    Rule("commit, wait of copies", "for reads alone", r"cp\.async\.bulk\.wait_group", of_reads),
)
"""The first rows remove, one row for each kind of statement; the others weaken."""
