"""A pytest plugin for tests on the simulated GPU: a time limit per test, its outcome, and memory that it kept."""

import gc
import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from refsim.errors import Kind, RefsimError
from refsim_run.records import TestRecord
from refsim_run.session import current
from refsim_run.startup import is_started


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Record the device memory that a test and its fixtures left allocated."""
    if not is_started():
        return (yield)
    session = current()
    before = session.memory.count
    try:
        return (yield)
    finally:
        if session.memory.held_since(before):
            gc.collect()  # garbage does not count as held
        if held := session.memory.held_since(before):
            session.tests.setdefault(item.nodeid, TestRecord()).held_bytes = held


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record the outcome of a test, as pytest reports it, with the last line of a failure."""
    if is_started() and (report.when == "call" or not report.passed):
        said = report.longreprtext.strip().splitlines()[-1:] if report.failed else []
        current().tests.setdefault(report.nodeid, TestRecord()).ended(report.outcome, "".join(said))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Enforce the time limit on the test's own body, in the main thread; RefsimError `test-timeout`."""
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
