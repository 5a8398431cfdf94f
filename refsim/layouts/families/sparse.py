"""Fragments of products with a sparse A: its stored elements, the whole B, and the metadata, which some lanes hold.

The K / 2 stored columns of A lie as in the dense instruction with half the K; so do the accumulators. The metadata is a
matrix of these K / 2 columns: the position of each stored element in its group.
"""

import re
from collections.abc import Iterator
from functools import partial
from itertools import product

from refsim.errors import RefsimError
from refsim.formats import element_named
from refsim.layouts.families.core import (
    Fragment,
    Integers,
    Row,
    Shape,
    grammar,
    group,
    in_registers,
    only,
    refuse,
    within,
)
from refsim.layouts.families.mma import accumulator, operand_a, operand_b
from refsim.sources import PTX, Source

METADATA_BITS = 32  # every lane gives one register


class SparseShape(Shape):
    """Describe a shape of mma.sp, or of wgmma.mma_async.sp (N has no effect); the first accumulator is the default."""

    @property
    def source(self) -> Source:
        """Return the section of the PTX ISA that shows the fragments of the shape."""
        if self.is_warpgroup:
            return PTX["wgmma.mma_async.sp, metadata"]
        return PTX[f"matrix fragments for sparse mma.{self}"]

    @property
    def is_warpgroup(self) -> bool:
        """Return whether the shape belongs to wgmma.mma_async.sp."""
        return self.m == 64

    @property
    def position_bits(self) -> int:
        """Return the bits of one position: two for one of four elements, four for one of two elements of 32 bits."""
        return 4 if self.code_bits == 32 else 2

    @property
    def code_bits(self) -> int:
        """Return the bits of an element."""
        return element_named(self.types[0]).code_bits

    @property
    def lanes(self) -> int:
        """Return how many lanes of each four give the metadata."""
        return 16 * self.k // 2 * self.position_bits // (8 * METADATA_BITS)

    @property
    def stem(self) -> str:
        """Return the beginning of the names of the shape: "mma.sp.m16n8k32"."""
        return f"wgmma.sp.m64k{self.k}" if self.is_warpgroup else f"mma.sp.{self}"

    def metadata(self, type: str, selector: int) -> str:
        """Return the name of the metadata's fragment for a value of the sparsity selector."""
        return f"{self.stem}.{type}.meta" + (f".sel{selector}" if selector else "")

    @property
    def selectors(self) -> range:
        """Return the values that the sparsity selector may have."""
        return range(4 // self.lanes)


# m, n, k of the whole A, types, accumulators, first target
SPARSE_SHAPES = (
    SparseShape(16, 8, 16, ("f16",), ("f32", "f16"), "sm_80"),
    SparseShape(16, 8, 16, ("bf16",), ("f32",), "sm_80"),
    SparseShape(16, 8, 32, ("f16",), ("f32", "f16"), "sm_80"),
    SparseShape(16, 8, 32, ("bf16",), ("f32",), "sm_80"),
    SparseShape(16, 8, 8, ("tf32",), ("f32",), "sm_80"),
    SparseShape(16, 8, 16, ("tf32",), ("f32",), "sm_80"),
    SparseShape(16, 8, 32, ("s8", "u8"), ("s32",), "sm_80"),
    SparseShape(16, 8, 64, ("s8", "u8"), ("s32",), "sm_80"),
    SparseShape(16, 8, 64, ("e4m3", "e5m2"), ("f32",), "sm_89"),
)
SPARSE_WARPGROUP_SHAPES = (
    SparseShape(64, 8, 32, ("f16",), ("f32", "f16"), "sm_90a"),
    SparseShape(64, 8, 32, ("bf16",), ("f32",), "sm_90a"),
    SparseShape(64, 8, 16, ("tf32",), ("f32",), "sm_90a"),
    SparseShape(64, 8, 64, ("e4m3", "e5m2"), ("f32", "f16"), "sm_90a"),
    SparseShape(64, 8, 64, ("s8", "u8"), ("s32",), "sm_90a"),
)


def rows() -> Iterator[Row]:
    """Yield every name of the family with the function that builds its fragment."""
    for shape in SPARSE_SHAPES:
        for type, operand in product(shape.types, "abcd"):
            name = f"{shape.stem}.{type}.{operand}"
            if operand in "cd":
                for kind in shape.accumulators:
                    full = name if kind == shape.accumulators[0] else f"{name}.{kind}"
                    yield full, partial(_accumulator, full, shape, kind)
            else:
                yield name, partial(_operand, name, shape, type, operand)
    for shape in (*SPARSE_SHAPES, *SPARSE_WARPGROUP_SHAPES):
        for type, selector in product(shape.types, shape.selectors):
            name = shape.metadata(type, selector)
            yield name, partial(_metadata, name, shape, selector)


def _operand(name: str, shape: SparseShape, type: str, operand: str) -> Fragment:
    """Return the fragment of the stored A or of B."""
    extent = (shape.m, shape.k // 2) if operand == "a" else (shape.k, shape.n)
    formula = partial(operand_a if operand == "a" else operand_b, per=32 // shape.code_bits)
    summary = "the stored elements alone, as a dense A" if operand == "a" else "a quad of lanes shares column g"
    return in_registers(name, extent, type, formula, shape.source, shape.since, summary)


def _accumulator(name: str, shape: SparseShape, type: str) -> Fragment:
    summary = "a lane holds pairs of neighboring columns"
    return in_registers(name, (shape.m, shape.n), type, accumulator, shape.source, shape.since, summary)


# fmt: off
def _metadata(name: str, shape: SparseShape, selector: int) -> Fragment:
    """Return the fragment of the metadata for a value of the sparsity selector."""
    per, lanes = METADATA_BITS // shape.position_bits, shape.lanes
    chosen = ", ".join(str(selector * lanes + number) for number in range(lanes))
    return Fragment(
        name, (shape.m, shape.k // 2), threads=2 * shape.m if shape.is_warpgroup else 32, values=per,
        formula=partial(_positions, shape=shape, selector=selector), source=shape.source, since=shape.since,
        per_register=per, element_bits=shape.position_bits, summary=f"given by lanes {chosen} of each four",
    )
# fmt: on


def _positions(lane: Integers, value: Integers, shape: SparseShape, selector: int) -> tuple[Integers, Integers]:
    """Return places of the metadata, in which each lane gives one 32-bit register.

    Types of 16 and 32 bits: the low half of a register is row g, the high half row g + 8, the next lane goes on along
    k. Types of 8 bits: a register is one row, the next lane has row g + 8, the lane after that goes on along k.
    mma.sp.m16n8k32.f16.meta: lane 5, value 9 is row 1 + 8, stored column 8 + 1, which lies in k 16 to 19.
    """
    per = METADATA_BITS // shape.position_bits
    turn = within(lane) - selector * shape.lanes
    if shape.code_bits == 8:
        row, column = group(lane) + 8 * (turn & 1), value + (turn >> 1) * per
    else:
        row, column = group(lane) + 8 * (value // (per // 2)), value % (per // 2) + turn * (per // 2)
    return only((turn >= 0) & (turn < shape.lanes), row + 16 * (lane >> 5), column)


@grammar(r"((?:mma|wgmma)\.sp\.m[0-9]{1,6}(?:n[0-9]{1,6})?k[0-9]{1,6})\.([a-z]+[0-9a-z]*)\.([abcd]|meta)(?:\.(\w+))?")
def refusal(name: str, match: re.Match[str]) -> RefsimError:
    """Return the reason that no instruction has the fragment."""
    stem, type, operand, suffix = match[1], match[2], match[3], match[4] or ""
    of_unit = SPARSE_WARPGROUP_SHAPES if name.startswith("w") else SPARSE_SHAPES
    of_type = [shape for shape in of_unit if type in shape.types]
    if not of_type:
        have = ", ".join(dict.fromkeys(each for shape in of_unit for each in shape.types))
        return refuse(name, f"no sparse product of {type}", f"PTX ISA, mma.sp: types are {have}")
    shape = next((shape for shape in of_type if shape.stem == stem), None)
    if shape is None:
        have = ", ".join(shape.stem for shape in of_type)
        return refuse(name, f"{type} has no {stem}", f"PTX ISA, sparse matrix fragments: {have}")
    if operand == "meta":
        rule = f"PTX ISA, sparse matrix storage: the sparsity selector is one of {', '.join(map(str, shape.selectors))}"
        return refuse(name, f"metadata takes no suffix .{suffix}", rule, "selector 0 takes no suffix, 1 takes .sel1")
    if shape.is_warpgroup:
        dense = f"wgmma.m64nNk{shape.k // 2}.{type}"
        return refuse(name, f"operand {operand} has no name here", f"it lies as that of {dense}, half the K")
    have = ", ".join(shape.accumulators)
    return refuse(name, f"{operand} takes no suffix .{suffix}", f"PTX ISA, mma.sp: accumulators are {have}")
