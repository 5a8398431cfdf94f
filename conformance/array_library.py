"""The model's own statements on arrays of another library, CuPy for one: what its modules call np becomes that library."""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from refsim.silicon.vectors import CHUNK, weights

MODULES = ("refsim.mufu.", "refsim.numerics.ieee.", "refsim.conversions.rounding", "refsim.silicon.")


class Library:
    """A library under the name np; what it lacks, such as errstate, is NumPy's."""

    def __init__(self, library: Any) -> None:
        self.library = library

    def __getattr__(self, name: str) -> Any:
        return getattr(self.library if hasattr(self.library, name) else np, name)


def library_named(name: str) -> Any:
    """A library by the name of its module; CuPy is told to keep subnormal float32 numbers, which it flushes otherwise."""
    library = importlib.import_module(name)
    if hasattr(library, "cuda"):
        compiler = library.cuda.compiler
        flushing = compiler._compile_using_nvrtc_no_warning

        def keeping(source: str, options: tuple[str, ...] = (), *others: Any) -> Any:
            return flushing(source, tuple(option.replace("-ftz=true", "-ftz=false") for option in options), *others)

        compiler._compile_using_nvrtc_no_warning = keeping
    if float((library.asarray(np.full(1, 2.0**-149, np.float32)) * np.float32(2))[0]) != 2.0**-148:
        raise SystemExit(
            f"{name} flushes subnormal numbers; kernels that it keeps in CUPY_CACHE_DIR may be older than this command"
        )
    return library


def digest_of(table: Any) -> Callable[[Any], Any]:
    """The digest of each row of results, by products and sums on the arrays of `table`, the weights."""

    def digest(results: Any) -> Any:
        halves = [(results, table[:CHUNK])]
        if results.dtype.itemsize == 8:
            halves = [(results & np.uint64(0xFFFFFFFF), table[:CHUNK]), (results >> np.uint64(32), table[CHUNK:])]
        sums = [(half.astype(np.uint64) * weight).sum(axis=-1, dtype=np.uint64) for half, weight in halves]
        return sums[0] if len(sums) == 1 else sums[0] + sums[1]

    return digest


def holders(module: ModuleType) -> Iterator[tuple[Any, str, Any]]:
    """Where a module keeps NumPy, arrays and what is cached: in its names, and in the objects of the model behind them."""
    for name, value in list(vars(module).items()):
        yield module, name, value
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
        for each in (value, *inside):
            if type(each).__module__.startswith(MODULES) and hasattr(each, "__dict__"):
                yield from ((each, key, held) for key, held in list(vars(each).items()) if isinstance(held, np.ndarray))


@contextmanager
def computed_by(library: Any) -> Iterator[None]:
    """As long as this lasts the modules of the model compute with that library.

    Tables that they cache are taken over as NumPy made them, so they must have been asked for before.
    """

    def of_library(cached: Callable[..., Any]) -> Callable[..., Any]:
        def converted(*arguments: Any) -> Any:
            made = cached(*arguments)
            return library.asarray(made) if isinstance(made, np.ndarray) else made

        return cache(converted)

    def instead(value: Any) -> Any:
        if value is np:
            return Library(library)
        if isinstance(value, np.ndarray):
            return library.asarray(value)
        return of_library(value) if hasattr(value, "cache_info") else None

    modules = [module for name, module in sys.modules.items() if name.startswith(MODULES)]
    found = [(*place, instead(place[2])) for module in modules for place in holders(module)]
    special = sys.modules["refsim.silicon.special_functions"]
    put = [each for each in found if each[3] is not None]
    put.append((special, "digest", vars(special)["digest"], digest_of(library.asarray(weights()))))
    try:
        for holder, name, _, value in put:
            setattr(holder, name, value)
        yield
    finally:
        for holder, name, value, _ in reversed(put):
            setattr(holder, name, value)
