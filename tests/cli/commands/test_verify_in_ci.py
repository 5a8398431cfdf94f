"""refsim verify as CI calls it: annotations, JUnit, CSV, -k, --fail-fast, --rerun, the page that is sent, excerpts."""

import csv
import html.parser
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

import refsim as package
from refsim.cli.answers.scaffold import kernel_files

SEVERAL = """
from dataclasses import replace
from pathlib import Path
from refsim.testing import find_kernels

(RIGHT,) = find_kernels([Path(__file__).with_name("scale_kernel.py")])
RIGHT = replace(RIGHT, corpus=RIGHT.corpus[:3])
def wrong_oracle(problem): return {"y": RIGHT.oracle(problem)["y"] ^ 1}
KERNELS = (
    replace(RIGHT, name="fp8_right"),
    replace(RIGHT, name="fp8_wrong", oracle=wrong_oracle),
    replace(RIGHT, name="far_wrong", file=Path(__file__).with_name("far.cu")),
    replace(RIGHT, name="late"),
)
"""
SIM = ("--device", "sim", "--cases", "0")


@pytest.fixture
def several(tmp_path: Path) -> Path:
    for name, text in kernel_files("scale").items():
        (tmp_path / name).write_text(text)
    (tmp_path / "far.cu").write_text((tmp_path / "scale.cu").read_text().replace("i < n;", "i <= n;"))
    (tmp_path / "several.py").write_text(SEVERAL)
    return tmp_path


def verify(refsim, *arguments: str):
    return refsim("verify", "--kernels", "several.py", *SIM, *arguments)


def test_an_annotation_stands_at_the_line_of_cuda(refsim, several):
    run = verify(refsim, "--as", "github")
    assert run.code == 1
    annotations = [line for line in run.out.splitlines() if line.startswith("::")]
    assert len(annotations) == 2
    writing = 1 + (several / "scale.cu").read_text().split("\n").index(
        "        y[i] = __nv_cvt_float_to_fp8(__bfloat162float(x[i]) * scale, __NV_SATFINITE, __NV_E4M3);"
    )
    assert annotations[0].startswith(f"::error file=scale.cu,line={writing},title=fp8_wrong%3A fail::")
    assert annotations[1].startswith(f"::error file=far.cu,line={writing},title=far_wrong%3A fail::[out-of-bounds] ")
    assert "refsim replay failures" in annotations[1]
    assert run.out.startswith("status")


def test_an_error_of_the_users_is_annotated_too(refsim, several):
    (several / "scale.cu").write_text("this is no CUDA")
    run = verify(refsim, "--as", "github")
    assert run.code == 3
    assert run.out.startswith("::error title=refsim%3A compile-error::[compile-error]")
    assert run.err.startswith("[compile-error]")


def test_passing_kernels_are_annotated_nowhere(refsim, several):
    run = verify(refsim, "-k", "right or late", "--as", "github")
    assert run.code == 0
    assert "::" not in run.out


def test_the_source_stands_beside_the_finding(refsim, several):
    out = verify(refsim, "far_wrong").out
    assert "    far.cu:8\n     6 |     const unsigned stride" in out
    assert "\n  >  8 |         y[i] = __nv_cvt_float_to_fp8(" in out
    (several / "kept.py").write_text(SEVERAL.replace('with_name("far.cu")', 'with_name("gone.cu")'))
    assert " | " not in verify(refsim, "fp8_right").out


def test_replay_shows_the_same_excerpt(refsim, several):
    verify(refsim, "far_wrong")
    (case,) = (several / "failures").iterdir()
    run = refsim("replay", str(case), "--device", "sim")
    assert run.code == 1
    assert "  >  8 |" in run.out


def test_junit_has_a_case_for_each_kernel(refsim, several):
    assert verify(refsim, "--junit", "verify.xml").code == 1
    (suite,) = ElementTree.parse(several / "verify.xml").getroot()
    assert suite.attrib | {"time": ""} == {
        "name": "refsim verify", "tests": "4", "failures": "2", "errors": "0", "skipped": "0", "time": "",
    }  # fmt: skip
    cases = {case.get("name"): case for case in suite}
    assert list(cases) == ["fp8_right", "fp8_wrong", "far_wrong", "late"]
    assert [child.tag for child in cases["fp8_right"]] == ["properties"]
    failure = cases["far_wrong"].find("failure")
    assert failure is not None
    assert failure.get("type") == "fail"
    assert str(failure.get("message")).startswith("[out-of-bounds]")
    assert "> " in str(failure.text)
    assert (cases["far_wrong"].get("file"), cases["far_wrong"].get("line")) == (str(several / "far.cu"), "8")
    properties = {each.get("name"): each.get("value") for each in cases["late"].iter("property")}
    assert len(str(properties["ptx_sha256"])) == 64
    assert properties["status"] == "pass"


def test_junit_says_what_ended_the_run(refsim, several):
    (several / "far.cu").write_text("this is no CUDA")
    assert verify(refsim, "--junit", "verify.xml").code == 3
    (suite,) = ElementTree.parse(several / "verify.xml").getroot()
    assert [case.get("name") for case in suite] == ["fp8_right", "fp8_wrong", "far_wrong"]
    assert suite.get("errors") == "1"
    error = suite[-1].find("error")
    assert error is not None
    assert error.get("type") == "compile-error"


