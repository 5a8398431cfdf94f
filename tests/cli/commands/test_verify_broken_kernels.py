"""refsim verify: a kernel whose declaration is broken is an error, and the other kernels keep their verdicts."""

import csv
import io
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

DECLARING = '''
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from refsim.testing import Bounded, Kernel, Promise

SOURCE = """
extern "C" __global__ void add(const unsigned* x, unsigned* y) { y[threadIdx.x] = x[threadIdx.x] + 3; }
#if __CUDA_ARCH__ >= 900
extern "C" __global__ void add_new(const unsigned* x, unsigned* y) { y[threadIdx.x] = x[threadIdx.x] + 3; }
#endif
"""

@dataclass(frozen=True)
class Case:
    seed: int = 0

    def x(self):
        return np.random.default_rng(self.seed).integers(0, 1 << 30, 32).astype(np.uint32)

@dataclass(frozen=True)
class Fussy(Case):
    def __post_init__(self):
        if self.seed:
            raise ValueError("no such seed")

def run(launcher, case, entry="add", **options):
    x, y = launcher.upload(case.x(), name="x"), launcher.output(32, np.uint32, name="y")
    launcher.launch(entry, 1, 32, [x, y], **options)
    return {"y": launcher.read(y)}

def oracle(case):
    return {"y": case.x() + np.uint32(3)}

def definition(case, name, at):
    return (int(case.x()[at]) + 3) & 0xFFFFFFFF

GOOD = Kernel("good", oracle, st.builds(Case, st.integers(0, 9)), run, {"y": ""}, Case, corpus=(Case(),), source=SOURCE)

def raising(*arguments):
    raise KeyError("absent")

def named(name, **fields):
    return replace(GOOD, name=name, **fields)

def bounded(name, bound):
    def oracle(case):
        return {"y": Bounded(case.x() + 3.0, np.full(32, bound))}
    return named(name, oracle=oracle, promise=Promise.BOUNDED("a test"))

class Unreadable:
    def __getattr__(self, name):
        raise RuntimeError("no attributes")

'''
BROKEN = {
    "oracle_raises": "named('oracle_raises', oracle=raising)",
    "oracle_exits": "named('oracle_exits', oracle=lambda case: sys.exit(0))",
    "oracle_is_none": "named('oracle_is_none', oracle=lambda case: None)",
    "oracle_wrong_key": "named('oracle_wrong_key', oracle=lambda case: {'z': case.x()})",
    "oracle_wrong_shape": "named('oracle_wrong_shape', oracle=lambda case: {'y': case.x()[:3]})",
    "oracle_wrong_dtype": "named('oracle_wrong_dtype', oracle=lambda case: {'y': case.x().astype(np.uint16)})",
    "oracle_object": "named('oracle_object', oracle=lambda case: {'y': np.array([Unreadable()] * 32)})",
    "oracle_unreadable": "named('oracle_unreadable', oracle=lambda case: Unreadable())",
    "oracle_recurses": "named('oracle_recurses', oracle=lambda case: GOOD.oracle(case) and replace and recursing(case))",
    "bound_nan": "bounded('bound_nan', float('nan'))",
    "bound_negative": "bounded('bound_negative', -1.0)",
    "bound_infinite": "bounded('bound_infinite', float('inf'))",
    "run_raises": "named('run_raises', run=raising)",
    "run_exits": "named('run_exits', run=lambda launcher, case: sys.exit(0))",
    "run_returns_buffer": "named('run_returns_buffer', run=lambda launcher, case: launcher)",
    "strategy_raises": "named('strategy_raises', problem=st.integers(0, 9).map(raising), corpus=())",
    "strategy_of_others": "named('strategy_of_others', problem=st.integers(0, 9))",
    "recipe_raises": "named('recipe_raises', recipe=Fussy, problem=st.builds(Fussy, st.integers(1, 9)), corpus=())",
    "outputs_raise": "named('outputs_raise', outputs=raising)",
    "outputs_unknown": "named('outputs_unknown', outputs=lambda case: {'y': 'bf61'})",
    "no_such_entry": "named('no_such_entry', run=lambda launcher, case: run(launcher, case, 'addd'))",
    "entries_misspelt": "named('entries_misspelt', entries=('ad',))",
    "file_missing": "named('file_missing', source=None, file=Path('absent.cu'))",
    "no_cuda": "named('no_cuda', source='this is no CUDA')",
    "definition_raises": "named('definition_raises', definition=raising)",
    "definition_of_text": "named('definition_of_text', definition=lambda *asked: 'seven')",
    "nothing_compared": "named('nothing_compared', corpus=(), outputs={'y': ''}, run=lambda launcher, case: "
    "{'y': run(launcher, case)['y'][:0]}, oracle=lambda case: {'y': case.x()[:0]})",
}
UNFIT = {
    "new_only": "named('new_only', run=lambda launcher, case: run(launcher, case, 'add_new'))",
    "clusters": "named('clusters', run=lambda launcher, case: run(launcher, case, cluster=1))",
    "shared": "named('shared', run=lambda launcher, case: run(launcher, case, shared_bytes=200_000))",
    "other_ptx": "named('other_ptx', source=None, ptx='.version 8.0\\n.target sm_90a\\n.address_size 64\\n"
    ".visible .entry add() { ret; }')",
}
RECURSING = "def recursing(case):\n    return recursing(case)\n\n"
SIM = ("--device", "sim", "--cases", "3", "--suspects", "0")


