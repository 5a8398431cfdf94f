"""Replay cases: a small JSON file that rebuilds one test case of one kernel and runs it once."""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from refsim.device import Device
from refsim.errors import Kind, RefsimError
from refsim.files.access import checked_path, read_whole, text_of
from refsim.kernels import Kernel
from refsim.testing.explained import likely_causes
from refsim.testing.kernel_files import bundled_kernel_files, kernel_named, kernel_paths, project_folder
from refsim.testing.recipes import from_json, to_json
from refsim.testing.runs import run_problem
from refsim.testing.suspects import OutOfTimeError
from refsim.testing.verdicts import FAIL, Verdict

CASE_VERSION = 1
MAX_CASE_BYTES = 1 << 20
SUSPECT_SECONDS = 10.0
KEYS = {"refsim_case": int, "kernels": str, "kernel": str, "problem": dict, "device": dict, "finding": str}


def write_case(folder: Path, kernel: Kernel, problem: Any, device: Mapping[str, str], finding: str) -> Path:
    """Write the case atomically and return its path; the file name is the kernel and a hash of the test case.

    `kernels` is the path of the declaring file, relative to the case if that is possible.
    """
    recipe = to_json(problem)
    digest = hashlib.sha256(json.dumps([kernel.name, recipe], sort_keys=True).encode()).hexdigest()[:10]
    declared = "" if kernel.declared_in is None else os.path.relpath(kernel.declared_in, folder)
    record = {"refsim_case": CASE_VERSION, "kernels": declared, "kernel": kernel.name}
    record |= {"problem": recipe, "device": dict(device), "finding": finding}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kernel.name[:80]}-{digest}.json"
    handle, unfinished = tempfile.mkstemp(dir=folder, prefix=f".{path.stem}-", suffix=".json")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
            file.write("\n")
        Path(unfinished).replace(path)
    except BaseException:
        Path(unfinished).unlink(missing_ok=True)
        raise
    return path


def load_case(path: str | Path, kernel: Kernel | None = None, *, trust: bool = False) -> tuple[Kernel, Any]:
    """Return the kernel and the test case of a file; `kernel` replaces the kernel that the file names.

    The file is at most 1 MiB; its fields are checked, and the kernel's own recipe class decides what is built. The
    Python file that it names is executed only if it is `trusted`, or with `trust`. Raises RefsimError: `untrusted-case`
    (exit 2), `bad-file` (exit 3) for any other file.
    """
    case = checked_path(path)
    record = _record(case)
    if kernel is None:
        file = _kernel_file(case, record)
        if file is not None and not trust and not trusted(file, case):
            what = f"the case names {file}, which lies outside the project"
            rule = "to replay a case is to run the Python file that it names; files of this project run unasked"
            help = "read that file, then: refsim replay --trust CASE"
            raise RefsimError("untrusted-case", what, where=str(case), rule=rule, help=help)
        kernel = kernel_named(record["kernel"]) if file is None else kernel_named(record["kernel"], [file])
    elif kernel.name != record["kernel"]:
        raise RefsimError("wrong-kernel", f"the case is of {record['kernel']!r}, not {kernel.name!r}", where=str(case))
    return kernel, from_json(kernel.recipe, record["problem"], where=f"{case}: problem")


def file_to_trust(path: str | Path) -> Path | None:
    """Return the Python file outside the project that a case names; None if a replay executes no such file."""
    case = checked_path(path)
    file = _kernel_file(case, _record(case))
    return file if file is not None and not trusted(file, case) else None


def trusted(file: Path, case: Path) -> bool:
    """Return whether a file belongs to the project of the working directory or of the case, or to refsim.

    A project is the nearest folder above with a pyproject.toml or a .git, else the working directory. Links and `..`
    are resolved first. Files that this pyproject.toml lists belong to the project wherever they lie.
    """
    real = Path(os.path.realpath(file))
    here = Path(os.path.realpath(os.getcwd()))
    folders = [project_folder(here) or here, project_folder(Path(os.path.realpath(case)).parent)]
    if any(folder is not None and real.is_relative_to(folder) for folder in folders):
        return True
    return real in (Path(os.path.realpath(each)) for each in (*bundled_kernel_files(), *kernel_paths()))


def _kernel_file(case: Path, record: Mapping[str, Any]) -> Path | None:
    return checked_path(case.parent / record["kernels"]) if record["kernels"] else None


def replay_case(
    path: str | Path,
    device: Device,
    kernel: Kernel | None = None,
    *,
    trust: bool = False,
    suspect_seconds: float = SUSPECT_SECONDS,
) -> Verdict:
    """Run a case once on a device and return its verdict, as `refsim replay PATH` does.

    If bits differ, refsim searches for candidate causes for at most `suspect_seconds`; 0: no search. `trust` executes
    the Python file that the case names even outside the project. Raises RefsimError for a case that cannot be read, or
    whose kernel is not found; `untrusted-case` for a file outside the project. Source: defined here.
    """
    kernel, problem = load_case(path, kernel, trust=trust)
    verdict = run_problem(kernel, problem, device, replay=str(path))
    if verdict.status != FAIL or verdict.mismatch is None or suspect_seconds <= 0:
        return verdict
    if any(line.startswith(f"{name}: ") for name in kernel.suspects for line in verdict.mismatch.suspects):
        return verdict
    try:
        lines = tuple(map(str, likely_causes(kernel, device, problem, (), seconds=suspect_seconds)))
    except OutOfTimeError as ended:
        return replace(verdict, notes=(*verdict.notes, ended.note(suspect_seconds)))
    mismatch = replace(verdict.mismatch, suspects=(*verdict.mismatch.suspects, *lines))
    finding = "\n".join((verdict.finding, *(f"likely cause: {line}" for line in lines)))
    return replace(verdict, finding=finding, mismatch=mismatch, worst=mismatch)


_WANTED = "the JSON file of a failed case, which `refsim verify` writes and names after `repeat`"


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _record(case: Path) -> dict[str, Any]:
    """Return the checked fields of a case; raise RefsimError bad-file for a file that is not a case."""

    def refuse(what: str) -> RefsimError:
        return RefsimError("bad-file", what, where=str(case), help=f"give {_WANTED}", kind=Kind.UNREADABLE)

    try:
        text = text_of(read_whole(case, MAX_CASE_BYTES, "a case"), _WANTED, str(case))
    except RefsimError as error:
        raise refuse(error.what) from error
    try:
        record = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise refuse(f"not JSON: {error}") from error
    if not isinstance(record, dict) or set(record) != set(KEYS):
        raise refuse(f"a case has exactly the fields {', '.join(KEYS)}")
    for key, kind in KEYS.items():
        if type(record[key]) is not kind:
            raise refuse(f"{key} must be {kind.__name__}, not {str(record[key])[:40]!r}")
    if record["refsim_case"] != CASE_VERSION:
        raise refuse(f"case version {record['refsim_case']}, this refsim reads {CASE_VERSION}")
    return record
