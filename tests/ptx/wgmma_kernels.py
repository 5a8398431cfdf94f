"""Kernels of one or more warpgroups that multiply by wgmma, as PTX text, and the operands that they are given.

Each block copies an image of shared memory from its own place in `image`, loads what D begins with and A's registers, and
stores D register by register. Descriptors are arguments, relative to the beginning of shared memory.
"""

from dataclasses import dataclass

import numpy as np

from refsim import encode
from refsim.formats import element_named
from refsim.layouts import Tile, operand_descriptor, tile
from refsim.layouts.families import fragment

HEAD = ".version 8.5\n.target sm_90a\n.address_size 64\n"
FENCE = "fence.proxy.async.shared::cta;"
BYTES = 16384  # of shared memory that each block fills
DESCRIPTORS = 8


@dataclass(frozen=True)
class Wgmma:
    """One kind of product: wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e5m2 is Wgmma(16, 32, "f32", "e4m3", "e5m2")."""

    n: int
    k: int
    d: str
    a: str
    b: str
    saturates: bool = False

    @property
    def opcode(self) -> str:
        saturating, counting = ".satfinite" * self.saturates, ".and.popc" * (self.a == "b1")
        shape = f"m64n{self.n}k{self.k}"
        return f"wgmma.mma_async.sync.aligned.{shape}{saturating}.{self.d}.{self.a}.{self.b}{counting}"

    @property
    def registers(self) -> int:
        """Registers of D."""
        return self.n // 4 if self.d == "f16" else self.n // 2

    @property
    def accumulator(self) -> str:
        return f"wgmma.m64n{self.n}k{self.k}.{self.a}.d" + (".f16" if self.d == "f16" else "")

    def issue(
        self,
        a: str = "%word0",
        b: str = "%word1",
        add: str = "%yes",
        *,
        signs: tuple[int, int] = (1, 1),
        turned: tuple[int, int] = (0, 0),
        first: int = 0,
    ) -> str:
        """The statement, D in the registers from %d{first} on; A in registers where `a` is "registers"."""
        words = [vector("d", self.registers, first), vector("a", 4) if a == "registers" else a, b, add]
        if element_named(self.a).is_integer is False:
            words += map(str, signs)
            if element_named(self.a).code_bits == 16:
                words += map(str, turned[1:] if a == "registers" else turned)
        return f"{self.opcode} {', '.join(words)};"


def vector(name: str, count: int, first: int = 0) -> str:
    return "{" + ", ".join(f"%{name}{first + place}" for place in range(count)) + "}"


FENCED = "wgmma.fence.sync.aligned;"
WAIT = ("wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;")


def kernel(kind: Wgmma, body: list[str], *, sets: int = 1) -> str:
    """The kernel around `body`; `sets` of D's registers are loaded and stored."""
    count = kind.registers * sets
    held = ".f32" if kind.d == "f32" else ".b32"
    lines = [
        f".reg .b64 %p<9>, %word<{DESCRIPTORS}>; .reg .b32 %r<12>, %a<4>; .reg {held} %d<{count}>; .reg .pred %yes, %no;",
        f".shared .align 1024 .b8 s[{BYTES}];",
        *(f"ld.param.u64 %p{place}, [{name}];" for place, name in enumerate(("image", "c", "fragment", "out"))),
        "mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, s;",
        "setp.eq.u32 %yes, 0, 0; setp.ne.u32 %no, 0, 0;",
        f"mul.wide.u32 %p4, %r1, {BYTES}; add.u64 %p4, %p0, %p4;",
        "shl.b32 %r4, %r0, 4; shl.b32 %r11, %r2, 4;",
        "FILL:",
        "cvt.u64.u32 %p5, %r4; add.u64 %p5, %p4, %p5; ld.global.v4.b32 {%r5, %r6, %r7, %r8}, [%p5];",
        "add.u32 %r9, %r3, %r4; st.shared.v4.b32 [%r9], {%r5, %r6, %r7, %r8};",
        f"add.u32 %r4, %r4, %r11; setp.lt.u32 %no, %r4, {BYTES}; @%no bra FILL;",
        "setp.ne.u32 %no, 0, 0;",
        FENCE,
        "bar.sync 0;",
        "mad.lo.u32 %r10, %r1, %r2, %r0;",
        f"mul.wide.u32 %p6, %r10, {4 * count}; add.u64 %p1, %p1, %p6; add.u64 %p3, %p3, %p6;",
        "mul.wide.u32 %p6, %r10, 16; add.u64 %p2, %p2, %p6; ld.global.v4.b32 {%a0, %a1, %a2, %a3}, [%p2];",
        *(f"ld.global.b32 %d{place}, [%p1+{4 * place}];" for place in range(count)),
        "shr.u32 %r3, %r3, 4; cvt.u64.u32 %p7, %r3;",
        *(f"ld.param.u64 %word{n}, [word{n}]; add.u64 %word{n}, %word{n}, %p7;" for n in range(DESCRIPTORS)),
        *body,
        *(f"st.global.b32 [%p3+{4 * place}], %d{place};" for place in range(count)),
    ]
    names = ["image", "c", "fragment", "out", *(f"word{number}" for number in range(DESCRIPTORS))]
    parameters = ", ".join(f".param .u64 {name}" for name in names)
    return f"{HEAD}.visible .entry k({parameters}) {{\n" + "\n".join(lines) + "\nret; }\n"


