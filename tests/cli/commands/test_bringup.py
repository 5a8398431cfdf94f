"""refsim bringup: what it writes where, its exit codes, and that an interrupt loses nothing."""

import json
import sys
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from refsim.bringup import conversions, numerics, suites
from refsim.bringup.report import DIFFERS, Difference, Task, outcome
from refsim.bringup.suites import Suite
from refsim.device.cache import cache_directory
from refsim.testing.verdicts import PASS

SIM = ("bringup", "--device", "sim")
SMALL = (*SIM, "--suite", "conversions")


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """A cache of its own, but for what is compiled, and few cases: two parts of three conversions."""
    compiled = cache_directory() / "ptx"
    compiled.mkdir(parents=True, exist_ok=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if sys.platform == "linux":
        (tmp_path / "cache" / "refsim").mkdir(parents=True)
        (tmp_path / "cache" / "refsim" / "ptx").symlink_to(compiled)
    monkeypatch.setattr(conversions, "recordings", first_three(conversions.recordings))
    monkeypatch.setattr(conversions, "SAMPLED", conversions.SAMPLED[3:5])


def first_three(recordings):
    return lambda stem: dict(list(recordings(stem).items())[:3])


def with_suite(monkeypatch, *cases, name="numerics", before=None):
    """The numerics suite holds these (name, Case or function) alone."""
    tasks = [Task(case, found if callable(found) else lambda found=found: found) for case, found in cases]
    rows = tuple(replace(row, tasks=lambda device: tasks) if row.name == name else row for row in suites.SUITES)
    monkeypatch.setattr(suites, "SUITES", rows)


def test_the_answer_is_a_matrix_labelled_simulated(refsim):
    run = refsim(*SMALL)
    assert run.code == 0
    assert run.err == ""
    lines = run.out.splitlines()
    assert lines[0] == "Bring-up of simulated GPU (sm_90a)"
    assert lines[1].startswith("3 pass, 0 differ unexplained")
    assert sum(line.startswith("pass    simulated conversions  cvt.rn") for line in lines) == 3


def test_one_run_writes_every_form(refsim, tmp_path):
    run = refsim(*SMALL, "-o", "r.html", "-o", "r.json", "-o", "r.md", "-o", "r.csv", "--junit", "r.xml")
    assert (run.code, run.out) == (0, "")
    assert run.err.startswith("Bring-up of simulated GPU (sm_90a): 3 pass")
    record = json.loads((tmp_path / "r.json").read_text())
    assert record["simulated"] is True
    assert [case["status"] for case in record["cases"]] == ["pass"] * 3
    assert "Simulated: no GPU took part" in (tmp_path / "r.html").read_text()
    assert ElementTree.parse(tmp_path / "r.xml").getroot().get("tests") == "3"
    assert len((tmp_path / "r.csv").read_text().splitlines()) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "r.csv", "r.html", "r.json", "r.md", "r.xml"]
    assert list((tmp_path / "cache" / "refsim" / "bringup").iterdir()) == []


def test_json_on_standard_output_is_the_report(refsim):
    record = json.loads(refsim(*SMALL, "--as", "json").out)
    assert record["kind"] == "refsim-bringup"
    assert record["facts"]["target"] == "sm_90a"
    assert len(json.loads(refsim(*SMALL, "--as", "jsonl").out.splitlines()[0])) == 8


def test_sources_are_cited_on_request(refsim):
    assert "PTX ISA" in refsim(*SMALL, "--source").out
    assert "PTX ISA" not in refsim(*SMALL).out


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_text_fits_the_terminal(refsim, columns):
    run = refsim(*SMALL, columns=columns)
    assert max(map(len, run.out.splitlines())) <= columns


def test_an_unexplained_difference_fails_and_an_explained_one_does_not(refsim, monkeypatch):
    small = Difference(("k = 0: 0x38 (1) x 0x38 (1)",), "0x1", "0x2", "matches sm_89 mma.sync: F = 13, L = 16", True)
    explained = outcome(DIFFERS, words=9, differing=2, difference=small)
    with_suite(monkeypatch, ("mma.a", explained))
    run = refsim(*SIM, "--suite", "numerics")
    assert run.code == 0
    assert "matches sm_89 mma.sync: F = 13, L = 16" in run.out
    assert "explained  simulated numerics  mma.a" in run.out
    with_suite(monkeypatch, ("mma.a", explained), ("mma.b", replace(explained, difference=replace(small, known=False))))
    run = refsim(*SIM, "--suite", "numerics")
    assert run.code == 1
    assert run.err.splitlines()[-1] == "again: refsim bringup --device sim --suite numerics"


def test_a_bug_of_refsim_ends_with_its_exit_code(refsim, monkeypatch):
    def fails():
        raise ValueError("shapes")

    with_suite(monkeypatch, ("mma.a", fails), ("mma.b", outcome(PASS)))
    run = refsim(*SIM, "--suite", "numerics")
    assert run.code == 70
    assert "a bug of refsim: ValueError: shapes" in run.out
    assert "pass     simulated numerics  mma.b" in run.out


def test_an_interrupt_keeps_what_is_finished(refsim, monkeypatch, tmp_path):
    ran, stop = [], [True]

    def second():
        if stop.pop() if stop else False:
            raise KeyboardInterrupt
        ran.append("b")
        return outcome(PASS)

    def first():
        ran.append("a")
        return outcome(PASS, words=5)

    with_suite(monkeypatch, ("a", first), ("b", second))
    run = refsim(*SIM, "--suite", "numerics", "--state", "kept", "-o", "r.json")
    assert run.code == 130
    assert run.err.startswith("interrupted: 1 finished cases are kept in ")
    assert not (tmp_path / "r.json").exists()
    assert len(list((tmp_path / "kept").iterdir())) == 1
    run = refsim(*SIM, "--suite", "numerics", "--state", "kept", "-o", "r.json")
    assert run.code == 0
    assert run.err.startswith("going on: 1 case finished already")
    assert ran == ["a", "b"]
    assert [case["words"] for case in json.loads((tmp_path / "r.json").read_text())["cases"]] == [5, 0]
    assert list((tmp_path / "kept").iterdir()) == []


