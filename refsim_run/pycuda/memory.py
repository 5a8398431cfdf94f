"""Device memory and copies of PyCUDA, also of rows: Memcpy2D, without the driver's arrays."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim_run.memory import poison_host
from refsim_run.pycuda.context import LogicError, as_pycuda, needed
from refsim_run.seams import refusing, with_stream
from refsim_run.session import GpuSession, current

PYCUDA = "pycuda"


class PointerHolderBase:
    """An object with a device address; subclasses implement `get_pointer`."""

    def get_pointer(self) -> int:
        raise NotImplementedError

    def __int__(self) -> int:
        return int(self.get_pointer())

    __index__ = __int__

    def as_buffer(self, size: int, offset: int = 0) -> Any:
        raise current().unsupported("pycuda.driver.PointerHolderBase.as_buffer", "device memory is not the host's")


class DeviceAllocation(PointerHolderBase):
    """An allocation of device memory, freed with the object or by `free`."""

    def __init__(self, address: int, session: GpuSession) -> None:
        self._address, self._session, self.is_live = address, session, True

    def get_pointer(self) -> int:
        return self._address

    def free(self) -> None:
        """Free the memory; LogicError if it was freed already."""
        if not self.is_live:
            self._session.memory.not_free(self._address)
            raise LogicError("DeviceAllocation.free: the memory was freed already")
        self.is_live = False
        self._session.memory.free(self._address)

    def __del__(self) -> None:
        if getattr(self, "is_live", False):
            self.free()


class PooledDeviceAllocation(DeviceAllocation):
    """An allocation from a pool."""


def allocated(nbytes: int) -> tuple[int, GpuSession]:
    """Return the address of new device memory, and the session that owns it; LogicError for 0 bytes."""
    needed("cuMemAlloc")
    if int(nbytes) <= 0:
        raise LogicError("cuMemAlloc failed: invalid argument: an allocation has at least one byte")
    session = current()
    with as_pycuda("cuMemAlloc"):
        return session.memory.allocate(int(nbytes), PYCUDA), session


def mem_alloc(nbytes: int) -> DeviceAllocation:
    return DeviceAllocation(*allocated(nbytes))


def mem_alloc_like(array: Any) -> DeviceAllocation:
    return mem_alloc(array.nbytes)


def mem_alloc_pitch(width: int, height: int, access_size: int) -> tuple[DeviceAllocation, int]:
    """Return an allocation whose rows begin at multiples of 512 bytes, and the bytes from row to row."""
    pitch = -(-int(width) // 512) * 512
    return mem_alloc(pitch * int(height)), pitch


def host_bytes(call: str, array: Any, *, writable: bool = False) -> NDArray[np.uint8]:
    """Return the bytes of a host buffer without a copy; an array in Fortran order as it lies in memory."""
    is_array = isinstance(array, np.ndarray)
    if is_array and not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise LogicError(f"{call} failed: the host array is not contiguous")
    try:
        flat = array.ravel(order="K").view(np.uint8) if is_array else np.frombuffer(array, np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        raise LogicError(f"{call} failed: {type(array).__name__} is not a buffer of the host") from error
    if writable and not flat.flags.writeable:
        raise LogicError(f"{call} failed: the host buffer is read-only")
    return flat


def memcpy_htod(dest: Any, src: Any) -> None:
    needed("cuMemcpyHtoD")
    with as_pycuda("cuMemcpyHtoD"):
        current().memory.write(int(dest), host_bytes("cuMemcpyHtoD", src))


def memcpy_dtoh(dest: Any, src: Any) -> None:
    """Copy device memory to a writable host buffer, whose size decides how much."""
    needed("cuMemcpyDtoH")
    with as_pycuda("cuMemcpyDtoH"):
        flat = host_bytes("cuMemcpyDtoH", dest, writable=True)
        flat[:] = current().memory.read(int(src), flat.nbytes)


def memcpy_dtod(dest: Any, src: Any, size: int) -> None:
    needed("cuMemcpyDtoD")
    with as_pycuda("cuMemcpyDtoD"):
        current().memory.copy(int(dest), int(src), int(size))


def _filling(width: int) -> Callable[..., None]:
    """Return memset_d8, d16 or d32, which fills memory with items of `width` bytes."""
    driver_call = f"cuMemsetD{8 * width}"

    def fill(dest: Any, value: int, count: int) -> None:
        needed(driver_call)
        with as_pycuda(driver_call):
            pattern = (int(value) & (1 << 8 * width) - 1).to_bytes(width, "little")
            current().memory.fill(int(dest), pattern, int(count))

    fill.__name__ = f"memset_d{8 * width}"
    return fill


memset_d8, memset_d16, memset_d32 = map(_filling, (1, 2, 4))
memcpy_htod_async = with_stream(memcpy_htod)
memcpy_dtoh_async = with_stream(memcpy_dtoh)
memcpy_dtod_async = with_stream(memcpy_dtod)
memset_d8_async = with_stream(memset_d8)
memset_d16_async = with_stream(memset_d16)
memset_d32_async = with_stream(memset_d32)


def to_device(buffer: Any) -> DeviceAllocation:
    """Return a copy of a host buffer on the device."""
    content = memoryview(buffer).tobytes()
    made = mem_alloc(len(content))
    memcpy_htod(made, content)
    return made


def from_device(address: Any, shape: Any, dtype: Any, order: Any = "C") -> NDArray[Any]:
    made: NDArray[Any] = np.empty(shape, dtype, order)
    memcpy_dtoh(made, address)
    return made


def from_device_like(address: Any, other: NDArray[Any]) -> NDArray[Any]:
    made = np.empty_like(other)
    memcpy_dtoh(made, address)
    return made


def pagelocked_empty(shape: Any, dtype: Any, order: Any = "C", mem_flags: int = 0) -> NDArray[Any]:
    """Return an uninitialized array of the host; page-locked memory is ordinary memory here."""
    needed("cuMemHostAlloc")
    if mem_flags:
        raise current().unsupported("pycuda.driver.pagelocked_empty", "mapped memory (mem_flags)")
    made: NDArray[Any] = np.empty(shape, dtype, order)
    poison_host(host_bytes("cuMemHostAlloc", made))
    return made


def pagelocked_zeros(shape: Any, dtype: Any, order: Any = "C", mem_flags: int = 0) -> NDArray[Any]:
    made = pagelocked_empty(shape, dtype, order, mem_flags)
    made.fill(0)
    return made


def pagelocked_empty_like(array: NDArray[Any], mem_flags: int = 0) -> NDArray[Any]:
    return pagelocked_empty(array.shape, array.dtype, _order(array), mem_flags)


def pagelocked_zeros_like(array: NDArray[Any], mem_flags: int = 0) -> NDArray[Any]:
    return pagelocked_zeros(array.shape, array.dtype, _order(array), mem_flags)


def _order(array: NDArray[Any]) -> str:
    return "C" if array.flags.c_contiguous else "F"


class ArgumentHandler:
    """A host array that is copied around a launch."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.dev_alloc: DeviceAllocation | None = None

    def get_device_alloc(self) -> DeviceAllocation:
        if self.dev_alloc is None:
            self.dev_alloc = mem_alloc_like(self.array)
        return self.dev_alloc

    def pre_call(self, stream: Any) -> None:
        """Do nothing before the launch."""

    def post_call(self, stream: Any) -> None:
        """Do nothing after the launch."""


