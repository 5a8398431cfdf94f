"""The report as data: exit codes, JSON there and back, baseline, JUnit, HTML, and the state that survives a kill."""

import json
import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from refsim.bringup.html_report import page
from refsim.bringup.junit import junit
from refsim.bringup.report import (
    DIFFERS,
    NOT_RUN,
    PASS,
    UNSUPPORTED,
    Case,
    Difference,
    Report,
    changes_since,
    read_report,
)
from refsim.bringup.state import State
from refsim.bringup.suites import Suite, run_suites
from refsim.bringup.tasks import Task, outcome
from refsim.errors import Kind, RefsimError

HOSTILE = '<script src="http://x/y.js">&\x00\x1b[31m"\'\U0001f600'
EXPLAINED = Difference(("k = 0: 0x38 (1) x 0x38 (1)",), "0x1", "0x2", "matches sm_89: F = 13, L = 16", True)
UNEXPLAINED = Difference((HOSTILE,), "0x3", "0x4", "unexplained")
FACTS = {"device": f"GPU {HOSTILE}", "target": "sm_90a", "driver": "1.2"}
CASES = (
    Case("conversions", "cvt.rn.f16.f32", PASS, 1 << 32, coverage="all 2^32 patterns"),
    Case("numerics", "mma.a", DIFFERS, 100, 3, 1.5, note="near", difference=EXPLAINED),
    Case("numerics", "mma.b", UNSUPPORTED, note=HOSTILE),
    Case("kernels", "fp8_amax", NOT_RUN, note="no ptxas"),
    Case("discovery", "mma.a", PASS, 64, parameters={"length": 16, "fraction": 13, "zero_exponent": None}),
)
FAILING = (*CASES, Case("layouts", HOSTILE, DIFFERS, 7, 2, difference=UNEXPLAINED))


def report(cases=FAILING, **changes):
    return replace(Report(FACTS, cases, simulated=False), **changes)


def test_only_unexplained_differences_fail():
    assert report(CASES).exit_code == 0
    assert report(FAILING).exit_code == 1
    assert report((Case("numerics", "mma.c", DIFFERS),)).exit_code == 1
    assert report((*FAILING, Case("kernels", "k", NOT_RUN, bug=True))).exit_code == 70


def test_a_run_that_compared_nothing_does_not_agree():
    assert report((CASES[2], CASES[3])).exit_code == 5
    assert report(()).exit_code == 5
    assert report(CASES[2:]).exit_code == 0


def test_the_verdict_counts_explained_differences_apart():
    assert report().verdict == (
        "2 pass, 1 differ unexplained, 1 differ and are explained, 1 unsupported, 1 not run; 4,294,967,467 words compared"
    )


def test_json_keeps_every_case(tmp_path):
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report().to_json()))
    assert read_report(path) == report()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"kind": "refsim-bringup", "cases": 3}',
        '{"kind": "refsim-bringup", "cases": [{"suite": 1}]}',
        '{"kind": "refsim-bringup", "simulated": false, "facts": {}, "cases": [{"suite": "a", "name": "b", "status": "well"}]}',
        "\udcff",
        "[" * 100_000,
    ],
    ids=lambda content: content[:60],
)
def test_a_file_that_is_no_report_is_refused(tmp_path, content):
    path = tmp_path / "old.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(RefsimError) as caught:
        read_report(path)
    assert (caught.value.code, caught.value.exit_code, caught.value.where) == ("bad-baseline", 3, str(path))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("differing", "3"),
        ("seconds", None),
        ("note", 5),
        ("coverage", []),
        ("parameters", None),
        ("bug", "no"),
        ("difference", {"smallest": [1], "got": "a", "want": "b"}),
        ("difference", {"smallest": "ab", "got": "a", "want": "b"}),
        ("difference", {"smallest": ["a"], "got": 1, "want": "b"}),
        ("difference", 7),
        ("name", None),
        ("words", 1.5),
    ],
    ids=str,
)
def test_a_case_of_wrong_types_is_refused(place, value):
    with pytest.raises(RefsimError) as caught:
        Case.from_json({**CASES[0].to_json(), place: value})
    assert (caught.value.code, caught.value.exit_code) == ("bad-case", 3)


def test_facts_that_are_no_texts_are_refused(tmp_path):
    path = tmp_path / "old.json"
    path.write_text(json.dumps({**report().to_json(), "facts": {"device": 5}}))
    with pytest.raises(RefsimError, match="device is 5"):
        read_report(path)


