"""Tensor memory: its allocation by warps, loads and stores of registers, and the waits for both."""

from functools import partial
from typing import Any

import numpy as np

from refsim.layouts.families.tcgen05 import MOVES, Move
from refsim.layouts.holders import WARP
from refsim.numerics.ieee import maximum, minimum
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.tensor_cells import MISUSE, Cells, ColumnsAsked, TensorBox, boxes_of, cells_of
from refsim.ptx.execution.types import TYPES
from refsim.ptx.isa.definedness import tensor as undefined
from refsim.ptx.isa.definedness.memory import asked
from refsim.ptx.isa.forms import instruction
from refsim.ptx.isa.fragments import whole_warps
from refsim.ptx.memory.arrays import Array
from refsim.ptx.memory.tensor_map import COLUMN_MASK, LEAST_COLUMNS, TENSOR_COLUMNS, TENSOR_LANES
from refsim.sources import PTX

TENSOR_SINCE = "sm_100f"
ALLOCATION = PTX["tcgen05.alloc, dealloc and relinquish_alloc_permit"]
_allocation = partial(instruction, rendezvous="warp", since=TENSOR_SINCE, source=ALLOCATION, ignores=("group",))
_aligned = partial(instruction, rendezvous="warp", since=TENSOR_SINCE)
_LOW, _HIGH = np.uint32(0xFFFF), np.uint32(16)


# ---- allocation
def _columns(lanes: Lanes, values: Array) -> int:
    """Return a number of columns that may be allocated, a power of two; other numbers are a fault."""
    columns = int(values[0])
    if columns & (columns - 1) or not LEAST_COLUMNS <= columns <= TENSOR_COLUMNS:
        what = f"{columns} columns: a power of two from {LEAST_COLUMNS} to {TENSOR_COLUMNS}"
        raise lanes.fault(MISUSE, 0, what, str(ALLOCATION))
    return columns


@_allocation(
    "tcgen05.alloc.{group:cta_group::1|cta_group::2}.sync.aligned{.space:shared::cta}.b32 [a], columns:b32",
    undefined=undefined.allocated,
    flow=True,
)
def alloc(lanes: Lanes, address: Array, columns: Array, *, space: str | None) -> None:
    """Allocate columns of the CTA's tensor memory, or wait until others free theirs; write the first address to shared
    memory. Each CTA of a pair allocates its own columns."""
    pipe, count = lanes.machine.tensor_pipe, _columns(lanes, columns)
    whole_warps(lanes)
    for warp in range(0, lanes.count, WARP):
        cta = int(lanes.cta[warp])
        if cta in pipe.memory.closed:
            what = "the block has given up its permission to allocate tensor memory"
            raise lanes.fault(MISUSE, warp, what, str(ALLOCATION))
        mine = Lanes(lanes.machine, lanes.ids[warp : warp + WARP], lanes.statement)
        to = lanes.full(address)[warp : warp + 1], "generic" if space is None else "shared"
        lanes.machine.tensor_columns.ask(ColumnsAsked(lanes.pc, mine.ids, cta, count, partial(_take, mine, to, count)))


def _take(warp: Lanes, to: tuple[Array, str], columns: int) -> bool:
    """Allocate columns if enough are free, and store their address; return whether they were."""
    pipe, cta = warp.machine.tensor_pipe, int(warp.cta[0])
    first = pipe.memory.allocate(cta, columns)
    if first is None:
        return False
    pipe.holds(warp, first, columns)
    one = Lanes(warp.machine, warp.ids[:1], warp.statement)
    one.store(to[1], to[0], np.array([first], np.uint32), 4)
    return True


@_allocation("tcgen05.dealloc.{group:cta_group::1|cta_group::2}.sync.aligned.b32 a:b32, columns:b32", undefined=asked)
def dealloc(lanes: Lanes, address: Array, columns: Array) -> None:
    """Free columns that no thread uses any longer."""
    pipe, count = lanes.machine.tensor_pipe, _columns(lanes, columns)
    whole_warps(lanes)
    for warp in range(0, lanes.count, WARP):
        cta, first = int(lanes.cta[warp]), int(lanes.full(address)[warp]) & COLUMN_MASK
        box = TensorBox(cta, np.ones(TENSOR_LANES, np.bool_), first, first + count)
        some = Lanes(lanes.machine, lanes.ids[warp : warp + WARP], lanes.statement)
        pipe.fenced(some, is_before=False)
        pipe.demand(some, box, writes=True)
        if not pipe.memory.free(cta, first, count):
            what = f"columns {first} to {first + count - 1} are not an allocation of the block, which holds "
            raise lanes.fault(MISUSE, warp, what + pipe.memory.spoken(cta), str(ALLOCATION))
    lanes.machine.tensor_columns.release()


@_allocation("tcgen05.relinquish_alloc_permit.{group:cta_group::1|cta_group::2}.sync.aligned")
def relinquish(lanes: Lanes) -> None:
    """End the CTA's permission to allocate tensor memory."""
    lanes.machine.tensor_pipe.memory.closed.update(np.unique(lanes.cta).tolist())


# ---- registers
def _repeats(keywords: dict[str, Any]) -> int:
    """Return the repetition count of an opcode: 4 for x4."""
    return int(keywords["num"][1:])


def _shown(lanes: Lanes, found: Cells) -> Array:
    """Show a load of cells to the checks, and return the words of tensor memory."""
    pipe = lanes.machine.tensor_pipe
    pipe.moved(lanes, boxes_of(lanes, found.first, found.rows, found.width), is_load=True)
    if lanes.machine.tracking is None and pipe.memory.unwritten[found.key].any():
        lanes.machine.saw_unwritten()
    return pipe.words


