"""The quantisers of block scaling on a device: every recipe, special values, tails, pads; and broken copies, each refused."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refsim
from refsim.testing import laws, run_campaign
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file
from refsim.testing.strategies import share

bindings = load_kernel_file(bundled_kernels("block_scale.py"))
CASES = {"quick": 1, "ci": 2, "night": 1000}  # generated for each of the four formats, beside the corpus
EVERY = {"quick": 32, "ci": 8, "night": 1}  # of the corpus
NAMED = [pytest.param(kernel, id=kernel.name) for kernel in bindings.KERNELS]
AT_NIGHT = pytest.mark.night("what converts as one of the other targets does")
MX8, MX8_WIDE, MX4, NV4 = bindings.KERNELS


@pytest.mark.parametrize("kernel", NAMED)
def test_special_values_agree(kernel, device, refsim_profile, refsim_failures):
    kernel = replace(kernel, corpus=kernel.corpus[:: EVERY[refsim_profile]])
    verdict = run_campaign(kernel, device, cases=0, failures_dir=refsim_failures)
    assert verdict.status == "pass", str(verdict)
    assert verdict.cases == len(kernel.corpus)


@pytest.mark.parametrize("kernel", NAMED)
def test_generated_problems_agree(kernel, device, refsim_profile, refsim_failures):
    variant, cases = replace(kernel, corpus=()), CASES[refsim_profile]
    verdict = run_campaign(variant, device, profile=refsim_profile, cases=cases, failures_dir=refsim_failures)
    assert verdict.status == "pass", str(verdict)
    assert verdict.cases >= cases


@pytest.mark.sampled(4, "kernel and target each in CI, not every pair")
@pytest.mark.ci("the kernels are verified on the simulator's own target in every run")
@pytest.mark.parametrize(
    "target", ["sm_80", "sm_120a", *(pytest.param(each, marks=AT_NIGHT) for each in ("sm_89", "sm_100a"))]
)
@pytest.mark.parametrize("kernel", NAMED)
def test_other_targets_agree_on_the_simulator(kernel, target):
    """sm_80 makes FP8 by integers."""
    verdict = run_campaign(replace(kernel, corpus=kernel.corpus[::10]), refsim.device.open("sim", target), cases=0)
    assert verdict.status == "pass", str(verdict)


@pytest.mark.ci("a warp of the kernel shares nothing with another")
@pytest.mark.parametrize("kernel", NAMED)
@share(1 / 25)
@given(data=st.data())
def test_second_run_writes_the_same_bits(kernel, device, data):
    laws.deterministic(kernel, data.draw(kernel.problem), device)


def test_the_corpus_has_every_recipe_with_every_type_and_fill():
    for kernel in bindings.KERNELS:
        recipes = set(bindings.recipes_of(kernel.corpus[0].format))
        assert {(p.recipe, p.wide) for p in kernel.corpus} == {(r, w) for r in recipes for w in bindings.WIDE}
        assert {p.x.fill for p in kernel.corpus} >= set(bindings.FILLS)
        assert any(p.rows > 128 and p.columns > 8 * refsim.scaling.block_format(p.format).width for p in kernel.corpus)


def test_the_kernel_has_the_recipes_whose_elements_one_conversion_makes():
    """Those of `refsim.scaling` with the instruction's conversion and no other are all there, but for the two whose factors
    go through the special-function unit, and for 4over6, which makes elements twice."""
    for format in bindings.FORMATS:
        rows = [row.name for row in refsim.scaling.recipes_of(format) if row.policy == bindings.POLICY]
        rows = [name for name in rows if name not in ("vllm", "flashinfer") and "4over6" not in name]
        assert sorted(bindings.recipes_of(format)) == sorted(rows)


# Mistakes of the field


@pytest.mark.night(
    "ten seconds; broken copies of the kernel are refused in every run, and those that mutants make are named"
)
def test_every_mistake_shows_in_some_problem():
    """What a kernel that makes it would write is not what one problem promises."""
    tiles = [replace(kernel.corpus[0], rows=256, columns=512) for kernel in bindings.KERNELS]
    normal = [replace(each, x=bindings.Values("gaussian", 5)) for each in tiles]
    small = [problem for kernel in bindings.KERNELS for problem in kernel.corpus if problem.rows <= 64]
    missing = dict(bindings.MISTAKES)
    for problem in (*small, *normal):
        right = bindings.expected(problem)
        missing = {name: made for name, made in missing.items() if not _differ(right, made(problem))}
    assert sorted(missing) == ["offsets wrap at 32 bits"]  # 4 GiB; made as those of 16 bits


def _differ(right, wrong):
    return any(not np.array_equal(right[name], wrong[name]) for name in right)


# Broken copies

OTHERS = ("ENTRIES(f16, __half)\n", "ENTRIES(f32, float)\n")
LATER = pytest.mark.ci("others of the same kernel are refused in every run")

# the kernel, which problem of its corpus shows it, smallest first, the text of the real one, what the mutant has in its place
# fmt: off
MUTANTS = (
    pytest.param(MX8, 18, "holds ? scale.code << (8 * place) : 0;", "scale.code << (8 * place);",
                 id="pads-not-zero", marks=LATER),
    pytest.param(MX4, 1, "before(0, x[3]), x[2]), x[1]), x[0])", "before(0, x[2]), x[3]), x[0]), x[1])", id="nibbles-swapped"),
    pytest.param(NV4, 6, "if (code == 0 && recipe != kKernel) factor = 0.0f;", "", id="underflowing-scale", marks=LATER),
    pytest.param(MX8, 0, "row_in_tile * 16;", "row_in_tile * 4;", id="interleave-skipped", marks=LATER),
    pytest.param(MX8, 1, "tile_scales + u * 4) = word;", "tile_scales + u * 4) = __byte_perm(word, 0, 0x0123);",
                 id="scales-of-a-word-turned", marks=LATER),
    pytest.param(MX8, 9, "ceil_div(blocks, kTileBlocks);\n", "max(blocks / kTileBlocks, 1u);\n",
                 id="last-tile-dropped", marks=LATER),
    pytest.param(MX8, 0, "ceil_div(k, Blocks::kWidth),", "k / Blocks::kWidth,", id="k-tail-without-a-scale", marks=LATER),
    pytest.param(MX8, 32, "ceil_div(m, kTileRows) * spans", "max(m / kTileRows, 1u) * spans",
                 id="rows-of-the-last-tile", marks=LATER),
    pytest.param(MX8, 9, "static_cast<uint64_t>(tile) * kTileBytes", "0", id="every-tile-the-first", marks=LATER),
    pytest.param(MX8, 4, "up = recipe >= kCeil", "up = recipe > kRceil", id="floor-for-rceil", marks=LATER),
    pytest.param(MX8, 13, "recipe <= kCeil, up", "recipe < kCeil, up", id="largest-for-power", marks=LATER),
    pytest.param(MX8, 12, "(1u << (22 - Element::kMantissa))", "(1u << (22 - 1))", id="even-by-another-mantissa", marks=LATER),
    pytest.param(MX8, 14, "bits > kTwoToMinus127", "true", id="subnormals-lifted", marks=LATER),
    pytest.param(MX8, 5, "factor = kTwoToMinus127;", "factor = 0;", id="smallest-factor-flushed", marks=LATER),
    pytest.param(MX8, 5, "recipe == kTriton ? 0u : 0x7fffffffu", "0u", id="nan-scale-decoded-as-a-number", marks=LATER),
    pytest.param(MX8, 5, "__hmax2_nan(low, high)", "__hmax2(low, high)", id="nan-dropped-late", marks=LATER),
    pytest.param(MX8, 23, "if (magnitude <= kInfinity) peak", "if (magnitude < kInfinity) peak",
                 id="infinity-dropped", marks=LATER),
    pytest.param(MX8, 1, "v.x & kept, b", "v.x, b", id="amax-without-abs", marks=LATER),
    pytest.param(MX8, 9, "__NV_SATFINITE, kKind);\n    const", "__NV_NOSAT, kKind);\n    const",
                 id="nan-for-saturation", marks=LATER),
    pytest.param(MX8, 28, "u % kLanes, kLanes);", "0, kLanes);",
                 id="factor-of-another-row", marks=LATER),
    pytest.param(MX8_WIDE, 2, "kMantissa = 2, kPower = 15", "kMantissa = 2, kPower = 16", id="exponent-off-by-one", marks=LATER),
    pytest.param(MX4, 4, "(__float_as_uint(x) & 0x80000000u)", "(__float_as_uint(x) & (sum % 8 != 0 ? 0x80000000u : 0u))",
                 id="zero-loses-its-sign", marks=LATER),
    pytest.param(MX4, 1, "__fadd_rn(magnitude, steps)", "__fadd_ru(magnitude, steps)", id="rounded-away", marks=LATER),
    pytest.param(NV4, 14, "x[i] = __fmul_rn(x[i], factor);", "x[i] = __half2float(__float2half_rn(__fmul_rn(x[i], factor)));",
                 id="double-rounding", marks=LATER),
    pytest.param(NV4, 2, "inverse(__frcp_rn(tensor))", "inverse(tensor)", id="factor-inverted", marks=LATER),
    pytest.param(NV4, 13, "__fmul_rn(__fdiv_rn(peak, 6.0f), tensor)", "__fmul_rn(peak, sixth)",
                 id="product-for-quotient", marks=LATER),
    pytest.param(NV4, 4, "bool ignores_nan() const { return true; }", "bool ignores_nan() const { return false; }",
                 id="nan-counts", marks=LATER),
)
# fmt: on


@pytest.mark.sampled(12, "others of the same kernel are refused in CI, and all problems pass")
@pytest.mark.parametrize(("kernel", "number", "right", "wrong"), MUTANTS)
def test_mutant_is_refused(kernel, number, right, wrong, device, broken_quantiser):
    mutant = broken_quantiser(bindings.SOURCE, right, wrong, OTHERS)
    corpus = sorted((p for p in kernel.corpus if p.wide == "bf16"), key=lambda p: p.rows * p.columns)
    entries = tuple(name for name in kernel.entries if name.endswith("_bf16"))
    variant = replace(kernel, file=mutant, corpus=(corpus[number],), entries=entries)
    verdict = run_campaign(variant, device, profile="quick", cases=0, suspect_seconds=0)
    assert verdict.status == "fail", str(verdict)
