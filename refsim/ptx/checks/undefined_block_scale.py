"""Rule for undefined bits in a warp's block-scaled product: a scale affects its row of A or its column of B."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.layouts.families import fragment as fragment_named
from refsim.layouts.families.mma import Scaling
from refsim.ptx.checks.undefined_bits import RuleOperands
from refsim.ptx.checks.undefined_warp import accumulated, is_whole, matrix_of

Array = NDArray[Any]
_SELECTORS = "the selector of scales"


def scale_name(scaling: Scaling, operand: str, byte: int, thread: int) -> str:
    """Return the name of the fragment of scales that these ids choose."""
    suffix = f".byte{byte}.thread{thread}" if byte or thread else ""
    return f"mma.{scaling}.{operand}{suffix}"


def multiplied(names: tuple[str, str, str], scaling: Scaling) -> Callable[[RuleOperands], list[Any]]:
    """Return the rule for D with the fragments of A, B and C. An undefined element or scale of a row of A makes that
    row of D undefined; of a column of B, that column. Bytes that the ids do not choose are not read. The ids themselves
    must be defined."""

    def rule(operands: RuleOperands) -> list[Any]:
        """Return the masks of the registers of D."""
        nothing: list[Any] = [[None] * len(operands.results[0][0])]
        named = dict(zip(operands.names, operands.values, strict=True))
        masks = dict(zip(operands.names, operands.masks, strict=True))
        for ids in ("ids_a", "ids_b"):
            operands.demand(masks[ids], _SELECTORS)
        if not is_whole(operands.lanes) or not any(mask is not None for held in masks.values() for mask in held):
            return nothing
        a, b, c = (fragment_named(name) for name in names)
        count = operands.lanes.count
        chosen = []
        for side in "ab":
            byte, thread = (int(each[0]) for each in named[f"ids_{side}"])
            chosen.append(
                matrix_of(masks[f"sf{side}"], fragment_named(scale_name(scaling, f"sf{side}", byte, thread)), count)
            )
        rows = np.maximum(matrix_of(masks["a"], a, count).max(axis=2), chosen[0].max(axis=2))
        columns = np.maximum(matrix_of(masks["b"], b, count).max(axis=1), chosen[1].max(axis=1))
        events = np.maximum(matrix_of(masks["c"], c, count), np.maximum(rows[:, :, None], columns[:, None, :]))
        return accumulated(operands, events, c)

    return rule
