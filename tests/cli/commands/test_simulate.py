"""refsim simulate on kernels that use shared memory: findings by check, bank conflicts by source line, policies."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from refsim.cli import main

PTX = """.version 9.0
.target sm_90a
.address_size 64
.file 1 "swap.cu"
.visible .entry swap(.param .u64 out)
{{
    .reg .b32 %r<8>; .reg .b64 %d<3>; .shared .align 4 .b8 tile[8192];
    ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mad.wide.u32 %d2, %r1, 4, %d1;
    mov.u32 %r2, tile; shl.b32 %r3, %r1, {shift}; add.u32 %r4, %r2, %r3;
    .loc 1 5 1
    st.shared.u32 [%r4], %r1;
    {barrier}
    xor.b32 %r5, %r3, {other}; add.u32 %r5, %r2, %r5;
    .loc 1 7 1
    ld.shared.u32 %r6, [%r5]; st.global.u32 [%d2], %r6; ret;
}}
"""
OPTIONS = ("--block", "64", "--arg", "zeros:u32:64")


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def written(folder: Path, *, shift: int = 2, barrier: str = "bar.sync 0;") -> Path:
    file = folder / "swap.ptx"
    file.write_text(PTX.format(shift=shift, barrier=barrier, other=32 << shift))
    return file


def test_a_clean_kernel_agrees_and_shows_its_banks(capsys, tmp_path):
    code, out, _ = run(capsys, "simulate", written(tmp_path), "swap", *OPTIONS, "--as", "json")
    answer = json.loads(out)
    assert code == 0
    assert (answer["findings_count"], answer["policy"], answer["arithmetic"]) == (0, "eager", "silicon")
    assert [(row["source"], row["ways"]) for row in answer["banks"]] == [("swap.cu:5", "1.00"), ("swap.cu:7", "1.00")]


def test_conflicts_are_shown_by_source_line(capsys, tmp_path):
    code, out, _ = run(capsys, "simulate", written(tmp_path, shift=5), "swap", *OPTIONS)
    assert code == 0
    assert "swap.cu:5" in out
    assert "8.00" in out
    _, quiet, _ = run(capsys, "simulate", written(tmp_path, shift=5), "swap", *OPTIONS, "--no-banks")
    assert "8.00" not in quiet


@pytest.mark.parametrize("policy", ["eager", "lazy", "random"])
def test_findings_are_listed_and_the_answer_is_a_failure(capsys, tmp_path, policy):
    file = written(tmp_path, barrier="")
    code, out, err = run(capsys, "simulate", file, "swap", *OPTIONS, "--policy", policy, "--seed", 3, "--as", "json")
    answer = json.loads(out)
    assert code == 1
    assert {row["check"] for row in answer["findings"]} <= {"race", "uninitialised"}
    assert "swap.cu:" in answer["findings"][0]["where"]
    assert "again: refsim simulate" in err
    assert answer["policy"] == ("random, seed 3" if policy == "random" else policy)


def test_a_file_of_codes_is_an_argument_with_its_format(capsys, tmp_path):
    file, codes = written(tmp_path), tmp_path / "codes.npy"
    np.save(codes, np.zeros(128, np.uint16))
    arguments = ("simulate", file, "swap", "--block", "64", "--as", "json", "--arg")
    assert run(capsys, *arguments, f"bf16:{codes}")[0] == 0
    code, _, err = run(capsys, *arguments, codes)
    assert code != 0
    assert "format" in err


def test_an_unknown_arithmetic_names_the_known_ones(capsys, tmp_path):
    code, _, err = run(capsys, "simulate", written(tmp_path), "swap", *OPTIONS, "--arithmetic", "guess")
    assert code == 2
    assert "silicon" in err


ARRIVALS = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry arrivals(.param .u64 counter, .param .u64 out)
{
    .reg .b32 %r<4>; .reg .b64 %d<4>; .reg .pred %p<2>;
    ld.param.u64 %d1, [counter]; ld.param.u64 %d2, [out]; mov.u32 %r1, %tid.x;
    atom.global.add.u32 %r2, [%d1], 1;
    FAULT
    mad.wide.u32 %d3, %r1, 4, %d2;
    st.global.u32 [%d3], %r2; ret;
}
"""
OF_ARRIVALS = ("arrivals", "--block", "128", "--arg", "zeros:u32:1", "--arg", "zeros:u32:128")


def arrivals(folder: Path, fault: str = "") -> Path:
    file = folder / "arrivals.ptx"
    file.write_text(ARRIVALS.replace("FAULT", fault))
    return file


