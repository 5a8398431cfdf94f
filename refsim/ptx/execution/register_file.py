"""The registers of all lanes as data: an array per slot, and what is known of each beside its bits."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.execution.geometry import Ids
from refsim.ptx.execution.masks import Mask


class Unwritten:
    """Which lanes have not written the registers that may be read before they are written: a row of lanes for each of them,
    until all have."""

    def __init__(self, registers: Iterable[int] = (), lanes: int = 0) -> None:
        self.row = {register: row for row, register in enumerate(registers)}
        self.table: NDArray[np.bool_] = np.ones((len(self.row), lanes), np.bool_)

    def __bool__(self) -> bool:
        return bool(self.row)

    def lack(self, registers: Iterable[int], key: slice | Ids) -> bool:
        """Whether a lane of some has not written one of these."""
        rows = [self.row[each] for each in registers if each in self.row]
        return len(rows) > 0 and bool(np.count_nonzero(self.table[rows][:, key]))

    def wrote(self, registers: Iterable[int], key: slice | Ids) -> None:
        """Lanes have written these."""
        known = [each for each in registers if each in self.row]
        if not known:
            return
        rows = np.array([self.row[each] for each in known], np.int64)
        self.table[(rows, key) if isinstance(key, slice) else np.ix_(rows, key)] = False
        lack = np.logical_or.reduce(self.table[rows], axis=1)
        for place in np.flatnonzero(~lack).tolist():
            del self.row[known[place]]


@dataclass
class Registers:
    """One array per slot: (lanes,) or (1,); `owned` tells whether it may be written in place, `slots` who is kept where.

    `masks` tells which of their bits are undefined, by slot, where that is followed.
    """

    slots: list[int]
    arrays: list[NDArray[Any]]
    owned: list[bool]
    unwritten: Unwritten = field(default_factory=Unwritten)
    masks: dict[int, Mask] = field(default_factory=dict)
