"""python -m conformance.blamed: a dry run with the stand-ins, and a planted miscompile in front of a real ptxas."""

import json
from itertools import product
from pathlib import Path

import pytest

from conformance.blamed.__main__ import main
from conformance.blamed.entries import EntryNames, covering
from conformance.blamed.planted import PLANTED, POLYNOMIAL
from conformance.blamed.stand_in import stand_in_ptxas
from conformance.blamed.subjects import FILES, kernels
from refsim.blame import builds_of, of_kernel
from refsim.blame.statements import pieces_of
from refsim.bundled import bundled
from refsim.device.assembling import assembled_by
from refsim.ptx.machine.assemblers import assemblers
from tests.bare_machine import ROOT


def test_every_kernel_of_the_tree_is_asked_about() -> None:
    declaring = [file.name for file in bundled("gpu").glob("*.py") if "\nKERNELS = " in file.read_text("utf-8")]
    assert sorted(FILES) == sorted(declaring)


def test_the_committed_report_has_every_kernel_and_entry_and_blames_none_but_the_planted() -> None:
    report = json.loads((ROOT / "conformance/reports/h200/blame.json").read_text("utf-8"))
    assert [row["kernel"] for row in report["kernels"]] == [*kernels()]
    for row in report["kernels"]:
        kernel, target = kernels()[row["kernel"]]
        if target != report["device"]["target"]:
            assert row["verdict"] == "left-out"
            continue
        assert {*kernel.entries} <= {*row["entries_launched"]}
        assert row["verdict"] == "none"
        builds = {(build["build"], build["level"]): build["agreeing"] for build in row["builds"]}
        assert builds == dict.fromkeys(product(report["ptxas"], range(4)), len(row["problems"]))
    assert [(case["planted"], case["is_right"]) for case in report["planted"]] == [(name, True) for name in PLANTED]
    assert all(case["smallest"]["is_smallest"] for case in report["planted"])


def test_of_every_entry_of_a_kernel_a_problem_is_chosen() -> None:
    kernel, target = kernels()["fp8_quantize"]
    launched = set()
    for number in covering(kernel, target):
        launcher = EntryNames(target)
        kernel.run(launcher, kernel.corpus[number])
        assert launcher.bytes
        launched |= {*launcher.entries}
    assert launched >= {*kernel.entries}
    assert len(covering(kernel, target)) <= len(launched)


def test_half_of_the_problems_are_from_all_over_the_corpus() -> None:
    kernel, target = kernels()["softmax"]
    subject, size = of_kernel(kernel, target, problems=4), len(kernel.corpus)
    assert len(subject.problems) == 4
    assert subject.problems[:2] == (kernel.corpus[size // 4], kernel.corpus[3 * size // 4])
    assert (
        subject.problems == of_kernel(kernel, target, problems=4).problems != of_kernel(kernel, target, seed=1).problems
    )


@pytest.mark.ci("seconds; each step is tried alone in every run")
def test_a_kernel_and_a_planted_miscompile_from_end_to_end(tmp_path: Path) -> None:
    written = tmp_path / "blame.json"
    of = "--kernel softmax --planted rounding --opt 3 --problems 1 --repeats 1 --jobs 0"
    asked = of.split()
    assert main(["--stand-in", *asked, "--seconds", "1e-3", "-o", str(written)]) == 1, "no time to shrink is no success"
    found = json.loads(written.read_text())
    (kernel,), (case,) = found["kernels"], found["planted"]
    assert (kernel["kernel"], kernel["verdict"]) == ("softmax", "none")
    assert len(kernel["entries_launched"]) == 3
    problems = len(kernel["problems"])
    assert problems >= 3
    agreeing = [("ptxas 13.0.88", problems), ("ptxas 13.5.37", problems)]
    assert [(row["build"], row["agreeing"]) for row in kernel["builds"]] == agreeing
    assert (case["verdict"], case["is_right"]) == ("ptxas", False)
    page = written.with_suffix(".md").read_text()
    assert "| softmax | none | ptxas 13.5.37 | 3 | equal | 4 of 4 | 8 |" in page


def test_an_editing_ptxas_hands_the_edited_text_to_a_real_one(tmp_path: Path) -> None:
    if not (found := assemblers()):
        pytest.skip("no ptxas is installed: nvidia-cuda-nvcc")
    real = found[0]
    program = stand_in_ptxas(tmp_path / "wrong", real.release, (PLANTED["add-sub"],), (3,), real=real.program)
    (wrong,) = builds_of([program], (3,), only_named=True)
    edited = wrong.cubin(pieces_of(POLYNOMIAL).all, "sm_90a")
    assert edited.image == assembled_by(real, POLYNOMIAL.replace(*PLANTED["add-sub"]), "sm_90a", 3).image
    assert edited.image != assembled_by(real, POLYNOMIAL, "sm_90a", 3).image
