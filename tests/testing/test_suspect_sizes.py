"""Which sizes tell a tail that is left out, and which tell nothing."""

import pytest

from refsim.testing.recipes import Tensor
from refsim.testing.suspects.sizes import tail_left_out
from refsim.testing.suspects.witnesses import Witness


def seen(failed: list[int], passed: list[int]) -> list[Witness]:
    return [Witness(Tensor(n, "f32"), 0.0, n in failed) for n in (*failed, *passed)]


def test_a_tail_is_told_by_problems_of_several_sizes() -> None:
    (found,) = tail_left_out(seen([3, 9, 33, 66], [0, 4, 8, 32]))
    assert str(found).startswith("tail: it agrees where n is a multiple of 4 and nowhere else, recipe field n")


@pytest.mark.parametrize("passed", [[0, 0, 0, 0], [0, 0, 0, 256], [256, 256, 256], [4, 8]])
def test_empty_problems_and_one_size_tell_nothing(passed: list[int]) -> None:
    """A kernel that is wrong wherever it computes anything agrees on problems of no size."""
    assert tail_left_out(seen([3, 9, 33, 66], passed)) == ()
    assert tail_left_out(seen([0, 3, 9, 33], [4, 8, 32])) == ()
