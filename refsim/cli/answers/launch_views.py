"""Tables of a launch: findings, schedules, banks, and the statements that a warp ran."""

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from refsim.render import Bits, Column, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from refsim.device.schedules import Outcome, SeededPolicy
    from refsim.errors import RefsimError
    from refsim.ptx import BankUse, Crowd, Trace
    from refsim.ptx.checks.first_nan import NanRow
    from refsim.ptx.observers.steps import Held, Ran, Touched
    from refsim.ptx.text.syntax import Statement
    from refsim.render import Cell

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


def source_of(statement: "Statement") -> str:
    """Return the source line of a statement and of the nearest call, or its PTX line where the PTX names no source.

    A finding names all calls, which would be wider than a table.
    """
    if statement.location is None:
        return f"PTX line {statement.line}"
    return ", called at ".join(at.spot for at in islice(statement.location.places(), 2))


def order_name(order: "SeededPolicy") -> str:
    """Return the name of a schedule in tables."""
    if order.held:
        return f"held before {order.held}"
    return f"random, seed {order.seed}" if order.policy == "random" else order.policy


def remarks_table(remarks: "tuple[RefsimError, ...]", key: str) -> Table:
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


def _judged(outcome: "Outcome", is_first: bool) -> "tuple[Cell, ...]":
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


def findings_of(tried: "list[Outcome]") -> "list[tuple[RefsimError, str]]":
    """Return each finding once, by check and place, with the schedules that show it."""
    found: dict[tuple[str, str], tuple[RefsimError, list[str]]] = {}
    for outcome in tried:
        for error in (*(outcome.trace.findings if outcome.trace else ()), *([outcome.error] if outcome.error else [])):
            found.setdefault((error.code, error.where), (error, []))[1].append(order_name(outcome.order))
    return [(error, "; ".join(under)) for error, under in found.values()]


def findings_table(findings: "list[tuple[RefsimError, str]]", *, by_order: bool) -> Table:
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


def _crowd(worst: "Crowd | None") -> "tuple[Cell, ...]":
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


def accesses_table(touched: "list[Touched]", describe: "Callable[[int], str]") -> Table:
    """Return an entry for each access to the watched bytes; `describe` returns the name of a thread."""
    columns = (
        Column("source", strong=True, of=lambda each: source_of(each.statement)),
        Column("instruction", of="statement.opcode"),
        Column("access", strong=True, of=_access),
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


def _access(each: "Touched") -> str:
    return each.kind if any(each.wrote) or each.kind == "read" else "read, nothing written"


def _bits_of(each: "Touched") -> tuple[Bits, ...]:
    return tuple(Bits(item, 8 * each.width) for item in each.bits)


def _who(threads: tuple[int, ...], describe: "Callable[[int], str]") -> str:
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
        return f"{_spelled(held.bits[0], held)} .. {_spelled(held.bits[-1], held)}, {_grown(steps.pop(), held.width)} a lane"
    said = [f"{spans(tuple(who))}: {_spelled(bits, held)}" for bits, who in groups.items()]
    more = f", {len(said) - SHOWN} more" if len(said) > SHOWN else ""
    return ", ".join(said[:SHOWN]) + more


def _grown(step: int, width: int) -> str:
    return f"+{step}" if step < 1 << (width - 1) else f"-{(1 << width) - step}"


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
