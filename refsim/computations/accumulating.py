"""How the products of an output are added: tensor cores, intervals and ranges of K, and the causes among them.

A sum of K columns is computed in ranges (split-K). A range is one chain of instructions, or one chain for every
`interval` columns, whose sums are added, or promoted by their scales, outside the tensor core.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.computations.engine import Aspect
from refsim.computations.host_sums import CASCADE, PAIRWISE, product_of_host
from refsim.computations.ways import Cause, Family, Way, held_in, ways_of
from refsim.conversions import RoundingName
from refsim.errors import RefsimError, check_named
from refsim.evidence import Level
from refsim.formats import BF16, F16, F32, ElementType, Format
from refsim.integers import is_whole
from refsim.numerics import exact_product, fma_product, ieee
from refsim.numerics.calls import arguments_of, fitted
from refsim.numerics.profiles import PROFILES
from refsim.numerics.rows import Profile
from refsim.sources import CUBLAS, DEEPGEMM, IEEE754, MMA_SIM, PTX, TRANSFORMER_ENGINE, Source

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Adder(Way):
    """An adder of the products of a chain: a profile `row` with the K of its instruction, or a loop `apply` in software.

    `same` lists every (profile, K) whose arithmetic is equal.
    """

    k: int = 1
    row: Profile | None = None
    same: tuple[tuple[Profile, int], ...] = ()

    def has(self, row: Profile, k: int) -> bool:
        """Return whether this is the arithmetic of a profile with instructions of that K."""
        return any(each.name == row.name and size == k for each, size in self.same)

    def sum(
        self, a: NDArray[Any], b: NDArray[Any], c: Floats | None, formats: tuple[ElementType, ElementType]
    ) -> Floats:
        """Return a B^T + C in float32; a and b are codes (..., rows, K), padded with zeros to whole instructions."""
        missing = -a.shape[-1] % self.k
        if missing:
            a, b = (np.pad(each, [(0, 0)] * (each.ndim - 1) + [(0, missing)]) for each in (a, b))
        if self.row is None:
            return np.asarray(self.apply(a, b, c, a_format=formats[0], b_format=formats[1]), np.float32)
        held = None if c is None else c.astype(self.row.d_dtype)
        given = arguments_of(a, b, held, a_format=formats[0], b_format=formats[1])
        return fitted(given, self.row, self.k).result().astype(np.float32)


_ONE_BY_ONE = (
    ("a float32 fma for every k, as a loop on CUDA cores", IEEE754["section 5.4.1"], fma_product),
    ("an exact sum, rounded once", IEEE754["section 4.3.1"], exact_product),
    *(
        (f"products in float32, {order}", order.source, partial(product_of_host, order))
        for order in (PAIRWISE, CASCADE)
    ),
)
_LOOPS = tuple(Adder(says, Family.ACCUMULATOR, source, sums, 2) for says, source, sums in _ONE_BY_ONE)


@functools.cache
def adders(a: ElementType, b: ElementType) -> tuple[Adder, ...]:
    """Return every adder of such products to a float32 or f16 sum; GPUs with equal arithmetic share one adder."""
    found: dict[tuple[object, ...], list[tuple[Profile, int]]] = {}
    for row in PROFILES:
        fits = a in row.a_formats and b in row.b_formats and not row.scales and row.d_format in (F32, F16)
        if not fits or row.evidence.level is Level.UNVERIFIED:
            continue
        for k in row.k:
            steps = min(row.length, k), row.order, row.c_enters, k if row.adds_c_last else 0
            cuts = row.method, row.fraction, row.zero_exponent, row.rounding, row.operands, row.d_format
            found.setdefault((*steps, *cuts), []).append((row, k))
    cores = [_of_rows(rows) for rows in found.values()]
    return (*cores, *_LOOPS)


def adder_of(row: Profile, types: tuple[ElementType, ElementType], k: int) -> Adder:
    """Return the adder with the arithmetic of a profile and K of one instruction."""
    known = (adder for adder in adders(*types) if adder.row is not None and adder.has(row, k))
    return next(known, None) or Adder(row.name, Family.ACCUMULATOR, row.source, k=k, row=row)


def _of_rows(rows: list[tuple[Profile, int]]) -> Adder:
    """Return the adder of several (profile, K) whose arithmetic is equal."""
    row, k = rows[0]
    chips = ", ".join(dict.fromkeys(f"{each.target} {each.unit}" for each, _ in rows))
    kept = f"{row.length} products at once" + (f", {row.fraction} bits" if row.fraction else "")
    says = f"{chips} K = {k} to {row.d_format}: {kept}"
    return Adder(says, Family.ACCUMULATOR, row.source, k=k, row=row, same=tuple(rows))


# ---- how a chain's sum meets what came before --------------------------------------------------------------------------


def _promoted_otherwise(had: "Promotion", row: "Promotion") -> str:
    """Return the family of a change between two promotions: order of factors, use of fma, or both."""
    if had.order == row.order:
        return Family.CONTRACTION
    return Family.PROMOTION_ORDER if had.is_fused == row.is_fused else Family.PROMOTION


@dataclass(frozen=True)
class Promotion(Way):
    """How the sum of a block is joined with its scales and the total: `apply(sum, scale a, scale b, total)`, float32.

    `order` is the order of the factors. Unless it `is_fused`, the product is rounded before it is added.
    """

    order: str = ""
    is_fused: bool = True

    families = staticmethod(_promoted_otherwise)


PROMOTIONS: dict[str, Callable[[Floats, Floats, Floats, Floats], Floats]] = {
    "scale_product": lambda product, a, b, total: ieee.fma(ieee.mul(a, b), product, total),
    "a_then_b": lambda product, a, b, total: ieee.fma(ieee.mul(product, a), b, total),
    "b_then_a": lambda product, a, b, total: ieee.fma(ieee.mul(product, b), a, total),
}


def _apart(order: str) -> Callable[[Floats, Floats, Floats, Floats], Floats]:
    """Return the promotion with these factors and without fma: the product is rounded before it is added."""

    def meet(product: Floats, a: Floats, b: Floats, total: Floats) -> Floats:
        zero = np.zeros_like(total)
        minus = np.negative(zero)  # adding -0 changes no product; +0 would turn -0 into +0
        return np.asarray(ieee.add(PROMOTIONS[order](product, a, b, minus), total), np.float32)

    return meet


_WORDS = {"scale_product": "(sa * sb) * P", "a_then_b": "(P * sa) * sb", "b_then_a": "(P * sb) * sa"}
_SAID = {
    "scale_product": DEEPGEMM["sm90_fp8_gemm_1d2d"],
    "a_then_b": TRANSFORMER_ENGINE["blockwise_fp8_gemm_reference"],
    "b_then_a": TRANSFORMER_ENGINE["blockwise_fp8_gemm_reference"],
}


def _promotions(said: str, is_fused: bool) -> Iterator[Promotion]:
    for name, meet in PROMOTIONS.items():
        says, apply = f"{_WORDS[name]}, {said}", meet if is_fused else _apart(name)
        yield Promotion(says, Family.PROMOTION_ORDER, _SAID[name], apply, order=name, is_fused=is_fused)


PROMOTION_ROWS = (*_promotions("by fma", True), *_promotions("by mul and add", False))
PROMOTION_OF = {each.order: each for each in PROMOTION_ROWS if each.is_fused}


# ---- in how many ranges --------------------------------------------------------------------------------------------------

K_OF_MMA = 16  # mma.m16n8k16
PARTIAL_FORMATS = (F32, BF16)


def _pairwise(partials: Floats) -> Floats:
    """Return (p0 + p1) + (p2 + p3); an odd sum waits for the next level."""
    level: list[Floats] = list(partials)
    while len(level) > 1:
        pairs = [ieee.add(level[at], level[at + 1]) for at in range(0, len(level) - 1, 2)]
        level = pairs + level[len(level) - len(level) % 2 :]
    return level[0]


ORDERS: dict[str, Callable[[Floats], Floats]] = {
    "from-zero": lambda partials: reduce(ieee.add, partials, np.zeros(partials.shape[1:], np.float32)),
    "ascending": lambda partials: reduce(ieee.add, partials),
    "pairwise": _pairwise,
}
"""((0 + p0) + p1) + p2, in which a lone -0 becomes +0; (p0 + p1) + p2; pairs."""


@dataclass(frozen=True)
class Reduction:
    """How K is divided among chains of mma, and how the chains' sums are added: one entry for each kernel variant.

    K is cut into tiles of `tile` columns, a multiple of 16. Each of `splits` chains takes a range of ceil(tiles /
    splits) tiles, the last chains fewer or none, or every splits-th tile (`in_turn`). A chain's sum is kept in f32 or
    rounded to bf16 (`partial_format`), and the sums are added in f32, rounded each time, in an `order` of ORDERS. A
    chain without a tile counts as +0. With one chain, its sum is written without any addition. Two splits of 5 tiles of
    64: columns 0..191 make the first sum, 192..319 the second.
    """

    name: str
    splits: int
    tile: int
    source: Source
    in_turn: bool = False
    partial_format: str | Format = F32
    order: str = "ascending"

    def __post_init__(self) -> None:
        """Raise RefsimError for wrong numbers of columns, formats or orders."""
        if not (is_whole(self.splits, 1) and is_whole(self.tile, 1)) or self.tile % K_OF_MMA:
            what = f"{self.splits} splits of tiles of {self.tile} columns"
            rule = f"1 split or more, a tile of {K_OF_MMA} columns or a multiple"
            raise RefsimError("bad-value", what, where=self.name, rule=rule)
        check_named("partial format", self.partial_format, [row.name for row in PARTIAL_FORMATS], where=self.name)
        check_named("summation order", self.order, ORDERS, where=self.name)

    def chain_of(self, columns: int) -> NDArray[np.int64]:
        """Return the chain, 0 to splits - 1, that takes each column of K."""
        tile = np.arange(columns) // self.tile
        tiles = -(-columns // self.tile)
        return tile % self.splits if self.in_turn else tile // max(1, -(-tiles // self.splits))


MEETING_ORDERS: dict[str, Callable[[Floats], Floats]] = {
    **ORDERS,
    "descending": lambda partials: ORDERS["ascending"](partials[::-1]),
}
"""The orders in which sums of ranges are added: the kernels' orders, and the last range first."""
_SPLIT = CUBLAS["split-K: sums of ranges of K are added afterwards"]
ONE_RANGE = Reduction("one range", 1, K_OF_MMA, PTX["wgmma, mma: D = A B + D, chained"])
SPLITS = (2, 3, 4, 5, 6, 7, 8, 12, 16)
TILES = (32, 64, 128)


