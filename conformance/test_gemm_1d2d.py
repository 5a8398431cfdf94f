"""The FP8 GEMM with block scales on a device: every entry, special problems and generated ones; not one bit may differ."""

from dataclasses import replace

import pytest

from refsim.testing import laws, run_campaign
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file

gemm = load_kernel_file(bundled_kernels("gemm_1d2d.py"))
KERNEL = gemm.FP8_GEMM_1D2D
CASES = {"quick": 0, "ci": 0, "night": 250}  # generated for each entry, beside the corpus


IN_EVERY_RUN = ("fp8_gemm_1d2d_64x64", "fp8_gemm_1d2d_128x176", "fp8_gemm_1d2d_128x128_2x1")
LATER = pytest.mark.ci("an entry of another size is simulated in every run")
NAMES = [pytest.param(name, marks=() if name in IN_EVERY_RUN else LATER) for name in gemm.ENTRIES]


@pytest.mark.parametrize("entry", NAMES)
def test_problems_of_an_entry_agree(entry, device, refsim_profile, refsim_failures):
    """Edges in every direction and special values, at night also whole tiles and several for one cluster; then generated ones."""
    corpus = tuple(problem for problem in KERNEL.corpus if problem.entry == entry)
    if refsim_profile != "night":
        corpus = corpus[1:2] if refsim_profile == "quick" else (corpus[1], corpus[3])
    variant = replace(KERNEL, problem=gemm.gemm_problems((entry,)), corpus=corpus)
    cases = CASES[refsim_profile]
    verdict = run_campaign(variant, device, profile=refsim_profile, cases=cases, failures_dir=refsim_failures)
    assert verdict.status == "pass", str(verdict)
    assert verdict.cases >= len(corpus) + cases


@pytest.mark.ci("agreement with the oracle is shown in every run")
@pytest.mark.parametrize("entry", ["fp8_gemm_1d2d_128x128_1x2", "fp8_gemm_1d2d_256x128"])
def test_second_run_writes_the_same_bits(entry, device):
    problem = next(problem for problem in KERNEL.corpus if problem.entry == entry and problem.clusters == 1)
    laws.deterministic(KERNEL, problem, device)


@pytest.mark.ci("takes twenty seconds")
@pytest.mark.parametrize("entry", ["fp8_gemm_1d2d_128x128_1x2"])
def test_stages_of_a_cluster_are_filled_again(entry, device):
    """More tiles than stages for one cluster: a block copies into the other's stage once that has arrived, by an arrival that
    releases nothing."""
    m, n = (1, 1800) if entry.endswith("1x2") else (1800, 8)
    gaussian, distinct = gemm.Values("gaussian", 1), gemm.Values("distinct", 2)
    problem = gemm.Gemm1D2D(m, n, 72, gaussian, gaussian, distinct, distinct, entry=entry, clusters=1, together=1)
    laws.agrees_with_oracle(KERNEL, problem, device)
