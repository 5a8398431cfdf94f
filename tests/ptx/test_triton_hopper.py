"""What Triton and Gluon make for Hopper of kernels of our own, launched as a user launches them: every style runs without a
finding under every policy, with the bits of a definition in NumPy.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refsim import device, numerics
from refsim.conversions import decode, encode
from refsim.kernel_code import KernelCode
from refsim.mufu.instructions import approximate
from refsim.numerics import ieee
from refsim.testing import assert_bits_equal
from refsim.testing.adapters import TritonDescriptor, TritonKernel, from_triton
from tests import triton_versions

TRITON = {"f16": "fp16", "bf16": "bf16", "e4m3": "fp8e4nv", "e5m2": "fp8e5", "e2m1": "u8"}
POLICIES = ("sim:eager", "sim:lazy", "sim:random")
TARGET = "sm_90a"
STYLES = pytest.mark.ci("another style of what the attention and the product with roles show")
Size = tuple[int, int, int]


def loaded(name: str) -> Any:
    specification = spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("triton", reason="triton is not installed: pip install 'refsim[triton]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield loaded("triton_hopper")


@contextmanager
def silent(kernel: TritonKernel, policy: str) -> Iterator[Any]:
    """A launcher; a finding or a note of its launches ends the test."""
    with device.open(policy, TARGET).launcher(KernelCode(ptx=kernel.ptx)) as gpu:
        yield gpu
        assert [str(each) for trace in gpu.traces for each in trace.findings] == []
        assert gpu.findings().notes == ()


def product(a: Any, b: Any, c: Any = None, format: str = "f16") -> Any:
    step = 32 if format in {"e4m3", "e5m2"} else 16
    a, b = (np.pad(x, ((0, 0), (0, -x.shape[1] % step))) for x in (a, b))
    return numerics.mma(a, b, c, unit="wgmma", a_format=format, b_format=format, target=TARGET, k=step)


def drawn(shape: tuple[int, ...], format: str) -> Any:
    return encode(np.random.default_rng(sum(shape)).standard_normal(shape), format)


def check_product(kernel: TritonKernel, size: Size, format: str, grid: Any, others: tuple[int, ...], c: bool) -> None:
    """a, b and, where `c` says so, c are descriptors."""
    m, n, k = size
    a, b = drawn((m, k), format), drawn((n, k), format)
    want = encode(product(a, b, np.zeros((m, n), np.float32), format), "f16")
    for policy in POLICIES:
        with silent(kernel, policy) as gpu:
            out = gpu.output(m * n, np.uint16, name="c")
            given = [TritonDescriptor(gpu.upload(x, name=name), x.shape) for x, name in ((a, "a"), (b, "b"))]
            kernel.launch(gpu, grid, *given, TritonDescriptor(out, (m, n)) if c else out, *others)
            assert_bits_equal(gpu.read(out).reshape(m, n), want, "f16")


def boxes(format: str, tile: Size, stored: tuple[int, int]) -> dict[str, str]:
    (bm, bn, bk), element = tile, TRITON[format]
    types = {"a": f"tensordesc<{element}[{bm},{bk}]>", "b": f"tensordesc<{element}[{bn},{bk}]>"}
    return types | {"c": f"tensordesc<fp16[{stored[0]},{stored[1]}]>"} | dict.fromkeys("MNK", "i32")


@STYLES
@pytest.mark.parametrize(
    ("format", "size", "tile", "programs", "flat", "options"),
    [
        ("f16", (192, 128, 128), (64, 64, 64), 2, True, {"num_stages": 3}),
        ("e4m3", (100, 80, 160), (64, 64, 64), 3, False, {"num_stages": 2}),
        ("bf16", (200, 128, 136), (128, 128, 64), 1, True, {"num_warps": 8, "num_stages": 4}),
        ("f16", (256, 128, 128), (128, 128, 64), 2, False, {"num_ctas": 2}),
    ],
)
def test_persistent_programs_over_descriptors(
    kernels: Any, format: str, size: Size, tile: Size, programs: int, flat: bool, options: dict[str, int]
) -> None:
    if "num_ctas" in options:
        triton_versions.since(triton_versions.CLUSTERS)
    constants = dict(zip(("BM", "BN", "BK", "FLAT"), (*tile, flat), strict=True))
    types = boxes(format, tile, (tile[0], tile[1] // 2))
    kernel = from_triton(kernels.persistent, types, constants, TARGET, **options)
    assert "cp.async.bulk.tensor.2d.shared::c" in kernel.ptx
    check_product(kernel, size, format, programs, size, c=True)


@STYLES
def test_a_loop_whose_loads_and_products_triton_gives_to_different_warps(kernels: Any) -> None:
    """A tile of 64 rows cannot be shared by Triton's two warpgroups: both make it, and store the same bits."""
    triton_versions.since(triton_versions.BARRIERS_ENDED)
    size, tile = (64, 128, 320), (64, 128, 64)
    types = boxes("f16", tile, tile[:2]) | {"c": "*fp16"}
    kernel = from_triton(kernels.specialised, types, dict(zip(("BM", "BN", "BK"), tile, strict=True)), TARGET)
    assert "setmaxnreg" in kernel.ptx
    assert kernel.threads == 384
    check_product(kernel, size, "f16", (1, 1), size, c=False)


