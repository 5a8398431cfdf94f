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
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import pytest

import refsim as package
from refsim.cli.commands.new import kernel_files

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
SIM = ("--device", "sim", "--cases", "0", "--suspects", "0")


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
    annotations = [line for line in run.out.splitlines() if line.startswith("::")]
    assert annotations[0].startswith("::error file=scale.cu,line=1,title=fp8_right%3A error::[compile-error]")
    assert [line.partition("%3A ")[2].partition("::")[0] for line in annotations] == ["error", "error", "fail", "error"]


@pytest.mark.parametrize(
    ("file", "text", "line"),
    [
        ("scale.cu", "#pragma unroll 4\n\n\nthis is no CUDA;\n", 4),
        ("scale.cu", '#include "far.cuh"\n#include "absent.cuh"\n', 2),
        ("far.cuh", "constexpr int a = 1;\nconstexpr int b = absent;\n", 2),
        ("scale_kernel.py", "import numpy\n\nKERNELS = (\n", 3),
        ("scale_kernel.py", "import numpy\n\n\n\nKERNELS = absent\n", 5),
    ],
)
@pytest.mark.parametrize("compiler", ["nvrtc", "nvcc"])
def test_what_does_not_compile_is_annotated_at_its_line(refsim, several, file, text, line, compiler):
    source = (several / "scale.cu").read_text()
    (several / "far.cuh").write_text("")
    (several / "scale.cu").write_text(f'#include "far.cuh"\n{source}')
    declared = (several / "scale_kernel.py").read_text()
    (several / "scale_kernel.py").write_text(
        declared.replace('"scale",\n', f'"scale",\n        compiler="{compiler}",\n')
    )
    (several / file).write_text(text)
    run = refsim("verify", "--kernels", "scale_kernel.py", *SIM, "--as", "github", "--junit", "verify.xml")
    assert run.code == 3
    assert f"::error file={file},line={line},title=" in run.out
    (suite,) = ElementTree.parse(several / "verify.xml").getroot()
    assert (suite[0].get("line"), Path(str(suite[0].get("file"))).name) == (str(line), file)


def test_an_error_of_python_code_is_annotated_at_its_line(refsim, several):
    declared = (several / "scale_kernel.py").read_text()
    (several / "scale_kernel.py").write_text(declared.replace("    n = case.x.n\n", "    n = case.absent\n"))
    run = refsim("verify", "--kernels", "scale_kernel.py", *SIM, "--as", "github")
    line = 1 + declared.split("\n").index("    n = case.x.n")
    assert run.code == 2
    assert f"\n::error file=scale_kernel.py,line={line},title=scale%3A error::[user-code-raised]" in run.out


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
        "name": "refsim verify",
        "tests": "4",
        "failures": "2",
        "errors": "0",
        "skipped": "0",
        "time": "",
    }
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


def test_junit_has_the_error_of_one_kernel_and_the_verdicts_of_the_others(refsim, several):
    (several / "far.cu").write_text("this is no CUDA")
    assert verify(refsim, "--junit", "verify.xml").code == 3
    (suite,) = ElementTree.parse(several / "verify.xml").getroot()
    assert [case.get("name") for case in suite] == ["fp8_right", "fp8_wrong", "far_wrong", "late"]
    assert (suite.get("failures"), suite.get("errors")) == ("1", "1")
    error = suite[2].find("error")
    assert error is not None
    assert error.get("type") == "compile-error"
    assert (Path(str(suite[2].get("file"))).name, suite[2].get("line")) == ("far.cu", "1")


def test_junit_is_xml_whatever_a_finding_holds():
    from refsim.cli.answers.verdicts import Judged, junit
    from refsim.testing import find_kernels
    from refsim.testing.verdicts import Verdict

    nasty = 'a\x00b\x1b[31m <&> " \ud800 ]]> \ufffe'
    kernel = find_kernels()[0]
    statuses = dict.fromkeys(("inexact", "assumed", "unsupported", "timeout"), "error")
    statuses |= {"not-run": "skipped", "fail": "failure"}
    found = [Judged(kernel, Verdict(nasty, status, {"x": nasty}, "quick", finding=nasty)) for status in statuses]
    (suite,) = ElementTree.fromstring(junit(found).encode())
    assert [case[1].tag for case in suite] == list(statuses.values())
    assert (suite.get("failures"), suite.get("errors"), suite.get("skipped")) == ("1", "4", "1")
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
        ("fp8_right", "pass"),
        ("fp8_wrong", "fail"),
        ("far_wrong", "fail"),
        ("late", "pass"),
    ]
    assert rows[2]["line"] == "8"
    assert rows[2]["finding"].startswith("[out-of-bounds]")
    assert rows[2]["replay"].startswith("failures")
    assert rows[0]["finding"] == ""


