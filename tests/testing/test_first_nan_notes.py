"""Notes of a verdict on the first NaN: which test case runs again, and what the notes say."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from refsim.device.sim import SimDevice
from refsim.kernels import Kernel
from refsim.testing import Verdict, kernel_named
from refsim.testing.runs import with_first_nan

GPU = Path(__file__).parents[2] / "gpu"


def test_a_verdict_notes_where_a_nan_comes_from() -> None:
    kernel = kernel_named("fp8_dequantize")
    verdict = with_first_nan(kernel, Verdict(kernel.name, "pass", {}, "quick"), SimDevice())
    assert verdict.notes[0].startswith("first NaN: output | y | ")
    assert re.match(r"first NaN: input \| q\[\d+\] \| is nan as e4m3 before the launch", verdict.notes[1])
    kernel = replace(kernel, corpus=())
    assert with_first_nan(kernel, verdict, SimDevice()).notes[-1] == "first NaN: no output holds NaN or an infinity"


def notes_of(kernel: Kernel, problem: Any, target: str) -> list[str]:
    alone = replace(kernel, corpus=(problem,))
    return list(with_first_nan(alone, Verdict(kernel.name, "pass", {}, "quick"), SimDevice(target)).notes)


def test_nan_of_an_input_passes_through_copies_and_warpgroup_products() -> None:
    kernel = kernel_named("attention_sm90_bf16", [GPU / "attention.py"])
    problem = kernel.corpus[0]
    values = type(problem.q)
    notes = notes_of(kernel, replace(problem, q=values(fill="bits", seed=3), k=values(fill="bits", seed=4)), "sm_90a")
    assert re.match(r"first NaN: input \| [qk]\[\d+\] \| is nan as bf16 before the launch", notes[2])
    assert "wgmma.mma_async" in notes[3]
    assert any(note.startswith("first NaN: stored | ") for note in notes)


def test_an_infinity_of_a_product_in_tensor_memory_is_born_there() -> None:
    kernel = kernel_named("block_scaled_matmul_sm100", [GPU / "block_scaled_matmul_sm100.py"])
    problem = next(each for each in kernel.corpus if (each.m, each.n, each.k) == (65, 130, 544))
    notes = notes_of(kernel, problem, "sm_100a")
    assert notes[1].startswith("first NaN: born | tcgen05.ld")
    assert "gives inf" in notes[1]
