"""-o, --as and standard input: what is written, where, and what is left alone."""

import csv
import io
import json
import os
import threading

import numpy as np
import pytest

from refsim.render import FORMS


def test_suffix_chooses_the_form(refsim, tmp_path):
    forms = {
        "txt": "0x7e  0 1111 110",
        "json": '{\n  "codes"',
        "jsonl": '{"format"',
        "csv": "format,code",
        "md": "## decode e4m3",
    }
    for suffix, start in {**forms, "html": "<!doctype html>"}.items():
        run = refsim("decode", "-t", "e4m3", "0x7e", "-o", f"answer.{suffix}")
        assert (run.code, run.out, run.err) == (0, "", "")
        assert (tmp_path / f"answer.{suffix}").read_text().startswith(start)


def test_a_suffix_in_capitals_is_the_same(refsim, tmp_path):
    refsim("decode", "-t", "e4m3", "0x7e", "-o", "ANSWER.JSON")
    assert json.loads((tmp_path / "ANSWER.JSON").read_text())["codes"]


def test_as_outranks_the_suffix(refsim, tmp_path):
    refsim("sources", "-o", "answer.txt", "--as", "json")
    assert json.loads((tmp_path / "answer.txt").read_text())["documents"]


def test_dash_is_standard_output(refsim):
    assert refsim("sources", "ptx", "-o", "-").out.startswith("key ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("decode", "-t", "e4m3", "0x1ff", "-o", "answer.json"),
        ("table", "f32", "-o", "answer.json"),
        ("decode", "-t", "e4m3", "0", "-o", "answer.exe"),
        ("decode", "-t", "e4m3", "0", "-o", "nowhere/answer.json"),
        ("decode", "-t", "e4m3", "0", "-o", ".", "--as", "json"),
        ("decode", "-t", "e4m3", "0", "-o", "x" * 300 + ".json"),
        ("decode", "-t", "e4m3", "x" * 300, "-o", "answer.json"),
    ],
)
def test_failure_writes_nothing(refsim, tmp_path, arguments):
    (tmp_path / "answer.json").write_text("before")
    run = refsim(*arguments)
    assert run.code == 2
    assert run.err.startswith("[")
    assert os.listdir(tmp_path) == ["answer.json"]
    assert (tmp_path / "answer.json").read_text() == "before"


def test_output_replaces_a_file_whole(refsim, tmp_path):
    (tmp_path / "answer.csv").write_text("x" * 10_000)
    assert refsim("table", "e2m1", "-o", "answer.csv").code == 0
    rows = list(csv.DictReader(io.StringIO((tmp_path / "answer.csv").read_text())))
    assert len(rows) == 16
    assert rows[7] == {"code": "0x7", "value": "6.0"}
    assert os.listdir(tmp_path) == ["answer.csv"]


def test_output_to_a_pipe_is_not_replaced_by_a_file(refsim, tmp_path):
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    assert refsim("sources", "ptx", "-o", "pipe.json").code == 0
    reader.join(timeout=10)
    assert json.loads(read[0])["key"] == "ptx"
    assert pipe.is_fifo()


def test_every_form_answers_every_command(refsim, two_files):
    commands = (
        "formats",
        "formats e4m3",
        "decode -t e5m2 0x7b 0x7f",
        "encode -t e4m3 0.3 nan",
        "table e2m1",
        "diffpolicy",
        "diffpolicy e4m3 torch cuda.satfinite",
        "diff got.npy want.npy -t bf16",
        "sources",
    )
    for command in commands:
        for form in FORMS:
            run = refsim(*command.split(), "--as", form, "--source")
            assert run.code in (0, 1), (command, form, run.err)
            assert run.out.endswith("\n")


def test_jsonl_has_one_object_a_line(refsim):
    lines = refsim("table", "e2m1", "--as", "jsonl").out.splitlines()
    assert [json.loads(line)["code"] for line in lines] == [f"{code:#x}" for code in range(16)]


def test_source_is_cited_only_on_request(refsim):
    assert "OCP" not in refsim("decode", "-t", "e4m3", "0").out
    assert "OCP 8-bit Floating Point Specification 1.0, table 1" in refsim("decode", "-t", "e4m3", "0", "--source").out
    cited = json.loads(refsim("decode", "-t", "e4m3", "0", "--source", "--as", "json").out)["sources"]
    assert cited[0]["document"] == "ocp-ofp8"
    assert "PTX ISA" in refsim("formats", "--source").out


def test_codes_come_from_standard_input_and_files(refsim, tmp_path):
    (tmp_path / "codes.txt").write_text("0x7e\n126 0b1111110\n")
    np.save(tmp_path / "codes.npy", np.array([[0x7E, 0x7E]], np.uint8))
    found = json.loads(
        refsim("decode", "-t", "e4m3", "-", "codes.txt", "codes.npy", "0x7e", "--as", "json", stdin=b" 0x7e\n").out
    )
    assert [row["code"] for row in found["codes"]] == ["0x7e"] * 7


def test_values_come_from_standard_input(refsim):
    found = json.loads(refsim("encode", "-t", "e4m3", "-", "-2", "--as", "json", stdin=b"0.5\n-inf ").out)
    assert [row["code"] for row in found["values"]] == ["0x30", "0xfe", "0xc0"]


@pytest.mark.parametrize(
    ("stdin", "code", "exit_code"), [(b"\xff\xfe", "bad-value", 3), (b"0 " * 70_000, "too-large", 2)]
)
def test_unreadable_standard_input(refsim, stdin, code, exit_code):
    run = refsim("decode", "-t", "e4m3", "-", stdin=stdin)
    assert run.code == exit_code
    assert run.err.startswith(f"[{code}] ")


def test_no_codes_are_an_empty_answer(refsim):
    for form in FORMS:
        assert refsim("decode", "-t", "e4m3", "-", "--as", form).code == 0
    assert json.loads(refsim("decode", "-t", "e4m3", "-", "--as", "json").out) == {"codes": []}


def test_via_agrees_with_the_rule_it_implements(refsim):
    words = ("0.3", "-1000", "nan", "1e-30", "464", "-0", "inf")
    plain = json.loads(refsim("encode", "-t", "e4m3", *words, "--as", "json").out)["values"]
    for conversion in ("cvt.rn.satfinite.e4m3x2.f32", "cuda.satfinite.e4m3.f32", "cvt.rn.satfinite.e4m3x2.f16x2"):
        found = json.loads(refsim("encode", "--via", conversion, *words, "--as", "json").out)["values"]
        assert [row["code"] for row in found] == [row["code"] for row in plain]
