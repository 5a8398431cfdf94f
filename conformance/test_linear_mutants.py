"""Broken copies of the linear layers: the campaign that the real ones pass must refuse each of them."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from refsim.device.compile import compile_ptx
from refsim.errors import RefsimError
from refsim.testing import run_campaign
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file

linear = load_kernel_file(bundled_kernels("linear_bindings.py"))
fp8 = load_kernel_file(bundled_kernels("linear_fp8_bindings.py"))
LINEAR, FP8 = (linear.LINEAR, linear.linear_problems), (fp8.LINEAR_FP8_WEIGHT, fp8.linear_fp8_weight_problems)
EPILOGUE, TILE = "linear/epilogue.cuh", "linear/tile.cuh"

LATER = pytest.mark.ci("others of the same kernel are refused in every run")

# the layer and the entry that show it, the file, the text of the real kernel, what the mutant has in its place
# fmt: off
MUTANTS = (
    pytest.param(
        LINEAR, "linear_n64_s1", EPILOGUE,
        "pack(__fadd_rn(low_half(pair), low_half(residual)), __fadd_rn(high_half(pair), high_half(residual)))",
        "pack(__fadd_rn(low, low_half(residual)), __fadd_rn(high, high_half(residual)))", id="one-rounding", marks=LATER,
    ),
    pytest.param(
        LINEAR, "linear_n32_s2_bf16", EPILOGUE, "return __bfloat162float(__float2bfloat16_rn(sum));", "return sum;",
        id="partials-in-float", marks=LATER,
    ),
    pytest.param(
        LINEAR, "linear_n64_blocks", EPILOGUE, "atomicInc(arrivals + blockIdx.x, last)", "atomicAdd(arrivals + blockIdx.x, 1)",
        id="counter-left-behind", marks=LATER,
    ),
    pytest.param(
        LINEAR, "linear_n16_s4_bf16", TILE, "min(from.bytes - at, wanted)", "wanted", id="row-beyond-its-end",
    ),
    pytest.param(
        FP8, "linear_fp8_weight_n16_s4_bf16", "linear_fp8_weight.cu",
        "return first >= left ? 0 : first + 1 >= left ? pair & 0xffffu : pair;", "return pair;", id="padding-leaks",
    ),
    pytest.param(
        FP8, "linear_fp8_weight_n64_s1", "linear_fp8_weight.cu", "min(k + step * kMmaStep, reduction - 1) / wb_k",
        "min(k, reduction - 1) / wb_k", id="scale-of-the-tile", marks=LATER,
    ),
    pytest.param(
        FP8, "linear_fp8_weight_n16_s4_bf16_multiply", "linear_fp8_weight.cu", "bits | (nan * 15)", "bits",
        id="nan-becomes-480", marks=LATER,
    ),
)
# fmt: on


def campaign(layer, entry: str, source: Path, device):
    """The special problems of one entry, without shrinking, and generated ones where they show nothing."""
    kernel, problems = layer
    corpus = tuple(problem for problem in kernel.corpus if problem.entry == entry)
    broken = replace(kernel, file=source, entries=(entry,), corpus=corpus)
    verdict = run_campaign(broken, device, cases=0, suspect_seconds=0)
    return (
        run_campaign(replace(broken, corpus=(), problem=problems((entry,))), device, cases=40) if verdict else verdict
    )


def with_defect(source: Path, file: str, right: str, wrong: str, folder: Path, entry: str) -> Path:
    """A copy of a kernel file and all that stands beside it, with one text of `file` replaced; of the lines that declare an
    entry each, the one that holds the text `entry`."""
    shutil.copytree(source.parent, folder, dirs_exist_ok=True)
    text = (folder / file).read_text("utf-8")
    assert text.count(right) == 1, f"the text to break stands {text.count(right)} times in {file}"
    (folder / file).write_text(text.replace(right, wrong), "utf-8")
    lines = (folder / source.name).read_text("utf-8").splitlines(keepends=True)
    kept = [line for line in lines if not re.match(r"LINEAR\w*\(", line) or entry in line]
    assert sum(line.startswith("LINEAR") for line in kept) == 1
    (folder / source.name).write_text("".join(kept), "utf-8")
    return folder / source.name


@pytest.mark.parametrize(("layer", "entry", "file", "right", "wrong"), MUTANTS)
def test_mutant_is_refused(layer, entry, file, right, wrong, device, tmp_path):
    kernel = layer[0]
    declared = f"({entry.removeprefix(f'{kernel.name}_')},"
    verdict = campaign(layer, entry, with_defect(kernel.file, file, right, wrong, tmp_path, declared), device)
    assert verdict.status == "fail", str(verdict)


@pytest.mark.parametrize(
    ("layer", "right", "wrong"),
    [
        pytest.param(LINEAR, "171264,      5,", "171264,      4,", id="a stage less, the bytes of before", marks=LATER),
        pytest.param(LINEAR, " 30720,", " 30721,", id="a byte more in a table of blocks", marks=LATER),
        pytest.param(FP8, " 18432,", " 36864,", id="bytes of other weights", marks=LATER),
        pytest.param(FP8, " 151552,", " 151551,", id="a byte less in a table of one shape"),
    ],
)
def test_table_and_plan_agree_on_shared_memory_or_nothing_compiles(layer, right, wrong, tmp_path):
    source = layer[0].file
    with pytest.raises(RefsimError, match="a launch asks for the bytes of the table"):
        compile_ptx(with_defect(source, source.name, right, wrong, tmp_path, wrong))
