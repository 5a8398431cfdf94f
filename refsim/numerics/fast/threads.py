"""Threads: their number, and a function over items on them. Each item writes its own outputs, so no bit changes."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

FROM = 1 << 22  # products of a matrix product from which threads pay
MOST = 8  # threads with NumPy alone; more would wait for the interpreter's lock, which compiled loops release

_Item = TypeVar("_Item")


def threads_for(products: int, *, compiled: bool) -> int:
    """Return the number of threads for a matrix product of so many products."""
    if products < FROM:
        return 1
    return cores() if compiled else min(cores(), MOST)


def on_threads(function: Callable[[_Item], None], items: Sequence[_Item], threads: int) -> None:
    """Call the function for every item; an exception of a call is raised here."""
    if threads == 1 or len(items) == 1:
        for item in items:
            function(item)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(function, items))


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
