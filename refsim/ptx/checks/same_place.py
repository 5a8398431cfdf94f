"""Lanes that write to one place by one instruction, which nothing orders."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.checks.areas import AccessPart, is_rising, unequal
from refsim.ptx.execution.geometry import Geometry
from refsim.ptx.memory.access import UPDATE
from refsim.ptx.memory.semantics import CTA, GPU

Array = NDArray[Any]


def changes(part: AccessPart) -> NDArray[np.bool_]:
    """Return which lanes write a value that differs from memory before the instruction (or their turn of an update)."""
    access = part.access
    held, items = access.held(), access.items
    assert items is not None
    if len(items) != len(held):
        items = np.broadcast_to(items, len(held))
    if access.kind != UPDATE or is_rising(part.index):
        changed = unequal(held, items)
    elif (part.index == part.index[0]).all():
        changed = unequal(np.concatenate((held[:1], items[:-1])), items)
    else:
        order = np.argsort(part.index, kind="stable")
        again = part.index[order[1:]] == part.index[order[:-1]]
        held[order[1:][again]] = items[order[:-1][again]]
        changed = unequal(held, items)
    return changed if access.wrote is None else changed & access.wrote


def collision(part: AccessPart, geometry: Geometry) -> tuple[int, int] | None:
    """Return the positions of two lanes that race within one instruction that was just made; None if there are none.
    They store different values, or update with a scope that does not include both."""
    access, meaning = part.access, part.access.semantics
    if len(part.index) == 1 or (meaning.strong and meaning.scope >= GPU) or is_rising(part.index):
        return None
    if not meaning.strong:
        assert access.items is not None
        differ = np.flatnonzero(unequal(access.held(), np.broadcast_to(access.items, len(access.index))))
        if not len(differ):
            return None
        one = int(differ[0])
        return one, int(np.flatnonzero(part.index == part.index[one])[-1])
    return _among_strong(
        part, geometry.cta[part.access.threads.ids] // (1 if meaning.scope == CTA else geometry.cluster_ctas)
    )


def copied_twice(part: AccessPart, items: Callable[[], Array], geometry: Geometry) -> tuple[int, int] | None:
    """Return the positions of two lanes that copy to one place by one instruction; None if there are none. Either copy
    may come last. Equal bytes are accepted within a warp. In two warps the later copy may still be in flight when the
    earlier one has been waited for."""
    if is_rising(part.index):
        return None
    order = np.argsort(part.index, kind="stable")
    ordered = part.index[order]
    twice = np.flatnonzero(ordered[1:] == ordered[:-1])
    if not len(twice):
        return None
    first, second = order[twice], order[twice + 1]
    copied, warp = items(), geometry.warp[part.access.threads.ids]
    differ = np.flatnonzero(unequal(copied[first], copied[second]) | (warp[first] != warp[second]))
    return (int(first[differ[0]]), int(second[differ[0]])) if len(differ) else None


def _among_strong(part: AccessPart, units: Array) -> tuple[int, int] | None:
    """Return the positions of two racing lanes of a strong access; lanes with one number in `units` share a scope."""
    access, changed = part.access, part.changed
    assert changed is not None
    assert access.items is not None
    order = np.argsort(part.index, kind="stable")
    for together in np.split(order, np.flatnonzero(np.diff(part.index[order])) + 1):
        apart = units[together]
        if (apart == apart[0]).all():
            continue
        racing = changed[together]
        if access.kind != UPDATE:
            items = np.broadcast_to(access.items, len(access.index))[together]
            racing = unequal(items, np.broadcast_to(items[:1], len(items)))
        if racing.any():
            one = int(np.flatnonzero(racing)[0])
            return int(together[one]), int(together[np.flatnonzero(apart != apart[one])[0]])
    return None
