"""explain_diff on planted pairs, whose arithmetic is NumPy alone: the cause is named; equal and held-out pairs have none."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.explained import arithmetic as own
from conformance.explained.block_pairs import block_scaled
from conformance.explained.pairs import Problem, alone, equal, held_out, with_operands, with_quantiser, with_values
from conformance.explained.trials import asked, is_right
from refsim import decode, encode
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


EVERY_RUN = (
    "e2m1 ue4m3 sm_120a: scales 128x4 read as rows",
    "e2m1 ue4m3 sm_120a: no global scale",
    "held out: e2m1 ue4m3 sm_120a, a factor",
    "equal: e4m3 e8m0 sm_90a",
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


OF_BLOCKS = [
    pytest.param(pair, id=pair.name, marks=() if pair.name in EVERY_RUN else LATER)
    for pair in block_scaled(1, (128, 16, 128))
]


@pytest.mark.sampled(16, "others of the same kinds are named in CI")
@pytest.mark.parametrize("pair", OF_BLOCKS)
def test_which_scale_an_element_got_is_named(pair):
    """Every kind of block-scaled operands: planted, held out and equal."""
    row = asked(pair, seconds=1.0 if pair.planted else 0.3)
    assert row["right"], row


def test_a_global_scale_that_was_left_out_is_not_called_inverted():
    [pair] = of(block_scaled(1, (128, 16, 128)), "e2m1 ue4m3 sm_120a: no global scale")
    found = explain_diff(pair.got, pair.want, pair.format, operands=pair.operands, seconds=1.0)
    assert [[cause.says for cause in each.causes] for each in found.named] == [["the global scale: it is left out"]]


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"b_scale": None}, "bad-shape"),
        ({"k": 32}, "usage"),
        ({"b": np.zeros((4, 128), np.uint8)}, "bad-shape"),
        ({"target": "sm_80", "unit": "wgmma"}, "unknown-arithmetic"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_block_scaled_operands_that_do_not_fit_are_refused(wrong, code):
    ones, scales = np.full((4, 64), 0x38, np.uint8), np.full((4, 2), 127, np.uint8)
    good = ProductOperands(
        a=ones, b=ones, a_format="e4m3", b_format="e4m3", a_scale=scales, b_scale=scales, scale_format="e8m0"
    )
    assert explain_diff(np.full((4, 4), 64, np.float32), operands=good).outcome is DiffOutcome.EQUAL
    with pytest.raises(RefsimError) as error:
        explain_diff(np.zeros((4, 4), np.float32), operands=replace(good, **wrong))
    assert error.value.code == code


@LATER
def test_a_running_sum_that_is_held_in_bf16_is_named():
    problem = Problem.drawn(3, (10, 16, 512))
    total = np.zeros((10, 16), np.float32)
    for part in problem.chunks():
        total = own.of_bf16(own.bf16(total + part, "zero"))
    found = explain_diff(total, operands=problem.operands(interval=128))
    assert [str(each.causes[0].family) for each in found.named] == [str(Family.ACCUMULATOR)]


@pytest.mark.parametrize("direction", ["up", pytest.param("down", marks=LATER)])
def test_scales_that_became_powers_of_two_are_named(direction):
    problem = Problem.drawn(4, (10, 16, 512))
    power = np.exp2({"up": np.ceil, "down": np.floor}[direction](np.log2(problem.sa))).astype(np.float32)
    found = explain_diff(
        Problem(problem.a, problem.b, power, problem.sb).promoted(), operands=problem.operands(scaled=True)
    )
    assert {str(each.causes[0].family) for each in found.named} == {str(Family.SCALE_RULE)}


@pytest.mark.parametrize("pair", [*with_values(1), *alone(1), *with_quantiser(1)], ids=lambda pair: pair.name)
def test_what_was_planted_in_outputs_is_named(pair):
    row = asked(pair, seconds=6.0 if pair.planted else 0.5)
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


def test_a_tail_is_seen_beside_operands_and_before_a_whole_tile():
    """The last columns of a whole tile, in an output that is else what the operands give; either side."""
    problem = Problem.drawn(5, SHAPE)
    right = own.hopper(problem.a, problem.b)
    unwritten = right.copy()
    unwritten[:, -8:] = np.float32(np.nan)
    for one, other, made in ((unwritten, right, "A"), (right, unwritten, "B")):
        found = explain_diff(one, other, operands=problem.operands(), seconds=0.1)
        assert ([each.causes[0].family for each in found.named], found.made) == ([Family.TAIL], made)
        alone = explain_diff(one, other, "f32", seconds=0.1)
        assert (alone.named[0].causes[0].family, alone.made) == (Family.TAIL, made)
    behind = np.vstack([right[1:], right[3:4]])  # what no plan and no tail is, is seen in the codes alone
    [named] = explain_diff(behind, right, operands=problem.operands(), seconds=0.1).named
    assert named.causes[0].family == Family.SHIFTED
    unwritten[0, -9] = 0  # one wrong element elsewhere is no tail
    assert not explain_diff(unwritten, right, operands=problem.operands(), seconds=0.1).named


TURNED = (
    "(P sa) sb, mul and add",
    "output swizzled",
    *(pytest.param(name, marks=LATER) for name in ("A as FNUZ", "B swizzled", "mul and add", "split 2")),
)


@pytest.mark.parametrize("name", TURNED)
def test_a_cause_has_its_name_on_either_side(name):
    """The same pair with its outputs exchanged: the cause that B then has is called the same, and the sums are B's."""
    [pair] = with_operands(1, (10, 16, 256), {name})
    found = explain_diff(pair.want, pair.got, pair.format, operands=pair.operands, seconds=3)
    assert found.made == "B"
    assert is_right(pair, found, {"+".join(str(cause.family) for cause in each.causes) for each in found.named})
    once = explain_diff(pair.got, pair.want, pair.format, operands=pair.operands, seconds=3)
    assert (once.a_is, once.b_is) == (found.b_is, found.a_is)
    assert [(each.code_a, each.code_b) for each in once.stages] == [(each.code_b, each.code_a) for each in found.stages]


