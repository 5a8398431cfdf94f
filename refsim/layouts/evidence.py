"""The evidence for each layout, as data: a formula alone, an independent implementation that agrees, or hardware."""

import re
from fnmatch import translate
from functools import cache

from refsim.evidence import Evidence, Level, Run

FORMULA = Evidence(Level.FORMULA, "formula only")
CUTE_PACKAGE = "cute"
TENSOR_LAYOUTS_PACKAGE = "tensor-layouts"
TRITON_PACKAGE = "triton"
COMPOSABLE_KERNEL_PACKAGE = "composable_kernel"

# Package -> the names that a test compares with it, as patterns of fnmatch.
# fmt: off
AGREES: dict[str, tuple[str, ...]] = {
    CUTE_PACKAGE: (
        "mma.m8n8k*", "mma.m16n8k[48].*", "mma.m16n8k16.[bfsu]*", "mma.m16n8k32.e*", "mma.m16n8k32.[su]8.*",
        "mma.m16n8k32.[su]4.[acd]", "mma.m16n8k64.[esu]*", "mma.m16n8k128.*", "mma.m16n8k256.*", "wgmma.m64n*k8.*",
        "wgmma.m64n*k16.*", "wgmma.m64n*k32.*", "ldmatrix.m8n*",
        "stmatrix.*", "tcgen05.[ls][dt].*", "tcgen05.m*.d", "tcgen05.m*.[124]x.sfa", "tcgen05.n32.[124]x.sfb",
        "tcgen05.n64.[124]x.sfb", "tcgen05.n96.[124]x.sfb", "tcgen05.n128.[124]x.sfb", "tcgen05.n160.[124]x.sfb",
        "tcgen05.n192.[124]x.sfb", "tcgen05.n224.[124]x.sfb", "tcgen05.n256.[124]x.sfb", "tcgen05.n*.[124]x.sfb.2x2",
        "swizzle.*", "wgmma-smem",
        "tcgen05-smem", "tcgen05-instr*", "wgmma.sp.*", "mma.sp.m16n8k64.e*",
        "tcgen05.sp.m128k*.1sm.meta", "tcgen05.sp.m256k*.2sm.meta", "tcgen05.sp.m*k*.ws.meta",
    ),
    TENSOR_LAYOUTS_PACKAGE: (
        "mma.m8n8k4.*", "mma.m8n8k16.s8.*", "mma.m8n8k32.s4.*", "mma.m8n8k128.*", "mma.m16n8k[48].*", "mma.m16n8k16.[bf]*",
        "mma.m16n8k16.s8.*", "mma.m16n8k32.s8.*", "mma.m16n8k32.s4.[acd]", "mma.m16n8k32.e[45]m*", "mma.m16n8k64.s4.*",
        "mma.m16n8k128.*", "mma.m16n8k256.*", "wgmma.m64n8k16.f16.d.f16", "wgmma.m64n16k16.f16.d.f16",
        "wgmma.m64n32k16.f16.d.f16", "wgmma.m64n64k16.f16.d.f16", "wgmma.m64n128k16.f16.d.f16",
        "wgmma.m64n256k16.f16.d.f16", "ldmatrix.m8n8.*", "stmatrix.m8n8.*",
    ),
    TRITON_PACKAGE: (
        "mma.m16n8k16.f16.*", "mma.m16n8k16.bf16.*", "mma.m16n8k32.[su]8.*", "mma.m16n8k32.e[45]m*", "mma.m16n8k8.tf32.*",
        "wgmma.m64n*k16.*.a", "wgmma.m64n*k32.*.a", "wgmma.m64n8k[138]*.d*", "wgmma.m64n16k[138]*.d*",
        "wgmma.m64n32k[138]*.d*", "wgmma.m64n64k[138]*.d*", "wgmma.m64n128k[138]*.d*", "wgmma.m64n256k[138]*.d*",
        "tcgen05.m*n16.[12]sm.d", "tcgen05.m*n32.[12]sm.d", "tcgen05.m*n64.[12]sm.d", "tcgen05.m*n128.[12]sm.d",
        "tcgen05.m*n256.[12]sm.d", "tcgen05.m128.4x.sfa", "tcgen05.n128.4x.sfb", "tcgen05.n256.4x.sfb", "mfma.*.[abcd]",
        "mfma.*.fp4", "mfma.*.sf[ab]", "swizzle.32B", "swizzle.64B", "swizzle.128B",
    ),
    COMPOSABLE_KERNEL_PACKAGE: ("mfma.*.f8f6f4.[ab]", "mfma.*.f8f6f4.[ab].fp[46]"),
}
# Chip -> the names that its recording covers.
RECORDED: dict[Run, tuple[str, ...]] = {
    Run("H200", "2026-11-21", "conformance/vectors/h200/layouts.npz"): (
        "mma.m8n8k*", "mma.m16n8k[48].*", "mma.m16n8k16.*", "mma.m16n8k32.[su][48].*", "mma.m16n8k32.e[45]m*",
        "mma.m16n8k64.[su]4.*", "mma.m16n8k128.*", "mma.m16n8k256.*", "ldmatrix.m8n8.*", "stmatrix.m8n8.*",
        "wgmma.m64n*k8.tf32.[ad]", "wgmma.m64n*k16.[bf]*16.[ad]", "wgmma.m64n8k32.[es][48]*.[ad]",
        "wgmma.m64n16k32.[es][48]*.[ad]", "wgmma.m64n24k32.[es][48]*.[ad]", "wgmma.m64n32k32.[es][48]*.[ad]",
        "wgmma.m64n64k32.[es][48]*.[ad]", "wgmma.m64n96k32.[es][48]*.[ad]", "wgmma.m64n128k32.[es][48]*.[ad]",
        "wgmma.m64n192k32.[es][48]*.[ad]", "wgmma.m64n256k32.[es][48]*.[ad]", "wgmma.m64n8k16.f16.d.f16",
        "wgmma.m64n8k32.e4m3.d.f16", "wgmma.m64n8k32.e5m2.[ad]", "wgmma.m64n8k32.u8.[ad]", "wgmma.m64n64k16.f16.d.f16",
        "wgmma.m64n64k32.e4m3.d.f16", "wgmma.m64n64k32.e5m2.[ad]", "wgmma.m64n64k32.u8.[ad]",
        "wgmma.m64n256k16.f16.d.f16", "wgmma.m64n256k32.e4m3.d.f16", "wgmma.m64n256k32.e5m2.[ad]",
        "wgmma.m64n256k32.u8.[ad]", "wgmma.m64n8k256.b1.[ad]", "swizzle.none", "swizzle.32B", "swizzle.64B",
        "swizzle.128B", "wgmma-smem", "tensormap",
    ),
    Run("H200", "2026-11-22", "conformance/vectors/h200/wmma.npz"): ("wmma.*",),
    Run("H200", "2026-11-29", "conformance/vectors/h200/operand_starts.npz"): ("wgmma-smem",),
}
# fmt: on


@cache
def evidence(name: str) -> Evidence:
    """Return the evidence for the layout of a name; evidence("mfma.16x16x32.fp8.a").packages is ("triton",)."""
    packages = tuple(package for package, patterns in AGREES.items() if _any(name, patterns))
    runs = tuple(run for run, patterns in RECORDED.items() if _any(name, patterns))
    if not packages and not runs:
        return FORMULA
    spoken = [f"{run.device} {run.date}" for run in runs] + list(packages)
    return Evidence(Level.SILICON if runs else Level.INDEPENDENT, ", ".join(spoken), packages, runs)


def _any(name: str, patterns: tuple[str, ...]) -> bool:
    return _expression(patterns).match(name) is not None


@cache
def _expression(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, patterns)))
