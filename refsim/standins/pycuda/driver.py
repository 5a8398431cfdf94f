"""pycuda.driver on the simulated GPU: the names of the module."""

from importlib import import_module
from typing import Any

from refsim.standins.seams import names_in, refuse

context, copies, errors, functions, memory = (  # `from package import` asks the package for the name first
    import_module(f"refsim.standins.pycuda.{name}") for name in ("context", "copies", "errors", "functions", "memory")
)
_HOMES = {
    context: """
        Context Device Event Stream device_attribute get_driver_version get_version init mem_get_info
    """,
    copies: "Memcpy2D",
    errors: "CompileError Error LaunchError LogicError MemoryError RuntimeError",
    functions: "function_attribute module_from_buffer module_from_file",
    memory: """
        ArgumentHandler DeviceAllocation In InOut Out PointerHolderBase PooledDeviceAllocation from_device
        from_device_like mem_alloc mem_alloc_like mem_alloc_pitch memcpy_dtod memcpy_dtod_async memcpy_dtoh
        memcpy_dtoh_async memcpy_htod memcpy_htod_async memset_d8 memset_d8_async memset_d16 memset_d16_async memset_d32
        memset_d32_async pagelocked_empty pagelocked_empty_like pagelocked_zeros pagelocked_zeros_like to_device
    """,
}
"""The names that other modules define, by their module."""
_FOUND = {name: getattr(home, name) for home, text in _HOMES.items() for name in names_in(text)}
_FOUND |= {"Function": functions.PycudaFunction, "Module": functions.PycudaModule}
globals().update(_FOUND)
del context, copies, errors, functions, memory
__all__ = sorted(_FOUND)  # noqa: PLE0605 - `from pycuda.driver import *` takes them all


def __getattr__(name: str) -> Any:
    raise refuse("pycuda.driver", name)
