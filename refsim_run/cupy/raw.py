"""RawKernel and RawModule of CuPy: CUDA C++ by NVRTC or PTX from a file, launched with CuPy's arguments."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from refsim.ptx.machine.arguments import PointerTo
from refsim.ptx.machine.launch_rules import MAX_THREADS, LaunchRequest
from refsim.ptx.machine.placed import VariablePlacement
from refsim_run.cupy.arrays import TYPE_LETTERS, ndarray
from refsim_run.cupy.compiler import ptx_of
from refsim_run.cupy.driver import CUDADriverError, as_cupy
from refsim_run.cupy.pool import CUPY, MemoryPointer, UnownedMemory
from refsim_run.seams import refusing
from refsim_run.session import GpuSession, SimulatedModule, current

ILLEGAL_ADDRESS, _NOT_FOUND, _INVALID_IMAGE = (
    (700, "CUDA_ERROR_ILLEGAL_ADDRESS"),
    (500, "CUDA_ERROR_NOT_FOUND"),
    (200, "CUDA_ERROR_INVALID_IMAGE"),
)


class KernelSource:
    """The source of a kernel, compiled on first use, once per simulated GPU."""

    def __init__(
        self,
        code: str | None,
        options: tuple[str, ...],
        path: str | None = None,
        backend: str = "nvrtc",
        names: tuple[str, ...] | None = None,
    ) -> None:
        self.code, self.path, self.options, self.backend, self.names = code, path, options, backend, names
        self._loaded: tuple[GpuSession, SimulatedModule] | None = None

    def module(self) -> SimulatedModule:
        if self._loaded is None or self._loaded[0] is not current():
            self._loaded = current(), self._module()
        return self._loaded[1]

    def _module(self) -> SimulatedModule:
        if self.path is None:
            text: Any = ptx_of(self.code or "", self.options, self.backend, self.names or ())
        else:
            try:
                text = Path(self.path).read_bytes()
            except OSError as error:
                raise CUDADriverError(301, f"CUDA_ERROR_FILE_NOT_FOUND: {self.path}: file not found") from error
        with as_cupy(*_INVALID_IMAGE):
            return current().load(text, CUPY, self.code or "")

    def entry(self, name: str) -> str:
        """Return the entry of a PTX name or a name expression; CUDADriverError for others."""
        module = self.module()
        if name not in module.program.entries and name not in (self.names or ()):
            raise CUDADriverError(
                _NOT_FOUND[0],
                f"{_NOT_FOUND[1]}: named symbol not found: {name!r}; the module has {', '.join(module.program.entries)}. "
                'A kernel of C++ is found under its own name if it is extern "C", or if it is among name_expressions',
            )
        with as_cupy(*_NOT_FOUND):
            return module.entry(name)


def _given(code: Any, options: Any, flags: dict[str, Any], who: str) -> None:
    """Raise TypeError for wrong argument types, as CuPy does; refuse flags that are not simulated."""
    if code is not None and not isinstance(code, str):
        raise TypeError(f"Argument 'code' has incorrect type (expected str, got {type(code).__name__})")
    if not isinstance(options, tuple):
        raise TypeError(f"Argument 'options' has incorrect type (expected tuple, got {type(options).__name__})")
    for name, value in flags.items():
        if value:
            raise current().unsupported(f"cupy.{who} with {name}")


class RawKernel:
    """An entry of CUDA C++."""

    def __init__(
        self,
        code: str,
        name: str,
        options: tuple[str, ...] = (),
        backend: str = "nvrtc",
        translate_cucomplex: bool = False,
        *,
        enable_cooperative_groups: bool = False,
        jitify: Any = None,
    ) -> None:
        """Store the source; compilation waits for the first use."""
        _given(code, options, {"translate_cucomplex": translate_cucomplex, "jitify": jitify}, "RawKernel")
        self.code, self.name, self.options, self.backend = code, name, options, backend
        self.__name__, self.file_path = name, None
        self.enable_cooperative_groups = enable_cooperative_groups
        self._source = KernelSource(code, options, None, backend)
        self.preferred_shared_memory_carveout = -1
        self._dynamic_shared: int | None = None

    @classmethod
    def _of(cls, module: "RawModule", name: str) -> "RawKernel":
        """Return a kernel of a compiled module."""
        is_cooperative = module.enable_cooperative_groups
        made = cls("", name, module.options, module.backend, enable_cooperative_groups=is_cooperative)
        made.code, made.file_path, made._source = module.code, module.file_path, module._source  # type: ignore[assignment]
        return made

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Sequence[Any],
        *,
        shared_mem: int = 0,
        stream: Any = None,
    ) -> None:
        """Launch the kernel with CuPy's argument rules and print what its threads printed."""
        for label, extents in (("grid", grid), ("block", block)):
            if not isinstance(extents, tuple):
                raise TypeError(f"Argument '{label}' has incorrect type (expected tuple, got {type(extents).__name__})")
        entry, module = self._source.entry(self.name), self._source.module()
        values = list(map(taken, args))
        ctas, threads = (tuple(max(int(each), 1) for each in (*extents, 1, 1)[:3]) for extents in (grid, block))
        shared_bytes, is_cooperative = int(shared_mem or 0), self.enable_cooperative_groups
        with as_cupy(*ILLEGAL_ADDRESS):
            request = LaunchRequest(entry, ctas, threads, values, shared_bytes, cooperative=is_cooperative)
            printed = module.launch(request)
        sys.stdout.write("".join(printed))

    def compile(self, log_stream: Any = None) -> None:
        self._source.entry(self.name)

    @property
    def kernel(self) -> "RawKernel":
        self.compile()
        return self

    @property
    def attributes(self) -> dict[str, int]:
        names = """max_threads_per_block shared_size_bytes const_size_bytes local_size_bytes num_regs ptx_version binary_version
            cache_mode_ca max_dynamic_shared_size_bytes preferred_shared_memory_carveout"""
        return {name: getattr(self, name) for name in names.split()}

    def _placed(self) -> VariablePlacement:
        return self._source.module().placed(self._source.entry(self.name))

    max_threads_per_block = property(lambda self: MAX_THREADS)
    shared_size_bytes = property(lambda self: self._placed().shared_bytes)
    local_size_bytes = property(lambda self: self._placed().local_bytes)
    cache_mode_ca = property(lambda self: 0)

    @property
    def const_size_bytes(self) -> int:
        variables = self._source.module().program.module.variables.values()
        return sum(each.size for each in variables if each.space == "const")

    @property
    def num_regs(self) -> int:
        """Return the registers per thread that ptxas allocates; refused where ptxas is not installed."""
        found = self._source.module().registers(self._source.entry(self.name))
        if found is None:
            raise current().unsupported("cupy.RawKernel.num_regs", "ptxas is not installed, which counts registers")
        return found

    @property
    def binary_version(self) -> int:
        """Return the compute capability as one number: 90 for sm_90."""
        major, minor = current().capability
        return 10 * major + minor

    ptx_version = binary_version

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        """Return the limit of dynamic shared memory, by default 48 KiB minus static; launches here may exceed it."""
        return (48 << 10) - self.shared_size_bytes if self._dynamic_shared is None else self._dynamic_shared

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size: int) -> None:
        """Set the limit; CUDADriverError above what the GPU allows."""
        most = current().limits.opt_in - self.shared_size_bytes
        if not 0 <= size <= most:
            raise CUDADriverError(1, f"CUDA_ERROR_INVALID_VALUE: {size} B of dynamic shared memory, of {most} B")
        self._dynamic_shared = int(size)

    __getattr__ = refusing("cupy.RawKernel")


