"""Loads and stores: scalars and vectors of up to 32 bytes in every state space."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.isa.forms import instruction
from refsim.ptx.lanes import Lanes
from refsim.ptx.types import TYPES
from refsim.sources import PTX

Array = NDArray[Any]

_TYPE = "{type:b8|b16|b32|b64|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64|f16|bf16}"
_ORDER = "{.order:weak|volatile|relaxed|acquire|release|mmio.relaxed}{.scope:cta|cluster|gpu|sys}"
_EVICT = (
    "{.level1:L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate}"
    "{.level2:L2::evict_normal|L2::evict_first|L2::evict_last}{.L2::cache_hint}"
)
_PREFETCH = "{.prefetch:L2::64B|L2::128B|L2::256B}"
_HINTS = ("order", "scope", "level1", "level2", "l2_cache_hint")
_WIDEST = 16


def space_of(space: str | None) -> str:
    """The state space that a modifier names; none is generic."""
    return "generic" if space is None else space.partition("::")[0]


@instruction(
    f"ld{_ORDER}{{.space:global|shared::cta|shared::cluster|shared|local|param::entry|param::func|param|const}}"
    f"{{.cop:ca|cg|cs|lu|cv}}{{.nc}}{_EVICT}{_PREFETCH}{{.vec:v2|v4|v8}}.{_TYPE} d*, [a], policy:b64?",
    ignores=(*_HINTS, "cop", "nc", "prefetch"), source=PTX["ld, ld.global.nc"],
)  # fmt: skip
def ld(lanes: Lanes, address: Array, policy: Any, *, space: str | None, vec: str | None, type: str) -> list[Array]:
    """Little-endian bytes from memory; a vector is one access and must be aligned to its whole size."""
    row, count = TYPES[type], int(vec[1]) if vec else 1
    total = row.bits // 8 * count
    if total <= _WIDEST:
        return _columns(lanes.load(space_of(space), address, total), row.dtype, count)
    _aligned(lanes, address, total)
    halves = [lanes.load(space_of(space), address + offset, _WIDEST) for offset in (0, _WIDEST)]
    return [column for half in halves for column in _columns(half, row.dtype, count // 2)]


def _columns(items: Array, dtype: np.dtype[Any], count: int) -> list[Array]:
    """The elements of each lane's item, as one array per element."""
    if count == 1:
        return [items.view(dtype)]
    return list(np.ascontiguousarray(items.view(dtype).reshape(-1, count).T))


def _aligned(lanes: Lanes, address: Array, size: int) -> None:
    if (stray := lanes.full(address) % size != 0).any():
        raise lanes.fault("misaligned", int(np.argmax(stray)), f"a vector of {size} bytes at an address not a multiple of it")


@instruction(
    f"st{_ORDER}{{.space:global|shared::cta|shared::cluster|shared|local|param::func|param}}"
    f"{{.cop:wb|cg|cs|wt}}{_EVICT}{{.vec:v2|v4|v8}}.{_TYPE} [a], b*, policy:b64?",
    ignores=(*_HINTS, "cop"), source=PTX["st"],
)  # fmt: skip
def st(
    lanes: Lanes, address: Array, b: list[Array], policy: Any, *, space: str | None, vec: str | None, type: str
) -> None:
    """Little-endian bytes to memory; when lanes hit one address, one of them wins (here the last)."""
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
    """The elements of each lane side by side as one item of `total` bytes."""
    if len(words) == 1:
        return words[0]
    rows = np.empty((lanes.count, len(words)), words[0].dtype)
    for place, word in enumerate(words):
        rows[:, place] = word
    return rows.reshape(-1).view({2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}[total])


@instruction(
    "prefetch{.space:global|local}.{level:L1|L2|L2::evict_last|L2::evict_normal} [a]",
    ignores=("space", "level"), source=PTX["prefetch"],
)  # fmt: skip
def prefetch(address: Array) -> tuple[()]:
    """A hint; nothing moves that a program could see."""
    return ()


@instruction("discard{.global}.L2 [a], size:b32", ignores=("global",), since="sm_80", source=PTX["discard"])
def discard(address: Array, size: Array) -> tuple[()]:
    """The line's contents may be lost; the simulator keeps them."""
    return ()


@instruction(
    "createpolicy.fractional.{primary:L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged}"
    "{.secondary:L2::evict_first|L2::evict_unchanged}.b64 d:b64, fraction:f32?",
    ignores=("primary", "secondary"), since="sm_80", source=PTX["createpolicy"],
)  # fmt: skip
def createpolicy(fraction: Any) -> Array:
    """An opaque cache policy: it changes no value."""
    return np.zeros(1, np.uint64)
