"""The recorders of gpu/probes: each can be started, so that a name which moved shows before somebody holds a GPU."""

import runpy
import sys
from pathlib import Path

import pytest

PROBES = Path(__file__).resolve().parents[2] / "gpu" / "probes"
RECORDERS = sorted(PROBES.glob("record_*.py"))


@pytest.mark.parametrize("source", RECORDERS, ids=lambda path: path.stem)
def test_a_recorder_starts(source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its module with all that it imports, and its arguments."""
    monkeypatch.setattr(sys, "argv", [str(source), "--help"])
    monkeypatch.syspath_prepend(str(source.parent))
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(source), run_name="__main__")
    said = capsys.readouterr()
    assert (ended.value.code, said.err) == (0, "")
    assert "--out" in said.out


def test_there_are_recorders() -> None:
    assert len(RECORDERS) >= 7
