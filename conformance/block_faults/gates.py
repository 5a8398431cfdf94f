"""The gates by which block-scaled kernels are accepted in the field: four of products, four of quantised tensors."""

from typing import Literal

from conformance.tolerance.gates import Condition, Gate, away_from_parallel, calc_diff, share_beyond

Subject = Literal["product", "tensor"]
COSINE, ALLCLOSE = "cosine", "allclose"


def _cosine(limit: float, source: str) -> Gate:
    rule = f"cosine > {1 - limit:g}, y not quantised"
    return Gate(COSINE, "FlashInfer", rule, source, (Condition(away_from_parallel, limit, "unquantised"),))


_PRODUCT = (
    Gate(
        ALLCLOSE,
        "vLLM, NVFP4 scaled_mm",
        "allclose, rtol 0.1, atol 0.1",
        "tests/kernels/quantization/test_nvfp4_scaled_mm.py",
        (Condition(share_beyond(1e-1, 1e-1), 0),),
    ),
    Gate(
        "PyTorch",
        "PyTorch, scaled_mm by blocks",
        "allclose, rtol 0.07, atol 0.07; cosine >= 0.999",
        "test/test_scaled_matmul_cuda.py",
        (Condition(share_beyond(7e-2, 7e-2), 0), Condition(away_from_parallel, 1e-3)),
    ),
    Gate(
        "GPU MODE",
        "GPU MODE, nvfp4_gemm",
        "allclose, rtol 0.001, atol 0.001",
        "problems/*/reference.py",
        (Condition(share_beyond(1e-3, 1e-3), 0),),
    ),
)
_TENSOR = (
    Gate(
        ALLCLOSE,
        "FlashInfer, dequantised",
        "allclose, rtol 0.3, atol 0.5, y not quantised",
        "tests/utils/test_fp4_quantize.py",
        (Condition(share_beyond(3e-1, 5e-1), 0, "unquantised"),),
    ),
    Gate(
        "vLLM",
        "vLLM, group quantisation",
        "allclose, rtol 0.15, atol 0.15",
        "tests/kernels/quantization/test_fp8_quant_group.py",
        (Condition(share_beyond(1.5e-1, 1.5e-1), 0),),
    ),
    Gate(
        "DeepGEMM",
        "DeepGEMM",
        "calc_diff < 0.001",
        "deep_gemm/testing/numeric.py",
        (Condition(calc_diff, 1e-3),),
    ),
)


def gates_of(subject: Subject, bits: int) -> tuple[Gate, ...]:
    """The gates of a product, or of a tensor, of elements of so many bits: cosine may be less for four."""
    limit, source = (3e-2, "tests/gemm/test_mm_fp4.py") if bits == 4 else (1e-2, "tests/gemm/test_mm_mxfp8.py")
    return (_cosine(limit, source), *(_PRODUCT if subject == "product" else _TENSOR))
