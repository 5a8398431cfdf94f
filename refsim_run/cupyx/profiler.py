"""cupyx.profiler on the simulated GPU: times are the simulator's own."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np

from refsim_run.seams import refusing

__getattr__ = refusing("cupyx.profiler")
_SECONDS = 1.0
"""Repeats end after so many seconds, for any `n_repeat`: the times are not a GPU's."""


class SimulatedTimes:
    """The times that `benchmark` measured, in seconds: `cpu_times`, and `gpu_times` of the one device."""

    def __init__(self, name: str, times: list[float]) -> None:
        self.name, self.cpu_times, self.gpu_times = name, np.array(times), np.array([times])

    def __repr__(self) -> str:
        mean = 1e6 * self.cpu_times.mean()
        return f"{self.name}: {mean:.3f} us on the simulated GPU, {len(self.cpu_times)} times"

    to_str = __str__ = __repr__


def benchmark(
    func: Any,
    args: Any = (),
    kwargs: Any = None,
    n_repeat: int = 10000,
    *,
    name: Any = None,
    n_warmup: int = 10,
    **more: Any,
) -> SimulatedTimes:
    """Time calls of a function, until `n_repeat` calls or one second in total; no call is made to warm up."""
    times: list[float] = []
    while len(times) < max(n_repeat, 1) and sum(times) < _SECONDS:
        began = perf_counter()
        func(*args, **(kwargs or {}))
        times.append(perf_counter() - began)
    return SimulatedTimes(name or getattr(func, "__name__", str(func)), times)


@contextmanager
def time_range(message: Any = None, *args: Any, **kwargs: Any) -> Iterator[None]:
    """Do nothing: there is no profile."""
    yield


@contextmanager
def profile() -> Iterator[None]:
    """Do nothing: there is no profile."""
    yield
