"""Products of tcgen05: what each reads and writes, checked when it is asked for; and sums, many by one call."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.formats import float_named
from refsim.ptx.async_ops.tensor_pipe import Operation, TensorPipe
from refsim.ptx.checks.undefined_tensor import copied_masks, product_masks
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.tensor_cells import MISUSE, TensorBox, check_held
from refsim.ptx.execution.tensor_copy import CopyAsked
from refsim.ptx.execution.tensor_operands import DescriptorError, chunks_of, codes_in_columns, codes_in_shared
from refsim.ptx.execution.tensor_product import ProductAsked, TensorForm, places_of
from refsim.ptx.isa.fragments import chained_product, scaled_product
from refsim.ptx.isa.products import array_type, tensor_kind
from refsim.ptx.isa.scaled_products import Scales
from refsim.ptx.memory.access import ASYNC
from refsim.ptx.memory.space import ITEM
from refsim.ptx.memory.tensor_memory import COLUMN_MASK, LANE_SHIFT, TENSOR_LANES
from refsim.sources import PTX

Array = NDArray[Any]
_CHUNK = 16
_RULE = str(PTX["tcgen05, shared memory descriptor"])
_LANE_RULE = "PTX ISA, tcgen05: data path layout organization"
_MOST = 16  # products that wait for their sums


@dataclass(frozen=True, eq=False)
class TensorOperands:
    """A product that has read its operands: codes of A and B, scales where there are any, and the words of D."""

    lanes: Lanes
    asked: ProductAsked
    box: TensorBox
    a: Array
    b: Array
    scales: tuple[Array, Array] | None

    def continues(self, last: "TensorOperands") -> bool:
        """Whether it adds to what another computes, and to nothing else."""
        own, other = self.asked, last.asked
        same = own.form == other.form and own.d == other.d and np.array_equal(own.disabled, other.disabled)
        return same and own.adds and own.shift == 0

    @property
    def cells(self) -> tuple[Array, Array]:
        """The lanes and columns of D, (m, n)."""
        rows, columns = places_of(self.asked.form.accumulator)
        return rows, columns + (self.asked.d & COLUMN_MASK)


@dataclass
class TensorCore(TensorPipe):
    """A pipe that multiplies; `chains` have read their operands and wait for their sums, one chain for each CTA."""

    chains: dict[int, list[TensorOperands]] = field(default_factory=dict)

    def multiply(self, one: Lanes, asked: ProductAsked) -> None:
        """A thread asks for a product; what it reads is checked now."""
        form, machine = asked.form, self.machine
        cta = int(one.cta[0])
        rows, columns = places_of(form.accumulator)
        used = np.zeros(TENSOR_LANES, np.bool_)
        used[rows[~asked.disabled[rows].any(axis=1)].ravel()] = True
        d = self._box(one, asked.d, used, int(columns.max()) + 1)
        a_places, b_places = (
            None if side == "a" and asked.a_in_columns else self._places(one, word, form, side)
            for side, word in (("a", asked.a), ("b", asked.b))
        )
        a_box = self._a_box(one, asked) if asked.a_in_columns else None
        scale_boxes = self._scale_boxes(one, asked)
        reads = [box for box in (a_box, *scale_boxes, d if asked.adds else None) if box is not None]
        shown = [self._show(one, places) for places in (a_places, b_places) if places is not None]
        self._demand_written(reads)
        if machine.tracking is not None:
            product_masks(one, asked, (a_places, b_places))
        self.memory.unwritten[cta][used, d.first : d.end] = False
        work = self._work(one, asked, d, (shown[0] if a_places is not None else None, shown[-1]))
        items = np.unique(np.concatenate(shown))
        self.start(Operation(self.number(), one, work, tuple(reads), (d,), items))

    def copy(self, one: Lanes, asked: CopyAsked) -> None:
        """A thread asks for a copy of rows of shared memory."""
        cta, machine = int(one.cta[0]), self.machine
        try:
            places = asked.chunks
        except DescriptorError as error:
            raise one.fault(
                "invalid-operand", 0, f"the descriptor of the copy, {asked.word:#x}: {error}", _RULE
            ) from None
        box = asked.box(cta)
        self._box(one, asked.address, box.lanes, box.end - box.first)
        items = self._show(one, places.ravel())
        rows, columns = asked.lanes[:, :, None], np.arange(box.first, box.end)[None, None, :]
        if machine.tracking is not None:
            copied_masks(one, places, rows, columns)
        self.memory.unwritten[cta][box.lanes, box.first : box.end] = False

        def work() -> None:
            held = machine.shared.bytes.view(ITEM[_CHUNK]).take(items).view(np.uint8).reshape(*places.shape, _CHUNK)
            self._words(cta, box.first, box.end)
            self.memory.words[cta][rows, columns] = asked.words(held)[:, None, :]

        self.start(Operation(self.number(), one, work, (), (box,), items))

    # ---- where operands are
    def _box(self, one: Lanes, address: int, used: NDArray[np.bool_], width: int) -> TensorBox:
        """Columns of tensor memory that an address begins, which the CTA must hold."""
        if address >> LANE_SHIFT:
            raise one.fault(MISUSE, 0, f"lane {address >> LANE_SHIFT} begins no operand", _LANE_RULE)
        first = address & COLUMN_MASK
        check_held(one, 0, first, width)
        return TensorBox(int(one.cta[0]), used, first, first + width)

    def _a_box(self, one: Lanes, asked: ProductAsked) -> TensorBox:
        used = np.zeros(TENSOR_LANES, np.bool_)
        used[places_of(asked.form.accumulator)[0][:, 0]] = True
        return self._box(one, asked.a, used, 8)

    def _scale_boxes(self, one: Lanes, asked: ProductAsked) -> list[TensorBox]:
        every = np.ones(TENSOR_LANES, np.bool_)
        extents = (asked.form.m, asked.form.n)
        return [
            self._box(one, address & ~(3 << 30), every, -(-extent // 32))
            for address, extent in zip(asked.scales, extents, strict=False)
        ]

    def _places(self, one: Lanes, word: int, form: TensorForm, side: str) -> Array:
        try:
            return chunks_of(word, form, side)
        except DescriptorError as error:
            what = f"the descriptor of {side.upper()}, {word:#x}: {error}"
            raise one.fault("invalid-operand", 0, what, _RULE) from None

    def _show(self, one: Lanes, places: Array) -> Array:
        """Show the reads of chunks to those that watch; their numbers in the flat shared memory."""
        machine = self.machine
        several = Lanes(machine, np.repeat(one.ids, len(places)), one.statement)
        space, owner = several.space("shared")
        machine.port.touch(several, "shared", space, places, owner, _CHUNK, proxy=ASYNC)
        return np.asarray((places + int(one.cta[0]) * space.stride) // _CHUNK)

    def _demand_written(self, reads: list[TensorBox]) -> None:
        """Words that nobody wrote make the launch begin again, to see what they reach."""
        if self.machine.tracking is not None:
            return
        for box in reads:
            if self.memory.unwritten[box.cta][box.lanes, box.first : box.end].any():
                self.machine.saw_unwritten()

    # ---- sums
    def _work(
        self, one: Lanes, asked: ProductAsked, d: TensorBox, items: tuple[Array | None, Array]
    ) -> Callable[[], None]:
        """Read the operands when the product is done; its sums can wait."""
        form, cta = asked.form, int(one.cta[0])

        def work() -> None:
            memory = self.machine.shared.bytes.view(ITEM[_CHUNK])

            def shared(places: Array, side: str) -> Array:
                held = memory.take(places).view(np.uint8).reshape(-1, _CHUNK)
                return codes_in_shared(held, form, side)

            if items[0] is None:
                rows, first = places_of(form.accumulator)[0][:, 0], asked.a & COLUMN_MASK
                words = self._words(cta, first, first + 8)[rows]
                a = codes_in_columns(words, form)
            else:
                a = shared(items[0], "a")
            b = shared(items[1], "b")
            read = TensorOperands(
                one,
                asked,
                d,
                _signed(a, form.a, form.negated[0]),
                _signed(b, form.b, form.negated[1]),
                self._scales(cta, asked),
            )
            self._hold(cta, read)

        return work

    def _words(self, cta: int, first: int, end: int) -> Array:
        """Columns of a CTA (lanes, columns), with the sums that other products leave there."""
        for read in self.chains.get(cta, [])[-1:]:
            if first < read.box.end and read.box.first < end:
                self.settle()
        return np.asarray(self.memory.words[cta][:, first:end])

    def _scales(self, cta: int, asked: ProductAsked) -> tuple[Array, Array] | None:
        """The scales of the rows of A (m, blocks) and of B (n, blocks)."""
        if not asked.scales:
            return None
        found = []
        for side, address in zip("ab", asked.scales, strict=True):
            first, extent = address & COLUMN_MASK, asked.form.rows(side)
            held = np.ascontiguousarray(self._words(cta, first, first - (-extent // 32))).view(np.uint8)
            lane, byte = places_of(asked.form.scales(side))
            codes = held[lane, byte]
            found.append(codes if side == "a" else np.ascontiguousarray(codes.T))
        return found[0], found[1]

    def _hold(self, cta: int, read: TensorOperands) -> None:
        chain = self.chains.setdefault(cta, [])
        if chain and (not read.continues(chain[-1]) or len(chain) == _MOST):
            self.settle()
            chain = self.chains.setdefault(cta, [])
        chain.append(read)

    def settle(self) -> None:
        """Compute the sums of all chains: those of one form and length by one call."""
        chains, self.chains = self.chains, {}
        alike: dict[Any, list[list[TensorOperands]]] = {}
        for chain in chains.values():
            alike.setdefault((chain[0].asked.form, len(chain)), []).append(chain)
        for stack in alike.values():
            self._compute(stack)

    def _compute(self, stack: list[list[TensorOperands]]) -> None:
        first = stack[0][0]
        form = first.asked.form
        kind = tensor_kind(form.kind, form.a, form.b, form.d, form.satfinite)
        a, b = (
            np.stack([np.concatenate([getattr(read, side) for read in chain], axis=1) for chain in stack])
            for side in "ab"
        )
        c = np.stack([self._added(chain[0]) for chain in stack])
        if form.blocks:
            held = [
                np.stack(
                    [np.concatenate([read.scales[at] for read in chain if read.scales], axis=1) for chain in stack]
                )
                for at in (0, 1)
            ]
            scales = Scales(held[0], held[1], float_named(form.scale))
            d = scaled_product(first.lanes, a, b, c, scales, kind, form.k)
        else:
            d = chained_product(first.lanes, a, b, c, kind, form.k, form.k)
        for chain, result in zip(stack, d, strict=True):
            self._write(chain[0], result)

    def _added(self, read: TensorOperands) -> Array:
        """What the first product of a chain adds to, (m, n)."""
        form, asked = read.asked.form, read.asked
        dtype = array_type(tensor_kind(form.kind, form.a, form.b, form.d, form.satfinite).d)
        if not asked.adds:
            return np.zeros((form.m, form.n), dtype)
        rows, columns = read.cells
        words = self.memory.words[int(read.lanes.cta[0])][rows, columns]
        held = words.astype(f"u{dtype.itemsize}").view(dtype)
        return np.asarray(np.ldexp(held, -asked.shift).astype(dtype) if asked.shift else held)

    def _write(self, read: TensorOperands, result: Array) -> None:
        rows, columns = read.cells
        kept = ~read.asked.disabled[rows].any(axis=1)
        bits = np.ascontiguousarray(result).view(f"u{result.dtype.itemsize}").astype(np.uint32)
        self.memory.words[int(read.lanes.cta[0])][rows[kept], columns[kept]] = bits[kept]


def _signed(codes: Array, type: str, negated: bool) -> Array:
    """Codes with their sign turned, where the instruction says so."""
    return codes ^ codes.dtype.type(float_named(type).sign_mask) if negated else codes