def declare(folder: Path, kernels: "dict[str, str]", file: str = "kernels.py") -> str:
    listed = ", ".join(("GOOD", *kernels.values(), "named('last', definition=definition)"))
    (folder / file).write_text(f"{DECLARING}{RECURSING}KERNELS = ({listed})\n")
    return file


def rows_of(out: str) -> "dict[str, dict[str, str]]":
    return {row["kernel"]: row for row in csv.DictReader(io.StringIO(out))}


@pytest.mark.parametrize("division", [(), ("--journal", "kept.sqlite", "--shard-cases", "2")])
def test_each_broken_kernel_is_an_error_and_the_others_pass(refsim, tmp_path, division):
    file = declare(tmp_path, BROKEN)
    run = refsim("verify", "--kernels", file, *SIM, *division, "--as", "csv", "--junit", "verify.xml")
    assert run.code == 2
    rows = rows_of(run.out)
    assert list(rows) == ["good", *BROKEN, "last"]
    statuses = {name: row["status"] for name, row in rows.items()}
    assert statuses == {"good": "pass", **dict.fromkeys(BROKEN, "error"), "last": "pass"}
    line = 1 + (tmp_path / file).read_text().split("\n").index('    raise KeyError("absent")')
    for name in ("oracle_raises", "run_raises", "outputs_raise", "definition_raises", "strategy_raises"):
        assert rows[name]["finding"].startswith("[user-code-raised] ")
        assert "KeyError: 'absent'" in rows[name]["finding"]
        assert (Path(rows[name]["file"]).name, rows[name]["line"]) == (file, str(line))
    (suite,) = ElementTree.parse(tmp_path / "verify.xml").getroot()
    assert (suite.get("errors"), suite.get("failures")) == (str(len(BROKEN)), "0")
    assert sum(case.find("error") is not None for case in suite) == len(BROKEN)


def test_an_error_is_a_verdict_in_json_with_its_code_and_line(refsim, tmp_path):
    declare(tmp_path, {name: BROKEN[name] for name in ("oracle_raises", "bound_nan")})
    run = refsim("verify", "--kernels", "kernels.py", *SIM, "--as", "json")
    record = json.loads(run.out)["oracle_raises"]
    assert (record["status"], record["exit_code"], record["error"]["code"]) == ("error", 2, "user-code-raised")
    assert record["error"]["where"].endswith(" in raising")
    assert json.loads(run.out)["bound_nan"]["error"]["code"] == "bad-bound"


def test_workers_record_errors_too_and_a_process_that_dies_is_one(refsim, tmp_path):
    dying = "named('dying', oracle=lambda case: __import__('os')._exit(7))"
    declare(tmp_path, {"oracle_raises": BROKEN["oracle_raises"], "dying": dying})
    run = refsim("verify", "--kernels", "kernels.py", *SIM, "--jobs", "1", "--as", "csv", "-k", "not dying")
    assert {name: row["status"] for name, row in rows_of(run.out).items()} == {
        "good": "pass",
        "oracle_raises": "error",
        "last": "pass",
    }
    run = refsim("verify", "--kernels", "kernels.py", *SIM, "--jobs", "2", "--as", "csv")
    rows = rows_of(run.out)
    assert (run.code, rows["dying"]["status"], rows["last"]["status"]) == (2, "error", "pass")
    assert rows["dying"]["finding"].startswith("[workers-lost]")


def test_an_interrupt_in_the_code_of_a_kernel_still_ends_the_run(refsim, tmp_path):
    def interrupted(where: str) -> int:
        declare(tmp_path, {"interrupts": f"named('interrupts', {where}=interrupting)"}, f"{where}.py")
        file = tmp_path / f"{where}.py"
        text = file.read_text().replace("KERNELS", "def interrupting(*asked):\n    raise KeyboardInterrupt\n\nKERNELS")
        file.write_text(text)
        return int(refsim("verify", "--kernels", file.name, *SIM).code)

    assert [interrupted(where) for where in ("oracle", "run", "definition", "outputs")] == [130] * 4


