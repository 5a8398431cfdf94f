"""Multisets within groups: what agrees in some order agrees, and what does not is missing or extra by name."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsim.compare.differences import in_best_order
from refsim.errors import RefsimError
from refsim.kernels import Promise
from refsim.testing import Unordered


def offsets(*ends: int) -> np.ndarray:
    return np.array([0, *ends], np.int64)


@given(st.data())
def test_the_best_order_is_that_of_a_search_through_all_orders(data):
    n, width = data.draw(st.integers(1, 5)), data.draw(st.sampled_from([1, 3]))
    cut = data.draw(st.integers(0, n))
    small = st.lists(st.integers(0, 2), min_size=n * width, max_size=n * width)
    got, want = (np.array(data.draw(small), np.uint16).reshape(n, width) for _ in range(2))
    (best,), lines = in_best_order([got], [want], 0, offsets(cut, n))
    fewest = 0
    for first, last in ((0, cut), (cut, n)):
        mine, right = got[first:last], want[first:last]
        orders = permutations(range(last - first))
        fewest += min(int((mine != right[list(order)]).any(1).sum()) for order in orders)
        assert sorted(map(tuple, best[first:last].tolist())) == sorted(map(tuple, right.tolist()))
    assert int((best != got).any(1).sum()) == fewest
    assert bool(lines) == bool(fewest)


def test_each_row_is_a_group_and_whole_rows_move_by_the_axis():
    want = np.arange(12, dtype=np.uint32).reshape(3, 4)
    rows, columns = want[[2, 0, 1]], want[:, [3, 1, 0, 2]]
    for got, axis, agrees in ((rows, 0, True), (rows, 1, False), (columns, 1, True), (columns, 0, False)):
        (best,), lines = in_best_order([got], [want], axis, offsets(want.shape[axis]))
        assert bool((best == got).all()) == agrees
        assert bool(lines) != agrees


def test_what_is_missing_and_extra_is_named_with_its_group():
    want = np.array([7, 8, 9, 1, 2], np.int32)
    got = np.array([9, 8, 7, 2, 2], np.int32)
    (best,), lines = in_best_order([got], [want], 0, offsets(3, 3, 5))
    assert lines == ["group 2, places 3..4: missing 1; extra 2"]
    assert best.tolist() == [9, 8, 7, 2, 1]
    _, lines = in_best_order([got[[3, 1, 2, 0, 4]]], [want], 0, offsets(3, 3, 5))
    assert lines[0] == "group 0, places 0..2: missing 9; extra 2"  # the same set, in other groups


def test_of_many_groups_that_differ_four_are_named():
    want = np.arange(60, dtype=np.uint8).reshape(6, 10)
    _, lines = in_best_order([want + 1], [want], 1, offsets(4, 10))
    assert lines[0] == "group 0 of [0], places 0..3: missing 0; extra 4"
    assert (len(lines), lines[-1]) == (5, "8 more groups differ")
    _, lines = in_best_order([want + 100], [want], 0, offsets(6))
    assert lines == ["group 0, places 0..5: missing [0], [1], [2], [3] and 2 more; extra [0], [1], [2], [3] and 2 more"]


def test_arrays_that_move_together_agree_only_in_one_order():
    keys, values = np.array([5, 6, 6], np.uint32), np.array([0.5, 1.5, 2.5])
    turned = [keys[[2, 0, 1]], values[[2, 0, 1]]]
    best, lines = in_best_order(turned, [keys, values], 0, offsets(3))
    assert not lines
    assert all((a == b).all() for a, b in zip(best, turned, strict=True))
    _, lines = in_best_order([keys[[1, 0, 2]], values], [keys, values], 0, offsets(3))
    assert lines


def test_what_is_missing_is_spelled_as_the_format_of_each_array_says():
    places, weights = np.array([5, 6], np.int32), np.array([0.5, 1.5], np.float32).view(np.uint32)
    wrong = np.array([0.5, -2], np.float32).view(np.uint32)
    _, lines = in_best_order([places, wrong], [places, weights], 0, offsets(2), ["", "f32"])
    assert lines == ["group 0, places 0..1: missing (6, 1.5); extra (6, -2.0)"]
    _, lines = in_best_order([wrong], [weights], 0, offsets(2), ["f32"])
    assert lines == ["group 0, places 0..1: missing 1.5; extra -2.0"]


def test_zeros_and_nans_are_told_apart_by_their_bits():
    want = np.array([0.0, np.nan], np.float32)
    assert in_best_order([want[::-1].copy()], [want], 0, offsets(2))[1] == []
    assert in_best_order([np.array([-0.0, np.nan], np.float32)], [want], 0, offsets(2))[1]


def test_a_row_with_one_wrong_element_is_compared_with_the_row_that_it_resembles():
    want = np.random.default_rng(1).integers(0, 9, (40, 16)).astype(np.uint16)
    got = want[::-1].copy()
    got[[3, 20], [5, 6]] += 100
    (best,), _ = in_best_order([got], [want], 0, offsets(40))
    assert int((best != got).sum()) == 2


@pytest.mark.parametrize(
    "made",
    [
        lambda: Unordered([1, 2]),  # type: ignore[arg-type]
        lambda: Unordered(np.zeros((2, 2)), 2),
        lambda: Unordered(np.zeros(()), 0),
        lambda: Unordered(np.zeros(4), groups=[0, 3]),
        lambda: Unordered(np.zeros(4), groups=[0, 3, 2, 4]),
        lambda: Unordered(np.zeros(4), groups=[0.0, 4.0]),
        lambda: Unordered(np.zeros(4), groups=[[0, 4]]),
        lambda: Unordered(np.zeros(4), groups="04"),
        lambda: Unordered(np.zeros(4), groups=[]),
        lambda: Promise.SET("0"),  # type: ignore[arg-type]
        lambda: Promise.SET(True),
    ],
)
def test_an_axis_or_groups_that_do_not_fit_are_refused(made):
    with pytest.raises(RefsimError, match="bad-promise"):
        made()


def test_the_contract_says_what_it_frees():
    assert str(Promise.SET()) == "bitwise, in any order where the oracle frees it"
    assert str(Promise.SET(1)) == "bitwise, in any order along axis 1"
    both = Promise.SET(because="two roundings")
    assert str(both).endswith("within the bounds of the oracle: two roundings")
    assert (both.is_bitwise, Promise.SET().is_bitwise) == (False, True)
