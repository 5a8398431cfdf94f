"""Requests of a running block to cancel a cluster that has not started, and to take over its work.

The response is opaque: here three coordinates, whether the request succeeded, and a mark by which it is known.
"""

from functools import partial
from typing import Any

import numpy as np

from refsim.ptx.execution.geometry import grid_number, unflatten
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.register_file import mask_of
from refsim.ptx.isa.definedness.bits import RuleOperands
from refsim.ptx.isa.definedness.memory import asked
from refsim.ptx.isa.definedness.tracking import tracking_of
from refsim.ptx.isa.forms import instruction
from refsim.ptx.memory.arrays import Array
from refsim.ptx.memory.space import POISON, WINDOWS, is_shared
from refsim.sources import PTX

_TRY, _QUERY = PTX["clusterlaunchcontrol.try_cancel"], PTX["clusterlaunchcontrol.query_cancel"]
_RESPONSE = np.dtype([("x", "<u4"), ("y", "<u2"), ("z", "<u2"), ("succeeded", "<u4"), ("mark", "<u4")])
_MARK = 0x3143_4C43
_AXES = ("x", "y", "z")
_POISON = np.uint32(int.from_bytes(bytes([POISON]) * 4, "little"))


@instruction(
    "clusterlaunchcontrol.try_cancel.async{.space:shared::cta}.mbarrier::complete_tx::bytes"
    "{.everyone:multicast::cluster::all}.b128 [a], [bar]",
    since="sm_100",
    later={"multicast::cluster::all": "sm_100f"},
    undefined=asked,
    source=_TRY,
)
def try_cancel(lanes: Lanes, to: Array, barrier: Array, *, space: str | None, everyone: str | None) -> None:
    """Ask for the work of a cluster that has not started. The response comes through the asynchronous proxy; an mbarrier
    counts its 16 bytes, with .multicast::cluster::all in every CTA of the cluster."""
    machine, geometry = lanes.machine, lanes.machine.geometry
    for one, at in lanes.each():
        places = []
        for address in (int(lanes.full(each)[at]) for each in (to, barrier)):
            if space is None and not is_shared(np.array([address])).all():
                raise one.fault("invalid-operand", 0, f"{address:#x} is not in the shared memory of the CTA", str(_TRY))
            places.append(address - WINDOWS["shared"] * (space is None))
        if int(one.cta[0]) in machine.engine.refused:
            what = "a request to cancel, after the block has seen that an earlier one failed"
            raise one.fault("invalid-operand", 0, what, f"{_TRY}: that is undefined")
        number = None if machine.pending is None else machine.pending.cancel()
        response = np.zeros(1, _RESPONSE)
        response["mark"] = _MARK
        if number is not None:
            response["succeeded"], first = 1, int(grid_number(np.array([number]), geometry.grid, geometry.cluster)[0])
            for axis, value in zip(_AXES, unflatten(first, geometry.grid), strict=True):
                response[axis] = value
        ctas = (1 << geometry.cluster_ctas) - 1 if everyone else None
        machine.engine.respond(one, places[0], places[1], response.tobytes(), ctas, failed=number is None)


def _responses(lanes: Lanes, handle: Array) -> Array:
    """Return the responses of lanes; raise a fault for 16 bytes that no request wrote."""
    found = np.ascontiguousarray(lanes.full(handle)).view(_RESPONSE)
    if (stray := found["mark"] != _MARK).any():
        at = int(np.argmax(stray))
        what = "the 16 bytes are not the response to a request to cancel"
        raise lanes.fault("invalid-operand", at, what, str(_QUERY))
    return found


@instruction("clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 d:pred, a:b128", since="sm_100", source=_QUERY)
def is_canceled(lanes: Lanes, handle: Array) -> Array:
    """Return whether the request succeeded."""
    succeeded: Array = _responses(lanes, handle)["succeeded"] == 1
    return succeeded


def _first_cta(operands: RuleOperands) -> list[Any]:
    """Return masks of coordinates: undefined if the request failed, or if a bit of the response is undefined."""
    lanes = operands.lanes
    unknown, origin = operands.unknown()
    failed = np.ascontiguousarray(lanes.full(operands.values[0])).view(_RESPONSE)["succeeded"] != 1
    if failed.any():
        what = "the request to cancel a cluster failed: its response has no coordinates"
        origin = np.where(failed, tracking_of(lanes).origins.add(lanes, failed, what), origin)
    mask = mask_of(np.where(unknown | failed, ~np.uint32(0), np.uint32(0)), origin)
    return [[mask] * len(result) if isinstance(result, tuple) else mask for result, _ in operands.results]


_query = partial(instruction, since="sm_100", undefined=_first_cta, source=_QUERY)


@_query(
    "clusterlaunchcontrol.query_cancel.{axis:get_first_ctaid::x|get_first_ctaid::y|get_first_ctaid::z}.b32.b128 "
    "d:b32, a:b128"
)
def first_cta(lanes: Lanes, handle: Array, *, axis: str) -> Array:
    """Return a coordinate of the first CTA of the cancelled cluster; after a request that failed it is undefined."""
    return _coordinates(lanes, handle)[_AXES.index(axis[-1])]


@_query("clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 d:b32*4, a:b128")
def first_cta_vector(lanes: Lanes, handle: Array) -> list[Array]:
    """Return the three coordinates of the first CTA of the cancelled cluster, and an element that means nothing."""
    return [*_coordinates(lanes, handle), np.full(1, _POISON)]


def _coordinates(lanes: Lanes, handle: Array) -> list[Array]:
    found = _responses(lanes, handle)
    failed = found["succeeded"] != 1
    if failed.any():
        lanes.machine.saw_unwritten()
    return [np.where(failed, _POISON, found[axis].astype(np.uint32)) for axis in _AXES]
