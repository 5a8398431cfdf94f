"""Copies of boxes of tensors by the copy engine (TMA): loads, stores, reductions and prefetches in 1 to 5 dimensions.
Copies of the pixels that a convolution multiplies (im2col) have 3 to 5 dimensions."""

from functools import partial
from typing import Any

import numpy as np

from refsim.ptx.checks.undefined_memory import asked
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.isa.bulk_copy import HINTS
from refsim.ptx.isa.forms import instruction
from refsim.ptx.memory.arrays import Array
from refsim.ptx.memory.space import WINDOW_SIZE, WINDOWS
from refsim.sources import PTX

_STEM = "cp.async.bulk.tensor.{dim:1d|2d|3d|4d|5d}"
_SECTION, _REDUCES = PTX["cp.async.bulk.tensor"], PTX["cp.reduce.async.bulk.tensor"]
_COUNTED = ".mbarrier::complete_tx::bytes"
_COLUMNS = "cp.async.bulk.tensor.{dim:3d|4d|5d}"
_IGNORED = ("dim", "tile")
_GROUP, _LATER = "{.group:cta_group::1|cta_group::2}", {"cta_group::1": "sm_100f", "cta_group::2": "sm_100f"}
_TO = ".{place:shared::cluster|shared::cta}.global"
_tensor = partial(instruction, since="sm_90", undefined=asked, source=_SECTION)


def _spatial(modifiers: dict[str, Any]) -> int:
    """Return how many im2col offsets there are: one for each of W, H and D that the tensor has."""
    return int(modifiers["dim"][0]) - 2


