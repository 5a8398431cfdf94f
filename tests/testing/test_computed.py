"""`Kernel(computes=...)`: the oracle, the explanation and the missing order of a kernel follow from what it computes."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from refsim import device
from refsim.causes import RowOperands
from refsim.errors import RefsimError
from refsim.formats import BF16
from refsim.testing import Kernel, explain_problem, explained
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file
from refsim.testing.matrices import Values
from refsim.testing.suspects.suspicion import OutOfTimeError
from refsim.testing.suspects.witnesses import Witness

rows = load_kernel_file(bundled_kernels("row_functions.py"))
NORM = rows.RmsNorm(4, 300, Values("gaussian", 2), Values("gaussian", 3))
SOFTMAX = rows.Softmax(4, 300, Values("gaussian", 2), "f32")
EDITS = (
    (
        rows.RMS_NORM,
        NORM,
        "wide(w[column]))",
        "wide(w[min(column + 1, columns - 1)]))",
        "weights are those of the next column",
    ),
    (
        rows.RMS_NORM,
        NORM,
        "__uint2float_rn(columns)",
        "__uint2float_rn(columns - 1)",
        "N is 299, one fewer than columns",
    ),
    (rows.SOFTMAX, SOFTMAX, "__fmul_rn(top == nothing ? 0 : top, scale)", "0.0f", "m is 0: no maximum is subtracted"),
)


@pytest.mark.parametrize("kernel", rows.KERNELS, ids=lambda kernel: kernel.name)
def test_what_a_bundled_kernel_computes_is_what_its_oracle_returns(kernel):
    derived = replace(kernel, oracle=None)
    for problem in kernel.corpus:
        right, computed = kernel.expected(problem, "sm_90a"), derived.expected(problem, "sm_90a")
        assert list(right) == list(computed)
        for name, array in right.items():
            assert array.dtype == computed[name].dtype
            assert np.array_equal(array, computed[name]), problem


@pytest.mark.parametrize(("kernel", "problem", "old", "new", "says"), EDITS, ids=[edit[-1] for edit in EDITS])
def test_a_failing_case_is_explained_by_a_choice_of_the_computation(kernel, problem, old, new, says):
    source = kernel.file.read_text()
    assert old in source
    broken = replace(kernel, file=None, source=source.replace(old, new), include=(kernel.file.parent,), suspects={})
    found = explain_problem(broken, problem, device.open("sim"), seconds=10)["y"]
    assert found.outcome == "explained"
    assert [cause.says for cause in found.named[0].causes] == [says]


def test_the_oracle_may_be_left_out_and_the_reason_for_no_order_is_given():
    kernel = replace(rows.RMS_NORM, oracle=None, orderless="")
    assert "order of its sums" in kernel.orderless
    given = {"problem": None, "run": print, "outputs": {"y": "bf16"}, "recipe": rows.RmsNorm, "ptx": ".version 8.0"}
    x = NORM.codes()
    operands = RowOperands(function="silu", x=x, x_format="bf16")
    alone = Kernel("silu", computes=lambda problem: operands.explained(x.shape, BF16), **given)
    assert list(alone.expected(NORM, "sm_90a")) == ["y"]
    with pytest.raises(RefsimError, match="a Kernel needs oracle"):
        Kernel("silu", **given)
    with pytest.raises(RefsimError, match="computes returns int for 'y'") as caught:
        Kernel("silu", computes=lambda problem: 1, **given).expected(NORM, "sm_90a")
    assert caught.value.code == "bad-kernel"


@pytest.mark.parametrize("is_ended", [False, True])
def test_nothing_is_named_where_nothing_is_found(is_ended, monkeypatch):
    """The end of the work is told; a kernel without a choice, an edit or a shape has no cause."""

    def searched(*of, seconds):
        if is_ended:
            raise OutOfTimeError(0)
        return ()

    monkeypatch.setattr(explained, "suspects_of", searched)
    kernel = replace(rows.RMS_NORM, computes=None)
    with pytest.raises(OutOfTimeError) if is_ended else nullcontext():
        assert explained.likely_causes(kernel, device.open("sim"), NORM, (), seconds=0.5) == ()


@pytest.mark.parametrize(
    ("said", "is_named"), [(("exchanged", "exchanged"), True), (("exchanged", ""), False), (("exchanged",), False)]
)
def test_a_shape_counts_if_two_test_cases_show_it(said, is_named, monkeypatch):
    shown = iter([{"y": f"elements in other places: {words}"} if words else {} for words in said])
    monkeypatch.setattr(explained, "suspects_of", lambda *of, seconds: ())
    monkeypatch.setattr(explained, "_shapes_of", lambda diet, problem: next(shown))
    kernel = replace(rows.RMS_NORM, computes=None)
    known = [Witness(each, 1, failed=True) for each in rows.RMS_NORM.corpus[: len(said) - 1]]
    found = explained.likely_causes(kernel, device.open("sim"), NORM, known, seconds=1.0)
    assert [(each.says, each.places, each.problems) for each in found] == [("exchanged", ("output y",), 2)] * is_named
