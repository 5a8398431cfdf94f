"""The source files of a kernel's code: the source and every header found next to it and in its folders."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from refsim.device.projects import project_include
from refsim.device.units import included, read_source
from refsim.errors import RefsimError
from refsim.kernel_code import KernelCode


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
