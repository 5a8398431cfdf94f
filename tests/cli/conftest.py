"""Running the command line within the test's process."""

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from refsim.cli import main


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--refresh-golden", action="store_true", help="write tests/golden anew instead of comparing")


@dataclass(frozen=True)
class Run:
    code: int
    out: str
    err: str


@pytest.fixture
def refsim(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Run]:
    """Runs one command line in an empty directory, as if piped: no terminal, no width."""
    for variable in ("COLUMNS", "NO_COLOR", "_REFSIM_COMPLETE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, stdin: bytes = b"", columns: int | None = None) -> Run:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        if columns is not None:
            monkeypatch.setenv("COLUMNS", str(columns))
        capsys.readouterr()
        code = main(arguments)
        return Run(code, *capsys.readouterr())

    return run


@pytest.fixture
def two_files(tmp_path: Path) -> None:
    """got.npy and want.npy: 64 bf16 codes of which two differ, one by 2 ulp and one by a NaN."""
    want = np.arange(64, dtype=np.uint16).reshape(8, 8) + 0x3F80
    got = want.copy()
    got[3, 4] += 2
    got[5, 1] = 0x7FC0
    np.save(tmp_path / "want.npy", want)
    np.save(tmp_path / "got.npy", got)
