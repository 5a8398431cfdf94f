"""The operation of a tree's node on its children, and the sum of tree and arithmetic: the plain definition."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.bringup.bench import Bench, Codes, reach
from refsim.bringup.discovery import Discovery, discover_step
from refsim.bringup.order.revealing import Node, folded, least, leaves, no_order, post_order, said_places
from refsim.bringup.order.subjects import OrderSubject, read_back
from refsim.conversions import decode, encode
from refsim.formats import BF16, F16, F32, F64, Format
from refsim.numerics import ieee
from refsim.numerics import profile as profile_of
from refsim.numerics.dot.chains import Fields, exact_step, fields, truncated_step
from refsim.numerics.methods import EXACT, RNE_F32, RZ_E8M13, RZ_F32, TO_NEAREST, TRUNCATED, Rounding
from refsim.numerics.profiles import PROFILES
from refsim.numerics.rows import Profile

Values = NDArray[Any]
ONE_FMA, FL_THEN_ADD = "one fused multiply-add", "rounded, then added"


@dataclass(frozen=True)
class NodeArithmetic:
    """How nodes add: `step` is the profile of nodes that add several products at once, None without such nodes.

    Elsewhere a product joins a sum of the format `sums` by the rule `product`, and two sums are added in that format,
    or in `meets`, to nearest even. Where two products are added, the first of their chain is rounded. `rounded` has the
    places of the products that are rounded before they are added, where only some are; the others are fused. `partial`
    is the format to which a sum of products is rounded before it is added to another, None where it is not rounded. The
    sum times `scale`, a power of two, is rounded to the format of D.
    """

    step: Profile | None
    product: str = ONE_FMA
    sums: Format = F32
    partial: Format | None = None
    rounded: tuple[int, ...] = ()
    meets: Format | None = None
    scale: Fraction = Fraction(1)

    def __str__(self) -> str:
        """Return the arithmetic in words."""
        parts = [
            self._steps()
            if self.step
            else f"a product joins its sum by {self.product} ({_dtype(self.sums)}, nearest even)"
        ]
        if self.rounded:
            parts.append(f"those at {said_places(self.rounded)} are rounded first")
        if self.partial:
            parts.append(f"partial sums are rounded to {self.partial}")
        if self.meets:
            parts.append(
                f"they are added in {_dtype(self.meets)}" if self.partial else f"sums are added in {_dtype(self.meets)}"
            )
        return "; ".join(parts)

    def _steps(self) -> str:
        assert self.step is not None
        if self.step.method is EXACT:
            return "a step is exact and rounded once to float32, nearest even"
        return (
            f"a step cuts its terms {self.step.fraction} bits below the largest exponent, its sum is"
            f" {self.step.rounding.sentence}"
        )


def steps_of(tree: "int | Node") -> list[Node]:
    """Return the nodes that add more than two terms at once; at most one sum enters each of them."""
    return [node for node in post_order(tree) if len(node.children) > 2]


def candidates(subject: OrderSubject, bench: Bench, tree: "int | Node") -> Iterator[NodeArithmetic]:
    """Yield the arithmetic that fits the probes, likeliest first; the bits of test cases decide among them."""
    meetings: tuple[tuple[Format | None, Format | None], ...] = ((None, None),)
    if subject.d_format != F32 and any(len(node.nodes) == 2 for node in post_order(tree)):
        meetings = ((None, None), (subject.d_format, None), (None, subject.d_format))
    if steps := steps_of(tree):
        if any(len(node.nodes) > 1 for node in steps):
            raise no_order("a step adds several sums at once, for which no arithmetic is known")
        rows = list(_rows(subject, _found(bench, tree, steps)))
        yield from (NodeArithmetic(row, partial=partial, meets=meets) for partial, meets in meetings for row in rows)
        return
    known = {first_of_pairs(tree): (ONE_FMA, ()), leaves(tree): (FL_THEN_ADD, ())}
    alone = (
        () if _holds_products(F32, subject) and _holds_products(BF16, subject) else _rounded_alone(subject, bench, tree)
    )
    for sums in (F32, F64, F16, BF16):
        product, rounded = (ONE_FMA, ()) if _holds_products(sums, subject) else known.get(alone, (ONE_FMA, alone))
        yield from (NodeArithmetic(None, product, sums, partial, rounded, meets) for partial, meets in meetings)
    if not _meet_above(tree):
        return
    for sums, partial, meets in ((F16, None, F32), (BF16, None, F32), (F64, F32, F32), (F32, None, F64)):
        product, rounded = (ONE_FMA, ()) if _holds_products(sums, subject) else known.get(alone, (ONE_FMA, alone))
        yield NodeArithmetic(None, product, sums, partial, rounded, meets)


def _meet_above(tree: "int | Node") -> bool:
    """Return whether sums are added to each other, and no product is added after that. Chains of one format may then be
    added in another."""
    nodes = list(post_order(tree))
    return any(len(node.nodes) == 2 for node in nodes) and all(
        child.products for node in nodes if node.products for child in node.nodes
    )


def _dtype(row: Format) -> str:
    return str(row.array_dtype or row.ml_dtype)


def first_of_pairs(tree: "int | Node") -> tuple[int, ...]:
    """Return the place of the first product of each chain: of two products, the one farther from the chain's next."""
    follows = {id(child): node.products[0] for node in post_order(tree) for child in node.nodes if node.products}
    found = []
    for node in post_order(tree):
        if len(node.products) == 2 and not node.nodes:
            low, high = sorted(node.products)
            found.append(high if follows.get(id(node), high) < low else low)
    return tuple(sorted(found))


