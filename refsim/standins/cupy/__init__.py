"""CuPy on the simulated GPU: NumPy computes on arrays in simulated memory, and the simulator runs kernels as PTX."""

from typing import Any

import numpy as np

from refsim.standins.cupy import cuda as cuda
from refsim.standins.cupy import delegation
from refsim.standins.cupy import elements as elements
from refsim.standins.cupy import fft as fft
from refsim.standins.cupy import linalg as linalg
from refsim.standins.cupy import methods as methods
from refsim.standins.cupy import random as random
from refsim.standins.cupy import testing as testing
from refsim.standins.cupy.arrays import ndarray as ndarray
from refsim.standins.cupy.creation import array as array
from refsim.standins.cupy.creation import asanyarray as asanyarray
from refsim.standins.cupy.creation import asarray as asarray
from refsim.standins.cupy.creation import ascontiguousarray as ascontiguousarray
from refsim.standins.cupy.creation import asfortranarray as asfortranarray
from refsim.standins.cupy.creation import asnumpy as asnumpy
from refsim.standins.cupy.creation import copy as copy
from refsim.standins.cupy.creation import empty as empty
from refsim.standins.cupy.creation import empty_like as empty_like
from refsim.standins.cupy.creation import full_like as full_like
from refsim.standins.cupy.creation import get_array_module as get_array_module
from refsim.standins.cupy.creation import ones_like as ones_like
from refsim.standins.cupy.creation import zeros_like as zeros_like
from refsim.standins.cupy.decorators import fuse as fuse
from refsim.standins.cupy.decorators import memoize as memoize
from refsim.standins.cupy.elementwise import ElementwiseKernel as ElementwiseKernel
from refsim.standins.cupy.names import ARRAY_FUNCTIONS, CHANGING, CONSTANTS, FACTS, UFUNCS
from refsim.standins.cupy.pool import MemoryPool, PinnedMemoryPool, default_pool
from refsim.standins.cupy.raw import RawKernel as RawKernel
from refsim.standins.cupy.raw import RawModule as RawModule
from refsim.standins.cupy.reduction import ReductionKernel as ReductionKernel
from refsim.standins.seams import refuse

__version__ = "14.2.0"
ufunc = delegation.Ufunc


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
