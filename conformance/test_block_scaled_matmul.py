"""The block-scaled products on the simulated GPU: every format, edges, special scales; not one bit may differ."""

import shutil
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest

import refsim.device
from refsim.testing import laws, run_campaign
from refsim.testing.assertions import BitsDiffer
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file

matmul = load_kernel_file(bundled_kernels("block_scaled_matmul.py"))
tensor = load_kernel_file(bundled_kernels("block_scaled_matmul_sm100.py"))
KERNELS = (*matmul.KERNELS, *tensor.KERNELS)
TARGETS = {
    "block_scaled_matmul_sm120": "sm_120a",
    "block_scaled_matmul_sm90": "sm_90a",
    "block_scaled_matmul_sm100": "sm_100a",
}
FAULTS = (
    "out-of-bounds",
    "uninitialised",
    "missing-proxy-fence",
    "race",
    "read-before-wait",
    "deadlock",
    "barrier-misuse",
)
CASES = {"quick": 0, "ci": 0, "night": 200}  # generated for each entry, beside the corpus
LATER = pytest.mark.ci("formats that differ from one of every run by a word of the instruction")
AT_NIGHT = pytest.mark.night("a part of the edits is compiled in the larger profile")
IN_EVERY_RUN = tuple(
    f"{kernel}_{name}"
    for kernel, names in (
        ("sm90", ("nvfp4", "fp8_fp4")),
        ("sm100", ("mxfp8", "mxfp6_e3m2", "mxfp4", "nvfp4", "fp8_fp4")),
        ("sm120", ("mxfp8", "mxfp6_e3m2", "mxfp4", "nvfp4", "fp8_fp4")),
    )
    for name in names
)
ENTRIES = [
    pytest.param(kernel, name, id=name, marks=() if name.endswith(IN_EVERY_RUN) else LATER)
    for kernel in KERNELS
    for name in kernel.entries
]


@lru_cache
def device_of(kernel: str):
    """One for each kernel, so that its PTX is read once."""
    return refsim.device.open("sim", TARGETS[kernel])


@pytest.mark.sampled(14, "formats that differ from one of CI by a word of the instruction")
@pytest.mark.parametrize(("kernel", "entry"), ENTRIES)
def test_problems_of_an_entry_agree(kernel, entry, refsim_profile, refsim_failures):
    """Edges of tiles and a tail of K with other scales everywhere; in the larger profile several tiles and every scale."""
    corpus = tuple(problem for problem in kernel.corpus if problem.entry == entry)
    corpus = corpus[{"quick": slice(1), "ci": slice(1, 2)}.get(refsim_profile, slice(None))]
    variant = replace(kernel, problem=matmul.problems(kernel.recipe, (entry,)), corpus=corpus)
    cases = CASES[refsim_profile]
    verdict = run_campaign(
        variant, device_of(kernel.name), profile=refsim_profile, cases=cases, failures_dir=refsim_failures
    )
    assert verdict.status == "pass", str(verdict)
    assert verdict.cases >= len(corpus) + cases


