"""What makes machine code of a PTX: each ptxas at each level of optimisation, or a cubin that was given."""

import hashlib
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Protocol

from refsim.blame.statements import Candidate
from refsim.cuda_places import PTXAS_WHEELS
from refsim.device.assembling import OPT_LEVELS, Cubin, assembled_by
from refsim.errors import Kind, RefsimError
from refsim.ptx.machine.assemblers import Assembler, assembler_at, assemblers, ptx_version

ELF = b"\x7fELF"
_BENEATH = (
    "ptxas",
    "bin/ptxas",
    "nvidia/cu*/bin/ptxas",
    "nvidia/cuda_nvcc/bin/ptxas",
    "triton/backends/nvidia/bin/ptxas",
)
"""Where ptxas lies in a folder that is named: of programs, a toolkit, site-packages."""


class Build(Protocol):
    """One way from a PTX text to machine code."""

    @property
    def label(self) -> str: ...
    @property
    def level(self) -> int | None: ...
    @property
    def is_edited(self) -> bool: ...
    @property
    def takes_any_text(self) -> bool:
        """Whether it can be asked for a smaller text."""

    def cubin(self, candidate: Candidate, target: str) -> Cubin:
        """RefsimError where it makes none of that text."""


@dataclass(frozen=True)
class BuiltBy:
    """A ptxas at a level; `is_edited` where it is given the edited copy of a text."""

    assembler: Assembler
    level: int
    is_edited: bool = False
    takes_any_text: bool = True

    @property
    def label(self) -> str:
        return str(self.assembler)

    def cubin(self, candidate: Candidate, target: str) -> Cubin:
        text = candidate.edited if self.is_edited else candidate.text
        return assembled_by(self.assembler, text, target, self.level)


@dataclass(frozen=True)
class GivenCubin:
    """Machine code that somebody made: it is what it is, whatever becomes of the text."""

    path: Path
    image: bytes
    is_edited: bool = True
    level: int | None = None
    takes_any_text: bool = False

    @property
    def label(self) -> str:
        return self.path.name

    def cubin(self, candidate: Candidate, target: str) -> Cubin:
        sha256 = hashlib.sha256(self.image).hexdigest()
        of = hashlib.sha256(candidate.text.encode()).hexdigest()
        return Cubin(self.image, sha256, of, target, (), "given", str(self.path))


def builds_of(
    named: Sequence[Path] = (), levels: Sequence[int] = OPT_LEVELS, *, only_named: bool = False
) -> tuple[BuiltBy, ...]:
    """Every ptxas that is found and every one that is named, at each level; what is found is used once for each release.

    named: programs, or folders (of programs, a toolkit, site-packages). With `only_named` no other is looked for.
    With ptxas 13.0.88 alone and levels (0, 3) there are two. RefsimError `assembler-missing` (exit 4) where there is none,
    `assembler-missing` where what is named is no ptxas.
    Source: defined here.
    """
    found = [] if only_named and named else _once((*assemblers(), *_of_other_wheels()))
    found += [each for path in named for each in _named(path)]
    if not found:
        raise RefsimError(
            "assembler-missing",
            "no ptxas is found here",
            help="pip install 'nvidia-cuda-nvcc==13.0.*', or --ptxas PATH",
            kind=Kind.MISSING,
        )
    return tuple(BuiltBy(each, level) for each in found for level in levels)


def readers_of(text: str, builds: Sequence[BuiltBy]) -> tuple[tuple[BuiltBy, ...], tuple[str, ...]]:
    """The builds whose ptxas reads a text, and a sentence for each ptxas that is too old for it.

    Of PTX 9.0 ptxas 12.9.86, which reads to 8.8, is left out. RefsimError `assembler-too-old` (exit 4) where none reads it.
    Source: PTX ISA, release notes.
    """
    major, minor = ptx_version(text) or (0, 0)
    kept = tuple(each for each in builds if each.assembler.reads >= (major, minor))
    older = dict.fromkeys(each.assembler for each in builds if each.assembler.reads < (major, minor))
    said = [f"{each} ({each.origin}) reads PTX to {each.reads[0]}.{each.reads[1]}" for each in older]
    if not kept:
        help = f"pip install 'nvidia-cuda-nvcc=={major + 4}.{minor}.*'"
        raise RefsimError(
            "assembler-too-old", f"the text is PTX {major}.{minor}: {'; '.join(said)}", help=help, kind=Kind.MISSING
        )
    return kept, tuple(f"not asked, the text is PTX {major}.{minor}: {each}" for each in said)


def _once(found: Iterable[Assembler]) -> list[Assembler]:
    first: dict[str, Assembler] = {}
    for row in found:
        first.setdefault(row.release, row)
    return [*first.values()]


def _of_other_wheels() -> Iterable[Assembler]:
    """Wheels that a second site-packages on the path brings: the first of a name hides the others."""
    for distribution in metadata.distributions():
        if (name := distribution.metadata["Name"]) in PTXAS_WHEELS:
            for file in distribution.files or ():
                if file.name in ("ptxas", "ptxas.exe"):
                    program = str(distribution.locate_file(file))
                    if row := assembler_at(program, f"{name} {distribution.version}"):
                        yield row


def _named(path: Path) -> list[Assembler]:
    programs = sorted({file for each in _BENEATH for file in path.glob(each)}) if path.is_dir() else [path]
    if not path.exists() and (program := shutil.which(path)) is not None:
        programs = [Path(program)]
    found = [row for file in programs if (row := assembler_at(str(file.absolute()), str(file))) is not None]
    if not found:
        raise RefsimError(
            "assembler-missing",
            f"{str(path)!r} is no ptxas that runs",
            where="--ptxas",
            rule="a program that answers --version as ptxas does, or a folder with one: of programs, a toolkit, site-packages",
        )
    return found
