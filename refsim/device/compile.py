"""The code of a kernel as PTX: CUDA compiled by NVRTC or nvcc, PTX unchanged; flags explicit, outputs cached and
hashed.

The simulator executes this PTX, and ptxas assembles it for the real GPU. The text contains no machine paths: a source
is compiled under its bare name, and paths of headers are cut to their names.
"""

import hashlib
import json
import os
import re
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path

from refsim.bundled import bundled
from refsim.device import cache
from refsim.device.assembling import Cubin, assembled, refused, required_assembler
from refsim.device.kernel_sources import Unit, project_include, read_unit
from refsim.device.toolchain import INSTALL, NvrtcError, Toolchain, find_nvcc, find_toolchain, opened
from refsim.errors import Kind, RefsimError, UnfitTargetError
from refsim.kernel_code import KernelCode, needs_a_gpu
from refsim.ptx.text.lexer import read_ptx
from refsim.ptx.text.parser import signatures
from refsim.ptx.text.source_names import NAMES_MARK
from refsim.render.cards import Card, Facts
from refsim.sources import PTX
from refsim.targets import Target, runs, target_named

PROLOGUE = """\
#ifndef INFINITY
#define INFINITY (__builtin_bit_cast(float, 0x7f800000))
#endif
#ifndef NAN
#define NAN (__builtin_bit_cast(float, 0x7fffffff))
#endif
#ifndef HUGE_VALF
#define HUGE_VALF (__builtin_bit_cast(float, 0x7f800000))
#endif
#ifndef HUGE_VAL
#define HUGE_VAL (__builtin_bit_cast(double, 0x7ff0000000000000ull))
#endif
"""
"""Macros of math.h, which nvcc includes in every file; they precede line 1 of a source."""

_STD = "\nnamespace cuda { namespace std {} }\nnamespace std { using namespace ::cuda::std; }\n"
_CPP = (
    *("array", "atomic", "barrier", "bit", "bitset", "cassert", "cfloat", "chrono", "climits", "cmath", "complex"),
    *("concepts", "cstddef", "cstdint", "cstdlib", "cstring", "ctime", "expected", "functional", "initializer_list"),
    *("iterator", "latch", "limits", "mdspan", "numbers", "numeric", "optional", "ranges", "ratio", "semaphore"),
    *("source_location", "span", "tuple", "type_traits", "utility", "variant"),
)
_C_HEADERS = ("assert", "float", "limits", "stddef", "stdint", "inttypes", "stdlib", "string", "time")
_C = {f"{name}.h": f"c{name}" for name in _C_HEADERS} | {"inttypes.h": "cstdint"}
_MATH = """
#ifndef M_PI
#define M_E 2.7182818284590452354
#define M_LOG2E 1.4426950408889634074
#define M_LOG10E 0.43429448190325182765
#define M_LN2 0.69314718055994530942
#define M_LN10 2.30258509299404568402
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_PI_4 0.78539816339744830962
#define M_1_PI 0.31830988618379067154
#define M_2_PI 0.63661977236758134308
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440
#endif
"""
_FLOAT = """
#ifndef FLT_MAX
#define FLT_RADIX 2
#define FLT_MANT_DIG 24
#define FLT_DIG 6
#define FLT_MIN_EXP (-125)
#define FLT_MAX_EXP 128
#define FLT_MIN_10_EXP (-37)
#define FLT_MAX_10_EXP 38
#define FLT_MAX 3.402823466e+38F
#define FLT_MIN 1.175494351e-38F
#define FLT_TRUE_MIN 1.401298464e-45F
#define FLT_EPSILON 1.192092896e-07F
#define DBL_MANT_DIG 53
#define DBL_DIG 15
#define DBL_MIN_EXP (-1021)
#define DBL_MAX_EXP 1024
#define DBL_MIN_10_EXP (-307)
#define DBL_MAX_10_EXP 308
#define DBL_MAX 1.7976931348623157e+308
#define DBL_MIN 2.2250738585072014e-308
#define DBL_TRUE_MIN 4.9406564584124654e-324
#define DBL_EPSILON 2.2204460492503131e-16
#endif
"""
_LIMITS = """
#ifndef INT_MAX
#define CHAR_BIT 8
#define SCHAR_MIN (-128)
#define SCHAR_MAX 127
#define UCHAR_MAX 255
#define CHAR_MIN SCHAR_MIN
#define CHAR_MAX SCHAR_MAX
#define SHRT_MIN (-32768)
#define SHRT_MAX 32767
#define USHRT_MAX 65535
#define INT_MIN (-INT_MAX - 1)
#define INT_MAX 2147483647
#define UINT_MAX 4294967295u
#define LONG_MIN (-LONG_MAX - 1L)
#define LONG_MAX 9223372036854775807L
#define ULONG_MAX 18446744073709551615UL
#define LLONG_MIN (-LLONG_MAX - 1LL)
#define LLONG_MAX 9223372036854775807LL
#define ULLONG_MAX 18446744073709551615ULL
#endif
"""
_INTEGERS = "".join(
    f"#ifndef {sign}INT{bits}_MAX\n#define {sign}INT{bits}_MAX {(1 << (bits if sign else bits - 1)) - 1}"
    f"{sign}{'LL' if bits == 64 else ''}\n"
    + ("" if sign else f"#define INT{bits}_MIN (-INT{bits}_MAX - 1)\n")
    + "#endif\n"
    for bits in (8, 16, 32, 64)
    for sign in ("", "U")
)
_ASSERT = """
#ifdef NDEBUG
#undef assert
#define assert(condition) ((void)0)
#endif
"""
_BESIDE = {
    "cmath": _MATH,
    "cassert": _ASSERT,
    "cfloat": _FLOAT,
    "climits": _LIMITS,
    "cstdint": _INTEGERS,
    "cstddef": "#ifndef NULL\n#define NULL 0\n#endif\n",
}
_TENSOR_MAP = """\
#pragma once
typedef unsigned int cuuint32_t;
typedef unsigned long long cuuint64_t;
typedef struct CUtensorMap_st { alignas(64) cuuint64_t opaque[16]; } CUtensorMap;
"""


