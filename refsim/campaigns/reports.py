"""The report of a campaign that is the same however it was run: nothing in it tells times, workers or folders."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

_LEFT_OUT = ("seconds", "replay")


def report(campaign: str, rests_on: Mapping[str, str], records: Iterable[Mapping[str, Any]]) -> str:
    """JSON of the records of a campaign, with what decides them; a run of any number of workers writes the same bytes."""
    kept = [{key: each[key] for key in each if key not in _LEFT_OUT} for each in records]
    return (
        json.dumps({"campaign": campaign, "rests_on": dict(rests_on), "records": kept}, indent=1, sort_keys=True) + "\n"
    )
