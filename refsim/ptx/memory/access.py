"""One port to memory: every access of an instruction is checked, shown to observers, and made here.

An access is checked whole (inside one region, aligned, writable) before a byte moves. Observers see it before and after;
they subscribe to a state space, so that an access nobody watches costs nothing more.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.ptx.memory.semantics import Semantics
from refsim.ptx.memory.space import ITEM, AccessError, Addresses, Region, Space
from refsim.ptx.text.syntax import Statement

Array = NDArray[Any]
Owner = NDArray[np.int64] | int
READ, WRITE, UPDATE, DISCARD = "read", "write", "update", "discard"
GENERIC, ASYNC, MAP_PROXY = "generic", "async", "tensormap"
"""The proxies that memory is accessed through: by threads, by copy engines and tensor cores, and by copy engines that read a
tensor map (PTX ISA, proxies)."""


class Threads(Protocol):
    """The lanes that make an access."""

    @property
    def ids(self) -> NDArray[np.int64]: ...
    @property
    def statement(self) -> Statement | None: ...
    @property
    def count(self) -> int: ...
    @property
    def semantics(self) -> Semantics: ...
    def select(self, mask: NDArray[np.bool_]) -> "Threads | None": ...
    def full(self, values: Array) -> Array: ...
    def fault(self, code: str, position: int, what: str, rule: str = "") -> RefsimError: ...


@dataclass(slots=True)
class Access:
    """One executed access: lane i touches `width` bytes from byte position at[i] of its owner's part of a space.

    `index` numbers items of that width in the flat bytes, `region` is the one that all lanes share, if they do. `items`
    is what a write brings; in an update, what it leaves where `wrote` (None: everywhere) says that it wrote. `proxy` is
    the way to memory that it takes: no barrier alone orders two accesses of different ones.
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
    wrote: NDArray[np.bool_] | None = None
    proxy: str = GENERIC

    @property
    def statement(self) -> Statement:
        statement = self.threads.statement
        assert statement is not None
        return statement

    def of(self, chosen: NDArray[np.bool_]) -> "Access":
        """The part of some lanes."""
        items = self.items if self.items is None or len(self.items) == 1 else self.items[chosen]
        wrote = None if self.wrote is None else self.wrote[chosen]
        threads = self.threads.select(chosen)
        assert threads is not None
        at, index = (self.threads.full(each)[chosen] for each in (self.at, self.index))
        return Access(
            self.kind,
            threads,
            self.semantics,
            self.name,
            self.space,
            at,
            index,
            self.width,
            None,
            items,
            wrote,
            self.proxy,
        )

    def held(self) -> Array:
        """What memory holds there now."""
        return self.space.bytes.view(ITEM[self.width]).take(self.index)


class Observer(Protocol):
    """Whoever wants to see accesses; `before` may raise, and then no byte has moved."""

    def before(self, access: Access) -> None: ...
    def after(self, access: Access) -> None: ...


@dataclass
class Port:
    """The way to memory for all lanes of a machine. `unwritten` decides about a read of bytes that nobody wrote; `writes`
    counts those that another thread may see."""

    observers: Mapping[str, Sequence[Observer]]
    unwritten: Callable[[Access, AccessError], None] | None
    writes: int = 0

    def load(self, threads: Threads, name: str, space: Space, at: Addresses, owner: Owner, width: int) -> Array:
        """One item of `width` bytes per lane."""
        access = self._access(READ, threads, name, space, at, owner, width)
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
        """Write one item per lane; lanes that hit the same address: the last lane stays."""
        access = self._access(WRITE, threads, name, space, at, owner, width)
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
        compute: Callable[[Array, Addresses], tuple[Array, NDArray[np.bool_] | None]],
    ) -> None:
        """Read-modify-write in one step: `compute` gets what each lane's place holds and the number of that place, and
        gives what each lane leaves there in lane order, and which lanes write (None: all)."""
        access = self._access(UPDATE, threads, name, space, at, owner, width)
        items, access.wrote = compute(access.held(), access.index)
        access.items = items
        self._write(access)

    def touch(
        self,
        threads: Threads,
        name: str,
        space: Space,
        at: Addresses,
        owner: Owner,
        width: int,
        *,
        proxy: str = GENERIC,
    ) -> None:
        """A read whose value somebody takes later: checked, and shown to the observers."""
        access = self._access(READ, threads, name, space, at, owner, width, proxy)
        for observer in self.observers.get(name, ()):
            observer.before(access)
            observer.after(access)

    def intend(
        self,
        threads: Threads,
        name: str,
        space: Space,
        at: Addresses,
        owner: Owner,
        width: int,
        *,
        proxy: str = GENERIC,
    ) -> Access:
        """A write that somebody will make later: checked, and shown to nobody."""
        return self._access(WRITE, threads, name, space, at, owner, width, proxy)

    def plan(
        self,
        kind: str,
        threads: Threads,
        name: str,
        space: Space,
        at: Addresses,
        owner: Owner,
        width: int,
        *,
        proxy: str,
    ) -> Access:
        """An access that is made and shown by somebody else: checked."""
        return self._access(kind, threads, name, space, at, owner, width, proxy)

    def discard(self, threads: Threads, name: str, space: Space, at: Addresses, width: int) -> None:
        """Bytes whose contents end here, whatever they are: shown as a change of all of them, and nothing is written."""
        region = space.region_at(int(at[0]))
        access = Access(DISCARD, threads, threads.semantics, name, space, at, space.index(at, 0, width), width, region)
        access.items = ~access.held().view(np.uint64)
        access.items = access.items.view(ITEM[width])
        for observer in self.observers.get(name, ()):
            observer.before(access)

    def _access(
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

    def _write(self, access: Access) -> None:
        watching = self.observers.get(access.name, ())
        for observer in watching:
            observer.before(access)
        assert access.items is not None
        if access.name != "local":
            self.writes += access.wrote is None or bool(access.wrote.any())
        space, index, items = access.space, access.index, access.items
        if access.wrote is not None:
            index, items = index[access.wrote], items[access.wrote]
        space.put(access.region, index, items, access.width)
        for observer in watching:
            observer.after(access)
