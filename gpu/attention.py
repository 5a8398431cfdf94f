"""Attention forward for Hopper, declared: the entries of kernels/attention_sm90.cu in bf16 and E4M3, promised bit for bit.

A problem says the lengths, the heads, how operands lie in memory and what they hold. Between their rows lie NaNs that the kernel
must not read, and behind the keys of a head those of the next: the tensor maps end where a head ends.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from refsim import oracles
from refsim.errors import RefsimError
from refsim.formats import BF16, E4M3, Format
from refsim.kernels import Buffer, Kernel, Launcher, Outputs, Struct
from refsim.layouts.tma import SwizzleMode, TensorMap, tensor_map
from refsim.reference import attention_forward as slow
from refsim.testing import kinds
from refsim.testing.kernel_files import load_kernel_file
from refsim.testing.matrices import DRAWN_FILLS, Values, extents, values
from refsim.testing.recipes import in_range, one_of, spelled

products = load_kernel_file(Path(__file__).with_name("products.py"))
SOURCE = Path(__file__).parent / "kernels/attention_sm90.cu"
TILE, THREADS, VECTOR = 64, 128, 16  # rows and keys of a tile; threads; bytes to which rows are aligned
LOG2_E = np.float32(np.log2(np.e))
SWIZZLES: dict[int, SwizzleMode] = {128: "128B", 64: "64B"}  # by the bytes of a row of a box
QUICK = 1 << 13  # products of scores that a definition adds in a tenth of a second
SCALES = (0.125, 0.08838834764831845, 1.0, 1e-3, 30.0, 1e-30)


@dataclass(frozen=True)
class Kind:
    """What is different about operands of a type: their NaN, the type of tensor maps; whether V lies with its keys in rows, as
    FP8 products want it, and heads have scales."""

    format: Format
    nan: int
    map_type: str
    keys_in_rows: bool

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.format.code_dtype


KINDS = {row.format.name: row for row in (Kind(BF16, 0x7FFF, "bfloat16", False), Kind(E4M3, 0x7F, "uint8", True))}


def entries_of(source: Path) -> dict[tuple[str, int], int]:
    """The dynamic shared memory of each entry, by type and depth: the lines ENTRY(word, bytes, ...) that end the file."""
    lines = [line.partition("(") for line in source.read_text("utf-8").splitlines()]
    rows = [[word.strip() for word in words.split(",")] for macro, _, words in lines if macro == "ENTRY"]
    return {(name.split("_")[0], int(name.split("_")[1])): int(size) for name, size, *_ in rows}


ENTRIES = entries_of(SOURCE)
TYPES, DEPTHS = tuple(dict.fromkeys(type for type, _ in ENTRIES)), tuple(dict.fromkeys(depth for _, depth in ENTRIES))


# ---------------------------------------------------------------------------------------------------------------------
# What a problem holds


@dataclass(frozen=True, repr=False)
class Gaps:
    """16-byte vectors between the rows of Q, K and V, and pairs of elements between those of O."""

    q: int = 0
    k: int = 0
    v: int = 0
    o: int = 0

    def __post_init__(self) -> None:
        for name in ("q", "k", "v", "o"):
            in_range(f"gap of {name}", getattr(self, name), 0, 64)

    def __repr__(self) -> str:
        return spelled(self)


DENSE, ZEROS, ONES = Gaps(), Values(), Values("ones")


@dataclass(frozen=True, repr=False)
class Attend:
    """O of `heads` heads of `depth` columns, each `group` of them with the same keys; `scales` are those of E4M3 operands."""

    q_length: int
    kv_length: int
    depth: int = 64
    type: str = "bf16"
    causal: bool = False
    q: Values = ZEROS
    k: Values = ZEROS
    v: Values = ZEROS
    scale: float = 0.125
    heads: int = 1
    group: int = 1
    scales: Values = ONES
    gaps: Gaps = DENSE
    kinds: ClassVar[tuple[str, ...]] = TYPES

    def __post_init__(self) -> None:
        in_range("q_length", self.q_length, 1, 1 << 16)
        in_range("kv_length", self.kv_length, 1, 1 << 16)
        in_range("heads", self.heads, 1, 1 << 12)
        one_of("type", self.type, self.kinds)
        if self.depth not in DEPTHS:
            raise RefsimError("bad-recipe", f"depth is {self.depth}", rule=f"one of {DEPTHS}")
        if self.group < 1 or self.heads % self.group:
            raise RefsimError("bad-recipe", f"{self.heads} heads in groups of {self.group}", rule="whole groups")
        if not 0 < self.scale < np.inf:
            raise RefsimError("bad-recipe", f"scale is {self.scale}", rule="a positive number")

    def __repr__(self) -> str:
        return spelled(self)

    @property
    def kind(self) -> Kind:
        return KINDS[self.type]

    @property
    def kv_heads(self) -> int:
        return self.heads // self.group

    @cached_property
    def operands(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Q (heads, q_length, depth), K and V (kv_heads, kv_length, depth)."""
        shapes = (self.heads, self.q_length), (self.kv_heads, self.kv_length), (self.kv_heads, self.kv_length)
        made = [
            each.codes(self.type, heads * length, self.depth).reshape(heads, length, self.depth)
            for each, (heads, length) in zip((self.q, self.k, self.v), shapes, strict=True)
        ]
        dtype = self.kind.dtype
        return made[0].astype(dtype), made[1].astype(dtype), made[2].astype(dtype)

    @cached_property
    def factors(self) -> tuple[NDArray[np.float32], ...] | None:
        """The scales of q, k and v, one for each head; bf16 has none."""
        if not self.kind.keys_in_rows:
            return None
        each = self.scales.codes("f32", 3, self.heads).astype(np.uint32).view(np.float32)
        return each[0], each[1, : self.kv_heads], each[2, : self.kv_heads]


