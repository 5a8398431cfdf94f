"""The builds of a PTX text: each ptxas at each optimization level, or a cubin that the user gave."""

import hashlib
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

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
"""Paths of ptxas in a folder that the user gives: a folder of programs, a toolkit, or site-packages."""


@dataclass(frozen=True)
class BuiltBy:
    """A ptxas at one level; `is_edited` where it compiles the edited copy of a text."""

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
    """Machine code that the user gave: it stays as it is when the text changes."""

    path: Path
    image: bytes
    is_edited: bool = True
    level: int | None = None
    takes_any_text: bool = False

    @property
    def label(self) -> str:
        return self.path.name

    def cubin(self, candidate: Candidate, target: str) -> Cubin:
        """Return the given image, with the hash of the candidate's text."""
        sha256 = hashlib.sha256(self.image).hexdigest()
        of = hashlib.sha256(candidate.text.encode()).hexdigest()
        return Cubin(self.image, sha256, of, target, (), "given", str(self.path))


@dataclass(frozen=True)
class OnSimulator:
    """The edited text as the simulator executes it, without machine code."""

    label: str = "simulator"
    level: int | None = None
    is_edited: bool = True
    takes_any_text: bool = True

    def cubin(self, candidate: Candidate, target: str) -> Cubin:
        """Raise RefsimError: the simulator has no machine code."""
        raise RefsimError("needs-a-gpu", "the simulated GPU executes PTX, and not what ptxas makes of it")


Build = BuiltBy | GivenCubin | OnSimulator
"""One way from a PTX text to machine code; `takes_any_text` says whether it can compile a smaller text."""


def builds_of(
    named: Sequence[Path] = (), levels: Sequence[int] = OPT_LEVELS, *, only_named: bool = False
) -> tuple[BuiltBy, ...]:
    """Return a build for every ptxas found or given and for each level; found programs are used once for each release.

    `named`: programs, or folders (of programs, a toolkit, site-packages). `only_named` looks for no other.
    With ptxas 13.0.88 alone and levels (0, 3) there are two builds. Raises RefsimError `assembler-missing` (exit 4)
    where there is no ptxas, and where a given path is not a ptxas that runs.
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
    """Return the builds whose ptxas reads a text, and a sentence for each ptxas that is too old for it.

    ptxas 12.9.86 reads PTX up to 8.8 and is left out for a text of PTX 9.0. Raises RefsimError `assembler-too-old`
    (exit 4) where no ptxas reads the text.
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
    """Return the first assembler of each release."""
    first: dict[str, Assembler] = {}
    for row in found:
        first.setdefault(row.release, row)
    return [*first.values()]


def _of_other_wheels() -> Iterable[Assembler]:
    """Yield the ptxas of wheels in a second site-packages on the path, where the first hides them."""
    for distribution in metadata.distributions():
        if (name := distribution.metadata["Name"]) in PTXAS_WHEELS:
            for file in distribution.files or ():
                if file.name in ("ptxas", "ptxas.exe"):
                    program = str(distribution.locate_file(file))
                    if row := assembler_at(program, f"{name} {distribution.version}"):
                        yield row


def _named(path: Path) -> list[Assembler]:
    """Return the ptxas programs at a path: a program, a folder, or a name on PATH. Raises RefsimError for none."""
    programs = sorted({file for each in _BENEATH for file in path.glob(each)}) if path.is_dir() else [path]
    if not path.exists() and (program := shutil.which(path)) is not None:
        programs = [Path(program)]
    found = [row for file in programs if (row := assembler_at(str(file.absolute()), str(file))) is not None]
    if not found:
        raise RefsimError(
            "assembler-missing",
            f"{str(path)!r} is not a ptxas that runs",
            where="--ptxas",
            rule="a program that answers --version as ptxas does, or a folder with one: of programs, a toolkit, site-packages",
        )
    return found
