"""The launcher of a real GPU: buffers between guard bands, checked after every launch.

Each buffer lies between guard bands of GUARD_BYTES. After every launch, the bands and every read-only upload must be
unchanged. Outputs begin as POISON, so that an element without a write is visible.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import POINTER, Structure, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p, py_object
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.device import arguments
from refsim.device.driver import Bytes, Driver, DriverError, encoded_map
from refsim.device.modules import RunnableModule
from refsim.errors import Kind, RefsimError
from refsim.kernels import Buffer, Findings, Struct
from refsim.layouts.tma import TensorMap
from refsim.ptx.machine.launch_rules import Extents, LaunchRequest
from refsim.render.cards import Card
from refsim.sources import DLPACK

ARRAYS_SOURCE = DLPACK["DLDataTypeCode, DLManagedTensor"]
ON_CUDA = 2
_KINDS = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_NAMED = {
    "bfloat16": 4,
    "float8_e4m3": 8,
    "float8_e4m3b11fnuz": 9,
    "float8_e4m3fn": 10,
    "float8_e4m3fnuz": 11,
    "float8_e5m2": 12,
    "float8_e5m2fnuz": 13,
    "float8_e8m0fnu": 14,
}
"""DLDataTypeCode of a type, by NumPy's kind or by its name in ml_dtypes."""


class _Tensor(Structure):
    """DLTensor with the DLManagedTensor around it."""

    _fields_ = (
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
        ("manager", c_void_p),
        ("deleter", c_void_p),
    )


_DELETER = ctypes.CFUNCTYPE(None, c_void_p)
_held: dict[int, Any] = {}
"""Tensors with their shapes by address, kept until the consumer calls the deleter."""


def _release(address: int) -> None:
    _held.pop(address, None)


