"""The report of a campaign without times, workers or folders, so that it is equal however the campaign was run."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

_LEFT_OUT = ("seconds", "replay")


def report(campaign: str, rests_on: Mapping[str, str], records: Iterable[Mapping[str, Any]]) -> str:
    """Return a campaign's records and the facts that decide them as JSON; the bytes do not depend on the workers."""
    kept = [{key: each[key] for key in each if key not in _LEFT_OUT} for each in records]
    return (
        json.dumps({"campaign": campaign, "rests_on": dict(rests_on), "records": kept}, indent=1, sort_keys=True) + "\n"
    )
