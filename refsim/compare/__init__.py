"""The bit diff: which elements differ, by how many ulp, in which pattern, which thread wrote or holds them, and why."""

from functools import partial

from refsim.compare.differences import Layout, NanPolicy, Owner, bits, explained, within_bound
from refsim.compare.mismatch import Element, Mismatch

__all__ = ["Element", "Layout", "Mismatch", "NanPolicy", "Owner", "bits", "explained", "within_bound"]
__dir__ = partial(sorted, __all__)
