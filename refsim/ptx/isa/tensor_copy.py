"""Copies of boxes of tensors by the copy engine (TMA): loads, stores, reductions and prefetches in 1 to 5 dimensions.
Copies of the pixels that a convolution multiplies (im2col) have 3 to 5 dimensions.

A kernel changes a tensor map one field at a time, then copies it to global memory with a fence. Every access goes
through the generic proxy; copies read maps through a proxy of their own."""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.layouts.tma import MAP_ALIGN, MAP_BYTES
from refsim.ptx.checks.undefined_copies import asked, map_copied, map_replaced
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.isa.barrier import release_maps
from refsim.ptx.isa.bulk_copy import HINTS
from refsim.ptx.isa.forms import instruction
from refsim.ptx.isa.memory import space_of
from refsim.ptx.memory.space import WINDOW_SIZE, WINDOWS
from refsim.ptx.memory.tensor_map import REPLACE_RULE, replaced
from refsim.sources import PTX
from refsim.targets import has

Array = NDArray[Any]
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


_ITEM = 16
_LAST_OF_HOPPER = 12  # the last elemtype before the sub-byte types: tfloat32_ftz
_STEPS = np.arange(0, MAP_BYTES, _ITEM)
_OF_A_DIMENSION = (("box_dim|global_dim|element_stride", "b32"), ("global_stride", "b64"))
_OF_THE_WHOLE = (
    ("global_address", "value:b64", "sm_90a"),
    ("rank", "value:b32", "sm_90a"),
    ("elemtype|interleave_layout|swizzle_mode|fill_mode", "code:b32", "sm_90a"),
    ("swizzle_atomicity", "code:b32", "sm_100f"),
)
_SPACE = "{.space:global|shared::cta}"
_REPLACE, _MAP_COPY = PTX["tensormap.replace"], PTX["tensormap.cp_fenceproxy"]


for _fields, _type in _OF_A_DIMENSION:

    @instruction(
        f"tensormap.replace.tile.{{field:{_fields}}}{_SPACE}.b1024.{_type} [a], ordinal:b32, value:{_type}",
        since="sm_90a",
        undefined=map_replaced,
        source=_REPLACE,
    )
    def replace_of_dimension(
        lanes: Lanes, address: Array, ordinal: Array, value: Array, *, field: str, space: str | None
    ) -> None:
        """Change one field of one dimension of a tensor map."""
        _replace(lanes, address, field, ordinal, value, space)


for _fields, _operand, _since in _OF_THE_WHOLE:

    @instruction(
        f"tensormap.replace.tile.{{field:{_fields}}}{_SPACE}.b1024.{_operand.partition(':')[2]} [a], {_operand}",
        since=_since,
        undefined=map_replaced,
        source=_REPLACE,
    )
    def replace(lanes: Lanes, address: Array, value: Array, *, field: str, space: str | None) -> None:
        """Change one field of a tensor map; the rank is given minus one, types are numbers of the ISA's own table."""
        _replace(lanes, address, field, np.zeros(1, np.uint32), value, space)


def _replace(lanes: Lanes, address: Array, field: str, ordinal: Array, value: Array, space: str | None) -> None:
    """Read each lane's map, all of its 128 bytes, and write the changed field. Reading the whole map reveals races with
    other threads that change it."""
    place = space_of(space)
    for at in range(lanes.count):
        one = Lanes(lanes.machine, lanes.ids[at : at + 1], lanes.statement)
        where = int(lanes.full(address)[at])
        if where % MAP_BYTES:
            what = f"the tensor map's address {where:#x} is not a multiple of {MAP_BYTES} bytes"
            rule = f"{REPLACE_RULE}: .b1024, and an address is a multiple of the access"
            raise one.fault("misaligned", 0, what, rule)
        several = Lanes(lanes.machine, np.repeat(one.ids, len(_STEPS)), lanes.statement)
        before = several.load(place, where + _STEPS, _ITEM)
        if field == "elemtype" and value[0] > _LAST_OF_HOPPER and not has(lanes.machine.target, "sm_100f"):
            what = f"elemtype {value[0]} on {lanes.machine.target}: sub-byte types exist from sm_100f on"
            raise one.fault("invalid-operand", 0, what, str(REPLACE_RULE))
        try:
            after = replaced(before.tobytes(), field, int(lanes.full(ordinal)[at]), int(lanes.full(value)[at]))
        except RefsimError as error:
            raise one.fault("invalid-operand", 0, error.what, error.rule) from None
        lanes.machine.engine.map_changes(one, place, where)
        items = np.frombuffer(after, before.dtype)
        changed = np.flatnonzero(items != before)
        if len(changed):
            writing = Lanes(lanes.machine, several.ids[changed], lanes.statement)
            writing.store(place, where + _STEPS[changed], items[changed], _ITEM)


@instruction(
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.{scope:cta|cluster|gpu|sys}.sync.aligned "
    "[a], [b], size:b32",
    rendezvous="warp",
    since="sm_90",
    undefined=map_copied,
    source=_MAP_COPY,
)
def copy_and_release(lanes: Lanes, to: Array, source: Array, size: Array, *, scope: str) -> None:
    """Copy the 128 bytes of a map from shared to global memory, and release it to threads that acquire it there.

    Two lanes read each part, so that at least one of them is not the last writer. The first of them write; after the
    copy all lanes of the warp have met.
    """
    if (stray := lanes.full(size) != MAP_BYTES).any():
        raise lanes.fault("invalid-operand", int(np.argmax(stray)), f"a copy of a tensor map of {int(size[0])} bytes")
    targets, sources = lanes.full(to), lanes.full(source)
    for name, addresses in (("global", targets), ("shared", sources)):
        if (stray := addresses % MAP_ALIGN != 0).any():
            at = int(np.argmax(stray))
            what = f"the {name} address {int(addresses[at]):#x} of a tensor map is not a multiple of {MAP_ALIGN} bytes"
            raise lanes.fault("misaligned", at, what, str(_MAP_COPY))
    for warp in np.unique(lanes.warp).tolist():
        places = np.flatnonzero(lanes.warp == warp)
        start, end = int(sources[places[0]]), int(targets[places[0]])
        if (sources[places] != start).any() or (targets[places] != end).any():
            raise lanes.fault("invalid-operand", int(places[0]), "lanes of a warp copy tensor maps of several places")
        ids = lanes.ids[places]
        reading = Lanes(lanes.machine, np.sort(np.resize(ids, 2 * len(_STEPS))), lanes.statement)
        items = reading.load("shared", start + np.repeat(_STEPS, 2), _ITEM)[::2]
        writing = Lanes(lanes.machine, np.sort(np.resize(ids, len(_STEPS))), lanes.statement)
        lanes.machine.engine.map_changes(writing, "global", end)
        writing.store("global", end + _STEPS, items, _ITEM)
    if lanes.machine.races is not None:
        lanes.machine.races.orders.warp_met(lanes.ids, None, lanes.statement)
    release_maps(lanes, scope)
