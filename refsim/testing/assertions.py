"""The assertion for arrays that must agree bit for bit."""

import inspect
from collections.abc import Callable
from typing import Any, ParamSpec

from refsim.compare import Mismatch, bits

P = ParamSpec("P")


class BitsDiffer(AssertionError):  # noqa: N818 (reads as what happened)
    """Two arrays differ; `mismatch` is the report (the pytest plugin prints it as a section of its own)."""

    def __init__(self, mismatch: Mismatch, heading: str = "", *, after: str = "") -> None:
        super().__init__("\n".join(part for part in (heading, str(mismatch), after) if part))
        self.mismatch = mismatch


class PromiseNotKept(AssertionError):  # noqa: N818 (reads as what happened)
    """A run shows something other than elements that differ, for which `refsim verify` would not pass the kernel either."""


def _taking(like: Callable[P, object]) -> Callable[[Callable[..., None]], Callable[P, None]]:
    """The arguments of another function, for readers and for type checkers."""

    def declared(function: Callable[..., None]) -> Callable[P, None]:
        function.__signature__ = inspect.signature(like).replace(return_annotation=None)  # type: ignore[attr-defined]
        return function

    return declared


@_taking(bits)
def assert_bits_equal(*arguments: Any, **options: Any) -> None:
    """Raises BitsDiffer unless `got` equals `want` bit for bit; the arguments are those of `refsim.compare.bits`.

    -0 differs from +0, and one NaN code from another. Raises RefsimError where shapes or dtypes do not match.
    assert_bits_equal(np.uint8([7]), np.uint8([7]), "e4m3") is None. Source: that of `refsim.compare.bits`.
    """
    if mismatch := bits(*arguments, **options):
        raise BitsDiffer(mismatch)
