"""Finds the tree of a sum: two large products that cancel swallow everything added before or with the later of them.

U at place i and -U at place j leave 0, and the small products added after i and j have met. The number of lost products
is the size of the smallest subtree that holds both. The answers for all j and one i give the path from i to the root;
its side branches are asked likewise. A node of many children is a step that adds them at once: it loses everything
except i and j. Source: the published method FPRev (revealing floating-point accumulation order), here with a witness
outside each group.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from refsim.bringup.bench import Bench, Probe, exponent_of, power
from refsim.conversions import decode
from refsim.errors import Kind, RefsimError

T = TypeVar("T")
MOST_SAID = 4


@dataclass(frozen=True, eq=False)
class Node:
    """Children that are added at once, the child with the least place first. Node((Node((0, 1)), 2)) is (p0 + p1) + p2.
    Compare two nodes with `same`: chains are deeper than Python recurses."""

    children: tuple["int | Node", ...]

    def __post_init__(self) -> None:
        """Store the number of products below and the least place."""
        object.__setattr__(self, "_size", sum(size(child) for child in self.children))
        object.__setattr__(self, "_least", min(least(child) for child in self.children))

    @property
    def products(self) -> tuple[int, ...]:
        """Return the places of the products that enter this node directly."""
        return tuple(child for child in self.children if isinstance(child, int))

    @property
    def nodes(self) -> tuple["Node", ...]:
        """Return the sums that enter this node."""
        return tuple(child for child in self.children if isinstance(child, Node))


def size(tree: "int | Node") -> int:
    """Return how many products a tree adds."""
    return tree._size if isinstance(tree, Node) else 1  # type: ignore[attr-defined]


def least(tree: "int | Node") -> int:
    """Return the least place of K in a tree."""
    return tree._least if isinstance(tree, Node) else tree  # type: ignore[attr-defined]


def joined(children: "list[int | Node]") -> "int | Node":
    """Return a node of these children, or the only child itself."""
    return children[0] if len(children) == 1 else Node(tuple(sorted(children, key=least)))


def post_order(tree: "int | Node") -> Iterator[Node]:
    """Yield every node after the nodes below it, without recursion."""
    stack: list[tuple[Node, bool]] = [(tree, False)] if isinstance(tree, Node) else []
    while stack:
        node, done = stack.pop()
        if done:
            yield node
        else:
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(node.nodes))


def folded(tree: "int | Node", leaf: Callable[[int], T], node: Callable[[Node, list[T]], T]) -> T:
    """Return the value of a tree: `leaf` of a place, `node` of a node and its children's values in order."""
    known: dict[int, T] = {}
    for each in post_order(tree):
        values = [known.pop(id(child)) if isinstance(child, Node) else leaf(child) for child in each.children]
        known[id(each)] = node(each, values)
    return known[id(tree)] if isinstance(tree, Node) else leaf(tree)


def leaves(tree: "int | Node") -> tuple[int, ...]:
    """Return the places below, ascending."""
    if isinstance(tree, int):
        return (tree,)
    return tuple(sorted(place for node in post_order(tree) for place in node.products))


def same(one: "int | Node", other: "int | Node") -> bool:
    """Return whether two trees add equal products in equal order; the two summands of an addition may be exchanged."""
    return _signature(one) == _signature(other)


def _signature(tree: "int | Node") -> tuple[tuple[tuple[int, ...], int], ...]:
    """Return a description of the whole tree: the products and number of nodes of every node, in post-order. Children
    are ordered by their least place."""
    ordered = folded(tree, lambda place: place, lambda _, children: joined(children))
    if isinstance(ordered, int):
        return (((ordered,), 0),)
    return tuple((node.products, len(node.nodes)) for node in post_order(ordered))


def placed(tree: "int | Node", places: Mapping[int, int] | tuple[int, ...]) -> "int | Node":
    """Return the tree over other places: place i becomes places[i]."""
    return folded(tree, lambda place: places[place], lambda _, children: joined(children))


def nested(tree: "int | Node") -> object:
    """Return the tree as nested lists of places, for JSON; chains longer than 200 nodes as their steps."""
    depth = folded(tree, lambda _: 0, lambda _, below: 1 + max(below))
    if depth > 200:
        assert isinstance(tree, Node)
        return {"steps": [[list(node.products), len(node.nodes)] for node in post_order(tree)]}
    return folded(tree, lambda place: place, _listed)


def _listed(_: Node, children: list[object]) -> object:
    return children


