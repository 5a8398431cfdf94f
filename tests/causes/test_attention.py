"""explain_diff on attention: what is usual are our kernel's bits; what was planted in NumPy is named, nothing else is."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.explained.attention_pairs import attention_names, of_attention
from conformance.explained.trials import asked
from refsim.causes import AttentionOperands, DiffOutcome, Family, explain_diff
from refsim.computations.attention_steps import HEAD_MAPS, SCALE_WAYS
from refsim.computations.ways import DoesNotApplyError
from refsim.errors import RefsimError
from refsim.formats import BF16, F32
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file

attention = load_kernel_file(bundled_kernels("attention.py"))
LATER = pytest.mark.ci("others of the same kinds are named in every run")
EVERY_RUN = (
    "attention: values are not rescaled",
    "attention: heads in turn",
    "attention: P cut",
    "attention: pads are seen",
    "causal attention: one key fewer",
    "equal: attention",
)
NAMES = [pytest.param(name, marks=() if name in EVERY_RUN else LATER) for name in attention_names()]
PROBLEMS = [problem for kernel in attention.KERNELS for problem in kernel.corpus if problem.depth == 64]


def operands_of(problem):
    q, k, v = problem.operands
    given = AttentionOperands(q=q, k=k, v=v, format=problem.type, causal=problem.causal, scale=problem.scale)
    if problem.factors is None:
        return given
    return replace(given, **dict(zip(("q_scale", "k_scale", "v_scale"), problem.factors, strict=True)))


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_what_is_usual_are_the_bits_of_our_own_kernel(problem):
    """Rows that see nothing, special codes, edges of tiles, scales: the oracle shares no line with the plan."""
    right = attention.expected(problem)
    for name, format in (("o", BF16), ("lse", F32)):
        subject = operands_of(problem).explained(right[name].shape, format)
        assert (subject.codes(subject.usual).reshape(right[name].shape) == right[name]).all(), name


@pytest.mark.parametrize("name", NAMES)
def test_what_was_planted_in_attention_is_named(name):
    for pair in of_attention(1, {name}):
        row = asked(pair, seconds=6.0 if pair.planted else 0.5)
        assert row["right"], row


@LATER
def test_what_no_row_stands_for_stays_unexplained_in_attention():
    for pair in of_attention(0, {"held out: attention"}):
        assert asked(pair, seconds=1.0)["right"], pair.name


@pytest.mark.parametrize(
    ("changes", "family"),
    [({"v_scale": np.float32([1])}, Family.SCALE_RULE), ({"scale": 0.0625}, Family.SCALE_TWICE)],
    ids=["v_scale", "scale"],
)
def test_scales_of_e4m3_attention_are_named(changes, family):
    """The oracle with other scales; what is usual has all of them."""
    problem = next(each for each in PROBLEMS if each.type == "e4m3" and each.heads == 2 and each.scale == 0.125)
    given = replace(operands_of(problem), scale=0.25)
    made = replace(given, **changes).explained(problem.operands[0].shape, BF16)
    wrong = made.codes(made.usual).reshape(problem.operands[0].shape)
    found = explain_diff(wrong, format="bf16", operands=given)
    assert family in {cause.family for each in found.named if len(each.causes) == 1 for cause in each.causes}


def test_every_scale_of_a_head_is_another_number():
    scales = np.float32([2, 3, 5])
    assert [float(way.apply(scales, 1, 0)) for way in SCALE_WAYS] == [3, 2, 5, 2, 1, 9]
    with pytest.raises(DoesNotApplyError):
        SCALE_WAYS[2].apply(scales, 2, 0)


def test_every_map_of_heads_is_another():
    """Six heads, two of which share each of three heads of keys."""
    assert [row.apply(4, 2, 3) for row in HEAD_MAPS] == [2, 1, 0, 0, 3]
    assert [row.apply(5, 2, 3) for row in HEAD_MAPS] == [2, 2, 1, 0, 3]


def test_one_head_has_two_dimensions():
    q = np.full((1, 16), 0x4000, np.uint16)
    given = AttentionOperands(q=q, k=q, v=q, format="bf16", scale=0.125)
    assert explain_diff(q, format="bf16", operands=given).outcome is DiffOutcome.EQUAL


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"special": "half"}, "unknown-name"),
        ({"k": np.zeros((2, 5, 16), np.uint16)}, "bad-shape"),
        ({"v": np.zeros((1, 6, 16), np.uint16)}, "bad-shape"),
        ({"q": np.zeros(16, np.uint16)}, "bad-shape"),
        ({"q": np.zeros((1, 4, 16), np.uint16)}, "bad-shape"),
        ({"q_scale": 2.0}, "bad-scale"),
        ({name: np.zeros((1, 5, 16), np.uint8) for name in "qkv"} | {"format": "e5m2"}, "format-mismatch"),
        ({"format": "e5m2"}, "bad-dtype"),
        ({"format": "e4m3"}, "bad-dtype"),
        ({"v": np.zeros((1, 5, 16), np.float16)}, "format-mismatch"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_operands_of_attention_that_do_not_fit_are_refused(wrong, code):
    q, k = np.zeros((1, 3, 16), np.uint16), np.zeros((1, 5, 16), np.uint16)
    good = AttentionOperands(q=q, k=k, v=k, format="bf16")
    assert explain_diff(q, format="bf16", operands=good).outcome is DiffOutcome.EQUAL
    with pytest.raises(RefsimError) as error:
        explain_diff(q, format="bf16", operands=replace(good, **wrong))
    assert error.value.code == code


@pytest.mark.parametrize("is_lse", [False, True])
def test_every_cause_of_attention_names_a_choice_of_its_plan(is_lse):
    """Each aspect is a field, each choice there once, one of each is the usual one."""
    problem = next(each for each in PROBLEMS if each.type == "e4m3" and each.heads == 2)
    shape = problem.operands[0].shape
    subject = operands_of(problem).explained(shape[:-1] if is_lse else shape, F32)
    causes = list(subject.causes())
    for aspect in {cause.aspect for cause in causes}:
        values = [cause.value for cause in causes if cause.aspect == aspect]
        assert len(values) == len(set(values)), aspect
        assert getattr(subject.usual, aspect) in values, aspect
