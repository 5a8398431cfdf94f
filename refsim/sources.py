"""Citable documents: every entry of the model's tables names the place it was taken from."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Publication:
    """A document that entries cite: `PTX["cvt"]` is one place in it."""

    key: str
    title: str
    edition: str
    address: str

    def __getitem__(self, place: str) -> "Source":
        return Source(self, place)


@dataclass(frozen=True)
class Source:
    """One place in a document: a section, a table, a function, or the report of a measurement."""

    document: Publication
    place: str

    def __str__(self) -> str:
        return f"{self.document.title} {self.document.edition}, {self.place}".replace(" ,", ",")

    @property
    def bracketed(self) -> str:
        """Return the citation for the end of a sentence: the document without its edition, and the place."""
        return f"[{self.document.title}, {self.place}]"


PTX = Publication("ptx", "PTX ISA", "9.0", "https://docs.nvidia.com/cuda/parallel-thread-execution/")
OCP_OFP8 = Publication(
    "ocp-ofp8", "OCP 8-bit Floating Point Specification", "1.0", "https://www.opencompute.org/documents"
)
OCP_MX = Publication(
    "ocp-mx", "OCP Microscaling Formats (MX) Specification", "1.0", "https://www.opencompute.org/documents"
)
IEEE754 = Publication("ieee754", "IEEE 754", "2019", "https://doi.org/10.1109/IEEESTD.2019.8766229")
CUDA_HEADERS = Publication(
    "cuda-headers", "CUDA Toolkit headers", "13.0", "https://docs.nvidia.com/cuda/cuda-math-api/"
)
CUDA_GUIDE = Publication(
    "cuda-guide", "CUDA C++ Programming Guide", "13.0", "https://docs.nvidia.com/cuda/cuda-c-programming-guide/"
)
CUDA_PRODUCTS = Publication(
    "cuda-products", "NVIDIA product specifications", "", "https://developer.nvidia.com/cuda/gpus"
)
ML_DTYPES = Publication("ml-dtypes", "ml_dtypes", "0.6", "https://github.com/jax-ml/ml_dtypes")
TORCH = Publication("torch", "PyTorch", "2.13", "https://docs.pytorch.org/docs/stable/tensor_attributes.html")
FNUZ = Publication(
    "fnuz", "8-bit Numerical Formats for Deep Neural Networks", "arXiv 2206.02915", "https://arxiv.org/abs/2206.02915"
)
CUTE_DSL = Publication("cute-dsl", "CUTLASS CuTe DSL", "4", "https://docs.nvidia.com/cutlass/")
NUMPY = Publication(
    "npy",
    "NumPy, numpy.lib.format",
    "1.0 to 3.0",
    "https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html",
)
NUMPY_LIBRARY = Publication("numpy", "NumPy", "2.4", "https://numpy.org/doc/stable/reference/generated/numpy.sum.html")
SAFETENSORS = Publication("safetensors", "safetensors format", "0.8", "https://github.com/huggingface/safetensors")
GGUF = Publication("gguf", "GGUF", "3", "https://github.com/ggml-org/ggml/blob/master/docs/gguf.md")
MEASURED_H200 = Publication("measured-h200", "Measured on an NVIDIA H200", "", "conformance/reports/h200")

CUTLASS = Publication("cutlass", "CUTLASS and CuTe headers", "4.2", "https://github.com/NVIDIA/cutlass")
CUDA_DRIVER = Publication(
    "cuda-driver",
    "CUDA driver API, cuda.h",
    "13.0",
    "https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TENSOR__MEMORY.html",
)
CUBLAS = Publication("cublas", "cuBLAS library", "13.0", "https://docs.nvidia.com/cuda/cublas/")
FLASHINFER = Publication("flashinfer", "FlashInfer", "fb28d72", "https://github.com/flashinfer-ai/flashinfer")
DEEPGEMM = Publication("deepgemm", "DeepGEMM", "54e2261", "https://github.com/deepseek-ai/DeepGEMM")
AITER = Publication("aiter", "AITER", "e404860", "https://github.com/ROCm/aiter")
MIRAGE = Publication("mirage", "Mirage", "324b691", "https://github.com/mirage-project/mirage")
VLLM = Publication("vllm", "vLLM", "58942ec", "https://github.com/vllm-project/vllm")
ONNX = Publication("onnx", "ONNX operators", "1.18", "https://onnx.ai/onnx/operators/")
TORCHAO = Publication("torchao", "torchao", "0.18.0", "https://github.com/pytorch/ao")
MODELOPT = Publication("modelopt", "NVIDIA Model Optimizer", "0.47.0", "https://github.com/NVIDIA/Model-Optimizer")
COMPRESSED_TENSORS = Publication(
    "compressed-tensors", "compressed-tensors", "0.20.0", "https://github.com/vllm-project/compressed-tensors"
)
TRANSFORMER_ENGINE = Publication(
    "transformer-engine", "Transformer Engine", "2.20.2", "https://github.com/NVIDIA/TransformerEngine"
)
FOUR_OVER_SIX = Publication("four-over-six", "Four Over Six", "dadfad6", "https://github.com/mit-han-lab/fouroversix")
BITSANDBYTES = Publication(
    "bitsandbytes", "bitsandbytes", "0.50.2", "https://github.com/bitsandbytes-foundation/bitsandbytes"
)
AUTO_AWQ = Publication("autoawq", "AutoAWQ", "0.2.9", "https://github.com/casper-hansen/AutoAWQ")
GPTQ = Publication("gptqmodel", "GPTQModel", "7.7.0", "https://github.com/ModelCloud/GPTQModel")
GPT_OSS = Publication("gpt-oss", "gpt-oss", "", "https://github.com/openai/gpt-oss")
DEEPSEEK = Publication("deepseek", "DeepSeek checkpoints", "V3 and V4", "https://github.com/deepseek-ai/DeepSeek-V3")
REFSIM = Publication("refsim", "refsim", "", "https://refsim.example")
MICROXCALING = Publication("microxcaling", "microxcaling", "3b429a8", "https://github.com/microsoft/microxcaling")
DLPACK = Publication("dlpack", "DLPack", "1.1", "https://dmlc.github.io/dlpack/latest/c_api.html")
TRITON = Publication("triton", "Triton", "3.9", "https://github.com/triton-lang/triton")
LLVM = Publication("llvm", "LLVM", "", "https://github.com/llvm/llvm-project")

CDNA = Publication(
    "cdna-isa",
    "AMD Instinct Instruction Set Architecture",
    "CDNA3 and CDNA4",
    "https://gpuopen.com/amd-isa-documentation/",
)
COMPOSABLE_KERNEL = Publication(
    "composable-kernel", "Composable Kernel", "7.0", "https://github.com/ROCm/composable_kernel"
)

XIE = Publication(
    "xie-mma", "Bit-Accurate Modeling of GPU Matrix Multiply-Accumulate Units", "2", "https://arxiv.org/abs/2511.10909"
)
MMA_SIM = Publication("mma-sim", "MMA-Sim", "2.1.1", "https://github.com/microsoft/MMA-Sim")
KHATTAK_MIKAITIS = Publication(
    "khattak-mikaitis", "Accurate Models of NVIDIA Tensor Cores", "2", "https://arxiv.org/abs/2512.07004"
)
TCGEN05_MODEL = Publication("tcgen05-model", "tcgen05-model", "1.0.0", "https://github.com/sf-tensor/tcgen05")
ROCJITSU = Publication("rocjitsu", "rocjitsu", "", "https://github.com/ROCm/rocm-systems")

DOCUMENTS = tuple(value for value in dict(globals()).values() if isinstance(value, Publication))
