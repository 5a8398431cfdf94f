"""Candidate causes of a kernel whose bits differ: the one mistake that explains every known test case, or none.

refsim does not guess from the pattern of the differences. Either a mistake turns each right output into the wrong one,
or an edit undoes the mistake in the PTX. The edited kernel must agree on failed and passed test cases on the simulated
GPU.
"""

from refsim.testing.suspects.inquiry import suspects_of
from refsim.testing.suspects.suspicion import OutOfTimeError, Suspicion
from refsim.testing.suspects.witnesses import Witness

__all__ = ["OutOfTimeError", "Suspicion", "Witness", "suspects_of"]


def __dir__() -> list[str]:
    return sorted(__all__)
