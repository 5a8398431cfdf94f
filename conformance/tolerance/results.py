"""What was recorded of the mutants on a device: one JSON file for each, from which the pages are written."""

import json
from pathlib import Path

from conformance.tolerance.mutants import BY_ID, MUTANTS
from conformance.tolerance.page import PAGE, README, Results, page, with_table
from conformance.tolerance.trials import Result, tried
from refsim.device import open as open_device

DEVICES = {"sim": "sim:eager", "cuda": "cuda"}
"""The simulated GPU runs one order: these launches are too large for more."""


def recorded(device: str) -> Path:
    return Path(__file__).with_name(f"{device}.json")


def results_of(device: str) -> Results:
    """What was recorded on a device, in the order of the mutants; nothing where none was."""
    path = recorded(device)
    records = json.loads(path.read_text("utf-8")) if path.exists() else []
    found = {result.id: result for result in map(Result.of, records)}
    return {mutant.id: found[mutant.id] for mutant in MUTANTS if mutant.id in found}


def tried_on(device: str, id: str) -> Result:
    return tried(BY_ID[id], open_device(DEVICES[device]))


def record(device: str, results: Results) -> None:
    rows = ",\n".join(json.dumps(result.as_json()) for result in results.values())
    recorded(device).write_text(f"[\n{rows}\n]\n", "utf-8")


def write_pages() -> None:
    """From what is recorded."""
    results = results_of("sim")
    PAGE.write_text(page(results, results_of("cuda")), "utf-8")
    README.write_text(with_table(README.read_text("utf-8"), results), "utf-8")
