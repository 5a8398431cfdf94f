"""Descriptors that kernels pass to tensor cores and TMA: decode, encode, explain, and walk the bytes they describe."""

from typing import Literal, overload

from refsim.errors import named
from refsim.layouts.descriptors.fields import Descriptor as Descriptor
from refsim.layouts.descriptors.fields import Explanation as Explanation
from refsim.layouts.descriptors.fields import Field as Field
from refsim.layouts.descriptors.fields import Reading as Reading
from refsim.layouts.descriptors.instructions import INSTRUCTION_DESCRIPTORS
from refsim.layouts.descriptors.matrices import MATRIX_DESCRIPTORS
from refsim.layouts.descriptors.matrices import operand_descriptor as operand_descriptor
from refsim.layouts.descriptors.tensormaps import TENSORMAP
from refsim.layouts.descriptors.tensormaps import TensorMapForm as TensorMapForm
from refsim.layouts.descriptors.walking import Operand as Operand
from refsim.layouts.descriptors.walking import Walk as Walk
from refsim.layouts.descriptors.walking import operand_named as operand_named
from refsim.layouts.descriptors.walking import walk as walk

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
    return named("descriptor", kind, _BY_KIND)
