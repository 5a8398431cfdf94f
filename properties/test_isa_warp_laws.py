"""Laws of warp instructions: each equals a loop over the lanes of plain Python, in lockstep and under random schedules."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from refsim import ptx
from refsim.errors import RefsimError
from refsim.reference import rational_float, single_instruction
from refsim.reference.instructions import words
from refsim.testing.strategies import share

POISON = 0xA5A5A5A5
SCHEDULES = [("eager", 0), ("random", 1), ("random", 2)]
WARPS = 2
LANES = 32 * WARPS
ABSENT = ptx.Checks(initialised="off")  # the value of a lane that takes no part is stored here
ROW = st.integers(0, len(SCHEDULES) - 1)


def u32(values: Any) -> np.ndarray:
    return np.asarray(values, dtype=np.uint64).astype(np.uint32)


@st.composite
def gathering(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Which lanes run, and each lane's member mask: one or two groups a warp that between them name just those lanes."""
    active = np.zeros(LANES, np.bool_)
    masks = np.zeros(LANES, np.uint32)
    for warp in range(WARPS):
        members = draw(st.one_of(st.just(0xFFFFFFFF), st.integers(1, 0xFFFFFFFF)))
        split = draw(st.one_of(st.just(0xFFFFFFFF), st.integers(1, 0xFFFFFFFF)))
        for lane in range(32):
            if members >> lane & 1:
                active[32 * warp + lane] = True
                masks[32 * warp + lane] = members & split if split >> lane & 1 else members & ~split
    return active, masks


