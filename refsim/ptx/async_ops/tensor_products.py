"""Products of tcgen05: reads and writes are checked at issue, and many sums are computed by one call.

`TensorMover` has the moves of tcgen05 within tensor memory: shared memory to lanes, and lanes to the next lanes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from refsim.formats import element_named, float_named
from refsim.numerics.sparse import sparsity_of
from refsim.ptx.async_ops.tensor_pipe import Operation, TensorPipe
from refsim.ptx.async_ops.torn_products import Operands, OperandsAsked, Sides, see_torn, show_at_once, torn_now
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.matrix_operands import DescriptorError, MetadataError, tensor_positions
from refsim.ptx.execution.tensor_cells import MISUSE, CopyAsked, TensorBox, check_held
from refsim.ptx.execution.tensor_product import (
    ProductAsked,
    TensorForm,
    bytes_used,
    chunk_rows,
    chunks_of,
    codes_in_columns,
    codes_in_shared,
    fields_in_columns,
    is_assumed,
    places_of,
    shifted_chunks,
)
from refsim.ptx.isa.definedness.tensor import copied_masks, product_masks
from refsim.ptx.isa.definedness.tracking import Key
from refsim.ptx.isa.fragments import chained_product, scaled_product, sparse_product
from refsim.ptx.isa.products import MmaKind, Scales, array_type, tensor_kind
from refsim.ptx.memory.access import ASYNC, READ, Access
from refsim.ptx.memory.arrays import Array, Bools
from refsim.ptx.memory.space import ITEM
from refsim.ptx.memory.tensor_map import COLUMN_MASK, LANE_SHIFT, TENSOR_LANES
from refsim.sources import PTX

_CHUNK = 16
_METADATA_RULE = "CUTLASS, mma_traits_sm100.hpp: the last bit of the address becomes the sparsity selector"
_UPPER = 16  # the first of the upper lanes of each 32
_EVERY = np.ones(TENSOR_LANES, np.bool_)
_MOST = 16  # products that wait for their sums
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
        self._mark_start(one, asked.word)
        for cta in self._peers(one, asked.ctas):
            self._copy(one, asked, places, cta)

    def _mark_start(self, one: Lanes, word: int) -> None:
        """Mark results as assumed where only wgmma was recorded to begin as this descriptor does."""
        if is_assumed(word):
            self.machine.mark_assumed(one.statement, "sm_90a")

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

    def _box(self, one: Lanes, address: int, used: Bools, width: int, cta: int, lane: int = 0) -> TensorBox:
        """Return the columns from an address on; raise a fault for a wrong lane or unallocated columns."""
        if address >> LANE_SHIFT != lane:
            other = f", D lane {lane}" * (lane != 0)
            raise one.fault(MISUSE, 0, f"lane {address >> LANE_SHIFT} begins no operand{other}", LANE_RULE)
        first = address & COLUMN_MASK
        check_held(one, 0, first, width, cta)
        return TensorBox(cta, used, first, first + width)

    def _show(self, one: Lanes, places: Array, used: int, cta: int) -> Array:
        """Show the reads of chunks of a CTA to the observers; return the chunks' numbers in the flat shared memory."""
        width = used & -used  # 12 bytes are read as three 4-byte items
        pieces = places if used == width else (places[:, None] + np.arange(0, used, width)).ravel()
        self._touch(self._read(one, pieces, width, cta))
        return np.asarray((places + cta * self.machine.shared.stride) // _CHUNK)

    def _read(self, one: Lanes, pieces: Array, width: int, cta: int) -> Access:
        """Return the read of pieces of a CTA's shared memory."""
        several = Lanes(self.machine, np.repeat(one.ids, len(pieces)), one.statement, np.full(len(pieces), cta))
        space, owner = several.space("shared")
        return self.machine.port.plan(READ, several, "shared", space, pieces, owner, width, proxy=ASYNC)

    def _touch(self, access: Access) -> None:
        """Show a read to the observers."""
        for observer in self.machine.port.observers.get("shared", ()):
            observer.before(access)
            observer.after(access)

    def _now_written(self, box: TensorBox) -> None:
        """Mark the cells that an operation writes as initialized."""
        columns = self.memory.unwritten[box.cta, :, box.first : box.end]
        if columns.any():
            columns[box.lanes] = False

    def _words(self, cta: int, first: int, end: int) -> Array:
        """Return columns of a CTA (lanes, columns), after the effects of earlier operations."""
        return np.asarray(self.memory.words[cta][:, first:end])


@dataclass(frozen=True, eq=False)
class TensorOperands:
    """A product of one CTA that has read its operands. It holds codes of A and B, scales or None, the positions of the
    stored elements of a sparse A, and the cells of D. `peer` is the CTA's place in its group."""

    lanes: Lanes
    asked: ProductAsked
    box: TensorBox
    peer: int
    a: Array
    b: Array
    scales: tuple[Array, Array] | None
    positions: Array | None = None

    def continues(self, last: "TensorOperands") -> bool:
        """Return whether this product adds to the result of `last` and writes nothing else."""
        own, other = self.asked, last.asked
        same = own.form.sums == other.form.sums and own.d == other.d and np.array_equal(own.disabled, other.disabled)
        return same and own.adds and own.shift == 0 and self.a.shape == last.a.shape

    @property
    def cells(self) -> tuple[Array, Array]:
        """Return the lanes and columns of D, both (m, n)."""
        rows, columns = self.asked.cells(self.peer)
        return rows, columns + (self.asked.d & COLUMN_MASK)


@dataclass(eq=False)
class SharedReads:
    """The chunks that a product reads, by the CTA's place in its group and side: numbers in the flat shared memory, and
    a mask of those that change meanwhile."""

    lanes: Lanes
    form: TensorForm
    items: dict[tuple[int, str], Array] = field(default_factory=dict)
    torn: dict[tuple[int, str], Bools] = field(default_factory=dict)

    def steady(self) -> Array:
        """Return the chunks that do not change."""
        return np.concatenate(
            [items[~self.torn[key]] if key in self.torn else items for key, items in self.items.items()]
        )

    def rows_at(self, items: Array) -> dict[Key, Array]:
        """Return which rows of A and columns of B chunks hold, by the CTA's place."""
        found: dict[Key, Array] = {}
        for (peer, side), own in self.items.items():
            here = np.isin(own, items)
            if (peer, side) in self.torn:
                here &= ~self.torn[peer, side]
            if here.any():
                rows = chunk_rows(self.form, side, len(own))[here].any(axis=0)
                found[self.lanes.statement.line, peer, side] = np.asarray(rows)
        return found


@dataclass
class TensorCore(TensorMover):
    """A pipe that also multiplies; `chains` have read their operands and wait for their sums, one for each CTA."""

    chains: dict[int, list[TensorOperands]] = field(default_factory=dict)

    def multiply(self, one: Lanes, asked: ProductAsked) -> None:
        """Start a product of a thread's CTA, or of its CTA pair, and check its reads now."""
        form, peers = asked.form, self._peers(one, asked.form.ctas)
        places = [
            None if side == "a" and asked.a_in_columns else self._places(one, word, asked, side)
            for side, word in (("a", asked.a), ("b", asked.b))
        ]
        shown, reads, writes = SharedReads(one, form), list[TensorBox](), list[TensorBox]()
        torn: list[dict[str, Array]] = []
        for peer, cta in enumerate(peers):
            d = self._d_box(one, asked, peer, cta)
            reads += [*self._a_boxes(one, asked, peer, cta), *self._scale_boxes(one, asked, cta)]
            reads += self._metadata_boxes(one, asked, peer, cta)
            reads += [d] if asked.adds else []
            writes.append(d)
            torn.append(self._show_operands(shown, places, peer, cta))
        self._demand_written(reads)
        if self.machine.tracking is not None:
            product_masks(one, asked, peers, (places[0], places[1]), torn)
        for d in writes:
            self._now_written(d)
        work = self._work(one, asked, writes, shown.items)
        self.start(Operation(self.number(), one, work, tuple(reads), tuple(writes), shown.steady(), shown))

    # ---- where operands are
    def _d_box(self, one: Lanes, asked: ProductAsked, peer: int, cta: int) -> TensorBox:
        """Return the cells of D that a product writes in one CTA."""
        if asked.lane not in ((0, _UPPER) if asked.form.is_halved else (0,)):
            raise one.fault(MISUSE, 0, f"lane {asked.lane} begins no accumulator", LANE_RULE)
        used, width = asked.extent(peer)
        return self._box(one, asked.d, used & ~asked.off(peer), width, cta, asked.lane)

    def _a_boxes(self, one: Lanes, asked: ProductAsked, peer: int, cta: int) -> list[TensorBox]:
        if not asked.a_in_columns:
            return []
        return [self._box(one, asked.a, self._a_used(asked, peer), asked.form.a_columns, cta, asked.lane)]

    @staticmethod
    def _a_used(asked: ProductAsked, peer: int) -> Bools:
        used = np.zeros(TENSOR_LANES, np.bool_)
        used[np.concatenate(asked.a_lanes(peer))] = True
        return used

    def _metadata_boxes(self, one: Lanes, asked: ProductAsked, peer: int, cta: int) -> list[TensorBox]:
        """Return the cells of the metadata of a sparse A, none for a dense one."""
        if not asked.form.is_sparse:
            return []
        if asked.metadata & 1:
            what = f"column {asked.metadata & COLUMN_MASK} begins no metadata: it is odd"
            raise one.fault(MISUSE, 0, what, _METADATA_RULE)
        first, columns = asked.metadata + asked.form.selector, asked.form.stored.columns
        return [self._box(one, first, self._a_used(asked, peer), columns, cta, asked.lane)]

    def _scale_boxes(self, one: Lanes, asked: ProductAsked, cta: int) -> list[TensorBox]:
        return [
            self._box(one, address & ~(3 << 30), _EVERY, asked.form.scale_columns(side), cta)
            for side, address in zip("ab", asked.scales, strict=False)
        ]

    def _places(self, one: Lanes, word: int, asked: ProductAsked, side: str) -> Array:
        """Return the addresses of the chunks of an operand in shared memory, or raise a fault for a bad descriptor."""
        shift = asked.columns.shift if side == "b" and asked.columns is not None else 0
        try:
            found = shifted_chunks(word, asked.form, shift) if shift else chunks_of(word, asked.form, side)
        except DescriptorError as error:
            what = f"the descriptor of {side.upper()}, {word:#x}: {error}"
            raise one.fault("invalid-operand", 0, what, DESCRIPTOR_RULE) from None
        self._mark_start(one, word)
        return found

    def _show_operands(self, shown: SharedReads, places: list[Array | None], peer: int, cta: int) -> dict[str, Array]:
        """Show the reads of A and B in one CTA to the observers, as one access where nothing is to report. Return the
        events of rows and columns that change meanwhile."""
        machine, one, form = self.machine, shown.lanes, shown.form
        sides: Operands = {side: (at[None], None) for side, at in zip("ab", places, strict=True) if at is not None}

        def access(some: Operands, torn: Sides) -> Access | None:
            """Return the read of chunks."""
            width = min(used & -used for used in (bytes_used(form, side) for side in some))  # of 12 bytes, 4 thrice
            found = []
            for side, (at, seen) in some.items():
                kept = np.ones(at.shape, np.bool_) if seen is None else seen
                chosen = at[kept & ~torn[side] if side in torn else kept]
                found.append((chosen[:, None] + np.arange(0, bytes_used(form, side), width)).ravel())
            pieces = np.concatenate(found)
            return self._read(one, pieces, width, cta) if len(pieces) else None

        asked = OperandsAsked(one, [peer], sides, lambda side, chunks: chunk_rows(form, side, chunks), access)
        torn, events = dict[str, Bools](), dict[str, Array]()
        if machine.races is not None:
            machine.races.product = shown
        if machine.tracking is not None:
            now = torn_now(machine, asked)
            torn, events = now.chunks, {side: each[0] for side, each in now.events(one).items()}
        shown.items |= {
            (peer, side): (at[0] + cta * machine.shared.stride) // _CHUNK for side, (at, _) in sides.items()
        }
        if not show_at_once(machine, lambda: access(sides, torn)):
            if machine.tracking is None:
                torn = see_torn(machine, asked)
            for side, each in sides.items():
                if (read := access({side: each}, torn)) is not None:
                    self._touch(read)
        shown.torn |= {(peer, side): each[0] for side, each in torn.items()}
        if machine.races is not None:
            machine.races.product = None
        return events

    def _demand_written(self, reads: list[TensorBox]) -> None:
        """Restart the launch with tracking if a product reads uninitialized cells."""
        if self.machine.tracking is not None:
            return
        for box in reads:
            columns = self.memory.unwritten[box.cta, :, box.first : box.end]
            if columns.any() and columns[box.lanes].any():
                self.machine.saw_unwritten()

    # ---- sums
    def _words(self, cta: int, first: int, end: int) -> Array:
        """Return columns of a CTA (lanes, columns), with the sums of pending products."""
        for read in self.chains.get(cta, [])[-1:]:
            if first < read.box.end and read.box.first < end:
                self.settle()
        return np.asarray(self.memory.words[cta][:, first:end])

    def _work(
        self, one: Lanes, asked: ProductAsked, writes: list[TensorBox], items: dict[tuple[int, str], Array]
    ) -> Callable[[], None]:
        """Return the work of a product: read its operands and keep them for the sums."""
        form = asked.form

        def shared(places: Array, side: str) -> Array:
            """Return the codes of an operand in shared memory, rows by k."""
            held = self.machine.shared.bytes.view(ITEM[_CHUNK]).take(places).view(np.uint8).reshape(-1, _CHUNK)
            return codes_in_shared(held, form, side)

        def work() -> None:
            """Read A, B, scales and metadata of each CTA, and hold the product."""
            halves = [shared(items[peer, "b"], "b") for peer in range(len(writes))]
            b = _signed(np.concatenate(halves), form.b, form.negated[1])
            if asked.columns is not None:
                b[asked.columns.zero] = 0
            for peer, d in enumerate(writes):
                is_shared = (peer, "a") in items
                a = shared(items[peer, "a"], "a") if is_shared else self._a_in_columns(asked, peer, d.cta)
                a = _signed(a, form.a, form.negated[0])
                positions = self._positions(one, asked, peer, d.cta)
                if positions is not None and len(positions) != len(a):
                    a, positions = (
                        np.tile(each, (form.parts * form.rows("a") // len(each), 1)) for each in (a, positions)
                    )
                self._hold(d.cta, TensorOperands(one, asked, d, peer, a, b, self._scales(d.cta, asked), positions))

        return work

    def _a_in_columns(self, asked: ProductAsked, peer: int, cta: int) -> Array:
        """Return the codes (m, k) of A, or (parts m, k) if the parts of D have different ones."""
        first = asked.a & COLUMN_MASK
        words = self._words(cta, first, first + asked.form.a_columns)
        found = [codes_in_columns(words[lanes], asked.form) for lanes in asked.a_lanes(peer)]
        if asked.rows_down:
            found = [np.concatenate([each[:1], each[:-1]]) for each in found]
        return _once(found)

    def _positions(self, one: Lanes, asked: ProductAsked, peer: int, cta: int) -> Array | None:
        """Return the positions of the stored elements of a sparse A within their groups, None for a dense A."""
        if not asked.form.is_sparse:
            return None
        first, form = (asked.metadata & COLUMN_MASK) + asked.form.selector, asked.form
        words = self._words(cta, first, first + form.stored.columns)
        sparsity = sparsity_of(element_named(form.a), tensor_kind(form.kind, form.a, form.b, form.d).unit)
        turned = [np.roll(words, -asked.lane - part * form.m, axis=0) for part in range(form.parts)]
        try:
            return _once(
                [tensor_positions(fields_in_columns(each, form, peer), form.stored, sparsity) for each in turned]
            )
        except MetadataError as error:
            raise one.fault("invalid-operand", 0, error.what, str(PTX["tcgen05, sparse matrices"])) from None

    def _scales(self, cta: int, asked: ProductAsked) -> tuple[Array, Array] | None:
        """Return the scales of the rows of A (m, blocks) and of B (n, blocks), or None."""
        if not asked.scales:
            return None
        found = []
        for side, address in zip("ab", asked.scales, strict=True):
            first = address & COLUMN_MASK
            held = np.ascontiguousarray(self._words(cta, first, first + asked.form.scale_columns(side))).view(np.uint8)
            lane, byte = places_of(asked.form.scales(side))
            codes = held[lane, byte]
            found.append(codes if side == "a" else np.ascontiguousarray(codes.T))
        return found[0], found[1]

    def _hold(self, cta: int, read: TensorOperands) -> None:
        """Append a product to the chain of its CTA, and compute the chain first if it cannot continue."""
        chain = self.chains.setdefault(cta, [])
        if chain and (not read.continues(chain[-1]) or len(chain) == _MOST):
            self.settle()
            chain = self.chains.setdefault(cta, [])
        chain.append(read)

    def settle(self) -> None:
        """Compute the sums of all chains; chains of one form and length share one call."""
        chains, self.chains = self.chains, {}
        alike: dict[Any, list[list[TensorOperands]]] = {}
        for chain in chains.values():
            alike.setdefault((chain[0].asked.form.sums, chain[0].a.shape, len(chain)), []).append(chain)
        for stack in alike.values():
            self._compute(stack)

    def _compute(self, stack: list[list[TensorOperands]]) -> None:
        """Compute chains of one form and length, and write their results to tensor memory."""
        first = stack[0][0]
        form = first.asked.form
        kind = tensor_kind(form.kind, form.a, form.b, form.d, form.satfinite)
        c = np.stack([self._added(chain[0]) for chain in stack])
        parts = len(first.a) // form.rows("a")
        c = np.tile(c, (1, parts, 1))
        if form.is_sparse:
            for step in range(len(stack[0])):
                c = self._sparse([chain[step] for chain in stack], c, kind)
        else:
            c = self._dense(stack, c, kind)
        cut = c.reshape(len(c), parts, -1, parts, form.n // parts)
        own = np.concatenate([cut[:, part, :, part] for part in range(parts)], axis=-1)
        for chain, result in zip(stack, own, strict=True):
            self._write(chain[0], result)

    def _dense(self, stack: list[list[TensorOperands]], c: Array, kind: MmaKind) -> Array:
        """Return the sums of dense chains, (chains, rows, n), with block scales where the form has them."""
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
        """Return one product of each of several CTAs with a sparse A."""
        form, scales = reads[0].asked.form, None
        a, b, positions = (np.stack([getattr(read, name) for read in reads]) for name in ("a", "b", "positions"))
        if form.blocks:
            held = [np.stack([read.scales[at] for read in reads if read.scales]) for at in (0, 1)]
            scales = Scales(held[0], held[1], float_named(form.scale))
        return sparse_product(reads[0].lanes, a, b, c, positions, kind, form.k, scales)

    def _added(self, read: TensorOperands) -> Array:
        """Return the addend of the first product of a chain, (m, n)."""
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


def _once(found: list[Array]) -> Array:
    """Return the array of each part of D, concatenated, or one array if all are equal."""
    return found[0] if all(np.array_equal(found[0], each) for each in found) else np.concatenate(found)


def _signed(codes: Array, type: str, negated: bool) -> Array:
    """Return the codes, with their signs flipped if `negated`."""
    return codes ^ codes.dtype.type(float_named(type).sign_mask) if negated else codes
