"""Verdicts as a table, an exit code, notices and JUnit: the gravest decides, and nothing undecided is green."""

import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import strategies as st

from refsim.cli.answers.verdicts import Judged, answer, devices, exit_code, heading, junit, page
from refsim.errors import RefsimError
from refsim.kernels import Kernel
from refsim.render import Excerpt
from refsim.testing.verdicts import KIND_OF, Verdict


@dataclass(frozen=True)
class Nothing:
    n: int = 0


KERNEL = Kernel("k", lambda _: {}, st.builds(Nothing), lambda *_: {}, {"y": ""}, recipe=Nothing, source="int a;")
FACTS = {"name": "sim", "target": "sm_90a", "device": "simulated GPU", "kernel_file": "k.cu", "ptx_sha256": "12"}


def judged(status: str, name: str = "k", **fields) -> Judged:
    fields = {
        "device": FACTS,
        "finding": "" if status in ("pass", "not-run") else f"[{status}] said\n  at: here",
    } | fields
    return Judged(KERNEL, Verdict(name, status, profile="quick", **fields))


def test_the_gravest_verdict_is_the_exit_code() -> None:
    codes = {"pass": 0, "fail": 1, "not-run": 4, "inexact": 5, "assumed": 5, "unsupported": 5, "timeout": 5, "error": 2}
    assert codes.keys() == KIND_OF.keys()
    order = [2, 1, 4, 5, 0]
    for chosen in itertools.product(codes, repeat=3):
        gravest = min((codes[status] for status in chosen), key=order.index)
        assert exit_code([judged(status) for status in chosen]) == gravest
        assert answer([judged(status) for status in chosen]).exit_code == gravest
    assert exit_code([]) == 0


@pytest.mark.parametrize("status", KIND_OF)
def test_what_is_said_of_each_status(status: str) -> None:
    found = answer([judged(status)]).document
    said = [part.key for part in found.parts]
    assert ("k" in said) == (status not in ("pass", "not-run"))
    assert [notice.title for notice in found.notices] == ([f"k: {status}"] if status not in ("pass", "not-run") else [])
    noted = answer([judged(status, notes=("bits are open",))]).document
    assert ("k" in [part.key for part in noted.parts]) == (status != "not-run")


ELEMENTS = {"pass": None, "fail": "failure", "not-run": "skipped"}


@pytest.mark.parametrize("status", KIND_OF)
def test_nothing_that_decides_nothing_is_green_in_junit(status: str) -> None:
    suite = ElementTree.fromstring(junit([judged("pass", "first"), judged(status)])).find("testsuite")
    element = ELEMENTS.get(status, "error")
    counts = {
        word: int(suite.get(name))
        for word, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped"))
    }
    assert (int(suite.get("tests")), counts) == (2, {word: int(word == element) for word in counts})
    children = [child.tag for child in suite.findall("testcase")[1] if child.tag != "properties"]
    assert children == ([element] if element else [])
    if element:
        assert suite.find(f".//{element}").get("type") == status


def test_junit_holds_every_seed_and_spells_what_xml_cannot() -> None:
    odd = judged("fail", seed=0, finding="<&\x00\ud800> \x1b[31m")
    suite = ElementTree.fromstring(junit([odd, judged("pass", "free")]).encode())
    cases = {
        case.get("name"): {each.get("name"): each.get("value") for each in case.iter("property")}
        for case in suite.iter("testcase")
    }
    assert (cases["k"]["seed"], "seed" in cases["free"], cases["k"]["target"]) == ("0", False, "sm_90a")
    assert "<&\ufffd\ufffd> \ufffd[31m" in suite.find(".//failure").text


def test_junit_holds_the_error_that_ended_the_run() -> None:
    error = RefsimError("compile-error", "no such header", where="k.cu:3")
    suite = ElementTree.fromstring(junit([judged("pass", "first")], ("second", error))).find("testsuite")
    assert (suite.get("tests"), suite.get("errors"), suite.get("failures")) == ("2", "1", "0")
    case = suite.findall("testcase")[1]
    assert (case.get("name"), case.find("error").get("type"), case.find("error").get("message")) == (
        "second",
        "compile-error",
        "no such header",
    )
    assert "k.cu:3" in case.find("error").text


