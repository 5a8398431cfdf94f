"""explain_diff on planted pairs, whose arithmetic is NumPy alone: the cause is named; equal and held-out pairs have none."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.explained import arithmetic as own
from conformance.explained.pairs import Problem, alone, equal, held_out, with_operands, with_quantiser, with_values
from conformance.explained.trials import asked
from refsim.causes import DiffOutcome, Family, ProductOperands, explain_diff
from refsim.errors import RefsimError

SHAPE = (10, 16, 128)
LATER = pytest.mark.ci("others of the same kinds are named in every run")
ONE = (
    "ada",
    "mul and add",
    "A as FNUZ",
    *(
        pytest.param(name, marks=LATER)
        for name in ("slow 64", "split 3, last first", "B swizzled", "last 32 left out", "up")
    ),
)


OTHER_SIZE = ProductOperands(
    a=np.zeros((2, 8), np.uint8), b=np.zeros((3, 8), np.uint8), a_format="e4m3", b_format="e4m3"
)


def of(pairs, *names):
    return [pair for pair in pairs if pair.name in names]


@pytest.mark.parametrize("name", ONE)
def test_what_was_planted_in_a_product_is_named(name):
    """Some pairs with operands, small ones; the script has all of them at sizes of kernels."""
    [pair] = with_operands(1, (10, 16, 256), {name})
    row = asked(pair)
    assert row["right"], row


@pytest.mark.parametrize("pair", [*with_values(1), *alone(1), *with_quantiser(1)], ids=lambda pair: pair.name)
def test_what_was_planted_in_outputs_is_named(pair):
    row = asked(pair)
    assert row["right"], row


@pytest.mark.parametrize("pair", [*equal(1, SHAPE)], ids=lambda pair: pair.name)
def test_equal_results_have_no_cause(pair):
    row = asked(pair)
    assert row["right"], row


@pytest.mark.parametrize(
    "pair",
    of(held_out(1, SHAPE), "held out: relu", "held out: one bit", "held out: stochastic"),
    ids=lambda pair: pair.name,
)
def test_what_no_row_stands_for_stays_unexplained(pair):
    row = asked(pair, seconds=0.5)
    assert row["right"], row


def test_a_part_counts_what_it_puts_right():
    x = np.random.default_rng(0).integers(1, 1 << 14, (16, 16)).astype(np.float32)
    right, away = own.bf16(x), own.bf16(x, "away")
    both = away.copy()
    both[right == away] ^= np.where(np.arange(256).reshape(16, 16)[right == away] % 5, 0, 1).astype(np.uint16)
    found = explain_diff(both, format="bf16", values=x, seconds=2)
    [part] = [each for each in found.parts if each.causes[0].family is Family.TIES]
    assert part.repaired == np.count_nonzero(right != away)
    assert found.differing == np.count_nonzero(right != both)


def test_the_two_sums_part_where_the_causes_part():
    problem = Problem.drawn(5, SHAPE)
    found = explain_diff(sum(own.chunks(problem.a, problem.b, 64)), operands=problem.operands(), at=(0, 0))
    ends = {stage.end: (stage.code_a, stage.code_b) for stage in found.stages}
    assert list(ends) == [32, 64, 96, 128]
    assert ends[64][0] == ends[64][1]
    of_element = own.hopper(problem.a[:1], problem.b[:1]).view(np.uint32).item()
    assert ends[128][1] == of_element


def test_what_fits_a_sample_is_computed_in_full():
    """One wrong element among so many others that no sample need have it."""
    problem = Problem.drawn(13, (40, 48, 128))
    slow = sum(own.chunks(problem.a, problem.b, 64))
    usual = own.hopper(problem.a, problem.b)
    last = np.argwhere(slow == usual)[-1]
    slow[tuple(last)] *= 2
    assert not explain_diff(slow, operands=problem.operands(), seconds=2).named


def test_causes_that_are_alike_here_are_told_apart():
    problem = Problem.drawn(7, SHAPE)
    found = explain_diff(sum(own.chunks(problem.a, problem.b, 64)), operands=problem.operands())
    assert {cause.family for each in found.named for cause in each.causes} == {Family.FAST_SLOW, Family.SPLIT_K}
    assert any("elements differ on drawn numbers" in text for text in found.apart)


def test_a_tail_is_all_that_differs():
    """Unwritten columns behind the last whole tile, and one wrong element before them."""
    [pair] = of(alone(3), "alone: tail")
    assert asked(pair)["right"]
    wrong = pair.got.copy()
    wrong[5, 5] ^= 0x40
    assert not explain_diff(wrong, pair.want, pair.format, seconds=1).named


def test_few_elements_are_too_little():
    found = explain_diff(np.array([[0x40]], np.uint8), np.array([[0x38]], np.uint8), "e4m3")
    assert found.outcome is DiffOutcome.TOO_LITTLE
    assert not found.named


def test_a_search_that_is_over_says_what_it_left():
    problem = Problem.drawn(9, SHAPE)
    found = explain_diff(np.maximum(own.hopper(problem.a, problem.b), 0), operands=problem.operands(), seconds=0)
    assert found.untried > 0
    assert "left untried" in str(found)


def test_progress_counts_to_what_is_planned():
    problem, seen = Problem.drawn(11, SHAPE), []
    explain_diff(
        own.ada(problem.a, problem.b), operands=problem.operands(), on_progress=lambda *said: seen.append(said)
    )
    assert seen
    assert all(0 <= done < planned for _, done, planned in seen)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"b": np.zeros((2, 3), np.uint8)}, "shape-mismatch"),
        ({}, "usage"),
        ({"b": np.zeros((2, 2), np.float32)}, "code-type"),
        ({"values": np.zeros((2, 2), np.int32)}, "values"),
        ({"operands": OTHER_SIZE}, "shape-mismatch"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_what_cannot_be_compared_is_refused(arguments, code):
    with pytest.raises(RefsimError) as error:
        explain_diff(np.zeros((2, 2), np.uint8), **{"format": "e4m3", **arguments})
    assert error.value.code == code


def test_operands_that_do_not_fit_are_refused():
    good = ProductOperands(a=np.zeros((2, 8), np.uint8), b=np.zeros((2, 8), np.uint8), a_format="e4m3", b_format="e4m3")
    for wrong in (
        replace(good, b=np.zeros((2, 9), np.uint8)),
        replace(good, a_scale=np.zeros((5, 3), np.float32)),
        replace(good, c=np.zeros((2, 2), np.float16)),
        replace(good, a=np.zeros((2, 8), np.uint16)),
    ):
        with pytest.raises(RefsimError):
            explain_diff(np.zeros((2, 2), np.float32), operands=wrong)
