"""refsim ptx: which instructions the simulator knows, and what one of them means."""

from collections import Counter
from pathlib import Path
from typing import Any

import click

from refsim.cli.answers import Answer, answers
from refsim.cli.arguments import Name
from refsim.errors import INCONCLUSIVE, RefsimError
from refsim.render import Column, Document, Entry, Record, Table

FORMS = (
    Column("family", strong=True),
    Column("form"),
    Column("since", drop=2),
    Column("exact", drop=1),
    Column("source", citation=True),
)
OPCODES = (Column("opcode", strong=True), Column("count", align="right"), Column("form"), Column("exact", drop=1))


@click.group()
def command() -> None:
    """What the simulated GPU executes."""


def _opcodes() -> list[str]:
    from refsim.ptx.isa.forms import clauses

    return sorted({clause.mnemonic for clause in clauses()})


@command.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE...]")
@answers
def coverage(files: tuple[Path, ...]) -> Document | Answer:
    """Every instruction form that has a clause; with PTX FILEs, the opcodes they use and which have none (exit 5)."""
    from refsim.ptx.isa.forms import clauses

    if files:
        return _coverage_of(files)
    rows = tuple(
        (_family(clause), clause.form, clause.since, "no" if clause.inexact else "yes", clause.source)
        for clause in clauses()
    )
    return Document((Table(FORMS, rows, key="forms"),), "instruction forms", hints=(f"{len(rows)} forms",))


def _family(clause: Any) -> str:
    return str(clause.function.__module__.rpartition(".")[2])


def _coverage_of(files: tuple[Path, ...]) -> Answer:
    from refsim import ptx
    from refsim.ptx.isa.forms import find

    counts: Counter[str] = Counter()
    for path in files:
        module = ptx.load(path).module
        counts.update(step.opcode for function in module.functions.values() for step in function.statements)
    rows, missing = [], 0
    for opcode, count in sorted(counts.items()):
        try:
            clause, _ = find(opcode)
            rows.append((opcode, count, clause.form, "no" if clause.inexact else "yes"))
        except RefsimError as error:
            missing += 1
            rows.append((opcode, count, f"none; {error.help}", ""))
    hints = (f"{len(rows) - missing} of {len(rows)} opcodes have a clause",)
    return Answer(Document((Table(OPCODES, tuple(rows), key="opcodes"),), "coverage", hints=hints),
                  INCONCLUSIVE if missing else 0)  # fmt: skip


@command.command()
@click.argument("opcode", type=Name("opcode", _opcodes))
@answers
def explain(opcode: str) -> Document:
    """The form, the operands and the meaning of a full OPCODE such as cvt.rn.satfinite.e4m3x2.f32."""
    from refsim.ptx.bind import bind

    bound = bind(opcode)
    clause = bound.clause
    modifiers = ", ".join(
        f"{name}={value}" for name, value in bound.modifiers.items() if value not in (None, False)
    )  # fmt: skip
    entries = [
        Entry("opcode", opcode),
        Entry("meaning", " ".join((clause.function.__doc__ or "").split())),
        Entry("results", ", ".join(f"{form.name}: {type.name}" for form, type in bound.results) or "none"),
        Entry("operands", ", ".join(f"{form.name}: {_kind(form, type)}" for form, type in bound.sources) or "none"),
        Entry("modifiers", modifiers or "none"),
        Entry("since", clause.since),
        Entry("exact", "no: silicon may differ, results are marked inexact" if clause.inexact else "yes"),
        Entry("form", clause.form),
        Entry("source", str(clause.source)),
    ]
    return Document((Record(tuple(entries)),), opcode, (clause.source,))


def _kind(form: Any, type: Any) -> str:
    if form.address:
        return "address"
    return f"{type.name}{' or a vector of it' if form.many else ''}{' (optional)' if form.optional else ''}"
