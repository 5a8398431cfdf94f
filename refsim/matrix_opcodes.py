"""Opcodes of matrix instructions in PTX, parsed: the shape, and the type of every operand."""

import re
from dataclasses import dataclass

from refsim.formats import ELEMENTS

_SHAPE = re.compile(r"m([0-9]{1,3})n([0-9]{1,3})k([0-9]{1,3})")
_TYPES = {row.name for row in ELEMENTS}
_OPERANDS = {  # (family, verb, number of types) -> the operands whose types the opcode names, in order
    ("mma", "sync", 4): ("d", "a", "b", "c"),
    ("mma", "sp", 4): ("d", "a", "b", "c"),
    ("wgmma", "mma_async", 3): ("d", "a", "b"),
    ("wmma", "mma", 4): ("d", "a", "b", "c"),
    ("wmma", "mma", 2): ("d", "c"),
    ("wmma", "load", 1): ("",),
    ("wmma", "store", 1): ("",),
}
_SCALE_VECTORS = {"mxf8f6f4": "1x", "mxf4": "2x"}  # default of scale_vec


@dataclass(frozen=True)
class MatrixOpcode:
    """One opcode: `types` by operand, `majors` of A and B, and for block-scaled opcodes the kind and the scale vector.

    `sparse` says that A is sparse. `operand` is the operand that a load or a store moves, or the operand named after
    the opcode: mma.sync.(...).f32.a. mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 has types d f32, a bf16, b
    bf16, c f32.
    """

    family: str
    shape: str
    k: int
    types: dict[str, str]
    majors: tuple[str, ...]
    kind: str = ""
    vector: str = ""
    operand: str = ""
    sparse: bool = False

    @property
    def unit(self) -> str:
        """Return the unit of `refsim.numerics` that executes the instruction: mma.sync for mma and wmma, wgmma."""
        unit = "wgmma" if self.family == "wgmma" else "mma.sync"
        return f"{unit}.{self.kind}" if self.kind.startswith("mx") else unit


def matrix_opcode(text: str) -> MatrixOpcode | None:
    """Return the parts of an opcode of mma, wgmma or wmma; None for anything else.

    matrix_opcode("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32").k is 16.
    """
    family, *words = text.split(".")
    operand = words.pop() if words and words[-1] in ("a", "b", "c", "d", "sfa", "sfb", "meta") else ""
    shape = next((match for word in words if (match := _SHAPE.fullmatch(word))), None)
    if "aligned" not in words or shape is None:
        return None
    named = [word for word in words if word in _TYPES]
    kind = next((word.removeprefix("kind::") for word in words if word.startswith("kind::")), "")
    if "block_scale" in words:
        named = named[:4]  # the type of the scales comes last
    owners = _OPERANDS.get((family, words[0].partition("::")[0], len(named)))
    if owners is None:
        return None
    types = dict(zip(owners, named, strict=True))
    if owners == ("",):
        operand = operand or words[1]
        types = {operand: named[0]}
    elif owners == ("d", "c"):
        types |= {"a": "f16", "b": "f16"}
    vector = next((word.removeprefix("scale_vec::").lower() for word in words if word.startswith("scale_vec::")), "")
    majors = tuple(word for word in words if word in ("row", "col"))
    sparse = any(word.partition("::")[0] == "sp" for word in words)
    scaled = vector or _SCALE_VECTORS.get(kind, "")
    return MatrixOpcode(family, shape[0], int(shape[3]), types, majors, kind, scaled, operand, sparse)