GRID = np.arange(128 * 4).reshape(128, 4)
MISREAD_SCALES = {
    "scales of A are read row by row where they lie in nvidia_128x4": lambda scales: scales[
        GRID % 16 // 4 * 32 + GRID // 16, GRID % 4
    ],  # byte 16 (m % 32) + 4 (m / 32) + k, one row of bytes after the other
    "scales of A are read as the power of two above": lambda scales: np.exp2(np.ceil(np.log2(scales))),
}


@pytest.mark.parametrize("says", MISREAD_SCALES)
def test_what_becomes_of_scales_is_named(says):
    """Scales for another chip, and where powers of two are wanted; sums of integers lose nothing in any order."""
    random = np.random.default_rng(4)
    a, b = (random.integers(-2, 3, (rows, 512)).astype(np.float32) for rows in (128, 8))
    scales = random.uniform(0.5, 2, (128, 4)).astype(np.float32)
    if "nvidia" in says:
        scales = 2.0 ** random.integers(-3, 4, (128, 4)).astype(np.float32)

    def product(scales):
        total = np.zeros((128, 8), np.float32)
        for block in range(4):
            part = slice(128 * block, 128 * block + 128)
            total = own.fma(scales[:, block, None], a[:, part] @ b[:, part].T, total)
        return total

    operands = ProductOperands(
        a=encode(a, "e4m3"), b=encode(b, "e4m3"), a_format="e4m3", b_format="e4m3", a_scale=scales
    )
    found = explain_diff(
        product(MISREAD_SCALES[says](scales).astype(np.float32)), product(scales), operands=operands, seconds=3
    )
    assert says in str(found.named[0])


def test_what_both_have_done_otherwise_is_no_cause():
    """Both add and multiply apart; one of them in another order of the factors: no contraction, whatever is usual."""
    problem = Problem.drawn(2, (10, 16, 256))
    mine, theirs = problem.promoted("a", fused=False), problem.promoted(fused=False)
    found = explain_diff(mine, theirs, operands=problem.operands(scaled=True), seconds=3)
    assert {cause.family for each in found.named for cause in each.causes} == {Family.PROMOTION_ORDER}


