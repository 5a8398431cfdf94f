"""A run of suites and its state, which survives a kill; what errors become."""

import json
import os
import re

import pytest

from refsim.bringup.report import DIFFERS, LEFT_OUT, Task, outcome, read_report
from refsim.bringup.state import State
from refsim.bringup.suites import Suite, run_suites
from refsim.errors import Kind, RefsimError
from refsim.testing.verdicts import PASS, UNSUPPORTED

HOSTILE = '<script src="http://x/y.js">&\x00\x1b[31m"\'\U0001f600'
FACTS = {"device": f"GPU {HOSTILE}", "target": "sm_90a", "driver": "1.2"}


class Stopped(BaseException):
    """What a kill is to the run."""


def suite(ran, stop_at=None, names=("a", "b", "c", "d"), name="numerics"):
    def tasks(device):
        def task(each):
            def run():
                if each == stop_at:
                    raise Stopped
                ran.append(each)
                return outcome(PASS, words=4)

            return Task(each, run)

        return [task(each) for each in names]

    return Suite(name, "", tasks, lambda: "f")


def state(folder, *, facts=FACTS, fingerprint="f", name="numerics"):
    return State(folder, facts, {name: fingerprint})


def test_a_killed_run_goes_on_where_it_stopped(tmp_path):
    ran = []
    with pytest.raises(Stopped):
        list(run_suites(None, [suite(ran, stop_at="c")], state(tmp_path)))
    assert ran == ["a", "b"]
    steps = []
    cases = list(run_suites(None, [suite(ran)], state(tmp_path), steps.append))
    assert ran == ["a", "b", "c", "d"]
    assert [case.name for case in cases] == ["a", "b", "c", "d"]
    assert [step.kept for step in steps] == [True, True, False, False]


@pytest.mark.parametrize(
    "change", [{"fingerprint": "g"}, {"facts": {**FACTS, "driver": "2"}}, {"name": "layouts"}], ids=str
)
def test_another_hash_device_or_suite_begins_anew(tmp_path, change):
    ran = []
    list(run_suites(None, [suite(ran)], state(tmp_path)))
    later = state(tmp_path, **change)
    list(run_suites(None, [suite(ran, name=change.get("name", "numerics"))], later))
    assert ran == ["a", "b", "c", "d"] * 2
    assert later.discarded == (4 if "fingerprint" in change else 0)


def test_a_suite_that_was_not_asked_for_keeps_its_cases(tmp_path):
    ran = []
    list(run_suites(None, [suite(ran)], state(tmp_path)))
    list(run_suites(None, [suite(ran, name="layouts")], state(tmp_path, name="layouts")))
    list(run_suites(None, [suite(ran)], state(tmp_path)))
    assert len(ran) == 8


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"form": 1, "suites": {"numerics": {}}}', b"\xff\x00", b"[" * 100_000]
)
def test_a_damaged_state_is_as_good_as_none(tmp_path, content):
    ran = []
    first = state(tmp_path)
    list(run_suites(None, [suite(ran)], first))
    first.path.write_bytes(content)
    assert len(list(run_suites(None, [suite(ran)], state(tmp_path)))) == 4
    assert len(ran) == 8


def test_an_edited_state_runs_again_and_says_so(tmp_path):
    """A case that failed does not pass because a file says so; the checksum is of what the cases say."""
    ran = []
    first = state(tmp_path)
    list(run_suites(None, [suite(ran)], first))
    kept = first.path.read_text()
    assert len(state(tmp_path)) == 4
    assert not state(tmp_path).is_damaged
    for edited in (
        kept.replace('"words": 4', '"words": 5', 1),
        kept.replace('"status": "pass"', '"status": "unsupported"', 1),
        kept[: len(kept) // 2],
        kept.replace('"sha256": "', '"sha256": "0', 1),
        json.dumps({key: value for key, value in json.loads(kept).items() if key != "sha256"}),
    ):
        assert edited != kept
        first.path.write_text(edited)
        assert len(state(tmp_path)) == 0
        assert state(tmp_path).is_damaged
    first.path.write_text(json.dumps(json.loads(kept), indent=1, sort_keys=True))
    assert len(state(tmp_path)) == 4


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_state_that_is_a_pipe_is_not_waited_for(tmp_path):
    path = state(tmp_path).path
    os.mkfifo(path)
    assert state(tmp_path).is_damaged
    with pytest.raises(RefsimError, match="not-a-file"):
        list(run_suites(None, [suite([])], state(tmp_path)))
    for name in ("", path.name):
        with pytest.raises(RefsimError, match="bad-file"):
            read_report(tmp_path / name)


def test_a_state_that_cannot_be_removed_is_an_error_of_the_user(tmp_path):
    kept = state(tmp_path)
    kept.path.mkdir()
    with pytest.raises(RefsimError) as caught:
        kept.clear()
    assert caught.value.code == "cannot-write"


def test_clear_forgets_and_leaves_no_file(tmp_path):
    kept = state(tmp_path)
    list(run_suites(None, [suite([])], kept))
    assert len(kept) == 4
    kept.clear()
    assert list(tmp_path.iterdir()) == []


def test_what_was_not_run_is_tried_again(tmp_path):
    calls = []

    def tasks(device):
        def run():
            calls.append(1)
            raise RefsimError("assembler-missing", "no ptxas", kind=Kind.MISSING)

        return [Task("a", run)]

    for _ in range(2):
        (case,) = run_suites(None, [Suite("numerics", "", tasks, str)], state(tmp_path))
        assert (case.status, case.note) == (LEFT_OUT, "no ptxas")
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("error", "status", "bug"),
    [
        (RefsimError("unknown-instruction", "no clause for wgmma"), UNSUPPORTED, False),
        (RefsimError("compile-error", "NVRTC refused x.cu", kind=Kind.UNREADABLE), UNSUPPORTED, False),
        (RefsimError("launch-failed", "the kernel did not come to its end", kind=Kind.FAULT), DIFFERS, False),
        (ValueError("shapes"), LEFT_OUT, True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_becomes_the_case_that_it_means(tmp_path, error, status, bug):
    def tasks(device):
        def run():
            raise error

        return [Task("a", run)]

    (case,) = run_suites(None, [Suite("numerics", "", tasks, str)], state(tmp_path))
    assert (case.status, case.bug) == (status, bug)
    assert case.unexplained is (status == DIFFERS)
    assert re.search("clause|refused|did not come|shapes", case.note)


def test_a_suite_that_cannot_list_its_cases_is_one_case(tmp_path):
    def tasks(device):
        raise RefsimError("unknown-target", "no target is called 'sm_70'")

    (case,) = run_suites(None, [Suite("numerics", "", tasks, str)], state(tmp_path))
    assert (case.suite, case.name, case.status) == ("numerics", "all", UNSUPPORTED)
