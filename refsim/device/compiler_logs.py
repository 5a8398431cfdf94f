"""A compiler's log as one error: its first lines, and a fix if it is known."""

import re

from refsim.errors import Kind, RefsimError

_LOG_LINES = 12
NVCC = 'compiler="nvcc" (--compiler nvcc on the command line), which runs nvcc -ptx where there is one'
_MISSING_HEADER = re.compile(r'cannot open source file "([^"]+)"|fatal error: ([^:\s]+): No such file')
_UNDEFINED = re.compile(r'identifier "(\w+)" is undefined')
_HEADER_OF = {
    "<stdint.h>": re.compile(r"u?int(_fast|_least)?(8|16|32|64)_t|u?int(ptr|max)_t|U?INT(8|16|32|64)_(MAX|MIN)"),
    "<limits.h>": re.compile(r"(U?(CHAR|SHRT|INT|LONG|LLONG)|SCHAR)_(MAX|MIN)|CHAR_BIT"),
    "<float.h>": re.compile(r"(FLT|DBL)_\w+"),
    "<math_constants.h>": re.compile(r"CUDART_\w+"),
    "<cuda_fp16.h>": re.compile(r"half2?|__half2?|__(float2half|half2float|hadd|hfma|hmul|float22half2)\w*"),
    "<cuda_bf16.h>": re.compile(r"(__)?nv_bfloat162?|__(float2bfloat16|bfloat162float)\w*"),
    "<cuda_fp8.h>": re.compile(r"__nv_(fp8|cvt_\w*fp8)\w*"),
    "<cuda_fp6.h>": re.compile(r"__nv_(fp6|cvt_\w*fp6)\w*"),
    "<cuda_fp4.h>": re.compile(r"__nv_(fp4|cvt_\w*fp4)\w*"),
    "<mma.h>": re.compile(r"nvcuda|wmma"),
    "<cooperative_groups.h>": re.compile(r"cooperative_groups"),
    "<cuda_pipeline.h>": re.compile(r"__pipeline_\w+"),
    "<cuda.h>": re.compile(r"CUtensorMap\w*"),
    "<type_traits>": re.compile(r"is_same_v?|enable_if_t?|conditional_t?"),
}
_HOST_HEADERS = re.compile(
    r"torch/|ATen/|c10/|pybind11/|thrust/|Python\.h|(iostream|fstream|sstream|iomanip|vector|string|map|set|list|deque|queue|"
    r"unordered_map|unordered_set|memory|thread|mutex|random|stdexcept|exception|filesystem|regex|cuda_profiler_api\.h|"
    r"stdlib\.h|unistd\.h|sys/\w+\.h|omp\.h|gtest/gtest\.h)$"
)
_TORCH_HEADERS = re.compile(r"torch/|ATen/|c10/|pybind11/")
_HOST_CODE = re.compile(
    r"host variables are not allowed in JIT mode|not allowed in JIT mode|<<<|kernel launch|"
    r'identifier "(main|cudaMalloc|cudaMemcpy\w*|cudaFree|cudaDeviceSynchronize|cudaGetLastError|std|malloc)" is undefined|'
    r'namespace "std" has no member "(vector|cout|cerr|endl|string|unique_ptr|shared_ptr)"|'
    r"a kernel launch from __device__ or __global__ functions requires"
)


def refused(code: str, what: str, log: str, flags: tuple[str, ...]) -> RefsimError:
    """Return the error with the first lines of a compiler's log."""
    lines = [line.rstrip() for line in log.strip().splitlines() if line.strip()]
    more = f"\n    ({len(lines) - _LOG_LINES} more lines)" if len(lines) > _LOG_LINES else ""
    where = "".join(f"\n    {line}" for line in lines[:_LOG_LINES]) + more
    return RefsimError(code, what, where, f"flags: {' '.join(flags)}", _way_out(log), kind=Kind.UNREADABLE)


def _way_out(log: str) -> str:
    """Return the help text: the header that declares a name, or what to do with host code, which NVRTC refuses."""
    if missing := _MISSING_HEADER.search(log):
        if name := missing[2]:  # in a log of nvcc's host compiler
            torch = ": torch.utils.cpp_extension.include_paths() lists them" if _TORCH_HEADERS.match(name) else ""
            return f"the folder of <{name}>: include=(folder,), -I FOLDER, or [tool.refsim] include{torch}"
        name = missing[1]
        if _HOST_HEADERS.match(name):
            return f"<{name}> is of the host: keep the kernel in a file without it, or use {NVCC}"
        return (
            f"headers of yours: include=(folder,), or [tool.refsim] include in pyproject.toml; code of the host: {NVCC}"
        )
    if _HOST_CODE.search(log):
        return f"code of the host (main, <<<>>>, allocation) is not for NVRTC: keep it elsewhere, or use {NVCC}"
    for name in _UNDEFINED.findall(log):
        for header, names in _HEADER_OF.items():
            if names.fullmatch(name):
                return f"{name} is declared in {header}: #include {header}"
    return ""
