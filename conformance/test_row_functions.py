"""Softmax and RMSNorm on a device: special rows and generated ones, not one bit may differ; and broken copies, each refused."""

import shutil
from dataclasses import replace

import pytest

import refsim
from refsim.testing import run_campaign
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file

rows = load_kernel_file(bundled_kernels("row_functions.py"))
CASES = {"quick": 1, "ci": 4, "night": 1000}  # generated for each kernel, beside the corpus
NAMED = [pytest.param(kernel, id=kernel.name) for kernel in rows.KERNELS]


@pytest.mark.parametrize("kernel", NAMED)
def test_rows_agree(kernel, device, of_the_corpus, refsim_profile, refsim_failures):
    kernel, cases = of_the_corpus(kernel) if refsim_profile == "quick" else kernel, CASES[refsim_profile]
    verdict = run_campaign(kernel, device, profile=refsim_profile, cases=cases, failures_dir=refsim_failures)
    assert verdict.status == "pass", str(verdict)
    assert verdict.cases >= len(kernel.corpus) + cases


@pytest.mark.ci("the kernels are verified on the simulator's own target in every run")
@pytest.mark.parametrize("target", ["sm_80", "sm_120a"])
@pytest.mark.parametrize("kernel", NAMED)
def test_on_other_targets_the_bits_are_those_of_hopper_and_the_promise_is_not_kept(kernel, target):
    """The bits of their special functions are not recorded: nothing differs, and that proves less."""
    verdict = run_campaign(replace(kernel, corpus=kernel.corpus[::20]), refsim.device.open("sim", target), cases=0)
    assert verdict.status not in ("pass", "fail"), str(verdict)
    assert verdict.differing == 0


@pytest.mark.parametrize("kernel", NAMED)
def test_the_corpus_has_every_type_with_every_mask_gate_and_fill(kernel):
    fills, choices = rows.DRAWN_FILLS, len(rows.WIDE) * (len(rows.MASKS) if kernel is rows.SOFTMAX else 2)
    assert {problem.x.fill for problem in kernel.corpus} >= set(fills)
    seen = {
        (problem.wide, getattr(problem, "mask", getattr(problem, "gate", None) is None)) for problem in kernel.corpus
    }
    assert len(seen) == choices


LATER = pytest.mark.ci("others of the same kernels are refused in every run")

