"""Conformance suites run on the device that `--device` names: the simulated GPU by default."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from refsim.silicon import launch_replay
from refsim.testing import Kernel


def pytest_configure(config: pytest.Config) -> None:
    if not any(config.pluginmanager.hasplugin(name) for name in ("refsim", "refsim.testing.plugin")):
        raise pytest.UsageError("refsim's pytest plugin is not loaded: pip install -e ., or -p refsim.testing.plugin")


@pytest.fixture(scope="module", autouse=True)
def kernels_as_committed(committed_ptx: None) -> None:
    """What is tried here is what kernels do, not what compiles them; broken copies have no PTX and are compiled."""


@pytest.fixture(autouse=True)
def replayed_for_each_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands replay recorded silicon anew here, also if tests/conftest.py has run and lets its commands share."""
    monkeypatch.setattr(launch_replay, "afresh", launch_replay.shared.cache_clear)


@pytest.fixture
def of_the_corpus(refsim_profile: str) -> Callable[[Kernel], Kernel]:
    """A kernel with every seventh problem of its corpus in the quick profile, every fifth in CI, at night all.

    `.ci/run` runs the whole corpora by `refsim verify`. Every format and kind of scale is among those that are left.
    """
    return lambda kernel: replace(kernel, corpus=kernel.corpus[:: {"quick": 7, "ci": 5}.get(refsim_profile, 1)])


@pytest.fixture
def broken_quantiser(tmp_path: Path) -> Callable[[Path, str, str, tuple[str, ...]], Path]:
    """A copy of a quantiser without the entries `others`, one text replaced: of the file, or of the header it shares."""

    def copy(source: Path, right: str, wrong: str, others: tuple[str, ...]) -> Path:
        shutil.copytree(source.parent / "quantize", tmp_path / "quantize")
        texts = {file: (source.parent / file).read_text("utf-8") for file in (source.name, "quantize/vectors.cuh")}
        found = [file for file, text in texts.items() for _ in range(text.count(right))]
        assert len(found) == 1, f"the text to break stands {len(found)} times in {', '.join(texts)}"
        for file, text in texts.items():
            kept = text.replace(right, wrong)
            for other in others:
                kept = kept.replace(other, "")
            (tmp_path / file).write_text(kept, "utf-8")
        return tmp_path / source.name

    return copy
