"""Rules for undefined bits in instructions whose results depend on their operands only.

"whole": a set bit in any source makes every bit of the results undefined; if sources and results are all pairs, for
each half separately. The functions here are more precise. None of them leaves out a bit that flipping an undefined bit
can change.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.checks.undefined import tracking_of
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.masks import Mask, all_ones, either, flat, joined, mask_of, nonzero
from refsim.ptx.execution.types import PtxType, view

Array = NDArray[Any]


@dataclass(frozen=True)
class RuleOperands:
    """The operands of one executed instruction, as a rule sees them. `values` are the sources as bits of their types'
    width (addresses as numbers, targets unchanged), `masks` their masks, `names` their names in the instruction's
    definition; a vector is a list. A rule returns a mask for each result, as wide as its type."""

    lanes: Lanes
    function: Callable[..., Any]
    keywords: dict[str, Any]
    names: Sequence[str]
    types: Sequence[PtxType]
    values: Sequence[Any]
    masks: Sequence[Any]
    results: Sequence[tuple[Any, PtxType]]

    def demand(self, mask: Any, what: str) -> None:
        """Report undefined bits of a source that decides something (`what`)."""
        for each in flat(mask):
            tracking_of(self.lanes).reached(self.lanes, each, what)

    def bits(self, position: int) -> Array:
        """Return the mask of a source as bits, zeros if it is defined."""
        mask = self.masks[position]
        return self.zeros(position) if mask is None else mask.bits

    def zeros(self, position: int) -> Array:
        """Return zero bits for all lanes, as wide as a source."""
        type = self.types[position]
        return np.zeros(self.lanes.count, np.bool_ if type.name == "pred" else type.bits_dtype)

    def unknown(self) -> tuple[Array, Array]:
        """Return which lanes have an undefined bit in any source, and its event."""
        return joined(flat(self.masks), self.lanes.count)

    def answer(self, *bits: Array) -> list[Mask | None]:
        """Return the masks of the results; their events are those of the first undefined source."""
        _, origin = self.unknown()
        return [mask_of(np.broadcast_to(one, (self.lanes.count,)), origin) for one in bits]


def full(unknown: Array, type: PtxType) -> Array:
    """Return all bits of a type where something is unknown, zeros elsewhere."""
    if type.name == "pred":
        return unknown
    dtype = type.bits_dtype
    return np.where(unknown, all_ones(dtype), np.zeros(1, dtype))


def halves(bits: Array, count: int = 2) -> Array:
    """Return the elements of packed bits, (n, count), lowest first."""
    wide = np.ascontiguousarray(bits)
    return wide.view(f"u{wide.dtype.itemsize // count}").reshape(-1, count)


def whole(operands: RuleOperands) -> list[Any]:
    """Return masks in which any undefined bit makes all results undefined; pairs count as two separate instructions."""
    unknown, origin = operands.unknown()
    if _is_paired(operands):
        each = np.zeros((operands.lanes.count, 2), np.bool_)
        for position, type in enumerate(operands.types):
            if operands.masks[position] is not None:
                bits = operands.bits(position)
                each |= halves(bits) != 0 if type.lanes == 2 else bits[:, None]
        (_, type) = operands.results[0]
        element = np.dtype(f"u{type.bits // 16}")
        packed = np.where(each, ~np.zeros(1, element), element.type(0)).view(type.bits_dtype).reshape(-1)
        return [mask_of(packed, origin)]
    return [
        [mask_of(full(unknown, type), origin) for _ in result]
        if isinstance(result, tuple)
        else mask_of(full(unknown, type), origin)
        for result, type in operands.results
    ]


def _is_paired(operands: RuleOperands) -> bool:
    """Return whether the result and all sources except predicates are pairs."""
    types = [type for type in operands.types if type.name != "pred"]
    return (
        len(operands.results) == 1
        and operands.results[0][1].lanes == 2
        and all(type.lanes == 2 for type in types)
        and not any(isinstance(value, list) for value in operands.values)
    )


def defined(operands: RuleOperands) -> list[Any]:
    """Return masks of results that are defined whatever the sources are."""
    return [[None] * len(result) if isinstance(result, tuple) else None for result, _ in operands.results]


# ---- bits that are only moved
def moved(*names: str) -> Callable[[RuleOperands], list[Any]]:
    """Return the rule of an instruction that moves the bits of the named sources to places that the other sources
    select. Masks move as values do. One source is moved at a time, with zeros for the others, so that each bit keeps
    its event. An undefined bit of a selecting source makes the whole result undefined."""

    def rule(operands: RuleOperands) -> list[Any]:
        controls = [mask for name, mask in zip(operands.names, operands.masks, strict=True) if name not in names]
        unknown, origin = joined(flat(controls), operands.lanes.count)
        found = [_Gathered(full(unknown, type), origin) for result, type in operands.results for _ in _each(result)]
        for position, name in enumerate(operands.names):
            for place, mask in enumerate(_each(operands.masks[position])) if name in names else ():
                if mask is not None:
                    for gathered, bits in zip(found, _carried(operands, names, position, place), strict=True):
                        gathered.add(bits, mask.origin)
        masks = iter([mask_of(gathered.bits, gathered.origin) for gathered in found])
        return [
            [next(masks) for _ in result] if isinstance(result, tuple) else next(masks)
            for result, _ in operands.results
        ]

    return rule


@dataclass
class _Gathered:
    """The undefined bits of one result, and their events."""

    bits: Array
    origin: Array

    def add(self, bits: Array, origin: Array) -> None:
        """Add undefined bits with their events; an earlier event stays."""
        self.origin = np.where((self.origin == 0) & nonzero(bits), origin, self.origin)
        self.bits = either(self.bits, bits)


def _each(value: Any) -> list[Any]:
    """Return the elements of a vector, or a scalar as a list."""
    return list(value) if isinstance(value, list | tuple) else [value]


def _carried(operands: RuleOperands, names: tuple[str, ...], position: int, place: int) -> list[Array]:
    """Return where the instruction moves the mask of one source register: bits for each result register."""
    arguments: list[Any] = []
    for number, (name, type) in enumerate(zip(operands.names, operands.types, strict=True)):
        held, mask = operands.values[number], operands.masks[number]
        if name not in names:
            arguments.append(view(held, type))
            continue
        parts = [
            view(mask_part.bits if (number, at) == (position, place) else operands.zeros(number), type)
            for at, mask_part in enumerate(_each(mask))
        ]
        arguments.append(parts if isinstance(held, list) else parts[0])
    result = operands.function(*arguments, **operands.keywords)
    types = [type for result_, type in operands.results for _ in _each(result_)]
    results = result if isinstance(result, tuple | list) else [result]
    return [
        np.broadcast_to(
            one if type.name == "pred" else np.ascontiguousarray(one, type.dtype).view(type.bits_dtype),
            (operands.lanes.count,),
        )
        for one, type in zip(results, types, strict=False)
    ]


# ---- logic: a bit is undefined where the undefined bits of the sources can make it 0 and can make it 1
def _can_be(operands: RuleOperands, position: int) -> tuple[Array, Array]:
    """Return the bits of a source that can be 0, and the bits that can be 1."""
    value, mask = operands.values[position], operands.bits(position)
    return ~value | mask, value | mask


def and_bits(operands: RuleOperands) -> list[Any]:
    """Return the mask of an and: bits that can be 1 in both sources and 0 in one."""
    (a0, a1), (b0, b1) = _can_be(operands, 0), _can_be(operands, 1)
    return operands.answer(a1 & b1 & (a0 | b0))


def or_bits(operands: RuleOperands) -> list[Any]:
    """Return the mask of an or: bits that can be 0 in both sources and 1 in one."""
    (a0, a1), (b0, b1) = _can_be(operands, 0), _can_be(operands, 1)
    return operands.answer(a0 & b0 & (a1 | b1))


def xor_bits(operands: RuleOperands) -> list[Any]:
    """Return the mask of an xor: bits that are undefined in either source."""
    return operands.answer(operands.bits(0) | operands.bits(1))


def same_bits(operands: RuleOperands) -> list[Any]:
    """Return the mask of the first source."""
    return operands.answer(operands.bits(0))


def _table_bits(operands: RuleOperands) -> Array:
    """Return the bits for which the selectable entries of lop3's table contain both a 0 and a 1."""
    table = int(operands.values[3][0])
    sources = [_can_be(operands, position) for position in range(3)]
    can = [np.zeros(1, np.uint32), np.zeros(1, np.uint32)]
    for row in range(8):
        a, b, c = (sources[place][row >> 2 - place & 1] for place in range(3))
        can[table >> row & 1] = can[table >> row & 1] | (a & b & c)
    found: Array = can[0] & can[1]
    return found