def test_junit_is_xml_whatever_a_finding_holds():
    from refsim.cli.answers.judged import Judged
    from refsim.cli.answers.junit import junit
    from refsim.testing import find_kernels
    from refsim.testing.verdicts import Verdict

    nasty = 'a\x00b\x1b[31m <&> " \ud800 ]]> \ufffe'
    kernel = find_kernels()[0]
    statuses = {"inexact": "error", "unsupported": "error", "timeout": "error", "not-run": "skipped", "fail": "failure"}
    found = [Judged(kernel, Verdict(nasty, status, {"x": nasty}, "quick", finding=nasty)) for status in statuses]
    (suite,) = ElementTree.fromstring(junit(found).encode())
    assert [case[1].tag for case in suite] == list(statuses.values())
    assert (suite.get("failures"), suite.get("errors"), suite.get("skipped")) == ("1", "3", "1")
    assert '<&> "' in str(suite[0].get("name"))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--junit", "nowhere/verify.xml"), "cannot-write"),
        (("--junit", "."), "cannot-write"),
        (("-o", "nowhere/page.html"), "cannot-write"),
        (("-k", "(", "--rerun"), "bad-expression"),
        (("--device", "tpu", "--rerun"), "unknown-device"),
    ],
)
def test_what_no_edit_of_a_kernel_mends_is_refused_before_anything_runs(refsim, several, monkeypatch, arguments, code):
    monkeypatch.setattr("refsim.testing.find_kernels", lambda *files: pytest.fail("a kernel was looked for"))
    run = verify(refsim, *arguments)
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith(f"[{code}]")


def test_csv_is_one_table(refsim, several):
    run = verify(refsim, "--as", "csv")
    assert run.code == 1
    rows = list(csv.DictReader(io.StringIO(run.out)))
    assert [(row["kernel"], row["status"]) for row in rows] == [
        ("fp8_right", "pass"), ("fp8_wrong", "fail"), ("far_wrong", "fail"), ("late", "pass"),
    ]  # fmt: skip
    assert rows[2]["line"] == "8"
    assert rows[2]["finding"].startswith("[out-of-bounds]")
    assert rows[2]["replay"].startswith("failures")
    assert rows[0]["finding"] == ""


def test_k_chooses_and_nothing_chosen_is_no_pass(refsim, several):
    chosen = json.loads(verify(refsim, "-k", "right or late", "--as", "json").out)
    assert [row["kernel"] for row in chosen["verdicts"]] == ["fp8_right", "late"]
    run = verify(refsim, "-k", "nothing")
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith("[no-kernel-chosen] -k 'nothing' chooses none of 4 kernels")
    run = verify(refsim, "-k", "(")
    assert (run.code, run.err.split()[0]) == (2, "[bad-expression]")


def test_fail_fast_runs_nothing_after_a_failure(refsim, several):
    run = verify(refsim, "--fail-fast", "--junit", "verify.xml", "--as", "json")
    assert run.code == 1
    rows = json.loads(run.out)["verdicts"]
    assert [row["status"] for row in rows] == ["pass", "fail", "not-run", "not-run"]
    (suite,) = ElementTree.parse(several / "verify.xml").getroot()
    assert suite.get("skipped") == "2"
    assert verify(refsim, "--fail-fast", "-k", "right").code == 0


class Page(html.parser.HTMLParser):
    """The tags that are open, the text in pieces, and what the page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.said: list[str] = []
        self.marked: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag != "meta":
            self.open.append("marked" if ("class", "marked") in attrs else tag)
        self.fetched += [value for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() in (tag, "marked")

    def handle_data(self, data):
        self.said.append(data)
        if "marked" in self.open:
            self.marked.append(data)


def test_the_page_holds_what_somebody_else_needs(refsim, several):
    (several / "scale.cu").write_text((several / "scale.cu").read_text() + "// <script>\n")
    assert verify(refsim, "-o", "page.html").code == 1
    text = (several / "page.html").read_text()
    page = Page()
    page.feed(text)
    assert (page.open, page.fetched) == ([], [])
    assert "<script" not in text
    said = "\n".join(page.said)
    for wanted in (
        "2 of 4 kernels do not pass", "far.cu:8", "[out-of-bounds]", "smallest case known: Problem(", "ptx_sha256",
        "again: refsim replay failures/far_wrong", "simulated GPU (sm_90a)", "beyond the promise", "first", "y[0]", "got",
    ):  # fmt: skip
        assert wanted in said, wanted
    assert sum("y[i] = " in each for each in page.marked) == 2


def wait_for(condition, process: subprocess.Popen[str]) -> None:
    """Until it holds; a process that hangs is ended after more looks than a busy machine needs."""
    for _ in range(4000):
        if condition():
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    pytest.fail("nothing happened")


def test_rerun_runs_again_for_a_header_and_ends_by_ctrl_c(several):
    (several / "limit.cuh").write_text("constexpr unsigned EXTRA = 0;\n")
    source = (several / "scale.cu").read_text().replace("i < n;", "i < n + EXTRA;")
    (several / "scale.cu").write_text('#include "limit.cuh"\n' + source)
    log = several / "log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "refsim", "verify", "--kernels", "scale_kernel.py", *SIM, "--rerun"],
            cwd=several,
            env={**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])},
            stdout=stream,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        wait_for(lambda: log.read_text().count("waiting for a change of") == 1, process)
        assert "pass    scale" in log.read_text()
        (several / "limit.cuh").write_text("constexpr unsigned EXTRA = 1;\n")
        wait_for(lambda: log.read_text().count("waiting for a change of") == 2, process)
        assert "[out-of-bounds]" in log.read_text()
        (several / "limit.cuh").write_text("while it is being written")
        wait_for(lambda: log.read_text().count("waiting for a change of") == 3, process)
        assert "[compile-error]" in log.read_text()
        (several / "limit.cuh").write_text("constexpr unsigned EXTRA = 1; // still\n")
        wait_for(lambda: log.read_text().count("waiting for a change of") == 4, process)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 1  # of the last run
    finally:
        process.kill()
        process.wait()
