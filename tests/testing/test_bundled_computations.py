"""What bundled kernels compute is what their oracles say, and a part of a budget ends while the whole goes on."""

import numpy as np
import pytest

from refsim.compare.code_line import codes_of
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file
from refsim.testing.suspects.budget import Budget

FILES = (
    "group_quantize_bindings",
    "block_scale",
    "gemm_1d2d",
    "block_scaled_matmul",
    "attention",
    "row_functions",
    "linear_bindings",
    "linear_fp8_bindings",
)
KERNELS = [each for name in FILES for each in load_kernel_file(bundled_kernels(f"{name}.py")).KERNELS]
COMPUTED = {each.name: each for each in KERNELS if each.computes is not None}
MOST, TAKEN, DEEPEST = 1 << 14, 12, 2048
TARGETS = {"block_scaled_matmul_sm120": "sm_120a"}


@pytest.mark.parametrize("name", COMPUTED)
def test_the_usual_choices_give_the_outputs_of_the_oracle(name):
    kernel, target = COMPUTED[name], TARGETS.get(name, "sm_90a")
    step = max(1, len(kernel.corpus) // TAKEN)
    for problem in kernel.corpus[::step]:
        if getattr(problem, "reduction", 0) > DEEPEST:
            continue
        want = kernel.expected(problem, target)
        if sum(np.size(each) for each in want.values()) > MOST:
            continue
        for output, subject in kernel.computed(problem, target).items():
            if isinstance(subject, np.ndarray):
                assert (subject == want[output]).all()
                continue
            for part, codes in subject.apart(subject.codes(subject.usual)).items():
                right = codes_of(np.asarray(want[part or output]))
                assert (codes.reshape(-1) == right.reshape(-1)).all(), (problem, part or output)


def test_a_part_of_a_budget_ends_while_the_whole_goes_on():
    whole = Budget(10.0)
    part = whole.part(0.5)
    whole.spend(2.0)
    assert part.left == pytest.approx(3.0)
    part.spend(3.0)
    assert (part.left, whole.left) == (0.0, pytest.approx(5.0))
