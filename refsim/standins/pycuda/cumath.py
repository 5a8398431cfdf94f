"""pycuda.cumath on the simulated GPU: CUDA's functions of numbers, of each element."""

from typing import Any

import numpy as np

from refsim.standins.pycuda.array_functions import of_elements
from refsim.standins.pycuda.gpuarray import GPUArray
from refsim.standins.seams import refuse
from refsim.standins.session import current

_ONE = frozenset(
    (
        "ceil",
        "floor",
        "fabs",
        "exp",
        "log",
        "log10",
        "sqrt",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
    )
) | {"tanh"}
_TWO = {"atan2": "atan2", "fmod": "fmod"}


def _of(name: str) -> Any:
    def call(*operands: Any, out: Any = None, stream: Any = None, stream_or_out: Any = None) -> GPUArray:
        kind = np.result_type(*(each.dtype for each in operands))
        if kind not in (np.float32, np.float64):
            raise current().unsupported(f"pycuda.cumath.{name}", f"of {kind}")
        function = f"{name}f" if kind == np.float32 else name
        places = ", ".join(f"${number}" for number in range(len(operands)))
        return of_elements(f"{function}({places})", kind, *operands, out=out, stream=stream)

    call.__name__ = name
    return call


def __getattr__(name: str) -> Any:
    if name in _ONE or name in _TWO:
        return _of(name)
    raise refuse("pycuda.cumath", name)
