"""refsim bringup in shards: every case once, in order, on whichever worker; what could not run is not kept."""

import json
from pathlib import Path
from typing import Any

import pytest

import refsim.device
from refsim.bringup import suites
from refsim.bringup.report import DIFFERS, LEFT_OUT, Difference, Task, outcome
from refsim.bringup.state import facts_of
from refsim.bringup.suites import Suite
from refsim.campaigns.bringing_up import case, cases_of, plan_of
from refsim.campaigns.journal import CampaignJournal
from refsim.campaigns.running import run
from refsim.campaigns.workers import Inline
from refsim.errors import Kind, RefsimError


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A suite `small` of three cases: one agrees, one differs, one lacks a tool; the names of those that ran."""
    ran: list[str] = []

    def task(name: str, status: str, **facts: Any) -> Task:
        return Task(name, lambda: (ran.append(name), outcome(status, **facts))[1])

    def missing() -> Any:
        ran.append("absent")
        raise RefsimError("no-tool", "ptxas is not here", kind=Kind.MISSING)

    rows = [task("same", "pass", words=8), task("other", DIFFERS, difference=Difference(("1",), "0x1", "0x2"))]
    small = Suite("small", "", lambda device: [*rows, Task("absent", missing)], lambda: "fingerprint")
    monkeypatch.setattr(suites, "SUITES", (*suites.SUITES, small))
    return ran


def test_cases_come_in_order_and_what_did_not_run_runs_again(asked: list[str], tmp_path: Path) -> None:
    device = refsim.device.open("sim:eager", "sm_80")
    plan = plan_of(device, "sim:eager", "sm_80", ["small"], None, facts_of(device))
    for _ in range(2):
        with CampaignJournal(tmp_path / "j", plan) as journal:
            cases = cases_of(run(plan, Inline(), journal=journal))
            assert [(each.suite, each.name, each.status) for each in cases] == [
                ("small", "same", "pass"),
                ("small", "other", DIFFERS),
                ("small", "absent", LEFT_OUT),
            ]
    assert cases[1].difference == Difference(("1",), "0x1", "0x2")
    assert asked == ["same", "other", "absent", "absent"]


def test_a_worker_with_another_refsim_refuses(asked: list[str]) -> None:
    device = refsim.device.open("sim:eager", "sm_80")
    plan = plan_of(device, "sim:eager", "sm_80", ["small"], None, {})
    with pytest.raises(RefsimError, match="other-sources"):
        case(json.loads(plan.shards[0].ask) | {"refsim": "another"})
    assert asked == []
