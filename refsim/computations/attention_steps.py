"""The steps of attention, each with its ways: masks, tiles of keys, scales, heads, exponents, weights, sums, the end."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.computations.softmax import factor_causes
from refsim.computations.special import EX2_FLUSHED, EX2_SUBNORMAL
from refsim.computations.ways import Cause, Codes, DoesNotApplyError, Family, Way, rounded_to, ways_of, worded
from refsim.conversions import ROUNDINGS, decode, encode
from refsim.conversions.rounding import TIES_AWAY
from refsim.errors import RefsimError
from refsim.formats import BF16, E4M3, E5M2, F16, F32, Format
from refsim.numerics import ieee
from refsim.sources import FLASHINFER, OCP_OFP8, PTX, TORCH

Floats = NDArray[np.float32]
Seen = NDArray[np.int64]
TILE_ROWS, SHIFT_OF_NARROW = 64, 8
LN_2 = np.float32(0.6931471805599453)
_ATTENTION = TORCH["nn.functional.scaled_dot_product_attention"]
_ONLINE = FLASHINFER["prefill.cuh: update_mdo_states"]

# ---- what a row sees -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MaskWay(Way):
    """A row sees the keys below `apply(row, queries, keys)`; up to `pads` zeros may follow the last key."""

    pads: int = 0


def _causal(step: int, row: Seen, queries: int, keys: int) -> Seen:
    """Return how many keys each row sees, all of them in the last row, changed by `step`."""
    return np.clip(row + 1 + keys - queries + step, 0, keys)


def _from_first(step: int, row: Seen, queries: int, keys: int) -> Seen:
    """Return how many keys each row sees, one in the first row, changed by `step`."""
    return np.clip(row + 1 + step, 0, keys)


def _first(more: int, tile: int, row: Seen, queries: int, keys: int) -> Seen:
    """Return that every row sees the keys and `more`, up to a whole tile."""
    return np.full(len(row), -(-(keys + more) // tile) * tile)


_FEWER, _MORE = "a row sees one key fewer than it should", "a row sees one key more than it should"
ALL = MaskWay("every row sees every key", Family.MASK, _ATTENTION, partial(_first, 0, 1), 0)
CAUSAL = MaskWay(
    "the last row sees every key, each before it one fewer", Family.MASK, _ATTENTION, partial(_causal, 0), 0
)
CAUSAL_MASKS = (
    CAUSAL,
    MaskWay(_FEWER, Family.SHIFTED, _ATTENTION, partial(_causal, -1)),
    MaskWay(_MORE, Family.SHIFTED, _ATTENTION, partial(_causal, 1)),
    MaskWay("the first row sees one key, each later row one more", Family.MASK, _ATTENTION, partial(_from_first, 0)),
    MaskWay("no mask: every row sees every key", Family.MASK, _ATTENTION, partial(_first, 0, 1)),
)
FULL_MASKS = (
    ALL,
    MaskWay("one key beyond the last is seen, zeros", Family.SHIFTED, _ATTENTION, partial(_first, 1, 1), pads=1),
    MaskWay(
        "pads up to a whole tile of 64 keys are seen, zeros",
        Family.TAIL,
        _ATTENTION,
        partial(_first, 0, TILE_ROWS),
        pads=TILE_ROWS,
    ),
    MaskWay("the last key is not seen", Family.SHIFTED, _ATTENTION, partial(_first, -1, 1)),
    MaskWay("causal, the last row sees every key", Family.MASK, _ATTENTION, partial(_causal, 0)),
    MaskWay("causal, the first row sees one key", Family.MASK, _ATTENTION, partial(_from_first, 0)),
)

# ---- windows: the first key that a row sees ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Window:
    """A row sees the last `size` keys up to its own, 0: all of them.

    `is_from_first`: the own key of the first row is the first key. The window begins at a multiple of `tile` keys. The
    first `kept` keys are seen in any case.
    """

    size: int = 0
    is_from_first: bool = False
    tile: int = 1
    kept: int = 0

    def seen(self, row: Seen, queries: int, keys: int, width: int) -> NDArray[np.bool_]:
        """Return which of `width` keys are in the window of each row."""
        key = np.arange(width)
        if not self.size:
            return np.ones((len(row), width), np.bool_)
        own = row + (0 if self.is_from_first else keys - queries)
        first = np.maximum(own - self.size + 1, 0) // self.tile * self.tile
        return np.asarray((key >= first[:, None]) | (key < self.kept))

    def __str__(self) -> str:
        if not self.size:
            return "no window: keys before it are seen"
        more = ", counted from the first key" if self.is_from_first else ""
        more += f", that begins at a multiple of {self.tile}" if self.tile > 1 else ""
        more += f", and the first {self.kept}" if self.kept else ""
        return f"a row sees a window of {self.size} keys{more}"


WINDOW_SIZES = tuple(1 << each for each in range(2, 15))


def _window_family(had: Window, window: Window) -> str:
    """Return the family of a change between two windows: off by one where one key decides."""
    return Family.SHIFTED if had.size and abs(had.size - window.size) == 1 else Family.MASK


ANY_WINDOWS = tuple((Window(size + by), 2) for size in WINDOW_SIZES for by in (0, 1, -1))


def window_causes(own: int, keys: int) -> Iterator[Cause]:
    """Yield the causes in the window of a row: aspect `window`."""
    yield Cause(Family.MASK, str(Window(own)), "window", Window(own), _ATTENTION, 0, _window_family)
    if own:
        found = [(each, 1) for each in (Window(own - 1), Window(own + 1), Window(), Window(own, is_from_first=True))]
        found += [(Window(own, tile=tile), 2) for tile in (16, 32, 64, 128)]
        found += [(Window(own, kept=kept), 2) for kept in (1, 4)]
        found += [(Window(size), 2) for size in (own * 2, own // 2, own - 2, own + 2)]
        yield from other_windows(own, keys, found)


def other_windows(own: int, keys: int, found: Sequence[tuple[Window, int]]) -> Iterator[Cause]:
    """Yield the causes of windows with their ranks, where those are others than a row's own window."""
    seen = {Window(own)}
    for window, rank in found:
        if window not in seen and 0 <= window.size <= keys + 1 and (window.size or window == Window()):
            seen.add(window)
            family = _window_family(Window(own), window)
            yield Cause(family, str(window), "window", window, _ATTENTION, rank, _window_family)