def _rounded_alone(subject: OrderSubject, bench: Bench, tree: "int | Node") -> tuple[int, ...]:
    """Return the places whose products are rounded before they are added.

    A product that float32 does not hold is cancelled by another of equal factors that stands alone in its sum. The part
    cut off by rounding is left where the product was fused. With (1 + 2^-23)^2 that part is 2^-46.
    """
    places = ((node, place) for node in post_order(tree) for place in node.products)
    pairs = [(place, next(least(other) for other in node.children if other != place)) for node, place in places]
    rows = subject.a_format, subject.b_format
    size = (
        7 if max(row.mantissa_bits for row in rows) <= F16.mantissa_bits else 15
    )  # f16 holds the product and the remainder
    factors = [(2.0**row.mantissa_bits + 1) * 2.0 ** (min(size, reach(row) - 1) - row.mantissa_bits) for row in rows]
    a_code = encode(np.array(factors[0]), subject.a_format)
    b_code, taken = encode(np.array([factors[1], -factors[1]]), subject.b_format)
    a = np.full((len(pairs), subject.k), a_code, subject.a_format.code_dtype)
    b = np.zeros((len(pairs), subject.k), subject.b_format.code_dtype)
    for row, (place, other) in enumerate(pairs):
        b[row, place], b[row, other] = b_code, taken
    kept = decode(bench.dots(a, b, np.zeros(len(pairs), subject.d_format.code_dtype)), subject.d_format)
    return tuple(sorted(place for (place, _), left in zip(pairs, kept, strict=True) if not left > 0))


def _holds_products(sums: Format, subject: OrderSubject) -> bool:
    """Return whether a format holds every product, so that fusing makes no difference."""
    if len(subject.factors) == 1:  # a number is rounded to the format of sums as it is read
        return True
    return sum(row.mantissa_bits + 1 for row in subject.factors) <= sums.mantissa_bits + 1


def _found(bench: Bench, tree: "int | Node", steps: list[Node]) -> Discovery:
    """Return the probed parameters of a step, read through a product of a later step that cancels its sum."""
    step = max(steps, key=lambda node: len(node.products))
    holder: Node = step
    for node in post_order(tree):
        if holder in node.nodes:
            holder = node
            if later := [place for place in leaves(node) if place not in set(leaves(step))]:
                return discover_step(read_back(bench, max(later, key=node.products.__contains__)), step.products)
    return discover_step(read_back(bench, None), step.products)


def _rows(subject: OrderSubject, found: Discovery) -> Iterator[Profile]:
    """Yield profiles of a step; a zero has Hopper's exponent, below every product of ordinary numbers. Where too few
    binades are left to see truncation, the step is exact, or has the parameters of a known chip."""
    like = profile_of("sm_90a", "wgmma", "e4m3", "e4m3", "f32")
    like = replace(like, a_formats=(subject.a_format,), b_formats=(subject.b_format,), length=found.length or 1)
    if found.fraction is None:
        yield replace(like, method=EXACT, rounding=RNE_F32)
        cut = [
            row
            for row in PROFILES
            if row.method is TRUNCATED and {subject.a_format, subject.b_format} <= {*row.a_formats}
        ]
        for fraction, rounding in dict.fromkeys((row.fraction, row.rounding) for row in cut):
            yield replace(like, method=TRUNCATED, fraction=fraction, rounding=rounding)
        return
    known = found.rounding
    roundings = [known] if isinstance(known, Rounding) else [RZ_F32, RNE_F32, RZ_E8M13]
    for each in (subject.d_format, F16):  # the result's rounding hides a step's; sums of f16 may continue in float32
        own = TO_NEAREST.get(each)
        if own is not None and own not in roundings:
            roundings.append(own)
    for rounding in roundings:
        yield replace(like, method=TRUNCATED, fraction=found.fraction, rounding=rounding)


