"""Make the draws of a campaign independent of the modules that are loaded.

Since 6.131 Hypothesis also draws numbers that it finds in the source of every loaded module, so that one seed gives
other test cases in each process. A campaign uses only the numbers in its kernel's own file.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from refsim.kernels import Kernel


@contextmanager
def drawn_from(kernel: Kernel) -> Iterator[None]:
    """Restrict Hypothesis, inside the block, to the constants in the modules where a kernel is declared.

    The names are private to Hypothesis: without them, a version of Hypothesis is left unchanged.
    """
    try:
        from hypothesis.internal.conjecture import providers

        everything, cached = providers._get_local_constants, providers.CONSTANTS_CACHE.cache
        own = _constants(providers, kernel)
    except (ImportError, AttributeError):
        yield
        return
    cached.clear()
    providers._get_local_constants = lambda: own
    try:
        yield
    finally:
        providers._get_local_constants = everything
        cached.clear()


def _constants(providers: Any, kernel: Kernel) -> Any:
    """Return the constants in the modules of a kernel's recipe and `run`, in Hypothesis's own container."""
    sets, order = providers.SortedSet, providers.float_to_int
    own = providers.Constants(integers=sets(), floats=sets(key=order), bytes=sets(), strings=sets())
    names = dict.fromkeys((kernel.recipe.__module__, getattr(kernel.run, "__module__", "")))
    for module in filter(None, map(sys.modules.get, names)):
        own |= providers.constants_from_module(module)
    return own
