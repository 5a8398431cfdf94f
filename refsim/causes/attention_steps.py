"""Causes in the steps of attention: masks, tiles of keys, exponents, weights."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from refsim.computations.softmax import factor_causes
from refsim.computations.ways import Cause, Codes, DoesNotApplyError, Family, Way
from refsim.conversions import ROUNDINGS, decode, encode
from refsim.conversions.rounding import TIES_AWAY
from refsim.errors import RefsimError
from refsim.formats import BF16, E4M3, E5M2, F16, F32, Format
from refsim.numerics import ieee
from refsim.sources import FLASHINFER, OCP_OFP8, PTX, TORCH

Floats = NDArray[np.float32]
Seen = NDArray[np.int64]
TILE_ROWS = 64
_ATTENTION = TORCH["nn.functional.scaled_dot_product_attention"]
_ONLINE = FLASHINFER["prefill.cuh: update_mdo_states"]

# ---- what a row sees -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MaskWay:
    """The keys that a row sees: those below `seen(row, queries, keys)`; up to `pads` zeros may follow the last key."""

    name: str
    family: Family
    seen: Callable[[Seen, int, int], Seen]
    pads: int = 0
    rank: int = 1


def _all(row: Seen, queries: int, keys: int) -> Seen:
    return np.full(len(row), keys)


def _causal(step: int, row: Seen, queries: int, keys: int) -> Seen:
    """Return how many keys each row sees, all of them in the last row, changed by `step`."""
    return np.clip(row + 1 + keys - queries + step, 0, keys)


def _from_first(step: int, row: Seen, queries: int, keys: int) -> Seen:
    """Return how many keys each row sees, one in the first row, changed by `step`."""
    return np.clip(row + 1 + step, 0, keys)


def _strictly_more(row: Seen, queries: int, keys: int) -> Seen:
    return np.full(len(row), keys + 1)


def _all_pads(row: Seen, queries: int, keys: int) -> Seen:
    return np.full(len(row), -(-keys // TILE_ROWS) * TILE_ROWS)


ALL = MaskWay("every row sees every key", Family.MASK, _all, rank=0)
CAUSAL = MaskWay("the last row sees every key, each before it one fewer", Family.MASK, partial(_causal, 0), rank=0)


def masks(*, causal: bool) -> Iterator[Cause]:
    """Yield the causes in the keys that a row sees: aspect `mask`."""
    found = [CAUSAL if causal else ALL]
    if causal:
        found += [
            MaskWay("a row sees one key fewer than it should", Family.SHIFTED, partial(_causal, -1)),
            MaskWay("a row sees one key more than it should", Family.SHIFTED, partial(_causal, 1)),
            MaskWay("the first row sees one key, each later row one more", Family.MASK, partial(_from_first, 0)),
            MaskWay("no mask: every row sees every key", Family.MASK, _all),
        ]
    else:
        found += [
            MaskWay("one key beyond the last is seen, zeros", Family.SHIFTED, _strictly_more, 1),
            MaskWay("pads up to a whole tile of 64 keys are seen, zeros", Family.TAIL, _all_pads, TILE_ROWS),
            MaskWay("the last key is not seen", Family.SHIFTED, lambda row, queries, keys: np.full(len(row), keys - 1)),
            MaskWay("causal, the last row sees every key", Family.MASK, partial(_causal, 0)),
            MaskWay("causal, the first row sees one key", Family.MASK, partial(_from_first, 0)),
        ]
    for row in found:
        yield Cause(row.family, row.name, "mask", row, _ATTENTION, row.rank)


EVERY_TILE, ONE_KEY_LESS, WHOLE_TILES, WITHOUT_LAST, WITHOUT_FIRST = (
    "every tile that a row of the block sees is taken",
    "tiles are counted for one key fewer: the last may be left out",
    "only whole tiles of keys are taken",
    "the last tile of keys is left out",
    "the first tile of keys is left out",
)
TAKEN = (EVERY_TILE, ONE_KEY_LESS, WHOLE_TILES, WITHOUT_LAST, WITHOUT_FIRST)
KEY_TILES = (64, 128, 32, 16, 256, 0)


def tile_causes(usual: int) -> Iterator[Cause]:
    """Yield the causes in which tiles are used, and in their size: aspects `taken` and `tile` (0: all keys at once)."""
    for taken in TAKEN:
        yield Cause(Family.TAIL, taken, "taken", taken, PTX["cp.async.bulk.tensor"], int(taken != EVERY_TILE))
    for tile in KEY_TILES:
        says = f"keys are taken {tile} at a time" if tile else "all keys are taken at once"
        yield Cause(Family.KEY_TILES, says, "tile", tile, _ONLINE, int(tile != usual))


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


OWN, FIRST_OF_ALL, NEXT, BY_QUERY_HEAD, TAKEN_FOR_ONE, TWICE = (
    "of its own head",
    "of the first head",
    "of the next head",
    "of the head with the query's number",
    "left out",
    "applied twice",
)
SCALE_WAYS = (OWN, FIRST_OF_ALL, NEXT, BY_QUERY_HEAD, TAKEN_FOR_ONE, TWICE)


def head_scale_causes() -> Iterator[Cause]:
    """Yield the causes in the scales of q, k and v: aspects `q_scale`, `k_scale`, `v_scale`."""
    for name in "qkv":
        for way in SCALE_WAYS:
            family = Family.SCALE_RULE if way in (TAKEN_FOR_ONE, TWICE) else Family.SCALE_LAYOUT
            if way != BY_QUERY_HEAD or name != "q":
                yield Cause(family, f"the scale of {name} is {way}", f"{name}_scale", way, _ONLINE, int(way != OWN))


def head_scale(way: str, scales: Floats, mine: int, query_head: int) -> np.float32:
    """Return the scale that a head uses; its own has the number `mine`. Raises DoesNotApplyError after the last."""
    place = {FIRST_OF_ALL: 0, NEXT: mine + 1, BY_QUERY_HEAD: query_head}.get(way, mine)
    if place >= len(scales):
        raise DoesNotApplyError
    own = np.float32(scales[place])
    return np.float32({TAKEN_FOR_ONE: np.float32(1), TWICE: own * own}.get(way, own))


# ---- key heads ---------------------------------------------------------------------------------------------------------------

# Each function maps (head, heads that share keys, number of key heads) to a key head.


def _within_group(head: int, group: int, kv_heads: int) -> int:
    return head % group


OWN_HEAD = Way("its own", Family.HEADS, _ATTENTION, lambda head, group, kv_heads: head // group, 0)
HEAD_MAPS = (
    OWN_HEAD,
    Way("head % heads of keys", Family.HEADS, _ATTENTION, lambda head, group, kv_heads: head % kv_heads),
    Way("head % heads that share keys, zeros beyond the last", Family.HEADS, _ATTENTION, _within_group),
    Way("the first", Family.HEADS, _ATTENTION, lambda head, group, kv_heads: 0),
    Way("the next, zeros beyond the last", Family.HEADS, _ATTENTION, lambda head, group, kv_heads: head // group + 1),
)


def head_causes() -> Iterator[Cause]:
    """Yield the causes in the keys and values that a head uses: aspect `heads`, a map for keys and one for values."""
    yield Cause(Family.HEADS, "a head takes its own keys and values", "heads", (OWN_HEAD, OWN_HEAD), _ATTENTION, 0)
    for row in HEAD_MAPS[1:]:
        for what, pair in (("keys and values", (row, row)), ("keys", (row, OWN_HEAD)), ("values", (OWN_HEAD, row))):
            yield Cause(row.family, f"{what} are of the head: {row.name}", "heads", pair, _ATTENTION)


def query_causes() -> Iterator[Cause]:
    """Yield the causes in the rows of Q of a tile: aspect `queries`, an offset in rows, None for the first tile."""
    yield Cause(Family.QUERY_ROWS, "rows of Q are their own", "queries", 0, _ATTENTION, 0)
    for step, says in (
        (None, "those of the first tile"),
        (-TILE_ROWS, "those of the tile before"),
        (TILE_ROWS, "those of the next tile"),
    ):
        yield Cause(Family.QUERY_ROWS, f"rows of Q are {says}", "queries", step, _ATTENTION)


# ---- exponents and weights -----------------------------------------------------------------------------------------------------


def _fused(s: Floats, u: Floats, factor: np.float32, shift: np.float32) -> Floats:
    base = u * factor - shift
    return ieee.fma(s, np.full_like(s, factor), np.broadcast_to(-base, s.shape).astype(np.float32))


def _product_less_base(s: Floats, u: Floats, factor: np.float32, shift: np.float32) -> Floats:
    return s * factor - (u * factor - shift)


def _scaled_again(s: Floats, u: Floats, factor: np.float32, shift: np.float32) -> Floats:
    return _fused(s, u, factor, shift) * factor


def _unscaled(s: Floats, u: Floats, factor: np.float32, shift: np.float32) -> Floats:
    return s - u + shift


FUSED_SCORES = Way("t = fma(s, C, -fl(fl(u * C) - F))", Family.CONTRACTION, PTX["fma"], _fused)
SCORE_DIFFERENCE = Way(
    "t = fl(fl(s - u) * C) + F", Family.CONTRACTION, PTX["fma"], lambda s, u, factor, shift: (s - u) * factor + shift
)
SCORE_EXPONENTS = (
    FUSED_SCORES,
    SCORE_DIFFERENCE,
    Way("t = fl(fl(s * C) - fl(fl(u * C) - F))", Family.CONTRACTION, PTX["fma"], _product_less_base),
    Way("t is multiplied by C once more", Family.SCALE_TWICE, _ATTENTION, _scaled_again),
    Way("t = s - u + F: C is left out of the weights", Family.NO_SCALE, _ATTENTION, _unscaled),
)

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
    return _rounded("nearest-even", decode(encode(p, middle), middle, np.float32), format)


def _codes_of(other: Format, p: Floats, format: Format) -> Weights:
    if other is format or other.code_bits != format.code_bits:
        raise DoesNotApplyError
    return _rounded("nearest-even", p, other)[0], format


def _not_rounded(p: Floats, format: Format) -> Weights:
    return np.ascontiguousarray(p).view(np.uint32), F32


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
    Way("P is not rounded", Family.DOUBLE_ROUNDING, _ATTENTION, _not_rounded, 2),
)
NARROWED_APART = "P and O are rounded to nearest even"


def narrowing_causes() -> Iterator[Cause]:
    """Yield the causes that round P and O alike, as one instruction does: aspect `narrowing`."""
    yield Cause(Family.ROUNDING, NARROWED_APART, "narrowing", NARROWED_APART, PTX["cvt"], 0)
    for way in ROUNDINGS[1:]:
        family = Family.TIES if way == TIES_AWAY else Family.ROUNDING
        yield Cause(family, f"P and O are rounded {way}", "narrowing", way, PTX["cvt"])


def narrowed_weights(weights: Way, narrowing: str, p: Floats, format: Format) -> Weights:
    """Return P as the second product uses it: codes and their format."""
    if narrowing == NARROWED_APART:
        held: Weights = weights.apply(p, format)
        return held
    return _rounded(narrowing, p, format)


_UNROUNDED_SUM, _ROUNDED_SUM, _CUT_SUM = (
    "l is the sum of P before it is rounded",
    "l is the sum of P after it is rounded",
    "l is the sum of P cut to bf16",
)
SUMMED = (_UNROUNDED_SUM, _ROUNDED_SUM, _CUT_SUM)


def summed_weights(way: str, p: Floats, held: Weights) -> Floats:
    """Return the weights whose sum is l, in float32."""
    if way == _CUT_SUM:
        return np.asarray((p.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32))
    return p if way == _UNROUNDED_SUM else decode(held[0], held[1], np.float32)