def computed(tree: "int | Node", arithmetic: NodeArithmetic, subject: OrderSubject, a: Codes, b: Codes) -> Codes:
    """Return D of A (M, K) and B (N, K) in this order, as codes, by the definition of each node alone."""
    operands = _Operands(tree, arithmetic, subject, a, b)
    total = folded(tree, operands.leaf, operands.node)
    if isinstance(total, int):
        total = operands.step([total], None)
    scaled = _numbers(total) if arithmetic.scale == 1 else _numbers(total).astype(np.float64) * float(arithmetic.scale)
    return np.asarray(encode(scaled, subject.d_format, overflow=None))


def _carried(numbers: Values, row: Format) -> Values:
    """Return numbers rounded to a format, in the form that `ieee` takes: its dtype, or patterns of bf16."""
    if row is F64:  # the type of decoded numbers, which has no codes
        return np.asarray(numbers, np.float64)
    codes = np.asarray(encode(numbers, row, overflow="inf"))
    return codes if row.array_dtype is None else codes.view(row.array_dtype)


def _numbers(carried: Values) -> Values:
    return np.asarray(decode(carried, BF16, np.float32)) if carried.dtype == BF16.code_dtype else carried


class _Operands:
    """A and B as the nodes read them: fields of codes for steps, numbers of the format of sums elsewhere."""

    def __init__(
        self, tree: "int | Node", arithmetic: NodeArithmetic, subject: OrderSubject, a: Codes, b: Codes
    ) -> None:
        """Decode the operands for the steps or for the sums."""
        self.arithmetic = arithmetic
        codes = (a, subject.a_format), (b, subject.b_format)
        self.fields: list[Fields] = []
        self.numbers: list[Values] = []
        if arithmetic.step is not None:
            self.fields = [fields(x[None], row) for x, row in codes]
        else:
            self.numbers = [_carried(decode(x, row), arithmetic.sums) for x, row in codes]
        self.alone = set(arithmetic.rounded or (leaves if arithmetic.product == FL_THEN_ADD else first_of_pairs)(tree))
        self.shape = (len(a), len(b))

    def leaf(self, place: int) -> int:
        """Return the place itself: the products of a place are computed in its node."""
        return place

    def node(self, node: Node, values: list[Any]) -> Values:
        """Return the sum of a node (M, N) from its children's values."""
        products = [value for value in values if isinstance(value, int)]
        sums = [value for value in values if not isinstance(value, int)]
        if not products:
            if len(sums) != 2:
                raise no_order("a step adds several sums at once, for which no arithmetic is known")
            one, other = (self._met(value, child) for value, child in zip(sums, node.nodes, strict=True))
            return one + other if one.dtype == np.float64 else ieee.add(one, other)
        return self.step(products, sums[0] if sums else None)

    def _met(self, value: Values, node: Node) -> Values:
        """Return a sum of products before it is added to another, rounded to `partial` first; sums of sums are
        unchanged."""
        partial, meets = self.arithmetic.partial, self.arithmetic.meets
        if not node.products or (partial is None and meets is None):
            return value
        numbers = _numbers(value)
        if partial is not None:
            numbers = np.asarray(decode(encode(numbers, partial, overflow="inf"), partial, np.float32))
        return _carried(numbers, meets or self.arithmetic.sums)

    def step(self, places: list[int], before: Values | None) -> Values:
        """Return the sum of products at some places of K and the sum `before`, if any."""
        if self.arithmetic.step is None:
            return self._one_by_one(places, before)
        row = replace(self.arithmetic.step, length=len(places))
        result = row.rounding.format
        start = np.zeros(self.shape, result.code_dtype) if before is None else encode(before, result)
        sum_of = exact_step if row.method is EXACT else truncated_step
        a, b = (each.take(places) for each in self.fields)
        return np.asarray(decode(sum_of(a, b, start[None], row)[0], result, np.float32))

    def _one_by_one(self, places: list[int], total: Values | None) -> Values:
        """Return the sum after the products of some places, added one by one."""
        for place in sorted(places, key=lambda place: place not in self.alone):
            x, y = np.broadcast_arrays(self.numbers[0][:, None, place], self.numbers[1][None, :, place])
            if self.arithmetic.sums is F64:
                product = x * y
                total = product if total is None else total + product
            elif total is None or place in self.alone:
                product = ieee.mul(x, y)
                total = product if total is None else ieee.add(total, product)
            else:
                total = ieee.fma(x, y, total)
        assert total is not None
        return total
