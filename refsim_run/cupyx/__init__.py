"""cupyx on the simulated GPU: functions that change arrays at many places, pinned memory."""

from typing import Any

import numpy as np

from refsim_run.cupy.arrays import ndarray
from refsim_run.cupy.delegation import answer, changed
from refsim_run.cupyx import profiler as profiler
from refsim_run.memory import poison_host
from refsim_run.seams import refusing


def scatter_add(a: ndarray, slices: Any, value: Any) -> None:
    """Add `value` to a[slices] in place; an element that `slices` contains twice is added to twice."""
    changed("add.at", np.add.at, (a, slices, value), {})


def scatter_max(a: ndarray, slices: Any, value: Any) -> None:
    changed("maximum.at", np.maximum.at, (a, slices, value), {})


def scatter_min(a: ndarray, slices: Any, value: Any) -> None:
    changed("minimum.at", np.minimum.at, (a, slices, value), {})


def rsqrt(x: Any, out: Any = None) -> Any:
    """Return 1 / sqrt(x) of each element."""
    return answer("rsqrt", lambda array, out=None: np.divide(1, np.sqrt(array), out=out), (x,), {"out": out})


def empty_pinned(shape: Any, dtype: Any = float, order: Any = "C") -> Any:
    """Return an uninitialized array of the host."""
    made = np.empty(shape, dtype, order)
    poison_host(made.reshape(-1, order="A").view(np.uint8))
    return made


def zeros_pinned(shape: Any, dtype: Any = float, order: Any = "C") -> Any:
    """Return an array of zeros of the host."""
    return np.zeros(shape, dtype, order)


__getattr__ = refusing("cupyx")
