"""Broken copies of the GEMM for few rows and for experts: the problems that the real ones pass must refuse each of them."""

import re
import shutil
from dataclasses import replace

import pytest

from refsim.device.sim import SimDevice
from refsim.testing import run_campaign
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file
from refsim.testing.runs import examine

SPLITS = load_kernel_file(bundled_kernels("gemm_1d2d_splits.py")).FP8_GEMM_1D2D_SPLITS
EXPERTS = load_kernel_file(bundled_kernels("gemm_1d2d_experts.py")).FP8_GEMM_1D2D_EXPERTS
LATER = pytest.mark.ci("others of the same kernels are refused in every run")

# the kernel and the entry that show it, the file, the text of the real kernel, what the mutant has in its place
# fmt: off
MUTANTS = (
    pytest.param(
        SPLITS, "64x8_swapped", "gemm/split.cuh", "other * kPart", "(splits.parts - 1 - other) * kPart",
        id="last-part-first", marks=LATER,
    ),
    pytest.param(
        SPLITS, "64x8_swapped", "gemm/split.cuh", "if (before != splits.parts - 1) return false;",
        "if (before != 0) return false;", id="the-first-adds", marks=LATER,
    ),
    pytest.param(
        SPLITS, "64x8_swapped", "gemm/async.cuh", "atom.acq_rel.gpu.global.inc.u32", "atom.relaxed.gpu.global.inc.u32",
        id="sums-not-released", marks=LATER,
    ),
    pytest.param(
        SPLITS, "64x8_swapped", "gemm/split.cuh", "splits.parts - 1);\n    before", "splits.parts);\n    before",
        id="counter-left-behind", marks=LATER,
    ),
    pytest.param(
        SPLITS, "64x8_swapped", "gemm/split.cuh", "scales_of_b(const Problem&, bool) const { return begin; }",
        "scales_of_b(const Problem&, bool) const { return 0; }", id="scales-of-the-first-part", marks=LATER,
    ),
    pytest.param(
        SPLITS, "64x8_swapped", "gemm/mainloop.cuh", "const float right = __fmul_rn(scales.rows[2 * i + 1],",
        "const float right = __fmul_rn(scales.rows[2 * i],", id="scale-of-the-row-before", marks=LATER,
    ),
    pytest.param(
        SPLITS, "64x16_swapped", "gemm/epilogue.cuh", "chunk = lane / 8 % 2 ^ row / 4 % 2", "chunk = lane / 8 % 2",
        id="staged-unswizzled", marks=LATER,
    ),
    pytest.param(
        SPLITS, "128x8_swapped", "gemm/mainloop.cuh", "Tile::kSwapped ? at.m : at.n);", "at.n);",
        id="scale-of-another-block", marks=LATER,
    ),
    pytest.param(
        EXPERTS, "contiguous_128x16_swapped", "gemm/experts.cuh",
        "return uint64_t{expert} * (((swapped", "return uint64_t{0} * (((swapped", id="scales-of-expert-0",
    ),
    pytest.param(
        EXPERTS, "contiguous_128x16_swapped", "gemm/experts.cuh",
        "if (rows == (1u << Tile::kBoxRows) - 1) return false;", "return false;",
        id="rows-of-nobody-written", marks=LATER,
    ),
    pytest.param(
        EXPERTS, "contiguous_64x128", "gemm/experts.cuh", ": said[box] >= 0;", ": true;", id="nobody-counts", marks=LATER,
    ),
    pytest.param(
        EXPERTS, "masked_64x128", "gemm/experts.cuh",
        "of_a = matrix * tokens", "of_a = 0", id="rows-of-the-first-matrix", marks=LATER,
    ),
    pytest.param(
        EXPERTS, "masked_64x128", "gemm/experts.cuh",
        "before += down * across;", "before += down;", id="tiles-left-out", marks=LATER,
    ),
    pytest.param(
        EXPERTS, "masked_64x128", "gemm/experts.cuh", "row < static_cast<uint32_t>(said[box])",
        "row <= static_cast<uint32_t>(said[box])", id="a-row-too-many", marks=LATER,
    ),
    pytest.param(
        EXPERTS, "masked_64x128", "gemm/experts.cuh", "if (rows >> row & 1 && column < width)", "if (rows >> row & 1)",
        id="columns-beyond-the-edge", marks=LATER,
    ),
    pytest.param(
        EXPERTS, "masked_128x8_swapped", "gemm/experts.cuh", "wait(to.empty(), to.ring.parity ^ 1);", "",
        id="handed-over-too-early", marks=LATER,
    ),
    pytest.param(
        EXPERTS, "masked_128x8_swapped", "gemm/experts.cuh", "barrier_init(each.empty(), 1 + Tile::kMathWarps);",
        "barrier_init(each.empty(), Tile::kMathWarps);", id="one-taker-forgotten", marks=LATER,
    ),
    pytest.param(
        EXPERTS, "masked_128x8_swapped", "gemm/experts.cuh", "        if (WARPS) __syncwarp();\n", "",
        id="taken-before-all-have-read", marks=LATER,
    ),
    pytest.param(
        EXPERTS, "contiguous_128x8_swapped", "gemm/experts.cuh",
        "if (tile.w != 0 && static_cast<int32_t>(tile.x) < 0) continue;", "",
        id="tiles-of-nobody-computed", marks=LATER,
    ),
)
# fmt: on


def broken(kernel, entry, file, right, wrong, folder):
    """A copy of a kernel with one entry and one text replaced; it has that entry's problems, without the largest rows."""
    shutil.copytree(kernel.file.parent / "gemm", folder / "gemm")
    name = f"{kernel.name}_{entry}"
    lines = kernel.file.read_text("utf-8").splitlines(keepends=True)
    kept = [line for line in lines if not re.match(r"FP8_GEMM\(", line) or f"({entry}," in line]
    (folder / kernel.file.name).write_text("".join(kept), "utf-8")
    text = (folder / file).read_text("utf-8")
    assert text.count(right) == 1, f"the text to break stands {text.count(right)} times in {file}"
    (folder / file).write_text(text.replace(right, wrong), "utf-8")
    corpus = tuple(problem for problem in kernel.corpus if problem.entry == name)
    return replace(kernel, file=folder / kernel.file.name, entries=(name,), corpus=corpus)


@pytest.mark.sampled(10, "others of the same kernels are refused in CI")
@pytest.mark.parametrize(("kernel", "entry", "file", "right", "wrong"), MUTANTS)
def test_mutant_is_refused(kernel, entry, file, right, wrong, device, tmp_path):
    mutant = broken(kernel, entry, file, right, wrong, tmp_path)
    verdict = run_campaign(mutant, device, profile="quick", cases=0, suspect_seconds=0)
    assert verdict.status == "fail", str(verdict)


@pytest.mark.ci("mutants of the same kernels are refused in every run")
@pytest.mark.parametrize("entry", ["64x128", "128x128_1x2"])
def test_warps_that_finish_in_different_blocks_do_not_meet(entry, tmp_path):
    """A warpgroup that stores a tile together waits for good: the last warps of its parts are of several blocks."""
    edit = "gemm/split.cuh", "AllRows<Tile, false>", "AllRows<Tile, true>"
    mutant = broken(SPLITS, entry, *edit, tmp_path)
    (problem,) = (each for each in mutant.corpus if (each.n, each.splits) == (24, 3))
    device = SimDevice("sm_90a")
    assert examine(replace(SPLITS, entries=mutant.entries), problem, device).finding is None
    assert examine(mutant, problem, device).finding.text.startswith("[deadlock]")
