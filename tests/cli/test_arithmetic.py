"""--arithmetic: silicon, exact, known; and what `verify` and `simulate` say of bits that are assumed."""

import json

import numpy as np
import pytest

ROOTS = """
extern "C" __global__ void roots(const float* x, float* y, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = rsqrtf(x[i]);
}
"""
DECLARED = """
import numpy as np
from refsim.mufu.instructions import approximate
from refsim.testing import Kernel, Promise, strategies as rst
from refsim.testing.recipes import Tensor

def oracle(problem):
    return {"y": approximate("rsqrt", problem.codes(), ftz=False).view(np.float32)}

def run(launcher, problem):
    x = launcher.upload(problem.codes().view(np.float32), name="x")
    y = launcher.output(problem.n, np.float32, name="y")
    launcher.launch("roots", 1, 64, [x, y, np.uint32(problem.n)])
    return {"y": launcher.read(y)}

KERNELS = [
    Kernel("roots", oracle, rst.sizes(40).map(lambda n: Tensor(n + 1, "f32", "ones")), run, {"y": "f32"}, Tensor,
           (Tensor(40, "f32", "gaussian"),), Promise.BITWISE, file="roots.cu"),
]
"""


@pytest.fixture
def roots(tmp_path, monkeypatch):
    """A folder with a kernel of rsqrt, declared BITWISE."""
    (tmp_path / "roots.cu").write_text(ROOTS)
    (tmp_path / "roots.py").write_text(DECLARED)
    np.save(tmp_path / "x.npy", np.arange(1, 65, dtype=np.float32))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def verify(refsim, *options):
    return refsim("verify", "--kernels", "roots.py", "--device", "sim", "--cases", "1", *options)


@pytest.mark.parametrize(
    ("target", "arithmetic", "status"),
    [
        ("sm_90a", "silicon", "pass"),
        pytest.param("sm_90a", "known", "pass", marks=pytest.mark.ci("it passes by what silicon does in every run")),
        ("sm_80", "silicon", "assumed"),
        ("sm_80", "known", "unsupported"),
    ],
)
def test_a_bitwise_verdict_that_rests_on_another_chip(refsim, roots, target, arithmetic, status):
    options = ("--target", target, "--arithmetic", arithmetic)
    run = verify(refsim, *options, "--as", "json")
    assert run.code == (0 if status == "pass" else 5)
    record = json.loads(run.out)
    assert [row["status"] for row in record["verdicts"]] == [status]
    assert record["device"].get("arithmetic", "silicon") == arithmetic
    if status == "assumed":
        assert "roots.cu:4): as on sm_90, unverified on sm_80" in record["roots"]["finding"]
    if status == "unsupported":
        finding = record["roots"]["finding"]
        assert finding.startswith("[open-bits] the bits of its result are assumed: those of sm_90, unverified on sm_80")
        assert "at: rsqrt.approx.f32 at PTX line" in finding
        assert "roots.cu:4" in finding


def test_every_form_of_an_answer_has_the_status(refsim, roots):
    run = verify(refsim, "--target", "sm_80", "--as", "github", "--junit", "verify.xml")
    assert run.code == 5
    assert run.out.splitlines()[1].startswith("assumed  roots")
    (line,) = [line for line in run.out.splitlines() if line.startswith("::error ")]
    assert "roots.cu,line=4" in line
    assert "title=roots%3A assumed::" in line
    assert '<error type="assumed"' in (roots / "verify.xml").read_text()
    assert verify(refsim, "--target", "sm_80", "--as", "csv").out.splitlines()[1].startswith("assumed,roots,")


def test_a_launch_says_what_is_assumed(refsim, roots):
    line = (
        "simulate",
        "roots.cu",
        "roots",
        "--block",
        "64",
        "--arg",
        "x.npy",
        "--arg",
        "zeros:f32:64",
        "--arg",
        "u32:64",
    )
    run = refsim(*line, "--target", "sm_80", "--as", "json")
    assert run.code == 0
    record = json.loads(run.out)
    assert (record["exact"], record["inexact"]) == (False, [])
    assert [text.partition(":")[2].partition(": ")[2] for text in record["assumed"]] == [
        "as on sm_90, unverified on sm_80"
    ]
    refused = refsim(*line, "--target", "sm_80", "--arithmetic", "known")
    assert (refused.code, refused.out) == (5, "")
    assert refused.err.startswith("[open-bits] ")
    assert json.loads(refsim(*line, "--target", "sm_90", "--arithmetic", "known", "--as", "json").out)["exact"] is True


@pytest.mark.parametrize("command", ["verify", "simulate"])
def test_another_word_is_refused(refsim, roots, command):
    line = ("--kernels", "roots.py", "--device", "sim") if command == "verify" else ("roots.cu", "roots")
    run = refsim(command, *line, "--arithmetic", "knwon")
    assert (run.code, run.out) == (2, "")
    assert "unknown-arithmetic" in run.err
    assert "known" in run.err.partition("help:")[2]
