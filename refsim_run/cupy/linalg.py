"""cupy.linalg on the simulated GPU, computed by numpy.linalg; its bits differ from cuSOLVER's."""

from typing import Any

import numpy as np

from refsim_run.cupy.delegation import function_of
from refsim_run.cupy.names import LINALG
from refsim_run.seams import refuse

LinAlgError = np.linalg.LinAlgError


def __getattr__(name: str) -> Any:
    if name in LINALG:
        return function_of(name, np.linalg, "linalg.")
    raise refuse("cupy.linalg", name)
