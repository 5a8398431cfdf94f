"""What the test cases of four fused kernels hold, and how each kernel of `fused.cu` is launched."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from refsim.kernels import Launcher, Outputs
from refsim.testing.matrices import Values

FUSED = Path(__file__).with_name("fused.cu")
THREADS, HEAD, TILE = 128, 128, (128, 4)


@dataclass(frozen=True)
class Rows:
    """Rows of bf16: x with a second operand of its shape, weights, and a seed for the slots of a cache."""

    rows: int
    columns: int
    seed: int = 1
    eps: float = 1e-6
    tensor_scale: float = 32.0

    def _codes(self, number: int, rows: int) -> NDArray[Any]:
        return Values("gaussian", 4 * self.seed + number).codes("bf16", rows, self.columns)

    @property
    def x(self) -> NDArray[Any]:
        return self._codes(0, self.rows)

    @property
    def other(self) -> NDArray[Any]:
        return self._codes(1, self.rows)

    @property
    def w(self) -> NDArray[Any]:
        return self._codes(2, 1)[0]

    # ---- a paged cache of keys: pages of four slots ----

    @property
    def angles(self) -> NDArray[np.float32]:
        positions = np.arange(self.rows) * 7 + self.seed
        return (positions[:, None] * 10000.0 ** (-np.arange(HEAD // 2) / (HEAD // 2))).astype(np.float32)

    @property
    def cos(self) -> NDArray[np.float32]:
        return np.cos(self.angles)

    @property
    def sin(self) -> NDArray[np.float32]:
        return np.sin(self.angles)

    @property
    def slots(self) -> NDArray[np.int32]:
        found = np.random.default_rng(self.seed).permutation(4 * self.rows)[: self.rows].astype(np.int32)
        found[1 % self.rows] = -1 if self.rows > 2 else found[1 % self.rows]
        return found

    @property
    def cache(self) -> NDArray[np.uint8]:
        return np.full((4 * self.rows, self.columns), 0x11, np.uint8)

    @property
    def cache_scales(self) -> NDArray[np.float32]:
        return np.full((4 * self.rows, self.columns // HEAD), 7, np.float32)

    # ---- scales in tiles of 128 x 4 ----

    @property
    def scales_size(self) -> int:
        across = -(-self.columns // 16 // TILE[1]) * TILE[1]
        return -(-self.rows // TILE[0]) * TILE[0] * across


ROWS = st.builds(Rows, st.integers(1, 6), st.sampled_from([128, 256, 512]), st.integers(0, 99))


def run_norm(launcher: Launcher, problem: Rows) -> Outputs:
    x, w = launcher.upload(problem.x, name="x"), launcher.upload(problem.w, name="w")
    q, s = launcher.output(problem.x.size, np.uint8, name="q"), launcher.output(problem.rows, np.float32, name="s")
    arguments = [x, w, q, s, np.int32(problem.columns), np.float32(problem.eps)]
    launcher.launch("rms_norm_fp8", problem.rows, THREADS, arguments)
    return {"q": launcher.read(q).reshape(problem.x.shape), "s": launcher.read(s).view(np.uint32)[:, None]}


def run_silu(launcher: Launcher, problem: Rows) -> Outputs:
    gate, up = launcher.upload(problem.x, name="gate"), launcher.upload(problem.other, name="up")
    groups = problem.columns // 128
    q, s = (
        launcher.output(problem.x.size, np.uint8, name="q"),
        launcher.output(problem.rows * groups, np.float32, name="s"),
    )
    launcher.launch("silu_mul_fp8", problem.rows, THREADS, [gate, up, q, s, np.int32(problem.columns)])
    scales = launcher.read(s).view(np.uint32).reshape(problem.rows, groups)
    return {"q": launcher.read(q).reshape(problem.x.shape), "s": scales}


def run_rope(launcher: Launcher, problem: Rows) -> Outputs:
    heads = problem.columns // HEAD
    names = {"k": problem.x, "cos": problem.cos, "sin": problem.sin, "slots": problem.slots}
    arguments: list[Any] = [launcher.upload(array, name=name) for name, array in names.items()]
    cache = launcher.upload(problem.cache, name="cache", writable=True)
    scales = launcher.upload(problem.cache_scales, name="scales", writable=True)
    launcher.launch("rope_kv_fp8", problem.rows * heads, THREADS, [*arguments, cache, scales, np.int32(heads)])
    found = launcher.read(scales).view(np.uint32).reshape(problem.cache_scales.shape)
    return {"cache": launcher.read(cache).reshape(problem.cache.shape), "scales": found}


def run_nvfp4(launcher: Launcher, problem: Rows) -> Outputs:
    names = {"x": problem.x, "residual": problem.other, "w": problem.w}
    arguments: list[Any] = [launcher.upload(array, name=name) for name, array in names.items()]
    y = launcher.output(problem.x.size, np.uint16, name="y")
    q = launcher.output(problem.x.size // 2, np.uint8, name="q")
    s = launcher.upload(np.zeros(problem.scales_size, np.uint8), name="s", writable=True)
    numbers = [np.int32(problem.columns), np.float32(problem.eps), np.float32(problem.tensor_scale)]
    launcher.launch("add_norm_nvfp4", problem.rows, THREADS, [*arguments, y, q, s, *numbers])
    shape = (problem.rows, problem.columns // 2)
    return {"y": launcher.read(y).reshape(problem.x.shape), "q": launcher.read(q).reshape(shape), "s": launcher.read(s)}
