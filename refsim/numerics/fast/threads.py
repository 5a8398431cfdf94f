"""Threads: how many, and a function over items on them. Each item writes outputs of its own; no bit depends on how many."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

FROM = 1 << 22  # products of a matrix product from which threads pay
MOST = 8  # of NumPy alone; more wait for the interpreter's lock, which compiled loops give back

_Item = TypeVar("_Item")


def threads_for(products: int, *, compiled: bool) -> int:
    """The threads for a matrix product of so many products."""
    if products < FROM:
        return 1
    return cores() if compiled else min(cores(), MOST)


def on_threads(function: Callable[[_Item], None], items: Sequence[_Item], threads: int) -> None:
    """Call the function for every item; what one raises is raised here."""
    if threads == 1 or len(items) == 1:
        for item in items:
            function(item)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(function, items))


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
