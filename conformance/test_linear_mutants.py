"""Broken copies of the linear layers: the campaign that the real ones pass must refuse each of them."""

from dataclasses import replace
from pathlib import Path

import pytest

from refsim.testing import run_campaign
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file

linear = load_kernel_file(bundled_kernels("linear_bindings.py"))
fp8 = load_kernel_file(bundled_kernels("linear_fp8_bindings.py"))
LINEAR, FP8 = (linear.LINEAR, linear.linear_problems), (fp8.LINEAR_FP8_WEIGHT, fp8.linear_fp8_weight_problems)
HEADER = "linear_block.cuh"

# the layer and the entry that show it, the file, the text of the real kernel, what the mutant has in its place
MUTANTS = (
    pytest.param(
        LINEAR, "linear_n64_s1", HEADER,
        "pack(__fadd_rn(low_half(pair), low_half(residual)), __fadd_rn(high_half(pair), high_half(residual)))",
        "pack(__fadd_rn(low, low_half(residual)), __fadd_rn(high, high_half(residual)))", id="one-rounding",
    ),
    pytest.param(
        LINEAR, "linear_n32_s2_bf16", HEADER, "return __bfloat162float(__float2bfloat16_rn(sum));", "return sum;",
        id="partials-in-float",
    ),
    pytest.param(
        LINEAR, "linear_n64_blocks", HEADER, "atomicInc(arrivals + blockIdx.x, last)", "atomicAdd(arrivals + blockIdx.x, 1)",
        id="counter-left-behind",
    ),
    pytest.param(
        LINEAR, "linear_n16_s4_bf16", HEADER, "min(from.bytes - at, wanted)", "wanted", id="row-beyond-its-end",
    ),
    pytest.param(
        FP8, "linear_fp8_weight_n16_s4_bf16", "linear_fp8_weight.cu",
        "return first >= left ? 0 : first + 1 >= left ? pair & 0xffffu : pair;", "return pair;", id="padding-leaks",
    ),
    pytest.param(
        FP8, "linear_fp8_weight_n64_s1", "linear_fp8_weight.cu", "min(k + step * kMmaStep, reduction - 1) / wb_k",
        "min(k, reduction - 1) / wb_k", id="scale-of-the-tile",
    ),
    pytest.param(
        FP8, "linear_fp8_weight_n16_s4_bf16_multiply", "linear_fp8_weight.cu", "bits | (nan * 15)", "bits",
        id="nan-becomes-480",
    ),
)  # fmt: skip


def campaign(layer, entry: str, source: Path, device):
    """The special problems of one entry, without shrinking, and generated ones where they show nothing."""
    kernel, problems = layer
    broken = replace(kernel, file=source, corpus=tuple(problem for problem in kernel.corpus if problem.entry == entry))
    verdict = run_campaign(broken, device, cases=0)
    return (
        run_campaign(replace(broken, corpus=(), problem=problems((entry,))), device, cases=40) if verdict else verdict
    )


@pytest.mark.parametrize(("layer", "entry", "file", "right", "wrong"), MUTANTS)
def test_mutant_is_refused(layer, entry, file, right, wrong, device, tmp_path):
    folder = layer[0].file.parent
    for name in (HEADER, "linear.cu", "linear_fp8_weight.cu"):
        text = (folder / name).read_text("utf-8")
        if name == file:
            assert text.count(right) == 1, f"the text to break stands {text.count(right)} times in {name}"
            text = text.replace(right, wrong)
        (tmp_path / name).write_text(text, "utf-8")
    verdict = campaign(layer, entry, tmp_path / layer[0].file.name, device)
    assert verdict.status == "fail", str(verdict)
