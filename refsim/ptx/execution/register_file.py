"""The registers of all lanes as data: an array per slot, and facts about each register in addition to its bits."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.execution.geometry import Ids
from refsim.ptx.execution.masks import Mask


class Unwritten:
    """A table of the lanes that have not yet written a register which may be read before it is written. Each such
    register has a row of lanes, until all lanes have written it."""

    def __init__(self, registers: Iterable[int] = (), lanes: int = 0) -> None:
        self.row = {register: row for row, register in enumerate(registers)}
        self.table: NDArray[np.bool_] = np.ones((len(self.row), lanes), np.bool_)

    def __bool__(self) -> bool:
        return bool(self.row)

    def any_unwritten(self, registers: Iterable[int], key: slice | Ids) -> bool:
        """Return whether any of these lanes has not written any of these registers."""
        rows = [self.row[each] for each in registers if each in self.row]
        return len(rows) > 0 and bool(np.count_nonzero(self.table[rows][:, key]))

    def wrote(self, registers: Iterable[int], key: slice | Ids) -> None:
        """Record that these lanes have written these registers; drop registers that all lanes have written."""
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
    """One array per slot, (lanes,) or (1,). `owned`: whether a slot's array may be written in place; `slots`: the slot
    of each register. `masks` holds the undefined bits by slot, where a launch tracks them. `doubts` are lanes that took a
    branch by an undefined guard, by the statement where they meet: an event of each lane, and the arms."""

    slots: list[int]
    arrays: list[NDArray[Any]]
    owned: list[bool]
    unwritten: Unwritten = field(default_factory=Unwritten)
    masks: dict[int, Mask] = field(default_factory=dict)
    doubts: dict[int, list[tuple[NDArray[np.int32], Any]]] = field(default_factory=dict)
