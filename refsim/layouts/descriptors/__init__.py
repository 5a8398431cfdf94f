"""Descriptors that kernels pass to tensor cores and TMA: decode, encode, explain, and walk the bytes they describe."""

from typing import Literal, overload

from refsim.errors import unknown
from refsim.layouts.descriptors.fields import Descriptor, Explanation, Field, Reading
from refsim.layouts.descriptors.instructions import INSTRUCTION_DESCRIPTORS
from refsim.layouts.descriptors.matrices import MATRIX_DESCRIPTORS, operand_descriptor
from refsim.layouts.descriptors.tensormaps import TENSORMAP, TensorMapForm
from refsim.layouts.descriptors.walking import Operand, Walk, operand_named, walk

__all__ = [
    "DESCRIPTORS",
    "Descriptor",
    "Explanation",
    "Field",
    "Operand",
    "Reading",
    "TensorMapForm",
    "Walk",
    "descriptor",
    "operand_descriptor",
    "operand_named",
    "walk",
]

DESCRIPTORS: tuple[Descriptor | TensorMapForm, ...] = (*MATRIX_DESCRIPTORS, *INSTRUCTION_DESCRIPTORS, TENSORMAP)
_BY_KIND = {row.kind: row for row in DESCRIPTORS}

WordKind = Literal[
    "wgmma-smem",
    "tcgen05-smem",
    "tcgen05-instr",
    "tcgen05-instr.f16",
    "tcgen05-instr.tf32",
    "tcgen05-instr.f8f6f4",
    "tcgen05-instr.i8",
    "tcgen05-instr.mxf8f6f4",
    "tcgen05-instr.mxf4",
    "tcgen05-instr.mxf4nvf4",
]


@overload
def descriptor(kind: Literal["tensormap"]) -> TensorMapForm: ...
@overload
def descriptor(kind: WordKind) -> Descriptor: ...
@overload
def descriptor(kind: str) -> Descriptor | TensorMapForm: ...


def descriptor(kind: str) -> Descriptor | TensorMapForm:
    """Return the descriptor of a kind: decode(word), encode(**fields), explain(word); `walk` reads memory through one.

    descriptor("wgmma-smem").decode(0x4000004000000040)["swizzle"] is "128B". An unknown kind is an error with the three
    nearest.
    descriptor("wgmma-smem").bits is 64. Raises RefsimError `unknown-name`. Source: the descriptor's.
    """
    if kind not in _BY_KIND:
        raise unknown("descriptor", kind, list(_BY_KIND))
    return _BY_KIND[kind]
