"""A real GPU: it runs the PTX that the simulator runs, and watches every byte around the buffers.

Each buffer lies between guard bands of GUARD_BYTES. After every launch the bands must hold what was put there, and so
must every upload that was not declared writable. Outputs begin as POISON, so that an element nobody wrote shows.
The driver is reached through PyCUDA or through cuda.bindings (`driver.py`), imported when a device is opened.
"""

import hashlib
import importlib
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.device.arguments import check_buffer, check_owned, launch_values
from refsim.device.driver import SIMULATOR, Bytes, Driver, DriverError, GpuFacts, no_gpu
from refsim.device.driver_bindings import open_bindings
from refsim.device.driver_pycuda import open_pycuda
from refsim.device.modules import LoadedModule
from refsim.errors import Kind, RefsimError, unknown
from refsim.kernels import Buffer, Findings, required_file
from refsim.ptx import Extents
from refsim.render.cards import Card

GUARD_BYTES = 4096
POISON = bytes.fromhex("badc0de5")
"""The bytes of an output before the launch, repeated from its first byte: a 32-bit word reads 0xe50ddcba."""


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
    """A Launcher over one module of a GPU: buffers between guard bands, checked after every launch."""

    target: str
    driver: Driver
    module: LoadedModule
    allocations: list[Guarded] = field(default_factory=list)

    def upload(self, array: NDArray[Any], *, name: str, misalign_bytes: int = 0, writable: bool = False) -> Buffer:
        """Copies an array to the device; unless `writable`, a launch that changes it is an error."""
        flat = np.ascontiguousarray(array).reshape(-1)
        check_buffer(name, flat.size, flat.dtype, misalign_bytes)
        contents = flat.view(np.uint8).copy()
        kept = None if writable else contents
        return self._place(name, flat.dtype, flat.size, contents=contents, misalign=misalign_bytes, kept=kept)

    def output(self, count: int, dtype: Any, *, name: str, misalign_bytes: int = 0) -> Buffer:
        """`count` elements of POISON."""
        element = np.dtype(dtype)
        check_buffer(name, count, element, misalign_bytes)
        size = int(count) * element.itemsize
        poison = np.resize(np.frombuffer(POISON, np.uint8), size) if size else np.empty(0, np.uint8)
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
    ) -> None:
        """Runs an entry to its end, then checks guards and uploads; faults are RefsimErrors that name the entry."""
        values = launch_values(entry, args, self._owns)
        self.module.run(entry, grid, block, values, shared_bytes, cluster, cooperative)
        for allocation in self.allocations:
            self._check_guards(entry, allocation)
            self._check_unchanged(entry, allocation)

    def read(self, buffer: Buffer) -> NDArray[Any]:
        """The buffer's elements as they are now, shape (count,)."""
        check_owned(buffer, self._owns)
        size = buffer.count * buffer.dtype.itemsize
        raw = self._read(buffer.address, size)
        return raw.view(buffer.dtype)

    def findings(self) -> Findings:
        """Nothing: a GPU writes bytes and says no more."""
        return Findings()

    def close(self) -> None:
        """Frees every buffer; the launcher is empty afterwards."""
        for allocation in self.allocations:
            if not self.module.broken:
                self.driver.free(allocation.base)
        self.allocations.clear()

    def _place(
        self, name: str, dtype: np.dtype[Any], count: int, *, contents: Bytes, misalign: int, kept: Bytes | None
    ) -> Buffer:
        size = 2 * GUARD_BYTES + misalign + contents.size
        try:
            base = self.driver.allocate(size)
        except DriverError as fault:
            raise RefsimError(
                "device-memory", f"{size} bytes do not fit on the device: {fault}", help="shrink the problem"
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
                "copy-failed",
                f"the driver does not copy: {fault}",
                self.module.source,
                "a kernel's fault takes the context and all buffers with it" if self.module.broken else "",
            ) from fault

    def _owns(self, buffer: Buffer) -> bool:
        return any(allocation.buffer is buffer for allocation in self.allocations)

    def _check_guards(self, entry: str, allocation: Guarded) -> None:
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


