"""Granules as runs against sets, and global buffers that are known by runs alone: what is found is what marks would find."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsim import ptx
from refsim.errors import RefsimError
from refsim.ptx.checks.marks import Area, Marks, Spans

items = st.lists(st.integers(0, 40), min_size=1, max_size=12)


@given(stores=st.lists(st.tuples(items, st.sampled_from([1, 2, 4])), min_size=1, max_size=8))
def test_runs_are_the_granules_that_were_touched_once(stores: list[tuple[list[int], int]]) -> None:
    held, spans = set[int](), Spans()
    for index, count in stores:
        granules = [item * count + part for item in index for part in range(count)]
        found = spans.and_items(np.array(index), count)
        if len(set(granules)) < len(granules) or held & set(granules):
            assert found is None
            continue
        assert found is not None
        held, spans = held | set(granules), found
        runs = list(zip(spans.starts.tolist(), spans.ends.tolist(), strict=True))
        assert [granule for start, end in runs for granule in range(start, end)] == sorted(held)
        assert all(end < start for (_, end), (start, _) in pairwise(runs))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("first", [0, 2])
def test_columns_of_a_matrix_go_on_behind_each_other(count: int, first: int) -> None:
    """Rows of five items, column after column from the `first` on: a run a row, one run when rows adjoin; again: None."""
    rows, spans = np.arange(3) * 5, Spans()
    for column in range(first, first + 5):
        found = spans.and_items(rows + column, count)
        assert found is not None
        spans = found
        width = column + 1 - first
        runs = [(row + first, row + first + width) for row in rows.tolist()] if width < 5 else [(first, first + 15)]
        assert list(zip(spans.starts.tolist(), spans.ends.tolist(), strict=True)) == [
            (start * count, end * count) for start, end in runs
        ]
    assert spans.and_items(rows + first + 4, count) is None
    assert Spans(np.array([0, 5]), np.array([5, 9])).and_items(np.array([5, 9]), 1) is None


BLOCKS, THREADS = 4, 64
# Blocks write words of y in an order that falls with their number, two words a thread; `shift` words further the last time.
SOURCE = f"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry scattered(.param .u64 y, .param .u32 shift) {{
    .reg .b64 %a<4>;
    .reg .b32 %r<9>;
    ld.param.u64 %a0, [y];
    ld.param.u32 %r0, [shift];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    sub.u32 %r3, {BLOCKS - 1}, %r2;
    mad.lo.u32 %r4, %r3, {2 * THREADS}, %r1;
    mul.wide.u32 %a1, %r4, 4;
    add.u64 %a1, %a0, %a1;
    add.u32 %r5, %r1, 1;
    st.global.u32 [%a1], %r5;
    mul.wide.u32 %a2, %r0, 4;
    add.u64 %a1, %a1, %a2;
    add.u32 %r5, %r5, %r2;
    st.global.u32 [%a1+{4 * THREADS}], %r5;
    ret;
}}
"""


def finding(shift: int, policy: str = "eager", seed: int = 0) -> tuple[str, str] | None:
    """What the first race of a launch says; None where there is none."""
    y = np.zeros(BLOCKS * THREADS * 2 + THREADS * 2, np.uint32)
    try:
        ptx.load(SOURCE).launch("scattered", (BLOCKS,), (THREADS,), [y, np.uint32(shift)], policy=policy, seed=seed)
    except RefsimError as error:
        assert error.code == "race"
        return error.what, error.where
    return None


@pytest.mark.parametrize(("policy", "seed"), [("eager", 0), ("lazy", 0), ("random", 1), ("random", 2)])
@pytest.mark.parametrize("shift", [0, 1, THREADS - 1, THREADS])
def test_runs_find_what_marks_find(monkeypatch: pytest.MonkeyPatch, shift: int, policy: str, seed: int) -> None:
    found = finding(shift, policy, seed)
    assert (found is not None) == (shift > 0)
    monkeypatch.setattr(Area, "fresh", lambda *_: None)
    assert finding(shift, policy, seed) == found


def test_writes_apart_take_no_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Marks, "put", lambda *_: pytest.fail("marks where nobody touches anything twice"))
    assert finding(0) is None


@pytest.mark.parametrize("mutant", ["forgets the runs before", "sees no two items of one place"])
def test_a_mutant_misses_the_race(monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    plain = Spans.and_items
    if mutant == "forgets the runs before":
        monkeypatch.setattr(Spans, "and_items", lambda self, index, count: plain(Spans(), index, count))
        assert finding(1) is None
    else:
        monkeypatch.setattr(Spans, "and_items", lambda self, index, count: self)
        assert finding(THREADS) is None


@pytest.mark.parametrize(("listed", "is_fresh"), [(0, True), (127, True), (128, False)])
def test_so_many_writes_of_a_buffer_are_known_without_marks(listed, is_fresh) -> None:
    unused = SimpleNamespace(is_used=False)
    area = SimpleNamespace(
        is_shared=False, waiting=[], writes=unused, reads=unused, unmarked=[None] * listed, spans=Spans()
    )
    assert (Area.fresh(area, np.arange(4), 1) is not None) == is_fresh