_RELEASE = _DELETER(_release)
_capsule = ctypes.PYFUNCTYPE(py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", ctypes.pythonapi))
_is_unused = ctypes.PYFUNCTYPE(c_int32, c_void_p, c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer = ctypes.PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


def _forget(capsule: int) -> None:
    """Release the tensor of a capsule that no consumer took; a consumer renames the capsule and calls the deleter."""
    if _is_unused(capsule, b"dltensor"):
        _release(_pointer(capsule, b"dltensor"))


_FORGET = _DELETER(_forget)


@dataclass(frozen=True)
class DeviceArray:
    """A buffer on a GPU, C-contiguous: `torch.from_dlpack(x)`, `cupy.asarray(x)`, `numba.cuda.as_cuda_array(x)`.

    The array is valid until the launcher is closed; nothing is copied. FP8 and bfloat16 (ml_dtypes) exist in DLPack
    only.
    """

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    device: int = 0

    def reshape(self, *shape: int) -> "DeviceArray":
        """Return the array in another shape; one extent may be -1."""
        known = -prod(shape) if -1 in shape else prod(shape)
        size = prod(self.shape)
        whole = tuple(size // known if extent == -1 and known else extent for extent in shape)
        if prod(whole) != size or min(whole, default=0) < 0:
            raise RefsimError("bad-shape", f"{size} elements do not make {shape}", "a device array")
        return DeviceArray(self.address, whole, self.dtype, self.device)

    def view(self, dtype: Any) -> "DeviceArray":
        """Return the bytes as elements of another type of equal width."""
        other = np.dtype(dtype)
        if other.itemsize != self.dtype.itemsize:
            raise RefsimError("bad-dtype", f"{self.dtype} is no {other}: another width", "a device array")
        return DeviceArray(self.address, self.shape, other, self.device)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype.kind not in _KINDS:
            raise AttributeError(
                f"{self.dtype} has no type in __cuda_array_interface__: DLPack has, or view it as integers"
            )
        data = (self.address if prod(self.shape) else 0, False)
        kept = {"shape": self.shape, "typestr": self.dtype.str, "data": data}
        return {**kept, "version": 3, "strides": None, "stream": None}

    def __dlpack_device__(self) -> tuple[int, int]:
        return ON_CUDA, self.device

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        """Return a capsule "dltensor". The memory is ready on every stream: the host has waited for all launches."""
        code = _NAMED.get(self.dtype.name, _KINDS.get(self.dtype.kind))
        if code is None:
            raise BufferError(f"{self.dtype} has no type in DLPack: view it as integers")
        shape = (c_int64 * max(len(self.shape), 1))(*self.shape)
        tensor = _Tensor(
            self.address, ON_CUDA, self.device, len(self.shape), code, 8 * self.dtype.itemsize, 1, shape, None, 0, None
        )
        tensor.deleter = ctypes.cast(_RELEASE, c_void_p).value
        address = ctypes.addressof(tensor)
        _held[address] = tensor, shape
        return _capsule(address, b"dltensor", ctypes.cast(_FORGET, c_void_p))


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
        flat = arguments.flat_of(name, array)
        arguments.check_buffer(name, flat.size, flat.dtype, misalign_bytes)
        contents = flat.view(np.uint8).copy()
        kept = None if writable else contents
        return self._place(name, flat.dtype, flat.size, contents=contents, misalign=misalign_bytes, kept=kept)

    def output(self, count: int, dtype: Any, *, name: str, misalign_bytes: int = 0) -> Buffer:
        """Allocate `count` elements of POISON."""
        element = arguments.dtype_of(name, dtype)
        arguments.check_buffer(name, count, element, misalign_bytes)
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
        asked = LaunchRequest(entry, grid, block, args, shared_bytes, cluster, cooperative, programmatic)
        request = arguments.with_values(asked, self._owns, self.encode)
        arguments.check_flags(request, warp_synchronous=warp_synchronous)
        if not programmatic:
            self.settle()
        self.module.run(request)
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
        arguments.check_mapped(tensor_map, (allocation.buffer for allocation in self.allocations))
        return encoded_map(tensor_map)

    def call(self, *args: Any) -> None:
        """Run the function with device arrays for Buffers, wait for its end, then check guards and uploads."""
        if self.function is None:
            raise arguments.no_call()
        self.settle()
        given = [self._array(each) if isinstance(each, Buffer) else each for each in args]
        try:
            self.function(*given)
        except RefsimError:
            raise
        except Exception as error:
            what = f"the call raised {type(error).__name__}: {error}"
            raise RefsimError("user-code-raised", what, f"call of {self.module.source}", kind=Kind.FAULT) from error
        finally:
            self.module.finish(f"call of {self.module.source}")
        self._check(self.module.source)

    def _check(self, entry: str) -> None:
        for allocation in self.allocations:
            self._check_guards(entry, allocation)
            self._check_unchanged(entry, allocation)

    def _array(self, buffer: Buffer) -> DeviceArray:
        arguments.check_owned(buffer, self._owns)
        return DeviceArray(buffer.address, (buffer.count,), buffer.dtype, self.driver.index)

    def read(self, buffer: Buffer) -> NDArray[Any]:
        """Return the buffer's current elements, shape (count,)."""
        arguments.check_owned(buffer, self._owns)
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
            what = f"{size} bytes do not fit on the device: {fault}"
            raise RefsimError("out-of-memory", what, help="use a smaller test case") from fault
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
            what = f"the driver does not copy: {fault}"
            rule = "a kernel's fault takes the context and all buffers with it" if self.module.broken else ""
            raise RefsimError("driver-refused", what, self.module.source, rule) from fault

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
            what = f"{entry} changed {wrong.size} bytes of upload {allocation.buffer.name!r}"
            where = f"first at byte {first}, element {first // allocation.buffer.dtype.itemsize}"
            rule = "an upload is read-only"
            help = "upload it with writable=True if the kernel is meant to write it"
            raise RefsimError("input-changed", what, where=where, rule=rule, help=help, kind=Kind.FAULT)
