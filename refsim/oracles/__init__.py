"""References for kernels, bit for bit: one file per kernel family, in the kernel's own order of operations."""

from typing import TYPE_CHECKING

from refsim.lazy import exports

if TYPE_CHECKING:
    from refsim.oracles import fp8_quantize as fp8_quantize
    from refsim.oracles.attention_forward import Attention as Attention
    from refsim.oracles.attention_forward import attention as attention
    from refsim.oracles.block_scaled import BlockScaledUpcast as BlockScaledUpcast
    from refsim.oracles.block_scaled import block_scaled_matmul as block_scaled_matmul
    from refsim.oracles.cublaslt import CUBLASLT_REGIONS as CUBLASLT_REGIONS
    from refsim.oracles.cublaslt import CublasltAccumulation as CublasltAccumulation
    from refsim.oracles.cublaslt import CublasltRegion as CublasltRegion
    from refsim.oracles.cublaslt import CublasltScaling as CublasltScaling
    from refsim.oracles.cublaslt import cublaslt_fp8 as cublaslt_fp8
    from refsim.oracles.gemm_1d2d import Promotion as Promotion
    from refsim.oracles.gemm_1d2d import fp8_gemm_1d2d as fp8_gemm_1d2d
    from refsim.oracles.gemm_1d2d import open_rows as open_rows
    from refsim.oracles.linear_layers import ReductionName as ReductionName
    from refsim.oracles.linear_layers import WeightDecoder as WeightDecoder
    from refsim.oracles.linear_layers import linear as linear
    from refsim.oracles.linear_layers import linear_fp8_weight as linear_fp8_weight
    from refsim.oracles.row_functions import rms_norm as rms_norm
    from refsim.oracles.row_functions import softmax as softmax
else:
    __getattr__, __dir__ = exports(__name__)
