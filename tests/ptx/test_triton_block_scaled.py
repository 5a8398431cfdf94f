"""Triton's `tl.dot_scaled`, compiled from a kernel of our own and launched as a user launches it: without a finding, with the
bits of `oracles.block_scaled_matmul`. What Triton refuses for a target is its own refusal.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from refsim import device, oracles, pack
from refsim.errors import RefsimError
from refsim.formats import format_named
from refsim.kernel_code import KernelCode
from refsim.testing import assert_bits_equal
from refsim.testing.adapters import TritonKernel, from_triton
from tests import triton_versions

ONE_OF_MANY = pytest.mark.ci("another target, format or policy of what the quick ones show")
POINTERS = {"e2m1": "*u8", "e4m3": "*fp8e4nv", "e5m2": "*fp8e5"}
SCALES = {32: ("e8m0", "*u8"), 16: ("ue4m3", "*fp8e4nv")}


@dataclass(frozen=True)
class Kind:
    """Formats of A and B, and the block of their scales."""

    a: str
    b: str
    block: int = 32


KINDS = {
    "mxfp8": Kind("e4m3", "e4m3"),
    "mxfp8_e5m2": Kind("e5m2", "e4m3"),
    "mxfp4": Kind("e2m1", "e2m1"),
    "nvfp4": Kind("e2m1", "e2m1", 16),
    "mixed": Kind("e4m3", "e2m1"),
}


@dataclass(frozen=True)
class Case:
    """One launch: `meant` are the arguments of the oracle beside the operands, `opcode` what Triton makes of the product."""

    target: str
    kind: str
    opcode: str
    meant: tuple[tuple[str, Any], ...] = ()
    tile: tuple[int, int, int] = (64, 32, 128)
    shape: tuple[int, int, int] = (100, 40, 224)
    warps: int = 4
    policy: str = "sim"
    specials: bool = False

    def __str__(self) -> str:
        extra = [
            name for name, is_said in (("specials", self.specials), (self.policy, self.policy != "sim")) if is_said
        ]
        return "-".join([self.target, self.kind, "x".join(map(str, self.tile)), *extra])


WARP, GROUP = "mma.sync.aligned.m16n8k16.row.col.f32.bf16", "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16"
ON_WARPS = (("unit", "mma.sync"),)
SCALED = {  # what sm_120a multiplies with block scales; FP8 x FP4 Triton 3.9 multiplies in bf16 there
    "mxfp8": "m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e4m3",
    "mxfp8_e5m2": "m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e5m2.e4m3",
    "mxfp4": "m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0",
    "nvfp4": "m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3",
}
TENSOR = "tcgen05.mma.cta_group::1.kind::"
IN_TENSOR_MEMORY = dict.fromkeys(("mxfp8", "mxfp8_e5m2", "mixed"), f"{TENSOR}mxf8f6f4.block_scale.block32")
IN_TENSOR_MEMORY |= {"mxfp4": f"{TENSOR}mxf4.block_scale.block32", "nvfp4": f"{TENSOR}mxf4nvf4.block_scale.block16"}
ONE_BLOCK: dict[str, Any] = {"tile": (128, 64, 256), "shape": (100, 40, 288)}
QUICK = (Case("sm_80", "mxfp4", WARP), Case("sm_90a", "mixed", GROUP, specials=True))
LARGER = (
    *(Case("sm_89", kind, WARP) for kind in KINDS),
    *(Case("sm_90a", kind, GROUP) for kind in KINDS),
    *(Case("sm_90a", kind, GROUP, policy="sim:random", specials=True) for kind in KINDS),
    *(Case("sm_89", kind, WARP, policy="sim:lazy", specials=True) for kind in KINDS),
    Case("sm_80", "mxfp4", WARP, specials=True),
    Case("sm_89", "mxfp4", WARP, (("tile_k", 32),), (64, 32, 32)),
    Case("sm_89", "mxfp8", WARP, (), (32, 16, 64), warps=1),
    Case("sm_90a", "mxfp8", WARP, ON_WARPS, (32, 32, 64)),
    *(Case("sm_120a", kind, opcode) for kind, opcode in SCALED.items()),
    *(Case("sm_120a", kind, SCALED[kind], specials=True) for kind in ("mxfp8", "mxfp4", "nvfp4")),
    Case("sm_120a", "mixed", WARP, ON_WARPS),
    *(Case("sm_100a", kind, opcode, **ONE_BLOCK) for kind, opcode in IN_TENSOR_MEMORY.items()),
    *(
        Case("sm_100a", kind, IN_TENSOR_MEMORY[kind], specials=True, **ONE_BLOCK)
        for kind in ("mxfp8", "mxfp4", "nvfp4", "mixed")
    ),
    Case("sm_100a", "mixed", IN_TENSOR_MEMORY["mixed"], policy="sim:random", **ONE_BLOCK),
    Case("sm_100a", "nvfp4", IN_TENSOR_MEMORY["nvfp4"], policy="sim:lazy", shape=(200, 100, 512), tile=(128, 128, 256)),
)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("triton", reason="triton is not installed: pip install 'refsim[triton]'")
    specification = spec_from_file_location("triton_block_scaled", Path(__file__).parent / "triton_block_scaled.py")
    assert specification is not None
    assert specification.loader is not None
    module = module_from_spec(specification)
    specification.loader.exec_module(module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield module.product


def compiled(kernel: Any, kind: Kind, target: str, tile: tuple[int, int, int], warps: int) -> TritonKernel:
    scale = SCALES[kind.block][1]
    types = {"a": POINTERS[kind.a], "sa": scale, "b": POINTERS[kind.b], "sb": scale, "c": "*fp32"}
    in_byte = [8 // format_named(format).bits for format in (kind.a, kind.b)]
    constants = dict(zip(("A", "B", "IN_A", "IN_B", "BLOCK"), (kind.a, kind.b, *in_byte, kind.block), strict=True))
    constants |= dict(zip(("BM", "BN", "BK"), tile, strict=True))
    pointers = ("a", "sa", "b", "sb", "c")
    types |= dict.fromkeys("MNK", "i32")
    return from_triton(kernel, types, constants, target, aligned=pointers, num_warps=warps)


def drawn(kind: Kind, shape: tuple[int, int, int], *, specials: bool) -> list[NDArray[np.uint8]]:
    """Codes and scales of A and of B; with `specials` every code there is, and in some rows the ends of the scales."""
    generator = np.random.default_rng([*shape, kind.block, specials])
    found = []
    for format, rows in ((format_named(kind.a), shape[0]), (format_named(kind.b), shape[1])):
        codes = generator.integers(0, format.code_limit, (rows, shape[2])).astype(np.uint8)
        magnitude = codes & (format.magnitude_limit - 1)
        if not specials:
            codes[(format.bits == 8) & (magnitude >= 0x7C)] = 0x35
        else:
            codes[1:][(format.bits == 8) & (magnitude[1:] == 0x7F)] = 0x35  # NaN of E4M3, but for one row
        low, high, ends = (
            (117, 137, [0, 1, 127, 140, 253, 255]) if kind.block == 32 else (0, 0x7F, [0, 1, 0x38, 0xB8, 0x7E, 0x7F])
        )
        scales = generator.integers(low, high, (rows, shape[2] // kind.block)).astype(np.uint8)
        if specials:
            scales[::3] = generator.choice(np.uint8(ends[:4]), scales[::3].shape)
            scales[4, 1], scales[5, 1] = ends[4:]
        found += [codes, scales]
    return found


def check(kernel: Any, case: Case) -> None:
    triton_versions.since(triton_versions.SCALES_OF_ZERO)
    kind, (m, n, k) = KINDS[case.kind], case.shape
    made = compiled(kernel, kind, case.target, case.tile, case.warps)
    assert case.opcode in made.ptx
    a, sa, b, sb = drawn(kind, case.shape, specials=case.specials)
    formats = {"a_format": kind.a, "b_format": kind.b, "scale_format": SCALES[kind.block][0]}
    want = oracles.block_scaled_matmul(a, b, sa, sb, **formats, target=case.target, **dict(case.meant))
    if case.specials:
        assert 0.01 < np.isnan(want).mean() < 0.2
    held = [pack(x, f) if format_named(f).bits == 4 else x for x, f in ((a, kind.a), (b, kind.b))]
    with device.open(case.policy, case.target).launcher(KernelCode(ptx=made.ptx)) as gpu:
        given = zip((held[0], sa, held[1], sb), ("a", "sa", "b", "sb"), strict=True)
        buffers = [gpu.upload(x, name=name) for x, name in given]
        out = gpu.output(m * n, np.float32, name="c")
        made.launch(gpu, (-(-m // case.tile[0]), -(-n // case.tile[1])), *buffers, out, m, n, k)
        assert [str(each) for trace in gpu.traces for each in trace.findings] == []
        assert_bits_equal(gpu.read(out).reshape(m, n), want, "f32")


@pytest.mark.parametrize("case", [pytest.param(QUICK[0], marks=ONE_OF_MANY), QUICK[1]], ids=str)
def test_a_product_of_triton_has_the_bits_of_the_oracle(kernel: Any, case: Case) -> None:
    check(kernel, case)


@pytest.mark.sampled(14, "another target, format or policy of what CI runs")
@ONE_OF_MANY
@pytest.mark.parametrize("case", LARGER, ids=str)
def test_every_product_of_triton_has_the_bits_of_the_oracle(kernel: Any, case: Case) -> None:
    check(kernel, case)


@pytest.mark.parametrize("kind", ["mxfp8", "nvfp4", "mixed"])
def test_what_ampere_has_no_type_for_triton_refuses_itself(kernel: Any, kind: str) -> None:
    with pytest.raises(RefsimError, match="fp8e4nv not supported in this architecture") as refused:
        compiled(kernel, KINDS[kind], "sm_80", (64, 32, 128), 4)
    assert refused.value.code == "compile-error"
