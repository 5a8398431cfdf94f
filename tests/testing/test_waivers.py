"""Waivers: each allows one finding at one line, is printed, and fails once it allows nothing."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import strategies as st

import refsim.device
from refsim import ptx
from refsim.campaigns.verifying import Request, recorded, verdict_of, with_unused
from refsim.cli.answers.verdicts import judged, junit
from refsim.errors import RefsimError
from refsim.kernels import Kernel
from refsim.ptx.findings.table import Waiver, comments
from refsim.testing import Verdict, run_campaign
from refsim.testing.laws import agrees_with_oracle
from refsim.testing.oracle_checks import NO_SLACK
from refsim.testing.replay import replay_case, write_case

PAIR = """extern "C" __global__ void pair(const unsigned *x, unsigned *y) {
  __shared__ unsigned tile[32], other[32];
  const unsigned t = threadIdx.x;
  tile[t] = x[t];
  y[t] = tile[t ^ 1];
}
extern "C" __global__ void ordered(const unsigned *x, unsigned *y) {
  __shared__ unsigned tile[32];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncwarp();
  y[threadIdx.x] = tile[threadIdx.x ^ 1];
}
"""
TEXT = """.version 8.0
.target sm_80
.address_size 64
.visible .entry pair(.param .u64 x, .param .u64 y) {
.shared .align 4 .b8 tile[128];
.reg .b32 %r<6>;
.reg .b64 %rd<5>;
ld.param.u64 %rd1, [x];
ld.param.u64 %rd2, [y];
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd3, %r1, 4;
add.s64 %rd1, %rd1, %rd3;
add.s64 %rd2, %rd2, %rd3;
ld.global.u32 %r2, [%rd1];
mov.u32 %r3, tile;
shl.b32 %r4, %r1, 2;
add.u32 %r5, %r3, %r4;
st.shared.u32 [%r5], %r2;
xor.b32 %r4, %r4, 4;
add.u32 %r5, %r3, %r4;
ld.shared.u32 %r2, [%r5];
st.global.u32 [%rd2], %r2;
ret;
}
"""
SIM = refsim.device.open("sim", "sm_80")


@dataclass(frozen=True)
class First:
    value: int = 3


def declared(entry="pair", **code):
    def run(launcher, problem):
        x = launcher.upload(np.arange(32, dtype=np.uint32) + np.uint32(problem.value), name="x")
        y = launcher.output(32, np.uint32, name="y")
        launcher.launch(entry, 1, 32, [x, y])
        return {"y": launcher.read(y)}

    def oracle(problem):
        return {"y": (np.arange(32, dtype=np.uint32) ^ 1) + np.uint32(problem.value)}

    return Kernel("pair", oracle, st.builds(First, st.integers(1, 9)), run, {"y": ""}, First, (First(),), **code)


def judged_by(kernel, device=SIM):
    return run_campaign(kernel, device, cases=2, suspect_seconds=0)


@pytest.mark.parametrize("line", [4, 5])  # a race has two lines
def test_a_waiver_allows_the_race_of_its_line_and_is_printed(line):
    verdict = judged_by(declared(source=PAIR, without=(f"race@source.cu:{line}",)))
    assert verdict.status == "pass"
    assert f"waived  race@source.cu:{line}: reads 4 B at shared address" in str(verdict)
    assert verdict.to_json()["waived"].keys() == {f"race@source.cu:{line}"}
    assert Verdict.from_json(verdict.to_json()) == verdict
    properties = ElementTree.fromstring(junit([judged(declared(source=PAIR), verdict)])).iter("property")
    assert [each.get("value").startswith("race@") for each in properties if each.get("name") == "waived"] == [True]


@pytest.mark.parametrize("waiver", ["race@source.cu:99", "race@other.cu:5", "uninitialised@source.cu:11"])
def test_a_waiver_that_allows_nothing_fails(waiver):
    ordered = judged_by(declared("ordered", source=PAIR, without=(waiver,)))
    assert ordered.status == "fail"
    assert ordered.finding.startswith(f"[unused-waiver] {waiver} allowed no finding")
    assert judged_by(declared(source=PAIR, without=(waiver,))).finding.startswith("[race]")


def test_a_waiver_for_one_entry_of_a_file_does_not_fail_where_another_is_launched():
    kernels = [declared(entry, source=PAIR, without=("race@source.cu:5",)) for entry in ("pair", "ordered")]
    assert [judged_by(kernel).status for kernel in kernels] == ["pass", "pass"]


def test_another_race_is_still_found():
    twice = PAIR.replace("  y[t] = tile[t ^ 1];", "  other[t] = tile[t ^ 2];\n  y[t] = tile[t ^ 1];")
    verdict = judged_by(declared(source=twice, without=("race@source.cu:5",)))
    assert verdict.finding.startswith("[race]")
    assert "source.cu:6" in verdict.finding


@pytest.mark.parametrize("by", ["file", "source"])
def test_a_comment_waives_the_race_of_its_line(by, tmp_path):
    text = PAIR.replace("tile[t ^ 1];", "tile[t ^ 1];  // refsim: allow race")
    (tmp_path / "pair.cu").write_text(text)
    code = {"file": tmp_path / "pair.cu"} if by == "file" else {"source": text}
    name = "pair.cu" if by == "file" else "source.cu"
    assert judged_by(declared(**code)).waived.keys() == {f"race@{name}:5"}
    assert judged_by(declared("ordered", **code)).status == "pass"  # its line is of another entry
    fixed = text.replace("tile[t] = x[t];", "tile[t] = x[t]; __syncwarp();")
    assert judged_by(declared(source=fixed)).finding.startswith("[unused-waiver] race@source.cu:5")
    moved = text.replace("  // refsim: allow race", "").replace("  tile[thr", "  // refsim: allow race\n  tile[thr", 1)
    assert judged_by(declared("ordered", source=moved)).finding.startswith("[unused-waiver] race@source.cu:9")


CROSS = """extern "C" __global__ void pair(const unsigned *x, unsigned *y) {
  __shared__ unsigned tile[64];
  const unsigned t = threadIdx.x;
  tile[t] = x[t];
  tile[t] += 1;
  y[t] = tile[t ^ 63];
}
"""


@pytest.mark.parametrize("without", ["race", "race@source.cu:6"])
def test_other_bytes_after_a_waived_race_point_to_the_waiver(without):
    def run(launcher, problem):
        x, y = launcher.upload(np.arange(64, dtype=np.uint32), name="x"), launcher.output(64, np.uint32, name="y")
        launcher.launch("pair", 1, 64, [x, y])
        return {"y": launcher.read(y)}

    made = replace(declared(source=CROSS, without=(without, "uninitialised")), run=run)
    found = run_campaign(made, SIM, cases=0)
    assert "[schedule-dependent]" in found.finding
    assert f"help: a race that {without} leaves out may be the cause; if the order of atomics" in found.finding


def test_a_waiver_names_a_line_of_ptx(tmp_path):
    assert judged_by(declared(ptx=TEXT, without=("race@k.ptx:21",))).waived.keys() == {"race@k.ptx:21"}
    assert judged_by(declared(ptx=TEXT, without=("race@k.ptx:2",))).finding.startswith("[race]")
    (tmp_path / "k.ptx").write_text(
        TEXT.replace("ld.shared.u32 %r2, [%r5];", "ld.shared.u32 %r2, [%r5]; // refsim: allow race")
    )
    assert judged_by(declared(file=tmp_path / "k.ptx")).waived.keys() == {"race@k.ptx:21"}


def test_a_device_takes_waivers_for_all_its_kernels():
    device = refsim.device.open("sim", "sm_80", without=("race@source.cu:5",))
    assert judged_by(declared("ordered", source=PAIR), device).status == "pass"  # the line is of another entry
    assert device.unused_waivers == ("race@source.cu:5",)
    assert judged_by(declared(source=PAIR), device).status == "pass"
    assert device.unused_waivers == ()
    agrees_with_oracle(declared(source=PAIR), First(), device)
    lost = refsim.device.open("sim", "sm_80", without=("race@source.cu:99",))
    assert judged_by(declared("ordered", source=PAIR), lost).finding.startswith("[unused-waiver] race@source.cu:99")


def test_replays_and_shards_carry_waivers(tmp_path):
    kernel = declared(source=PAIR, without=("race@source.cu:5",))
    case = write_case(tmp_path, kernel, First(), {}, "")
    assert replay_case(case, SIM, kernel).waived.keys() == {"race@source.cu:5"}
    verdict = judged_by(kernel)
    bare = replace(verdict, waived={"race@source.cu:5": ""})
    request = Request("sim")
    for parts, status in (((bare, verdict), "pass"), ((verdict, bare), "pass"), ((bare, bare), "fail")):
        records = [recorded(each, NO_SLACK) for each in parts]
        whole = verdict_of(kernel, records, request, None)
        assert whole.with_unused(whole.unused).status == status


def test_names_of_checks_turn_them_off():
    verdict = judged_by(declared(source=PAIR, without=("race",)))
    assert verdict.status == "pass"
    assert verdict.device["without"].startswith("race, ordered-by-convergence")


@pytest.mark.parametrize(
    ("without", "says"),
    [
        (("race@k.cu",), "'race@k.cu' is no waiver"),
        (("race@k.cu:0",), "'race@k.cu:0' is no waiver"),
        (("races@k.cu:3",), "no check is called 'races'"),
        (("deadlock@k.cu:3",), "deadlock stops a launch"),
        (("schedule-dependent@k.cu:3",), "names bytes of memory, not a line"),
        ("race@k.cu:3", "without is 'race@k.cu:3'"),
        ((3,), "without is (3,)"),
    ],
)
def test_a_wrong_waiver_is_one_error(without, says):
    with pytest.raises(RefsimError) as caught:
        declared(source=PAIR, without=without)
    assert says in caught.value.what
    assert "pair" in caught.value.where
    if isinstance(without, tuple) and isinstance(without[0], str):
        with pytest.raises(RefsimError, match="unknown-check"):
            refsim.device.open("sim", without=without)


def test_a_wrong_comment_is_one_error():
    for comment in ("allow races", "allow"):
        with pytest.raises(RefsimError) as caught:
            judged_by(declared(source=PAIR.replace("tile[t ^ 1];", f"tile[t ^ 1]; // refsim: {comment}")))
        assert caught.value.code == "unknown-check"
        assert caught.value.where == "the comment at source.cu:5"


def test_comments_and_names():
    text = "a; // refsim: allow race, leak\n  // refsim: allow race\nb; // allow race\n"
    found = [(str(waiver), has_code) for waiver, has_code in comments("k.cu", text)]
    assert found == [("race@k.cu:1", True), ("leak@k.cu:1", True), ("race@k.cu:2", False)]
    text = (
        "a; /* refsim: allow race */\n/* Refsim allow race, leak */ b;\n// REFSIM: Allow race\n// refsim allows all\n"
    )
    found = [(str(waiver), has_code) for waiver, has_code in comments("k.cu", text)]
    assert found == [("race@k.cu:1", True), ("race@k.cu:2", True), ("leak@k.cu:2", True), ("race@k.cu:3", False)]
    strings = (
        '"// refsim: allow race";',
        """c = '"'; s = "// refsim: allow race";""",
        r'''"\"// refsim: allow race"''',
    )
    assert [*comments("k.cu", "\n".join(strings))] == []
    after = (
        '"//"; // refsim: allow race',
        """c = '"'; // refsim: allow race""",
        """n = 1'000; // a "b // refsim: allow race""",
    )
    assert [each.line for each, _ in comments("k.cu", "\n".join(after))] == [1, 2, 3]
    assert Waiver.of("race@folder/k.cu:12") == Waiver("race", "k.cu", 12)
    said = RefsimError(
        "race", "reads by st at PTX line 12 (k.cu:120) wrote, with no x (k.cu:7)", "PTX line 9 (ak.cu:12)"
    )
    names = ("race@k.cu:120", "race@k.ptx:12", "race@k.cu:12", "race@k.cu:7", "race@k.ptx:1", "leak@k.cu:120")
    assert [Waiver.of(name).allows(said) for name in names] == [True, True, False, False, False, False]


