"""refsim ptx: the instructions that the simulator implements, and the meaning of each."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from refsim.cli.delivery import Answer, answers
from refsim.cli.names import Name
from refsim.cli.registry import Group
from refsim.errors import Kind, RefsimError
from refsim.render import Cell, Column, Document, Entry, Record, Table

if TYPE_CHECKING:
    from refsim.ptx.execution.types import PtxType
    from refsim.ptx.isa.forms import Instruction, OperandForm


def _family(clause: "Instruction") -> str:
    return str(clause.function.__module__.rpartition(".")[2])


def _exact(clause: "Instruction") -> str:
    """Return yes, no, or the targets whose chip was recorded."""
    return ", ".join(clause.recorded) or "no" if clause.inexact else "yes"


def _meaning(clause: "Instruction") -> str:
    """Return the docstring of an instruction implementation as one line."""
    return " ".join((clause.function.__doc__ or "").split())


FORM_COLUMNS = (
    Column("family", strong=True, of=_family),
    Column("form"),
    Column("since", drop=2),
    Column("exact", drop=1, of=_exact),
    Column("source", citation=True),
)
MEANING_COLUMNS = (
    Column("form", strong=True),
    Column("meaning", of=lambda clause: _meaning(clause).split(". ")[0].rstrip(".") + "."),
    Column("since", drop=1),
    Column("source", citation=True),
)
FAMILY_COLUMNS = (
    Column("family", strong=True),
    Column("mnemonics"),
    Column("forms", align="right"),
    Column("assumed", label="recorded on some targets", align="right", drop=1),
    Column("inexact", label="marked inexact", align="right", drop=1),
)
OPCODES = (
    Column("opcode", strong=True),
    Column("count", align="right"),
    Column("clause"),
    Column("since", drop=2),
    Column("exact", drop=1),
    Column("form", text=False),
    Column("functions", text=False),
)
CHECK_COLUMNS = (Column("check", strong=True, of="name"), Column("severity"), Column("finds"))
STOPPED = (Column("stop", label="stops a launch", strong=True, of="name"), Column("finds"))
MISSING = (
    Column("missing", strong=True),
    Column("count", align="right"),
    Column("since"),
    Column("what"),
    Column("functions", label="in", drop=1),
    Column("source", citation=True),
)


@click.group(cls=Group)
def command() -> None:
    """List and explain the instructions that the simulated GPU executes."""


def opcodes() -> list[str]:
    """Return the mnemonics of all instruction implementations."""
    from refsim.ptx.isa.forms import clauses

    return sorted({clause.mnemonic for clause in clauses()})


@command.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE...]")
@click.option("--forms", is_flag=True, help="List every form on its own line.")
@click.option("--checks", is_flag=True, help="List every check of a launch, its severity, and the name for --without.")
@answers
def coverage(files: tuple[Path, ...], forms: bool, checks: bool) -> Document | Answer:
    """List the instructions that are implemented.

    With PTX FILEs, list their opcodes that are not implemented; the exit code is then 5.

    \b
      refsim ptx coverage
      refsim ptx coverage kernel.ptx
    """
    from refsim.ptx.isa.forms import clauses

    if checks:
        return _checks()
    if files:
        return _coverage_of(files)
    known = clauses()
    hints = (f"{len(known)} forms of {len({clause.mnemonic for clause in known})} mnemonics",)
    if not forms:
        return Document((Table(FAMILY_COLUMNS, tuple(_families(known)), key="families"),), "coverage", hints=hints)
    return Document((Table.of(FORM_COLUMNS, known, key="forms"),), "instruction forms", hints=hints)


def _checks() -> Document:
    from refsim.ptx import CHECKS, STOPS

    tables = Table.of(CHECK_COLUMNS, CHECKS, key="checks"), Table.of(STOPPED, STOPS, key="stops")
    hints = ("a failure makes the exit code 1; --without NAME turns a check off; what stops a launch cannot be",)
    return Document(tables, "checks", hints=hints)


def _how_exact(clause: "Instruction") -> str:
    if not clause.inexact:
        return "yes"
    if clause.recorded:
        return f"as recorded on {' and '.join(clause.recorded)}; on other targets the same bits, which are assumed"
    return "no: hardware may differ, results are marked inexact"


def _families(known: "list[Instruction]") -> Iterator[tuple[Cell, ...]]:
    for family in sorted({_family(clause) for clause in known}):
        members = [clause for clause in known if _family(clause) == family]
        mnemonics = sorted({clause.mnemonic for clause in members})
        recorded = sum(bool(clause.recorded) for clause in members)
        yield (
            family,
            " ".join(mnemonics),
            len(members),
            recorded,
            sum(clause.inexact for clause in members) - recorded,
        )


def _coverage_of(files: tuple[Path, ...]) -> Answer:
    """Return the opcodes of files, missing ones first, with the first target and the functions that use each."""
    from refsim import ptx
    from refsim.ptx.isa.forms import find

    counts: Counter[str] = Counter()
    users: dict[str, dict[str, None]] = {}
    for path in files:
        for function in ptx.load(path).module.functions.values():
            for step in function.statements:
                counts[step.opcode] += 1
                users.setdefault(step.opcode, {})[function.name] = None
    known: list[tuple[Cell, ...]] = []
    missing: list[tuple[Cell, ...]] = []
    for opcode, count in sorted(counts.items()):
        functions = tuple(users[opcode])
        try:
            clause, _ = find(opcode)
        except RefsimError as error:
            missing.append((opcode, count, *_lacking(opcode, error), functions, error.rule or None))
            continue
        exact, name = _exact(clause), f"{_family(clause)}.{clause.mnemonic}"
        known.append((opcode, count, name, clause.first_target(opcode), exact, clause.form, functions))
    tables = [Table(MISSING, tuple(missing), key="missing")] if missing else []
    hints = (f"{len(known)} of {len(counts)} opcodes have a clause",)
    document = Document((*tables, Table(OPCODES, tuple(known), key="opcodes")), "coverage", hints=hints)
    return Answer(document, Kind.INCONCLUSIVE.value if missing else 0)


def _lacking(opcode: str, error: RefsimError) -> tuple[Cell, Cell]:
    """Return the first target of an opcode that the simulator does not model, and a description of the opcode."""
    from refsim.ptx.isa.unmodelled import unmodelled

    row = unmodelled(opcode)
    return (row.since, f"{row.what}; not modeled by this simulator yet") if row else (None, error.help)


@command.command()
@click.argument("opcode", type=Name("opcode", "refsim.cli.commands.ptx:opcodes"))
@answers
def explain(opcode: str) -> Document:
    """Explain an opcode: its form, operands and meaning.

    A full OPCODE is cvt.rn.satfinite.e4m3x2.f32. A mnemonic, alone or with some of its modifiers, lists every form that has
    them: prmt, cvt.satfinite.

    \b
      refsim ptx explain cvt.rn.satfinite.e4m3x2.f32
      refsim ptx explain prmt
    """
    from refsim.ptx.isa.forms import bind

    try:
        bound = bind(opcode)
    except RefsimError:
        if (listed := _forms_of(opcode)) is None:
            raise
        return listed
    clause = bound.clause
    modifiers = ", ".join(f"{name}={value}" for name, value in bound.modifiers.items() if value not in (None, False))
    entries = [
        Entry("opcode", opcode),
        Entry("meaning", _meaning(clause)),
        Entry("results", ", ".join(f"{form.name}: {_kind(form, type)}" for form, type in bound.results) or "none"),
        Entry("operands", ", ".join(f"{form.name}: {_kind(form, type)}" for form, type in bound.sources) or "none"),
        Entry("modifiers", modifiers or "none"),
        Entry("since", clause.since),
        Entry("exact", _how_exact(clause)),
        Entry("form", clause.form),
        Entry("source", str(clause.source)),
    ]
    return Document((Record(tuple(entries)),), opcode, (clause.source,))


def _forms_of(opcode: str) -> Document | None:
    """Return the forms of a mnemonic with some of its modifiers, or None where no form has them."""
    from refsim.ptx.isa.forms import clauses

    mnemonic, *words = opcode.split(".")
    found = [each for each in clauses() if each.mnemonic == mnemonic and each.opcode.vocabulary.issuperset(words)]
    if not found:
        return None
    hints = (f"{len(found)} forms; refsim ptx explain OPCODE says what one opcode takes",)
    return Document((Table.of(MEANING_COLUMNS, found, key="forms"),), opcode, hints=hints)


def _kind(form: "OperandForm", type: "PtxType") -> str:
    if form.address:
        return "address"
    if form.count:
        return f"vector of {form.count} {type.name}"
    return f"{type.name}{' or a vector of it' if form.many else ''}{' (optional)' if form.optional else ''}"
