"""The report as data: exit codes, JSON there and back, baseline, JUnit, HTML."""

import json
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from refsim.bringup.html_report import junit, page
from refsim.bringup.report import DIFFERS, LEFT_OUT, Case, Difference, Report, changes_since, read_report
from refsim.errors import RefsimError
from refsim.testing.verdicts import PASS, UNSUPPORTED

HOSTILE = '<script src="http://x/y.js">&\x00\x1b[31m"\'\U0001f600'
EXPLAINED = Difference(("k = 0: 0x38 (1) x 0x38 (1)",), "0x1", "0x2", "matches sm_89: F = 13, L = 16", True)
UNEXPLAINED = Difference((HOSTILE,), "0x3", "0x4", "unexplained")
FACTS = {"device": f"GPU {HOSTILE}", "target": "sm_90a", "driver": "1.2"}
CASES = (
    Case("conversions", "cvt.rn.f16.f32", PASS, 1 << 32, coverage="all 2^32 patterns"),
    Case("numerics", "mma.a", DIFFERS, 100, 3, 1.5, note="near", difference=EXPLAINED),
    Case("numerics", "mma.b", UNSUPPORTED, note=HOSTILE),
    Case("kernels", "fp8_amax", LEFT_OUT, note="no ptxas"),
    Case("discovery", "mma.a", PASS, 64, parameters={"length": 16, "fraction": 13, "zero_exponent": None}),
)
ALL_RAN = tuple(case for case in CASES if case.status != LEFT_OUT)
FAILING = (*CASES, Case("layouts", HOSTILE, DIFFERS, 7, 2, difference=UNEXPLAINED))


def report(cases=FAILING, **changes):
    return replace(Report(FACTS, cases, simulated=False), **changes)


def test_only_unexplained_differences_fail():
    assert report(ALL_RAN).exit_code == 0
    assert report(FAILING).exit_code == 1
    assert report((Case("numerics", "mma.c", DIFFERS),)).exit_code == 1
    assert report((*FAILING, Case("kernels", "k", LEFT_OUT, bug=True))).exit_code == 70


def test_a_run_that_compared_nothing_does_not_agree():
    assert report((CASES[2], CASES[3])).exit_code == 5
    assert report(()).exit_code == 5
    assert report(ALL_RAN[2:]).exit_code == 0


def test_what_did_not_run_stands_first_in_every_form_and_is_exit_5():
    cases = (
        CASES[0],
        *(Case("numerics", f"mma.{n}", LEFT_OUT, note="no NVRTC: pip install") for n in range(3)),
        CASES[3],
    )
    found = report(cases)
    assert found.exit_code == 5
    assert found.missing == (
        "4 of 5 cases did not run: nothing is known of them",
        "3 x no NVRTC: pip install",
        "1 x no ptxas",
    )
    assert found.verdict.startswith("4 of 5 not run, 1 pass")
    assert list(found.to_json())[:2] == ["kind", "missing"]
    body = page(found).partition("<body>")[2]
    assert body.index("4 of 5 cases did not run") < body.index("<h1>")
    assert report(ALL_RAN).missing == ()
    assert report(ALL_RAN).to_json()["missing"] == []
    assert "did not run" not in page(report(ALL_RAN))


def test_the_verdict_counts_explained_differences_apart():
    assert report().verdict == (
        "1 of 6 not run, 2 pass, 1 differ unexplained, 1 differ and are explained, 1 unsupported; 4,294,967,467 words compared"
    )


def test_the_verdict_says_what_was_compared_with_a_recording_alone():
    found = report((replace(CASES[0], recorded=(1 << 32) - 917504), CASES[-1]))
    assert found.verdict.endswith("4,294,967,360 words compared, 917,568 with the model, the others with a recording")
    assert Report(FACTS, found.cases, False).to_json()["cases"][0]["recorded"] == 4294049792


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
        '{"kind": "refsim-verify", "cases": [], "facts": {}, "simulated": false}',
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
    assert (caught.value.code, caught.value.exit_code, caught.value.where) == ("bad-file", 3, str(path))


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
    assert (caught.value.code, caught.value.exit_code) == ("bad-file", 3)


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
    (noted,) = ElementTree.fromstring(junit(report((replace(CASES[0], note="seen twice"),)))).iter("testcase")
    assert noted.find("system-out").text == "seen twice"


def test_junit_has_an_error_for_each_bug_of_refsim():
    root = ElementTree.fromstring(
        junit(report((*CASES, Case("kernels", "k", LEFT_OUT, note="a bug of refsim", bug=True))))
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
    assert ">16<" in page(report()), "a parameter that was found; zero_exponent is unseen"


def test_the_page_says_simulated():
    assert "Simulated: no GPU took part" in read(page(report(CASES, simulated=True))).text
    assert "Simulated" not in read(page(report(CASES))).text
