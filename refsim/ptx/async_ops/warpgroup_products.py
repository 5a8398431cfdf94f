"""Products of warpgroups in flight: when they read operands, when sums are computed, when they are complete.

A policy decides when a product reads its operands and takes its place in the order of additions to D. The sums are
computed later, when a thread touches the registers of a product. Products that accumulate in one set of registers
become one chain, and the chains of several warpgroups become one call.
"""

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.formats import float_named
from refsim.ptx.async_ops.queue import Queue, ThreadGroups
from refsim.ptx.async_ops.torn_products import (
    Operands,
    OperandsAsked,
    Sides,
    TornNow,
    reads_of,
    see_torn,
    show_at_once,
    together,
    torn_now,
)
from refsim.ptx.async_ops.transfers import UnitHost
from refsim.ptx.checks.in_flight import CODES, OperandReads, RegisterWatch, Touch, groups_of
from refsim.ptx.checks.marks import Read
from refsim.ptx.execution.geometry import WARPGROUP, Ids
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.matrix_operands import (
    CORE_ROW,
    PRODUCT_ROWS,
    DescriptorError,
    chunk_places,
    codes_of,
    item_numbers,
    rows_of_chunks,
    shown,
)
from refsim.ptx.execution.matrix_product import MatrixProduct, ProductForm, Words
from refsim.ptx.execution.registers import check_written, get, mark_written, put
from refsim.ptx.isa.definedness.tracking import Key, tear
from refsim.ptx.isa.fragments import chained_product, matrices, packing_of, registers_of, sparse_product
from refsim.ptx.isa.products import array_type, wgmma_kind
from refsim.ptx.lowering.blocks import BasicBlock, Code
from refsim.ptx.memory.access import ASYNC
from refsim.ptx.memory.arrays import Array, Bools
from refsim.ptx.memory.space import ITEM
from refsim.ptx.text.syntax import Statement, place
from refsim.sources import PTX

MOST = 1 << 26  # bytes of operands that wait for their sums


@dataclass(frozen=True)
class OperandsRead:
    """A product of some warpgroups with the codes that it read of A (warpgroups, 64, k) and B (warpgroups, n, k)."""

    number: int
    lanes: Lanes
    groups: Ids
    product: MatrixProduct
    a: Array
    b: Array

    def part(self, chosen: Bools) -> "OperandsRead":
        """Return the product of the chosen warpgroups only."""
        lanes = Lanes(self.lanes.machine, self.lanes.ids[chosen.repeat(WARPGROUP)], self.lanes.statement)
        groups, product = self.groups[chosen], self.product.part(chosen)
        return replace(self, lanes=lanes, groups=groups, product=product, a=self.a[chosen], b=self.b[chosen])

    def continues(self, chain: "list[OperandsRead]") -> bool:
        """Return whether this product adds to the result of a chain and writes nothing else."""
        last = chain[-1]
        if self.product.positions is not None:
            return False
        same = last.product.form == self.product.form and last.product.d == self.product.d
        return same and bool(self.product.adds.all()) and np.array_equal(last.groups, self.groups)

    def is_apart(self, other: "OperandsRead") -> bool:
        """Return whether the two products write no common register."""
        return set(self.product.d).isdisjoint(other.product.d) or np.intersect1d(self.groups, other.groups).size == 0


def computed(reads: list[OperandsRead]) -> None:
    """Compute the sums of products, given in their order, and write them to the registers."""
    chains: list[list[OperandsRead]] = []
    for read in reads:
        own = next((chain for chain in reversed(chains) if not read.is_apart(chain[-1])), None)
        if own is not None and read.continues(own):
            own.append(read)
            continue
        if own is not None:
            _compute(chains)
            chains = []
        chains.append([read])
    _compute(chains)


def _compute(chains: list[list[OperandsRead]]) -> None:
    """Compute chains that write no common register."""
    alike: dict[Any, list[list[OperandsRead]]] = {}
    for chain in chains:
        form = replace(chain[0].product.form, negated=(False, False), majors=("K", "K"))  # done when operands were read
        alike.setdefault((form, len(chain)), []).append(chain)
    for stack in alike.values():
        _multiply(stack)


