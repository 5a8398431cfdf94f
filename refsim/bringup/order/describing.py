"""A tree in a few lines: chains, steps, sums added in turn or by pairs; equal parts are described once."""

from collections.abc import Sequence
from itertools import pairwise

from refsim.bringup.order.arithmetic import NodeArithmetic
from refsim.bringup.order.trees import MOST_SAID, Node, least, leaves, post_order, said_places

INDENT = "  "


def lines_of(tree: "int | Node", arithmetic: NodeArithmetic, result: str) -> tuple[str, ...]:
    """Return the order in words, deeper levels indented: "4 sums added one after the other", "each: a chain of 8
    steps"."""
    if isinstance(tree, int):
        return ("one product",)
    described = _Describer(tree, arithmetic)
    sum_of = "result" if arithmetic.scale == 1 else f"sum times {float(arithmetic.scale):g}"
    return (*described.lines(tree, 0), str(arithmetic), f"the {sum_of} is rounded to {result}")


class _Describer:
    """Describes a tree; equal shapes have equal numbers: two such nodes differ only in their places."""

    def __init__(self, tree: Node, arithmetic: NodeArithmetic) -> None:
        """Number the shapes of all nodes."""
        numbers: dict[tuple[int, ...], int] = {}
        self.arithmetic = arithmetic
        self.shapes: dict[int, int] = {}
        below: dict[int, int] = {}
        for node in post_order(tree):
            kinds = tuple(sorted(below[id(child)] if isinstance(child, Node) else -1 for child in node.children))
            below[id(node)] = self.shapes[id(node)] = numbers.setdefault(kinds, len(numbers))

    def lines(self, tree: "int | Node", depth: int) -> list[str]:
        """Return the description of a subtree, with the sums that it adds below it."""
        pad = INDENT * depth
        if isinstance(tree, int):
            return [f"{pad}the product at k = {tree}"]
        if len(tree.nodes) < 2:
            return self._chain(tree, depth)
        if tree.products or len(tree.nodes) > 2:
            return [
                f"{pad}{len(tree.nodes)} sums and {len(tree.products)} products added at once",
                *self._each(tree.nodes, depth),
            ]
        parts, how = self._sums(tree)
        return [f"{pad}{len(parts)} sums added {how}".rstrip(), *self._each(parts, depth)]

    def _sums(self, node: Node) -> "tuple[list[Node], str]":
        """Return the sums that a node adds, in the order of its additions, and how: in turn or by pairs."""
        paired: list[Node] = [node]
        while all(len(each.nodes) == 2 and not each.products for each in paired):
            halves = [child for each in paired for child in each.nodes]
            if len({self.shapes[id(each)] for each in halves}) > 1:
                break
            paired = halves
        if len(paired) > 2:
            parts = sorted(paired, key=least)
            return parts, f"by pairs, {_pairs(node, parts)}"
        comb: list[Node] = []
        rest = node
        while len(rest.nodes) == 2 and not rest.products:
            one, other = rest.nodes
            if len(leaves(one)) < len(leaves(other)):
                one, other = other, one
            if comb and self.shapes[id(other)] != self.shapes[id(comb[-1])] and len(comb) > 1:
                break
            comb.append(other)
            rest = one
            if self.shapes[id(one)] == self.shapes[id(other)]:
                break
        parts = [rest, *reversed(comb)]
        if len(parts) == 2:
            return sorted(parts, key=least), ""
        firsts = [least(each) for each in parts]
        way = {True: "k ascending"}.get(firsts == sorted(firsts), _direction(firsts))
        return parts, f"one after the other, {way}"

    def _each(self, parts: "Sequence[Node]", depth: int) -> list[str]:
        """Return the description of parts of one shape once, and of other shapes separately."""
        pad = INDENT * (depth + 1)
        alike = [each for each in parts if self.shapes[id(each)] == self.shapes[id(parts[0])]]
        others = [each for each in parts if self.shapes[id(each)] != self.shapes[id(parts[0])]]
        taken = "; ".join(said_places(leaves(each)) for each in alike[:2]) + ("; ..." if len(alike) > 2 else "")
        found = [f"{pad}{'each' if len(alike) > 1 else 'one'} of {len(leaves(alike[0]))} products ({taken}):"]
        found += self.lines(alike[0], depth + 2)
        for each in others[:MOST_SAID]:
            found += [
                f"{pad}one of {len(leaves(each))} products ({said_places(leaves(each))}):",
                *self.lines(each, depth + 2),
            ]
        if len(others) > MOST_SAID:
            found.append(f"{pad}and {len(others) - MOST_SAID} more of other shapes")
        return found

    def _chain(self, node: Node, depth: int) -> list[str]:
        """Return the description of nodes that each add products to one sum, from the first to the last."""
        groups: list[tuple[int, ...]] = []
        rest: int | Node = node
        while isinstance(rest, Node) and len(rest.nodes) < 2 and rest.products:
            groups.append(rest.products)
            if not rest.nodes:
                break
            rest = rest.nodes[0]
        inner = isinstance(rest, Node) and (len(rest.nodes) > 1 or not rest.products)
        groups.reverse()
        pad = INDENT * depth
        found = [pad + line for line in self._groups(groups, from_zero=not inner)]
        if inner:
            found += [f"{pad}to what comes before:", *self.lines(rest, depth + 1)]
        return found

    def _groups(self, groups: list[tuple[int, ...]], *, from_zero: bool) -> list[str]:
        """Return the description of a chain's groups of products, from zero or added to a sum."""
        start = "from zero" if from_zero else "onto a sum"
        if self.arithmetic.step is None:
            if from_zero and len(groups[0]) == 2:
                two = sorted(groups[0], reverse=len(groups) > 1 and groups[1][0] < groups[0][0])  # they commute
                groups = [tuple(two), *groups[1:]]
            places = [place for group in groups for place in group]
            return [f"a chain of {len(places)} products {start}, {_direction(places)}"]
        lengths = {len(group) for group in groups[:-1]} or {len(groups[-1])}
        each = f"{lengths.pop()}" if len(lengths) == 1 else "several"
        last = f", the last of {len(groups[-1])}" if len(groups[-1]) != len(groups[0]) else ""
        if len(groups) == 1:
            return [f"one step {start} adds {len(groups[0])} products at once ({said_places(groups[0])})"]
        first = f"{said_places(groups[0])}; {said_places(groups[1])}{'; ...' if len(groups) > 2 else ''}"
        return [f"a chain of {len(groups)} steps {start}, each adds {each} products at once{last} ({first})"]