HIDDEN = ways_of(
    Family.MASK,
    _ATTENTION,
    {
        "a hidden key has no weight": lambda s, seen: np.where(seen, s, -np.inf),
        "the score of a hidden key is a finite number: a row that sees no key is a mean of all": lambda s, seen: (
            np.where(seen, s, -1e30)
        ),
        "10000 is subtracted from the score of a hidden key": lambda s, seen: np.where(seen, s, s - 10000),
        "the score of a hidden key is 0": lambda s, seen: np.where(seen, s, 0),
        "the score of a hidden key is the smallest positive number of float32": lambda s, seen: np.where(
            seen, s, np.finfo(np.float32).tiny
        ),
    },
)
"""The scores, times their scale, of keys that a row does not see, from (scores, which keys are seen)."""
EMPTY_ROWS = ways_of(
    Family.MASK,
    _ATTENTION,
    {"a row that sees no key is 0": 0.0, "a row that sees no key is NaN": np.nan},
)

# ---- sinks and caps ------------------------------------------------------------------------------------------------------------

SINKS = ways_of(
    Family.SINK,
    _ATTENTION,
    {
        "has its sink": lambda sinks, head, factor: sinks[head],
        "has no sink": lambda sinks, head, factor: -np.inf,
        "has the sink of the first head": lambda sinks, head, factor: sinks[0],
        "has the sink of the next head": lambda sinks, head, factor: sinks[min(head + 1, len(sinks) - 1)],
        "has its sink times the scale of the scores": lambda sinks, head, factor: sinks[head] * factor,
        "has its sink divided by the scale of the scores": lambda sinks, head, factor: sinks[head] / factor,
        "has its sink as a power of two": lambda sinks, head, factor: sinks[head] * np.log(2),
        "has its sink with the other sign": lambda sinks, head, factor: -sinks[head],
        "has a sink of 0": lambda sinks, head, factor: 0.0,
        "has a sink of 1": lambda sinks, head, factor: 1.0,
    },
)
CAPS = (50.0, 30.0, 20.0, 15.0, 10.0, 5.0)


