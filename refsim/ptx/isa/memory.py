"""Loads and stores: scalars and vectors of up to 32 bytes in every state space."""

from functools import cache, partial
from typing import Any

import numpy as np

from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.types import TYPES
from refsim.ptx.isa.definedness import memory as undefined
from refsim.ptx.isa.forms import instruction
from refsim.ptx.memory.arrays import Array
from refsim.sources import PTX

_WIDEST = 16
_NARROW, _WIDE = "b8|b16|b32|u8|u16|u32|s8|s16|s32|f32", "b64|u64|s64|f64"
_SHAPES = (f"{{.vec:v2|v4}}.{{type:{_NARROW}}}", f"{{.vec:v2}}.{{type:{_WIDE}}}")
_SHAPE_16_BYTES = ".{type:b128}"
_SHAPE_OF_BYTES = ".{vec:v8}.{type:b8|u8|s8}"  # not in the ISA: ptxas 12.9 to 13.4 takes it on every target
_SHAPES_32_BYTES = (".{vec:v8}.{type:b32|u32|s32|f32}", f".{{vec:v4}}.{{type:{_WIDE}}}")
_SCALAR = f".{{type:{_NARROW}|{_WIDE}|b128}}"

_SHARED = "shared::cta|shared::cluster|shared"
_GLOBAL = "{.space:global}"
_SCOPE = ".{scope:cta|cluster|gpu|sys}"
_L1 = "{.level1:L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate}"
_L2 = "{.level2:L2::evict_normal|L2::evict_first|L2::evict_last}"
_CACHE_HINT, _PREFETCH = "{.L2::cache_hint}", "{.prefetch:L2::64B|L2::128B|L2::256B}"
_LATER = {"cluster": "sm_90", "shared::cluster": "sm_90", "L2::cache_hint": "sm_80", "L2::256B": "sm_80"}
_HINTS = ("weak", "order", "scope", "cop", "level1", "level2", "l2_cache_hint", "prefetch")


@cache
def space_of(space: str | None) -> str:
    """Return the state space that a modifier names; None is generic."""
    return "generic" if space is None else space.partition("::")[0]