for _hint, _policy in HINTS:

    @_tensor(
        f"{_STEM}{_TO}{{.tile}}{_COUNTED}{_GROUP}{_hint} [a], [map, {{c:s32}}], [bar]{_policy}",
        ignores=(*_IGNORED, "place"),
        later=_LATER,
    )
    def load(
        lanes: Lanes, to: Array, tensor_map: Array, corner: list[Array], barrier: Array, *policy: Any, group: str | None
    ) -> None:
        """Start a copy of a box to shared memory of a CTA; an mbarrier counts all bytes of the box, including those
        out of bounds. It is in that CTA, or with .cta_group::2 in either CTA of its pair."""
        lanes.machine.engine.box(lanes, tensor_map, corner, to, barrier=barrier, group=group)

    @_tensor(
        f"{_STEM}.shared::cluster.global{{.tile}}{_COUNTED}.multicast::cluster{_GROUP}{_hint} "
        f"[a], [map, {{c:s32}}], [bar], mask:b16{_policy}",
        ignores=_IGNORED,
        later=_LATER,
    )
    def load_for_many(
        lanes: Lanes,
        to: Array,
        tensor_map: Array,
        corner: list[Array],
        barrier: Array,
        mask: Array,
        *policy: Any,
        group: str | None,
    ) -> None:
        """Start a copy of a box to one place in every CTA of a mask; each CTA's mbarrier counts its own bytes. With
        .cta_group::2 the mbarrier of one CTA of each pair counts them: the even one or the odd one, as `barrier` is."""
        lanes.machine.engine.box(lanes, tensor_map, corner, to, barrier=barrier, mask=mask, group=group)

    @_tensor(f"{_STEM}.global.shared::cta{{.tile}}.bulk_group{_hint} [map, {{c:s32}}], [b]{_policy}", ignores=_IGNORED)
    def store(lanes: Lanes, tensor_map: Array, corner: list[Array], source: Array, policy: Any = None) -> None:
        """Start a copy of a box of shared memory to a tensor, without its part out of bounds, in the thread's current
        group."""
        lanes.machine.engine.box(lanes, tensor_map, corner, source)

    @_tensor(
        "cp.reduce.async.bulk.tensor.{dim:1d|2d|3d|4d|5d}.global.shared::cta.{operation:add|min|max|inc|dec|and|or|xor}"
        f"{{.tile}}.bulk_group{_hint} [map, {{c:s32}}], [b]{_policy}",
        ignores=_IGNORED,
        source=_REDUCES,
    )
    def reduce(
        lanes: Lanes, tensor_map: Array, corner: list[Array], source: Array, policy: Any = None, *, operation: str
    ) -> None:
        """Start a reduction of a box of shared memory into a tensor, element by element of the map's type."""
        lanes.machine.engine.box(lanes, tensor_map, corner, source, reduction=operation)

    @_tensor(
        f"cp.async.bulk.prefetch.tensor.{{dim:1d|2d|3d|4d|5d}}.L2.global{{.tile}}{_hint} [map, {{c:s32}}]{_policy}",
        ignores=_IGNORED,
        source=PTX["cp.async.bulk.prefetch.tensor"],
    )
    def prefetch(lanes: Lanes, tensor_map: Array, corner: list[Array], policy: Any = None) -> None:
        """Check the addresses of a hint: nothing is read, and nothing is ordered."""
        lanes.machine.engine.look(lanes, tensor_map, corner)

    @_tensor(
        f"{_COLUMNS}{_TO}.im2col{_COUNTED}{_GROUP}{_hint} [a], [map, {{c:s32}}], [bar], offset:b16**{_policy}",
        ignores=("dim", "place"),
        length=_spatial,
        later=_LATER,
    )
    def load_columns(
        lanes: Lanes,
        to: Array,
        tensor_map: Array,
        base: list[Array],
        barrier: Array,
        offsets: list[Array],
        *policy: Any,
        group: str | None,
    ) -> None:
        """Start a copy of pixels to shared memory, a row of channels for each, from a filter's base moved by the
        offsets."""
        lanes.machine.engine.box(lanes, tensor_map, base, to, barrier=barrier, offsets=offsets, group=group)

    @_tensor(
        f"{_COLUMNS}.shared::cluster.global.im2col{_COUNTED}.multicast::cluster{_GROUP}{_hint} "
        f"[a], [map, {{c:s32}}], [bar], offset:b16**, mask:b16{_policy}",
        ignores=("dim",),
        length=_spatial,
        later=_LATER,
    )
    def load_columns_for_many(
        lanes: Lanes,
        to: Array,
        tensor_map: Array,
        base: list[Array],
        barrier: Array,
        offsets: list[Array],
        mask: Array,
        *policy: Any,
        group: str | None,
    ) -> None:
        """Start a copy of pixels to one place in every CTA of a mask, from a filter's base moved by the offsets."""
        engine = lanes.machine.engine
        engine.box(lanes, tensor_map, base, to, barrier=barrier, mask=mask, offsets=offsets, group=group)

    @_tensor(
        f"{_COLUMNS}.global.shared::cta.im2col_no_offs.bulk_group{_hint} [map, {{c:s32}}], [b]{_policy}",
        ignores=("dim",),
    )
    def store_columns(lanes: Lanes, tensor_map: Array, base: list[Array], source: Array, policy: Any = None) -> None:
        """Start a copy of rows of shared memory to the pixels from a base on, without pixels out of bounds."""
        lanes.machine.engine.box(lanes, tensor_map, base, source, offsets=[])

    @_tensor(
        "cp.reduce.async.bulk.tensor.{dim:3d|4d|5d}.global.shared::cta.{operation:add|min|max|inc|dec|and|or|xor}"
        f".im2col_no_offs.bulk_group{_hint} [map, {{c:s32}}], [b]{_policy}",
        ignores=("dim",),
        source=_REDUCES,
    )
    def reduce_columns(
        lanes: Lanes, tensor_map: Array, base: list[Array], source: Array, policy: Any = None, *, operation: str
    ) -> None:
        """Start a reduction of rows of shared memory into the pixels from a base on."""
        lanes.machine.engine.box(lanes, tensor_map, base, source, reduction=operation, offsets=[])

    @_tensor(
        f"cp.async.bulk.prefetch.tensor.{{dim:3d|4d|5d}}.L2.global.im2col{_hint} [map, {{c:s32}}], offset:b16**{_policy}",
        ignores=("dim",),
        length=_spatial,
        source=PTX["cp.async.bulk.prefetch.tensor"],
    )
    def prefetch_columns(
        lanes: Lanes, tensor_map: Array, base: list[Array], offsets: list[Array], policy: Any = None
    ) -> None:
        """Check the addresses of a hint: nothing is read, and nothing is ordered."""
        lanes.machine.engine.look(lanes, tensor_map, base, offsets)


@_tensor("prefetch{.space:const|param}.tensormap [map]", source=PTX["prefetch"])
def prefetch_map(lanes: Lanes, tensor_map: Array, *, space: str | None) -> None:
    """Check a hint that a copy will use a tensor map; .param with a generic address is a fault, as on an H200."""
    if space == "param":
        if (tensor_map.astype(np.int64) >= WINDOW_SIZE).any():
            what = f"{int(tensor_map.max()):#x} is a generic address: .param has no such byte"
            raise lanes.fault("out-of-bounds", 0, what)
        tensor_map = tensor_map + np.uint64(WINDOWS["param"])
    lanes.machine.engine.look(lanes, tensor_map)
