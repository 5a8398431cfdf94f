"""PTX to cubin by ptxas: the ptxas of the text's producer, or the default one; outputs are cached by content.

A compiler's log becomes one error: its first lines, and a fix if it is known.
"""

import hashlib
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from refsim.device import cache
from refsim.errors import Kind, RefsimError
from refsim.ptx.machine.assemblers import Assembler, Version, assembler_for, assemblers, ptx_version
from refsim.render.cards import Card, Facts

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


FLAGS = ("--fmad=true", "--generate-line-info")
OPT_LEVELS = (0, 1, 2, 3)
"""Values of --opt-level; verdicts use the last."""
_REGISTERS = re.compile(r"Used (\d+) registers")


@dataclass(frozen=True, repr=False)
class Cubin(Card):
    """Machine code for one target: `image` is the ELF file that a driver loads, `ptx_sha256` the hash of its PTX.

    `assembler` is "ptxas 12.9.86"; `assembler_from` its origin: "nvidia-cuda-nvcc 13.0.88", "triton 3.9.0", "PATH".
    `registers` is the largest number of registers of an entry, None if it was not requested.
    """

    image: bytes
    sha256: str
    ptx_sha256: str
    target: str
    flags: tuple[str, ...]
    assembler: str
    assembler_from: str = ""
    registers: int | None = None

    def _repr_summary(self) -> str:
        return f"{self.target}, {len(self.image)} bytes, {self.assembler}, sha256 {self.sha256[:12]}"

    def _facts(self) -> Facts:
        yield "assembler", f"{self.assembler} ({self.assembler_from})"
        yield "of the PTX", self.ptx_sha256
        yield "flags", " ".join(self.flags)


def assembled(text: str, target: str) -> Cubin:
    """Return the cubin of a PTX text; raise RefsimError `assembler-missing`, `assembler-too-old` or `compile-error`."""
    assembler = required_assembler(text)
    flags = _flags(target, OPT_LEVELS[-1])
    key = cache.digest("cubin", text, *flags, str(assembler))
    image = cache.entry("cubin", key, lambda: _run(assembler.program, text, flags)[0])
    return _cubin(image, text, target, flags, assembler)


def assembled_by(assembler: Assembler, text: str, target: str, level: int) -> Cubin:
    """Return the cubin that one ptxas makes of a PTX text at a level of OPT_LEVELS, uncached, with its registers.

    Raises RefsimError `assembler-too-old` for a text that is newer than this ptxas reads, `compile-error` for a refused
    text.
    """
    wanted = ptx_version(text) or (0, 0)
    if wanted > assembler.reads:
        raise _assembler_too_old_error(wanted, "which it does not read", (assembler,))
    flags = (*_flags(target, level), "--verbose")
    image, log = _run(assembler.program, text, flags)
    registers = max(map(int, _REGISTERS.findall(log)), default=None)
    return _cubin(image, text, target, flags, assembler, registers)


def _flags(target: str, level: int) -> tuple[str, ...]:
    return (f"--gpu-name={target}", f"--opt-level={level}", *FLAGS)


def _cubin(
    image: bytes, text: str, target: str, flags: tuple[str, ...], assembler: Assembler, registers: int | None = None
) -> Cubin:
    of_image, of_text = (hashlib.sha256(each).hexdigest() for each in (image, text.encode()))
    return Cubin(image, of_image, of_text, target, flags, str(assembler), assembler.origin, registers)


def required_assembler(text: str) -> Assembler:
    """Return the ptxas for a text; raise RefsimError with the versions that are installed if none reads it."""
    found = assembler_for(text)
    if found is not None:
        return found
    here = assemblers()
    if not here:
        what = "ptxas is neither in a wheel (nvidia-cuda-nvcc, triton) nor in a toolkit or on PATH"
        help = "pip install 'nvidia-cuda-nvcc==13.0.*', which refsim[gpu] brings"
        raise RefsimError("assembler-missing", what, help=help, kind=Kind.MISSING)
    raise _assembler_too_old_error(ptx_version(text) or (0, 0), "which no ptxas here reads", here)


def _assembler_too_old_error(wanted: Version, reason: str, here: tuple[Assembler, ...]) -> RefsimError:
    """Return the error for PTX of version `wanted` and the wheel that can read it; `here` are the installed ones."""
    ptx_major, minor = wanted
    cuda_major = ptx_major + 4  # PTX 9.x ships with CUDA 13.x
    read = ", ".join(f"{each} ({each.origin}) to {each.reads[0]}.{each.reads[1]}" for each in here)
    what = f"the text is PTX {ptx_major}.{minor}, {reason}: {read}"
    rule = "a ptxas reads PTX up to the version of its CUDA release"
    help = f"pip install 'nvidia-cuda-nvcc=={cuda_major}.{minor}.*'"
    return RefsimError("assembler-too-old", what, rule=rule, help=help, kind=Kind.MISSING)


def _run(program: str, text: str, flags: tuple[str, ...]) -> tuple[bytes, str]:
    """Return the image and the log of one run of ptxas; file names are fixed because the image contains them."""
    with tempfile.TemporaryDirectory(prefix="refsim-") as directory:
        (Path(directory) / "kernel.ptx").write_text(text, encoding="utf-8", newline="\n")
        command = [program, *flags, "--output-file=kernel.cubin", "kernel.ptx"]
        answer = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            raise refused("compile-error", "ptxas refused the PTX", answer.stderr or answer.stdout, flags)
        return (Path(directory) / "kernel.cubin").read_bytes(), answer.stderr + answer.stdout
