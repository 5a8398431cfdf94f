"""What a thread knows: joins that are only noted say the same as joins made at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsim.ptx.checks import comparisons, knowledge
from refsim.ptx.checks.happens_before import Clocks, FenceOrder, Rows
from refsim.ptx.checks.knowledge import NOTHING, Answers, Knowledge, joined, together
from refsim.ptx.execution.geometry import Geometry

NAMES = st.integers(0, 5)
STAMPS = st.dictionaries(NAMES, st.integers(1, 9), max_size=3)
STEPS = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), STAMPS, STAMPS, STAMPS), min_size=1, max_size=12)
EVERY = np.array([(cta, warp, thread) for cta in range(7) for warp in range(7) for thread in range(7)])


def largest(*tables):
    return {name: max(table.get(name, 0) for table in tables) for name in {name for table in tables for name in table}}


@given(steps=STEPS, asked=st.lists(st.integers(0, 99), max_size=6))
@pytest.mark.parametrize("limits", [{}, {"_DEEP": 2}, {"_FEW": 0}, {"_FEW": 1000}, {"_ENTRIES": 3, "_FEW": 0}], ids=str)
def test_joins_that_are_noted_are_maxima(limits, steps, asked) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in limits.items():
            patch.setattr(knowledge, name, value)
        found, wanted, answers = [NOTHING], [({}, {}, {})], Answers()
        for first, second, *stamps in steps:
            one, other = first % len(found), second % len(found)
            found += [found[one] | found[other], joined((found[one], found[other]), *stamps)]
            both = tuple(map(largest, wanted[one], wanted[other]))
            wanted += [both, tuple(map(largest, both, stamps))]
        for number in [*(place % len(found) for place in asked), len(found) - 1]:
            ctas, warps, threads = wanted[number]
            want = [max(ctas.get(a, 0), warps.get(b, 0), threads.get(c, 0)) for a, b, c in EVERY.tolist()]
            assert answers.stamps(found[number], *EVERY.T).tolist() == want
            few = EVERY[number % 7 :: 43]
            assert answers.stamps(found[number], *few.T).tolist() == want[number % 7 :: 43]


def test_a_join_that_adds_nothing_is_the_same_knowledge() -> None:
    first, second = Knowledge({1: 2}), Knowledge({1: 3})
    both = first | second
    assert both | first is both
    assert second | both is both
    assert first | NOTHING is first
    assert NOTHING | first is first


def test_what_was_asked_for_longest_ago_is_forgotten() -> None:
    answers, many = Answers(), np.arange(100)
    for number in range(50):
        parts = tuple(Knowledge({place + number: 1}) for place in range(knowledge._FEW + 1))
        answers.stamps(joined(parts), many, many, many)
    assert answers.entries == sum(len(names) for tables in answers.tables.values() for names, _ in tables) > 0


def test_many_at_a_meeting_are_one_join() -> None:
    """128 threads that bring something each make a step, not a chain of 128; nobody twice, and nothing of nothing."""
    parts = [Knowledge(threads={number: number + 1}) for number in range(128)]
    found = together([NOTHING, *parts, parts[0]])
    assert (found.parts, found.depth) == (tuple(parts), 1)
    assert joined((parts[0], found)).depth == joined((found, parts[0])).depth == 2
    assert parts[5] | found is found
    assert together([NOTHING, parts[3], parts[3]]) is parts[3]
    assert together([NOTHING]) is NOTHING


@given(seed=st.integers(0, 1 << 32), partly=st.tuples(st.booleans(), st.booleans()))
def test_one_lane_is_told_of_an_access_what_many_lanes_are_told(seed, partly) -> None:
    """Three blocks of 40 threads, whose second warp is not whole; the first of the grid's four does not run now."""
    rng = np.random.default_rng(seed)
    clocks = Clocks(Geometry((4, 1, 1), (40, 1, 1), 1, 3), {})
    known = [rng.integers(0, high, (2, 4)).tolist() for high in (4, 8, 160)]
    clocks.known.append(
        Knowledge(*(dict(zip(names, rng.integers(1, 9, 4).tolist(), strict=True)) for names, _ in known))
    )
    rows = [rng.integers(0, 9, 120).astype(np.int32) for _ in range(2)]
    clocks.rows = Rows(*rows, rng.integers(0, 2, 120).astype(np.int32), rows[0])
    clocks.rows.warps = rng.integers(0, 9, (120, 2)) if partly[0] else None
    clocks.rows.lanes = rng.integers(0, 9, (120, 32)) if partly[1] else None
    for count in (1, 2, 50):
        lane, stamp, agents = int(rng.integers(120)), int(rng.integers(1, 9)), rng.integers(0, 160, count)
        wanted = clocks.is_ordered(np.full(count + 1, lane), np.append(agents, 0), np.full(count + 1, stamp))[:-1]
        assert clocks.comes_after(lane, agents, stamp).tolist() == wanted.tolist()


def test_many_accesses_come_before_a_lane_where_each_of_them_does() -> None:
    class Ordered:
        def is_ordered(self, lanes, agents, numbers):
            return (agents == 1) & (lanes == 3)

    def before(*agents):
        return comparisons._come_before(Ordered(), 3, np.array(agents, np.int64), np.full(len(agents), 7))

    assert [before(), before(1), before(2), before(1, 2), before(1, 1)] == [True, True, False, False, True]


def test_a_lane_alone_keeps_its_fence_and_of_two_that_meet_the_other_learns_it() -> None:
    order = FenceOrder(3, lambda lanes: Knowledge(threads={int(lane): 5 for lane in lanes}), np.zeros(3, int))
    order.fence(np.array([0]))
    order.share(np.array([0]), np.array([0]))
    assert order.covered(0).threads or order.covered(0).parts
    assert order.covered(1) is NOTHING
    order.share(np.array([0, 1]), np.array([4, 4]))
    assert Answers().stamps(order.covered(1), *(np.array([each]) for each in (9, 9, 0))).tolist() == [5]
    assert order.covered(2) is NOTHING
