"""Attention: an online softmax between two products, each step of which has its ways."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.computations import attention_steps as steps
from refsim.computations.accumulating import Adder, adders
from refsim.computations.engine import PLACED, WRITTEN, Aspect, Computation
from refsim.computations.reading import AS_IT_IS, OperandReading, ends_of_parts, readings_of
from refsim.computations.row_functions import WIDE_STEPS, Doubles, written
from refsim.computations.special import DIVIDED, DIVISIONS, EXP_EXACT, EXPONENTIALS, LOG2_OF_E, NATURAL, words
from refsim.computations.ways import Choices, Codes, Family, Sample, Way, seen_by
from refsim.conversions import decode, encode
from refsim.formats import E4M3, F32, Format, float_named
from refsim.mufu.instructions import approximate
from refsim.numerics.fast.reals import covers

Floats = NDArray[np.float32]
AT_ONCE = 8  # rows whose products a loop holds at a time
TOGETHER = 1 << 10  # rows of all heads that are computed in one pass, at most


@dataclass
class OnlineState:
    """The state of some rows of some heads, (heads, rows): largest score, base of the last exponents; with one more
    dimension, sums by lane and weighted values."""

    top: Floats
    base: Floats
    sums: Floats
    values: Floats


def _adders(own: "OnlineAttention") -> list[Adder]:
    """Return the adders that are quick to compute: profiles of the fast kernels, and the loop of fma."""
    known = adders(own.operand, own.operand)
    return [each for each in known if each == own.chain or (covers(each.row) if each.row else "fma" in each.name)]


def _readings(own: "OnlineAttention") -> list[OperandReading]:
    families = (AS_IT_IS.family, Family.FNUZ, Family.FLUSHED)
    return [row for row in readings_of(own.operand) if row.rank < 2 and row.family in families]


def _of_o(own: "OnlineAttention", way: Any) -> bool:
    """Return whether O is computed, not the logarithms."""
    return not own.is_lse


@dataclass(frozen=True, eq=False)
class OnlineAttention(Computation):
    """O (heads * Lq, D), or with `is_lse` the logarithms (heads * Lq, 1).

    `q` (heads, Lq, D), `k` and `v` (kv_heads, Lk, D) are codes. `scales` holds one scale of q, k and v for each head,
    or is None; `number` multiplies the scores in the exponent of e. `exact`: the usual plan rounds e^t and quotients
    once and adds columns in order. Weights are multiplied by 2^`shift`. `window`: the keys up to its own that a row
    sees, 0: all. `sinks` (heads,): a score beside the keys of each head, or None. `cap` bounds scores, 0: nothing.
    """

    q: NDArray[Any]
    k: NDArray[Any]
    v: NDArray[Any]
    operand: Format
    format: Format
    number: float
    causal: bool
    chain: Adder
    scales: tuple[Floats, Floats, Floats] | None = None
    is_lse: bool = False
    exact: bool = False
    window: int = 0
    sinks: Floats | None = None
    cap: float = 0.0

    title = "attention: "
    remembers = 32
    work_of_plan, work_of_addend = 2e-3, 1e-9
    summed_over, sums_held = "keys", F32
    aspects = (
        Aspect(
            "mask",
            lambda own: steps.CAUSAL_MASKS if own.causal else steps.FULL_MASKS,
            lambda own: steps.CAUSAL if own.causal else steps.ALL,
        ),
        Aspect(
            "window",
            lambda own: steps.window_causes(own.window, own.k.shape[1]),
            lambda own: steps.Window(own.window),
            far=lambda own: () if own.window else steps.other_windows(0, own.k.shape[1], steps.ANY_WINDOWS),
        ),
        Aspect("hidden", steps.HIDDEN, when=lambda own, way: own.causal or own.window or way is steps.HIDDEN[0]),
        Aspect("empty", steps.EMPTY_ROWS, when=lambda own, way: own.causal and own.q.shape[1] > own.k.shape[1]),
        Aspect("sink", steps.SINKS, says="a head {}", when=lambda own, way: own.sinks is not None),
        Aspect("cap", lambda own: steps.cap_causes(own.cap), lambda own: (own.cap, False)),
        Aspect("taken", steps.TAKEN),
        Aspect("tile", lambda own: steps.tile_causes(), steps.TILE_ROWS),
        Aspect("factor", lambda own: steps.scale_causes(own.number, own.q.shape[2]), lambda own: own.number),
        *(
            Aspect(
                f"{name}_scale",
                [way for way in steps.SCALE_WAYS if name != "q" or way is not steps.BY_QUERY_HEAD],
                says=f"the scale of {name} is {{}}",
                when=lambda own, way: own.scales is not None,
            )
            for name in "qkv"
        ),
        Aspect(
            "heads",
            tuple(steps.head_causes()),
            (steps.OWN_HEAD, steps.OWN_HEAD),
            when=lambda own, way: len(own.q) > 1,
        ),
        Aspect("queries", tuple(steps.query_causes()), 0),
        Aspect("q_read", _readings, AS_IT_IS, says="q is read {}"),
        Aspect("k_read", _readings, AS_IT_IS, says="k is read {}"),
        Aspect("v_read", _readings, AS_IT_IS, says="v is read {}", when=_of_o),
        Aspect("adder", _adders, lambda own: own.chain, told="{}"),
        Aspect("exponent", steps.SCORE_EXPONENTS, exact=steps.SCORE_DIFFERENCE, told="{}"),
        Aspect("function", EXPONENTIALS, exact=EXP_EXACT, told="{}"),
        Aspect(
            "shift",
            lambda own: steps.shift_causes(own.usual.shift),
            lambda own: steps.SHIFT_OF_NARROW if own.operand is E4M3 else 0,
            exact=0,
        ),
        Aspect("rescaled", steps.RESCALINGS),
        Aspect("top", steps.MAXIMA),
        Aspect(
            "lanes",
            lambda own: seen_by(own.usual.lanes, "lanes", steps.LANE_ORDERS),
            steps.QUAD,
            exact=steps.COLUMN_BY_COLUMN,
        ),
        Aspect("joined", steps.JOININGS, exact=steps.JOININGS[1]),
        Aspect("summed", steps.SUMMED),
        Aspect("weights", steps.WEIGHT_WAYS, when=_of_o),
        Aspect("narrowing", steps.NARROWINGS, when=_of_o),
        Aspect("logarithm", steps.LOGARITHMS, exact=steps.LSE_NATURAL, when=lambda own, way: own.is_lse),
        Aspect("quotient", DIVISIONS, exact=DIVIDED, says="o is divided {}", when=_of_o),
        Aspect("scaled", steps.VALUE_SCALINGS, when=lambda own, way: own.scales is not None and not own.is_lse),
        replace(PLACED, when=_of_o),
        WIDE_STEPS,
        WRITTEN,
    )

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.q) * self.q.shape[1], 1 if self.is_lse else self.q.shape[2]

    @property
    def addends(self) -> int:  # type: ignore[override]
        return self.k.shape[1] * self.k.shape[2]  # type: ignore[no-any-return]

    @property
    def group(self) -> int:
        return len(self.q) // len(self.k)

    def coded(self, plan: Choices, sample: Sample | None) -> Codes:
        """Return the codes of a plan: few rows in one pass over their heads, many rows head by head."""
        rows = np.arange(self.shape[0]) if sample is None else sample[0]
        heads, queries = np.divmod(rows, self.q.shape[1])
        (each, of), (own, at) = (np.unique(places, return_inverse=True) for places in (heads, queries))
        if not plan.wide.rank and each.size * own.size <= TOGETHER:
            values = self.finished(plan, self.states(plan, each, own), each)[of, at]
        else:
            values = np.zeros((len(rows), self.shape[1]), np.float64 if plan.wide.rank else np.float32)
            of_head = self._wide if plan.wide.rank else self._of_head
            for head in each.tolist():
                values[heads == head] = of_head(plan, head, queries[heads == head])
        way = plan.written
        if plan.narrowing is not steps.NARROWED_APART:
            way = replace(way, rounding=plan.narrowing.apply)
        codes = written(plan.wide.apply(values), way, self.format)
        return codes if sample is None else codes[:, sample[1]]

    def sums_of(self, plan: Choices, at: tuple[int, int], most: int) -> list[tuple[int, int]]:
        """Return pairs (key count, float32 pattern): one element computed from the keys before each of `most` ends."""
        head, row = divmod(at[0], self.q.shape[1])
        of_head, ends = self._wide if plan.wide.rank else self._of_head, ends_of_parts(self.k.shape[1], most)
        with np.errstate(all="ignore"):
            values = [of_head(plan, head, np.array([row]), end)[0, at[1]] for end in ends]
        return [(end, int(np.float32(value).view(np.uint32))) for end, value in zip(ends, values, strict=True)]

    def _of_head(self, plan: Choices, head: int, rows: NDArray[np.int64], end: int | None = None) -> Floats:
        """Return O or the logarithms of some rows of a head, from the keys before `end`."""
        heads = np.array([head])
        return np.asarray(self.finished(plan, self.states(plan, heads, rows, end), heads)[0])

    def states(
        self, plan: Choices, heads: NDArray[np.int64], rows: NDArray[np.int64], end: int | None = None
    ) -> OnlineState:
        """Return the state of the same rows of some heads after the keys before `end`, and after the sinks."""
        natural = np.float32(1) if plan.function in NATURAL else LOG2_OF_E
        q_scale, k_scale, _ = self._scales_of(plan, heads)
        factors = np.float32(np.float32(plan.factor) * natural) * q_scale * k_scale
        scale = (np.float32(plan.factor) * q_scale * k_scale)[:, None, None]
        seen, ends = self._seen(plan, rows, end)
        keys = self.k.shape[1] + plan.mask.pads
        tile = plan.tile or -(-keys // 8) * 8
        width = max(1, -(-int(ends.max(initial=0)) // tile)) * tile
        s = self._scores(plan, heads, rows, width)
        if plan.cap[0]:
            s, factors = np.asarray(steps.capped(plan.cap, s, scale), np.float32), np.full_like(factors, natural)
            scale = np.ones_like(scale)
        visible = self._visible(plan, rows, seen, width)
        if plan.hidden is steps.HIDDEN[0]:
            s = np.where(visible, s, np.float32(-np.inf))
        else:
            s = np.asarray(plan.hidden.apply(s * scale, visible) / scale, np.float32)
            s[..., keys if end is None else end :] = -np.inf
        v = self._operands(plan.v_read, self.v, plan.heads[1], heads, width)
        shape, lanes = s.shape[:2], 4 if plan.lanes is steps.QUAD else 1
        top, base = np.full(shape, -np.inf, np.float32), np.zeros(shape, np.float32)
        columns = 0 if self.is_lse else self.v.shape[2]
        zeros = np.zeros((*shape, lanes), np.float32), np.zeros((*shape, columns), np.float32)
        state, formats = OnlineState(top, base, *zeros), (self.operand, plan.v_read.format or self.operand)
        for first in range(0, width, tile):
            mine = np.flatnonzero(plan.taken.apply(first, tile, ends))
            if len(mine):
                part = slice(first, first + tile)
                _take(plan, state, mine, s[:, mine, part], v[:, part], factors, formats)
        for at, head in enumerate(heads.tolist() if self.sinks is not None else ()):
            sink = np.float32(plan.sink.apply(self.sinks, head, plan.factor)) * natural - state.base[at]
            sink = np.where(np.isneginf(state.top[at]), np.float32(0), sink)
            state.sums[at, :, 0] += np.asarray(plan.function.apply(sink), np.float32)
        return state

    def _wide(self, plan: Choices, head: int, rows: NDArray[np.int64], end: int | None = None) -> Doubles:
        """Return O or the logarithms of some rows of a head with all steps in float64 and all keys at once."""
        q_scale, k_scale, v_scale = (float(each) for each in self._head_scales(plan, head))
        q = plan.q_read.read(self._queries(plan, head, rows), self.operand)[0]
        k = self._operand(plan.k_read, self.k, plan.heads[0], head)
        v = self._operand(plan.v_read, self.v, plan.heads[1], head)
        pairs = (q, plan.q_read), (k, plan.k_read), (v, plan.v_read)
        sides = [decode(each, float_named(read.format or self.operand)) for each, read in pairs]
        seen, _ = self._seen(plan, rows, end)
        q, k, v = sides[0], *(padded(each, len(each) + plan.mask.pads) for each in sides[1:])
        s = steps.capped(plan.cap, q @ k.T, plan.factor * q_scale * k_scale)
        s = plan.hidden.apply(s, self._visible(plan, rows, seen, len(k)))
        if end is not None:
            s[:, end:] = -np.inf
        sink = -np.inf if self.sinks is None else float(plan.sink.apply(self.sinks, head, plan.factor))
        o, lse = wide_attention(s, v, sink, plan.empty.apply)
        return lse if self.is_lse else o * v_scale

    def _visible(
        self, plan: Choices, rows: NDArray[np.int64], seen: NDArray[np.int64], width: int
    ) -> NDArray[np.bool_]:
        """Return which of `width` keys each row sees."""
        inside = plan.window.seen(rows, self.q.shape[1], self.k.shape[1], width)
        return np.asarray((np.arange(width) < seen[:, None]) & inside)

    def _head_scales(self, plan: Choices, head: int) -> list[np.float32]:
        if self.scales is None:
            return [np.float32(1)] * 3
        own = (head, head // self.group, head // self.group)
        ways = (plan.q_scale, plan.k_scale, plan.v_scale)
        return [way.apply(scales, mine, head) for way, scales, mine in zip(ways, self.scales, own, strict=True)]

    def _scales_of(self, plan: Choices, heads: NDArray[np.int64]) -> Floats:
        """Return the scales of q, k and v of some heads, (3, heads)."""
        return np.array([self._head_scales(plan, head) for head in heads.tolist()], np.float32).T

    def _seen(
        self, plan: Choices, rows: NDArray[np.int64], end: int | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return how many keys each row sees, up to `end`, and how many the last row of its tile of 64 rows sees."""
        queries, keys = self.q.shape[1], self.k.shape[1]
        last = np.minimum(rows // steps.TILE_ROWS * steps.TILE_ROWS + steps.TILE_ROWS, queries) - 1
        usual = steps.CAUSAL if self.causal else steps.ALL
        ends = (usual if not plan.mask.pads else plan.mask).apply(last, queries, keys)
        if plan.mask.family is Family.MASK:
            ends = plan.mask.apply(last, queries, keys)
        seen, ends = plan.mask.apply(rows, queries, keys), ends - (plan.taken is steps.ONE_KEY_LESS)
        return (seen, ends) if end is None else (np.minimum(seen, end), np.minimum(ends, end))

    def _scores(self, plan: Choices, heads: NDArray[np.int64], rows: NDArray[np.int64], width: int) -> Floats:
        """Return the products of Q and K, (heads, rows, width); zeros after the last key."""

        def made() -> Floats:
            q = plan.q_read.read(self._queries(plan, heads, rows), self.operand)
            k = self._operands(plan.k_read, self.k, plan.heads[0], heads, width)
            return sum_of_products(plan.adder, q[0], k, None, (q[1], plan.k_read.format or self.operand))

        key = heads.tobytes(), rows.tobytes(), width
        return self.once(key, plan, "adder q_read k_read heads queries", made)  # type: ignore[no-any-return]

    def _queries(self, plan: Choices, heads: Any, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the codes of the rows of Q that a plan takes, of a head or of several."""
        places = rows % steps.TILE_ROWS if plan.queries is None else rows + plan.queries
        return np.take(self.q[heads], np.clip(places, 0, self.q.shape[1] - 1), axis=-2)

    def _operands(
        self, read: OperandReading, codes: NDArray[Any], way: Way, heads: NDArray[np.int64], width: int
    ) -> NDArray[Any]:
        """Return `width` keys or values of each head, zeros after the last."""
        return np.stack([padded(self._operand(read, codes, way, head), width)[:width] for head in heads.tolist()])

    def _operand(self, read: OperandReading, codes: NDArray[Any], heads: Way, head: int) -> NDArray[Any]:
        """Return the keys or values of a head; zeros for a head after the last."""
        place = heads.apply(head, self.group, len(codes))
        return read.read(codes[place] if place < len(codes) else np.zeros_like(codes[0]), self.operand)[0]

    def finished(self, plan: Choices, state: OnlineState, heads: NDArray[np.int64]) -> Floats:
        """Return O (heads, rows, D), or the logarithms (heads, rows, 1), from the state after the last tile."""
        total = steps.lanes_met(_flat(state.sums)).reshape(*state.top.shape, 1)
        if self.is_lse:
            base, log2 = state.base[..., None], approximate("lg2", words(total), ftz=True).view(np.float32)
            natural = np.log(total.astype(np.float64)).astype(np.float32)
            if plan.function in NATURAL and plan.logarithm is steps.LSE_NATURAL:
                return np.asarray(base + natural, np.float32)
            base = base if plan.function not in NATURAL else base * LOG2_OF_E
            return np.asarray(plan.logarithm.apply(base, log2, natural), np.float32)
        below = np.where(total == 0, np.float32(1), total)

        def divided(o: Floats) -> Floats:
            return np.asarray(plan.quotient.apply(np.ascontiguousarray(o), below), np.float32)

        if self.scales is None:
            o = divided(state.values)
        else:
            v_scale = self._scales_of(plan, heads)[2][:, None, None]
            o = plan.scaled.apply(state.values, divided, divided(np.ones_like(below)), v_scale)
        return np.where(total == 0, np.float32(plan.empty.apply), o)

    def another(self, seed: int, *, wide: bool = False) -> "OnlineAttention":
        """Return as many heads with other numbers, fewer rows and some more keys."""
        random = np.random.default_rng(seed)
        queries, keys = min(self.q.shape[1], 24), min(self.k.shape[1], 160) + 40 * seed
        shapes = (len(self.q), queries), (len(self.k), keys), (len(self.k), keys)
        q, k, v = (encode(random.normal(0, 1, (*shape, self.q.shape[2])), self.operand) for shape in shapes)
        format = F32 if wide else self.format
        return replace(self, q=np.asarray(q), k=np.asarray(k), v=np.asarray(v), format=format)


def _flat(values: NDArray[Any]) -> NDArray[Any]:
    """Return values (heads, rows, ...) as those of rows."""
    return values.reshape(-1, *values.shape[2:])


def _take(
    plan: Choices,
    state: OnlineState,
    mine: NDArray[np.int64],
    s: Floats,
    v: NDArray[Any],
    factors: Floats,
    formats: tuple[Format, Any],
) -> None:
    """Update the state of the rows `mine` of every head with one more tile of scores (heads, rows, keys) and values."""
    heads, s = len(s), _flat(s)
    factor, shift = np.repeat(factors, len(mine)), np.float32(plan.shift)
    before = _flat(state.top[:, mine])
    begin = before if plan.top is steps.RUNNING_MAXIMUM else np.full_like(before, -np.inf)
    top = np.fmax(begin, np.fmax.reduce(s, axis=1, initial=-np.inf)).astype(np.float32)
    used = np.where(np.isneginf(top) | (plan.top is steps.ZERO_MAXIMUM), np.float32(0), top).astype(np.float32)
    p = plan.function.apply(plan.exponent.apply(s, used[:, None], factor[:, None], shift))
    kept = steps.factor_of_older(plan.function, plan.rescaled, plan.top, before, used, factor)
    held = steps.narrowed_weights(plan.weights, plan.narrowing, p, formats[0])
    added = plan.lanes.apply(plan.summed.apply(p, held))
    of_sums = np.ones_like(kept) if plan.rescaled in (steps.SUMS_KEPT, steps.BOTH_KEPT) else kept
    of_values = np.ones_like(kept) if plan.rescaled in (steps.VALUES_KEPT, steps.BOTH_KEPT) else kept

    def whole(rows: NDArray[Any]) -> NDArray[Any]:
        return rows.reshape(heads, len(mine), *rows.shape[1:])

    if state.values.shape[2]:
        older, columns = whole(_flat(state.values[:, mine]) * of_values[:, None]), v.swapaxes(1, 2)
        codes = whole(held[0]), np.ascontiguousarray(columns)
        state.values[:, mine] = sum_of_products(plan.adder, *codes, older, (held[1], formats[1]))
    sums = _flat(state.sums[:, mine])
    state.sums[:, mine] = whole(plan.joined.apply(sums, np.broadcast_to(of_sums[:, None], sums.shape), added))
    state.top[:, mine] = whole(before if plan.top is steps.STALE_MAXIMUM else top)
    state.base[:, mine] = whole(used * factor - shift)


def wide_attention(s: Doubles, v: Doubles, sink: float, empty: float) -> tuple[Doubles, Doubles]:
    """Return O and the logarithms of the sums (rows, 1) in float64, of scores (rows, keys) and a `sink` beside them.

    O is `empty` in rows whose scores are all -inf.
    """
    top = np.maximum(s.max(axis=1, keepdims=True, initial=-np.inf), sink)
    top = np.where(np.isneginf(top), 0, top)
    p = np.exp(s - top)
    total = p.sum(axis=1, keepdims=True) + np.exp(sink - top)
    is_empty = np.isneginf(s).all(axis=1, keepdims=True)
    return np.where(is_empty, empty, p @ v / np.where(total == 0, 1, total)), top + np.log(total)


def padded(codes: NDArray[Any], width: int) -> NDArray[Any]:
    """Return codes with zeros up to `width` keys; keys after `width` stay but are never used."""
    return np.pad(codes, ((0, max(0, width - len(codes))), (0, 0)))


def sum_of_products(
    adder: Adder, a: NDArray[Any], b: NDArray[Any], c: Floats | None, formats: tuple[Format, Format]
) -> Floats:
    """Return a B^T + C. A loop of fma with exact products in float32 is computed as one running sum."""
    wide = (decode(a, formats[0], np.float32), decode(b, formats[1], np.float32))
    bits = sum(each.mantissa_bits + 1 for each in formats)
    if adder.row is not None or "fma" not in adder.name or bits > F32.mantissa_bits + 1:
        return adder.sum(a, b, c, formats)
    if a.ndim > 2:
        older = [None] * len(a) if c is None else list(c)
        return np.stack([sum_of_products(adder, *each, formats) for each in zip(a, b, older, strict=True)])
    made = np.zeros((len(a), len(b)), np.float32)
    for first in range(0, len(a), AT_ONCE):
        part = slice(first, first + AT_ONCE)
        products = wide[0][part, None, :] * wide[1][None]
        beginning = np.zeros_like(products[:, :, :1]) if c is None else c[part, :, None]
        made[part] = np.add.accumulate(np.concatenate([beginning, products], axis=2), axis=2, dtype=np.float32)[
            :, :, -1
        ]
    return made
