"""Which sizes tell a tail that is left out, and which tell nothing."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

import refsim.device
from refsim.kernels import Kernel, Launcher, Outputs
from refsim.testing.suspects import suspects_of
from refsim.testing.suspects.budget import Budget
from refsim.testing.suspects.feeding import Diet
from refsim.testing.suspects.sizes import resized, sizes, tail_left_out


@dataclass(frozen=True)
class Rows:
    rows: int
    columns: int


SUMS = """
extern "C" __global__ void k(const float* x, float* y, int columns, int pitch) {
  if (threadIdx.x) return;
  float sum = 0.0f;
  for (int i = 0; i < %s; ++i) sum += x[blockIdx.x * %s + i];
  y[blockIdx.x] = sum;
}
"""


def numbers(problem: Rows) -> np.ndarray:
    draw = np.random.default_rng(problem.columns)
    return draw.standard_normal((problem.rows, -(-problem.columns // 16) * 16)).astype(np.float32)


def run(launcher: Launcher, problem: Rows) -> Outputs:
    x = numbers(problem)
    y = launcher.output(problem.rows, np.float32, name="y")
    sizes = np.int32(problem.columns), np.int32(x.shape[1])
    launcher.launch("k", problem.rows, 32, [launcher.upload(x, name="x"), y, *sizes])
    return {"y": launcher.read(y)}


def oracle(problem: Rows) -> Outputs:
    x = numbers(problem)[:, : problem.columns]
    return {"y": np.cumsum(np.pad(x, ((0, 0), (1, 0))), axis=1, dtype=np.float32)[:, -1]}


def kernel(bound: str, stride: str = "pitch") -> Kernel:
    problems = st.builds(Rows, st.integers(2, 4), st.integers(1, 70))
    return Kernel("k", oracle, problems, run, {"y": "f32"}, recipe=Rows, source=SUMS % (bound, stride))


def named(bound: str, stride: str = "pitch") -> list[str]:
    failing = [Rows(2, 37), Rows(3, 50)]
    diet = Diet(kernel(bound, stride), refsim.device.open("sim:eager", "sm_90a"))
    return [str(each) for each in tail_left_out(diet, failing, [Rows(2, 64)], budget=Budget(60.0))]


def test_a_tail_that_is_never_read_is_told_by_its_sizes() -> None:
    (found,) = named("columns / 16 * 16")
    assert found.startswith("tail: it agrees where columns is a multiple of 16 and nowhere else, recipe field columns")


def test_a_wrong_stride_that_shows_at_the_same_sizes_is_no_tail() -> None:
    """Rows of 16, 32 or 48 have no padding: there it agrees, too, but it reads every last element."""
    assert named("columns", "columns") == []


@pytest.mark.parametrize("bound", ["columns", "columns - 1", "columns / 2"])
def test_what_agrees_everywhere_or_nowhere_has_lost_no_tail(bound: str) -> None:
    assert named(bound) == []


def test_a_size_deep_in_a_recipe_is_changed_where_it_stands() -> None:
    @dataclass(frozen=True)
    class Outer:
        inner: Rows
        seed: int = 3

    problem = Outer(Rows(2, 5))
    assert sizes(problem) == {"inner.rows": 2, "inner.columns": 5}
    assert resized(problem, "inner.columns", 8) == replace(problem, inner=Rows(2, 8))


def test_the_inquiry_names_the_tail(tmp_path: Path) -> None:
    device = refsim.device.open("sim:eager", "sm_90a")
    (found,) = suspects_of(kernel("columns / 16 * 16"), device, Rows(2, 37), (), seconds=60.0)
    assert found.suspect == "tail"
