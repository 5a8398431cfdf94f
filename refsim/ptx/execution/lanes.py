"""The lanes that run together: their threads, and what an instruction may request from the machine for them.

lane = CTA x threads of a CTA + thread, CTAs and threads numbered with x fastest. A warp is 32 consecutive threads of
one CTA. A set of lanes is a sorted array. A set without gaps is a slice, so that registers are read without a copy.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.ptx.execution.context import Context
from refsim.ptx.execution.geometry import Ids, key_of
from refsim.ptx.execution.matrix_product import MatrixProduct, ProductForm
from refsim.ptx.findings.record import fault
from refsim.ptx.memory.access import WEAK, Access, Semantics, semantics
from refsim.ptx.memory.arrays import Array, Bools
from refsim.ptx.memory.space import ITEM, WINDOW_SIZE, WINDOWS, Addresses, Space, position_of, rank_bits, rank_of
from refsim.ptx.memory.tensor_map import TensorMemory
from refsim.ptx.text.syntax import NO_STATEMENT, Statement, location_of

_FEW = 1024  # up to so many lanes a copy is faster than a view


class Lanes:
    """A set of lanes at one instruction, with the machine they run on."""

    def __init__(
        self, machine: "Machine", ids: Ids, statement: Statement = NO_STATEMENT, owner: Ids | None = None
    ) -> None:
        """Create the set. `owner`: the CTA whose shared memory each lane addresses, if not its own; None otherwise."""
        self.machine = machine
        self.ids = ids
        self.owner = owner
        self.statement = statement
        self.pc = -1
        self.key = key_of(ids)
        self.is_full = len(ids) == machine.geometry.lanes

    @property
    def count(self) -> int:
        """Return the number of lanes in the set."""
        return len(self.ids)

    def select(self, mask: Bools) -> "Lanes | None":
        """Return the lanes where a mask (n,) or (1,) is true, or None if there are none."""
        held = mask.item() if len(mask) == 1 else np.count_nonzero(mask)
        if held == len(mask):
            return self
        if not held:
            return None
        return Lanes(self.machine, self.ids[mask], self.statement, None if self.owner is None else self.owner[mask])

    def each(self) -> "Iterator[tuple[Lanes, int]]":
        """Yield each lane as a set of its own, with its position in this set."""
        for at in range(self.count):
            yield Lanes(self.machine, self.ids[at : at + 1], self.statement), at

    def of(self, per_lane: Array) -> Array:
        """Return this set's part of an array over all lanes; an array of length 1 holds for all lanes."""
        return per_lane if len(per_lane) == 1 else per_lane[self.key]

    def spread(self, values: Array) -> Array:
        """Return values of this set in an array over all lanes; the other lanes hold zeros."""
        whole = np.zeros(self.machine.geometry.lanes, values.dtype)
        whole[self.key] = values
        return whole

    def full(self, values: Array) -> Array:
        """Return values (n,) or (1,) as an array with one value per lane of the set."""
        count = len(self.ids)
        if len(values) == count:
            return values
        return values.repeat(count) if count <= _FEW else np.broadcast_to(values, (count,))

    @property
    def members(self) -> NDArray[np.uint32]:
        """Return for each lane the lanes of its warp that are in the set, as a bit mask."""
        found: NDArray[np.uint32] = self.machine.warp_bits(self.ids)[self.warp].astype(np.uint32)
        return found

    @cached_property
    def in_whole_warps(self) -> bool:
        """Return whether the set consists of whole warps of 32 lanes each."""
        geometry = self.machine.geometry
        if self.is_full:
            return geometry.threads % 32 == 0
        if self.count % 32:
            return False
        ids = self.ids.reshape(-1, 32)
        first, last = ids[:, 0], ids[:, 31]
        return bool((geometry.laneid[last] - geometry.laneid[first] == 31).all() and (last - first == 31).all())

    @cached_property
    def in_whole_warpgroups(self) -> bool:
        """Return whether the set consists of whole warpgroups of four warps each."""
        return self.machine.geometry.are_warpgroups(self.ids)

    def arithmetic(self, *, is_settled: bool) -> str:
        """Return the arithmetic of matrix products; note the instruction if the chip lacks that arithmetic.
        `is_settled`: the arithmetic changes no result, and nothing is noted."""
        if self.machine.arithmetic != "silicon" and not is_settled and self.statement is not NO_STATEMENT:
            self.machine.findings.idealised.setdefault(self.statement.line, self.statement)
        return self.machine.arithmetic

    # ---- identity
    @property
    def cta(self) -> Ids:
        """Return the CTA of each lane of the set."""
        return self.machine.geometry.cta[self.key]

    @property
    def laneid(self) -> Ids:
        """Return the position of each lane of the set in its warp."""
        return self.machine.geometry.laneid[self.key]

    @property
    def warp(self) -> Ids:
        """Return the warp of each lane of the set."""
        return self.machine.geometry.warp[self.key]

    def fault(self, code: str, position: int, what: str, rule: str = "") -> RefsimError:
        """Return the error `code` for the lane at `position` of this set, with its statement and thread."""
        lane = int(self.ids[min(position, self.count - 1)])
        return fault(code, what, self.statement, self.machine.geometry.describe(lane) + self._calls(lane), rule)

    def _calls(self, lane: int) -> str:
        """Return the call chain of a lane in a body that several calls share, innermost call first. `, called at PTX
        line 40 (k.cu:7)`; empty in code that is not shared."""
        function, registers, found = self.machine.code.function, self.machine.registers, ""
        statement = self.statement
        while function.shared:
            body = function.body_of(statement)
            if body is None:
                break
            held = registers.arrays[registers.slots[body.came_from.index]]
            statement = body.calls[int(held[lane if len(held) > 1 else 0])]
            found += f", called at PTX line {statement.line}{location_of(statement)}"
        return found

    def emit(self, verb: str, meaning: Semantics = WEAK, payload: Any = None) -> None:
        """Emit an event of these lanes by their statement."""
        self.machine.emit(verb, self.ids, self.statement, meaning, payload)

    # ---- memory
    @property
    def semantics(self) -> Semantics:
        """Return how the current instruction takes part in the memory model."""
        return semantics(self.statement.opcode)

    def symbol(self, name: str, offset: int) -> NDArray[np.uint64]:
        """Return the address of a variable in its state space: (1,), or (n,) if each CTA of a cluster has its own."""
        address, geometry = self.machine.symbol(name, offset), self.machine.geometry
        if geometry.cluster_ctas > 1 and name in self.machine.in_shared:
            return address + rank_bits(geometry.lane_ranks[self.key])
        return address

    def space(self, name: str) -> tuple[Space, Ids | int]:
        """Return a state space and the owner of each lane in it (a CTA for shared, the lane itself for local)."""
        machine = self.machine
        match name:
            case "shared":
                return machine.shared, self.cta if self.owner is None else self.owner
            case "local":
                return machine.local, self.ids
            case "param":
                return machine.parameters, 0
            case _:
                return machine.memory.space, 0

    def load(self, space: str, addresses: Array, width: int) -> Array:
        """Read one item of `width` bytes per lane from byte addresses (n,) or (1,); generic addresses are resolved."""
        if space == "global":
            state = self.machine.memory.space
            return self.machine.port.load(
                self, space, state, addresses.astype(np.int64, copy=False) - state.origin, 0, width
            )
        parts = self.parts(space, addresses)
        if len(parts) == 1:
            return parts[0][0]._load(*parts[0][1:3], width)
        items: Array = np.empty(self.count, ITEM[width])
        for lanes, name, at, mask in parts:
            items[mask] = lanes._load(name, at, width)
        return items

    def _load(self, name: str, at: Addresses, width: int) -> Array:
        state, owner = self.space(name)
        if len(at) == 1 and state.stride:
            at = self.full(at)
        return self.machine.port.load(self, name, state, at, owner, width)

    def store(self, space: str, addresses: Array, items: Array, width: int) -> None:
        """Write one item of `width` bytes per lane."""
        for lanes, name, at, mask in self.parts(space, addresses):
            state, owner = lanes.space(name)
            part = items if mask is None or len(items) == 1 else items[mask]
            self.machine.port.store(lanes, name, state, lanes.full(at), owner, part, width)

    def update(
        self,
        space: str,
        addresses: Array,
        width: int,
        compute: Callable[[Any, Array, Addresses], tuple[Array, Bools | None]],
    ) -> None:
        """Read, modify and write one item per lane.

        `compute(chosen, held, place)` runs once for each state space that the addresses fall in; `chosen` selects its
        lanes (a mask or a slice). `Port.update` documents the other arguments and the result.
        """
        for lanes, name, at, mask in self.parts(space, addresses):
            state, owner = lanes.space(name)
            chosen = slice(None) if mask is None else mask
            self.machine.port.update(lanes, name, state, lanes.full(at), owner, width, partial(compute, chosen))

    def parts(self, space: str, addresses: Array) -> list[tuple["Lanes", str, Addresses, Any]]:
        """Return generic addresses by state space: tuples (lanes, space, positions, mask of the lanes or None for
        all)."""
        at = addresses.astype(np.int64, copy=False)
        if space in ("global", "const"):
            return [(self, "global", at - self.machine.memory.space.origin, None)]
        if space == "shared":
            return [(*self._within_cluster(at), None)]
        if space != "generic":
            return [(self, space, at, None)]
        windows = tuple(WINDOWS.items())
        masks = {name: (at >= start) & (at < start + WINDOW_SIZE) for name, start in windows}
        starts = dict(windows)
        if not any(mask.any() for mask in masks.values()):
            return self.parts("global", at)
        masks["global"] = ~np.logical_or.reduce(list(masks.values()))
        starts["global"] = self.machine.memory.space.base
        found = []
        for name, mask in masks.items():
            chosen = self.full(mask)
            lanes = self.select(chosen)
            if lanes is not None:
                place, rest = self.full(at)[chosen] - starts[name], None if chosen.all() else chosen
                found.append((*(lanes._within_cluster(place) if name == "shared" else (lanes, name, place)), rest))
        return found

    def _within_cluster(self, at: Addresses) -> tuple["Lanes", str, Addresses]:
        """Return shared addresses as (lanes, "shared", positions in the memory of the addressed CTA). Only
        `.shared::cluster` and generic accesses may reach another CTA."""
        machine, geometry = self.machine, self.machine.geometry
        if geometry.cluster_ctas == 1:
            return self, "shared", at
        rank, own, position = rank_of(at), geometry.lane_ranks[self.key], position_of(at)
        if (remote := rank != own).any():
            owner = self.cta - own + rank
            self._check_remote(remote, self.full(rank), owner)
            return Lanes(machine, self.ids, self.statement, owner), "shared", self.full(position)
        return self, "shared", position

    def _check_remote(self, remote: Bools, rank: Ids, owner: Ids) -> None:
        """Raise a fault unless the instruction may access another CTA, a running one of this cluster."""
        machine, geometry = self.machine, self.machine.geometry
        names_shared = any(word.startswith("shared") for word in self.statement.opcode.split("."))
        if names_shared and "shared::cluster" not in self.statement.opcode:
            where = int(np.argmax(remote))
            what = f"the address lies in the shared memory of rank {int(rank[where])} of the cluster"
            raise self.fault("out-of-bounds", where, what, "PTX ISA, state spaces: .shared alone is .shared::cta")
        if (beyond := rank >= geometry.cluster_ctas).any():
            where = int(np.argmax(beyond))
            what = f"shared memory of rank {int(rank[where])} of a cluster of {geometry.cluster_ctas}"
            raise self.fault("out-of-bounds", where, what)
        there = np.asarray(machine.alive.reshape(geometry.count, -1).any(axis=1))
        if (gone := ~there[owner]).any():
            where = int(np.argmax(gone))
            what = f"shared memory of rank {int(rank[where])} of the cluster, all of whose threads have exited"
            rule = (
                "a block must not exit while others of its cluster use its shared memory: meet at barrier.cluster first"
            )
            raise self.fault("out-of-bounds", where, what, rule)


