"""The gates by which FP8 kernels are accepted in the field, as rows; all of them, and what they compare with, in float64.

A gate is one or more conditions, and lets a result pass where each measure is at most its limit; a NaN passes none.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


@dataclass(frozen=True)
class References:
    """What a result is compared with, in the values of bf16: the product of the operands before they were quantised, and of
    the codes times their scales. Both are summed in float64 and rounded once; the projects sum them in float32.
    """

    unquantised: Values
    dequantised: Values


@dataclass(frozen=True)
class Condition:
    measure: Callable[[Values, Values], float]
    limit: float
    reference: str = "dequantised"


@dataclass(frozen=True)
class Gate:
    """One test of one project. `rule` is its formula, with x the result and y the reference."""

    name: str
    project: str
    rule: str
    source: str
    conditions: tuple[Condition, ...]

    def measures(self, got: Values, references: References) -> tuple[float, ...]:
        with np.errstate(all="ignore"):
            return tuple(
                float(condition.measure(got, getattr(references, condition.reference))) for condition in self.conditions
            )

    def passes(self, measures: tuple[float, ...]) -> bool:
        return all(measure <= condition.limit for measure, condition in zip(measures, self.conditions, strict=True))


# ---- measures --------------------------------------------------------------------------------------------------------


def calc_diff(x: Values, y: Values) -> float:
    """One number for the whole matrix: 1 - 2 <x, y> / (<x, x> + <y, y>), which is |x - y|^2 over the same."""
    return float(1 - 2 * (x * y).sum() / (x * x + y * y).sum())


def away_from_parallel(x: Values, y: Values) -> float:
    """1 - cosine: the same for any multiple of x."""
    return float(1 - (x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum()))


def mean_difference(x: Values, y: Values) -> float:
    return float(np.abs(x - y).mean() / np.abs(y).mean())


def share_beyond(rtol: float, atol: float) -> Callable[[Values, Values], float]:
    """The share of elements with |x - y| > atol + rtol |y|: `allclose` is that there are none."""

    def measure(x: Values, y: Values) -> float:
        return float(1 - (np.abs(x - y) <= atol + rtol * np.abs(y)).mean())

    return measure


def _relative(x: Values, y: Values) -> Values:
    """Differences over |y|, or over the root mean square of y where that is more."""
    return np.asarray(np.abs(x - y) / np.maximum(np.sqrt((y * y).mean()), np.abs(y)))


def largest_relative(x: Values, y: Values) -> float:
    return float(_relative(x, y).max())


def mean_square_relative(x: Values, y: Values) -> float:
    return float(np.sqrt((_relative(x, y) ** 2).mean()))


# ---- rows ------------------------------------------------------------------------------------------------------------

GATES = (
    Gate(
        "DeepGEMM",
        "DeepGEMM",
        "calc_diff = `1 - 2<x,y> / (<x,x> + <y,y>)` < 0.001, y not quantised",
        "tests/test_fp8_fp4.py, deep_gemm/testing/numeric.py",
        (Condition(calc_diff, 1e-3, "unquantised"),),
    ),
    Gate(
        "FlashInfer",
        "FlashInfer",
        "cosine > 0.99, y not quantised",
        "tests/gemm/test_mm_fp8.py",
        (Condition(away_from_parallel, 1e-2, "unquantised"),),
    ),
    Gate(
        "vLLM",
        "vLLM, CUTLASS scaled_mm",
        "allclose, rtol 0.5, atol 0.15",
        "tests/kernels/quantization/test_cutlass_scaled_mm.py",
        (Condition(share_beyond(5e-1, 1.5e-1), 0),),
    ),
    Gate(
        "vLLM mean",
        "vLLM, block FP8",
        "`mean |x - y| / mean |y|` < 0.001",
        "tests/kernels/quantization/test_block_fp8.py",
        (Condition(mean_difference, 1e-3),),
    ),
    Gate(
        "PyTorch",
        "PyTorch, scaled_mm by blocks",
        "allclose, rtol 0.07, atol 0.6; cosine >= 0.999, y quantised and not",
        "test/test_scaled_matmul_cuda.py",
        (
            Condition(share_beyond(7e-2, 6e-1), 0),
            Condition(away_from_parallel, 1e-3),
            Condition(away_from_parallel, 1e-3, "unquantised"),
        ),
    ),
    Gate(
        "PyTorch rows",
        "PyTorch, scaled_mm by rows",
        "allclose, rtol 0.07, atol 0.07; cosine >= 0.999",
        "test/test_scaled_matmul_cuda.py",
        (Condition(share_beyond(7e-2, 7e-2), 0), Condition(away_from_parallel, 1e-3)),
    ),
    Gate(
        "Triton",
        "triton_kernels",
        "`e = |x - y| / max(|y|, rms(y))`: largest <= 0.02, root mean square <= 0.004",
        "python/triton_kernels/triton_kernels/testing.py",
        (Condition(largest_relative, 2e-2), Condition(mean_square_relative, 4e-3)),
    ),
    Gate(
        "aiter",
        "aiter; flashinfer-bench, low-bit",
        "isclose, rtol 0.01, atol 0.01, 5 % of elements may miss it",
        "aiter/test_common.py (it logs a miss, and goes on); flashinfer_bench/bench/evaluators/lowbit.py",
        (Condition(share_beyond(1e-2, 1e-2), 5e-2),),
    ),
)
