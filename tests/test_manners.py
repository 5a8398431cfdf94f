"""What holds of every test file: no clock is read, and the profile says how much is generated."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COMMANDS = (
    "conformance/batch_invariance.py",
    "tests/test_manners.py",
    "conformance/block_scaled_campaign.py",
    "conformance/explained/broken.py",
    "conformance/explained/trials.py",
    "conformance/explained_kernels/trials.py",
    "conformance/night.py",
    "conformance/special_functions_replay.py",
    "conformance/spread_campaign.py",
    "tests/matrix.py",
)
FILES = [
    path
    for folder in ("tests", "properties", "conformance")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path.relative_to(ROOT).as_posix() not in COMMANDS and ROOT / "tests/fuzz" not in path.parents
]
"""The fuzzers, the campaign and the replays are no tests: they are told how long they may take, or say how long they took."""
CLOCKS = re.compile(r"\b(?:perf_counter|monotonic|process_time|thread_time|timeit|time\.time)(?:_ns)?\(")
PINNED = re.compile(r"\b(?:max_examples|deadline)=")
# What strategies draw is asked of so many draws; suites outside the checkout, or written by a test, have no profile of ours.
MAY_PIN = ("tests/testing/test_plugin.py", "tests/testing/test_strategies.py", "tests/third_party/test_third_party.py")


def names_of(files: list[Path]) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in files]


def test_no_test_reads_a_clock() -> None:
    """A busy machine would decide what it says: assert what is loaded, called or allocated; benchmarks compare times."""
    assert FILES
    assert names_of([path for path in FILES if CLOCKS.search(path.read_text("utf-8"))]) == []


def test_laws_take_their_number_of_cases_from_the_profile() -> None:
    """`refsim.testing.strategies.share` where a case is dear, nothing elsewhere."""
    assert names_of([path for path in FILES if PINNED.search(path.read_text("utf-8"))]) == sorted(MAY_PIN)


@pytest.mark.parametrize(
    "line", ["assert time.time() - began < 20", "began = perf_counter_ns()", "if monotonic() > end:"]
)
def test_a_clock_is_recognised(line: str) -> None:
    assert CLOCKS.search(line)
