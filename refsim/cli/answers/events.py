"""The events of a launch as a table, and where a statement stands in the source."""

from itertools import islice
from typing import TYPE_CHECKING

from refsim.render import Bits, Column, Table

if TYPE_CHECKING:
    from refsim.ptx import RecordedEvent
    from refsim.ptx.text.syntax import Statement


def source_of(statement: "Statement") -> str:
    """Return the source line of a statement and of the nearest call, or its PTX line where the PTX names no source.

    A finding names all calls, which would be wider than a table.
    """
    if statement.location is None:
        return f"PTX line {statement.line}"
    return ", called at ".join(at.spot for at in islice(statement.location.places(), 2))


def events_table(events: "list[RecordedEvent]") -> Table:
    """Return an entry for each event, in order."""
    columns = (
        Column("source", strong=True, of=lambda each: each.statement and source_of(each.statement)),
        Column("event", strong=True, of="verb"),
        Column("threads", of="who", drop=1),
        Column("what"),
        Column("kind", text=False),
        Column("instruction", text=False, of=lambda each: each.statement and each.statement.opcode),
        Column("ptx_line", text=False, of=lambda each: each.statement and each.statement.line),
        Column("thread_numbers", text=False, of=lambda each: tuple(each.threads.tolist())),
        *(Column(name, text=False) for name in ("blocks", "warps", "lanes", "space")),
        Column("addresses", text=False, of=lambda each: tuple(Bits(at, 40) for at in each.addresses.tolist())),
        Column("width", unit="B", text=False),
        Column("mbarrier", text=False, of=lambda each: None if each.mbarrier is None else Bits(each.mbarrier, 32)),
        Column("phase", text=False),
        Column("details", text=False, of=lambda each: tuple(f"{name} {value}" for name, value in each.details.items())),
    )
    return Table.of(columns, events, key="events")
