"""The commit-msg hook refuses subjects that are long, no imperative, or about two changes."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.commit_message import faults

ROOT = Path(__file__).parents[1]
GOOD = (
    "Add a checker of plain English with planted sentences",
    "explain-diff: report an all-NaN tail as unwritten",
    "ptx explain: show one sentence for each form",
    "Pass the target to nvcc\n\nNVRTC took it from the environment.\n",
    "Process tensor maps of rank 1\n# a comment of git's, which may be as long as it likes and begin with anything at all\n",
    "Merge branch 'checks'",
    "Embed the PTX in the wheel",
    "Feed the corpus to the campaign first",
    "Re-run the tests of `explain`",
    'Revert "A row of its own"',
    "fixup! anything",
    f"Describe {'x' * 63}",
    "`explain`: show codes",
)
BAD = {
    "A tail of NaN is one again": "imperative",
    "Fixed the decoder of E4M3": "imperative",
    "Adds a check": "imperative",
    "Renaming of rows": "imperative",
    "Of large outputs causes are tried last": "imperative",
    "explain-diff: names an all-NaN tail": "imperative",
    "Fix the decoder; add a page": "semicolon",
    "Fix the decoder.": "full stop",
    "Describe " + "every change " * 6: "characters",
    "Fix the decoder\nbecause it was wrong": "second line",
    "": "empty",
    "x": "imperative",
    f"Describe {'x' * 64}": "73 characters",
    "Change of the decoder": "imperative",
    "WIP: add a check": "imperative",
    "::: add a check": "imperative",
    "Merge": "one word",
    "Merges of branches": "imperative",
    "Revert": "one word",
    "tests: fix": "one word",
    "Fix #26": "number of an issue",
    "Add a check,": "ends with ','",
    "Add a check…": "ends with '…'",
}


@pytest.mark.parametrize("message", GOOD)
def test_a_good_message_passes(message: str) -> None:
    assert list(faults(message)) == []


@pytest.mark.parametrize("message", BAD)
def test_a_bad_message_is_refused(message: str) -> None:
    assert any(BAD[message] in fault for fault in faults(message))


def test_the_hook_of_the_configuration_refuses_a_bad_message(tmp_path: Path) -> None:
    config = (ROOT / ".pre-commit-config.yaml").read_text("utf-8")
    assert "entry: python -m tests.commit_message" in config
    for message, code in (
        (b"A row of its own", 1),
        (b"Add an entry", 0),
        (b"\xef\xbb\xbfAdd an entry", 0),
        (b"\xff", 1),
    ):
        file = tmp_path / "COMMIT_EDITMSG"
        file.write_bytes(message)
        done = subprocess.run(
            [sys.executable, "-m", "tests.commit_message", str(file)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
