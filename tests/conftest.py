"""Tests marked `peers(package, ...)` compare refsim with other implementations, which have an environment of their own."""

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

MARKER = "peers"
INSTALL = "pip install '.[testing,peers]' in an environment of its own"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{MARKER}(*packages): compares with other implementations; `-m {MARKER}` fails where one is absent"
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Absent packages are a stated reason to skip, and a failure for whoever asked for these tests by `-m peers`."""
    marker = item.get_closest_marker(MARKER)
    if marker is None:
        return
    missing = [f"{name} is not installed" for name in marker.args if find_spec(name) is None]
    if "mmasim" in marker.args and shutil.which(os.environ.get("CXX", "c++")) is None:
        missing.append("there is no C++ compiler, with which mmasim builds a file when imported")
    if missing:
        reason = f"{', '.join(missing)}: nothing to compare with ({INSTALL})"
        if item.config.getoption("markexpr") == MARKER:
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    if find_spec("torch") is not None:
        import torch

        torch.set_num_threads(1)  # on few cores its default is ten times slower, and jitters


@pytest.fixture(scope="session", autouse=True)
def replayed_once() -> Iterator[None]:
    """What commands replay of recorded silicon, each anew, the commands of a test run share: the model does not change."""
    from refsim.silicon import launch_replay

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch_replay, "afresh", lambda: None)
        yield
