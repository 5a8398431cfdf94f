"""The pytest plugin: a `device` fixture chosen on the command line, and the bit diff as a section of the report.

It is loaded into every pytest run where refsim is installed, so it imports nothing and touches no Hypothesis profile
until one of its options or fixtures is used; `--device` gives way to an option of that name in a suite's own conftest.
"""

import argparse
import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from refsim.device import Device

PROFILES = ("quick", "ci", "night")
OURS = "--refsim-device"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("refsim", "refsim: kernels against their oracles")
    group.addoption(
        OURS,
        dest="refsim_device",
        metavar="NAME",
        default="sim",
        help="what kernels run on: sim (default), cuda, cuda:N; also --device, where no conftest has that option",
    )
    group.addoption(
        "--refsim-profile",
        choices=PROFILES,
        default=None,
        help="how much to generate; also the Hypothesis profile of this run: quick and ci repeat, night has a new seed",
    )
    group.addoption("--refsim-failures", metavar="DIR", default=None, help="write replay cases of failing kernels here")


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(parser: pytest.Parser) -> Generator[None, Any, Any]:
    loaded = yield
    with contextlib.suppress(ValueError, argparse.ArgumentError):  # a suite with its own --device keeps it
        parser.addoption("--device", dest="refsim_device", metavar="NAME", default="sim", help=f"short for {OURS}")
    return loaded


def pytest_configure(config: pytest.Config) -> None:
    chosen = config.getoption("--refsim-profile")
    if chosen is not None:
        from hypothesis import settings

        from refsim.testing.campaign import PROFILES as ROWS

        for row in ROWS.values():
            settings.register_profile(
                f"refsim-{row.name}",
                max_examples=row.cases,
                derandomize=not row.new_seed,
                deadline=None,
                database=None,
                print_blob=True,
            )
        settings.load_profile(f"refsim-{chosen}")


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> "Device":
    """The device that --device names, opened once: `refsim.device.open("sim")` without the option."""
    import refsim.device

    return refsim.device.open(pytestconfig.getoption("refsim_device"))


@pytest.fixture(scope="session")
def refsim_profile(pytestconfig: pytest.Config) -> str:
    """The campaign profile of this run: that of --refsim-profile, else quick."""
    return str(pytestconfig.getoption("--refsim-profile") or PROFILES[0])


@pytest.fixture(scope="session")
def refsim_failures(pytestconfig: pytest.Config) -> str | None:
    """The folder for replay cases: that of --refsim-failures, else None."""
    folder: str | None = pytestconfig.getoption("--refsim-failures")
    return folder


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    mismatch = getattr(call.excinfo.value, "mismatch", None) if call.excinfo is not None else None
    if mismatch is not None and hasattr(mismatch, "lines"):
        report.sections.append(("refsim: bits that differ", str(mismatch)))
    return report
