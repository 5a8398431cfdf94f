"""A real GPU through PyCUDA: it runs the PTX that the simulator runs, and watches every byte around the buffers.

Each buffer lies between guard bands of GUARD_BYTES. After every launch the bands must hold what was put there, and so
must every upload that was not declared writable. Outputs begin as POISON, so that an element nobody wrote shows.
PyCUDA is imported when a device is opened, and nowhere else in refsim.
"""

import hashlib
import importlib
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from refsim.errors import MISSING, RefsimError
from refsim.kernels import Buffer

GUARD_BYTES = 4096
POISON = bytes.fromhex("badc0de5")
"""The bytes of an output before the launch, repeated from its first byte: a 32-bit word reads 0xe50ddcba."""
STATIC_SHARED_LIMIT = 48 * 1024
COMPARISON_FAILED = 1

Bytes = NDArray[np.uint8]


class Driver(Protocol):
    """The few calls that a launcher makes; PyCUDA behind them on a GPU, plain memory in the tests."""

    def allocate(self, size: int) -> int: ...

    def free(self, address: int) -> None: ...

    def write(self, address: int, content: Bytes) -> None: ...

    def read(self, address: int, size: int) -> Bytes: ...

    def run(
        self, entry: str, grid: tuple[int, ...], block: tuple[int, ...], args: list[np.number[Any]], shared_bytes: int
    ) -> None:
        """Launches, waits, and raises RefsimError for any fault of the launch."""


@dataclass(frozen=True)
class Guarded:
    """One allocation: the buffer, the bytes around it, and what an upload must still hold after a launch."""

    buffer: Buffer
    base: int
    size: int
    contents: Bytes | None

    @property
    def sides(self) -> list[tuple[str, int, int]]:
        """(side, first address, bytes) of both bands: the one before ends, the one after begins, at the buffer."""
        end = self.buffer.address + self.buffer.count * self.buffer.dtype.itemsize
        return [
            ("before", self.base, self.buffer.address - self.base),
            ("after", end, self.base + self.size - end),
        ]


def guard_pattern(size: int) -> Bytes:
    """The bytes of a guard band: 77, 228, 123, ...: neighbours differ, so that a shifted copy shows."""
    return (np.arange(size, dtype=np.uint32) * 151 + 77).astype(np.uint8)


