"""docs/ci: the composite action and the workflow, their steps run in a project as a runner runs them, without the network."""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from refsim.cli.commands.new import kernel_files

ROOT = Path(__file__).parents[1]
ACTION, WORKFLOW = ROOT / "docs/ci/action.yml", ROOT / "docs/ci/workflow.yml"
OTHERS = {"actions/checkout@v4", "actions/setup-python@v5", "actions/upload-artifact@v4"}


def read_yaml(text: str) -> Any:
    """The YAML that these files need: mappings, lists of mappings, plain and quoted scalars, blocks behind `|`."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("# ")]
    value, rest = _node(lines, 0)
    assert not rest, rest
    return value


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _node(lines: list[str], indent: int) -> tuple[Any, list[str]]:
    if lines[0].lstrip().startswith("- "):
        items = []
        while lines and _indent(lines[0]) == indent and lines[0].lstrip().startswith("- "):
            inner = indent + 2
            item, lines = _node([" " * inner + lines[0][inner:], *lines[1:]], inner)
            items.append(item)
        return items, lines
    found: dict[str, Any] = {}
    while lines and _indent(lines[0]) == indent:
        match = re.fullmatch(r" *([\w-]+):(?: (.*))?", lines[0])
        assert match, f"no key: {lines[0]!r}"
        key, scalar, lines = match[1], match[2], lines[1:]
        assert key not in found, key
        deeper = 0
        while deeper < len(lines) and _indent(lines[deeper]) > indent:
            deeper += 1
        if scalar == "|":
            block, lines = lines[:deeper], lines[deeper:]
            found[key] = "\n".join(line[_indent(block[0]) :] for line in block) + "\n"
        elif scalar is not None:
            assert not deeper, f"{key} has a value and a block"
            assert scalar[:1] not in "[{&*!>%@`", f"{key}: {scalar} is more YAML than is read here"
            found[key] = scalar[1:-1] if scalar[:1] == '"' else scalar
        elif deeper:
            found[key], left = _node(lines[:deeper], _indent(lines[0]))
            assert not left, left
            lines = lines[deeper:]
        else:
            found[key] = None
    return found, lines


@dataclass
class Runner:
    """Runs the steps of an action or a workflow in a folder; installing is noted, not done."""

    folder: Path
    log: str = ""
    installed: list[str] = field(default_factory=list)
    used: list[str] = field(default_factory=list)
    outputs: dict[str, str] = field(default_factory=dict)
    failed: bool = False

    def steps(self, steps: list[dict[str, Any]], inputs: dict[str, str]) -> None:
        for step in steps:
            if {None: self.failed, "failure()": not self.failed, "always()": False}[step.get("if")]:
                continue
            if "run" in step:
                assert step["shell"] == "bash", "a step of a composite action names its shell"
                self.script(step, inputs)
            elif step["uses"] == "./.github/actions/refsim":
                self.action(step.get("with", {}))
            else:
                self.used.append(step["uses"])

    def action(self, given: dict[str, str]) -> None:
        action = read_yaml(ACTION.read_text())
        assert action["runs"]["using"] == "composite"
        assert set(given) <= set(action["inputs"])
        inputs = {name: row["default"] for name, row in action["inputs"].items()} | given
        self.steps(action["runs"]["steps"], inputs)

    def script(self, step: dict[str, Any], inputs: dict[str, str]) -> None:
        def filled(text: str) -> str:
            return re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda match: inputs[match[1]], text)

        assert "${{" not in step["run"], "what a user gives reaches a script by its environment alone"
        environment = {name: filled(text) for name, text in step.get("env", {}).items()}
        if "pip install" in step["run"]:
            (line,) = step["run"].splitlines()
            self.installed.append(environment[shlex.split(line)[-1].removeprefix("$")])
            return
        output = self.folder / "github-output"
        output.touch()
        tools = self.folder.parent / "bin"
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.folder,
            env={
                **os.environ,
                **environment,
                "GITHUB_OUTPUT": str(output),
                "PATH": f"{tools}:{os.environ['PATH']}",
                "GITHUB_WORKSPACE": str(self.folder),
                "PYTHONPATH": str(ROOT),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        self.log += done.stdout + done.stderr
        self.outputs |= dict(line.split("=", 1) for line in output.read_text().splitlines())
        self.failed |= done.returncode != 0


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    (tmp_path / "bin").mkdir()
    for name, words in (("refsim", "-m refsim"), ("python", "")):
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    folder = tmp_path / "project"
    folder.mkdir()
    for name, text in kernel_files("scale").items():
        (folder / name).write_text(text)
    (folder / "pyproject.toml").write_text('[tool.refsim]\nkernels = ["scale_kernel.py"]\n')
    return Runner(folder)


@pytest.mark.ci("its action runs in every run; both its commands do in CI, with the wheel")
def test_the_workflow_is_green_where_kernels_are_right(runner: Runner) -> None:
    (job,) = read_yaml(WORKFLOW.read_text())["jobs"].values()
    runner.steps(job["steps"], {})
    assert not runner.failed, runner.log
    assert set(runner.used) == OTHERS
    assert runner.outputs == {"exit-code": "0"}
    assert "::error" not in runner.log
    assert ElementTree.parse(runner.folder / "refsim.xml").getroot()[0].get("failures") == "0"
    assert ElementTree.parse(runner.folder / "pytest.xml").getroot() is not None
    (upload,) = [step for step in job["steps"] if "upload" in step.get("uses", "")]
    assert upload["with"]["path"].split() == ["refsim.xml", "pytest.xml", "failures"]


def test_the_action_is_red_with_annotation_and_page_where_one_is_wrong(runner: Runner) -> None:
    source = (runner.folder / "scale.cu").read_text()
    (runner.folder / "scale.cu").write_text(source.replace("i < n;", "i <= n;"))
    runner.action({"arguments": "-k 'scale and not other' --cases 0", "failures": "cases"})
    assert runner.failed
    assert runner.outputs == {"exit-code": "1"}
    assert "\n::error file=scale.cu,line=8,title=scale%3A fail::[out-of-bounds]" in runner.log
    assert ElementTree.parse(runner.folder / "refsim.xml").getroot()[0].get("failures") == "1"
    (page,) = (runner.folder / "cases").glob("*.html")
    assert "scale.cu:8" in page.read_text()


@pytest.mark.ci("a failure ends the action in every run")
def test_an_error_ends_it_with_its_exit_code(runner: Runner) -> None:
    runner.action({"arguments": "-k nothing"})
    assert runner.outputs == {"exit-code": "2"}
    assert "::error title=refsim%3A no-kernels::" in runner.log


def test_it_installs_what_the_readme_installs(runner: Runner) -> None:
    readme = (ROOT / "README.md").read_text()
    (extra,) = set(re.findall(r"<!-- main-job -->[^$]*?pip install -q '\.\[([\w,-]+)\]'", readme))
    runner.action({"arguments": "-k nothing"})
    assert runner.installed == [f"refsim[{extra}]"]


def test_the_page_names_every_option_and_both_files() -> None:
    page = (ROOT / "docs/ci-and-campaigns.md").read_text()
    for wanted in (
        "--as github",
        "--junit",
        "-k EXPR",
        "--fail-fast",
        "--rerun",
        "--as csv",
        "ci/action.yml",
        "ci/workflow.yml",
    ):
        assert wanted in page


@pytest.mark.parametrize("text", ["a: [1, 2]\n", "a: 1\n  b: 2\n", "a\n", "a: 1\na: 2\n"])
def test_yaml_that_is_not_read_is_refused(text: str) -> None:
    with pytest.raises(AssertionError):
        read_yaml(text)
