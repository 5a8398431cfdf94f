"""Conformance suites run on the device that `--device` names: the simulated GPU by default."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from refsim.testing import Kernel


def pytest_configure(config: pytest.Config) -> None:
    if not any(config.pluginmanager.hasplugin(name) for name in ("refsim", "refsim.testing.plugin")):
        raise pytest.UsageError("refsim's pytest plugin is not loaded: pip install -e ., or -p refsim.testing.plugin")


@pytest.fixture
def of_the_corpus(refsim_profile: str) -> Callable[[Kernel], Kernel]:
    """A kernel with every seventh problem of its corpus in the quick profile, with all of them in the larger ones.

    `refsim verify` runs the whole corpora wherever the tests run. Every format, kind of scale and misalignment is
    among those that are left.
    """
    return lambda kernel: replace(kernel, corpus=kernel.corpus[:: 7 if refsim_profile == "quick" else 1])
