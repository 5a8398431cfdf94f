"""The grain of the checks' marks: the narrowest access that a kernel makes to shared and to global memory."""

from refsim.ptx.execution.types import TYPES
from refsim.ptx.lowering.blocks import Code
from refsim.ptx.lowering.operands import Constant
from refsim.ptx.lowering.steps import Step

WIDEST_GRANULE = 16


def granule(code: Code, space: str) -> int:
    """Return the bytes of the narrowest access to "shared" or "global" memory by any step, 16 without one. An access to
    a generic address counts for both."""
    if space not in code.grains:
        widths = [width for step in code.steps for width in _widths(step, space) if width]
        code.grains[space] = min([WIDEST_GRANULE, *widths])
    return code.grains[space]


def _widths(step: Step, space: str) -> list[int]:
    """Return the widths in bytes of a step's accesses to a space."""
    modifiers, mnemonic = step.bound.modifiers, step.bound.clause.mnemonic
    if mnemonic == "cp":
        return [_copied(step), _source_size(step)] if space == "global" else [_copied(step)]
    if mnemonic == "mbarrier":
        return [8] if space == "shared" else []
    if mnemonic == "tcgen05":  # an allocation writes the address of its columns, a commit arrives at an mbarrier
        return [4] if space == "shared" else []
    named = modifiers.get("space")
    if mnemonic not in ("ld", "ldu", "st", "atom", "red", "wmma") or not (named is None or named.startswith(space)):
        return []
    if mnemonic == "wmma":
        words = step.bound.opcode.split(".")
        return [TYPES[word].bits // 8 for word in words if word in TYPES] if {"load", "store"} & {*words} else []
    vector = modifiers.get("vec") if mnemonic in ("ld", "ldu", "st") else None
    type = TYPES.get(str(modifiers.get("type")))
    return [min(WIDEST_GRANULE, type.bits // 8 * int((vector or "v1")[1:]))] if type else []


def _copied(step: Step) -> int:
    """Return the bytes that a cp.async writes, or 0 if the text does not tell."""
    sizes = [
        source for (form, _), (source, _) in zip(step.bound.sources, step.sources, strict=True) if form.name == "bytes"
    ]
    return max((int(size.bits[0]) & 0b11100 for size in sizes if isinstance(size, Constant)), default=0)


def _source_size(step: Step) -> int:
    """Return 1 for a copy with a source size, which may read single bytes, else 0."""
    given = [
        source
        for (form, _), (source, _) in zip(step.bound.sources, step.sources, strict=True)
        if form.name in ("given", "ignore")
    ]
    return 0 if all(source is None for source in given) else 1
