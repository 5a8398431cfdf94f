"""Transcripts of every command: tests/golden/NAME.txt is what a user sees, NAME.json the same answer as JSON.

To write them anew after an intended change, and then read the diff:
    pytest tests/cli/test_golden.py --refresh-golden
"""

import difflib
import json
import shlex
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[1] / "golden"
ANSWERS = {
    "formats": "formats",
    "formats-source": "formats e4m3 --source",
    "formats-unsigned": "formats ue8m0",
    "formats-tf32": "formats tf32",
    "decode-e4m3": "decode -t e4m3 0x7e 0xff 0x00 0x80 0b1 8 0x08",
    "decode-e5m2": "decode -t e5m2 0x7b 0x7c 0x7d 0xfb",
    "decode-e2m1": "decode -t e2m1 0 1 2 7 8 15",
    "decode-e8m0": "decode -t e8m0 0 1 254 255",
    "decode-ue4m3": "decode -t ue4m3 0 1 0x7e 0x7f",
    "decode-e4m3fnuz": "decode -t e4m3fnuz 0 1 0x7f 0x80 0x81",
    "decode-mxint8": "decode -t mxint8 0 1 0x7f 0x80 0xff",
    "decode-tf32": "decode -t tf32 0x3f800000 0x3f801fff",
    "decode-f32": "decode -t f32 0x3f800000 0x3dcccccd 0x7f7fffff 1",
    "decode-source": "decode -t bf16 0x3f80 --source",
    "encode-e4m3": "encode -t e4m3 0.3 -1000 nan 1e-30 464 -0 inf 0x1.8p3 f32:0x3f800000",
    "encode-directed": "encode -t e4m3 0.3 -0.3 --rounding up",
    "encode-overflow": "encode -t e5m2 61439 61440 -1e9 --overflow inf",
    "encode-nan": "encode -t e2m1 nan 5 --nan 0x8",
    "encode-exact": "encode -t f32 0.1 1.00000005960464477539062500000001",
    "encode-via": "encode --via cvt.rn.satfinite.e4m3x2.f32 0.1 1 1e40",
    "encode-via-packed": "encode -t e4m3 --via cvt.rn.satfinite.e4m3x2.f16x2 0.1 1",
    "encode-via-nibbles": "encode --via cvt.rn.satfinite.e2m1x2.f32 0.75 -6 nan",
    "encode-via-library": "encode --via torch.float8_e4m3fn -500 f32:0xffc00000",
    "table-e4m3": "table e4m3",
    "table-e2m1": "table e2m1",
    "table-e3m2": "table e3m2",
    "table-ue4m3": "table ue4m3",
    "table-e8m0": "table e8m0 --source",
    "diffpolicy": "diffpolicy",
    "diffpolicy-differs": "diffpolicy e4m3 torch cuda.satfinite",
    "diffpolicy-agrees": "diffpolicy e2m1 cuda.satfinite cuda.constructor",
    "diff-differs": "diff got.npy want.npy -t bf16",
    "diff-within": "diff got.npy want.npy -t bf16 --within 2",
    "diff-agrees": "diff want.npy want.npy -t bf16",
    "sources-ptx": "sources ptx",
}
FAILURES = {
    "error-no-format": "decode -t e4m4 1",
    "error-no-option": "encode -t e4m3 1 --rouding up",
    "error-no-argument": "decode -t e4m3",
    "error-no-format-option": "encode 1",
    "error-bad-code": "decode -t e4m3 7e",
    "error-code-range": "decode -t ue4m3 0x80",
    "error-bad-number": "encode -t e4m3 1,5",
    "error-ambiguous-number": "encode -t e4m3 0x7e",
    "error-wide-table": "table bf16",
    "error-no-infinity": "encode -t e4m3 1e9 --overflow inf",
    "error-via-and-rounding": "encode --via torch.float8_e4m3fn --rounding up 1",
    "error-via-random": "encode --via cvt.rs.satfinite.e4m3x4.f32 1",
    "error-policy": "diffpolicy e4m3 cuda tensorflow",
    "error-one-policy": "diffpolicy e4m3 torch",
    "error-no-file": "diff got.npy none.npy -t bf16",
    "error-no-format-in-file": "diff got.npy want.npy",
    "error-form": "formats --as xml",
    "error-suffix": "formats -o formats.xlsx",
    "error-shell": "completion tcsh",
    "error-source": "sources ptxx",
}
NARROW = {
    f"{name}-{columns}": (command, columns)
    for columns in (80, 60)
    for name, command in {
        "narrow-formats": "formats",
        "narrow-decode": "decode -t e4m3 0x7e 0xff 0x08",
        "narrow-encode": "encode -t e4m3 0.3 -1000 nan",
        "narrow-table": "table e4m3",
        "narrow-diffpolicy": "diffpolicy e4m3 ml_dtypes cuda.satfinite",
        "narrow-sources": "sources",
        "narrow-diff": "diff got.npy want.npy -t bf16",
    }.items()
}


def transcript(command, run):
    """What a user sees: the command, the answer, what went to standard error, the exit code."""
    text = f"$ refsim {command}\n{run.out}"
    text += f"[stderr]\n{run.err}" if run.err else ""
    return text + (f"[exit {run.code}]\n" if run.code else "")


def check(path, found, request):
    if request.config.getoption("--refresh-golden", default=False):
        path.write_text(found)
        return
    if not path.exists():
        pytest.fail(f"{path.name} does not exist: {__doc__}")
    wanted = path.read_text()
    lines = difflib.unified_diff(wanted.splitlines(), found.splitlines(), f"golden/{path.name}", "found", lineterm="")
    assert found == wanted, "\n".join(lines)


@pytest.mark.usefixtures("two_files")
@pytest.mark.parametrize("name", ANSWERS)
def test_text_is_golden(name, refsim, request):
    run = refsim(*shlex.split(ANSWERS[name]))
    assert run.code in (0, 1)
    check(GOLDEN / f"{name}.txt", transcript(ANSWERS[name], run), request)


@pytest.mark.usefixtures("two_files")
@pytest.mark.parametrize("name", ANSWERS)
def test_json_is_golden(name, refsim, request):
    run = refsim(*shlex.split(ANSWERS[name]), "--as", "json")
    json.loads(run.out, parse_constant=pytest.fail)
    check(GOLDEN / f"{name}.json", run.out, request)


@pytest.mark.usefixtures("two_files")
@pytest.mark.parametrize("name", FAILURES)
def test_error_is_golden(name, refsim, request):
    run = refsim(*shlex.split(FAILURES[name]))
    assert run.code in (2, 3)
    assert run.out == ""
    check(GOLDEN / f"{name}.txt", transcript(FAILURES[name], run), request)


@pytest.mark.usefixtures("two_files")
@pytest.mark.parametrize("name", NARROW)
def test_narrow_text_is_golden_and_fits(name, refsim, request):
    command, columns = NARROW[name]
    run = refsim(*shlex.split(command), columns=columns)
    assert [line for line in run.out.splitlines() if len(line) > columns and "https://" not in line] == []
    check(GOLDEN / f"{name}.txt", transcript(command, run), request)


def test_every_golden_file_has_its_command():
    wanted = {f"{name}.{suffix}" for name in ANSWERS for suffix in ("txt", "json")}
    wanted |= {f"{name}.txt" for name in (*FAILURES, *NARROW)}
    found = {path.name for path in GOLDEN.iterdir() if path.name != "svg"}
    assert found == wanted
