"""Plan `refsim bringup`: every case of every suite is a shard, done on any free GPU of the right kind."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from refsim.bringup.report import LEFT_OUT, Case, Task
from refsim.bringup.state import source_hash
from refsim.bringup.suites import Suite, exhaustively, suite_named, tasks_of, timed
from refsim.campaigns.shards import CampaignPlan, Shard
from refsim.device import Device
from refsim.device import open as open_device
from refsim.errors import Kind, RefsimError

_WORK = "refsim.campaigns.bringing_up:case"


def plan_of(
    device: Device, name: str, target: str | None, suites: Sequence[str], extent: str | None, facts: Mapping[str, str]
) -> CampaignPlan:
    """Return the plan of a bring-up: a shard for each case, in the order of the report.

    Workers open the device `name` for `target`; `facts` describe the GPU, `extent` is the value of --exhaustive. A case
    that could not run is not kept, so the next run tries it again.
    """
    shards: list[Shard] = []
    rests_on = {**facts, "refsim": source_hash(), "exhaustive": str(extent)}
    for suite in (exhaustively(suite_named(each), extent) for each in suites):
        rests_on[f"suite {suite.name}"] = suite.fingerprint()
        for number, task in enumerate(tasks_of(suite, device)):
            ask = {"device": name, "target": target, "suite": suite.name, "extent": extent, "task": task.name}
            shards.append(Shard(suite.name, number, _WORK, json.dumps(ask | {"refsim": rests_on["refsim"]})))
    return CampaignPlan("bringup", tuple(shards), rests_on, keeps=lambda record: record["status"] != LEFT_OUT)


def case(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Run one case and return its JSON object. Raises RefsimError `other-sources` in a worker with another refsim."""
    if ask["refsim"] != source_hash():
        raise RefsimError(
            "other-sources",
            "this worker has another version of refsim than the campaign",
            rule="all shards of a campaign are of the same sources",
            help="give every worker the same installation, then go on",
            kind=Kind.MISSING,
        )
    suite, tasks = _suite(ask["device"], ask["target"], ask["suite"], ask["extent"])
    return timed(suite, tasks[ask["task"]]).to_json()


@lru_cache(maxsize=8)
def _suite(name: str, target: str | None, suite_name: str, extent: str | None) -> tuple[Suite, dict[str, Task]]:
    """Return a suite and its tasks by name, built once a process."""
    suite = exhaustively(suite_named(suite_name), extent)
    return suite, {task.name: task for task in tasks_of(suite, open_device(name, target))}


def cases_of(records: Mapping[str, Sequence[Mapping[str, Any]]]) -> tuple[Case, ...]:
    """Return the cases of a report, in order."""
    return tuple(Case.from_json(each) for series in records.values() for each in series)
