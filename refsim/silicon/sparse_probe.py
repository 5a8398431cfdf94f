"""The probe of products with a sparse A: every form of mma.sp and wgmma.mma_async.sp, one kernel each.

Each block, a warp or a warpgroup, computes one test case; `sparse_problems.py` draws them. A GPU ran `ptx()`; the
simulator runs the identical text on identical inputs.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.formats import ElementType, element_named
from refsim.layouts.descriptors import operand_descriptor
from refsim.layouts.families import Fragment
from refsim.layouts.families import fragment as fragment_named
from refsim.layouts.families.sparse import SPARSE_SHAPES, SPARSE_WARPGROUP_SHAPES, SparseShape
from refsim.layouts.tiles import K, tile
from refsim.numerics.multiply import MatrixProduct
from refsim.numerics.rows import Unit
from refsim.numerics.sparse import Sparsity, sparsity_of

Array = NDArray[Any]
IMAGE = 4096
"""Bytes of shared memory that a warpgroup fills: A from 0 on, B from B_START on."""
B_START = 2048
_HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"
_NO_FIELDS = 0x0F0F0F0F  # the register of lanes that give no metadata: a meaningless pattern


@dataclass(frozen=True)
class Problem:
    """Test cases of a form: stored codes of A (cases, M, K / 2) with positions, B (cases, N, K), C (cases, M, N)."""

    a: Array
    positions: NDArray[np.uint8]
    b: Array
    c: Array

    def part(self, chosen: slice) -> "Problem":
        """Return some of the test cases."""
        return Problem(self.a[chosen], self.positions[chosen], self.b[chosen], self.c[chosen])


@dataclass(frozen=True)
class SparseInstruction:
    """One instruction: `sparse` is sp or sp::ordered_metadata; a warpgroup takes A from registers or shared memory."""

    shape: SparseShape
    a: str
    b: str
    d: str
    selector: int
    sparse: str = "sp"
    from_registers: bool = True

    @property
    def opcode(self) -> str:
        """Return the opcode of the instruction."""
        if self.shape.is_warpgroup:
            return f"wgmma.mma_async.sp.sync.aligned.{self.shape}.{self.d}.{self.a}.{self.b}"
        return f"mma.{self.sparse}.sync.aligned.{self.shape}.row.col.{self.d}.{self.a}.{self.b}.{self.d}"

    @property
    def name(self) -> str:
        """Return the opcode with selector and source of A."""
        source = (
            "" if not self.shape.is_warpgroup else " A in registers" if self.from_registers else " A in shared memory"
        )
        return f"{self.opcode} selector {self.selector}{source}"

    @property
    def unit(self) -> Unit:
        """Return the unit that executes the instruction."""
        return "wgmma" if self.shape.is_warpgroup else "mma.sync"

    @property
    def threads(self) -> int:
        """Return the number of threads that execute the instruction."""
        return 2 * self.shape.m if self.shape.is_warpgroup else 32

    @property
    def problems(self) -> int:
        """Return the test cases per class of a form: the results of warps and warpgroups are equally many."""
        return 4 if self.shape.is_warpgroup else 16

    @property
    def formats(self) -> tuple[ElementType, ElementType, ElementType]:
        """Return the element types of A, B and D."""
        return element_named(self.a), element_named(self.b), element_named(self.d)

    @property
    def product(self) -> MatrixProduct:
        """Return the product; its K counts elements of the whole A."""
        return MatrixProduct(*self.formats, self.shape.m, self.shape.n, self.shape.k, self.unit)

    @property
    def sparsity(self) -> Sparsity:
        """Return the number of kept elements and the group of A's type."""
        return sparsity_of(element_named(self.a))

    def fragment(self, operand: str) -> Fragment:
        """Return the fragment of A, of B (for a warp only) or of C."""
        shape, type = self.shape, self.b if operand == "b" else self.a
        refined = f".{self.d}" if operand == "c" and self.d != shape.accumulators[0] else ""
        if not shape.is_warpgroup:
            return fragment_named(f"{shape.stem}.{type}.{operand}{refined}")
        return fragment_named(
            f"wgmma.m64n{shape.n}k{shape.k // 2}.{type}.{'d' if operand == 'c' else operand}{refined}"
        )

    @cached_property
    def counts(self) -> tuple[int, int, int]:
        """Return the number of registers of A, B and C that a thread loads."""
        b = 0 if self.shape.is_warpgroup else self.fragment("b").registers
        return self.fragment("a").registers, b, self.fragment("c").registers

    @property
    def words(self) -> int:
        """Return the number of 32-bit words that a thread loads: registers of A, B and C, and its metadata."""
        return sum(self.counts) + 1

    def kernel(self, entry: str) -> str:
        """Return the PTX entry (words, images, out); only a warpgroup reads images."""
        a, b, c = self.counts
        lists = [_listed(name, count) for name, count in zip("abc", self.counts, strict=True)]
        names = [f"%{name}{place}" for name, count in zip("abc", self.counts, strict=True) for place in range(count)]
        lines = [
            f".visible .entry {entry}(.param .u64 words, .param .u64 images, .param .u64 out) {{",
            f".reg .b32 %t, %g, %at, %i, %e, {', '.join(names)}; .reg .b64 %w, %o, %p, %da, %db; .reg .pred %yes, %more;",
            f".shared .align 1024 .b8 s[{IMAGE}];" if self.shape.is_warpgroup else "",
            "ld.param.u64 %w, [words]; ld.param.u64 %p, [images]; ld.param.u64 %o, [out];",
            f"mov.u32 %t, %tid.x; mov.u32 %g, %ctaid.x; mad.lo.u32 %at, %g, {self.threads}, %t;",
            f"mad.wide.u32 %w, %at, {4 * self.words}, %w; mad.wide.u32 %o, %at, {4 * c}, %o;",
            *(f"ld.global.b32 {name}, [%w+{4 * place}];" for place, name in enumerate([*names, "%e"])),
            *(self._product_of_warpgroup(lists) if self.shape.is_warpgroup else self._product_of_warp(lists)),
            *(f"st.global.b32 [%o+{4 * place}], %c{place};" for place in range(c)),
            "ret;",
            "}",
        ]
        assert a + b + c == len(names)
        return "\n".join(filter(None, lines))

    def _product_of_warp(self, lists: list[str]) -> list[str]:
        a, b, c = lists
        return [f"{self.opcode} {c}, {a}, {b}, {c}, %e, {self.selector};"]

    def _product_of_warpgroup(self, lists: list[str]) -> list[str]:
        """Return the lines that fill shared memory and multiply in a warpgroup."""
        words = [operand_descriptor("wgmma-smem", *each) for each in self._tiles]
        floats = not element_named(self.a).is_integer
        turned = element_named(self.a).code_bits == 16
        constants = ", 1, 1" * floats + (", 0" if self.from_registers else ", 0, 0") * turned
        source = lists[0] if self.from_registers else "%da"
        return [
            f"mad.wide.u32 %p, %g, {IMAGE}, %p; shl.b32 %i, %t, 2; mov.u32 %at, s;",
            "FILL: cvt.u64.u32 %da, %i; add.u64 %da, %p, %da; ld.global.b32 %g, [%da];",
            "add.u32 %at, %at, %i; st.shared.b32 [%at], %g; mov.u32 %at, s;",
            f"add.u32 %i, %i, {4 * self.threads}; setp.lt.u32 %more, %i, {IMAGE}; @%more bra FILL;",
            "fence.proxy.async.shared::cta; bar.sync 0; shr.u32 %at, %at, 4; cvt.u64.u32 %p, %at;",
            *(f"add.u64 %d{side}, %p, {word:#x};" for side, word in zip("ab", words, strict=True)),
            "setp.eq.u32 %yes, 0, 0; wgmma.fence.sync.aligned;",
            f"{self.opcode} {lists[2]}, {source}, %db, %e, {self.selector}, %yes{constants};",
            "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;",
        ]

    @property
    def _tiles(self) -> list[tuple[Any, int]]:
        """Return the tiles of A and B in shared memory, K-major without a swizzle, and their first bytes."""
        size = element_named(self.a).code_dtype.itemsize
        extents = (self.shape.m, self.shape.k // 2), (self.shape.n, self.shape.k)
        return [(tile(K, "none", size, extent), start) for extent, start in zip(extents, (0, B_START), strict=True)]

    # ---- inputs and results of a kernel
    def inputs(self, problem: Problem) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
        """Return the 32-bit words of all threads (threads, words), and the images of shared memory."""
        metadata = fragment_named(self.shape.metadata(self.a, self.selector))
        fields = (
            np.array([0x4, 0xE], np.uint8)[problem.positions] if self.shape.position_bits == 4 else problem.positions
        )
        words = registers_of(fields, metadata)
        words[np.tile((metadata.elements[0] < 0).all(axis=1), len(problem.a))] = _NO_FIELDS
        sides = [registers_of(problem.a, self.fragment("a"))]
        if not self.shape.is_warpgroup:
            sides.append(registers_of(problem.b.swapaxes(1, 2), self.fragment("b")))
        return np.concatenate([*sides, registers_of(problem.c, self.fragment("c")), words], axis=1), self._images(
            problem
        )

    def _images(self, problem: Problem) -> NDArray[np.uint8]:
        """Return shared memory with A and B of each test case (cases, IMAGE), or a dummy for a warp."""
        if not self.shape.is_warpgroup:
            return np.zeros((1, 16), np.uint8)
        images = np.zeros((len(problem.a), IMAGE), np.uint8)
        for matrix, (tiling, start) in zip((problem.a, problem.b), self._tiles, strict=True):
            rows, columns = np.indices(matrix.shape[1:])
            at = tiling.address(rows, columns, start).ravel()[:, None] + np.arange(matrix.dtype.itemsize)
            images[:, at] = np.ascontiguousarray(matrix).view(np.uint8).reshape(len(matrix), *at.shape)
        return images

    def results(self, words: NDArray[np.uint32]) -> Array:
        """Return D (cases, M, N) as codes, from the registers that all threads stored."""
        row = self.fragment("c")
        held = words.reshape(-1, row.threads, row.registers)
        found = np.zeros((len(held), *row.shape), np.uint16 if row.slot_bits == 16 else np.uint32)
        for value in range(row.values):
            shift = np.uint32(row.slot_bits * (value % row.per_register))
            found[:, *row.coord(np.arange(row.threads), value)] = held[:, :, value // row.per_register] >> shift
        return found


def _listed(name: str, count: int) -> str:
    return "{" + ", ".join(f"%{name}{place}" for place in range(count)) + "}"


def registers_of(matrix: Array, row: Fragment) -> NDArray[np.uint32]:
    """Return the registers of matrices of codes (cases, rows, columns): (cases x threads, registers)."""
    held = np.zeros((len(matrix), row.threads, row.registers), np.uint32)
    for value in range(row.values):
        r, c = row.coord(np.arange(row.threads), value)
        codes = np.where(r >= 0, matrix[:, r, c], 0).astype(np.uint32)
        held[:, :, value // row.per_register] |= codes << np.uint32(row.slot_bits * (value % row.per_register))
    return held.reshape(-1, row.registers)


def forms() -> list[SparseInstruction]:
    """Return every form in order; entry k of the module is `form_<k>`."""
    found = []
    for shape in SPARSE_SHAPES:
        for a in shape.types:
            for d in shape.accumulators:
                found += [SparseInstruction(shape, a, a, d, selector) for selector in shape.selectors]
                found.append(SparseInstruction(shape, a, shape.types[-1], d, 0, "sp::ordered_metadata"))
    for shape in SPARSE_WARPGROUP_SHAPES:
        for a in shape.types:
            for d in shape.accumulators:
                for from_registers in (False, True):
                    found += [
                        SparseInstruction(shape, a, shape.types[-1], d, s, "sp", from_registers)
                        for s in shape.selectors
                    ]
    return found


def module(chosen: list[SparseInstruction]) -> str:
    """Return the PTX module with one entry for each form."""
    return _HEAD + "\n".join(form.kernel(f"form_{number}") for number, form in enumerate(chosen)) + "\n"


def ptx() -> str:
    """Return the PTX module of all forms, as the GPU ran it."""
    return module(forms())
