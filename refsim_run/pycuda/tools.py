"""pycuda.tools on the simulated GPU: the functions that programs and their tests use."""

import functools
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from refsim.ptx.text.source_names import C_NAMES
from refsim_run.pycuda.context import Context, Device, init
from refsim_run.pycuda.memory import PooledDeviceAllocation, allocated
from refsim_run.seams import always, refusing

__getattr__ = refusing("pycuda.tools")
_C_TYPES = {**C_NAMES, "complex64": "pycuda::complex<float>", "complex128": "pycuda::complex<double>"}


def dtype_to_ctype(dtype: Any) -> str:
    """Return the C++ name of a NumPy type: float for float32."""
    element = np.dtype(dtype)
    name = _C_TYPES.get(element.name)
    if name is None:
        raise ValueError(f"unable to map dtype '{element}'")
    return name


def make_default_context(make: Callable[[Device], Context] | None = None) -> Context:
    """Return a new context of the simulated GPU, which becomes the current one."""
    init()
    device = get_default_device()
    return device.make_context() if make is None else make(device)


def get_default_device(default: int = 0) -> Device:
    return Device(default)


def bitlog2(number: int) -> int:
    """Return the position of the highest bit: bitlog2(17) is 4."""
    return int(number).bit_length() - 1


clear_context_caches = always()


def mark_cuda_test(inner: Callable[..., Any]) -> Callable[..., Any]:
    """Return a test that runs inside its own context."""

    @functools.wraps(inner)
    def run(*args: Any, **kwargs: Any) -> None:
        context = make_default_context()
        try:
            inner(*args, **kwargs)
        finally:
            context.detach()
            gc.collect()

    return run


def init_cuda_context_fixture() -> Iterator[None]:
    """Yield to one test inside its own context, as a fixture of pytest."""
    context = make_default_context()
    yield
    context.detach()
    gc.collect()


class DeviceMemoryPool:
    """A pool of device memory. Each allocation is a new one, so that no reuse hides an access to freed memory."""

    def __init__(self) -> None:
        self._given: weakref.WeakSet[PooledDeviceAllocation] = weakref.WeakSet()

    def allocate(self, size: int) -> PooledDeviceAllocation:
        made = PooledDeviceAllocation(*allocated(size))
        self._given.add(made)
        return made

    @property
    def active_blocks(self) -> int:
        return sum(each.is_live for each in self._given)

    held_blocks = 0

    free_held = stop_holding = always()
