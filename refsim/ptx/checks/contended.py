"""Strong accesses of several threads to one place: a schedule may come between two of them, so that results differ."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.memory.access import READ, Access

_MOST = 1 << 16  # lanes of accesses that are looked at


@dataclass
class StrongAccesses:
    """The strong accesses of a launch, in arrays of lanes: rows of statement, space, first thread, write, byte, thread.

    They are kept as they come and compared at the end, because a launch that waits makes thousands of them.
    """

    made: list[tuple[int, bool, bool, int, NDArray[Any], NDArray[Any]]] = field(default_factory=list)
    left: int = _MOST
    first: int = 0

    def before(self, access: Access) -> None:
        """Do nothing: an access is noted after it was made."""

    def after(self, access: Access) -> None:
        """Note the statement and the thread of each lane of a strong access."""
        if access.semantics.strong and self.left > 0:
            threads = access.threads
            self.left -= threads.count
            at = threads.full(np.asarray(access.index)) * access.width
            shared = access.name == "shared"
            self.made.append((id(access.statement), shared, access.kind != READ, self.first, at, threads.ids))

    def contended(self) -> set[int]:
        """Return the identities of statements that accessed a place of another statement and of another thread, where
        one of them wrote."""
        if len({statement for statement, *_ in self.made}) < 2:
            return set()
        counts = [len(at) for *_, at, _ in self.made]
        statement, shared, write, first = (np.repeat(part, counts) for part in list(zip(*self.made, strict=True))[:4])
        at, lane = (np.concatenate(part) for part in list(zip(*self.made, strict=True))[4:])
        place = np.unique(np.stack((shared * (first + 1), at.astype(np.int64))), axis=1, return_inverse=True)[1].ravel()
        several = np.zeros((2, place.max() + 1), bool)
        written = np.zeros(place.max() + 1, bool)
        written[place[write]] = True
        for varied, key in zip(several, (statement, lane + first), strict=True):
            one = np.empty(len(varied), np.int64)
            one[place] = key
            varied[place[one[place] != key]] = True
        return set(statement[(several.all(axis=0) & written)[place]].tolist())