ALL_LANES = 0xFFFFFFFF


def groups(lanes: Lanes, mask: Array | None) -> NDArray[np.int64] | None:
    """Return a number for each lane, equal for lanes of a warp that meet under one mask; None if whole warps meet.
    mask: the member mask of each lane or of all lanes; None if an instruction needs the whole warp. A lane that its mask
    leaves out meets nobody."""
    if mask is None or (len(mask) == 1 and int(mask[0]) == ALL_LANES):
        return None
    alone = is_left_out(lanes, mask)
    if len(mask) == 1 and lanes.in_whole_warps and not alone.any():
        return None
    return lanes.warp << 32 | np.where(alone, np.int64(1) << lanes.laneid, lanes.full(mask).astype(np.int64))


def is_left_out(lanes: Lanes, mask: Array) -> Bools:
    """Return which lanes their member masks do not name."""
    return np.asarray((lanes.full(mask).astype(np.int64) >> lanes.laneid) & 1 == 0)


# ---- the machine, as instruction implementations see it. Where arguments are left open here, the part itself lists them.
class Barriers(Protocol):
    """The named barriers of every CTA."""

    def arrive(self, lanes: Lanes, *given: Any, **more: Any) -> None: ...
    def waiting(self) -> list[tuple[int, Ids]]: ...
    def question(self, lane: int) -> str: ...


