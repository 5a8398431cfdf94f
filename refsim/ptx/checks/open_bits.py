"""Unspecified bits of arithmetic results, tracked like uninitialized bits: whether they decide anything or only change
values.

For `.approx`, float atomics, or products that the assembler may contract, a GPU may return other bits than the
simulator. If such bits reach a branch, the guard of a store or an address, the GPU may behave differently.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.checks.torn_operands import TornRows
from refsim.ptx.checks.undefined import Tracking
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.masks import Mask, Origins, all_ones
from refsim.ptx.execution.types import PtxType
from refsim.ptx.findings.record import LaunchFindings
from refsim.ptx.memory.global_memory import GlobalMemory
from refsim.ptx.memory.space import GLOBAL_BASE
from refsim.ptx.text.syntax import place


@dataclass
class OpenBits(Tracking):
    """The unspecified bits of the launches of one program in one memory; `reaches` lists what they decided, first found
    first. The results of the statements at `lines` of the PTX are unspecified. Uninitialized bits are tracked too, but
    reported by another check."""

    level: str = "record"
    findings: LaunchFindings = field(default_factory=LaunchFindings)
    torn: TornRows | None = field(default_factory=TornRows)
    lines: frozenset[int] = frozenset()
    reaches: dict[tuple[str, int], str] = field(default_factory=dict)

    def begin(self, memory: GlobalMemory, opcodes: Collection[str]) -> None:
        """Begin a launch of a kernel with these opcodes."""

    def reached(self, lanes: Lanes, mask: Mask | None, what: str) -> None:
        """Record that unspecified bits decide something (`what`), with the first statement that they came from."""
        if mask is None or not self.lines:
            return
        statement, numbers = lanes.statement, np.unique(mask.origin[mask.origin != 0])
        sources = np.unique(self.origins.lines(numbers)).tolist()
        source = next((line for line in sources if line in self.lines), None)
        assert statement is not None
        if source is not None:
            self.reaches.setdefault((what, statement.line), f"{what}: {place(statement)}, from PTX line {source}")

    def open_in(self, memory: GlobalMemory, address: int, size: int) -> NDArray[np.uint8]:
        """Return the masks of bytes of global memory after the last launch: set bits are unspecified."""
        start, found = address - GLOBAL_BASE, np.zeros(size, np.uint8)
        shadow = self.masks.get("global")
        if shadow is not None and shadow.space is memory.space:
            held = shadow.bits[start : start + size]
            found[: len(held)] = held
        return found

    def opened(
        self, lanes: Lanes, sources: Sequence[tuple[Any, PtxType]], masks: list[Any], keep: tuple[type, ...]
    ) -> list[Any]:
        """Return the masks of a statement's sources as if all their bits were unspecified, except sources of the kinds
        `keep`. The rule of the statement then derives the masks of its results, in registers and in memory."""
        event = self.origins.add(lanes, np.ones(lanes.count, np.bool_), "its result is open")

        def whole(source: Any, type: PtxType, mask: Any) -> Any:
            if source is None or isinstance(source, keep):
                return mask
            if isinstance(source, tuple):
                return [whole(each, type, one) for each, one in zip(source, mask or [None] * len(source), strict=True)]
            return _full(lanes.count, type, event)

        return [whole(source, type, mask) for (source, type), mask in zip(sources, masks, strict=True)]

    def returned(self, lanes: Lanes, results: Sequence[tuple[Any, PtxType]]) -> list[Any]:
        """Return the masks of the results of an atomic: all unspecified, since the order of atomics is unspecified."""
        event = self.origins.add(lanes, np.ones(lanes.count, np.bool_), "what it finds is open")
        return [
            [_full(lanes.count, type, event) for _ in result]
            if isinstance(result, tuple)
            else _full(lanes.count, type, event)
            for result, type in results
        ]


def _full(count: int, type: PtxType, origin: Origins) -> Mask:
    """Return a mask of `count` lanes with every bit of a type set."""
    return Mask(np.repeat(all_ones(np.dtype(np.bool_) if type.name == "pred" else type.bits_dtype), count), origin)
