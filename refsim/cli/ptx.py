"""refsim ptx: which instructions the simulator knows, and what one of them means."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from refsim.cli.answers import Answer, answers
from refsim.cli.arguments import Name
from refsim.cli.group import Group
from refsim.errors import INCONCLUSIVE, RefsimError
from refsim.render import Column, Document, Entry, Record, Table

if TYPE_CHECKING:
    from refsim.ptx.isa.forms import Instruction, OperandForm
    from refsim.ptx.isa.types import PtxType
    from refsim.render import Cell

FORMS = (
    Column("family", strong=True),
    Column("form"),
    Column("since", drop=2),
    Column("exact", drop=1),
    Column("source", citation=True),
)
FAMILIES = (
    Column("family", strong=True),
    Column("mnemonics"),
    Column("forms", align="right"),
    Column("inexact", label="marked inexact", align="right", drop=1),
)
OPCODES = (
    Column("opcode", strong=True),
    Column("count", align="right"),
    Column("clause"),
    Column("exact", drop=1),
    Column("form", text=False),
)


@click.group(cls=Group)
def command() -> None:
    """What the simulated GPU executes."""


def _opcodes() -> list[str]:
    from refsim.ptx.isa.forms import clauses

    return sorted({clause.mnemonic for clause in clauses()})


@command.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE...]")
@click.option("--forms", is_flag=True, help="Every form on a line of its own.")
@answers
def coverage(files: tuple[Path, ...], forms: bool) -> Document | Answer:
    """The instructions that have a clause; with PTX FILEs, the opcodes they use and which have none (exit 5)."""
    from refsim.ptx.isa.forms import clauses

    if files:
        return _coverage_of(files)
    known = clauses()
    hints = (f"{len(known)} forms of {len({clause.mnemonic for clause in known})} mnemonics",)
    if not forms:
        return Document((Table(FAMILIES, tuple(_families(known)), key="families"),), "coverage", hints=hints)
    rows = tuple(
        (_family(clause), clause.form, clause.since, "no" if clause.inexact else "yes", clause.source)
        for clause in known
    )
    return Document((Table(FORMS, rows, key="forms"),), "instruction forms", hints=hints)


def _family(clause: "Instruction") -> str:
    return str(clause.function.__module__.rpartition(".")[2])


def _families(known: "list[Instruction]") -> "Iterator[tuple[Cell, ...]]":
    for family in sorted({_family(clause) for clause in known}):
        members = [clause for clause in known if _family(clause) == family]
        mnemonics = sorted({clause.mnemonic for clause in members})
        yield family, " ".join(mnemonics), len(members), sum(clause.inexact for clause in members)


def _coverage_of(files: tuple[Path, ...]) -> Answer:
    from refsim import ptx
    from refsim.ptx.isa.forms import find

    counts: Counter[str] = Counter()
    for path in files:
        module = ptx.load(path).module
        counts.update(step.opcode for function in module.functions.values() for step in function.statements)
    rows: list[tuple[Cell, ...]] = []
    missing = 0
    for opcode, count in sorted(counts.items()):
        try:
            clause, _ = find(opcode)
            exact = "no" if clause.inexact else "yes"
            rows.append((opcode, count, f"{_family(clause)}.{clause.mnemonic}", exact, clause.form))
        except RefsimError as error:
            missing += 1
            rows.append((opcode, count, "none", "", error.help))
    hints = (f"{len(rows) - missing} of {len(rows)} opcodes have a clause",)
    document = Document((Table(OPCODES, tuple(rows), key="opcodes"),), "coverage", hints=hints)
    return Answer(document, INCONCLUSIVE if missing else 0)


@command.command()
@click.argument("opcode", type=Name("opcode", _opcodes))
@answers
def explain(opcode: str) -> Document:
    """The form, the operands and the meaning of a full OPCODE such as cvt.rn.satfinite.e4m3x2.f32."""
    from refsim.ptx.isa.binding import bind

    bound = bind(opcode)
    clause = bound.clause
    modifiers = ", ".join(
        f"{name}={value}" for name, value in bound.modifiers.items() if value not in (None, False)
    )  # fmt: skip
    entries = [
        Entry("opcode", opcode),
        Entry("meaning", " ".join((clause.function.__doc__ or "").split())),
        Entry("results", ", ".join(f"{form.name}: {_kind(form, type)}" for form, type in bound.results) or "none"),
        Entry("operands", ", ".join(f"{form.name}: {_kind(form, type)}" for form, type in bound.sources) or "none"),
        Entry("modifiers", modifiers or "none"),
        Entry("since", clause.since),
        Entry("exact", "no: silicon may differ, results are marked inexact" if clause.inexact else "yes"),
        Entry("form", clause.form),
        Entry("source", str(clause.source)),
    ]
    return Document((Record(tuple(entries)),), opcode, (clause.source,))


def _kind(form: "OperandForm", type: "PtxType") -> str:
    if form.address:
        return "address"
    if form.count:
        return f"vector of {form.count} {type.name}"
    return f"{type.name}{' or a vector of it' if form.many else ''}{' (optional)' if form.optional else ''}"