def test_a_file_that_cannot_be_imported_costs_no_other_file(refsim, tmp_path):
    declare(tmp_path, {}, "whole.py")
    (tmp_path / "broken.py").write_text("import numpy\nKERNELS = absent\n")
    (tmp_path / "empty.py").write_text("KERNELS = ()\n")
    files = [option for name in ("broken.py", "whole.py", "empty.py") for option in ("--kernels", name)]
    run = refsim("verify", *files, *SIM, "--as", "csv")
    rows = rows_of(run.out)
    assert run.code == 2
    assert {Path(name).name: row["status"] for name, row in rows.items()} == {
        "broken.py": "error",
        "empty.py": "error",
        "good": "pass",
        "last": "pass",
    }
    assert next(row["line"] for name, row in rows.items() if "broken" in name) == "2"
    assert refsim("verify", "good", *files, *SIM).code == 0  # what was asked for was verified
    assert refsim("verify", "goof", *files, *SIM).code == 3
    alone = refsim("verify", "--kernels", "broken.py", *SIM)
    assert (alone.code, alone.err.startswith("[user-code-raised]")) == (3, True)


def test_two_kernels_of_one_name_are_an_error_of_that_name(refsim, tmp_path):
    declare(tmp_path, {}, "one.py")
    declare(tmp_path, {"other": "named('other')"}, "two.py")
    run = refsim("verify", "--kernels", "one.py", "--kernels", "two.py", *SIM, "--as", "csv")
    rows = rows_of(run.out)
    assert run.code == 2
    assert {name: row["status"] for name, row in rows.items()} == {"good": "error", "last": "error", "other": "pass"}
    assert "two kernels are called 'good'" in rows["good"]["finding"]


def test_an_error_outranks_a_failure_and_fail_fast_stops_at_it(refsim, tmp_path):
    wrong = "named('wrong', oracle=lambda case: {'y': case.x()})"
    declare(tmp_path, {"wrong": wrong, "oracle_raises": BROKEN["oracle_raises"]})
    run = refsim("verify", "--kernels", "kernels.py", *SIM, "--as", "csv")
    assert run.code == 2
    assert [row["status"] for row in rows_of(run.out).values()] == ["pass", "fail", "error", "pass"]
    run = refsim("verify", "--kernels", "kernels.py", *SIM, "--as", "csv", "--fail-fast", "-k", "not wrong")
    assert [row["status"] for row in rows_of(run.out).values()] == ["pass", "error", "not-run"]


@pytest.mark.parametrize("division", [(), ("--journal", "kept.sqlite", "--shard-cases", "2")])
def test_what_the_target_does_not_fit_is_unsupported_and_names_one_that_fits(refsim, tmp_path, division):
    declare(tmp_path, UNFIT)
    run = refsim("verify", "--kernels", "kernels.py", *SIM, *division, "--target", "sm_80", "--as", "json")
    assert run.code == 5
    found = json.loads(run.out)
    statuses = {row["kernel"]: row["status"] for row in found["verdicts"]}
    assert statuses == {"good": "pass", **dict.fromkeys(UNFIT, "unsupported"), "last": "pass"}
    for name in UNFIT:
        assert "sm_90" in found[name]["finding"]
    assert found["shared"]["unfit"] == ["add"]
    run = refsim("verify", "--kernels", "kernels.py", *SIM, "--target", "sm_90a", "-k", "not ptx")
    assert run.code == 0


def test_only_the_entries_that_the_target_cannot_launch_are_unsupported(refsim, tmp_path):
    some = "lambda launcher, case: run(launcher, case, shared_bytes=200_000 if case.seed % 2 else 0)"
    mixed = f"named('mixed', run={some}, corpus=tuple(map(Case, range(6))))"
    none = "named('none', run=lambda launcher, case: run(launcher, case, shared_bytes=1 << 20))"
    wrong = f"named('wrong', run={some}, corpus=tuple(map(Case, range(6))), oracle=lambda case: {{'y': case.x()}})"
    declare(tmp_path, {"mixed": mixed, "wrong": wrong, "none": none})
    run = refsim("verify", "--kernels", "kernels.py", *SIM, "--target", "sm_80", "--as", "json")
    assert run.code == 2
    rows = {row["kernel"]: row for row in json.loads(run.out)["verdicts"]}
    assert {name: rows[name]["status"] for name in ("mixed", "wrong", "none")} == {
        "mixed": "unsupported",
        "wrong": "fail",  # a failure outranks what could not run
        "none": "error",  # no target has a MiB of shared memory
    }
    assert rows["mixed"]["elements"] >= 3 * 32
    assert rows["mixed"]["elements"] == 32 * rows["mixed"]["cases"]  # cases that did not run are not counted
