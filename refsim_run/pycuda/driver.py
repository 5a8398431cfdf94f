"""pycuda.driver on the simulated GPU: modules of PTX, launches with arguments as PyCUDA packs them, and all its names."""

import re
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from refsim.ptx.machine.arguments import PointerTo
from refsim.ptx.machine.launch_rules import MAX_THREADS, LaunchRequest
from refsim_run.pycuda.context import Event, LogicError, as_pycuda, needed
from refsim_run.pycuda.memory import PYCUDA, ArgumentHandler, PointerHolderBase
from refsim_run.seams import always, gathered, refuse, refusing
from refsim_run.session import SimulatedModule, current

__getattr__ = refusing("pycuda.driver")
_HOMES = {
    "context": """
        CompileError Context Device Error Event LaunchError LogicError MemoryError RuntimeError Stream device_attribute
        get_driver_version get_version init mem_get_info
    """,
    "memory": """
        ArgumentHandler DeviceAllocation In InOut Memcpy2D Out PointerHolderBase PooledDeviceAllocation from_device
        from_device_like mem_alloc mem_alloc_like mem_alloc_pitch memcpy_dtod memcpy_dtod_async memcpy_dtoh
        memcpy_dtoh_async memcpy_htod memcpy_htod_async memset_d8 memset_d8_async memset_d16 memset_d16_async memset_d32
        memset_d32_async pagelocked_empty pagelocked_empty_like pagelocked_zeros pagelocked_zeros_like to_device
    """,
}
"""The names that other modules define, by their module."""
_FOUND = gathered("refsim_run.pycuda", _HOMES)
globals().update(_FOUND)
__all__ = sorted([*_FOUND, "Function", "Module", "function_attribute", "module_from_buffer", "module_from_file"])  # noqa: PLE0605


class function_attribute:  # noqa: N801 - PyCUDA's own name
    """The numbers of a function's attributes: CUfunction_attribute."""

    MAX_THREADS_PER_BLOCK, SHARED_SIZE_BYTES, CONST_SIZE_BYTES, LOCAL_SIZE_BYTES, NUM_REGS = range(5)
    MAX_DYNAMIC_SHARED_SIZE_BYTES = 8


class PycudaModule:
    """A module of PTX."""

    def __init__(self, loaded: SimulatedModule) -> None:
        self._loaded = loaded

    def get_function(self, name: str) -> "PycudaFunction":
        with as_pycuda("cuModuleGetFunction"):
            return PycudaFunction(self._loaded, self._loaded.entry(name))

    def get_global(self, name: str) -> tuple[int, int]:
        """Return address and bytes of a variable."""
        with as_pycuda("cuModuleGetGlobal"):
            return self._loaded.variable(name)

    __getattr__ = refusing("pycuda.driver.Module")


def module_from_buffer(buffer: Any, options: Sequence[Any] = (), message_handler: Any = None) -> PycudaModule:
    """Load a module of PTX text; machine code is refused."""
    needed("cuModuleLoadDataEx")
    with as_pycuda("cuModuleLoadDataEx"):
        return PycudaModule(current().load(buffer if isinstance(buffer, str) else bytes(buffer), PYCUDA))


def module_from_file(filename: str) -> PycudaModule:
    return module_from_buffer(Path(filename).read_bytes())


