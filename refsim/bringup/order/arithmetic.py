"""What a node of a tree does to its children, and the sum that tree and arithmetic make: the plain definition."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.bringup.bench import Bench, Codes
from refsim.bringup.discovered import Discovery
from refsim.bringup.discovery import discover_step
from refsim.bringup.order.asking import OrderSubject, read_back
from refsim.bringup.order.revealing import no_order
from refsim.bringup.order.trees import Node, folded, leaves, post_order
from refsim.conversions import decode, encode
from refsim.formats import F32, Format
from refsim.numerics import ieee
from refsim.numerics import profile as profile_of
from refsim.numerics.dot.arrays import Fields, fields, truncated_step
from refsim.numerics.dot.exact import exact_step
from refsim.numerics.methods import EXACT, TRUNCATED
from refsim.numerics.roundings import RNE_F32, RZ_E8M13, RZ_F32, Rounding
from refsim.numerics.rows import Profile

Values = NDArray[Any]
ONE_FMA, FL_THEN_ADD = "one fused multiply-add", "rounded, then added"


@dataclass(frozen=True)
class NodeArithmetic:
    """How nodes add: `step` the row of those that add several products at once, None where no node does.

    Elsewhere a product joins a sum in `dtype` as `product` says, and two sums are added in it, to nearest even; `partial`
    is the format that a sum of products is rounded to before it meets another, None where it stays. The result is
    rounded to the format of D.
    """

    step: Profile | None
    product: str = ONE_FMA
    dtype: type[np.float32] | type[np.float64] = np.float32
    partial: Format | None = None

    def __str__(self) -> str:
        parts = [self._steps() if self.step else f"a product joins its sum by {self.product} ({self._sums})"]
        if self.partial:
            parts.append(f"partial sums are rounded to {self.partial}")
        return "; ".join(parts)

    @property
    def _sums(self) -> str:
        return f"{np.dtype(self.dtype).name}, nearest even"

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
    partials: tuple[Format | None, ...] = (None,)
    if subject.d_format != F32 and any(len(node.nodes) == 2 for node in post_order(tree)):
        partials = (None, subject.d_format)
    if steps := steps_of(tree):
        if any(len(node.nodes) > 1 for node in steps):
            raise no_order("a step adds several sums at once, for which no arithmetic is known")
        rows = list(_rows(subject, _found(bench, tree, steps)))
        yield from (NodeArithmetic(row, partial=partial) for partial in partials for row in rows)
        return
    products = (ONE_FMA,) if _exact_products(subject) else (ONE_FMA, FL_THEN_ADD)
    for dtype in (np.float32, np.float64):
        for partial in partials:
            yield from (NodeArithmetic(None, product, dtype, partial) for product in products)


def _exact_products(subject: OrderSubject) -> bool:
    """Whether float32 holds every product, so that a fused multiply-add is a product and a sum."""
    return subject.a_format.mantissa_bits + subject.b_format.mantissa_bits + 2 <= F32.mantissa_bits + 1


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
    """Rows of a step. A zero stands where Hopper's does, below every product of ordinary numbers."""
    like = replace(
        profile_of("sm_90a", "wgmma", "e4m3", "e4m3", "f32"),
        a_formats=(subject.a_format,),
        b_formats=(subject.b_format,),
        length=found.length or 1,
    )
    if found.fraction is None:
        yield replace(like, method=EXACT, rounding=RNE_F32)
        return
    known = found.rounding
    roundings = [known] if isinstance(known, Rounding) else [RZ_F32, RNE_F32, RZ_E8M13]
    for rounding in roundings:
        yield replace(like, method=TRUNCATED, fraction=found.fraction, rounding=rounding)


def computed(tree: "int | Node", arithmetic: NodeArithmetic, subject: OrderSubject, a: Codes, b: Codes) -> Codes:
    """D of A (M, K) and B (N, K) in this order: codes of the subject's result, by the definitions of each node alone."""
    operands = _Operands(arithmetic, subject, a, b)
    total = folded(tree, operands.leaf, operands.node)
    if isinstance(total, int):
        total = operands.step([total], None)
    return np.asarray(encode(total, subject.d_format, overflow=None))


class _Operands:
    """A and B as the nodes read them: fields of codes for steps, float32 numbers for the rest."""

    def __init__(self, arithmetic: NodeArithmetic, subject: OrderSubject, a: Codes, b: Codes) -> None:
        self.arithmetic = arithmetic
        self.numbers = [decode(x, row, np.float32) for x, row in ((a, subject.a_format), (b, subject.b_format))]
        self.fields: list[Fields] = []
        if arithmetic.step is not None:
            self.fields = [fields(x[None], row) for x, row in ((a, subject.a_format), (b, subject.b_format))]
        self.exact = _exact_products(subject)
        self.shape = (len(a), len(b))

    def leaf(self, place: int) -> int:
        return place

    def node(self, node: Node, values: list[Any]) -> Values:
        products = [value for value in values if isinstance(value, int)]
        sums = [value for value in values if not isinstance(value, int)]
        if not products:
            if len(sums) != 2:
                raise no_order("a step adds several sums at once, for which no arithmetic is known")
            one, other = (self._partial(value, child) for value, child in zip(sums, node.nodes, strict=True))
            return self._add(one, other)
        return self.step(products, sums[0] if sums else None)

    def _partial(self, value: Values, node: Node) -> Values:
        """A sum of products rounded to the format of partials; sums of sums stay."""
        partial = self.arithmetic.partial
        if partial is None or not node.products:
            return value
        return np.asarray(decode(encode(value, partial, overflow="inf"), partial, np.float32)).astype(value.dtype)

    def step(self, places: list[int], before: Values | None) -> Values:
        """Products at some places of K joined to a sum, or to nothing."""
        if self.arithmetic.step is None:
            return self._one_by_one(places, before)
        row = replace(self.arithmetic.step, length=len(places))
        start = np.zeros(self.shape, np.float32) if before is None else before
        sum_of = exact_step if row.method is EXACT else truncated_step
        a, b = (each.take(places) for each in self.fields)
        d = sum_of(a, b, start.view(np.uint32)[None], row)
        return np.asarray(d[0]).view(np.float32)

    def _one_by_one(self, places: list[int], total: Values | None) -> Values:
        dtype = self.arithmetic.dtype
        for place in places:
            x, y = np.broadcast_arrays(self.numbers[0][:, None, place], self.numbers[1][None, :, place])
            if dtype is np.float64:
                product = x.astype(np.float64) * y
                total = product if total is None else total + product
            elif total is None or self.exact or self.arithmetic.product == FL_THEN_ADD:
                product = ieee.mul(x, y)
                total = product if total is None else ieee.add(total, product)
            else:
                total = ieee.fma(x, y, total)
        assert total is not None
        return total

    def _add(self, one: Values, other: Values) -> Values:
        return one + other if one.dtype == np.float64 else ieee.add(one, other)
