"""Softmax and RMSNorm of rows, declared: the kernels of kernels/row_functions.cu, promised bit for bit.

Their special functions are those of the chip, so the promise holds where their bits are known: `docs/special-functions.md`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from refsim import oracles
from refsim.conversions import encode
from refsim.formats import format_named
from refsim.kernels import Kernel, Launcher, Outputs
from refsim.testing import kinds
from refsim.testing.kernel_files import load_kernel_file
from refsim.testing.matrices import DRAWN_FILLS, Values, extents, values
from refsim.testing.recipes import in_range, one_of, spelled

wide_rows = load_kernel_file(Path(__file__).with_name("wide_rows.py"))
SOURCE = Path(__file__).parent / "kernels/row_functions.cu"
WIDE, NAN = wide_rows.WIDE, wide_rows.NAN
THREADS = 128
LOG2_E = float(np.float32(np.log2(np.e)))
SCALES = (LOG2_E, LOG2_E / 8, 1.0, 0.0, -1.5, 1e30, 1e-40)
EPSILONS = (1e-6, 1e-5, 0.0, 1.0, 1e-45, 1e30)
MASKS = ("none", "triangle", "rows", "tail")
ZEROS, ONES = Values(), Values("ones")


@dataclass(frozen=True, repr=False)
class Apart:
    """Elements off the natural alignment, and elements between the rows, of X (NaN) and of Y."""

    x: int = 0
    y: int = 0
    x_gap: int = 0
    y_gap: int = 0

    def __post_init__(self) -> None:
        for name in ("x", "y", "x_gap", "y_gap"):
            in_range(name, getattr(self, name), 0, 64)

    def __repr__(self) -> str:
        return spelled(self)


CLOSE = Apart()


def masked(codes: NDArray[Any], mask: str, wide: str) -> NDArray[Any]:
    """X with -infinity where nothing is to be seen: above the diagonal, in every third row, behind the first column."""
    row, column = np.indices(codes.shape, sparse=True)
    hidden = {"none": row < 0, "triangle": column > row, "rows": row % 3 == 1, "tail": column > 0}[mask]
    return np.where(hidden, codes.dtype.type(encode(-np.inf, wide)), codes)


# ---------------------------------------------------------------------------------------------------------------------
# What a problem holds


@dataclass(frozen=True, repr=False)
class Softmax:
    """Softmax of X (rows, columns) with a mask in it; `blocks` = 0 for as many as there are rows."""

    rows: int
    columns: int
    x: Values = ZEROS
    wide: str = "bf16"
    mask: str = "none"
    scale: float = LOG2_E
    blocks: int = 0
    apart: Apart = CLOSE

    def __post_init__(self) -> None:
        check_rows(self)
        one_of("mask", self.mask, MASKS)

    def __repr__(self) -> str:
        return spelled(self)

    def codes(self) -> NDArray[Any]:
        return masked(self.x.codes(self.wide, self.rows, self.columns), self.mask, self.wide)


@dataclass(frozen=True, repr=False)
class RmsNorm:
    """RMSNorm of X (rows, columns) with weights W, times silu(Z) where a gate is given; `blocks` as of Softmax."""

    rows: int
    columns: int
    x: Values = ZEROS
    w: Values = ONES
    gate: Values | None = None
    wide: str = "bf16"
    eps: float = 1e-6
    blocks: int = 0
    apart: Apart = CLOSE

    def __post_init__(self) -> None:
        check_rows(self)

    def __repr__(self) -> str:
        return spelled(self)

    def codes(self) -> NDArray[Any]:
        return self.x.codes(self.wide, self.rows, self.columns)

    @property
    def weights(self) -> NDArray[Any]:
        return self.w.codes(self.wide, 1, self.columns)[0]

    @property
    def gates(self) -> NDArray[Any] | None:
        return None if self.gate is None else self.gate.codes(self.wide, self.rows, self.columns)


def check_rows(problem: Softmax | RmsNorm) -> None:
    """Refuses what neither kernel takes."""
    in_range("rows", problem.rows, 1, 1 << 20)
    in_range("columns", problem.columns, 1, 1 << 20)
    in_range("blocks", problem.blocks, 0, 1 << 16)
    one_of("format of X", problem.wide, WIDE)


# ---------------------------------------------------------------------------------------------------------------------
# Launches


def laid_out(codes: NDArray[Any], gap: int, wide: str) -> NDArray[Any]:
    """The rows with `gap` elements of NaN behind each."""
    return np.pad(codes, ((0, 0), (0, gap)), constant_values=NAN[wide]).reshape(-1)


def launched(launcher: Launcher, problem: Softmax | RmsNorm, name: str, number: float, *more: Any) -> Outputs:
    """Y of one entry, and which elements between its rows changed."""
    size, apart = format_named(problem.wide).code_dtype.itemsize, problem.apart
    held = laid_out(problem.codes(), apart.x_gap, problem.wide)
    x = launcher.upload(held, name="x", misalign_bytes=apart.x * size)
    pitch = problem.columns + apart.y_gap
    y = launcher.output(problem.rows * pitch, held.dtype, name="y", misalign_bytes=apart.y * size)
    before = launcher.read(y).reshape(problem.rows, pitch)
    arguments = [
        x,
        np.uint64(problem.columns + apart.x_gap),
        y,
        np.uint64(pitch),
        np.uint32(problem.rows),
        np.uint32(problem.columns),
        np.float32(number),
        *more,
    ]
    launcher.launch(f"{name}_{problem.wide}", (problem.blocks or problem.rows,), (THREADS,), arguments)
    after = launcher.read(y).reshape(problem.rows, pitch)
    changed = (after != before)[:, problem.columns :].astype(np.uint8)
    return {"y": np.ascontiguousarray(after[:, : problem.columns]), "gap": changed}


def run_softmax(launcher: Launcher, problem: Softmax) -> Outputs:
    return launched(launcher, problem, "softmax", problem.scale)


def run_rms_norm(launcher: Launcher, problem: RmsNorm) -> Outputs:
    w = launcher.upload(problem.weights, name="w")
    gates = problem.gates
    if gates is None:
        return launched(launcher, problem, "rms_norm", problem.eps, w)
    size = gates.dtype.itemsize
    z = launcher.upload(
        laid_out(gates, problem.apart.x_gap, problem.wide), name="z", misalign_bytes=problem.apart.x * size
    )
    return launched(launcher, problem, "rms_norm_silu", problem.eps, w, z)


# ---------------------------------------------------------------------------------------------------------------------
# What they must write, and what kernels with a mistake would


def written(problem: Softmax | RmsNorm, y: Any) -> dict[str, Any]:
    return {"y": y, "gap": expected_gap(problem)}


def expected_gap(problem: Softmax | RmsNorm) -> NDArray[np.uint8]:
    return np.zeros((problem.rows, problem.apart.y_gap), np.uint8)


def softmax_of(problem: Softmax) -> Outputs:
    return written(problem, oracles.softmax(problem.codes(), problem.scale, format=problem.wide))


def rms_norm_of(problem: RmsNorm) -> Outputs:
    gates = problem.gates
    y = oracles.rms_norm(problem.codes(), problem.weights, problem.eps, gate=gates, format=problem.wide)
    return written(problem, y)


def changed(of: Callable[[Any], Outputs], change: Callable[[Any], Any], problem: Any) -> Outputs:
    """What comes of another problem."""
    return of(change(problem))


SOFTMAX_MISTAKES = {
    "2^x, not e^x": partial(changed, softmax_of, lambda p: replace(p, scale=p.scale / LOG2_E)),
    "the scale applied twice": partial(changed, softmax_of, lambda p: replace(p, scale=p.scale * p.scale)),
    "no mask": partial(changed, softmax_of, lambda p: replace(p, mask="none")),
}
RMS_NORM_MISTAKES = {
    "no epsilon": partial(changed, rms_norm_of, lambda p: replace(p, eps=0.0)),
    "no weights": partial(changed, rms_norm_of, lambda p: replace(p, w=ONES)),
    "no gate": partial(changed, rms_norm_of, lambda p: replace(p, gate=None)),
}


# ---------------------------------------------------------------------------------------------------------------------
# Problems

COLUMNS = extents(THREADS, 400)
APART = st.builds(Apart, *(st.sampled_from([0, 1, 3, 8]) for _ in range(4)))


@st.composite
def softmax_problems(draw: st.DrawFn, wide: tuple[str, ...] = WIDE) -> Softmax:
    """Rows of one column to some turns of a block, of every fill, masked in every way."""
    held = draw(st.sampled_from(wide))
    return Softmax(
        draw(st.integers(1, 6)),
        draw(COLUMNS),
        draw(values(held, fills=DRAWN_FILLS, max_patches=3)),
        held,
        draw(st.sampled_from(MASKS)),
        draw(st.sampled_from(SCALES)),
        draw(st.integers(0, 3)),
        draw(APART),
    )


@st.composite
def rms_norm_problems(draw: st.DrawFn, wide: tuple[str, ...] = WIDE) -> RmsNorm:
    """The same, with weights and gates of every fill."""
    held = draw(st.sampled_from(wide))
    drawn = values(held, fills=DRAWN_FILLS, max_patches=3)
    return RmsNorm(
        draw(st.integers(1, 6)),
        draw(COLUMNS),
        draw(drawn),
        draw(drawn),
        draw(st.none() | drawn),
        held,
        draw(st.sampled_from(EPSILONS)),
        draw(st.integers(0, 3)),
        draw(APART),
    )


SHAPES = ((3, 1), (2, 31), (1, 128), (4, 129), (5, 300), (2, 257))


def softmax_corpus() -> tuple[Softmax, ...]:
    """Every type with every mask and scale, every fill, and every edge of a turn; a row of NaN alone; several rows a block."""
    found = []
    for place, (wide, mask) in enumerate((wide, mask) for wide in WIDE for mask in MASKS):
        shape, fill = SHAPES[place % len(SHAPES)], DRAWN_FILLS[place % len(DRAWN_FILLS)]
        found.append(Softmax(*shape, Values("gaussian", place), wide, mask, SCALES[place % len(SCALES)]))
        found.append(Softmax(*shape, Values(fill, place), wide, mask, blocks=place % 3, apart=Apart(1, 1, 3, 5)))
    for wide in WIDE:
        found.append(Softmax(2, 300, Values("specials", 1), wide))
        found.append(Softmax(3, 140, Values("bits", 2), wide, scale=LOG2_E / 8, blocks=1))
        found.append(Softmax(1, 2, Values(patches=((0, NAN[wide]), (1, NAN[wide]))), wide))
        found.append(Softmax(1, 700, Values("log-uniform", 3), wide, scale=1e-3))
    # Weights that are subnormal, a sum above 2^126, and two rows in which the reciprocal and the quotient part.
    found.append(Softmax(1, 3, Values(patches=((1, 0xC2B40000), (2, 0xC2C80000))), "f32"))
    found.append(Softmax(1, 2, Values(patches=((1, 0xC2A90000),)), "f32", scale=-1.5))
    found.append(Softmax(2, 300, Values("gaussian", 168), "f16"))
    found.append(Softmax(2, 300, Values("gaussian", 90)))
    return tuple(found)


def rms_norm_corpus() -> tuple[RmsNorm, ...]:
    """Every type with and without a gate, every fill of each operand, and every edge of a turn."""
    found = []
    for place, (wide, fill) in enumerate((wide, fill) for wide in WIDE for fill in DRAWN_FILLS):
        shape, other = SHAPES[place % len(SHAPES)], DRAWN_FILLS[(place * 3 + 1) % len(DRAWN_FILLS)]
        gate = Values("gaussian" if place % 4 else other, place) if place % 2 else None
        eps = EPSILONS[place % len(EPSILONS)]
        apart = Apart(1, 1, 3, 5) if place % 3 else CLOSE
        found.append(RmsNorm(*shape, Values(fill, place), Values("gaussian", 7), gate, wide, eps, place % 3, apart))
    # The sum of one thread is that of the row, and squares that are rounded show.
    alone = ((0, 0xBFB3A7FF), (THREADS, 0xBF93AC99), (2 * THREADS, 0xBF06CB95))
    found.append(RmsNorm(1, 3 * THREADS, Values(patches=alone), ONES, None, "f32"))
    for wide in WIDE:
        found.append(RmsNorm(2, 300, Values("gaussian", 1), Values("specials", 1), Values("specials", 2), wide))
        found.append(RmsNorm(4, 700, Values("gaussian", 2), Values("gaussian", 3), None, wide, blocks=1))
    return tuple(found)


SOFTMAX = Kernel(
    "softmax",
    summary="2^(scale * (x - max)) over its sum, by ex2 and rcp or div.full, in one order of sums",
    file=SOURCE,
    entries=tuple(f"softmax_{wide}" for wide in WIDE),
    recipe=Softmax,
    problem=softmax_problems(),
    corpus=softmax_corpus(),
    run=run_softmax,
    oracle=softmax_of,
    outputs=lambda problem: {"y": problem.wide, "gap": ""},
    suspects=SOFTMAX_MISTAKES,
    computes=kinds.softmax(
        "codes", lambda p: p.scale / float(np.log2(np.e)), x_format=lambda p: p.wide, also={"gap": expected_gap}
    ),
    orderless="it adds powers of two, which never cancel, so that none hides another; the oracle says their order,"
    " `refsim verify` tries it",
)

RMS_NORM = Kernel(
    "rms_norm",
    summary="x * rsqrt(mean(x^2) + eps) * w, times silu(z) where a gate is given",
    file=SOURCE,
    entries=tuple(f"rms_norm{gate}_{wide}" for gate in ("", "_silu") for wide in WIDE),
    recipe=RmsNorm,
    problem=rms_norm_problems(),
    corpus=rms_norm_corpus(),
    run=run_rms_norm,
    oracle=rms_norm_of,
    outputs=lambda problem: {"y": problem.wide, "gap": ""},
    suspects=RMS_NORM_MISTAKES,
    computes=kinds.rms_norm(
        "codes", "weights", "eps", gate="gates", x_format=lambda p: p.wide, also={"gap": expected_gap}
    ),
    orderless="it adds squares, which never cancel, so that none hides another; the oracle says their order,"
    " `refsim verify` tries it",
)

KERNELS = (SOFTMAX, RMS_NORM)