def test_excerpts_stand_behind_the_finding_and_the_first_that_can_be_opened_is_the_place() -> None:
    in_memory = Excerpt("PTX", 7, ((7, "add;"),), None, None)
    in_file = Excerpt("k.cu", 3, ((3, "y = x;"),), Path("k.cu"), 3)
    found = replace(judged("fail", notes=("worth knowing",)), excerpts=(in_memory, in_file))
    lines = found.lines()
    assert lines[1:3] == ["[fail] said", "  at: here"]
    assert lines[3 : 3 + len(in_memory.lines())] == in_memory.lines()
    assert lines[-1] == "note  worth knowing"
    assert (found.place, found.headline) == (("k.cu", 3), "[fail] said")
    (notice,) = answer([found]).document.notices
    assert (notice.file, notice.line) == (Path("k.cu"), 3)


def verdicts(*all_facts: dict[str, str]) -> list[Verdict]:
    return [judged("pass", f"k{number}", device=facts).verdict for number, facts in enumerate(all_facts)]


def test_what_all_ran_on_is_said_once_and_what_differs_under_its_file() -> None:
    other = FACTS | {"kernel_file": "other.cu", "ptx_sha256": "34"}
    shared, first, second = devices(verdicts(FACTS, FACTS, other))
    assert (shared.key, first.key, second.key) == ("device", "k.cu", "other.cu")
    assert shared.lines == (f"{'device':15}  simulated GPU",)
    assert [line for line in (*first.lines, *second.lines) if "sha256" in line] == [
        f"{'ptx_sha256':15}  12",
        f"{'ptx_sha256':15}  34",
    ]
    assert [each.key for each in devices(verdicts(FACTS))] == ["device"]


def test_the_host_library_of_a_kernel_is_named_with_its_digest() -> None:
    _, built = devices(verdicts(FACTS, {**FACTS, "host": "libk.so 0123456789abcdef"}))
    assert built.lines[1:] == ("host             libk.so 0123456789abcdef",)


def test_each_build_of_a_file_that_was_built_twice_is_said_under_its_kernels() -> None:
    """Two kernels of one file with other macros are two texts of PTX: the hash of one says nothing of the other."""
    other = FACTS | {"ptx_sha256": "34"}
    shared, *builds = devices(verdicts(FACTS, other, FACTS))
    assert shared.lines == (f"{'device':15}  simulated GPU",)
    assert [(each.key, each.lines[1]) for each in builds] == [
        ("k.cu: k0, k2", f"{'ptx_sha256':15}  12"),
        ("k.cu: k1", f"{'ptx_sha256':15}  34"),
    ]


@pytest.mark.parametrize(
    ("statuses", "title", "note", "tone"),
    [
        (["pass"], "k0 passes", "all pass", "good"),
        (["pass", "pass"], "2 kernels pass", "all pass", "good"),
        (["fail"], "k0: fail", "1 of 1 do not pass", "bad"),
        (["pass", "inexact"], "1 of 2 kernels do not pass", "1 of 2 do not pass", "open"),
        (["pass", "assumed"], "1 of 2 kernels do not pass", "1 of 2 do not pass", "open"),
        (["inexact", "fail", "pass"], "2 of 3 kernels do not pass", "2 of 3 do not pass", "bad"),
    ],
)
def test_a_page_is_called_by_what_does_not_pass(statuses: list[str], title: str, note: str, tone: str) -> None:
    found = [judged(status, f"k{number}") for number, status in enumerate(statuses)]
    assert heading(found) == title
    summary = page(found)[0]
    assert (summary.status, summary.tone) == (note, tone)


def test_a_row_of_the_table_has_the_counts_of_its_verdict() -> None:
    table = answer([judged("fail", cases=3, elements=75, differing=6, seconds=1.25)]).document.parts[0]
    row = dict(zip((column.label or column.key for column in table.columns), table.rows[0], strict=True))
    assert (row["cases"], row["elements"], row["differing"], row["time"]) == (3, 75, 6, "1.2")
