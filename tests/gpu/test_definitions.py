"""Slow definitions of single outputs, which campaigns ask beside the oracles: the same codes, for problems of every kernel."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refsim.kernels import Kernel
from refsim.reference import fp8_quantize, linear_layers
from refsim.testing.kernel_files import load_kernel_file

FOLDER = Path(__file__).parent.parent.parent / "gpu"
FILES = (
    "bindings",
    "group_quantize_bindings",
    "linear_bindings",
    "linear_fp8_bindings",
    "gemm_1d2d",
    "block_scaled_matmul",
)
DECLARED = {
    kernel.name: kernel
    for file in FILES
    for kernel in load_kernel_file(FOLDER / f"{file}.py").KERNELS
    if kernel.definition is not None
}
TARGETS = {"block_scaled_matmul_sm120": "sm_120a"}


def size_of(problem: Any) -> int:
    """How much there is to add for an output."""
    return getattr(problem, "reduction", getattr(problem, "k", 1)) * getattr(getattr(problem, "x", None), "n", 1)


def some_of(kernel: Kernel) -> list[Any]:
    """Six problems of the corpus, of those with little to add."""
    small = [problem for problem in kernel.corpus if size_of(problem) <= 1100]
    return small[:: max(1, len(small) // 6)][:6]


@pytest.mark.parametrize("name", DECLARED)
def test_the_definition_and_the_oracle_say_the_same(name: str) -> None:
    kernel, target, seen = DECLARED[name], TARGETS.get(name, "sm_90a"), 0
    assert kernel.definition is not None
    for problem in some_of(kernel):
        for output, array in kernel.expected(problem, target).items():
            assert isinstance(array, np.ndarray)
            words = array.view(f"u{array.dtype.itemsize}")
            for place in {0, array.size // 3, array.size - 1} if array.size else ():
                at = tuple(map(int, np.unravel_index(place, array.shape)))
                code = kernel.definition(*kernel.asked(problem, target), output, at)
                if code is not None:
                    seen += 1
                    assert code == int(words[at]), (problem, output, at)
    assert seen >= 6


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_100a"])
def test_linear_layers_of_other_chips_too(target: str) -> None:
    kernel = DECLARED["linear"]
    assert kernel.definition is not None
    for problem in some_of(kernel)[:2]:
        y = kernel.expected(problem, target)["y"]
        at = tuple(extent - 1 for extent in y.shape)
        assert kernel.definition(problem, target, "y", at) == int(y[at])


def test_worked_numbers() -> None:
    whole = linear_layers.SplitK(1, 16, rounds_partials=False)
    assert linear_layers.output([0x3F80], [0x4000], 0x3F00, whole, "sm_90a") == 0x4020
    assert linear_layers.output([0x3F80], [0x4000], None, whole, "sm_75") is None
    assert [linear_layers.weight(0, 0x3F80, adds_to_exponent=each) for each in (False, True)] == [0, 0x3C00]
    assert fp8_quantize.stored_scale(fp8_quantize.scale(0x40000000, "e4m3", 0)) == 0x3B924925
    assert fp8_quantize.amax([0x7FC00000, 0xC0400000], "f32") == 0x40400000
    assert fp8_quantize.largest_and_nan([0x3F80, 0xC000, 0x7FC1], "bf16") == [0x40000000, 0x7FC10000]
    assert fp8_quantize.largest_and_nan([0x3F80, 0xC000], "bf16") == [0x40000000]
    assert fp8_quantize.dequantized(0x7E, "e4m3", 0x3F000000, "bf16") == 0x4360
