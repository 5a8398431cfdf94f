"""CUDA source to PTX by NVRTC, PTX to cubin by ptxas: flags explicit, outputs cached by content, hashes kept.

The PTX is what the simulator executes and what ptxas assembles for the real GPU, so its text names no machine: the
source goes in under its bare name and the paths of headers are cut to their names.
"""

import hashlib
import json
import re
import subprocess
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from refsim.bundled import bundled
from refsim.device import cache, nvrtc
from refsim.device.logs import refused
from refsim.device.sources import Unit, read_unit
from refsim.errors import Kind, RefsimError, unknown
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

_BUNDLED_MARK = "// bundled "


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
    unit = read_unit(Path(source))
    flags = (*COMPILE_FLAGS, f"--gpu-architecture={row.architecture}", *options)
    installed = nvrtc.toolchain()
    if installed is None:
        return _bundled(Path(source), unit, target, flags)
    versions, include_directories = installed
    key = cache.digest("ptx", unit.name, unit.sha256, *flags, *versions)
    text = cache.entry("ptx", key, lambda: nvrtc.compiled(unit, flags, include_directories).encode()).decode()
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
# The PTX and where it came from


def _compiled(text: str, unit: Unit, target: str, flags: tuple[str, ...], origin: str) -> CompiledPtx:
    release = re.search(r"^// Cuda compilation tools, release .*V([\d.]+)", text, re.MULTILINE)
    compiler = f"NVRTC {release[1]}" if release else "NVRTC"
    return CompiledPtx(text, _sha256(text.encode()), unit.sha256, target, flags, compiler, origin)


def _bundled(source: Path, unit: Unit, target: str, flags: tuple[str, ...]) -> CompiledPtx:
    """The text under ptx beside the directory of the source, of the checkout or of the installed package."""
    name = f"{source.stem}.{target}.ptx"
    beside = source.resolve().parent.parent / "ptx"
    reason = f"no bundled PTX is called {name}"
    for directory in (beside, *_kept()):
        candidate = directory / name
        if not candidate.is_file():
            continue
        first, _, text = candidate.read_bytes().decode(errors="replace").replace("\r\n", "\n").partition("\n")
        if _made_from(first) == (unit.sha256, list(flags)):
            return _compiled(text, unit, target, flags, "bundled")
        reason = f"the bundled {name} was made from another source or with other flags"
    raise RefsimError(
        "compiler-missing",
        f"{source.name} needs NVRTC and CUDA's headers, which are not installed; {reason}",
        where=str(source),
        help=nvrtc.INSTALL,
        kind=Kind.MISSING,
    )


def _made_from(line: str) -> tuple[object, object]:
    """The hash of the source and the flags that the first line of a bundled text names; nothing where it is damaged."""
    try:
        facts = json.loads(line.removeprefix(_BUNDLED_MARK)) if line.startswith(_BUNDLED_MARK) else None
    except (ValueError, RecursionError):
        facts = None
    return (facts.get("source_sha256"), facts.get("flags")) if isinstance(facts, dict) else (None, None)


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
            raise refused("assemble-error", "ptxas refused the PTX", answer.stderr or answer.stdout, flags)
        return (Path(directory) / "kernel.cubin").read_bytes()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
