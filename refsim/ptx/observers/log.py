"""A log of the events of a launch, as a user reads them: what happened, who did it by which statement, and to what.

Checks hear the same events. Loads, stores and atomics reach the log from the memory port, which shows them to every
observer. An event that this file does not know has the kind `other`, or the kind that its first word names.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError, unknown
from refsim.ptx import events
from refsim.ptx.events import Hear, LaunchEvent
from refsim.ptx.execution.geometry import Ids
from refsim.ptx.execution.lanes import Lanes, Machine
from refsim.ptx.memory.access import SCOPES, Access, Semantics
from refsim.ptx.memory.arrays import Array
from refsim.ptx.text.syntax import Statement, place
from refsim.ptx.text.words import words_in
from refsim.render.cards import Card, FieldsCard

MOST_EVENTS = 4096
MOST_PLACES = 1 << 20  # threads and addresses that a log keeps, 8 MB of them
VERBS = tuple(value for name, value in vars(events).items() if name.isupper() and isinstance(value, str))
"""All verbs of `refsim.ptx.events`, also those that only replays of a check use."""
OTHER = "other"


def _by_verb(verbs: Mapping[str, str]) -> dict[str, str]:
    """Return the key of each verb in a table from keys to verbs."""
    return {verb: key for key, text in verbs.items() for verb in words_in(text)}


_KINDS = _by_verb(
    {
        "access": "access",
        "fence": "fence proxy_fence release_map acquire_map use_map fence_inits",
        "barrier": "meet_cta passed arrive leave cluster_arrive cluster_finish cluster_wait",
        "meeting": "meet_warps converge",
        "transfer": "copy_begin copy_end source_read source_free wait_copies wait_bulk",
        "launch": "exit end launch_wait launch_next",
        "allocation": "renew",
    }
)
EVENT_KINDS = (*dict.fromkeys([*_KINDS.values(), "mbarrier"]), OTHER)
GROUPS = {"all": EVENT_KINDS, "synchronization": ("fence", "barrier", "meeting", "mbarrier")}
_PARTS = _by_verb(  # the names of the parts of a payload; "-" for one that only checks use
    {
        "mbarrier": "mbarrier_init mbarrier_arrive mbarrier_pass",
        "- mbarrier": "mbarrier_end mbarrier_touch",
        "mbarrier -": "mbarrier_ask mbarrier_come",
        "mbarrier - -": "mbarrier_observe",
        "items width reduction": "copy_begin copy_end",
        "access - mbarrier": "source_read",
        "access": "source_free",
        "access map -": "use_map",
        "scope map": "release_map acquire_map",
        "proxy of": "proxy_fence",
        "slot": "arrive leave",
        "slot - - -": "passed",
        "region first last": "renew",
        "-": "meet_warps converge cluster_arrive cluster_finish wait_bulk",
    }
)
_SCOPES = {number: name for name, number in SCOPES.items() if name != "gl"}


def kind_of(verb: str) -> str:
    """Return the kind of an event: by the table, else by the first word of its verb."""
    first = verb.partition("_")[0]
    return _KINDS.get(verb) or (first if first in EVENT_KINDS else OTHER)


@dataclass(frozen=True, eq=False, repr=False)
class RecordedEvent(Card):
    """One event of a launch: `verb` says what happened, `kind` is the group of such verbs.

    `threads`: the threads that did it. Thread t of block b has the number b * (threads of a block) + t, where b is the
    block's number in the grid, x fastest. `blocks`, `warps` (block after block) and `lanes` (in their warps) are found
    from it. `who` is the text for the threads. `statement` is None for an event of the whole launch.

    The event touches `width` bytes at each of `addresses` in the state space `space`: one address for each thread, or
    for each item that a copy engine moves. `mbarrier` is a shared address. `phase` is the phase that this mbarrier is in,
    or for mbarrier_pass and mbarrier_observe the phase that is complete. `details` holds what else the event says.
    """

    verb: str
    statement: Statement | None
    threads: NDArray[np.int64]
    who: str
    block_threads: int
    space: str = ""
    addresses: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    width: int = 0
    mbarrier: int | None = None
    phase: int | None = None
    details: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Return the group of the verb: access, fence, barrier, meeting, mbarrier, transfer, launch or another."""
        return kind_of(self.verb)

    @property
    def blocks(self) -> tuple[int, ...]:
        """Return the numbers of the blocks in the grid."""
        return tuple(np.unique(self.threads // self.block_threads).tolist())

    @property
    def warps(self) -> tuple[int, ...]:
        """Return the numbers of the warps in the launch, as WarpTrace counts them."""
        block, thread = np.divmod(self.threads, self.block_threads)
        return tuple(np.unique(block * -(-self.block_threads // 32) + thread // 32).tolist())

    @property
    def lanes(self) -> tuple[int, ...]:
        """Return the lane of each thread in its warp."""
        return tuple((self.threads % self.block_threads % 32).tolist())

    @property
    def what(self) -> str:
        """Return bytes, mbarrier and details as text."""
        said = [value if name == "access" else f"{name} {value}" for name, value in self.details.items()]
        if self.width:
            said.append(f"{self.width * len(np.unique(self.addresses))} B of {self.space} at {self._spans()}")
        if self.mbarrier is not None:
            said.append(f"mbarrier {self.mbarrier:#x}" + ("" if self.phase is None else f" phase {self.phase}"))
        return ", ".join(said)

    def _spans(self) -> str:
        """Return the addresses as ranges of bytes: the first two, and how many follow."""
        at = np.unique(self.addresses)
        starts = np.flatnonzero(np.diff(at, prepend=at[0] - 2 * self.width) > self.width)
        ends = [*(starts[1:] - 1).tolist(), len(at) - 1]
        said = [f"{at[a]:#x}-{at[z] + self.width - 1:#x}" for a, z in zip(starts.tolist(), ends, strict=True)]
        return ", ".join(said[:2]) + (f" and {len(said) - 2} more ranges" if len(said) > 2 else "")

    def _repr_summary(self) -> str:
        return ": ".join(each for each in (self.verb, self.what) if each)

    def __str__(self) -> str:
        by = "" if self.statement is None else f" by {place(self.statement)}"
        return ", ".join(each for each in (f"{self.verb}{by}", self.who, self.what) if each)


@dataclass(repr=False)
class EventLog(FieldsCard):
    """Records the first `most` events of a launch in `events`, in order; `left_out` counts the others.

    `kinds` names the events to record: kinds ("transfer"), groups of kinds ("synchronization") or verbs ("copy_end");
    none means all. A log keeps at most a million threads and addresses, and those of its last launch alone. Raises
    RefsimError: `unknown-name` for another kind, `bad-value` for a `most` that is no count.
    """

    kinds: Sequence[str] = ()
    most: int = MOST_EVENTS
    events: list[RecordedEvent] = field(default_factory=list)
    left_out: int = 0
    _places: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.most, int | np.integer) or self.most < 0:
            rule = "a whole number of events from 0 on"
            raise RefsimError("bad-value", f"most={self.most!r:.40} is not allowed", "EventLog", rule)
        one = isinstance(self.kinds, str) or not isinstance(self.kinds, Sequence)
        names = (self.kinds,) if one else tuple(self.kinds) or ("all",)
        known = [*GROUPS, *EVENT_KINDS, *(verb for verb in VERBS if verb not in EVENT_KINDS)]
        wanted: set[str] = set()
        for name in names:
            if name not in known:
                error = unknown("kind of event", name, known)
                error.rule = f"{', '.join((*GROUPS, *EVENT_KINDS))}, or an event"
                raise error
            wanted.update(GROUPS.get(name, (name,)))
        self.verbs = frozenset(verb for verb in VERBS if not wanted.isdisjoint((verb, kind_of(verb))))

    def restart(self) -> None:
        """Forget all events, since the launch begins again."""
        self.events.clear()
        self.left_out = self._places = 0

    def hears(self, machine: Machine) -> dict[str, Hear]:
        """Return what hears the events of each verb; the memory port shows the accesses."""
        return {verb: partial(self.note, machine) for verb in self.verbs if verb != events.ACCESS}

    def before(self, access: Access) -> None:
        """Do nothing: an access is recorded after it was made; a refused access is reported as a finding."""

    def after(self, access: Access) -> None:
        """Record an access of threads, or of a copy engine for a thread."""
        threads = access.threads
        if isinstance(threads, Lanes):
            done = LaunchEvent(events.ACCESS, threads.ids, threads.statement, access.semantics, access)
            self.note(threads.machine, done)

    def note(self, machine: Machine, event: LaunchEvent) -> None:
        """Record an event, or count it once the log is full."""
        if len(self.events) >= self.most or self._places > MOST_PLACES:
            self.left_out += 1
            return
        geometry, lanes, statement = machine.geometry, np.unique(event.lanes), event.statement
        if event.verb == events.PASSED:  # by whole warps, perhaps at different instructions
            lanes, pcs = np.flatnonzero(np.isin(geometry.warp, lanes)), set(event.payload.at.tolist())
            statement = machine.code.steps[pcs.pop()].statement if len(pcs) == 1 else statement
        facts = dict(_facts(machine, event, lanes))
        self._places += len(lanes) + len(facts.get("addresses", ()))
        threads = geometry.numbers[lanes // geometry.threads] * geometry.threads + lanes % geometry.threads
        who = geometry.describe(int(lanes[0])) if len(lanes) else ""
        who = who if len(lanes) < 2 else f"{len(lanes)} threads, first {who}"
        done = statement if statement.opcode else None
        self.events.append(RecordedEvent(event.verb, done, threads, who, geometry.threads, **facts))


def _facts(machine: Machine, event: LaunchEvent, lanes: Ids) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a record that the meaning and the payload of an event give."""
    parts, details, stride = dict(_parts(event)), dict[str, str](), machine.shared.stride
    for name, part in parts.items():
        if isinstance(part, Access):
            details |= {"access": part.kind} | ({} if part.proxy == "generic" else {"proxy": part.proxy})
            at = part.threads.full(part.at) + part.space.base
            yield from (("space", part.name), ("addresses", at), ("width", part.width))
        elif name == "items" and "width" in parts:
            flat, width = part * parts["width"], parts["width"]
            yield from (("space", "shared"), ("addresses", flat % stride), ("width", width))
            details |= _elsewhere(machine, int(flat[0]), lanes) if len(flat) else {}
        elif name == "mbarrier" and isinstance(part, int) and part >= 0:
            yield "mbarrier", part % stride
            if (live := machine.mbarriers.live.get(part)) is not None:
                yield "phase", live.phase - (event.verb in (events.MBARRIER_PASS, events.MBARRIER_OBSERVE))
            details |= _elsewhere(machine, part, lanes)
        elif name not in ("width", "mbarrier"):
            details |= _plain(name, part)
    yield "details", details | _order(event.meaning)


def _parts(event: LaunchEvent) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a payload with their names: from the table, else from the fields of a named tuple."""
    payload = event.payload if isinstance(event.payload, tuple) else (event.payload,)
    names = words_in(_PARTS.get(event.verb, "")) or getattr(payload, "_fields", ())
    for position, part in enumerate(payload):
        name = names[position] if position < len(names) else f"part {position + 1}"
        if name != "-" and part is not None:
            yield name, part


def _elsewhere(machine: Machine, flat: int, lanes: Ids) -> dict[str, str]:
    """Return the block that holds a byte of the flat shared memory, unless it is the block of the lanes."""
    geometry, cta = machine.geometry, flat // machine.shared.stride
    if len(lanes) and (lanes // geometry.threads == cta).all():
        return {}
    return {"in": geometry.describe(cta * geometry.threads).partition(" of ")[2]}


def _plain(name: str, part: Any) -> dict[str, str]:
    """Return a part of a payload that is a text, a number or some numbers; parts for checks are left out."""
    if isinstance(part, str):
        return {name: part} if part else {}
    numbers = np.asarray(part if isinstance(part, int | np.ndarray) else ()).reshape(-1)
    if numbers.dtype.kind not in "iu" or not len(numbers):
        return {}
    if name == "scope":
        return {name: _SCOPES[int(numbers[0])]}
    if name == "slot":
        name, numbers = "barrier", np.unique(numbers % 16)  # CTA * 16 + number
    said = [f"{each:#x}" if name == "map" else str(each) for each in numbers[:4].tolist()]
    return {name: " ".join(said) + (f" and {len(numbers) - 4} more" if len(numbers) > 4 else "")}


def _order(meaning: Semantics) -> dict[str, str]:
    """Return the memory order and the scope of a strong operation."""
    if not meaning.strong:
        return {}
    named = {(True, True): "acq_rel", (True, False): "acquire", (False, True): "release"}
    order = "sc" if meaning.sequential else named.get((meaning.acquires, meaning.releases), "relaxed")
    return {"order": order, "scope": _SCOPES[meaning.scope]}