@STYLES
def test_matrices_of_several_sizes_in_one_launch(kernels: Any) -> None:
    types = {"pointers": "*i64", "sizes": "*i32", "groups": "i32"}
    kernel = from_triton(kernels.grouped, types, {"BM": 64, "BN": 64, "BK": 32}, TARGET)
    sizes = [(70, 64, 64), (64, 128, 32), (30, 64, 96)]
    pairs = [(drawn((m, k), "f16"), drawn((n, k), "f16")) for m, n, k in sizes]
    for policy in POLICIES:
        with silent(kernel, policy) as gpu:
            outs = [gpu.output(m * n, np.uint16, name=f"c{i}") for i, (m, n, _) in enumerate(sizes)]
            given = [
                [gpu.upload(x, name=f"{name}{i}") for x, name in zip(p, "ab", strict=True)] for i, p in enumerate(pairs)
            ]
            addresses = [[*(x.address for x in two), out.address] for two, out in zip(given, outs, strict=True)]
            tables = (
                gpu.upload(np.array(addresses, np.int64), name="pointers"),
                gpu.upload(np.array(sizes, np.int32), name="sizes"),
            )
            kernel.launch(gpu, 2, *tables, len(sizes))
            for (a, b), out in zip(pairs, outs, strict=True):
                want = encode(product(a, b, np.zeros((len(a), len(b)), np.float32)), "f16")
                assert_bits_equal(gpu.read(out).reshape(want.shape), want, "f16")


def unpacked(packed: Any, format: str) -> Any:
    codes = np.stack((packed & 15, packed >> 4), -1).reshape(len(packed), -1) if format == "e2m1" else packed
    return decode(codes, format)


