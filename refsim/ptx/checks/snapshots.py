"""The knowledge of lanes at one moment, derived from the rows of the clocks."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.layouts.holders import WARP
from refsim.ptx.checks.knowledge import Knowledge, as_stamps, joined, largest
from refsim.ptx.execution.geometry import Geometry, Ids

Array = NDArray[Any]


@dataclass
class Rows:
    """For each lane, the access numbers up to which it comes after others. `cta` and `warp`: its own CTA and warp.
    `warps` and `lanes`: each warp of its CTA and each lane of its warp, None until needed. `foreign`: the number of its
    `Knowledge` of other threads. `own`: its own newest access, in a copy of rows."""

    cta: Array
    warp: Array
    foreign: Array
    own: Array
    warps: Array | None = None
    lanes: Array | None = None

    @staticmethod
    def empty(lanes: int) -> "Rows":
        """Return rows of lanes that know nothing."""
        return Rows(*(np.zeros(lanes, np.int32) for _ in range(4)))


def of_lane(geometry: Geometry, known: list[Knowledge], rows: Rows, lane: int, now: int) -> Knowledge:
    """Return what one lane knows by these rows, with all that it did itself up to `now`."""
    of_grid, thread = divmod(lane, geometry.threads)
    cta, warp = of_grid + geometry.first, thread // WARP
    ctas, warps = {cta: int(rows.cta[lane])}, {cta * geometry.warps + warp: int(rows.warp[lane])}
    threads = {cta * geometry.threads + thread: now}
    if rows.warps is not None:
        for number in np.flatnonzero(rows.warps[lane]).tolist():
            name = cta * geometry.warps + number
            warps[name] = max(warps.get(name, 0), int(rows.warps[lane, number]))
    if rows.lanes is not None:
        first = cta * geometry.threads + warp * WARP
        for number in np.flatnonzero(rows.lanes[lane]).tolist():
            threads[first + number] = max(threads.get(first + number, 0), int(rows.lanes[lane, number]))
    foreign = int(rows.foreign[lane])
    return joined((known[foreign],) if foreign else (), ctas, warps, threads)


def of_lanes(geometry: Geometry, known: list[Knowledge], rows: Rows, lanes: Ids, now: int) -> Knowledge:
    """Return the joint knowledge of several lanes, with all that they did up to `now`."""
    if len(lanes) == 1:
        return of_lane(geometry, known, rows, int(lanes[0]), now)
    ctas = geometry.cta[lanes] + geometry.first
    warp, stamps = geometry.warp[lanes] + geometry.first * geometry.warps, rows.warp[lanes]
    if rows.warps is not None:
        which, number = np.nonzero(rows.warps[lanes])
        warp = np.concatenate([warp, ctas[which] * geometry.warps + number])
        stamps = np.concatenate([stamps, rows.warps[lanes[which], number]])
    thread, numbers = lanes + geometry.first * geometry.threads, np.full(len(lanes), now)
    if rows.lanes is not None:
        which, number = np.nonzero(rows.lanes[lanes])
        thread = np.concatenate([thread, thread[which] - geometry.laneid[lanes[which]] + number])
        numbers = np.concatenate([numbers, rows.lanes[lanes[which], number]])
    threads = as_stamps(*largest(thread, numbers))
    foreign = tuple(known[number] for number in np.unique(rows.foreign[lanes]).tolist() if number)
    of_ctas, of_warps = as_stamps(*largest(ctas, rows.cta[lanes])), as_stamps(*largest(warp, stamps))
    return joined(foreign, of_ctas, of_warps, threads)
