"""cupy.cuda.runtime on the simulated GPU: facts of the device, and its memory."""

from typing import Any

from refsim.device.attributes import ATTRIBUTES
from refsim_run.seams import always, refusing
from refsim_run.session import DRIVER_VERSION, MEMORY_BYTES, current

__getattr__ = refusing("cupy.cuda.runtime")
is_hip = False


class CUDARuntimeError(RuntimeError):
    """A call of the runtime that failed."""

    def __init__(self, status: int, said: str = "") -> None:
        super().__init__(said or f"error {status}")
        self.status = status


getDeviceCount, getDevice = always(1), always(0)  # noqa: N816 - CuPy's own names


def setDevice(device: int) -> None:  # noqa: N802 - CuPy's own name
    if device:
        raise CUDARuntimeError(101, "cudaErrorInvalidDevice: invalid device ordinal: one GPU is simulated")


deviceSynchronize = streamSynchronize = always()  # noqa: N816 - CuPy's own names


runtimeGetVersion = driverGetVersion = always(DRIVER_VERSION)  # noqa: N816 - CuPy's own names


def memGetInfo() -> tuple[int, int]:  # noqa: N802 - CuPy's own name
    return current().free_and_total


def deviceGetAttribute(attrib: int, device: int) -> int:  # noqa: N802 - CuPy's own name
    return current().attribute(attrib, "cupy.cuda.runtime.deviceGetAttribute")


def getDeviceProperties(device: int) -> dict[str, Any]:  # noqa: N802 - CuPy's own name
    """Return the known fields of cudaDeviceProp by name; unknown fields are absent."""
    setDevice(device)
    known = {row.name: current().value_of(row) for row in ATTRIBUTES}
    axes = ("X", "Y", "Z")
    return {
        "name": current().device_name.encode(),
        "totalGlobalMem": MEMORY_BYTES,
        "sharedMemPerBlock": known["MAX_SHARED_MEMORY_PER_BLOCK"],
        "regsPerBlock": known["MAX_REGISTERS_PER_BLOCK"],
        "warpSize": known["WARP_SIZE"],
        "maxThreadsPerBlock": known["MAX_THREADS_PER_BLOCK"],
        "maxThreadsDim": tuple(known[f"MAX_BLOCK_DIM_{axis}"] for axis in axes),
        "maxGridSize": tuple(known[f"MAX_GRID_DIM_{axis}"] for axis in axes),
        "totalConstMem": known["TOTAL_CONSTANT_MEMORY"],
        "major": known["COMPUTE_CAPABILITY_MAJOR"],
        "minor": known["COMPUTE_CAPABILITY_MINOR"],
        "multiProcessorCount": known["MULTIPROCESSOR_COUNT"],
        "integrated": known["INTEGRATED"],
        "canMapHostMemory": known["CAN_MAP_HOST_MEMORY"],
        "concurrentKernels": known["CONCURRENT_KERNELS"],
        "ECCEnabled": known["ECC_ENABLED"],
        "unifiedAddressing": known["UNIFIED_ADDRESSING"],
        "maxThreadsPerMultiProcessor": known["MAX_THREADS_PER_MULTIPROCESSOR"],
        "sharedMemPerMultiprocessor": known["MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"],
        "regsPerMultiprocessor": known["MAX_REGISTERS_PER_MULTIPROCESSOR"],
        "managedMemory": known["MANAGED_MEMORY"],
        "cooperativeLaunch": known["COOPERATIVE_LAUNCH"],
        "sharedMemPerBlockOptin": known["MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"],
    }