# ---- operands
def codes(generator: np.random.Generator, type: str, rows: int, k: int) -> np.ndarray:
    """Random codes of every kind, NaN and infinities left out; single bits eight to a byte."""
    row = element_named(type)
    if row.code_bits == 1:
        return generator.integers(0, 256, (rows, k // 8), np.uint8)
    if row.is_integer:
        return generator.integers(0, 256, (rows, k), np.uint8)
    values = generator.normal(size=(rows, k)) * 2.0 ** generator.integers(-6, 7, (rows, k))
    return encode(np.clip(values, -400, 400), type)


def place(image: np.ndarray, matrix: np.ndarray, tiling: Tile, start: int) -> None:
    """Write a matrix (rows, k) into a block's bytes, where the tile has it."""
    rows, columns = np.indices(matrix.shape)
    at = tiling.address(rows, columns, start).ravel()
    width = matrix.dtype.itemsize
    image[at[:, None] + np.arange(width)] = matrix.reshape(-1, 1).view(np.uint8).reshape(-1, width)


def word(tiling: Tile, start: int, **where: int) -> int:
    """The descriptor of a tile that begins so many bytes into shared memory."""
    return operand_descriptor("wgmma-smem", tiling, start, **where)


def tiled(matrix: np.ndarray, major: str, swizzle: str) -> Tile:
    return tile(major, swizzle, matrix.dtype.itemsize, matrix.shape)


def words_of(*given: int) -> list[np.uint64]:
    return [np.uint64(each) for each in (*given, *(0,) * (DESCRIPTORS - len(given)))]


# ---- D
def in_registers(kind: Wgmma, matrix: np.ndarray) -> np.ndarray:
    """A matrix (64, n) of codes as each thread holds it: (128, registers) words."""
    rows, columns = fragment(kind.accumulator).elements
    return np.ascontiguousarray(matrix[rows, columns]).view(np.uint32)


def as_matrix(kind: Wgmma, held: np.ndarray) -> np.ndarray:
    """The inverse."""
    rows, columns = fragment(kind.accumulator).elements
    element = np.uint16 if kind.d == "f16" else np.uint32
    found = np.zeros((64, kind.n), element)
    found[rows, columns] = np.ascontiguousarray(held).view(element)
    return found


def fragment_of(kind: Wgmma, matrix: np.ndarray) -> np.ndarray:
    """A (64, k) as each thread holds it: (128, 4) words."""
    layout = fragment(f"wgmma.m64n{kind.n}k{kind.k}.{kind.a}.a")
    if layout.element_bits == 1:
        matrix = np.unpackbits(matrix, axis=1, bitorder="little")
    rows, columns = layout.elements
    held = matrix[rows, columns]
    if layout.element_bits == 1:
        return np.packbits(held, axis=1, bitorder="little").view(np.uint32)
    return np.ascontiguousarray(held).view(np.uint32)
