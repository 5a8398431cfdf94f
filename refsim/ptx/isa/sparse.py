"""mma.sp: products of a warp whose A is sparse, with metadata from some lanes of each four."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.formats import element_named
from refsim.layouts.families import fragment as fragment_named
from refsim.layouts.families.sparse import SPARSE_SHAPES, SparseShape
from refsim.layouts.holders import WARP
from refsim.ptx.checks import undefined_sparse as undefined
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.metadata import MetadataError, positions_of
from refsim.ptx.execution.types import TYPES
from refsim.ptx.isa.forms import instruction
from refsim.ptx.isa.fragments import matrices, packing_of, registers_of, sparse_product, whole_warps
from refsim.ptx.isa.products import MmaKind, array_type, mma_kind
from refsim.sources import PTX

Array = NDArray[Any]
_SECTION = PTX["mma.sp"]
_ORDERED = "sp::ordered_metadata"
_REGISTER_TYPES = {"f32": "f32", "s32": "s32"}  # everything else is packed into 32 bits


def _name(shape: SparseShape, type: str, operand: str, accumulator: str) -> str:
    refined = operand in "cd" and accumulator != shape.accumulators[0]
    return f"{shape.stem}.{type}.{operand}" + (f".{accumulator}" if refined else "")


def check_selector(lanes: Lanes, value: int, shape: SparseShape, section: str) -> None:
    """Raise a fault unless the shape has the sparsity selector `value`."""
    if value not in shape.selectors:
        known = " or ".join(map(str, shape.selectors))
        raise lanes.fault("invalid-operand", 0, f"the sparsity selector is {value}", f"{section}: it is {known}")


def _positions(lanes: Lanes, words: Array, shape: SparseShape, type: str, selector: int, *, ordered: bool) -> Array:
    """Return the positions of the elements that each warp stores."""
    try:
        return positions_of(lanes.full(words), shape, type, selector, ordered=ordered)
    except MetadataError as error:
        rule = f"{_SECTION}, sparse matrix storage" + (": with ::ordered_metadata positions rise" if ordered else "")
        raise lanes.fault("invalid-operand", error.matrix * WARP + error.thread, error.what, rule) from None


def _multiplied(
    lanes: Lanes,
    operands: tuple[list[Array], list[Array], list[Array]],
    metadata: tuple[Array, Array, bool],
    kind: MmaKind,
    shape: SparseShape,
) -> list[Array]:
    """Return the registers of D for the matrices in the registers of A, B and C, for all warps at once."""
    warps, words, type = whole_warps(lanes), metadata[0], kind.a.name
    selector = int(metadata[1].view(np.int32)[0])
    check_selector(lanes, selector, shape, str(_SECTION))
    positions = _positions(lanes, words, shape, type, selector, ordered=metadata[2])
    packings = [packing_of(_name(shape, type, operand, kind.d.name), operand == "b") for operand in "abc"]
    a, b, c = (matrices(held, packing, warps) for held, packing in zip(operands, packings, strict=True))
    result = sparse_product(lanes, a, b, c.view(array_type(kind.d)), positions, kind, shape.k)
    return registers_of(result, packings[2], TYPES[_REGISTER_TYPES.get(kind.d.name, "b32")].dtype)


def _sparse_family(shape: SparseShape, accumulator: str) -> None:
    """Register mma.sp for one shape and accumulator type."""
    first, choice = shape.types[0], "|".join(shape.types)
    is_integer = element_named(first).is_integer
    types = ".".join(f"{{{which}_type:{choice}}}" if len(shape.types) > 1 else choice for which in "ab")
    names = [_name(shape, first, operand, accumulator) for operand in "abc"]
    counts = dict(zip("abc", (fragment_named(name).registers for name in names), strict=True))
    held = _REGISTER_TYPES.get(accumulator, "b32")
    written = [f"d:{held}*{counts['c']}", f"a:b32*{counts['a']}", f"b:b32*{counts['b']}", f"c:{held}*{counts['c']}"]
    opcode = f"mma.{{sparse:sp|{_ORDERED}}}.sync.aligned.{shape}.row.col" + ("{.satfinite}" if is_integer else "")
    register = instruction(
        f"{opcode}.{accumulator}.{types}.{accumulator} {', '.join(written)}, metadata:b32, selector:b32",
        rendezvous="warp",
        since=shape.since,
        source=_SECTION,
        undefined=undefined.multiplied(names, shape, first),
    )

    def mma_sp(
        lanes: Lanes, *given: Any, sparse: str, a_type: str = first, b_type: str = first, satfinite: bool = False
    ) -> list[Array]:
        """Return D = A B + C, where A holds the stored elements of each row, multiplied by the elements of B at their
        positions. The sum follows the dense instruction of half the K, which is inferred and not measured."""
        kind = mma_kind(a_type, b_type, accumulator, satfinite)
        a, b, c, metadata, selector = given
        return _multiplied(lanes, (a, b, c), (metadata, selector, sparse == _ORDERED), kind, shape)

    register(mma_sp)


for _shape in SPARSE_SHAPES:
    for _accumulator in _shape.accumulators:
        _sparse_family(_shape, _accumulator)
