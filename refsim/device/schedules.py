"""One launch under several schedules, each from the same memory: a correct kernel writes the same bytes under all of them.

First the lowest program counter first; for kernels with asynchronous copies, the copies as late as they may come; then
random schedules. `verify` and `simulate` both judge by what stands here.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from refsim import ptx
from refsim.errors import Kind, RefsimError
from refsim.ptx.findings.table import SCHEDULE_DEPENDENT
from refsim.ptx.memory.snapshot import Snapshot

SCHEDULES = 3
SCHEDULE_RULE = "threads that share memory must be ordered by a barrier or by atomics"


@dataclass(frozen=True)
class SeededPolicy:
    """A policy, the seed of a random one, and whether the launch runs beside the one before it."""

    policy: ptx.SchedulePolicy
    seed: int = 0
    begins_early: bool = False

    def __str__(self) -> str:
        named = f"random schedule {self.seed}" if self.policy == "random" else f"the {self.policy} policy"
        return f"{named}, begun before the launch before it ended" if self.begins_early else named


@dataclass(frozen=True)
class Outcome:
    """What came of one order. `error` is the fault that ended it, or says which byte differs from the first order's;
    `is_compared` tells whether its bytes were compared at all: inexact results and bytes that nobody wrote are not,
    and none are where that check is off."""

    order: SeededPolicy
    trace: ptx.Trace | None
    error: RefsimError | None = None
    is_compared: bool = False


def early(orders: Sequence[SeededPolicy]) -> tuple[SeededPolicy, ...]:
    """The same orders, of a launch that begins before the one before it has ended."""
    return tuple(replace(order, begins_early=True) for order in orders)


Run = Callable[[SeededPolicy], tuple[ptx.Trace, ptx.GlobalMemory]]


def schedules_of(
    program: ptx.Program, entry: str, count: int = SCHEDULES, first_seed: int = 1
) -> tuple[SeededPolicy, ...]:
    """The orders that a launch of an entry is tried under."""
    late = [SeededPolicy("lazy")] if program.code(entry).is_asynchronous else []
    random = (SeededPolicy("random", first_seed + index) for index in range(count))
    return (SeededPolicy("eager"), *late, *random)[:count]


def outcomes(run: Run, entry: str, orders: Sequence[SeededPolicy]) -> Iterator[Outcome]:
    """Run a launch under each order in turn; a fault under the first is raised, under the others it is their outcome.

    run: executes one order, each time from the memory that the first one began with, and gives the memory afterwards.
    Inexact results, such as float sums of atomics, may differ from order to order; so may bytes that nobody wrote.
    """
    trace, memory = run(orders[0])
    yield Outcome(orders[0], trace)
    if len(orders) == 1:
        return
    first = memory.snapshot()
    is_compared = not (trace.inexact or trace.uninitialised or SCHEDULE_DEPENDENT in trace.off)
    for order in orders[1:]:
        try:
            trace, memory = run(order)
        except RefsimError as error:
            error.rule = error.rule or f"found under {order}: {SCHEDULE_RULE}"
            yield Outcome(order, None, error)
            continue
        compared = is_compared and not trace.uninitialised
        yield Outcome(order, trace, _difference(first, memory, entry, order) if compared else None, compared)


def _difference(first: Snapshot, memory: ptx.GlobalMemory, entry: str, order: SeededPolicy) -> RefsimError | None:
    """The error for the first byte that an order wrote otherwise, or wrote where the first order did not."""
    position = memory.first_difference(first)
    if position is None:
        return None
    region = memory.space.region_at(position)
    return RefsimError(
        SCHEDULE_DEPENDENT,
        f"{entry} writes other bytes under {order}",
        where=f"byte {position - region.start} of {region.name}" if region else hex(position),
        rule=SCHEDULE_RULE,
        kind=Kind.FAULT,
    )
