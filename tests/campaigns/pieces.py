"""Shards for the tests of campaigns: work that leaves a trace, fails, waits or ends its process, by what it is asked."""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from refsim.campaigns.shards import CampaignPlan, Shard
from refsim.errors import RefsimError

WORK = f"{__name__}:work"


def work(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Notes that it was done, then does what `ask` says of this shard."""
    trace = Path(ask["trace"])
    if ask.get("waits_for"):
        while not Path(ask["waits_for"]).exists():
            time.sleep(0.01)
    if ask.get("kills") and not (once := Path(ask["kills"])).exists():
        once.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if ask.get("always_kills"):
        os.kill(os.getpid(), signal.SIGKILL)
    if ask.get("fails"):
        raise RefsimError("bad-shard", f"shard {ask['value']} cannot be done", where="here", help="none")
    time.sleep(ask.get("seconds", 0))
    with trace.open("a") as stream:
        stream.write(f"{ask['value']}\n")
    return {"value": ask["value"], "status": "fail" if ask.get("ends") else "pass"}


def plan(folder: Path, asks: Mapping[str, Sequence[Mapping[str, Any]]], **rests_on: str) -> CampaignPlan:
    """A plan of series of shards, each with its own trace in `folder/done`."""
    import json

    shards = [
        Shard(series, number, WORK, json.dumps({"trace": str(folder / "done"), "value": f"{series}{number}", **ask}))
        for series, each in asks.items()
        for number, ask in enumerate(each)
    ]
    return CampaignPlan("pieces", tuple(shards), rests_on, ends=lambda record: record["status"] == "fail")


def done(folder: Path) -> list[str]:
    """What was done, in the order in which it was."""
    file = folder / "done"
    return file.read_text().split() if file.exists() else []