@dataclass
class CudaLauncher:
    """A Launcher over a Driver: buffers between guard bands, checked after every launch."""

    target: str
    driver: Driver
    allocations: list[Guarded] = field(default_factory=list)

    def upload(self, array: NDArray[Any], *, name: str, misalign_bytes: int = 0, writable: bool = False) -> Buffer:
        """Copies an array to the device; unless `writable`, a launch that changes it is an error."""
        flat = np.ascontiguousarray(array).reshape(-1)
        contents = flat.view(np.uint8).copy()
        kept = None if writable else contents
        return self._place(name, flat.dtype, flat.size, contents=contents, misalign=misalign_bytes, kept=kept)

    def output(self, count: int, dtype: Any, *, name: str, misalign_bytes: int = 0) -> Buffer:
        """`count` elements of POISON."""
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 0:
            raise RefsimError("bad-count", f"an output of {count!r} elements", where=f"buffer {name}")
        element = np.dtype(dtype)
        size = int(count) * element.itemsize
        poison = np.resize(np.frombuffer(POISON, np.uint8), size) if size else np.empty(0, np.uint8)
        return self._place(name, element, int(count), contents=poison, misalign=misalign_bytes, kept=None)

    def launch(
        self, entry: str, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any], shared_bytes: int = 0
    ) -> None:
        """Runs an entry to its end, then checks guards and uploads; faults are RefsimErrors that name the entry."""
        extents = [_extent("grid", grid), _extent("block", block)]
        if shared_bytes < 0:
            raise RefsimError("bad-shared-bytes", f"{shared_bytes} bytes of shared memory", where=f"launch of {entry}")
        scalars = [self._scalar(entry, number, value) for number, value in enumerate(args)]
        self.driver.run(entry, extents[0], extents[1], scalars, shared_bytes)
        for allocation in self.allocations:
            self._check_guards(entry, allocation)
            self._check_unchanged(entry, allocation)

    def read(self, buffer: Buffer) -> NDArray[Any]:
        """The buffer's elements as they are now, shape (count,)."""
        self._known(buffer)
        raw = self.driver.read(buffer.address, buffer.count * buffer.dtype.itemsize)
        return raw.view(buffer.dtype)

    def close(self) -> None:
        """Frees every buffer; the launcher is empty afterwards."""
        for allocation in self.allocations:
            self.driver.free(allocation.base)
        self.allocations.clear()

    def _place(
        self, name: str, dtype: np.dtype[Any], count: int, *, contents: Bytes, misalign: int, kept: Bytes | None
    ) -> Buffer:
        if dtype.hasobject or dtype.itemsize == 0:
            raise RefsimError("bad-dtype", f"{dtype} has no bytes to copy", where=f"buffer {name}")
        if not 0 <= misalign < GUARD_BYTES:
            raise RefsimError(
                "bad-misalignment", f"{misalign} bytes off", where=f"buffer {name}", rule=f"0 to {GUARD_BYTES - 1}"
            )
        size = 2 * GUARD_BYTES + misalign + contents.size
        base = self.driver.allocate(size)
        buffer = Buffer(name, base + GUARD_BYTES + misalign, count, dtype)
        allocation = Guarded(buffer, base, size, kept)
        self.allocations.append(allocation)
        for _, start, length in allocation.sides:
            self.driver.write(start, guard_pattern(length))
        if contents.size:
            self.driver.write(buffer.address, contents)
        return buffer

    def _known(self, buffer: Buffer) -> None:
        if not any(allocation.buffer is buffer for allocation in self.allocations):
            raise RefsimError("foreign-buffer", f"buffer {buffer.name!r} does not belong to this launcher")

    def _scalar(self, entry: str, number: int, value: Any) -> np.number[Any]:
        if isinstance(value, Buffer):
            self._known(value)
            return np.uint64(value.address)
        if not isinstance(value, np.number):
            raise RefsimError(
                "untyped-argument",
                f"argument {number} is {value!r}, whose width is unknown",
                where=f"launch of {entry}",
                rule="arguments are Buffers or NumPy scalars of the width of the .param",
                help=f"write np.uint32({value!r}), or the type that the kernel declares",
            )
        return value

    def _check_guards(self, entry: str, allocation: Guarded) -> None:
        for side, start, length in allocation.sides:
            found = self.driver.read(start, length)
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
                    exit_code=COMPARISON_FAILED,
                )

    def _check_unchanged(self, entry: str, allocation: Guarded) -> None:
        if allocation.contents is None or not allocation.contents.size:
            return
        found = self.driver.read(allocation.buffer.address, allocation.contents.size)
        wrong = np.flatnonzero(found != allocation.contents)
        if wrong.size:
            first = int(wrong[0])
            raise RefsimError(
                "input-changed",
                f"{entry} changed {wrong.size} bytes of upload {allocation.buffer.name!r}",
                where=f"first at byte {first}, element {first // allocation.buffer.dtype.itemsize}",
                rule="an upload is read-only",
                help="upload it with writable=True if the kernel is meant to write it",
                exit_code=COMPARISON_FAILED,
            )


def _extent(label: str, extent: tuple[int, ...]) -> tuple[int, int, int]:
    sizes = tuple(int(size) for size in extent) if isinstance(extent, tuple) else ()
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1:
        raise RefsimError("bad-extent", f"{label} {extent!r}", rule="one to three sizes from 1", help=f"{label}=(4,)")
    padded = (*sizes, 1, 1)
    return padded[0], padded[1], padded[2]