def test_k_chooses_and_nothing_chosen_is_no_pass(refsim, several):
    chosen = json.loads(verify(refsim, "-k", "right or late", "--as", "json").out)
    assert [row["kernel"] for row in chosen["verdicts"]] == ["fp8_right", "late"]
    run = verify(refsim, "-k", "nothing")
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith("[no-kernels] -k 'nothing' chooses none of 4 kernels")
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
        "2 of 4 kernels do not pass",
        "far.cu:8",
        "[out-of-bounds]",
        "smallest case known: Case(",
        "ptx_sha256",
        "again: refsim replay failures/far_wrong",
        "simulated GPU (sm_90a)",
        "beyond the promise",
        "first",
        "y[0]",
        "got",
    ):
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


@contextmanager
def rerunning(folder: Path, *arguments: str):
    """`verify --rerun` in a folder: its process, and a function that waits until it waits again and returns its log."""
    log, waits = folder / "log", iter(range(1, 100))
    with log.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "refsim", "verify", *arguments, *SIM, "--rerun"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": f"{Path(package.__file__).parents[1]}:{folder}"},
            stdout=stream,
            stderr=subprocess.STDOUT,
            text=True,
            # A shell starts what it does not wait for with Ctrl-C ignored, and children of that ignore it too.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
        )

    def waited() -> str:
        number = next(waits)
        wait_for(lambda: log.read_text().count("waiting for a change of") == number, process)
        return log.read_text().split("Ctrl-C ends\n")[number - 1]

    try:
        yield process, waited
    finally:
        process.kill()
        process.wait()


@pytest.mark.ci("compiles five times; a rerun for an imported module is in every run")
def test_rerun_runs_again_for_a_header_and_ends_by_ctrl_c(several):
    (several / "limit.cuh").write_text("constexpr unsigned EXTRA = 0;\n")
    source = (several / "scale.cu").read_text().replace("i < n;", "i < n + EXTRA;")
    (several / "scale.cu").write_text('#include "limit.cuh"\n' + source)
    with rerunning(several, "--kernels", "scale_kernel.py") as (process, waited):
        assert "pass    scale" in waited()
        (several / "limit.cuh").write_text("constexpr unsigned EXTRA = 1;\n")
        assert "[out-of-bounds]" in waited()
        (several / "limit.cuh").write_text("while it is being written")
        assert "[compile-error]" in waited()
        (several / "limit.cuh").unlink()
        assert "[compile-error]" in waited()
        (several / "limit.cuh").write_text("constexpr unsigned EXTRA = 1; // still\n")
        assert "[out-of-bounds]" in waited()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 1  # of the last run


@pytest.mark.ci("a header that changes is seen in every run")
def test_rerun_runs_again_for_an_imported_module(several):
    """One that a module imports too, of the same length and second, and one that does not parse from the first run on."""
    (several / "flip.py").write_text("BIT = \n")
    (several / "mistakes.py").write_text("import flip\ndef wrong(y): return y ^ flip.BIT\n")
    declared = (several / "scale_kernel.py").read_text()
    declared = declared.replace(
        'return {"y": refsim.encode(scaled, "e4m3", overflow="saturate")}',
        'return {"y": mistakes.wrong(refsim.encode(scaled, "e4m3", overflow="saturate"))}',
    )
    (several / "scale_kernel.py").write_text(f"import mistakes\n{declared}")
    with rerunning(several, "--kernels", "scale_kernel.py") as (_, waited):
        assert "[user-code-raised] the file raised SyntaxError" in waited()
        for text, said in (
            ("BIT = 1\n", "fail    scale"),
            ("BIT = 0\n", "pass    scale"),
            ("BIT = 1\n", "fail    scale"),
        ):
            (several / "flip.py").write_text(text)
            assert said in waited()