MOST_CUTS = 64


@dataclass(frozen=True)
class Cut:
    """Two ranges of K of different sizes, as work shared by tiles leaves them: the second begins at column `at`."""

    at: int
    source: Source

    splits = 2

    def chain_of(self, columns: int) -> NDArray[np.int64]:
        """Return the range, 0 or 1, of each column of K."""
        return (np.arange(columns) >= self.at).astype(np.int64)


@dataclass(frozen=True)
class Sharing:
    """How K is shared: ranges, the format in which their sums are kept, and the order in which they are added.

    `is_added_so`: the running total is kept in that format too, as atomic additions leave it.
    """

    ranges: Reduction | Cut = ONE_RANGE
    meeting: str = "ascending"
    kept: Format = F32
    is_added_so: bool = False

    def met(self, sums: Floats) -> Floats:
        """Return the total of the sums of ranges (ranges, M, N)."""
        if len(sums) == 1:
            return MEETING_ORDERS[self.meeting](sums)
        held = held_in(self.kept, sums)
        if not self.is_added_so:
            return MEETING_ORDERS[self.meeting](held)
        total: Floats = held[0]
        for each in held[1:]:
            total = held_in(self.kept, np.asarray(ieee.add(total, each), np.float32))
        return total

    def __str__(self) -> str:
        if self.ranges.splits == 1:
            return "one range of K"
        kept = "" if self.kept is F32 else f" kept in {self.kept},"
        if self.is_added_so:
            kept = f" kept and added in {self.kept},"
        if isinstance(self.ranges, Cut):
            return f"2 ranges of K that part at column {self.ranges.at},{kept} added {self.meeting}"
        splits, tile = self.ranges.splits, self.ranges.tile
        taken = f"{splits} ranges of K, whole tiles of {tile} columns,"
        if self.ranges.in_turn:
            taken = f"{splits} sums, each of every {splits}th tile of {tile} columns,"
        return f"{taken}{kept} added {self.meeting}"


