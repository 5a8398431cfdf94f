"""Operands in shared memory of which some bytes change while a tensor core may read them.

Rows of A do not mix, nor do columns of B. So such bytes make rows or columns of D undefined, and the launch goes on. A
kernel with 16 rows multiplies 64 of them and drops the others, whose bytes may be a stage that a copy still fills. The
access that changes the bytes becomes a finding once undefined bits of D reach an output, an address or a decision.

A change after a product began is seen too late to follow its bits. The launch then runs again, with these rows known.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.ptx.execution.context import Context
from refsim.ptx.text.syntax import Statement

Array = NDArray[Any]
Key = tuple[int, int, str]  # the PTX line of a product, the unit of the CTA that executes it, and "a" or "b"
TEARS = ("race", "read-before-wait")
CHUNK_BYTES = 16  # bytes of a chunk


class ProductReads(Protocol):
    """A product, and the chunks of shared memory that it reads."""

    def rows_at(self, items: Array) -> dict[Key, Array]:
        """Return which rows of A and columns of B chunks hold, by number in the flat shared memory."""


@dataclass
class TornRows:
    """The rows and columns found in all runs of a launch, with the first finding of each operand. `grew`: this run has
    found some that the next run must know from the start."""

    rows: dict[Key, Array] = field(default_factory=dict)
    errors: dict[Key, RefsimError] = field(default_factory=dict)
    grew: bool = False

    def add(self, found: dict[Key, Array], error: RefsimError) -> None:
        """Add rows and columns that the accesses of `error` change."""
        for key, rows in found.items():
            before = self.rows.get(key, np.zeros_like(rows))
            self.grew |= bool((rows & ~before).any())
            self.rows[key] = before | rows
            self.errors.setdefault(key, error)


def torn_of(machine: Context) -> TornRows | None:
    """Return the rows that earlier runs of the launch found; None if it follows no undefined bits or runs only once."""
    found: TornRows | None = getattr(machine.tracking, "torn", None)
    return found


def tear(machine: Context, statement: Statement, product: ProductReads, items: Array, error: RefsimError) -> None:
    """Make rows of D undefined whose operands the accesses of `error` change at chunks `items`. Without the check of
    uninitialized bits this is a note."""
    torn = torn_of(machine)
    if torn is not None:
        torn.add(product.rows_at(items), error)
    elif machine.tracking is not None:
        machine.report(error, statement)
    else:
        machine.saw_unwritten()
        note_torn(machine, statement, error)


def note_torn(machine: Context, statement: Statement, error: RefsimError) -> None:
    """Note bytes of an operand that change, in a launch that follows no undefined bits."""
    what = f"{error.what}: rows of D are undefined, which is not followed without the check uninitialised"
    machine.findings.note(replace(error, what=what), statement)


def spoken(error: RefsimError, rows: Array, side: str) -> RefsimError:
    """Return a finding that names the rows of A or columns of B whose results are undefined."""
    first, last = (int(each) for each in np.flatnonzero(rows.any(axis=0))[[0, -1]])
    what = f"{error.what}: {'rows' if side == 'a' else 'columns'} {first} to {last} of D are undefined"
    return replace(error, what=what)