class LaunchOrder(Protocol):
    """The position of the launch between its predecessor and its successor."""

    def wait(self, lanes: Lanes) -> None: ...
    def let_others_begin(self, lanes: Lanes) -> None: ...


class RegisterPool(Protocol):
    """The registers of every CTA."""

    def change(self, lanes: Lanes, count: int, *, grows: bool) -> None: ...
    def waiting(self) -> list[tuple[int, Ids]]: ...
    def question(self, lane: int) -> str: ...


class Copies(Protocol):
    """The copies in flight; `issued` counts the instructions that started any."""

    issued: int
    counted: NDArray[np.int64]

    def issue(self, lanes: Lanes, to: Array, source: Array, size: int, given: Array) -> None: ...
    def commit(self, lanes: Lanes) -> None: ...
    def wait(self, lanes: Lanes, pending: int) -> None: ...
    def land(self, ids: Ids, issued: int) -> None: ...
    def count_on(self, lanes: Lanes) -> None: ...
    def are_flying(self, ids: Ids, issued: int) -> bool: ...
    def describe(self, start: int, width: int, reader: int) -> str: ...


class Arrivals(Protocol):
    """The threads that arrived at mbarriers."""

    def never_executed(self) -> list[Statement]: ...


class Mbarriers(Protocol):
    """The barriers in shared memory. `live`: those that are initialized, by their bytes in the flat shared memory."""

    @property
    def arrivals(self) -> Arrivals: ...
    @property
    def live(self) -> Mapping[int, Any]: ...
    def before(self, access: Access) -> None: ...
    def question(self, lane: int) -> str: ...
    def missing(self, lane: int) -> list[tuple[Ids, Statement]]: ...
    def init(self, lanes: Lanes, space: str, addresses: Array, count: Array) -> None: ...
    def invalidate(self, lanes: Lanes, space: str, addresses: Array) -> None: ...
    def arrive(self, lanes: Lanes, *given: Any, **more: Any) -> Array: ...
    def change_transactions(self, lanes: Lanes, space: str, addresses: Array, amount: Array, sign: int) -> None: ...
    def test(self, lanes: Lanes, *given: Any, **more: Any) -> Array: ...
    def arrive_after_copies(self, lanes: Lanes, space: str, addresses: Array, *, increments: bool) -> None: ...


