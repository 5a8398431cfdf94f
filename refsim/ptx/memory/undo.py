"""The overwritten bytes of global memory, kept until a launch ends, so that it can run again from the initial memory.

Pages are copied just before the first store into them, so a launch pays only for what it writes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.memory.space import Region, Space

UNDO_PAGE = 1 << 17
_FEW = 16  # pages that are looked up without asking which of them the items fall in


@dataclass
class Undo:
    """The old bytes of one space and their marks, by page; a context manager that watches the space's stores."""

    space: Space
    pages: dict[int, tuple[NDArray[np.uint8], NDArray[np.uint8]]] = field(default_factory=dict)
    whole: set[int] = field(default_factory=set)
    regions: list[Region] = field(default_factory=list)
    initialised: set[str] = field(default_factory=set)
    stored: set[str] = field(default_factory=set)
    blocks: Any = None

    def __enter__(self) -> "Undo":
        space = self.space
        self.blocks = None if space.blocks is None else space.blocks.state()
        self.regions, self.initialised, self.stored = list(space.regions), set(space.initialised), set(space.stored)
        space.undo = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.space.undo = None

    def before(self, region: Region | None, index: NDArray[Any], width: int) -> None:
        """Save the pages of items that are about to be written; `region` is the one that holds them all, or None."""
        if region is not None and region.start in self.whole:
            return
        if region is not None and region.end - region.start <= UNDO_PAGE:
            low, high = region.start, region.end
            self.whole.add(region.start)
        else:
            low, high = int(index.min()) * width, (int(index.max()) + 1) * width
        pages: Sequence[int] = range(low // UNDO_PAGE, -(-high // UNDO_PAGE))
        if len(pages) > _FEW:
            pages = np.unique(index * width // UNDO_PAGE).tolist()
        for page in pages:
            if page not in self.pages:
                part = slice(page * UNDO_PAGE, (page + 1) * UNDO_PAGE)
                self.pages[page] = self.space.bytes[part].copy(), self.space.unwritten[part].copy()

    def restore(self) -> None:
        """Restore everything: bytes, marks of uninitialized bytes, and the buffers and blocks that existed."""
        space = self.space
        for page, (contents, unwritten) in self.pages.items():
            start = page * UNDO_PAGE
            space.bytes[start : start + len(contents)] = contents
            space.unwritten[start : start + len(unwritten)] = unwritten
        space.regions, space.starts = list(self.regions), [region.start for region in self.regions]
        space.initialised, space.stored = set(self.initialised), set(self.stored)
        if space.blocks is not None:
            space.blocks.restore(self.blocks)