def test_waived_undefined_bits():
    text = TEXT.replace("st.shared.u32 [%r5], %r2;", "")
    launched = ptx.load(text).launch(
        "pair",
        1,
        32,
        [np.zeros(32, np.uint32), np.zeros(32, np.uint32)],
        checks=ptx.Checks(off=("uninitialised@k.ptx:21",)),
    )
    assert [name for name, _ in launched.waived] == ["uninitialised@k.ptx:21"]
    assert not launched.findings


KERNELS = """
import sys
sys.path.insert(0, {tests!r})
from test_waivers import PAIR, declared
KERNELS = (declared(source=PAIR),)
"""
SUITE = """
from test_waivers import PAIR, First, declared
from refsim.testing.laws import agrees_with_oracle

def test_it(refsim_device):
    agrees_with_oracle(declared(source=PAIR), First(), refsim_device)
"""


def ran(folder: Path, *command: str) -> tuple[int, str]:
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(("line", "code"), [(5, 0), (6, 1)])
def test_the_command_line_and_pytest_take_waivers(tmp_path, line, code):
    (tmp_path / "kernels.py").write_text(KERNELS.format(tests=str(Path(__file__).parent)))
    (tmp_path / "test_it.py").write_text(SUITE)
    (tmp_path / "source.cu").write_text(PAIR)
    waiver = f"race@source.cu:{line}"
    verify = ("refsim", "verify", "--kernels", "kernels.py", "--cases", "1", "--target", "sm_80", "--as", "json")
    given, said = ran(tmp_path, *verify, "--without", waiver)
    assert given == code, said
    found = json.loads(said.partition("\nagain:")[0])
    assert list(found["pair"]["waived"]) == [waiver] * (code == 0)
    plugin = ("pytest", "-p", "refsim.testing.plugin", "-p", "no:cacheprovider")
    assert ran(tmp_path, *plugin, "--without", waiver)[0] == code
    arguments = ("source.cu", "pair", "--arg", "zeros:u32:32", "--arg", "zeros:u32:32")
    assert ran(tmp_path, "refsim", "simulate", *arguments, "--without", waiver)[0] == code


