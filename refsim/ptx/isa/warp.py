"""Instructions of a warp: lanes exchange registers once all lanes of the member mask have met."""

from functools import partial
from typing import Any

import numpy as np

from refsim.ptx.execution.lanes import ALL_LANES, Lanes, is_left_out
from refsim.ptx.execution.register_file import mask_of
from refsim.ptx.execution.types import TYPES
from refsim.ptx.isa.definedness import warp as undefined
from refsim.ptx.isa.definedness.bits import FEW_BITS, RuleOperands, defined
from refsim.ptx.isa.definedness.tracking import tracking_of
from refsim.ptx.isa.forms import instruction
from refsim.ptx.memory.arrays import Array
from refsim.ptx.memory.space import POISON
from refsim.sources import PTX

_redux = partial(instruction, rendezvous="mask", since="sm_80", source=PTX["redux.sync"])
_match = partial(instruction, rendezvous="mask", since="sm_70", source=PTX["match.sync"])
_shared_vote = partial(instruction, rendezvous="mask", source=PTX["vote.sync"])


def _source_lanes(lanes: Lanes, b: Array, c: Array, mode: str) -> tuple[Array, Array]:
    """Return the lane that each lane reads from, and whether it lies inside the segment; outside, a lane reads
    itself."""
    lane = lanes.laneid
    step, clamp, segment = (b & 31).astype(np.int64), (c & 31).astype(np.int64), (c >> 8 & 31).astype(np.int64)
    first, last = lane & segment, (lane & segment) | (clamp & ~segment)
    source = {
        "up": lambda: lane - step,
        "down": lambda: lane + step,
        "bfly": lambda: lane ^ step,
        "idx": lambda: first | (step & ~segment),
    }[mode]()
    inside = source >= last if mode == "up" else source <= last
    return np.where(inside, source, lane), np.broadcast_to(inside, lane.shape)


def _shuffled(operands: RuleOperands) -> list[Any]:
    """Return the masks of a shuffle: the bits that vary among the source lanes that b and c may choose. With more than
    FEW_BITS undefined bits in b and c of all lanes, all bits of lanes whose choice is undefined."""
    lanes, (value, b, c, *_) = operands.lanes, operands.values
    mask = undefined.members(operands)
    value, held = lanes.full(value), operands.bits(0)
    open_b, open_c = operands.bits(1) & np.uint32(0x1F), operands.bits(2) & np.uint32(0x1F1F)
    choice = (open_b | open_c) != 0
    together = int(np.bitwise_or.reduce(open_b | open_c << 16))
    places = [1 << bit for bit in range(32) if together >> bit & 1]
    wild = choice & (len(places) > FEW_BITS)
    can, absent, within = np.zeros((2, lanes.count), np.uint32), np.zeros(lanes.count, np.bool_), []
    for trial in range(1 if len(places) > FEW_BITS else 1 << len(places)):
        ones = np.uint32(sum(bit for number, bit in enumerate(places) if trial >> number & 1))
        chosen = b & ~open_b | open_b & ones, c & ~open_c | open_c & ones >> 16
        source, inside = _source_lanes(lanes, *chosen, operands.keywords["mode"])
        within.append(inside)
        absent |= _is_absent(lanes, source, mask)
        can |= [_take(lanes, each, source, absent ^ absent) for each in (~value | held, value | held)]
    origin = np.zeros(lanes.count, np.int32)
    if operands.masks[0] is not None:
        origin = _take(lanes, operands.masks[0].origin, source, absent)
    if absent.any():
        what = "the value that it takes from a lane which does not take part is undefined"
        origin = np.where(absent, tracking_of(lanes).origins.add(lanes, absent, what), origin)
    events = np.maximum(*(np.zeros(1, np.int32) if held is None else held.origin for held in operands.masks[1:3]))
    bits = np.where(absent | wild, ~np.uint32(0), can[0] & can[1])
    unsure = np.bitwise_or.reduce([each ^ within[0] for each in within]) | wild
    found = [mask_of(bits, np.where(choice, events, origin)), mask_of(unsure, events)]
    return found[: len(operands.results)]


