"""A machine without the wheels: refsim in an environment that has NumPy and Hypothesis, and no part of CUDA but what is given.

    python -m tests.bare_machine toolkit doctor          a folder laid out as a toolkit, named by CUDA_HOME
    python -m tests.bare_machine none bringup ...        no compiler at all; also on a machine with a GPU

The toolkit is made of the installed wheels' files, under the names and in the folders of NVIDIA's installer.
"""

import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pytest

from refsim.cuda_places import HEADER_WHEELS, NVRTC_WHEELS

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("numpy", "ml_dtypes", "click", "hypothesis", "sortedcontainers")
FOR_A_GPU = ("cuda-bindings", "cuda-pathfinder", "attrs")
"""Taken along by the command line above, where they are installed: the driver's functions, and no compiler."""
KEPT = ("HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
WITHOUT_FIXED = (
    "import refsim.cuda_places as here; here.FIXED = (); from refsim.cli import main; raise SystemExit(main())"
)
"""The command line on a machine that has nothing in /usr/local/cuda, whatever this one has there."""


def wheel_root() -> Path:
    """site-packages/nvidia/cu13, where all wheels are laid out as a toolkit nearly is."""
    for wheel in (*NVRTC_WHEELS, *HEADER_WHEELS, "nvidia-cuda-nvcc"):
        if not installed([wheel]) and os.environ.get("CI") != "true":
            pytest.skip(f"{wheel} is not installed: pip install 'refsim[gpu]'")
        metadata.version(wheel)
    file = next(path for path in metadata.files("nvidia-cuda-nvrtc") or () if path.name.startswith("libnvrtc.so"))
    return Path(str(file.locate())).parents[1]


def make_toolkit(folder: Path) -> Path:
    """bin, include, nvvm, and lib64 with both libraries of NVRTC and the link that programs are built against."""
    root = wheel_root()
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "include", "nvvm"):
        (folder / name).symlink_to(root / name)
    (folder / "lib64").mkdir()
    for library in (root / "lib").glob("libnvrtc*.so*"):
        if ".alt." not in library.name:
            (folder / "lib64" / library.name).symlink_to(library)
    (folder / "lib64" / "libnvrtc.so").symlink_to(next((folder / "lib64").glob("libnvrtc.so.*")).name)
    return folder


def installed(names: Sequence[str]) -> list[str]:
    return [name for name in names if next(metadata.distributions(name=name), None) is not None]


def make_environment(folder: Path, names: Sequence[str] = PACKAGES) -> Path:
    """An environment of its own with links to a few packages; returns its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    packages = next((folder / "lib").glob("python*")) / "site-packages"
    for name in names:
        distribution = metadata.distribution(name)
        for part in {path.parts[0] for path in distribution.files or () if path.parts[0] not in ("..", "__pycache__")}:
            if not (packages / part).exists():
                (packages / part).symlink_to(Path(str(distribution.locate_file(part))))
    return folder / "bin" / "python"


def run(
    python: Path, toolkit: Path | None, *arguments: str, cache: Path | None = None, **options: object
) -> subprocess.CompletedProcess[str]:
    """`refsim ARGUMENTS` there: nothing of CUDA on PATH or in a variable but the toolkit."""
    kept = {name: value for name, value in os.environ.items() if name in KEPT}
    environment = {**kept, "PATH": str(python.parent), "PYTHONPATH": str(ROOT)}
    if cache is not None:
        environment["XDG_CACHE_HOME"] = str(cache)
    if toolkit is not None:
        environment["CUDA_HOME"] = str(toolkit)
    return subprocess.run(
        [str(python), "-c", WITHOUT_FIXED, *arguments], env=environment, text=True, check=False, **options
    )  # type: ignore[call-overload]


def main(kind: str, *arguments: str) -> int:
    with tempfile.TemporaryDirectory(prefix="refsim-") as folder:
        toolkit = make_toolkit(Path(folder) / "cuda") if kind == "toolkit" else None
        python = make_environment(Path(folder) / "environment", (*PACKAGES, *installed(FOR_A_GPU)))
        return run(python, toolkit, *arguments, cache=Path(folder) / "cache").returncode


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
