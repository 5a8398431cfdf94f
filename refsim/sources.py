"""Citable documents: every row of the model names the place it was taken from."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Document:
    """A document that rows cite: `PTX["cvt"]` is one place in it."""

    key: str
    title: str
    edition: str
    address: str

    def __getitem__(self, place: str) -> "Source":
        return Source(self, place)


@dataclass(frozen=True)
class Source:
    """One place in a document: a section, a table, a function, or the report of a measurement."""

    document: Document
    place: str

    def __str__(self) -> str:
        return f"{self.document.title} {self.document.edition}, {self.place}".replace(" ,", ",")

    @property
    def bracketed(self) -> str:
        """For the end of a sentence: the document without its edition, and the place."""
        return f"[{self.document.title}, {self.place}]"


PTX = Document("ptx", "PTX ISA", "9.0", "https://docs.nvidia.com/cuda/parallel-thread-execution/")
OCP_OFP8 = Document(
    "ocp-ofp8", "OCP 8-bit Floating Point Specification", "1.0", "https://www.opencompute.org/documents"
)
OCP_MX = Document(
    "ocp-mx", "OCP Microscaling Formats (MX) Specification", "1.0", "https://www.opencompute.org/documents"
)
IEEE754 = Document("ieee754", "IEEE 754", "2019", "https://doi.org/10.1109/IEEESTD.2019.8766229")
CUDA_HEADERS = Document("cuda-headers", "CUDA Toolkit headers", "13.0", "https://docs.nvidia.com/cuda/cuda-math-api/")
CUDA_GUIDE = Document(
    "cuda-guide", "CUDA C++ Programming Guide", "13.0", "https://docs.nvidia.com/cuda/cuda-c-programming-guide/"
)
CUDA_PRODUCTS = Document("cuda-products", "NVIDIA product specifications", "", "https://developer.nvidia.com/cuda/gpus")
ML_DTYPES = Document("ml-dtypes", "ml_dtypes", "0.6", "https://github.com/jax-ml/ml_dtypes")
TORCH = Document("torch", "PyTorch", "2.13", "https://docs.pytorch.org/docs/stable/tensor_attributes.html")
FNUZ = Document(
    "fnuz", "8-bit Numerical Formats for Deep Neural Networks", "arXiv 2206.02915", "https://arxiv.org/abs/2206.02915"
)
CUTE_DSL = Document("cute-dsl", "CUTLASS CuTe DSL", "4", "https://docs.nvidia.com/cutlass/")
NUMPY = Document(
    "npy",
    "NumPy, numpy.lib.format",
    "1.0 to 3.0",
    "https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html",
)
SAFETENSORS = Document("safetensors", "safetensors format", "0.8", "https://github.com/huggingface/safetensors")
MEASURED_H200 = Document("measured-h200", "Measured on an NVIDIA H200", "", "conformance/reports/h200")

CUTLASS = Document("cutlass", "CUTLASS and CuTe headers", "4.2", "https://github.com/NVIDIA/cutlass")
CUDA_DRIVER = Document(
    "cuda-driver",
    "CUDA driver API, cuda.h",
    "13.0",
    "https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TENSOR__MEMORY.html",
)
CUBLAS = Document("cublas", "cuBLAS library", "13.0", "https://docs.nvidia.com/cuda/cublas/")
FLASHINFER = Document("flashinfer", "FlashInfer", "fb28d72", "https://github.com/flashinfer-ai/flashinfer")
DEEPGEMM = Document("deepgemm", "DeepGEMM", "54e2261", "https://github.com/deepseek-ai/DeepGEMM")
AITER = Document("aiter", "AITER", "e404860", "https://github.com/ROCm/aiter")
MIRAGE = Document("mirage", "Mirage", "324b691", "https://github.com/mirage-project/mirage")
VLLM = Document("vllm", "vLLM", "58942ec", "https://github.com/vllm-project/vllm")
DLPACK = Document("dlpack", "DLPack", "1.1", "https://dmlc.github.io/dlpack/latest/c_api.html")
TRITON = Document("triton", "Triton", "3.9", "https://github.com/triton-lang/triton")

CDNA = Document(
    "cdna-isa",
    "AMD Instinct Instruction Set Architecture",
    "CDNA3 and CDNA4",
    "https://gpuopen.com/amd-isa-documentation/",
)
COMPOSABLE_KERNEL = Document(
    "composable-kernel", "Composable Kernel", "7.0", "https://github.com/ROCm/composable_kernel"
)

XIE = Document(
    "xie-mma", "Bit-Accurate Modeling of GPU Matrix Multiply-Accumulate Units", "2", "https://arxiv.org/abs/2511.10909"
)
MMA_SIM = Document("mma-sim", "MMA-Sim", "2.1.1", "https://github.com/microsoft/MMA-Sim")
KHATTAK_MIKAITIS = Document(
    "khattak-mikaitis", "Accurate Models of NVIDIA Tensor Cores", "2", "https://arxiv.org/abs/2512.07004"
)
TCGEN05_MODEL = Document("tcgen05-model", "tcgen05-model", "1.0.0", "https://github.com/sf-tensor/tcgen05")
ROCJITSU = Document("rocjitsu", "rocjitsu", "", "https://github.com/ROCm/rocm-systems")

DOCUMENTS = tuple(value for value in dict(globals()).values() if isinstance(value, Document))
