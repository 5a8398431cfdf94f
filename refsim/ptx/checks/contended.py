"""Strong accesses of several threads to one place: a schedule may come between two of them, so that results differ."""

from dataclasses import dataclass, field

import numpy as np

from refsim.ptx.memory.access import READ, Access

_MOST = 1 << 16  # lanes of accesses that are looked at


@dataclass
class StrongAccesses:
    """The statements of strong accesses in a launch by place: space and byte (in shared memory also the CTA)."""

    places: dict[tuple[str, int], dict[tuple[int, int], bool]] = field(default_factory=dict)
    left: int = _MOST
    first: int = 0

    def before(self, access: Access) -> None:
        """Do nothing: an access is noted after it was made."""

    def after(self, access: Access) -> None:
        """Note the statement and the thread of each lane of a strong access."""
        if not access.semantics.strong or self.left <= 0:
            return
        self.left -= access.threads.count
        writes, name = access.kind != READ, f"{access.name} {self.first if access.name == 'shared' else ''}"
        index = access.threads.full(np.asarray(access.index))
        for item, lane in zip(index.tolist(), access.threads.ids.tolist(), strict=True):
            key = id(access.statement), lane + self.first
            known = self.places.setdefault((name, item * access.width), {})
            known[key] = known.get(key, False) or writes

    def contended(self) -> set[int]:
        """Return the identities of statements that accessed a place of another statement and of another thread, where
        one of them wrote."""
        found: set[int] = set()
        for known in self.places.values():
            names, threads = ({key[part] for key in known} for part in (0, 1))
            if len(names) > 1 and len(threads) > 1 and any(known.values()):
                found |= names
        return found
