"""The attributes of a simulated GPU, by the driver's numbers and names."""

from collections.abc import Callable
from dataclasses import dataclass

from refsim.ptx.machine.launch_rules import MAX_BLOCK, MAX_GRID, MAX_STATIC_SHARED, MAX_THREADS, REGISTERS, limits_of
from refsim.ptx.text.declarations import WARP_SIZE
from refsim.sources import CUDA_DRIVER, Source
from refsim.targets import target_named

_CONSTANT_BYTES = 64 << 10


def _capability(target: str) -> tuple[int, int]:
    return divmod(target_named(target).number, 10)


def _doubles(target: str) -> int:
    """Return how many times more float32 than float64 results a multiprocessor computes per cycle; -1: not known."""
    return {(8, 0): 2, (8, 6): 64, (8, 7): 64, (8, 9): 64, (9, 0): 2, (10, 0): 2, (12, 0): 64}.get(
        _capability(target), -1
    )


@dataclass(frozen=True)
class Attribute:
    """A device attribute: its name in the driver after CU_DEVICE_ATTRIBUTE_, its number, and its value."""

    name: str
    number: int
    value: Callable[[str], int]
    source: Source = CUDA_DRIVER["CUdevice_attribute"]


ATTRIBUTES = (
    Attribute("MAX_THREADS_PER_BLOCK", 1, lambda _: MAX_THREADS),
    Attribute("MAX_BLOCK_DIM_X", 2, lambda _: MAX_BLOCK[0]),
    Attribute("MAX_BLOCK_DIM_Y", 3, lambda _: MAX_BLOCK[1]),
    Attribute("MAX_BLOCK_DIM_Z", 4, lambda _: MAX_BLOCK[2]),
    Attribute("MAX_GRID_DIM_X", 5, lambda _: MAX_GRID[0]),
    Attribute("MAX_GRID_DIM_Y", 6, lambda _: MAX_GRID[1]),
    Attribute("MAX_GRID_DIM_Z", 7, lambda _: MAX_GRID[2]),
    Attribute("MAX_SHARED_MEMORY_PER_BLOCK", 8, lambda _: MAX_STATIC_SHARED),
    Attribute("TOTAL_CONSTANT_MEMORY", 9, lambda _: _CONSTANT_BYTES),
    Attribute("WARP_SIZE", 10, lambda _: WARP_SIZE),
    Attribute("MAX_REGISTERS_PER_BLOCK", 12, lambda _: REGISTERS),
    Attribute("MULTIPROCESSOR_COUNT", 16, lambda target: limits_of(target).sms),
    Attribute("KERNEL_EXEC_TIMEOUT", 17, lambda _: 0),
    Attribute("INTEGRATED", 18, lambda _: 0),
    Attribute("CAN_MAP_HOST_MEMORY", 19, lambda _: 0),
    Attribute("COMPUTE_MODE", 20, lambda _: 0),
    Attribute("CONCURRENT_KERNELS", 31, lambda _: 0),
    Attribute("ECC_ENABLED", 32, lambda _: 0),
    Attribute("PCI_BUS_ID", 33, lambda _: 0),
    Attribute("PCI_DEVICE_ID", 34, lambda _: 0),
    Attribute("TCC_DRIVER", 35, lambda _: 0),
    Attribute("MAX_THREADS_PER_MULTIPROCESSOR", 39, lambda target: limits_of(target).warps * WARP_SIZE),
    Attribute("UNIFIED_ADDRESSING", 41, lambda _: 1),
    Attribute("PCI_DOMAIN_ID", 50, lambda _: 0),
    Attribute("COMPUTE_CAPABILITY_MAJOR", 75, lambda target: _capability(target)[0]),
    Attribute("COMPUTE_CAPABILITY_MINOR", 76, lambda target: _capability(target)[1]),
    Attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR", 81, lambda target: limits_of(target).shared),
    Attribute("MAX_REGISTERS_PER_MULTIPROCESSOR", 82, lambda _: REGISTERS),
    Attribute("MANAGED_MEMORY", 83, lambda _: 0),
    Attribute("SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO", 87, _doubles),
    Attribute("COOPERATIVE_LAUNCH", 95, lambda _: 1),
    Attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", 97, lambda target: limits_of(target).opt_in),
    Attribute("MAX_BLOCKS_PER_MULTIPROCESSOR", 106, lambda target: limits_of(target).ctas),
    Attribute("RESERVED_SHARED_MEMORY_PER_BLOCK", 111, lambda target: limits_of(target).reserved),
    Attribute("CLUSTER_LAUNCH", 120, lambda target: int(limits_of(target).cluster > 0)),
)
BY_NUMBER = {row.number: row for row in ATTRIBUTES}
