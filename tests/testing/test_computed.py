"""`Kernel(computes=...)`: the oracle, the explanation and the missing order of a kernel follow from what it computes."""

from dataclasses import replace

import numpy as np
import pytest

from refsim import device
from refsim.causes import RowOperands
from refsim.errors import RefsimError
from refsim.formats import BF16
from refsim.testing import Kernel, explain_problem
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file
from refsim.testing.matrices import Values

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