# ---------------------------------------------------------------------------------------------------------------------
# A launch


def in_memory(launcher: Launcher, name: str, heads: NDArray[Any], kind: Kind, gap: int) -> tuple[Buffer, int]:
    """(heads, rows, columns) with rows of whole vectors, NaN behind each, and the bytes from row to row."""
    size = kind.dtype.itemsize
    pitch = (-(-heads.shape[2] * size // VECTOR) + gap) * VECTOR
    held = np.pad(heads, ((0, 0), (0, 0), (0, pitch // size - heads.shape[2])), constant_values=kind.nan)
    return launcher.upload(held.reshape(-1), name=name), pitch


def map_of(
    launcher: Launcher, name: str, heads: NDArray[Any], kind: Kind, gap: int, box: tuple[int, int] | None = None
) -> TensorMap:
    """Boxes of (columns, rows) of one head; left out, of as many columns as 128 bytes have, and 64 rows."""
    buffer, pitch = in_memory(launcher, name, heads, kind, gap)
    count, height, width = heads.shape
    columns, rows = (min(width, 128 // kind.dtype.itemsize), TILE) if box is None else box
    return tensor_map(
        kind.map_type,
        (width, height, count),
        (columns, rows, 1),
        strides=(pitch, pitch * height),
        address=buffer.address,
        swizzle=SWIZZLES[columns * kind.dtype.itemsize],
    )


def run(launcher: Launcher, problem: Attend) -> Outputs:
    q, k, v = problem.operands
    kind, gaps, factors = problem.kind, problem.gaps, problem.factors
    of_v, box = (v.swapaxes(1, 2), (TILE, problem.depth)) if kind.keys_in_rows else (v, None)
    maps = [
        map_of(launcher, "q", q, kind, gaps.q),
        map_of(launcher, "k", k, kind, gaps.k),
        map_of(launcher, "v", of_v, kind, gaps.v, box),
    ]
    places = [0, 0, 0]
    if factors is not None:
        named = zip(("q_scale", "k_scale", "v_scale"), factors, strict=True)
        places = [launcher.upload(np.ascontiguousarray(each), name=name).address for name, each in named]
    pitch = problem.depth + 2 * gaps.o
    o = launcher.output(problem.heads * problem.q_length * pitch, np.uint16, name="o")
    lse = launcher.output(problem.heads * problem.q_length, np.float32, name="lse")
    before = launcher.read(o).reshape(problem.heads, -1, pitch)
    numbers = np.array([problem.q_length, problem.kv_length, problem.group, problem.causal, pitch], np.uint32)
    shape = Struct(numbers.tobytes() + np.float32(np.float32(problem.scale) * LOG2_E).tobytes(), 4)
    grid = -(-problem.q_length // TILE), problem.heads
    launcher.launch(
        f"attention_sm90_{problem.type}_{problem.depth}",
        grid,
        (THREADS,),
        [*maps, Struct(np.array(places, np.uint64).tobytes(), 8), o, lse, shape],
        ENTRIES[problem.type, problem.depth],
    )
    after = launcher.read(o).reshape(before.shape)
    changed = (after != before)[:, :, problem.depth :].astype(np.uint8)
    written = launcher.read(lse).reshape(problem.heads, -1).view(np.uint32)
    return {"o": np.ascontiguousarray(after[:, :, : problem.depth]), "lse": written, "gap": changed}


# ---------------------------------------------------------------------------------------------------------------------
# What it must write, and what kernels with a mistake would


def expected(problem: Attend) -> Outputs:
    found = oracles.attention(
        *problem.operands, problem.scale, causal=problem.causal, format=problem.type, scales=problem.factors
    )
    return {"o": found.o, "lse": found.lse.view(np.uint32), "gap": expected_gap(problem)}


def expected_gap(problem: Attend) -> NDArray[np.uint8]:
    """Nothing between the rows of O."""
    return np.zeros((problem.heads, problem.q_length, 2 * problem.gaps.o), np.uint8)


def factor_of(at: int, problem: Attend) -> NDArray[np.float32] | None:
    """The scales of q, k or v; bf16 has none."""
    return None if problem.factors is None else problem.factors[at]


def by_definition(problem: Attend, name: str, at: tuple[int, ...]) -> int | None:
    """One element of O, or the logarithm of one row, over fractions; None of rows that see more keys than is quick to add."""
    if name not in ("o", "lse"):
        return None
    (head, row), (q, k, v), factors = at[:2], problem.operands, problem.factors
    of_keys, hidden = head // problem.group, problem.kv_length - problem.q_length
    seen = max(row + 1 + hidden, 0) if problem.causal else problem.kv_length
    last = min(row // TILE * TILE + TILE, problem.q_length) + hidden if problem.causal else problem.kv_length
    if seen * problem.depth > QUICK:
        return None
    factor = np.float32(problem.scale) * LOG2_E
    if factors is not None:
        factor = np.float32(factor * factors[0][head]) * factors[1][of_keys]
    v_scale = None if factors is None else pattern(factors[2][of_keys])
    asked = slow.Row(problem.type, seen, max(0, -(-last // TILE)), pattern(factor), v_scale)
    columns = [v[of_keys, :, at[2]].tolist()] if name == "o" else []
    o, lse = slow.row_of_attention(q[head, row].tolist(), k[of_keys].tolist(), columns, asked)
    return o[0] if name == "o" else lse


def pattern(number: np.float32) -> int:
    """Of a float32."""
    return int(np.float32(number).view(np.uint32))


def changed(change: Callable[[Attend], Attend], problem: Attend) -> Outputs:
    """What comes of another problem."""
    return expected(change(problem))


MISTAKES = {
    "not causal": partial(changed, lambda p: replace(p, causal=False)),
    "2^x, not e^x": partial(changed, lambda p: replace(p, scale=p.scale / float(LOG2_E))),
    "the scale applied twice": partial(changed, lambda p: replace(p, scale=p.scale * p.scale)),
    "no scales of q, k and v": partial(changed, lambda p: replace(p, scales=ONES)),
}


# ---------------------------------------------------------------------------------------------------------------------
# Problems

FILLS = tuple(fill for fill in DRAWN_FILLS if fill != "zeros")


@st.composite
def attention_problems(draw: st.DrawFn, type: str, depths: tuple[int, ...] = DEPTHS, most: int = 200) -> Attend:
    """Lengths at the edges of tiles, fewer and more rows than keys, any fill, half of them gaussian, heads that share keys."""
    kv_heads, group = draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 3)]))
    of_type = st.one_of(values(type, fills=("gaussian",), max_patches=2), values(type, fills=FILLS, max_patches=3))
    few = st.integers(0, 2)
    return Attend(
        draw(st.one_of(st.integers(1, 8), extents(TILE, most))),
        draw(extents(TILE, most)),
        draw(st.sampled_from(depths)),
        type,
        draw(st.booleans()),
        draw(of_type),
        draw(of_type),
        draw(of_type),
        draw(st.sampled_from(SCALES)),
        kv_heads * group,
        group,
        draw(st.sampled_from([ONES, Values("gaussian", 1), Values("distinct", 2), Values("log-uniform", 3)])),
        Gaps(draw(few), draw(few), draw(few), draw(few)),
    )


def corpus_of(type: str) -> tuple[Attend, ...]:
    """Both depths, causal and not: a row and a key, a tile and a column, three tiles; rows that see nothing; special operands."""
    found = []
    for depth in DEPTHS:
        q, k, v = (Values("gaussian", depth + place) for place in range(3))
        scales, wide = Values("distinct", 5), Values("log-uniform", 6)
        found += [
            Attend(70, 150, depth, type, True, q, k, v, 0.125, 2, 2, scales, Gaps(1, 0, 2, 1)),
            Attend(1, 65, depth, type, False, q, k, v, 1.0, 2, 1, scales, Gaps(0, 1, 0, 0)),
            Attend(66, 3, depth, type, True, q, k, v),
            Attend(3, 193, depth, type, True, q, k, v, 0.5, 1, 1, scales, Gaps(0, 0, 1, 1)),
            Attend(5, 64, depth, type, False, wide, k, v, 1.0),
            Attend(2, 130, depth, type, False, Values("specials", 3), k, v),
            Attend(2, 70, depth, type, False, q, Values("specials", 4), v, 30.0),
            Attend(2, 70, depth, type, True, q, k, Values("specials", 5)),
            Attend(4, 129, depth, type, False, Values("bits", 6), Values("bits", 7), Values("bits", 8), 1e-3),
            Attend(3, 66, depth, type, True, Values("subnormals", 1), Values("subnormals", 2), Values("subnormals", 3)),
            Attend(1, 1, depth, type, False, q, k, Values("ones")),
        ]
    if not KINDS[type].keys_in_rows:
        # A weight of 2^-130, whose value is so large that it shows; and a row in which reciprocal and quotient part.
        large = Values(patches=((64, 0x7E96),))
        far = Values(patches=((64, 0xC2B4),))
        found.append(Attend(1, 2, 64, type, False, Values(patches=((0, 0x3F80),)), far, large, 1.0))
        found.append(Attend(64, 20, 64, type, False, *(Values("gaussian", 291 + place) for place in range(3))))
    return tuple(found)


def kernel(type: str) -> Kernel:
    return Kernel(
        f"attention_sm90_{type}",
        summary=f"O = softmax(scale * Q K^T) V of {type} by wgmma, an online softmax between the products",
        file=SOURCE,
        entries=tuple(f"attention_sm90_{type}_{depth}" for depth in DEPTHS),
        recipe=Attend,
        problem=attention_problems(type),
        corpus=corpus_of(type),
        run=run,
        oracle=expected,
        outputs={"o": "bf16", "lse": "f32", "gap": ""},
        suspects=MISTAKES,
        computes=kinds.attention(
            *map(products.operand, range(3)),
            **{f"{name}_scale": partial(factor_of, at) for at, name in enumerate("qkv")},
            format=type,
            causal="causal",
            scale="scale",
            also={"gap": expected_gap},
        ),
        definition=by_definition,
        products={f"values_{depth}": products.attention(Attend, depth, type) for depth in DEPTHS},
    )


KERNELS = tuple(kernel(type) for type in TYPES)
ATTENTION_BF16, ATTENTION_E4M3 = KERNELS
