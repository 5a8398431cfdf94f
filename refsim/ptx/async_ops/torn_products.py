"""The search for rows of A and columns of B that change while a product reads them.

The observers of memory look at the chunks of rows on trial: first at all, then at eight rows, then at single rows. An
observer that would report something stops the trial. The work is then shown again piece by piece."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from refsim.errors import RefsimError
from refsim.ptx.async_ops.transfers import UnitHost
from refsim.ptx.checks.bank_conflicts import BankCounter
from refsim.ptx.execution.lanes import Lanes, Machine
from refsim.ptx.execution.matrix_operands import CORE_ROW, turns
from refsim.ptx.findings.record import DoubtError
from refsim.ptx.isa.definedness.tracking import TEARS, note_torn, spoken, torn_of, tracking_of
from refsim.ptx.memory.access import ASYNC, READ, Access, Observer
from refsim.ptx.memory.arrays import Array, Bools


def watching(machine: Machine, name: str) -> list[Observer]:
    """Return the observers of a state space, except the counter of bank conflicts."""
    return [each for each in machine.port.observers.get(name, ()) if not isinstance(each, BankCounter)]


def others_watching(machine: UnitHost, name: str) -> list[Observer]:
    """Return the observers of a state space, except the checks that are asked separately about writes of copies."""
    return [each for each in watching(machine, name) if each is not machine.races and each is not machine.proxies]


def on_trial(machine: Machine, look: Callable[[], None]) -> bool:
    """Let the observers look at something; return whether none of them has anything to report."""
    return doubt(machine, look) is None


def doubt(machine: Machine, look: Callable[[], None]) -> RefsimError | None:
    """Let the observers look at something; return the first finding that one of them would report, or None."""
    machine.is_on_trial = True
    try:
        look()
    except DoubtError as error:
        return error.finding
    except RefsimError as error:
        return error
    finally:
        machine.is_on_trial = False
    return None


def look(observers: Sequence[Observer], access: Access) -> None:
    """Show an access that is about to be made to the observers."""
    for observer in observers:
        observer.before(access)


Operands = dict[str, tuple[Array, Array | None]]  # by side: chunks (units, chunks), and a mask of those to show
Sides = dict[str, Bools]  # for "a" and "b" in shared memory: (units, chunks), or (units, rows)
_BLOCK = 8  # rows of a core matrix


@dataclass(frozen=True)
class OperandsAsked:
    """The operands in shared memory of the products of some units: warpgroups, or CTAs of a CTA group. `units` are their
    numbers in a CTA or group, `leads` one lane of each. `table` tells which rows each of so many chunks of a side has
    elements of, (chunks, rows). `access` makes one read of chunks of sides, without those of a mask."""

    leads: Lanes
    units: list[int]
    sides: Operands
    table: Callable[[str, int], Bools]
    access: Callable[[Operands, Sides], Access | None]


@dataclass
class TornNow:
    """By side: the finding, and the rows or columns that change (units, rows); and a mask of their chunks."""

    found: dict[str, tuple[RefsimError, Bools]] = field(default_factory=dict)
    chunks: Sides = field(default_factory=dict)

    def events(self, leads: Lanes) -> dict[str, Array]:
        """Return the event of each row of A and column of B that changes, (units, rows); 0 for the others."""
        found = {}
        for side, (error, rows) in self.found.items():
            said, some = spoken(error, rows, side), np.asarray(rows.any(axis=1))
            numbers = tracking_of(leads).origins.add(leads, some, said.what, error=said)
            found[side] = np.where(rows, numbers[:, None], 0)
        return found


def show_at_once(machine: Machine, access: Callable[[], Access | None]) -> bool:
    """Show all reads as one access; return False if a check has something to report, or counts bank conflicts."""
    if machine.checks.banks:
        return False
    try:
        asked = access()
    except RefsimError:
        return False
    watching = machine.port.observers.get("shared", ())
    if asked is None or not on_trial(machine, lambda: look(watching, asked)):
        return asked is None
    for observer in watching:
        observer.after(asked)
    return True


def see_torn(machine: Machine, asked: OperandsAsked) -> Sides:
    """Restart the launch with tracking if operands change while they are read. Without the check of uninitialized
    bits, note it and return the chunks."""
    now = torn_now(machine, asked)
    for error, _ in now.found.values():
        machine.saw_unwritten()
        note_torn(machine, asked.leads.statement, error)
    return now.chunks


def reads_of(lanes: Lanes, sides: Operands, torn: Sides) -> Iterator[tuple[Lanes, Array]]:
    """Yield lanes and the chunks that they read, without those that `torn` masks."""
    for side, (places, seen) in sides.items():
        kept = ~torn[side] if side in torn else None
        yield from turns(lanes, places, kept if seen is None else seen if kept is None else seen & kept)


def together(machine: Machine, lanes: Lanes, reads: Iterator[tuple[Lanes, Array]]) -> Access | None:
    """Return reads as one access, or None if there is nothing to read."""
    parts = [each for each in reads if len(each[1])]
    if not parts:
        return None
    ids, at = (np.concatenate(each) for each in zip(*((part.ids, at) for part, at in parts), strict=True))
    several = Lanes(machine, ids, lanes.statement, machine.geometry.cta[ids])
    space, owner = several.space("shared")
    return machine.port.plan(READ, several, "shared", space, at, owner, CORE_ROW, proxy=ASYNC)


def torn_now(machine: Machine, asked: OperandsAsked) -> TornNow:
    """Return the rows of A and columns of B that change while they are read, and those that an earlier run found."""
    known, result, statement = torn_of(machine), TornNow(), asked.leads.statement
    for side, operand in asked.sides.items():
        table = asked.table(side, operand[0].shape[1])
        rows = np.zeros((len(asked.units), table.shape[1]), np.bool_)
        error = None
        for number, unit in enumerate(asked.units if known is not None else ()):
            assert known is not None
            key = statement.line, unit, side
            if key in known.rows:
                rows[number], error = known.rows[key], known.errors[key]
        chunks = (rows.astype(np.uint8) @ table.T.astype(np.uint8)) > 0
        if (finding := _doubt(machine, asked, {side: operand}, {side: chunks})) is not None:
            error = error or finding
            for number in range(len(asked.units)):
                _search(machine, asked, side, (rows, table), number)
            chunks = (rows.astype(np.uint8) @ table.T.astype(np.uint8)) > 0
        if error is not None and rows.any():
            result.found[side], result.chunks[side] = (error, rows), chunks
    return result


def _search(machine: Machine, asked: OperandsAsked, side: str, at: tuple[Array, Array], number: int) -> None:
    """Mark the rows of one unit's operand that change. `at`: the rows found so far, and the rows of chunks."""
    (places, _), (rows, table) = asked.sides[side], at

    def changes(these: Array) -> bool:
        """Return whether chunks of these rows change."""
        seen = np.zeros(places.shape, np.bool_)
        seen[number] = table[:, these].any(axis=1)
        return _doubt(machine, asked, {side: (places, seen)}, {}) is not None

    for first in range(0, rows.shape[1], _BLOCK):
        block = np.arange(first, min(first + _BLOCK, rows.shape[1]))
        if not rows[number, block].all() and changes(block):
            rows[number, block] |= [changes(np.array([row])) for row in block.tolist()]


def _doubt(machine: Machine, asked: OperandsAsked, sides: Operands, torn: Sides) -> RefsimError | None:
    """Return the finding of the observers that these chunks change while they are read, or None."""
    try:
        access = asked.access(sides, torn)
    except RefsimError:
        return None
    if access is None:
        return None
    found = doubt(machine, lambda: look(watching(machine, "shared"), access))
    return found if found is not None and found.code in TEARS else None
