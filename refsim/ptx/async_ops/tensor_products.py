"""Products of tcgen05: what each reads and writes, checked when it is asked for; and sums, many by one call."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.formats import element_named, float_named
from refsim.numerics.sparse import sparsity_of
from refsim.ptx.async_ops.tensor_pipe import Operation, TensorPipe
from refsim.ptx.checks.undefined_tensor import copied_masks, product_masks
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.metadata import MetadataError, tensor_positions
from refsim.ptx.execution.tensor_cells import MISUSE, TensorBox, check_held
from refsim.ptx.execution.tensor_copy import CopyAsked
from refsim.ptx.execution.tensor_operands import (
    DescriptorError,
    bytes_used,
    chunks_of,
    codes_in_columns,
    codes_in_shared,
    fields_in_columns,
)
from refsim.ptx.execution.tensor_product import ProductAsked, TensorForm, places_of
from refsim.ptx.isa.fragments import chained_product, scaled_product, sparse_product
from refsim.ptx.isa.products import MmaKind, array_type, tensor_kind
from refsim.ptx.isa.scaled_products import Scales
from refsim.ptx.memory.access import ASYNC
from refsim.ptx.memory.space import ITEM
from refsim.ptx.memory.tensor_memory import COLUMN_MASK, LANE_SHIFT, TENSOR_LANES
from refsim.sources import PTX

Array = NDArray[Any]
_CHUNK = 16
_RULE = str(PTX["tcgen05, shared memory descriptor"])
_LANE_RULE = "PTX ISA, tcgen05: data path layout organization"
_PAIR_RULE = "PTX ISA, tcgen05, CTA pair: two CTAs of a cluster whose %cluster_ctarank differs in the last bit"
_METADATA_RULE = "CUTLASS, mma_traits_sm100.hpp: the last bit of the address becomes the sparsity selector"
_UPPER = 16  # the first of the upper lanes of each 32
_EVERY = np.ones(TENSOR_LANES, np.bool_)
_MOST = 16  # products that wait for their sums


@dataclass(frozen=True, eq=False)
class TensorOperands:
    """A product of one CTA that has read its operands: codes of A and B, scales where there are any, where the stored
    elements of a sparse A stand, and the words of D; `peer` is the CTA's place in its group."""

    lanes: Lanes
    asked: ProductAsked
    box: TensorBox
    peer: int
    a: Array
    b: Array
    scales: tuple[Array, Array] | None
    positions: Array | None = None

    def continues(self, last: "TensorOperands") -> bool:
        """Whether it adds to what another computes, and to nothing else."""
        own, other = self.asked, last.asked
        same = own.form.sums == other.form.sums and own.d == other.d and np.array_equal(own.disabled, other.disabled)
        return same and own.adds and own.shift == 0

    @property
    def cells(self) -> tuple[Array, Array]:
        """The lanes and columns of D, (m, n)."""
        rows, columns = self.asked.cells(self.peer)
        return rows, columns + (self.asked.d & COLUMN_MASK)


