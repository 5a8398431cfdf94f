"""A small part of `python -m tests.fuzz`: damaged files and odd command lines end as errors of the input, and soon."""

import subprocess
import sys
from pathlib import Path

import pytest

from refsim.errors import Kind, RefsimError

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits of memory need Linux")
ROOT = Path(__file__).parents[1]


def fuzz(*arguments: str) -> str:
    """What the campaign prints, in a process of its own: it limits its memory and moves its caches."""
    command = [sys.executable, "-m", "tests.fuzz", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.ci("more of the same draws, in CI too; tests/files damages files of every kind in every run")
def test_damaged_files():
    assert "190 files, seed 0: 0 findings" in fuzz("files", "--count", "190")


@pytest.mark.ci("more of the same draws, in CI too; the recorded refusals are compared in every run")
def test_odd_command_lines():
    assert "15 lines, seed 0: 0 findings" in fuzz("lines", "--count", "15")


@pytest.mark.ci("more of the same draws")
def test_more_of_both():
    assert ": 0 findings" in fuzz("files", "--count", "4000", "--seed", "1")
    assert ": 0 findings" in fuzz("lines", "--count", "600", "--seed", "1")


@pytest.mark.parametrize("wrong", ["raises", "bug", "memory", "slow", "says so"])
def test_the_watch_sees_what_goes_wrong(wrong):
    """Each in a process of its own, like the campaign."""
    script = (
        f"from tests.test_fuzz import misbehave; from tests.fuzz import watched\nwatched.SECONDS = 0.1\n"
        f"with watched.limits():\n    print(watched.attempt('x', 1, lambda: misbehave({wrong!r})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.startswith("Finding(subject='x', index=1"), done


def misbehave(how: str) -> str:
    if how == "raises":
        raise KeyError("x")
    if how == "bug":
        raise RefsimError("internal-error", "x", kind=Kind.BUG)
    if how == "memory":
        return str(len(bytearray(2 << 30)))[:0]
    if how == "slow":
        while True:
            pass
    return "it says so"


def test_the_watch_lets_errors_and_answers_pass():
    script = (
        "from refsim.errors import RefsimError; from tests.fuzz import watched\n"
        "def refuse(): raise RefsimError('x', 'y')\n"
        "with watched.limits():\n    print(watched.attempt('x', 1, refuse), watched.attempt('x', 1, lambda: [1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "None None\n"


@pytest.mark.ci("loads every command of the program")
def test_draws_are_repeated():
    import random

    from tests.fuzz import lines, mutations

    def drawn(seed: str) -> object:
        draw = random.Random(seed)
        return [mutations.mutated(draw, [b'{"a": [1, 2]}', b"x = 3\n"]) for _ in range(50)], [
            lines.drawn(draw) for _ in range(50)
        ]

    assert drawn("1") == drawn("1") != drawn("2")