ONE_SUM = Sharing()


def _met_otherwise(ranges: Reduction) -> Iterator[tuple[Sharing, int]]:
    """Yield every order and format in which the sums of some ranges are added, with its rank."""
    for meeting in MEETING_ORDERS if ranges.splits > 2 else ("ascending",):
        yield Sharing(ranges, meeting), 2 + (meeting != "ascending") + ranges.in_turn
    for narrow in (BF16, F16):
        yield Sharing(ranges, kept=narrow), 4
        yield Sharing(ranges, kept=narrow, is_added_so=True), 4


def sharings(columns: int, usual: Sharing) -> Iterator[tuple[Sharing, int]]:
    """Yield every way to share that many columns, each partition once, with its rank; the usual one first."""
    one = np.zeros(columns, np.int64).tobytes()
    seen: set[bytes] = {one, usual.ranges.chain_of(columns).tobytes()}
    yield usual, 0
    if isinstance(usual.ranges, Reduction) and usual.ranges.splits > 1:
        yield from (each for each in _met_otherwise(usual.ranges) if each[0] != usual)
        yield Sharing(), 2
    for splits in SPLITS:
        for in_turn in (False, True):
            for tile in TILES:
                ranges = Reduction("split", splits, tile, _SPLIT, in_turn)
                key = ranges.chain_of(columns).tobytes()
                if key in seen or -(-columns // tile) < splits:
                    continue
                seen.add(key)
                yield from _met_otherwise(ranges)
    step = next((tile for tile in TILES if columns <= tile * MOST_CUTS), TILES[-1])
    for at in range(step, min(columns, step * MOST_CUTS), step):
        cut = Cut(at, _SPLIT)
        if cut.chain_of(columns).tobytes() not in seen:
            yield Sharing(cut), 4
    yield Sharing(meeting="from-zero"), 5


COUNTED = ways_of(
    Family.SPLIT_K,
    _SPLIT,
    {
        "every range of K counts": lambda ranges: ranges,
        "the first range of K alone counts": lambda ranges: ranges[:1],
        "the last range of K alone counts": lambda ranges: ranges[-1:],
        "the last range of K does not count": lambda ranges: ranges[:-1],
        "the first range of K does not count": lambda ranges: ranges[1:],
    },
    rank=2,
)
"""The ranges whose sums are added."""
BEGINNINGS = ways_of(
    Family.SCALE_LAYOUT,
    DEEPGEMM["sm90_fp8_gemm_1d2d"],
    {
        "blocks of scales are counted from the beginning of K": (False, False),
        "blocks of scales are counted from the beginning of each range of K": (True, True),
        "blocks of A's scales are counted from the beginning of each range of K": (True, False),
        "blocks of B's scales are counted from the beginning of each range of K": (False, True),
    },
    rank=2,
)
"""Whether each range of K begins with the scale of the first block, for A and for B."""


@dataclass(frozen=True)
class Running:
    """The format of the running sum between intervals: float32, or `format` with a rounding after each interval."""

    format: Format = F32
    rounding: RoundingName = "nearest-even"

    def kept(self, total: Floats) -> Floats:
        """Return the running sum as it is kept."""
        return held_in(self.format, total, self.rounding)

    def __str__(self) -> str:
        return f"the running sum is held in {self.format} between intervals, rounded {self.rounding}"


IN_FLOAT32 = Running()
RUNNING = (IN_FLOAT32, *(Running(row, way) for row in (BF16, F16) for way in ("nearest-even", "toward-zero")))

INTERVALS = (0, 128, 64, 32, 256, 16, 512)


def interval_causes(columns: int) -> Iterator[Cause]:
    """Yield the causes in the columns of K of one chain: aspect `interval`, 0: all of them."""
    for interval in INTERVALS:
        if interval < columns or not interval:
            says = (
                f"a chain for every {interval} columns, their sums added in float32" if interval else "one chain over K"
            )
            yield Cause(Family.FAST_SLOW, says, "interval", interval, CUBLAS["CUBLASLT_MATMUL_DESC_FAST_ACCUM"])


def sharing_causes(columns: int, usual: Sharing = ONE_SUM) -> Iterator[Cause]:
    """Yield the causes in how K is shared: aspect `sharing`."""
    for sharing, rank in sharings(columns, usual):
        yield Cause(Family.SPLIT_K, str(sharing), "sharing", sharing, sharing.ranges.source, rank)


def chains_told(own: Any, interval: int) -> str:
    """Return what a description always says of the intervals."""
    return f"a chain for every {interval} columns" if interval else "one chain"


_DESCENDS = tuple(
    Cause(Family.REDUCTION_ORDER, f"K is gone through from its {end}", "descends", at, MMA_SIM["chains"], 2)
    for at, end in ((False, "beginning"), (True, "end"))
)
_RUNNING = tuple(Cause(Family.ACCUMULATOR, str(row), "running", row, CUBLAS["compute type"], 2) for row in RUNNING)


def is_scaled(own: Any, way: Any) -> bool:
    """Return whether the operands of a product have float32 scales."""
    return own.a_scales is not None


SUM_ASPECTS = (
    Aspect("adder", lambda own: adders(*own.formats), lambda own: own.chain, told="{}"),
    Aspect("interval", lambda own: interval_causes(own.columns), lambda own: own.interval, told=chains_told),
    Aspect("sharing", lambda own: sharing_causes(own.columns, own.shared), lambda own: own.shared),
    Aspect("counted", COUNTED),
    Aspect("descends", _DESCENDS, usual=False),
    Aspect("running", _RUNNING, IN_FLOAT32),
    Aspect("promotion", PROMOTION_ROWS, when=is_scaled, told="{}"),
    Aspect("counted_from", BEGINNINGS, when=is_scaled),
)
"""How the products of A and B are added, in a computation with `formats`, `columns` of K, a usual `chain` and `interval`."""