def test_a_waiver_of_no_kernel_fails_every_way(tmp_path):
    (tmp_path / "kernels.py").write_text(
        KERNELS.format(tests=str(Path(__file__).parent)).replace("source=PAIR", '"ordered", source=PAIR')
    )
    (tmp_path / "test_it.py").write_text(SUITE.replace("source=PAIR", '"ordered", source=PAIR'))
    verify = ("refsim", "verify", "--kernels", "kernels.py", "--cases", "1", "--without", "race@gone.cu:3")
    code, said = ran(tmp_path, *verify)
    assert code == 1
    assert "[unused-waiver] race@gone.cu:3 allowed no finding" in said
    plugin = ("pytest", "-p", "refsim.testing.plugin", "-p", "no:cacheprovider", "--refsim-without", "race@gone.cu:3")
    code, said = ran(tmp_path, *plugin)
    assert code == 1
    assert "[unused-waiver] race@gone.cu:3 allowed no finding" in said


SHARED = """#pragma once
__device__ inline unsigned swapped(unsigned *tile, const unsigned *x) {
  tile[threadIdx.x] = x[threadIdx.x];
  if (CALM) __syncwarp();
  return tile[threadIdx.x ^ 1];COMMENT
}
"""
ENTRY = """#define CALM %d
#include "shared.cuh"
extern "C" __global__ void pair(const unsigned *x, unsigned *y) {
  __shared__ unsigned tile[32];
  y[threadIdx.x] = swapped(tile, x);
}
"""
SEVERAL = """
import sys
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_waivers import declared
KERNELS = tuple(
    replace(declared(**({{"file": Path(file)}} if file.endswith(".cu") else {{"source": file}}), without=without), name=name)
    for name, file, without in {kernels!r}
)
"""


