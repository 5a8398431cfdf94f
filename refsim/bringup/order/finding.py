"""The order in which a matrix product adds, over sizes and places of its batch, and its check by the bits of test
cases."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from refsim.bringup.bench import Codes, reach
from refsim.bringup.order.arithmetic import NodeArithmetic, candidates, computed
from refsim.bringup.order.revealing import (
    HIDING,
    MOST_SAID,
    Node,
    NoOrderError,
    Revealer,
    least,
    leaves,
    placed,
    post_order,
    said_places,
    same,
    scale_of,
)
from refsim.bringup.order.subjects import Asker, OrderSubject
from refsim.conversions import encode
from refsim.errors import RefsimError
from refsim.formats import Format
from refsim.render.cards import FieldsCard

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
            said = f"{pad}{len(tree.nodes)} sums and {len(tree.products)} products added at once"
            return [said, *self._each(tree.nodes, depth)]
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


MOST_CLASSES = 8
NEAR = 8  # up to so many values of M are tried one after the other
MOST_ROWS = 1024  # sums of rows in one call
SPARE = 8  # binades beyond float32's precision, so that a call can count 256 products
Floats = NDArray[np.float64]
POOL = 4  # rows of A that differ; further rows repeat them, so every place in a batch has a result to be compared with
MOST_SPREAD = 10  # binades around 1 of the magnitudes, in addition to a normal distribution; fewer in narrow formats


@dataclass(frozen=True)
class TellingOperands:
    """`pool` (4, K) and `b` (N, K), codes; row r of a batch is pool[r % 4]."""

    pool: Codes
    b: Codes

    def rows(self, m: int) -> Codes:
        """Return A of a batch of m rows."""
        return self.pool[np.arange(m) % len(self.pool)]


def telling(subject: OrderSubject, seed: int) -> tuple[TellingOperands, TellingOperands]:
    """Return two test cases of a seed: numbers of several binades, and such numbers with every product also negated.

    The second result is the error of the additions: it shows the order even through a result of few bits. The two
    places that cancel are random, so no kernel's order puts them together systematically.
    """
    generator = np.random.default_rng(seed)
    sides = (POOL, subject.a_format), (subject.n, subject.b_format)
    most = min(MOST_SPREAD, reach(subject.d_format) / 3)  # so that the result holds their sum
    pool, b = (_numbers(generator, (height, subject.k), row, most) for height, row in sides)
    if not subject.a_is_free:
        pool = np.ones_like(pool)
    if not subject.b_is_free:
        b = np.ones_like(b)
    half = subject.k // 2
    places = generator.permutation(subject.k)[: 2 * half]
    mirrored_pool, mirrored_b = pool.copy(), b.copy()
    mirrored_pool[:, places[half:]] = pool[:, places[:half]]
    mirrored_b[:, places[half:]] = -b[:, places[:half]]
    if not subject.b_is_free:
        mirrored_pool[:, places[half:]], mirrored_b = -mirrored_pool[:, places[half:]], b
    return _coded(subject, pool, b), _coded(subject, mirrored_pool, mirrored_b)


def uniform(subject: OrderSubject, m: int, seed: int) -> list[tuple[Codes, Codes]]:
    """Return A and B of `telling` with one row of A and one row of B repeated: every element of D is the same sum."""
    return [(each.pool[[0] * m], each.b[[0] * subject.n]) for each in telling(replace(subject, n=1), seed)]


def _numbers(generator: np.random.Generator, shape: tuple[int, int], row: Format, most: float) -> Floats:
    spread = min(most, reach(row) / 3)
    return generator.standard_normal(shape) * np.exp2(generator.uniform(-spread, spread, shape))


def _coded(subject: OrderSubject, pool: Floats, b: Floats) -> TellingOperands:

    def codes(numbers: Floats, row: Format) -> Codes:
        return encode(numbers, row, overflow="saturate")

    return TellingOperands(codes(pool, subject.a_format), codes(b, subject.b_format))


@dataclass(frozen=True, eq=False, repr=False)
class SumOrder(FieldsCard):
    """A tree and the arithmetic of its nodes; `lines` describe both. `words` results were compared, `equal` of them
    agree with this order, `reversed_equal` with the reversed order."""

    tree: "int | Node"
    arithmetic: NodeArithmetic
    lines: tuple[str, ...]
    words: int = 0
    equal: int = 0
    reversed_equal: int = 0

    @property
    def explains(self) -> bool:
        """Return whether computing in this order gave every result."""
        return 0 < self.words == self.equal

    def is_like(self, other: "SumOrder") -> bool:
        """Return whether both make equal additions with equal rounding."""
        return same(self.tree, other.tree) and self.arithmetic == other.arithmetic


@dataclass(frozen=True)
class FirstDifference:
    """The first result that another size or place of the batch changes: D[row, column] of a batch of `m` rows. `agrees`
    is the largest tried M below `m` whose results equal the smallest batch's, 0 without one."""

    m: int
    row: int
    column: int
    got: int
    want: int
    agrees: int = 0


