"""Bank conflicts of shared memory, counted for each instruction of a launch."""

from dataclasses import dataclass
from functools import cache

import numpy as np

from refsim.layouts.banks import bank_conflicts
from refsim.layouts.holders import WARP
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.findings.record import BankUse, Crowd
from refsim.ptx.memory.access import Access
from refsim.ptx.memory.arrays import Array


@dataclass(frozen=True)
class BankCounter:
    """Counts bank conflicts into a table by PTX line. Not counted are copies of cp.async and accesses to another CTA of
    the cluster: how they use the banks is not published."""

    table: dict[int, BankUse]

    def before(self, access: Access) -> None:
        """Do nothing: conflicts are counted after the access."""

    def after(self, access: Access) -> None:
        """Count the wavefronts of one executed access to shared memory."""
        assert isinstance(access.threads, Lanes)
        if access.threads.owner is not None:
            return
        rows, warps = _served(access.threads, access.at, access.width)
        found = bank_conflicts(rows, access.width)
        use = self.table.setdefault(access.statement.line, BankUse(access.statement))
        use.accesses += warps
        use.wavefronts += found.total
        use.ideal += found.wavefronts.size
        if int(found.wavefronts.max()) > (1 if use.worst is None else len(use.worst.words)):
            use.worst = crowd(access.threads, access.at, access.width)


def _served(lanes: Lanes, at: Array, width: int) -> tuple[Array, int]:
    """Return addresses (rows, lanes served together) and the number of warps. A row is a whole warp, or the part of a
    warp that one phase serves. A lane that does not take part repeats the address of another lane; a row without any
    lane is left out."""
    if lanes.in_whole_warps:
        rows = at.reshape(-1, WARP)
        return rows, len(rows)
    names, warp = np.unique(lanes.warp, return_inverse=True)
    held = np.full((len(names), WARP), -1, np.int64)
    held[warp, lanes.laneid] = at
    rows = held.reshape(-1, _phase_lanes(width))
    anyone = rows.max(axis=1)
    return np.where(rows < 0, anyone[:, None], rows)[anyone >= 0], len(names)


@cache
def _phase_lanes(width: int) -> int:
    """Return how many lanes one phase serves for accesses of `width` bytes."""
    return bank_conflicts(np.zeros(1, np.int64), width).phase_lanes


def crowd(lanes: Lanes, at: Array, width: int) -> Crowd:
    """Return the fullest bank that a warp meets in one phase of the access."""
    geometry = lanes.machine.geometry
    busiest: tuple[int, int, dict[int, tuple[int, ...]]] | None = None
    for warp in np.unique(lanes.warp):
        mine = lanes.warp == warp
        for phase in np.unique(lanes.laneid[mine] // _phase_lanes(width)):
            served = mine & (lanes.laneid // _phase_lanes(width) == phase)
            (wanted,) = bank_conflicts(at[served], width).wanted()
            names = lanes.laneid[served]
            for bank, words in sorted(wanted.items()):
                if busiest is None or len(words) > len(busiest[2]):
                    asked = {word: tuple(int(names[lane]) for lane in who) for word, who in sorted(words.items())}
                    busiest = (int(warp), bank, asked)
    assert busiest is not None
    warp, bank, words = busiest
    return Crowd(warp + geometry.first * geometry.warps, bank, tuple(words), tuple(words.values()))