class TensorCores(Protocol):
    """The units that multiply for warpgroups. `describe` gives the steps that a product's group still lacks."""

    def describe(self, number: int, group: int) -> str: ...
    def settle(self) -> None: ...
    def fence(self, lanes: Lanes) -> None: ...
    def multiply(self, lanes: Lanes, product: MatrixProduct) -> None: ...
    def commit(self, lanes: Lanes) -> None: ...
    def wait(self, lanes: Lanes, pending: int) -> None: ...
    def torn_events(
        self, lanes: Lanes, words: Mapping[str, NDArray[np.uint64]], form: ProductForm
    ) -> Mapping[str, NDArray[np.int32]]: ...


class ClusterBarrier(Protocol):
    """The barrier of every cluster. `waiting` lists (pc, lanes); `question` describes what a lane waits for."""

    def arrive(self, lanes: Any, *, releases: bool) -> None: ...
    def wait(self, lanes: Any) -> None: ...
    def waiting(self) -> list[tuple[int, Ids]]: ...
    def question(self, lane: int) -> str: ...


class CopyEngine(Protocol):
    """The unit that copies runs (`run`) and boxes (`box`) of bytes for threads, and stores of registers (`send`).

    `look` and `hint` check the operands of prefetches. `land` completes transfers. `describe` gives the transfer to
    some bytes of shared memory and the wait that it needs.
    """

    refused: set[int]

    def respond(
        self, one: "Lanes", to: int, barrier: int, response: bytes, mask: int | None, *, failed: bool
    ) -> None: ...
    def run(self, lanes: Lanes, *given: Any, **more: Any) -> None: ...
    def box(self, lanes: Lanes, *given: Any, **more: Any) -> None: ...
    def send(self, lanes: Any, to: Array, words: Array, barrier: Array, update: Any = None) -> None: ...
    def look(self, lanes: Lanes, *given: Any, **more: Any) -> None: ...
    def map_changes(self, lanes: Any, space: str, address: int) -> None: ...
    def hint(self, lanes: Any, address: Array, amount: Array) -> None: ...
    def commit(self, lanes: Any) -> None: ...
    def wait(self, lanes: Any, pending: int, *, read: bool) -> None: ...
    def land(self, transfers: Any) -> dict[int, int]: ...
    def describe(self, start: int, width: int) -> str: ...


