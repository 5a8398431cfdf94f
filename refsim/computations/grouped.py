"""Grouped products: batches of operands, or rows that a table of experts assigns to matrices of B."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.computations.engine import Aspect, Computation
from refsim.computations.products import PlainProduct
from refsim.computations.ways import Cause, Choices, Codes, Family, Sample
from refsim.errors import RefsimError
from refsim.formats import Format
from refsim.sources import CUBLAS, DEEPGEMM

Numbers = NDArray[np.int64]
MOST_EXCHANGED = 8
"""Up to this many groups, any two may be exchanged; with more groups, only neighbors."""
TABLE_ROWS = (128, 64, 256, 32, 16)
"""Sizes of a tile of rows whose first row selects the expert for all of them."""


@dataclass(frozen=True)
class Owner:
    """The group whose operand a row gets: `table[g]` for g; with `tile`, the group of the first row of every `tile`."""

    name: str
    table: tuple[int, ...] = ()
    tile: int = 0
    rank: int = 1

    def of(self, groups: Numbers) -> Numbers:
        """Return the group whose operand each row gets, in the order of the rows."""
        if self.tile:
            groups = groups[np.arange(len(groups)) // self.tile * self.tile]
        return np.array(self.table)[groups] if self.table else groups


OWN = Owner("are their own", rank=0)


def owners(groups: int) -> Iterator[Owner]:
    """Yield every confusion of that many groups, each table once."""
    yield OWN
    own = tuple(range(groups))
    named: list[tuple[str, tuple[int, ...]]] = [
        ("are those of the next group, around the end", own[1:] + own[:1]),
        ("are those of the group before, around the end", own[-1:] + own[:-1]),
        ("are those of the next group", (*own[1:], own[-1])),
        ("are those of the group before", (own[0], *own[:-1])),
        ("are those of the first group for all", (0,) * groups),
        ("are those of the last group for all", own[-1:] * groups),
        ("are counted from the last group on", own[::-1]),
    ]
    for one, other in combinations(own, 2):
        if other == one + 1 or groups <= MOST_EXCHANGED:
            table = list(own)
            table[one], table[other] = other, one
            named.append((f"are exchanged between group {one} and group {other}", tuple(table)))
    seen = {own}
    for name, each in named:
        if each not in seen:
            seen.add(each)
            yield Owner(name, each, rank=2 if name.startswith("are exchanged") else 1)


def _owner_causes(aspect: str, name: str, own: "GroupedProduct") -> Iterator[Cause]:
    """Yield the causes in the groups whose operand the rows get: of A between batches, of B between its matrices."""
    source = CUBLAS["strided batches"] if own.batches else DEEPGEMM["m_grouped_fp8_gemm_nt_contiguous, m_indices"]
    groups = own.batches or len(own.products)
    is_several = own.batches if aspect.startswith("a") else len(own.products) > 1
    if groups < 2 or not is_several or (own.products[0].a_scales is None and "scales" in aspect):
        return
    for owner in (*owners(groups), *([] if own.batches else _of_tiles(len(own.groups)))):
        yield Cause(Family.BATCH, f"{name}: they {owner.name}", aspect, owner, source, owner.rank)


@dataclass(frozen=True, eq=False)
class GroupedProduct(Computation):
    """D (R, N): row r is row r of A times the matrix of B that `groups[r]` selects; `whole` is the user's shape.

    `products[g]` has all rows of A and matrix g of B. `batches` > 0: the rows are those of batches of equal size.
    `kept` marks the rows of an output that are compared, None: all.
    """

    products: tuple[PlainProduct, ...]
    groups: Numbers
    whole: tuple[int, ...]
    batches: int = 0
    kept: NDArray[np.bool_] | None = None

    summed_over = "columns of K"
    work_of_plan, work_of_addend = 5e-3, 2e-9
    owned = ("a_of", "A"), ("a_scales_of", "the scales of A"), ("b_of", "B"), ("b_scales_of", "the scales of B")
    aspects = tuple(Aspect(aspect, partial(_owner_causes, aspect, name), OWN) for aspect, name in owned)

    @property
    def title(self) -> str:
        return f"{self.batches} batches, " if self.batches else f"{len(self.products)} groups of rows, "

    @property
    def choices(self) -> Sequence[tuple[Aspect, Computation]]:
        """Return the aspects of the product, and those of the groups."""
        return [*self.products[0].choices, *super().choices]

    @property
    def addends(self) -> int:  # type: ignore[override]
        return self.products[0].columns

    @property
    def format(self) -> Format:
        return self.products[0].format

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.groups), self.products[0].shape[1]

    def flat(self, codes: Codes) -> Codes:
        """Return an output as its rows, (B, M, N) as (B M, N), without the rows that have no expert."""
        rows = codes.reshape(-1, codes.shape[-1])
        return rows[self.kept] if self.kept is not None else rows

    def coded(self, plan: Choices, sample: Sample | None) -> Codes:
        rows, columns = (np.arange(self.shape[0]), np.arange(self.shape[1])) if sample is None else sample
        b, scales, a, a_scales = self._owned(plan, rows)
        codes = np.zeros((len(rows), len(columns)), self.format.code_dtype)
        for one, other in sorted({*zip(b.tolist(), scales.tolist(), strict=True)}):
            mine = np.flatnonzero((b == one) & (scales == other))
            part = self._product(one, other)
            if (a != rows).any() or (a_scales != rows).any():
                part = _of_other_rows(part, rows[mine], a[mine], a_scales[mine])
            codes[mine] = part.codes(plan, (rows[mine], columns))
        return codes

    def sums_of(self, plan: Choices, at: tuple[int, int], most: int) -> list[tuple[int, int]]:
        """Return pairs (columns, float32 pattern): one element's sum before each of `most` ends in K."""
        rows = np.array([at[0]])
        b, scales, a, a_scales = self._owned(plan, rows)
        return _of_other_rows(self._product(int(b[0]), int(scales[0])), rows, a, a_scales).sums_of(plan, at, most)

    def kept_row(self, row: int) -> int:
        """Return the compared row for a row of the output. Raises RefsimError where the row has no expert."""
        if self.kept is None:
            return row
        if not self.kept[row]:
            raise RefsimError("out-of-range", f"row {row} has no expert", "--at")
        return int(self.kept[:row].sum())

    def whole_row(self, row: int) -> int:
        """Return the row of the output for a compared row."""
        return row if self.kept is None else int(np.flatnonzero(self.kept)[row])

    def _owned(self, plan: Choices, rows: Numbers) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """Return for some rows the groups of B and of its scales, the rows of A and of its scales."""
        size = len(self.groups) // max(1, self.batches)
        b, scales = (owner.of(self.groups)[rows] for owner in (plan.b_of, plan.b_scales_of))
        owners = plan.a_of, plan.a_scales_of
        a, a_scales = (rows if each is OWN else each.of(rows // size) * size + rows % size for each in owners)
        return b, scales, a, a_scales

    def _product(self, group: int, scales_of: int) -> PlainProduct:
        """Return the product with the matrix of one group and the scales of another."""
        at = min(group, len(self.products) - 1), min(scales_of, len(self.products) - 1)
        if at not in self.made:
            self.made[at] = replace(self.products[at[0]], b_scales=self.products[at[1]].b_scales)
        return self.made[at]  # type: ignore[no-any-return]

    def moved(self, plan: Choices, codes: Codes, *, back: bool = False) -> Codes:
        seen = codes.reshape(self.whole) if self.batches else codes
        return super().moved(plan, seen, back=back).reshape(codes.shape)

    def another(self, seed: int, *, wide: bool = False) -> "GroupedProduct":
        """Return a product of as many groups (at most eight) with drawn matrices and up to 24 rows of A."""
        groups = min(self.batches or len(self.products), 8)
        drawn = [self.products[0].another(seed + 3 * group, wide=wide) for group in range(groups)]
        first, size = drawn[0], len(drawn[0].a) // groups
        a_scales, c = (None if each is None else each[: groups * size] for each in (first.a_scales, first.c))
        if len(self.products) == 1:
            drawn = drawn[:1]
        first = replace(first, a=first.a[: groups * size], a_scales=a_scales, c=c)
        products = tuple(replace(first, b=each.b, b_scales=each.b_scales) for each in drawn)
        rows = np.arange(groups * size) // size
        whole = (groups, size, first.shape[1]) if self.batches else products[0].shape
        return GroupedProduct(products, rows, whole, groups if self.batches else 0)


def _of_tiles(rows: int) -> Iterator[Owner]:
    for tile in TABLE_ROWS:
        if rows > tile:
            yield Owner(f"are those of the first of {tile} rows for all {tile}", tile=tile, rank=2)


def _of_other_rows(product: PlainProduct, rows: Numbers, a: Numbers, a_scales: Numbers) -> PlainProduct:
    """Return the product in which each of `rows` has the codes and the scales of other rows."""
    codes = product.a.copy()
    codes[rows] = product.a[a]
    scales: Any = product.a_scales
    if scales is not None:
        scales = scales.copy()
        scales[rows] = product.a_scales[a_scales]  # type: ignore[index]
    return replace(product, a=codes, a_scales=scales)
