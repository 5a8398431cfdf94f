"""What the field tests with: normal numbers in bf16, quantised, multiplied; and the two products that gates compare with."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

import refsim
from conformance.tolerance.gates import References, Values
from conformance.tolerance.mutants import GEMM, LINEAR, Mutant
from refsim import scaling
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file

gemm = load_kernel_file(bundled_kernels("gemm_1d2d.py"))
linear = load_kernel_file(bundled_kernels("linear_fp8_bindings.py"))
KERNELS = {GEMM: gemm.FP8_GEMM_1D2D, LINEAR: linear.LINEAR_FP8_WEIGHT}
BLOCKS = (128, 128)
LINEAR_ENTRY = "linear_fp8_weight_n64_s1"


def normal(seed: int, rows: int, columns: int) -> NDArray[Any]:
    """Codes of bf16."""
    return refsim.encode(np.random.Generator(np.random.Philox(seed)).standard_normal((rows, columns)), "bf16")


def product(a: Values, b: Values) -> Values:
    """a b^T, rounded to bf16 once."""
    return np.asarray(refsim.decode(refsim.encode(a @ b.T, "bf16"), "bf16"))


@dataclass(frozen=True)
class Held:
    """The codes of a matrix; it stands where a recipe of values does."""

    found: NDArray[Any]

    def codes(self, format: str, rows: int, columns: int) -> NDArray[Any]:
        assert self.found.shape == (rows, columns), (format, self.found.shape)
        return self.found


@dataclass(frozen=True, repr=False)
class NormalGemm(gemm.Gemm1D2D):
    """A and B of bf16, quantised in groups of 1 x 128 and of 128 x 128."""

    @cached_property
    def wide(self) -> tuple[NDArray[Any], NDArray[Any]]:
        return normal(0, self.m, self.k), normal(1, self.n, self.k)

    @cached_property
    def quantised(self) -> tuple[scaling.Quantized, scaling.Quantized]:
        a, b = self.wide
        return scaling.quantize(a, "bf16"), scaling.quantize(b, "bf16", group=BLOCKS)

    @cached_property
    def operands(self) -> tuple[Any, ...]:
        a, b = self.quantised
        return a.codes, b.codes, a.scales, b.scales

    @property
    def references(self) -> References:
        a, b = (refsim.decode(codes, "bf16") for codes in self.wide)
        return References(product(a, b), product(*map(dequantised, self.quantised)))


@dataclass(frozen=True, repr=False)
class NormalLinear(linear.LinearFp8Weight):
    """X of bf16, W of bf16 quantised in blocks of 128 x 128, with a power of two for each, which bf16 holds."""

    @staticmethod
    def of(batch: int, output: int, reduction: int) -> "NormalLinear":
        x, w = normal(2, batch, reduction), normal(3, output, reduction)
        quantised = scaling.quantize(w, "bf16", group=BLOCKS, scale="f32_power")
        scales = refsim.encode(quantised.factors, "bf16")
        return NormalLinear(batch, output, reduction, Held(x), Held(quantised.codes), Held(scales), entry=LINEAR_ENTRY)

    @property
    def references(self) -> References:
        x = refsim.decode(self.x.found, "bf16")
        wide = refsim.decode(normal(3, self.output, self.reduction), "bf16")
        scales = refsim.decode(self.scales.found, "bf16").astype(np.float32)
        narrow = scaling.dequantize(self.w.found, scales, "e4m3", group=BLOCKS)
        return References(product(x, wide), product(x, refsim.decode(narrow, "f32")))


def dequantised(quantised: scaling.Quantized) -> Values:
    codes = scaling.dequantize(quantised.codes, quantised.scales, quantised.format, group=quantised.group)
    return np.asarray(refsim.decode(codes, "f32"))


def problem_of(mutant: Mutant, extents: tuple[int, int, int] | None = None) -> Any:
    m, n, k = extents or mutant.extents
    if mutant.kernel == LINEAR:
        return NormalLinear.of(m, n, k)
    return NormalGemm(m, n, k, entry=gemm.chosen(m, n, k).name)


def special_problems(mutant: Mutant, entry: str) -> tuple[Any, ...]:
    """Those of the kernel's own corpus: edges, several tiles for a block, codes of every kind, infinities and NaN."""
    return tuple(problem for problem in KERNELS[mutant.kernel].corpus if problem.entry == entry)
