"""cupy.fft on the simulated GPU, computed by numpy.fft; its bits differ from cuFFT's."""

from typing import Any

import numpy as np

from refsim_run.cupy.delegation import function_of
from refsim_run.cupy.names import FFT
from refsim_run.seams import refuse


def __getattr__(name: str) -> Any:
    if name in FFT:
        return function_of(name, np.fft, "fft.")
    raise refuse("cupy.fft", name)
