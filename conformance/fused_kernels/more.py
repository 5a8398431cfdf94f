"""Five fused kernels that were written from docs/fused-kernels.md alone: their test cases, launches and declarations."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from refsim.kernels import Kernel, Launcher, Outputs
from refsim.testing import steps
from refsim.testing.matrices import Values

FOLDER = Path(__file__).with_name("sources")
HEAD, LONGEST = 128, 64
ROUNDED_MEAN = "the sum by a quotient that is rounded once"


@dataclass(frozen=True)
class Tokens:
    """Rows of bf16 of a magnitude of 2^power, with a residual, weights and a bias; gate and up are the halves of `gate_up`."""

    tokens: int
    hidden: int
    seed: int = 1
    power: int = 0

    def _bf16(self, at: int, rows: int, columns: int) -> NDArray[Any]:
        return Values("gaussian", 8 * self.seed + at).codes("bf16", rows, columns)

    def _small(self, codes: NDArray[Any]) -> NDArray[Any]:
        exponents = (codes >> 7 & 255).astype(np.int64) + self.power  # codes of bf16
        return np.where(exponents > 0, codes & 0x807F | (exponents << 7).astype(codes.dtype), 0).astype(codes.dtype)

    @property
    def x(self) -> NDArray[Any]:
        return self._small(self._bf16(0, self.tokens, self.hidden))

    @property
    def residual(self) -> NDArray[Any]:
        return self._small(self._bf16(1, self.tokens, self.hidden))

    @property
    def w(self) -> NDArray[Any]:
        return self._bf16(2, 1, self.hidden)[0]

    @property
    def b(self) -> NDArray[Any]:
        return self._bf16(3, 1, self.hidden)[0]

    @property
    def gate_up(self) -> NDArray[Any]:
        return self._bf16(4, self.tokens, 2 * self.hidden)

    @property
    def gate(self) -> NDArray[Any]:
        return self.gate_up[:, : self.hidden]

    @property
    def up(self) -> NDArray[Any]:
        return self.gate_up[:, self.hidden :]


@dataclass(frozen=True)
class Keys:
    """Heads of keys, positions with their angles, and slots of a cache; rows are pairs of a token and a head."""

    tokens: int
    heads: int
    seed: int = 1
    eps: float = 1e-6
    k_scale: float = 0.0375

    @property
    def k(self) -> NDArray[Any]:
        return Values("gaussian", 2 * self.seed).codes("bf16", self.tokens * self.heads, HEAD)

    @property
    def w(self) -> NDArray[Any]:
        return Values("gaussian", 2 * self.seed + 1).codes("bf16", 1, HEAD)[0]

    @property
    def positions(self) -> NDArray[np.int64]:
        return np.random.default_rng(self.seed).integers(0, LONGEST, self.tokens)

    @property
    def table(self) -> NDArray[np.float32]:
        angles = np.arange(LONGEST)[:, None] * 10000.0 ** (-np.arange(HEAD // 2) / (HEAD // 2))
        return np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32)

    @property
    def cos(self) -> NDArray[np.float32]:
        return self.table[np.repeat(self.positions, self.heads), : HEAD // 2]

    @property
    def sin(self) -> NDArray[np.float32]:
        return self.table[np.repeat(self.positions, self.heads), HEAD // 2 :]

    @property
    def slots(self) -> NDArray[np.int64]:
        slots = np.random.default_rng(self.seed + 7).permutation(4 * self.tokens)[: self.tokens]
        slots[self.tokens // 2] = -1
        return slots

    @property
    def rows(self) -> NDArray[np.int64]:
        rows = self.slots[:, None] * self.heads + np.arange(self.heads)
        return np.where(self.slots[:, None] < 0, -1, rows).reshape(-1)

    @property
    def before(self) -> NDArray[np.uint8]:
        return np.full((4 * self.tokens * self.heads, HEAD), 0x2A, np.uint8)


def run_add_norm(launcher: Launcher, p: Tokens) -> Outputs:
    x, w = launcher.upload(p.x, name="x"), launcher.upload(p.w, name="w")
    residual = launcher.upload(p.residual, name="residual", writable=True)
    q, s = launcher.output(p.x.size, np.uint8, name="q"), launcher.output(p.tokens, np.float32, name="s")
    launcher.launch("add_norm_fp8", p.tokens, 256, [x, residual, w, q, s, np.int32(p.hidden), np.float32(1e-6)])
    codes = {name: launcher.read(each).reshape(p.x.shape) for name, each in (("residual", residual), ("q", q))}
    return {**codes, "s": launcher.read(s).view(np.uint32)[:, None]}


def run_swiglu(launcher: Launcher, p: Tokens) -> Outputs:
    x, size = launcher.upload(p.gate_up, name="gate_up"), -(-p.hidden // 512) * 4 * (-(-p.tokens // 4) * 4)
    q = launcher.output(p.tokens * p.hidden, np.uint8, name="q")
    s = launcher.upload(np.zeros(size, np.uint8), name="s", writable=True)
    launcher.launch("swiglu_fp8_ue8m0", p.tokens, 128, [x, q, s, np.int32(p.tokens), np.int32(p.hidden)])
    return {"q": launcher.read(q).reshape(p.tokens, p.hidden), "s": launcher.read(s)}


def run_layernorm(launcher: Launcher, p: Tokens) -> Outputs:
    x, w, b = (launcher.upload(getattr(p, name), name=name) for name in "xwb")
    q, size = launcher.output(p.x.size, np.uint8, name="q"), -(-p.tokens // 128) * 128 * (-(-p.hidden // 128) * 4)
    s = launcher.upload(np.zeros(size, np.uint8), name="s", writable=True)
    launcher.launch("layernorm_mxfp8", p.tokens, 256, [x, w, b, q, s, np.int32(p.hidden), np.float32(1e-5)])
    return {"q": launcher.read(q).reshape(p.x.shape), "s": launcher.read(s)}


def run_keys(launcher: Launcher, p: Keys) -> Outputs:
    given = {"k": p.k, "w": p.w, "positions": p.positions, "cos_sin": p.table, "slots": p.slots}
    arguments: list[Any] = [launcher.upload(array, name=name) for name, array in given.items()]
    cache = launcher.upload(p.before, name="cache", writable=True)
    numbers = [np.int32(p.tokens), np.int32(p.heads), np.float32(p.eps), np.float32(p.k_scale)]
    launcher.launch("qk_norm_rope_cache", -(-p.tokens * p.heads // 4), 128, [*arguments, cache, *numbers])
    return {"cache": launcher.read(cache).reshape(p.before.shape)}


def run_gelu(launcher: Launcher, p: Tokens) -> Outputs:
    x, size = launcher.upload(p.gate_up, name="gate_up"), p.tokens * p.hidden
    q, s = launcher.output(size, np.int8, name="q"), launcher.output(p.tokens, np.float32, name="s")
    launcher.launch("gelu_mul_int8", p.tokens, 256, [x, q, s, np.int32(p.hidden)])
    return {"q": launcher.read(q).reshape(p.tokens, p.hidden), "s": launcher.read(s).view(np.uint32)[:, None]}


TOKENS = st.builds(
    Tokens, st.integers(1, 6), st.sampled_from([128, 384, 640]), st.integers(0, 99), st.sampled_from([0, -10])
)
KEYS = st.builds(Keys, st.integers(1, 6), st.sampled_from([1, 2, 3]), st.integers(0, 99))
COMPUTED = {
    "add_norm_fp8": steps.fused(
        steps.load("x"),
        steps.add("residual"),
        steps.store("residual", "bf16"),
        steps.rms_norm("w", order=steps.RowOrder(256), how=["x * r is rounded to bf16", ROUNDED_MEAN]),
        steps.rounded("bf16"),
        steps.quantize("e4m3", quotient="divide", eps=1 / 512),
        steps.store("q", scales="s"),
    ),
    "swiglu_fp8_ue8m0": steps.fused(
        steps.load("gate"),
        steps.silu(how=["expf of CUDA", "a quotient that is rounded once"]),
        steps.rounded("bf16"),
        steps.multiply("up"),
        steps.rounded("bf16"),
        steps.quantize("e4m3", per=128, scale="e8m0"),
        steps.store("q", scales="s", layout="deepgemm_mn_ue8m0"),
    ),
    "layernorm_mxfp8": steps.fused(
        steps.load("x"),
        steps.layer_norm(
            "w",
            "b",
            order=steps.RowOrder(256, warps="at distances that halve"),
            how=[ROUNDED_MEAN, "the bias is added by fma"],
        ),
        steps.quantize("mxfp8"),
        steps.store("q", scales="s", layout="nvidia_128x4"),
    ),
    "qk_norm_rope_cache": steps.fused(
        steps.load("k"),
        steps.rms_norm("w", order=steps.RowOrder(32, vector=4), how=[ROUNDED_MEAN, "fl(x * fl(r * w))"]),
        steps.rope("cos", "sin", head=HEAD),
        steps.divide("k_scale"),
        steps.store("cache", "e4m3", at="rows", into="before"),
    ),
    "gelu_mul_int8": steps.fused(
        steps.load("gate"),
        steps.gelu("tanh"),
        steps.rounded("bf16"),
        steps.multiply("up"),
        steps.rounded("bf16"),
        steps.quantize("int8", quotient="largest"),
        steps.store("q", scales="s"),
    ),
}
RUNS = {
    "add_norm_fp8": (run_add_norm, {"residual": "bf16", "q": "e4m3", "s": "f32"}),
    "swiglu_fp8_ue8m0": (run_swiglu, {"q": "e4m3", "s": "e8m0"}),
    "layernorm_mxfp8": (run_layernorm, {"q": "e4m3", "s": "e8m0"}),
    "qk_norm_rope_cache": (run_keys, {"cache": "e4m3"}),
    "gelu_mul_int8": (run_gelu, {"q": "s8", "s": "f32"}),
}
CASES_OF_MORE = dict.fromkeys(COMPUTED, Tokens(6, 640)) | {"qk_norm_rope_cache": Keys(5, 3)}
SPECIAL_CASES = {"small": Tokens(6, 640, power=-10), "power": Tokens(6, 640, 5)}
"""Test cases in which some mistakes are seen: small rows, and an amax that is MAX times a power of two."""
KERNELS = tuple(
    Kernel(
        name,
        computes=computes,
        outputs=RUNS[name][1],
        recipe=Keys if name == "qk_norm_rope_cache" else Tokens,
        problem=KEYS if name == "qk_norm_rope_cache" else TOKENS,
        run=RUNS[name][0],
        file=FOLDER / f"{name}.cu",
    )
    for name, computes in COMPUTED.items()
)
