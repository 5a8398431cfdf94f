"""From an instruction form and an opcode to a function over register bits: types resolved and modifiers fixed once."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from refsim.errors import RefsimError
from refsim.ptx.execution.types import TYPES, WIDE, Bits, PtxType, unview, view
from refsim.ptx.isa.forms import Instruction, OperandForm, find

STATE_SPACES = ("global", "shared", "local", "const", "param")


@dataclass(frozen=True)
class Bound:
    """An opcode with its instruction found: the typed operands and the modifiers that the implementation takes."""

    opcode: str
    clause: Instruction
    modifiers: dict[str, Any]
    operands: tuple[tuple[OperandForm, PtxType], ...]

    @cached_property
    def since(self) -> str:
        """Return the first target that has the opcode."""
        return self.clause.first_target(self.opcode)

    @cached_property
    def is_generic(self) -> bool:
        """Return whether the opcode names no state space, so that its addresses are generic."""
        return not any(word.partition("::")[0] in STATE_SPACES for word in self.opcode.split("."))

    @cached_property
    def results(self) -> list[tuple[OperandForm, PtxType]]:
        """Return the typed results."""
        return [pair for pair in self.operands if pair[0].is_result]

    @cached_property
    def sources(self) -> list[tuple[OperandForm, PtxType]]:
        """Return the typed operands that the implementation receives, in its order: results that are read, then the
        others."""
        both = [pair for pair in self.operands if pair[0].both]
        return both + [pair for pair in self.operands if not pair[0].is_result]

    @cached_property
    def vectors(self) -> list[OperandForm]:
        """Return the operands that are vectors of registers outside of brackets."""
        return [form for form, _ in self.operands if form.many and not form.inside]

    @cached_property
    def keywords(self) -> dict[str, Any]:
        """Return the modifiers that the implementation takes as keywords."""
        return {name: value for name, value in self.modifiers.items() if name in self.clause.keywords}


def _resolve(operand: OperandForm, modifiers: dict[str, Any]) -> PtxType:
    name = operand.type
    if name == "wide":
        return TYPES[WIDE[modifiers["type"]]]
    name = modifiers["type"] if name == "part" else modifiers.get(name, name)
    return TYPES.get(name, TYPES["b32"])


def bind(
    opcode: str,
    where: str = "",
    operands: int | None = None,
    predicates: int | None = None,
    vectors: int | None = None,
    kinds: str | None = None,
) -> Bound:
    """Find the instruction of an opcode, and resolve the type of each operand.

    operands, predicates, vectors and kinds describe the operands in the text; None for each is unknown. Raises
    RefsimError, located at `where`, for an unknown opcode.
    """
    try:
        return _bound(opcode, operands, predicates, vectors, kinds)
    except RefsimError as error:
        error.where = where
        raise


@lru_cache(maxsize=1 << 15)  # more than the opcodes of all forms
def _bound(opcode: str, operands: int | None, predicates: int | None, vectors: int | None, kinds: str | None) -> Bound:
    clause, modifiers = find(opcode, "", operands, predicates, vectors, kinds)
    forms = clause.operands
    if clause.length is not None:
        count = clause.length(modifiers)
        forms = tuple(replace(form, count=count, any_count=False) if form.any_count else form for form in forms)
    typed = tuple((operand, _resolve(operand, modifiers)) for operand in forms)
    return Bound(opcode, clause, modifiers, typed)


def pure_function(bound: Bound, source_count: int, result_bits: list[int]) -> Callable[..., list[Bits]]:
    """Return the implementation as a function from source bits to result bits, for registers of the given widths.
    `source_count` sources are given (optional ones may be absent); results beyond `result_bits` are dropped."""
    function, keywords = bound.clause.function, bound.keywords
    types = [type for _, type in bound.sources[:source_count]]
    results = list(zip([type for _, type in bound.results], result_bits, strict=False))

    def call(*bits: Bits) -> list[Bits]:
        """Return the bits of each result for the bits of the sources."""
        values = function(*map(view, bits, types), **keywords)
        if not isinstance(values, tuple):
            values = (values,)
        return [unview(value, type, width) for value, (type, width) in zip(values, results, strict=False)]

    return call


def evaluate(opcode: str, *sources: Any) -> tuple[Bits, ...]:
    """Return what one pure instruction computes for arrays of source bits.

    `evaluate("add.f32", a, b)[0]` are f32 bit patterns. sources: unsigned arrays (bool for predicates), shape (n,) or
    (1,), in the order of the PTX operands. The result has one unsigned array per PTX result, as wide as its type.
    Raises RefsimError for an unknown opcode or an instruction that needs a machine (memory, warp, control flow).
    """
    bound = bind(opcode, operands=1 + len(sources))
    if bound.clause.wants_lanes or bound.clause.ends_block:
        raise RefsimError("needs-machine", f"{opcode} depends on more than its operands: launch a program instead")
    widths = [type.bits for _, type in bound.results]
    arrays = [np.atleast_1d(np.asarray(source)) for source in sources]
    with np.errstate(all="ignore"):
        return tuple(pure_function(bound, len(arrays), widths)(*arrays))