@instruction(
    "shfl.sync.{mode:up|down|bfly|idx}.b32 d:b32|dp:pred, a:b32, b:b32, c:b32, mask:b32",
    rendezvous="mask",
    undefined=_shuffled,
    source=PTX["shfl.sync"],
)
def shfl(lanes: Lanes, a: Array, b: Array, c: Array, mask: Array, *, mode: str) -> tuple[Array, Array]:
    """Read `a` from another lane of the segment; the predicate says whether that lane lies inside it. A source lane
    that does not take part gives an undefined value: here poison."""
    source, inside = _source_lanes(lanes, b, c, mode)
    absent = _is_absent(lanes, source, mask)
    if absent.any():
        lanes.machine.saw_unwritten()
    return _take(lanes, lanes.full(a), source, absent), inside


@instruction(
    "shfl.{mode:up|down|bfly|idx}.b32 d:b32|dp:pred, a:b32, b:b32, c:b32", rendezvous="converged", undefined=_shuffled
)
def shfl_converged(lanes: Lanes, a: Array, b: Array, c: Array, *, mode: str) -> tuple[Array, Array]:
    """Read `a` from another of the lanes that are converged here, as before sm_70; ptxas refuses it from PTX 6.4 on for
    sm_70 and later."""
    return shfl(lanes, a, b, c, lanes.members, mode=mode)


def _is_absent(lanes: Lanes, source: Array, mask: Array) -> Array:
    """Return which lanes read from a lane that is not in the mask or has exited. A lane that its mask leaves out reads
    from any lane that executes with it."""
    named = np.where(is_left_out(lanes, mask), ALL_LANES, lanes.full(mask).astype(np.int64))
    absent: Array = (lanes.machine.warp_bits(lanes.ids)[lanes.warp] & named) >> source & 1 == 0
    return absent


def _take(lanes: Lanes, values: Array, source: Array, absent: Array) -> Array:
    """Return each lane's value from lane `source` of its warp; poison where that lane does not take part."""
    whole = np.full(lanes.machine.geometry.lanes + 32, int.from_bytes(bytes([POISON]) * 4, "little"), np.uint32)
    whole[: lanes.machine.geometry.lanes][lanes.key] = values
    taken = whole[lanes.ids - lanes.laneid + source]
    result: Array = np.where(absent, whole[-1], taken)
    return result


def _voters(lanes: Lanes, mask: Array) -> tuple[Array, Array]:
    """Return for each lane the number of the (warp, mask) pair that votes together, and the lane's bit."""
    key = lanes.warp << 32 | lanes.full(mask).astype(np.int64)
    _, group = np.unique(key, return_inverse=True)
    return group, np.int64(1) << lanes.laneid


@_shared_vote("vote.sync.ballot.b32 d:b32, a:pred, mask:b32", undefined=undefined.ballot)
def vote_ballot(lanes: Lanes, a: Array, mask: Array) -> Array:
    """Return a mask whose bit i is the predicate of lane i."""
    return _ballot(lanes, a, mask).astype(np.uint32)


def _ballot(lanes: Lanes, a: Array, mask: Array) -> Array:
    group, bit = _voters(lanes, mask)
    bits = np.zeros(int(group.max()) + 1, np.int64)
    np.bitwise_or.at(bits, group, np.where(lanes.full(a), bit, 0))
    return bits[group]


@_shared_vote("vote.sync.{mode:all|any|uni}.pred d:pred, a:pred, mask:b32", undefined=undefined.voted)
def vote(lanes: Lanes, a: Array, mask: Array, *, mode: str) -> Array:
    """Return whether all, any, or all-or-none of the lanes have a true predicate."""
    votes, members = _ballot(lanes, a, mask), _ballot(lanes, np.array([True]), mask)
    everyone, nobody = np.equal(votes, members), np.equal(votes, 0)
    match mode:
        case "any":
            return np.logical_not(nobody)
        case "all":
            return everyone
        case _:
            return np.logical_or(everyone, nobody)


@instruction("vote.ballot.b32 d:b32, a:pred", rendezvous="converged", undefined=undefined.ballot)
def ballot_converged(lanes: Lanes, a: Array) -> Array:
    """Return a mask whose bit i is the predicate of lane i, of the lanes that are converged here; see shfl."""
    return vote_ballot(lanes, a, lanes.members)


