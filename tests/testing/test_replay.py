"""A case file is small, checked, and never chooses what is built."""

import itertools
import json
import os

import pytest

import refsim.device
from refsim.errors import Kind, RefsimError
from refsim.kernels import Kernel
from refsim.testing import runs
from refsim.testing.kernel_files import find_kernels
from refsim.testing.recipes import Tensor
from refsim.testing.replay import MAX_CASE_BYTES, file_to_trust, load_case, replay_case, write_case
from refsim.testing.runs import run_problem

KERNEL_FILE = """
from refsim.kernels import Kernel
from refsim.testing.recipes import Tensor

KERNELS = (Kernel("copy", lambda p: {}, None, lambda launcher, p: {}, {"y": "bf16"}, recipe=Tensor, call=print),)
"""


@pytest.fixture
def case(halve_kernel, tmp_path):
    return write_case(tmp_path, halve_kernel, Tensor(3, "bf16", "ties"), {"name": "fake"}, "3 elements differ")


def test_case_names_its_kernel_file_relative_to_itself(tmp_path):
    from refsim.testing.kernel_files import find_kernels

    (tmp_path / "mine.py").write_text(KERNEL_FILE)
    kernel = find_kernels([tmp_path / "mine.py"])[0]
    path = write_case(tmp_path / "failures", kernel, Tensor(3, "bf16"), {}, "")
    assert json.loads(path.read_text())["kernels"] == "../mine.py"
    moved = tmp_path / "elsewhere"
    (tmp_path / "failures").rename(moved)
    again, problem = load_case(moved / path.name, trust=True)
    assert (again.name, problem) == ("copy", Tensor(3, "bf16"))


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with a case, and a kernel file outside that notes when it runs."""
    home = tmp_path / "project"
    (home / "failures").mkdir(parents=True)
    (home / "pyproject.toml").write_text("")
    (home / "mine.py").write_text(KERNEL_FILE)
    outside = tmp_path / "outside.py"
    outside.write_text(KERNEL_FILE + "open('ran', 'w').close()\n")
    monkeypatch.chdir(home)
    return home


FUSED = """
import numpy as np
from hypothesis import strategies as st
from refsim.kernels import Kernel
from refsim.testing.recipes import Tensor

SOURCE = '''extern "C" __global__ void k(const float* x, float* y, int n) {
  if (threadIdx.x < n) y[threadIdx.x] = fmaf(x[threadIdx.x], 1.1f, 0.3f);
}'''


def run(launcher, problem):
    x, y = launcher.upload(problem.codes().view("f4"), name="x"), launcher.output(problem.n, "f4", name="y")
    launcher.launch("k", 1, 32, [x, y, np.int32(problem.n)])
    return {"y": launcher.read(y)}


def oracle(problem):
    return {"y": problem.codes().view("f4") * np.float32(1.1) + np.float32(0.3)}


