"""Suspects of a kernel whose bits differ: the mistake that explains every problem that is known, or none.

Nothing is guessed from the look of the differences. Either each wrong output is what a mistake makes of the right one, or an
edit of the PTX that undoes a mistake makes the kernel, run on the simulated GPU, agree on what failed and on what passed.
"""

from refsim.testing.suspects.inquiry import suspects_of
from refsim.testing.suspects.suspicion import OutOfTimeError, Suspicion
from refsim.testing.suspects.witnesses import Witness

__all__ = ["OutOfTimeError", "Suspicion", "Witness", "suspects_of"]


def __dir__() -> list[str]:
    return sorted(__all__)
