"""explain_diff on functions of rows: what is usual are our kernels' bits; what was planted in NumPy is named, nothing else is."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.explained.row_pairs import Rows, names, of_rows, operands_of
from conformance.explained.trials import asked
from refsim import decode, encode, oracles
from refsim.causes import Cause, DiffOutcome, Family, RowOperands, explain_diff
from refsim.computations import row_sums
from refsim.computations.row_functions import written
from refsim.computations.row_sums import DOUBLING, HALVING, PAIRS, RowOrder
from refsim.computations.writing import USUAL_WRITING
from refsim.errors import RefsimError
from refsim.formats import BF16, format_named
from refsim.reference import row_functions as slow
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file

rows = load_kernel_file(bundled_kernels("row_functions.py"))
LATER = pytest.mark.ci("others of the same kinds are named in every run")
EVERY_RUN = (
    "softmax: no maximum",
    "softmax: the last column is not added",
    "scaled softmax: the scale twice",
    "rms_norm: no epsilon",
    "rms_norm: N with pads",
    "rms_norm: weights of the first 128",
    "rms_norm: the sum in f16",
    "layer_norm: no mean",
    "silu: the gate of the first row",
    "silu: silu of the other half",
    "softmax: toward zero",
    "softmax: by np.exp and np.sum",
    "rms_norm: divided by np.sqrt",
    "rms_norm: all in float64",
    "layer_norm: by np.mean and np.var",
)
NAMES = [pytest.param(name, marks=() if name in EVERY_RUN or name.startswith("equal") else LATER) for name in names()]


@pytest.mark.parametrize("problem", [*rows.SOFTMAX.corpus[::4], *rows.RMS_NORM.corpus[::4]], ids=str)
def test_what_is_usual_are_the_bits_of_our_own_kernels(problem):
    """Special codes, masked rows, every format: the slow definition of the last row shares no line with the plan."""
    common, codes = {"x": problem.codes(), "x_format": problem.wide}, problem.codes()[-1].tolist()
    if isinstance(problem, rows.Softmax):
        given = RowOperands(function="softmax", scale=problem.scale / np.log2(np.e), **common)
        right = slow.softmax(codes, int(np.float32(problem.scale).view(np.uint32)), problem.wide)
    else:
        gates = problem.gates
        given = RowOperands(
            function="rms_norm",
            eps=problem.eps,
            weight=decode(problem.weights, problem.wide, np.float32),
            gate=None if gates is None else decode(gates, problem.wide, np.float32),
            **common,
        )
        eps, gate = int(np.float32(problem.eps).view(np.uint32)), None if gates is None else gates[-1].tolist()
        right = slow.rms_norm(codes, problem.weights.tolist(), eps, problem.wide, gate)
    own = given.explained(problem.codes().shape, format_named(problem.wide))
    assert own.codes(own.usual)[-1].tolist() == right


@pytest.mark.parametrize("name", NAMES)
def test_what_was_planted_in_a_function_of_rows_is_named(name):
    [pair] = of_rows(1, {name})
    row = asked(pair, seconds=6.0 if pair.planted else 0.5)
    assert row["right"], row


def test_one_wrong_bit_and_noise_are_nobody_s():
    chosen = ("rms_norm, noise", "softmax, one bit")
    for pair in of_rows(0, {f"held out: {name}" for name in chosen}):
        assert asked(pair, seconds=0.4)["right"], pair.name


def test_the_sum_of_a_row_is_that_of_its_threads():
    x = np.random.default_rng(0).normal(0, 1, (3, 300)).astype(np.float32)
    lanes = [x[:, lane::32] for lane in range(32)]
    each = []
    for columns in lanes:
        total = np.zeros(3, np.float32)
        for column in columns.T:
            total = total + column
        each.append(total)
    near, far = list(each), list(each)
    while len(near) > 1:
        near = [near[at] + near[at + 1] for at in range(0, len(near), 2)]
        half = len(far) // 2
        far = [far[at] + far[at + half] for at in range(half)]
    assert (RowOrder(32, 1, DOUBLING).sum(x) == near[0]).all()
    assert (RowOrder(32, 1, HALVING).sum(x) == far[0]).all()
    assert (near[0] != far[0]).any()
    warps = np.zeros((1, 128), np.float32)
    warps[0, ::32] = 1, 0, 2.0**-24, 2.0**-24  # alone each is lost beside 1; together they are not
    assert RowOrder(128).sum(warps)[0] == 1
    assert RowOrder(128, 1, HALVING, HALVING).sum(warps)[0] == 1
    assert RowOrder(128, 1, HALVING, PAIRS).sum(warps)[0] > 1


def test_several_dimensions_are_rows_of_one_matrix():
    r = Rows.drawn(2, (12, 64))
    given = RowOperands(function="rms_norm", x=encode(r.x, "bf16").reshape(3, 4, 64), x_format="bf16", weight=r.w)
    right = oracles.rms_norm(encode(r.x, "bf16"), encode(r.w, "bf16")).reshape(3, 4, 64)
    assert explain_diff(right, format="bf16", operands=given).outcome is DiffOutcome.EQUAL
    zeros = encode(np.zeros((3, 4, 64)), "bf16")
    assert not explain_diff(zeros, right, "bf16", operands=given, seconds=0.3).named


def test_the_second_output_may_be_the_one_that_is_changed():
    r = Rows.drawn(3, (12, 96))
    given, right, wrong = operands_of(r, "rms_norm", weight=r.w, eps=1e-5), r.rms(), r.rms(w=np.ones_like(r.w))
    found = explain_diff(right, wrong, operands=given)
    assert ([each.causes[0].family for each in found.named], found.made) == ([Family.NO_WEIGHTS], "B")


def test_causes_that_are_alike_on_a_row_are_told_apart():
    r = Rows.drawn(1)
    found = explain_diff(r.rms(eps=0), operands=operands_of(r, "rms_norm", weight=r.w, eps=1e-5))
    families = {cause.family for each in found.named for cause in each.causes}
    assert Family.NO_EPSILON in families
    assert len(families) == 1 or any("elements differ on drawn numbers" in text for text in found.apart)


def test_nan_is_written_as_the_hardware_writes_it():
    assert written(np.float32([[np.nan, 1]]), USUAL_WRITING, BF16).tolist() == [[0x7FFF, 0x3F80]]


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"function": "softmin"}, "unknown-name"),
        ({"special": "half"}, "unknown-name"),
        ({"eps": 1.0}, "usage"),
        ({"scale": np.nan}, "usage"),
        ({"weight": np.ones(8, np.float32)}, "usage"),
        ({"function": "rms_norm", "weight": np.ones(7, np.float32)}, "bad-shape"),
        ({"function": "silu", "gate": np.ones((2, 7), np.float32)}, "bad-shape"),
        ({"x": np.ones((3, 8), np.float32)}, "bad-shape"),
        ({"x": np.ones((2, 8), np.uint8), "x_format": "e4m3"}, "format-mismatch"),
        ({"x": np.ones((2, 8), np.uint8), "x_format": "bf16"}, "bad-dtype"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_operands_of_rows_that_do_not_fit_are_refused(wrong, code):
    good = RowOperands(function="softmax", x=np.ones((2, 8), np.float32))
    assert explain_diff(np.full((2, 8), 0.125, np.float32), operands=good).outcome is DiffOutcome.EQUAL
    with pytest.raises(RefsimError) as error:
        explain_diff(np.zeros((2, 8), np.float32), operands=replace(good, **wrong))
    assert error.value.code == code


def test_every_cause_of_a_function_names_a_choice_of_its_plan():
    """Each aspect is a field, each choice there once, one of each is the usual one."""
    for function, more in (("softmax", {}), ("layer_norm", {"weight": np.ones(8, np.float32)}), ("silu", {})):
        subject = RowOperands(function=function, x=np.ones((2, 8), np.float32), **more).explained((2, 8), BF16)
        causes: list[Cause] = list(subject.causes())
        for aspect in {cause.aspect for cause in causes}:
            values = [cause.value for cause in causes if cause.aspect == aspect]
            assert len(values) == len(set(values)), aspect
            assert getattr(subject.usual, aspect) in values, aspect


@pytest.mark.parametrize("threads", [1, 64, 256])
def test_few_and_many_turns_of_a_row_give_equal_sums(threads, monkeypatch):
    random = np.random.default_rng(threads)
    x = (random.normal(size=(7, 300)) * 2.0 ** random.integers(-40, 40, (7, 300))).astype(np.float32)
    x[0, 3], x[1, 7], x[2] = np.nan, np.inf, -0.0
    sums = []
    for most in (0, 1 << 20):
        monkeypatch.setattr(row_sums, "MOST_TURNS", most)
        sums.append(row_sums.RowOrder(threads).sum(x).view(np.uint32).tolist())
    assert sums[0] == sums[1]
