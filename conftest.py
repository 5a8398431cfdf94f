"""How much the repository's own tests do: `quick`, unless --refsim-profile says `ci` or `night`.

A law tries as many cases as the profile says; a test marked `ci(reason)` is skipped under `quick`. CI runs all tests as
`ci`. What does more, or runs at all, only beyond `quick` has the marker `deeper`, by which it is run behind a quick run
(`--refsim-profile=ci -m deeper`): everything generated, every test that asks for the profile, and every one marked `ci`.
"""

import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import settings

# Cases of a law here; campaigns, whose profiles these are, try 25 and 200. Which mutants of tests/mutants.toml die is the same
# with 10 as with 25, and the larger profile, whose run everybody waits for before a landing, has no more; night has 5,000.
CASES = {"quick": 10, "ci": 25}
LAWS = Path(__file__).with_name("properties")
# With Python's own thresholds the collector, which looks through 13,000 tests again and again, takes a sixth of a run.
COLLECTED_EVERY = (50_000, 20, 20)
BYTECODE = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--refresh-golden", action="store_true", help="write recorded answers anew instead of comparing")


@pytest.hookimpl(trylast=True)  # the plugin has made its profiles
def pytest_configure(config: pytest.Config) -> None:
    gc.set_threshold(*COLLECTED_EVERY)
    if sys.dont_write_bytecode:
        keep_bytecode(config)
    sys.path.append(str(LAWS.parent))  # conformance/ has modules that tests import; refsim itself is the installed one
    os.environ.pop("COLUMNS", None)  # set in the workers of a parallel run: answers would differ from those of a pipe
    config.addinivalue_line(
        "markers", "ci(reason): takes seconds and repeats what a smaller test shows; not in `quick`"
    )
    config.addinivalue_line("markers", "night(reason): takes longer than a run before every landing has for it")
    config.addinivalue_line("markers", "sampled(count, reason): a sweep of which `ci` runs so many cases, `night` all")
    profile = config.getoption("--refsim-profile")
    if profile in CASES:
        from tests.sweeps import Sweeps

        config.pluginmanager.register(Sweeps(profile))
    if profile in CASES:
        settings.register_profile("laws", settings.get_profile(f"refsim-{profile}"), max_examples=CASES[profile])
        settings.load_profile("laws")
    config.addinivalue_line("markers", "deeper: does more in a larger profile (set by the collection, not by hand)")


def keep_bytecode(config: pytest.Config) -> None:
    """Where Python is told to write none, processes that tests start keep their bytecode in a folder that goes with the run.

    Each would compile refsim anew, a third of a small `refsim verify`; the user's own folders stay as they are.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None:
        folder = tempfile.TemporaryDirectory(prefix="refsim-bytecode-", ignore_cleanup_errors=True)
        config.add_cleanup(folder.cleanup)
        config.stash[BYTECODE] = folder.name
    if worker is not None or config.getoption("dist", "no") == "no":
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = worker["bytecode"] if worker else config.stash[BYTECODE]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """The workers of a parallel run share the folder, which is the controller's to remove."""
    node.workerinput["bytecode"] = node.config.stash.get(BYTECODE, "")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(
                f"{item.nodeid}: an address is no name, workers that run in parallel have others: ids="
            )
        generated = item.get_closest_marker("hypothesis") is not None or item.path.is_relative_to(LAWS)
        asks = "refsim_profile" in getattr(item, "fixturenames", ())
        if generated or asks or item.get_closest_marker("ci") is not None:
            item.add_marker("deeper")


def pytest_collection_finish() -> None:
    """What was collected stays to the end: the collector looks through it no more, which was a tenth of a run."""
    gc.collect()
    gc.freeze()


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """A worker of a parallel run tells of a test once, not five times: beginnings, ends and what went well around the call
    cost more than an empty test. With --durations it tells all."""
    if not hasattr(item.config, "workerinput") or item.config.getoption("durations") is not None:
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


@pytest.fixture(scope="module")
def committed_ptx() -> Iterator[None]:
    """Kernels of the tree run as the PTX of gpu/ptx where NVRTC of that release would compile them anew, a second for each.

    That the PTX is of this source and these flags is held for every file in every run, that NVRTC returns it for some;
    for all of them in larger profiles (tests/device/test_compile.py).
    """
    from refsim.device import compile as compiler
    from refsim.errors import RefsimError

    by_nvrtc = compiler._by_nvrtc

    def kept(unit: Any, target: str, flags: Any, toolchain: Any, instances: tuple[str, ...]) -> Any:
        with suppress(RefsimError):
            found = compiler._bundled(None, unit, target, flags)
            release = found.compiler.removeprefix("NVRTC ")
            if not instances and found.flags == flags and release in toolchain.versions[0].split():
                return found
        return by_nvrtc(unit, target, flags, toolchain, instances)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "_by_nvrtc", kept)
        yield


def pytest_runtest_setup(item: pytest.Item) -> None:
    profile = item.config.getoption("--refsim-profile")
    for name, too_small in (("night", (None, "quick", "ci")), ("ci", (None, "quick"))):
        marker = item.get_closest_marker(name)
        if marker is not None and profile in too_small:
            pytest.skip(f"{marker.args[0]}: --refsim-profile={name}")
