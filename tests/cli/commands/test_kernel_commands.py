"""The commands about kernels and the simulated GPU: answers, exit codes, and what a failure leaves behind."""

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from refsim.cli import main

PTX = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry add(.param .u64 x, .param .u32 n, .param .u64 y)
{
    .reg .b32 %r<8>; .reg .b64 %d<8>; .reg .pred %p<2>;
    ld.param.u64 %d1, [x]; ld.param.u32 %r1, [n]; ld.param.u64 %d2, [y];
    mov.u32 %r2, %tid.x; setp.ge.u32 %p1, %r2, %r1; @%p1 ret;
    mul.wide.u32 %d3, %r2, 4; add.s64 %d4, %d1, %d3; add.s64 %d5, %d2, %d3;
    ld.global.u32 %r3, [%d4]; add.s32 %r4, %r3, 7; st.global.u32 [%d5], %r4; ret;
}
"""
BROKEN = """
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file
from dataclasses import replace
from pathlib import Path
import numpy as np

real = load_kernel_file(bundled_kernels()).FP8_AMAX
KERNELS = (replace(real, corpus=(), oracle=lambda problem: {"amax_bits": np.uint32([problem.x.n > 8])}),)
"""


def run(capsys: pytest.CaptureFixture, *arguments: str) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_kernels_lists_what_is_declared(capsys):
    code, out, _ = run(capsys, "kernels", "--as", "json")
    assert code == 0
    names = [row["kernel"] for row in json.loads(out)["kernels"]]
    quantisers = ["fp8_amax", "fp8_quantize", "fp8_dequantize", "fp8_group_quantize", "fp8_block_quantize"]
    assert names == [*quantisers, "linear", "linear_fp8_weight"]


@pytest.mark.ci("six seconds; other kernels are verified by the same command in every run")
def test_verify_passes_on_the_simulated_gpu(capsys):
    code, out, _ = run(capsys, "verify", "fp8_amax", "--device", "sim", "--cases", "3", "--as", "json")
    assert code == 0
    answer = json.loads(out)
    (verdict,) = answer["verdicts"]
    assert verdict["status"] == "pass"
    assert verdict["differing"] == 0
    assert verdict["cases"] > 50
    assert len(answer["device"]["ptx_sha256"]) == 64
    assert "without" not in answer["device"]


class Failed(NamedTuple):
    """What a campaign of a broken kernel ended with, said, and left behind."""

    code: int
    out: str
    err: str
    case: Path


@pytest.fixture(scope="module")
def failed(tmp_path_factory) -> Failed:
    folder = tmp_path_factory.mktemp("failed")
    (folder / "broken.py").write_text(BROKEN)
    asked = ("--device", "sim", "--kernels", folder / "broken.py", "--failures", folder / "failures")
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = main([*map(str, ("verify", *asked, "--cases", "20", "--suspects", "0"))])
    (case,) = (folder / "failures").iterdir()
    return Failed(code, out.getvalue(), err.getvalue(), case)


def test_a_failure_is_shrunk_written_and_repeated(capsys, failed):
    assert failed.code == 1
    assert f"refsim replay {failed.case}" in failed.out
    assert "again: refsim verify" in failed.err
    refused, out, err = run(capsys, "replay", failed.case, "--device", "sim")  # its file is not of this project
    assert (refused, out) == (2, "")
    assert "broken.py" in err
    assert "--trust" in err
    again, out, _ = run(capsys, "replay", failed.case, "--device", "sim", "--trust", "--suspects", "0")
    assert again == 1
    assert "amax_bits" in out


def test_verify_names_what_is_unknown(capsys):
    code, _, err = run(capsys, "verify", "fp8_amx", "--device", "sim")
    assert code == 2
    assert "fp8_amax" in err
    assert run(capsys, "verify", "--device", "tpu")[0] == 2
    assert run(capsys, "verify", "fp8_amax", "--device", "sim", "--target", "sm_42")[0] == 2
    assert run(capsys, "verify", "fp8_amax", "--device", "sim", "--profile", "weekend")[0] == 2


def test_a_case_that_is_no_case_is_unreadable(capsys, tmp_path):
    case = tmp_path / "case.json"
    case.write_text("{}")
    assert run(capsys, "replay", case)[0] == 3
    assert run(capsys, "replay", tmp_path / "absent.json")[0] == 3


def test_simulate_runs_an_entry_and_saves_what_it_wrote(capsys, tmp_path):
    source, x, y = tmp_path / "add.ptx", tmp_path / "x.npy", tmp_path / "y.npy"
    source.write_text(PTX)
    np.save(x, np.arange(40, dtype=np.float32).view(np.uint32).view(np.float32))
    code, out, _ = run(
        capsys,
        "simulate",
        source,
        "add",
        "--block",
        "64",
        "--arg",
        x,
        "--arg",
        "u32:40",
        "--arg",
        "zeros:u32:40",
        "--save",
        f"2={y}",
        "--as",
        "json",
    )
    assert code == 0
    assert json.loads(out)["exact"] is True
    assert (np.load(y) == np.arange(40, dtype=np.float32).view(np.uint32) + 7).all()


def test_a_kernel_fault_writes_nothing(capsys, tmp_path):
    source, y = tmp_path / "add.ptx", tmp_path / "y.npy"
    source.write_text(PTX)
    code, out, err = run(
        capsys,
        "simulate",
        source,
        "add",
        "--block",
        "64",
        "--arg",
        "zeros:u32:40",
        "--arg",
        "u32:41",
        "--arg",
        "zeros:u32:40",
        "--save",
        f"2={y}",
    )
    assert code == 1
    assert out == ""
    assert "[out-of-bounds]" in err
    assert "thread (40, 0, 0) of block (0, 0, 0)" in err
    assert not y.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["add", "--arg", "u32:1"], 2, "bad-argument"),
        (["add", "--arg", "u32:x"], 2, "bad-argument"),
        (["add", "--arg", "u32:99999999999"], 2, "bad-argument"),
        (["sub"], 2, "add"),
        (["add", "--grid", "0"], 2, "bad-launch"),
        (["add", "--policy", "chaos"], 2, "eager"),
        (["add", "--arg", "zeros:u32:4", "--save", "7=y.npy"], 2, "bad-value"),
        (["add", "--target", "sm_80"], 2, "wrong-target"),
    ],
)
def test_simulate_refuses_what_it_cannot_run(capsys, tmp_path, arguments, code, says):
    source = tmp_path / "add.ptx"
    source.write_text(PTX)
    found, out, err = run(capsys, "simulate", source, *arguments)
    assert (found, out) == (code, "")
    assert says in err


def test_text_that_is_no_ptx_is_unreadable(capsys, tmp_path):
    source = tmp_path / "broken.ptx"
    source.write_text(PTX.replace("%d5], %r4", "%d5], %rr"))
    code, out, err = run(capsys, "simulate", source, "add")
    assert (code, out) == (3, "")
    assert "PTX line 10" in err
    assert run(capsys, "ptx", "coverage", source)[0] == 3
    assert run(capsys, "simulate", tmp_path / "absent.ptx", "add")[0] == 3


def test_coverage_counts_opcodes_and_says_what_is_missing(capsys, tmp_path):
    source = tmp_path / "add.ptx"
    source.write_text(PTX)
    code, out, _ = run(capsys, "ptx", "coverage", source, "--as", "json")
    assert code == 0
    assert {row["opcode"]: row["count"] for row in json.loads(out)["opcodes"]}["add.s64"] == 2
    source.write_text(PTX.replace("add.s32", "multimem.red"))
    code, out, _ = run(capsys, "ptx", "coverage", source)
    assert code == 5
    heading, first, *_ = out.splitlines()
    assert heading.split()[0] == "missing"
    assert first.split()[:3] == ["multimem.red", "1", "sm_90"]
    assert "access to memory of several devices at once; not modeled by this simulator yet" in first
    assert first.split()[-1] == "add"
    source.write_text(PTX.replace("add.s32", "add.sat.u32"))
    code, out, _ = run(capsys, "ptx", "coverage", source, "--as", "json")
    assert code == 5
    (missing,) = json.loads(out)["missing"]
    assert (missing["since"], missing["functions"]) == (None, ["add"])
    assert "add.sat.s32" in missing["what"]


def test_explain_says_form_operands_and_source(capsys):
    code, out, _ = run(capsys, "ptx", "explain", "cvt.rn.satfinite.e4m3x2.f32", "--as", "json")
    assert code == 0
    record = json.loads(out)
    assert record["since"] == "sm_89"
    assert record["exact"] == "yes"
    assert "PTX ISA" in record["source"]
    assert run(capsys, "ptx", "explain", "cvt.rn.e4m4x2.f32")[0] == 2


def test_doctor_reports_and_succeeds_without_a_gpu(capsys):
    code, out, _ = run(capsys, "doctor", "--as", "json")
    assert code == 0
    states = {row["part"]: row["state"] for row in json.loads(out)["parts"]}
    assert states["numpy"] == "ok"
    assert states["bundled PTX"] == "ok"
    assert states["GPU"] in ("ok", "none")


def test_the_bundled_kernels_are_found_from_anywhere(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "kernels", "--as", "json")
    assert code == 0
    assert len(json.loads(out)["kernels"]) == 7
    assert list(Path(tmp_path).iterdir()) == []


@pytest.mark.parametrize(("answer", "code"), [("y\n", 1), ("n\n", 2), ("\n", 2)])
def test_a_terminal_is_asked_before_a_file_outside_the_project_runs(failed, monkeypatch, answer, code):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    told = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys, "stderr", told)
    assert main(["replay", str(failed.case), "--device", "sim", "--suspects", "0"]) == code
    assert f"{failed.case} names" in told.getvalue()
    assert "Run it? [y/N]" in told.getvalue()
