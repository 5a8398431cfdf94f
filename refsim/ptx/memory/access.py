"""One port to memory: every access of an instruction is checked, shown to observers, and made here.

A whole access is checked (inside one region, aligned, writable) before a byte moves. Observers see it before and after.
They subscribe to a state space, so an access without observers costs nothing more.

How an instruction takes part in the memory model: weak or strong, and what it orders for which scope.

Sources: PTX ISA, memory consistency model, and the sections of ld, st, atom, red, membar, fence and
cp.reduce.async.bulk. A modifier counts at any place of the opcode: all orders that the assembler takes are equal."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.ptx.memory.arrays import Array, Bools
from refsim.ptx.memory.space import ITEM, AccessError, Addresses, Region, Space
from refsim.ptx.text.syntax import Statement

CTA, CLUSTER, GPU, SYS = range(4)
SCOPES = {"cta": CTA, "cluster": CLUSTER, "gpu": GPU, "gl": GPU, "sys": SYS}
_ATOMIC = frozenset({"atom", "red"})
_ACQUIRES, _RELEASES = frozenset({"acquire", "acq_rel", "sc"}), frozenset({"release", "acq_rel", "sc"})
_STRONG = frozenset({"relaxed", "volatile", "mmio"}) | _ACQUIRES | _RELEASES
_VECTORS = {"v2": 2, "v4": 4, "v8": 8}


@dataclass(frozen=True)
class Semantics:
    """The guarantees of one opcode. `scope` counts only if it is `strong`. A vector is `elements` accesses. `returns`
    is false for red, which writes and returns no value. `sequential` marks fence.sc and membar."""

    strong: bool = False
    acquires: bool = False
    releases: bool = False
    scope: int = SYS
    atomic: bool = False
    elements: int = 1
    returns: bool = True
    sequential: bool = False


WEAK = Semantics()


@lru_cache(maxsize=4096)
def semantics(opcode: str) -> Semantics:
    """Return the semantics of a load, a store, an atomic or a fence. volatile is relaxed.sys. atom and red are
    relaxed.gpu by default, fence is acq_rel by default, and membar is a fence.sc."""
    mnemonic, *words = opcode.split(".")
    named = frozenset(words)
    scope = next((SCOPES[word] for word in words if word in SCOPES), None)
    elements = next((_VECTORS[word] for word in words if word in _VECTORS), 1)
    if mnemonic in ("membar", "fence"):
        if "proxy" in named or "mbarrier_init" in named:
            return WEAK
        plain = mnemonic == "membar" or named.isdisjoint(_ACQUIRES | _RELEASES)
        acquires, releases = (plain or not named.isdisjoint(kind) for kind in (_ACQUIRES, _RELEASES))
        sequential = mnemonic == "membar" or "sc" in named
        return Semantics(True, acquires, releases, SYS if scope is None else scope, sequential=sequential)
    if mnemonic in _ATOMIC:
        acquires = mnemonic == "atom" and not named.isdisjoint(_ACQUIRES)
        return Semantics(
            True,
            acquires,
            not named.isdisjoint(_RELEASES),
            GPU if scope is None else scope,
            True,
            elements,
            mnemonic == "atom",
        )
    if mnemonic == "cp" and "reduce" in named:  # an update of each element that returns no value
        return Semantics(True, scope=GPU, atomic=True, returns=False)
    if named.isdisjoint(_STRONG):
        return Semantics(elements=elements) if elements > 1 else WEAK
    acquires, releases = "acquire" in named, "release" in named
    return Semantics(True, acquires, releases, SYS if scope is None else scope, False, elements)


Owner = NDArray[np.int64] | int
READ, WRITE, UPDATE, DISCARD = "read", "write", "update", "discard"
GENERIC, ASYNC, MAP_PROXY = "generic", "async", "tensormap"
"""The proxies of accesses: by threads, by copy engines and tensor cores, and by copy engines that read a tensor map.
Source: PTX ISA, proxies."""


class Threads(Protocol):
    """The lanes that make an access."""

    @property
    def ids(self) -> NDArray[np.int64]: ...
    @property
    def statement(self) -> Statement: ...
    @property
    def count(self) -> int: ...
    @property
    def semantics(self) -> Semantics: ...
    def select(self, mask: Bools) -> "Threads | None": ...
    def full(self, values: Array) -> Array: ...
    def fault(self, code: str, position: int, what: str, rule: str = "") -> RefsimError: ...


@dataclass(slots=True)
class Access:
    """One executed access: lane i touches `width` bytes from byte position at[i] of its owner's part of a space.

    `index` numbers items of that width in the flat bytes. `region` is the region that all lanes share, else None.
    `items` are the values that a write brings. In an update they are the values that it leaves; `wrote` tells which
    lanes write (None: all). `proxy` is the way to memory; no barrier alone orders two accesses by different proxies.
    """

    kind: str
    threads: Threads
    semantics: Semantics
    name: str
    space: Space
    at: Addresses
    index: Addresses
    width: int
    region: Region | None
    items: Array | None = None
    wrote: Bools | None = None
    proxy: str = GENERIC

    @property
    def statement(self) -> Statement:
        """Return the statement that makes the access."""
        return self.threads.statement

    def of(self, chosen: Bools) -> "Access":
        """Return the part of some lanes."""
        items = self.items if self.items is None or len(self.items) == 1 else self.items[chosen]
        wrote = None if self.wrote is None else self.wrote[chosen]
        threads = self.threads.select(chosen)
        assert threads is not None
        at, index = (self.threads.full(each)[chosen] for each in (self.at, self.index))
        where = self.name, self.space, at, index, self.width, None
        return Access(self.kind, threads, self.semantics, *where, items, wrote, self.proxy)

    def held(self) -> Array:
        """Return the items that memory holds there now."""
        return self.space.bytes.view(ITEM[self.width]).take(self.index)


class Observer(Protocol):
    """An observer of accesses; `before` may raise an error, and then no byte has moved."""

    def before(self, access: Access) -> None: ...
    def after(self, access: Access) -> None: ...


@dataclass
class Port:
    """The way to memory for all lanes of a machine. `unwritten` is called for a read of uninitialized bytes. `writes`
    counts writes that another thread may see: not atomics that leave memory as it was, such as polls."""

    observers: Mapping[str, Sequence[Observer]]
    unwritten: Callable[[Access, AccessError], None] | None
    writes: int = 0

    def load(self, threads: Threads, name: str, space: Space, at: Addresses, owner: Owner, width: int) -> Array:
        """Return one item of `width` bytes per lane."""
        access = self.plan(READ, threads, name, space, at, owner, width)
        watching = self.observers.get(name, ())
        for observer in watching:
            observer.before(access)
        items = access.held()
        for observer in watching:
            observer.after(access)
        return items

    def store(
        self, threads: Threads, name: str, space: Space, at: Addresses, owner: Owner, items: Array, width: int
    ) -> None:
        """Write one item per lane; if lanes hit one address, the last lane's item stays."""
        access = self.plan(WRITE, threads, name, space, at, owner, width)
        if items.dtype != ITEM[width]:
            items = items.view(ITEM[width])
        access.items = threads.full(items)
        self._write(access)

    def update(
        self,
        threads: Threads,
        name: str,
        space: Space,
        at: Addresses,
        owner: Owner,
        width: int,
        compute: Callable[[Array, Addresses], tuple[Array, Bools | None]],
    ) -> None:
        """Read, modify and write in one step. `compute` takes the item of each lane's place and the number of the
        place. It returns the item that each lane leaves there, in lane order, and which lanes write (None: all)."""
        access = self.plan(UPDATE, threads, name, space, at, owner, width)
        items, access.wrote = compute(access.held(), access.index)
        access.items = items
        self._write(access)

    def touch(
        self, threads: Threads, name: str, space: Space, at: Addresses, owner: Owner, width: int, proxy: str = GENERIC
    ) -> None:
        """Check a read whose value is taken later, and show it to the observers."""
        access = self.plan(READ, threads, name, space, at, owner, width, proxy)
        for observer in self.observers.get(name, ()):
            observer.before(access)
            observer.after(access)

    def plan(
        self,
        kind: str,
        threads: Threads,
        name: str,
        space: Space,
        at: Addresses,
        owner: Owner,
        width: int,
        proxy: str = GENERIC,
    ) -> Access:
        """Return a checked access that the caller makes and shows; raise the fault of the first wrong lane."""
        try:
            region = space.check(at, width, store=kind != READ)
            index = space.index(at, owner, width)
            access = Access(kind, threads, threads.semantics, name, space, at, index, width, region, proxy=proxy)
            if kind != WRITE and self.unwritten is not None and not space.is_initialised(region):
                space.check_initialised(at, index, width)
        except AccessError as error:
            if error.code == "uninitialised" and self.unwritten is not None:
                self.unwritten(access, error)
                return access
            raise threads.fault(error.code, error.lane, error.what) from None
        return access

    def discard(self, threads: Threads, name: str, space: Space, at: Addresses, width: int) -> None:
        """Show bytes whose contents end here as a change of all of them; write nothing."""
        region = space.region_at(int(at[0]))
        access = Access(DISCARD, threads, threads.semantics, name, space, at, space.index(at, 0, width), width, region)
        access.items = ~access.held().view(np.uint64)
        access.items = access.items.view(ITEM[width])
        for observer in self.observers.get(name, ()):
            observer.before(access)

    def _write(self, access: Access) -> None:
        """Make a checked write, between the calls of its observers."""
        watching = self.observers.get(access.name, ())
        for observer in watching:
            observer.before(access)
        assert access.items is not None
        if access.name != "local":
            self.writes += access.kind != UPDATE or access.held().tobytes() != access.items.tobytes()
        space, index, items = access.space, access.index, access.items
        if access.wrote is not None:
            index, items = index[access.wrote], items[access.wrote]
        space.put(access.region, index, items, access.width)
        for observer in watching:
            observer.after(access)
