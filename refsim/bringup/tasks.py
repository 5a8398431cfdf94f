"""One case before it has run, and the case of an error."""

import hashlib
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from refsim.bringup.report import DIFFERS, LEFT_OUT, Case, Difference
from refsim.errors import Kind, RefsimError
from refsim.testing.verdicts import UNSUPPORTED


@dataclass(frozen=True)
class Task:
    """A case by name; `run` returns it without suite, name and time, or raises RefsimError."""

    name: str
    run: Callable[[], Case]


def outcome(status: str, **facts: object) -> Case:
    """Return a task's result: a Case whose suite and name the run adds."""
    return Case("", "", status, **facts)  # type: ignore[arg-type]


def refused(error: RefsimError) -> Case:
    """Return the case that ended in an error. A fault on the device is a difference. A missing tool means that the case
    was not run. Any other error means that this device or its compiler lacks a requirement of the case."""
    first = f"{error.what}" + (f" ({error.where.strip()})" if error.where and len(error.where) < 80 else "")
    if error.kind is Kind.FAULT:
        return outcome(DIFFERS, note=first, difference=Difference((str(error),), error.code, "a launch that ends"))
    if error.kind is Kind.MISSING:
        return outcome(LEFT_OUT, note=f"{first}: {error.help}" if error.help else first)
    return outcome(UNSUPPORTED, note=first)


def broken(error: Exception) -> Case:
    """Return the case in which refsim itself failed: not run, with the place of the failure."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return outcome(LEFT_OUT, note=f"a bug of refsim: {type(error).__name__}: {error}{place}", bug=True)


def hashed(files: Sequence[Path]) -> str:
    """Return SHA-256 over names and contents of files."""
    state = hashlib.sha256()
    for file in sorted(files):
        state.update(f"{file.name} {file.stat().st_size}\n".encode())
        state.update(file.read_bytes())
    return state.hexdigest()
