"""The moves of tcgen05 within tensor memory: shared memory to lanes, and lanes to the next lanes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.async_ops.tensor_pipe import Operation, TensorPipe
from refsim.ptx.checks.undefined_tensor import copied_masks
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.tensor_cells import MISUSE, TensorBox, check_held
from refsim.ptx.execution.tensor_copy import CopyAsked
from refsim.ptx.execution.tensor_operands import DescriptorError
from refsim.ptx.memory.access import ASYNC
from refsim.ptx.memory.space import ITEM
from refsim.ptx.memory.tensor_memory import COLUMN_MASK, LANE_SHIFT, TENSOR_LANES
from refsim.sources import PTX

Array = NDArray[Any]
_CHUNK = 16
DESCRIPTOR_RULE = str(PTX["tcgen05, shared memory descriptor"])
LANE_RULE = "PTX ISA, tcgen05: data path layout organization"
_PAIR_RULE = "PTX ISA, tcgen05, CTA pair: two CTAs of a cluster whose %cluster_ctarank differs in the last bit"
_WARP_LANES, _SHIFT_COLUMNS = 32, 8  # moved by a tcgen05.shift


@dataclass
class TensorMover(TensorPipe):
    """A pipe that copies to tensor memory, and moves what is there."""

    def copy(self, one: Lanes, asked: CopyAsked) -> None:
        """Start a copy of rows of shared memory to the tensor memory of this CTA, and of its peer in a CTA group."""
        try:
            places = asked.chunks
        except DescriptorError as error:
            what = f"the descriptor of the copy, {asked.word:#x}: {error}"
            raise one.fault("invalid-operand", 0, what, DESCRIPTOR_RULE) from None
        for cta in self._peers(one, asked.ctas):
            self._copy(one, asked, places, cta)

    def _copy(self, one: Lanes, asked: CopyAsked, places: Array, cta: int) -> None:
        """Check the copy for one CTA, show its reads and put it in flight."""
        machine, box = self.machine, asked.box(cta)
        self._box(one, asked.address, box.lanes, box.end - box.first, cta)
        items = self._show(one, places.ravel(), asked.used, cta)
        rows, columns = asked.lanes[:, :, None], np.arange(box.first, box.end)[None, None, :]
        if machine.tracking is not None:
            copied_masks(one, asked, rows, columns, cta)
        self._now_written(box)

        def work() -> None:
            """Move the chunks from shared memory to the columns."""
            held = machine.shared.bytes.view(ITEM[_CHUNK]).take(items).view(np.uint8).reshape(*places.shape, _CHUNK)
            self._words(cta, box.first, box.end)
            self.memory.words[cta][rows, columns] = asked.words(held)[:, None, :]

        self.start(Operation(self.number(), one, work, (), (box,), items))

    def move_down(self, one: Lanes, address: int, ctas: int) -> None:
        """Start a move of 31 of 32 lanes, 32 bytes each, to the next lane; the first lane keeps its bytes."""
        lane, first = address >> LANE_SHIFT, address & COLUMN_MASK
        if lane % _WARP_LANES or lane >= TENSOR_LANES:
            raise one.fault(MISUSE, 0, f"lane {lane} begins no lanes of a warp", str(PTX["tcgen05.shift"]))
        memory, used = self.memory, np.zeros(TENSOR_LANES, np.bool_)
        used[lane : lane + _WARP_LANES] = True
        for cta in self._peers(one, ctas):
            check_held(one, 0, first, _SHIFT_COLUMNS, cta)
            box = TensorBox(cta, used, first, first + _SHIFT_COLUMNS)
            source, to = (
                (cta, slice(lane + down, lane + down + _WARP_LANES - 1), slice(box.first, box.end)) for down in (0, 1)
            )
            for marks in filter(lambda each: each is not None, (memory.unwritten, memory.bits, memory.events)):
                assert marks is not None
                marks[to] = marks[source].copy()

            def work(cta: int = cta, box: TensorBox = box, source: Any = source, to: Any = to) -> None:
                """Move the lanes of one CTA down."""
                self._words(cta, box.first, box.end)
                self.memory.words[to] = self.memory.words[source].copy()

            self.start(Operation(self.number(), one, work, (box,), (box,)))

    # ---- where operands are
    def _peers(self, one: Lanes, ctas: int) -> list[int]:
        """Return the CTAs that take part; the two CTAs of a pair differ in the last bit of their rank."""
        cta, geometry = int(one.cta[0]), self.machine.geometry
        if ctas == 1:
            return [cta]
        if geometry.cluster_ctas % 2:
            what = f"cta_group::2 in a cluster of {geometry.cluster_ctas}"
            raise one.fault("invalid-operand", 0, what, _PAIR_RULE)
        first = cta - cta % geometry.cluster_ctas % 2
        return [first, first + 1]

    def _box(self, one: Lanes, address: int, used: NDArray[np.bool_], width: int, cta: int, lane: int = 0) -> TensorBox:
        """Return the columns from an address on; raise a fault for a wrong lane or unallocated columns."""
        if address >> LANE_SHIFT != lane:
            other = f", D lane {lane}" * (lane != 0)
            raise one.fault(MISUSE, 0, f"lane {address >> LANE_SHIFT} begins no operand{other}", LANE_RULE)
        first = address & COLUMN_MASK
        check_held(one, 0, first, width, cta)
        return TensorBox(cta, used, first, first + width)

    def _show(self, one: Lanes, places: Array, used: int, cta: int) -> Array:
        """Show the reads of chunks of a CTA to the observers; return the chunks' numbers in the flat shared memory."""
        machine, width = self.machine, used & -used  # 12 bytes are read as three 4-byte items
        pieces = places if used == width else (places[:, None] + np.arange(0, used, width)).ravel()
        several = Lanes(machine, np.repeat(one.ids, len(pieces)), one.statement, np.full(len(pieces), cta))
        space, owner = several.space("shared")
        machine.port.touch(several, "shared", space, pieces, owner, width, proxy=ASYNC)
        return np.asarray((places + cta * space.stride) // _CHUNK)

    def _now_written(self, box: TensorBox) -> None:
        """Mark the cells that an operation writes as initialized."""
        columns = self.memory.unwritten[box.cta, :, box.first : box.end]
        if columns.any():
            columns[box.lanes] = False

    def _words(self, cta: int, first: int, end: int) -> Array:
        """Return columns of a CTA (lanes, columns), after the effects of earlier operations."""
        return np.asarray(self.memory.words[cta][:, first:end])
