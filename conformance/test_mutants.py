"""Four broken copies of the FP8 quantiser: the campaign that the real one passes must refuse each of them."""

from dataclasses import replace

import pytest

from refsim.testing import run_campaign
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file

bindings = load_kernel_file(bundled_kernels())
SOURCE = bindings.SOURCE.read_text("utf-8")
AMAX = replace(bindings.FP8_AMAX, problem=bindings.amax_problems(("f16",)))
QUANTIZE = replace(bindings.FP8_QUANTIZE, problem=bindings.quantize_problems(("f16",), ("e4m3",)))

LATER = pytest.mark.ci("others of the same kernel are refused in every run")

# the kernel that shows it, the text of the real kernel, what the mutant has in its place
MUTANTS = (
    pytest.param(
        QUANTIZE,
        "static_cast<int64_t>(n - vectors * kPerVector)",
        "static_cast<int64_t>(head)",
        id="tail-never-written",
    ),
    pytest.param(
        QUANTIZE,
        "__fmul_rn(x[i], scale)",
        "__half2float(__hmul(__float2half_rn(x[i]), __float2half_rn(scale)))",
        id="multiply-in-half-precision",
        marks=LATER,
    ),
    pytest.param(QUANTIZE, "__NV_SATFINITE", "__NV_NOSAT", id="no-saturation", marks=LATER),
    pytest.param(AMAX, "    __syncthreads();\n", "", id="barrier-dropped"),
)


def _campaign(kernel, source, device, cases=0):
    """The problems of one entry, without the largest: what is checked is whether the defect shows, not how fast."""
    corpus = tuple(
        problem
        for problem in kernel.corpus
        if problem.x.format == "f16" and problem.x.n < 10_000 and getattr(problem, "to", "e4m3") == "e4m3"
    )
    return run_campaign(
        replace(kernel, file=source, corpus=corpus), device, profile="quick", cases=cases, suspect_seconds=0
    )


@pytest.mark.parametrize(("kernel", "right", "wrong"), MUTANTS)
def test_mutant_is_refused(kernel, right, wrong, device, tmp_path):
    if "__syncthreads" in right and device.name != "sim":
        pytest.skip("a race may go well on silicon; the simulator reports the read itself")
    assert SOURCE.count(right) == 1, f"the text to break stands {SOURCE.count(right)} times in {bindings.SOURCE.name}"
    mutant = tmp_path / "fp8_quantize.cu"
    mutant.write_text(SOURCE.replace(right, wrong), "utf-8")
    verdict = _campaign(kernel, mutant, device)
    assert verdict.status == "fail", str(verdict)


@pytest.mark.ci("in every run the real kernels pass all problems of their corpora, and generated ones")
@pytest.mark.parametrize("kernel", [AMAX, QUANTIZE], ids=lambda kernel: kernel.name)
def test_real_kernel_passes_the_same_campaign(kernel, device):
    verdict = _campaign(kernel, bindings.SOURCE, device, cases=15)
    assert verdict.status == "pass", str(verdict)
