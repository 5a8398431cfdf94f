"""Atomic read-modify-write: lanes that hit one address follow each other in lane order."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.numerics import ieee
from refsim.ptx.isa.forms import instruction
from refsim.ptx.isa.memory import space_of
from refsim.ptx.lanes import Lanes
from refsim.ptx.types import TYPES, PtxType
from refsim.sources import PTX

Array = NDArray[Any]
Update = Callable[[Array, Array, Array | None], Array]

_SPACES = ("{.space:global}{.l2:L2::cache_hint}", ".{space:shared::cta|shared::cluster|shared}")
_ORDERS = {"atom": "relaxed|acquire|release|acq_rel", "red": "relaxed|release"}
_LATER = {
    "cluster": "sm_90", "shared::cluster": "sm_90", "L2::cache_hint": "sm_80", "bf16": "sm_90", "bf16x2": "sm_90",
    **dict.fromkeys(("relaxed", "acquire", "release", "acq_rel"), "sm_70"),
}  # fmt: skip
_HINTS = ("order", "scope", "l2")

# Operations whose order does not matter, as NumPy spells them: a chain of them is one accumulate.
_UFUNC = {
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "add": np.add,
    "min": np.minimum, "max": np.maximum,
}  # fmt: skip


def _inc(old: Array, b: Array, _: Array | None) -> Array:
    return np.where(old >= b, 0, old + 1).astype(old.dtype)


def _dec(old: Array, b: Array, _: Array | None) -> Array:
    return np.where((old == 0) | (old > b), b, old - 1).astype(old.dtype)


def _swap(old: Array, b: Array, c: Array | None) -> Array:
    return b if c is None else np.where(old == b, c, old)


def _update_of(operation: str) -> Update:
    if operation in ("inc", "dec"):
        return _inc if operation == "inc" else _dec
    ufunc = _UFUNC[operation]
    return lambda old, b, _: ufunc(old, b)


def read_modify_write(
    lanes: Lanes, space: str | None, address: Array, update: Update, row: PtxType, b: Array, c: Array | None = None,
    ufunc: "np.ufunc | None" = None,
) -> Array:  # fmt: skip
    """Apply `update` lane after lane; the value that each lane found."""
    name, width = space_of(space), row.bits // 8
    where = lanes.full(address).astype(np.int64)
    order = np.argsort(where, kind="stable") if (where[1:] < where[:-1]).any() else np.arange(len(where))
    sorted_addresses = where[order]
    starts = np.flatnonzero(np.r_[True, sorted_addresses[1:] != sorted_addresses[:-1]])
    counts = np.diff(np.r_[starts, len(where)])
    operands = [None if operand is None else np.broadcast_to(operand, (lanes.count, *operand.shape[1:])) for operand in (b, c)]
    found = np.empty_like(operands[0])  # type: ignore[arg-type]
    if ufunc is not None and len(starts) < counts.max():
        for start, count in zip(starts, counts, strict=True):
            _chain(lanes, name, order[start : start + count], where, ufunc, row, operands[0], found)
        return found
    for turn in range(int(counts.max())):
        chosen = np.sort(order[starts[counts > turn] + turn])
        now = Lanes(lanes.machine, lanes.ids[chosen], lanes.statement) if len(chosen) < lanes.count else lanes
        old = lanes_items(now, name, where[chosen], row)
        found[chosen] = old
        new = update(old, operands[0][chosen], None if operands[1] is None else operands[1][chosen])  # type: ignore[index]
        now.store(name, where[chosen], np.ascontiguousarray(new).reshape(-1).view(row.bits_dtype), width)
    return found


def lanes_items(lanes: Lanes, space: str, address: Array, row: PtxType) -> Array:
    """One value of a type per lane."""
    values = lanes.load(space, address, row.bits // 8).view(row.dtype)
    return values.reshape(-1, row.lanes) if row.lanes > 1 else values


def _chain(
    lanes: Lanes, space: str, chosen: Array, where: Array, ufunc: np.ufunc, row: PtxType, b: Any, found: Array
) -> None:
    """All lanes that hit one address, at once: each finds what the ones before it made."""
    first = Lanes(lanes.machine, lanes.ids[chosen[:1]], lanes.statement)
    at = where[chosen[:1]]
    chain = ufunc.accumulate(np.concatenate([lanes_items(first, space, at, row), b[chosen]]), dtype=row.dtype)
    found[chosen] = chain[:-1]
    first.store(space, at, chain[-1:].view(row.bits_dtype), row.bits // 8)


def _forms(mnemonic: str, operation: str, types: str) -> list[str]:
    """The opcodes of an operation: the ISA's order of modifiers, and the one that libcu++ writes, operation first."""
    rank = f"{{.order:{_ORDERS[mnemonic]}}}{{.scope:cta|cluster|gpu|sys}}"
    found = []
    for space in _SPACES:
        place, hint = space.split("{.l2", 1) if "{.l2" in space else (space, "")
        found.append(f"{mnemonic}{rank}{place}.{operation}{hint and '{.l2' + hint}.{{type:{types}}}")
    return [*found, f"{mnemonic}.{operation}{rank}{_SPACES[0].partition('{.l2')[0]}.{{type:{types}}}"]
