"""The pytest plugin in suites of its own: its device, its report, and that it disturbs nobody."""

import os
import subprocess
import sys

import pytest

SUITE = """
    import numpy as np
    from refsim.testing import assert_bits_equal

    def test_device(device):
        print("runs on", device.name)
        assert_bits_equal(np.array([1, 2], np.uint8), np.array([1, 3], np.uint8), "e4m3")
"""
CONFTEST = """
    import contextlib, dataclasses
    import refsim.device

    @dataclasses.dataclass
    class Fake:
        name: str

    refsim.device.open = Fake
"""


@pytest.fixture
def run_suite(tmp_path):
    """Runs pytest with only this plugin, in a process of its own, in an empty folder."""

    def run(*arguments, **files):
        for name, text in files.items():
            lines = text.strip("\n").splitlines()
            (tmp_path / f"{name}.py").write_text("\n".join(line[4:] for line in lines) + "\n")
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "pytest", "-p", "refsim.testing.plugin", "-p", "no:cacheprovider", *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        ).stdout

    return run


def test_report_has_a_section_with_the_difference(run_suite):
    output = run_suite("--device", "sim", conftest=CONFTEST, test_it=SUITE)
    assert "refsim: bits that differ" in output
    assert "first   [1]   got 0x02 0.00390625   want 0x03 0.005859375   -1 ulp" in output
    assert "runs on sim" in output


@pytest.mark.parametrize("option", ["--device=cuda:1", "--refsim-device=cuda:1"])
def test_device_is_chosen_on_the_command_line(run_suite, option):
    assert "runs on cuda:1" in run_suite(option, conftest=CONFTEST, test_it=SUITE)


def test_suite_keeps_its_own_device_option(run_suite):
    own = (
        CONFTEST
        + """
    def pytest_addoption(parser):
        parser.addoption("--device", default="theirs")
    """
    )
    suite = (
        SUITE
        + """
    def test_theirs(pytestconfig):
        assert pytestconfig.getoption("--device") == "tpu"
    """
    )
    output = run_suite("--device", "tpu", conftest=own, test_it=suite)
    assert "runs on sim" in output
    assert "1 failed, 1 passed" in output


def test_profile_is_loaded_only_on_request(run_suite):
    suite = """
    from hypothesis import settings

    def test_profile():
        print("examples", settings.default.max_examples, settings.default.print_blob)
        assert False
    """
    assert "examples 100" in run_suite(test_it=suite)
    assert "examples 25 True" in run_suite("--refsim-profile=quick", test_it=suite)


def test_unused_plugin_imports_nothing():
    script = "import sys, refsim.testing.plugin; print([m for m in ('numpy', 'hypothesis') if m in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"
