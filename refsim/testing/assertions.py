"""The assertion for arrays that must agree bit for bit."""

from typing import Any

from refsim.compare import Mismatch, bits


class BitsDiffer(AssertionError):  # noqa: N818 (reads as what happened)
    """Two arrays differ; `mismatch` is the report, which the pytest plugin prints as a separate section."""

    def __init__(self, mismatch: Mismatch, heading: str = "", *, after: str = "", case: Any = None) -> None:
        super().__init__("\n".join(part for part in (heading, str(mismatch), after) if part))
        self.mismatch, self.case = mismatch, case


class PromiseNotKept(AssertionError):  # noqa: N818 (reads as what happened)
    """A run for which `refsim verify` would not pass the kernel, although no element differs."""

    def __init__(self, text: str, *, case: Any = None) -> None:
        super().__init__(text)
        self.case = case


def assert_bits_equal(*arguments: Any, **options: Any) -> None:
    """Raise BitsDiffer unless `got` equals `want` bit for bit; the arguments are the ones of `refsim.compare.bits`.

    -0 differs from +0, and one NaN code from another. Raises RefsimError if shapes or dtypes do not match.
    assert_bits_equal(np.uint8([7]), np.uint8([7]), "e4m3") is None. Source: see `refsim.compare.bits`.
    """
    if mismatch := bits(*arguments, **options):
        raise BitsDiffer(mismatch)