@instruction("vote.{mode:all|any|uni}.pred d:pred, a:pred", rendezvous="converged", undefined=undefined.voted)
def vote_converged(lanes: Lanes, a: Array, *, mode: str) -> Array:
    """Return whether all, any, or all-or-none of the lanes that are converged here have a true predicate; see shfl."""
    return vote(lanes, a, lanes.members, mode=mode)


@_match("match.any.sync.{type:b32|b64} d:b32, a, mask:b32", undefined=undefined.matched_any)
def match_any(lanes: Lanes, a: Array, mask: Array) -> Array:
    """Return a mask of the lanes whose value equals this lane's."""
    group, bit = _voters(lanes, mask)
    _, value = np.unique(lanes.full(a), return_inverse=True)
    _, both = np.unique(group * (int(value.max()) + 1) + value, return_inverse=True)
    bits = np.zeros(int(both.max()) + 1, np.int64)
    np.bitwise_or.at(bits, both, bit)
    return bits[both].astype(np.uint32)


@_match("match.all.sync.{type:b32|b64} d:b32|dp:pred, a, mask:b32", undefined=undefined.matched_all)
def match_all(lanes: Lanes, a: Array, mask: Array) -> tuple[Array, Array]:
    """Return the member mask if all lanes hold one value, else 0; the predicate says which."""
    equal = match_any(lanes, a, mask)
    members = _ballot(lanes, np.array([True]), mask).astype(np.uint32)
    same = equal == members
    return np.where(same, members, np.uint32(0)), same


_REDUCE = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@_redux("redux.sync.{operation:add|min|max}.{type:u32|s32} d, a, mask:b32", undefined=undefined.group_number)
def redux(lanes: Lanes, a: Array, mask: Array, *, operation: str, type: str) -> Array:
    """Return one integer result over all lanes of the mask."""
    return _reduce(lanes, a, mask, operation)


@_redux("redux.sync.{operation:and|or|xor}.b32 d:b32, a:b32, mask:b32", undefined=undefined.group_bits)
def redux_bits(lanes: Lanes, a: Array, mask: Array, *, operation: str) -> Array:
    """Return one bitwise result over all lanes of the mask."""
    return _reduce(lanes, a, mask, operation)


def _reduce(lanes: Lanes, a: Array, mask: Array, operation: str) -> Array:
    group, _ = _voters(lanes, mask)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(group[order]) != 0])
    totals = _REDUCE[operation].reduceat(lanes.full(a)[order], starts, dtype=a.dtype)
    return np.asarray(totals[group])


@_redux(
    "redux.sync.{operation:min|max}{.abs}{.nan:NaN}.f32 d:f32, a:f32, mask:b32",
    undefined=undefined.group_whole,
    since="sm_100a",
)
def redux_real(lanes: Lanes, a: Array, mask: Array, *, operation: str, abs: bool, nan: str | None) -> Array:
    """Return the smallest or largest float of the lanes; NaN is ignored unless .NaN is given."""
    values = np.abs(a) if abs else a
    # The total order of the bits puts -0 below +0; a NaN is either the answer (.NaN) or the neutral element.
    bits = lanes.full(values).view(np.int32)
    order = np.where(bits < 0, np.int32(-(2**31)) - 1 - bits, bits).astype(np.int64)
    missing = np.isnan(lanes.full(values))
    neutral = -(1 << 40) if operation == "max" else 1 << 40
    keys = _reduce(lanes, np.where(missing, neutral, order), mask, operation)
    some_nan = _ballot(lanes, missing, mask) != 0
    back = np.where(keys < 0, -(2**31) - 1 - keys, keys)
    lost = (np.abs(keys) == 1 << 40) | (some_nan & (nan is not None))
    return np.where(lost, 0x7FFFFFFF, back).astype(np.int64).astype(np.uint32).view(TYPES["f32"].dtype)


@instruction(
    "elect.sync d:b32|dp:pred, mask:b32", rendezvous="mask", since="sm_90", undefined=defined, source=PTX["elect.sync"]
)
def elect(lanes: Lanes, mask: Array) -> tuple[Array, Array]:
    """Choose one lane of the mask: here the lowest."""
    members = _ballot(lanes, np.array([True]), mask)
    lowest = np.log2((members & -members).astype(np.float64)).astype(np.int64)
    return lowest.astype(np.uint32), lanes.laneid == lowest