@instruction(f"atom{_INTEGER} d, [a], b, policy:b64?", ignores=_HINTS, source=PTX["atom"])
def atom(lanes: Lanes, address: Array, b: Array, policy: Any, *, space: str | None, operation: str, type: str) -> Array:
    """Integer and bitwise updates; the result is the value that was found."""
    return read_modify_write(
        lanes, space, address, _update_of(operation), TYPES[type], b, ufunc=_UFUNC.get(operation)
    )  # fmt: skip


@instruction(f"red{_INTEGER} [a], b, policy:b64?", ignores=_HINTS, source=PTX["red"])
def red(lanes: Lanes, address: Array, b: Array, policy: Any, *, space: str | None, operation: str, type: str) -> None:
    """An update whose old value nobody wants."""
    read_modify_write(lanes, space, address, _update_of(operation), TYPES[type], b, ufunc=_UFUNC.get(operation))


@instruction(f"atom{_ORDER}{_SPACE}.exch{{.L2::cache_hint}}.{{type:b32|b64}} d, [a], b, policy:b64?",
             ignores=_HINTS, source=PTX["atom"])  # fmt: skip
def atom_exch(lanes: Lanes, address: Array, b: Array, policy: Any, *, space: str | None, type: str) -> Array:
    """Write b, return what was there."""
    return read_modify_write(lanes, space, address, _swap, TYPES[type], b)


@instruction(f"atom{_ORDER}{_SPACE}.cas{{.L2::cache_hint}}.{{type:b16|b32|b64}} d, [a], b, c, policy:b64?",
             ignores=_HINTS, source=PTX["atom"])  # fmt: skip
def atom_cas(lanes: Lanes, address: Array, b: Array, c: Array, policy: Any, *, space: str | None, type: str) -> Array:
    """Write c where memory holds b; return what was there."""
    return read_modify_write(lanes, space, address, _swap, TYPES[type], b, c)


def _add_real(old: Array, b: Array, _: Array | None) -> Array:
    return ieee.add(old, b)


# The sum of floats depends on the order of arrival, which hardware leaves open: such results are marked inexact.
@instruction(f"atom{_REAL} d, [a], b, policy:b64?", ignores=(*_HINTS, "noftz"), inexact=True, source=PTX["atom"])
def atom_add_real(lanes: Lanes, address: Array, b: Array, policy: Any, *, space: str | None, type: str) -> Array:
    """Float sums in lane order, each rounded to nearest even."""
    return read_modify_write(lanes, space, address, _add_real, TYPES[type], b)


@instruction(f"red{_REAL} [a], b, policy:b64?", ignores=(*_HINTS, "noftz"), inexact=True, source=PTX["red"])
def red_add_real(lanes: Lanes, address: Array, b: Array, policy: Any, *, space: str | None, type: str) -> None:
    """Float sums in lane order, each rounded to nearest even."""
    read_modify_write(lanes, space, address, _add_real, TYPES[type], b)