def cap_causes(own: float) -> Iterator[Cause]:
    """Yield the causes in the cap of the scores: aspect `cap`, (the bound, whether it is applied before the scale)."""
    words = f"the scores are capped at {own:g}" if own else "the scores are not capped"
    yield Cause(Family.CAP, words, "cap", (own, False), _ATTENTION, 0)
    if own:
        yield Cause(Family.CAP, "the scores are not capped", "cap", (0.0, False), _ATTENTION)
        says = f"the scores are capped at {own:g} before they are multiplied by their scale"
        yield Cause(Family.CAP, says, "cap", (own, True), _ATTENTION)
    for size in (*CAPS, own * 2, own / 2, 1 / own if own else 0.0):
        if size not in (0.0, own):
            yield Cause(Family.CAP, f"the scores are capped at {size:g}", "cap", (size, False), _ATTENTION, 2)


def capped(cap: tuple[float, bool], s: NDArray[Any], factor: Any) -> NDArray[Any]:
    """Return scores times their scale, capped: c tanh(s / c), in the type of the scores."""
    bound, is_before = s.dtype.type(cap[0]), cap[1]
    scaled = s * s.dtype.type(1 if is_before else factor)
    held = bound * np.tanh(scaled / bound) if bound else scaled
    return np.asarray(held * s.dtype.type(factor if is_before else 1))


# ---- tiles of keys: whether a row takes the tile from `first` on, whose keys end at `ends` for its 64 rows -------------------

TAKEN = ways_of(
    Family.TAIL,
    PTX["cp.async.bulk.tensor"],
    {
        "every tile that a row of the block sees is taken": lambda first, tile, ends: ends > first,
        "tiles are counted for one key fewer: the last may be left out": lambda first, tile, ends: ends > first,
        "only whole tiles of keys are taken": lambda first, tile, ends: ends >= first + tile,
        "the last tile of keys is left out": lambda first, tile, ends: ends > first + tile,
        "the first tile of keys is left out": lambda first, tile, ends: (ends > first) & (first > 0),
    },
)
ONE_KEY_LESS = TAKEN[1]
KEY_TILES = (64, 128, 32, 16, 256, 0)


def tile_causes() -> Iterator[Cause]:
    """Yield the causes in the size of tiles: aspect `tile`, 0: all keys at once."""
    for tile in KEY_TILES:
        says = f"keys are taken {tile} at a time" if tile else "all keys are taken at once"
        yield Cause(Family.KEY_TILES, says, "tile", tile, _ONLINE, int(tile != TILE_ROWS))


# ---- scales ------------------------------------------------------------------------------------------------------------------


def scale_causes(own: float, depth: int) -> Iterator[Cause]:
    """Yield the causes in the softmax scale: aspect `factor`."""
    seen = set()
    for cause in factor_causes(own):
        seen.add(float(np.float32(cause.value)))
        yield cause
    others = [(other**-0.5, f"1 / sqrt({other})") for other in (32, 64, 80, 96, 128, 192, 256, 576)]
    others += [(1 / depth, f"1 / {depth}"), (depth**0.5, f"sqrt({depth})")]
    for number, says in others:
        if (key := float(np.float32(number))) not in seen:
            seen.add(key)
            family = Family.HEAD_DEPTH
            yield Cause(family, f"the scores are multiplied by {says}", "factor", number, _ATTENTION)


def _scale_at(scales: Floats, place: int) -> np.float32:
    """Return the scale of a head. Raises DoesNotApplyError after the last."""
    if place >= len(scales):
        raise DoesNotApplyError
    return np.float32(scales[place])


SCALE_WAYS = (
    *ways_of(
        Family.SCALE_LAYOUT,
        _ONLINE,
        {
            "of its own head": lambda scales, mine, head: _scale_at(scales, mine),
            "of the first head": lambda scales, mine, head: _scale_at(scales, 0),
            "of the next head": lambda scales, mine, head: _scale_at(scales, mine + 1),
            "of the head with the query's number": lambda scales, mine, head: _scale_at(scales, head),
        },
    ),
    Way("left out", Family.SCALE_RULE, _ONLINE, lambda scales, mine, head: np.float32(1)),
    Way("applied twice", Family.SCALE_RULE, _ONLINE, lambda scales, mine, head: np.square(_scale_at(scales, mine))),
)
BY_QUERY_HEAD = SCALE_WAYS[3]
"""The scale that a head uses, from (scales, the number of its own, the number of the query's head)."""


