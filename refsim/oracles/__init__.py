"""References for kernels, bit for bit: one file per kernel family, in the kernel's own order of operations."""

from refsim.oracles import fp8_quantize
from refsim.oracles.attention_forward import Attention, attention
from refsim.oracles.block_scaled import block_scaled_matmul
from refsim.oracles.block_scaled_upcast import BlockScaledUpcast
from refsim.oracles.cublaslt import (
    CUBLASLT_REGIONS,
    CublasltAccumulation,
    CublasltRegion,
    CublasltScaling,
    cublaslt_fp8,
)
from refsim.oracles.gemm_1d2d import Promotion, fp8_gemm_1d2d
from refsim.oracles.linear_layers import ReductionName, WeightDecoder, linear, linear_fp8_weight
from refsim.oracles.row_functions import rms_norm, softmax
from refsim.oracles.row_groups import open_rows

__all__ = [
    "CUBLASLT_REGIONS",
    "Attention",
    "BlockScaledUpcast",
    "CublasltAccumulation",
    "CublasltRegion",
    "CublasltScaling",
    "Promotion",
    "ReductionName",
    "WeightDecoder",
    "attention",
    "block_scaled_matmul",
    "cublaslt_fp8",
    "fp8_gemm_1d2d",
    "fp8_quantize",
    "linear",
    "linear_fp8_weight",
    "open_rows",
    "rms_norm",
    "softmax",
]


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
