"""The bundled PTX of the probes: of this very source and these flags, and what NVRTC returns."""

import runpy
from contextlib import nullcontext
from pathlib import Path

import pytest

from refsim.bringup.layouts import PROBES, matrix_part
from refsim.device import compile
from refsim.device.compile import TARGETS, bundled_text, compile_ptx
from refsim.device.toolchain import find_toolchain

GPU = Path(__file__).resolve().parents[2] / "gpu"
SOURCES = [path for path in runpy.run_path(str(GPU / "refresh_ptx.py"))["sources"]() if path.parent.name == "probes"]


@pytest.mark.parametrize("target", [row.name for row in TARGETS])
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_every_probe_is_bundled_from_this_source_and_these_flags(
    source: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the probe of layouts, the part that a bring-up runs."""
    monkeypatch.setattr(compile, "find_toolchain", lambda number=0: None)
    with matrix_part() if source == PROBES else nullcontext(source) as file:
        assert compile_ptx(file, target).origin == "bundled", "run: python gpu/refresh_ptx.py"


@pytest.mark.skipif(find_toolchain() is None, reason="NVRTC is not installed: pip install 'refsim[sim]'")
def test_the_probes_of_tensor_cores_are_what_nvrtc_returns() -> None:
    made = compile_ptx(GPU / "probes" / "tensor_cores.cu", "sm_80")
    kept = (GPU / "ptx" / "tensor_cores.sm_80.ptx").read_text("utf-8")
    if f'"{made.compiler}"' not in kept.partition("\n")[0]:
        pytest.skip(f"the bundled PTX was made by another compiler than {made.compiler}")
    assert kept == bundled_text(made), "run: python gpu/refresh_ptx.py"
