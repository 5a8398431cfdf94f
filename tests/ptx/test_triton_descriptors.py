"""Descriptors that Triton's kernels make on the device: right and without findings from the public adapter, and each fence
of a map that their PTX lacks is told.
"""

import re
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refsim import device, numerics
from refsim.conversions import encode
from refsim.errors import RefsimError
from refsim.kernel_code import KernelCode
from refsim.testing.adapters import from_triton
from tests import triton_versions

SELDOM = pytest.mark.ci("descriptors of other types, which the product of bf16 stands for")
CASES = [
    ("bf16", "bf16", 16, (72, 80, 40)),
    pytest.param("fp16", "f16", 16, (64, 64, 64), marks=SELDOM),
    pytest.param("fp32", "tf32", 8, (64, 72, 36), marks=SELDOM),
    pytest.param("fp8e4nv", "e4m3", 32, (96, 64, 80), marks=SELDOM),
]
M_N_K = dict.fromkeys(("M", "N", "K"), "i32")
TILE = {"BM": 64, "BN": 64, "BK": 32}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("triton", reason="triton is not installed: pip install 'refsim[triton]'")
    triton_versions.since(triton_versions.MAPS_SYNCHRONISED)
    specification = spec_from_file_location("triton_descriptors", Path(__file__).with_name("triton_descriptors.py"))
    assert specification is not None
    assert specification.loader is not None
    module = module_from_spec(specification)
    specification.loader.exec_module(module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield module


def product(kernels: Any, type: str) -> Any:
    signature = {"a": f"*{type}", "b": f"*{type}", "c": "*fp32"} | M_N_K
    return from_triton(kernels.product, signature, TILE, "sm_90", aligned=("a", "b", "c"), num_warps=4, num_stages=3)


def multiplied(kernel: Any, format: str, step: int, shape: tuple[int, int, int], policy: str, ptx: str = "") -> None:
    m, n, k = shape
    draw = np.random.default_rng(4)
    values = [draw.standard_normal((rows, k)) for rows in (m, n)]
    a, b = (v.astype(np.float32).view(np.uint32) if format == "tf32" else encode(v, format) for v in values)
    whole = -(-k // 32) * 32  # what lies beyond K is filled with zeros
    wide = [np.pad(each, ((0, 0), (0, whole - k))) for each in (a, b)]
    want = numerics.mma(
        *wide, np.zeros((m, n), np.float32), unit="wgmma", a_format=format, b_format=format, target="sm_90a", k=step
    )
    with device.open(policy, "sm_90a").launcher(KernelCode(ptx=ptx or kernel.ptx)) as gpu:
        given = [gpu.upload(each, name=name) for name, each in (("a", a), ("b", b))]
        c = gpu.output(m * n, np.float32, name="c")
        kernel.launch(gpu, -(-m // 64) * -(-n // 64), *given, c, m, n, k)
        assert np.array_equal(gpu.read(c).view(np.uint32).reshape(m, n), want.view(np.uint32))
        assert gpu.findings().notes == ()


@pytest.mark.parametrize(("type", "format", "step", "shape"), CASES)
def test_a_product_by_descriptors_made_on_the_device_has_the_bits_of_the_model(
    type: str, format: str, step: int, shape: tuple[int, int, int], kernels: Any
) -> None:
    kernel = product(kernels, type)
    assert "tensormap.replace.tile.global_address" in kernel.ptx
    assert kernel.scratch[0] == (384, 128)
    for policy in ("sim:eager", "sim:lazy", "sim:random"):
        multiplied(kernel, format, step, shape, policy)


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        (r"@%p\d+ fence\.proxy\.tensormap::generic\.acquire[^;]*;", "missing-proxy-fence"),
        (r"tensormap\.replace\.tile\.box_dim[^;]*;", "invalid-operand"),
    ],
)
def test_a_fence_or_a_field_that_is_left_out_is_found(statement: str, code: str, kernels: Any) -> None:
    kernel = product(kernels, "bf16")
    shorter, count = re.subn(statement, "", kernel.ptx, count=1)
    assert count == 1
    with pytest.raises(RefsimError) as caught:
        multiplied(kernel, "bf16", 16, (64, 64, 32), "sim", shorter)
    assert caught.value.code == code


def test_a_descriptor_is_made_again_for_each_matrix_of_a_batch(kernels: Any) -> None:
    signature = {"x": "*fp32", "out": "*fp32"} | dict.fromkeys(("COUNT", "ROWS", "COLUMNS"), "i32")
    kernel = from_triton(kernels.row_sums, signature, {"BLOCK": 32}, "sm_90", aligned=("x", "out"), num_warps=4)
    values = np.random.default_rng(3).integers(-99, 99, (3, 24, 52)).astype(np.float32)
    for policy in ("sim:eager", "sim:random"):
        with device.open(policy, "sm_90a").launcher(KernelCode(ptx=kernel.ptx)) as gpu:
            x, out = gpu.upload(values, name="x"), gpu.output(24 * 52, np.float32, name="out")
            kernel.launch(gpu, 2, x, out, 3, 24, 52)
            assert np.array_equal(gpu.read(out).reshape(24, 52), values.sum(axis=0))
            assert gpu.findings().notes == ()
