"""CUDA source to PTX by NVRTC, PTX to cubin by ptxas: flags explicit, outputs cached by content, hashes kept.

The PTX is what the simulator executes and what ptxas assembles for the real GPU, so its text names no machine: the
source goes in under its bare name and the paths of headers are cut to their names.
"""

import hashlib
import json
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from refsim.bundled import bundled
from refsim.device import cache
from refsim.errors import Kind, RefsimError, unknown
from refsim.files.access import read_whole, unreadable
from refsim.ptx.machine.resources import find_ptxas
from refsim.sources import PTX, Source


@dataclass(frozen=True)
class Target:
    """A GPU that kernels are compiled for: `sm_90a` is compiled as `compute_90a`."""

    name: str
    architecture: str
    source: Source


_DIRECTIVE = PTX["PTX module directives, .target"]
TARGETS = (
    Target("sm_80", "compute_80", _DIRECTIVE),
    Target("sm_89", "compute_89", _DIRECTIVE),
    Target("sm_90a", "compute_90a", _DIRECTIVE),
    Target("sm_100a", "compute_100a", _DIRECTIVE),
    Target("sm_120a", "compute_120a", _DIRECTIVE),
)

# --fmad=true is the compilers' default and decides bits, so it is said; a kernel that must not care writes __fmul_rn.
COMPILE_FLAGS = ("--std=c++17", "--fmad=true", "-lineinfo", "--no-source-include")
ASSEMBLE_FLAGS = ("--opt-level=3", "--fmad=true", "--generate-line-info")

_INSTALL = "pip install 'refsim[sim]'"
_BUNDLED_MARK = "// bundled "
_LOG_LINES = 12
MAX_SOURCE = 16 << 20  # characters of one file of a kernel


@dataclass(frozen=True)
class CompiledPtx:
    """PTX and where it came from.

    `sha256` is of `text`; `source_sha256` of the source and the local headers that it includes; `compiler` is
    "NVRTC 13.0.88"; `origin` is "nvrtc" or "bundled" (compiled by the same flags when the package was made).
    """

    text: str
    sha256: str
    source_sha256: str
    target: str
    flags: tuple[str, ...]
    compiler: str
    origin: str


@dataclass(frozen=True)
class Cubin:
    """Machine code for one target: `image` is the ELF file a driver loads, `ptx_sha256` what it came from."""

    image: bytes
    sha256: str
    ptx_sha256: str
    target: str
    flags: tuple[str, ...]
    assembler: str


@dataclass(frozen=True)
class _Unit:
    """A source and its local headers, by the names under which they are included."""

    name: str
    text: str
    headers: tuple[tuple[str, str], ...]

    @property
    def sha256(self) -> str:
        return cache.digest(self.name, self.text, *(part for header in self.headers for part in header))


def target_named(name: str) -> Target:
    """The row of a target; an unknown name is an error that shows the nearest."""
    rows = {row.name: row for row in TARGETS}
    if name not in rows:
        raise unknown("target", name, list(rows))
    return rows[name]


def compile_ptx(source: Path, target: str = "sm_90a", options: tuple[str, ...] = ()) -> CompiledPtx:
    """PTX of a CUDA source for `target`, by NVRTC, or the bundled text where NVRTC is not installed.

    `options` follow the fixed flags (("-DWIDTH=8",)); headers included in quotes are read from beside the file that
    includes them, CUDA's own come from the wheels. The bundled text is taken only if it was made from this very source
    and these flags. Raises RefsimError: `source-unreadable`, `not-a-file`, `oversized-file`, `compile-error` with the first
    lines of the log, `compiler-missing` with the pip line.
    """
    row = target_named(target)
    if isinstance(options, str) or not all(isinstance(option, str) for option in options):
        raise RefsimError(
            "compile-options", f"options is {options!r}", rule="options is a tuple of strings, one per flag"
        )
    unit = _read_unit(Path(source))
    flags = (*COMPILE_FLAGS, f"--gpu-architecture={row.architecture}", *options)
    toolchain = _toolchain()
    if toolchain is None:
        return _bundled(Path(source), unit, target, flags)
    versions, include_directories = toolchain
    key = cache.digest("ptx", unit.name, unit.sha256, *flags, *versions)
    text = cache.entry("ptx", key, lambda: _run_nvrtc(unit, flags, include_directories).encode()).decode()
    return _compiled(text, unit, target, flags, "nvrtc")


