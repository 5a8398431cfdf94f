"""Runs every form of the probe of the copy engine's arithmetic on a GPU and writes what came back.

    PYTHONPATH=. python3 gpu/probes/record_copy_arithmetic.py --out conformance/vectors/h200

Needs a GPU of compute capability 9.0 and ptxas. Every form runs twice; two runs that differ are an error. A form that the
driver or the chip refuses ends the recording: those that might stand last, and what came before is stored.
"""

import datetime
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from record_conversions import first_line, record_one, sha256, store

import refsim
from refsim.errors import RefsimError
from refsim.silicon.copy_arithmetic import COPY_FORMS, STEM


def chip_facts() -> dict[str, str]:
    """Chip, driver and assembler of a recording that a device's launcher makes, and the date."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip().splitlines()[0]
    name, driver, capability = answer.split(", ")
    return {
        "device": name,
        "compute_capability": capability,
        "driver": driver,
        "assembler": first_line("ptxas", "--version"),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
    }


def record(out: Path, _folder: Path) -> None:
    device = refsim.device.open("cuda")
    arrays: dict[str, Any] = {}
    refused = ""
    for form in COPY_FORMS:
        try:
            with device.launcher(form.code) as launcher:
                first, second = form.run(launcher), form.run(launcher)
        except RefsimError as problem:
            refused = f"{form.name}: {problem}"
            break
        if not np.array_equal(first, second):
            raise SystemExit(f"{form.name}: two runs differ")
        arrays[form.name] = first
    print(refused or f"all {len(COPY_FORMS)} forms ran")
    content = {
        **chip_facts(),
        "sha256": {form.name: sha256(form.ptx.encode()) for form in COPY_FORMS if form.name in arrays},
        "refused": refused,
        "recordings": {each: {"arrays": {"words": each}} for each in arrays},
    }
    store(out, STEM, arrays, content)


if __name__ == "__main__":
    record_one("the arithmetic of the copy engine", record)
