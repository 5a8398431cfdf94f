"""What is said when no thread can go on: who waits where and for what, and who never came."""

from collections.abc import Iterable, Mapping

import numpy as np

from refsim.errors import RefsimError
from refsim.ptx.execution.geometry import Ids
from refsim.ptx.findings.faults import fault
from refsim.ptx.sync.scheduler import Scheduler
from refsim.ptx.text.syntax import place

MEETING_RULE = "PTX ISA, bar and .sync instructions: every thread that the barrier expects must arrive"
_NAMED = 8


def deadlock(machine: Scheduler, parked: Mapping[int, Ids]) -> RefsimError:
    """The error for lanes of which none can go on."""
    geometry = machine.geometry
    waiting = [
        *parked.items(),
        *machine.barriers.waiting(),
        *machine.cluster_barrier.waiting(),
        *machine.register_pool.waiting(),
        *machine.resting.items(),
    ]
    waiting.sort(key=lambda pair: pair[0])
    lines, polling = [], False
    absent: list[str] = []
    for pc, ids in waiting:
        for where, some in _by_question(machine, pc, ids):
            first = int(some[0])
            if pc in machine.resting and machine.mbarriers.question(first):
                polling = True
                absent += _absent(machine, first, waiting)
            warps = np.unique(geometry.warp[some]) % geometry.warps
            lines.append(
                f"{len(some)} threads (first {geometry.describe(first)}, warps "
                f"{', '.join(map(str, warps[:_NAMED]))}) wait at {where}"
            )
    exited = int(np.count_nonzero(~machine.alive))
    statement = machine.code.steps[waiting[0][0]].statement
    warps = np.concatenate([np.unique(geometry.warp[ids]) for _, ids in waiting])
    apart = len(np.unique(warps)) < len(warps) and not polling
    what = "the threads of a warp wait at different instructions" if apart else "no thread can go on"
    if any(machine.code.steps[pc].bound.clause.rendezvous == "warpgroup" for pc, _ in waiting):
        apart, what = True, "an instruction of warpgroups was not reached by all four warps of one"
    end = f"; {exited} threads have exited" if exited else ""
    said = "; ".join([*lines, *dict.fromkeys(absent)])
    return fault("divergent-sync" if apart else "deadlock", f"{what}: {said}{end}", statement, rule=MEETING_RULE)


def _by_question(machine: Scheduler, pc: int, ids: Ids) -> list[tuple[str, Ids]]:
    """Lanes that wait at one statement, by what they wait for: a barrier with its number or address, registers."""
    asked: dict[str, list[int]] = {}
    here = machine.code.steps[pc].statement
    for lane in ids.tolist():
        found = machine.mbarriers.question(lane) if pc in machine.resting else ""
        found = found or machine.barriers.question(lane) or machine.cluster_barrier.question(lane)
        found = found or machine.register_pool.question(lane)
        asked.setdefault(found or place(here), []).append(lane)
    return [(where, np.array(lanes, np.int64)) for where, lanes in asked.items()]


def _absent(machine: Scheduler, lane: int, waiting: list[tuple[int, Ids]]) -> Iterable[str]:
    """Who has not come to the mbarrier that a lane waits for: those that came in the phase before, else the statements that
    would bring somebody to an mbarrier and that nobody executed."""
    geometry = machine.geometry
    missing = machine.mbarriers.missing(lane)
    for ids, statement in missing:
        one = int(ids[0])
        now = next((pc for pc, there in waiting if one in there), None)
        does = "has exited" if now is None else f"waits at {place(machine.code.steps[now].statement)}"
        others = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
        yield f"{geometry.describe(one)}{others} came to it in the phase before, by {place(statement)}, and now {does}"
    if not missing and (never := machine.mbarriers.arrivals.never_executed()):
        yield f"nobody has executed {', '.join(place(statement) for statement in never[:_NAMED])}"
