"""mma.sp: products of a warp whose A is sparse, with metadata from some lanes of each four."""

from typing import Any

import numpy as np

from refsim.formats import element_named
from refsim.layouts.families import fragment as fragment_named
from refsim.layouts.families.sparse import SPARSE_SHAPES, SparseShape
from refsim.layouts.holders import WARP
from refsim.ptx.execution.geometry import WARPGROUP
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.matrix_operands import MetadataError, positions_of
from refsim.ptx.isa.definedness import warp as undefined
from refsim.ptx.isa.forms import instruction
from refsim.ptx.isa.fragments import whole_warps
from refsim.ptx.isa.matrix import REGISTER_TYPES, fragment_name, multiplied
from refsim.ptx.isa.products import mma_kind
from refsim.ptx.memory.arrays import Array
from refsim.sources import PTX, Source

_SECTION = PTX["mma.sp"]
_ORDERED = "sp::ordered_metadata"


def check_selector(lanes: Lanes, value: int, shape: SparseShape, section: str) -> None:
    """Raise a fault unless the shape has the sparsity selector `value`."""
    if value not in shape.selectors:
        known = " or ".join(map(str, shape.selectors))
        raise lanes.fault("invalid-operand", 0, f"the sparsity selector is {value}", f"{section}: it is {known}")


def stored_positions(
    lanes: Lanes, words: Array, shape: SparseShape, type: str, selector: int, section: Source, *, ordered: bool = False
) -> Array:
    """Return the positions of the elements that each warp, or warpgroup, stores."""
    try:
        return positions_of(lanes.full(words), shape, type, selector, ordered=ordered)
    except MetadataError as error:
        rule = f"{section}, sparse matrix storage" + (": with ::ordered_metadata positions rise" if ordered else "")
        thread = error.matrix * (WARPGROUP if shape.is_warpgroup else WARP) + error.thread
        raise lanes.fault("invalid-operand", thread, error.what, rule) from None


def _sparse_family(shape: SparseShape, accumulator: str) -> None:
    """Register mma.sp for one shape and accumulator type."""
    first, choice = shape.types[0], "|".join(shape.types)
    is_integer = element_named(first).is_integer
    types = ".".join(f"{{{which}_type:{choice}}}" if len(shape.types) > 1 else choice for which in "ab")
    names = [fragment_name(shape, first, operand, accumulator) for operand in "abc"]
    counts = dict(zip("abc", (fragment_named(name).registers for name in names), strict=True))
    held = REGISTER_TYPES.get(accumulator, "b32")
    written = [f"d:{held}*{counts['c']}", f"a:b32*{counts['a']}", f"b:b32*{counts['b']}", f"c:{held}*{counts['c']}"]
    opcode = f"mma.{{sparse:sp|{_ORDERED}}}.sync.aligned.{shape}.row.col" + ("{.satfinite}" if is_integer else "")
    register = instruction(
        f"{opcode}.{accumulator}.{types}.{accumulator} {', '.join(written)}, metadata:b32, selector:b32",
        rendezvous="warp",
        since=shape.since,
        source=_SECTION,
        undefined=undefined.sparsely_multiplied(names, shape, first),
    )

    def mma_sp(
        lanes: Lanes, *given: Any, sparse: str, a_type: str = first, b_type: str = first, satfinite: bool = False
    ) -> list[Array]:
        """Return D = A B + C, where A holds the stored elements of each row, multiplied by the elements of B at their
        positions. The sum follows the dense instruction of half the K, which is inferred and not measured."""
        kind = mma_kind(a_type, b_type, accumulator, satfinite)
        a, b, c, metadata, selector = given
        whole_warps(lanes)
        chosen, ordered = int(selector.view(np.int32)[0]), sparse == _ORDERED
        check_selector(lanes, chosen, shape, str(_SECTION))
        positions = stored_positions(lanes, metadata, shape, a_type, chosen, _SECTION, ordered=ordered)
        return multiplied(lanes, (a, b, c), kind, shape, positions)

    register(mma_sp)


for _shape in SPARSE_SHAPES:
    for _accumulator in _shape.accumulators:
        _sparse_family(_shape, _accumulator)
