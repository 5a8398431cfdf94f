"""CUDA to PTX by NVRTC and by nvcc; the PTX contains no machine paths."""

import re
import subprocess
import tempfile
from pathlib import Path

from refsim.device.compiler_logs import refused
from refsim.device.libnvrtc import NvrtcError, opened
from refsim.device.standard_headers import PROLOGUE, standard_headers
from refsim.device.toolchain import INSTALL, Toolchain, find_nvcc
from refsim.device.units import Unit
from refsim.errors import Kind, RefsimError
from refsim.ptx.text.entry_names import NAMES_MARK

# NVRTC looks for headers in quotes in the folder of the including file; NVIDIA's headers rely on this. The source lies in a
# folder that does not exist, so that files of the working directory are not found; `#line` restores its bare name.
_NOWHERE = "/refsim-source/"


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


def run_nvcc(unit: Unit, source: Path | None, flags: tuple[str, ...], include_directories: tuple[str, ...]) -> str:
    """Return the PTX of a unit by `nvcc -ptx`; a source is compiled in its own folder, where its headers are found."""
    program = find_nvcc()
    if program is None:
        raise RefsimError(
            "compiler-missing",
            'compiler="nvcc", and there is no nvcc on PATH or in a toolkit',
            help=f"install the CUDA toolkit, or leave compiler= away: NVRTC ({INSTALL}) needs no host compiler",
            kind=Kind.MISSING,
        )
    folders = tuple(str(folder.resolve()) for folder in unit.include)
    with tempfile.TemporaryDirectory(prefix="refsim-") as directory:
        path = Path(directory) / unit.name if source is None else source.resolve()
        if source is None:
            path.write_text(unit.text, encoding="utf-8", newline="\n")
        command = [program, "-ptx", "-x", "cu", *flags, *(f"-I{folder}" for folder in folders)]
        answer = subprocess.run(
            [*command, "-o", str(Path(directory) / "kernel.ptx"), str(path)],
            cwd=directory,
            capture_output=True,
            text=True,
            check=False,
        )
        if answer.returncode != 0:
            log = _bare((answer.stderr or answer.stdout).replace(f"{path.parent}/", ""), folders)
            raise refused("compile-error", f"nvcc refused {unit.name}", log, flags)
        text = (Path(directory) / "kernel.ptx").read_text("utf-8")
    return without_paths(text, (str(path.parent), *folders, *include_directories))


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
