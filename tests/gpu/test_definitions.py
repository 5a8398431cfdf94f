"""Slow definitions of single outputs, which campaigns ask beside the oracles: the same codes, for problems of every kernel."""

from collections.abc import Callable
from contextvars import copy_context
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refsim.kernels import Kernel
from refsim.oracle_calls import HEARER
from refsim.reference import block_quantize, fp8_quantize, linear_layers
from refsim.testing.kernel_files import load_kernel_file
from refsim.testing.matrices import Values
from refsim.testing.samples import Sample, take_samples

FOLDER = Path(__file__).parent.parent.parent / "gpu"
FILES = [path for path in sorted(FOLDER.glob("*.py")) if "\nKERNELS = " in path.read_text("utf-8")]
DECLARED = {kernel.name: kernel for file in FILES for kernel in load_kernel_file(file).KERNELS}
MXFP8 = block_quantize.BLOCK_ELEMENTS["mxfp8"]
TARGETS = {"block_scaled_matmul_sm120": "sm_120a", "block_scaled_matmul_sm100": "sm_100a"}


def size_of(problem: Any) -> int:
    """How much there is to add for an output; a row of attention adds all its scores."""
    if hasattr(problem, "kv_length"):
        return problem.kv_length * problem.depth
    length = getattr(problem, "reduction", getattr(problem, "k", 1))
    return (length if isinstance(length, int) else 1) * getattr(getattr(problem, "x", None), "n", 1)


def some_of(kernel: Kernel) -> list[Any]:
    """Six problems of the corpus, of those with little to add."""
    small = [problem for problem in kernel.corpus if size_of(problem) <= 1100]
    return small[:: max(1, len(small) // 6)][:6]


def codes_of(again: Callable[[], Any]) -> list[int]:
    """What a slow definition gives, in one list."""
    return [int(code) for part in again() for code in np.ravel(part)]


@pytest.mark.parametrize("name", DECLARED)
def test_the_definition_and_the_oracle_say_the_same(name: str) -> None:
    """Every bundled kernel has one."""
    kernel, target, seen = DECLARED[name], TARGETS.get(name, "sm_90a"), 0
    for problem in some_of(kernel):
        samples: list[Sample] = []
        context = copy_context()
        context.run(HEARER.set, partial(take_samples, samples))
        expected = context.run(kernel.expected, problem, target)
        for judge, codes, again in samples:
            known = [(got, want) for got, want in zip(codes, codes_of(again), strict=False) if want != -1]
            assert [got for got, _ in known] == [want for _, want in known], (problem, judge)
            seen += len(known)
        for output, array in expected.items() if kernel.definition else ():
            assert isinstance(array, np.ndarray)
            words = array.view(f"u{array.dtype.itemsize}")
            for place in {0, array.size // 3, array.size - 1} if array.size else ():
                at = tuple(map(int, np.unravel_index(place, array.shape)))
                code = kernel.definition(*kernel.asked(problem, target), output, at)
                if code is not None:
                    seen += 1
                    assert code == int(words[at]), (problem, output, at)
    assert seen >= 6


def test_parts_of_a_sum_are_added_apart() -> None:
    """128, 0, then 2^33 and -2^33: in one chain the first is lost, in two parts it stays."""
    splits = load_kernel_file(FOLDER / "gemm_1d2d_splits.py")
    kernel, ones = splits.FP8_GEMM_1D2D_SPLITS, splits.gemm.ONES
    of_a = Values("ones", patches=tuple(enumerate((0x3F800000, 0, 0x4C800000, 0xCC800000))))
    for parts, code in ((2, 0x4300), (1, 0)):
        problem = splits.Gemm1D2DInParts(1, 24, 512, ones, ones, of_a, splits=parts)
        assert kernel.definition(problem, "d", (0, 5)) == code == int(kernel.expected(problem, "sm_90a")["d"][0, 5])


def test_scales_stand_where_tensor_cores_read_them() -> None:
    """Every 37th byte of two tiles down and three across, pads among them."""
    blocks = load_kernel_file(FOLDER / "block_scale.py")
    kernel, problem = blocks.MXFP8_QUANTIZE, blocks.BlockQuantize(130, 9 * 32, Values("distinct", 1), "f32")
    scales = kernel.expected(problem, "sm_90a")["scales"]
    found = {at: kernel.definition(problem, "scales", (at,)) for at in range(0, scales.size, 37)}
    known = {at: code for at, code in found.items() if code is not None}
    assert known == {at: int(scales[at]) for at in known}
    assert len(known) > 50
    assert len(set(known.values())) > 3


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
    assert fp8_quantize.dequantized(0x7E, "e4m3", 0x3F000000, "bf16") == 0x4360
    for rule in ("product", "quotient"):
        peaks = [block_quantize.scale_exponent(Fraction(peak), rule, MXFP8) for peak in (447, 448, 449, 1792)]
        assert peaks == [0, 0, 1, 2]
