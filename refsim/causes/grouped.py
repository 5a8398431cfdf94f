"""Grouped products: batches of operands, or rows that a table of experts assigns to matrices of B."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.causes.products import ProductOfPlans, ProductPlan
from refsim.computations.placing import IN_PLACE
from refsim.computations.ways import Cause, Codes, Family, Sample
from refsim.errors import RefsimError
from refsim.formats import F32, Format
from refsim.sources import CUBLAS, DEEPGEMM, Source

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


@dataclass(frozen=True)
class GroupedPlan(ProductPlan):
    """The choices of a product, and the groups whose operands the rows get."""

    a_of: Owner = OWN
    b_of: Owner = OWN
    a_scales_of: Owner = OWN
    b_scales_of: Owner = OWN


@dataclass(frozen=True, eq=False)
class GroupedProduct:
    """D (R, N): row r is row r of A times the matrix of B that `groups[r]` selects; `whole` is the user's shape.

    `products[g]` has all rows of A and matrix g of B. `batches` > 0: the rows are those of batches of equal size.
    `kept` marks the rows of an output that are compared, None: all.
    """

    products: tuple[ProductOfPlans, ...]
    groups: Numbers
    whole: tuple[int, ...]
    usual: GroupedPlan
    batches: int = 0
    kept: NDArray[np.bool_] | None = None
    made: dict[tuple[int, int], ProductOfPlans] = field(default_factory=dict)

    is_sampled = True
    summed_over, sums_held = "columns of K", F32

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

    def causes(self) -> Sequence[Cause]:
        """Return every cause that applies to these operands."""
        first, source = self.products[0], _source(self.batches)
        found = list(first.causes())
        groups = self.batches or len(self.products)
        if groups < 2:
            return found
        sides = [("a_of", "A"), ("a_scales_of", "the scales of A")] if self.batches else []
        if len(self.products) > 1:
            sides += [("b_of", "B"), ("b_scales_of", "the scales of B")]
        for aspect, name in sides:
            if first.a_scales is None and "scales" in aspect:
                continue
            for owner in (*owners(groups), *([] if self.batches else _of_tiles(len(self.groups)))):
                found.append(Cause(Family.BATCH, f"{name}: they {owner.name}", aspect, owner, source, owner.rank))
        return found

    def codes(self, plan: GroupedPlan, sample: Sample | None = None) -> Codes:
        """Return the codes that a plan writes: all, or those of a sample. Raises DoesNotApplyError."""
        rows, columns = (np.arange(self.shape[0]), np.arange(self.shape[1])) if sample is None else sample
        size = len(self.groups) // max(1, self.batches)
        b, scales = (owner.of(self.groups)[rows] for owner in (plan.b_of, plan.b_scales_of))
        a, a_scales = (self._rows(owner, rows, size) for owner in (plan.a_of, plan.a_scales_of))
        codes = np.zeros((len(rows), len(columns)), self.format.code_dtype)
        for one, other in sorted({*zip(b.tolist(), scales.tolist(), strict=True)}):
            mine = np.flatnonzero((b == one) & (scales == other))
            part = self._product(one, other)
            if (a != rows).any() or (a_scales != rows).any():
                part = _of_other_rows(part, rows[mine], a[mine], a_scales[mine])
            codes[mine] = part.codes(plan, (rows[mine], columns))
        return codes if sample is not None else self._placed(plan, codes, back=False)

    def sums_of(self, plan: GroupedPlan, at: tuple[int, int], most: int) -> list[tuple[int, int]]:
        """Return pairs (columns, float32 pattern): one element's sum before each of `most` ends in K."""
        rows, size = np.array([at[0]]), len(self.groups) // max(1, self.batches)
        b, scales = (int(owner.of(self.groups)[at[0]]) for owner in (plan.b_of, plan.b_scales_of))
        a, a_scales = (self._rows(owner, rows, size) for owner in (plan.a_of, plan.a_scales_of))
        return _of_other_rows(self._product(b, scales), rows, a, a_scales).sums_of(plan, at, most)

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

    def _rows(self, owner: Owner, rows: Numbers, size: int) -> Numbers:
        """Return the rows of A that the rows get: the corresponding row of another batch."""
        return rows if owner is OWN else owner.of(rows // size) * size + rows % size

    def _product(self, group: int, scales_of: int) -> ProductOfPlans:
        """Return the product with the matrix of one group and the scales of another."""
        at = min(group, len(self.products) - 1), min(scales_of, len(self.products) - 1)
        if at not in self.made:
            scales = self.products[at[1]].b_scales
            self.made[at] = replace(self.products[at[0]], b_scales=scales, sums={})
        return self.made[at]

    def _placed(self, plan: GroupedPlan, codes: Codes, *, back: bool) -> Codes:
        """Return codes moved by the plan's placing, or moved back."""
        seen = codes.reshape(self.whole) if self.batches else codes
        return (plan.placed.back(seen) if back else plan.placed.apply(seen)).reshape(codes.shape)

    def undone(self, plan: GroupedPlan, got: Codes) -> tuple[GroupedPlan, Codes]:
        return replace(plan, placed=IN_PLACE), got if plan.placed is IN_PLACE else self._placed(plan, got, back=True)

    def another(self, seed: int, *, wide: bool = False) -> "GroupedProduct":
        """Return a product of as many groups (at most eight) with drawn matrices and up to 24 rows of A."""
        groups = min(self.batches or len(self.products), 8)
        drawn = [self.products[0].another(seed + 3 * group, wide=wide) for group in range(groups)]
        first, size = drawn[0], len(drawn[0].a) // groups
        a_scales, c = (None if each is None else each[: groups * size] for each in (first.a_scales, first.c))
        if len(self.products) == 1:
            drawn = drawn[:1]
        products = tuple(
            replace(
                first, a=first.a[: groups * size], a_scales=a_scales, c=c, b=each.b, b_scales=each.b_scales, sums={}
            )
            for each in drawn
        )
        rows = np.arange(groups * size) // size
        if not self.batches:
            return GroupedProduct(products, rows, products[0].shape, self.usual)
        return GroupedProduct(products, rows, (groups, size, first.shape[1]), self.usual, groups)

    def described(self, plan: GroupedPlan) -> str:
        """Return the plan as text."""
        many = f"{self.batches} batches" if self.batches else f"{len(self.products)} groups of rows"
        words = [many, self.products[0].described(plan)]
        for name, owner in (("A", plan.a_of), ("B", plan.b_of)):
            if owner is not OWN:
                words.append(f"{name}: they {owner.name}")
        return ", ".join(words)


def _of_tiles(rows: int) -> Iterator[Owner]:
    for tile in TABLE_ROWS:
        if rows > tile:
            yield Owner(f"are those of the first of {tile} rows for all {tile}", tile=tile, rank=2)


def _source(batches: int) -> Source:
    return CUBLAS["strided batches"] if batches else DEEPGEMM["m_grouped_fp8_gemm_nt_contiguous, m_indices"]


def _of_other_rows(product: ProductOfPlans, rows: Numbers, a: Numbers, a_scales: Numbers) -> ProductOfPlans:
    """Return the product in which each of `rows` has the codes and the scales of other rows."""
    codes = product.a.copy()
    codes[rows] = product.a[a]
    scales: Any = product.a_scales
    if scales is not None:
        scales = scales.copy()
        scales[rows] = product.a_scales[a_scales]  # type: ignore[index]
    return replace(product, a=codes, a_scales=scales, sums={})