PROBLEMS = st.builds(Tensor, st.integers(1, 32), st.just("f32"), st.just("gaussian"), st.integers(0, 99))
KERNELS = (Kernel("k", oracle, PROBLEMS, run, {"y": "f32"}, recipe=Tensor, source=SOURCE),)
"""


def test_a_replayed_case_names_its_suspect(tmp_path):
    """A case is one problem: those that a suspicion is held against are drawn."""
    (tmp_path / "mine.py").write_text(FUSED)
    kernel = find_kernels([tmp_path / "mine.py"])[0]
    path = write_case(tmp_path, kernel, Tensor(32, "f32", "gaussian", 1), {}, "")
    device = refsim.device.open("sim:eager", "sm_90a")
    verdict = replay_case(path, device, kernel, suspect_seconds=60.0)
    (suspect,) = (line for line in verdict.mismatch.suspects if line.startswith("contraction: "))
    assert f"likely cause: {suspect}" in verdict.finding.splitlines()
    assert "contraction" not in replay_case(path, device, kernel, suspect_seconds=0).finding


def case_of(project, kernels: str, name: str = "case.json"):
    record = {
        "refsim_case": 1,
        "kernels": kernels,
        "kernel": "copy",
        "problem": {"n": 3, "format": "bf16"},
        "device": {},
        "finding": "",
    }
    (project / "failures" / name).write_text(json.dumps(record))
    return project / "failures" / name


def test_a_file_of_the_project_runs_unasked(project, tmp_path, monkeypatch):
    """Of the working directory's project, of the case's own, of refsim, and whatever this pyproject.toml lists."""
    inside = case_of(project, "../mine.py")
    assert load_case(inside)[0].name == "copy"
    monkeypatch.chdir(tmp_path)
    assert load_case(inside)[0].name == "copy"
    assert load_case(case_of(project, "../../outside.py"))[0].name == "copy"  # below the working directory
    monkeypatch.chdir(project)
    (project / "pyproject.toml").write_text('[tool.refsim]\nkernels = ["../outside.py"]\n')
    assert load_case(case_of(project, "../../outside.py"))[0].name == "copy"
    from refsim.testing.kernel_files import bundled_kernels

    with pytest.raises(RefsimError, match="unknown-kernel"):
        load_case(case_of(project, str(bundled_kernels())))


@pytest.mark.parametrize("spelled", ["../../outside.py", "{outside}", "../failures/../../outside.py", "../link.py"])
def test_a_file_outside_the_project_runs_only_on_trust(project, tmp_path, spelled):
    (project / "link.py").symlink_to(tmp_path / "outside.py")
    case = case_of(project, spelled.format(outside=tmp_path / "outside.py"))
    with pytest.raises(RefsimError) as caught:
        load_case(case)
    assert (caught.value.code, caught.value.exit_code) == ("untrusted-case", 2)
    assert "--trust" in caught.value.help
    assert not (project / "ran").exists()
    named = file_to_trust(case)
    assert named is not None
    assert named.resolve() == tmp_path / "outside.py"
    assert file_to_trust(case_of(project, "../mine.py", "inside.json")) is None
    assert file_to_trust(case_of(project, "", "unnamed.json")) is None
    assert load_case(case, trust=True)[0].name == "copy"
    assert (project / "ran").exists()


def test_a_kernel_with_a_long_name_has_a_file(tmp_path):
    """File systems take 255 bytes; the hash keeps names with one beginning apart."""
    paths = set()
    for name in ("x" * 80, "x" * 300, "x" * 301):
        kernel = Kernel(name, lambda p: {}, None, lambda launcher, p: {}, {"y": "bf16"}, recipe=Tensor, call=print)
        path = write_case(tmp_path, kernel, Tensor(3, "bf16"), {}, "")
        assert len(path.name) < 120
        assert load_case(path, kernel) == (kernel, Tensor(3, "bf16"))
        paths.add(path)
    assert len(paths) == 3


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_case_is_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    for name in ("pipe.json", "zero.json", "loop.json", ""):
        with pytest.raises(RefsimError) as caught:
            load_case(tmp_path / name)
        assert (caught.value.code, caught.value.exit_code) == ("bad-file", 3)


def test_same_problem_has_the_same_name(case, halve_kernel):
    again = write_case(case.parent, halve_kernel, Tensor(3, "bf16", "ties"), {}, "another text")
    assert again == case
    assert list(case.parent.iterdir()) == [case]


def test_interrupted_write_leaves_nothing(halve_kernel, tmp_path, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("refsim.testing.replay.json.dump", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_case(tmp_path, halve_kernel, Tensor(3, "bf16"), {}, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda record: "not json",
        lambda record: "[" * 100_000,
        lambda record: json.dumps([record]),
        lambda record: json.dumps({**record, "extra": 1}),
        lambda record: json.dumps({key: value for key, value in record.items() if key != "finding"}),
        lambda record: json.dumps({**record, "refsim_case": 2}),
        lambda record: json.dumps({**record, "refsim_case": True}),
        lambda record: json.dumps({**record, "kernel": 7}),
        lambda record: json.dumps({**record, "problem": {"n": float("nan")}}),
        lambda record: json.dumps(record) + " " * MAX_CASE_BYTES,
    ],
)
def test_damaged_case_is_unreadable(case, halve_kernel, change):
    case.write_text(change(json.loads(case.read_text())))
    with pytest.raises(RefsimError) as caught:
        load_case(case, halve_kernel)
    assert (caught.value.code, caught.value.kind) == ("bad-file", Kind.UNREADABLE)


def test_problem_of_another_shape_is_refused(case, halve_kernel):
    record = json.loads(case.read_text())
    case.write_text(json.dumps({**record, "problem": {"n": 1 << 60, "format": "bf16"}}))
    with pytest.raises(RefsimError, match="n must be an integer"):
        load_case(case, halve_kernel)
    case.write_text(json.dumps({**record, "kernel": "double"}))
    with pytest.raises(RefsimError, match="wrong-kernel"):
        load_case(case, halve_kernel)


def test_missing_case_says_so(tmp_path):
    with pytest.raises(RefsimError, match="no such file"):
        load_case(tmp_path / "none.json")


def test_the_seconds_of_a_replay_are_those_since_it_began(halve_kernel, fake_device, monkeypatch):
    """By a clock that goes on by one whenever somebody looks, far from its zero."""
    ticks = itertools.count(1_000_000)
    monkeypatch.setattr(runs.time, "monotonic", lambda: float(next(ticks)))
    assert 0 < run_problem(halve_kernel, Tensor(3, "bf16", "ties"), fake_device()).seconds < 1000
