"""Decorators of CuPy: fuse, whose function is computed part after part, and memoize."""

import functools
from collections.abc import Callable
from typing import Any

from refsim.standins.session import current


def fuse(*args: Any, **kwargs: Any) -> Any:
    """@fuse or @fuse(kernel_name="f"). One kernel of CuPy's keeps what lies between in registers, and may fuse products: bits of
    real numbers are counted as open."""
    if args and callable(args[0]):
        return _fused(args[0])
    return _fused


def _fused(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        current().answered_by_host(f"cupy.fuse of {function.__name__}")
        return function(*args, **kwargs)

    return call


def memoize(for_each_device: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What a function returned for the same arguments is kept; there is one device."""
    return functools.cache
