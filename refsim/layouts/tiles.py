"""Canonical operand tiles in shared memory: swizzle atoms, K-major or MN-major, as wgmma and tcgen05 read them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refsim.errors import RefsimError, check_named
from refsim.integers import whole
from refsim.layouts.drawing import drawn
from refsim.layouts.swizzles import ATOM_32B, Swizzle
from refsim.layouts.swizzles import swizzle as swizzle_named
from refsim.render.cards import Card
from refsim.sources import CUTLASS, PTX, Source

Major = Literal["K", "MN"]
K: Final = "K"
MN: Final = "MN"
MAJORS: tuple[Major, ...] = get_args(Major)
CORE_BYTES = 16
ATOM_ROWS = 8


@drawn
@dataclass(frozen=True, repr=False)
class Tile(Card):
    """Describe an MN x K operand made of atoms: `mn_stride_bytes` from atom to atom along MN, `k_stride_bytes` along K.

    A K-major atom is 8 rows of MN by one swizzle span of K. An MN-major atom is one span of MN by 8 rows of K (4 for
    128B_32B_atom). Without swizzle the span is the 16 bytes of a core matrix. bf16, 128B, K-major: atoms of 8 x 64;
    element (9, 1) lies at 1024 + 128 + 2 = 1154 before the swizzle, at 1154 ^ 16 = 1170 after it.
    """

    major: Major
    swizzle: Swizzle
    element_bytes: int
    shape: tuple[int, int]
    mn_stride_bytes: int
    k_stride_bytes: int
    source: Source = PTX["shared memory matrix layout, swizzle atoms"]

    def _repr_summary(self) -> str:
        rows, columns = self.shape
        return f"{rows} x {columns} of {self.element_bytes} B, {self.major}-major, swizzle {self.swizzle}"

    @property
    def span_bytes(self) -> int:
        """Return the bytes of one row of an atom: 16, 32, 64 or 128."""
        return self.swizzle.span_bytes

    @property
    def atom_rows(self) -> int:
        """Return the rows of an atom across the major dimension: 8, or 4 for 128B_32B_atom."""
        return atom_rows(self.swizzle)

    @property
    def atom(self) -> tuple[int, int]:
        """Return the elements of one atom along MN and K: (8, 64) for bf16, 128B, K-major."""
        return _atom(self.major, self.swizzle, self.element_bytes)

    @property
    def size_bytes(self) -> int:
        """Return the bytes from the start of the tile to the end of its last atom."""
        ends = [(extent // part - 1) for extent, part in zip(self.shape, self.atom, strict=True)]
        last = ends[0] * self.mn_stride_bytes + ends[1] * self.k_stride_bytes
        return last + self.span_bytes * self.atom_rows

    def offset(self, mn: ArrayLike, k: ArrayLike) -> NDArray[np.int64]:
        """Return the bytes from the start of the tile to element (mn, k) before the swizzle; arguments broadcast."""
        row, column = whole("row", mn, limit=self.shape[0]), whole("k", k, limit=self.shape[1])
        atom_mn, atom_k = self.atom
        across, along = (row % atom_mn, column % atom_k) if self.major == K else (column % atom_k, row % atom_mn)
        within = across * self.span_bytes + along * self.element_bytes
        return np.asarray(row // atom_mn * self.mn_stride_bytes + column // atom_k * self.k_stride_bytes + within)

    def address(self, mn: ArrayLike, k: ArrayLike, start: int = 0) -> NDArray[np.int64]:
        """Return the first byte of element (mn, k) in shared memory, for a tile that begins at `start` (16-aligned)."""
        if int(whole("start", start)) % CORE_BYTES:
            raise RefsimError("bad-tile", f"the start {start} is not a multiple of {CORE_BYTES} bytes")
        return self.swizzle(start + self.offset(mn, k))

    def coord(self, byte_address: ArrayLike, start: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the element (mn, k) that holds each byte, (-1, -1) for a byte without one; derived from `offset`."""
        linear = self.swizzle(byte_address) - start
        held = (linear >= 0) & (linear < self._elements.size * self.element_bytes)
        index = np.where(held, self._elements[np.where(held, linear // self.element_bytes, 0)], -1)
        none = index < 0
        return np.where(none, -1, index // self.shape[1]), np.where(none, -1, index % self.shape[1])

    @cached_property
    def _elements(self) -> NDArray[np.int64]:
        """Return the element (mn * K + k) at each place before the swizzle, -1 for gaps."""
        table = np.full(self.size_bytes // self.element_bytes, -1, np.int64)
        offsets = self.offset(*np.ogrid[: self.shape[0], : self.shape[1]]).ravel() // self.element_bytes
        table[offsets] = np.arange(offsets.size)
        return table


def tile(
    major: Major,
    swizzle: str | Swizzle,
    element_bytes: int,
    shape: tuple[int, int],
    *,
    mn_stride_bytes: int | None = None,
    k_stride_bytes: int | None = None,
) -> Tile:
    """Return the tile of `shape` (MN, K) elements of 1, 2 or 4 bytes; by default compact, atoms along MN first.

    tile("K", "128B", 2, (128, 64)).size_bytes is 16384, in atoms of 1024 bytes. Raises RefsimError for a shape that
    atoms do not fill, strides that let atoms overlap or split 16 bytes, and 128B_32B_atom K-major, which does not
    exist.
    Source: PTX ISA, shared memory matrix layout; CUTLASS, canonical layouts of GMMA and UMMA.
    """
    check_named("major", major, MAJORS)
    pattern = swizzle_named(swizzle)
    check_major(major, pattern)
    if element_bytes not in (1, 2, 4):
        raise RefsimError("bad-dtype", f"tiles hold elements of 1, 2 or 4 bytes, not {element_bytes}")
    atom = _atom(major, pattern, element_bytes)
    counts = [int(whole("extent", extent, least=1)) // part for extent, part in zip(shape, atom, strict=True)]
    if any(count * part != extent for count, part, extent in zip(counts, atom, shape, strict=True)):
        what = f"{shape[0]} x {shape[1]} elements are not filled by atoms of {atom[0]} x {atom[1]}"
        raise RefsimError("bad-tile", what, where=f"{major}-major, swizzle {pattern}, {element_bytes}-byte elements")
    atom_bytes = pattern.span_bytes * atom_rows(pattern)
    along_mn = atom_bytes if mn_stride_bytes is None else mn_stride_bytes
    along_k = atom_bytes * counts[0] if k_stride_bytes is None else k_stride_bytes
    _check_strides(along_mn, along_k, counts, atom_bytes)
    return Tile(major, pattern, element_bytes, (shape[0], shape[1]), along_mn, along_k)


def check_major(major: str, pattern: Swizzle) -> None:
    """Raise for the one combination that hardware does not have, and for swizzles that no descriptor can encode."""
    if pattern == ATOM_32B and major == K:
        what = "swizzle 128B_32B_atom has no K-major tile"
        rule = str(CUTLASS["make_umma_desc: SWIZZLE_128B_BASE32B is invalid for Major-K"])
        raise RefsimError("bad-tile", what, rule=rule, help="MN-major, or swizzle 128B")
    if pattern.name.startswith("Swizzle<"):
        raise RefsimError("bad-tile", f"tensor cores read no tile of {pattern}", help="none, 32B, 64B or 128B")


def atom_rows(pattern: Swizzle) -> int:
    """Return the rows of an atom across the major dimension: 8, or 4 for 128B_32B_atom."""
    return 4 if pattern == ATOM_32B else ATOM_ROWS


def _atom(major: str, pattern: Swizzle, element_bytes: int) -> tuple[int, int]:
    along = pattern.span_bytes // element_bytes
    return (atom_rows(pattern), along) if major == K else (along, atom_rows(pattern))


def _check_strides(along_mn: int, along_k: int, counts: list[int], atom_bytes: int) -> None:
    for name, stride in (("mn_stride_bytes", along_mn), ("k_stride_bytes", along_k)):
        if int(whole(name, stride)) % CORE_BYTES:
            raise RefsimError("bad-tile", f"{name} {stride} is not a multiple of {CORE_BYTES} bytes")
    starts = np.sort(np.add.outer(np.arange(counts[0]) * along_mn, np.arange(counts[1]) * along_k).ravel())
    if starts.size > 1 and int(np.diff(starts).min()) < atom_bytes:
        what = f"strides of {along_mn} and {along_k} bytes let atoms of {atom_bytes} bytes overlap"
        raise RefsimError("bad-tile", what, help="leave the strides out for a compact tile")
