"""The assertion for arrays that must agree bit for bit."""

from typing import Any

from numpy.typing import NDArray

from refsim.compare import Layout, Mismatch, NanPolicy, Owner, bits
from refsim.formats import Format


class BitsDiffer(AssertionError):  # noqa: N818 (reads as what happened)
    """Two arrays differ; `mismatch` is the report (the pytest plugin prints it as a section of its own)."""

    def __init__(self, mismatch: Mismatch, heading: str = "", *, after: str = "") -> None:
        super().__init__("\n".join(part for part in (heading, str(mismatch), after) if part))
        self.mismatch = mismatch


class PromiseNotKept(AssertionError):  # noqa: N818 (reads as what happened)
    """A run shows something other than elements that differ, for which `refsim verify` would not pass the kernel either."""


def assert_bits_equal(
    got: NDArray[Any],
    want: NDArray[Any],
    format: str | Format | None = None,
    layout: Layout | None = None,
    owner: Owner | None = None,
    *,
    nan: NanPolicy = "bitwise",
    within_ulps: int = 0,
    name: str = "",
) -> None:
    """Raises BitsDiffer unless `got` equals `want` bit for bit; the arguments are those of `refsim.compare.bits`.

    -0 differs from +0, and one NaN code from another. Raises RefsimError where shapes or dtypes do not match.
    assert_bits_equal(np.uint8([7]), np.uint8([7]), "e4m3") is None. Source: that of `refsim.compare.bits`.
    """
    mismatch = bits(got, want, format, layout, owner, nan=nan, within_ulps=within_ulps, name=name)
    if mismatch:
        raise BitsDiffer(mismatch)
