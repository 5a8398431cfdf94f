"""refsim simulate: the names that people write, and how a CUDA file is compiled."""

import shutil
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import pytest

SOURCE = "#include <step.h>\ntemplate <typename T> __global__ void fill(T* y) { y[threadIdx.x] = VALUE + STEP * threadIdx.x; }\n"


@pytest.fixture
def simulated(tmp_path, refsim):
    try:
        version("nvidia-cuda-nvrtc")
    except PackageNotFoundError:
        pytest.skip("NVRTC is not installed: pip install 'refsim[sim]'")
    (tmp_path / "headers").mkdir()
    (tmp_path / "headers" / "step.h").write_text("#define STEP 2\n")
    (tmp_path / "fill.cu").write_text(SOURCE)
    launch = ("--block", "4", "--arg", "zeros:u32:4", "--save", "0=y.npy")
    return lambda *arguments: refsim("simulate", *arguments, *launch)


def test_an_instance_of_a_template_with_defines_and_folders(simulated, tmp_path):
    result = simulated("fill.cu", "fill<unsigned>", "-D", "VALUE=7", "-I", "headers")
    assert result.code == 0, result.err
    assert np.load(tmp_path / "y.npy").tolist() == [7, 9, 11, 13]


def test_nvcc_on_request(simulated, tmp_path):
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    (tmp_path / "fill.cu").write_text(
        SOURCE + "template __global__ void fill<unsigned>(unsigned*);\nint main() { return 0; }\n"
    )
    made = simulated("fill.cu", "fill", "-D", "VALUE=8", "-I", "headers", "--compiler", "nvcc")
    assert made.code == 0, made.err
    assert np.load(tmp_path / "y.npy").tolist() == [8, 10, 12, 14]


def test_options_of_a_compiler_are_not_for_ptx(simulated, tmp_path):
    (tmp_path / "k.ptx").write_text(".version 8.0\n.target sm_80\n.address_size 64\n.entry k() { ret; }\n")
    result = simulated("k.ptx", "k", "-D", "X")
    assert result.code == 2
    assert "bad-file" in result.err