def _multiply(stack: list[list[OperandsRead]]) -> None:
    """Compute chains of one form and length by one call."""
    first = stack[0][0]
    form = first.product.form
    kind = wgmma_kind(form.a, form.b, form.d, form.satfinite)
    packing = packing_of(form.accumulator, False)
    a, b = (
        np.concatenate([np.concatenate([getattr(read, side) for read in chain], axis=2) for chain in stack])
        for side in "ab"
    )
    c = np.concatenate([_added(chain[0]) for chain in stack])
    if form.sparse:
        positions = np.concatenate([chain[0].product.positions for chain in stack])
        d = sparse_product(first.lanes, a, b, c.view(array_type(kind.d)), positions, kind, form.k)
    else:
        d = chained_product(first.lanes, a, b, c.view(array_type(kind.d)), kind, a.shape[2] // len(stack[0]), form.k)
    begin = 0
    for chain in stack:
        read, end = chain[0], begin + len(chain[0].groups)
        for index, bits in zip(read.product.d, registers_of(d[begin:end], packing, np.uint32), strict=True):
            put(read.lanes, index, bits)
        begin = end


def _added(read: OperandsRead) -> Array:
    """Return the addend of the first product of a chain: codes (warpgroups, 64, n)."""
    product, packing = read.product, packing_of(read.product.form.accumulator, False)
    if not product.adds.any():
        return np.zeros((len(read.groups), PRODUCT_ROWS, product.form.n), packing.element)
    held = matrices([read.lanes.full(get(read.lanes, index)) for index in product.d], packing, len(read.groups))
    if not product.adds.all():
        held[~product.adds] = 0
    return held


@dataclass(frozen=True)
class ProductInFlight:
    """One executed wgmma: an AsyncOp whose parts and units are warpgroups.

    `places` are the chunks of A and B as items of the flat shared memory (warpgroups, chunks), None for A in registers.
    `group` is the group of each warpgroup. `reads` are its reads for the race check, which become reads of its threads
    after a wait; `begun` is the number of the newest access before it. `torn` masks chunks that change meanwhile.
    """

    host: UnitHost
    unit: "TensorCores"
    number: int
    lanes: Lanes
    product: MatrixProduct
    places: tuple[Array | None, Array]
    group: NDArray[np.int64]
    reads: tuple[Read, ...] = ()
    begun: int = 0
    is_performed: bool = False
    torn: Sides = field(default_factory=dict)

    @property
    def units(self) -> NDArray[np.int64]:
        """Return the warpgroups."""
        return groups_of(self.lanes)

    def part(self, chosen: Bools) -> "ProductInFlight":
        """Return the product of the warpgroups where the mask `chosen` is true."""
        a, b = self.places
        lanes = Lanes(self.lanes.machine, self.lanes.ids[chosen.repeat(WARPGROUP)], self.lanes.statement)
        places, torn = (None if a is None else a[chosen], b[chosen]), {s: each[chosen] for s, each in self.torn.items()}
        product, group = self.product.part(chosen), self.group[chosen]
        return replace(self, lanes=lanes, product=product, places=places, group=group, torn=torn)

    def performed(self) -> "ProductInFlight":
        """Read the operands, leave the sums to the tensor cores and return the performed product."""
        self.unit.hold(OperandsRead(self.number, self.lanes, self.units, self.product, *self._codes()))
        return replace(self, is_performed=True)

    def complete(self) -> None:
        """Report the registers and the operands as free, after a wait that covers the product."""
        if self.unit.registers is not None:
            self.unit.registers.finished(self.units, self.number)
        if self.host.races is not None:
            self.host.races.products_read(self.reads, self.units, self.begun, self)

    def writes_to(self, start: int, width: int) -> Bools:
        return np.zeros(len(self.group), np.bool_)

    def items(self) -> Iterator[Array]:
        """Yield the chunks of shared memory that it reads, an array for each operand there."""
        return (items for items in self.places if items is not None)

    def rows_at(self, items: Array) -> dict[Key, Array]:
        """Return which rows of A and columns of B chunks hold, by warpgroup of the CTA."""
        found: dict[Key, Array] = {}
        for side, places in zip("ab", self.places, strict=True):
            here = np.zeros((0, 0), np.bool_) if places is None else np.isin(places, items)
            if side in self.torn:
                here &= ~self.torn[side]
            for group in np.flatnonzero(here.any(axis=1)).tolist():
                rows = rows_of_chunks(self.product.form, side, here.shape[1])[here[group]].any(axis=0)
                key = self.lanes.statement.line, int(self.units[group]) % self.host.geometry.warpgroups, side
                found[key] = found.get(key, np.zeros_like(rows)) | rows
        return found

    def _codes(self) -> tuple[Array, Array]:
        """Return A and B as matrices of codes, with the signs that the instruction negates."""
        form, memory = self.product.form, self.host.shared.bytes.view(ITEM[CORE_ROW])
        found = []
        for side, items, type, negated in zip("ab", self.places, (form.a, form.b), form.negated, strict=True):
            if items is None:
                held = [self.lanes.full(get(self.lanes, index)) for index in self.product.fragment]
                codes = matrices(held, packing_of(form.fragment, False), len(self.group))
            else:
                codes = codes_of(memory.take(items), form, side)
            found.append(codes ^ codes.dtype.type(float_named(type).sign_mask) if negated else codes)
        return found[0], found[1]


@dataclass
class TensorCores:
    """The products of all running warpgroups. `waiting` have read their operands and wait for their sums, which go to
    the registers `results`. `reads` and `registers` check for accesses to operands and registers that products use."""

    machine: UnitHost
    policy: str
    choice: np.random.Generator | None
    reads: OperandReads | None = None
    registers: RegisterWatch | None = None
    issued: int = 0
    waiting: list[OperandsRead] = field(default_factory=list)
    results: set[int] = field(default_factory=set)
    bytes_held: int = 0
    torn: TornNow | None = None

    def __post_init__(self) -> None:
        geometry = self.machine.geometry
        self.groups = ThreadGroups(geometry.count * geometry.warpgroups, "wgmma")
        self.queue: Queue[ProductInFlight] = Queue(self.policy, self.choice)
        if self.machine.code.has_products:
            off = self.machine.checks.off
            self.reads = None if "race" in off else OperandReads(self.machine, self)
            self.registers = None if set(CODES) <= set(off) else RegisterWatch(self.machine, self.machine.code.watched)

    # ---- requests of instruction implementations
    def fence(self, lanes: Lanes) -> None:
        """Order the threads' earlier register accesses before the products that follow."""
        if self.registers is not None:
            self.registers.fenced(groups_of(lanes))

    def multiply(self, lanes: Lanes, product: MatrixProduct) -> None:
        """Start a product of each warpgroup, and check its reads now."""
        self.issued += 1
        machine, lanes = self.machine, copy(lanes)  # the set goes on to other statements
        groups = groups_of(lanes)
        reads: list[Read] = []
        begun = 0 if machine.races is None else machine.races.history.now
        with nullcontext() if machine.races is None else machine.races.reads_held(reads):
            places, torn = self._read_operands(lanes, product)
        self._use_registers(lanes, product)
        if self.registers is not None:
            self.registers.begun(lanes, groups, product, self.issued)
        group = self.groups.current(groups)
        flight = ProductInFlight(
            machine, self, self.issued, lanes, product, places, group, tuple(reads), begun, torn=torn
        )
        if self.reads is not None:
            for side, items in zip("ab", places, strict=True):
                if items is not None:
                    self.reads.begun(items[~torn[side]] if side in torn else items, self.issued)
        self.queue.start(flight)

    def commit(self, lanes: Lanes) -> None:
        """Put all products since the last commit into one group."""
        self.groups.commit(groups_of(lanes))

    def wait(self, lanes: Lanes, pending: int) -> None:
        """Complete all but the `pending` newest groups of these warpgroups."""
        if self.queue.flying:
            groups = groups_of(lanes)
            self.groups.note_wait(groups, lanes.statement, pending)
            limit = self.groups.all_but(groups, pending)
            self.queue.complete(lambda flight: flight.group < limit[flight.units])

    def _read_operands(self, lanes: Lanes, product: MatrixProduct) -> tuple[tuple[Array | None, Array], Sides]:
        """Show the reads of A and B to the observers; return the chunks that will be read, and which may change."""
        found: list[Array | None] = []
        sides: dict[str, tuple[Array, Array | None]] = {}
        for side, words in zip("ab", (product.a, product.b), strict=True):
            if isinstance(words, tuple):
                found.append(None)
                continue
            try:
                places = chunk_places(words, product.form, side)
            except DescriptorError as error:
                self._show(lanes, sides, {})
                what = f"the descriptor of {side.upper()}, {int(words[0]):#x}: {error}"
                raise lanes.fault("invalid-operand", 0, what, str(PTX["wgmma, matrix descriptor format"])) from None
            sides[side] = places, shown(lanes, words, places.shape[1])
            found.append(item_numbers(lanes, places))
        assert found[1] is not None
        torn = {} if self.torn is None else self.torn.chunks
        self.torn = None
        if not show_at_once(self.machine, lambda: together(self.machine, lanes, reads_of(lanes, sides, torn))):
            if self.machine.tracking is None:
                torn = see_torn(self.machine, self._asked(lanes, product.form, sides))
            self._show(lanes, sides, torn)
        return (found[0], found[1]), torn

    def _asked(self, lanes: Lanes, form: ProductForm, sides: Operands) -> OperandsAsked:
        """Return the operands in shared memory of products of warpgroups."""
        leads, geometry = Lanes(self.machine, lanes.ids[::WARPGROUP], lanes.statement), self.machine.geometry
        return OperandsAsked(
            leads,
            (geometry.warpgroup[leads.ids] % geometry.warpgroups).tolist(),
            sides,
            lambda side, chunks: rows_of_chunks(form, side, chunks),
            lambda some, torn: together(self.machine, lanes, reads_of(lanes, some, torn)),
        )

    def torn_events(self, lanes: Lanes, words: Mapping[str, Words], form: ProductForm) -> dict[str, Array]:
        """Return the event of each row of A and column of B whose bytes change while a product that begins reads them,
        (warpgroups, rows); 0 for the others. The product that begins next excepts their chunks from its reads."""
        sides = {}
        for side, each in words.items():
            places = chunk_places(each, form, side)
            sides[side] = places, shown(lanes, each, places.shape[1])
        asked = self._asked(lanes, form, sides)
        self.torn = torn_now(self.machine, asked)
        return self.torn.events(asked.leads)

    def _show(self, lanes: Lanes, sides: Operands, torn: Sides) -> None:
        """Show the reads of chunks by lanes, in their order, without those that change."""
        for part, at in reads_of(lanes, sides, torn):
            space, owner = part.space("shared")
            self.machine.port.touch(part, "shared", space, at, owner, CORE_ROW, proxy=ASYNC)

    def _use_registers(self, lanes: Lanes, product: MatrixProduct) -> None:
        """Check that added D and A in registers are initialized; compute pending sums that A needs."""
        if not self.results.isdisjoint(product.fragment):
            self.settle()
        if self.machine.registers.unwritten:
            adding = lanes.select(product.adds.repeat(WARPGROUP))
            if adding is not None:
                check_written(adding, *product.d)
            check_written(lanes, *product.fragment)
            mark_written(lanes, *product.d)

    # ---- time
    def drift(self) -> None:
        """Let some products in flight read their operands, under the random policy."""
        if self.queue.flying:  # else no number is drawn, which would change the schedules of kernels without wgmma
            self.queue.drift()

    def hold(self, read: OperandsRead) -> None:
        """Keep a product that has read its operands; compute the sums at once if too many bytes are held."""
        self.waiting.append(read)
        self.results.update(read.product.d)
        self.bytes_held += read.a.nbytes + read.b.nbytes
        if self.bytes_held > MOST:
            self.settle()

    def before(self, block: BasicBlock, lanes: Lanes) -> None:
        """Check, and compute where needed, the products whose registers the statements of a block touch."""
        known = self.machine.code.touching
        if block.pc not in known:
            known[block.pc] = _touching(block, self.machine.code)
        registers, touches = known[block.pc]
        if not touches:
            return
        if self.registers is not None:
            self.registers.before(touches, lanes)
        moved = {source for touch in touches for _, sources in touch.moves for source in sources}
        if moved and self.queue.flying:  # a mov takes what the products leave
            groups = groups_of(lanes)
            self.queue.perform(lambda flight: np.isin(flight.units, groups) & (not moved.isdisjoint(flight.product.d)))
        if not self.results.isdisjoint(registers):
            self.settle()

    def settle(self) -> None:
        """Compute the sums of all products that have read their operands. Products after an older unread product of
        their warpgroup keep waiting."""
        oldest = np.full(self.machine.geometry.count * self.machine.geometry.warpgroups, self.issued + 1, np.int64)
        for flight in self.queue.flying:
            if not flight.is_performed:
                oldest[flight.units] = np.minimum(oldest[flight.units], flight.number)
        ready: list[OperandsRead] = []
        still: list[OperandsRead] = []
        for read in sorted(self.waiting, key=lambda read: read.number):
            is_next = read.number < oldest[read.groups]
            if is_next.any():
                ready.append(read if is_next.all() else read.part(is_next))
            if not is_next.all():
                still.append(read.part(~is_next) if is_next.any() else read)
        self.waiting = still
        self.results = {index for read in still for index in read.product.d}
        self.bytes_held = sum(read.a.nbytes + read.b.nbytes for read in still)
        computed(ready)

    # ---- text of findings
    @property
    def oldest(self) -> int | None:
        """Return the number of the oldest product in flight, or None."""
        return self.queue.flying[0].number if self.queue.flying else None

    def describe(self, number: int, group: int) -> str:
        """Return a sentence about the product with this number, and the wait that a warpgroup lacks for it."""
        for flight in self.queue.flying:
            if flight.number == number and group in flight.units:
                own = int(flight.group[flight.units == group][0])
                return f"{place(flight.lanes.statement)}, which is in flight: {self.groups.missing_wait(group, own)}"
        return "a wgmma in flight"

    def tear(self, items: Array, error: RefsimError, statement: Statement) -> None:
        """Make rows of D undefined where the access of `error` changes chunks that products in flight read."""
        for flight in self.queue.flying:
            if flight.rows_at(items):
                tear(self.machine, statement, flight, items, error)

    def reader_of(self, item: int) -> str | None:
        """Return a sentence about the product in flight that reads a chunk of the flat shared memory, or None."""
        for flight in self.queue.flying:
            for items in flight.items():
                if (there := (items == item).any(axis=1)).any():
                    return self.describe(flight.number, int(flight.units[int(np.argmax(there))]))
        return None


def _touching(block: BasicBlock, code: Code) -> tuple[frozenset[int], tuple[Touch, ...]]:
    """Return the registers of products that statements of a block touch, and these statements."""
    touches, changed, watched = [], set[int](), frozenset(code.watched)
    for step in block.everything():
        written = frozenset(() if step.bound.clause.keeps_registers else step.writes())
        own = tuple(sorted(watched & (written | frozenset(step.fetches()) - code.feeding)))
        if own:
            is_known = step.guard is not None and step.guard.register.index not in changed
            moves = tuple(move for move in code.moves(step) if watched.issuperset((move[0], *move[1])))
            fed = {to: source[0] for to, source in moves if code.feeding.issuperset(source)}
            touches.append(Touch(step.statement, own, written, step.guard if is_known else None, moves, fed))
        changed |= written
    return frozenset(index for touch in touches for index in touch.registers), tuple(touches)