def _moved(name: str) -> str:
    """Return a header that libcu++ before CCCL 3.0 has under another name: <cuda/std/__algorithm_>."""
    new, old = f"<cuda/std/{name}>", f"<cuda/std/__{name}_>"
    return f"#pragma once\n#if __has_include({new})\n#include {new}\n#else\n#include {old}\n#endif{_STD}"


_OWN = {
    "math.h": _MATH,  # its functions are built in
    "cstdio": "#pragma once\nnamespace std { using ::printf; }\n",
    "stdio.h": "#pragma once\n",
    "cinttypes": "#include <cstdint>\n",
    "algorithm": _moved("algorithm"),
    "new": _moved("new"),
    "cuda.h": _TENSOR_MAP,  # only the types of kernel arguments
}
_CUB = ("thread", "warp", "block", "iterator")


@lru_cache(maxsize=4)
def standard_headers(include: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return (name, text) of each header, for the folders that contain libcu++ and CUB.

    `<cub/cub.cuh>` includes the parts of CUB that a kernel calls; algorithms that the host launches are left out.
    """
    found = {name: f"#include <cuda/std/{name}>{_STD}{_BESIDE.get(name, '')}" for name in _CPP}
    found |= {name: f"#include <{cpp}>\n" for name, cpp in _C.items()} | _OWN
    for folder in include:
        names = [path for part in _CUB for path in sorted((Path(folder) / "cub" / part).glob("*.cuh"))]
        if names:
            found["cub/cub.cuh"] = "".join(f"#include <cub/{path.parent.name}/{path.name}>\n" for path in names)
    return tuple(sorted(found.items()))


TARGETS = tuple(map(target_named, ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a")))
"""Targets whose PTX comes with the package; NVRTC compiles for every target that it supports."""

# --fmad=true is the compilers' default. It decides bits, so it is explicit; __fmul_rn in a kernel prevents fusion.
COMPILE_FLAGS = ("--std=c++17", "--fmad=true", "-lineinfo")
# Header libraries (CUTLASS) have unannotated functions: nvcc compiles them for the host, NVRTC refuses them.
HEADER_FLAGS = ("--device-as-default-execution-space",)
_BUNDLED_MARK = "// bundled "
# NVRTC looks for headers in quotes in the folder of the including file; NVIDIA's headers rely on this. The source lies in a
# folder that does not exist, so that files of the working directory are not found; `#line` restores its bare name.
_NOWHERE = "/refsim-source/"


@dataclass(frozen=True, repr=False)
class CompiledPtx(Card):
    """PTX and its origin.

    `sha256` is the hash of `text`; `source_sha256` covers the source and the user's headers that it includes.
    `compiler` is "NVRTC 13.0.88". `origin` is "nvrtc", "nvcc", "ptx" (given as PTX) or "bundled" (compiled with equal
    flags when the package was built). `include` lists the names of the searched folders. `compiler_from` is the origin
    of NVRTC: "nvidia-cuda-nvrtc 13.0.88", "toolkit of CUDA_HOME, 12.9". `target` is the target it runs on, `made_for`
    the target that given PTX declares.
    """

    text: str
    sha256: str
    source_sha256: str
    target: str
    flags: tuple[str, ...]
    compiler: str
    origin: str
    include: tuple[str, ...] = ()
    compiler_from: str = ""
    made_for: str = ""

    def _repr_summary(self) -> str:
        return f"{self.target}, {len(self.text)} characters, {self.compiler}, sha256 {self.sha256[:12]}"

    def _facts(self) -> Facts:
        yield from self.facts("").items()

    def facts(self, label: str) -> dict[str, str]:
        """Return the entries of a verdict about this PTX; `label` is the name of the kernel's code."""
        folders = {"include": " ".join(self.include)} if self.include else {}
        brought = {"compiler_from": self.compiler_from} if self.compiler_from else {}
        made_for = {"ptx_target": self.made_for} if self.made_for else {}
        found = {"kernel_file": label, "source_sha256": self.source_sha256, "ptx_sha256": self.sha256}
        found |= {"ptx_flags": " ".join(self.flags), **folders, "compiler": self.compiler, **brought}
        return {**found, "ptx_origin": self.origin, **made_for}


def compile_ptx(source: Path, target: str = "sm_90a", options: tuple[str, ...] = ()) -> CompiledPtx:
    """Return the PTX of a CUDA source for `target`; `options` follow the fixed flags (("-DWIDTH=8",)).

    Raises RefsimError as `compiled` does.
    """
    if isinstance(options, str) or not all(isinstance(option, str) for option in options):
        raise RefsimError("bad-value", f"options is {options!r}", rule="options is a tuple of strings, one per flag")
    return compiled(KernelCode(file=Path(source), options=options), target)


def compiled(code: KernelCode, target: str = "sm_90a") -> CompiledPtx:
    """Return the PTX of a kernel's code: CUDA by NVRTC, or the bundled text if NVRTC is not installed; PTX unchanged.

    Headers in quotes are read from the folder of the including file, others from `include` and `[tool.refsim] include`,
    CUDA's own from the folders that `refsim doctor` shows. The bundled text is used only if it was made from this
    source with these flags. Raises RefsimError: `unreadable-file`, `not-a-file`, `too-large`, `compile-error` with the
    first lines of the log, `compiler-missing` with the pip line, `needs-a-gpu`.
    """
    row = target_named(target)
    target = row.name
    if code.call is not None:
        raise needs_a_gpu(code)
    if code.required().is_ptx:
        return _given(code, target)
    source = None if code.file is None else Path(code.file)
    beside = Path.cwd() if source is None else source.parent
    unit = read_unit(code, tuple(dict.fromkeys((*map(Path, code.include), *project_include(beside)))))
    if code.compiler == "nvcc":
        return _by_nvcc(unit, source, row, code)
    of_headers = HEADER_FLAGS if unit.include else ()
    flags = (*_fixed(code.flags), *of_headers, f"--gpu-architecture={row.compute}", *code.flags)
    toolchain = find_toolchain(row.number) or find_toolchain()  # the second one refuses the target itself
    if toolchain is None:
        return _bundled(source, unit, target, flags)
    try:
        return _by_nvrtc(unit, target, flags, toolchain, code.instances)
    except RefsimError as refusal:  # an older release may lack headers of the bundled text
        with suppress(RefsimError):
            return _bundled(source, unit, target, flags)
        raise refusal from None


def _fixed(options: tuple[str, ...]) -> tuple[str, ...]:
    """Return the fixed flags, without the standard of C++ if `options` name one (--std=c++20, -std=c++20)."""
    names_one = any(option.lstrip("-").startswith("std") and option.startswith("-") for option in options)
    return COMPILE_FLAGS[1:] if names_one else COMPILE_FLAGS


def assemble(ptx: CompiledPtx | str, target: str | None = None) -> Cubin:
    """Return the cubin of a PTX text, by ptxas; `target` defaults to the target of a CompiledPtx.

    refsim uses the ptxas of the text's producer (Triton's wheel), else the ptxas of the wheel nvidia-cuda-nvcc or on
    PATH, else the oldest ptxas that reads the text's version. Raises RefsimError: `assembler-missing` with the pip
    line, `assembler-too-old`, `compile-error` with the first lines of its log.
    """
    if isinstance(ptx, CompiledPtx):
        return assembled(ptx.text, target_named(target or ptx.target).name)
    if target is None:
        what = "a PTX text needs the target that it is assembled for"
        raise RefsimError("missing-argument", what, help='assemble(text, "sm_90a")')
    return assembled(ptx, target_named(target).name)


def assembler_version() -> str:
    """Return the ptxas that `assemble` uses, "ptxas 13.0.88"; raise RefsimError `assembler-missing` without one."""
    return str(required_assembler(""))


def bundled_targets() -> list[str]:
    """Return the targets whose PTX comes with the package; empty in a damaged installation."""
    names = {file.name for directory in _kept() for file in directory.iterdir()}
    return [row.name for row in TARGETS if any(name.endswith(f".{row.name}.ptx") for name in names)]


def bundled_text(compiled: CompiledPtx) -> str:
    """Return the text of a file in gpu/ptx: one comment line with source hash, flags and compiler, then the PTX."""
    facts = {"source_sha256": compiled.source_sha256, "flags": compiled.flags, "compiler": compiled.compiler}
    return f"{_BUNDLED_MARK}{json.dumps(facts)}\n{compiled.text}"


# ---------------------------------------------------------------------------------------------------------------------
# One way for each kind of code


def _by_nvrtc(
    unit: Unit, target: str, flags: tuple[str, ...], toolchain: Toolchain, instances: tuple[str, ...]
) -> CompiledPtx:
    """Return the PTX of a unit by NVRTC, from the cache if the unit, flags, versions and headers are unchanged."""
    shims = (PROLOGUE, *(part for header in standard_headers(toolchain.include) for part in header))
    key = cache.digest(
        "ptx", unit.name, unit.sha256, *flags, *map(str, unit.include), *toolchain.versions, *instances, *shims
    )
    text = cache.entry("ptx", key, lambda: run_nvrtc(unit, flags, toolchain, instances).encode()).decode()
    return _as_compiled(text, unit, target, flags, "nvrtc", toolchain.origin)


def _by_nvcc(unit: Unit, source: Path | None, row: Target, code: KernelCode) -> CompiledPtx:
    """Return PTX by nvcc, from the cache if the unit, flags, nvcc and instances are unchanged."""
    flags = (*_fixed(code.flags), f"--gpu-architecture={row.compute}", *code.flags)
    version = _version(find_nvcc() or "")
    key = cache.digest("nvcc", unit.name, unit.sha256, *flags, *map(str, unit.include), version, *code.instances)
    text = cache.entry("ptx", key, lambda: run_nvcc(unit, source, flags, code.instances).encode()).decode()
    return _as_compiled(text, unit, row.name, flags, "nvcc")


@lru_cache(maxsize=4)
def _version(program: str) -> str:
    if not program:
        return ""
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout


def _given(code: KernelCode, target: str) -> CompiledPtx:
    """Return given PTX unchanged; raise RefsimError `wrong-target` if its `.target` does not run on `target`."""
    text = code.ptx if code.ptx is not None else read_ptx(Path(code.file or ""))
    digest, own = _sha256(text.encode()), _target_of(text)
    if own and not runs(own, target):
        raise UnfitTargetError(
            "wrong-target",
            f"{code.label} is PTX for {own}, which does not run on {target}",
            rule=f"{PTX['PTX module directives, .target']}: sm_80 runs on what is newer, sm_100f in its family, sm_90a on sm_90a",
            help=f"--target {own} (a simulated GPU takes every target), or compile it for {target}",
        )
    return CompiledPtx(text, digest, digest, target, (), _producer(text), "ptx", made_for=own or "not said")


@lru_cache(maxsize=16)
def _target_of(text: str) -> str:
    return signatures(text).target


def _producer(text: str) -> str:
    """Return the compiler that the head of a PTX text names, "NVVM 13.0.88" or "LLVM NVPTX"; else "not said"."""
    head = text[:4096]
    release = re.search(r"^// Cuda compilation tools, release .*V([\d.]+)", head, re.MULTILINE)
    generated = re.search(r"^//\s*Generated by (?:NVIDIA )?(.+?)(?: Compiler| Back-End)?\s*$", head, re.MULTILINE)
    return " ".join(filter(None, (generated[1] if generated else "", release[1] if release else ""))) or "not said"


def _as_compiled(
    text: str, unit: Unit, target: str, flags: tuple[str, ...], origin: str, compiler_from: str = ""
) -> CompiledPtx:
    release = re.search(r"^// Cuda compilation tools, release .*V([\d.]+)", text, re.MULTILINE)
    name = "nvcc" if origin == "nvcc" else "NVRTC"
    compiler = f"{name} {release[1]}" if release else name
    folders = tuple(folder.name for folder in unit.include)
    return CompiledPtx(
        text, _sha256(text.encode()), unit.sha256, target, flags, compiler, origin, folders, compiler_from
    )


def _bundled(source: Path | None, unit: Unit, target: str, flags: tuple[str, ...]) -> CompiledPtx:
    """Return the bundled text of a unit for this target, else for the newest target that runs on it (sm_80 on sm_86).

    It lies in the folder ptx next to the folder of the source, in the checkout or in the installed package. Raises
    RefsimError compiler-missing if no text was made from this source with these flags.
    """
    own = f"--gpu-architecture={target_named(target).compute}"
    fitting = [row for row in reversed(TARGETS) if row.name == target or runs(row.name, target)]
    reason = f"no bundled PTX is called {Path(unit.name).stem}.{target}.ptx"
    for row, directory in product(
        fitting, (*(() if source is None else (source.resolve().parent.parent / "ptx",)), *_kept())
    ):
        name = f"{Path(unit.name).stem}.{row.name}.ptx"
        candidate = directory / name
        if not os.path.isfile(candidate):  # the name may be too long for a path
            continue
        first, _, text = candidate.read_bytes().decode(errors="replace").replace("\r\n", "\n").partition("\n")
        made_with = tuple(f"--gpu-architecture={row.compute}" if flag == own else flag for flag in flags)
        if _made_from(first) == (unit.sha256, list(made_with)):
            return _as_compiled(text, unit, target, made_with, "bundled")
        reason = f"the bundled {name} was made from another source or with other flags"
    what = f"{unit.name} needs NVRTC and CUDA's headers, which are not installed; {reason}"
    where = "" if source is None else str(source)
    raise RefsimError("compiler-missing", what, where=where, help=INSTALL, kind=Kind.MISSING)


def _made_from(line: str) -> tuple[object, object]:
    """Return (source hash, flags) from the first line of a bundled text; (None, None) for a damaged line."""
    try:
        facts = json.loads(line.removeprefix(_BUNDLED_MARK)) if line.startswith(_BUNDLED_MARK) else None
    except (ValueError, RecursionError):
        facts = None
    return (facts.get("source_sha256"), facts.get("flags")) if isinstance(facts, dict) else (None, None)


def _kept() -> tuple[Path, ...]:
    """Return the folder of the bundled PTX; nothing in a damaged installation."""
    try:
        return (bundled("gpu/ptx"),)
    except RefsimError:
        return ()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def run_nvrtc(unit: Unit, flags: tuple[str, ...], toolchain: Toolchain, instances: tuple[str, ...] = ()) -> str:
    """Return the PTX of a unit, followed by comments with the mangled names of `instances` ("k<4>")."""
    folders = (*map(str, unit.include), *toolchain.include)
    arguments = [*flags, *(f"--include-path={path}" for path in folders)]
    given = dict(unit.headers)
    headers = {name: text for name, text in standard_headers(toolchain.include) if name not in given} | given
    source = f'{PROLOGUE}#line 1 "{unit.name}"\n{unit.text}'
    try:
        text, lowered = opened(toolchain.library).compile(source, _NOWHERE + unit.name, headers, arguments, instances)
    except NvrtcError as log:
        said = _bare(str(log).replace(_NOWHERE, ""), folders)
        if "--gpu-architecture" in said:
            raise _no_target(flags, toolchain) from None
        raise refused("compile-error", f"NVRTC refused {unit.name}", said, flags) from None
    named = "".join(f"{NAMES_MARK}{name} = {entry}\n" for name, entry in lowered.items())
    return without_paths(text, folders) + named


def _no_target(flags: tuple[str, ...], toolchain: Toolchain) -> RefsimError:
    """Return the error for a target that this NVRTC does not support."""
    asked = next((flag.rpartition("_")[2] for flag in flags if flag.startswith("--gpu-architecture=")), "")
    return RefsimError(
        "wrong-target",
        f"{toolchain.origin or 'NVRTC'} does not compile for sm_{asked}",
        rule="CUDA 13 compiles for sm_75 and later: it dropped Maxwell, Pascal and Volta",
        help="compile for sm_75 or later; or simulate the PTX text of an older compiler, as "
        f"refsim simulate FILE.ptx ENTRY --target sm_{asked}; or install an NVRTC that has it",
        kind=Kind.MISSING,
    )


def run_nvcc(
    unit: Unit,
    source: Path | None,
    flags: tuple[str, ...],
    instances: tuple[str, ...] = (),
) -> str:
    """Return the PTX of a unit by `nvcc -ptx`; a source is compiled in its own folder, where its headers are found.

    nvcc compiles a template whose address is taken: a file that includes the unit takes the addresses of `instances`.
    """
    program = find_nvcc()
    if program is None:
        what = 'compiler="nvcc", and there is no nvcc on PATH or in a toolkit'
        help = f"install the CUDA toolkit, or leave compiler= away: NVRTC ({INSTALL}) needs no host compiler"
        raise RefsimError("compiler-missing", what, help=help, kind=Kind.MISSING)
    folders = tuple(str(folder.resolve()) for folder in unit.include)
    with tempfile.TemporaryDirectory(prefix="refsim-") as directory:
        path = Path(directory) / unit.name if source is None else source.resolve()
        if source is None:
            path.write_text(unit.text, encoding="utf-8", newline="\n")
        whole = Path(directory) / "refsim_instances.cu" if instances else path
        if instances:
            taken = "".join(f"auto* refsim_instance_{at} = &{name};\n" for at, name in enumerate(instances))
            whole.write_text(f'#include "{path}"\n{taken}', encoding="utf-8", newline="\n")
        command = [program, "-ptx", "-x", "cu", *flags, *(f"-I{folder}" for folder in folders)]
        command += ["-o", str(Path(directory) / "kernel.ptx"), str(whole)]
        answer = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            log = _bare((answer.stderr or answer.stdout).replace(f"{path.parent}/", ""), folders)
            raise refused("compile-error", f"nvcc refused {unit.name}", log, flags)
        text = (Path(directory) / "kernel.ptx").read_text("utf-8")
    return without_paths(text, (str(path.parent), *folders))


def without_paths(text: str, include_directories: tuple[str, ...]) -> str:
    """Return PTX whose .file lines contain no machine paths; nvcc and NVRTC write the full paths of headers."""

    def bare(match: re.Match[str]) -> str:
        path = Path(match[2])
        inside = [path.relative_to(root).as_posix() for root in include_directories if path.is_relative_to(root)]
        return f'{match[1]}"{min(inside, key=len, default=path.name)}"'

    return re.sub(r'^(\s*\.file\s+\d+\s+)"([^"]*)"', bare, text, flags=re.MULTILINE)


def _bare(log: str, folders: tuple[str, ...]) -> str:
    for folder in sorted(folders, key=len, reverse=True):
        log = log.replace(f"{folder}/", "")
    return log
