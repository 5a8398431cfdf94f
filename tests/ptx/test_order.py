"""Vector clocks of warps in one byte a code: against a model that keeps every event and asks for a path between two."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from refsim.ptx.checks.happens_before import BARRIERS, FIRST, IN_FLIGHT, LAST, NEVER, ORDERED, Order
from refsim.ptx.execution.geometry import Geometry

WARPS = 4
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("access"), st.integers(0, WARPS - 1)),
        st.tuples(st.just("everyone"), st.just(0)),
        st.tuples(st.just("pair"), st.permutations(range(WARPS)).map(lambda order: tuple(sorted(order[:2])))),
        st.tuples(st.just("hand"), st.permutations(range(WARPS)).map(lambda order: tuple(order[:2]))),
    ),
    max_size=40,
)  # fmt: skip


def begin(order: Order, warps: list[int], marks: dict[int, int]) -> None:
    """New epochs, with the codes numbered anew where they run out, and the marks of old accesses with them."""
    chosen = np.array(sorted(warps))
    for cta in order.room(chosen):
        table = order.renumber(int(cta), np.ones(WARPS, np.bool_))
        marks.update({event: int(table[code]) for event, code in marks.items()})
    order.begin(chosen)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(events=EVENTS, repeat=st.integers(1, 30))
def test_an_access_is_ordered_exactly_where_a_path_of_barriers_leads(
    events: list[tuple[str, object]], repeat: int
) -> None:
    """The model: each warp knows a set of accesses; a barrier gives all who wait there what all who arrive know."""
    order = Order(Geometry((1, 1, 1), (32 * WARPS, 1, 1), 0, 1))
    known: list[set[int]] = [set() for _ in range(WARPS)]
    marks: dict[int, int] = {}
    everyone = np.full(BARRIERS, WARPS)
    for kind, who in events * repeat:
        if kind == "access":
            known[who].add(len(marks))
            marks[len(marks)] = int(order.code[who])
        elif kind == "everyone":
            known = [set().union(*known) for _ in range(WARPS)]
            order.everyone_met()
            begin(order, list(range(WARPS)), marks)
        else:
            first, second = who
            waited = np.array([kind == "pair", True])
            both = known[first] | known[second]
            known[second] = set(both)
            if kind == "pair":
                known[first] = set(both)
            order.met(np.array([3, 3]), np.array([first, second]), waited, everyone)
            begin(order, [first, second], marks)
    recent = list(marks)[-300:]
    for warp in range(WARPS):
        codes = np.array([marks[event] for event in recent], np.int64)
        found = order.is_ordered(np.full(len(codes), warp), codes)
        for event, ordered in zip(recent, found, strict=True):
            assert bool(ordered) == (event in known[warp]), (event, warp)


def test_codes_below_the_floor_come_before_everybody() -> None:
    order = Order(Geometry((2, 1, 1), (64, 1, 1), 0, 2))
    before = order.code.copy()
    order.everyone_met()
    order.begin(np.arange(4))
    assert (before < np.repeat(order.floor, 2)).all()
    assert (order.code >= np.repeat(order.floor, 2)).all()
    assert NEVER < ORDERED < FIRST <= before.min()
    assert order.code.max() <= LAST < IN_FLIGHT