def _move_family(move: Move) -> None:
    """Register tcgen05.ld and tcgen05.st for one shape."""
    nums = "|".join(f"x{1 << bit}" for bit in range(move.most.bit_length()))
    is_split = "bx2" in move.shape
    split, given = (", split:b32", "split:b32, ") if is_split else ("", "")

    def length(modifiers: dict[str, Any]) -> int:
        return move.registers * _repeats(modifiers)

    def cells(lanes: Lanes, address: Array, num: str, apart: Array | None, packed: bool) -> Cells:
        whole_warps(lanes)
        return cells_of(
            lanes, address, move.shape, int(num[1:]), split=0 if apart is None else int(apart[0]), packed=packed
        )

    @_aligned(
        f"tcgen05.ld.sync.aligned.{move.shape}.{{num:{nums}}}{{.pack::16b}}.b32 d:b32**, [a]{split}",
        source=PTX["tcgen05.ld"],
        undefined=undefined.loaded(move.shape, _repeats),
        length=length,
    )
    def load(lanes: Lanes, address: Array, split: Array | None = None, *, num: str, pack_16b: bool) -> list[Array]:
        """Load 32-bit words of the warp's own lanes, or the low halves of two columns, complete after wait::ld."""
        found = cells(lanes, address, num, split, pack_16b)
        words = _shown(lanes, found)
        held = words[found.key]
        if pack_16b:
            held = held & _LOW | words[found.cta, found.rows, found.columns + 1] << _HIGH
        return list(np.ascontiguousarray(held.T))

    @_aligned(
        f"tcgen05.st.sync.aligned.{move.shape}.{{num:{nums}}}{{.unpack::16b}}.b32 [a], {given}b:b32**",
        source=PTX["tcgen05.st"],
        undefined=undefined.stored(move.shape, _repeats),
        length=length,
    )
    def store(lanes: Lanes, address: Array, *operands: Any, num: str, unpack_16b: bool) -> None:
        """Store registers to 32-bit words of the warp's own lanes, or halves to two columns, complete after
        wait::st."""
        registers = operands[-1]
        found = cells(lanes, address, num, operands[0] if is_split else None, unpack_16b)
        pipe = lanes.machine.tensor_pipe
        pipe.moved(lanes, boxes_of(lanes, found.first, found.rows, found.width), is_load=False)
        held, words = np.stack([lanes.full(each) for each in registers], axis=1), pipe.words
        words[found.key] = held & _LOW if unpack_16b else held
        pipe.memory.unwritten[found.key] = False
        if unpack_16b:
            beside = found.cta, found.rows, found.columns + 1
            words[beside], pipe.memory.unwritten[beside] = held >> _HIGH, False


def _reducing(move: Move, types: str) -> None:
    """Register tcgen05.ld.red for one shape and its types."""
    nums = "|".join(f"x{1 << bit}" for bit in range(1, move.most.bit_length()))
    split = ", split:b32" if "bx2" in move.shape else ""

    @_aligned(
        f"tcgen05.ld.red.sync.aligned.{move.shape}.{{num:{nums}}}.{{operation:min|max}}{types} d:b32**, dred:b32, [a]{split}",
        source=PTX["tcgen05.ld"],
        undefined=undefined.reduced(move.shape, _repeats),
        length=lambda modifiers: move.registers * _repeats(modifiers),
    )
    def load_reduced(
        lanes: Lanes,
        address: Array,
        split: Array | None = None,
        *,
        num: str,
        operation: str,
        type: str = "f32",
        abs: bool = False,
        nan: str | None = None,
    ) -> tuple[list[Array], Array]:
        """Load 32-bit words of the warp's own lanes to registers, and return each thread's smallest or largest."""
        whole_warps(lanes)
        found = cells_of(lanes, address, move.shape, int(num[1:]), split=0 if split is None else int(split[0]))
        held = np.ascontiguousarray(_shown(lanes, found)[found.key].T)
        return list(held), _extreme(held, operation, TYPES[type].dtype, is_magnitude=abs, keeps_nan=nan is not None)


def _extreme(held: Array, operation: str, dtype: Any, *, is_magnitude: bool, keeps_nan: bool) -> Array:
    """Return the smallest or largest along the first axis, as bits; NaN is ignored unless it is kept, -0 is below
    +0."""
    values = held.view(dtype)
    if values.dtype.kind != "f":
        return np.asarray((np.min if operation == "min" else np.max)(values, axis=0)).view(np.uint32)
    one = minimum if operation == "min" else maximum
    values = np.abs(values) if is_magnitude else values
    found = values[0]
    for each in values[1:]:
        found = one(found, each, nan=keeps_nan)
    return np.asarray(found).view(np.uint32)


for _move in MOVES:
    _move_family(_move)
    if _move.shape in ("32x32b", "16x32bx2"):
        _reducing(_move, ".{type:u32|s32}")
        _reducing(_move, "{.abs}{.nan:NaN}.f32")


def _wait(what: str) -> None:
    """Register tcgen05.wait for loads or stores."""

    @_aligned(f"tcgen05.wait::{what}.sync.aligned", source=PTX["tcgen05.wait"])
    def wait(lanes: Lanes) -> None:
        """Wait until the warp's own loads, or stores, of tensor memory are complete."""
        lanes.machine.tensor_pipe.waited(lanes, is_load=what == "ld")


for _what in ("ld", "st"):
    _wait(_what)


@instruction(
    "tcgen05.{side:fence::before_thread_sync|fence::after_thread_sync}", since=TENSOR_SINCE, source=PTX["tcgen05.fence"]
)
def fence(lanes: Lanes, *, side: str) -> None:
    """Order operations of the tensor core before or after a synchronization of threads, even a relaxed one."""
    lanes.machine.tensor_pipe.fenced(lanes, is_before="before" in side)