class PycudaFunction:
    """An entry that can be launched."""

    def __init__(self, loaded: SimulatedModule, entry: str) -> None:
        self._loaded, self._entry = loaded, entry
        self.arg_format = ""

    def __call__(
        self,
        *args: Any,
        grid: Sequence[int] = (1, 1),
        block: Sequence[int] | None = None,
        stream: Any = None,
        shared: int = 0,
        texrefs: Sequence[Any] = (),
        time_kernel: bool = False,
    ) -> float | None:
        """Launch the kernel as PyCUDA does; return the seconds of the simulation if `time_kernel`, else None."""
        if block is None:
            raise ValueError("must specify block size")
        if texrefs:
            raise current().unsupported("pycuda.driver.Function with texrefs", "texture references")
        values, handlers = _taken(args)
        for handler in handlers:
            handler.pre_call(stream)
        began = perf_counter()
        self._launch(grid, block, values, shared)
        seconds = perf_counter() - began
        for handler in handlers:
            handler.post_call(stream)
        return seconds if time_kernel else None

    def prepare(self, arg_types: Sequence[Any], texrefs: Sequence[Any] = ()) -> "PycudaFunction":
        """Set the types of the arguments: letters of struct or NumPy types; anything else is a pointer."""
        if texrefs:
            raise current().unsupported("pycuda.driver.Function.prepare with texrefs", "texture references")
        self.arg_format = "".join(map(_letters, arg_types))
        return self

    def prepared_call(self, grid: Any, block: Any, *args: Any, shared_size: int = 0) -> None:
        self._launch(grid, block, _by_format(self.arg_format, args), shared_size)

    def prepared_async_call(self, grid: Any, block: Any, stream: Any, *args: Any, shared_size: int = 0) -> None:
        self._launch(grid, block, _by_format(self.arg_format, args), shared_size)

    def prepared_timed_call(self, grid: Any, block: Any, *args: Any, shared_size: int = 0) -> Callable[[], float]:
        """Launch the kernel; return a function that returns the seconds of the simulation."""
        start, end = Event().record(), Event()
        self._launch(grid, block, _by_format(self.arg_format, args), shared_size)
        end.record()
        return lambda: end.time_since(start) * 1e-3

    def get_attribute(self, number: int) -> int:
        """Return an attribute of the function by its CUfunction_attribute number; unknown ones are refused."""
        names, placed = function_attribute, self._loaded.placed(self._entry)
        known = {
            names.MAX_THREADS_PER_BLOCK: MAX_THREADS,
            names.SHARED_SIZE_BYTES: placed.shared_bytes,
            names.LOCAL_SIZE_BYTES: placed.local_bytes,
            names.NUM_REGS: self._loaded.registers(self._entry),
        }
        value = known.get(number)
        if value is None:
            raise current().unsupported(f"pycuda.driver.Function.get_attribute({number})")
        return value

    def set_attribute(self, number: int, value: int) -> None:
        if number != function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES:  # every launch may use it here
            raise current().unsupported(f"pycuda.driver.Function.set_attribute({number})")

    set_cache_config = always()

    def __getattr__(self, name: str) -> int:
        number = getattr(function_attribute, name.upper(), None)
        if name.startswith("_") or number is None:
            raise refuse("pycuda.driver.Function", name)
        return self.get_attribute(number)

    def _launch(self, grid: Any, block: Any, values: Sequence[Any], shared: int) -> None:
        needed("cuLaunchKernel")
        with as_pycuda("cuLaunchKernel"):
            request = LaunchRequest(self._entry, tuple(grid), tuple(block), values, int(shared or 0))
            printed = self._loaded.launch(request)
        sys.stdout.write("".join(printed))


def _taken(args: Sequence[Any]) -> tuple[list[Any], list[ArgumentHandler]]:
    """Return the arguments as a launch takes them, and the host arrays to copy around the launch; PyCUDA's TypeError."""
    values: list[Any] = []
    handlers = [each for each in args if isinstance(each, ArgumentHandler)]
    for number, argument in enumerate(args):
        interface = getattr(argument, "__cuda_array_interface__", None)
        if isinstance(argument, ArgumentHandler):
            values.append(_pointer(argument.get_device_alloc(), getattr(argument.array, "dtype", None)))
        elif isinstance(argument, np.generic | np.ndarray):
            values.append(argument)
        elif isinstance(argument, PointerHolderBase):
            values.append(_pointer(argument))
        elif interface is not None:
            values.append(_pointer(interface["data"][0], np.dtype(interface["typestr"])))
        elif hasattr(argument, "gpudata"):
            values.append(_pointer(argument.gpudata))
        else:
            raise TypeError(f"invalid type on parameter #{number} (0-based)")
    return values, handlers


def _pointer(address: Any, element: "np.dtype[Any] | None" = None) -> PointerTo:
    return PointerTo(0 if address is None else int(address), element)


def _letters(kind: Any) -> str:
    """Return the format of one argument type of prepare."""
    if isinstance(kind, str):
        return kind
    if isinstance(kind, np.dtype) or (isinstance(kind, type) and issubclass(kind, np.number)):
        element = np.dtype(kind)
        return f"{element.itemsize}s" if element.kind == "V" else element.char
    return "P"


def _by_format(letters: str, args: Sequence[Any]) -> list[Any]:
    """Return arguments in the prepared format, as a launch takes them."""
    wanted: list[str] = []
    for count, letter in re.findall(r"(\d*)([a-zA-Z?])", letters):
        wanted += [f"{count}s"] if letter == "s" else [letter] * int(count or 1)
    if len(wanted) != len(args):
        raise LogicError(f"{len(args)} arguments where {len(wanted)} were prepared")
    return [_one(letter, argument) for letter, argument in zip(wanted, args, strict=True)]


def _one(letter: str, argument: Any) -> Any:
    if letter.endswith("s"):
        return np.asarray(argument).tobytes()
    if letter == "P":
        return _pointer(getattr(argument, "gpudata", argument), getattr(argument, "dtype", None))
    if letter in "FD":
        return np.dtype(letter).type(argument)
    raw = struct.pack(f"<{letter}" if letter not in "lL" else letter, argument)
    return np.frombuffer(raw, letter)[0]


Function = PycudaFunction
Module = PycudaModule