# the kernel, the problem of its corpus that shows it, the text of the real one, what the mutant has in its place
# fmt: off
MUTANTS = (
    pytest.param(rows.SOFTMAX, 12, "top == nothing ? 0 : top, scale", "top, scale", id="row-of-nothing", marks=LATER),
    pytest.param(rows.SOFTMAX, 10, "__fmaf_rn(x, scale, -base)", "__fadd_rn(__fmul_rn(x, scale), -base)", id="rounded-twice",
                 marks=LATER),
    pytest.param(rows.SOFTMAX, 36, "ex2_flushed(__fmaf_rn", "exp2f(__fmaf_rn", id="subnormal-weights-kept", marks=LATER),
    pytest.param(rows.SOFTMAX, 10, "float top = nothing;", "float top = 0;", id="maximum-from-zero", marks=LATER),
    pytest.param(rows.SOFTMAX, 2, "top = over_block<Largest>(top, of_warp);", "", id="maximum-of-a-thread", marks=LATER),
    pytest.param(rows.SOFTMAX, 4, "distance = kLanes / 2; distance", "distance = kLanes / 4; distance", id="half-a-warp",
                 marks=LATER),

                    pytest.param(rows.SOFTMAX, 21, "distance = kLanes / 2; distance > 0; distance /= 2",
                 "distance = 1; distance < kLanes; distance *= 2",
                 id="other-order-of-lanes", marks=LATER),
    pytest.param(rows.SOFTMAX, 21, "for (uint32_t warp = 1; warp < kWarps; ++warp) value = Both::of(value, of_warp[warp]);",
                 "value = Both::of(Both::of(value, of_warp[1]), Both::of(of_warp[2], of_warp[3]));", id="other-order-of-warps",
                 marks=LATER),
    pytest.param(rows.SOFTMAX, 0, "    __syncthreads();  // nobody", "    // nobody", id="last-result-overwritten"),
    pytest.param(rows.SOFTMAX, 0, "= value;\n    __syncthreads();", "= value;", id="read-before-written", marks=LATER),
    pytest.param(rows.SOFTMAX, 12, "sum == 0 ? 0 : __fmul_rn", "__fmul_rn", id="nothing-over-nothing", marks=LATER),
    pytest.param(rows.SOFTMAX, 38, "__fmul_rn(weight, rcp_flushed(sum))", "__fdiv_rn(weight, sum)",
                 id="divided-exactly", marks=LATER),
    pytest.param(rows.SOFTMAX, 37, "sum == 0 ? 0 : quotient(weight, sum)", "sum == 0 ? 0 : __fmul_rn(weight, rcp_flushed(sum))",
                 id="reciprocal-in-f32", marks=LATER),
    pytest.param(rows.SOFTMAX, 2, "*to = __float2bfloat16_rn(x);", "*to = __float2bfloat16_rz(x);", id="cut-off", marks=LATER),
    pytest.param(rows.SOFTMAX, 1, "T* to = y + row * y_pitch;\n        float top",
                 "T* to = y + row * x_pitch;\n        float top", id="pitch-of-x", marks=LATER),
    pytest.param(rows.RMS_NORM, 33, "sum = __fmaf_rn(each, each, sum);", "sum = __fadd_rn(__fmul_rn(each, each), sum);",
                 id="squares-rounded", marks=LATER),
    pytest.param(rows.RMS_NORM, 19, "inverse_root(__fadd_rn", "__frsqrt_rn(__fadd_rn", id="exact-root", marks=LATER),
    pytest.param(rows.RMS_NORM, 38, "quotient(sum, __uint2float_rn(columns))", "__fmul_rn(sum, 1.0f / columns)",
                 id="mean-by-a-factor", marks=LATER),
    pytest.param(rows.RMS_NORM, 0, "), eps));", "), 0.0f));", id="no-epsilon", marks=LATER),
    pytest.param(rows.RMS_NORM, 25, "__fmul_rn(__fmul_rn(wide(from[column]), factor), wide(w[column]))",
                 "__fmul_rn(wide(from[column]), __fmul_rn(factor, wide(w[column])))", id="weights-first", marks=LATER),
    pytest.param(rows.RMS_NORM, 3, "wide(w[column])", "wide(w[column % kThreads])", id="weights-of-the-first-turn", marks=LATER),
    pytest.param(rows.RMS_NORM, 1, "gate[row * x_pitch + column]", "gate[column]", id="gate-of-the-first-row", marks=LATER),
    pytest.param(rows.RMS_NORM, 23, "0xbfb8aa3b", "0xbfb8aa3a", id="constant-off-by-one", marks=LATER),
)
# fmt: on


@pytest.mark.parametrize(("kernel", "number", "right", "wrong"), MUTANTS)
def test_mutant_is_refused(kernel, number, right, wrong, device, tmp_path):
    if "__syncthreads" in right and device.name != "sim":
        pytest.skip("a race may go well on silicon; the simulator reports it")
    text = rows.SOURCE.read_text("utf-8")
    assert text.count(right) == 1, f"the text to break stands {text.count(right)} times"
    shutil.copy(rows.SOURCE.with_name("special_functions.cuh"), tmp_path)
    broken = tmp_path / rows.SOURCE.name
    broken.write_text(text.replace(right, wrong), "utf-8")
    mutant = replace(kernel, file=broken, corpus=(kernel.corpus[number],))
    verdict = run_campaign(mutant, device, profile="quick", cases=0, suspect_seconds=0)
    assert verdict.status == "fail", str(verdict)
