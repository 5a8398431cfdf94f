"""Shared-memory swizzles: XOR maps on absolute byte addresses, with the names of tensor maps and CuTe."""

import re
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refsim.errors import RefsimError, unknown
from refsim.evidence import Evidence
from refsim.integers import whole
from refsim.layouts.drawing import drawn
from refsim.layouts.evidence import evidence as evidence_of
from refsim.render.cards import NamedCard
from refsim.sources import CUDA_DRIVER, CUTLASS, PTX, Source

_SPELLED = re.compile(
    r"\s*(?:swizzle|sw)\s*<\s*(-?[0-9]{1,6})\s*,\s*(-?[0-9]{1,6})\s*,\s*(-?[0-9]{1,6})\s*>\s*", re.IGNORECASE
)


@drawn
@dataclass(frozen=True, repr=False)
class Swizzle(NamedCard):
    """Describe a swizzle: `bits` address bits are XORed into the bits `shift` places below; the low `base` bits stay.

    swizzled = address ^ (address >> shift & (2^bits - 1) << base); a negative shift XORs low bits into high ones.
    128B is <3,4,3>: byte 0x3A0 lies in row 7 of its 1024 bytes, so it moves to 0x3A0 ^ 0x70 = 0x3D0.
    Addresses are absolute bytes of shared memory (or elements, after `in_elements`).
    """

    name: str
    bits: int
    base: int
    shift: int
    source: Source

    @property
    def evidence(self) -> Evidence:
        """Return the evidence for the swizzle: its formula, an independent package, or a run on a chip."""
        return evidence_of(f"swizzle.{self.name}")

    @property
    def chunk_bytes(self) -> int:
        """Return the bytes that stay together: 16, or 32 for 128B_32B_atom."""
        return 1 << self.base

    @property
    def span_bytes(self) -> int:
        """Return the bytes within which chunks change places, the widest row of a box: 128 for 128B, 16 for none."""
        return 1 << self.base + self.bits

    @property
    def repeat_bytes(self) -> int:
        """Return the bytes after which the pattern repeats: 1024 for 128B, 512 for 64B and 128B_32B_atom."""
        return 1 << self.base + abs(self.shift) + self.bits if self.bits else self.chunk_bytes

    def __call__(self, byte_address: ArrayLike) -> NDArray[np.int64]:
        """Return the place in shared memory of the byte at `byte_address` (any shape, at least 0): a self-inverse."""
        address = whole("byte address", byte_address)
        mask = (1 << self.bits) - 1 << self.base
        moved = address >> self.shift & mask if self.shift >= 0 else (address & mask) << -self.shift
        return np.asarray(address ^ moved)

    def in_elements(self, element_bytes: int) -> "Swizzle":
        """Return the map on indices of elements of 2^e bytes: e is subtracted from the base. 128B in bf16 is <3,3,3>.

        Raises RefsimError if an element is no power of two of bytes or larger than a chunk.
        """
        exponent = element_bytes.bit_length() - 1
        if element_bytes != 1 << max(exponent, 0) or exponent > self.base:
            what = f"an element of {element_bytes} bytes has no index form of swizzle {self.name}"
            rule = f"chunks of {self.chunk_bytes} bytes stay whole: an element is a power of two of at most that"
            raise RefsimError("bad-dtype", what, rule=rule)
        base = self.base - exponent
        return replace(self, name=f"Swizzle<{self.bits},{base},{self.shift}>", base=base)

    def _repr_summary(self) -> str:
        return f"{self.name}: bits {self.bits}, base {self.base}, shift {self.shift}"


_MODES_SOURCE = PTX["tensor swizzling modes"]
NO_SWIZZLE = Swizzle("none", 0, 4, 3, _MODES_SOURCE)
ATOM_32B = Swizzle("128B_32B_atom", 2, 5, 2, CUTLASS["UMMA::Layout_MN_SW128_32B_Atom"])
SWIZZLES = (
    NO_SWIZZLE,
    Swizzle("32B", 1, 4, 3, _MODES_SOURCE),
    Swizzle("64B", 2, 4, 3, _MODES_SOURCE),
    Swizzle("128B", 3, 4, 3, _MODES_SOURCE),
    ATOM_32B,
)
_BY_NAME = {row.name.lower(): row for row in SWIZZLES}
# The driver has these modes, but their patterns are not published: they are refused.
_UNPUBLISHED = {"128b_32b_atom_8b_flip", "128b_64b_atom"}


def swizzle(name: str | Swizzle) -> Swizzle:
    """Return the swizzle of a mode ("none", "32B", "64B", "128B", "128B_32B_atom") or of CuTe's Swizzle<B,M,S>.

    The swizzle of CuTe counts bytes. swizzle("128B")(0x3A0) is 0x3D0. Raises RefsimError for an unknown name, and for B
    > S, where the map is no longer its own inverse. Source: PTX ISA, tensor swizzling modes; CuTe, Swizzle.
    """
    if isinstance(name, Swizzle):
        return name
    spelled = _SPELLED.fullmatch(name)
    if spelled:
        return _cute(*(int(number) for number in spelled.groups()))
    row = _BY_NAME.get(name.lower())
    if row is None and name.lower() in _UNPUBLISHED:
        what = f"the pattern of {name} is not published"
        rule = str(CUDA_DRIVER["CUtensorMapSwizzle: the modes are named, their patterns are not given"])
        raise RefsimError("bad-swizzle", what, rule=rule, help=f"known: {', '.join(row.name for row in SWIZZLES)}")
    if row is None:
        raise unknown("swizzle", name, [row.name for row in SWIZZLES])
    return row


def _cute(bits: int, base: int, shift: int) -> Swizzle:
    """Return Swizzle<bits,base,shift>; raise where the map is not its own inverse or exceeds 62 address bits."""
    where = f"Swizzle<{bits},{base},{shift}>"
    if bits < 0 or base < 0:
        raise RefsimError("bad-swizzle", "the counts of bits B and M are at least 0", where=where)
    if bits > abs(shift):
        raise RefsimError(
            "bad-swizzle",
            f"B = {bits} bits are XORed into bits only S = {abs(shift)} places away: some are source and target at once",
            where=where,
            rule=f"{CUTLASS['Swizzle: abs(SShift) >= BBits']}: else the map is not its own inverse",
            help=f"Swizzle<{abs(shift)},{base},{shift}> is the widest with this shift",
        )
    if base + abs(shift) + bits > 62:
        raise RefsimError("bad-swizzle", "M + S + B is more than the 62 bits of an address", where=where)
    return Swizzle(where, bits, base, shift, CUTLASS["Swizzle"])
