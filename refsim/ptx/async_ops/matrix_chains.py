"""The sums of products that have read their operands.

Products that accumulate in one set of registers form a chain. Chains of one form are computed by one call.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.execution.geometry import WARPGROUP, Ids
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.matrix_operands import PRODUCT_ROWS
from refsim.ptx.execution.matrix_product import MatrixProduct
from refsim.ptx.execution.registers import get, put
from refsim.ptx.isa.fragments import chained_product, matrices, packing_of, registers_of, sparse_product
from refsim.ptx.isa.products import array_type, wgmma_kind

Array = NDArray[Any]


@dataclass(frozen=True)
class OperandsRead:
    """A product of some warpgroups with the codes that it read of A (warpgroups, 64, k) and B (warpgroups, n, k)."""

    number: int
    lanes: Lanes
    groups: Ids
    product: MatrixProduct
    a: Array
    b: Array

    def part(self, chosen: NDArray[np.bool_]) -> "OperandsRead":
        """Return the product of the chosen warpgroups only."""
        lanes = Lanes(self.lanes.machine, self.lanes.ids[chosen.repeat(WARPGROUP)], self.lanes.statement)
        groups, product = self.groups[chosen], self.product.part(chosen)
        return replace(self, lanes=lanes, groups=groups, product=product, a=self.a[chosen], b=self.b[chosen])

    def continues(self, chain: "list[OperandsRead]") -> bool:
        """Return whether this product adds to the result of a chain and writes nothing else."""
        last = chain[-1]
        if self.product.positions is not None:
            return False
        same = last.product.form == self.product.form and last.product.d == self.product.d
        return same and bool(self.product.adds.all()) and np.array_equal(last.groups, self.groups)

    def is_apart(self, other: "OperandsRead") -> bool:
        """Return whether the two products write no common register."""
        return set(self.product.d).isdisjoint(other.product.d) or np.intersect1d(self.groups, other.groups).size == 0


def computed(reads: list[OperandsRead]) -> None:
    """Compute the sums of products, given in their order, and write them to the registers."""
    chains: list[list[OperandsRead]] = []
    for read in reads:
        own = next((chain for chain in reversed(chains) if not read.is_apart(chain[-1])), None)
        if own is not None and read.continues(own):
            own.append(read)
            continue
        if own is not None:
            _compute(chains)
            chains = []
        chains.append([read])
    _compute(chains)


def _compute(chains: list[list[OperandsRead]]) -> None:
    """Compute chains that write no common register."""
    alike: dict[Any, list[list[OperandsRead]]] = {}
    for chain in chains:
        form = replace(chain[0].product.form, negated=(False, False), majors=("K", "K"))  # done when operands were read
        alike.setdefault((form, len(chain)), []).append(chain)
    for stack in alike.values():
        _multiply(stack)


def _multiply(stack: list[list[OperandsRead]]) -> None:
    """Compute chains of one form and length by one call."""
    first = stack[0][0]
    form = first.product.form
    kind = wgmma_kind(form.a, form.b, form.d, form.satfinite)
    packing = packing_of(form.accumulator, False)
    a, b = (
        np.concatenate([np.concatenate([getattr(read, side) for read in chain], axis=2) for chain in stack])
        for side in "ab"
    )
    c = np.concatenate([_added(chain[0]) for chain in stack])
    if form.sparse:
        positions = np.concatenate([chain[0].product.positions for chain in stack])
        d = sparse_product(first.lanes, a, b, c.view(array_type(kind.d)), positions, kind, form.k)
    else:
        d = chained_product(first.lanes, a, b, c.view(array_type(kind.d)), kind, a.shape[2] // len(stack[0]), form.k)
    begin = 0
    for chain in stack:
        read, end = chain[0], begin + len(chain[0].groups)
        for index, bits in zip(read.product.d, registers_of(d[begin:end], packing, np.uint32), strict=True):
            put(read.lanes, index, bits)
        begin = end


def _added(read: OperandsRead) -> Array:
    """Return the addend of the first product of a chain: codes (warpgroups, 64, n)."""
    product, packing = read.product, packing_of(read.product.form.accumulator, False)
    if not product.adds.any():
        return np.zeros((len(read.groups), PRODUCT_ROWS, product.form.n), packing.element)
    held = matrices([read.lanes.full(get(read.lanes, index)) for index in product.d], packing, len(read.groups))
    if not product.adds.all():
        held[~product.adds] = 0
    return held
