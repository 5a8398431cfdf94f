"""Conformance suites run on the device that `--device` names: the simulated GPU by default."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if not any(config.pluginmanager.hasplugin(name) for name in ("refsim", "refsim.testing.plugin")):
        raise pytest.UsageError("refsim's pytest plugin is not loaded: pip install -e ., or -p refsim.testing.plugin")
