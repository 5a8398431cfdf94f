"""Rules for undefined bits in instructions whose results depend on their operands only.

"whole": a set bit in any source makes every bit of the results undefined; if sources and results are all pairs, for
each half separately. The functions here are more precise. None of them leaves out a bit that flipping an undefined bit
can change. A rule marked `exact` adds no bit either. For the other rules, `refined` removes such bits in lanes with few
undefined bits: it runs the instruction on all their completions, and sees which bits vary.

A completion gives each undefined bit a value. A register that an instruction reads twice has one value in each."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.register_file import Mask, all_ones, either, flat, joined, mask_of, nonzero
from refsim.ptx.execution.types import PtxType, unview, view
from refsim.ptx.isa.definedness.tracking import tracking_of
from refsim.ptx.memory.arrays import Array

FEW_BITS = 10  # undefined bits of a lane whose completions are all tried
_AT_ONCE = 1 << 18  # completions of all lanes in one call


def outcomes(operands: Any, values: Sequence[Array]) -> list[Array]:
    """Return the bits of each result for these bits of the sources."""
    sources = (
        None if value is None else view(value, type) for value, type in zip(values, operands.types, strict=False)
    )
    found = operands.function(*sources, **operands.keywords)
    results = found if isinstance(found, tuple) else (found,)
    return [unview(one, type, type.bits) for one, (_, type) in zip(results, operands.results, strict=False)]


def varying(operands: Any, values: Sequence[Array]) -> list[Array]:
    """Return which bits of each result vary between trials. values: the sources' bits, (lanes, trials), or (1,)."""
    lanes = max(len(value) for value in values if value is not None)
    flat = [value if value is None or value.ndim == 1 else value.reshape(-1) for value in values]
    found = []
    for outcome in outcomes(operands, flat):
        table = np.broadcast_to(outcome, (max(len(value) for value in flat if value is not None),)).reshape(lanes, -1)
        found.append(np.bitwise_or.reduce(table ^ table[:, :1], axis=1))
    return found


def refined(operands: Any, found: list[Any]) -> list[Any]:
    """Return the masks of results without the bits that no completion changes, in lanes with few undefined bits."""
    if any(isinstance(value, list | tuple) for value in operands.values):
        return found
    counts = np.zeros(operands.lanes.count, np.int64)
    for at, mask in enumerate(operands.masks):
        if mask is not None and operands.same[at] == at:
            counts += np.bitwise_count(_words(mask.bits))
    counts[counts > FEW_BITS] = 0
    if not counts.any():
        return found
    exact = [None if mask is None else mask.bits.copy() for mask in found]
    for count in np.unique(counts[counts > 0]):
        chosen, step = np.flatnonzero(counts == count), _AT_ONCE >> int(count)
        for lanes in (chosen[at : at + step] for at in range(0, len(chosen), step)):
            for bits, varied in zip(exact, varying(operands, _completed(operands, lanes, count)), strict=False):
                if bits is not None:
                    bits[lanes] &= varied
    return [
        None if mask is None or bits is None else mask_of(bits, mask.origin)
        for mask, bits in zip(found, exact, strict=True)
    ]


def _words(bits: Array) -> Array:
    """Return bits as unsigned integers; a predicate is one bit."""
    return bits.view(np.uint8) if bits.dtype == np.bool_ else bits


def _completed(operands: Any, lanes: Array, count: int) -> list[Array]:
    """Return the sources' bits in all completions of `count` undefined bits, (lanes, completions)."""
    number, place = np.arange(1 << count), np.zeros((len(lanes), 1), np.int64)
    tried: list[Array] = []
    for at, (value, mask) in enumerate(zip(operands.values, operands.masks, strict=True)):
        if operands.same[at] != at or (value is None or (mask is None and len(value) == 1)):
            tried.append(tried[operands.same[at]] if operands.same[at] != at else value)
            continue
        given = np.broadcast_to(_words(value), (operands.lanes.count,))[lanes, None]
        left = _words(operands.bits(at)[lanes])
        while left.any():
            bit = left & (~left + left.dtype.type(1))
            given = given ^ np.where(number >> place & 1, bit[:, None], left.dtype.type(0))
            place = place + (bit != 0)[:, None]
            left = left ^ bit
        tried.append(np.ascontiguousarray(np.broadcast_to(given, (len(lanes), 1 << count))).view(value.dtype))
    return tried


Rule = Callable[["RuleOperands"], list[Any]]
Ruled = TypeVar("Ruled", bound=Callable[..., list[Any]])
Given = ParamSpec("Given")


