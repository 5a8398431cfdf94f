"""Kernels that are wrong on purpose: each is refused, for its own reason, at the line where the defect stands."""

import re
from dataclasses import replace

import pytest

from refsim import device
from refsim.cli import main
from refsim.device.compile import TARGETS, assemble, compile_ptx
from refsim.testing import run_campaign
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file

BINDINGS = bundled_kernels("exhibits/bindings.py")
exhibits = load_kernel_file(BINDINGS)
BY_NAME = {kernel.name: kernel for kernel in exhibits.KERNELS}

# The exhibit; what the report says first; the source line that it names, by a piece of its text.
FAULTS = [
    ("split_reduction_missing", "[uninitialised]", "sums[row * kColumns + lane]"),
    ("partial_rows", "[race] writes", "// Defect: warp * batch + row"),
    ("missing_wait", "[read-before-wait]", "stage(tile)[k]"),
    ("scale_before_wait", "[read-before-wait]", "// Defect: this line belongs below the wait"),
]
MISTAKES = [
    ("row_offset", "row n of X taken from element n on"),
    ("zero_decoded", "zero, subnormal and NaN codes decoded by adding 120 to the exponent"),
    pytest.param(
        "swizzle_mismatch",
        "halves of each 64 columns of X exchanged in rows 4 to 7 of 8",
        marks=pytest.mark.ci("two other mistakes are named in every run"),
    ),
]


@pytest.fixture(scope="module")
def simulator():
    return device.open("sim")


def line_of(kernel, text: str) -> int:
    (found,) = [number for number, line in enumerate(kernel.file.read_text("utf-8").splitlines(), 1) if text in line]
    return found


@pytest.mark.parametrize(("name", "finding", "text"), FAULTS)
def test_fault_is_found_at_its_line(name, finding, text, simulator):
    kernel = BY_NAME[name]
    verdict = run_campaign(kernel, simulator, cases=10)
    assert verdict.status == "fail"
    assert verdict.finding.startswith(finding)
    at = re.search(r"at: .*\((\w+\.cu):(\d+)\)", verdict.finding)
    assert at is not None, verdict.finding
    assert (at[1], int(at[2])) == (kernel.file.name, line_of(kernel, text))


@pytest.mark.parametrize(("name", "mistake"), MISTAKES)
def test_wrong_bits_name_the_mistake(name, mistake, simulator):
    verdict = run_campaign(BY_NAME[name], simulator, cases=10)
    assert verdict.status == "fail"
    assert f"likely cause: {mistake}: bit for bit what that gives" in verdict.finding


def test_zero_is_the_smallest_weight_that_shows_the_trick(simulator):
    verdict = run_campaign(BY_NAME["zero_decoded"], simulator, cases=40)
    assert verdict.problem_text == "Layer(batch=1, output=1, reduction=1, x=Values(fill='ones'), w=Values())"
    assert "got 0x3c00 0.0078125   want 0x0000 0.0" in verdict.finding


def test_wrong_bits_name_the_line_that_wrote_them(simulator):
    verdict = run_campaign(BY_NAME["row_offset"], simulator, cases=0)
    line = line_of(BY_NAME["row_offset"], "y[row * output + column] =")
    assert re.search(
        rf"written by block 0, thread \d+, address 0x\w+, by st.global.\w+ at PTX line \d+ \(row_offset.cu:{line}\)",
        verdict.finding,
    )


def test_rows_that_differ_are_named_on_a_whole_problem(simulator):
    """Shrinking leaves the smallest problem, in which a pattern has no room."""
    problem = exhibits.Layer(4, 40, 30)
    verdict = run_campaign(replace(BY_NAME["row_offset"], corpus=(problem,)), simulator, cases=0)
    assert "pattern all differences have row in 1..3 (the tail, one contiguous range)" in verdict.finding


@pytest.mark.parametrize("name", ["partial_rows", "row_offset"])
def test_one_row_hides_the_defect(name, simulator):
    kernel = BY_NAME[name]
    verdict = run_campaign(replace(kernel, corpus=(exhibits.Layer(1, 33, 40),)), simulator, cases=0)
    assert verdict.status == "pass", str(verdict)


def test_bank_conflicts_are_found_where_they_are_read(simulator):
    """Every bit is right; the store of the tile runs along rows and the fragments of W come from global memory."""
    verdict = run_campaign(BY_NAME["unswizzled"], simulator, cases=10)
    assert verdict.status == "fail"
    assert verdict.mismatch is None
    first, *found = verdict.finding.splitlines()
    line = line_of(BY_NAME["unswizzled"], ': "r"(at)')  # of the asm statement
    assert first.startswith("[bank-conflicts]")
    assert len(found) == 4  # steps of a tile
    for text in found:
        assert text.startswith("ldmatrix.sync.aligned.m8n8.x4.shared.b16 at PTX line")
        assert text.endswith(f"(unswizzled.cu:{line}): 8 wavefronts for each one needed")


def test_several_tiles_hide_the_missing_wait(simulator):
    kernel = replace(BY_NAME["missing_wait"], corpus=(exhibits.Layer(2, 32, 192),))
    assert run_campaign(kernel, simulator, cases=0).status == "pass"


@pytest.mark.parametrize("name", list(BY_NAME))
def test_exhibit_compiles_for_every_target(name, refsim_profile):
    """The quick profile takes the oldest and the newest."""
    targets = [target.name for target in TARGETS]
    for target in (targets[0], targets[-1]) if refsim_profile == "quick" else targets:
        assemble(compile_ptx(BY_NAME[name].file, target))


@pytest.mark.parametrize("name", list(BY_NAME))
def test_exhibit_is_short_and_says_its_defect(name):
    text = BY_NAME[name].file.read_text("utf-8")
    assert text.startswith("// Exhibit: ")
    assert text.count("Defect:") == 1
    assert len(text.splitlines()) <= 80


@pytest.mark.ci("each exhibit by itself is refused in every run")
def test_command_refuses_the_exhibits(capsys, tmp_path):
    arguments = ["verify", "--kernels", str(BINDINGS), "--failures", str(tmp_path), "--cases", "10", "--suspects", "0"]
    assert main(arguments) == 1
    verdicts = dict(
        reversed(line.split()[:2])
        for line in capsys.readouterr().out.splitlines()
        if line.startswith(("fail ", "pass "))
    )
    assert set(verdicts.items()) >= {(name, "fail") for name in BY_NAME}
