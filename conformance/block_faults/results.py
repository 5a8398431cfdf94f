"""What was recorded of the mutants, from which the page is written."""

import json
from pathlib import Path

from conformance.block_faults.mutants import BY_ID
from conformance.block_faults.page import PAGE, Results, page
from conformance.block_faults.trials import Result, tried

RECORD = Path(__file__).with_name("sim.json")


def recorded() -> Results:
    """What was seen of every mutant when it was tried last, in their order."""
    records = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else []
    found = {result.id: result for result in map(Result.of, records)}
    return {id: found[id] for id in BY_ID if id in found}


def record(results: Results) -> None:
    """In the order of the mutants."""
    rows = ",\n".join(json.dumps(results[id].as_json()) for id in BY_ID if id in results)
    RECORD.write_text(f"[\n{rows}\n]\n", "utf-8")


def tried_by_id(id: str) -> Result:
    return tried(BY_ID[id])


def write_page() -> None:
    PAGE.write_text(page(recorded()), "utf-8")