@dataclass(frozen=True)
class RuleOperands:
    """The operands of one executed instruction, as a rule sees them. `values` are the sources as bits of their types'
    width (addresses as numbers, targets unchanged), `masks` their masks, `names` their names in the instruction's
    definition; a vector is a list. `same` gives for each source the first one that is the same register. A rule
    returns a mask for each result, as wide as its type."""

    lanes: Lanes
    function: Callable[..., Any]
    keywords: dict[str, Any]
    names: Sequence[str]
    types: Sequence[PtxType]
    values: Sequence[Any]
    masks: Sequence[Any]
    results: Sequence[tuple[Any, PtxType]]
    same: Sequence[int]

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


def exact(rule: Ruled) -> Ruled:
    """Mark a rule that never calls a bit undefined that no completion of the undefined bits changes."""
    rule.is_exact = True  # type: ignore[attr-defined]
    return rule


def rule_of(function: Callable[Concatenate[RuleOperands, Given], list[Any]]) -> Callable[Given, Rule]:
    """Return a function that makes a rule: it takes the arguments of `function` except the operands."""

    @wraps(function)
    def made(*given: Given.args, **named: Given.kwargs) -> Rule:
        def rule(operands: RuleOperands) -> list[Any]:
            return function(operands, *given, **named)

        return exact(rule) if getattr(function, "is_exact", False) else rule

    return made


# ---- bits that are only moved
Choices = Callable[[RuleOperands, int], Iterator[tuple[int, Array]]]


def amounts(operands: RuleOperands, position: int, read: int = 0xFFFFFFFF) -> Iterator[tuple[int, Array]]:
    """Yield each amount that a shift or a field may have, and the lanes that may have it as bits of the result. `read`:
    the bits of the amount that the instruction reads. Amounts of the width or more act alike, unless they wrap."""
    type = operands.results[0][1]
    value, mask, last = operands.values[position], operands.bits(position), type.bits
    if operands.keywords.get("mode") == "wrap":
        read = last - 1
    for tried in range(last + 1):
        is_able = (value | mask) & read >= last if tried == last else (value ^ np.uint32(tried)) & ~mask & read == 0
        if is_able.any():
            yield tried, full(is_able, type)


def fields(operands: RuleOperands, position: int) -> Iterator[tuple[int, Array]]:
    """Yield the amounts of bfe and bfi, which read one byte of them for fields of 32 bits."""
    return amounts(operands, position, 0xFF if operands.results[0][1].bits == 32 else 0xFFFFFFFF)


def selectors(operands: RuleOperands, position: int) -> Iterator[tuple[int, Array]]:
    """Yield the selectors that prmt may have. Without a mode, four equal nibbles: a byte depends on its nibble only."""
    value, mask = operands.values[position], operands.bits(position)
    if operands.keywords["mode"]:
        for tried in range(4):
            yield tried, full((value ^ np.uint32(tried)) & ~mask & 3 == 0, operands.results[0][1])
        return
    for tried in range(0, 0x10000, 0x1111):
        known = (value ^ np.uint32(tried)) & ~mask
        bytes_ = [np.where(known >> 4 * place & 15 == 0, np.uint32(0xFF << 8 * place), 0) for place in range(4)]
        yield tried, np.bitwise_or.reduce(np.array(bytes_, np.uint32))


@rule_of
@exact
def moved(operands: RuleOperands, *names: str, choices: Choices | None = None) -> list[Any]:
    """Return the rule of an instruction that moves the bits of the named sources to places that the other sources
    select. Masks move as values do. One source is moved at a time, with zeros for the others, so that each bit keeps
    its event. `choices` yields what an undefined selecting source may be; without it, the whole result is undefined."""
    controls = [at for at, name in enumerate(operands.names) if name not in names]
    unknown, origin = joined(flat([operands.masks[at] for at in controls]), operands.lanes.count)
    if choices is not None and unknown.any():
        return operands.answer(_chosen(operands, names, [dict(choices(operands, at)) for at in controls]))
    found = [_Gathered(full(unknown, type), origin) for result, type in operands.results for _ in _each(result)]
    for position, name in enumerate(operands.names):
        for place, mask in enumerate(_each(operands.masks[position])) if name in names else ():
            if mask is not None:
                for gathered, bits in zip(found, _carried(operands, names, position, place), strict=True):
                    gathered.add(bits, mask.origin)
    masks = iter([mask_of(gathered.bits, gathered.origin) for gathered in found])
    return [
        [next(masks) for _ in result] if isinstance(result, tuple) else next(masks) for result, _ in operands.results
    ]


