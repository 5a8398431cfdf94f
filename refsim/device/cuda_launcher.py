"""The launcher of a real GPU: buffers between guard bands, checked after every launch.

Each buffer lies between guard bands of GUARD_BYTES. After every launch, the bands and every read-only upload must be
unchanged. Outputs begin as POISON, so that an element without a write is visible.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.device.arguments import (
    check_buffer,
    check_flags,
    check_mapped,
    check_owned,
    dtype_of,
    flat_of,
    launch_values,
    no_call,
)
from refsim.device.arrays import DeviceArray
from refsim.device.driver import Bytes, Driver, DriverError
from refsim.device.libcuda import encoded_map
from refsim.device.modules import LaunchRequest, RunnableModule
from refsim.errors import Kind, RefsimError
from refsim.kernels import Buffer, Findings, Struct
from refsim.layouts.tma import TensorMap
from refsim.ptx import Extents
from refsim.render.cards import Card

GUARD_BYTES = 4096
GPU_POISON = bytes.fromhex("badc0de5")
"""The bytes of an output before the launch, repeated from its first byte: a 32-bit element reads 0xe50ddcba."""


@dataclass(frozen=True)
class Guarded:
    """One allocation: the buffer, its guard bands, and for a read-only upload the contents after every launch."""

    buffer: Buffer
    base: int
    size: int
    contents: Bytes | None

    @property
    def sides(self) -> list[tuple[str, int, int]]:
        """Return (side, first address, bytes) of both bands, which touch the buffer at its begin and end."""
        end = self.buffer.address + self.buffer.count * self.buffer.dtype.itemsize
        return [("before", self.base, self.buffer.address - self.base), ("after", end, self.base + self.size - end)]


def guard_pattern(size: int) -> Bytes:
    """Return the bytes of a guard band: 77, 228, 123, ...; neighbors differ, so that a shifted copy is visible."""
    return (np.arange(size, dtype=np.uint32) * 151 + 77).astype(np.uint8)


@dataclass(repr=False)
class CudaLauncher(Card):
    """A Launcher over one module of a GPU, or over a Python function."""

    target: str
    driver: Driver
    module: RunnableModule
    function: Callable[..., Any] | None = None
    allocations: list[Guarded] = field(default_factory=list)
    unsettled: list[str] = field(default_factory=list)
    launched: set[str] = field(default_factory=set)

    def _repr_summary(self) -> str:
        return f"{self.target}, {len(self.allocations)} buffers"

    def upload(self, array: NDArray[Any], *, name: str, misalign_bytes: int = 0, writable: bool = False) -> Buffer:
        """Copy an array to the device; a launch that changes it is an error unless it is `writable`."""
        flat = flat_of(name, array)
        check_buffer(name, flat.size, flat.dtype, misalign_bytes)
        contents = flat.view(np.uint8).copy()
        kept = None if writable else contents
        return self._place(name, flat.dtype, flat.size, contents=contents, misalign=misalign_bytes, kept=kept)

    def output(self, count: int, dtype: Any, *, name: str, misalign_bytes: int = 0) -> Buffer:
        """Allocate `count` elements of POISON."""
        element = dtype_of(name, dtype)
        check_buffer(name, count, element, misalign_bytes)
        size = int(count) * element.itemsize
        poison = np.resize(np.frombuffer(GPU_POISON, np.uint8), size) if size else np.empty(0, np.uint8)
        return self._place(name, element, int(count), contents=poison, misalign=misalign_bytes, kept=None)

    def launch(
        self,
        entry: str,
        grid: Extents,
        block: Extents,
        args: Sequence[Any],
        shared_bytes: int = 0,
        *,
        cluster: Extents | None = None,
        cooperative: bool = False,
        programmatic: bool = False,
        warp_synchronous: bool = False,
    ) -> None:
        """Run an entry to its end, then check guards and uploads; faults are RefsimErrors that name the entry.

        A launch that lets the next launch begin early is completed and checked before any operation except a
        programmatic launch.
        """
        values = launch_values(entry, args, self._owns, self.encode)
        check_flags(entry, cooperative=cooperative, programmatic=programmatic, warp_synchronous=warp_synchronous)
        if not programmatic:
            self.settle()
        launch = LaunchRequest(entry, grid, block, values, shared_bytes, cluster, cooperative, programmatic)
        self.module.run(launch)
        self.unsettled.append(entry)
        self.launched.add(entry)
        if not self.module.lets_others_begin:
            self._check(self._taken())

    def settle(self) -> None:
        """Wait for launches that the next launch may overlap, and check guards and uploads."""
        if self.unsettled:
            entries = self._taken()
            self.module.finish(f"{entries} of {self.module.source}")
            self._check(entries)

    def _taken(self) -> str:
        """Return the names of unsettled entries and forget them."""
        entries, self.unsettled = ", ".join(self.unsettled), []
        return entries

    def encode(self, tensor_map: TensorMap) -> Struct:
        """Return the bytes of the driver's own encoder; raise RefsimError driver-refused for a map that it refuses."""
        check_mapped(tensor_map, (allocation.buffer for allocation in self.allocations))
        return encoded_map(tensor_map)

    def call(self, *args: Any) -> None:
        """Run the function with device arrays for Buffers, wait for its end, then check guards and uploads."""
        if self.function is None:
            raise no_call()
        self.settle()
        given = [self._array(each) if isinstance(each, Buffer) else each for each in args]
        try:
            self.function(*given)
        except RefsimError:
            raise
        except Exception as error:
            raise RefsimError(
                "user-code-raised",
                f"the call raised {type(error).__name__}: {error}",
                f"call of {self.module.source}",
                kind=Kind.FAULT,
            ) from error
        finally:
            self.module.finish(f"call of {self.module.source}")
        self._check(self.module.source)

    def _check(self, entry: str) -> None:
        for allocation in self.allocations:
            self._check_guards(entry, allocation)
            self._check_unchanged(entry, allocation)

    def _array(self, buffer: Buffer) -> DeviceArray:
        check_owned(buffer, self._owns)
        return DeviceArray(buffer.address, (buffer.count,), buffer.dtype, self.driver.index)

    def read(self, buffer: Buffer) -> NDArray[Any]:
        """Return the buffer's current elements, shape (count,)."""
        check_owned(buffer, self._owns)
        self.settle()
        size = buffer.count * buffer.dtype.itemsize
        return self._read(buffer.address, size).view(buffer.dtype)

    def findings(self) -> Findings:
        """Return the launched opcodes, and whether module variables may have changed; nothing else is observed."""
        changed = () if self.module.keeps_nothing else ("a variable of the module",)
        return Findings(changed_variables=changed, opcodes=self.module.opcodes(frozenset(self.launched)))

    def close(self) -> None:
        """Free every buffer; the launcher is empty afterwards."""
        for allocation in self.allocations:
            if not self.module.broken:
                self.driver.free(allocation.base)
        self.allocations.clear()

    def _place(
        self, name: str, dtype: np.dtype[Any], count: int, *, contents: Bytes, misalign: int, kept: Bytes | None
    ) -> Buffer:
        """Allocate a buffer between guard bands, fill both, and return it; `kept` is checked after launches."""
        self.settle()
        size = 2 * GUARD_BYTES + misalign + contents.size
        try:
            base = self.driver.allocate(size)
        except DriverError as fault:
            raise RefsimError(
                "out-of-memory", f"{size} bytes do not fit on the device: {fault}", help="use a smaller test case"
            ) from fault
        buffer = Buffer(name, base + GUARD_BYTES + misalign, count, dtype)
        allocation = Guarded(buffer, base, size, kept)
        self.allocations.append(allocation)
        for _, start, length in allocation.sides:
            self._write(start, guard_pattern(length))
        self._write(buffer.address, contents)
        return buffer

    def _write(self, address: int, content: Bytes) -> None:
        with self._copying():
            if content.size:
                self.driver.write(address, content)

    def _read(self, address: int, size: int) -> Bytes:
        with self._copying():
            return self.driver.read(address, size) if size else np.empty(0, np.uint8)

    @contextmanager
    def _copying(self) -> Iterator[None]:
        try:
            yield
        except DriverError as fault:
            raise RefsimError(
                "driver-refused",
                f"the driver does not copy: {fault}",
                self.module.source,
                "a kernel's fault takes the context and all buffers with it" if self.module.broken else "",
            ) from fault

    def _owns(self, buffer: Buffer) -> bool:
        return any(allocation.buffer is buffer for allocation in self.allocations)

    def _check_guards(self, entry: str, allocation: Guarded) -> None:
        """Raise RefsimError guard-violated, with the distance to the buffer, if a band has changed."""
        for side, start, length in allocation.sides:
            found = self._read(start, length)
            wrong = np.flatnonzero(found != guard_pattern(length))
            if wrong.size:
                # The band before ends at the buffer, the band after begins there: count from the buffer's edge.
                nearest = int(wrong[-1] if side == "before" else wrong[0])
                distance = length - nearest if side == "before" else nearest
                edge = "bytes before its first byte" if side == "before" else "bytes past its end"
                raise RefsimError(
                    "guard-violated",
                    f"{entry} wrote outside buffer {allocation.buffer.name!r}: {wrong.size} bytes, "
                    f"nearest {distance} {edge}",
                    where=f"{side} the buffer, bytes there now: {found[nearest : nearest + 16].tobytes().hex(' ')}",
                    rule="a kernel writes only inside its buffers",
                    help="check the bound of the last block, and whether a vector store passes the tail",
                    kind=Kind.FAULT,
                )

    def _check_unchanged(self, entry: str, allocation: Guarded) -> None:
        """Raise RefsimError input-changed if a read-only upload has changed."""
        if allocation.contents is None or not allocation.contents.size:
            return
        found = self._read(allocation.buffer.address, allocation.contents.size)
        wrong = np.flatnonzero(found != allocation.contents)
        if wrong.size:
            first = int(wrong[0])
            raise RefsimError(
                "input-changed",
                f"{entry} changed {wrong.size} bytes of upload {allocation.buffer.name!r}",
                where=f"first at byte {first}, element {first // allocation.buffer.dtype.itemsize}",
                rule="an upload is read-only",
                help="upload it with writable=True if the kernel is meant to write it",
                kind=Kind.FAULT,
            )
