"""Reads by ld.global.nc or ldu of bytes that the same launch wrote: the read-only cache may not show the write."""

from dataclasses import dataclass

import numpy as np

from refsim.ptx.checks.history import History
from refsim.ptx.execution.context import Context
from refsim.ptx.memory.access import DISCARD, READ, Access
from refsim.ptx.memory.space import ITEM

RULE = (
    "PTX ISA, ld.global.nc and ldu: read-only for the whole launch; CUDA makes them of __ldg, and of const __restrict__ "
    "pointers that it takes for pointers to what no thread writes"
)
_WRITTEN = {width: np.frombuffer(b"\x01" * width, item)[0] for width, item in ITEM.items()}


@dataclass(frozen=True)
class StaleReads:
    """Remembers each byte that the launch wrote. No order fixes such a read: barriers and fences do not affect that
    cache. `read_only`: the opcodes that read through the cache."""

    machine: Context
    history: History
    read_only: frozenset[str]

    def before(self, access: Access) -> None:
        """Report a read through the read-only cache of bytes that the launch wrote."""
        written = self.history.written
        if access.kind != READ or not len(written) or access.statement.opcode not in self.read_only:
            return
        if access.region is not None and not access.region.writable:
            return
        found = written.view(ITEM[access.width]).take(access.index) != 0
        if found.any():
            lane = int(np.argmax(found))
            place = access.space.where(int(access.threads.full(access.index)[lane]) * access.width)
            what = f"reads {access.width} B of what this launch wrote ({place}) through the cache for read-only data"
            error = access.threads.fault("stale-read", lane, what, RULE)
            self.machine.report(error, access.statement)

    def after(self, access: Access) -> None:
        """Record the bytes that an access wrote."""
        if access.kind in (READ, DISCARD):
            return
        index = access.index if access.wrote is None else access.index[access.wrote]
        if len(self.history.written) < len(access.space.bytes):
            grown = np.zeros(len(access.space.bytes), np.uint8)
            grown[: len(self.history.written)] = self.history.written
            self.history.written = grown
        self.history.written.view(ITEM[access.width])[index] = _WRITTEN[access.width]
