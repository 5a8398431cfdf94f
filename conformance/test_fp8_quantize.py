"""The FP8 quantiser on a device: every format, special values and generated problems; not one bit may differ."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsim.testing import laws, run_campaign
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file
from refsim.testing.strategies import share

bindings = load_kernel_file(bundled_kernels())
CASES = {"quick": 2, "ci": 4, "night": 1000}  # generated for each of the 15 variants, beside the corpus
VARIANTS = [
    *(pytest.param(bindings.FP8_AMAX, bindings.amax_problems((wide,)), id=f"amax-{wide}") for wide in bindings.WIDE),
    *(
        pytest.param(bindings.FP8_QUANTIZE, bindings.quantize_problems((wide,), (to,)), id=f"quantize-{wide}-{to}")
        for wide in bindings.WIDE
        for to in bindings.NARROW
    ),
    *(
        pytest.param(bindings.FP8_DEQUANTIZE, bindings.dequantize_problems((q,), (wide,)), id=f"dequantize-{q}-{wide}")
        for q in bindings.NARROW
        for wide in bindings.WIDE
    ),
]


LATER = pytest.mark.ci("the command `refsim verify fp8_amax` is tested with the same problems in CI")


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(kernel, marks=LATER if kernel is bindings.FP8_AMAX else (), id=kernel.name)
        for kernel in bindings.KERNELS
    ],
)
def test_special_values_agree(kernel, device, of_the_corpus, refsim_failures):
    kernel = of_the_corpus(kernel)
    verdict = run_campaign(kernel, device, cases=0, failures_dir=refsim_failures)
    assert verdict.status == "pass", str(verdict)
    assert verdict.cases == len(kernel.corpus)


@pytest.mark.parametrize(("kernel", "problems"), VARIANTS)
def test_generated_problems_agree(kernel, problems, device, refsim_profile, refsim_failures):
    variant = replace(kernel, problem=problems, corpus=())
    cases = CASES[refsim_profile]
    verdict = run_campaign(variant, device, profile=refsim_profile, cases=cases, failures_dir=refsim_failures)
    assert verdict.status == "pass", str(verdict)
    assert verdict.cases >= cases


@pytest.mark.parametrize("kernel", bindings.KERNELS, ids=lambda kernel: kernel.name)
@share(1 / 5)
@given(data=st.data())
def test_second_run_writes_the_same_bits(kernel, device, data):
    laws.deterministic(kernel, data.draw(kernel.problem), device)
