"""A plugin of pytest for tests that run on the simulated GPU: a time limit for each, how it ended, what memory it left behind."""

import gc
import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from refsim.errors import Kind, RefsimError
from refsim.standins.records import TestRecord
from refsim.standins.session import current
from refsim.standins.startup import is_started


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Around a test with its fixtures: what it left allocated."""
    if not is_started():
        return (yield)
    session = current()
    before = session.memory.count
    try:
        return (yield)
    finally:
        if session.memory.held_since(before):
            gc.collect()  # what is garbage is not held
        if held := session.memory.held_since(before):
            session.tests.setdefault(item.nodeid, TestRecord()).held_bytes = held


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """How it ended, as pytest has it."""
    if is_started() and (report.when == "call" or not report.passed):
        said = report.longreprtext.strip().splitlines()[-1:] if report.failed else []
        current().tests.setdefault(report.nodeid, TestRecord()).ended(report.outcome, "".join(said))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """The time limit holds for the test's own body, in the main thread."""
    seconds = current().settings.test_seconds if is_started() else 0.0
    if not seconds:
        return (yield)

    def stop(signum: int, frame: FrameType | None) -> None:
        raise RefsimError("test-timeout", f"{item.nodeid} ran for {seconds:g} s", kind=Kind.INCONCLUSIVE)

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
