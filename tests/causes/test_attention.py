"""explain_diff on attention: what is usual are our kernel's bits; what was planted in NumPy is named, nothing else is."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.explained.attention_pairs import attention_names, of_attention
from conformance.explained.trials import asked
from refsim import decode, encode
from refsim.causes import AttentionOperands, DiffOutcome, Family, explain_diff
from refsim.computations.attention_steps import HEAD_MAPS, SCALE_WAYS
from refsim.computations.row_functions import WIDTHS
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


RANDOM = np.random.default_rng(4)
HEADS, LENGTH, DEPTH = 2, 70, 32
Q, K, V = (encode(RANDOM.normal(0, 1, (HEADS, LENGTH, DEPTH)), "bf16") for _ in range(3))
SINKS = np.float32([0.75, -1.5])


def in_float64(window=0, sinks=None, cap=0.0, hidden=-np.inf, queries=LENGTH, keys=LENGTH, at=0):
    """Attention in NumPy's float64; `at` moves the diagonal."""
    q, k, v = (decode(each, "bf16").astype(np.float64) for each in (Q[:, :queries], K[:, :keys], V[:, :keys]))
    s = q @ k.swapaxes(1, 2) / np.sqrt(DEPTH)
    s = cap * np.tanh(s / cap) if cap else s
    row, key = np.arange(queries)[:, None] + keys - queries + at, np.arange(keys)
    seen = (key <= row) & ((key > row - window) if window else True)
    s = np.where(seen, s, hidden)
    beside = np.full(HEADS, -np.inf) if sinks is None else np.float64(sinks)
    top = np.maximum(s.max(axis=2, keepdims=True), beside[:, None, None])
    top = np.where(np.isneginf(top), 0, top)
    p = np.exp(s - top)
    total = p.sum(axis=2, keepdims=True) + np.exp(beside[:, None, None] - top)
    return encode(p @ v / np.where(total == 0, 1, total), "bf16")


def named_of(got, want, **given):
    operands = AttentionOperands(q=Q, k=K, v=V, format="bf16", causal=True)
    found = explain_diff(got, want, "bf16", operands=replace(operands, **given))
    return {cause.family for each in found.named for cause in each.causes}, str(found)


@pytest.mark.parametrize(
    ("got", "want", "given", "family"),
    [
        ({"window": 8}, {"window": 9}, {"window": 9}, Family.SHIFTED),
        ({"window": 9}, {"window": 8}, {"window": 8}, Family.SHIFTED),
        ({}, {"window": 20}, {"window": 20}, Family.MASK),
        ({"window": 32}, {}, {}, Family.MASK),
        ({"window": 31}, {}, {}, Family.MASK),
        ({}, {"sinks": SINKS}, {"sinks": SINKS}, Family.SINK),
        ({"sinks": SINKS[[0, 0]]}, {"sinks": SINKS}, {"sinks": SINKS}, Family.SINK),
        ({"sinks": SINKS / np.sqrt(DEPTH)}, {"sinks": SINKS}, {"sinks": SINKS}, Family.SINK),
        ({}, {"cap": 1.5}, {"softcap": 1.5}, Family.CAP),
        ({"cap": 30.0}, {}, {}, Family.CAP),
    ],
    ids=["short", "long", "none", "32", "31", "no sink", "first sink", "scaled sink", "no cap", "cap"],
)
def test_windows_sinks_and_caps_are_named(got, want, given, family):
    families, words = named_of(in_float64(**got), in_float64(**want), **given)
    assert families == {family}, words


@pytest.mark.parametrize("given", [{"window": 9}, {"sinks": SINKS}, {"cap": 1.5}], ids=lambda case: next(iter(case)))
def test_windows_sinks_and_caps_are_those_of_numpy(given):
    """In float64 every bit is that of NumPy; in float32 the output is near."""
    names = {"softcap" if name == "cap" else name: value for name, value in given.items()}
    subject = AttentionOperands(q=Q, k=K, v=V, format="bf16", causal=True, **names).explained(Q.shape, BF16)
    want = in_float64(**given).reshape(subject.shape)
    wide = subject.usual.but(wide=WIDTHS[1])
    assert (subject.codes(wide) == want).all()
    assert np.abs(decode(subject.codes(subject.usual), "bf16") - decode(want, "bf16")).max() < 0.03


def test_rows_that_see_no_key_are_told_from_a_mean():
    """More queries than keys: the first rows see none. A finite score in place of -inf gives the mean of all values."""
    q, k, v = Q, K[:, :40], V[:, :40]
    operands = AttentionOperands(q=q, k=k, v=v, format="bf16", causal=True)
    want, mean = (in_float64(keys=40, hidden=hidden) for hidden in (-np.inf, -1e9))
    found = explain_diff(mean, want, "bf16", operands=operands)
    assert "a row that sees no key is a mean of all" in str(found)
    nan = np.where(np.arange(LENGTH)[:, None] < 30, np.uint16(0x7FFF), want)
    found = explain_diff(nan, want, "bf16", operands=operands)
    assert "a row that sees no key is NaN" in str(found)


@pytest.mark.parametrize(
    "wrong",
    [{"window": -1}, {"window": 2.5}, {"softcap": -1.0}, {"softcap": np.nan}, {"sinks": np.float32([1, 2, 3])}],
    ids=str,
)
def test_windows_sinks_and_caps_that_do_not_fit_are_refused(wrong):
    with pytest.raises(RefsimError) as error:
        named_of(Q, Q + 1, **wrong)
    assert error.value.code in ("out-of-range", "bad-shape")
