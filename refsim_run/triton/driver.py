"""The backend that replaces Triton's NVIDIA backend: its compiler without ptxas, and a driver of the simulated GPU.

ptxas runs when a program reads the registers or spills of a compiled kernel."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.formats import BF16
from refsim.kernels import Buffer, Struct
from refsim.layouts.tma import MAP_ALIGN, TensorMap
from refsim.ptx import is_fault
from refsim.ptx.machine.assemblers import Assembled, assembled
from refsim.ptx.machine.launch_rules import MAX_THREADS, REGISTERS, LaunchRequest
from refsim.ptx.memory.tensor_map import encoded
from refsim.ptx.text.declarations import WARP_SIZE
from refsim.testing.adapters.triton_kernels import (
    SCALARS,
    TritonDescriptor,
    descriptor_values,
    is_descriptor,
    known_defects,
)
from refsim_run.memory import host_bytes
from refsim_run.seams import always
from refsim_run.session import GpuSession, SimulatedModule, current
from refsim_run.torch.cuda import PointedMemory, TorchEvent, TorchStream, host_addresses

CONSTANT = "constexpr"
UPPER_HALVES = dict.fromkeys((BF16.name,), 16)
"""Types that Triton's launcher passes as the upper half of a float32, truncated; the value is the shift in bits."""


class HostArray:
    """A NumPy array with the methods that Triton needs of a tensor."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.base, self.dtype = array, array.dtype

    def data_ptr(self) -> int:
        return int(self.base.ctypes.data)


def take_arrays(module: ModuleType) -> None:
    """Let kernels of triton.runtime.jit, just imported, take NumPy arrays where they take tensors."""
    theirs = module.JITFunction.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with host_addresses():
            return theirs(self, *map(_tensor, args), **{name: _tensor(value) for name, value in kwargs.items()})

    module.JITFunction.run = run


def _tensor(argument: Any) -> Any:
    if isinstance(argument, np.ndarray):
        return HostArray(argument)
    if type(argument) is tuple:
        return tuple(map(_tensor, argument))
    return argument


@dataclass
class HostMemory:
    """The host memory of the tensors of a launch: the bytes of each storage, by its first address."""

    storages: dict[int, NDArray[np.uint8]] = field(default_factory=dict)

    def take(self, tensor: Any) -> None:
        """Add the memory of a tensor; a raw address is left to `DeviceAddresses.of`."""
        tensor = getattr(tensor, "base", None) if not hasattr(tensor, "untyped_storage") else tensor
        if isinstance(tensor, np.ndarray):
            first, end = np.lib.array_utils.byte_bounds(tensor)
            self._add(first, end - first)
        elif hasattr(tensor, "untyped_storage"):
            storage = tensor.untyped_storage()
            self._add(storage.data_ptr(), storage.nbytes())

    def _add(self, first: int, size: int) -> None:
        if first not in self.storages or self.storages[first].nbytes < size:
            self.storages[first] = host_bytes(first, size)

    def parted(self, but: Sequence[tuple[int, NDArray[np.uint8]]] = ()) -> list[tuple[int, NDArray[np.uint8]]]:
        """Return disjoint (address, bytes) in order, joining views of one storage; memory within `but` is left out."""
        found: list[tuple[int, int]] = []
        for first, size in sorted((first, held.nbytes) for first, held in self.storages.items()):
            if any(start <= first < start + held.nbytes for start, held in but):
                continue
            if found and first < found[-1][1]:
                found[-1] = (found[-1][0], max(found[-1][1], first + size))
            else:
                found.append((first, first + size))
        whole = HostMemory()
        for first, end in found:
            whole._add(first, end - first)
        return list(whole.storages.items())


@dataclass
class DeviceAddresses:
    """Translates addresses of host memory into device addresses, while the host memory is mapped."""

    session: GpuSession
    stretches: Sequence[tuple[int, NDArray[np.uint8]]]
    mapped: Sequence[int]

    def of(self, host: int) -> int:
        """Return the device address of a host address; others that are valid stay. RefsimError `bad-argument`."""
        for (first, held), address in zip(self.stretches, self.mapped, strict=True):
            if first <= host < first + max(held.nbytes, 1):
                return address + host - first
        if not host or self.session.memory.holds(host):
            return host
        raise RefsimError(
            "bad-argument",
            f"{host:#x} points into no tensor of this launch",
            rule="a pointer is a tensor, or an address within a tensor that the launch is given too",
            help="give the kernel the tensor",
        )


def flattened(signature: Sequence[Any], args: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield type and value of each argument that the kernel takes: tuples are flattened, constants left out."""
    for kind, argument in zip(signature, args, strict=True):
        if isinstance(kind, tuple):
            yield from flattened(kind, argument)
        elif kind != CONSTANT:
            yield kind, argument


def tensors(pairs: Sequence[tuple[str, Any]]) -> Iterator[Any]:
    """Yield the arguments that point to memory."""
    for kind, argument in pairs:
        if is_descriptor(kind):
            yield argument.base
        elif kind.startswith("*") and not isinstance(argument, int) and argument is not None:
            yield argument


