"""The pytest plugin: it selects a device on the command line and makes reports of failures readable.

It is loaded into every pytest run where refsim is installed. It imports nothing and touches no Hypothesis profile until
one of its options or fixtures is used. `--device` gives way to an option of that name in a suite's own conftest.
"""

import argparse
import contextlib
import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from refsim.testing import heard

if TYPE_CHECKING:
    from refsim.device import Device

PROFILE_NAMES = ("quick", "ci", "night")
OURS, WITHOUT, FIXTURE = "--refsim-device", "--refsim-without", "refsim_device"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options --refsim-device, --refsim-without, --refsim-profile and --refsim-failures."""
    group = parser.getgroup("refsim", "refsim: kernels against their oracles")
    help = "what kernels run on: sim (default), cuda, cuda:N; also --device, where no conftest has that option"
    group.addoption(OURS, dest="refsim_device", metavar="NAME", default="sim", help=help)
    help = "how much to generate; also the Hypothesis profile of this run: quick and ci repeat, night has a new seed"
    group.addoption("--refsim-profile", choices=PROFILE_NAMES, default=None, help=help)
    help = "turn off a check of the simulated GPU, or waive its finding at one line; also --without"
    group.addoption(WITHOUT, dest="refsim_without", metavar="NAME[@FILE:LINE]", action="append", default=[], help=help)
    group.addoption("--refsim-failures", metavar="DIR", default=None, help="write replay cases of failing kernels here")


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(parser: pytest.Parser) -> Generator[None, Any, Any]:
    """Add --device and --without as aliases, unless a conftest of the suite has options of these names."""
    loaded = yield
    with contextlib.suppress(ValueError, argparse.ArgumentError):  # a suite with its own --device keeps it
        parser.addoption("--device", dest="refsim_device", metavar="NAME", default="sim", help=f"short for {OURS}")
    with contextlib.suppress(ValueError, argparse.ArgumentError):
        parser.addoption("--without", dest="refsim_without", action="append", default=[], help=f"short for {WITHOUT}")
    return loaded


def pytest_configure(config: pytest.Config) -> None:
    """Register a Hypothesis profile for each budget and load the one that --refsim-profile names."""
    chosen = config.getoption("--refsim-profile")
    if chosen is not None:
        from hypothesis import settings

        from refsim.testing.campaign import SEARCH_BUDGETS

        for row in SEARCH_BUDGETS.values():
            drawn: dict[str, Any] = {"max_examples": row.cases, "derandomize": not row.new_seed}
            settings.register_profile(f"refsim-{row.name}", **drawn, deadline=None, database=None, print_blob=True)
        settings.load_profile(f"refsim-{chosen}")


@pytest.fixture(scope="session")
def refsim_device(pytestconfig: pytest.Config) -> "Iterator[Device]":
    """Yield the device that --refsim-device names, opened once: `refsim.device.open("sim")` without the option.

    After the last test, a waiver of --refsim-without that allowed no finding in any launch is an error.
    """
    import refsim.device

    without = pytestconfig.getoption("refsim_without")
    opened = refsim.device.open(pytestconfig.getoption("refsim_device"), **({"without": without} if without else {}))
    yield opened
    if not hasattr(pytestconfig, "workerinput") and (unused := getattr(opened, "unused_waivers", ())):
        from refsim.errors import RefsimError

        raise RefsimError("unused-waiver", f"{', '.join(unused)} allowed no finding", WITHOUT)


@pytest.fixture(scope="session")
def device(refsim_device: "Device") -> "Device":
    """Return `refsim_device` under a shorter name, unless a conftest has a fixture of that name."""
    return refsim_device


@pytest.fixture(scope="session")
def refsim_profile(pytestconfig: pytest.Config) -> str:
    """Return the campaign profile of this run: the value of --refsim-profile, else quick."""
    return str(pytestconfig.getoption("--refsim-profile") or PROFILE_NAMES[0])


@pytest.fixture(scope="session")
def refsim_failures(pytestconfig: pytest.Config) -> str | None:
    """Return the folder for replay cases: the value of --refsim-failures, else None."""
    folder: str | None = pytestconfig.getoption("--refsim-failures")
    return folder


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Remove Hypothesis's default deadline from tests that use the device, because launches are slow.

    A deadline of the test itself, or of a profile of its suite, stays.
    """
    heard.forget()
    function = _function(item)
    if FIXTURE not in getattr(item, "fixturenames", ()) or not getattr(function, "is_hypothesis_test", False):
        return
    from hypothesis import HealthCheck, settings

    own = getattr(function, "_hypothesis_internal_use_settings", None) or settings()
    deadline = None if own.deadline == settings.get_profile("default").deadline else own.deadline
    slow = {HealthCheck.too_slow, HealthCheck.function_scoped_fixture, *own.suppress_health_check}
    chosen = settings(parent=own, suppress_health_check=sorted(slow, key=str), deadline=deadline)
    function._hypothesis_internal_use_settings = chosen


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Remove the default deadline also from functions with @given that a test's body defines and calls."""
    if FIXTURE not in getattr(item, "fixturenames", ()) or "hypothesis" not in sys.modules:
        return (yield)
    from hypothesis import settings

    if settings().deadline != settings.get_profile("default").deadline:
        return (yield)
    settings.register_profile("refsim-before", parent=settings())
    settings.register_profile("refsim-without-deadline", parent=settings(), deadline=None)
    settings.load_profile("refsim-without-deadline")
    try:
        return (yield)
    finally:
        settings.load_profile("refsim-before")


def _function(item: pytest.Item) -> Any:
    """Return the function of a test, without the binding to a class."""
    bound = getattr(item, "obj", None)
    return getattr(bound, "__func__", bound)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add device, seeds and hashes to the report, and refsim's sections to the report of a failure."""
    uses = FIXTURE in getattr(item, "fixturenames", ())
    error = None if call.excinfo is None or call.when != "call" else call.excinfo.value
    if not (uses or heard.verdicts or type(error).__module__.startswith(("refsim.", "refsim_run."))):
        return (yield)
    from refsim.testing import reports

    if call.when == "call":
        known = reports.properties(getattr(item, "funcargs", {}).get(FIXTURE), heard.verdicts)
        item.user_properties.extend((*known, *_seed(item)))
        if profile := item.config.getoption("--refsim-profile"):
            item.user_properties.append(("refsim.profile", str(profile)))
    if error is None or isinstance(error, pytest.skip.Exception):
        return (yield)
    with reports.hidden_frames(error):
        report = yield
    repeat = f"pytest '{item.nodeid}' {OURS}={item.config.getoption('refsim_device')}"
    folder = item.config.getoption("--refsim-failures")
    report.sections.extend(reports.sections(error, heard.verdicts, repeat, folder))
    return report


def _seed(item: pytest.Item) -> list[tuple[str, str]]:
    """Return the property with the seed from which Hypothesis drew the test's cases; empty if it has none."""
    seed = getattr(_function(item), "_hypothesis_internal_use_generated_seed", None)
    return [] if seed is None else [("refsim.hypothesis_seed", str(seed))]
