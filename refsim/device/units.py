"""A CUDA source with every header of the user's that it includes: what is compiled, and what its hash covers."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from refsim.device import cache
from refsim.errors import RefsimError
from refsim.files.access import bytes_text, open_for_reading, text_of, unreadable
from refsim.kernel_code import KernelCode

MAX_SOURCE = 16 << 20  # characters of one file of a kernel
TEXT_NAME = "source.cu"
"""How a CUDA text without a file is called in errors and line numbers."""
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>|([A-Za-z_]\w*))', re.MULTILINE)


@dataclass(frozen=True)
class Unit:
    """A source and its headers. Those from beside it go to the compiler by the names under which they are included
    (`headers`); those of the `include` folders are read there by the compiler itself, and `found` is the hash of each."""

    name: str
    text: str
    headers: tuple[tuple[str, str], ...]
    include: tuple[Path, ...] = ()
    found: tuple[tuple[str, str], ...] = ()

    @property
    def sha256(self) -> str:
        of_folders = [part for header in self.found for part in header]
        return cache.digest(self.name, self.text, *(part for header in self.headers for part in header), *of_folders)


def read_unit(code: KernelCode, folders: Sequence[Path] = ()) -> Unit:
    """The unit of a CUDA file or text; `folders` are those of its `include` and of its project.

    A file under two names would be two files to a compiler, `#pragma once` or not: the second name includes the first.
    """
    for folder in folders:
        if not os.path.isdir(folder):
            raise RefsimError("no-such-file", f"{folder} is not a folder", rule="include names folders of headers")
    if code.file is None:
        text = (code.source or "").replace("\r\n", "\n")
        headers: dict[str, str] = {}
        name, texts = TEXT_NAME, [(text, None)]
    else:
        source = Path(code.file)
        text = read_source(source)
        headers = _beside(source, text)
        name, texts = source.name, [(text, None), *((content, None) for content in headers.values())]
    found = _in_folders(texts, folders)
    return Unit(name, text, tuple(sorted(headers.items())), tuple(folders), tuple(sorted(found.items())))


def included(text: str) -> Iterator[tuple[str, bool]]:
    """The names that a text includes, and whether in quotes; "" for a name that a macro gives."""
    for match in _INCLUDE.finditer(text):
        yield match[1] or match[2] or "", match[1] is not None


def _beside(source: Path, text: str) -> dict[str, str]:
    files: dict[str, Path] = {}
    headers: dict[str, str] = {}
    pending = [(text, source.parent)]
    while pending:
        including, directory = pending.pop()
        for name in (name for name, quoted in included(including) if quoted):
            if not os.path.isfile(directory / name):
                continue  # a header of CUDA or of a folder, in quotes; or a name that is too long for a path
            path = (directory / name).resolve()
            content = read_source(path)
            if name not in files:
                first = next((other for other, file in files.items() if file == path), None)
                files[name] = path
                headers[name] = content if first is None else f'#include "{first}"\n'
                pending.append((content, path.parent))
            elif files[name] != path and read_source(files[name]) != content:
                raise RefsimError(
                    "name-taken",
                    f"two files are included as {name!r}",
                    where=str(source),
                    rule="headers are known by the name in their #include",
                    help="rename one of them",
                )
    return headers


def _in_folders(texts: Sequence[tuple[str, Path | None]], folders: Sequence[Path]) -> dict[str, str]:
    """Name and hash of each header that may be read from the folders, whatever #if says; all of them where a macro names one."""
    if not folders:
        return {}
    found: dict[Path, str] = {}
    pending = list(texts)
    while pending:
        text, directory = pending.pop()
        for name, quoted in included(text):
            if not name:
                continue
            beside = [directory] if quoted and directory is not None else []
            path = next((path for folder in (*beside, *folders) if os.path.isfile(path := folder / name)), None)
            if path is None or (path := path.resolve()) in found:
                continue
            content = read_source(path)
            found[path] = cache.digest(content)
            pending.append((content, path.parent))
            if any(not each for each, _ in included(content)):
                found |= {file: cache.digest(file.read_bytes()) for folder in folders for file in _files(folder)}
    return {_inside(path, folders): digest for path, digest in found.items()}


def _files(folder: Path) -> list[Path]:
    return [path.resolve() for path in folder.rglob("*") if path.is_file()]


def _inside(path: Path, folders: Sequence[Path]) -> str:
    """The path below its folder, which names no machine."""
    below = [
        path.relative_to(folder.resolve()).as_posix() for folder in folders if path.is_relative_to(folder.resolve())
    ]
    return min(below, key=len, default=path.name)


def read_source(path: Path) -> str:
    """A regular file that is not too large, as for readers of data. Line ends are normalised, so that a checkout on another
    system has the same hash."""
    help = "give the path of a CUDA source in UTF-8"
    try:
        with open_for_reading(path) as reader:
            if reader.left > MAX_SOURCE:
                raise unreadable(
                    "too-large",
                    f"a CUDA source of {bytes_text(reader.left)}",
                    str(path),
                    rule=f"at most {bytes_text(MAX_SOURCE)} are read",
                )
            content = bytes(reader.take(reader.left, "the file"))
        return text_of(content, "a CUDA source in UTF-8", str(path), "unreadable-file").replace("\r\n", "\n")
    except RefsimError as problem:
        if problem.code != "no-such-file":
            raise
        raise unreadable(
            "unreadable-file", f"cannot read {path.name}: {problem.what}", str(path), help=problem.help or help
        ) from None
