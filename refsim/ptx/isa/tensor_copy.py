"""Copies of boxes of tensors by the copy engine (TMA): loads, stores, reductions and prefetches in 1 to 5 dimensions.
Copies of the pixels that a convolution multiplies (im2col) have 3 to 5 dimensions."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.isa.bulk_copy import HINTS
from refsim.ptx.isa.definedness.memory import asked
from refsim.ptx.isa.forms import instruction
from refsim.ptx.memory.arrays import Array
from refsim.ptx.memory.space import WINDOW_SIZE, WINDOWS
from refsim.sources import PTX

_SECTION, _REDUCES = PTX["cp.async.bulk.tensor"], PTX["cp.reduce.async.bulk.tensor"]
_COUNTED = ".mbarrier::complete_tx::bytes"
_GROUP, _LATER = "{.group:cta_group::1|cta_group::2}", {"cta_group::1": "sm_100f", "cta_group::2": "sm_100f"}
_TO = ".{place:shared::cluster|shared::cta}.global"
_OPERATIONS = "{operation:add|min|max|inc|dec|and|or|xor}"
_tensor = partial(instruction, since="sm_90", undefined=asked, source=_SECTION)


def _spatial(modifiers: dict[str, Any]) -> int:
    """Return how many im2col offsets there are: one for each of W, H and D that the tensor has."""
    return int(modifiers["dim"][0]) - 2


class _Kind(NamedTuple):
    """What is copied: the parts of its opcodes, and the operand of its offsets."""

    dims: str
    to_shared: str
    to_global: str
    offset: str
    ignored: tuple[str, ...]


_BOX = _Kind("{dim:1d|2d|3d|4d|5d}", "{.tile}", "{.tile}", "", ("dim", "tile"))
_PIXELS = _Kind("{dim:3d|4d|5d}", ".im2col", ".im2col_no_offs", ", offset:b16**", ("dim",))
"""The pixels that a convolution multiplies: offsets, an operand before the mask and the policy, move a filter's base."""


def _loads(kind: _Kind, hint: str, policy: str) -> None:
    """Register the copies to shared memory."""
    dims, to_shared, _, offset, ignored = kind
    stem, is_im2col = f"cp.async.bulk.tensor.{dims}", kind is _PIXELS
    length = _spatial if is_im2col else None

    @_tensor(
        f"{stem}{_TO}{to_shared}{_COUNTED}{_GROUP}{hint} [a], [map, {{c:s32}}], [bar]{offset}{policy}",
        ignores=(*ignored, "place"),
        length=length,
        later=_LATER,
    )
    def load(
        lanes: Lanes, to: Array, tensor_map: Array, corner: list[Array], barrier: Array, *rest: Any, group: str | None
    ) -> None:
        """Start a copy of a box, or of pixels with a row of channels for each, to shared memory of a CTA; an mbarrier
        counts all bytes of the box, including those out of bounds. It is in that CTA, or with .cta_group::2 in either CTA
        of its pair."""
        moved = rest[0] if is_im2col else None
        lanes.machine.engine.box(lanes, tensor_map, corner, to, barrier=barrier, offsets=moved, group=group)

    @_tensor(
        f"{stem}.shared::cluster.global{to_shared}{_COUNTED}.multicast::cluster{_GROUP}{hint} "
        f"[a], [map, {{c:s32}}], [bar]{offset}, mask:b16{policy}",
        ignores=ignored,
        length=length,
        later=_LATER,
    )
    def load_for_many(
        lanes: Lanes, to: Array, tensor_map: Array, corner: list[Array], barrier: Array, *rest: Any, group: str | None
    ) -> None:
        """Start a copy of a box to one place in every CTA of a mask; each CTA's mbarrier counts its own bytes. With
        .cta_group::2 the mbarrier of one CTA of each pair counts them: the even one or the odd one, as `barrier` is."""
        moved, mask = (rest[0], rest[1]) if is_im2col else (None, rest[0])
        engine = lanes.machine.engine
        engine.box(lanes, tensor_map, corner, to, barrier=barrier, mask=mask, offsets=moved, group=group)


def _others(kind: _Kind, hint: str, policy: str) -> None:
    """Register the copies and reductions to global memory, and the prefetch."""
    dims, to_shared, to_global, offset, ignored = kind
    stem, is_im2col = f"cp.async.bulk.tensor.{dims}", kind is _PIXELS
    unmoved: list[Array] | None = [] if is_im2col else None

    @_tensor(f"{stem}.global.shared::cta{to_global}.bulk_group{hint} [map, {{c:s32}}], [b]{policy}", ignores=ignored)
    def store(lanes: Lanes, tensor_map: Array, corner: list[Array], source: Array, policy: Any = None) -> None:
        """Start a copy of a box of shared memory to a tensor, without its part out of bounds, in the thread's current
        group."""
        lanes.machine.engine.box(lanes, tensor_map, corner, source, offsets=unmoved)

    @_tensor(
        f"cp.reduce.async.bulk.tensor.{dims}.global.shared::cta.{_OPERATIONS}{to_global}.bulk_group{hint} "
        f"[map, {{c:s32}}], [b]{policy}",
        ignores=ignored,
        source=_REDUCES,
    )
    def reduce(
        lanes: Lanes, tensor_map: Array, corner: list[Array], source: Array, policy: Any = None, *, operation: str
    ) -> None:
        """Start a reduction of a box of shared memory into a tensor, element by element of the map's type."""
        lanes.machine.engine.box(lanes, tensor_map, corner, source, reduction=operation, offsets=unmoved)

    @_tensor(
        f"cp.async.bulk.prefetch.tensor.{dims}.L2.global{to_shared}{hint} [map, {{c:s32}}]{offset}{policy}",
        ignores=ignored,
        length=_spatial if is_im2col else None,
        source=PTX["cp.async.bulk.prefetch.tensor"],
    )
    def prefetch(lanes: Lanes, tensor_map: Array, corner: list[Array], *rest: Any) -> None:
        """Check the addresses of a hint: nothing is read, and nothing is ordered."""
        lanes.machine.engine.look(lanes, tensor_map, corner, rest[0] if is_im2col else None)


for _hint, _policy in HINTS:
    for _kind in (_BOX, _PIXELS):
        _loads(_kind, _hint, _policy)
        _others(_kind, _hint, _policy)


@_tensor("prefetch{.space:const|param}.tensormap [map]", source=PTX["prefetch"])
def prefetch_map(lanes: Lanes, tensor_map: Array, *, space: str | None) -> None:
    """Check a hint that a copy will use a tensor map; .param with a generic address is a fault, as on an H200."""
    if space == "param":
        if (tensor_map.astype(np.int64) >= WINDOW_SIZE).any():
            what = f"{int(tensor_map.max()):#x} is a generic address: .param has no such byte"
            raise lanes.fault("out-of-bounds", 0, what)
        tensor_map = tensor_map + np.uint64(WINDOWS["param"])
    lanes.machine.engine.look(lanes, tensor_map)
