"""The second definition of composed steps: it judges nearly every element, agrees with the right, and finds a wrong one."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from conformance.fused_kernels.more import CASES_OF_MORE
from conformance.fused_kernels.recipes import Rows
from conformance.fused_kernels.trials import CASES, kernels, kernels_of_page
from refsim import device
from refsim.compare import within_bound
from refsim.kernels import Bounded
from refsim.reference.fused_steps import after, code_of
from refsim.testing import run_campaign, steps, verdicts
from refsim.testing.composed_definition import definition_of

LOAD = steps.load("x")
OTHERS = {
    "layer norm in bf16": (steps.layer_norm("w", "w"), steps.store("y", "bf16")),
    "softmax": (steps.softmax(0.25), steps.store("y", "f32")),
    "silu and a quotient": (steps.silu(), steps.divide("w"), steps.store("y", "f16")),
    "rope of pairs": (steps.rope("cos", "sin", 128, pairs=True), steps.multiply(0.5), steps.store("y", "bf16")),
    "mxfp8": (steps.add("other"), steps.quantize("mxfp8"), steps.store("q", scales="s")),
    "gelu by tanh": (steps.gelu("tanh", how="tanh.approx"), steps.store("y", "bf16")),
    "gelu by erf, transposed": (steps.gelu(), steps.store("y", "f16", transposed=True)),
    "rounded before the weights": (steps.rms_norm("w", how="x * r is rounded"), steps.store("y", "bf16")),
    "int8": (steps.gelu(), steps.quantize("int8", per=64), steps.store("q", scales="s", transposed=True)),
    "whole numbers": (steps.divide(0.0625), steps.store("y", "int8")),
    "a tensor": (steps.quantize("e4m3", per="tensor"), steps.store("q", scales="s")),
    "blocks of powers of two": (steps.quantize("e5m2", per=(2, 64), scale="e8m0"), steps.store("q", scales="s")),
}


def judged(kernel, problem, wrong=0):
    """How many elements the definition judges, and how many of these differ from the computation's."""
    definition, seen, differing = definition_of(kernel), 0, 0
    formats = kernel.output_formats(problem)
    for name, array in kernel.expected(problem, "sm_90a").items():
        for flat in np.random.default_rng(1).choice(array.size, min(12, array.size), replace=False):
            at = tuple(map(int, np.unravel_index(flat, array.shape)))
            want, got = definition(problem, name, at), np.asarray(array[at] ^ array.dtype.type(wrong))
            if want is None:
                continue
            seen += 1
            if isinstance(want, Bounded):
                differing += bool(within_bound(got, want.value, want.bound, formats[name] or None))
            else:
                differing += int(got) != want
    return seen, differing


def composed(name, given):
    format = given[-1].given["format"]
    outputs = {"y": format.name.replace("int8", "u8")} if format else {}
    formats = {"mxfp8": ("e4m3", "e8m0"), "a tensor": ("e4m3", "f32"), "int8": ("", "f32")}.get(name, ("e5m2", "e8m0"))
    outputs = outputs or dict(zip(("q", "s"), formats, strict=True))
    return replace(kernels()["rms_norm_fp8"], computes=steps.fused(LOAD, *given), outputs=outputs)


@pytest.mark.parametrize("name", CASES_OF_MORE)
def test_elements_of_another_kernel_are_judged(name):
    seen, differing = judged(kernels()[name], CASES[name])
    assert differing == 0
    assert seen >= 10


@pytest.mark.parametrize("name", kernels_of_page())
def test_elements_of_a_kernel_of_the_page_are_judged(name):
    problem = replace(CASES[name], rows=min(6, CASES[name].rows))
    kernel = kernels()[name]
    seen, differing = judged(kernel, problem)
    assert differing == 0
    assert seen == 16 if name == "rms_norm_fp8" else seen >= 22
    assert judged(kernel, problem, wrong=8 if name != "rope_kv_fp8" else 64)[1] >= seen // 2


@pytest.mark.parametrize("name", OTHERS)
def test_elements_of_other_steps_are_judged(name):
    kernel, problem = composed(name, OTHERS[name]), Rows(4, 256)
    seen, differing = judged(kernel, problem)
    assert differing == 0
    assert seen >= 12


def test_a_verdict_says_that_a_second_definition_judged_or_that_there_is_none():
    kernel = replace(kernels()["silu_mul_fp8"], corpus=(CASES["silu_mul_fp8"],))
    verdict = run_campaign(kernel, device.open("sim"), cases=2)
    assert verdict.status == verdicts.PASS
    assert verdict.recomputed.judges == ("computes=",)
    assert verdict.recomputed.outputs > 0
    assert verdict.recomputed.differing == 0
    plain = replace(kernel, oracle=lambda problem: kernel.expected(problem, "sm_90a"), computes=None)
    again = run_campaign(plain, device.open("sim"), cases=2)
    assert "no second definition" in again.recomputed.text


def test_a_way_that_changes_values_has_no_second_definition():
    step = steps.rms_norm("w", how=["weights are 1 + w"])
    kernel = composed("plain", (step, steps.store("y", "bf16")))
    assert judged(kernel, Rows(2, 128)) == (0, 0)


def test_a_wrong_model_is_found():
    kernel = replace(kernels()["rms_norm_fp8"], corpus=(CASES["rms_norm_fp8"],))
    right = kernel.expected(CASES["rms_norm_fp8"], "sm_90a")
    wrong = {**right, "q": right["q"] ^ 0x80}
    kernel = replace(kernel, oracle=lambda problem: wrong, run=_writes(wrong, kernel.run))
    kernel = replace(kernel, problem=st.just(CASES["rms_norm_fp8"]))
    verdict = run_campaign(kernel, device.open("sim"), cases=1)
    assert "definition-differs" in verdict.finding


def _writes(outputs, run):
    def written(launcher, problem):
        run(launcher, problem)
        return {name: array.copy() for name, array in outputs.items()}

    return written


@pytest.mark.parametrize(
    ("row", "step"),
    [
        ((1e30, 2.0), ("norm", (None, None, 1e-6, False))),
        ((float("inf"), 2.0), ("norm", (None, None, 1e-6, True))),
        ((float("nan"), 2.0), ("softmax", (1.0,))),
        ((3e38, 2.0), ("softmax", (4.0,))),
        ((3e38, 2.0), ("added to", ([3e38, float("inf")],))),
        ((float("inf"), 0.0), ("multiplied by", ([0.0, float("inf")],))),
    ],
)
def test_a_value_that_float32_cannot_hold_is_not_judged(row: tuple[float, ...], step: tuple[str, Any]) -> None:
    assert code_of(after(row, [step])[0], "f32") is None


def test_an_exponential_below_the_normal_numbers_is_zero_or_flushed() -> None:
    assert code_of(after([1e30], [("silu", (None,))])[0], "bf16") == 0x714A
