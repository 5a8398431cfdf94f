"""The report that no thread can go on: which threads wait where and for what, and which threads never came."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from refsim.errors import RefsimError
from refsim.ptx.execution.geometry import Ids
from refsim.ptx.findings.faults import fault
from refsim.ptx.sync.scheduler import Scheduler
from refsim.ptx.text.syntax import place

MEETING_RULE = "PTX ISA, bar and .sync instructions: every thread that the barrier expects must arrive"
WARPGROUP_RULE = "PTX ISA, wgmma: .aligned, all threads of the warpgroup execute the same instruction"
_POOL = "PTX ISA, setmaxnreg.inc: waits until its block has as many registers free"
_COLUMNS = "PTX ISA, tcgen05.alloc: waits until its block has as many columns of tensor memory free"
_PHASE = "PTX ISA, mbarrier: a phase completes once its pending arrivals have come and its tx-count is zero"
_POLL = "a loop that polls memory ends when a thread that can run writes there"
_CLUSTER = "PTX ISA, barrier.cluster: all threads of the cluster that have not exited must arrive"
_CAUSES = (
    _POOL,
    _COLUMNS,
    _PHASE,
    _POLL,
    _CLUSTER,
    WARPGROUP_RULE,
    MEETING_RULE,
)  # from cause to consequence: threads that wait by the first rules hold up the others
_NAMED = 8


@dataclass(frozen=True)
class _Wait:
    """Lanes that wait at one statement for one thing: `where` describes it, `rule` is the rule by which they wait."""

    pc: int
    ids: Ids
    where: str
    rule: str


def deadlock(machine: Scheduler, parked: Mapping[int, Ids]) -> RefsimError:
    """Return the error for a launch in which no lane can go on. `parked`: the lanes that wait for partners, by the
    program counter of their instruction. The code is divergent-sync if the threads of a warp or a warpgroup wait at
    different instructions, deadlock otherwise."""
    geometry = machine.geometry
    waiting = [
        *parked.items(),
        *machine.barriers.waiting(),
        *machine.cluster_barrier.waiting(),
        *machine.register_pool.waiting(),
        *machine.tensor_columns.waiting(),
        *machine.resting.items(),
    ]
    waiting.sort(key=lambda pair: pair[0])
    waits = [wait for pc, ids in waiting for wait in _by_question(machine, pc, ids)]
    lines: list[str] = []
    absent: list[str] = []
    for wait in waits:
        first = int(wait.ids[0])
        if wait.rule == _PHASE:
            absent += _absent(machine, first, waiting)
        warps = np.unique(geometry.warp[wait.ids] % geometry.warps)
        blocks = len(np.unique(geometry.cta[wait.ids]))
        lines.append(
            f"{len(wait.ids)} threads (first {geometry.describe(first)}, warps {', '.join(map(str, warps[:_NAMED]))}"
            f"{f' of {blocks} blocks' if blocks > 1 else ''}) wait at {wait.where}"
        )
    exited = int(np.count_nonzero(~machine.alive))
    rule = min((wait.rule for wait in waits), key=_CAUSES.index)
    warps = np.concatenate([np.unique(geometry.warp[ids]) for _, ids in waiting])
    apart, what = False, "no thread can go on"
    if rule not in (_POOL, _COLUMNS) and any(wait.rule == WARPGROUP_RULE for wait in waits):
        apart, rule = True, WARPGROUP_RULE
        what = "not all four warps of a warpgroup reached one of its instructions"
    elif rule in (_CLUSTER, MEETING_RULE) and len(np.unique(warps)) < len(warps):
        apart, rule, what = True, MEETING_RULE, "the threads of a warp wait at different instructions"
    end = f"; {exited} threads have exited" if exited else ""
    said = "; ".join([*lines, *dict.fromkeys(absent)])
    statement = machine.code.steps[waiting[0][0]].statement
    return fault("divergent-sync" if apart else "deadlock", f"{what}: {said}{end}", statement, rule=rule)


def _by_question(machine: Scheduler, pc: int, ids: Ids) -> list[_Wait]:
    """Return lanes that wait at one statement, grouped by the barrier, object, or registers that they wait for."""
    asked: dict[tuple[str, str], list[int]] = {}
    for lane in ids.tolist():
        asked.setdefault(_question(machine, pc, lane), []).append(lane)
    return [_Wait(pc, np.array(lanes, np.int64), *asks) for asks, lanes in asked.items()]


def _question(machine: Scheduler, pc: int, lane: int) -> tuple[str, str]:
    """Return what a lane waits for, and the rule by which it waits."""
    step = machine.code.steps[pc]
    if pc in machine.resting:
        found = machine.mbarriers.question(lane)
        return (found, _PHASE) if found else (place(step.statement), _POLL)
    if found := machine.barriers.question(lane):
        return found, MEETING_RULE
    if found := machine.cluster_barrier.question(lane):
        return found, _CLUSTER
    if found := machine.register_pool.question(lane):
        return found, _POOL
    if found := machine.tensor_columns.question(lane):
        return found, _COLUMNS
    return place(step.statement), WARPGROUP_RULE if step.bound.clause.rendezvous == "warpgroup" else MEETING_RULE


def _absent(machine: Scheduler, lane: int, waiting: list[tuple[int, Ids]]) -> Iterable[str]:
    """Yield a sentence for each thread that came to the lane's mbarrier in the previous phase and not in this one. If
    there is none, one sentence names the statements that arrive at an mbarrier and that no thread has executed.
    `waiting`: all waiting lanes by program counter."""
    geometry = machine.geometry
    missing = machine.mbarriers.missing(lane)
    for ids, statement in missing:
        one = int(ids[0])
        now = next((pc for pc, there in waiting if one in there), None)
        does = "has exited" if now is None else f"waits at {place(machine.code.steps[now].statement)}"
        others = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
        yield f"{geometry.describe(one)}{others} came to it in the phase before, by {place(statement)}, and now {does}"
    if not missing and (never := machine.mbarriers.arrivals.never_executed()):
        yield f"no thread has executed {', '.join(place(statement) for statement in never[:_NAMED])}"