WARPGROUP_TILES = "block_scaled/warpgroup_tiles.cuh"
TENSOR_TILES = "block_scaled/tensor_tiles.cuh"
EDITS = [
    # kernel, entry, number in its corpus, file, text and what stands for it
    ("sm120", "mxfp4", 0, "block_scaled/formats.cuh", "return (word & kept) | (kOnes & ~kept);", "return word;"),
    ("sm120", "nvfp4", 0, "block_scaled/formats.cuh", "if (first >= blocks) return kOnes;", ""),
    ("sm120", "mxfp4", 1, "block_scaled/formats.cuh", "row % kTileRows / 32 * 4", "0"),
    ("sm120", "mxfp4", 1, "block_scaled/formats.cuh", "* groups + group", "+ group"),
    ("sm120", "mxfp6_e3m2", 0, "block_scaled/formats.cuh", "of.x >> 24 | of.y << 8", "of.x >> 24"),
    ("sm120", "fp8_fp4", 0, "block_scaled/formats.cuh", "<< 12 & 0xf000000)) << 2", "<< 12 & 0xf000000))"),
    ("sm120", "mxfp8", 0, "block_scaled/warp_tiles.cuh", "multiply<kScale % kTileBlocks,", "multiply<0,"),
    ("sm120", "mxfp8", 0, "block_scaled/warp_tiles.cuh", "lane % 4 * 8 + lane / 4;", "lane / 4;"),
    ("sm120", "nvfp4", 0, "block_scaled/staging.cuh", "k - at < kElements)", "false)"),
    ("sm90", "mxfp8", 4, "block_scaled/values.cuh", "max(code << 23, 0x400000u)", "code << 23"),
    ("sm90", "mxfp8", 3, "block_scaled/values.cuh", "MANTISSA == 3 && magnitude == 0x7f", "false"),
    ("sm90", "fp8_fp4", 0, "block_scaled/values.cuh", "BITS == 4 ? 2 : 0", "0"),
    (
        "sm90",
        "nvfp4",
        0,
        WARPGROUP_TILES,
        "word >> 8 * (chunk * kChunk / Entry::kBlock % kTileBlocks) & 0xff",
        "word & 0xff",
    ),
    (
        "sm90",
        "nvfp4",
        0,
        WARPGROUP_TILES,
        "scale_word<Entry::kOne>(of.scales, row,",
        "scale_word<Entry::kOne>(of.scales, 0,",
    ),
    ("sm90", "mxfp4", 0, WARPGROUP_TILES, "fence.proxy.async.shared::cta;", ""),
    ("sm90", "mxfp4", 0, WARPGROUP_TILES, "step / 4 * kHalfBytes + step % 4 * 32", "step % 4 * 32"),
    ("sm100", "mxfp8", 0, TENSOR_TILES, "| id << 4 | id << 29", ""),
    ("sm100", "mxfp4", 0, TENSOR_TILES, "words.x = (words.x & kept) | ones;", ""),
    ("sm100", "nvfp4", 1, TENSOR_TILES, "    gemm::publish_to_copies();\n", ""),
    ("sm100", "nvfp4", 1, TENSOR_TILES, "stage.sfa + group * kTileBytes", "stage.sfa"),
    ("sm100", "mxfp8", 1, TENSOR_TILES, "size_t(blockIdx.y) * groups.all + first", "first"),
    ("sm100", "mxfp8", 2, TENSOR_TILES, "gemm::wait(at(barriers.empty[i % kStages]), i / kStages % 2 ^ 1);", ""),
    ("sm100", "mxfp6_e3m2", 0, "block_scaled_matmul_sm100.cu", "128 / 8 * (A_TYPE##_bits + B_TYPE##_bits)", "256"),
]


@pytest.mark.parametrize(
    ("kernel", "entry", "number", "file", "text", "other"),
    [
        pytest.param(*edit, marks=pytest.mark.ci("every edit is compiled") if place % 4 == 0 else AT_NIGHT)
        for place, edit in enumerate(EDITS)
    ],
)
def test_an_edit_of_the_kernel_shows(kernel, entry, number, file, text, other, tmp_path: Path):
    """What a launch writes differs from the oracle, or the simulator stops."""
    declared = next(each for each in KERNELS if each.name.endswith(kernel))
    folder = shutil.copytree(matmul.KERNEL_FILES, tmp_path / "kernels")
    source = (folder / file).read_text()
    assert source.count(text) == 1
    (folder / file).write_text(source.replace(text, other))
    edited = replace(declared, file=folder / declared.file.name)
    problem = [each for each in declared.corpus if each.entry.endswith(f"{kernel}_{entry}")][number]
    with pytest.raises((BitsDiffer, refsim.RefsimError)) as caught:
        laws.agrees_with_oracle(edited, problem, refsim.device.open("sim", TARGETS[declared.name]))
    assert isinstance(caught.value, BitsDiffer) or caught.value.code in FAULTS
