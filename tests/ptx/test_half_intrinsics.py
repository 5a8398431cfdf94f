"""The functions of cuda_fp16.h and cuda_bf16.h, simulated for every operand: all results are correctly rounded.

NVIDIA's headers take the special-function unit's float32 result, round it, and mend by name the few operands at which this unit
then misses the nearest number. So they witness its bits without a recording: on other bits they mend what was right.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from refsim import decode, encode, ptx
from refsim.device.compile import compile_ptx
from refsim.mufu import instructions, unit

Function = Callable[[NDArray[np.float64]], NDArray[np.float64]]

FUNCTIONS: dict[str, Function] = {
    "rcp": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sqrt": np.sqrt,
    "exp": np.exp,
    "exp2": np.exp2,
    "exp10": lambda x: np.power(10.0, x),
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "sin": np.sin,
    "cos": np.cos,
}
HEAD = """#include <cuda_fp16.h>
#include <cuda_bf16.h>
#define KERNEL(name, type, call) extern "C" __global__ void name(const type* x, const type* y, type* out) { \\
    int i = blockIdx.x * blockDim.x + threadIdx.x; out[i] = call; }
#define ALL(name, one, two) KERNEL(name##_f16, __half, one) KERNEL(name##_bf16, __nv_bfloat16, one) \\
    KERNEL(name##_f16x2, __half2, two) KERNEL(name##_bf16x2, __nv_bfloat162, two)
ALL(quotient, __hdiv(x[i], y[i]), __h2div(x[i], y[i]))
"""
CODES = np.arange(1 << 16, dtype=np.uint16)
OTHERS = CODES ^ np.uint16(0x5A35)
NAN = 0x7FFF


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> ptx.Program:
    path = Path(tmp_path_factory.mktemp("intrinsics")) / "half_intrinsics.cu"
    path.write_text(HEAD + "\n".join(f"ALL({name}, h{name}(x[i]), h2{name}(x[i]))" for name in FUNCTIONS))
    return ptx.load(compile_ptx(path).text)


def ran(program: ptx.Program, entry: str, x: NDArray[np.uint16], y: NDArray[np.uint16]) -> NDArray[np.uint16]:
    """The results of an entry, which leaves no bits open; pairs are given as two rows."""
    width = 2 if entry.endswith("x2") else 1
    columns = [np.ascontiguousarray(each.reshape(width, -1).T) for each in (x, y)]
    out = np.zeros_like(columns[0])
    trace = program.launch(entry, (len(out) // 256,), (256,), [*columns, out])
    assert trace.is_exact
    return out.T.reshape(x.shape)


@cache
def rounded(name: str, type: str) -> NDArray[np.uint16]:
    """The nearest number to a function's value at every code, by float64; every NaN is 0x7fff."""
    with np.errstate(all="ignore"):
        values = FUNCTIONS[name](decode(CODES, type))
        return np.where(np.isnan(values), NAN, encode(np.where(np.isnan(values), 0.0, values), type)).astype(np.uint16)


@pytest.mark.parametrize("type", ["f16", "bf16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_result_is_correctly_rounded(program: ptx.Program, name: str, type: str) -> None:
    expected = rounded(name, type)
    assert np.flatnonzero(ran(program, f"{name}_{type}", CODES, CODES) != expected).tolist() == []
    found = ran(program, f"{name}_{type}x2", np.stack([CODES, OTHERS]), np.stack([CODES, CODES]))
    assert np.flatnonzero(found != np.stack([expected, expected[OTHERS]])).tolist() == []


@pytest.mark.parametrize("type", ["f16", "bf16"])
def test_quotients_are_correctly_rounded(program: ptx.Program, type: str) -> None:
    """The f16 one by the reciprocal and a product that is mended, the bf16 one by div.approx."""
    x, y = (np.random.default_rng(seed).permutation(CODES) for seed in (1, 2))
    with np.errstate(all="ignore"):
        values = decode(x, type) / decode(y, type)
    nan = np.isnan(values)
    expected = np.where(nan, NAN, encode(np.where(nan, 0.0, values), type))
    assert np.flatnonzero(ran(program, f"quotient_{type}", x, y) != expected).tolist() == []


@pytest.mark.parametrize(
    ("name", "of_unit", "missed"),
    [("exp", "ex2", 2), ("exp2", "ex2", 3), ("exp10", "ex2", 4), ("log", "lg2", 6), ("log10", "lg2", 1)],
)
def test_a_unit_with_other_bits_is_found_out(
    program: ptx.Program, monkeypatch: pytest.MonkeyPatch, name: str, of_unit: str, missed: int
) -> None:
    """On a unit that rounds correctly the header mends so many f16 results that were right."""
    exact = {"ex2": np.exp2, "lg2": np.log2}[of_unit]

    def nearest(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
        with np.errstate(all="ignore"):
            found = exact(words.view(np.float32).astype(np.float64)).astype(np.float32)
        return np.where(np.isnan(found), np.uint32(0x7FFFFFFF), found.view(np.uint32))

    monkeypatch.delitem(instructions.FEWER_PASSES, of_unit, raising=False)
    monkeypatch.setitem(unit.FUNCTIONS, of_unit, nearest)
    assert np.count_nonzero(ran(program, f"{name}_f16", CODES, CODES) != rounded(name, "f16")) == missed
