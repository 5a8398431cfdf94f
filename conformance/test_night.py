"""The page of a night of replays: what it counts, and that the tests it is of exist."""

import datetime
from collections import Counter

import pytest

from conformance import night

XML = """<testsuites><testsuite>
<testcase classname="conformance.test_recorded_wmma" name="a" time="1.5"/>
<testcase classname="conformance.test_recorded_wmma" name="b" time="2"><failure message="x"/></testcase>
<testcase classname="conformance.test_recorded_wmma" name="c" time="0"><skipped message="x"/></testcase>
<testcase classname="conformance.test_recorded_sparse" name="d" time="4"><error message="x"/></testcase>
</testsuite></testsuites>"""
WHEN = datetime.datetime(2026, 11, 23, 4, 5, tzinfo=datetime.UTC)


def test_outcomes_are_counted_by_file(tmp_path):
    (tmp_path / "night.xml").write_text(XML)
    found = night.read(tmp_path / "night.xml", 7.0)
    assert found.outcomes == {
        "conformance/test_recorded_wmma.py": Counter(passed=1, failed=1, skipped=1),
        "conformance/test_recorded_sparse.py": Counter(failed=1),
    }
    text = night.page(found, "0123abc", ["-n", "4"], WHEN)
    assert "Run 2026-11-23 at 04:05 UTC on commit 0123abc" in text
    assert "1 passed, 2 failed, 1 skipped in 7 s." in text
    assert "| `conformance/test_recorded_wmma.py` | 1 | 1 | 1 | 4 |" in text
    assert "python -m conformance.night -o conformance/reports/night.md -- -n 4\n" in text


def test_every_recording_is_replayed_by_some_test():
    """But for those of special functions and cuBLASLt, each of which has a report of its own."""
    known = {f"conformance/{file.name}" for file in (night.ROOT / "conformance").glob("test_recorded_*.py")}
    apart = {f"conformance/test_recorded_{name}.py" for name in ("banks", "cublaslt", "special_functions")}
    assert set(night.REPLAYS) == known - apart


def test_a_folder_that_is_not_there_is_refused_before_anything_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["night", "-o", str(tmp_path / "none" / "page.md")])
    monkeypatch.setattr(night.subprocess, "run", pytest.fail)
    assert night.main() == 2
    assert "there is no such folder" in capsys.readouterr().err