class RawModule:
    """CUDA C++ with several entries and variables, or PTX from a file."""

    def __init__(
        self,
        code: str | None = None,
        *,
        path: str | None = None,
        options: tuple[str, ...] = (),
        backend: str = "nvrtc",
        translate_cucomplex: bool = False,
        enable_cooperative_groups: bool = False,
        name_expressions: Sequence[str] | None = None,
        jitify: Any = None,
    ) -> None:
        """Store the source or the path; compilation waits for the first use."""
        if (code is None) == (path is None):
            raise TypeError("Exactly one of `code` and `path` keyword arguments must be given.")
        _given(code, options, {"translate_cucomplex": translate_cucomplex, "jitify": jitify}, "RawModule")
        if name_expressions is not None and code is None:
            raise ValueError("need CUDA C++ code for the requested kernels")
        if name_expressions is not None and backend != "nvrtc":
            raise ValueError("only nvrtc supports retrieving the mangled names for the given name expressions")
        self.code, self.file_path, self.options, self.backend = code, path, options, backend
        self.name_expressions = None if name_expressions is None else tuple(name_expressions)
        self.enable_cooperative_groups = enable_cooperative_groups
        self._source = KernelSource(code, options, path, backend, self.name_expressions)

    def compile(self, log_stream: Any = None) -> None:
        self._source.module()

    @property
    def module(self) -> "RawModule":
        self.compile()
        return self

    def get_function(self, name: str) -> RawKernel:
        """Return a kernel by its name; CUDADriverError where the module has none."""
        made = RawKernel._of(self, name)
        made.compile()
        return made

    def get_global(self, name: str) -> MemoryPointer:
        """Return a pointer to a variable."""
        with as_cupy(*_NOT_FOUND):
            address, size = self._source.module().variable(name)
        return MemoryPointer(UnownedMemory(address, size, self), 0)

    __getattr__ = refusing("cupy.RawModule")


def taken(value: Any) -> Any:
    """Return an argument as a launch takes it; TypeError for what CuPy does not take."""
    if value is None:
        return bytes(8)
    if isinstance(value, ndarray):
        return PointerTo(value.data.ptr, value.dtype)
    if isinstance(value, MemoryPointer):
        return PointerTo(value.ptr)
    if isinstance(value, np.ndarray) and value.size != 1:
        raise TypeError(
            f"You are trying to pass a numpy.ndarray of shape {value.shape} as a kernel parameter. Only numpy.ndarrays of "
            "size one can be passed by value. If you meant to pass a pointer to __global__ memory, you need to pass a "
            "cupy.ndarray instead."
        )
    is_scalar = isinstance(value, np.generic) and (value.dtype.char in TYPE_LETTERS or value.dtype.kind == "V")
    if is_scalar or isinstance(value, bool | int | float | complex | np.ndarray):
        return value
    raise TypeError(f"Unsupported type {type(value)}")