def table_bits(operands: RuleOperands) -> list[Any]:
    """Return the mask of lop3."""
    return operands.answer(_table_bits(operands))


def table_and_test(operands: RuleOperands) -> list[Any]:
    """Return the masks of lop3 with a predicate: of its result, and of the test for 0 combined with q."""
    bits = _table_bits(operands)
    found, _ = operands.function(*operands.values, **operands.keywords)
    test, unknown = _not_zero(found, bits)
    return operands.answer(
        bits, combined(test, unknown, operands.values[4], operands.bits(4), operands.keywords["boolean"])
    )


def _not_zero(value: Array, mask: Array) -> tuple[Array, Array]:
    """Return whether a value is not 0, and where its undefined bits decide that: no defined bit is 1."""
    return value != 0, (mask != 0) & ((value & ~mask) == 0)


def is_zero(operands: RuleOperands) -> list[Any]:
    """Return the mask of cnot: only bit 0 depends on the source."""
    _, unknown = _not_zero(operands.values[0], operands.bits(0))
    return operands.answer(unknown.astype(operands.results[0][1].bits_dtype))


def combined(test: Array, unknown: Array, c: Array, mask: Array, boolean: str | None) -> Array:
    """Return where the combination of a test and a predicate is undefined."""
    if boolean == "and":
        return (test | unknown) & (c | mask) & (unknown | mask)
    if boolean == "or":
        return (~test | unknown) & (~c | mask) & (unknown | mask)
    return unknown | mask


