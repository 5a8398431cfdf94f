"""The source lines that a finding names: a few lines of the file with that line marked."""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from refsim.device.kernel_sources import TEXT_NAME, read_source, source_files
from refsim.errors import RefsimError
from refsim.kernels import Kernel
from refsim.render import Excerpt
from refsim.testing.verdicts import Verdict

AROUND = 2
MOST = 2
"""The number of places shown for one finding: the two accesses of a race."""
_CODE_LINE = re.compile(r"([\w.+-]+\.(?:cu|cuh|h|hh|hpp|hxx|inl|inc|c|cc|cpp|cxx|py)):(\d{1,7})\b")
_REFUSED_LINE = re.compile(r"([\w.+-]+\.\w+)\((\d{1,7})\): (?:catastrophic |fatal )?error\b")
_PTX_LINE = re.compile(r"\bPTX line (\d{1,7})\b")


@dataclass(frozen=True)
class _Place:
    """A line of a text; `file` is the file that contains it, None for a text in memory."""

    name: str
    lines: tuple[str, ...]
    line: int
    file: Path | None
    file_line: int | None


def excerpts(verdict: Verdict, kernel: Kernel) -> tuple[Excerpt, ...]:
    """Return the places that a verdict's finding names, the most important first; none if no source can be read.

    The first place is where a fault happened. For differing bits it is the statement of a candidate cause, else the
    statement that wrote the first element. For PTX without CUDA lines it is the line of the PTX.
    """
    shown: list[Excerpt] = []
    for place in _places(verdict.finding, kernel):
        first, last = max(place.line - AROUND, 1), min(place.line + AROUND, len(place.lines))
        if any(each.name == place.name and each.first <= place.line <= each.last for each in shown):
            continue
        rows = tuple((number, place.lines[number - 1]) for number in range(first, last + 1))
        shown.append(Excerpt(place.name, place.line, rows, place.file, place.file_line))
        if len(shown) == MOST:
            break
    return tuple(shown)


def place_of(error: RefsimError, kernel: Kernel) -> tuple[str, int] | None:
    """Return (file, line) of a kernel's error: the first line that the compiler refused, else the first that it
    names."""
    if error.place is not None:
        return error.place
    said = f"{error.where}\n{error.what}"
    refused = "\n".join(f"{match[1]}:{match[2]}" for match in _REFUSED_LINE.finditer(said))
    for place in _places(f"{refused}\n{said}", kernel):
        if place.file is not None and place.file_line is not None:
            return str(place.file), place.file_line
    return None


def _places(finding: str, kernel: Kernel) -> Iterator[_Place]:
    """Yield the places that a finding names, in the kernel's sources, its declaring file, or else its PTX."""
    named = dict.fromkeys(
        (match[1], int(match[2])) for line in _by_weight(finding) for match in _CODE_LINE.finditer(line)
    )
    files: dict[str, list[Path]] = {}
    for file in (*source_files(kernel.code), *([kernel.declared_in] if kernel.declared_in is not None else [])):
        files.setdefault(file.name, []).append(file)
    seen = False
    for name, line in named:
        if name == TEXT_NAME and kernel.source is not None:
            found = _in_text(kernel, kernel.source, name, line)
        else:
            found = _in_files(files.get(name, []), line)
        if found is not None:
            seen = True
            yield found
    if seen or not kernel.code.is_ptx:
        return
    for text_line in _by_weight(finding):
        for match in _PTX_LINE.finditer(text_line):
            in_ptx = (
                _in_text(kernel, kernel.ptx, "PTX", int(match[1]))
                if kernel.ptx is not None
                else _in_files(list(source_files(kernel.code)), int(match[1]))
            )
            if in_ptx is not None:
                yield in_ptx


def _by_weight(finding: str) -> list[str]:
    """Return the lines of a finding: the place of a fault, then candidate causes, then the rest in order."""
    weights = {"at:": 0, "likely": 1}
    return sorted(finding.splitlines(), key=lambda line: weights.get(next(iter(line.split()), ""), 2))


def _in_files(files: list[Path], line: int) -> _Place | None:
    """Return the line in the only file with this name; None if several files have it."""
    if len(files) != 1:
        return None
    with suppress(RefsimError, OSError):
        lines = tuple(read_source(files[0]).split("\n"))
        if line <= len(lines) and line:
            return _Place(files[0].name, lines, line, files[0], line)
    return None


def _in_text(kernel: Kernel, text: str, name: str, line: int) -> _Place | None:
    """Return a line of a text in memory, and its place in the declaring file if that contains the text verbatim."""
    lines = tuple(text.replace("\r\n", "\n").split("\n"))
    if not 1 <= line <= len(lines):
        return None
    file_line = None
    if kernel.declared_in is not None:
        with suppress(RefsimError, OSError):
            content = read_source(kernel.declared_in)
            if content.count(text) == 1:
                file_line = content[: content.find(text)].count("\n") + line
    return _Place(name, lines, line, kernel.declared_in if file_line else None, file_line)
