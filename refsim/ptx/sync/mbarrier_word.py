"""The state of one mbarrier object: its phase, its pending arrivals and bytes, and the 64-bit word in shared memory."""

from dataclasses import dataclass, field
from typing import Any

from refsim.ptx.execution.geometry import Ids

COUNT_BITS = 20
MOST_ARRIVALS = (1 << COUNT_BITS) - 1


@dataclass
class Barrier:
    """One live object: `pending` arrivals and `transactions` bytes until `phase` completes, `expected` arrivals in the
    next one.

    `is_observed`: some thread saw the previous phase complete. `copies`: (lanes, number of their latest copy) of
    cp.async copies that arrived in this phase. `landing`: these of the previous phase, until some thread sees it
    complete. `counted` and `brought` hold transfers of copy engines in this way.
    """

    expected: int
    pending: int
    transactions: int = 0
    phase: int = 0
    is_observed: bool = True
    copies: list[tuple[Ids, int]] = field(default_factory=list)
    landing: list[tuple[Ids, int]] = field(default_factory=list)
    counted: list[Any] = field(default_factory=list)
    brought: list[Any] = field(default_factory=list)

    @property
    def word(self) -> int:
        """Return the 64-bit word in shared memory."""
        return (
            (self.phase & 1) << 63
            | (self.transactions & (2 * MOST_ARRIVALS + 1)) << 40
            | self.expected << 20
            | self.pending
        )

    @property
    def is_filling(self) -> bool:
        """Return whether some thread has arrived in this phase, or announced bytes for it."""
        return self.pending != self.expected or self.transactions != 0

    def complete(self) -> None:
        """Begin the next phase if no arrival and no byte of this one is pending."""
        if self.pending == 0 and self.transactions == 0:
            self.phase, self.pending, self.is_observed = self.phase + 1, self.expected, False
            self.landing, self.copies = self.copies, []
            self.brought, self.counted = self.counted, []
