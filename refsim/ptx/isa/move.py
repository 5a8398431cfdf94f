"""Moves: registers, packing and unpacking, addresses of variables."""

import numpy as np

from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.types import TYPES, UNSIGNED
from refsim.ptx.isa.definedness import bits
from refsim.ptx.isa.forms import instruction
from refsim.ptx.memory.arrays import Array
from refsim.ptx.memory.space import WINDOW_SIZE, WINDOWS, rank_of


@instruction("mov.{type:pred|u16|u32|u64|s16|s32|s64|f32|f64} d, a", ignores=("type",), undefined=bits.moved("a"))
def mov(a: Array) -> Array:
    """Copy a register, a special register, or the address of a variable."""
    return a


@instruction("mov.{type:b16|b32|b64} d*, a*", undefined=bits.moved("a"))
def mov_bits(a: list[Array], *, type: str, results: int) -> list[Array]:
    """Copy bits; a vector on one side packs or unpacks, the first element in the lowest bits."""
    if len(a) == results:
        return a
    row = TYPES[type]
    if len(a) == 1:
        step = row.bits // results
        mask = row.bits_dtype.type((1 << step) - 1)
        return [(a[0] >> row.bits_dtype.type(step * place)) & mask for place in range(results)]
    step = row.bits // len(a)
    packed = a[0]
    for place, element in enumerate(a[1:], 1):
        packed = packed | (element << row.bits_dtype.type(step * place))
    return [packed]


@instruction("mov.{type:b128} d:part*, a:part*", ignores=("type",), since="sm_70", undefined=bits.moved("a"))
def mov_wide(a: list[Array], *, results: int) -> list[Array]:
    """Copy 128 bits; a vector on one side packs or unpacks, the first element in the lowest bits."""
    if len(a) == results:
        return a
    if len(a) == 1:
        return list(a[0].view(UNSIGNED[128 // results]).reshape(-1, results).T)
    return [np.stack(np.broadcast_arrays(*a), axis=1).reshape(-1).view(UNSIGNED[128])]


# Vectors of eight go with loads of eight bytes, whose registers have 16 bits; ptxas refuses them.
for _shape in (
    "{vec:v2|v4}.{type:b16|b32|u16|u32|s16|s32|f32}",
    "{vec:v2}.{type:b64|u64|s64|f64}",
    "{vec:v8}.{type:b16|u16|s16}",
):

    @instruction(f"mov.{_shape} d*, a*", ignores=("vec", "type"), undefined=bits.moved("a"))
    def mov_vector(a: list[Array]) -> list[Array]:
        """Copy each element of a vector."""
        return a


_SPACES = "shared::cta|shared::cluster|shared|local|const|global|param::entry|param"
_LATER = {"shared::cluster": "sm_90"}


@instruction(f"cvta{{.to}}.{{space:{_SPACES}}}.u64 d:u64, a:u64", later=_LATER)
def cvta(a: Array, *, to: bool, space: str) -> Array:
    """Convert an address between a state space and generic; global and const addresses are generic already."""
    window = WINDOWS.get(space.partition("::")[0])
    if window is None:
        return a
    shift = np.uint64(window)
    return np.subtract(a, shift) if to else np.add(a, shift)


@instruction(f"isspacep.{{space:{_SPACES}}} d:pred, a:b64", later=_LATER)
def isspacep(lanes: Lanes, a: Array, *, space: str) -> Array:
    """Return whether a generic address falls into the window of a state space; `.shared` is the window of the thread's
    own CTA."""
    inside = {name: (a >= np.uint64(start)) & (a < np.uint64(start + WINDOW_SIZE)) for name, start in WINDOWS.items()}
    stem, _, extent = space.partition("::")
    if stem == "shared":
        geometry, rank = lanes.machine.geometry, rank_of(a)
        own = rank < geometry.cluster_ctas if extent == "cluster" else rank == geometry.ranks[lanes.cta]
        return inside[stem] & own
    return inside[stem] if stem in inside else ~np.logical_or.reduce(list(inside.values()))


@instruction("activemask.b32 d:b32", undefined=bits.defined)
def activemask(lanes: Lanes) -> Array:
    """Return the lanes of the warp that execute this together now; no program may rely on the set."""
    return lanes.members