class PyCudaDriver:
    """Driver over PyCUDA, in a context that the caller made current."""

    def __init__(self, pycuda: ModuleType, module: Any, source: str) -> None:
        self.pycuda = pycuda
        self.module = module
        self.source = source
        self.broken = False
        self.allocations: dict[int, Any] = {}

    def allocate(self, size: int) -> int:
        try:
            allocation = self.pycuda.mem_alloc(size)
        except self.pycuda.MemoryError as fault:
            raise RefsimError(
                "device-memory", f"{size} bytes do not fit on the device", help="shrink the problem"
            ) from fault
        self.allocations[int(allocation)] = allocation
        return int(allocation)

    def free(self, address: int) -> None:
        allocation = self.allocations.pop(address)
        if not self.broken:
            allocation.free()

    def write(self, address: int, content: Bytes) -> None:
        if content.size:
            self.pycuda.memcpy_htod(address, content)

    def read(self, address: int, size: int) -> Bytes:
        content = np.empty(size, np.uint8)
        if size:
            self.pycuda.memcpy_dtoh(content, address)
        return content

    def run(
        self, entry: str, grid: tuple[int, ...], block: tuple[int, ...], args: list[np.number[Any]], shared_bytes: int
    ) -> None:
        where = f"{entry} of {self.source}, grid {grid}, block {block}"
        try:
            function = self.module.get_function(entry)
        except self.pycuda.LogicError as fault:
            raise RefsimError("no-entry", f"the module has no entry {entry!r}", where=self.source) from fault
        try:
            if shared_bytes > STATIC_SHARED_LIMIT:
                function.set_attribute(self.pycuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes)
            function(*args, grid=grid, block=block, shared=shared_bytes)
        except self.pycuda.Error as fault:
            raise RefsimError("launch-refused", f"the driver refused the launch: {fault}", where=where) from fault
        try:
            self.pycuda.Context.synchronize()
        except self.pycuda.Error as fault:
            self.broken = True
            raise RefsimError(
                "launch-failed",
                f"the kernel did not come to its end: {fault}",
                where=where,
                rule="the device's context is lost with it",
                help="run the case on the simulator, which names the instruction; restart before using this GPU again",
                exit_code=COMPARISON_FAILED,
            ) from fault


@dataclass
class CudaDevice:
    """One GPU of this machine, opened by open_device."""

    name: str
    target: str
    index: int
    pycuda: ModuleType
    device: Any
    built: dict[str, str] = field(default_factory=dict)
    context: Any = None
    modules: dict[str, Any] = field(default_factory=dict)

    def describe(self) -> dict[str, str]:
        """Device, driver and compute capability; after a launcher also PTX, cubin, flags and tools, with hashes."""
        major, minor = self.device.compute_capability()
        return {
            "device": self.device.name(),
            "driver": _driver_version(self.pycuda),
            "compute_capability": f"{major}.{minor}",
            "target": self.target,
            **self.built,
        }

    @contextmanager
    def launcher(self, kernel_file: Path) -> Iterator[CudaLauncher]:
        """Compiles a kernel file to PTX, assembles that PTX, loads it; the buffers live as long as the block."""
        compiling = importlib.import_module("refsim.device.compile")
        compiled = compiling.compile_ptx(kernel_file, self.target)
        cubin = compiling.assemble(compiled)
        self.built = {
            "kernel_file": Path(kernel_file).name,
            "source_sha256": compiled.source_sha256,
            "ptx_sha256": compiled.sha256,
            "ptx_flags": _words(compiled.flags),
            "compiler": compiled.compiler,
            "cubin_sha256": cubin.sha256,
            "cubin_flags": _words(cubin.flags),
            "assembler": cubin.assembler,
        }
        with self.loaded(cubin.image, str(kernel_file)) as launcher:
            yield launcher

    @contextmanager
    def loaded(self, image: bytes, source: str) -> Iterator[CudaLauncher]:
        """A launcher over a cubin that is already assembled; `source` names it in errors."""
        context = self._context()
        context.push()
        driver = None
        launcher = None
        try:
            driver = PyCudaDriver(self.pycuda, self._module(image, source), source)
            launcher = CudaLauncher(self.target, driver)
            yield launcher
        finally:
            if launcher is not None:
                launcher.close()
            broken = driver is not None and driver.broken
            del launcher, driver
            self.pycuda.Context.pop()
            if broken:
                self._forget()

    def _context(self) -> Any:
        """The primary context, retained once: making it anew takes longer than most campaigns' cases."""
        if self.context is None:
            self.context = self.device.retain_primary_context()
        return self.context

    def _module(self, image: bytes, source: str) -> Any:
        """The cubin, loaded once for as long as the context lives."""
        key = hashlib.sha256(image).hexdigest()
        if key not in self.modules:
            try:
                self.modules[key] = self.pycuda.module_from_buffer(image)
            except self.pycuda.Error as fault:
                raise RefsimError(
                    "module-refused", f"the driver does not load the cubin: {fault}", where=source,
                    help="compile for this GPU's compute capability",
                ) from fault  # fmt: skip
        return self.modules[key]

    def _forget(self) -> None:
        """A failed launch takes the context with it, and every module in it."""
        self.modules.clear()
        context, self.context = self.context, None
        context.detach()


