"""The backend that replaces Triton's NVIDIA backend: its compiler without ptxas, and a driver of the simulated GPU."""

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from refsim.errors import RefsimError
from refsim.ptx import is_fault
from refsim.ptx.machine.limits import MAX_THREADS, REGISTERS
from refsim.ptx.text.constants import WARP_SIZE
from refsim.standins.session import SimulatedModule, current
from refsim.standins.torch.cuda import TorchEvent, TorchStream
from refsim.standins.torch.pointers import PointedMemory, host_addresses
from refsim.standins.triton.arguments import DeviceAddresses, HostMemory, flattened, tensors, values
from refsim.testing.adapters.triton_defects import known_defects

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

        def get_current_device(self) -> int:
            return 0

        def set_current_device(self, device: int) -> None:
            """Do nothing: there is one device."""

        def get_current_stream(self, device: int = 0) -> int:
            return 0

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

        def clear_cache(self, cache: Any) -> None:
            """Do nothing: there is no cache."""

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
        hidden = len(kernel.module.parameter_sizes(kernel.entry)) - len(given)
        names = ("global_scratch", "profile_scratch")[:hidden]
        scratch = [session.memory.scratch(getattr(metadata, f"{name}_size") * prod(grid), OF_TRITON) for name in names]
        flags = {"cooperative": metadata.launch_cooperative_grid, "programmatic": metadata.launch_pdl}
        try:
            printed = kernel.module.launch(
                kernel.entry,
                grid,
                WARP_SIZE * metadata.num_warps,
                [*given, *map(np.uint64, scratch)],
                metadata.shared,
                cluster=ctas if ctas > 1 else None,
                known=self.known,
                **{name: True for name, is_asked in flags.items() if is_asked},
            )
        except RefsimError as error:
            if not is_fault(error):
                raise
            raise RuntimeError(f"Triton Error [CUDA]: {error}") from error
        finally:
            for address in filter(None, scratch):
                session.memory.free(address)
        sys.stdout.write("".join(re.sub(r"(?<!\n)\Z", "\n", text) for text in printed))