def said_places(places: Sequence[int]) -> str:
    """Return places as text: "k 0..15", "k 0, 8, .., 504", "k 0..1, 4..5, .."."""
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][1] + 1:
            runs[-1][1] = place
        else:
            runs.append([place, place])
    shown = [f"{first}" if first == last else f"{first}..{last}" for first, last in runs]
    if len(shown) > MOST_SAID:
        shown = [*shown[:2], "..", shown[-1]]
    return f"k {', '.join(shown)}"


Question = tuple[int, int, int]
HIDING = 26  # a sum of float32 loses terms below 2^-25 of it
NARROW_HIDING = 15  # the distance for a step that keeps 13 bits: for operands of few binades
MOST_PAIRS = 64
AT_ONCE = 4096  # sums in one call


class NoOrderError(RefsimError):
    """Results that are no sum in a fixed order of additions that lose bits."""


def _number(value: Fraction) -> str:
    return "not finite" if value >= power(900) else f"{float(value):g}"


def no_order(what: str, rule: str = "") -> NoOrderError:
    """Return the error of a subject without a fixed order of additions."""
    return NoOrderError("no-order", what, rule=rule, kind=Kind.INCONCLUSIVE)


def scale_of(bench: Bench) -> Fraction:
    """Return the power of two between every result and its sum, as in a mean of 128 numbers; 1 where there is none."""
    value = power((bench.top + bench.bottom) // 2)
    nothing, *alone = bench.ask([Probe({}), *(Probe({place: value}) for place in (0, bench.k // 2, bench.k - 1))])
    factor = alone[0] / value
    is_scale = not nothing and len({*alone}) == 1 and 0 < abs(factor) < power(900)
    return factor if is_scale and abs(factor) == power(exponent_of(abs(factor))) else Fraction(1)


@dataclass
class Revealer:
    """Calls one bench; answers are cached, and groups with a known group's answers get its tree (unless `thorough`). A
    question is two places and a number: the index of the counted group in `_groups`, without the two places."""

    bench: Bench
    thorough: bool = False
    _lost: dict[Question, int] = field(default_factory=dict)
    _known: dict[tuple[int, ...], "tuple[int | Node, ...]"] = field(default_factory=dict)
    _groups: list[NDArray[np.intp]] = field(default_factory=list)
    _numbers: dict[tuple[int, ...], int] = field(default_factory=dict)

    @property
    def span(self) -> int:
        """Return the binades between the large and the small products."""
        return self.bench.top - self.bench.bottom

    @property
    def at_once(self) -> int:
        """Return how many small products one result can count: they stay below the large product, and exact."""
        hiding = HIDING if self.span > HIDING else NARROW_HIDING
        return int(min(2 ** min(self.span - hiding, 12), 2 << self.bench.d_format.mantissa_bits, 4096))

    @property
    def _range(self) -> str:
        return f"products span 2^{self.bench.bottom} to 2^{self.bench.top}"

    def tree(self) -> "int | Node":
        """Return the tree over all places; raise NoOrderError where the answers fit no tree."""
        if self.span <= NARROW_HIDING:
            raise no_order(f"{self._range}: none hides another")
        self._require_each_product_once()
        return joined(self._children(tuple(range(self.bench.k)), None))

    def _require_each_product_once(self) -> None:
        """Raise NoOrderError where a product is not in the sum, counts more than once, or anything else is added."""
        value = power((self.bench.top + self.bench.bottom) // 2)
        nothing, *alone = self.bench.ask([Probe({}), *(Probe({place: value}) for place in range(self.bench.k))])
        if nothing:
            raise no_order(f"every product is zero and D is {_number(nothing)}")
        times: dict[Fraction, list[int]] = {}
        for place, got in enumerate(alone):
            times.setdefault(got / value, []).append(place)
        times.pop(Fraction(1), None)
        if times:
            factor, places = next(iter(times.items()))
            what = "is not in the sum" if not factor else f"alone is {_number(factor)} times itself in D"
            raise no_order(f"the product at {said_places(places)} {what}", "each product enters the sum once")

    def _children(self, places: tuple[int, ...], witness: int | None) -> "list[int | Node]":
        """Return the subtrees over `places` that enter the step which also holds the place `witness` outside them."""
        found: list[int | Node] = []
        rest = places
        whole = key = None
        while len(rest) > 1:
            pivot, sizes = self._around(rest, witness)
            if whole is None and not self.thorough:
                whole, key = rest, (*(sizes.get(place, 0) for place in rest), witness is None)
                if key in self._known:
                    return [placed(shape, rest) for shape in self._known[key]]
            beyond = len(rest) if witness is not None else len(rest) + 1
            if all(lost == beyond for lost in sizes.values()) and len(rest) <= MOST_PAIRS:
                self._ask_pairs(rest, witness)
            found.append(self._path(rest, pivot, {j: lost for j, lost in sizes.items() if lost < beyond}))
            rest = tuple(place for place, lost in sizes.items() if lost == beyond)
        found += rest
        if whole is not None and key is not None:
            ranks = {place: rank for rank, place in enumerate(whole)}
            self._known[key] = tuple(placed(each, ranks) for each in found)
        return found

    def _around(self, places: tuple[int, ...], witness: int | None) -> tuple[int, dict[int, int]]:
        """Return a middle place, and for every other place the number of products below their common node, itself
        counted."""
        pivot = places[len(places) // 2]
        questions = self._questions(places, pivot, witness)
        lost = self._answers(questions)
        sizes = {j: 1 + each for (_, j, _), each in zip(questions, lost, strict=True)}
        ascending = sorted(sizes.values())
        for j, each in sizes.items():
            if each != bisect_right(ascending, each) and (witness is None or each != len(places)):
                raise no_order(
                    f"U at k = {pivot} and -U at k = {j} lose {each - 1} products, which no tree does", self._range
                )
        return pivot, sizes

    def _questions(self, places: tuple[int, ...], pivot: int, witness: int | None) -> list[Question]:
        """Return the questions of a pivot and every other place, with the group and the witness counted."""
        counted = (*places, *(() if witness is None else (witness,)))
        number = self._numbers.setdefault(counted, len(self._groups))
        if number == len(self._groups):
            self._groups.append(np.array(counted))
        return [(pivot, j, number) for j in places if j != pivot]

    def _ask_pairs(self, places: tuple[int, ...], witness: int | None) -> None:
        """Ask in one call the later questions of a step that adds all places at once."""
        ahead: list[Question] = []
        while len(places) > 1:
            pivot = places[len(places) // 2]
            ahead += self._questions(places, pivot, witness)
            places = tuple(place for place in places if place != pivot)
        self._answers(ahead)

    def _path(self, places: tuple[int, ...], pivot: int, sizes: dict[int, int]) -> "int | Node":
        """Return the subtree of the pivot, its nearest partners first."""
        groups: dict[int, list[int]] = {}
        for j, lost in sizes.items():
            groups.setdefault(lost, []).append(j)
        ordered = [tuple(sorted(groups[lost])) for lost in sorted(groups)]
        ahead = [
            q for group in ordered if len(group) > 1 for q in self._questions(group, group[len(group) // 2], pivot)
        ]
        self._answers(ahead)
        tree: int | Node = pivot
        for group in ordered:
            tree = joined([tree, *self._children(group, pivot)])
        return tree

    def _answers(self, questions: Sequence[Question]) -> list[int]:
        """Return how many of the counted products are lost, for each question."""
        new = [q for q in dict.fromkeys(questions) if q not in self._lost]
        survived, most = dict.fromkeys(new, 0), self.at_once
        parts = [(q, start) for q in new for start in range(0, len(self._groups[q[2]]), most)]
        for first in range(0, len(parts), AT_ONCE):
            some = parts[first : first + AT_ONCE]
            for (question, _), count in zip(some, self._surviving(some), strict=True):
                survived[question] += count
        self._lost.update({q: len(self._groups[q[2]]) - 2 - survived[q] for q in new})
        return [self._lost[question] for question in questions]

    def _surviving(self, parts: list[tuple[Question, int]]) -> list[int]:
        """Return how many counted products of each part of a group survive next to U and -U."""
        bench, shape = self.bench, (len(parts), self.bench.k)
        large, small = power(bench.top), power(bench.bottom)
        (a_large, b_large), (a_minus, b_minus), (a_small, b_small) = map(bench.factors, (large, -large, small))
        a = np.full(shape, a_small, bench.a_format.code_dtype)
        b = np.zeros(shape, bench.b_format.code_dtype)
        most = self.at_once
        for row, ((i, j, number), start) in enumerate(parts):
            b[row, self._groups[number][start : start + most]] = b_small
            a[row, i], a[row, j] = a_large, a_minus
            b[row, i], b[row, j] = b_large, b_minus
        results = decode(bench.dots(a, b, np.zeros(len(parts), bench.d_format.code_dtype)), bench.d_format)
        counts = results / float(small)
        wrong = ~((counts >= 0) & (counts <= most) & (counts == np.floor(counts)))
        if wrong.any():
            at = int(np.argmax(wrong))
            i, j, _ = parts[at][0]
            raise no_order(f"U at k = {i} and -U at k = {j} leave {counts[at]:g} small products")
        return [int(count) for count in counts]
