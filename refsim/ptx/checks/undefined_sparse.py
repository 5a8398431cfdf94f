"""Rules for undefined bits in products with a sparse A: an element of B affects rows that store an element for it."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.formats import element_named
from refsim.layouts.families import fragment as fragment_named
from refsim.layouts.families.sparse import SparseShape
from refsim.layouts.holders import WARP
from refsim.numerics.sparse import gathered, sparsity_of
from refsim.ptx.checks.undefined import tracking_of
from refsim.ptx.checks.undefined_bits import RuleOperands
from refsim.ptx.checks.undefined_warp import accumulated, changes_of, is_whole, matrix_of
from refsim.ptx.execution.masks import Mask
from refsim.ptx.execution.metadata import MetadataError, givers, positions_of

Array = NDArray[Any]
SPARSE_METADATA = "the metadata of a sparse product"


def multiplied(names: Sequence[str], shape: SparseShape, type: str) -> Callable[[RuleOperands], list[Any]]:
    """Return the rule for D = A B + C with the fragments of A, B and C. An undefined element of a row of A makes that
    row of D undefined; an element of B, its column in the rows that store an element there. Metadata must be defined in
    the lanes that provide it."""

    def rule(operands: RuleOperands) -> list[Any]:
        """Return the masks of the registers of D."""
        nothing: list[Any] = [[None] * len(operands.results[0][0])]
        if not is_whole(operands.lanes):
            return nothing
        named = dict(zip(operands.names, operands.values, strict=True))
        masks = dict(zip(operands.names, operands.masks, strict=True))
        selector = int(named["selector"][0])
        if selector not in shape.selectors:
            return nothing  # a fault of the instruction
        demand_metadata(operands, masks["metadata"], shape.metadata(type, selector), WARP)
        if not any(mask is not None for name in "abc" for mask in masks[name]):
            return nothing
        try:
            positions = positions_of(operands.lanes.full(named["metadata"]), shape, type, selector, ordered=False)
        except MetadataError:
            return nothing  # a fault of the instruction
        a, b, c = (fragment_named(name) for name in names)
        count = operands.lanes.count
        events = np.maximum(matrix_of(masks["c"], c, count), matrix_of(masks["a"], a, count).max(axis=2)[:, :, None])

        def meet(held: Array) -> Array:
            return np.asarray(gathered(held, positions, sparsity_of(element_named(type))))

        events = np.maximum(events, meet(matrix_of(masks["b"], b, count).swapaxes(1, 2)).max(axis=3))
        changes = changes_of(operands, (a, b, c), meet) if "satfinite" in operands.keywords else None
        return accumulated(operands, events, c, changes)

    return rule


def demand_metadata(operands: RuleOperands, mask: Mask | None, name: str, threads: int) -> None:
    """Report undefined metadata in the lanes that provide it; other lanes may hold anything."""
    if mask is None:
        return
    lanes = operands.lanes
    giving = np.isin(np.arange(lanes.count) % threads, givers(name))
    part = lanes.select(giving)
    assert part is not None
    tracking_of(lanes).reached(part, mask.part(giving), SPARSE_METADATA)
