"""refsim new kernel: what it writes agrees at once, by refsim verify and by pytest; nobody's file is touched."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import refsim as package
from refsim.cli.commands.new import kernel_files

NAMES = ["scale.cu", "scale_kernel.py", "test_scale.py"]
LATER = pytest.mark.ci("a kernel of another name, which is the same text, verifies in every run")
CHECKOUT = str(Path(package.__file__).parents[1])


def outside(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A process of its own in that folder, as its user starts it."""
    environment = {**os.environ, "PYTHONPATH": CHECKOUT}
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", ["scale", pytest.param("int", marks=LATER), pytest.param("numpy", marks=LATER)])
def test_a_new_kernel_verifies_and_its_tests_pass(refsim, tmp_path, name):
    run = refsim("new", "kernel", name)
    assert (run.code, run.err) == (0, "")
    answer = refsim("verify", "--kernels", f"{name}_kernel.py", "--device", "sim", "--cases", "5", "--as", "json")
    assert answer.code == 0, answer.out + answer.err
    (verdict,) = json.loads(answer.out)["verdicts"]
    assert verdict["status"] == "pass"
    assert verdict["cases"] > 10
    assert verdict["elements"] > 10_000


def named_commands(refsim):
    return json.loads(refsim("new", "kernel", "scale", "--path", "made/here", "--as", "json").out)["next"]


def test_it_names_the_commands_that_come_next(refsim):
    steps = named_commands(refsim)
    assert steps["test"] == "pytest made/here/test_scale.py"
    assert steps["verify"] == "refsim verify --kernels made/here/scale_kernel.py"


@pytest.mark.ci("CI runs both commands on such a kernel, with the wheel")
def test_the_commands_that_it_names_are_green(refsim, tmp_path):
    steps = named_commands(refsim)
    tested = outside(tmp_path, *steps["test"].split(), "-q", "-p", "no:cacheprovider")
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert " passed" in tested.stdout
    verified = outside(tmp_path, *steps["verify"].split(), "--device", "sim", "--cases", "2")
    assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("i < n;", "i <= n;"),
        ("__NV_SATFINITE", "__NV_NOSAT"),
        ("__NV_E4M3)", "__NV_E5M2)"),
        ("* scale", "* (scale + x[0])"),
    ],
)
def test_a_kernel_that_is_broken_fails(refsim, tmp_path, right, wrong):
    refsim("new", "kernel", "scale")
    source = (tmp_path / "scale.cu").read_text()
    assert right in source
    (tmp_path / "scale.cu").write_text(source.replace(right, wrong.replace("x[0]", "__bfloat162float(x[0])")))
    assert (
        refsim("verify", "--kernels", "scale_kernel.py", "--device", "sim", "--cases", "0", "--suspects", "0").code == 1
    )


@pytest.mark.parametrize("there", NAMES)
def test_no_file_is_replaced_and_nothing_is_written_beside_it(refsim, tmp_path, there):
    (tmp_path / there).write_text("mine")
    run = refsim("new", "kernel", "scale")
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith(f"[file-exists] {there} is there already")
    assert os.listdir(tmp_path) == [there]
    assert (tmp_path / there).read_text() == "mine"


def test_a_link_that_leads_nowhere_is_there_too(refsim, tmp_path):
    (tmp_path / "scale.cu").symlink_to(tmp_path / "nowhere")
    assert refsim("new", "kernel", "scale").code == 2
    assert os.listdir(tmp_path) == ["scale.cu"]


@pytest.mark.parametrize("name", ["", "2fast", "a-b", "a.b", "../up", "a b", "ä", "x" * 61, "_x", "a\n", "-x", "a;b"])
def test_what_is_no_name_is_refused(refsim, tmp_path, name):
    run = refsim("new", "kernel", "--", name)
    assert (run.code, run.out) == (2, "")
    assert "[bad-kernel]" in run.err
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_is_one_error(refsim, tmp_path):
    (tmp_path / "file").write_text("")
    run = refsim("new", "kernel", "scale", "--path", "file/inside")
    assert (run.code, run.out) == (2, "")
    assert run.err.startswith("[cannot-write]")


@pytest.mark.parametrize(
    ("project", "lines"),
    [
        (None, ["[tool.refsim]", 'kernels = ["scale_kernel.py"]']),
        ("[project]\nname = 'x'\n", ["[tool.refsim]", 'kernels = ["scale_kernel.py"]']),
        ("[tool.refsim]\nkernels = ['a/b.py']\n", ["[tool.refsim]", 'kernels = ["a/b.py", "scale_kernel.py"]']),
        ("[tool.refsim]\nkernels = ['scale_kernel.py']\n", []),
    ],
)
def test_pyproject_is_left_alone_and_its_lines_are_told(refsim, tmp_path, project, lines):
    if project is not None:
        (tmp_path / "pyproject.toml").write_text(project)
    answer = json.loads(refsim("new", "kernel", "scale", "--as", "json").out)
    assert answer["next"]["pyproject"] == lines
    assert project is None or (tmp_path / "pyproject.toml").read_text() == project
    if lines:
        (tmp_path / "pyproject.toml").write_text("\n".join(lines).replace('"a/b.py", ', ""))
    assert "scale" in refsim("kernels").out


def test_a_pyproject_that_cannot_be_read_stops_it_before_it_writes(refsim, tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool")
    assert refsim("new", "kernel", "scale").code == 3
    assert os.listdir(tmp_path) == ["pyproject.toml"]


def test_what_is_written_keeps_the_rules_of_this_project(tmp_path):
    if find_spec("ruff") is None:
        pytest.skip("ruff is not installed: pip install refsim[dev]")
    for name, text in kernel_files("scale").items():
        (tmp_path / name).write_text(text)
        assert max(map(len, text.splitlines())) <= 120
    checked = subprocess.run(
        [
            sys.executable,
            "-m",
            "ruff",
            "check",
            "--isolated",
            "--line-length",
            "120",
            "--select",
            "E,F,W,I,N,B,UP",
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout
