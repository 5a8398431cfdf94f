"""refsim verify in shards: one report, whether one process does them or several, with workers and drivers that are killed."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import refsim.device
from refsim.campaigns.journal import CampaignJournal, facts_of
from refsim.campaigns.running import run
from refsim.campaigns.shards import CampaignPlan, report
from refsim.campaigns.verifying import Request, opened_database, part, plan_of, recorded, verdict_of
from refsim.campaigns.workers import Inline, LocalWorkers
from refsim.errors import Kind, RefsimError
from refsim.kernels import Kernel
from refsim.testing import find_kernels, run_campaign
from refsim.testing.verdicts import ASSUMED, FAIL, INEXACT, NOT_RUN, PASS, TIMEOUT, UNSUPPORTED, Verdict

KERNELS = """
import os
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from refsim.testing import Kernel, recipes

HERE = Path(__file__).parent
CUDA = '''extern "C" __global__ void add(const unsigned* x, unsigned* y, int n) {
    int i = threadIdx.x;
    if (i < n) y[i] = x[i] + 3 + (n > LIMIT && i == LIMIT);
}'''

def run(launcher, problem):
    with open(HERE / "seen", "a") as stream:
        stream.write(f"{problem.n} {problem.seed} {problem.fill}\\\\n")
    once = HERE / "kills"
    if once.exists() and problem.n % 7 == 3:
        try:
            (once / os.listdir(once)[0]).rmdir()
            os.kill(os.getpid(), 9)
        except (IndexError, FileNotFoundError):
            pass
    x, y = launcher.upload(problem.codes(), name="x"), launcher.output(problem.n, np.uint32, name="y")
    launcher.launch("add", 1, 64, [x, y, np.int32(problem.n)])
    return {"y": launcher.read(y)}

PROBLEMS = st.builds(recipes.Tensor, st.integers(1, 40), st.just("f32"), st.just("bits"), st.integers(0, 1 << 40))
KERNELS = tuple(
    Kernel(name, lambda p: {"y": p.codes() + np.uint32(3)}, PROBLEMS, run, {"y": ""},
           recipes.Tensor, corpus=(recipes.Tensor(5, "f32"),), source=CUDA.replace("LIMIT", str(limit)))
    for name, limit in (("add", 1 << 20), ("adds_wrong", 30)) if name in CHOSEN
)
"""
REQUEST = Request("sim:eager", "sm_80", cases=30, shard_cases=10, suspect_seconds=0)


def declared(folder: Path, *names: str) -> list[Kernel]:
    """Kernels of a file in that folder: `add` is right, `adds_wrong` where a tensor has more than 30 elements."""
    text = KERNELS.replace("\\\\n", "\\n").replace("CHOSEN", repr(names or ("add", "adds_wrong")))
    (folder / "mine.py").write_text(text)
    return list(find_kernels([folder / "mine.py"]))


def verdicts(kernels: list[Kernel], request: Request, folder: Path, executor: Any = None, **how: Any) -> list[Verdict]:
    records = run(plan_of(kernels, request), executor or Inline(), **({"ahead": 1} | how))
    return [verdict_of(each, records[each.name], request, folder / "failures") for each in kernels]


def told(plan: CampaignPlan, found: list[Verdict]) -> str:
    return report(plan.name, plan.rests_on, map(recorded, found))


def test_shards_add_up_and_a_failure_is_a_case_that_replays(tmp_path: Path) -> None:
    kernels = declared(tmp_path)
    right, wrong = verdicts(kernels, REQUEST, tmp_path)
    assert (right.status, right.cases) == (PASS, 31)
    assert right.elements == sum(int(line.split()[0]) for line in (tmp_path / "seen").read_text().splitlines()[:31])
    assert right.counts["y"] == (right.elements, 0)
    assert (wrong.status, wrong.mismatch.count if wrong.mismatch else 0) == (FAIL, 1)
    case = json.loads(Path(wrong.replay).read_text())
    assert case["problem"]["n"] == 31
    assert "31 0" in (tmp_path / "seen").read_text()


def test_the_first_shard_draws_what_an_undivided_campaign_draws(tmp_path: Path) -> None:
    kernel = declared(tmp_path, "add")[0]
    undivided = run_campaign(kernel, refsim.device.open("sim:eager", "sm_80"), cases=10)
    drawn = (tmp_path / "seen").read_text()
    (tmp_path / "seen").unlink()
    verdicts([kernel], Request("sim:eager", "sm_80", cases=10), tmp_path)
    assert (tmp_path / "seen").read_text() == drawn
    assert undivided.cases == 11


def test_further_shards_draw_other_problems_and_the_same_ones_again(tmp_path: Path) -> None:
    kernels = declared(tmp_path, "add")
    drawn = []
    for _ in range(2):
        verdicts(kernels, REQUEST, tmp_path)
        drawn.append((tmp_path / "seen").read_text().splitlines())
        (tmp_path / "seen").unlink()
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) > 24
    verdicts(kernels, Request(**{**vars(REQUEST), "seed": 5}), tmp_path)
    assert (tmp_path / "seen").read_text().splitlines()[1:] != drawn[0][1:]


def test_what_is_drawn_does_not_depend_on_the_modules_that_are_loaded(tmp_path: Path) -> None:
    kernel, drawn = declared(tmp_path, "add")[0], []
    for number in range(2):
        run_campaign(kernel, refsim.device.open("sim:eager", "sm_80"), cases=120, seed=3)
        drawn.append((tmp_path / "seen").read_text())
        (tmp_path / "seen").unlink()
        odd = tmp_path / f"odd{number}.py"
        odd.write_text(f"NUMBERS = {tuple(range(100_000 + number, 100_300))}\n")
        module = ModuleType(odd.stem)
        module.__file__ = str(odd)
        sys.modules[odd.stem] = module
    for number in range(2):
        del sys.modules[f"odd{number}"]
    assert drawn[0] == drawn[1]


def test_fail_fast_leaves_later_kernels_not_run(tmp_path: Path) -> None:
    kernels = declared(tmp_path)[::-1]
    wrong, right = verdicts(kernels, Request(**{**vars(REQUEST), "fail_fast": True}), tmp_path)
    assert (wrong.status, right.status) == (FAIL, NOT_RUN)


def test_a_worker_with_another_file_refuses_its_shard(tmp_path: Path) -> None:
    plan = plan_of(declared(tmp_path, "add"), REQUEST)
    declared(tmp_path, "add", "and another name")
    with pytest.raises(RefsimError) as caught:
        part(json.loads(plan.shards[0].ask))
    assert (caught.value.code, caught.value.kind) == ("other-sources", Kind.MISSING)


def test_a_worker_with_another_header_refuses_its_shard(tmp_path: Path) -> None:
    (tmp_path / "mine.cuh").write_text("#define STEP 3\n")
    [kernel] = declared(tmp_path, "add")
    kernel = replace(kernel, source=f'#include "mine.cuh"\n{kernel.source}', include=(str(tmp_path),))
    shards = [plan_of([kernel], REQUEST).shards[0].ask]
    (tmp_path / "mine.cuh").write_text("#define STEP 4\n")
    shards.append(plan_of([kernel], REQUEST).shards[0].ask)
    assert len({json.loads(ask)["sources"] for ask in shards}) == 2


def test_a_journal_tells_its_seed(tmp_path: Path) -> None:
    plan = plan_of(declared(tmp_path, "add"), Request(**{**vars(REQUEST), "seed": 77}))
    with CampaignJournal(tmp_path / "j", plan):
        pass
    assert facts_of(tmp_path / "j")["seed"] == "77"
    assert facts_of(tmp_path / "none") == facts_of(tmp_path / "mine.py") == {}


def test_a_failure_that_is_shared_is_tried_first_and_forgotten_when_it_passes(tmp_path: Path) -> None:
    request = Request(**{**vars(REQUEST), "examples": str(tmp_path / "examples")})
    kernels = declared(tmp_path, "adds_wrong")
    verdicts(kernels, request, tmp_path)
    (tmp_path / "seen").unlink()
    found = verdicts(kernels, request, tmp_path)[0]
    assert (found.status, found.cases) == (FAIL, 1)
    assert (tmp_path / "seen").read_text().startswith("31 0")
    (tmp_path / "mine.py").write_text((tmp_path / "mine.py").read_text().replace("30)", "1 << 20)"))
    mended = list(find_kernels([tmp_path / "mine.py"]))
    assert [verdicts(mended, request, tmp_path)[0].cases for _ in range(2)] == [32, 31]
    assert verdicts(mended, request, tmp_path)[0].device["device"] == "simulated GPU (sm_80)"


@pytest.mark.parametrize(("name", "code"), [("ftp://x", "bad-campaign"), ("redis://127.0.0.1:1/0", "missing-extra")])
def test_a_database_that_cannot_be_reached_is_an_error(tmp_path: Path, name: str, code: str) -> None:
    from importlib.util import find_spec

    if code == "missing-extra" and find_spec("redis"):
        pytest.skip("the package redis is installed here")
    with pytest.raises(RefsimError, match=code):
        verdicts(declared(tmp_path, "add"), Request(**{**vars(REQUEST), "examples": name}), tmp_path)


@pytest.mark.parametrize(("problem", "kind"), [(OSError, Kind.MISSING), (ValueError, Kind.USAGE)])
def test_a_redis_server_that_does_not_answer_is_an_error(monkeypatch, problem: type[Exception], kind: Kind) -> None:
    def from_url(name: str) -> Any:
        raise problem("refused")

    redis = SimpleNamespace(Redis=SimpleNamespace(from_url=from_url), RedisError=OSError)
    monkeypatch.setitem(sys.modules, "redis", redis)
    monkeypatch.setitem(sys.modules, "hypothesis.extra.redis", SimpleNamespace(RedisExampleDatabase=None))
    with pytest.raises(RefsimError, match="no database answers: refused") as caught:
        opened_database("redis://127.0.0.1:1/0")
    assert (caught.value.code, caught.value.kind) == ("bad-campaign", kind)


def test_the_gravest_part_is_the_verdict_of_the_whole(tmp_path: Path) -> None:
    kernel = declared(tmp_path, "add")[0]
    records = [dict(each) for each in run(plan_of([kernel], REQUEST), Inline(), ahead=1)["add"]]
    for status in (ASSUMED, INEXACT, TIMEOUT, UNSUPPORTED, FAIL):
        records[1] = {**records[1], "status": status, "finding": f"why it is {status}"}
        whole = verdict_of(kernel, records, REQUEST, None)
        assert (whole.status, whole.finding) == (status, f"why it is {status}")
        records = [records[1], records[0], records[2]]
        assert verdict_of(kernel, records, REQUEST, None).status == status
        records = [records[1], records[0], records[2]]


def test_devices_that_differ_are_told(tmp_path: Path) -> None:
    kernel = declared(tmp_path, "add")[0]
    records = [dict(each) for each in run(plan_of([kernel], REQUEST), Inline(), ahead=1)["add"]]
    records[1] = {**records[1], "device": {**records[1]["device"], "driver": "600.1"}}
    notes = verdict_of(kernel, records, REQUEST, None).notes
    assert "its shards ran on devices that differ: driver is nothing or 600.1" in notes


# ---- processes that die ----------------------------------------------------------------------------------------------

MANY = pytest.mark.ci("a dozen processes take seconds to begin: --refsim-profile=ci")


@MANY
def test_eight_workers_of_which_two_are_killed_make_the_same_report(tmp_path: Path) -> None:
    kernels = declared(tmp_path)
    plan = plan_of(kernels, REQUEST)
    alone = told(plan, verdicts(kernels, REQUEST, tmp_path))
    for name in ("1", "2"):
        (tmp_path / "kills" / name).mkdir(parents=True)
    workers, lost = LocalWorkers([{}] * 8), []
    try:
        found = verdicts(kernels, REQUEST, tmp_path, workers, ahead=9, watch=lambda at: lost.append(at.lost))
    finally:
        workers.shutdown()
    assert lost[-1] == 2
    assert told(plan, found) == alone


@MANY
def test_a_driver_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    declared(tmp_path)
    line = "verify --kernels mine.py --device sim:eager --target sm_80 --cases 60 --shard-cases 4 --suspects 0"
    program = [sys.executable, "-m", "refsim", *line.split()]
    whole = subprocess.run([*program, "--report", "whole"], cwd=tmp_path, capture_output=True, timeout=300, check=False)
    assert whole.returncode == 1
    parted = [*program, "--jobs", "2", "--journal", "j", "--report", "parted"]
    driver = subprocess.Popen(parted, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not facts_of(tmp_path / "j") or not _kept(tmp_path / "j"):
        time.sleep(0.05)
        assert driver.poll() is None
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    kept = _kept(tmp_path / "j")
    again = subprocess.run(parted, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert again.returncode == 1
    assert f"going on: {kept} of" in again.stderr
    assert (tmp_path / "parted").read_bytes() == (tmp_path / "whole").read_bytes()


def _kept(journal: Path) -> int:
    import sqlite3

    base = sqlite3.connect(f"file:{journal}?mode=ro", uri=True)
    try:
        return int(base.execute("SELECT count(*) FROM shard").fetchone()[0])
    except sqlite3.OperationalError:
        return 0
    finally:
        base.close()
