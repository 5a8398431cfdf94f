"""refsim simulate: one entry on the simulated GPU, under one schedule or several."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from refsim.cli.answers import AGREED, FAILED, Answer, answers
from refsim.cli.launches import ARGUMENT_RULE, Extents, argument, loaded, previews, saved, write_array
from refsim.errors import RefsimError
from refsim.render import Column, Document, Entry, Record, Table

if TYPE_CHECKING:
    from refsim.device.schedules import Order, Outcome
    from refsim.ptx import BankUse, GlobalMemory, Program, Trace
    from refsim.render import Cell

ALL = "all"
FINDINGS = (Column("check", strong=True), Column("where"), Column("what"))
UNDER = Column("under", drop=1)
SCHEDULES = (Column("schedule", strong=True), Column("findings", align="right"), Column("bytes"))
BANKS = (
    Column("source", strong=True),
    Column("instruction"),
    Column("accesses", align="right", drop=2),
    Column("wavefronts", align="right", drop=1),
    Column("ways", align="right", label="wavefronts / needed"),
)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("entry")
@click.option("--grid", default="1", show_default=True, help="Blocks: 4 or 2x3.")
@click.option("--block", default="32", show_default=True, help="Threads of a block: 256 or 16x16.")
@click.option("--arg", "arguments", multiple=True, metavar="ARG", help=ARGUMENT_RULE)
@click.option(
    "--save", "saves", multiple=True, metavar="N=FILE.npy", help="Write argument N (from 0) after the launch."
)
@click.option("--shared", default=0, type=click.IntRange(0), help="Bytes of dynamic shared memory.")
@click.option("--target", metavar="SM", help="Architecture, such as sm_90a (default: the file's own).")
@click.option(
    "--policy",
    default="eager",
    show_default=True,
    help="eager, lazy or random: the schedule of the threads, and when asynchronous copies arrive; all: under each of "
    "them, as verify does, and the same bytes must be written.",
)
@click.option("--seed", default=0, type=click.IntRange(0), help="Seed of a random schedule.")
@click.option(
    "--arithmetic",
    default="silicon",
    show_default=True,
    help="silicon or exact: matrices multiplied as the target does, or summed exactly (faster).",
)
@click.option("--banks/--no-banks", default=True, help="Count the bank conflicts of shared memory.")
@click.option(
    "--seconds",
    default=600.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Time limit of a launch.",
)
@answers
def command(
    file: Path, entry: str, grid: str, block: str, arguments: tuple[str, ...], saves: tuple[str, ...], shared: int,
    target: str | None, policy: str, seed: int, arithmetic: str, banks: bool, seconds: float,
) -> Answer:  # fmt: skip
    """Execute ENTRY of a PTX or CUDA FILE lane by lane, every memory access checked.

    Findings that do not stop a kernel (races, reads of unwritten or unfinished bytes) are listed, and the exit code is 1.

    \b
      refsim simulate add.ptx add --block 64 --arg x.npy --arg u64:64 --arg zeros:f32:64 --save 2=y.npy
      refsim simulate add.ptx add --block 64 --arg x.npy --arg u64:64 --arg zeros:f32:64 --policy all
    """
    from refsim.device.schedules import outcomes
    from refsim.ptx import Checks, GlobalMemory

    program = loaded(file, target)
    values = [argument(position, text) for position, text in enumerate(arguments)]
    targets = [saved(text, values) for text in saves]
    orders = _orders(program, entry, policy, seed)
    originals = _copied(values) if len(orders) > 1 else values

    def run(order: "Order") -> "tuple[Trace, GlobalMemory]":
        memory, is_first = GlobalMemory(), order == orders[0]
        trace = program.launch(
            entry, Extents(grid).numbers, Extents(block).numbers, values if is_first else _copied(originals),
            shared_bytes=shared, memory=memory, policy=order.policy, seed=order.seed, arithmetic=arithmetic,
            checks=Checks("record", "record", "record", "record", banks=banks and is_first, seconds=seconds),
        )  # fmt: skip
        return trace, memory

    tried = list(outcomes(run, entry, orders))
    for position, path in targets:
        write_array(path, values[position])
    findings, trace = _findings(tried), tried[0].trace
    assert trace is not None
    entries = [
        Entry("entry", entry),
        Entry("target", program.target),
        Entry("policy", ALL if policy == ALL else _named(orders[0])),
        Entry("arithmetic", arithmetic),
        Entry("thread_instructions", trace.instructions, label="thread-instructions"),
        Entry("exact", trace.is_exact),
        Entry("inexact", trace.inexact + trace.idealised),
        Entry("contractions", tuple(map(str, trace.contractions))),
        Entry("saved", tuple(str(path) for _, path in targets)),
        Entry("findings_count", len(findings), label="findings"),
    ]
    parts: list[Record | Table] = [Record(tuple(entries))]
    if policy == ALL:
        first = (_named(orders[0]), len(trace.findings), "what the others are compared with")
        parts.append(Table(SCHEDULES, (first, *map(_schedule, tried[1:])), key="schedules"))
    if findings:
        columns = (*FINDINGS, UNDER) if policy == ALL else FINDINGS
        rows = tuple((error.code, error.where, error.what, under)[: len(columns)] for error, under in findings)
        parts.append(Table(columns, rows, key="findings"))
    if trace.banks:
        parts.append(Table(BANKS, _banks(trace.banks), key="banks"))
    document = Document(tuple(parts), f"{entry} of {file}", hints=previews(values))
    return Answer(document, FAILED if findings else AGREED)


def _orders(program: "Program", entry: str, policy: str, seed: int) -> "tuple[Order, ...]":
    from refsim.device.schedules import Order, orders_of
    from refsim.ptx import POLICIES

    if policy not in (*POLICIES, ALL):
        raise RefsimError("unknown-policy", f"no policy is called {policy!r}", help=", ".join((*POLICIES, ALL)))
    return orders_of(program, entry, first_seed=seed or 1) if policy == ALL else (Order(policy, seed),)


def _copied(values: list[Any]) -> list[Any]:
    return [value.copy() if getattr(value, "ndim", 0) else value for value in values]


def _named(order: "Order") -> str:
    return f"random, seed {order.seed}" if order.policy == "random" else order.policy


def _schedule(outcome: "Outcome") -> "tuple[Cell, ...]":
    """One order: how much was found under it, and whether it wrote the bytes of the first."""
    error, trace = outcome.error, outcome.trace
    count = (0 if trace is None else len(trace.findings)) + (error is not None)
    if trace is None:
        said = f"stopped by {error.code}" if error else ""
    elif error is not None:
        said = f"differ: {error.where}"
    elif outcome.is_compared:
        said = "as under the first"
    else:
        said = "not compared: inexact" if trace.inexact else "not compared: unwritten bytes were read"
    return _named(outcome.order), count, said


def _findings(tried: "list[Outcome]") -> "list[tuple[RefsimError, str]]":
    """Each finding once, by check and place, with the orders that it was found under."""
    found: dict[tuple[str, str], tuple[RefsimError, list[str]]] = {}
    for outcome in tried:
        for error in (*(outcome.trace.findings if outcome.trace else ()), *([outcome.error] if outcome.error else [])):
            found.setdefault((error.code, error.where), (error, []))[1].append(_named(outcome.order))
    return [(error, "; ".join(under)) for error, under in found.values()]


def _banks(uses: "tuple[BankUse, ...]") -> "tuple[tuple[Cell, ...], ...]":
    """One row for each source line and opcode: the copies of an unrolled loop are one instruction to its author."""
    totals: dict[tuple[str, str], list[int]] = {}
    for use in uses:
        place = str(use.statement.location or f"PTX line {use.statement.line}")
        row = totals.setdefault((place, use.statement.opcode), [0, 0, 0])
        for column, count in enumerate((use.accesses, use.wavefronts, use.ideal)):
            row[column] += count
    return tuple(
        (place, opcode, accesses, wavefronts, f"{wavefronts / ideal:.2f}")
        for (place, opcode), (accesses, wavefronts, ideal) in totals.items()
    )
