"""Stores and reductions to another CTA of the cluster, whose mbarrier counts their bytes: st.async and red.async."""

from functools import partial
from typing import Any

import numpy as np

from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.types import TYPES
from refsim.ptx.isa.atomic import reduction
from refsim.ptx.isa.definedness.bits import RuleOperands, defined
from refsim.ptx.isa.forms import instruction
from refsim.ptx.memory.arrays import Array
from refsim.ptx.memory.space import WINDOW_SIZE, WINDOWS
from refsim.sources import PTX

_COUNTED = "{.space:shared::cluster}.mbarrier::complete_tx::bytes"


def sent(operands: RuleOperands) -> list[Any]:
    """Demand that addresses and sent values are defined; return the masks of the results."""
    for mask in operands.masks:
        for each in mask if isinstance(mask, list) else [mask]:
            operands.demand(each, "what an asynchronous store is given")
    return defined(operands)


_async = partial(instruction, since="sm_90", undefined=sent)


def _shared(address: Array, space: str | None) -> Array:
    """Return addresses as offsets in the window of shared memory; generic addresses differ from offsets by a
    constant."""
    at, start = address.astype(np.int64), WINDOWS["shared"]
    return at if space else np.where((at >= start) & (at < start + WINDOW_SIZE), at - start, at)


for _vectors, _types in (("v2", "b32|b64|u32|u64|s32|s64|f32|f64"), ("v4", "b32|u32|s32|f32")):
    _form = f"st.async{{.weak}}{_COUNTED}{{.vec:v2}}" if _vectors == "v2" else f"st.async{{.weak}}{_COUNTED}.{{vec:v4}}"

    @_async(f"{_form}.{{type:{_types}}} [a], b*, [bar]", ignores=("weak", "vec"), source=PTX["st.async"])
    def store(lanes: Lanes, to: Array, b: list[Array], barrier: Array, *, space: str | None, type: str) -> None:
        """Send the values to shared memory of a CTA, whose mbarrier counts their bytes."""
        row = TYPES[type]
        words = np.stack([lanes.full(column.view(row.bits_dtype)) for column in b], axis=1)
        lanes.machine.engine.send(lanes, _shared(to, space), words, _shared(barrier, space))


for _operations, _types in (
    ("inc|dec", "u32"),
    ("min|max", "u32|s32"),
    ("and|or|xor", "b32"),
    ("add", "u32|s32|u64|s64"),
):

    @_async(
        f"red.async.relaxed.cluster{_COUNTED}.{{operation:{_operations}}}.{{type:{_types}}} [a], b, [bar]",
        source=PTX["red.async"],
    )
    def reduce(
        lanes: Lanes, to: Array, b: Array, barrier: Array, *, space: str | None, operation: str, type: str
    ) -> None:
        """Send the value to be combined with the contents of a CTA's shared memory; its mbarrier counts the bytes."""
        row, update = TYPES[type], reduction(operation, type)
        assert update is not None
        words = np.ascontiguousarray(lanes.full(b)).view(row.bits_dtype)[:, None]
        lanes.machine.engine.send(lanes, _shared(to, space), words, _shared(barrier, space), update)