def verified(folder: Path, kernels, *options: str) -> tuple[int, dict[str, str]]:
    """Return the exit code of `refsim verify`, and the first line of each kernel's finding."""
    folder.mkdir(exist_ok=True)
    (folder / "kernels.py").write_text(SEVERAL.format(tests=str(Path(__file__).parent), kernels=kernels))
    verify = ("refsim", "verify", "--kernels", "kernels.py", "--cases", "2", "--target", "sm_80", "--as", "json")
    code, said = ran(folder, *verify, *options)
    rows = json.loads(said[said.index("{") :].partition("\nagain:")[0])["verdicts"]
    return code, {row["kernel"]: (row["finding"] or "").partition("\n")[0] for row in rows}


@pytest.mark.parametrize("divided", [(), ("--jobs", "1")])
@pytest.mark.parametrize("by", ["comment", "without"])
def test_a_waiver_of_a_shared_line_is_used_if_one_kernel_needs_it(tmp_path, by, divided):
    (tmp_path / "shared.cuh").write_text(SHARED.replace("COMMENT", "  // refsim: allow race" * (by == "comment")))
    for name, calm in (("racy", 0), ("calm", 1)):
        (tmp_path / f"{name}.cu").write_text(ENTRY % calm)
    waiver = ("race@shared.cuh:5",) * (by == "without")
    racy, calm = ("racy", "racy.cu", waiver), ("calm", "calm.cu", waiver)
    alone = ("alone", PAIR.replace("tile[t] = x[t];", "tile[t] = x[t]; __syncwarp();"), waiver)  # it has no such line
    for kernels in ((racy, calm), (calm, racy), (alone, racy)):
        assert verified(tmp_path, kernels, *divided) == (0, dict.fromkeys([each[0] for each in kernels], ""))
    code, found = verified(tmp_path, (calm, ("other", "calm.cu", waiver)), *divided)
    assert code == 1
    assert all(each.startswith("[unused-waiver] race@shared.cuh:5") for each in found.values())


