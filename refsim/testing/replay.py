"""Replay cases: a small JSON file that rebuilds one problem of one kernel and runs it once."""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from refsim.device import Device
from refsim.errors import Kind, RefsimError
from refsim.kernels import Kernel
from refsim.testing.kernel_files import kernel_named
from refsim.testing.recipes import from_json, to_json
from refsim.testing.runs import run_problem
from refsim.testing.verdicts import Verdict

CASE_VERSION = 1
MAX_CASE_BYTES = 1 << 20
KEYS = {"refsim_case": int, "kernels": str, "kernel": str, "problem": dict, "device": dict, "finding": str}


def write_case(folder: Path, kernel: Kernel, problem: Any, device: Mapping[str, str], finding: str) -> Path:
    """Writes the case atomically and returns its path; the name is the kernel and a hash of the problem.

    `kernels` is the path of the declaring file, relative to the case where that is possible.
    """
    recipe = to_json(problem)
    digest = hashlib.sha256(json.dumps([kernel.name, recipe], sort_keys=True).encode()).hexdigest()[:10]
    record = {
        "refsim_case": CASE_VERSION,
        "kernels": "" if kernel.declared_in is None else os.path.relpath(kernel.declared_in, folder),
        "kernel": kernel.name,
        "problem": recipe,
        "device": dict(device),
        "finding": finding,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kernel.name}-{digest}.json"
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


def load_case(path: str | Path, kernel: Kernel | None = None) -> tuple[Kernel, Any]:
    """The kernel and the problem of a case; `kernel` stands in for the one that the case names by file.

    The file is at most 1 MiB; its fields are checked, and the kernel's own recipe class decides what is built.
    Raises RefsimError (unreadable) for anything else.
    """
    case = Path(path)
    record = _record(case)
    if kernel is None:
        kernels = case.parent / record["kernels"]
        kernel = kernel_named(record["kernel"], [kernels]) if record["kernels"] else kernel_named(record["kernel"])
    elif kernel.name != record["kernel"]:
        raise RefsimError("wrong-kernel", f"the case is of {record['kernel']!r}, not {kernel.name!r}", where=str(case))
    return kernel, from_json(kernel.recipe, record["problem"], where=f"{case}: problem")


def replay_case(path: str | Path, device: Device, kernel: Kernel | None = None) -> Verdict:
    """Runs a case once on a device and returns its verdict, as `refsim replay PATH` does.

    Raises RefsimError for a case that cannot be read, or whose kernel is not found. Source: defined here.
    """
    kernel, problem = load_case(path, kernel)
    return run_problem(kernel, problem, device, replay=str(path))


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _record(case: Path) -> dict[str, Any]:
    def refuse(what: str) -> RefsimError:
        return RefsimError("bad-case", what, where=str(case), kind=Kind.UNREADABLE)

    try:
        with case.open("rb") as file:
            content = file.read(MAX_CASE_BYTES + 1)
    except OSError as error:
        raise refuse(f"{error.strerror}") from error
    if len(content) > MAX_CASE_BYTES:
        raise refuse(f"a case has at most {MAX_CASE_BYTES} bytes")
    try:
        record = json.loads(content, parse_constant=_no_constant)
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
