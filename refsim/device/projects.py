"""The project of a CUDA file: `[tool.refsim]` of the nearest pyproject.toml above it."""

import os
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any

from refsim.errors import Kind, RefsimError
from refsim.files.access import checked_path, read_whole

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
