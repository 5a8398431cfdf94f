"""Blocks of device malloc that no kernel can free after a launch has ended.

The heap outlives a launch. A block that a later kernel can free is no leak: a pointer to it is in memory.
"""

from refsim.ptx.findings.faults import fault
from refsim.ptx.findings.record import LaunchFindings
from refsim.ptx.memory.heap import Heap, HeapBlock
from refsim.ptx.text.syntax import Statement

RULE = "the heap keeps its blocks from launch to launch: free each one, or leave a pointer to it for a later kernel"


def note_leaks(heap: Heap, first: int, findings: LaunchFindings) -> None:
    """Warn about each malloc whose blocks, from number `first` on, are unreachable."""
    found: dict[int, tuple[Statement, list[HeapBlock]]] = {}
    for block in heap.lost(first):
        found.setdefault(id(block.statement), (block.statement, []))[1].append(block)
    for statement, blocks in found.values():
        count = "1 block" if len(blocks) == 1 else f"{len(blocks)} blocks"
        what = (
            f"{count} of {sum(block.size for block in blocks)} B in all {'is' if len(blocks) == 1 else 'are'} never "
            "freed, and no pointer leads there"
        )
        findings.warn(fault("leak", what, statement, blocks[0].who, RULE), statement)