# ---- key heads ---------------------------------------------------------------------------------------------------------------

# Each function maps (head, heads that share keys, number of key heads) to a key head.


HEAD_MAPS = ways_of(
    Family.HEADS,
    _ATTENTION,
    {
        "its own": lambda head, group, kv_heads: head // group,
        "head % heads of keys": lambda head, group, kv_heads: head % kv_heads,
        "head % heads that share keys, zeros beyond the last": lambda head, group, kv_heads: head % group,
        "the first": lambda head, group, kv_heads: 0,
        "the next, zeros beyond the last": lambda head, group, kv_heads: head // group + 1,
    },
)
OWN_HEAD = HEAD_MAPS[0]


def head_causes() -> Iterator[Cause]:
    """Yield the causes in the keys and values that a head uses: aspect `heads`, a map for keys and one for values."""
    yield Cause(Family.HEADS, "a head takes its own keys and values", "heads", (OWN_HEAD, OWN_HEAD), _ATTENTION, 0)
    for row in HEAD_MAPS[1:]:
        for what, pair in (("keys and values", (row, row)), ("keys", (row, OWN_HEAD)), ("values", (OWN_HEAD, row))):
            yield Cause(row.family, f"{what} are of the head: {row.name}", "heads", pair, _ATTENTION)


def query_causes() -> Iterator[Cause]:
    """Yield the causes in the rows of Q of a tile: aspect `queries`, an offset in rows, None for the first tile."""
    yield Cause(Family.QUERY_ROWS, "rows of Q are their own", "queries", 0, _ATTENTION, 0)
    for step, tile in ((None, "first tile"), (-TILE_ROWS, "tile before"), (TILE_ROWS, "next tile")):
        yield Cause(Family.QUERY_ROWS, f"rows of Q are those of the {tile}", "queries", step, _ATTENTION)


# ---- exponents and weights -----------------------------------------------------------------------------------------------------


def _fused(s: Floats, u: Floats, factor: np.float32, shift: np.float32) -> Floats:
    base = u * factor - shift
    return ieee.fma(s, np.full_like(s, factor), np.broadcast_to(-base, s.shape).astype(np.float32))


SCORE_EXPONENTS = (
    *ways_of(
        Family.CONTRACTION,
        PTX["fma"],
        {
            "t = fma(s, C, -fl(fl(u * C) - F))": _fused,
            "t = fl(fl(s - u) * C) + F": lambda s, u, factor, shift: (s - u) * factor + shift,
            "t = fl(fl(s * C) - fl(fl(u * C) - F))": lambda s, u, factor, shift: s * factor - (u * factor - shift),
        },
        usual_rank=1,
    ),
    Way("t is multiplied by C once more", Family.SCALE_TWICE, _ATTENTION, lambda *given: _fused(*given) * given[2]),
    Way(
        "t = s - u + F: C is left out of the weights", Family.NO_SCALE, _ATTENTION, lambda s, u, c, shift: s - u + shift
    ),
)
SCORE_DIFFERENCE = SCORE_EXPONENTS[1]

Weights = tuple[Codes, Format]


def _rounded(way: str, p: Floats, format: Format) -> Weights:
    """Return P rounded one way, with its format."""
    overflow = {} if format.has_infinity else {"overflow": "saturate"}
    return np.asarray(encode(p, format, way, **overflow)), format  # type: ignore[arg-type]


def _unsaturated(p: Floats, format: Format) -> Weights:
    try:
        return np.asarray(encode(p, format, overflow="nan")), format
    except RefsimError:
        raise DoesNotApplyError from None


def _via(middle: Format, p: Floats, format: Format) -> Weights:
    """Return P rounded to a wider format first."""
    if middle.mantissa_bits <= format.mantissa_bits:
        raise DoesNotApplyError
    return _rounded("nearest-even", rounded_to(p, middle), format)


