"""Running the command line within the test's process."""

import io
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from refsim.cli import main


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
def kernels(tmp_path: Path) -> None:
    """turn.ptx, whose two entries are a clean kernel with bank conflicts and one that depends on its schedule.

    With it served.py. Only the files: where a test imported served.py, Python keeps its __pycache__ beside it.
    """
    for file in (Path(__file__).parent / "kernels").iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)


@pytest.fixture
def two_files(tmp_path: Path) -> None:
    """got.npy and want.npy: 64 bf16 codes of which two differ, one by 2 ulp and one by a NaN."""
    want = np.arange(64, dtype=np.uint16).reshape(8, 8) + 0x3F80
    got = want.copy()
    got[3, 4] += 2
    got[5, 1] = 0x7FC0
    np.save(tmp_path / "want.npy", want)
    np.save(tmp_path / "got.npy", got)


@pytest.fixture
def dumps(tmp_path: Path) -> None:
    """What a kernel leaves behind, each of the matrix value = row + col / 8, and pieces and variants of it.

    acc.bin: registers of mma.m16n8k16.bf16.d; tile.bin: an 8 x 64 bf16 tile in shared memory, 128B; sf.bin: scales of
    it, nvidia_128x4, padded with NaN; tags.npy and wrong.npy: the elements that threads of mma.m16n8k16.bf16.a hold,
    and those of ldmatrix with the registers in another order.
    """
    from refsim import encode
    from refsim.layouts.families import fragment
    from refsim.layouts.scales import scale_layout
    from refsim.layouts.tiles import tile

    row, col = fragment("mma.m16n8k16.bf16.d").elements
    (row + col / 8).astype("<f4").tofile(tmp_path / "acc.bin")
    (tmp_path / "cut.bin").write_bytes((tmp_path / "acc.bin").read_bytes()[:100])
    mn, k = np.ogrid[:8, :64]
    made = tile("K", "128B", 2, (8, 64))
    memory = np.zeros(made.size_bytes // 2, "<u2")
    memory[made.address(mn, k) // 2] = encode(mn + k / 8, "bf16")
    memory.tofile(tmp_path / "tile.bin")
    scales = (126 + np.arange(16).reshape(8, 2) % 4).astype(np.uint8)
    scale_layout("nvidia_128x4").shuffle(scales, fill=0xFF).tofile(tmp_path / "sf.bin")
    np.save(tmp_path / "scales.npy", scales)
    row, col = fragment("mma.m16n8k16.bf16.a").elements
    np.save(tmp_path / "tags.npy", 16 * row + col)
    np.save(tmp_path / "wrong.npy", (16 * row + col)[:, [0, 1, 4, 5, 2, 3, 6, 7]])
    np.save(tmp_path / "turned.npy", 16 * col + row)
    accumulated = np.arange(128, dtype=np.uint16).reshape(16, 8) + 0x3F80
    np.save(tmp_path / "d-want.npy", accumulated)
    accumulated[9, 3] += 1
    np.save(tmp_path / "d-got.npy", accumulated)