@dataclass
class TensorCore(TensorPipe):
    """A pipe that multiplies; `chains` have read their operands and wait for their sums, one chain for each CTA."""

    chains: dict[int, list[TensorOperands]] = field(default_factory=dict)

    def multiply(self, one: Lanes, asked: ProductAsked) -> None:
        """A thread asks for a product, of its CTA or of the pair of CTAs that it is in; what it reads is checked now."""
        form, peers = asked.form, self._peers(one, asked.form.ctas)
        places = [
            None if side == "a" and asked.a_in_columns else self._places(one, word, form, side)
            for side, word in (("a", asked.a), ("b", asked.b))
        ]
        shown, reads, writes = [], list[TensorBox](), list[TensorBox]()
        for peer, cta in enumerate(peers):
            d = self._d_box(one, asked, peer, cta)
            reads += [*self._a_boxes(one, asked, peer, cta), *self._scale_boxes(one, asked, cta)]
            reads += self._metadata_boxes(one, asked, peer, cta)
            reads += [d] if asked.adds else []
            writes.append(d)
            shown.append(self._show_operands(one, places, form, cta))
        self._demand_written(reads)
        if self.machine.tracking is not None:
            product_masks(one, asked, peers, (places[0], places[1]))
        for d in writes:
            self._now_written(d)
        items = np.concatenate([each for found in shown for each in found if each is not None])
        work = self._work(one, asked, writes, shown)
        self.start(Operation(self.number(), one, work, tuple(reads), tuple(writes), items))

    def copy(self, one: Lanes, asked: CopyAsked) -> None:
        """A thread asks for a copy of rows of shared memory, its own and with a group that of the other CTA."""
        try:
            places = asked.chunks
        except DescriptorError as error:
            what = f"the descriptor of the copy, {asked.word:#x}: {error}"
            raise one.fault("invalid-operand", 0, what, _RULE) from None
        for cta in self._peers(one, asked.ctas):
            self._copy(one, asked, places, cta)

    def _copy(self, one: Lanes, asked: CopyAsked, places: Array, cta: int) -> None:
        machine, box = self.machine, asked.box(cta)
        self._box(one, asked.address, box.lanes, box.end - box.first, cta)
        items = self._show(one, places.ravel(), asked.used, cta)
        rows, columns = asked.lanes[:, :, None], np.arange(box.first, box.end)[None, None, :]
        if machine.tracking is not None:
            copied_masks(one, asked, rows, columns, cta)
        self._now_written(box)

        def work() -> None:
            held = machine.shared.bytes.view(ITEM[_CHUNK]).take(items).view(np.uint8).reshape(*places.shape, _CHUNK)
            self._words(cta, box.first, box.end)
            self.memory.words[cta][rows, columns] = asked.words(held)[:, None, :]

        self.start(Operation(self.number(), one, work, (), (box,), items))

    # ---- where operands are
    def _peers(self, one: Lanes, ctas: int) -> list[int]:
        """The CTAs that take part: two of a group differ in the last bit of their rank."""
        cta, geometry = int(one.cta[0]), self.machine.geometry
        if ctas == 1:
            return [cta]
        if geometry.cluster_ctas % 2:
            what = f"cta_group::2 in a cluster of {geometry.cluster_ctas}"
            raise one.fault("invalid-operand", 0, what, _PAIR_RULE)
        first = cta - cta % geometry.cluster_ctas % 2
        return [first, first + 1]

    def _box(self, one: Lanes, address: int, used: NDArray[np.bool_], width: int, cta: int, lane: int = 0) -> TensorBox:
        """Columns of tensor memory that an address begins, which the CTA must hold; it says the lane that D's says."""
        if address >> LANE_SHIFT != lane:
            other = f", D lane {lane}" * (lane != 0)
            raise one.fault(MISUSE, 0, f"lane {address >> LANE_SHIFT} begins no operand{other}", _LANE_RULE)
        first = address & COLUMN_MASK
        check_held(one, 0, first, width, cta)
        return TensorBox(cta, used, first, first + width)

    def _d_box(self, one: Lanes, asked: ProductAsked, peer: int, cta: int) -> TensorBox:
        if asked.lane not in ((0, _UPPER) if asked.form.is_halved else (0,)):
            raise one.fault(MISUSE, 0, f"lane {asked.lane} begins no accumulator", _LANE_RULE)
        used, width = asked.extent(peer)
        return self._box(one, asked.d, used & ~asked.off(peer), width, cta, asked.lane)

    def _a_boxes(self, one: Lanes, asked: ProductAsked, peer: int, cta: int) -> list[TensorBox]:
        if not asked.a_in_columns:
            return []
        used = np.zeros(TENSOR_LANES, np.bool_)
        used[asked.cells(peer)[0][:, 0]] = True
        return [self._box(one, asked.a, used, 8, cta, asked.lane)]

    def _metadata_boxes(self, one: Lanes, asked: ProductAsked, peer: int, cta: int) -> list[TensorBox]:
        if not asked.form.is_sparse:
            return []
        if asked.metadata & 1:
            what = f"column {asked.metadata & COLUMN_MASK} begins no metadata: it is odd"
            raise one.fault(MISUSE, 0, what, _METADATA_RULE)
        used = np.zeros(TENSOR_LANES, np.bool_)
        used[asked.cells(peer)[0][:, 0]] = True
        stored = asked.form.stored
        return [self._box(one, asked.metadata + asked.form.selector, used, stored.columns, cta, asked.lane)]

    def _scale_boxes(self, one: Lanes, asked: ProductAsked, cta: int) -> list[TensorBox]:
        extents = (asked.form.rows("a"), asked.form.n)
        return [
            self._box(one, address & ~(3 << 30), _EVERY, -(-extent // 32), cta)
            for address, extent in zip(asked.scales, extents, strict=False)
        ]

    def _places(self, one: Lanes, word: int, form: TensorForm, side: str) -> Array:
        try:
            return chunks_of(word, form, side)
        except DescriptorError as error:
            what = f"the descriptor of {side.upper()}, {word:#x}: {error}"
            raise one.fault("invalid-operand", 0, what, _RULE) from None

    def _show_operands(self, one: Lanes, places: list[Array | None], form: TensorForm, cta: int) -> list[Array | None]:
        """Show the reads of A and B, as one where that says the same."""
        used = [bytes_used(form, side) for side in "ab"]
        a, b = places
        if a is None or b is None or used[0] != used[1] or self.machine.checks.banks:
            both = zip(places, used, strict=True)
            return [None if at is None else self._show(one, at, width, cta) for at, width in both]
        items = self._show(one, np.concatenate((a, b)), used[0], cta)
        return [items[: len(a)], items[len(a) :]]

    def _show(self, one: Lanes, places: Array, used: int, cta: int) -> Array:
        """Show the reads of chunks of a CTA to those that watch; their numbers in the flat shared memory."""
        machine, width = self.machine, used & -used  # 12 bytes are read as three words
        pieces = places if used == width else (places[:, None] + np.arange(0, used, width)).ravel()
        several = Lanes(machine, np.repeat(one.ids, len(pieces)), one.statement, np.full(len(pieces), cta))
        space, owner = several.space("shared")
        machine.port.touch(several, "shared", space, pieces, owner, width, proxy=ASYNC)
        return np.asarray((places + cta * space.stride) // _CHUNK)

    def _demand_written(self, reads: list[TensorBox]) -> None:
        """Words that nobody wrote make the launch begin again, to see what they reach."""
        if self.machine.tracking is not None:
            return
        for box in reads:
            columns = self.memory.unwritten[box.cta, :, box.first : box.end]
            if columns.any() and columns[box.lanes].any():
                self.machine.saw_unwritten()

    def _now_written(self, box: TensorBox) -> None:
        """Words that an operation writes count as written from now on."""
        columns = self.memory.unwritten[box.cta, :, box.first : box.end]
        if columns.any():
            columns[box.lanes] = False

    # ---- sums
    def _work(
        self, one: Lanes, asked: ProductAsked, writes: list[TensorBox], items: list[list[Array | None]]
    ) -> Callable[[], None]:
        """Read the operands when the product is done; its sums can wait."""
        form = asked.form

        def shared(places: Array, side: str) -> Array:
            held = self.machine.shared.bytes.view(ITEM[_CHUNK]).take(places).view(np.uint8).reshape(-1, _CHUNK)
            return codes_in_shared(held, form, side)

        def work() -> None:
            halves = [shared(found[1], "b") for found in items if found[1] is not None]
            b = _signed(np.concatenate(halves), form.b, form.negated[1])
            for peer, (d, (places, _)) in enumerate(zip(writes, items, strict=True)):
                if places is None:
                    first = asked.a & COLUMN_MASK
                    a = codes_in_columns(self._words(d.cta, first, first + 8)[asked.cells(peer)[0][:, 0]], form)
                else:
                    a = shared(places, "a")
                a = _signed(a, form.a, form.negated[0])
                positions = self._positions(one, asked, peer, d.cta)
                self._hold(d.cta, TensorOperands(one, asked, d, peer, a, b, self._scales(d.cta, asked), positions))

        return work

    def _positions(self, one: Lanes, asked: ProductAsked, peer: int, cta: int) -> Array | None:
        """Where what is stored of a sparse A stands in its groups."""
        if not asked.form.is_sparse:
            return None
        first, form = (asked.metadata & COLUMN_MASK) + asked.form.selector, asked.form
        words = np.roll(self._words(cta, first, first + form.stored.columns), -asked.lane, axis=0)
        sparsity = sparsity_of(element_named(form.a), tensor_kind(form.kind, form.a, form.b, form.d).unit)
        try:
            return tensor_positions(fields_in_columns(words, form, peer), form.stored, sparsity)
        except MetadataError as error:
            raise one.fault("invalid-operand", 0, error.what, str(PTX["tcgen05, sparse matrices"])) from None

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
            first, extent = address & COLUMN_MASK, asked.form.rows("a") if side == "a" else asked.form.n
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
            alike.setdefault((chain[0].asked.form.sums, len(chain)), []).append(chain)
        for stack in alike.values():
            self._compute(stack)

    def _compute(self, stack: list[list[TensorOperands]]) -> None:
        first = stack[0][0]
        form = first.asked.form
        kind = tensor_kind(form.kind, form.a, form.b, form.d, form.satfinite)
        c = np.stack([self._added(chain[0]) for chain in stack])
        if form.is_sparse:
            for step in range(len(stack[0])):
                c = self._sparse([chain[step] for chain in stack], c, kind)
        else:
            c = self._dense(stack, c, kind)
        for chain, result in zip(stack, c, strict=True):
            self._write(chain[0], result)

    def _dense(self, stack: list[list[TensorOperands]], c: Array, kind: MmaKind) -> Array:
        first = stack[0][0]
        form = first.asked.form
        a, b = (
            np.stack([np.concatenate([getattr(read, side) for read in chain], axis=1) for chain in stack])
            for side in "ab"
        )
        if not form.blocks:
            return chained_product(first.lanes, a, b, c, kind, form.k, form.k)
        held = [
            np.stack([np.concatenate([read.scales[at] for read in chain if read.scales], axis=1) for chain in stack])
            for at in (0, 1)
        ]
        return scaled_product(first.lanes, a, b, c, Scales(held[0], held[1], float_named(form.scale)), kind, form.k)

    def _sparse(self, reads: list[TensorOperands], c: Array, kind: MmaKind) -> Array:
        """One product of each of several CTAs, whose A is sparse."""
        form, scales = reads[0].asked.form, None
        a, b, positions = (np.stack([getattr(read, name) for read in reads]) for name in ("a", "b", "positions"))
        if form.blocks:
            held = [np.stack([read.scales[at] for read in reads if read.scales]) for at in (0, 1)]
            scales = Scales(held[0], held[1], float_named(form.scale))
        return sparse_product(reads[0].lanes, a, b, c, positions, kind, form.k, scales)

    def _added(self, read: TensorOperands) -> Array:
        """What the first product of a chain adds to, (m, n)."""
        form, asked = read.asked.form, read.asked
        dtype = array_type(tensor_kind(form.kind, form.a, form.b, form.d, form.satfinite).d)
        if not asked.adds:
            return np.zeros((form.rows("a"), form.n), dtype)
        rows, columns = read.cells
        words = self.memory.words[read.box.cta][rows, columns]
        held = words.astype(f"u{dtype.itemsize}").view(dtype)
        return np.asarray(np.ldexp(held, -asked.shift).astype(dtype) if asked.shift else held)

    def _write(self, read: TensorOperands, result: Array) -> None:
        rows, columns = read.cells
        kept = ~read.asked.off(read.peer)[rows].any(axis=1)
        bits = np.ascontiguousarray(result).view(f"u{result.dtype.itemsize}").astype(np.uint32)
        self.memory.words[read.box.cta][rows[kept], columns[kept]] = bits[kept]


def _signed(codes: Array, type: str, negated: bool) -> Array:
    """Codes with their sign turned, where the instruction says so."""
    return codes ^ codes.dtype.type(float_named(type).sign_mask) if negated else codes