def test_a_baseline_shows_what_changed_and_nothing_else():
    before = report()
    cases = (
        replace(CASES[0], seconds=9.0, words=5),
        replace(CASES[1], differing=4),
        replace(CASES[2], status=PASS),
        CASES[3],
        replace(CASES[4], parameters={"length": 16, "fraction": 25, "zero_exponent": None}),
        FAILING[5],
        Case("numerics", "mma.new", PASS),
    )
    changes = changes_since(before, cases, {**FACTS, "driver": "1.3"})
    assert [(change.case, change.before, change.now) for change in changes] == [
        ("driver", "1.2", "1.3"),
        (
            "numerics: mma.a",
            "explained; 3 words; matches sm_89: F = 13, L = 16",
            "explained; 4 words; matches sm_89: F = 13, L = 16",
        ),
        ("numerics: mma.b", "unsupported", "pass"),
        ("discovery: mma.a", "pass; length 16, fraction 13", "pass; length 16, fraction 25"),
        ("numerics: mma.new", "absent", "pass"),
    ]
    assert changes_since(before, FAILING, FACTS) == ()
    gone = changes_since(before, CASES[:2], FACTS)
    assert [change.case for change in gone] == ["numerics: mma.b"]


# ---- JUnit -----------------------------------------------------------------------------------------------------------


def test_junit_is_xml_with_a_failure_for_each_unexplained_difference():
    root = ElementTree.fromstring(junit(report()))
    assert root.tag == "testsuites"
    assert (root.get("tests"), root.get("failures"), root.get("skipped")) == ("6", "1", "2")
    names = [suite.get("name") for suite in root]
    assert names == ["conversions", "numerics", "kernels", "discovery", "layouts"]
    (failed,) = [case for case in root.iter("testcase") if case.find("failure") is not None]
    assert failed.get("name").startswith('<script src="http://x/y.js">&')
    assert failed.find("failure").get("message") == "2 of 7 words differ"
    skipped = [case.get("name") for case in root.iter("testcase") if case.find("skipped") is not None]
    assert skipped == ["mma.b", "fp8_amax"]
    (explained,) = [case for case in root.iter("testcase") if case.get("name") == "mma.a" and len(case)]
    assert "matches sm_89" in explained.find("system-out").text


def test_junit_has_an_error_for_each_bug_of_refsim():
    root = ElementTree.fromstring(
        junit(report((*CASES, Case("kernels", "k", NOT_RUN, note="a bug of refsim", bug=True))))
    )
    assert (root.get("failures"), root.get("errors"), root.get("skipped")) == ("0", "1", "2")
    (error,) = root.iter("error")
    assert error.get("message") == "a bug of refsim"


def test_junit_says_simulated():
    root = ElementTree.fromstring(junit(report(CASES, simulated=True)))
    assert {suite.get("name").split()[0] for suite in root} == {"simulated"}


# ---- HTML ------------------------------------------------------------------------------------------------------------


class Reader(HTMLParser):
    """Tags, attributes and text of a page; unbalanced tags fail."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def read(html):
    reader = Reader()
    reader.feed(html)
    assert reader.open == []
    return reader


def test_the_page_fetches_nothing_and_escapes_everything():
    html = page(report(changes=changes_since(report(), CASES[:2], FACTS)))
    reader = read(html)
    assert "script" not in reader.tags
    assert not {"img", "link", "iframe", "object"} & set(reader.tags)
    assert {name for name, _ in reader.attributes} <= {
        "lang",
        "charset",
        "name",
        "content",
        "class",
        "href",
        "title",
        "id",
        "scope",
    }
    links = {value for name, value in reader.attributes if name == "href"}
    assert all(link.startswith("#") for link in links)
    assert links <= {f"#{value}" for name, value in reader.attributes if name == "id"}
    assert "url(" not in html
    assert "@import" not in html
    assert '<script src="http://x/y.js">&' in reader.text


def test_the_page_shows_every_case_difference_and_parameter():
    reader = read(page(report()))
    for expected in (
        "Matrix",
        "cvt.rn.f16.f32",
        "all 2^32 patterns",
        "matches sm_89",
        "explained",
        "4,294,967,296",
        "unseen",
    ):
        assert expected in reader.text
    squares = [value for name, value in reader.attributes if name == "class" and value.startswith("cell ")]
    assert squares == ["cell pass", "cell explained", "cell unsupported", "cell notrun", "cell pass", "cell differs"]
    assert "prefers-color-scheme: dark" in page(report())


def test_the_page_says_simulated():
    assert "Simulated: no GPU took part" in read(page(report(CASES, simulated=True))).text
    assert "Simulated" not in read(page(report(CASES))).text


# ---- the run and its state -------------------------------------------------------------------------------------------


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
        with pytest.raises(RefsimError, match="bad-baseline"):
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
        assert (case.status, case.note) == (NOT_RUN, "no ptxas")
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("error", "status", "bug"),
    [
        (RefsimError("unknown-instruction", "no clause for wgmma"), UNSUPPORTED, False),
        (RefsimError("compile-error", "NVRTC refused x.cu", kind=Kind.UNREADABLE), UNSUPPORTED, False),
        (RefsimError("launch-failed", "the kernel did not come to its end", kind=Kind.FAULT), DIFFERS, False),
        (ValueError("shapes"), NOT_RUN, True),
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
