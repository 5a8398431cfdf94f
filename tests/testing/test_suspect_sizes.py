"""Which sizes tell a tail that is left out, and which tell nothing."""

from dataclasses import dataclass

import pytest

from refsim.testing.recipes import Tensor
from refsim.testing.suspects.sizes import sizes, tail_left_out
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


@dataclass(frozen=True)
class Rows:
    x: Tensor
    rows: int
    seed: int = 5
    empty: int = 0
    wide: bool = True


def test_sizes_are_the_whole_numbers_of_a_recipe_and_of_what_it_holds() -> None:
    assert sizes(Rows(Tensor(9, "f32"), 3)) == {"x.n": 9, "rows": 3}


def test_the_largest_step_is_named_and_of_two_sizes_that_tell_neither() -> None:
    (found,) = tail_left_out(seen([3, 20, 33], [16, 48, 160]))
    assert "a multiple of 16 " in str(found)
    both = [Witness(Rows(Tensor(n, "f32"), n), 0.0, n % 16 != 0) for n in (3, 20, 33, 16, 48, 160)]
    assert tail_left_out(both) == ()
