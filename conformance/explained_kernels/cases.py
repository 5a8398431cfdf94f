"""The test cases of the planted mistakes: small, quick to simulate, and with operands that tell places and scales apart."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from conformance.explained_kernels import small
from refsim.kernels import Kernel
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file
from refsim.testing.matrices import Values
from refsim.testing.recipes import Tensor

NEWCOMER = Path(__file__).parents[1] / "newcomer"
WIDE, NORMAL, OTHER, MORE = (
    Values("log-uniform", 1),
    Values("gaussian", 1),
    Values("gaussian", 2),
    Values("gaussian", 3),
)
QKV = {"q": NORMAL, "k": OTHER, "v": MORE}


@dataclass(frozen=True)
class Case:
    """A kernel as it is declared, the test case that is asked about, and the target whose simulated GPU runs it."""

    kernel: Kernel
    problem: Any
    target: str = "sm_90a"


def _file(name: str) -> Any:
    return load_kernel_file(bundled_kernels(f"{name}.py"))


def _of(kernels: Any, name: str) -> Kernel:
    return next(kernel for kernel in kernels if kernel.name == name)


@cache
def cases() -> dict[str, Case]:
    """Every test case by the name that `mistakes.toml` gives it."""
    return {**_quantisers(), **_products(), **_layers(), **_small(), **_newcomers()}


def _quantisers() -> dict[str, Case]:
    groups, blocks, tensors = _file("group_quantize_bindings"), _file("block_scale"), _file("bindings")
    by_group, by_block = (_of(groups.KERNELS, f"fp8_{name}_quantize") for name in ("group", "block"))
    made = groups.GroupQuantize
    found = {
        "groups": Case(by_group, made(8, 1024, NORMAL)),
        "groups_mn": Case(by_group, made(24, 1024, NORMAL, mn_major=True)),
        "groups_code": Case(by_group, made(24, 1024, WIDE, scale="e8m0")),
        "groups_code_mn": Case(by_group, made(24, 1024, WIDE, scale="e8m0", mn_major=True)),
        "blocks": Case(by_block, made(384, 512, NORMAL, group_rows=128)),
        "cast": Case(_of(tensors.KERNELS, "fp8_quantize"), tensors.Quantize(Tensor(2048, "bf16", "gaussian", 1))),
        "uncast": Case(
            _of(tensors.KERNELS, "fp8_dequantize"),
            tensors.Dequantize(Tensor(2048, "e4m3", "gaussian", 1), scale_bits=0x3B924925),
        ),
    }
    for format, recipe, shape in (
        ("mxfp8", "rceil", (128, 256)),
        ("mxfp4", "rceil", (128, 256)),
        ("nvfp4", "te", (256, 128)),
    ):
        kernel = _of(blocks.KERNELS, f"{format}_quantize")
        found[format] = Case(kernel, blocks.BlockQuantize(*shape, WIDE, "bf16", format, recipe))
    return found


def _products() -> dict[str, Case]:
    scaled, gemm = _file("block_scaled_matmul"), _file("gemm_1d2d")
    sm90, sm120 = (_of(scaled.KERNELS, f"block_scaled_matmul_{target}") for target in ("sm90", "sm120"))
    near = {"scale_a": scaled.Scales("near", 1), "scale_b": scaled.Scales("near", 2)}
    product = _of(gemm.KERNELS, "fp8_gemm_1d2d")
    distinct = {"scale_a": Values("distinct", 1), "scale_b": Values("distinct", 2)}
    found = {
        f"sm90_{entry}": Case(
            sm90, scaled.BlockScaledSm90(*shape, f"block_scaled_matmul_sm90_{entry}", NORMAL, OTHER, **near)
        )
        for entry, shape in (("mxfp8", (64, 64, 256)), ("fp8_fp4", (64, 64, 256)))
    }
    whole = scaled.BlockScaledSm90(128, 128, 128, "block_scaled_matmul_sm90_mxfp8", NORMAL, OTHER, **near)
    return found | {
        "sm90_whole": Case(sm90, whole),
        "sm120_mxfp8": Case(
            sm120, scaled.BlockScaled(64, 64, 256, "block_scaled_matmul_sm120_mxfp8", NORMAL, OTHER, **near), "sm_120a"
        ),
        "gemm": Case(product, gemm.Gemm1D2D(64, 256, 384, NORMAL, OTHER, **distinct, entry="fp8_gemm_1d2d_64x128")),
    }


def _layers() -> dict[str, Case]:
    linear, narrow, attention, rows = (
        _file(name) for name in ("linear_bindings", "linear_fp8_bindings", "attention", "row_functions")
    )
    weights = _of(narrow.KERNELS, "linear_fp8_weight")
    shape = (16, 64, 512, NORMAL, OTHER, MORE, None)
    attend = attention.Attend
    return {
        "linear": Case(_of(linear.KERNELS, "linear"), linear.Linear(16, 64, 256, NORMAL, OTHER, MORE)),
        "narrow": Case(weights, narrow.LinearFp8Weight(*shape, wb_n=128, wb_k=64)),
        "narrow_columns": Case(weights, narrow.LinearFp8Weight(*shape, wb_n=8, wb_k=128)),
        "attention": Case(
            _of(attention.KERNELS, "attention_sm90_bf16"), attend(64, 128, **QKV, causal=True, heads=4, group=2)
        ),
        "attention_e4m3": Case(
            _of(attention.KERNELS, "attention_sm90_e4m3"), attend(64, 128, type="e4m3", **QKV, heads=2)
        ),
        "softmax": Case(_of(rows.KERNELS, "softmax"), rows.Softmax(6, 300, NORMAL)),
        "norm": Case(_of(rows.KERNELS, "rms_norm"), rows.RmsNorm(6, 300, NORMAL, OTHER)),
        "norm_gate": Case(_of(rows.KERNELS, "rms_norm"), rows.RmsNorm(6, 300, NORMAL, OTHER, MORE)),
    }


def _small() -> dict[str, Case]:
    problems = {
        "rope_cache": small.RopeCache(3, 4, 1),
        "awq_dequantize": small.AwqWeights(128, 64, 1),
        "matmul_f16": small.HalfProduct(64, 64, 64),
        "int8_matmul": small.Int8Product(32, 64, 96, 1),
        "nvfp4_dequantize": small.Nvfp4(128, 128, 1),
        "pack_scales": small.ScaleTiles(256, 8, 1),
        "transpose_quantize": small.Turned(64, 96),
    }
    found = {name: Case(_of(small.KERNELS, name), problem) for name, problem in problems.items()}
    return found | {"pack_scales_pads": Case(_of(small.KERNELS, "pack_scales"), small.ScaleTiles(200, 6, 1))}


def _newcomers() -> dict[str, Case]:
    files = {name: load_kernel_file(NEWCOMER / f"{name}.py") for name in ("rmsnorm_fp8", "int8_dequant")}
    norm, steps = files["rmsnorm_fp8"], files["int8_dequant"]
    return {
        "rmsnorm_fp8": Case(norm.KERNEL, norm.Norm(6, 512)),
        "rmsnorm_large": Case(norm.KERNEL, norm.Norm(6, 512, scale=300.0)),
        "int8_dequant": Case(steps.KERNEL, steps.Dequantise(16, 96, "bf16", seed=1)),
    }