def test_what_one_has_left_out_has_the_name_of_what_the_other_did():
    """Both cut off, one of them swizzled too: neither is usual, and to lie in place is no transpose."""
    x = np.random.default_rng(3).normal(0, 1, (32, 64)).astype(np.float32)
    cut = own.bf16(x, "zero")
    row, chunk = np.ogrid[:32, :8]
    swizzled = cut.reshape(32, 8, 8)[row, chunk ^ row % 8].reshape(cut.shape)
    for one, other in ((cut, swizzled), (swizzled, cut)):
        found = explain_diff(one, other, "bf16", values=x)
        assert {cause.family for each in found.named for cause in each.causes} == {Family.SWIZZLE}


def test_values_alone_say_what_was_flushed():
    x = np.arange(1, 257, dtype=np.float32).reshape(16, 16) * np.float32(2**-11)
    codes = own.e4m3(x)
    flushed = np.where(codes < 0x08, 0, codes).astype(np.uint8)
    found = explain_diff(flushed, format="e4m3", values=x)
    assert [each.causes[0].family for each in found.named] == [Family.FLUSHED]
    assert found.a_is == "rounded nearest-even, subnormals flushed"


def test_nothing_is_made_of_nan_alone():
    """Numbers beside an output that is NaN everywhere: a NaN could have become any of them, FNUZ or dropped."""
    x = np.random.default_rng(1).normal(0, 1, (16, 16)).astype(np.float32)
    nans = np.full_like(x, np.nan)
    for one, other in ((x, nans), (nans, x)):
        assert explain_diff(one, other, seconds=1).outcome is DiffOutcome.UNEXPLAINED
    some = x.copy()
    some[3, :5] = np.nan
    [named] = explain_diff(x, some, seconds=1).named
    assert named.causes[0].family is Family.NAN


def test_few_elements_are_too_little():
    found = explain_diff(np.array([[0x40]], np.uint8), np.array([[0x38]], np.uint8), "e4m3")
    assert found.outcome is DiffOutcome.TOO_LITTLE
    assert not found.named


def test_a_search_that_is_over_says_what_it_left():
    problem = Problem.drawn(9, SHAPE)
    found = explain_diff(np.maximum(own.hopper(problem.a, problem.b), 0), operands=problem.operands(), seconds=0)
    assert found.untried > 0
    assert f"limit reached: {found.untried} not tried" in str(found)


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
        ({"b": np.zeros((2, 3), np.uint8)}, "bad-shape"),
        ({}, "usage"),
        ({"b": np.zeros((2, 2), np.float32)}, "format-mismatch"),
        ({"b": np.zeros((2, 2), np.float64)}, "bad-dtype"),
        ({"values": np.zeros((2, 2), np.int32)}, "bad-shape"),
        ({"operands": OTHER_SIZE}, "bad-shape"),
        ({"b": np.ones((2, 2), np.uint8), "at": (2, 0)}, "out-of-range"),
        ({"b": np.ones((2, 2), np.uint8), "at": (0, -1)}, "out-of-range"),
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


def test_a_format_without_zero_is_not_flushed():
    """Powers of two as scales: the least of them are not subnormals that became zero."""
    want = np.arange(64, 192, dtype=np.uint8).reshape(8, 16)
    got = np.where(want < 113, np.uint8(0), want)  # below 2^-14, the least normal of f16
    assert not [
        cause
        for each in explain_diff(got, want, "e8m0").named
        for cause in each.causes
        if cause.family == Family.FLUSHED
    ]


@pytest.mark.parametrize("again", [False, True])
def test_a_c_that_is_added_to_the_rounded_output_is_named(again):
    """Small integers: their products have one sum in any order, and C alone says when it came."""
    random = np.random.default_rng(3)
    a, b = (random.integers(-8, 9, (rows, 64)).astype(np.float32) for rows in (12, 16))
    c, exact = random.integers(-999, 999, (12, 16)).astype(np.float32) / 8, a @ b.T
    early = exact + c
    late = decode(encode(exact, "bf16"), "bf16", np.float32) + c
    codes = {"a": encode(a, "e4m3"), "b": encode(b, "e4m3")}
    operands = ProductOperands(**codes, a_format="e4m3", b_format="e4m3", c=c)
    found = explain_diff(encode(late if again else early, "bf16"), encode(early, "bf16"), "bf16", operands=operands)
    assert [each.causes[0].says for each in found.named] == ["C is added to the output, rounded again"] * again
