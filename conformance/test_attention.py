"""Attention on a device, in bf16 and E4M3: special problems and generated ones; no bit may differ. Broken copies are refused."""

import shutil
from dataclasses import replace

import pytest

from refsim.testing import laws, run_campaign
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file

attention = load_kernel_file(bundled_kernels("attention.py"))
CASES = {"quick": 0, "ci": 2, "night": 80}  # generated for each entry, beside the corpus
LATER = pytest.mark.ci("others of the same kernel are tried in every run")
ENTRIES = [
    pytest.param(kernel, depth, id=f"{kernel.name}_{depth}", marks=LATER if place in (1, 2) else ())
    for place, (kernel, depth) in enumerate((each, depth) for each in attention.KERNELS for depth in attention.DEPTHS)
]
FEW = (2,)  # of an entry's problems in the corpus: those of every run


@pytest.mark.parametrize(("kernel", "depth"), ENTRIES)
def test_problems_of_an_entry_agree(kernel, depth, device, refsim_profile, refsim_failures):
    """Rows that see no key, edges of tiles, special operands and scales; then generated ones."""
    corpus = tuple(problem for problem in kernel.corpus if problem.depth == depth)
    if refsim_profile == "quick":
        corpus = tuple(corpus[number] for number in FEW)
    elif refsim_profile == "ci":
        corpus = corpus[::2]
    type = corpus[0].type
    variant = replace(kernel, problem=attention.attention_problems(type, (depth,)), corpus=corpus)
    cases = CASES[refsim_profile]
    verdict = run_campaign(variant, device, profile=refsim_profile, cases=cases, failures_dir=refsim_failures)
    assert verdict.status == "pass", str(verdict)
    assert verdict.cases >= len(corpus) + cases


@pytest.mark.ci("agreement with the oracle is shown in every run")
@pytest.mark.parametrize("kernel", attention.KERNELS, ids=lambda each: each.name)
def test_second_run_writes_the_same_bits(kernel, device):
    laws.deterministic(kernel, kernel.corpus[0], device)


BF16, E4M3 = attention.ATTENTION_BF16, attention.ATTENTION_E4M3

