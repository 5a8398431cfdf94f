"""The sources of a kernel: a CUDA file with every header of the user, the files that it is made of, and its project.

A project is `[tool.refsim]` of the nearest pyproject.toml above a file. What a `Unit` holds is the compiler's input, and
what its hash covers.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from refsim.device import cache
from refsim.errors import Kind, RefsimError
from refsim.files.access import bytes_text, checked_path, open_for_reading, read_whole, text_of, unreadable
from refsim.kernel_code import KernelCode

MAX_PROJECT_BYTES = 1 << 20


def paths_of(project: Path, key: str) -> list[Path]:
    """Return the paths that `[tool.refsim] key` lists, relative to the folder of the pyproject.toml.

    Raises RefsimError bad-file for a file that is not TOML, and for entries of a wrong type.
    """

    def wrong(what: str) -> RefsimError:
        return RefsimError("bad-file", what, where=str(project), kind=Kind.UNREADABLE)

    try:
        table = _table(read_whole(project, MAX_PROJECT_BYTES, "a pyproject.toml"))
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, or an integer of 5,000 digits
        raise wrong(f"not TOML: {str(error) or type(error).__name__}") from error
    for name in ("tool", "refsim"):
        table = table.get(name, {})
        if not isinstance(table, dict):
            raise wrong(f"{name} is a table, not {_shown(table)}")
    listed = table.get(key, [])
    if not isinstance(listed, list) or not all(isinstance(path, str) for path in listed):
        raise wrong(f"{key} must be a list of paths, not {_shown(listed)}")
    return [checked_path(project.parent / path) for path in listed]


def project_include(beside: Path) -> list[Path]:
    """Return the folders of `[tool.refsim] include` in the nearest pyproject.toml above a file or folder."""
    place = beside.absolute()
    found = (folder / "pyproject.toml" for folder in (place, *place.parents))
    project = next((file for file in found if os.path.lexists(file)), None)
    return [] if project is None else paths_of(project, "include")


@lru_cache(maxsize=8)
def _table(text: bytes) -> Any:
    """Return the parsed TOML; cached and read-only, because every compilation reads it."""
    return tomllib.loads(text.decode("utf-8"))


def _shown(value: object) -> str:
    text = type(value).__name__ if isinstance(value, int) and value.bit_length() > 64 else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


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
                what = f"a CUDA source of {bytes_text(reader.left)}"
                raise unreadable("too-large", what, str(path), rule=f"at most {bytes_text(MAX_SOURCE)} are read")
            content = bytes(reader.take(reader.left, "the file"))
        return text_of(content, "a CUDA source in UTF-8", str(path), "unreadable-file").replace("\r\n", "\n")
    except RefsimError as problem:
        if problem.code != "no-such-file":
            raise
        raise unreadable(
            "unreadable-file", f"cannot read {path.name}: {problem.what}", str(path), help=problem.help or help
        ) from None


def source_files(code: KernelCode) -> tuple[Path, ...]:
    """Return the readable files of a kernel: its own and the headers that it includes, whatever #if says.

    Headers of CUDA are not included: only headers in the includer's folder, in `include`, and in the project's folders.
    """
    return _looked_for(code)[0]


def watched_files(code: KernelCode) -> tuple[Path, ...]:
    """Return the source files, and every path where a missing header in quotes would be found."""
    found, absent = _looked_for(code)
    return (*found, *absent)


def _looked_for(code: KernelCode) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Return (files found, paths where missing headers in quotes would be)."""
    absent: dict[Path, None] = {}
    found = dict.fromkeys([Path(code.file).absolute()] if code.file is not None else [])
    if code.is_ptx:
        return tuple(found), ()
    folders, seen = _folders(code), set[str | None]()
    pending: list[tuple[str, Path | None]] = [(code.source, None)] if code.source is not None else []
    pending += [(text, file.parent) for file in found for text in _text(file)]
    while pending:
        text, directory = pending.pop()
        for name, quoted in included(text):
            beside = [directory] if quoted and directory is not None else []
            paths = [os.path.join(folder, name) for folder in (*beside, *folders) if name]
            found_at = next((path for path in paths if os.path.isfile(path)), None)  # a name may be too long for a path
            if found_at is None and quoted:
                absent |= dict.fromkeys(map(Path, paths))
            if found_at is not None and found_at not in seen and (path := Path(found_at).resolve()) not in found:
                found[path] = None
                pending += [(content, path.parent) for content in _text(path)]
            seen.add(found_at)
    return tuple(found), tuple(absent)


def _folders(code: KernelCode) -> list[Path]:
    folders = [Path(folder).absolute() for folder in code.include]
    with suppress(RefsimError):
        folders += project_include(Path.cwd() if code.file is None else Path(code.file))
    return folders


def _text(file: Path) -> Iterator[str]:
    with suppress(RefsimError, OSError):
        yield read_source(file)
