"""Linear layers with a bug of the field each, and their right twins: NAME is wrong, NAME.right is not."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from refsim.conversions import decode, round_bits
from refsim.kernels import Kernel, Launcher, Outputs
from refsim.numerics import ieee
from refsim.testing.matrices import Values, values
from refsim.testing.recipes import in_range, spelled

KERNELS_OF = Path(__file__).parent / "kernels"
Codes = NDArray[np.unsignedinteger]
Floats = NDArray[np.float32]
GAUSSIAN, OTHER, ANOTHER = (Values("gaussian", seed) for seed in range(3))


@dataclass(frozen=True, repr=False)
class Layer:
    """Y (batch, output) = X W^T (+ R), of whole numbers of what a kernel needs."""

    batch: int
    output: int
    reduction: int
    x: Values = GAUSSIAN
    w: Values = OTHER
    r: Values = ANOTHER

    def __post_init__(self) -> None:
        for name in ("batch", "output", "reduction"):
            in_range(name, getattr(self, name), 1, 4096)

    def __repr__(self) -> str:
        return spelled(self)


@dataclass(frozen=True)
class Layered:
    """How a layer is launched: columns of a block, threads, the type of W, what its extents are multiples of."""

    name: str
    columns: int = 32
    threads: int = 32
    w_format: str = "bf16"
    multiples: tuple[int, int] = (1, 1)
    has_residual: bool = False
    right_shared_bytes: int = 0
    shared_bytes: int = 0
    shuffled: Callable[[Codes], Codes] | None = None

    def operands(self, layer: Layer) -> tuple[Codes, Codes, Codes]:
        return (
            layer.x.codes("bf16", layer.batch, layer.reduction),
            layer.w.codes(self.w_format, layer.output, layer.reduction),
            layer.r.codes("bf16", layer.batch, layer.output),
        )

    def run(self, is_right: bool, launcher: Launcher, layer: Layer) -> Outputs:
        x, w, r = self.operands(layer)
        w = self.shuffled(w) if self.shuffled and is_right else w
        given = [launcher.upload(x, name="x"), launcher.upload(w, name="w")]
        if self.has_residual:
            given.append(launcher.upload(r, name="r"))
        y = launcher.output(layer.batch * layer.output, np.uint16, name="y")
        extents = [np.uint32(extent) for extent in (layer.batch, layer.output, layer.reduction)]
        shared = self.right_shared_bytes if is_right else self.shared_bytes
        launcher.launch(self.name, -(-layer.output // self.columns), self.threads, [*given, y, *extents], shared)
        return {"y": launcher.read(y).reshape(layer.batch, layer.output)}

    def oracle(self, layer: Layer, *, begin: float = 0.0) -> Outputs:
        """The chain of fmaf from `begin` over K, the residual added in float32, rounded to bf16 once."""
        x, w, r = (
            np.asarray(decode(codes, format, np.float32), np.float32)
            for codes, format in zip(self.operands(layer), ("bf16", self.w_format, "bf16"), strict=True)
        )
        total: Floats = np.full((layer.batch, layer.output), begin, np.float32)
        for k in range(layer.reduction):
            total = ieee.fma(x[:, None, k], w[None, :, k], total)
        total = ieee.add(total, r) if self.has_residual else total
        return {"y": round_bits(total, "bf16").astype(np.uint16)}

    def problems(self) -> st.SearchStrategy[Layer]:
        output, reduction = (st.integers(1, 2 if step > 1 else 40).map(step.__mul__) for step in self.multiples)
        drawn = values("bf16", fills=("ones", "gaussian", "narrow"), max_patches=0)
        weights = values(self.w_format, fills=("gaussian", "narrow"), max_patches=0)
        return st.builds(Layer, st.integers(1, 4), output, reduction, drawn, weights, drawn)


def both(layered: Layered, summary: str, *corpus: Layer, begin: float = 0.0) -> tuple[Kernel, Kernel]:
    """The kernel with its bug, and without."""
    wrong, right = (
        Kernel(
            layered.name + (".right" if is_right else ""),
            summary=summary + (", mended" if is_right else ""),
            file=KERNELS_OF / f"{layered.name}.cu",
            defines={"RIGHT": 1} if is_right else {},
            entries=(layered.name,),
            recipe=Layer,
            problem=layered.problems(),
            corpus=corpus,
            run=partial(layered.run, is_right),
            oracle=partial(layered.oracle, begin=begin),
            outputs={"y": "bf16"},
        )
        for is_right in (False, True)
    )
    return wrong, right


def shuffled(w: Codes) -> Codes:
    """Every 16 x 16 tile as lanes read it: what `refsim scales show mirage_fp8_16x16` draws."""
    tiles = w.reshape(w.shape[0] // 16, 2, 8, w.shape[1] // 16, 2, 4, 2)  # column half, g; k half, t, pair
    return np.ascontiguousarray(tiles.transpose(0, 3, 2, 5, 1, 4, 6)).reshape(w.shape)


KERNELS = (
    *both(
        Layered("block_stride", multiples=(32, 1)),
        "blocks of columns at the wrong distance",
        Layer(1, 64, 8),
        Layer(2, 64, 8),
    ),
    *both(
        Layered("prefetch_beyond", multiples=(32, 64)), "a second tile is fetched where there is one", Layer(2, 32, 64)
    ),
    *both(Layered("k_tail"), "what is left of K is dropped", Layer(2, 8, 24), Layer(1, 8, 32), Layer(2, 5, 40)),
    *both(
        Layered("odd_width", columns=4096, threads=64, multiples=(32, 1)),
        "columns behind whole tiles",
        Layer(2, 64, 8),
        Layer(2, 96, 8),
    ),
    *both(
        Layered(
            "shared_beyond", columns=128, threads=128, multiples=(32, 32), shared_bytes=98304, right_shared_bytes=131072
        ),
        "shared memory of a fixed size",
        Layer(2, 64, 64),
    ),
    *both(
        Layered("rounded_before_residual", has_residual=True), "rounded before the residual is added", Layer(4, 40, 24)
    ),
    *both(
        Layered("zero_residual"),
        "a residual of zeros is added",
        Layer(1, 2, 1, x=Values("ones"), w=Values(patches=((0, 0x8000),))),
        begin=-0.0,
    ),
    *both(
        Layered("unshuffled_weights", w_format="e4m3", multiples=(16, 16), shuffled=shuffled),
        "weights as the checkpoint has them",
        Layer(2, 32, 32),
    ),
)
