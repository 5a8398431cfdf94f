"""A kernel that reads its inputs wrongly is named by what it takes for the right ones."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

import refsim.device
from refsim import decode, encode, ptx
from refsim.device.compile import compiled
from refsim.kernels import Kernel, Launcher, Outputs, Promise
from refsim.testing.changed_device import ChangedDevice
from refsim.testing.suspects import OutOfTimeError, suspects_of
from refsim.testing.suspects.budget import Budget
from refsim.testing.suspects.feeding import Diet
from refsim.testing.suspects.inputs import misread
from refsim.testing.suspects.rearranged import rearranged
from refsim.testing.suspects.unheard import subnormals_unheard


@dataclass(frozen=True)
class Square:
    n: int
    seed: int = 0

    def codes(self) -> np.ndarray:
        return np.random.default_rng(self.seed).integers(0, 256, (self.n, self.n), dtype=np.uint8)


BY_HAND = r"""
__device__ float value(unsigned code, int bias) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 0x7f) == 0x7f) return __int_as_float(0x7fffffff);
  const float magnitude = exponent ? __int_as_float((exponent - bias + 127) << 23 | mantissa << 20) : SUBNORMAL;
  return code & 0x80 ? -magnitude : magnitude;
}
extern "C" __global__ void k(const unsigned char* x, float* y, int n) {
  for (int i = threadIdx.x; i < n * n; i += 32) {
    const int row = i / n, column = i % n;
    y[i] = __fadd_rn(__fmul_rn(value(x[PLACE], BIAS), 1.7f), 0.1f);
  }
}
"""
RIGHT = {"SUBNORMAL": "mantissa * __int_as_float((1 - bias - 3 + 127) << 23)", "BIAS": "7", "PLACE": "row * n + column"}
MISTAKES = {
    "FN / FNUZ": {"BIAS": "8"},
    "transposed": {"PLACE": "column * n + row"},
    "off-by-one row": {"PLACE": "min(row + 1, n - 1) * n + column"},
    "off-by-one column": {"PLACE": "row * n + max(column - 1, 0)"},
    "swizzle not undone": {"PLACE": "row * n + (column ^ row & 7)"},
    "flushed subnormals": {"SUBNORMAL": "0.0f"},
}
NO_MISTAKE = {
    "right": {},
    "another bias": {"BIAS": "9"},
    "halves of subnormals": {"SUBNORMAL": "mantissa * __int_as_float((1 - bias - 4 + 127) << 23)"},
    "two rows further": {"PLACE": "min(row + 2, n - 1) * n + column"},
    "one row for all": {"PLACE": "column"},
}
PROBLEMS = (Square(16, 1), Square(24, 2), Square(32, 3), Square(8, 4))


def kernel(changes: dict[str, str]) -> Kernel:
    source = BY_HAND
    for name, text in (RIGHT | changes).items():
        source = source.replace(name, text)

    def run(launcher: Launcher, problem: Square) -> Outputs:
        x, y = launcher.upload(problem.codes(), name="x"), launcher.output(problem.n**2, np.float32, name="y")
        launcher.launch("k", 1, 32, [x, y, np.int32(problem.n)])
        return {"y": launcher.read(y).reshape(problem.n, problem.n)}

    def oracle(problem: Square) -> Outputs:
        return {"y": decode(problem.codes(), "e4m3", np.float32) * np.float32(1.7) + np.float32(0.1)}

    nan = Promise.BITWISE_EXCEPT_NAN_PAYLOAD
    problems = st.builds(Square, st.sampled_from([8, 16, 24, 32]), st.integers(0, 9))
    return Kernel("k", oracle, problems, run, {"y": "f32"}, recipe=Square, source=source, promise=nan)


def named(changes: dict[str, str]) -> list[str]:
    wrong = kernel(changes)
    diet = Diet(wrong, ChangedDevice(ptx.load(compiled(wrong.code, "sm_90a").text, "sm_90a"), schedules=1))
    found = subnormals_unheard(diet, PROBLEMS) or misread(diet, PROBLEMS, budget=Budget(60.0))
    placed = None if found else rearranged(diet, PROBLEMS, budget=Budget(60.0))
    return [each.suspect for each in (*found, *([placed] if placed else []))]


OFTEN_ENOUGH = pytest.mark.ci("others like it are named in every run")
LATER = ("off-by-one column", "another bias", "one row for all")


def some(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=OFTEN_ENOUGH) if name in LATER else name for name in names]


@pytest.mark.parametrize("suspect", some(MISTAKES))
def test_a_mistake_in_reading_is_named(suspect: str) -> None:
    assert named(MISTAKES[suspect]) == [suspect]


@pytest.mark.parametrize("name", some(NO_MISTAKE))
def test_what_no_other_input_mends_is_not_named(name: str) -> None:
    assert named(NO_MISTAKE[name]) == []


def test_words_of_16_bits_read_as_the_other_type_are_named() -> None:
    source = """extern "C" __global__ void k(const unsigned short* x, float* y) {
        y[threadIdx.x] = __int_as_float(x[threadIdx.x] << 16); }"""

    def codes(problem: Square) -> np.ndarray:
        return encode(np.random.default_rng(problem.seed).integers(-64, 64, problem.n**2) / 8, "f16")

    def run(launcher: Launcher, problem: Square) -> Outputs:
        x, y = launcher.upload(codes(problem), name="x"), launcher.output(problem.n**2, np.float32, name="y")
        launcher.launch("k", 1, problem.n**2, [x, y])
        return {"y": launcher.read(y)}

    def oracle(problem: Square) -> Outputs:
        return {"y": decode(codes(problem), "f16", np.float32)}

    made = Kernel("k", oracle, st.builds(Square, st.just(8)), run, {"y": "f32"}, recipe=Square, source=source)
    diet = Diet(made, refsim.device.open("sim:eager", "sm_90a"))
    (found,) = misread(diet, (Square(8, 1), Square(16, 2), Square(8, 3)), budget=Budget(60.0))
    assert str(found).startswith("format: codes of f16 are read as bf16, input x")


@pytest.mark.ci("seconds; mistakes in reading an input are named in every run")
def test_the_inquiry_says_which_input_it_is() -> None:
    device = refsim.device.open("sim:eager", "sm_90a")
    (found,) = suspects_of(kernel(MISTAKES["FN / FNUZ"]), device, PROBLEMS[0], (), seconds=60.0)
    assert str(found).startswith(
        "FN / FNUZ: codes of e4m3 are read as e4m3fnuz, input x (with this fixed all 9 test cases pass)"
    )


@pytest.mark.ci("seconds; mistakes in reading an input are named in every run")
@pytest.mark.parametrize("is_asked", [pytest.param(True, marks=OFTEN_ENOUGH), False])
def test_the_axis_stays_open_where_an_input_could_not_be_asked(is_asked: bool) -> None:
    """What is stored one column further may come from a flat input that is read one further: nobody knows its rows."""
    made = kernel({"y[i]": "y[column + 1 < n ? i + 1 : row * n]", "0.1f": "0.1f * column"})

    def oracle(problem: Square) -> Outputs:
        products = decode(problem.codes(), "e4m3", np.float32) * np.float32(1.7)
        return {"y": products + np.float32(0.1) * np.arange(problem.n, dtype=np.float32)}

    def run(launcher: Launcher, problem: Square) -> Outputs:
        launcher.upload(np.arange(1 if is_asked else 5, dtype=np.int32), name="flat")
        return made.run(launcher, problem)

    device = refsim.device.open("sim:eager", "sm_90a")
    (found,) = suspects_of(replace(made, run=run, oracle=oracle), device, PROBLEMS[0], (), seconds=60.0)
    kind = "off-by-one column" if is_asked else "off by one"
    assert str(found).startswith(
        f"{kind}: each column lies one behind its place, output y (it gives exactly these bits"
    )


def test_an_inquiry_ends_with_its_time() -> None:
    """Nothing is run once the time is over, and nothing is named for lack of it."""
    device = refsim.device.open("sim:eager", "sm_90a")
    with pytest.raises(OutOfTimeError):
        suspects_of(kernel(MISTAKES["FN / FNUZ"]), device, PROBLEMS[0], (), seconds=0.0)
