"""A CUDA source with every header of the user that it includes: the compiler's input, and what its hash covers."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from refsim.device import cache
from refsim.errors import RefsimError
from refsim.files.access import bytes_text, open_for_reading, text_of, unreadable
from refsim.kernel_code import KernelCode

MAX_SOURCE = 16 << 20  # characters of one file of a kernel
TEXT_NAME = "source.cu"
"""The name of a CUDA text without a file in errors and line numbers."""
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>|([A-Za-z_]\w*))', re.MULTILINE)


@dataclass(frozen=True)
class Unit:
    """A source and its headers.

    `headers`: headers in the source's folder, as (name in the #include, text); refsim passes them to the compiler.
    `include`: folders whose headers the compiler reads itself; `found` holds (name, hash) of each.
    """

    name: str
    text: str
    headers: tuple[tuple[str, str], ...]
    include: tuple[Path, ...] = ()
    found: tuple[tuple[str, str], ...] = ()

    @property
    def sha256(self) -> str:
        """Return the hash of the source and all its headers."""
        of_folders = [part for header in self.found for part in header]
        return cache.digest(self.name, self.text, *(part for header in self.headers for part in header), *of_folders)


def read_unit(code: KernelCode, folders: Sequence[Path] = ()) -> Unit:
    """Return the unit of a CUDA file or text; `folders` are the folders of its `include` and of its project.

    A file under two names would be two files for a compiler, even with `#pragma once`: the second name includes the
    first.
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


@lru_cache(maxsize=256)
def included(text: str) -> tuple[tuple[str, bool], ...]:
    """Return (name, is in quotes) of each header that a text includes; the name is "" if a macro gives it."""
    return tuple((match[1] or match[2] or "", match[1] is not None) for match in _INCLUDE.finditer(text))


def _beside(source: Path, text: str) -> dict[str, str]:
    """Return the text of each header in quotes that lies in its includer's folder, by the name in the #include."""
    files: dict[str, Path] = {}
    headers: dict[str, str] = {}
    pending = [(text, source.parent)]
    while pending:
        including, directory = pending.pop()
        for name in (name for name, quoted in included(including) if quoted):
            if not os.path.isfile(directory / name):
                continue  # a header of another folder in quotes; or a name that is too long for a path
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
    """Return (name, hash) of each header in the folders that may be read; of all headers if a macro names one."""
    if not folders:
        return {}
    found: dict[Path, str] = {}
    seen: set[str] = set()
    pending = list(texts)
    while pending:
        text, directory = pending.pop()
        for name, quoted in included(text):
            if not name:
                continue
            beside = [directory] if quoted and directory is not None else []
            tried = (os.path.join(folder, name) for folder in (*beside, *folders))
            at = next((path for path in tried if os.path.isfile(path)), None)
            if at is None or at in seen or (path := Path(at).resolve()) in found:
                continue
            seen.add(at)
            content = read_source(path)
            found[path] = cache.digest(content)
            pending.append((content, path.parent))
            if any(not each for each, _ in included(content)):
                every = (file for folder in folders for file in folder.rglob("*") if file.is_file())
                found |= {file.resolve(): cache.digest(file.read_bytes()) for file in every}
    roots = [folder.resolve().as_posix().rstrip("/") + "/" for folder in folders]
    return {_inside(path, roots): digest for path, digest in found.items()}


def _inside(path: Path, roots: Sequence[str]) -> str:
    """Return the path relative to its folder, which names no machine; `roots` end with a slash."""
    whole = path.as_posix()
    return min((whole.removeprefix(root) for root in roots if whole.startswith(root)), key=len, default=path.name)


def read_source(path: Path) -> str:
    """Return the text of a CUDA source with normalized line ends, so that its hash is equal on every system.

    Raises RefsimError for files that are too large or that cannot be read as UTF-8.
    """
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