# ---- selection
def selected(operands: RuleOperands) -> list[Any]:
    """Return the mask of selp and slct: of the chosen source; for an undefined choice, all bits that can differ."""
    a, b = operands.values[:2]
    first, second = operands.bits(0), operands.bits(1)
    unknown = operands.bits(2) != 0
    ones: Any = ~np.zeros(1, first.dtype)
    chooses = operands.function(
        view(ones, operands.types[0]), view(ones ^ ones, operands.types[1]), view(operands.values[2], operands.types[2])
    )
    is_first = np.ascontiguousarray(chooses).view(first.dtype) != 0
    bits = np.where(unknown, first | second | (a ^ b), np.where(is_first, first, second))
    origins = [np.zeros(operands.lanes.count, np.int32) if mask is None else mask.origin for mask in operands.masks[:3]]
    chosen = np.where(is_first, origins[0], origins[1])
    origin = np.where(unknown, origins[2], np.where(chosen == 0, np.maximum(origins[0], origins[1]), chosen))
    return [mask_of(bits, origin)]


# ---- conversions that pack
def packed(elements: int) -> Callable[[RuleOperands], list[Any]]:
    """Return the rule of a conversion to a packed register of `elements`. It takes one source for each element, the
    first in the highest place, or one packed source."""

    def rule(operands: RuleOperands) -> list[Any]:
        """Return the mask of a packed result: each undefined source element makes its field undefined."""
        sources = [
            each
            for name, held in zip(operands.names, operands.masks, strict=True)
            if name != "random"
            for each in _each(held)
        ]
        rest = [mask for name, mask in zip(operands.names, operands.masks, strict=True) if name == "random"]
        everywhere, _ = joined(flat(rest), operands.lanes.count)
        type = operands.results[0][1]
        size = type.bits // elements
        bits = np.zeros(operands.lanes.count, type.bits_dtype)
        for place in range(elements):
            if len(sources) == elements:
                mask = sources[elements - 1 - place]
                unknown = everywhere if mask is None else everywhere | (mask.bits != 0)
            else:
                part = operands.types[0].bits // elements
                held = operands.bits(0) >> operands.types[0].bits_dtype.type(part * place)
                unknown = everywhere | (held & operands.types[0].bits_dtype.type((1 << part) - 1) != 0)
            field = type.bits_dtype.type(((1 << size) - 1) << size * place)
            bits = bits | np.where(unknown, field, type.bits_dtype.type(0))
        return operands.answer(bits)

    return rule


def packed_below(operands: RuleOperands) -> list[Any]:
    """Return the mask of cvt.pack: a above b; with a third source c, its low bits are moved above both."""
    size = int(operands.keywords["to"][1:])
    upper, lower = (np.where(operands.bits(place) != 0, np.uint32((1 << size) - 1), np.uint32(0)) for place in (0, 1))
    bits = upper << np.uint32(size) | lower
    if len(operands.names) > 2:
        bits = bits | operands.bits(2) << np.uint32(2 * size)
    return operands.answer(bits)
