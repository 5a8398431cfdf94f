"""pycuda.curandom on the simulated GPU: uniform numbers drawn by the host; the generators of cuRAND are refused."""

from typing import Any

import numpy as np

from refsim_run.pycuda.gpuarray import GPUArray, to_gpu
from refsim_run.seams import refusing
from refsim_run.session import current

__getattr__ = refusing("pycuda.curandom")


def rand(shape: Any, dtype: Any = np.float32, stream: Any = None) -> GPUArray:
    """Return random numbers from 0 to 1, which differ from PyCUDA's."""
    current().answered_by_host("pycuda.curandom.rand")
    return to_gpu(np.random.default_rng().random(shape).astype(dtype))