def _pairs(node: Node, parts: Sequence[Node]) -> str:
    """Return which parts are added first, by the distance of each pair."""
    rank = {least(part): number for number, part in enumerate(parts)}
    apart: list[int] = []
    level = [node]
    while len(level) < len(parts):
        pairs = [sorted(map(least, each.nodes)) for each in level]
        distances = {rank[after] - rank[before] for before, after in pairs}
        if len(distances) > 1:
            return "irregularly"
        apart.insert(0, distances.pop())
        level = [child for each in level for child in each.nodes]
    if apart == sorted(apart):
        return "neighbors first"
    if apart == sorted(apart, reverse=True):
        return "halves first"
    return f"first those that are {apart[0]} apart, then {', '.join(map(str, apart[1:]))}"


def _direction(places: Sequence[int]) -> str:
    """Return the order of places in words."""
    apart = {after - before for before, after in pairwise(places)}
    if len(apart) == 1 and (by := apart.pop()) in (1, -1):
        return "k ascending" if by == 1 else "k descending"
    if list(places) == sorted(places):
        return f"k ascending ({said_places(places)})"
    if list(places) == sorted(places, reverse=True):
        return "k descending"
    return f"in the order k = {', '.join(map(str, places[:6]))}{', ...' if len(places) > 6 else ''}"