class In(ArgumentHandler):
    """An array that is copied to the device before the launch."""

    def pre_call(self, stream: Any) -> None:
        memcpy_htod(self.get_device_alloc(), self.array)


class Out(ArgumentHandler):
    """An array that is copied back after the launch."""

    def post_call(self, stream: Any) -> None:
        memcpy_dtoh(self.array, self.get_device_alloc())


class InOut(In, Out):
    """An array that is copied to the device before the launch and back after it."""


class Memcpy2D:
    """Copies `height` rows of `width_in_bytes`; rows begin `src_pitch` and `dst_pitch` bytes apart."""

    CALL = "cuMemcpy2D"

    def __init__(self) -> None:
        self.src_x_in_bytes = self.src_y = self.dst_x_in_bytes = self.dst_y = 0
        self.src_pitch = self.dst_pitch = self.width_in_bytes = self.height = 0
        self._from: Any = None
        self._to: Any = None

    def set_src_host(self, buffer: Any) -> None:
        self._from = host_bytes(self.CALL, buffer)

    def set_dst_host(self, buffer: Any) -> None:
        self._to = host_bytes(self.CALL, buffer, writable=True)

    def set_src_device(self, address: Any) -> None:
        self._from = int(address)

    def set_dst_device(self, address: Any) -> None:
        self._to = int(address)

    def __call__(self, aligned: Any = None) -> None:
        """Copy row by row; each row is checked against its allocation."""
        needed(self.CALL)
        if self._from is None or self._to is None:
            raise LogicError(f"{self.CALL} failed: invalid value: where from and where to is to be said")
        width = int(self.width_in_bytes)
        for row in range(int(self.height)):
            source = (self.src_y + row) * int(self.src_pitch or width) + self.src_x_in_bytes
            target = (self.dst_y + row) * int(self.dst_pitch or width) + self.dst_x_in_bytes
            with as_pycuda(self.CALL):
                self._row(source, target, width)

    def _row(self, source: int, target: int, width: int) -> None:
        memory = current().memory
        if isinstance(self._from, int) and isinstance(self._to, int):
            memory.copy(self._to + target, self._from + source, width)
        elif isinstance(self._from, int):
            _part(self._to, target, width)[:] = memory.read(self._from + source, width)
        elif isinstance(self._to, int):
            memory.write(self._to + target, np.ascontiguousarray(_part(self._from, source, width)))
        else:
            _part(self._to, target, width)[:] = _part(self._from, source, width)

    __getattr__ = refusing("pycuda.driver.Memcpy2D")


def _part(host: Any, at: int, width: int) -> Any:
    if at + width > host.nbytes:
        raise LogicError(f"cuMemcpy2D failed: invalid value: bytes {at} to {at + width} of {host.nbytes} of the host")
    return host[at : at + width]
