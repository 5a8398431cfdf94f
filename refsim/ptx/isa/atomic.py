"""Atomic read-modify-write: lanes that hit one address follow each other in lane order."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.numerics import ieee
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.isa.forms import instruction
from refsim.ptx.isa.memory import space_of
from refsim.ptx.isa.types import TYPES, PtxType
from refsim.ptx.memory.space import WINDOW_SIZE, WINDOWS
from refsim.sources import PTX

Array = NDArray[Any]
Update = Callable[[Array, Array, Array | None], Array]

_ORDERS = {"atom": "relaxed|acquire|release|acq_rel", "red": "relaxed|release"}
_LATER = {
    "cluster": "sm_90", "shared::cluster": "sm_90", "L2::cache_hint": "sm_80", "bf16": "sm_90", "bf16x2": "sm_90",
    **dict.fromkeys(("relaxed", "acquire", "release", "acq_rel"), "sm_70"),
}  # fmt: skip


def _forms(mnemonic: str, operation: str, types: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The opcodes of an operation, with the modifiers that change no value.

    Cache hints belong to global and generic addresses.
    """
    rank = f"{{.order:{_ORDERS[mnemonic]}}}{{.scope:cta|cluster|gpu|sys}}"
    hint = "" if operation == "cas" else "{.L2::cache_hint}"
    yield f"{mnemonic}{rank}{{.space:global}}.{operation}{hint}{types}", ("order", "scope", "l2_cache_hint")
    yield f"{mnemonic}{rank}.{{space:shared::cta|shared::cluster|shared}}.{operation}{types}", ("order", "scope")


def _inc(old: Array, b: Array, _: Array | None) -> Array:
    return np.where(old >= b, 0, old + 1).astype(old.dtype)


def _dec(old: Array, b: Array, _: Array | None) -> Array:
    return np.where((old == 0) | (old > b), b, old - 1).astype(old.dtype)


def _swap(old: Array, b: Array, c: Array | None) -> Array:
    return b if c is None else np.where(old == b, c, old)


def read_modify_write(
    lanes: Lanes, space: str | None, address: Array, update: Update, row: PtxType, b: Array, c: Array | None = None,
    ufunc: "np.ufunc | None" = None,
) -> Array:  # fmt: skip
    """Apply `update` lane after lane; the value that each lane found.

    ufunc: NumPy's name for an `update` that is associative, so that many lanes on one address are one accumulate.
    """
    name, width = space_of(space), row.bits // 8
    where = lanes.full(address).astype(np.int64)
    cells = _cells(lanes, name, where)
    order = np.argsort(cells, kind="stable") if (cells[1:] < cells[:-1]).any() else np.arange(len(cells))
    in_order = cells[order]
    starts = np.flatnonzero(np.r_[True, in_order[1:] != in_order[:-1]])
    counts = np.diff(np.r_[starts, len(where)])
    b = np.broadcast_to(b, (lanes.count, *b.shape[1:]))
    c = None if c is None else np.broadcast_to(c, (lanes.count, *c.shape[1:]))
    found = np.empty_like(b)
    if ufunc is not None and len(starts) < counts.max():
        for start, count in zip(starts, counts, strict=True):
            _chain(lanes, name, order[start : start + count], where, ufunc, row, b, found)
        return found
    for turn in range(int(counts.max())):
        chosen = np.sort(order[starts[counts > turn] + turn])
        now = Lanes(lanes.machine, lanes.ids[chosen], lanes.statement) if len(chosen) < lanes.count else lanes
        old = lanes_items(now, name, where[chosen], row)
        found[chosen] = old
        new = update(old, b[chosen], None if c is None else c[chosen])
        now.store(name, where[chosen], np.ascontiguousarray(new).reshape(-1).view(row.bits_dtype), width)
    return found


def _cells(lanes: Lanes, space: str, where: Array) -> Array:
    """A number for the place in memory that each lane means: shared address 0 of two CTAs is two places."""
    cells = np.empty(lanes.count, np.int64)
    for number, (part, name, at, mask) in enumerate(lanes.parts(space, where)):
        state, owner = part.space(name)
        cells[slice(None) if mask is None else mask] = at + owner * state.stride + (number << 48)
    return cells


