"""The FP8 GEMM with block scales on a device: every entry, special problems and generated ones; not one bit may differ."""

from dataclasses import replace

import pytest

from refsim.testing import laws, run_campaign
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file

gemm = load_kernel_file(bundled_kernels("gemm_1d2d_bindings.py"))
KERNEL = gemm.FP8_GEMM_1D2D
CASES = {"quick": 1, "ci": 6, "night": 250}  # generated for each entry, beside the corpus


@pytest.mark.parametrize("entry", list(gemm.ENTRIES))
def test_problems_of_an_entry_agree(entry, device, refsim_profile, refsim_failures):
    """Whole tiles, edges in every direction, several tiles for one cluster, special values; then generated problems."""
    corpus = tuple(problem for problem in KERNEL.corpus if problem.entry == entry)
    if refsim_profile == "quick":
        corpus = corpus[1:3]
    variant = replace(KERNEL, problem=gemm.gemm_problems((entry,)), corpus=corpus)
    cases = CASES[refsim_profile]
    verdict = run_campaign(variant, device, profile=refsim_profile, cases=cases, failures_dir=refsim_failures)
    assert verdict.status == "pass", str(verdict)
    assert verdict.cases >= len(corpus) + cases


@pytest.mark.parametrize("entry", ["fp8_gemm_1d2d_128x128_1x2", "fp8_gemm_1d2d_256x128"])
def test_second_run_writes_the_same_bits(entry, device):
    problem = next(problem for problem in KERNEL.corpus if problem.entry == entry and problem.clusters == 1)
    laws.deterministic(KERNEL, problem, device)
