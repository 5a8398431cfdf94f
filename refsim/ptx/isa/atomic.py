"""Atomic read-modify-write: lanes that access one address follow each other in lane order. A copy engine reduces the same
way, element by element, without a result."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from refsim.numerics import ieee
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.types import TYPES, PtxType
from refsim.ptx.isa.definedness.memory import updated
from refsim.ptx.isa.forms import Clause, instruction
from refsim.ptx.isa.memory import space_of
from refsim.ptx.memory.arrays import Array
from refsim.ptx.memory.space import WINDOW_SIZE, WINDOWS
from refsim.ptx.text.words import pairs_in
from refsim.sources import PTX

Update = Callable[[Array, Array, Array | None], Array]
Chain = Callable[[Any, Array, Array | None], tuple[Array, Array]]

_ORDERS = {"atom": "relaxed|acquire|release|acq_rel", "red": "relaxed|release"}
_LATER = {
    "cluster": "sm_90",
    "shared::cluster": "sm_90",
    "L2::cache_hint": "sm_80",
    "bf16": "sm_90",
    "bf16x2": "sm_90",
    "b128": "sm_90",
    **dict.fromkeys(("relaxed", "acquire", "release", "acq_rel"), "sm_70"),
}


def _forms(mnemonic: str, operation: str, types: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the opcodes of an operation, with the modifiers that change no value. Cache hints belong to global and
    generic addresses."""
    rank = f"{{.order:{_ORDERS[mnemonic]}}}{{.scope:cta|cluster|gpu|sys}}"
    hint = "" if operation == "cas" else "{.L2::cache_hint}"
    yield f"{mnemonic}{rank}{{.space:global}}.{operation}{hint}{types}", ("order", "scope", "l2_cache_hint")
    yield f"{mnemonic}{rank}.{{space:shared::cta|shared::cluster|shared}}.{operation}{types}", ("order", "scope")


def _updating(
    operation: str, types: str, *, by: tuple[str, ...] = ("atom", "red"), is_vector: bool = False, **how: Any
) -> Callable[[Clause], Clause]:
    """Return a decorator that registers an update as `atom`, which returns the old value, and as `red`, which does not.
    Vectors are updated in global memory only."""
    many = "*" if is_vector else ""

    def register(function: Clause) -> Clause:
        """Register the function for every opcode of the operation."""
        for mnemonic in by:
            result = f"d{many}, " if mnemonic == "atom" else ""
            for form, ignored in list(_forms(mnemonic, operation, types))[: 1 if is_vector else None]:
                operands = f"{result}[a], b{many}, policy:b64?"
                instruction(f"{form} {operands}", ignores=ignored, source=PTX[mnemonic], **how)(function)
        return function

    return register


def _inc(old: Array, b: Array, _: Array | None) -> Array:
    return np.where(old >= b, 0, old + 1).astype(old.dtype)


def _dec(old: Array, b: Array, _: Array | None) -> Array:
    return np.where((old == 0) | (old > b), b, old - 1).astype(old.dtype)


def _equal(a: Array, b: Any) -> Array:
    """Return which elements have equal bits; NumPy would compare items of 16 bytes as complex values."""
    if a.dtype.kind != "c":
        return np.asarray(a == b)
    first, second = (np.ascontiguousarray(np.atleast_1d(each)).view(np.uint64).reshape(-1, 2) for each in (a, b))
    return np.asarray((first == second).all(axis=1))


def _swap(old: Array, b: Array, c: Array | None) -> Array:
    return b if c is None else np.where(_equal(old, b), c, old)


