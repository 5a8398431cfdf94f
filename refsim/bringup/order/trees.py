"""The order of a sum as a tree: a place of K is a product, a node adds its children at once."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

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