# the kernel, which problem of its corpus shows it, the text of the real one, what the mutant has in its place
# fmt: off
MUTANTS = (
    pytest.param(BF16, 0, "o[i] = __fmul_rn(o[i], kept[i % 4 / 2]);", "", id="sums-not-rescaled"),
    pytest.param(BF16, 0, "kept[i % 4 / 2]", "kept[0]", id="rescaled-by-another-row", marks=LATER),
    pytest.param(BF16, 0, "__fmaf_rn(rows.sum[below], rows.kept[below], sum)", "__fadd_rn(rows.sum[below], sum)",
                 id="older-weights-not-rescaled", marks=LATER),
    pytest.param(BF16, 0, "min(row + ahead + 1, length)", "min(row + ahead, length)", id="mask-one-too-early", marks=LATER),
    pytest.param(BF16, 0, "min(row + ahead + 1, length)", "min(row + ahead + 2, length)", id="mask-one-too-late", marks=LATER),
    pytest.param(BF16, 0, "min(row + ahead + 1, length)", "min(row + 1, length)",
                 id="diagonal-from-the-first-key", marks=LATER),
    pytest.param(BF16, 10, ": length) - static_cast", ": length + 1) - static_cast", id="one-key-beyond-the-last", marks=LATER),
    pytest.param(BF16, 2, "max(last + ahead, 0)", "max(last + ahead - 1, 0)", id="last-tile-left-out", marks=LATER),
    pytest.param(BF16, 2, "float used = top == nothing ? 0 : top;", "float used = top;",
                 id="rows-that-see-nothing", marks=LATER),
    pytest.param(BF16, 2, "of[right] = sum == 0 ? 0 : of[right];", "", id="nothing-over-nothing", marks=LATER),
    pytest.param(BF16, 0, "        float top = rows.top[below];", "        float top = nothing;",
                 id="maximum-of-one-tile", marks=LATER),
    pytest.param(BF16, 0, "top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 2));", "",
                 id="maximum-of-half-a-quad", marks=LATER),
    pytest.param(BF16, 0, "rows.top[below] = top, rows.base", "rows.base", id="maximum-stays-stale", marks=LATER),
    pytest.param(BF16, 0, "__fmul_rn(__fsub_rn(rows.top[below], used), scale)", "__fsub_rn(rows.top[below], used)",
                 id="rescaled-without-the-scale", marks=LATER),
    pytest.param(BF16, 0, "_flushed(__fmaf_rn(each, scale, -base))", "_flushed(__fmul_rn(__fmaf_rn(each, scale, -base), scale))",
                 id="scale-applied-twice", marks=LATER),
    pytest.param(BF16, 0, "_flushed(__fmaf_rn(each, scale, -base))", "_flushed(__fmul_rn(__fsub_rn(each, used), scale))",
                 id="exponent-rounded-elsewhere", marks=LATER),
    pytest.param(BF16, 22, "ex2_flushed(__fmaf_rn(each, scale, -base))", "exp2f(__fmaf_rn(each, scale, -base))",
                 id="subnormal-weights-kept", marks=LATER),
    pytest.param(BF16, 0, 'asm("cvt.rn.bf16x2', 'asm("cvt.rz.bf16x2', id="weights-cut-off", marks=LATER),
    pytest.param(BF16, 0, "sum = __fadd_rn(sum, each);",
                 "sum = __fadd_rn(sum, __uint_as_float(__float_as_uint(each) & 0xffff0000));",
                 id="narrow-weights-summed", marks=LATER),
    pytest.param(BF16, 23, "__fmul_rn(o[2 * i + below * 2 + right], inverse)", "__fdiv_rn(o[2 * i + below * 2 + right], sum)",
                 id="divided-exactly", marks=LATER),
    pytest.param(BF16, 0, "sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffff, sum, 2));", "",
                 id="sum-of-half-a-quad", marks=LATER),
    pytest.param(BF16, 0, "__fmul_rn(__fadd_rn(rows.base[below], lg2_flushed(sum)), ln2)",
                 "__fmaf_rn(lg2_flushed(sum), ln2, __fmul_rn(rows.base[below], ln2))",
                 id="logarithm-rounded-elsewhere", marks=LATER),
    pytest.param(BF16, 0, "    hold(o);\n    fence_registers();", "    hold(o);", id="no-fence-before-values"),
    pytest.param(BF16, 0, "    hold(s);\n    fence_registers();", "    hold(s);", id="no-fence-before-scores", marks=LATER),
    pytest.param(BF16, 0, "Type::values(o, a[step], v, step);\n    commit_products();\n    wait_for_products<0>();",
                 "Type::values(o, a[step], v, step);\n    commit_products();", id="values-not-waited-for", marks=LATER),
    pytest.param(BF16, 0, "Type::values(o, a[step], v, step);\n    commit_products();", "Type::values(o, a[step], v, step);",
                 id="values-not-committed", marks=LATER),
    pytest.param(BF16, 0, "        wait(base + At::kOfK + 8 * stage, parity);\n", "", id="keys-not-waited-for", marks=LATER),
    pytest.param(BF16, 0, "        wait(base + At::kOfV + 8 * stage, parity);\n", "", id="values-read-too-early", marks=LATER),
    pytest.param(BF16, 0, "    if (tiles > 0) wait(base + At::kOfQ, 0);\n", "", id="rows-not-waited-for", marks=LATER),
    pytest.param(BF16, 0, "parity = tile / kStages % 2;", "parity = 0;", id="old-phase-waited-for", marks=LATER),
    pytest.param(BF16, 0, "        weigh<Type>(s, rows, seen, scale);\n", "        weigh<Type>(s, rows, seen, scale);\n"
                 "        if (threadIdx.x == 0 && tile + kStages < tiles) "
                 "load_tile<Type>(base, &k, &v, tile + kStages, kv_head);\n",
                 id="stage-filled-before-it-is-read", marks=LATER),
    pytest.param(BF16, 0, "kv_head = head / problem.group;", "kv_head = head % problem.group;",
                 id="keys-of-another-head", marks=LATER),
    pytest.param(BF16, 0, "if (row >= problem.q_length) continue;", "", id="rows-beyond-the-last", marks=LATER),
    pytest.param(BF16, 11, "descriptor_of<128>(v + step * 16 * 128, kKeys * 128)", "descriptor_of<128>(v + step * 16 * 128)",
                 id="second-half-of-a-head-elsewhere", marks=LATER),
    pytest.param(E4M3, 0, "kShift = 8;", "kShift = 0;", id="weights-not-enlarged", marks=LATER),
    pytest.param(E4M3, 0, "upper ? 0x7632 : 0x5410", "upper ? 0x5410 : 0x7632", id="columns-exchanged", marks=LATER),
    pytest.param(E4M3, 0, "__shfl_sync(0xffffffff, own, from), right", "own, right", id="columns-not-exchanged", marks=LATER),
    pytest.param(E4M3, 0, "scales.k[kv_head]", "scales.k[head]", id="scale-of-another-head", marks=LATER),
    pytest.param(E4M3, 0, "if (Type::kScaled) of[right] = __fmul_rn(of[right], v_scale);", "",
                 id="no-scale-of-values", marks=LATER),

                    pytest.param(E4M3, 0, "__fmul_rn(o[2 * i + below * 2 + right], inverse)",
                 "__fmul_rn(o[2 * i + below * 2 + right], __fmul_rn(inverse, v_scale))",
                 id="scale-of-values-twice", marks=LATER),
    pytest.param(E4M3, 0, 'asm("cvt.rn.satfinite.e4m3x2', 'asm("cvt.rn.satfinite.e5m2x2',
                 id="weights-of-another-type", marks=LATER),
)
# fmt: on


def edited(kernel, number, right, wrong, folder):
    """A copy of the kernel with one text replaced and one entry, and the problem that shows it alone."""
    shutil.copytree(kernel.file.parent / "gemm", folder / "gemm")
    shutil.copy(kernel.file.with_name("special_functions.cuh"), folder)
    problem = kernel.corpus[number]
    text = kernel.file.read_text("utf-8")
    assert text.count(right) == 1, f"the text to break stands {text.count(right)} times"
    entry = f"ENTRY({problem.type}_{problem.depth},"
    lines = text.replace(right, wrong).splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith("ENTRY(") or line.startswith(entry)]
    (folder / kernel.file.name).write_text("".join(kept), "utf-8")
    return replace(kernel, file=folder / kernel.file.name, entries=(), corpus=(problem,))


@pytest.mark.sampled(16, "others of the same kernel are refused in CI")
@pytest.mark.parametrize(("kernel", "number", "right", "wrong"), MUTANTS)
def test_mutant_is_refused(kernel, number, right, wrong, device, tmp_path):
    if device.name != "sim" and wrong in right:
        pytest.skip("what is left out may go well on silicon; the simulator reports it")
    mutant = edited(kernel, number, right, wrong, tmp_path)
    verdict = run_campaign(mutant, device, profile="quick", cases=0, suspect_seconds=0)
    assert verdict.status == "fail", str(verdict)