def read_modify_write(
    lanes: Lanes,
    space: str | None,
    address: Array,
    update: Update,
    row: PtxType,
    b: Array,
    c: Array | None = None,
    chain: Chain | None = None,
    choice: np.random.Generator | None = None,
) -> Array:
    """Apply `update` lane after lane; return the value that each lane found.

    chain: the update for many lanes at one place at once. choice: a generator that draws the order of lanes. A
    compare-and-swap (with `c`) that finds another value than `b` writes nothing.
    """
    b = np.broadcast_to(b, (lanes.count, *b.shape[1:]))
    c = None if c is None else np.broadcast_to(c, (lanes.count, *c.shape[1:]))
    found = np.empty(b.shape, row.dtype)

    def compute(chosen: Any, held: Array, place: Array) -> tuple[Array, Array | None]:
        """Return the items to write for the chosen lanes, and which of them are written (None: all)."""
        old = held.view(row.dtype)
        operands = [old.reshape(-1, row.lanes) if row.lanes > 1 else old, b[chosen], None if c is None else c[chosen]]
        before, after = _in_turn(place, operands, update, chain, choice)
        found[chosen] = before
        items = np.ascontiguousarray(after, row.dtype).reshape(-1).view(row.bits_dtype)
        return items, _equal(before, operands[1]) if update is _swap and c is not None else None

    lanes.update(space_of(space), lanes.full(address), row.bits // 8, compute)
    return found


def _in_turn(
    place: Array, operands: list[Any], update: Update, chain: Chain | None, choice: np.random.Generator | None
) -> tuple[Array, Array]:
    """Return the values that each lane finds and leaves; lanes at one place come in lane order or a drawn order."""
    held, b, c = operands
    if chain is not None and len(place) > 1 and (place == place[0]).all():
        return chain(held[0], b, c)
    order = np.argsort(place, kind="stable") if (place[1:] < place[:-1]).any() else np.arange(len(place))
    in_order = place[order]
    starts = np.concatenate(([0], np.flatnonzero(in_order[1:] != in_order[:-1]) + 1))
    counts = np.diff(starts, append=len(place))
    most = int(counts.max())
    if most == 1:
        return held, update(held, b, c)
    if choice is not None:
        drawn = choice.permutation(len(place))
        order = drawn[np.argsort(place[drawn], kind="stable")]
    before, after = np.empty_like(held), np.empty_like(held)
    if chain is not None and len(starts) < most:
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
            mine = order[start : start + count]
            before[mine], after[mine] = chain(held[mine[0]], b[mine], None if c is None else c[mine])
        return before, after
    now = held[order[starts]]
    for turn in range(most):
        waiting = np.flatnonzero(counts > turn)
        mine = order[starts[waiting] + turn]
        before[mine] = now[waiting]
        now[waiting] = after[mine] = update(now[waiting], b[mine], None if c is None else c[mine])
    if choice is not None:
        after[order] = np.repeat(now, counts, axis=0)  # memory keeps the highest lane's item
    return before, after


def _accumulated(ufunc: np.ufunc) -> Chain:
    """Return the chain of an associative operation that NumPy has."""

    def chain(held: Any, b: Array, _: Array | None) -> tuple[Array, Array]:
        """Return the values that each lane finds and leaves."""
        values = ufunc.accumulate(np.concatenate([held[None], b]), dtype=b.dtype)
        return values[:-1], values[1:]

    return chain


def _exchanged(held: Any, b: Array, _: Array | None) -> tuple[Array, Array]:
    """Return the values that each lane finds and leaves: each finds the value of the lane before it."""
    return np.concatenate([held[None], b[:-1]]), b


def _compared(held: Any, b: Array, c: Array | None) -> tuple[Array, Array]:
    """Return the values that many lanes find and leave by compare-and-swap. The loop jumps from one lane that finds its
    expected value to the next."""
    assert c is not None
    before, after, start = np.empty_like(b), np.empty_like(b), 0
    while start < len(b):
        hits = np.flatnonzero(_equal(b[start:], held))
        stop = start + int(hits[0]) if len(hits) else len(b)
        before[start:stop] = after[start:stop] = held
        if stop < len(b):
            before[stop], held = held, c[stop]
            after[stop] = held
        start = stop + 1
    return before, after


# ---- integers
INTEGER_UPDATES: dict[str, tuple[str, Chain | None, Update]] = {
    "add": ("u32|s32|u64", _accumulated(np.add), lambda old, b, _: old + b),
    "min": ("u32|s32|u64|s64", _accumulated(np.minimum), lambda old, b, _: np.minimum(old, b)),
    "max": ("u32|s32|u64|s64", _accumulated(np.maximum), lambda old, b, _: np.maximum(old, b)),
    "and": ("b32|b64", _accumulated(np.bitwise_and), lambda old, b, _: old & b),
    "or": ("b32|b64", _accumulated(np.bitwise_or), lambda old, b, _: old | b),
    "xor": ("b32|b64", _accumulated(np.bitwise_xor), lambda old, b, _: old ^ b),
    "inc": ("u32", None, _inc),
    "dec": ("u32", None, _dec),
    "exch": ("b32|b64|b128", _exchanged, _swap),
}


def _integer(operation: str, types: str, chain: Chain | None, update: Update) -> None:
    """Register an integer or bitwise operation."""
    by = ("atom",) if update is _swap else ("atom", "red")

    @_updating(operation, f".{{type:{types}}}", by=by, later=_LATER, undefined=updated(operation))
    def combine(lanes: Lanes, address: Array, b: Array, policy: Any, *, type: str, space: str | None = None) -> Array:
        """Update an integer or bits in memory; atom returns the old value."""
        return read_modify_write(lanes, space, address, update, TYPES[type], b, chain=chain)


for _operation, (_types, _chain, _update) in INTEGER_UPDATES.items():
    _integer(_operation, _types, _chain, _update)


for _form, _ignored in _forms("atom", "cas", ".{type:b16|b32|b64|b128}"):

    @instruction(
        f"{_form} d, [a], b, c",
        ignores=_ignored,
        later={**_LATER, "b16": "sm_70"},
        source=PTX["atom"],
        undefined=updated("cas"),
    )
    def atom_cas(lanes: Lanes, address: Array, b: Array, c: Array, *, type: str, space: str | None = None) -> Array:
        """Write c where memory holds b; return the old value."""
        return read_modify_write(lanes, space, address, _swap, TYPES[type], b, c, _compared)


# ---- floats. Their sum depends on the order of arrival, which no specification fixes: results are marked inexact, and
# lanes of a random schedule arrive in a random order.
def _add_real(old: Array, b: Array, _: Array | None) -> Array:
    return ieee.add(old, b)


def add_single(old: Array, b: Array, in_shared: Array | None) -> Array:
    """Return sums of f32; only shared memory keeps subnormal numbers."""
    return np.where(np.asarray(in_shared), ieee.add(old, b), ieee.add(old, b, ftz=True))


def add_double(old: Array, b: Array, in_shared: Array | None) -> Array:
    """Return sums of f64. If both are NaN, shared memory keeps its own, quieted; elsewhere the added NaN wins unchanged
    (measured on an H200)."""
    total = ieee.add(b, old).view(np.uint64)
    raw: Array = np.where(np.isnan(b), b.view(np.uint64), old.view(np.uint64))
    kept = (np.isnan(old) | np.isnan(b)) & ~np.asarray(in_shared)
    return np.where(kept, raw, total).view(np.float64)


def _in_shared(lanes: Lanes, address: Array, space: str | None) -> Array:
    """Return which lanes address shared memory, which keeps subnormal numbers that atom.global.add.f32 flushes."""
    if space is not None:
        return np.array([space.startswith("shared")])
    start = WINDOWS["shared"]
    at = lanes.full(address).astype(np.int64)
    return (at >= start) & (at < start + WINDOW_SIZE)


def _add_wide(lanes: Lanes, address: Array, b: Array, type: str, space: str | None) -> Array:
    update = add_single if type == "f32" else add_double
    where = _in_shared(lanes, address, space)
    return read_modify_write(lanes, space, address, update, TYPES[type], b, where, choice=lanes.machine.choice)


_SUM: dict[str, Any] = {
    "later": {**_LATER, "f64": "sm_60", "f16": "sm_70", "f16x2": "sm_60"},
    "inexact": True,
    "undefined": updated("add"),
}


@_updating("add", ".{type:f32|f64}", **_SUM)
def add_wide(lanes: Lanes, address: Array, b: Array, policy: Any, *, type: str, space: str | None = None) -> Array:
    """Add in lane order, each sum rounded to nearest even; f32 outside shared memory flushes subnormal numbers."""
    return _add_wide(lanes, address, b, type, space)


@_updating("add.noftz", ".{type:f16|f16x2|bf16|bf16x2}", **_SUM)
def add_half(lanes: Lanes, address: Array, b: Array, policy: Any, *, type: str, space: str | None = None) -> Array:
    """Add in lane order, each sum rounded to nearest even; the halves of a pair are two sums."""
    return read_modify_write(lanes, space, address, _add_real, TYPES[type], b, choice=lanes.machine.choice)


# ---- vectors of floats: every element is a separate update, the vector is aligned to its whole size
_EXTREMUM: dict[str, Callable[..., Array]] = {"min": ieee.minimum, "max": ieee.maximum}
_VECTORS = (
    ("{operation:add}", ".{vec:v2|v4}.{type:f32}"),
    ("{operation:add|min|max}.noftz", ".{vec:v2|v4|v8}.{type:f16|bf16}"),
    ("{operation:add|min|max}.noftz", ".{vec:v2|v4}.{type:f16x2|bf16x2}"),
)


def _update_vector(
    lanes: Lanes, address: Array, b: list[Array], operation: str, type: str, vec: str, space: str | None
) -> list[Array]:
    """Update each element of a vector in turn; return the old elements."""
    row, size = TYPES[type], TYPES[type].bits // 8
    where = lanes.full(address).astype(np.int64)
    if (stray := where % (size * int(vec[1])) != 0).any():
        what = f"a vector of {size * int(vec[1])} bytes not aligned to its size"
        raise lanes.fault("misaligned", int(np.argmax(stray)), what)
    places = [where + size * place for place in range(len(b))]
    if operation == "add" and type == "f32":
        return [_add_wide(lanes, place, element, type, space) for place, element in zip(places, b, strict=True)]
    update = _add_real if operation == "add" else lambda old, b, _: _EXTREMUM[operation](old, b)
    return [
        read_modify_write(lanes, space, place, update, row, element, choice=lanes.machine.choice)
        for place, element in zip(places, b, strict=True)
    ]


def _vector(operation: str, types: str) -> None:
    """Register an update of vectors."""

    @_updating(operation, types, is_vector=True, since="sm_90", inexact=True, undefined=updated("add"))
    def combine(
        lanes: Lanes,
        address: Array,
        b: list[Array],
        policy: Any,
        *,
        operation: str,
        type: str,
        vec: str,
        space: str | None,
    ) -> list[Array]:
        """Update a vector element by element; no hardware updates the elements of a vector together."""
        return _update_vector(lanes, address, b, operation, type, vec, space)


for _operations, _types in _VECTORS:
    _vector(_operations, _types)


# The PTX type of each element type of a tensor map that can be reduced.
MAP_TYPES = pairs_in("""
    uint32:u32 int32:s32 uint64:u64 int64:s64 float16:f16 bfloat16:bf16 float32:f32 float64:f64 float32_ftz:f32
    tfloat32:f32
""")
_BITWISE = ("and", "or", "xor")


@dataclass(frozen=True)
class ElementUpdate:
    """One operation on elements of `width` bytes: combine(memory's contents, copied data) as items of this width.
    `is_rounded`: the sum depends on the order in which copies arrive."""

    combine: Callable[[Array, Array], Array]
    width: int
    is_rounded: bool


def reduction(operation: str, type: str) -> ElementUpdate | None:
    """Return an operation on a PTX type, or on the element type of a tensor map; None if the operation does not
    exist."""
    row = TYPES.get(MAP_TYPES.get(type, type))
    if row is None or row.lanes > 1:
        return None
    if "f" in row.name:  # a float, also if its dtype holds bit patterns
        update = _real(operation, row, ftz=type == "float32_ftz")
        return None if update is None else ElementUpdate(update, row.bits // 8, operation == "add")
    if operation not in INTEGER_UPDATES or (operation in ("inc", "dec") and row.name != "u32"):
        return None
    seen = TYPES[f"b{row.bits}"] if operation in _BITWISE else row
    return ElementUpdate(
        _on(seen, lambda old, new: INTEGER_UPDATES[operation][2](old, new, None)), row.bits // 8, False
    )


def _real(operation: str, row: PtxType, ftz: bool) -> Callable[[Array, Array], Array] | None:
    """Return a float operation; None if it does not exist.

    Sums keep subnormal numbers, unlike an atomic add of f32 in global memory; a map type that flushes them is the
    exception. Through a map of tf32 sums are those of float32. Both were measured on an H200.
    """
    elsewhere = np.array([False])
    if operation == "add":
        if row.bits == 64:
            return _on(row, lambda old, new: add_double(old, new, elsewhere))
        return _on(row, lambda old, new: ieee.add(old, new, ftz=ftz))
    if row.bits == 16 and operation in ("min", "max"):
        return _on(row, ieee.minimum if operation == "min" else ieee.maximum)
    return None


def _on(row: PtxType, update: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Return an update of values of a type as an update of raw items."""

    def combine(held: Array, given: Array) -> Array:
        left = np.ascontiguousarray(update(held.view(row.dtype), given.view(row.dtype)), row.dtype)
        return left.view(held.dtype)

    return combine
