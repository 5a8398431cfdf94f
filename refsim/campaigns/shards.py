"""Split a campaign into shards that depend on the campaign only, do one shard in any process, and write the report."""

import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pkgutil import resolve_name
from typing import Any

from refsim.device.cache import digest
from refsim.errors import RefsimError


@dataclass(frozen=True)
class Shard:
    """One piece of work: `function` ("package.module:name") takes the JSON object `ask` and returns another object.

    Shards of one `series` (a kernel, a suite) are numbered from 0 in the order of the report.
    """

    series: str
    number: int
    function: str
    ask: str

    @property
    def key(self) -> str:
        """Return the name of the shard: "scale/0"."""
        return f"{self.series}/{self.number}"


@dataclass(frozen=True)
class CampaignPlan:
    """All shards of a campaign, and in `rests_on` the other facts that decide its results: versions, hashes, device.

    `ends(record)` says that a record ends its series, `stops(record)` that it ends the campaign: later shards are not
    run and not reported. A record that `keeps` refuses is reported and not kept in a journal. `failed(shard, error)`
    returns the record of a shard that an error ended; without it the error ends the run.
    """

    name: str
    shards: tuple[Shard, ...]
    rests_on: Mapping[str, str]
    ends: Callable[[Mapping[str, Any]], bool] = lambda record: False
    stops: Callable[[Mapping[str, Any]], bool] = lambda record: False
    keeps: Callable[[Mapping[str, Any]], bool] = lambda record: True
    failed: Callable[[Shard, RefsimError], Mapping[str, Any]] | None = None

    @cached_property
    def digest(self) -> str:
        """Return a hash that identifies the campaign: two plans with equal digests have equal results."""
        facts = sorted(self.rests_on.items())
        return digest(self.name, json.dumps(facts), *(json.dumps(asdict(shard)) for shard in self.shards))

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Return the position of each shard in the plan, by its key."""
        return {shard.key: place for place, shard in enumerate(self.shards)}


@dataclass(frozen=True)
class FinishedShard:
    """A finished shard: its record, and the worker's name and seconds, which reports leave out."""

    record: Mapping[str, Any]
    worker: str = ""
    seconds: float = 0.0


class LostError(Exception):
    """The worker of a shard ended before the shard did. `blames`: the shard may have caused it."""

    def __init__(self, what: str, *, blames: bool = True) -> None:
        super().__init__(what)
        self.blames = blames


def work(function: str, ask: str) -> str:
    """Do one shard in this process and return JSON: its record, worker and seconds, or the error that ended it.

    Errors travel as their fields, since other processes may have loaded refsim from elsewhere. Other exceptions than
    RefsimError are bugs of refsim or of user code, and reach the caller unchanged.
    """
    began = time.monotonic()
    try:
        record = resolve_name(function)(json.loads(ask))
    except RefsimError as error:
        return json.dumps({"error": error.to_json()})
    worker = f"{socket.gethostname()}:{os.getpid()}"
    return json.dumps({"record": record, "worker": worker, "seconds": round(time.monotonic() - began, 3)})


def read(answer: str) -> FinishedShard:
    """Return the finished shard in an answer of `work`; raise the RefsimError that ended the shard."""
    said = json.loads(answer)
    if "error" in said:
        raise RefsimError.from_json(said["error"])
    return FinishedShard(said["record"], said["worker"], said["seconds"])


_LEFT_OUT = ("seconds", "replay")


def report(campaign: str, rests_on: Mapping[str, str], records: Iterable[Mapping[str, Any]]) -> str:
    """Return a campaign's records and the facts that decide them as JSON; the bytes do not depend on the workers."""
    kept = [{key: each[key] for key in each if key not in _LEFT_OUT} for each in records]
    return (
        json.dumps({"campaign": campaign, "rests_on": dict(rests_on), "records": kept}, indent=1, sort_keys=True) + "\n"
    )