@dataclass(repr=False)
class CudaDevice(Card):
    """One GPU of this machine, opened by open_device."""

    name: str
    target: str
    index: int
    driver: Driver
    facts: GpuFacts
    built: dict[str, str] = field(default_factory=dict)
    modules: dict[str, LoadedModule] = field(default_factory=dict)

    def describe(self) -> dict[str, str]:
        """Device, driver, the library between and compute capability; after a launcher also PTX, cubin, flags, tools."""
        major, minor = self.facts.capability
        return {
            "device": self.facts.name,
            "driver": f"CUDA {self.facts.driver // 1000}.{self.facts.driver % 1000 // 10}",
            "backend": self.driver.library,
            "compute_capability": f"{major}.{minor}",
            "target": self.target,
            **self.built,
        }

    @property
    def is_simulated(self) -> bool:
        return False

    def hardware(self) -> dict[str, str]:
        """Capability, size and driver; nvidia-smi tells the driver's version, where that is installed."""
        described = self.describe()
        return {
            "compute capability": described["compute_capability"],
            "multiprocessors": str(self.facts.multiprocessors),
            "memory": f"{self.facts.memory_bytes / 2**30:.1f} GiB",
            "driver": " ".join(filter(None, (kernel_driver(self.index), f"({described['driver']})"))),
            "backend": described["backend"],
        }

    def probing(self) -> "CudaDevice":
        return self

    @contextmanager
    def launcher(self, kernel_file: Path | None, *, count_banks: bool = False) -> Iterator[CudaLauncher]:
        """Compiles a kernel file to PTX, assembles that PTX, loads it; the buffers live as long as the block."""
        kernel_file = required_file(kernel_file)
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
        with self._loaded(cubin.image, compiled.text, str(kernel_file)) as launcher:
            yield launcher

    @contextmanager
    def loaded(self, text: str, source: str) -> Iterator[CudaLauncher]:
        """A launcher over a PTX text; `source` names it in errors."""
        cubin = importlib.import_module("refsim.device.compile").assemble(text, self.target)
        with self._loaded(cubin.image, text, source) as launcher:
            yield launcher

    @contextmanager
    def _loaded(self, image: bytes, text: str, source: str) -> Iterator[CudaLauncher]:
        try:
            self.driver.enter()
        except DriverError as fault:
            raise no_gpu(f"{self.facts.name} gives no context: {fault}") from fault
        module: LoadedModule | None = None
        try:
            module = self._module(image, text, source)
            launcher = CudaLauncher(self.target, self.driver, module)
            try:
                yield launcher
            finally:
                launcher.close()
        finally:
            if module is not None and module not in self.modules.values():
                module.unload()
            self.driver.leave()
            if module is not None and module.broken:
                self.modules.clear()
                with suppress(DriverError):  # the context is lost whatever the driver answers
                    self.driver.forget()

    def _module(self, image: bytes, text: str, source: str) -> LoadedModule:
        """The cubin; one without variables is loaded once for as long as the context lives."""
        key = hashlib.sha256(image).hexdigest()
        if key in self.modules:
            return self.modules[key]
        module = LoadedModule(self.driver, image, text, self.target, source)
        if module.keeps_nothing:
            self.modules[key] = module
        return module

    def _line(self) -> str:
        return f"{self.name}: {self.target}"


def kernel_driver(index: int) -> str:
    """The version of the driver of a GPU, as nvidia-smi tells it; empty where that is not installed."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    command = [program, f"--id={index}", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


BACKENDS: dict[str, Callable[[int], Driver]] = {"pycuda": open_pycuda, "bindings": open_bindings}


def open_device(index: int = 0, target: str | None = None, backend: str | None = None) -> CudaDevice:
    """Opens GPU `index`; the target is the GPU's own (sm_90a on an H200) unless one is named that it can run.

    backend: "pycuda" or "bindings" (cuda.bindings); by default PyCUDA where it can be imported, else cuda.bindings.
    Raises RefsimError (exit 4) where the library, the CUDA driver or the GPU is missing.
    """
    if backend is not None and backend not in BACKENDS:
        raise unknown("backend", backend, list(BACKENDS))
    driver = BACKENDS[backend](index) if backend else _either(index)
    facts = driver.facts()
    return CudaDevice(f"cuda:{index}", _target_for(facts.capability, target), index, driver, facts)


def _either(index: int) -> Driver:
    """PyCUDA, or cuda.bindings where PyCUDA cannot be imported; what is missing is what both say."""
    try:
        return open_pycuda(index)
    except RefsimError as error:
        if error.code not in ("no-pycuda", "no-cuda-driver"):
            raise
        first = error
    try:
        return open_bindings(index)
    except RefsimError as second:
        if second.code != "no-cuda-bindings":
            raise
        first.help = f"{first.help}, or {second.help}" if first.code == "no-pycuda" else first.help
        raise first from second


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
    parts = re.fullmatch(r"sm_([0-9]{1,3})([0-9])(a?)", target)
    if parts is None:
        raise RefsimError("bad-target", f"{target!r} is not a target", help="write sm_90a")
    major, minor = int(parts[1]), int(parts[2])
    if parts[3]:
        return (major, minor) == capability
    return major == capability[0] and minor <= capability[1]


def _words(flags: str | Sequence[str]) -> str:
    return flags if isinstance(flags, str) else " ".join(flags)