def values(
    pairs: Sequence[tuple[str, Any]], said: Sequence[Mapping[str, Any]], addresses: DeviceAddresses
) -> list[Any]:
    """Return a launch's parameters: device addresses, numbers of their width, descriptors as tensor maps or parts."""
    found: list[Any] = []
    maps = iter(said)
    for kind, argument in pairs:
        if is_descriptor(kind):
            parts = descriptor_values(kind, _descriptor(argument, addresses), next(maps, None))
            found += [_part(each) for each in parts]
        elif kind.startswith("*"):
            found.append(np.uint64(addresses.of(_pointer(argument))))
        else:
            found.append(_number(kind, argument))
    return found


def _pointer(argument: Any) -> int:
    if argument is None:
        return 0
    return int(argument) if isinstance(argument, int) else int(argument.data_ptr())


def _number(kind: str, argument: Any) -> Any:
    scalar = SCALARS.get(kind)
    if scalar is None:
        upper = UPPER_HALVES.get(kind)
        if upper is None:
            raise RefsimError("bad-argument", f"an argument of Triton's type {kind}")
        return (np.float32(argument).view(np.uint32) >> upper).astype(np.uint16)
    if np.dtype(scalar).kind in "iu":
        bits = np.dtype(scalar).itemsize * 8
        return np.array(int(argument) & (1 << bits) - 1, f"u{bits // 8}").view(scalar)[()]
    return scalar(argument)


def _descriptor(argument: Any, addresses: DeviceAddresses) -> TritonDescriptor:
    """Return a descriptor of Triton's host code as one over device memory."""
    base = argument.base
    size = base.element_size()
    buffer = Buffer("descriptor", addresses.of(base.data_ptr()), base.numel(), np.dtype(f"V{size}"))
    shape, strides = [int(each) for each in argument.shape], [int(each) for each in argument.strides]
    return TritonDescriptor(buffer, shape, strides, argument.padding, bool(argument.round_f32_to_tf32))


def _part(part: Any) -> Any:
    if isinstance(part, TensorMap):
        return Struct(encoded(part), MAP_ALIGN)
    return np.uint64(part.address) if isinstance(part, Buffer) else part


OF_TRITON = "triton"
_GLUON_SOURCE = "ttgir"  # the suffix of the first stage of Gluon's functions; for Triton it is "ttir"
IMAGE = "refsim"
"""The last stage of a compilation: the PTX itself, where NVIDIA's backend has a cubin."""


def take_place(backends: ModuleType) -> None:
    """Replace NVIDIA's backend by the simulated GPU; `backends` is the module triton.backends, just imported."""
    theirs = backends.backends["nvidia"]
    made = type(theirs)(compiler=_compiler(theirs.compiler), driver=_driver(sys.modules["triton.backends.driver"]))
    for name in list(backends.backends):
        del backends.backends[name]
    backends.backends["nvidia"] = made


def _compiler(base: Any) -> Any:
    """Return a class that compiles like NVIDIA's compiler up to PTX."""

    class SimulatedCompiler(base):  # type: ignore[misc]
        """NVIDIA's compiler without the cubin stage; its cache keys differ from the real backend's."""

        def __init__(self, target: Any) -> None:
            super().__init__(target)
            self.binary_ext = IMAGE

        def add_stages(self, stages: dict[str, Any], options: Any, language: Any) -> None:
            """Add the stages of NVIDIA's compiler, with the PTX as it is in place of the cubin."""
            super().add_stages(stages, options, language)
            del stages["cubin"]
            stages[IMAGE] = lambda source, metadata: source.encode() if isinstance(source, str) else source

        def hash(self) -> str:
            return f"{IMAGE}-{super().hash()}"

    return SimulatedCompiler


def _driver(module: Any) -> Any:
    """Return a driver class with Triton's interface."""

    class SimulatedDriver(module.DriverBase):  # type: ignore[misc]
        """One simulated GPU; tensors are the host's."""

        def __init__(self) -> None:
            self.launcher_cls = SimulatedLaunch
            self.utils = SimpleNamespace(
                load_binary=_loaded,
                unload_module=lambda module: None,
                get_device_properties=lambda device: _properties(),
                set_printf_fifo_size=lambda size: None,
                is_stream_capturing=lambda stream: False,
            )

        @classmethod
        def is_active(cls) -> bool:
            return True

        def map_python_to_cpp_type(self, ty: str) -> str:
            raise current().unsupported("triton.runtime.driver.active.map_python_to_cpp_type")

        def get_current_target(self) -> Any:
            major, minor = current().capability
            return sys.modules["triton.backends.compiler"].GPUTarget("cuda", 10 * major + minor, WARP_SIZE)

        def get_active_torch_device(self) -> Any:
            import torch

            return torch.device("cuda", 0)

        get_current_device = get_current_stream = always(0)

        set_current_device = clear_cache = always()

        def get_device_capability(self, device: int = 0) -> tuple[int, int]:
            return current().capability

        def get_benchmarker(self) -> Callable[..., Any]:
            return benchmarked

        def get_device_interface(self) -> Any:
            """Return the functions and classes of torch.cuda that Triton's autotuner uses."""
            return SimpleNamespace(
                synchronize=lambda *args: None, current_device=lambda: 0, Event=TorchEvent, Stream=TorchStream
            )

        def get_empty_cache_for_benchmark(self) -> Any:
            return None

    return SimulatedDriver


