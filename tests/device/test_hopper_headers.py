"""CUDA's headers for Hopper on the simulated GPU: right kernels are right and silent in every order, the same less one edge are
found in every order."""

from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refsim import device, layouts
from refsim.errors import RefsimError
from refsim.kernel_code import KernelCode
from refsim.kernels import Launcher
from refsim.testing.kernel_files import load_kernel_file

kernels = load_kernel_file(Path(__file__).with_name("hopper_headers.py"))
RIGHT, WRONG, THREADS = kernels.RIGHT, kernels.WRONG, kernels.THREADS
pytestmark = pytest.mark.ci("compiles some forty kernels with libcu++: 6 s")


@pytest.fixture(scope="module")
def code() -> KernelCode:
    try:
        metadata.version("nvidia-cuda-cccl")
    except metadata.PackageNotFoundError:
        pytest.skip("CUDA's headers are not installed: pip install 'refsim[sim]'")
    return KernelCode(source=kernels.source())


@pytest.fixture(params=["eager", "lazy", "random"])
def gpu(code: KernelCode, request: pytest.FixtureRequest) -> Iterator[Launcher]:
    with device.open(f"sim:{request.param}", "sm_90a").launcher(code) as launcher:
        yield launcher


def run(gpu: Launcher, name: str, kernel: Any) -> tuple[np.ndarray, np.ndarray]:
    """x, and what y holds afterwards; zeros are there before."""
    x = np.arange(kernels.ROWS * kernels.COLUMNS, dtype=np.int32)
    given = gpu.upload(x, name=f"x of {name}")
    y = gpu.upload(np.zeros(1024, np.int32), name=f"y of {name}", writable=True)
    tiles = layouts.tensor_map("int32", (kernels.COLUMNS, kernels.ROWS), (16, 8), address=given.address)
    options = dict(kernel.launch)
    gpu.launch(name, options.pop("grid", 1), THREADS, [given, y, *([tiles] if kernel.tiles else [])], **options)
    return x, gpu.read(y)


def test_right_kernels_are_right_and_nothing_is_said(gpu: Launcher) -> None:
    for at, kernel in enumerate(RIGHT):
        x, y = run(gpu, f"right_{at}", kernel)
        expected = kernel.expected(x)
        np.testing.assert_array_equal(y[: len(expected)], expected, str(kernel))
        seen = gpu.findings()
        assert (seen.inexact, seen.notes) == ((), ()), str(kernel)


def test_missing_edges_are_found_in_every_order(gpu: Launcher) -> None:
    missed = []
    for at, wrong in enumerate(WRONG):
        known = len(gpu.findings().notes)
        try:
            run(gpu, f"wrong_{at}", wrong.right)
            said = " ".join(gpu.findings().notes[known:]) or "nothing"
        except RefsimError as error:
            said = f"[{error.code}] {error.what}"
        if not any(f"[{code}]" in said for code in wrong.codes):
            missed.append((str(wrong), said))
    assert not missed
