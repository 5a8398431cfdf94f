"""CuPy on the simulated GPU: NumPy computes on arrays in simulated memory, and the simulator runs kernels as PTX."""

from typing import Any

import numpy as np

from refsim.standins.cupy import cuda, delegation, fft, linalg, random, testing
from refsim.standins.cupy import elements as elements
from refsim.standins.cupy import methods as methods
from refsim.standins.cupy.arrays import ndarray
from refsim.standins.cupy.creation import (
    array,
    asanyarray,
    asarray,
    ascontiguousarray,
    asfortranarray,
    asnumpy,
    copy,
    empty,
    empty_like,
    full_like,
    get_array_module,
    ones_like,
    zeros_like,
)
from refsim.standins.cupy.decorators import fuse, memoize
from refsim.standins.cupy.delegation import Ufunc as ufunc  # noqa: N813 - CuPy's own name
from refsim.standins.cupy.elementwise import ElementwiseKernel
from refsim.standins.cupy.names import ARRAY_FUNCTIONS, CHANGING, CONSTANTS, FACTS, UFUNCS
from refsim.standins.cupy.pool import MemoryPool, PinnedMemoryPool, default_pool
from refsim.standins.cupy.raw import RawKernel, RawModule
from refsim.standins.cupy.reduction import ReductionKernel
from refsim.standins.seams import refuse

__version__ = "14.2.0"
__all__ = [
    "ElementwiseKernel",
    "RawKernel",
    "RawModule",
    "ReductionKernel",
    "array",
    "asanyarray",
    "asarray",
    "ascontiguousarray",
    "asfortranarray",
    "asnumpy",
    "copy",
    "cuda",
    "empty",
    "empty_like",
    "fft",
    "full_like",
    "fuse",
    "get_array_module",
    "get_default_memory_pool",
    "get_default_pinned_memory_pool",
    "is_available",
    "linalg",
    "memoize",
    "ndarray",
    "ones_like",
    "random",
    "testing",
    "ufunc",
    "zeros_like",
]


def is_available() -> bool:
    return True


def get_default_memory_pool() -> MemoryPool:
    return default_pool()


def get_default_pinned_memory_pool() -> PinnedMemoryPool:
    return PinnedMemoryPool()


def _found(name: str) -> Any:
    if name in UFUNCS:
        return delegation.Ufunc(name)
    if name in ARRAY_FUNCTIONS:
        return delegation.function_of(name, np)
    if name in CHANGING:
        return lambda *args, **kwargs: delegation.changed(name, getattr(np, name), args, kwargs)
    if name in FACTS:
        return lambda *args, **kwargs: delegation.told(getattr(np, name), *delegation.renamed(name, args, kwargs))
    if name in CONSTANTS:
        return getattr(np, name)
    raise refuse("cupy", name)


def __getattr__(name: str) -> Any:
    found = _found(name)
    globals()[name] = found
    return found
