"""Functions of the driver that load modules and launch kernels: images in host memory, arguments by address."""

import ctypes
import itertools
import sys
from types import ModuleType
from typing import Any

from refsim.errors import RefsimError
from refsim.standins.cuda.images import CoreKernel, Image

_POINTER = ctypes.sizeof(ctypes.c_void_p)


class ModuleCalls:
    """Functions of the driver, by their names, that load code and run it."""

    types: ModuleType

    def __init__(self) -> None:
        self.numbers = itertools.count(0x2000)
        self.modules: dict[int, Image] = {}
        self.functions: dict[int, CoreKernel] = {}

    def cuModuleLoadData(self, image: Any) -> Any:  # noqa: N802 - names of the driver
        """Load an image, given as bytes or as a host address of zero-terminated PTX, and return its handle."""
        number = next(self.numbers)
        made = Image("ptx", bytes(image) if isinstance(image, bytes | bytearray) else ctypes.string_at(int(image)))
        _ = made.loaded
        self.modules[number] = made
        return self.types.CUmodule(number)

    def cuModuleLoadDataEx(self, image: Any, count: int, options: Any, values: Any) -> Any:  # noqa: N802
        return self.cuModuleLoadData(image)

    def cuModuleUnload(self, module: Any) -> None:  # noqa: N802
        del self.modules[int(module)]

    def cuModuleGetFunction(self, module: Any, name: bytes) -> Any:  # noqa: N802
        """Return a handle of an entry of a module, by its name."""
        number = next(self.numbers)
        self.functions[number] = self.modules[int(module)].get_kernel(name)
        return self.types.CUfunction(number)

    def cuModuleGetGlobal(self, module: Any, name: bytes) -> tuple[Any, int]:  # noqa: N802
        address, size = self.modules[int(module)].loaded.variable(name.decode())
        return self.types.CUdeviceptr(address), size

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, function: Any, threads: int, shared_bytes: int) -> int:  # noqa: N802
        """Return how many blocks of a kernel an SM holds at once."""
        number = int(function)
        kernel = self.functions[number] if number in self.functions else CoreKernel.by_handle[number]
        return kernel.ctas_per_sm(int(threads), int(shared_bytes))

    def cuLaunchKernel(  # noqa: N802
        self,
        function: Any,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        block_x: int,
        block_y: int,
        block_z: int,
        shared_bytes: int,
        stream: Any,
        arguments: Any,
        extra: Any,
    ) -> None:
        """Launch a kernel and print what its threads printed; arguments in `extra` are refused."""
        if extra:
            raise RefsimError("bad-launch", "cuLaunchKernel with extra", help="give its arguments by kernelParams")
        kernel = self.functions[int(function)]
        given = packed(arguments, kernel.module.parameter_sizes(kernel.entry))
        grid, block = (grid_x, grid_y, grid_z), (block_x, block_y, block_z)
        sys.stdout.write("".join(kernel.module.launch(kernel.entry, grid, block, given, shared_bytes)))


def packed(arguments: Any, sizes: tuple[int, ...]) -> list[bytes]:
    """Return the arguments of a launch as bytes, from an address of addresses or from (values, ctypes types)."""
    if not sizes:
        return []
    if isinstance(arguments, tuple):
        values, kinds = arguments
        return [_by_type(value, kind, size) for value, kind, size in zip(values, kinds, sizes, strict=True)]
    places = (ctypes.c_void_p * len(sizes)).from_address(int(arguments))
    return [ctypes.string_at(place, size) for place, size in zip(places, sizes, strict=True)]


def _by_type(value: Any, kind: Any, size: int) -> bytes:
    if kind is not None and not isinstance(value, kind):
        return bytes(kind(value.value if isinstance(value, ctypes._SimpleCData) else value))
    if isinstance(value, ctypes._SimpleCData | ctypes.Structure | ctypes.Array):
        return bytes(value)
    return int(value).to_bytes(_POINTER, "little")[:size]
