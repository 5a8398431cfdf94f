"""Somebody else's compiler: Triton's matrix product, as it pipelines and swizzles it, gives the bits of the tensor core model.

Its PTX has what no kernel here uses: copies with a predicate, ldmatrix.trans, tf32, registers alone in braces.
"""

import warnings
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refsim import numerics, ptx
from refsim.conversions import encode
from refsim.testing.adapters.triton_kernels import known_defects

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def product(a, b, c, M, N, K, sa, sb, sc, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TB: tl.constexpr):
    columns = tl.cdiv(N, BN)
    rm = tl.program_id(0) // columns * BM + tl.arange(0, BM)
    rn = tl.program_id(0) % columns * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    sums = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rm[:, None] * sa + (k + rk)[None, :], mask=(rm[:, None] < M) & ((k + rk)[None, :] < K), other=0.0)
        step = sb if TB else 1
        along = 1 if TB else sb
        y = tl.load(b + rn[None, :] * step + (k + rk)[:, None] * along,
                    mask=(rn[None, :] < N) & ((k + rk)[:, None] < K), other=0.0)
        sums = tl.dot(x, y, sums)
    tl.store(c + rm[:, None] * sc + rn[None, :], sums, mask=(rm[:, None] < M) & (rn[None, :] < N))
"""
CASES = [
    (80, "bf16", "bf16", True, "cp.async"),
    (80, "fp16", "f16", False, "ldmatrix.sync.aligned.m8n8.x4.trans"),
    (80, "fp32", "tf32", True, "tf32.tf32"),
    (89, "fp8e4nv", "e4m3", True, "e4m3.e4m3"),
    (90, "bf16", "bf16", True, "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16"),
    (90, "fp16", "f16", False, "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16"),
    (90, "fp32", "tf32", True, "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32"),
    (90, "fp8e4nv", "e4m3", True, "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3"),
]
BLACKWELL = [
    (100, "bf16", "bf16", True, "tcgen05.mma.cta_group::1.kind::f16"),
    (100, "fp16", "f16", False, "tcgen05.mma.cta_group::1.kind::f16"),
    (100, "fp32", "tf32", True, "tcgen05.mma.cta_group::1.kind::tf32"),
    (100, "fp8e4nv", "e4m3", True, "tcgen05.mma.cta_group::1.kind::f8f6f4"),
    (120, "bf16", "bf16", True, "m16n8k16.row.col.f32.bf16.bf16"),
    (120, "fp16", "f16", False, "m16n8k16.row.col.f32.f16.f16"),
    (120, "fp32", "tf32", True, "m16n8k8.row.col.f32.tf32.tf32"),
    (120, "fp8e4nv", "e4m3", True, "m16n8k32.row.col.f32.e4m3.e4m3"),
]
LARGER = pytest.mark.ci("chips after Hopper: what it shows of a product, in other instructions")
M, N, K = 48, 80, 96


@dataclass(frozen=True)
class Chip:
    """A target, the unit that multiplies, by format or "" for each, and the rows of a tile."""

    target: str
    units: dict[str, Any]
    rows: int = 32

    def unit(self, format: str) -> Any:
        return self.units.get(format, self.units[""])


WARP: dict[str, Any] = {"": "mma.sync"}
CHIPS = {
    80: Chip("sm_80", WARP),
    89: Chip("sm_89", WARP),
    90: Chip("sm_90a", {"": "wgmma"}, 64),
    100: Chip("sm_100a", {"": "tcgen05.f16", "tf32": "tcgen05.tf32", "e4m3": "tcgen05.f8f6f4"}, 128),
    120: Chip("sm_120a", WARP),
}


def compiled(folder: Path, capability: int, type: str, transposed: bool) -> tuple[str, str, int]:
    """PTX, the entry's name and its shared bytes."""
    triton = pytest.importorskip("triton", reason="triton is not installed: pip install 'refsim[triton]'")
    from importlib.util import module_from_spec, spec_from_file_location

    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    file = folder / "product.py"
    file.write_text(SOURCE)
    specification = spec_from_file_location("product", file)
    assert specification is not None
    assert specification.loader is not None
    module = module_from_spec(specification)
    specification.loader.exec_module(module)
    names = ["a", "b", "c", "M", "N", "K", "sa", "sb", "sc"]
    signature: dict[str, Any] = dict.fromkeys(names, "i32") | {"a": f"*{type}", "b": f"*{type}", "c": "*fp32"}
    constants = {"BM": CHIPS[capability].rows, "BN": 64, "BK": 32, "TB": transposed}
    aligned = {(place,): [["tt.divisibility", 16]] for place in (0, 1, 2, 5, 6, 7, 8)}
    source = ASTSource(
        module.product, signature=signature | dict.fromkeys(constants, "constexpr"), constexprs=constants, attrs=aligned
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernel = triton.compile(
            source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4, "num_stages": 3}
        )
    return kernel.asm["ptx"], kernel.metadata.name, kernel.metadata.shared


@pytest.mark.parametrize(
    ("capability", "type", "format", "transposed", "uses"),
    [*CASES, *(pytest.param(*case, marks=LARGER) for case in BLACKWELL)],
)
def test_a_product_by_triton_has_the_bits_of_the_model_under_every_policy(
    capability: int,
    type: str,
    format: str,
    transposed: bool,
    uses: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    text, entry, shared = compiled(tmp_path, capability, type, transposed)
    assert uses in text
    draw = np.random.default_rng(4)
    values = [draw.standard_normal((count, K)) for count in (M, N)]
    a, b = (v.astype(np.float32).view(np.uint32) if format == "tf32" else encode(v, format) for v in values)
    step = {"tf32": 8, "e4m3": 32}.get(format, 16)
    want = numerics.mma(
        a,
        b,
        np.zeros((M, N), np.float32),
        unit=CHIPS[capability].unit(format),
        a_format=format,
        b_format=format,
        target=CHIPS[capability].target,
        k=step,
    )
    program = ptx.load(text)
    checks = ptx.Checks(known=known_defects(version("triton")))
    held = b if transposed else np.ascontiguousarray(b.T)
    for policy in ptx.POLICIES:
        c = np.zeros((M, N), np.float32)
        arguments = [a, held, c, *map(np.int32, (M, N, K, K, held.shape[1], N))]
        arguments += [np.uint64(0)] * (len(program.entries[entry]) - len(arguments))
        blocks = -(-M // CHIPS[capability].rows) * 2
        program.launch(entry, (blocks,), (128,), arguments, shared_bytes=shared, policy=policy, seed=5, checks=checks)
        assert np.array_equal(c.view(np.uint32), want.view(np.uint32)), policy