class TensorColumns(Protocol):
    """Warps that wait for columns of tensor memory."""

    def ask(self, asked: Any) -> None: ...
    def release(self) -> None: ...
    def waiting(self) -> list[tuple[int, Ids]]: ...
    def question(self, lane: int) -> str: ...


class TensorPipe(Protocol):
    """Tensor memory, and the unit that multiplies in it. `demand` raises a finding if an access conflicts with
    operations in flight; `moved` and `waited` count a warp's loads and stores."""

    @property
    def memory(self) -> TensorMemory: ...
    @property
    def words(self) -> Array: ...
    def holds(self, lanes: Any, first: int, columns: int) -> None: ...
    def fenced(self, lanes: Any, *, is_before: bool) -> None: ...
    def demand(self, lanes: Any, box: Any, *, writes: bool) -> None: ...
    def moved(self, lanes: Any, boxes: Any, *, is_load: bool) -> None: ...
    def waited(self, lanes: Any, *, is_load: bool) -> None: ...
    def copy(self, one: Any, asked: Any) -> None: ...
    def move_down(self, one: Any, address: int, ctas: int) -> None: ...
    def multiply(self, one: Any, asked: Any) -> None: ...
    def commit(self, lanes: Any, space: str, addresses: Array, mask: Array | None) -> None: ...


class Machine(Context, Protocol):
    """The machine that runs lanes: their context, and the operations for a set of lanes."""

    @property
    def barriers(self) -> Barriers: ...
    @property
    def cluster_barrier(self) -> ClusterBarrier: ...
    @property
    def register_pool(self) -> RegisterPool: ...
    @property
    def tensor_columns(self) -> TensorColumns: ...
    @property
    def launches(self) -> LaunchOrder: ...
    @property
    def copies(self) -> Copies: ...
    @property
    def mbarriers(self) -> Mbarriers: ...
    @property
    def tensor_cores(self) -> TensorCores: ...
    @property
    def tensor_pipe(self) -> TensorPipe: ...
    @property
    def engine(self) -> CopyEngine: ...
    def special(self, lanes: Lanes, name: str) -> Array: ...
    def branch(self, lanes: Lanes, target: int) -> None: ...
