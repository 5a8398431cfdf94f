"""What one wgmma asks of a tensor core, as data: types, registers, descriptors; nothing of it has been read yet."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.layouts.families.sparse import SPARSE_WARPGROUP_SHAPES, SparseShape

Registers = tuple[int, ...]
Words = NDArray[np.uint64]


@dataclass(frozen=True)
class ProductForm:
    """What the text of an instruction says: D (64 x n) += A (64 x k) B (k x n), where `a`, `b` and `d` name types.

    `majors` are those of A and B in shared memory, `negated` tells whose sign is turned, `satfinite` clamps integer sums.
    `sparse`: of each row of A half the elements are stored, and `selector` says which threads have their positions.
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
        return f"m64n{self.n}k{self.k}" + (" of a sparse A" if self.sparse else "")

    @property
    def sparse_shape(self) -> SparseShape:
        """The row of layouts that says who has the metadata."""
        return next(shape for shape in SPARSE_WARPGROUP_SHAPES if shape.k == self.k and self.a in shape.types)

    @property
    def dense(self) -> str:
        """The shape of the dense instruction whose A and D lie in registers as this one's."""
        return f"wgmma.m64n{self.n}k{self.columns('a')}"

    def columns(self, side: str) -> int:
        """How many columns of A or B are stored."""
        return self.k // 2 if self.sparse and side == "a" else self.k

    @property
    def accumulator(self) -> str:
        """The name of D's fragment in refsim.layouts, whose default types take no suffix."""
        suffix = "" if self.d in ("f32", "s32") else f".{self.d}"
        return f"{self.dense}.{self.a}.d{suffix}"

    @property
    def fragment(self) -> str:
        """The name of A's fragment in registers."""
        return f"{self.dense}.{self.a}.a"

    def operand(self, side: str) -> str:
        """The name of A or B in shared memory, as descriptors are walked for it."""
        sparse = ".sp" if self.sparse else ""
        return f"wgmma{sparse}.m64n{self.n}k{self.k}.{self.a if side == 'a' else self.b}.{side}"


@dataclass(frozen=True)
class MatrixProduct:
    """One executed wgmma of some warpgroups: `d` its registers, `a` the registers of a fragment or a descriptor for each
    warpgroup, `b` a descriptor for each, `adds` whether each adds to D or begins at zero, `positions` where the stored elements
    of a sparse A stand in their groups, (warpgroups, 64, stored columns)."""

    form: ProductForm
    d: Registers
    a: Registers | Words
    b: Words
    adds: NDArray[np.bool_]
    positions: NDArray[np.uint8] | None = None

    @property
    def fragment(self) -> Registers:
        """The registers that A comes from; none where it lies in shared memory."""
        return self.a if isinstance(self.a, tuple) else ()

    def part(self, chosen: NDArray[Any]) -> "MatrixProduct":
        """The same of some of the warpgroups."""
        a = self.a if isinstance(self.a, tuple) else self.a[chosen]
        positions = None if self.positions is None else self.positions[chosen]
        return replace(self, a=a, b=self.b[chosen], adds=self.adds[chosen], positions=positions)
