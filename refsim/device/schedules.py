"""One launch under several schedules from equal memory: a correct kernel writes equal bytes under all of them.

The first schedule runs the lowest program counter first. For kernels with asynchronous copies, the next one completes
the copies as late as possible. Random schedules follow. `verify` and `simulate` both use this module.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from refsim import ptx
from refsim.errors import Kind, RefsimError
from refsim.ptx.async_ops.queue import HELD_POLICY
from refsim.ptx.findings.table import SCHEDULE_DEPENDENT
from refsim.ptx.memory.snapshot import Snapshot

SCHEDULES = 3
MOST_HELD = 16  # schedules of a launch that hold lanes before one access
HELD_INSTRUCTIONS = 400_000  # of threads, in all of these schedules together
SCHEDULE_RULE = "threads that share memory must be ordered by a barrier or by atomics"


@dataclass(frozen=True)
class SeededPolicy:
    """A schedule: a policy, the seed of a random policy, and whether the launch overlaps the previous launch. `held`:
    the access before which the policy "held" lets lanes wait."""

    policy: Any  # a SchedulePolicy, or HELD_POLICY
    seed: int = 0
    begins_early: bool = False
    held: str = ""

    def __str__(self) -> str:
        if self.held:
            return f"a schedule in which others run before {self.held}"
        named = f"random schedule {self.seed}" if self.policy == "random" else f"the {self.policy} policy"
        return f"{named}, begun before the launch before it ended" if self.begins_early else named


@dataclass(frozen=True)
class Outcome:
    """The result of one schedule. `error` is the fault that ended it, or names the first byte that differs.

    `is_compared` says whether its bytes were compared. Bytes are not compared if results are inexact, if memory was
    uninitialized, or if the check is off.
    """

    order: SeededPolicy
    trace: ptx.Trace | None
    error: RefsimError | None = None
    is_compared: bool = False


def early(orders: Sequence[SeededPolicy]) -> tuple[SeededPolicy, ...]:
    """Return these schedules with a launch that begins before the previous launch has ended."""
    return tuple(replace(order, begins_early=True) for order in orders)


Run = Callable[[SeededPolicy], tuple[ptx.Trace, ptx.GlobalMemory]]


def schedules_of(
    program: ptx.Program, entry: str, count: int = SCHEDULES, first_seed: int = 1
) -> tuple[SeededPolicy, ...]:
    """Return the schedules that a launch of an entry is tried under, at most `count`."""
    late = [SeededPolicy("lazy")] if program.code(entry).is_asynchronous else []
    random = (SeededPolicy("random", first_seed + index) for index in range(count))
    return (SeededPolicy("eager"), *late, *random)[:count]


def outcomes(run: Run, entry: str, orders: Sequence[SeededPolicy]) -> Iterator[Outcome]:
    """Run a launch under each schedule and yield the outcomes; a fault under the first is raised, a later one yielded.

    `run` executes one schedule from the initial memory and returns the trace and the memory afterwards. Inexact
    results, such as float sums of atomics, may differ between schedules; so may uninitialized bytes.
    """
    trace, memory = run(orders[0])
    yield Outcome(orders[0], trace)
    if len(orders) == 1:
        return
    first = memory.snapshot()
    is_compared = not (trace.inexact or trace.uninitialised or SCHEDULE_DEPENDENT in trace.off)
    for order in (*orders[1:], *(_held(trace) if is_compared else ())):
        try:
            trace, memory = run(order)
        except RefsimError as error:
            error.rule = error.rule or f"found under {order}: {SCHEDULE_RULE}"
            yield Outcome(order, None, error)
            continue
        compared = is_compared and not trace.uninitialised
        yield Outcome(order, trace, _difference(first, memory, entry, order) if compared else None, compared)


def _held(trace: ptx.Trace) -> Iterator[SeededPolicy]:
    """Yield schedules that let other threads run before a strong access: as long as they can before a write, for some
    turns before a read. They show what a thread does that checks and then sets, or reads two words that belong
    together."""
    writes = [(pc, where, 0) for pc, where, reads in trace.contended if not reads]
    reads = [(pc, where, turns) for turns in (1, 2) for pc, where, reads in trace.contended if reads]
    most = min(MOST_HELD, max(2, HELD_INSTRUCTIONS // max(trace.instructions, 1)))
    fair = [(pc, f"each strong access, such as {where}", 3) for pc, where, _ in trace.contended[:1]]
    kept = (*writes[: -(-most // 2)], *fair, *reads)[:most]
    yield from (SeededPolicy(HELD_POLICY, 4 * pc + turns, held=where) for pc, where, turns in kept)


def _difference(first: Snapshot, memory: ptx.GlobalMemory, entry: str, order: SeededPolicy) -> RefsimError | None:
    """Return the error for the first byte that differs from the first schedule; None if all bytes are equal."""
    position = memory.first_difference(first)
    if position is None:
        return None
    region = memory.space.region_at(position)
    what = f"{entry} writes other bytes under {order}"
    where = f"byte {position - region.start} of {region.name}" if region else hex(position)
    help = "if the order of atomics is free: Promise.SET, or Kernel(any_order=...)"
    return RefsimError(SCHEDULE_DEPENDENT, what, where, SCHEDULE_RULE, help, Kind.FAULT)
