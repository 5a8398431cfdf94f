"""pycuda.driver on the simulated GPU: the names of the module."""

from typing import Any

from refsim.standins.pycuda.context import (
    Context,
    Device,
    Event,
    Stream,
    device_attribute,
    get_driver_version,
    get_version,
    init,
    mem_get_info,
)
from refsim.standins.pycuda.copies import Memcpy2D
from refsim.standins.pycuda.errors import CompileError, Error, LaunchError, LogicError, MemoryError, RuntimeError
from refsim.standins.pycuda.functions import PycudaFunction as Function
from refsim.standins.pycuda.functions import PycudaModule as Module
from refsim.standins.pycuda.functions import function_attribute, module_from_buffer, module_from_file
from refsim.standins.pycuda.memory import (
    ArgumentHandler,
    DeviceAllocation,
    In,
    InOut,
    Out,
    PointerHolderBase,
    PooledDeviceAllocation,
    from_device,
    from_device_like,
    mem_alloc,
    mem_alloc_like,
    mem_alloc_pitch,
    memcpy_dtod,
    memcpy_dtod_async,
    memcpy_dtoh,
    memcpy_dtoh_async,
    memcpy_htod,
    memcpy_htod_async,
    memset_d8,
    memset_d8_async,
    memset_d16,
    memset_d16_async,
    memset_d32,
    memset_d32_async,
    pagelocked_empty,
    pagelocked_empty_like,
    pagelocked_zeros,
    pagelocked_zeros_like,
    to_device,
)
from refsim.standins.seams import refuse

__all__ = [
    "ArgumentHandler",
    "CompileError",
    "Context",
    "Device",
    "DeviceAllocation",
    "Error",
    "Event",
    "Function",
    "In",
    "InOut",
    "LaunchError",
    "LogicError",
    "Memcpy2D",
    "MemoryError",
    "Module",
    "Out",
    "PointerHolderBase",
    "PooledDeviceAllocation",
    "RuntimeError",
    "Stream",
    "device_attribute",
    "from_device",
    "from_device_like",
    "function_attribute",
    "get_driver_version",
    "get_version",
    "init",
    "mem_alloc",
    "mem_alloc_like",
    "mem_alloc_pitch",
    "mem_get_info",
    "memcpy_dtod",
    "memcpy_dtod_async",
    "memcpy_dtoh",
    "memcpy_dtoh_async",
    "memcpy_htod",
    "memcpy_htod_async",
    "memset_d8",
    "memset_d8_async",
    "memset_d16",
    "memset_d16_async",
    "memset_d32",
    "memset_d32_async",
    "module_from_buffer",
    "module_from_file",
    "pagelocked_empty",
    "pagelocked_empty_like",
    "pagelocked_zeros",
    "pagelocked_zeros_like",
    "to_device",
]


def __getattr__(name: str) -> Any:
    raise refuse("pycuda.driver", name)