def _chosen(operands: RuleOperands, names: tuple[str, ...], choices: list[dict[int, Array]]) -> Array:
    """Return the result bits that two possible choices, or two completions of the moved bits, set differently."""
    dtype = operands.results[0][1].bits_dtype
    can_be_0, can_be_1 = np.zeros((2, operands.lanes.count), dtype)
    for tried in itertools.product(*choices):
        where = np.bitwise_and.reduce([able[one] for able, one in zip(choices, tried, strict=True)])
        if where.any():
            picks = iter(tried)
            values = [
                value if name in names else np.full(operands.lanes.count, next(picks), np.uint32)
                for name, value in zip(operands.names, operands.values, strict=True)
            ]
            given = replace(operands, values=values)
            bits, open_ = outcomes(given, values)[0], dtype.type(0)
            for at in map(operands.names.index, names):
                open_ = open_ | _carried(given, names, at, 0)[0] if operands.masks[at] is not None else open_
            can_be_0 |= where & (~bits | open_)
            can_be_1 |= where & (bits | open_)
    return np.asarray(can_be_0 & can_be_1)


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


# ---- logic
def _local(operands: RuleOperands) -> list[Array]:
    """Return the bits of each result that vary if the undefined bits of each register are all 0 or all 1."""
    open_ = [at for at, mask in enumerate(operands.masks) if mask is not None and operands.same[at] == at]
    trials = []
    for ones in itertools.product((False, True), repeat=len(open_)):
        given = list(operands.values)
        for at, first in enumerate(operands.same):
            if first in open_:
                mask = operands.bits(at)
                given[at] = given[at] | mask if ones[open_.index(first)] else given[at] & ~mask
        trials.append(outcomes(operands, given))
    return [np.bitwise_or.reduce([each ^ one[0] for each in one]) for one in zip(*trials, strict=True)]


@exact
def bitwise(operands: RuleOperands) -> list[Any]:
    """Return the masks of an instruction by which bit i of the result depends on bit i of each source only."""
    return operands.answer(*_local(operands))


@exact
def table_and_test(operands: RuleOperands) -> list[Any]:
    """Return the masks of lop3 with a predicate: of its result, and of the test for 0 combined with q."""
    bits = _local(operands)[0]
    found, _ = operands.function(*operands.values, **operands.keywords)
    test, unknown = _not_zero(found, bits)
    return operands.answer(
        bits, combined(test, unknown, operands.values[4], operands.bits(4), operands.keywords["boolean"])
    )


def _not_zero(value: Array, mask: Array) -> tuple[Array, Array]:
    """Return whether a value is not 0, and where its undefined bits decide that: no defined bit is 1."""
    return value != 0, (mask != 0) & ((value & ~mask) == 0)


def combined(test: Array, unknown: Array, c: Array, mask: Array, boolean: str | None) -> Array:
    """Return where the combination of a test and a predicate is undefined."""
    if boolean == "and":
        return (test | unknown) & (c | mask) & (unknown | mask)
    if boolean == "or":
        return (~test | unknown) & (~c | mask) & (unknown | mask)
    return unknown | mask


# ---- selection
@exact
def selected(operands: RuleOperands) -> list[Any]:
    """Return the mask of selp and slct: of the chosen source; for an undefined choice, all bits that can differ. A
    choice by a number depends on its sign, and on whether its magnitude is at most some limit."""
    a, b = operands.values[:2]
    first, second = operands.bits(0), operands.bits(1)
    choice, mask, type = operands.values[2], operands.bits(2), operands.types[2]
    top = mask & type.bits_dtype.type(1 << type.bits - 1) if type.name != "pred" else mask
    ends = [choice & ~mask, choice | mask, (choice & ~mask) | top, (choice | mask) & ~top]
    ones: Any = ~np.zeros(1, first.dtype)
    picked = [outcomes(operands, [ones, ones ^ ones, np.ascontiguousarray(end)])[0] != 0 for end in ends]
    is_first, unknown = picked[0], np.bitwise_or.reduce([each ^ picked[0] for each in picked])
    bits = np.where(unknown, first | second | (a ^ b), np.where(is_first, first, second))
    origins = [np.zeros(operands.lanes.count, np.int32) if mask is None else mask.origin for mask in operands.masks[:3]]
    chosen = np.where(is_first, origins[0], origins[1])
    origin = np.where(unknown, origins[2], np.where(chosen == 0, np.maximum(origins[0], origins[1]), chosen))
    return [mask_of(bits, origin)]


# ---- conversions that pack
@rule_of
def packed(operands: RuleOperands, elements: int) -> list[Any]:
    """Return the rule of a conversion to a packed register of `elements`. It takes one source for each element, the
    first in the highest place, or one packed source."""
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


def packed_below(operands: RuleOperands) -> list[Any]:
    """Return the mask of cvt.pack: a above b; with a third source c, its low bits are moved above both."""
    size = int(operands.keywords["to"][1:])
    upper, lower = (np.where(operands.bits(place) != 0, np.uint32((1 << size) - 1), np.uint32(0)) for place in (0, 1))
    bits = upper << np.uint32(size) | lower
    if len(operands.names) > 2:
        bits = bits | operands.bits(2) << np.uint32(2 * size)
    return operands.answer(bits)
