"""One mbarrier object: its phase, what holds that open, and the 64-bit word in shared memory."""

from dataclasses import dataclass, field
from typing import Any

from refsim.ptx.execution.geometry import Ids

COUNT_BITS = 20
MOST_ARRIVALS = (1 << COUNT_BITS) - 1


@dataclass
class Barrier:
    """One live object: `pending` arrivals and `transactions` bytes until `phase` completes, `expected` in the next one.

    `is_observed`: somebody saw the phase before it complete. `copies`: the lanes whose copies arrived in this phase, with
    the number of their youngest copy; `landing` are those of the phase before, until somebody sees it complete. So are
    `counted` and `brought` for transfers of copy engines.
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
        """What stands in shared memory."""
        return (
            (self.phase & 1) << 63
            | (self.transactions & (2 * MOST_ARRIVALS + 1)) << 40
            | self.expected << 20
            | self.pending
        )

    @property
    def is_filling(self) -> bool:
        """Whether somebody has come to this phase, or announced bytes of it."""
        return self.pending != self.expected or self.transactions != 0

    def complete(self) -> None:
        """The next phase begins if nothing holds this one open."""
        if self.pending == 0 and self.transactions == 0:
            self.phase, self.pending, self.is_observed = self.phase + 1, self.expected, False
            self.landing, self.copies = self.copies, []
            self.brought, self.counted = self.counted, []
