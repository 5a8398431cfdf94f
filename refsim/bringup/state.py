"""The environment of a bring-up, and finished cases on disk, so that an interrupted bring-up can be resumed.

There is one file per device and tools. Each suite is stored under the hash of the files that decide its results, and
the file has a checksum. A file with another hash or format, or a damaged or edited file, counts as empty: results are
computed again.
"""

import json
import os
import platform
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import numpy as np

import refsim
from refsim.bringup.report import LEFT_OUT, Case, hashed
from refsim.bundled import PACKAGE
from refsim.device import Device
from refsim.device.assembling import required_assembler
from refsim.device.cache import cache_directory, digest
from refsim.device.toolchain import find_toolchain
from refsim.errors import RefsimError
from refsim.files.access import read_whole, write_atomically

_FORM = 2
MAX_STATE_BYTES = 1 << 28


class State:
    """The finished cases of a bring-up; every change is on disk when the call returns."""

    def __init__(self, folder: Path | None, facts: Mapping[str, str], suites: Mapping[str, str]) -> None:
        """Load the finished cases. `facts` select the file, `suites` (name to hash) the cases that are still valid."""
        name = digest(*(part for pair in sorted(facts.items()) for part in pair))[:16]
        self.path = (folder or cache_directory() / "bringup") / f"bringup-{name}.json"
        self.hashes = dict(suites)
        self.stored: dict[str, dict[str, Case]] = {}
        self.discarded = 0
        self.is_damaged = False
        self._load()

    def _load(self) -> None:
        """Read the file; a damaged file counts as empty and sets `is_damaged`."""
        asked = dict(self.hashes)
        try:
            record = json.loads(read_whole(self.path, MAX_STATE_BYTES, "a file of finished cases"))
            suites = record["suites"] if record["form"] == _FORM else {}
            if suites and record["sha256"] != _checksum(suites):
                raise ValueError("the checksum is of other cases")
            for name, content in suites.items():
                if self.hashes.get(name, content["hash"]) != content["hash"]:
                    self.discarded += len(content["cases"])
                    continue
                self.hashes.setdefault(name, content["hash"])
                self.stored[name] = {each["name"]: Case.from_json(each) for each in content["cases"]}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, RefsimError):
            self.stored, self.hashes, self.discarded = {}, asked, 0
            self.is_damaged = os.path.lexists(self.path)

    def __len__(self) -> int:
        return sum(map(len, self.stored.values()))

    def find(self, suite: str, name: str) -> Case | None:
        """Return the finished case, or None."""
        return self.stored.get(suite, {}).get(name)

    def keep(self, case: Case) -> None:
        """Add a finished case and write the file; a case that did not run is not kept. Raises RefsimError for a disk
        error."""
        if case.status == LEFT_OUT:
            return
        self.stored.setdefault(case.suite, {})[case.name] = case
        held = {name: [each.to_json() for each in cases.values()] for name, cases in self.stored.items()}
        suites = {name: {"hash": self.hashes[name], "cases": cases} for name, cases in held.items()}
        content = {"form": _FORM, "sha256": _checksum(suites), "suites": suites}

        def fill(stream: BinaryIO) -> None:
            stream.write(json.dumps(content).encode())

        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise self._refused("keep", problem) from problem
        write_atomically(self.path, fill, overwrite=True)

    def clear(self) -> None:
        """Remove all finished cases and the file. Raises RefsimError where the file cannot be removed."""
        self.stored = {}
        try:
            self.path.unlink(missing_ok=True)
        except OSError as problem:
            raise self._refused("remove", problem) from problem

    def _refused(self, act: str, problem: OSError) -> RefsimError:
        what = f"cannot {act} finished cases: {(problem.strerror or str(problem)).lower()}"
        return RefsimError("cannot-write", what, str(self.path), help="name a folder with --state")


def _checksum(suites: object) -> str:
    """Return the checksum of the cases as JSON; it is equal after reading and writing."""
    return digest(json.dumps(suites, sort_keys=True))


def facts_of(device: Device) -> dict[str, str]:
    """Return facts by name in reading order: "device" and "target", then a real GPU's own facts, then tools."""
    described = device.describe()
    found: dict[str, str] = {name: described[name] for name in ("device", "target") if name in described}
    found |= device.hardware()
    found |= {
        "NVRTC": _compiler(),
        "ptxas": _assembler(),
        "refsim": f"{refsim.__version__}, source {source_hash()[:16]}",
        "python": f"{platform.python_version()}, numpy {np.__version__}",
    }
    return found


def _compiler() -> str:
    """Return the version of NVRTC, or its origin; without NVRTC, the text of the fallback."""
    found = find_toolchain()
    if found is None:
        return "none that works: the bundled PTX runs (refsim doctor says why)"
    return found.origin.removeprefix("nvidia-cuda-nvrtc ").partition("; headers: nvidia-cuda-runtime ")[0]


def _assembler() -> str:
    """Return the release of ptxas and its origin, or the text of the fallback."""
    try:
        found = required_assembler("")
    except RefsimError:
        return "none: the driver assembles"
    release = str(found).removeprefix("ptxas ")
    return release if found.origin.startswith("nvidia-cuda-nvcc") else f"{release} ({found.origin})"


@lru_cache(maxsize=1)
def source_hash() -> str:
    """Return SHA-256 over every Python file of refsim, which identifies the model."""
    return hashed(PACKAGE.rglob("*.py"), PACKAGE)
