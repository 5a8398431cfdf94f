"""A real GPU: it runs the PTX that the simulator runs, and checks every byte around the buffers (`cuda_launcher.py`).

refsim reaches the driver through PyCUDA, cuda.bindings or ctypes (`driver.py`), imported when a device is opened.
"""

import hashlib
import importlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refsim.device.cuda_launcher import GPU_POISON, GUARD_BYTES, CudaLauncher, guard_pattern
from refsim.device.driver import (
    SIMULATOR,
    Driver,
    DriverError,
    GpuFacts,
    no_gpu,
    open_bindings,
    open_libcuda,
    open_pycuda,
)
from refsim.device.host_library import host_facts
from refsim.device.modules import LoadedModule, NoModule, RunnableModule
from refsim.errors import Kind, RefsimError, unknown
from refsim.kernel_code import KernelCode, code_of
from refsim.render.cards import Card
from refsim.targets import ARCHITECTURES, Target, target_named

__all__ = ["BACKENDS", "GPU_POISON", "GUARD_BYTES", "CudaDevice", "CudaLauncher", "guard_pattern", "open_device"]


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
        """Return device, driver, library and compute capability; after a launcher also hashes, flags and tools."""
        major, minor = self.facts.capability
        driver = f"CUDA {self.facts.driver // 1000}.{self.facts.driver % 1000 // 10}"
        found = {"device": self.facts.name, "driver": driver, "backend": self.driver.library}
        return {**found, "compute_capability": f"{major}.{minor}", "target": self.target, **self.built}

    @property
    def is_simulated(self) -> bool:
        return False

    def hardware(self) -> dict[str, str]:
        """Return capability, size and driver; the driver's version comes from nvidia-smi if that is installed."""
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
    def launcher(
        self, code: KernelCode | Path | None, *, count_banks: bool = False, follow_open: bool = False
    ) -> Iterator[CudaLauncher]:
        """Compile, assemble and load a kernel's code; yield a launcher whose buffers live as long as the block.

        A Python function is not compiled: the launcher's `call` runs it.
        """
        given = code_of(code).required()
        if given.call is not None:
            self.built = {"kernel_file": given.label}
            with self._running(lambda: NoModule(self.driver, given.function), given.call) as launcher:
                yield launcher
            return
        compiling = importlib.import_module("refsim.device.compile")
        made = compiling.compiled(given, self.target)
        image, facts = self._image(made.text)
        self.built = {**made.facts(given.label), **host_facts(given), **facts}
        with self._running(lambda: self._module(image, made.text, str(given.file or given.label))) as launcher:
            launcher.module.opcodes(frozenset(entry for _, entry in given.named_entries))  # raises unknown-entry
            yield launcher

    @contextmanager
    def loaded(self, text: str, source: str) -> Iterator[CudaLauncher]:
        """Yield a launcher for a PTX text; `source` names it in errors."""
        image, _ = self._image(text)
        with self._running(lambda: self._module(image, text, source)) as launcher:
            yield launcher

    @contextmanager
    def loaded_cubin(self, cubin: bytes, text: str, source: str) -> Iterator[CudaLauncher]:
        """Yield a launcher for machine code; `text` is PTX that declares its entries and their parameters."""
        with self._running(lambda: LoadedModule(self.driver, cubin, text, self.target, source)) as launcher:
            yield launcher

    def _image(self, text: str) -> tuple[bytes, dict[str, str]]:
        """Return (image for the driver, facts for a verdict): the cubin by ptxas, or the PTX itself without ptxas.

        The driver assembles PTX with the optimizer of its own release.
        """
        try:
            cubin = importlib.import_module("refsim.device.compile").assemble(text, self.target)
        except RefsimError as missing:
            if missing.kind is not Kind.MISSING:
                raise
            return text.encode() + b"\0", {"assembler": f"the driver, {self.describe()['driver']}; {missing.what}"}
        facts = {"cubin_sha256": cubin.sha256, "cubin_flags": " ".join(cubin.flags)}
        return cubin.image, {**facts, "assembler": f"{cubin.assembler} ({cubin.assembler_from})"}

    @contextmanager
    def _running(
        self, opened: Callable[[], RunnableModule], function: Callable[..., Any] | None = None
    ) -> Iterator[CudaLauncher]:
        """Yield a launcher in the device's context; release a context that a kernel has broken."""
        try:
            self.driver.enter()
        except DriverError as fault:
            raise no_gpu(f"{self.facts.name} gives no context: {fault}") from fault
        module: RunnableModule | None = None
        try:
            module = opened()
            launcher = CudaLauncher(self.target, self.driver, module, function)
            try:
                yield launcher
                launcher.settle()
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
        """Return the loaded cubin; a cubin without variables is loaded once for the life of the context."""
        key = hashlib.sha256(image).hexdigest()
        if key in self.modules:
            return self.modules[key]
        module = LoadedModule(self.driver, image, text, self.target, source)
        if module.keeps_nothing:
            self.modules[key] = module
        return module

    def _repr_summary(self) -> str:
        return f"{self.name}: {self.target}"


def kernel_driver(index: int) -> str:
    """Return the driver version of a GPU from nvidia-smi; empty if nvidia-smi is not installed."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    command = [program, f"--id={index}", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


BACKENDS: dict[str, Callable[[int], Driver]] = {
    "pycuda": open_pycuda,
    "bindings": open_bindings,
    "libcuda": open_libcuda,
}


def open_device(index: int = 0, target: str | None = None, backend: str | None = None) -> CudaDevice:
    """Open GPU `index`; the target is the GPU's own (sm_90a on an H200) unless `target` names another that it runs.

    backend: "pycuda", "bindings" (cuda.bindings) or "libcuda" (the driver's library by ctypes); the default is the
    first that is available. Raises RefsimError (exit 4) if the library, the CUDA driver or the GPU is missing.
    """
    if backend is not None and backend not in BACKENDS:
        raise unknown("backend", backend, list(BACKENDS))
    driver = BACKENDS[backend](index) if backend else _first(index)
    facts = driver.facts()
    return CudaDevice(f"cuda:{index}", _target_for(facts.capability, target), index, driver, facts)


def _first(index: int) -> Driver:
    """Return the driver through PyCUDA, else cuda.bindings, else the driver's own library, which needs no package."""
    for opened, absent in ((open_pycuda, ("missing-extra", "no-cuda-driver")), (open_bindings, ("missing-extra",))):
        try:
            return opened(index)
        except RefsimError as error:
            if error.code not in absent:
                raise
    return open_libcuda(index)


def _target_for(capability: tuple[int, int], target: str | None) -> str:
    """Return `target` if the GPU runs it, else its own target with all features: (9, 0) -> sm_90a, (8, 6) -> sm_86."""
    own = [row for row in ARCHITECTURES if row.cores and row.name == f"sm_{capability[0]}{capability[1]}"]
    if target is None and own:
        return own[0].names[-1]
    if target is not None and _runs(target_named(target), capability):
        return target
    raise RefsimError(
        "wrong-target",
        f"a cubin for {target or 'any known target'} does not run on compute capability {capability[0]}.{capability[1]}",
        rule="a cubin runs on its own major version and its minor or later; with a suffix a, on exactly its own",
        help=f"use {own[0].names[-1]}" if own else SIMULATOR,
    )


def _runs(target: Target, capability: tuple[int, int]) -> bool:
    major, minor = divmod(target.number, 10)
    if target.suffix == "a":
        return (major, minor) == capability
    return major == capability[0] and minor <= capability[1]
