"""Device malloc and free, as statements: inlining turns a call of either into such a statement."""

import numpy as np

from refsim.ptx.events import RENEW
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.register_file import Mask
from refsim.ptx.isa.definedness.bits import RuleOperands, defined
from refsim.ptx.isa.definedness.memory import ADDRESS, renewed
from refsim.ptx.isa.forms import instruction
from refsim.ptx.memory.arrays import Array
from refsim.ptx.memory.heap import ALIGN, Heap, HeapBlock
from refsim.ptx.text.syntax import place
from refsim.sources import CUDA_GUIDE

CHUNK_ALIGNMENT = 16
FREE_RULE = "free takes what malloc, new or __nv_aligned_device_malloc gave, once; or a null pointer"


def _given(operands: RuleOperands) -> list[Mask | None]:
    """Demand that sizes and freed addresses are defined; return the masks of the results."""
    for name, mask in zip(operands.names, operands.masks, strict=True):
        operands.demand(mask, ADDRESS if name == "block" else f"the {name} of a block of memory")
    results: list[Mask | None] = defined(operands)
    return results


@instruction("call.malloc d:b64, size:u64", undefined=_given, source=CUDA_GUIDE["dynamic global memory allocation"])
def malloc(lanes: Lanes, size: Array) -> Array:
    """Allocate a block for each lane in turn, at a multiple of 16 bytes; null if the heap has no room for it."""
    return _taken(lanes, size, np.full(1, ALIGN, np.uint64))


@instruction(
    "call.__cuda_syscall_aligned_malloc d:b64, size:u64, alignment:u64",
    undefined=_given,
    source=CUDA_GUIDE["dynamic global memory allocation"],
)
def aligned_malloc(lanes: Lanes, size: Array, alignment: Array) -> Array:
    """Allocate a block (`__nv_aligned_device_malloc`); null also if the alignment is no power of two."""
    return _taken(lanes, size, alignment)


def _taken(lanes: Lanes, sizes: Array, alignments: Array) -> Array:
    """Return the address of a new block for each lane; 0 where none fits."""
    machine, heap = lanes.machine, heap_of(lanes)
    found = np.zeros(lanes.count, np.uint64)
    pairs = zip(lanes.full(sizes).tolist(), lanes.full(alignments).tolist(), strict=True)
    for number, (size, align) in enumerate(pairs):
        fits = size <= heap.limit and align <= heap.limit and align & (align - 1) == 0 < align
        block = heap.take(size, align, lanes.statement, _who(lanes, number)) if fits else None
        if block is not None:
            found[number] = block.start + heap.space.base
            if block.reused:
                lanes.emit(RENEW, payload=(heap.region, block.start, block.end))
            if block.reused and machine.tracking is not None:
                renewed(lanes, block.start, block.end)
    return found


@instruction("call.free block:u64", undefined=_given, source=CUDA_GUIDE["dynamic global memory allocation"])
def free(lanes: Lanes, block: Array) -> None:
    """Free a block, which counts as a write of all its bytes: every access to them must have happened before."""
    heap = heap_of(lanes)
    freed: dict[HeapBlock, int] = {}
    for number, address in enumerate(lanes.full(block).tolist()):
        known = heap.live.get(address - heap.space.base)
        if address and (known is None or known in freed):
            what = _other(heap, address - heap.space.base) if known is None else f"{known}, for the second time"
            raise lanes.fault("invalid-free", number, f"free of {address:#x}: {what}", FREE_RULE)
        if known is not None:
            freed[known] = number
    items = [np.arange(one.start, one.end, CHUNK_ALIGNMENT, dtype=np.int64) for one in freed]
    who = lanes.ids[list(freed.values())].repeat([len(each) for each in items])
    if len(who):
        threads = Lanes(lanes.machine, who, lanes.statement)
        lanes.machine.port.discard(threads, "global", heap.space, np.concatenate(items), CHUNK_ALIGNMENT)
    for one, number in freed.items():
        heap.give_back(one.start, f"{place(lanes.statement)}, {_who(lanes, number)}")


def _other(heap: Heap, position: int) -> str:
    """Return a description of the contents of a position where no block begins."""
    if (inside := heap.block_at(position)) is not None:
        return f"byte {position - inside.start} of {inside}"
    if (gone := heap.freed_at(position)) is not None:
        return f"byte {position - gone.start} of {gone}" if position != gone.start else f"{gone}"
    return heap.space.where(position) if heap.space.region_at(position) is not None else "no device memory is there"


def heap_of(lanes: Lanes) -> Heap:
    """Return the heap of the memory that these lanes use; every launch of an entry with malloc or free has one."""
    heap = lanes.machine.memory.heap
    assert heap is not None
    return heap


def _who(lanes: Lanes, number: int) -> str:
    return lanes.machine.geometry.describe(int(lanes.ids[number]))
