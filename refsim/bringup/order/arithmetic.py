"""What a node of a tree does to its children, and the sum that tree and arithmetic make: the plain definition."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.bringup.bench import Bench, Codes, reach
from refsim.bringup.discovered import Discovery
from refsim.bringup.discovery import discover_step
from refsim.bringup.order.asking import OrderSubject, read_back
from refsim.bringup.order.revealing import no_order
from refsim.bringup.order.trees import Node, folded, least, leaves, post_order, said_places
from refsim.conversions import decode, encode
from refsim.formats import BF16, F16, F32, F64, Format
from refsim.numerics import ieee
from refsim.numerics import profile as profile_of
from refsim.numerics.dot.arrays import Fields, fields, truncated_step
from refsim.numerics.dot.exact import exact_step
from refsim.numerics.methods import EXACT, TRUNCATED
from refsim.numerics.profiles import PROFILES
from refsim.numerics.roundings import RNE_F32, RZ_E8M13, RZ_F32, TO_NEAREST, Rounding
from refsim.numerics.rows import Profile

Values = NDArray[Any]
ONE_FMA, FL_THEN_ADD = "one fused multiply-add", "rounded, then added"


@dataclass(frozen=True)
class NodeArithmetic:
    """How nodes add: `step` the row of those that add several products at once, None where no node does.

    Elsewhere a product joins a sum of the format `sums` as `product` says, and two sums are added in it, or in the format
    `meets`, to nearest even; of two products that meet the first of their chain is rounded. Where that is not all, `rounded` has
    the places of the products that are rounded before they are added, and the others are fused. `partial` is the format that a
    sum of products is rounded to before it meets another, None where it stays. The sum times `scale`, a power of two, is
    rounded to the format of D.
    """

    step: Profile | None
    product: str = ONE_FMA
    sums: Format = F32
    partial: Format | None = None
    rounded: tuple[int, ...] = ()
    meets: Format | None = None
    scale: Fraction = Fraction(1)

    def __str__(self) -> str:
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
    """The nodes that add more than two terms at once: those that only one sum enters."""
    return [node for node in post_order(tree) if len(node.children) > 2]


def candidates(subject: OrderSubject, bench: Bench, tree: "int | Node") -> Iterator[NodeArithmetic]:
    """The arithmetic that probing leaves open, likeliest first; bits decide among them."""
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
    """Whether sums meet, and no product joins them behind that: chains of one format may be added in another."""
    nodes = list(post_order(tree))
    return any(len(node.nodes) == 2 for node in nodes) and all(
        child.products for node in nodes if node.products for child in node.nodes
    )


def _dtype(row: Format) -> str:
    return str(row.array_dtype or row.ml_dtype)


def first_of_pairs(tree: "int | Node") -> tuple[int, ...]:
    """Of each two products that meet, the place of the one that its chain begins with: the far one from where it goes on."""
    follows = {id(child): node.products[0] for node in post_order(tree) for child in node.nodes if node.products}
    found = []
    for node in post_order(tree):
        if len(node.products) == 2 and not node.nodes:
            low, high = sorted(node.products)
            found.append(high if follows.get(id(node), high) < low else low)
    return tuple(sorted(found))


def _rounded_alone(subject: OrderSubject, bench: Bench, tree: "int | Node") -> tuple[int, ...]:
    """The places whose products are rounded before they are added.

    A product that float32 does not hold is taken away by another of the same factors that stands alone in what it meets: what
    rounding cut off is left where it was fused. With (1 + 2^-23)^2 that is 2^-46.
    """
    pairs = [
        (place, next(least(other) for other in node.children if other != place))
        for node in post_order(tree)
        for place in node.products
    ]
    rows = subject.a_format, subject.b_format
    size = (
        7 if max(row.mantissa_bits for row in rows) <= F16.mantissa_bits else 15
    )  # f16 holds the product, and what is left
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
    """Whether a format holds every product, so that a fused multiply-add is a product and a sum."""
    if len(subject.factors) == 1:  # a number is rounded to the format of sums as it is read
        return True
    return sum(row.mantissa_bits + 1 for row in subject.factors) <= sums.mantissa_bits + 1


def _found(bench: Bench, tree: "int | Node", steps: list[Node]) -> Discovery:
    """What probing shows of a step, read through a product of the step that takes its sum."""
    step = max(steps, key=lambda node: len(node.products))
    holder: Node = step
    for node in post_order(tree):
        if holder in node.nodes:
            holder = node
            if later := [place for place in leaves(node) if place not in set(leaves(step))]:
                return discover_step(read_back(bench, max(later, key=node.products.__contains__)), step.products)
    return discover_step(read_back(bench, None), step.products)


def _rows(subject: OrderSubject, found: Discovery) -> Iterator[Profile]:
    """Rows of a step. A zero stands where Hopper's does, below every product of ordinary numbers.

    Where too few binades are left to see a cut, there is none, or it is one of those that chips are known to make.
    """
    like = replace(
        profile_of("sm_90a", "wgmma", "e4m3", "e4m3", "f32"),
        a_formats=(subject.a_format,),
        b_formats=(subject.b_format,),
        length=found.length or 1,
    )
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
    for each in (subject.d_format, F16):  # rounding the result hides what a step did; sums of f16 may go on in float32
        own = TO_NEAREST.get(each)
        if own is not None and own not in roundings:
            roundings.append(own)
    for rounding in roundings:
        yield replace(like, method=TRUNCATED, fraction=found.fraction, rounding=rounding)


def computed(tree: "int | Node", arithmetic: NodeArithmetic, subject: OrderSubject, a: Codes, b: Codes) -> Codes:
    """D of A (M, K) and B (N, K) in this order: codes of the subject's result, by the definitions of each node alone."""
    operands = _Operands(tree, arithmetic, subject, a, b)
    total = folded(tree, operands.leaf, operands.node)
    if isinstance(total, int):
        total = operands.step([total], None)
    scaled = _numbers(total) if arithmetic.scale == 1 else _numbers(total).astype(np.float64) * float(arithmetic.scale)
    return np.asarray(encode(scaled, subject.d_format, overflow=None))


