"""CuPy on the simulated GPU: NumPy computes on arrays in simulated memory, and the simulator runs kernels as PTX."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from refsim_run.cupy import cuda as cuda
from refsim_run.cupy import delegation
from refsim_run.cupy import fft as fft
from refsim_run.cupy import linalg as linalg
from refsim_run.cupy import methods as methods
from refsim_run.cupy import random as random
from refsim_run.cupy import testing as testing
from refsim_run.cupy.names import ARRAY_FUNCTIONS, CHANGING, CONSTANTS, FACTS, UFUNCS
from refsim_run.cupy.pool import PinnedMemoryPool, default_pool
from refsim_run.seams import always, gathered, refuse
from refsim_run.session import current

__version__ = "14.2.0"
_HOMES = {
    "arrays": "ndarray",
    "creation": """
        array asanyarray asarray ascontiguousarray asfortranarray asnumpy copy empty empty_like full_like
        get_array_module ones_like zeros_like
    """,
    "elementwise": "ElementwiseKernel",
    "raw": "RawKernel RawModule",
    "reduction": "ReductionKernel",
}
"""The names that other modules define, by their module."""
globals().update(gathered("refsim_run.cupy", _HOMES), ufunc=delegation.Ufunc)


is_available = always(True)
get_default_memory_pool, get_default_pinned_memory_pool = default_pool, PinnedMemoryPool


def fuse(*args: Any, **kwargs: Any) -> Any:
    """Return a function that runs unfused, for @fuse and @fuse(kernel_name="f").

    CuPy's fused kernel keeps intermediates in registers and may contract products: real results count as unspecified.
    """
    return _fused(args[0]) if args and callable(args[0]) else _fused


def _fused(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        current().answered_by_host(f"cupy.fuse of {function.__name__}")
        return function(*args, **kwargs)

    return call


def memoize(for_each_device: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that caches results by arguments; there is one device."""
    return functools.cache


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