def assemble(ptx: CompiledPtx | str, target: str | None = None) -> Cubin:
    """The cubin of a PTX text, by ptxas; `target` defaults to the target of a CompiledPtx.

    ptxas is looked for in the wheel nvidia-cuda-nvcc, then on PATH. Raises RefsimError: `assembler-missing` with the
    pip line, `assemble-error` with the first lines of its log.
    """
    if isinstance(ptx, CompiledPtx):
        text, target = ptx.text, target or ptx.target
    elif target is None:
        raise RefsimError(
            "assemble-target", "a PTX text needs the target that it is assembled for", help='assemble(text, "sm_90a")'
        )
    else:
        text = ptx
    row = target_named(target)
    program = _find_ptxas()
    assembler = _ptxas_version(program)
    flags = (f"--gpu-name={row.name}", *ASSEMBLE_FLAGS)
    key = cache.digest("cubin", text, *flags, assembler)
    image = cache.entry("cubin", key, lambda: _run_ptxas(program, text, flags))
    return Cubin(image, _sha256(image), _sha256(text.encode()), row.name, flags, assembler)


def assembler_version() -> str:
    """The ptxas that `assemble` uses, "ptxas 13.0.88"; RefsimError `assembler-missing` if there is none."""
    return _ptxas_version(_find_ptxas())


def bundled_targets() -> list[str]:
    """The targets for which PTX came with the package; empty in an installation that is damaged."""
    names = {file.name for directory in _kept() for file in directory.iterdir()}
    return [row.name for row in TARGETS if any(name.endswith(f".{row.name}.ptx") for name in names)]


def bundled_text(compiled: CompiledPtx) -> str:
    """What is kept under gpu/ptx: one comment line that says what it was made from, then the PTX."""
    facts = {"source_sha256": compiled.source_sha256, "flags": compiled.flags, "compiler": compiled.compiler}
    return f"{_BUNDLED_MARK}{json.dumps(facts)}\n{compiled.text}"


# ---------------------------------------------------------------------------------------------------------------------
# Reading the source


