"""The search for rows of A and columns of B that change while a product of warpgroups reads them.

The observers of memory look at the chunks of rows on trial: first at all, then at eight rows, then at single rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.ptx.async_ops.trials import doubt, look, watching
from refsim.ptx.checks.torn_operands import TEARS, torn_of
from refsim.ptx.execution.lanes import Lanes, Machine
from refsim.ptx.execution.matrix_operands import CORE_ROW, rows_of_chunks, turns
from refsim.ptx.execution.matrix_product import ProductForm
from refsim.ptx.memory.access import ASYNC, READ, Access

Array = NDArray[Any]
Operands = dict[str, tuple[Array, Array | None]]  # by side: chunks (warpgroups, chunks), and a mask of those to show
_BLOCK = 8  # rows of a core matrix


@dataclass
class TornNow:
    """By side: the finding, and the rows or columns that change (warpgroups, rows); and a mask of their chunks."""

    found: dict[str, tuple[RefsimError, NDArray[np.bool_]]] = field(default_factory=dict)
    chunks: dict[str, NDArray[np.bool_]] = field(default_factory=dict)


def reads_of(lanes: Lanes, sides: Operands, torn: dict[str, NDArray[np.bool_]]) -> Iterator[tuple[Lanes, Array]]:
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


def torn_now(machine: Machine, lanes: Lanes, form: ProductForm, sides: Operands) -> TornNow:
    """Return the rows of A and columns of B that change while they are read, and those that an earlier run found."""
    known, result = torn_of(machine), TornNow()
    for side, (places, _) in sides.items():
        table = rows_of_chunks(form, side, places.shape[1])
        rows = np.zeros((len(places), table.shape[1]), np.bool_)
        groups = machine.geometry.warpgroup[lanes.ids[:: len(lanes.ids) // len(places)]] % machine.geometry.warpgroups
        error = None
        for number, group in enumerate(groups.tolist() if known is not None else ()):
            assert known is not None
            assert lanes.statement is not None
            key = lanes.statement.line, group, side
            if key in known.rows:
                rows[number], error = known.rows[key], known.errors[key]
        chunks = (rows.astype(np.uint8) @ table.T.astype(np.uint8)) > 0
        if (finding := _doubt(machine, lanes, {side: sides[side]}, {side: chunks})) is not None:
            error = error or finding
            for group in range(len(places)):
                _search(machine, lanes, (side, places), (rows, table), group)
            chunks = (rows.astype(np.uint8) @ table.T.astype(np.uint8)) > 0
        if error is not None and rows.any():
            result.found[side], result.chunks[side] = (error, rows), chunks
    return result


def _search(machine: Machine, lanes: Lanes, operand: tuple[str, Array], at: tuple[Array, Array], group: int) -> None:
    """Mark the rows of one warpgroup's operand that change. `at`: the rows found so far, and the rows of chunks."""
    (side, places), (rows, table) = operand, at

    def changes(these: Array) -> bool:
        """Return whether chunks of these rows change."""
        seen = np.zeros(places.shape, np.bool_)
        seen[group] = table[:, these].any(axis=1)
        return _doubt(machine, lanes, {side: (places, seen)}, {}) is not None

    for first in range(0, rows.shape[1], _BLOCK):
        block = np.arange(first, min(first + _BLOCK, rows.shape[1]))
        if not rows[group, block].all() and changes(block):
            rows[group, block] |= [changes(np.array([row])) for row in block.tolist()]


def _doubt(machine: Machine, lanes: Lanes, sides: Operands, torn: dict[str, NDArray[np.bool_]]) -> RefsimError | None:
    """Return the finding of the observers that these chunks change while they are read, or None."""
    try:
        access = together(machine, lanes, reads_of(lanes, sides, torn))
    except RefsimError:
        return None
    if access is None:
        return None
    found = doubt(machine, lambda: look(watching(machine, "shared"), access))
    return found if found is not None and found.code in TEARS else None