def test_all_policies_find_bytes_that_depend_on_the_schedule(capsys, tmp_path):
    file, saved = arrivals(tmp_path), tmp_path / "order.npy"
    assert run(capsys, "simulate", file, *OF_ARRIVALS)[0] == 0
    code, out, _ = run(
        capsys, "simulate", file, *OF_ARRIVALS, "--policy", "all", "--save", f"1={saved}", "--as", "json"
    )
    answer = json.loads(out)
    assert code == 1
    assert [row["schedule"] for row in answer["schedules"]] == ["eager", "random, seed 1", "random, seed 2"]
    assert {row["check"] for row in answer["findings"]} == {"schedule-dependent"}
    assert "of argument 1" in answer["findings"][0]["where"]
    np.testing.assert_array_equal(np.load(saved), np.arange(128))


def test_all_policies_agree_on_a_right_kernel(capsys, tmp_path):
    code, out, _ = run(capsys, "simulate", written(tmp_path), "swap", *OPTIONS, "--policy", "all", "--as", "json")
    answer = json.loads(out)
    assert code == 0
    assert [row["bytes"] for row in answer["schedules"][1:]] == ["as under the first"] * 2


def test_a_fault_that_one_schedule_alone_shows_names_it(capsys, tmp_path):
    """Thread 0 traps unless it arrives first, which the lowest-counter schedule lets it."""
    file = arrivals(tmp_path, "setp.ne.u32 %p1, %r1, %r2; @%p1 trap;")
    assert run(capsys, "simulate", file, *OF_ARRIVALS)[0] == 0
    code, out, _ = run(capsys, "simulate", file, *OF_ARRIVALS, "--policy", "all", "--as", "json")
    answer = json.loads(out)
    assert code == 1
    stopped = [row["schedule"] for row in answer["schedules"] if row["bytes"] == "stopped by trap"]
    assert stopped
    assert {row["under"] for row in answer["findings"] if row["check"] == "trap"} <= {"; ".join(stopped), *stopped}


def test_the_time_limit_is_an_option(capsys, tmp_path):
    file = arrivals(tmp_path, "$loop: bra $loop;")
    code, _, err = run(capsys, "simulate", file, *OF_ARRIVALS, "--seconds", "0.2")
    assert code == 1
    assert "[timeout]" in err
    assert "longer than 0.2 s" in err
    assert run(capsys, "simulate", file, *OF_ARRIVALS, "--seconds", "0")[0] == 2


def test_a_trace_shows_what_led_to_a_fault(capsys, tmp_path):
    """The answer is the statements up to the fault, and the fault as a finding."""
    file = arrivals(tmp_path, "add.u64 %d2, %d2, 4096;")
    code, out, err = run(capsys, "simulate", file, *OF_ARRIVALS, "--trace", "1", "--as", "json")
    answer = json.loads(out)
    assert code == 1
    assert [row["check"] for row in answer["findings"]] == ["out-of-bounds"]
    assert [row["instruction"] for row in answer["steps"]][-2:] == ["add.u64", "mad.wide.u32"]
    assert answer["steps"][-1]["bits"][1] == "0x0000004000001584"
    assert "again: refsim simulate" in err
    code, out, err = run(capsys, "simulate", file, *OF_ARRIVALS, "--trace", "1", "--arg", "u32:1")
    assert (code, out) == (2, "")
    assert "bad-argument" in err


def test_a_trace_under_all_policies_is_of_the_first(capsys, tmp_path):
    code, out, _ = run(
        capsys, "simulate", written(tmp_path), "swap", *OPTIONS, "--policy", "all", "--trace", "1:5", "--as", "json"
    )
    answer = json.loads(out)
    assert code == 0
    assert [row["instruction"] for row in answer["steps"]] == [
        "st.shared.u32",
        "st.shared.u32",
        "bar.sync",
        "xor.b32",
        "add.u32",
    ]
    assert len(answer["schedules"]) == 3


