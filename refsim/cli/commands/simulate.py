"""refsim simulate: run one entry on the simulated GPU, under one schedule or several."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from refsim.cli.answers.launch_views import (
    accesses_table,
    banks_table,
    findings_of,
    findings_table,
    nan_table,
    order_name,
    printed_table,
    remarks_table,
    schedules_table,
    steps_table,
)
from refsim.cli.delivery import AGREED, FAILED, Answer, answers
from refsim.cli.devices import arithmetic_field, without_field
from refsim.cli.extents import Positive, Whole
from refsim.cli.launches import (
    ARGUMENT_RULE,
    Compilation,
    Extents,
    loaded,
    parse_argument,
    previews,
    saved,
    write_array,
)
from refsim.cli.names import SM
from refsim.cli.options import Options, argument, option
from refsim.errors import RefsimError, counted
from refsim.render import Document, Entry, Part, Record, Table

if TYPE_CHECKING:
    from refsim.cli.launches import LaunchArgument
    from refsim.device.schedules import Outcome, Run, SeededPolicy
    from refsim.ptx import AddressWatch, Arithmetic, GlobalMemory, Program, Trace, WarpTrace
    from refsim.ptx.checks.first_nan import NonFinite

ALL = "all"


@dataclass(frozen=True)
class Watchers:
    """Observers of the first schedule that the user asked for: the statements of a warp, the accesses to some bytes."""

    steps: "WarpTrace | None"
    accesses: "AddressWatch | None"

    def __bool__(self) -> bool:
        return self.steps is not None or self.accesses is not None

    def tables(self, grid: tuple[int, ...], block: tuple[int, ...]) -> Iterator[Table]:
        """Yield the observations in a launch of that shape."""
        from refsim.ptx.execution.geometry import Geometry
        from refsim.ptx.machine.launch_rules import extents

        if self.steps is not None:
            yield steps_table(self.steps.ran)
        if self.accesses is not None:
            geometry = Geometry(extents("grid", grid), extents("block", block), 0, prod(grid))
            yield accesses_table(self.accesses.touched, geometry.describe)

    def hints(self) -> Iterator[str]:
        """Yield how much was left out, and the option that shows it."""
        if self.steps is not None and self.steps.left_out:
            yield f"{counted(self.steps.left_out, 'statement')} more: --trace {self.steps.warp}:FIRST-LAST chooses lines"
        if self.accesses is not None and self.accesses.left_out:
            yield f"{self.accesses.left_out} more accesses: --at ADDRESS+BYTES:BYTES chooses fewer bytes"


class SimulateOptions(Options):
    """The options of `refsim simulate`."""

    file: Path = argument()
    entry: str | None = argument()
    grid: tuple[int, ...] = option("Blocks in the grid: 4 or 2x3.", type=Extents(), default="1")
    block: tuple[int, ...] = option("Threads in a block: 256 or 16x16.", type=Extents(), default="32")
    cluster: tuple[int, ...] | None = option(
        "Blocks in a cluster: 2 or 2x2 (default: as the entry requires).", type=Extents()
    )
    cooperative: bool = option("Launch cooperatively, with grid barriers.")
    arguments: tuple[str, ...] = option(ARGUMENT_RULE, "--arg", metavar="ARG")
    saves: tuple[str, ...] = option("Write argument N (from 0) after the launch.", "--save", metavar="N=FILE.npy")
    shared: int = option("Bytes of dynamic shared memory.", default=0, type=Whole(0))
    target: str | None = option("Architecture, such as sm_90a (default: that of the file).", type=SM)
    policy: str = option(
        "Schedule of threads and asynchronous copies: eager, lazy or random. all: run each schedule, as verify "
        "does; all must write the same bytes.",
        metavar="POLICY",
        default="eager",
    )
    seed: int = option("Seed of a random schedule.", default=0, type=Whole(0))
    arithmetic: "Arithmetic" = arithmetic_field()
    banks: bool = option("Count bank conflicts of shared memory, or do not.", "--banks/--no-banks", default=True)
    seconds: float = option("Time limit of a launch.", default=600.0, type=Positive())
    without: tuple[str, ...] = without_field()
    trace: str | None = option(
        "Show the registers that a warp writes, statement by statement, at source lines FIRST to LAST. Warps "
        "count from 0, block after block.",
        metavar="WARP[:FIRST-LAST]",
    )
    at: str | None = option(
        "Show the threads that read or write these bytes: an address, a variable, or argN, the array of "
        "argument N. +BYTES adds an offset, :BYTES sets the length.",
        metavar="ADDRESS|SYMBOL",
    )
    first_nan: bool = option("Run once more, and show where NaN and infinities in outputs come from.")
    compilation: Compilation = Compilation()

    def run(
        self,
        program: "Program",
        entry: str,
        order: "SeededPolicy",
        values: list[Any],
        seen: Watchers | None,
        born: "NonFinite | None" = None,
    ) -> "tuple[Trace, GlobalMemory]":
        """Run the launch under one schedule and return trace and memory; `seen` observes the first, else None.

        Only the first schedule counts bank conflicts. `born` follows NaN.
        """
        from refsim.ptx import Checks, GlobalMemory

        memory, banks = GlobalMemory(), self.banks and seen is not None
        done = program.launch(
            entry,
            self.grid,
            self.block,
            values,
            shared_bytes=self.shared,
            memory=memory,
            policy=order.policy,
            seed=order.seed,
            arithmetic=self.arithmetic,
            cooperative=self.cooperative,
            cluster=self.cluster,
            observer=None if seen is None else seen.steps,
            watching=None if seen is None else seen.accesses,
            following=born,
            checks=Checks("record", "record", "record", "record", banks=banks, seconds=self.seconds, off=self.without),
        )
        return done, memory


@click.command()
@answers
def command(asked: SimulateOptions) -> Answer:
    """Execute ENTRY of a PTX or CUDA FILE on the simulated GPU, and check every memory access.

    Some findings do not stop a kernel: races, uninitialized bits that reach an output, reads of copies that are not
    complete. refsim lists them, and the exit code is 1. A read of uninitialized memory that reaches no output is a note.

    \b
      refsim simulate add.ptx add --block 64 --arg x.npy --arg u64:64 \\
          --arg zeros:f32:64 --save 2=y.npy
      refsim simulate add.ptx add --block 64 --arg x.npy --arg u64:64 \\
          --arg zeros:f32:64 --policy all
      refsim simulate add.cu add --block 64 --arg x.npy --arg u64:64 \\
          --arg zeros:f32:64 --trace 1:3-5
      refsim simulate add.cu add --block 64 --arg x.npy --arg u64:64 \\
          --arg zeros:f32:64 --at arg2+16
      refsim simulate scale.cu 'scale<float>' -D WIDTH=8 -I headers \\
          --block 64 --arg x.npy --arg f32:0.5
    """
    program = loaded(asked.file, asked.target, asked.entry, asked.compilation)
    entry = asked.entry or _no_entry(program, asked.file)
    given = [parse_argument(position, text) for position, text in enumerate(asked.arguments)]
    values = [each.value for each in given]
    targets = [saved(text, values) for text in asked.saves]
    orders = _orders(program, entry, asked.policy, asked.seed)
    originals = _copied(values) if len(orders) > 1 or asked.first_nan else values
    seen = Watchers(_traced(program, entry, asked), _watched(program, entry, asked))

    def run(order: "SeededPolicy") -> "tuple[Trace, GlobalMemory]":
        """Run one schedule. Later schedules get fresh copies of the arguments."""
        is_first = order == orders[0]
        taken = values if is_first else _copied(originals)
        return asked.run(program, entry, order, taken, seen if is_first else None)

    tried = _tried(run, entry, orders, is_watched=bool(seen))
    tried = _with_unused(tried, asked.without)
    if tried[0].trace is not None:
        for position, path in targets:
            write_array(path, values[position])
    by_order = asked.policy == ALL
    schedule = ALL if by_order else order_name(orders[0])
    record = _record(entry, program.target, schedule, asked.arithmetic, tried, targets)
    views: tuple[Part, ...] = (record, *_tables(tried, by_order), *seen.tables(asked.grid, asked.block))
    if asked.first_nan and tried[0].trace is not None:

        def again(born: "NonFinite") -> None:
            asked.run(program, entry, orders[0], _copied(originals), None, born)

        views = (*views, _first_nan(again, given))
    hints = (*previews(given), *seen.hints())
    return Answer(Document(views, f"{entry} of {asked.file}", hints=hints), _exit_code(tried))


def _first_nan(again: "Callable[[NonFinite], None]", given: "list[LaunchArgument]") -> Table:
    """Run the launch again with NaN and infinities followed, and return the table of where they come from."""
    from refsim.ptx.checks.first_nan import NanArray, NanRow, NonFinite

    formats = [each.format.name if each.format else "" for each in given]
    arrays = (NanArray.of(one.value.dtype, of, one.value.shape) for one, of in zip(given, formats, strict=True))
    born = NonFinite(known={f"argument {at}": each for at, each in enumerate(arrays)})
    try:
        again(born)
    except RefsimError as error:
        return nan_table([NanRow("unknown", error.where, f"the second run ended: [{error.code}] {error.what}")])
    stored, byte = born.memory.space.stored, NanArray(None, 1, is_unsigned=True)
    codes = [name for name, each in born.known.items() if name in stored and each._replace(shape=()) == byte]
    return nan_table(born.rows(), ", ".join(codes))


def _no_entry(program: "Program", file: Path) -> str:
    """Raise RefsimError with all entries and their parameters, and a command for the first."""
    from refsim.ptx.machine.arguments import described, examples
    from refsim.ptx.text.source_names import spelled

    entries = {spelled(name): parameters for name, parameters in program.entries.items()}
    rule = "; ".join(f"entry {name} ({described(each)})" for name, each in entries.items())
    way = next((" ".join(("refsim simulate", str(file), name, *examples(each))) for name, each in entries.items()), "")
    raise RefsimError("missing-argument", "no entry is named", str(file), rule or "the file has no entry", way)


def _tried(run: "Run", entry: str, orders: "tuple[SeededPolicy, ...]", *, is_watched: bool) -> "list[Outcome]":
    """Return the outcome of each schedule. A fault ends the command, unless the user watches the way to it."""
    from refsim.device.schedules import Outcome, outcomes
    from refsim.ptx import is_fault

    try:
        return list(outcomes(run, entry, orders))
    except RefsimError as error:
        if not is_watched or not is_fault(error):
            raise
        return [Outcome(orders[0], None, error)]


def _with_unused(tried: "list[Outcome]", without: tuple[str, ...]) -> "list[Outcome]":
    """Return the outcomes; the first one has a finding for waivers that allowed nothing under any schedule."""
    used = {name for outcome in tried if outcome.trace for name, _ in outcome.trace.waived}
    unused = [name for name in without if "@" in name and name not in used]
    trace = tried[0].trace
    if not unused or trace is None:
        return tried
    error = RefsimError("unused-waiver", f"{', '.join(unused)} allowed no finding", "--without")
    return [replace(tried[0], trace=replace(trace, findings=(*trace.findings, error))), *tried[1:]]


def _record(
    entry: str, target: str, policy: str, arithmetic: str, tried: "list[Outcome]", targets: list[tuple[int, Path]]
) -> Record:
    """Return the facts of the launch: what was asked for, and what the first schedule did."""
    trace = tried[0].trace
    asked = [Entry("entry", entry), Entry("target", target), Entry("policy", policy), Entry("arithmetic", arithmetic)]
    did = (
        []
        if trace is None
        else [
            Entry("thread_instructions", trace.instructions, label="thread-instructions"),
            Entry("exact", trace.is_exact),
            Entry("inexact", trace.inexact + trace.idealised),
            Entry("assumed", trace.assumed),
            Entry("contractions", tuple(map(str, trace.contractions))),
            Entry("without", trace.off),
            Entry("saved", tuple(str(path) for _, path in targets)),
        ]
    )
    return Record((*asked, *did, Entry("findings_count", len(findings_of(tried)), label="findings")))


def _tables(tried: "list[Outcome]", by_order: bool) -> Iterator[Table]:
    """Yield the tables of findings, printed lines, remarks and bank conflicts."""
    findings, trace = findings_of(tried), tried[0].trace
    if by_order:
        yield schedules_table(tried)
    if findings:
        yield findings_table(findings, by_order=by_order)
    printed = trace.printed if trace is not None else next((each.error.printed for each in tried if each.error), ())
    if printed:
        yield printed_table(printed)
    if trace is not None and trace.warnings:
        yield remarks_table(trace.warnings, "warnings")
    if trace is not None and trace.waived:
        yield remarks_table(tuple(error for _, error in trace.waived), "waived")
    if trace is not None and trace.notes:
        yield remarks_table(trace.notes, "notes")
    if trace is not None and trace.banks:
        yield banks_table(trace.banks)


def _exit_code(tried: "list[Outcome]") -> int:
    """Return the exit code of a fault that ended the launch, else FAILED with findings and AGREED without."""
    ended = [outcome.error.exit_code for outcome in tried if outcome.error is not None]
    if ended:
        return FAILED if FAILED in ended else ended[0]
    return FAILED if findings_of(tried) else AGREED


def _traced(program: "Program", entry: str, asked: SimulateOptions) -> "WarpTrace | None":
    """Return the observer of a warp for WARP or WARP:FIRST-LAST, None without --trace."""
    from refsim.ptx import WarpTrace

    if (text := asked.trace) is None:
        return None
    rule = "WARP or WARP:FIRST-LAST: a warp from 0, source lines from 1"
    match = re.fullmatch(r"([0-9]{1,9})(?::([0-9]{1,9})(?:-([0-9]{1,9}))?)?", text)
    if match is None:
        raise RefsimError("bad-value", f"{text!r} names no warp and lines", where="--trace", rule=rule)
    warp, warps = int(match[1]), prod(asked.grid) * -(-prod(asked.block) // 32)
    if warp >= warps:
        raise RefsimError("bad-value", f"warp {warp} of a launch of {warps}", where="--trace", rule=rule)
    code = program.code(entry)
    return WarpTrace(code, warp) if not match[2] else WarpTrace(code, warp, int(match[2]), int(match[3] or match[2]))


def _watched(program: "Program", entry: str, asked: SimulateOptions) -> "AddressWatch | None":
    from refsim.ptx import AddressWatch, stretch_named

    return None if asked.at is None else AddressWatch(stretch_named(program, entry, asked.at, asked.shared))


def _orders(program: "Program", entry: str, policy: str, seed: int) -> "tuple[SeededPolicy, ...]":
    from refsim.device.schedules import SeededPolicy, schedules_of
    from refsim.ptx import POLICIES

    if policy == ALL:
        return schedules_of(program, entry, first_seed=seed or 1)
    for each in POLICIES:
        if each == policy:
            return (SeededPolicy(each, seed),)
    raise RefsimError(
        "unknown-policy", f"no policy is called {policy!r}", help=f"policies: {', '.join((*POLICIES, ALL))}"
    )


def _copied(values: list[Any]) -> list[Any]:
    return [value.copy() if getattr(value, "ndim", 0) else value for value in values]