def test_a_waiver_of_another_text_of_the_same_name_is_not_used(tmp_path):
    calm = PAIR.replace("tile[t] = x[t];", "tile[t] = x[t]; __syncwarp();")
    waiver = ("race@source.cu:5",)
    code, found = verified(tmp_path, (("racy", PAIR, waiver), ("calm", calm, waiver)))
    assert code == 1
    assert (found["racy"], found["calm"].split(" in ")[0]) == ("", f"[unused-waiver] {waiver[0]} allowed no finding")
    code, found = verified(tmp_path, (("racy", PAIR, ()), ("calm", calm, ())), "--without", waiver[0])
    assert (code, found) == (0, {"racy": "", "calm": ""})  # one waiver of the whole run


def test_a_kernel_that_ends_otherwise_leaves_its_waivers_undecided(tmp_path):
    waiver, calm = ("race@source.cu:5",), PAIR.replace("tile[t] = x[t];", "tile[t] = x[t]; __syncwarp();")
    bad = PAIR.replace("tile[t] = x[t];", "tile[t] = x[t]; y[t + 32 * (x[0] == 3)] = 1;")
    judge = {"racy": judged_by(declared(source=bad, without=waiver)), "calm": judged_by(declared(source=calm))}
    calm_kernel = declared(source=calm, without=waiver)
    verdicts = [judge["racy"], replace(judge["calm"], waived={waiver[0]: ""})]
    found = with_unused([(declared(source=calm, without=waiver), verdicts[0]), (calm_kernel, verdicts[1])], ())
    assert [each.status for each in found] == ["fail", "pass"]
    assert with_unused([(calm_kernel, verdicts[1])], ())[0].status == "fail"
