"""The request of one wgmma to a tensor core, as data: types, registers, descriptors. No operand has been read yet."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from refsim.layouts.families.sparse import SPARSE_WARPGROUP_SHAPES, SparseShape
from refsim.ptx.memory.arrays import Array, Bools

Registers = tuple[int, ...]
Words = NDArray[np.uint64]


@dataclass(frozen=True)
class ProductForm:
    """The text of an instruction as data: D (64 x n) += A (64 x k) B (k x n), where `a`, `b` and `d` name types.

    `majors` are the orders of A and B in shared memory, `negated` marks the operands whose sign is turned, `satfinite`
    clamps integer sums. If `sparse`, half the elements of each row of A are stored, and `selector` gives the threads
    that hold their positions.
    """

    n: int
    k: int
    a: str
    b: str
    d: str
    majors: tuple[str, str]
    negated: tuple[bool, bool]
    satfinite: bool
    sparse: bool = False
    selector: int = 0

    @property
    def shape(self) -> str:
        """Return the shape as text: m64n16k16, or m64n16k32 of a sparse A."""
        return f"m64n{self.n}k{self.k}" + (" of a sparse A" if self.sparse else "")

    @property
    def sparse_shape(self) -> SparseShape:
        """Return the entry of layouts that describes which threads hold the metadata."""
        return next(shape for shape in SPARSE_WARPGROUP_SHAPES if shape.k == self.k and self.a in shape.types)

    @property
    def dense(self) -> str:
        """Return the shape of the dense instruction with equal register layouts of A and D."""
        return f"wgmma.m64n{self.n}k{self.columns('a')}"

    def columns(self, side: str) -> int:
        """Return how many columns of A or B are stored."""
        return self.k // 2 if self.sparse and side == "a" else self.k

    @property
    def accumulator(self) -> str:
        """Return the name of D's fragment in refsim.layouts, whose default types take no suffix."""
        suffix = "" if self.d in ("f32", "s32") else f".{self.d}"
        return f"{self.dense}.{self.a}.d{suffix}"

    @property
    def fragment(self) -> str:
        """Return the name of A's fragment in registers."""
        return f"{self.dense}.{self.a}.a"

    def operand(self, side: str) -> str:
        """Return the name of A or B in shared memory under which its descriptor is walked."""
        sparse = ".sp" if self.sparse else ""
        return f"wgmma{sparse}.m64n{self.n}k{self.k}.{self.a if side == 'a' else self.b}.{side}"


@dataclass(frozen=True)
class MatrixProduct:
    """One executed wgmma of some warpgroups.

    `d` are its registers; `a` the registers of a fragment, or one descriptor per warpgroup; `b` one descriptor per
    warpgroup. `adds` is whether each warpgroup adds to D or begins at zero. `positions`, (warpgroups, 64, stored
    columns), are the places of the stored elements of a sparse A in their groups.
    """

    form: ProductForm
    d: Registers
    a: Registers | Words
    b: Words
    adds: Bools
    positions: NDArray[np.uint8] | None = None

    @property
    def fragment(self) -> Registers:
        """Return the registers that hold A; empty if A lies in shared memory."""
        return self.a if isinstance(self.a, tuple) else ()

    def part(self, chosen: Array) -> "MatrixProduct":
        """Return this product for the chosen warpgroups only."""
        a = self.a if isinstance(self.a, tuple) else self.a[chosen]
        positions = None if self.positions is None else self.positions[chosen]
        return replace(self, a=a, b=self.b[chosen], adds=self.adds[chosen], positions=positions)
