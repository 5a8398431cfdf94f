"""The FP8 GEMMs with block scales on a device: every entry, special problems and generated ones; not one bit may differ."""

from dataclasses import replace

import pytest

from refsim.testing import laws, run_campaign
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file

gemm = load_kernel_file(bundled_kernels("gemm_1d2d.py"))
splits = load_kernel_file(bundled_kernels("gemm_1d2d_splits.py"))
experts = load_kernel_file(bundled_kernels("gemm_1d2d_experts.py"))
KERNEL, SPLITS, EXPERTS = gemm.FP8_GEMM_1D2D, splits.FP8_GEMM_1D2D_SPLITS, experts.FP8_GEMM_1D2D_EXPERTS
CASES = {"quick": 0, "ci": 0, "night": 250}  # generated for each entry, beside the corpus

# of an entry's problems in the corpus: those of every run, those of the larger profile; at night all
FEW = {KERNEL.name: ((1,), (3, 5)), SPLITS.name: ((0, 1), (1, 2, 4)), EXPERTS.name: ((0,), (1, 2))}
PROBLEMS = {
    KERNEL.name: gemm.gemm_problems,
    SPLITS.name: splits.splits_problems,
    EXPERTS.name: experts.experts_problems,
}

IN_EVERY_RUN = (
    "fp8_gemm_1d2d_64x64",
    "fp8_gemm_1d2d_128x176",
    "fp8_gemm_1d2d_128x128_2x1",
    "fp8_gemm_1d2d_splits_64x8_swapped",
    "fp8_gemm_1d2d_experts_contiguous_128x16_swapped",
    "fp8_gemm_1d2d_experts_masked_128x16_swapped",
)
LATER = pytest.mark.ci("an entry of another size is simulated in every run")
ENTRIES = [
    pytest.param(kernel, name, id=name, marks=() if name in IN_EVERY_RUN else LATER)
    for kernel in (KERNEL, SPLITS, EXPERTS)
    for name in kernel.entries
]


@pytest.mark.parametrize(("kernel", "entry"), ENTRIES)
def test_problems_of_an_entry_agree(kernel, entry, device, refsim_profile, refsim_failures):
    """Edges in every direction and special values, at night also whole tiles and several for one cluster; then generated ones."""
    corpus = tuple(problem for problem in kernel.corpus if problem.entry == entry)
    quick, ci = FEW[kernel.name]
    if refsim_profile != "night":
        corpus = tuple(corpus[number] for number in (quick if refsim_profile == "quick" else ci))
    variant = replace(kernel, problem=PROBLEMS[kernel.name]((entry,)), corpus=corpus)
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
def test_stages_of_a_cluster_are_filled_again(device):
    """More tiles than stages for one cluster: a block copies into the other's stage once that has arrived, by an arrival that
    releases nothing."""
    gaussian, distinct = gemm.Values("gaussian", 1), gemm.Values("distinct", 2)
    problem = gemm.Gemm1D2D(1, 1800, 72, gaussian, gaussian, distinct, distinct, clusters=1, together=1)
    assert problem.entry == "fp8_gemm_1d2d_128x128_1x2"
    laws.agrees_with_oracle(KERNEL, problem, device)


@pytest.mark.ci("takes ten seconds")
@pytest.mark.parametrize("rows", [1, 7, 63, 64, 65])
def test_few_rows_of_a_give_the_bits_of_whole_tiles(rows, device):
    """Swapped, in one part: what the tile of 64 x 64 writes. N is no multiple of 128, K none of a block."""
    gaussian, distinct = gemm.Values("gaussian", rows), gemm.Values("distinct", 2)
    shape = rows, 136, 200, gaussian, gaussian, distinct, distinct
    whole = gemm.Gemm1D2D(*shape, entry="fp8_gemm_1d2d_64x64")
    entry = next(entry for entry in splits.ENTRIES.values() if entry.swapped and entry.rows >= min(rows, 64))
    swapped = splits.Gemm1D2DInParts(*shape, entry=entry.name)
    laws.agrees_with_oracle(SPLITS, swapped, device)
    assert (KERNEL.oracle(whole)["d"] == SPLITS.oracle(swapped)["d"]).all()
    laws.agrees_with_oracle(KERNEL, whole, device)
