"""Triton's flash attention for Hopper and Blackwell, compiled from kernels of our own and launched as a user launches them: it
runs under every policy, with the bits of a definition in NumPy, without a finding.

The definition multiplies as the tensor cores of Hopper do and rounds where the kernel says so. A row is summed as Triton 3.9
sums one that lies in the registers of a wgmma: each lane adds neighbours, then sums of neighbours; then lanes 2 apart, then 1.
On Blackwell a lane adds pairs of numbers at once, so that those of even columns and those of odd ones meet at the end.
ex2.approx and div.full are those of Hopper's unit, as the simulator has them; Blackwell's may return others, which a launch
says (`Findings.inexact`). The logarithm is a polynomial of libdevice: it is compared by its bound of one ulp.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refsim import device, numerics
from refsim.conversions import decode, encode
from refsim.kernel_code import KernelCode
from refsim.mufu.instructions import approximate, divided
from refsim.numerics import ieee
from refsim.testing import assert_bits_equal
from refsim.testing.adapters import TritonDescriptor, from_triton
from tests import triton_versions

TRITON = {"f16": "fp16", "bf16": "bf16", "e4m3": "fp8e4nv"}
POLICIES = ("sim:eager", "sim:lazy", "sim:random")


@dataclass(frozen=True)
class Chip:
    """The unit that multiplies f16 and bf16, and the one for E4M3; how many lanes share a row, and whether they add pairs of
    numbers by one instruction."""

    unit: Any
    narrow: Any
    opcode: str
    lanes: int = 4
    in_pairs: bool = False


CHIPS = {
    "sm_90a": Chip("wgmma", "wgmma", "wgmma.mma_async"),
    "sm_100a": Chip("tcgen05.f16", "tcgen05.f8f6f4", "tcgen05.mma.cta_group", lanes=1, in_pairs=True),
    "sm_120a": Chip("mma.sync", "mma.sync", "mma.sync.aligned", in_pairs=True),
}


@dataclass(frozen=True)
class Case:
    """One launch; `split` is into how many parts of its columns a tile's rows are split among warpgroups."""

    kernel: str
    format: str
    causal: bool
    t: int = 80
    d: int = 32
    tile: tuple[int, int] = (64, 32)
    warps: int = 4
    stages: int = 2
    heads: int = 1
    split: int = 1
    roles: bool | None = None
    target: str = "sm_90a"

    @property
    def chip(self) -> Chip:
        return CHIPS[self.target]

    def __str__(self) -> str:
        kind = "causal" if self.causal else "full"
        size = "x".join(map(str, (self.heads, self.t, self.d, *self.tile)))
        on = "" if self.target == "sm_90a" else f"{self.target}-"
        end = "-roles" if self.roles else ""
        return f"{on}{self.kernel}-{self.format}-{kind}-{size}-{self.warps}warps-{self.stages}stages{end}"


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("triton", reason="triton is not installed: pip install 'refsim[triton]'")
    specification = spec_from_file_location("triton_attention", Path(__file__).parent / "triton_attention.py")
    assert specification is not None
    assert specification.loader is not None
    module = module_from_spec(specification)
    specification.loader.exec_module(module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield module


def compiled(kernels: Any, case: Case) -> Any:
    (bm, bn), element = case.tile, TRITON[case.format]
    blocks = dict.fromkeys("qo", bm) | dict.fromkeys("kv", bn)
    boxed = case.kernel == "by_boxes"
    types = {name: f"tensordesc<{element}[1,{blocks[name]},{case.d}]>" if boxed else f"*{element}" for name in "qkvo"}
    constants = {"D": case.d, "BM": bm, "BN": bn, "CAUSAL": case.causal, "STAGES": case.stages}
    if case.roles is not None:
        constants["ROLES"] = case.roles
    return from_triton(
        getattr(kernels, case.kernel),
        types | {"lse": "*fp32", "scale": "fp32", "T": "i32"},
        constants,
        case.target,
        aligned=("lse",) if boxed else (*"qkvo", "lse") if case.t % 16 else (*"qkvo", "lse", "T"),
        num_warps=case.warps,
        enable_fp_fusion=False,
    )


def products(a: Any, b: Any, c: Any, case: Case) -> Any:
    narrow, format = case.format == "e4m3", case.format
    unit = case.chip.narrow if narrow else case.chip.unit
    return numerics.mma(
        a, b, c, unit=unit, a_format=format, b_format=format, target=case.target, k=32 if narrow else 16
    )


def exp2(x: Any) -> Any:
    """ex2.approx.ftz of Hopper's unit."""
    return approximate("ex2", np.asarray(x).view(np.uint32), ftz=True).view(np.float32)


def quotient(a: Any, b: Any) -> Any:
    """div.full of the same."""
    a, b = np.broadcast_arrays(a, b)
    return divided(a.copy().view(np.uint32), b.copy().view(np.uint32), ftz=False, full=True).view(np.float32)


def row_sums(p: Any, case: Case) -> Any:
    """A lane has two columns of every eight, or the whole row; neighbours are added until one is left. Where pairs are added,
    neighbours are two apart, and the two of the last pair come at the end."""
    (rows, columns), split = p.shape, case.split
    if case.chip.lanes == 1:
        held = p.reshape(rows, split, 1, -1)
    else:
        held = p.reshape(rows, split, columns // split // 8, 4, 2).transpose(0, 1, 3, 2, 4).reshape(rows, split, 4, -1)
    if case.chip.in_pairs:
        held = held.reshape(*held.shape[:-1], -1, 2).swapaxes(-1, -2)
    while held.shape[-1] > 1:
        held = held[..., ::2] + held[..., 1::2]
    lanes = held[..., 0, 0] + held[..., 1, 0] if case.chip.in_pairs else held[..., 0]
    parts = lanes[..., 0] if case.chip.lanes == 1 else (lanes[..., 0] + lanes[..., 2]) + (lanes[..., 1] + lanes[..., 3])
    return parts[:, 0] if split == 1 else parts[:, 0] + parts[:, 1]


def attention(case: Case, q: Any, k: Any, v: Any, scale: Any) -> tuple[Any, Any, Any]:
    """Codes of o, and the highest score and the sum of weights of each row, for one head."""
    (bm, bn), (t, d) = case.tile, q.shape
    outs, tops, belows = [], [], []
    for first in range(0, t, bm):
        rows = np.arange(first, first + bm)
        x, sums = padded(q, first, bm), np.zeros((bm, d), np.float32)
        top, below = np.full(bm, -np.inf, np.float32), np.zeros(bm, np.float32)
        for start in range(0, min(first + bm, t) if case.causal else t, bn):
            at = np.arange(start, start + bn)
            seen = (at < t) & (rows[:, None] >= at) if case.causal else np.broadcast_to(at < t, (bm, bn))
            s = np.where(seen, products(x, padded(k, start, bn), None, case), np.float32(-np.inf))
            new = np.maximum(top, s.max(1) * scale)
            p = exp2(ieee.fma(s, scale, -new[:, None]))
            kept = exp2(top - new)
            below = ieee.fma(below, kept, row_sums(p, case))
            values = np.ascontiguousarray(padded(v, start, bn).T)
            sums = products(encode(p, case.format), values, sums * kept[:, None], case)
            top = new
        outs.append(encode(quotient(sums, below[:, None]), case.format))
        tops.append(top)
        belows.append(below)
    return np.concatenate(outs)[:t], np.concatenate(tops)[:t], np.concatenate(belows)[:t]


def padded(codes: Any, first: int, count: int) -> Any:
    block = codes[first : first + count]
    return np.pad(block, ((0, count - len(block)), (0, 0)))


def launched(kernel: Any, case: Case, given: dict[str, Any], scale: Any, policy: str) -> tuple[Any, Any]:
    """Codes of o, and lse; a finding or a note ends the test."""
    shape = (case.heads, case.t, case.d)
    with device.open(policy, case.target).launcher(KernelCode(ptx=kernel.ptx)) as gpu:
        buffers = [gpu.upload(codes, name=name) for name, codes in given.items()]
        o = gpu.output(given["q"].size, given["q"].dtype, name="o")
        lse = gpu.output(case.heads * case.t, np.float32, name="lse")
        tensors = [*buffers, o]
        if case.kernel == "by_boxes":
            tensors = [TritonDescriptor(buffer, shape) for buffer in tensors]
        kernel.launch(gpu, (-(-case.t // case.tile[0]), case.heads), *tensors, lse, scale, case.t)
        assert [str(each) for trace in gpu.traces for each in trace.findings] == []
        assert gpu.findings().notes == ()
        return gpu.read(o).reshape(shape), gpu.read(lse).reshape(shape[:2])


WIDE = pytest.mark.ci("larger tiles, more warps and other stages of what the small ones show")
CASES = [Case("by_pointers", "f16", True), Case("by_boxes", "bf16", False)]
TENSOR_MEMORY = [
    Case("by_pointers", "f16", True, 144, 64, (128, 64), target="sm_100a"),
    Case("by_boxes", "bf16", False, 144, 64, (128, 64), target="sm_100a"),
]
MORE = [
    Case("by_pointers", "bf16", False),
    Case("by_boxes", "f16", True),
    Case("by_pointers", "e4m3", True, 144, 64, (64, 64)),
    Case("by_pointers", "f16", True, 136, 64, (128, 64), 8, 3, 2),
    Case("by_pointers", "bf16", True, 70, 128, (64, 128), 4, 1),
    Case("by_pointers", "f16", False, 130, 64, (64, 64), 8, 2, split=2),
    Case("by_boxes", "e4m3", True, 144, 64, (64, 64), 4, 3),
    Case("by_boxes", "bf16", True, 200, 128, (128, 64), 8, 3),
    Case("by_boxes", "f16", False, 100, 64, (64, 64), 4, 1),
    Case("by_boxes", "f16", True, 130, 64, (128, 64), 4, 4),
    Case("by_own_boxes", "f16", True, 128, 64, (64, 64), roles=False),
    Case("by_own_boxes", "f16", True, 128, 64, (128, 64), stages=3, roles=True),
    Case("by_pointers", "f16", True, target="sm_120a"),
    Case("by_boxes", "bf16", False, target="sm_120a"),
    Case("by_pointers", "e4m3", True, 144, 64, (64, 64), target="sm_120a"),
    *TENSOR_MEMORY,
]


@pytest.mark.sampled(9, "tiles, warps and stages of other sizes")
@pytest.mark.parametrize("case", [*CASES, *(pytest.param(case, marks=WIDE) for case in MORE)], ids=str)
def test_flash_attention_by_triton_has_the_bits_of_its_definition_under_every_policy(kernels: Any, case: Case) -> None:
    for needed, row in (
        (case.kernel == "by_pointers", triton_versions.COPIES_FENCED),
        (case.kernel == "by_own_boxes", triton_versions.MAPS_SYNCHRONISED),
        (bool(case.roles), triton_versions.BARRIERS_ENDED),
    ):
        if needed:
            triton_versions.since(row)
    kernel = compiled(kernels, case)
    assert case.chip.opcode in kernel.ptx
    assert (case.kernel == "by_boxes") == ("cp.async.bulk.tensor.3d.shared::c" in kernel.ptx)
    # Before 3.8 the logarithm's last product and the sum are rounded otherwise.
    of_the_sum = 2 if triton_versions.installed() >= (3, 8) else 1
    assert bool(case.roles) == ("setmaxnreg" in kernel.ptx)
    draw = np.random.default_rng(case.t + case.d)
    given = {name: encode(draw.standard_normal((case.heads, case.t, case.d)), case.format) for name in "qkv"}
    scale = np.float32(1.44269504 / np.sqrt(case.d))
    with np.errstate(invalid="ignore"):
        heads = [attention(case, *(codes[head] for codes in given.values()), scale) for head in range(case.heads)]
    want, top, below = (np.stack(each) for each in zip(*heads, strict=True))
    logarithm = np.log2(below.astype(np.float64))
    for policy in POLICIES:
        o, lse = launched(kernel, case, given, scale, policy)
        assert_bits_equal(o, want, case.format)
        error = np.abs(lse - (top.astype(np.float64) + logarithm))
        assert (error <= np.spacing(np.abs(logarithm).astype(np.float32)) + np.spacing(np.abs(lse)) / of_the_sum).all()


def test_the_definition_is_attention() -> None:
    """Against float64 without blocks: weights and results are rounded to 11 bits; the sums of float32 are off by far less."""
    case = Case("by_pointers", "f16", True, 72, 32, (64, 32))
    draw = np.random.default_rng(0)
    q, k, v = (encode(draw.standard_normal((72, 32)), "f16") for _ in range(3))
    o, top, below = attention(case, q, k, v, np.float32(1.44269504 / np.sqrt(32)))
    x, y, z = (decode(codes, "f16") for codes in (q, k, v))
    s = np.where(np.tril(np.ones((72, 72), bool)), x @ y.T / np.sqrt(32), -np.inf)
    p = np.exp(s - s.max(1, keepdims=True))
    exact = p @ z / p.sum(1, keepdims=True)
    assert np.abs(decode(o, "f16") - exact).max() <= 2.0**-10 * np.abs(z).max()
    np.testing.assert_allclose(top + np.log2(below), (s.max(1) + np.log(p.sum(1))) * np.log2(np.e), rtol=1e-6)
