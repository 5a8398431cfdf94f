"""Run a plan: every shard once, over any `concurrent.futures.Executor`, each in the journal before it counts."""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from refsim.campaigns.journal import CampaignJournal
from refsim.campaigns.shards import CampaignPlan, FinishedShard, LostError, Shard, read, work
from refsim.errors import Kind, RefsimError, internal_error

ATTEMPTS = 3
"""How often a shard is tried when its worker dies: one crash may be the machine's fault, three are the shard's."""
AHEAD = 64
"""Default number of shards that are handed out at a time: enough for 64 workers."""


@dataclass
class Standing:
    """The progress of a run: `done` of `planned` shards, `kept` of them from the journal, and `lost` workers."""

    planned: int
    done: int = 0
    kept: int = 0
    lost: int = 0
    latest: Shard | None = None


@dataclass
class _Run:
    """The state of a run: finished shards, shards in flight (`flying`), shards that wait, and the first error."""

    plan: CampaignPlan
    executor: Executor
    journal: CampaignJournal | None
    watch: Callable[[Standing], None] | None
    standing: Standing
    ahead: int
    done: dict[str, FinishedShard] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)
    stopped: int | None = None
    tries: Counter[str] = field(default_factory=Counter)
    waiting: deque[Shard] = field(default_factory=deque)
    flying: dict["Future[str]", Shard] = field(default_factory=dict)
    error: tuple[Shard, RefsimError] | None = None

    def is_behind_the_end(self, shard: Shard) -> bool:
        """Return whether a shard comes after the end of its series or of the campaign."""
        if self.stopped is not None and self.plan.places[shard.key] > self.stopped:
            return True
        return shard.number > self.ended.get(shard.series, shard.number)

    def hand_out(self) -> None:
        """Submit waiting shards in the order of the plan until `ahead` of them are in flight."""
        while self.waiting and len(self.flying) < self.ahead and self.error is None:
            shard = self.waiting.popleft()
            if self.is_behind_the_end(shard):
                continue
            try:
                self.flying[self.executor.submit(work, shard.function, shard.ask)] = shard
            except BrokenExecutor as broken:
                raise RefsimError(
                    "workers-lost",
                    f"the executor is broken: {broken}",
                    where=shard.key,
                    help="finished shards are in the journal, if one was named; the same command goes on",
                    kind=Kind.MISSING,
                ) from broken

    def take(self, future: "Future[str]") -> None:
        """Process a shard that came back: its record, its error, or the loss of its worker."""
        shard = self.flying.pop(future)
        try:
            done = read(future.result())
        except (LostError, BrokenExecutor, CancelledError) as lost:
            self.lose(shard, lost)
            return
        except Exception as problem:
            self.fail(shard, problem)
            return
        if self.is_behind_the_end(shard):
            return
        if self.journal is not None and self.plan.keeps(done.record):
            self.journal.keep(shard, done)
        self.keep(shard, done)

    def fail(self, shard: Shard, problem: Exception) -> None:
        """Record the error that ended a shard; without a record for errors keep the first one of the plan."""
        if self.is_behind_the_end(shard):
            return
        if self.plan.failed is not None:
            error = (
                problem
                if isinstance(problem, RefsimError)
                else internal_error(problem, "refsim --debug, with the same command,")
            )
            self.keep(shard, FinishedShard(self.plan.failed(shard, error)))
            return
        if not isinstance(problem, RefsimError):
            raise problem
        places = self.plan.places
        if self.error is None or places[shard.key] < places[self.error[0].key]:
            self.error = shard, problem

    def lose(self, shard: Shard, why: BaseException) -> None:
        """Queue a shard again whose worker is gone; its third loss is an error."""
        self.standing.lost += 1
        self.tries[shard.key] += getattr(why, "blames", True)
        if self.tries[shard.key] < ATTEMPTS:
            self.waiting.appendleft(shard)
            return
        lost = RefsimError(
            "workers-lost",
            f"{ATTEMPTS} workers ended while they did shard {shard.key}: {why}",
            where=shard.ask if len(shard.ask) < 300 else "",
            rule="a shard that ends its process three times is not tried a fourth time",
            help="run it alone, without --jobs, to see how it ends; out of memory: fewer jobs",
            kind=Kind.INCONCLUSIVE,
        )
        if self.plan.failed is None:
            raise lost
        self.fail(shard, lost)

    def keep(self, shard: Shard, done: FinishedShard, *, kept: bool = False) -> None:
        """Record a finished shard, and cancel shards in flight that come after an end which it sets."""
        self.done[shard.key] = done
        self.standing.done += 1
        self.standing.kept += kept
        self.standing.latest = shard
        if self.plan.ends(done.record):
            self.ended[shard.series] = min(shard.number, self.ended.get(shard.series, shard.number))
        if self.plan.stops(done.record):
            place = self.plan.places[shard.key]
            self.stopped = place if self.stopped is None else min(place, self.stopped)
        if self.error is not None and self.is_behind_the_end(self.error[0]):
            self.error = None  # the order in which the error and the end arrived is chance
        for future, flown in list(self.flying.items()):
            if self.is_behind_the_end(flown) and future.cancel():
                del self.flying[future]
        if self.watch is not None:
            self.watch(self.standing)


def run(
    plan: CampaignPlan,
    executor: Executor,
    *,
    journal: CampaignJournal | None = None,
    watch: Callable[[Standing], None] | None = None,
    ahead: int = AHEAD,
) -> dict[str, list[Mapping[str, Any]]]:
    """Do all shards and return the records of each series in order, up to the record that ends it.

    Shards that `journal` holds are not done again; each new one is written to it before it counts. The result depends
    on the plan only, and not on the executor, the workers or interruptions. `ahead` shards are handed out at a time:
    work on shards after the end of a series is wasted.
    Raises RefsimError, unless the plan records errors: the error of the first shard in the plan that ended with one;
    `workers-lost` (exit 5) for a shard whose worker ended three times. Raises the journal's errors.
    """
    state = _Run(plan, executor, journal, watch, Standing(len(plan.shards)), ahead)
    kept = {} if journal is None else journal.kept()
    for shard in plan.shards:
        if shard.key in kept:
            state.keep(shard, kept[shard.key], kept=True)
        else:
            state.waiting.append(shard)
    try:
        state.hand_out()
        while state.flying:
            for future in wait(state.flying, return_when=FIRST_COMPLETED).done:
                if future in state.flying:
                    state.take(future)
            state.hand_out()
    finally:
        for future in state.flying:
            with suppress(Exception):
                future.cancel()
    if state.error is not None:
        raise state.error[1]
    return _reported(plan, state)


def _reported(plan: CampaignPlan, state: _Run) -> dict[str, list[Mapping[str, Any]]]:
    """Return the records of each series in order, without shards after an end."""
    series: dict[str, list[Mapping[str, Any]]] = {shard.series: [] for shard in plan.shards}
    for shard in plan.shards:
        if not state.is_behind_the_end(shard):
            series[shard.series].append(state.done[shard.key].record)
    return series
