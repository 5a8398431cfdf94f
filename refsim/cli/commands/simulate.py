"""refsim simulate: run one entry on the simulated GPU, under one schedule or several, and show what it did."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refsim.cli.answers.events import events_table, source_of
from refsim.cli.delivery import AGREED, FAILED, Answer, answering
from refsim.cli.devices import arithmetic_field, without_field
from refsim.cli.extents import Positive, Whole
from refsim.cli.launches import (
    ARGUMENT_RULE,
    Compilation,
    Extents,
    LaunchArgument,
    loaded,
    parse_argument,
    previews,
    saved,
    write_array,
)
from refsim.cli.names import SM
from refsim.cli.options import Options, argument, option
from refsim.errors import RefsimError, counted
from refsim.render import Bits, Cell, Column, Document, Entry, Part, Record, Table

if TYPE_CHECKING:
    from refsim.device.schedules import Outcome, Run, SeededPolicy
    from refsim.ptx import AddressWatch, Arithmetic, BankUse, Crowd, EventLog, GlobalMemory, Program, Trace, WarpTrace
    from refsim.ptx.checks.first_nan import NanRow, NonFinite
    from refsim.ptx.observers.steps import Held, Ran, Touched

FINDINGS = (Column("check", strong=True, of="code"), Column("where"), Column("what"))
UNDER = Column("under", drop=1)
SCHEDULE_COLUMNS = (Column("schedule", strong=True), Column("findings", align="right"), Column("bytes"))
BANK_COLUMNS = (
    Column("source", strong=True),
    Column("instruction"),
    Column("accesses", align="right", drop=3),
    Column("wavefronts", align="right", drop=2),
    Column("ways", align="right", label="wavefronts / needed"),
    Column("worst", label="lane @ byte in the fullest bank", drop=1),
    Column("bank", text=False),
    Column("warp", text=False),
    Column("lanes", text=False),
    Column("words", text=False),
)
STEP_COLUMNS = (
    Column("source", strong=True),
    Column("instruction"),
    Column("lanes", drop=1),
    Column("register", strong=True),
    Column("value"),
    Column("ptx_line", text=False),
    Column("lane_numbers", text=False),
    Column("is_written", text=False),
    Column("bits", text=False),
)
NAN_COLUMNS = (Column("role", label="NaN", strong=True), Column("where"), Column("what"))
SHOWN = 4


def order_name(order: "SeededPolicy") -> str:
    """Return the name of a schedule in tables."""
    if order.held:
        return f"held before {order.held}"
    return f"random, seed {order.seed}" if order.policy == "random" else order.policy


def remarks_table(remarks: tuple[RefsimError, ...], key: str) -> Table:
    """Return a table of warnings or notes, which do not make a kernel wrong."""
    columns = (replace(FINDINGS[0], label=key.removesuffix("s")), *FINDINGS[1:])
    return Table.of(columns, remarks, key)


def nan_table(rows: "Sequence[NanRow]", unknown: str = "") -> Table:
    """Return the way of NaN and infinities to the outputs, or a line that there are none; `unknown` are outputs that may
    hold codes of a format that the user did not name."""
    clean = ("none", "", "no output holds NaN or an infinity that the launch stored")
    if unknown:
        clean = ("unknown", unknown, "may hold codes of NaN: name their format, as in --arg e4m3:FILE.npy")
    return Table(NAN_COLUMNS, tuple(map(tuple, rows)) or (clean,), "first_nan")


def printed_table(lines: tuple[str, ...]) -> Table:
    """Return the lines that threads printed under the first schedule."""
    return Table((Column("printed"),), tuple((line,) for line in lines), "printed")


def schedules_table(tried: "list[Outcome]") -> Table:
    """Return an entry for each schedule: how many findings it has, and whether its bytes equal those of the first."""
    return Table(
        SCHEDULE_COLUMNS,
        tuple((order_name(each.order), *_judged(each, each is tried[0])) for each in tried),
        "schedules",
    )


def _judged(outcome: "Outcome", is_first: bool) -> tuple[Cell, ...]:
    error, trace = outcome.error, outcome.trace
    count = (0 if trace is None else len(trace.findings)) + (error is not None)
    if error is not None:
        said = f"stopped by {error.code}" if trace is None else f"differ: {error.where}"
    elif is_first:
        said = "what the others are compared with"
    elif outcome.is_compared:
        said = "as under the first"
    else:
        said = f"not compared: {_why_not_compared(trace)}"
    return count, said


def _why_not_compared(trace: "Trace | None") -> str:
    from refsim.ptx.findings.table import SCHEDULE_DEPENDENT

    if trace is not None and SCHEDULE_DEPENDENT in trace.off:
        return f"without {SCHEDULE_DEPENDENT}"
    return "inexact" if trace is not None and trace.inexact else "unwritten bits reached the output"


def findings_of(tried: "list[Outcome]") -> list[tuple[RefsimError, str]]:
    """Return each finding once, by check and place, with the schedules that show it."""
    found: dict[tuple[str, str], tuple[RefsimError, list[str]]] = {}
    for outcome in tried:
        for error in (*(outcome.trace.findings if outcome.trace else ()), *([outcome.error] if outcome.error else [])):
            found.setdefault((error.code, error.where), (error, []))[1].append(order_name(outcome.order))
    return [(error, "; ".join(under)) for error, under in found.values()]


def findings_table(findings: list[tuple[RefsimError, str]], *, by_order: bool) -> Table:
    """Return the findings; `by_order` adds the schedules that show each."""
    columns = (*FINDINGS, UNDER) if by_order else FINDINGS
    rows = ((error.code, error.where, error.what, under)[: len(columns)] for error, under in findings)
    return Table(columns, tuple(rows), key="findings")


def banks_table(uses: "tuple[BankUse, ...]") -> Table:
    """Return an entry for each source line and opcode; the copies of an unrolled loop count as one instruction."""
    together: dict[tuple[str, str], list[BankUse]] = {}
    for use in uses:
        together.setdefault((source_of(use.statement), use.statement.opcode), []).append(use)
    rows = []
    for (source, opcode), group in together.items():
        accesses, wavefronts, ideal = (
            sum(each) for each in zip(*((use.accesses, use.wavefronts, use.ideal) for use in group), strict=True)
        )
        worst = max((use.worst for use in group if use.worst), key=lambda found: len(found.words), default=None)
        rows.append((source, opcode, accesses, wavefronts, f"{wavefronts / ideal:.2f}", *_crowd(worst)))
    collide = any(use.worst for use in uses)
    columns = tuple(replace(each, text=each.text and (collide or each.key != "worst")) for each in BANK_COLUMNS)
    return Table(columns, tuple(rows), key="banks")


def _crowd(worst: "Crowd | None") -> tuple[Cell, ...]:
    """Return the cells of colliding lanes: text with the first words of the fullest bank, then all words for JSON."""
    if worst is None:
        return (None,) * 5
    said = [f"{spans(lanes)} @ {word:#x}" for word, lanes in zip(worst.words, worst.lanes, strict=True)]
    more = f", {len(said) - SHOWN} more" if len(said) > SHOWN else ""
    words = tuple(Bits(word, 32) for word in worst.words)
    return f"bank {worst.bank}: {', '.join(said[:SHOWN])}{more}", worst.bank, worst.warp, worst.lanes, words


def steps_table(ran: "list[Ran]") -> Table:
    """Return an entry for each register that a statement of the warp wrote, or read if it writes none."""
    rows: list[tuple[Cell, ...]] = []
    for step in ran:
        known = (source_of(step.statement), step.statement.opcode, spans(step.lanes))
        rest = (step.statement.line, step.lanes)
        for held in step.registers:
            name = held.register if held.is_written else f"reads {held.register}"
            bits = tuple(Bits(each, held.width) for each in held.bits)
            rows.append((*known, name, _values(step.lanes, held), *rest, held.is_written, bits))
        if not step.registers:
            rows.append((*known, None, None, *rest, None, None))
    return Table(STEP_COLUMNS, tuple(rows), key="steps")


def accesses_table(touched: "list[Touched]", describe: Callable[[int], str]) -> Table:
    """Return an entry for each access to the watched bytes; `describe` returns the name of a thread."""
    columns = (
        Column("source", strong=True, of=lambda each: source_of(each.statement)),
        Column("instruction", of="statement.opcode"),
        Column(
            "access",
            strong=True,
            of=lambda each: each.kind if any(each.wrote) or each.kind == "read" else "read, nothing written",
        ),
        Column("threads", of=lambda each: _who(each.threads, describe)),
        Column(
            "address", drop=1, of=lambda each: f"{min(each.addresses):#x}-{max(each.addresses) + each.width - 1:#x}"
        ),
        Column("value", of=lambda each: _listed(_bits_of(each))),
        Column("ptx_line", text=False, of="statement.line"),
        Column("thread_numbers", text=False, of="threads"),
        Column("addresses", text=False, of=lambda each: tuple(Bits(at, 40) for at in each.addresses)),
        Column("width", unit="B", text=False),
        Column("bits", text=False, of=_bits_of),
        Column("wrote", text=False),
    )
    return Table.of(columns, touched, key="accesses")


def _bits_of(each: "Touched") -> tuple[Bits, ...]:
    return tuple(Bits(item, 8 * each.width) for item in each.bits)


def _who(threads: tuple[int, ...], describe: Callable[[int], str]) -> str:
    first = describe(threads[0])
    return first if len(threads) == 1 else f"{len(threads)} threads, first {first}"


def _listed(bits: tuple[Bits, ...]) -> str:
    """Return one value if all are equal, else the first few."""
    if len(set(bits)) == 1:
        return str(bits[0])
    more = f", {len(bits) - SHOWN} more" if len(bits) > SHOWN else ""
    return ", ".join(map(str, bits[:SHOWN])) + more


def spans(numbers: tuple[int, ...]) -> str:
    """Return ascending numbers as spans: 0-15, 24."""
    spoken: list[list[int]] = []
    for number in numbers:
        if spoken and number == spoken[-1][1] + 1:
            spoken[-1][1] = number
        else:
            spoken.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spoken)


def _values(lanes: tuple[int, ...], held: "Held") -> str:
    """Return one value if all lanes hold it; first, last and step if it grows evenly; else the lanes of each value."""
    groups: dict[int, list[int]] = {}
    for lane, bits in zip(lanes, held.bits, strict=True):
        groups.setdefault(bits, []).append(lane)
    if len(groups) == 1:
        return _spelled(held.bits[0], held)
    steps = {(after - before) % (1 << held.width) for before, after in zip(held.bits, held.bits[1:], strict=False)}
    if len(steps) == 1 and len(held.bits) > 2 and held.type.dtype.kind in "ui":
        step, ends = steps.pop(), f"{_spelled(held.bits[0], held)} .. {_spelled(held.bits[-1], held)}"
        return f"{ends}, {f'+{step}' if step < 1 << (held.width - 1) else f'-{(1 << held.width) - step}'} a lane"
    said = [f"{spans(tuple(who))}: {_spelled(bits, held)}" for bits, who in groups.items()]
    more = f", {len(said) - SHOWN} more" if len(said) > SHOWN else ""
    return ", ".join(said[:SHOWN]) + more


def _spelled(bits: int, held: "Held") -> str:
    """Return the bits, followed by the number where the type has one: 0x3f800000 1.0. An address stays bits."""
    import numpy as np

    type, code = held.type, str(Bits(bits, held.width))
    if type.name == "pred":
        return str(bits)
    if type.lanes > 1 or type.bits != held.width or type.name.startswith("b") or type.name == "tf32":
        return code
    value = np.array([bits], type.bits_dtype).view(type.dtype)[0]
    return code if type.dtype.kind == "u" and value >= 1 << 32 else f"{code} {value}"


ALL = "all"


@dataclass(frozen=True)
class Watchers:
    """Observers of the first schedule that the user asked for: statements of a warp, accesses to some bytes, events."""

    steps: "WarpTrace | None"
    accesses: "AddressWatch | None"
    events: "EventLog | None"

    def __bool__(self) -> bool:
        return any(each is not None for each in (self.steps, self.accesses, self.events))

    def tables(self, grid: tuple[int, ...], block: tuple[int, ...]) -> Iterator[Table]:
        """Yield the observations in a launch of that shape."""
        from refsim.ptx.execution.geometry import Geometry
        from refsim.ptx.machine.launch_rules import extents

        if self.steps is not None:
            yield steps_table(self.steps.ran)
        if self.accesses is not None:
            geometry = Geometry(extents("grid", grid), extents("block", block), 0, prod(grid))
            yield accesses_table(self.accesses.touched, geometry.describe)
        if self.events is not None:
            yield events_table(self.events.events)

    def hints(self) -> Iterator[str]:
        """Yield how much was left out, and the option that shows it."""
        if self.steps is not None and self.steps.left_out:
            yield f"{counted(self.steps.left_out, 'statement')} more: --trace {self.steps.warp}:FIRST-LAST chooses lines"
        if self.accesses is not None and self.accesses.left_out:
            yield f"{self.accesses.left_out} more accesses: --at ADDRESS+BYTES:BYTES chooses fewer bytes"
        if self.events is not None and self.events.left_out:
            yield f"{counted(self.events.left_out, 'event')} more: --events KIND,... chooses kinds"


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
    events: str | None = option(
        "List what threads and copies do, in order. KIND: access, synchronization, transfer, launch, or another kind or "
        "event (default: all).",
        metavar="[KIND,...]",
        is_flag=False,
        flag_value="all",
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
            events=None if seen is None else seen.events,
            checks=Checks("record", "record", "record", "record", banks=banks, seconds=self.seconds, off=self.without),
        )
        return done, memory


@answering()
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
      refsim simulate add.cu add --block 64 --arg x.npy --arg u64:64 \\
          --arg zeros:f32:64 --events access,launch
      refsim simulate scale.cu 'scale<float>' -D WIDTH=8 -I headers \\
          --block 64 --arg x.npy --arg f32:0.5
    """
    from refsim.ptx import AddressWatch, EventLog, stretch_named

    program = loaded(asked.file, asked.target, asked.entry, asked.compilation)
    entry = asked.entry or _no_entry(program, asked.file)
    given = [parse_argument(position, text) for position, text in enumerate(asked.arguments)]
    values = [each.value for each in given]
    targets = [saved(text, values) for text in asked.saves]
    orders = _orders(program, entry, asked.policy, asked.seed)
    originals = _copied(values) if len(orders) > 1 or asked.first_nan else values
    watch = None if asked.at is None else AddressWatch(stretch_named(program, entry, asked.at, asked.shared))
    log = None if asked.events is None else EventLog(asked.events.split(","))
    seen = Watchers(_traced(program, entry, asked), watch, log)

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


def _first_nan(again: "Callable[[NonFinite], None]", given: list[LaunchArgument]) -> Table:
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
