"""Run a user's program with the stand-ins in place, and collect what its processes did on the simulated GPU."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TextIO

from refsim.errors import Kind, RefsimError
from refsim_run.records import RunRecord, merged, of_json
from refsim_run.session import TEST_VARIABLE, Settings
from refsim_run.startup import RECORD, SETTINGS, STARTED, USED, VARIABLE

_ENTRY = Path(__file__).parent / "entry"
_PYTHON = ("python", "python3")
_PLUGIN = "refsim_run.limits_plugin"


@dataclass(frozen=True)
class ProgramRun:
    """How a program ended and what its processes did together; `silent` processes used a GPU and left no record.

    `is_interrupted` is set after Ctrl-C.
    """

    command: tuple[str, ...]
    exit_code: int
    record: RunRecord
    processes: int
    silent: int
    is_interrupted: bool = False


def run_program(command: Sequence[str], settings: Settings) -> ProgramRun:
    """Run a command with the stand-ins in each of its Python processes, and return what the processes did.

    `python` and `pytest` run in the Python that runs refsim. The command has this process's input and output. Raises
    RefsimError `missing-argument` and `stand-ins-did-not-start` (exit 4).
    run_program(["python", "-c", "pass"], Settings()).exit_code is 0.
    """
    words = _resolved(command)
    with TemporaryDirectory(prefix="refsim-run-") as name:
        folder = Path(name)
        (folder / SETTINGS).write_text(json.dumps(settings.to_json()))
        code, is_interrupted = _waited(words, _environment(folder))
        records = [of_json(json.loads(each.read_text())) for each in sorted(folder.glob(RECORD.format("*")))]
        started = len(list(folder.glob(STARTED.format("*"))))
        used = {each.name.rpartition("-")[2] for each in folder.glob(USED.format("*"))}
        silent = [name for name in used if not (folder / RECORD.format(name)).exists()]
    if not started and is_interrupted:
        raise KeyboardInterrupt
    if not started:
        raise RefsimError(
            "stand-ins-did-not-start",
            f"no Python of {command[0]!r} imported refsim's stand-ins; the command ended with {code}",
            rule="the command is Python, in an environment that has numpy and ml_dtypes, without -S, -I or -E",
            help="install refsim where that Python is; PYTHONVERBOSE=1 shows why it did not start",
            kind=Kind.MISSING,
        )
    return ProgramRun(tuple(command), code, merged(records, settings.target), started, len(silent), is_interrupted)


def _resolved(command: Sequence[str]) -> list[str]:
    """Return a command with its program resolved: python and pytest become this Python's, a .py file runs in it."""
    first, *rest = command
    if first in _PYTHON:
        return [sys.executable, *rest]
    if first == "pytest":
        return [sys.executable, "-m", "pytest", *rest]
    if first.endswith(".py"):
        return [sys.executable, first, *rest]
    found = shutil.which(first)
    if found is None:
        raise RefsimError(
            "missing-argument",
            f"no program is called {first!r}",
            help="refsim run -- python program.py, or refsim run -- pytest tests",
            kind=Kind.MISSING,
        )
    return [found, *rest]


def _environment(folder: Path) -> dict[str, str]:
    kept = os.environ.get("PYTHONPATH", "")
    plugins = os.environ.get("PYTEST_PLUGINS", "")
    inherited = {name: value for name, value in os.environ.items() if name != TEST_VARIABLE}
    return {
        **inherited,
        VARIABLE: str(folder),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_ENTRY), kept))),
        "PYTEST_PLUGINS": ",".join(filter(None, (plugins, _PLUGIN))),
    }


def _waited(words: list[str], environment: dict[str, str]) -> tuple[int, bool]:
    """Run a command; return its exit code (128 + n where signal n ended it) and whether Ctrl-C was pressed.

    Ctrl-C reaches the command too: the command ends first, and what it did is still reported.
    """
    is_interrupted = False
    into = None if _is_a_file(sys.stdout) else subprocess.PIPE
    try:
        process = subprocess.Popen(words, env=environment, stdout=into, text=True)
    except OSError as problem:
        raise RefsimError(
            "missing-argument",
            f"{words[0]} cannot be started: {(problem.strerror or str(problem)).lower()}",
            kind=Kind.MISSING,
        ) from problem
    with process:
        try:
            for line in process.stdout or ():
                sys.stdout.write(line)
            code = process.wait()
        except KeyboardInterrupt:
            is_interrupted = True
            code = process.wait()
    return (128 - code if code < 0 else code), is_interrupted


def _is_a_file(stream: TextIO) -> bool:
    """Return whether a process can write to a stream directly; a stream of a notebook or a test has no file."""
    try:
        return stream.fileno() >= 0
    except (AttributeError, OSError):
        return False
