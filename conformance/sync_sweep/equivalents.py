"""Edits that change nothing, each with the reason: rows of equivalents.toml."""

import fnmatch
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from conformance.sync_sweep.trials import Outcome

FILE = Path(__file__).with_name("equivalents.toml")


@dataclass(frozen=True)
class Equivalent:
    """A reason why some edits leave a kernel what it was. `kernels` and `edits` are patterns of names; the texts of `at` stand in
    the lines of CUDA that led to the statement, from the inside out."""

    name: str
    kernels: tuple[str, ...]
    edits: tuple[str, ...]
    at: tuple[str, ...]
    because: str

    def covers(self, outcome: Outcome) -> bool:
        """Whether an edit is one of these."""
        edit = outcome.edit
        return (
            any(fnmatch.fnmatch(outcome.subject, each) for each in self.kernels)
            and any(fnmatch.fnmatch(edit.name, each) for each in self.edits)
            and len(self.at) <= len(edit.where)
            and all(text in line for text, line in zip(self.at, edit.where, strict=False))
        )


@cache
def equivalents() -> tuple[Equivalent, ...]:
    """The rows, in the order of the file."""
    rows = tomllib.loads(FILE.read_text("utf-8"))
    return tuple(
        Equivalent(name, tuple(row["kernels"]), tuple(row["edits"]), tuple(row.get("at", ())), row["because"])
        for name, row in rows.items()
    )
