"""The recorders of gpu/probes: each can be started, so that a name which moved shows before somebody holds a GPU."""

import subprocess
import sys
from pathlib import Path

import pytest

import refsim

PROBES = Path(__file__).resolve().parents[2] / "gpu" / "probes"
RECORDERS = sorted(PROBES.glob("record_*.py"))


@pytest.mark.parametrize("source", RECORDERS, ids=lambda path: path.stem)
def test_a_recorder_starts(source: Path) -> None:
    asked = subprocess.run(
        [sys.executable, str(source), "--help"],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(Path(refsim.__file__).parents[1])},
    )
    assert (asked.returncode, asked.stderr) == (0, "")
    assert "--out" in asked.stdout


def test_there_are_recorders() -> None:
    assert len(RECORDERS) >= 7
