"""Decorators of CuPy: fuse, which runs the function's operations one by one, and memoize."""

import functools
from collections.abc import Callable
from typing import Any

from refsim.standins.session import current


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
