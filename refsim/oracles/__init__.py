"""What a kernel must write, bit for bit: one file per kernel family, in the kernel's own order of operations."""

from refsim.oracles import fp8_quantize
from refsim.oracles.linear_layers import ReductionName, WeightDecoder, linear, linear_fp8_weight

__all__ = ["ReductionName", "WeightDecoder", "fp8_quantize", "linear", "linear_fp8_weight"]


def __dir__() -> list[str]:
    return sorted(__all__)