def _forms(places: str, cops: str, orders: str, prefetch: str, others: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the continuations of ld or st, each with the first target that has it: the ISA's grammar.

    Parts that exclude each other are separate forms. Cache hints belong to global and generic addresses, and so do
    vectors of 32 bytes and priorities in L2.
    """
    plain = [
        (f"{{.weak}}{{.space:{places}}}{{.cop:{cops}}}", "sm_50"),
        (f".volatile{{.space:{_SHARED}}}", "sm_50"),
        (f".{{order:{orders}}}{_SCOPE}.{{space:{_SHARED}}}", "sm_70"),
    ]
    hinted = [
        (f"{{.weak}}{_GLOBAL}{{.cop:{cops}}}", _CACHE_HINT + prefetch, "sm_50"),
        (f"{{.weak}}{_GLOBAL}{_L1}", _CACHE_HINT + prefetch, "sm_70"),
        (f".volatile{_GLOBAL}", prefetch, "sm_50"),
        (f".{{order:{orders}}}{_SCOPE}{_GLOBAL}{_L1}", _CACHE_HINT + prefetch, "sm_70"),
        *((head, _CACHE_HINT + prefetch, since) for head, since in others),
    ]
    heads = [*plain, *((head + hints, since) for head, hints, since in hinted)]
    found = [(head + shape, since) for head, since in heads for shape in _SHAPES]
    found += [(head + _SHAPE_16_BYTES, max(since, "sm_70")) for head, since in heads]
    found += [(head + _SHAPE_OF_BYTES, since) for head, _, since in hinted]
    for head, hints, _ in hinted:
        level2 = _L2 if head.endswith(_L1) else ""
        found += [(head + level2 + hints + shape, "sm_100") for shape in _SHAPES_32_BYTES]
    return [*found, (f".mmio.relaxed.sys{_GLOBAL}{_SCALAR}", "sm_70")]


def _ignored(form: str) -> tuple[str, ...]:
    return tuple(hint for hint in _HINTS if f"{hint}:" in form or f"{{.{hint}}}" in form.lower().replace("::", "_"))


def _loads() -> list[tuple[str, str]]:
    others = [(".{space:global}{.cop:ca|cg|cs}.nc", "sm_50"), (f".{{space:global}}.nc{_L1}", "sm_70")]
    places = f"{_SHARED}|local|const|param::entry|param::func|param"
    forms = [
        (f"ld{form}", since) for form, since in _forms(places, "ca|cg|cs|lu|cv", "relaxed|acquire", _PREFETCH, others)
    ]
    forms += [(f"ldu{_GLOBAL}{shape}", "sm_50") for shape in _SHAPES]
    return [*forms, (f"ldu{_GLOBAL}{_SHAPE_16_BYTES}", "sm_70")]


for _form, _since in _loads():

    @instruction(
        f"{_form} d*, [a], policy:b64?",
        ignores=_ignored(_form),
        since=_since,
        later=_LATER,
        source=PTX["ld, ldu"],
        undefined=undefined.loaded,
    )
    def ld(
        lanes: Lanes, address: Array, policy: Any, *, type: str, space: str | None = None, vec: str | None = None
    ) -> list[Array]:
        """Read little-endian bytes from memory; a vector is one access and must be aligned to its whole size."""
        row, count = TYPES[type], int(vec[1]) if vec else 1
        total = row.bits // 8 * count
        if total <= _WIDEST:
            return _columns(lanes.load(space_of(space), address, total), row.dtype, count)
        _aligned(lanes, address, total)
        halves = [lanes.load(space_of(space), address + offset, _WIDEST) for offset in (0, _WIDEST)]
        return [column for half in halves for column in _columns(half, row.dtype, count // 2)]


def _columns(items: Array, dtype: np.dtype[Any], count: int) -> list[Array]:
    """Return the elements of each lane's item, as one array per element."""
    if count == 1:
        return [items.view(dtype)]
    return list(np.ascontiguousarray(items.view(dtype).reshape(-1, count).T))


def _aligned(lanes: Lanes, address: Array, size: int) -> None:
    if (stray := lanes.full(address) % size != 0).any():
        what = f"a vector of {size} bytes at an address not a multiple of it"
        raise lanes.fault("misaligned", int(np.argmax(stray)), what)


for _form, _since in _forms(f"{_SHARED}|local|param::func|param", "wb|cg|cs|wt", "relaxed|release", "", []):

    @instruction(
        f"st{_form} [a], b*, policy:b64?",
        ignores=_ignored(_form),
        since=_since,
        later=_LATER,
        undefined=undefined.stored,
    )
    def st(
        lanes: Lanes,
        address: Array,
        b: list[Array],
        policy: Any,
        *,
        type: str,
        space: str | None = None,
        vec: str | None = None,
    ) -> None:
        """Write little-endian bytes to memory; if lanes write one address, one lane wins (here the last)."""
        row = TYPES[type]
        words = [column.view(row.bits_dtype) for column in b]
        total = row.bits // 8 * len(words)
        if total <= _WIDEST:
            lanes.store(space_of(space), address, _items(lanes, words, total), total)
            return
        _aligned(lanes, address, total)
        half = len(words) // 2
        for part, offset in ((words[:half], 0), (words[half:], _WIDEST)):
            lanes.store(space_of(space), address + offset, _items(lanes, part, _WIDEST), _WIDEST)


def _items(lanes: Lanes, words: list[Array], total: int) -> Array:
    """Return the elements of each lane next to each other as one item of `total` bytes."""
    if len(words) == 1:
        return words[0]
    rows = np.empty((lanes.count, len(words)), words[0].dtype)
    for place, word in enumerate(words):
        rows[:, place] = word
    return rows.reshape(-1).view({2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}[total])


@instruction("prefetch{.space:global|local}.{level:L1|L2} [a]", ignores=("space", "level"))
def prefetch(address: Array) -> tuple[()]:
    """Do nothing: a hint moves nothing that a program can observe."""
    return ()


@instruction(
    "prefetch{.global}.{level:L2::evict_last|L2::evict_normal} [a]", ignores=("global", "level"), since="sm_80"
)
def prefetch_priority(address: Array) -> tuple[()]:
    """Do nothing: a hint moves nothing that a program can observe."""
    return ()


@instruction("prefetchu.L1 [a]")
def prefetch_uniform(address: Array) -> tuple[()]:
    """Do nothing: a hint moves nothing that a program can observe."""
    return ()


@instruction("applypriority{.global}.L2::evict_normal [a], size:b32", ignores=("global",), since="sm_80")
def applypriority(address: Array, size: Array) -> tuple[()]:
    """Do nothing: a hint moves nothing that a program can observe."""
    return ()


@instruction("discard{.global}.L2 [a], size:b32", ignores=("global",), since="sm_80")
def discard(address: Array, size: Array) -> tuple[()]:
    """Do nothing: the hardware may lose the line's contents, the simulator keeps them."""
    return ()


_PRIMARY = "{primary:L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged}"
_SECONDARY = "{.secondary:L2::evict_first|L2::evict_unchanged}"
_PRIORITIES = ("primary", "secondary")
_policy = partial(instruction, since="sm_80", source=PTX["createpolicy"])


@_policy(f"createpolicy.fractional.{_PRIMARY}{_SECONDARY}.b64 d:b64, fraction:f32?", ignores=_PRIORITIES)
def createpolicy_fractional(fraction: Array | None = None) -> Array:
    """Return an opaque cache policy, which changes no value."""
    return np.zeros(1, np.uint64)


@_policy(
    f"createpolicy.range{{.global}}.{_PRIMARY}{_SECONDARY}.b64 d:b64, [a], primary_size:b32, total_size:b32",
    ignores=("global", *_PRIORITIES),
)
def createpolicy_range(address: Array, primary_size: Array, total_size: Array) -> Array:
    """Return an opaque cache policy, which changes no value."""
    return np.zeros(1, np.uint64)


@_policy("createpolicy.cvt.L2.b64 d:b64, a:b64")
def createpolicy_cvt(a: Array) -> Array:
    """Return an opaque cache policy, which changes no value."""
    return np.zeros(1, np.uint64)
