"""Tensor maps that a kernel changes: one field at a time, then a copy to global memory with a fence. Every access goes
through the generic proxy; copies read maps through a proxy of their own."""

import numpy as np

from refsim.errors import RefsimError
from refsim.layouts.tma import MAP_ALIGN, MAP_BYTES
from refsim.ptx.events import MEET_WARPS
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.isa.definedness.memory import map_copied, map_replaced
from refsim.ptx.isa.forms import instruction
from refsim.ptx.isa.memory import space_of
from refsim.ptx.isa.proxy_fence import release_maps
from refsim.ptx.memory.arrays import Array
from refsim.ptx.memory.tensor_map import REPLACE_RULE, replaced
from refsim.sources import PTX
from refsim.targets import has

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
_SECTION, _COPY = PTX["tensormap.replace"], PTX["tensormap.cp_fenceproxy"]


for _fields, _type in _OF_A_DIMENSION:

    @instruction(
        f"tensormap.replace.tile.{{field:{_fields}}}{_SPACE}.b1024.{_type} [a], ordinal:b32, value:{_type}",
        since="sm_90a",
        undefined=map_replaced,
        source=_SECTION,
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
        source=_SECTION,
    )
    def replace(lanes: Lanes, address: Array, value: Array, *, field: str, space: str | None) -> None:
        """Change one field of a tensor map; the rank is given minus one, types are numbers of the ISA's own table."""
        _replace(lanes, address, field, np.zeros(1, np.uint32), value, space)


def _replace(lanes: Lanes, address: Array, field: str, ordinal: Array, value: Array, space: str | None) -> None:
    """Read each lane's map, all of its 128 bytes, and write the changed field. Reading the whole map reveals races with
    other threads that change it."""
    place = space_of(space)
    for one, at in lanes.each():
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
    source=_COPY,
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
            raise lanes.fault("misaligned", at, what, str(_COPY))
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
    lanes.emit(MEET_WARPS)
    release_maps(lanes, scope)