@dataclass(frozen=True, eq=False)
class AtM:
    """One size of the batch: the order of each class of elements (None with the reason in `why`), and the explained
    results."""

    m: int
    classes: tuple[tuple[SumOrder | None, int], ...]
    words: int
    explained: int
    why: str = ""

    @property
    def orders(self) -> tuple[SumOrder, ...]:
        """Return the orders that were found."""
        return tuple(order for order, _ in self.classes if order is not None)


@dataclass(frozen=True, eq=False, repr=False)
class Fingerprint(FieldsCard):
    """The findings about a subject: its orders by M, whether results depend on M or place, whether two runs agree."""

    subject: OrderSubject
    sizes: tuple[AtM, ...]
    seeds: tuple[int, ...]
    difference: FirstDifference | None
    repeats: bool
    calls: int

    @property
    def is_batch_invariant(self) -> bool:
        """Return whether a row gave equal results in every batch and at every place that was tried."""
        return self.difference is None

    @property
    def words(self) -> int:
        """Return the number of compared results."""
        return sum(each.words for each in self.sizes)

    @property
    def explained(self) -> int:
        """Return the number of results that the orders give."""
        return sum(each.explained for each in self.sizes)

    @property
    def explains(self) -> bool:
        """Return whether the orders give every result of every size."""
        return 0 < self.words == self.explained

    @property
    def orders(self) -> tuple[SumOrder, ...]:
        """Return the different orders, the smallest batch's first."""
        found: list[SumOrder] = []
        for each in self.sizes:
            found += [order for order in each.orders if not any(order.is_like(known) for known in found)]
        return tuple(found)

    def order_at(self, m: int) -> SumOrder | None:
        """Return the order of most elements of a batch of m rows."""
        classes = next(each.classes for each in self.sizes if each.m == m)
        return max(classes, key=lambda each: each[1])[0] if classes else None


def fingerprint(subject: OrderSubject, *, seeds: Sequence[int] = (0, 1), thorough: bool = False) -> Fingerprint:
    """Return the orders of a subject for every M of its `rows`, checked by the bits of two test cases for each seed.

    The order of the first M is found by probing. Another M, or another place of D, is probed where no known order gives
    its results. With `thorough`, groups with equal answers are asked one by one. The fingerprint of 16 products added
    by a chain of eight steps has one order, whose first line says so. Raises RefsimError where the subject does, and
    for results of another shape. Source: FPRev; `refsim.bringup.discovery`.
    """
    rows = sorted(set(subject.rows))
    run = _Run(subject, tuple(seeds), thorough)
    difference = run.first_difference(rows)
    sizes = [run.at(m) for m in run.in_turn(rows)]
    return Fingerprint(
        subject, tuple(sorted(sizes, key=lambda each: each.m)), run.seeds, difference, run.repeats, run.calls
    )


