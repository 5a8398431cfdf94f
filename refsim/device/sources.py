"""A CUDA source and the local headers that it includes, read as one unit with one hash."""

import re
from dataclasses import dataclass
from pathlib import Path

from refsim.device import cache
from refsim.errors import RefsimError
from refsim.files.access import read_whole, unreadable

MAX_SOURCE = 16 << 20  # characters of one file of a kernel


@dataclass(frozen=True)
class Unit:
    """A source and its local headers, by the names under which they are included."""

    name: str
    text: str
    headers: tuple[tuple[str, str], ...]

    @property
    def sha256(self) -> str:
        return cache.digest(self.name, self.text, *(part for header in self.headers for part in header))


def read_unit(source: Path) -> Unit:
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
    return Unit(source.name, text, tuple(sorted(headers.items())))


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