GRID_BARRIER = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry meet(.param .u64 out) .maxntid 1024
{
    .reg .b32 %r<8>; .reg .b64 %d<4>; .reg .pred %p<3>;
    ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mov.u32 %r2, %nctaid.x; setp.ne.u32 %p1, %r1, 0;
    @%p1 bra MEET;
    atom.release.gpu.global.add.u32 %r3, [%d1], 1;
    POLL: ld.acquire.gpu.global.u32 %r4, [%d1]; setp.lt.u32 %p2, %r4, %r2;
    @%p2 bra POLL;
    MEET: bar.sync 0; mov.u32 %r5, %cluster_nctarank; st.global.u32 [%d1+4], %r5; ret;
}
"""


def meet(capsys, folder: Path, blocks: int, *more: str) -> tuple[int, str, str]:
    file = folder / "meet.ptx"
    file.write_text(GRID_BARRIER)
    return run(capsys, "simulate", file, "meet", "--grid", blocks, "--block", 1024, "--arg", "zeros:u32:2", *more)


def test_a_cluster_and_a_cooperative_launch_are_options(capsys, tmp_path):
    saved = tmp_path / "out.npy"
    code, *_ = meet(capsys, tmp_path, 132, "--cooperative", "--cluster", "2", "--save", f"0={saved}")
    assert code == 0
    assert np.load(saved).tolist() == [132, 2]
    code, _, err = meet(capsys, tmp_path, 3, "--cluster", "2")
    assert (code, "bad-launch" in err) == (2, True)
    code, _, err = meet(capsys, tmp_path, 2000, "--cooperative")
    assert (code, "launch-limit" in err) == (2, True)


def test_a_grid_barrier_of_more_blocks_than_are_resident_is_inconclusive(capsys, tmp_path):
    code, _, err = meet(capsys, tmp_path, 2000, "--seconds", "0.5")
    assert (code, "[timeout]" in err) == (5, True)


@pytest.mark.ci("tests/test_examples.py runs what the page shows in every run")
def test_the_guide_shows_the_launch_that_it_names(capsys, tmp_path, monkeypatch):
    """One block of the linear layer twice; every instruction that meets the banks stands at its line and the nearest call."""
    root = Path(__file__).parents[3]
    (said,) = re.findall(
        r"```\n\$ (refsim simulate gpu/(?:.*\\\n)*.*)\n([^`]*)```",
        (root / "docs/programs-without-a-gpu.md").read_text("utf-8"),
    )
    (tmp_path / "gpu").symlink_to(root / "gpu")
    monkeypatch.chdir(tmp_path)
    for name, shape in (("x", (1, 512)), ("w", (128, 512))):
        np.save(tmp_path / f"{name}.npy", np.arange(np.prod(shape), dtype=np.uint16).reshape(shape) & 0x3FFF)
    words = shlex.split(said[0].replace("\\\n", " "))
    code, out, _ = run(capsys, *words[1:])
    shown = said[1].removesuffix("...\n")
    assert (code, out[: len(shown)]) == (0, shown)
    assert "ptx.cuh:65, called at mma.cuh:26                  ldmatrix.sync.aligned.m8n8.x4.shared.b16" in out


SOFTCAP = """
extern "C" __global__ void softcap(const float* s, float* o, float cap) {
    const float x = s[threadIdx.x] / cap;
    const float p = __expf(x), m = __expf(-x);
    o[threadIdx.x] = cap * (p - m) / (p + m);
}
"""


@pytest.mark.parametrize("policy", ["eager", "all"])
def test_the_first_nan_is_followed_to_the_output(capsys, tmp_path, policy):
    file, scores = tmp_path / "softcap.cu", tmp_path / "s.npy"
    file.write_text(SOFTCAP)
    np.save(scores, np.array([1, 5000, 2, -6000] * 8, np.float32))
    given = ("--arg", scores, "--arg", "zeros:f32:32", "--arg", "f32:50", "--policy", policy, "--as", "json")
    code, out, _ = run(capsys, "simulate", file, "softcap", *given, "--first-nan")
    rows = json.loads(out)["first_nan"]
    assert code == 0
    assert rows[0]["what"] == "16 of 32 elements are NaN or infinite, the first argument 1[1] is nan"
    assert rows[1]["role"] == "born"
    assert re.search(r"ex2\.approx.*softcap\.cu:4.*thread \(1, 0, 0\)", rows[1]["where"])
    assert "144.269501) gives inf" in rows[1]["what"]
    assert [row["role"] for row in rows][-3:] == ["NaN of infinities", "stored", "also"]
    assert "first_nan" not in json.loads(run(capsys, "simulate", file, "softcap", *given)[1])


CODES = """
extern "C" __global__ void raised(const unsigned* x, float* y) { y[threadIdx.x] = __uint_as_float(x[threadIdx.x]); }
extern "C" __global__ void bytes(const unsigned* x, unsigned char* y) { y[threadIdx.x] = x[threadIdx.x]; }
extern "C" __global__ void read(const unsigned char* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }
"""


@pytest.mark.filterwarnings("error")
def test_a_signaling_nan_is_read_without_a_warning(capsys, tmp_path):
    (tmp_path / "codes.cu").write_text(CODES)
    np.save(tmp_path / "x.npy", np.full(32, 0x7F800001, np.uint32))
    given = ("--arg", f"u32:{tmp_path}/x.npy", "--arg", "zeros:f32:32", "--first-nan", "--as", "json")
    code, out, _ = run(capsys, "simulate", tmp_path / "codes.cu", "raised", *given)
    assert code == 0
    assert json.loads(out)["first_nan"][0]["what"].startswith("32 ")


def test_codes_of_no_named_format_are_not_called_free_of_nan(capsys, tmp_path):
    (tmp_path / "codes.cu").write_text(CODES)
    np.save(tmp_path / "x.npy", np.full(32, 0x7F, np.uint32))
    np.save(tmp_path / "y.npy", np.zeros(32, np.uint8))
    for given, role, where in (
        ("zeros:u8:32", "unknown", "argument 1"),
        (f"e4m3:{tmp_path}/y.npy", "integer bits", ""),
    ):
        options = ("--arg", f"u32:{tmp_path}/x.npy", "--arg", given, "--first-nan", "--as", "json")
        row = json.loads(run(capsys, "simulate", tmp_path / "codes.cu", "bytes", *options)[1])["first_nan"][0]
        assert row["role"] == role
        assert where in row["where"]
    given = ("--arg", "zeros:u8:32", "--arg", "zeros:f32:32", "--first-nan", "--as", "json")
    assert (
        json.loads(run(capsys, "simulate", tmp_path / "codes.cu", "read", *given)[1])["first_nan"][0]["role"] == "none"
    )


def test_a_launch_without_nan_says_so(capsys, tmp_path):
    code, out, _ = run(capsys, "simulate", written(tmp_path), "swap", *OPTIONS, "--first-nan")
    assert code == 0
    assert "no output holds NaN or an infinity that the launch stored" in out


def test_events_are_listed_in_order_with_their_source_lines(capsys, tmp_path):
    line = ("simulate", written(tmp_path), "swap", *OPTIONS)
    _, out, err = run(capsys, *line, "--as", "json", "--events")
    found = [
        (row["source"], row["event"], row["kind"], row["blocks"], row["warps"]) for row in json.loads(out)["events"]
    ]
    assert found == [
        ("swap.cu:5", "access", "access", [0], [0, 1]),
        ("swap.cu:5", "meet_cta", "barrier", [0], [0, 1]),
        ("swap.cu:7", "access", "access", [0], [0, 1]),
        ("swap.cu:7", "access", "access", [0], [0, 1]),
        ("swap.cu:7", "exit", "launch", [0], [0, 1]),
        (None, "end", "launch", [0], [0, 1]),
    ]
    assert "more" not in err
    _, out, _ = run(capsys, *line, "--as", "json", "--events", "barrier,end")
    assert [row["event"] for row in json.loads(out)["events"]] == ["meet_cta", "end"]
    _, out, _ = run(capsys, *line, "--as", "json")
    assert "events" not in json.loads(out)


def test_events_beyond_the_limit_are_counted(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("refsim.ptx.observers.log.MOST_PLACES", 0)
    _, out, err = run(capsys, "simulate", written(tmp_path), "swap", *OPTIONS, "--as", "json", "--events")
    assert [row["event"] for row in json.loads(out)["events"]] == ["access"]
    assert "5 events more: --events KIND,... chooses kinds" in err


def test_events_on_the_way_to_a_fault_are_listed(capsys, tmp_path):
    file = arrivals(tmp_path, "trap;")
    code, out, _ = run(capsys, "simulate", file, *OF_ARRIVALS, "--as", "json", "--events")
    answer = json.loads(out)
    assert code == 1
    assert [row["check"] for row in answer["findings"]] == ["trap"]
    assert [(row["event"], row["instruction"]) for row in answer["events"]] == [("access", "atom.global.add.u32")]


@pytest.mark.parametrize("kinds", ["transfers", "access,", "", "access,acces"])
def test_a_wrong_kind_of_event_is_one_error_with_the_nearest(kinds, capsys, tmp_path):
    code, out, err = run(capsys, "simulate", written(tmp_path), "swap", *OPTIONS, f"--events={kinds}")
    assert (code, out) == (2, "")
    assert "no kind of event is called" in err
    assert err.count("nearest: ") == err.count("[unknown-name]") == 1