@dataclass
class _Run:
    """One fingerprint in progress: the subject, its orders so far, and its results by M."""

    subject: OrderSubject
    seeds: tuple[int, ...]
    thorough: bool
    orders: list[SumOrder] = field(default_factory=list)
    repeats: bool = True
    calls: int = 0
    problems: list[TellingOperands] = field(default_factory=list)
    results: dict[int, list[Codes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.problems = [each for seed in self.seeds for each in telling(self.subject, seed)]
        self._given: dict[tuple[int, NodeArithmetic, int], tuple[int | Node, Codes]] = {}

    def in_turn(self, rows: list[int]) -> list[int]:
        """Return the order of the M: the largest useful batch first where each probe needs a row of A of its own."""
        if self.subject.b_is_free and _shares_rows(Asker(self.subject, rows[0])):
            return rows
        useful = self.subject.n if self.subject.b_is_free else MOST_ROWS
        most = max((m for m in rows if m <= useful), default=rows[0])
        return [most, *(m for m in rows if m != most)]

    def first_difference(self, rows: list[int]) -> FirstDifference | None:
        """Return the first result, by M, that differs from the equal row's result in the smallest batch."""
        self.results = {m: self._results(m) for m in rows}
        self.repeats = self._repeats(rows[0]) and all(map(self._is_settled, rows))
        reference = self._first(rows[0], self.results[rows[0]])
        agrees = 0
        for m in rows:
            if found := self._difference(m, self.results[m], reference):
                self.repeats = self.repeats and self._repeats(m)
                return self._smallest(agrees, found, reference) if self.repeats and agrees else found
            agrees = m
        return None

    def _results(self, m: int) -> list[Codes]:
        return [self._product(each.rows(m), each.b) for each in self.problems]

    def _repeats(self, m: int) -> bool:
        """Return whether each test case gives its results again, twice in turn, which shows alternation of two
        orders."""
        twice = (pair for pair in zip(self.problems, self.results[m], strict=True) for _ in range(2))
        return all(np.array_equal(got, self._product(each.rows(m), each.b)) for each, got in twice)

    def _is_settled(self, m: int) -> bool:
        """Return whether a random order of threads gives equal results; sums by atomics depend on that order."""
        if self.subject.scheduled is None:
            return True
        problem, got = self.problems[1], self.results[m][1]
        return np.array_equal(got, self.subject.scheduled(problem.rows(m), problem.b))

    def _difference(self, m: int, results: list[Codes], reference: list[Codes]) -> FirstDifference | None:
        """Return the first difference of a batch's results from the reference, or None."""
        pairs = zip(results, reference, strict=True)
        return next(filter(None, (_first_difference(m, got, want[np.arange(m) % POOL]) for got, want in pairs)), None)

    def _smallest(self, agrees: int, found: FirstDifference, reference: list[Codes]) -> FirstDifference:
        """Return the difference at the smallest M between two tried ones: one by one where they are near, else by
        halves. Where the subject does not take an M, multiples of 2 are tried, then of 4, ..."""
        step = 1
        while between := [m for m in range(agrees + 1, found.m) if m % step == 0]:
            m = between[0] if len(between) <= NEAR else between[len(between) // 2]
            try:
                nearer = self._difference(m, self._results(m), reference)
            except RefsimError:
                step *= 2
                continue
            found, agrees = (nearer, agrees) if nearer else (found, m)
        return replace(found, agrees=agrees)

    def at(self, m: int) -> AtM:
        """Return the order of each class of elements of a batch of m rows."""
        results = self.results[m]
        labels = self._labels(m)
        found: list[tuple[SumOrder | None, int]] = []
        explained, why = 0, ""
        for label in range(int(labels.max()) + 1):
            mask = labels == label
            order = self._known(results, mask)
            if order is None and label < MOST_CLASSES:
                order, said = self._probed(m, results, mask)
                why = said or why
            elif order is None:
                why = f"elements of D are of {int(labels.max()) + 1} classes, of which {MOST_CLASSES} were probed"
            found.append((order, int(mask.sum())))
            explained += (
                sum(self._equal(order, number, got, mask) for number, got in enumerate(results)) if order else 0
            )
        return AtM(m, tuple(found), sum(each.size for each in results), explained, why)

    def _product(self, a: Codes, b: Codes) -> Codes:
        self.calls += 1
        return self.subject.product(a, b)

    def _first(self, m: int, results: list[Codes]) -> list[Codes]:
        """Return the reference results of every other batch, (4, N) each: of batches of the first M that begin with
        each row."""
        first = []
        for problem, got in zip(self.problems, results, strict=True):
            others = [
                self._product(np.roll(problem.pool, -p, 0)[np.arange(m) % POOL], problem.b)[:1] for p in range(1, POOL)
            ]
            first.append(np.concatenate([got[:1], *others]))
        return first

    def _labels(self, m: int) -> NDArray[np.int64]:
        """Return the class of each element of D (m, N): elements of one class give equal results for equal rows."""
        words = []
        for seed in self.seeds:
            for a, b in uniform(self.subject, m, seed + 1000):
                words.append(self._product(a, b).reshape(-1))
        given = np.stack(words)
        if (given == given[:, :1]).all():
            return np.zeros((m, self.subject.n), np.int64)
        _, first, label = np.unique(given, axis=1, return_index=True, return_inverse=True)
        rank = np.argsort(np.argsort(first))  # classes are numbered by the first element that has them
        return np.asarray(rank[label.reshape(-1)]).reshape(m, self.subject.n)

    def _known(self, results: list[Codes], mask: NDArray[np.bool_]) -> SumOrder | None:
        """Return the known order that gives all results of a class, or None."""
        for order in self.orders:
            if all(self._equal(order, at, got, mask) == int(mask.sum()) for at, got in enumerate(results)):
                return order
        return None

    def _equal(self, order: SumOrder, number: int, got: Codes, mask: NDArray[np.bool_]) -> int:
        """Return how many results of a class an order gives."""
        key = id(order.tree), order.arithmetic, number
        if key not in self._given:
            problem = self.problems[number]
            words = computed(order.tree, order.arithmetic, self.subject, problem.pool, problem.b)
            self._given[key] = order.tree, words  # the tree is kept with them: its identity is the key
        want = self._given[key][1][np.arange(len(got)) % POOL]
        return int(((got == want) & mask).sum())

    def _probed(self, m: int, results: list[Codes], mask: NDArray[np.bool_]) -> tuple[SumOrder | None, str]:
        """Return the order of a class of elements by probing, with the arithmetic that gives most of its results."""
        asker = self._asker(m, mask)
        try:
            best = self._best(asker, results, mask, self.thorough)
            if not best.explains and not self.thorough:
                best = max(best, self._best(asker, results, mask, thorough=True), key=lambda order: order.equal)
        except NoOrderError as error:
            return None, f"{error.what}{f' ({error.rule})' if error.rule else ''}"
        finally:
            self.calls += asker.calls
        self.orders.append(best)
        return best, "" if best.explains else "the order found does not give every element"

    def _asker(self, m: int, mask: NDArray[np.bool_]) -> Asker:
        """Return the calls for a class of elements: all of D, or the row with most elements of the class."""
        if mask.all():
            return Asker(self.subject, m)
        row = int(mask.sum(1).argmax())
        return Asker(self.subject, m, row, np.flatnonzero(mask[row]).tolist())

    def _best(self, asker: Asker, results: list[Codes], mask: NDArray[np.bool_], thorough: bool) -> SumOrder:
        """Return the order found by one probing, with the arithmetic that gives most results."""
        bench = asker.bench(weighted=_shares_rows(asker))
        asker.scale = scale_of(bench)
        tree = Revealer(bench, thorough).tree()
        best: SumOrder | None = None
        total = int(mask.sum()) * len(results)
        for found in candidates(self.subject, bench, tree):
            arithmetic = replace(found, scale=asker.scale)
            order = SumOrder(tree, arithmetic, lines_of(tree, arithmetic, self.subject.d_format.name))
            equal = sum(self._equal(order, at, got, mask) for at, got in enumerate(results))
            backwards = self._backwards(order, results, mask) if equal == total else 0
            tried = SumOrder(tree, arithmetic, order.lines, total, equal, backwards)
            if best is None or tried.equal > best.equal:
                best = tried
            if best.explains:
                break
        assert best is not None
        return best

    def _backwards(self, order: SumOrder, results: list[Codes], mask: NDArray[np.bool_]) -> int:
        """Return how many results the reversed order gives: all of them, where bits do not show the order. It is 0 for
        an order that equals its reverse, as an order of pairs does."""
        places = leaves(order.tree)
        turn = dict(zip(places, reversed(places), strict=True))
        rounded = tuple(sorted(turn[place] for place in order.arithmetic.rounded))
        turned = SumOrder(placed(order.tree, turn), replace(order.arithmetic, rounded=rounded), ())
        if turned.is_like(order):
            return 0
        return sum(self._equal(turned, at, got, mask) for at, got in enumerate(results))


def _shares_rows(asker: Asker) -> bool:
    """Return whether B alone carries the products, so all rows are equal: where B's range allows, or A is all ones."""
    weighted = asker.bench(weighted=True)
    return weighted.top - weighted.bottom >= HIDING + SPARE or not asker.subject.a_is_free


def compared(one: Fingerprint, other: Fingerprint) -> FirstDifference | None:
    """Return the first result in which two subjects differ on equal operands, at an M that both were asked with. Raises
    RefsimError for subjects of other formats or sizes: their operands would differ."""
    left, right = one.subject, other.subject
    kinds = [(s.a_format, s.b_format, s.d_format, s.n, s.k, s.a_is_free, s.b_is_free) for s in (left, right)]
    if kinds[0] != kinds[1]:
        said = [" ".join(map(str, kind[:3])) + f", N = {kind[3]}, K = {kind[4]}" for kind in kinds]
        raise RefsimError("no-order", f"{left.name} is {said[0]}; {right.name} is {said[1]}", rule="the same operands")
    for m in [m for m in left.rows if m in right.rows]:
        for seed in one.seeds:
            for each in telling(left, seed):
                got, want = (subject.product(each.rows(m), each.b) for subject in (right, left))
                if found := _first_difference(m, got, want):
                    return found
    return None


def _first_difference(m: int, got: Codes, want: Codes) -> FirstDifference | None:
    """Return the first place where results of a batch differ."""
    for row, column in np.argwhere(got != want)[:1].tolist():
        return FirstDifference(m, row, column, int(got[row, column]), int(want[row, column]))
    return None