def _read_unit(source: Path) -> _Unit:
    """A file under two names would be two files to NVRTC, `#pragma once` or not: the second name includes the first."""
    files: dict[str, Path] = {}
    headers: dict[str, str] = {}
    text = _read_text(source)
    pending = [(text, source.parent)]
    while pending:
        including, directory = pending.pop()
        for name in re.findall(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', including, re.MULTILINE):
            path = (directory / name).resolve()
            if not path.is_file():
                continue  # a header of CUDA in quotes
            content = _read_text(path)
            if name not in files:
                first = next((other for other, file in files.items() if file == path), None)
                files[name] = path
                headers[name] = content if first is None else f'#include "{first}"\n'
                pending.append((content, path.parent))
            elif files[name] != path and _read_text(files[name]) != content:
                raise RefsimError(
                    "header-name",
                    f"two files are included as {name!r}",
                    where=str(source),
                    rule="headers are known by the name in their #include",
                    help="rename one of them",
                )
    return _Unit(source.name, text, tuple(sorted(headers.items())))


def _read_text(path: Path) -> str:
    """A regular file that is not too large, as for readers of data. Line ends are normalised, so that a checkout on another
    system has the same hash."""
    help = "give the path of a CUDA source in UTF-8"
    try:
        return read_whole(path, MAX_SOURCE, "a CUDA source").decode().replace("\r\n", "\n")
    except UnicodeDecodeError as problem:
        raise unreadable("source-unreadable", f"cannot read {path.name}: {problem}", str(path), help=help) from problem
    except RefsimError as problem:
        if problem.code != "no-such-file":
            raise
        raise unreadable(
            "source-unreadable", f"cannot read {path.name}: {problem.what}", str(path), help=help
        ) from None


# ---------------------------------------------------------------------------------------------------------------------
# NVRTC

# Wheel, and a header by which its include directory is known.
_HEADER_WHEELS = (
    ("nvidia-cuda-runtime", "include/cuda_fp8.h"),
    ("nvidia-cuda-crt", "include/crt/host_defines.h"),
    ("nvidia-cuda-cccl", "include/cccl/cuda/std/cstdint"),
)


@lru_cache(maxsize=1)
def _toolchain() -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Versions of NVRTC and of the header wheels, and the include directories; None if a part is not installed."""
    try:
        versions = [f"{name} {metadata.version(name)}" for name in ("cuda-bindings", "nvidia-cuda-nvrtc")]
        directories: dict[str, None] = {}
        for name, header in _HEADER_WHEELS:
            directories[str(_wheel_root(name, header) / ("include/cccl" if "cccl" in header else "include"))] = None
            versions.append(f"{name} {metadata.version(name)}")
        from cuda.bindings import nvrtc  # noqa: F401
    except ImportError:  # PackageNotFoundError is one
        return None
    # With --no-source-include a header in quotes is not looked for beside the header that includes it, and those of
    # cooperative groups include one another so.
    groups = [f"{directory}/cooperative_groups{part}" for part in ("", "/details") for directory in directories]
    return tuple(versions), (*directories, *filter(os.path.isdir, groups))


def _wheel_root(name: str, file: str) -> Path:
    """The directory inside an installed wheel that holds `file`; ModuleNotFoundError if there is none."""
    distribution = metadata.distribution(name)
    for path in distribution.files or ():
        if path.as_posix().endswith(f"/{file}"):
            located = Path(str(distribution.locate_file(path)))
            if located.is_file():
                return located.parents[file.count("/")]
    raise ModuleNotFoundError(f"{name} holds no {file}")


def _run_nvrtc(unit: _Unit, flags: tuple[str, ...], include_directories: tuple[str, ...]) -> str:
    from cuda.bindings import nvrtc

    arguments = [flag.encode() for flag in (*flags, *(f"--include-path={path}" for path in include_directories))]
    names = [name.encode() for name, _ in unit.headers]
    contents = [content.encode() for _, content in unit.headers]
    program = _checked(
        nvrtc, nvrtc.nvrtcCreateProgram(unit.text.encode(), unit.name.encode(), len(names), contents, names)
    )
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(arguments), arguments)
        if int(status) != 0:
            log = _buffer(nvrtc, program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
            raise _refused("compile-error", f"NVRTC refused {unit.name}", log, flags)
        text = _buffer(nvrtc, program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return _without_paths(text, include_directories)


def _checked(nvrtc: Any, answer: tuple[Any, ...]) -> Any:
    """The result behind an NVRTC status."""
    status, *results = answer
    if int(status) != 0:
        raise RefsimError(
            "nvrtc", f"NVRTC answered {nvrtc.nvrtcGetErrorString(status)[1].decode()}", kind=Kind.MISSING, help=_INSTALL
        )
    return results[0] if results else None


def _buffer(nvrtc: Any, program: Any, measure: Any, fetch: Any) -> str:
    size: int = _checked(nvrtc, measure(program))
    content = b" " * size  # filled in place by the binding
    _checked(nvrtc, fetch(program, content))
    return content.rstrip(b"\0").decode()


def _without_paths(text: str, include_directories: tuple[str, ...]) -> str:
    """NVRTC puts the working directory before the source's name and names headers by their full paths."""

    def bare(match: re.Match[str]) -> str:
        path = Path(match[2])
        inside = [path.relative_to(root).as_posix() for root in include_directories if path.is_relative_to(root)]
        return f'{match[1]}"{min(inside, key=len, default=path.name)}"'

    return re.sub(r'^(\s*\.file\s+\d+\s+)"([^"]*)"', bare, text, flags=re.MULTILINE)


def _compiled(text: str, unit: _Unit, target: str, flags: tuple[str, ...], origin: str) -> CompiledPtx:
    release = re.search(r"^// Cuda compilation tools, release .*V([\d.]+)", text, re.MULTILINE)
    compiler = f"NVRTC {release[1]}" if release else "NVRTC"
    return CompiledPtx(text, _sha256(text.encode()), unit.sha256, target, flags, compiler, origin)


def _bundled(source: Path, unit: _Unit, target: str, flags: tuple[str, ...]) -> CompiledPtx:
    """The text under ptx beside the directory of the source, of the checkout or of the installed package."""
    name = f"{source.stem}.{target}.ptx"
    beside = source.resolve().parent.parent / "ptx"
    reason = f"no bundled PTX is called {name}"
    for directory in (beside, *_kept()):
        candidate = directory / name
        if not candidate.is_file():
            continue
        first, _, text = candidate.read_bytes().decode().replace("\r\n", "\n").partition("\n")
        facts = json.loads(first.removeprefix(_BUNDLED_MARK)) if first.startswith(_BUNDLED_MARK) else {}
        if facts.get("source_sha256") == unit.sha256 and tuple(facts.get("flags", ())) == flags:
            return _compiled(text, unit, target, flags, "bundled")
        reason = f"the bundled {name} was made from another source or with other flags"
    raise RefsimError(
        "compiler-missing",
        f"{source.name} needs NVRTC and CUDA's headers, which are not installed; {reason}",
        where=str(source),
        help=_INSTALL,
        kind=Kind.MISSING,
    )


def _kept() -> tuple[Path, ...]:
    """The folder of PTX that came with refsim; none in an installation that is damaged."""
    try:
        return (bundled("gpu/ptx"),)
    except RefsimError:
        return ()


# ---------------------------------------------------------------------------------------------------------------------
# ptxas


def _find_ptxas() -> str:
    found = find_ptxas()
    if found is None:
        raise RefsimError(
            "assembler-missing",
            "ptxas is neither in the wheel nvidia-cuda-nvcc nor on PATH",
            help="pip install 'nvidia-cuda-nvcc==13.0.*'",
            kind=Kind.MISSING,
        )
    return found


@lru_cache(maxsize=4)
def _ptxas_version(program: str) -> str:
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    release = re.search(r"V([\d.]+)", answer.stdout)
    return f"ptxas {release[1]}" if release else "ptxas"


def _run_ptxas(program: str, text: str, flags: tuple[str, ...]) -> bytes:
    """Fixed file names, because the image repeats them."""
    with tempfile.TemporaryDirectory(prefix="refsim-") as directory:
        (Path(directory) / "kernel.ptx").write_text(text, encoding="utf-8", newline="\n")
        answer = subprocess.run(
            [program, *flags, "--output-file=kernel.cubin", "kernel.ptx"],
            cwd=directory,
            capture_output=True,
            text=True,
            check=False,
        )
        if answer.returncode != 0:
            raise _refused("assemble-error", "ptxas refused the PTX", answer.stderr or answer.stdout, flags)
        return (Path(directory) / "kernel.cubin").read_bytes()


# Headers of C and C++ that NVRTC has under <cuda/std/>, and such that it has not at all.
_STANDARD = re.compile(
    r'cannot open source file "(?:(array|atomic|bit|functional|limits|optional|span|tuple|type_traits|utility|variant'
    r"|c(?:assert|float|limits|math|stddef|stdint|stdlib|string))|(assert|float|limits|math|stddef|stdint|stdlib|string)\.h"
    r'|algorithm|cstdio|iostream|memory|numeric|stdexcept|stdio\.h|string|vector)"'
)


def _help(log: str) -> str:
    """What to do about a header of the host, which NVRTC lacks."""
    found = _STANDARD.search(log)
    if found is None:
        return ""
    name = found[1] or (f"c{found[2]}" if found[2] else "")
    instead = f"<cuda/std/{name}>, or " if name else ""
    return f"NVRTC has no headers of the host: {instead}PTX that nvcc made (nvcc -ptx -lineinfo) as the file"


def _refused(code: str, what: str, log: str, flags: tuple[str, ...]) -> RefsimError:
    """The error that shows the first lines of a compiler's log."""
    lines = [line.rstrip() for line in log.strip().splitlines() if line.strip()]
    more = f"\n    ({len(lines) - _LOG_LINES} more lines)" if len(lines) > _LOG_LINES else ""
    where = "".join(f"\n    {line}" for line in lines[:_LOG_LINES]) + more
    return RefsimError(code, what, where, f"flags: {' '.join(flags)}", _help(log), kind=Kind.UNREADABLE)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