def open_device(index: int = 0, target: str | None = None) -> CudaDevice:
    """Opens GPU `index`; the target is the GPU's own (sm_90a on an H200) unless one is named that it can run.

    Raises RefsimError (exit 4) where PyCUDA, the CUDA driver or the GPU is missing.
    """
    pycuda = load_pycuda()
    try:
        pycuda.init()
    except pycuda.Error as fault:
        raise RefsimError(
            "no-cuda-device", f"the CUDA driver finds no usable GPU: {fault}", help=SIMULATOR, exit_code=MISSING
        ) from fault
    count = pycuda.Device.count()
    if not 0 <= index < count:
        raise RefsimError(
            "no-cuda-device", f"there is no GPU {index}; this machine has {count}", help=SIMULATOR, exit_code=MISSING
        )
    device = pycuda.Device(index)
    return CudaDevice(f"cuda:{index}", _target_for(device.compute_capability(), target), index, pycuda, device)


SIMULATOR = "run on the simulated GPU, device sim"


def load_pycuda() -> ModuleType:
    """The module pycuda.driver; RefsimError says which of PyCUDA and the driver is missing."""
    try:
        importlib.import_module("pycuda")
    except ImportError as fault:
        raise RefsimError(
            "no-pycuda", "PyCUDA is not installed", help="pip install 'refsim[gpu]'", exit_code=MISSING
        ) from fault
    with warnings.catch_warnings():
        # Without a driver PyCUDA warns about a mismatch of headers and driver, which is not the cause.
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module("pycuda.driver")
        except ImportError as fault:
            raise RefsimError(
                "no-cuda-driver", f"this machine has no CUDA driver: {fault}", help=SIMULATOR, exit_code=MISSING
            ) from fault


def _target_for(capability: tuple[int, int], target: str | None) -> str:
    """The target of a GPU: (9, 0) gives sm_90a, (8, 6) sm_80; a named target must be one that this GPU runs."""
    known: list[str] = [row.name for row in importlib.import_module("refsim.device.compile").TARGETS]
    place = f"compute capability {capability[0]}.{capability[1]}"
    runnable = [name for name in known if _runs(name, capability)]
    if target is None and runnable:
        return runnable[-1]
    if target is not None and _runs(target, capability):
        return target
    raise RefsimError(
        "target-mismatch",
        f"a cubin for {target or ' or '.join(known)} does not run on {place}",
        rule="a cubin runs on its own major version and its minor or later; with a suffix a, on exactly its own",
        help=f"use {runnable[-1]}" if runnable else SIMULATOR,
    )


def _runs(target: str, capability: tuple[int, int]) -> bool:
    parts = re.fullmatch(r"sm_(\d+)(\d)(a?)", target)
    if parts is None:
        raise RefsimError("bad-target", f"{target!r} is not a target", help="write sm_90a")
    major, minor = int(parts[1]), int(parts[2])
    if parts[3]:
        return (major, minor) == capability
    return major == capability[0] and minor <= capability[1]


def _driver_version(pycuda: ModuleType) -> str:
    version = pycuda.get_driver_version()
    return f"CUDA {version // 1000}.{version % 1000 // 10}"


def _words(flags: str | Sequence[str]) -> str:
    return flags if isinstance(flags, str) else " ".join(flags)