def benchmarked(kernel_call: Callable[[], Any], *, quantiles: Sequence[float] | None = None, **more: Any) -> Any:
    """Return the millions of thread-instructions of one launch, which autotuning compares instead of a time."""
    session = current()
    before = session.instructions
    kernel_call()
    took = (session.instructions - before) / 1e6
    return took if quantiles is None else [took for _ in quantiles]


def _properties() -> dict[str, int]:
    session = current()
    return {
        "max_shared_mem": session.limits.opt_in,
        "max_num_regs": REGISTERS,
        "multiprocessor_count": session.limits.sms,
        "warpSize": WARP_SIZE,
    }


@dataclass(frozen=True)
class LoadedKernel:
    """An entry of a module that Triton made."""

    module: SimulatedModule
    entry: str


def _loaded(name: str, image: bytes, shared: int, device: int) -> tuple[Any, LoadedKernel, int, int, int]:
    """Return module, function, registers, spills (both 0: only ptxas knows them) and the most threads per block."""
    module = current().load(image, OF_TRITON)
    return module, LoadedKernel(module, module.entry(name)), 0, 0, MAX_THREADS


class SimulatedLaunch:
    """The object that Triton calls to launch one compiled kernel."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self.signature = tuple(source.signature.values())
        self.metadata = metadata
        is_gluon = getattr(source, "ext", "") == _GLUON_SOURCE
        self.known = known_defects(sys.modules["triton"].__version__, is_gluon=is_gluon)

    def __call__(
        self,
        x: int,
        y: int,
        z: int,
        stream: Any,
        kernel: LoadedKernel,
        packed: Any,
        launch: Any,
        enter: Any,
        leave: Any,
        *args: Any,
    ) -> None:
        """Launch the kernel on a grid of (x, y, z) with host tensors mapped to the device; call the hooks around it."""
        if not prod((x, y, z)):
            return
        pairs = list(flattened(self.signature, args))
        host = HostMemory()
        for tensor in tensors(pairs):
            host.take(tensor)
        if enter is not None:
            enter(launch)
        with PointedMemory.of(current()).lent() as (pointed, known), host_addresses():
            stretches = host.parted(but=pointed)
            with current().memory.mapped(stretches, OF_TRITON) as mapped:
                addresses = DeviceAddresses(current(), [*stretches, *pointed], [*mapped, *known])
                given = values(pairs, getattr(self.metadata, "tensordesc_meta", None) or (), addresses)
                self._run(kernel, (x, y, z), given)
        if leave is not None:
            leave(launch)

    def _run(self, kernel: LoadedKernel, grid: tuple[int, int, int], given: list[Any]) -> None:
        """Launch with parameters in device form and scratch memory; a fault becomes RuntimeError, as in Triton."""
        metadata, session = self.metadata, current()
        ctas = int(metadata.num_ctas)
        grid = (grid[0] * ctas, *grid[1:])
        hidden = len(kernel.module.program.entries[kernel.entry]) - len(given)
        names = ("global_scratch", "profile_scratch")[:hidden]
        scratch = [session.memory.scratch(getattr(metadata, f"{name}_size") * prod(grid), OF_TRITON) for name in names]
        request = LaunchRequest(
            kernel.entry,
            grid,
            WARP_SIZE * metadata.num_warps,
            [*given, *map(np.uint64, scratch)],
            metadata.shared,
            cluster=ctas if ctas > 1 else None,
            cooperative=bool(metadata.launch_cooperative_grid),
            programmatic=bool(metadata.launch_pdl),
        )
        try:
            printed = kernel.module.launch(request, self.known)
        except RefsimError as error:
            if not is_fault(error):
                raise
            raise RuntimeError(f"Triton Error [CUDA]: {error}") from error
        finally:
            for address in filter(None, scratch):
                session.memory.free(address)
        sys.stdout.write("".join(re.sub(r"(?<!\n)\Z", "\n", text) for text in printed))


_WORD = 4


def take_resources(module: ModuleType) -> None:
    """Let kernels of triton.compiler.compiler, just imported, report ptxas's registers and spills."""
    kind: Any = module.CompiledKernel
    kind.n_regs = property(lambda self: _resources(self, "n_regs").registers, _given)
    kind.n_spills = property(lambda self: _resources(self, "n_spills").stack_bytes // _WORD, _given)


def _resources(kernel: Any, asked: str) -> Assembled:
    found = assembled(kernel.asm["ptx"], kernel.metadata.name, current().target)
    if found is None:
        raise current().unsupported(f"triton.CompiledKernel.{asked}", "no ptxas is installed that reads its PTX")
    return found


def _given(kernel: Any, value: int) -> None:
    """Ignore the value from the driver, which knows neither registers nor spills."""