def lanes_items(lanes: Lanes, space: str, address: Array, row: PtxType) -> Array:
    """One value of a type per lane."""
    values = lanes.load(space, address, row.bits // 8).view(row.dtype)
    return values.reshape(-1, row.lanes) if row.lanes > 1 else values


def _chain(
    lanes: Lanes, space: str, chosen: Array, where: Array, ufunc: np.ufunc, row: PtxType, b: Any, found: Array
) -> None:
    """All lanes that hit one address, at once: each finds what the ones before it made."""
    everyone = Lanes(lanes.machine, np.sort(lanes.ids[chosen]), lanes.statement)
    first = Lanes(lanes.machine, lanes.ids[chosen[:1]], lanes.statement)
    at = where[chosen[:1]]
    old = lanes_items(everyone, space, np.repeat(at, len(chosen)), row)[:1]
    chain = ufunc.accumulate(np.concatenate([old, b[chosen]]), dtype=row.dtype)
    found[chosen] = chain[:-1]
    first.store(space, at, chain[-1:].view(row.bits_dtype), row.bits // 8)
    if lanes.machine.watch is not None and first.parts(space, at)[0][1] == "shared":
        lanes.machine.watch.synchronise(everyone)


# ---- integers
_INTEGER: dict[str, tuple[str, "np.ufunc | None", Update]] = {
    "add": ("u32|s32|u64", np.add, lambda old, b, _: old + b),
    "min": ("u32|s32|u64|s64", np.minimum, lambda old, b, _: np.minimum(old, b)),
    "max": ("u32|s32|u64|s64", np.maximum, lambda old, b, _: np.maximum(old, b)),
    "and": ("b32|b64", np.bitwise_and, lambda old, b, _: old & b),
    "or": ("b32|b64", np.bitwise_or, lambda old, b, _: old | b),
    "xor": ("b32|b64", np.bitwise_xor, lambda old, b, _: old ^ b),
    "inc": ("u32", None, _inc),
    "dec": ("u32", None, _dec),
    "exch": ("b32|b64", None, _swap),
}


def _integer(operation: str, types: str, ufunc: "np.ufunc | None", update: Update) -> None:
    for form, ignored in _forms("atom", operation, f".{{type:{types}}}"):

        @instruction(f"{form} d, [a], b, policy:b64?", ignores=ignored, later=_LATER, source=PTX["atom"])
        def atom(lanes: Lanes, address: Array, b: Array, policy: Any, *, type: str, space: str | None = None) -> Array:
            """An integer or bitwise update; the result is the value that was found."""
            return read_modify_write(lanes, space, address, update, TYPES[type], b, ufunc=ufunc)

    for form, ignored in _forms("red", operation, f".{{type:{types}}}") if operation != "exch" else ():

        @instruction(f"{form} [a], b, policy:b64?", ignores=ignored, later=_LATER, source=PTX["red"])
        def red(lanes: Lanes, address: Array, b: Array, policy: Any, *, type: str, space: str | None = None) -> None:
            """An update whose old value nobody wants."""
            read_modify_write(lanes, space, address, update, TYPES[type], b, ufunc=ufunc)


for _operation, (_types, _ufunc, _update) in _INTEGER.items():
    _integer(_operation, _types, _ufunc, _update)


for _form, _ignored in _forms("atom", "cas", ".{type:b16|b32|b64}"):

    @instruction(f"{_form} d, [a], b, c", ignores=_ignored, later={**_LATER, "b16": "sm_70"}, source=PTX["atom"])
    def atom_cas(lanes: Lanes, address: Array, b: Array, c: Array, *, type: str, space: str | None = None) -> Array:
        """Write c where memory holds b; return what was there."""
        return read_modify_write(lanes, space, address, _swap, TYPES[type], b, c)


# ---- floats. Their sum depends on the order of arrival, which hardware leaves open: such results are marked inexact.
def _add_real(old: Array, b: Array, _: Array | None) -> Array:
    return ieee.add(old, b)


def _add_single(old: Array, b: Array, in_shared: Array | None) -> Array:
    return np.where(np.asarray(in_shared), ieee.add(old, b), ieee.add(old, b, ftz=True))


def _add_double(old: Array, b: Array, in_shared: Array | None) -> Array:
    """Of two NaN, shared memory keeps its own, quieted; elsewhere the added one wins as it is (measured on an H200)."""
    total = ieee.add(b, old).view(np.uint64)
    raw: Array = np.where(np.isnan(b), b.view(np.uint64), old.view(np.uint64))
    kept = (np.isnan(old) | np.isnan(b)) & ~np.asarray(in_shared)
    return np.where(kept, raw, total).view(np.float64)


def _in_shared(lanes: Lanes, address: Array, space: str | None) -> Array:
    """Which lanes address shared memory: it keeps subnormal numbers where atom.global.add.f32 flushes them."""
    if space is not None:
        return np.array([space.startswith("shared")])
    start = WINDOWS["shared"]
    at = lanes.full(address).astype(np.int64)
    return (at >= start) & (at < start + WINDOW_SIZE)


def _add_wide(lanes: Lanes, address: Array, b: Array, type: str, space: str | None) -> Array:
    update = _add_single if type == "f32" else _add_double
    return read_modify_write(lanes, space, address, update, TYPES[type], b, _in_shared(lanes, address, space))


_ADD_WIDE, _ADD_HALF = ("add", ".{type:f32|f64}"), ("add.noftz", ".{type:f16|f16x2|bf16|bf16x2}")
_LATER_REAL = {**_LATER, "f64": "sm_60", "f16": "sm_70", "f16x2": "sm_60"}

for _form, _ignored in _forms("atom", *_ADD_WIDE):

    @instruction(
        f"{_form} d, [a], b, policy:b64?", ignores=_ignored, later=_LATER_REAL, inexact=True, source=PTX["atom"]
    )
    def atom_add_wide(
        lanes: Lanes, address: Array, b: Array, policy: Any, *, type: str, space: str | None = None
    ) -> Array:
        """Sums in lane order, each rounded to nearest even; f32 outside shared memory flushes subnormal numbers."""
        return _add_wide(lanes, address, b, type, space)


for _form, _ignored in _forms("red", *_ADD_WIDE):

    @instruction(f"{_form} [a], b, policy:b64?", ignores=_ignored, later=_LATER_REAL, inexact=True, source=PTX["red"])
    def red_add_wide(
        lanes: Lanes, address: Array, b: Array, policy: Any, *, type: str, space: str | None = None
    ) -> None:
        """Sums in lane order, each rounded to nearest even; f32 outside shared memory flushes subnormal numbers."""
        _add_wide(lanes, address, b, type, space)


for _form, _ignored in _forms("atom", *_ADD_HALF):

    @instruction(
        f"{_form} d, [a], b, policy:b64?", ignores=_ignored, later=_LATER_REAL, inexact=True, source=PTX["atom"]
    )
    def atom_add_half(
        lanes: Lanes, address: Array, b: Array, policy: Any, *, type: str, space: str | None = None
    ) -> Array:
        """Sums in lane order, each rounded to nearest even; the halves of a pair are two sums."""
        return read_modify_write(lanes, space, address, _add_real, TYPES[type], b)


for _form, _ignored in _forms("red", *_ADD_HALF):

    @instruction(f"{_form} [a], b, policy:b64?", ignores=_ignored, later=_LATER_REAL, inexact=True, source=PTX["red"])
    def red_add_half(
        lanes: Lanes, address: Array, b: Array, policy: Any, *, type: str, space: str | None = None
    ) -> None:
        """Sums in lane order, each rounded to nearest even; the halves of a pair are two sums."""
        read_modify_write(lanes, space, address, _add_real, TYPES[type], b)


# ---- vectors of floats: every element is an update of its own, the vector is aligned to its whole size
_EXTREMUM: dict[str, Callable[..., Array]] = {"min": ieee.minimum, "max": ieee.maximum}
_VECTORS = (
    ("{operation:add}", ".{vec:v2|v4}.{type:f32}"),
    ("{operation:add|min|max}.noftz", ".{vec:v2|v4|v8}.{type:f16|bf16}"),
    ("{operation:add|min|max}.noftz", ".{vec:v2|v4}.{type:f16x2|bf16x2}"),
)


def _update_vector(
    lanes: Lanes, address: Array, b: list[Array], operation: str, type: str, vec: str, space: str | None
) -> list[Array]:
    row, size = TYPES[type], TYPES[type].bits // 8
    where = lanes.full(address).astype(np.int64)
    if (stray := where % (size * int(vec[1])) != 0).any():
        raise lanes.fault(
            "misaligned", int(np.argmax(stray)), f"a vector of {size * int(vec[1])} bytes not aligned to its size"
        )
    places = [where + size * place for place in range(len(b))]
    if operation == "add" and type == "f32":
        return [_add_wide(lanes, place, element, type, space) for place, element in zip(places, b, strict=True)]
    update = _add_real if operation == "add" else lambda old, b, _: _EXTREMUM[operation](old, b)
    return [
        read_modify_write(lanes, space, place, update, row, element) for place, element in zip(places, b, strict=True)
    ]


def _vector(operation: str, types: str) -> None:
    form, ignored = next(_forms("atom", operation, types))

    @instruction(f"{form} d*, [a], b*, policy:b64?", ignores=ignored, since="sm_90", inexact=True, source=PTX["atom"])
    def atom_vector(
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
        """Element after element; the elements of a vector are updated together on no hardware."""
        return _update_vector(lanes, address, b, operation, type, vec, space)

    form, ignored = next(_forms("red", operation, types))

    @instruction(f"{form} [a], b*, policy:b64?", ignores=ignored, since="sm_90", inexact=True, source=PTX["red"])
    def red_vector(
        lanes: Lanes,
        address: Array,
        b: list[Array],
        policy: Any,
        *,
        operation: str,
        type: str,
        vec: str,
        space: str | None,
    ) -> None:
        """Element after element; the elements of a vector are updated together on no hardware."""
        _update_vector(lanes, address, b, operation, type, vec, space)


for _operations, _types in _VECTORS:
    _vector(_operations, _types)
