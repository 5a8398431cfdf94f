"""The FP8 quantisers by groups on a device: special values, tails, every kind of scale; and broken copies, each refused."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import refsim
from refsim.testing import laws, run_campaign
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file
from refsim.testing.strategies import share

bindings = load_kernel_file(bundled_kernels("group_quantize_bindings.py"))
CASES = {"quick": 1, "ci": 3, "night": 1000}  # generated for each of the six variants, beside the corpus
GROUP, BLOCK = bindings.FP8_GROUP_QUANTIZE, bindings.FP8_BLOCK_QUANTIZE
NAMED = [pytest.param(kernel, id=kernel.name) for kernel in bindings.KERNELS]
VARIANTS = [
    pytest.param(kernel, bindings.group_problems(rows, (wide,)), id=f"{rows}x128-{wide}")
    for kernel, rows in ((GROUP, 1), (BLOCK, 128))
    for wide in bindings.WIDE
]


@pytest.mark.parametrize("kernel", NAMED)
def test_special_values_agree(kernel, device, of_the_corpus, refsim_failures):
    kernel = of_the_corpus(kernel)
    verdict = run_campaign(kernel, device, cases=0, failures_dir=refsim_failures)
    assert verdict.status == "pass", str(verdict)
    assert verdict.cases == len(kernel.corpus)


@pytest.mark.parametrize(("kernel", "problems"), VARIANTS)
def test_generated_problems_agree(kernel, problems, device, refsim_profile, refsim_failures):
    variant, cases = replace(kernel, problem=problems, corpus=()), CASES[refsim_profile]
    verdict = run_campaign(variant, device, profile=refsim_profile, cases=cases, failures_dir=refsim_failures)
    assert verdict.status == "pass", str(verdict)
    assert verdict.cases >= cases


@pytest.mark.sampled(4, "kernel and target each in CI, not every pair")
@pytest.mark.ci("the kernels are verified on the simulator's own target in every run")
@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_100a", "sm_120a"])
@pytest.mark.parametrize("kernel", NAMED)
def test_other_targets_agree_on_the_simulator(kernel, target):
    """sm_80 makes FP8 by integers."""
    verdict = run_campaign(replace(kernel, corpus=kernel.corpus[::6]), refsim.device.open("sim", target), cases=0)
    assert verdict.status == "pass", str(verdict)


@pytest.mark.parametrize("kernel", NAMED)
@share(1 / 10)
@given(data=st.data())
def test_second_run_writes_the_same_bits(kernel, device, data):
    laws.deterministic(kernel, data.draw(kernel.problem), device)


def test_the_corpus_has_every_kind_of_scale_with_every_type_and_place():
    """Sixty-odd problems, and yet no pair of choices is missing."""
    seen = {(p.format, p.scale, p.quotient, p.mn_major, p.group_rows) for p in GROUP.corpus + BLOCK.corpus}
    for fields in ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3), (0, 4), (1, 4), (2, 4)):
        pairs = {tuple(each[field] for field in fields) for each in seen}
        values = [{each[field] for each in seen} for field in fields]
        assert len(pairs) == len(values[0]) * len(values[1]), fields


# Broken copies

OTHERS = ("ENTRIES(bf16, __nv_bfloat16)\n", "ENTRIES(f32, float)\n")
LATER = pytest.mark.ci("others of the same kernel are refused in every run")

# the kernel, which problem of `_problems` shows it, the text of the real one, what the mutant has in its place
# fmt: off
MUTANTS = (
    pytest.param(GROUP, 5, "__hmax2_nan(low, high)", "__hmax2(low, high)", id="nan-dropped-late"),
    pytest.param(GROUP, 1, "quotient & 0x007fffffu", "quotient & 0x00600000u", id="power-of-two-cut", marks=LATER),
    pytest.param(GROUP, 2, "lane % kVectors == u", "lane % 2 == u", id="scale-of-another-group", marks=LATER),
    pytest.param(GROUP, 1, "ceil_div(m, 4) * 4", "m", id="rows-not-padded", marks=LATER),
    pytest.param(GROUP, 7, "__fdiv_rn(peak, 448.0f)", "__fmul_rn(peak, 1.0f / 448.0f)", id="reciprocal-of-448", marks=LATER),
    pytest.param(GROUP, 1, "* 4 + block % 4", "* 4 + 3 - block % 4", id="codes-of-a-word-turned", marks=LATER),
    pytest.param(GROUP, 0, "max(peak_bits, __float_as_uint(eps))", "peak_bits", id="eps-forgotten", marks=LATER),
    pytest.param(GROUP, 5, "static_cast<uint32_t>(kLargestCode)", "255u", id="nan-scale", marks=LATER),
    pytest.param(GROUP, 17, "return kDivides ? __fdiv_rn(x, scaler) : __fmul_rn(x, scaler);",
                 "return kDivides ? __fmul_rn(x, __frcp_rn(scaler)) : __fmul_rn(x, scaler);", id="never-divides", marks=LATER),
    pytest.param(GROUP, 2, "static_cast<uint8_t>(codes.word[i / 4] >> (8 * (i % 4)))",
                 "static_cast<uint8_t>(codes.word[i / 4] >> (8 * (i % 2)))", id="tail-of-a-row-turned", marks=LATER),
    pytest.param(GROUP, 1, "__NV_SATFINITE, __NV_E4M3);\n        const", "__NV_SATFINITE, __NV_E5M2);\n        const",
                 id="another-format", marks=LATER),
    pytest.param(BLOCK, 0, "        __syncthreads();\n", "", id="barrier-dropped"),
    pytest.param(BLOCK, 0, "turn ^= 1", "turn ^= 0", id="shared-memory-not-in-turn"),
    pytest.param(BLOCK, 0, "max_of_lanes<kWarp>(peak)", "max_of_lanes<kWarp / 2>(peak)", id="half-a-warp", marks=LATER),
    pytest.param(BLOCK, 0, "at < m ? k : 0, codes", "k, codes", id="rows-beyond-the-last", marks=LATER),
)
# fmt: on


SEVERAL_TILES_OF_A_BLOCK = bindings.GroupQuantize(131, 260, bindings.Values("log-uniform", 1), "f16", 128, blocks=1)


def problems_of(kernel):
    """The corpus of one type, behind one of a block that quantises several tiles."""
    several = (SEVERAL_TILES_OF_A_BLOCK,) if kernel is BLOCK else ()
    return several + tuple(problem for problem in kernel.corpus if problem.format == "f16")


@pytest.mark.sampled(8, "others of the same kernels are refused in CI")
@pytest.mark.parametrize(("kernel", "number", "right", "wrong"), MUTANTS)
def test_mutant_is_refused(kernel, number, right, wrong, device, broken_quantiser):
    if ("__syncthreads" in right or "turn" in right) and device.name != "sim":
        pytest.skip("a race may go well on silicon; the simulator reports it")
    mutant = broken_quantiser(bindings.SOURCE, right, wrong, OTHERS)
    entries = tuple(name for name in kernel.entries if "_f16" in name)
    variant = replace(kernel, file=mutant, corpus=(problems_of(kernel)[number],), entries=entries)
    verdict = run_campaign(variant, device, profile="quick", cases=0, suspect_seconds=0)
    assert verdict.status == "fail", str(verdict)