def _carried(numbers: Values, row: Format) -> Values:
    """Numbers rounded to a format, as `ieee` takes them: arrays of its dtype, patterns of bf16."""
    if row is F64:  # the type of decoded numbers, which has no codes
        return np.asarray(numbers, np.float64)
    codes = np.asarray(encode(numbers, row, overflow="inf"))
    return codes if row.array_dtype is None else codes.view(row.array_dtype)


def _numbers(carried: Values) -> Values:
    return np.asarray(decode(carried, BF16, np.float32)) if carried.dtype == BF16.code_dtype else carried


class _Operands:
    """A and B as the nodes read them: fields of codes for steps, numbers of the format of sums for the rest."""

    def __init__(
        self, tree: "int | Node", arithmetic: NodeArithmetic, subject: OrderSubject, a: Codes, b: Codes
    ) -> None:
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
        return place

    def node(self, node: Node, values: list[Any]) -> Values:
        products = [value for value in values if isinstance(value, int)]
        sums = [value for value in values if not isinstance(value, int)]
        if not products:
            if len(sums) != 2:
                raise no_order("a step adds several sums at once, for which no arithmetic is known")
            one, other = (self._met(value, child) for value, child in zip(sums, node.nodes, strict=True))
            return one + other if one.dtype == np.float64 else ieee.add(one, other)
        return self.step(products, sums[0] if sums else None)

    def _met(self, value: Values, node: Node) -> Values:
        """A sum of products as it meets another, rounded to the format of partials first; sums of sums stay."""
        partial, meets = self.arithmetic.partial, self.arithmetic.meets
        if not node.products or (partial is None and meets is None):
            return value
        numbers = _numbers(value)
        if partial is not None:
            numbers = np.asarray(decode(encode(numbers, partial, overflow="inf"), partial, np.float32))
        return _carried(numbers, meets or self.arithmetic.sums)

    def step(self, places: list[int], before: Values | None) -> Values:
        """Products at some places of K joined to a sum, or to nothing."""
        if self.arithmetic.step is None:
            return self._one_by_one(places, before)
        row = replace(self.arithmetic.step, length=len(places))
        result = row.rounding.format
        start = np.zeros(self.shape, result.code_dtype) if before is None else encode(before, result)
        sum_of = exact_step if row.method is EXACT else truncated_step
        a, b = (each.take(places) for each in self.fields)
        return np.asarray(decode(sum_of(a, b, start[None], row)[0], result, np.float32))

    def _one_by_one(self, places: list[int], total: Values | None) -> Values:
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