def _codes_of(other: Format, p: Floats, format: Format) -> Weights:
    if other is format or other.code_bits != format.code_bits:
        raise DoesNotApplyError
    return _rounded("nearest-even", p, other)[0], format


NEAREST_WEIGHTS = Way("P is rounded to nearest even", Family.ROUNDING, _ATTENTION, partial(_rounded, "nearest-even"), 0)
CUT_WEIGHTS = Way("P is cut: rounded toward zero", Family.ROUNDING, PTX["cvt.rz"], partial(_rounded, "toward-zero"))
WEIGHT_WAYS = (
    NEAREST_WEIGHTS,
    CUT_WEIGHTS,
    Way("P is rounded up", Family.ROUNDING, PTX["cvt.rp"], partial(_rounded, "up"), 2),
    Way("P is rounded to nearest, ties away", Family.TIES, PTX["cvt.rna"], partial(_rounded, "ties-away")),
    Way("P beyond the range is NaN", Family.SATURATION, OCP_OFP8["section 5.2"], _unsaturated),
    *(
        Way(f"P is rounded to {row} first", Family.DOUBLE_ROUNDING, _ATTENTION, partial(_via, row))
        for row in (BF16, F16)
    ),
    *(
        Way(f"P is codes of {row}, taken for those of the operands", Family.FORMAT, _ATTENTION, partial(_codes_of, row))
        for row in (E5M2, E4M3, F16, BF16)
    ),
    Way(
        "P is not rounded",
        Family.DOUBLE_ROUNDING,
        _ATTENTION,
        lambda p, to: (np.ascontiguousarray(p).view(np.uint32), F32),
        2,
    ),
)
NARROWED_APART = Way("P and O are rounded to nearest even", Family.ROUNDING, PTX["cvt"], rank=0)
NARROWINGS = (
    NARROWED_APART,
    *(
        Way(f"P and O are rounded {way}", Family.TIES if way == TIES_AWAY else Family.ROUNDING, PTX["cvt"], way)
        for way in ROUNDINGS[1:]
    ),
)
"""The rounding of P and O alike, as one instruction does it."""


def narrowed_weights(weights: Way, narrowing: Way, p: Floats, format: Format) -> Weights:
    """Return P as the second product uses it: codes and their format."""
    if narrowing is not NARROWED_APART:
        return _rounded(narrowing.apply, p, format)
    held: Weights = weights.apply(p, format)
    return held


SUMMED = ways_of(
    Family.DOUBLE_ROUNDING,
    PTX["cvt"],
    {
        "l is the sum of P before it is rounded": lambda p, held: p,
        "l is the sum of P after it is rounded": lambda p, held: decode(held[0], held[1], np.float32),
        "l is the sum of P cut to bf16": lambda p, held: (p.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32),
    },
)


def shift_causes(usual: int) -> Iterator[Cause]:
    """Yield the causes in the power of two by which weights are enlarged: aspect `shift`."""
    for shift in (0, SHIFT_OF_NARROW):
        says = f"weights are enlarged by 2^{shift}"
        yield Cause(Family.SCALE_RULE, says, "shift", shift, PTX["ex2"], int(shift != usual))


# ---- what becomes of older sums ------------------------------------------------------------------------------------------------

RESCALINGS = worded(
    Family.RESCALING,
    _ONLINE,
    "older sums are multiplied by 2^((m - u) C)",
    "older values are not rescaled under a new maximum",
    "older sums of weights are not rescaled under a new maximum",
    "neither older values nor older sums of weights are rescaled",
    "the factor of older sums lacks the scale",
    "older sums are dropped",
)
RESCALED, VALUES_KEPT, SUMS_KEPT, BOTH_KEPT, UNSCALED_FACTOR, DROPPED = RESCALINGS
MAXIMA = worded(
    Family.MAXIMUM,
    _ONLINE,
    "u is the maximum so far",
    "u is the maximum of the tile alone",
    "the maximum is not kept: each tile begins anew, older sums are dropped",
    "u is 0: no maximum is subtracted",
)
RUNNING_MAXIMUM, TILE_MAXIMUM, STALE_MAXIMUM, ZERO_MAXIMUM = MAXIMA