@STYLES
@pytest.mark.parametrize("formats", [("e4m3", "e4m3"), ("e2m1", "e5m2"), ("e2m1", "e2m1")])
def test_operands_with_scales_are_multiplied_as_bf16(kernels: Any, formats: tuple[str, str]) -> None:
    """Hopper has no products with scales: Triton scales, exactly, and multiplies the result."""
    m, n, k = 64, 64, 128
    packs = [2 if format == "e2m1" else 1 for format in formats]
    draw = np.random.default_rng(k)
    given = [encode(draw.standard_normal((64, k)), format) for format in formats]
    held = [x[:, ::2] | x[:, 1::2] << 4 if pack == 2 else x for x, pack in zip(given, packs, strict=True)]
    scales = [draw.integers(120, 134, (64, k // 32)).astype(np.uint8) for _ in range(2)]
    a, b = (
        encode(unpacked(x, format) * np.repeat(2.0 ** (s.astype(float) - 127), 32, 1), "bf16")
        for x, format, s in zip(held, formats, scales, strict=True)
    )
    types = {"a": f"*{TRITON[formats[0]]}", "sa": "*u8", "b": f"*{TRITON[formats[1]]}", "sb": "*u8", "c": "*fp32"}
    constants = {
        "A": formats[0],
        "B": formats[1],
        "PA": packs[0],
        "PB": packs[1],
        "BM": 64,
        "BN": 64,
        "BK": 64,
    }
    kernel = from_triton(
        kernels.scaled,
        types | {"N": "i32", "K": "i32"},
        constants,
        TARGET,
        aligned=("a", "sa", "b", "sb", "c", "N", "K"),
    )
    want = product(a, b, np.zeros((m, n), np.float32), "bf16")
    for policy in POLICIES:
        with silent(kernel, policy) as gpu:
            operands = zip(held, scales, ("a", "b"), strict=True)
            buffers = [
                gpu.upload(x, name=name) for codes, s, of in operands for x, name in ((codes, of), (s, f"s{of}"))
            ]
            out = gpu.output(m * n, np.float32, name="c")
            kernel.launch(gpu, (1, 1), *buffers, out, n, k)
            assert_bits_equal(gpu.read(out).reshape(m, n), want, "f32")


@pytest.mark.parametrize("type", ["fp32", "fp16", "i32"])
def test_the_copy_engine_adds_blocks(kernels: Any, type: str) -> None:
    """Whole numbers that every format has: the order of programs is open."""
    box = f"tensordesc<{type}[64,32]>"
    kernel = from_triton(kernels.summed, {"x": box, "out": box}, {"BM": 64}, TARGET)
    assert "cp.reduce.async.bulk.tensor" in kernel.ptx
    element = {"fp32": np.float32, "fp16": np.float16, "i32": np.int32}[type]
    x = np.random.default_rng(0).integers(-9, 9, (192, 32)).astype(element)
    for policy in POLICIES:
        with silent(kernel, policy) as gpu:
            out = gpu.upload(np.zeros((64, 32), element), name="out", writable=True)
            kernel.launch(gpu, 3, TritonDescriptor(gpu.upload(x, name="x"), x.shape), TritonDescriptor(out, (64, 32)))
            assert (gpu.read(out).reshape(64, 32) == x.reshape(3, 64, 32).sum(0)).all()


def test_a_descriptor_of_the_host_rounds_to_tf32(kernels: Any) -> None:
    box = "tensordesc<fp32[64,32]>"
    kernel = from_triton(kernels.moved, {"x": box, "out": box}, {"BM": 64}, TARGET)
    x = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    for rounds in (False, True):
        with silent(kernel, "sim") as gpu:
            out = gpu.output(x.size, np.uint32, name="out")
            given = TritonDescriptor(gpu.upload(x, name="x"), x.shape, round_f32_to_tf32=rounds)
            kernel.launch(gpu, 1, given, TritonDescriptor(out, x.shape))
            want = encode(x.astype(np.float64), "tf32") if rounds else x.view(np.uint32)
            assert (gpu.read(out).reshape(x.shape) == want).all()


def exp2(x: Any) -> Any:
    """ex2.approx.ftz of Hopper's unit."""
    return approximate("ex2", np.asarray(x).view(np.uint32), ftz=True).view(np.float32)


def gradients(
    q: Any, k: Any, v: Any, g: Any, lse: Any, delta: Any, scale: Any, block: int, causal: bool
) -> tuple[Any, Any]:
    """Float32 sums of the gradients of keys and values, block by block of queries."""
    t, d = q.shape
    keys, values = np.zeros((2, t, d), np.float32)
    for first in range(0, t, block):
        columns = np.arange(first, first + block)
        for start in range(first if causal else 0, t, block):
            rows = np.arange(start, start + block)
            pt = exp2(ieee.fma(product(k[columns], q[rows]), scale, -lse[rows]))
            pt = np.where(rows >= columns[:, None], pt, np.float32(0)) if causal else pt
            values[columns] = product(encode(pt, "f16"), np.ascontiguousarray(g[rows].T), values[columns])
            ds = pt * (product(v[columns], g[rows]) - delta[rows])
            keys[columns] = product(encode(ds, "f16"), np.ascontiguousarray(q[rows].T), keys[columns])
    return keys, values


@STYLES
@pytest.mark.parametrize("causal", [False, True])
def test_the_gradients_of_attention(kernels: Any, causal: bool) -> None:
    triton_versions.since(triton_versions.COPIES_FENCED)
    t, d, block = 128, 64, 64
    draw = np.random.default_rng(t)
    given = {name: encode(draw.standard_normal((t, d)), "f16") for name in ("q", "k", "v", "do")}
    scale = np.float32(1.44269504 / np.sqrt(d))
    x, y = (decode(given[name], "f16") for name in "qk")
    s = np.where(np.tril(np.ones((t, t), bool)) | (not causal), x @ y.T * scale, -np.inf)
    lse = np.log2(np.exp2(s).sum(1)).astype(np.float32)
    delta = draw.standard_normal(t).astype(np.float32)
    types = dict.fromkeys(given, "*fp16") | {"lse": "*fp32", "delta": "*fp32", "dk": "*fp32", "dv": "*fp32"}
    kernel = from_triton(
        kernels.backward,
        types | {"scale": "fp32", "T": "i32"},
        {"D": d, "BM": block, "BN": block, "CAUSAL": causal},
        TARGET,
        aligned=(*types, "T"),
        num_stages=2,
        enable_fp_fusion=False,
    )
    want = gradients(*given.values(), lse, delta, scale, block, causal)
    for policy in POLICIES:
        with silent(kernel, policy) as gpu:
            named = given | {"lse": lse, "delta": delta}
            buffers = [gpu.upload(codes, name=name) for name, codes in named.items()]
            outs = [gpu.output(t * d, np.float32, name=name) for name in ("dk", "dv")]
            kernel.launch(gpu, t // block, *buffers, *outs, scale, t)
            for out, expected in zip(outs, want, strict=True):
                assert_bits_equal(gpu.read(out).reshape(t, d), expected, "f32")


def shared_layout(width: int) -> str:
    return f"NVMMASharedLayout(swizzle_byte_width={min(128, 2 * width)}, element_bitwidth=16, rank=2)"


@STYLES
@pytest.mark.parametrize(
    ("size", "tile", "stages"), [((64, 64, 160), (64, 64, 32), 2), ((128, 128, 320), (64, 64, 64), 3)]
)
@pytest.mark.usefixtures("kernels")
def test_warps_with_roles_of_their_own(size: Size, tile: Size, stages: int) -> None:
    (m, n, k), (bm, bn, bk) = size, tile
    blocks = {"a": (bm, bk), "b": (bn, bk), "c": (bm, bn)}
    types = {name: f"tensordesc<fp16[{rows},{width}],{shared_layout(width)}>" for name, (rows, width) in blocks.items()}
    kernel = from_triton(loaded("triton_roles").roles, types | {"K": "i32"}, {"STAGES": stages}, TARGET)
    assert kernel.threads > 128
    assert "setmaxnreg" in kernel.ptx
    check_product(kernel, size, "f16", (m // bm, n // bn), (k,), c=True)
