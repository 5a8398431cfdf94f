"""What a campaign draws depends on the campaign alone, and not on which modules happen to be loaded.

Since 6.131 Hypothesis also draws numbers that it reads in the source of every module loaded so far. That would make the
problems of one seed others in each process. A campaign has those of its kernel's own file, and no others.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from refsim.kernels import Kernel


@contextmanager
def drawn_from(kernel: Kernel) -> Iterator[None]:
    """Within it Hypothesis knows the numbers that stand where a kernel is declared; elsewhere those of everything loaded.

    The names are Hypothesis's own and private: a version without them draws none of its numbers from modules, or is left
    as it is.
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
    sets, order = providers.SortedSet, providers.float_to_int
    own = providers.Constants(integers=sets(), floats=sets(key=order), bytes=sets(), strings=sets())
    names = dict.fromkeys((kernel.recipe.__module__, getattr(kernel.run, "__module__", "")))
    for module in filter(None, map(sys.modules.get, names)):
        own |= providers.constants_from_module(module)
    return own
