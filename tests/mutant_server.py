"""Runs tests in a copy of the tree, again and again: a process beside a worker of `make mutants`.

Each line of stdin is a JSON list of tests. They run in a child of this process, which has loaded what every run needs and nothing
of refsim: the child sees the copy as it stands now. Each line of the answer has the exit code and the first test that failed.
"""

import importlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterable
from importlib.util import find_spec
from typing import TextIO

IN_ONE_PROCESS = ("-n", "0") if find_spec("xdist") else ()  # where it is not installed there is one anyway
PYTEST = ("-q", "-x", *IN_ONE_PROCESS, "-p", "no:cacheprovider", "--tb=no", "--assert=plain")
LOADED = ("hypothesis.strategies", "ml_dtypes", "numpy", "pytest", "xml.etree.ElementTree")
SECONDS = 300


def serve() -> None:
    for name in LOADED:
        importlib.import_module(name)
    said = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for line in sys.stdin:
        with tempfile.TemporaryFile("w+") as report:
            child = os.fork()
            if child == 0:
                os.setsid()
                code = run_tests(json.loads(line), report)
                report.flush()
                os._exit(code)
            code = _ended(child, SECONDS)
            report.seek(0)
            os.write(said, (json.dumps([code, report.read().split()]) + "\n").encode())


def _ended(child: int, seconds: int) -> int:
    """The exit code of a process and its children, which have so many seconds."""

    def late(*_: object) -> None:
        os.killpg(child, signal.SIGKILL)

    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    status = os.waitpid(child, 0)[1]
    signal.alarm(0)
    return os.waitstatus_to_exitcode(status)


def run_tests(tests: Iterable[str], written: TextIO) -> int:
    """pytest in this process until a test fails; its name goes to `written`.

    A law that fails is not shrunk: that takes minutes.
    """
    import pytest

    class Failures:
        @pytest.hookimpl(trylast=True)  # there is a profile
        def pytest_configure(self) -> None:
            from hypothesis import Phase, settings

            settings.register_profile("unshrunk", settings.default, phases=(Phase.explicit, Phase.generate))
            settings.load_profile("unshrunk")

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                print(report.nodeid.partition("[")[0], file=written)

    sys.path.insert(0, os.getcwd())
    return int(pytest.main([*PYTEST, *tests], plugins=[Failures()]))


if __name__ == "__main__":
    serve()
