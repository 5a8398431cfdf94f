"""PTX to cubin by ptxas: the ptxas of the text's producer, or the default one; outputs are cached by content."""

import hashlib
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from refsim.device import cache
from refsim.device.compiler_logs import refused
from refsim.errors import Kind, RefsimError
from refsim.ptx.machine.assemblers import Assembler, Version, assembler_for, assemblers, ptx_version
from refsim.render.cards import Card, Facts

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
    return Cubin(
        image,
        hashlib.sha256(image).hexdigest(),
        hashlib.sha256(text.encode()).hexdigest(),
        target,
        flags,
        str(assembler),
        assembler.origin,
        registers,
    )


def required_assembler(text: str) -> Assembler:
    """Return the ptxas for a text; raise RefsimError with the versions that are installed if none reads it."""
    found = assembler_for(text)
    if found is not None:
        return found
    here = assemblers()
    if not here:
        raise RefsimError(
            "assembler-missing",
            "ptxas is neither in a wheel (nvidia-cuda-nvcc, triton) nor in a toolkit or on PATH",
            help="pip install 'nvidia-cuda-nvcc==13.0.*', which refsim[gpu] brings",
            kind=Kind.MISSING,
        )
    raise _assembler_too_old_error(ptx_version(text) or (0, 0), "which no ptxas here reads", here)


def _assembler_too_old_error(wanted: Version, reason: str, here: tuple[Assembler, ...]) -> RefsimError:
    """Return the error for PTX of version `wanted` and the wheel that can read it; `here` are the installed ones."""
    ptx_major, minor = wanted
    cuda_major = ptx_major + 4  # PTX 9.x ships with CUDA 13.x
    read = ", ".join(f"{each} ({each.origin}) to {each.reads[0]}.{each.reads[1]}" for each in here)
    return RefsimError(
        "assembler-too-old",
        f"the text is PTX {ptx_major}.{minor}, {reason}: {read}",
        rule="a ptxas reads PTX up to the version of its CUDA release",
        help=f"pip install 'nvidia-cuda-nvcc=={cuda_major}.{minor}.*'",
        kind=Kind.MISSING,
    )


def _run(program: str, text: str, flags: tuple[str, ...]) -> tuple[bytes, str]:
    """Return the image and the log of one run of ptxas; file names are fixed because the image contains them."""
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
            raise refused("compile-error", "ptxas refused the PTX", answer.stderr or answer.stdout, flags)
        return (Path(directory) / "kernel.cubin").read_bytes(), answer.stderr + answer.stdout