def groups(active: np.ndarray, masks: np.ndarray) -> list[list[int]]:
    """The lanes that meet: of one warp, with one mask."""
    found: dict[tuple[int, int], list[int]] = {}
    for lane in np.flatnonzero(active).tolist():
        found.setdefault((lane // 32, int(masks[lane])), []).append(lane)
    return list(found.values())


def shuffled(mode: str, lane: int, b: int, c: int) -> tuple[int, bool]:
    """The lane within the warp that `lane` reads, and whether it lies in the segment: PTX ISA, shfl.sync."""
    step, clamp, segment = b & 31, c & 31, c >> 8 & 31
    low, high = lane & segment, lane & segment | clamp & ~segment & 31
    source = {"up": lane - step, "down": lane + step, "bfly": lane ^ step, "idx": low | step & ~segment & 31}[mode]
    inside = source >= high if mode == "up" else source <= high
    return (source if inside else lane), inside


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@share(3 / 5)
@given(
    meeting=gathering(),
    values=words(LANES),
    b=words(LANES),
    c=words(LANES),
    width=st.sampled_from([1, 2, 4, 8, 16, 32, 0]),
    schedule=ROW,
)
def test_shuffle_reads_the_lane_of_the_pseudo_code(
    mode: str, meeting: Any, values: np.ndarray, b: np.ndarray, c: np.ndarray, width: int, schedule: int
) -> None:
    """width 0: any clamp and segment, not only those that CUDA's __shfl_sync makes. Lanes that are absent give poison."""
    active, masks = meeting
    clamp = u32(c) if width == 0 else np.full(LANES, (32 - width) << 8 | (0 if mode == "up" else 31), np.uint32)
    policy, seed = SCHEDULES[schedule]
    ran = single_instruction.run(
        f"shfl.sync.{mode}.b32",
        u32(values),
        u32(b),
        clamp,
        masks,
        active=active,
        policy=policy,
        seed=seed,
        checks=ABSENT,
    )
    for group in groups(active, masks):
        for lane in group:
            source, inside = shuffled(mode, lane % 32, int(b[lane]) % (1 << 32), int(clamp[lane]))
            source += lane - lane % 32
            want = int(u32(values)[source]) if source in group else POISON
            assert (int(ran.results[0][lane]), bool(ran.results[1][lane])) == (want, inside), (lane, source)


def ballot(group: list[int], votes: dict[int, bool]) -> int:
    return sum(1 << lane % 32 for lane in group if votes[lane])


@share(4 / 5)
@given(meeting=gathering(), raw=words(LANES), bias=st.sampled_from(["any", "all", "none"]), schedule=ROW)
def test_votes_count_the_lanes_of_the_mask(meeting: Any, raw: np.ndarray, bias: str, schedule: int) -> None:
    active, masks = meeting
    predicate = {"any": raw % 2 == 1, "all": raw % 50 != 0, "none": raw % 50 == 0}[bias]
    policy, seed = SCHEDULES[schedule]
    opcodes = ("vote.sync.ballot.b32", "vote.sync.all.pred", "vote.sync.any.pred", "vote.sync.uni.pred")
    got = [
        single_instruction.run(opcode, predicate, masks, active=active, policy=policy, seed=seed).results[0]
        for opcode in opcodes
    ]
    for group in groups(active, masks):
        votes = [bool(predicate[lane]) for lane in group]
        want = (ballot(group, dict(zip(group, votes, strict=True))), all(votes), any(votes), len(set(votes)) == 1)
        for lane in group:
            assert tuple(int(result[lane]) for result in got) == tuple(map(int, want))


@pytest.mark.parametrize("bits", [32, 64])
@share(3 / 5)
@given(meeting=gathering(), raw=words(LANES), kinds=st.integers(1, 5), schedule=ROW)
def test_match_names_the_lanes_with_one_value(
    bits: int, meeting: Any, raw: np.ndarray, kinds: int, schedule: int
) -> None:
    active, masks = meeting
    values = (raw % np.uint64(kinds) * np.uint64(0x1_0000_0001_0001)).astype(f"u{bits // 8}")
    policy, seed = SCHEDULES[schedule]
    same = single_instruction.run(f"match.any.sync.b{bits}", values, masks, active=active, policy=policy, seed=seed)
    every = single_instruction.run(f"match.all.sync.b{bits}", values, masks, active=active, policy=policy, seed=seed)
    for group in groups(active, masks):
        equal = len({int(values[lane]) for lane in group}) == 1
        for lane in group:
            assert int(same.results[0][lane]) == sum(
                1 << other % 32 for other in group if values[other] == values[lane]
            )
            assert bool(every.results[1][lane]) == equal
            assert int(every.results[0][lane]) == (sum(1 << other % 32 for other in group) if equal else 0)


def signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


def folded(function: Callable[[int, int], int]) -> Callable[[list[int]], int]:
    def over(values: list[int]) -> int:
        total = values[0]
        for value in values[1:]:
            total = function(total, value)
        return total

    return over


REDUCTIONS: dict[str, Callable[[list[int]], int]] = {
    "add.u32": sum,
    "add.s32": sum,
    "min.u32": min,
    "max.u32": max,
    "min.s32": lambda values: min(map(signed, values)),
    "max.s32": lambda values: max(map(signed, values)),
    "and.b32": folded(lambda a, b: a & b),
    "or.b32": folded(lambda a, b: a | b),
    "xor.b32": folded(lambda a, b: a ^ b),
}


@pytest.mark.parametrize("operation", sorted(REDUCTIONS))
@share(1 / 3)
@given(meeting=gathering(), values=words(LANES), schedule=ROW)
def test_redux_folds_the_lanes_of_the_mask(operation: str, meeting: Any, values: np.ndarray, schedule: int) -> None:
    active, masks = meeting
    policy, seed = SCHEDULES[schedule]
    (got,) = single_instruction.run(
        f"redux.sync.{operation}", u32(values), masks, active=active, policy=policy, seed=seed
    ).results
    for group in groups(active, masks):
        want = REDUCTIONS[operation]([int(u32(values)[lane]) for lane in group]) % (1 << 32)
        assert {int(got[lane]) for lane in group} == {want}


@pytest.mark.parametrize(
    "opcode",
    [f"redux.sync.{name}{abs}{nan}.f32" for name in ("min", "max") for abs in ("", ".abs") for nan in ("", ".NaN")],
)
@share(1 / 4)
@given(meeting=gathering(), values=words(LANES), schedule=ROW)
def test_redux_of_floats_is_the_extremum_of_the_lanes(
    opcode: str, meeting: Any, values: np.ndarray, schedule: int
) -> None:
    active, masks = meeting
    grid = rational_float.GRIDS["f32"]
    (got,) = single_instruction.run(opcode, u32(values), masks, active=active, policy=SCHEDULES[schedule][0]).results
    for group in groups(active, masks):
        numbers = [grid.decode(int(u32(values)[lane])) for lane in group]
        numbers = [rational_float.ExactNumber(False, x.magnitude) for x in numbers] if ".abs" in opcode else numbers
        want = grid.encode(rational_float.extremum(numbers, ".max" in opcode, nan=".NaN" in opcode))
        assert {hex(got[lane]) for lane in group} == {hex(want)}


@share(2 / 5)
@given(meeting=gathering(), schedule=ROW)
def test_one_lane_of_each_mask_is_elected(meeting: Any, schedule: int) -> None:
    active, masks = meeting
    policy, seed = SCHEDULES[schedule]
    leader, chosen = single_instruction.run("elect.sync", masks, active=active, policy=policy, seed=seed).results
    for group in groups(active, masks):
        assert [lane for lane in group if chosen[lane]] == [lane for lane in group if lane % 32 == leader[lane]]
        assert len({int(leader[lane]) for lane in group}) == sum(bool(chosen[lane]) for lane in group) == 1


@share(2 / 5)
@given(raw=words(LANES), schedule=ROW)
def test_the_active_mask_names_lanes_that_run(raw: np.ndarray, schedule: int) -> None:
    """No program may rely on more than this: the lane itself is in it, and nobody who stays behind."""
    active = raw % 3 != 0
    assume(active.any())
    policy, seed = SCHEDULES[schedule]
    (mask,) = single_instruction.run("activemask.b32", active=active, policy=policy, seed=seed).results
    for lane in np.flatnonzero(active).tolist():
        running = sum(1 << other % 32 for other in np.flatnonzero(active).tolist() if other // 32 == lane // 32)
        assert int(mask[lane]) & ~running == 0
        assert int(mask[lane]) >> lane % 32 & 1


@pytest.mark.parametrize("policy", ["eager", "random"])
def test_a_mask_must_name_the_lane_that_gives_it(policy: str) -> None:
    masks = np.full(32, 0xFFFFFFFE, np.uint32)
    with pytest.raises(RefsimError) as caught:
        single_instruction.run("redux.sync.add.u32", masks, masks, policy=policy)
    assert caught.value.code == "divergent-sync"
    assert "thread (0, 0, 0)" in str(caught.value)