def _quad(p: Floats) -> Floats:
    lanes = p.reshape(len(p), -1, 4, 2).swapaxes(1, 2).reshape(len(p), 4, -1)
    return np.add.accumulate(lanes, axis=2, dtype=np.float32)[:, :, -1]


def _column_by_column(p: Floats) -> Floats:
    return np.add.accumulate(p, axis=1, dtype=np.float32)[:, -1:]


def _in_halves(p: Floats) -> Floats:
    while p.shape[1] % 2 == 0:
        p = p[:, : p.shape[1] // 2] + p[:, p.shape[1] // 2 :]
    return _column_by_column(p)


LANE_ORDERS = ways_of(
    Family.REDUCTION_ORDER,
    _ONLINE,
    {
        "l: four lanes, each with two columns of eight, which meet at the end": _quad,
        "l: one column after the other": _column_by_column,
        "l: the columns of a tile in halves": _in_halves,
    },
    usual_rank=1,
)
QUAD, COLUMN_BY_COLUMN, _ = LANE_ORDERS
"""The sums of a tile's weights by lane, (rows, lanes), from p (rows, keys); keys is a multiple of 8."""
JOININGS = ways_of(
    Family.CONTRACTION,
    PTX["fma"],
    {
        "l = fma(l, a, t)": lambda sums, factors, added: ieee.fma(sums, np.ascontiguousarray(factors), added),
        "l = fl(fl(l * a) + t)": lambda sums, factors, added: sums * factors + added,
    },
    usual_rank=1,
)


def factor_of_older(function: Way, rescaled: Way, maximum: Way, before: Floats, used: Floats, factor: Floats) -> Floats:
    """Return the factor of older sums after a new tile."""
    function = EX2_FLUSHED if function is EX2_SUBNORMAL else function
    if rescaled is DROPPED:
        return np.zeros_like(used)
    if maximum is ZERO_MAXIMUM:
        return np.ones_like(used)
    less = before - used
    return np.asarray(function.apply(less if rescaled is UNSCALED_FACTOR else less * factor), np.float32)


def lanes_met(sums: Floats) -> Floats:
    """Return the sums (rows) of lanes (rows, lanes): neighbors are added first."""
    while sums.shape[1] > 1:
        sums = sums[:, 0::2] + sums[:, 1::2]
    return sums[:, 0]


# ---- the end -------------------------------------------------------------------------------------------------------------------


LOGARITHMS = (
    *ways_of(
        Family.CONTRACTION,
        PTX["fma"],
        {
            "lse = fl(fl(base + lg2(L)) * ln(2))": lambda base, lg, ln: (base + lg) * LN_2,
            "lse = fma(lg2(L), ln(2), fl(base * ln(2)))": lambda base, lg, ln: ieee.fma(
                lg, np.full_like(lg, LN_2), base * LN_2
            ),
            "lse = fl(base * ln(2)) + fl(lg2(L) * ln(2))": lambda base, lg, ln: base * LN_2 + lg * LN_2,
        },
        usual_rank=1,
    ),
    Way(
        "lse = fl(base * ln(2)) + ln(L), rounded once",
        Family.SPECIAL,
        _ATTENTION,
        lambda base, lg, ln: base * LN_2 + ln,
    ),
    Way("lse is a logarithm to the base of 2", Family.BASE, _ATTENTION, lambda base, lg, ln: base + lg),
    Way("lse lacks the maximum", Family.MAXIMUM, _ATTENTION, lambda base, lg, ln: lg * LN_2),
)
LSE_NATURAL = LOGARITHMS[3]
VALUE_SCALINGS = (
    *ways_of(
        Family.PROMOTION_ORDER,
        _ONLINE,
        {
            "o = fl(fl(o / L) * v_scale)": lambda o, divided, inverse, scale: divided(o) * scale,
            "o = fl(o * fl(rcp(L) * v_scale))": lambda o, divided, inverse, scale: o * (inverse * scale),
            "o = fl(fl(o * v_scale) / L)": lambda o, divided, inverse, scale: divided(o * scale),
        },
    ),
    Way(
        "v_scale is in the reciprocal and applied again",
        Family.SCALE_RULE,
        _ONLINE,
        lambda o, divided, inverse, scale: (o * (inverse * scale)) * scale,
    ),
)