def test_fresh_forgets_an_interrupted_run(refsim, monkeypatch):
    ran, stop = [], [True]

    def first():
        ran.append("a")
        return outcome(PASS)

    def second():
        if stop:
            stop.pop()
            raise KeyboardInterrupt
        return outcome(PASS)

    with_suite(monkeypatch, ("a", first), ("b", second))
    assert refsim(*SIM, "--suite", "numerics").code == 130
    assert refsim(*SIM, "--suite", "numerics", "--fresh").code == 0
    assert ran == ["a", "a"]


def test_a_baseline_shows_what_changed(refsim, monkeypatch):
    with_suite(monkeypatch, ("a", outcome(PASS)), ("b", outcome(PASS)))
    assert refsim(*SIM, "--suite", "numerics", "-o", "old.json").code == 0
    assert "nothing changed" in refsim(*SIM, "--suite", "numerics", "--baseline", "old.json").out
    with_suite(monkeypatch, ("a", outcome(PASS)), ("b", outcome(DIFFERS, words=4, differing=3)))
    run = refsim(*SIM, "--suite", "numerics", "--baseline", "old.json")
    assert run.code == 1
    assert "numerics: b: pass -> differs; 3 words" in run.out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--suite", "numeric"), 2, "no suite is called 'numeric'"),
        (("--device", "gpu"), 2, "no device is called 'gpu'"),
        (("--baseline", "absent.json"), 3, "bad-file"),
        (("-o", "report.doc"), 2, "the suffix '.doc' names no output form"),
        (("-o", "nowhere/report.json"), 2, "no file can be written there"),
        (("--junit", "nowhere/report.xml"), 2, "no file can be written there"),
        (("-o", "cache/..", "--as", "json"), 2, "no file can be written there"),
        (("-o", "r.json", "-o", "./r.json"), 2, "two outputs have one name"),
        (("-o", "r.xml", "--as", "json", "--junit", "r.xml"), 2, "two outputs have one name"),
        (("-o", "report.svg"), 2, "a report is no drawing"),
        (("--target", "sm_1"), 2, "no target is called 'sm_1'"),
        (("--frehs",), 2, "--fresh"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_one_error_before_anything_runs(refsim, monkeypatch, tmp_path, arguments, code, said):
    def never():
        raise AssertionError("it ran")

    with_suite(monkeypatch, ("a", never))
    run = refsim("bringup", *(() if "--device" in arguments else ("--device", "sim")), *arguments)
    assert (run.code, run.out) == (code, "")
    assert said in run.err
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == []


def test_a_device_takes_the_report_and_a_full_one_is_an_error(refsim, monkeypatch, tmp_path):
    with_suite(monkeypatch, ("a", outcome(PASS)))
    assert refsim(*SIM, "--suite", "numerics", "-o", "/dev/null", "--as", "json").code == 0
    run = refsim(*SIM, "--suite", "numerics", "--state", "kept", "-o", "/dev/full", "--as", "json")
    assert run.code == 2
    assert "no space left" in run.err
    assert len(list((tmp_path / "kept").iterdir())) == 1
    assert refsim(*SIM, "--suite", "numerics", "--state", "kept").err.startswith("going on: 1 case")


def test_discovery_is_a_suite_of_its_own(refsim, monkeypatch):
    found = outcome(
        PASS, words=8, note="as its row says", parameters={"length": 16, "fraction": 13, "zero_exponent": None}
    )
    with_suite(monkeypatch, ("mma.a", found), name="discovery")
    run = refsim(*SMALL, "--discover")
    assert run.code == 0
    assert "length 16, fraction 13, zero_exponent unseen" in run.out


def test_the_simulated_gpu_multiplies_as_its_row_says(refsim, monkeypatch):
    """One tensor-core instruction through parser, machine, layouts and numerics."""
    real = numerics.tensor_cores.instructions
    monkeypatch.setattr(numerics.tensor_cores, "instructions", lambda target: real(target)[8:9])
    record = json.loads(refsim(*SIM, "--target", "sm_80", "--suite", "numerics", "--as", "json").out)
    (case,) = record["cases"]
    assert (case["status"], case["differing"]) == ("pass", 0)
    assert case["name"].startswith("mma.sync.aligned.m8n8k4")


def test_kernels_are_campaigns(monkeypatch):
    class Broken:
        name, target = "sim", "sm_90a"

    def campaign(kernel, device, profile):
        from refsim.testing import Verdict

        return Verdict(
            kernel.name,
            "fail",
            {"name": "sim"},
            profile,
            cases=3,
            elements=64,
            finding="q[3] differs",
            problem_text="Quantize(...)",
        )

    monkeypatch.setattr(suites, "run_campaign", campaign)
    case = suites.kernel_tasks(Broken())[0].run()
    assert (case.status, case.words, case.unexplained) == (DIFFERS, 64, True)
    assert case.difference.smallest == ("test case Quantize(...)", "q[3] differs")


def test_suites_are_listed_by_their_names():
    names = ["conversions", "layouts", "numerics", "special-functions", "kernels", "discovery"]
    assert [row.name for row in suites.SUITES] == names
    assert list(suites.ALWAYS) == names[:-1]
    assert all(isinstance(row, Suite) and len(row.fingerprint()) == 64 for row in suites.SUITES)
    assert np.all([row.summary for row in suites.SUITES])
