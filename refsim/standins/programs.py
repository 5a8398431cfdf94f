"""A program of somebody's, started with the stand-ins in place; what its processes did on the simulated GPU."""

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
from refsim.standins.records import RunRecord, merged, of_json
from refsim.standins.session import TEST_VARIABLE, Settings
from refsim.standins.startup import RECORD, SETTINGS, STARTED, USED, VARIABLE

_ENTRY = Path(__file__).parent / "entry"
_PYTHON = ("python", "python3")
_PLUGIN = "refsim.standins.limits_plugin"


@dataclass(frozen=True)
class ProgramRun:
    """How a program ended, what its processes did together, and how many of them used a GPU and never said what they did;
    `is_interrupted` by Ctrl-C."""

    command: tuple[str, ...]
    exit_code: int
    record: RunRecord
    processes: int
    silent: int
    is_interrupted: bool = False


def run_program(command: Sequence[str], settings: Settings) -> ProgramRun:
    """Start a command with the stand-ins in every Python of it, wait for it, and read what was done.

    `python` and `pytest` are those of the Python that runs refsim. Its input and output are this process's. Raises
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
    """The words of a command with the program found: python and pytest are this Python's."""
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
    """The exit code of a command, 128 + n of one that signal n ended; and whether Ctrl-C was pressed, which reaches it too: it
    ends first, and what it did is reported."""
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
    """Whether a process can write to a stream itself: one in a notebook, or in a test, has no file."""
    try:
        return stream.fileno() >= 0
    except (AttributeError, OSError):
        return False
