"""A campaign cut into shards that depend on the campaign alone, and the work of one shard in whatever process does it."""

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pkgutil import resolve_name
from typing import Any

from refsim.device.cache import digest
from refsim.errors import Kind, RefsimError


@dataclass(frozen=True)
class Shard:
    """One piece of work: `function` ("package.module:name") is called with the JSON object `ask` and returns another.

    Shards of one `series` (a kernel, a suite) are numbered from 0 in the order in which a report has them.
    """

    series: str
    number: int
    function: str
    ask: str

    @property
    def key(self) -> str:
        return f"{self.series}/{self.number}"


@dataclass(frozen=True)
class CampaignPlan:
    """All shards of a campaign, and in `rests_on` what decides their results beside them: versions, hashes, the device.

    `ends(record)` says that a record ends its series, `stops(record)` that it ends the campaign: what comes behind it in the
    plan is not asked for, and stands in no report. A record that `keeps` refuses is reported and not kept in a journal.
    """

    name: str
    shards: tuple[Shard, ...]
    rests_on: Mapping[str, str]
    ends: Callable[[Mapping[str, Any]], bool] = lambda record: False
    stops: Callable[[Mapping[str, Any]], bool] = lambda record: False
    keeps: Callable[[Mapping[str, Any]], bool] = lambda record: True

    @cached_property
    def digest(self) -> str:
        """Names the campaign: two plans with one digest have the same results."""
        facts = sorted(self.rests_on.items())
        return digest(self.name, json.dumps(facts), *(json.dumps(asdict(shard)) for shard in self.shards))

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Where each shard stands in the plan, by its key."""
        return {shard.key: place for place, shard in enumerate(self.shards)}


@dataclass(frozen=True)
class FinishedShard:
    """A finished shard: its record, and of how it came about the worker's name and its seconds, which no report has."""

    record: Mapping[str, Any]
    worker: str = ""
    seconds: float = 0.0


class LostError(Exception):
    """The worker of a shard ended before the shard did. `blames` says whether that shard may be why."""

    def __init__(self, what: str, *, blames: bool = True) -> None:
        super().__init__(what)
        self.blames = blames


def work(function: str, ask: str) -> str:
    """Does one shard in this process: JSON of its record, the worker and the seconds, or of the error that ended it.

    Errors travel as their fields, since other processes may have loaded refsim from elsewhere. Any exception but
    RefsimError is refsim's own fault, or that of code which it was given, and reaches the caller as it is.
    """
    began = time.monotonic()
    try:
        record = resolve_name(function)(json.loads(ask))
    except RefsimError as error:
        said = {each.name: getattr(error, each.name) for each in fields(error)} | {"kind": error.kind.name}
        return json.dumps({"error": said})
    worker = f"{socket.gethostname()}:{os.getpid()}"
    return json.dumps({"record": record, "worker": worker, "seconds": round(time.monotonic() - began, 3)})


def read(answer: str) -> FinishedShard:
    """What `work` returned; raises the RefsimError that ended the shard."""
    said = json.loads(answer)
    if "error" in said:
        facts = said["error"]
        place = tuple(facts.pop("place")) if facts["place"] else None
        raise RefsimError(**{**facts, "kind": Kind[facts["kind"]], "place": place})
    return FinishedShard(said["record"], said["worker"], said["seconds"])
