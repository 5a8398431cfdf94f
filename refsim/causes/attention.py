"""Attention as a plan: an online softmax between two products, each step of which a cause may change."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.causes import attention_steps as steps
from refsim.causes.accumulating import Adder, adders
from refsim.causes.stages import ends_of_parts
from refsim.computations.placing import PlacedSubject, placing_causes
from refsim.computations.reading import AS_IT_IS, OperandReading, readings_of
from refsim.computations.row_functions import STEPS_IN_FLOAT32, WIDE_STEPS, Doubles, written
from refsim.computations.special import (
    BY_RCP,
    DIVIDED,
    DIVISIONS,
    EX2_FLUSHED,
    EX2_SUBNORMAL,
    EXP_EXACT,
    EXPONENTIALS,
    LOG2_OF_E,
    NATURAL,
    words,
)
from refsim.computations.ways import Cause, Codes, Family, Sample, Way
from refsim.computations.writing import WrittenPlan, writing_causes
from refsim.conversions import decode, encode
from refsim.formats import E4M3, F32, Format, float_named
from refsim.mufu.instructions import approximate
from refsim.numerics import ieee
from refsim.numerics.fast.domain import covers
from refsim.sources import FLASHINFER, PTX, TORCH

Floats = NDArray[np.float32]
_ATTENTION = TORCH["nn.functional.scaled_dot_product_attention"]
_ONLINE = FLASHINFER["prefill.cuh: update_mdo_states"]

# ---- what becomes of older sums ------------------------------------------------------------------------------------------------

RESCALED, VALUES_KEPT, SUMS_KEPT, BOTH_KEPT, UNSCALED_FACTOR, DROPPED = (
    "older sums are multiplied by 2^((m - u) C)",
    "older values are not rescaled under a new maximum",
    "older sums of weights are not rescaled under a new maximum",
    "neither older values nor older sums of weights are rescaled",
    "the factor of older sums lacks the scale",
    "older sums are dropped",
)
RESCALINGS = (RESCALED, VALUES_KEPT, SUMS_KEPT, BOTH_KEPT, UNSCALED_FACTOR, DROPPED)
RUNNING_MAXIMUM, TILE_MAXIMUM, STALE_MAXIMUM, ZERO_MAXIMUM = (
    "u is the maximum so far",
    "u is the maximum of the tile alone",
    "the maximum is not kept: each tile begins anew, older sums are dropped",
    "u is 0: no maximum is subtracted",
)
MAXIMA = (RUNNING_MAXIMUM, TILE_MAXIMUM, STALE_MAXIMUM, ZERO_MAXIMUM)
QUAD, COLUMN_BY_COLUMN, IN_HALVES = (
    "l: four lanes, each with two columns of eight, which meet at the end",
    "l: one column after the other",
    "l: the columns of a tile in halves",
)
LANE_ORDERS = (QUAD, COLUMN_BY_COLUMN, IN_HALVES)
BY_FMA, BY_PRODUCT = "l = fma(l, a, t)", "l = fl(fl(l * a) + t)"


def lane_sums(order: str, p: Floats) -> Floats:
    """Return the sums of a tile's weights by lane, (rows, lanes), from p (rows, keys); keys is a multiple of 8."""
    if order == QUAD:
        lanes = p.reshape(len(p), -1, 4, 2).swapaxes(1, 2).reshape(len(p), 4, -1)
        return np.add.accumulate(lanes, axis=2, dtype=np.float32)[:, :, -1]
    if order == COLUMN_BY_COLUMN:
        return np.add.accumulate(p, axis=1, dtype=np.float32)[:, -1:]
    while p.shape[1] % 2 == 0:
        p = p[:, : p.shape[1] // 2] + p[:, p.shape[1] // 2 :]
    return np.add.accumulate(p, axis=1, dtype=np.float32)[:, -1:]


def factor_of_older(
    function: Way, rescaled: str, maximum: str, before: Floats, used: Floats, factor: np.float32
) -> Floats:
    """Return the factor of older sums after a new tile."""
    function = EX2_FLUSHED if function is EX2_SUBNORMAL else function
    if rescaled == DROPPED:
        return np.zeros_like(used)
    if maximum == ZERO_MAXIMUM:
        return np.ones_like(used)
    less = before - used
    return np.asarray(function.apply(less if rescaled == UNSCALED_FACTOR else less * factor), np.float32)


def lanes_met(sums: Floats) -> Floats:
    """Return the sums (rows) of lanes (rows, lanes): neighbors are added first."""
    while sums.shape[1] > 1:
        sums = sums[:, 0::2] + sums[:, 1::2]
    return sums[:, 0]


def state_causes(usual_order: str) -> Iterator[Cause]:
    """Yield the causes in the state between tiles: aspects `rescaled`, `top`, `lanes`, `joined`."""
    for way in RESCALINGS:
        yield Cause(Family.RESCALING, way, "rescaled", way, _ONLINE, int(way != RESCALED))
    for way in MAXIMA:
        yield Cause(Family.MAXIMUM, way, "top", way, _ONLINE, int(way != RUNNING_MAXIMUM))
    for way in LANE_ORDERS:
        yield Cause(Family.REDUCTION_ORDER, way, "lanes", way, _ONLINE, int(way != usual_order))
    for way in (BY_FMA, BY_PRODUCT):
        yield Cause(Family.CONTRACTION, way, "joined", way, PTX["fma"])


# ---- the end -------------------------------------------------------------------------------------------------------------------


def _lse_by_product(base: Floats, log2: Floats, natural: Floats, ln2: np.float32) -> Floats:
    return (base + log2) * ln2


def _lse_by_fma(base: Floats, log2: Floats, natural: Floats, ln2: np.float32) -> Floats:
    return ieee.fma(log2, np.full_like(log2, ln2), base * ln2)


def _lse_apart(base: Floats, log2: Floats, natural: Floats, ln2: np.float32) -> Floats:
    return base * ln2 + log2 * ln2


def _lse_natural(base: Floats, log2: Floats, natural: Floats, ln2: np.float32) -> Floats:
    return base * ln2 + natural


LSE = Way("lse = fl(fl(base + lg2(L)) * ln(2))", Family.CONTRACTION, PTX["fma"], _lse_by_product)
LOGARITHMS = (
    LSE,
    Way("lse = fma(lg2(L), ln(2), fl(base * ln(2)))", Family.CONTRACTION, PTX["fma"], _lse_by_fma),
    Way("lse = fl(base * ln(2)) + fl(lg2(L) * ln(2))", Family.CONTRACTION, PTX["fma"], _lse_apart),
    Way("lse = fl(base * ln(2)) + ln(L), rounded once", Family.SPECIAL, _ATTENTION, _lse_natural),
    Way("lse is a logarithm to the base of 2", Family.BASE, _ATTENTION, lambda base, log2, natural, ln2: base + log2),
    Way("lse lacks the maximum", Family.MAXIMUM, _ATTENTION, lambda base, log2, natural, ln2: log2 * ln2),
)


def _then_scale(o: Floats, divided: Callable[[Floats], Floats], inverse: Floats, scale: np.float32) -> Floats:
    return divided(o) * scale


def _scale_of_inverse(o: Floats, divided: Callable[[Floats], Floats], inverse: Floats, scale: np.float32) -> Floats:
    return o * (inverse * scale)


def _scale_first(o: Floats, divided: Callable[[Floats], Floats], inverse: Floats, scale: np.float32) -> Floats:
    return divided(o * scale)


def _in_both(o: Floats, divided: Callable[[Floats], Floats], inverse: Floats, scale: np.float32) -> Floats:
    return (o * (inverse * scale)) * scale


SCALED_LAST = Way("o = fl(fl(o / L) * v_scale)", Family.PROMOTION_ORDER, _ONLINE, _then_scale, 0)
VALUE_SCALINGS: tuple[Any, ...] = (
    SCALED_LAST,
    Way("o = fl(o * fl(rcp(L) * v_scale))", Family.PROMOTION_ORDER, _ONLINE, _scale_of_inverse),
    Way("o = fl(fl(o * v_scale) / L)", Family.PROMOTION_ORDER, _ONLINE, _scale_first),
    Way("v_scale is in the reciprocal and applied again", Family.SCALE_RULE, _ONLINE, _in_both),
)


LN_2 = np.float32(0.6931471805599453)
SHIFT_OF_NARROW = 8
REMEMBERED = 32
AT_ONCE = 8  # rows whose products a loop holds at a time


@dataclass(frozen=True)
class AttentionPlan(WrittenPlan):
    """The choices; weights are multiplied by 2^`shift`."""

    adder: Adder
    factor: float
    mask: steps.MaskWay
    shift: int = 0
    taken: str = steps.EVERY_TILE
    tile: int = steps.TILE_ROWS
    heads: tuple[Way, Way] = (steps.OWN_HEAD, steps.OWN_HEAD)
    queries: int | None = 0
    q_read: OperandReading = AS_IT_IS
    k_read: OperandReading = AS_IT_IS
    v_read: OperandReading = AS_IT_IS
    q_scale: str = steps.OWN
    k_scale: str = steps.OWN
    v_scale: str = steps.OWN
    exponent: Way = steps.FUSED_SCORES
    function: Way = EX2_FLUSHED
    weights: Way = steps.NEAREST_WEIGHTS
    narrowing: str = steps.NARROWED_APART
    summed: str = steps.SUMMED[0]
    lanes: str = QUAD
    joined: str = BY_FMA
    rescaled: str = RESCALED
    top: str = RUNNING_MAXIMUM
    quotient: Way = BY_RCP
    scaled: Way = SCALED_LAST
    logarithm: Way = LSE
    wide: Way = STEPS_IN_FLOAT32


@dataclass
class OnlineState:
    """The state of some rows of a head: largest score, base of the last exponents, sums by lane, weighted values."""

    top: Floats
    base: Floats
    sums: Floats
    values: Floats


@dataclass(frozen=True, eq=False)
class AttentionOfPlans(PlacedSubject):
    """O (heads * Lq, D), or with `is_lse` the logarithms (heads * Lq, 1).

    `q` (heads, Lq, D), `k` and `v` (kv_heads, Lk, D) are codes. `scales` holds one scale of q, k and v for each head,
    or is None; `number` multiplies the scores in the exponent of e.
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
    scores: dict[tuple[Any, ...], Floats] = field(default_factory=dict)

    is_sampled = True
    summed_over, sums_held = "keys", F32

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.q) * self.q.shape[1], 1 if self.is_lse else self.q.shape[2]

    @property
    def group(self) -> int:
        return len(self.q) // len(self.k)

    @cached_property
    def usual(self) -> AttentionPlan:
        """Return refsim's own order of operations; `exact`: e^t and quotients rounded once, columns in order."""
        mask = steps.CAUSAL if self.causal else steps.ALL
        plan = AttentionPlan(self.chain, self.number, mask, SHIFT_OF_NARROW if self.operand is E4M3 else 0)
        if not self.exact:
            return plan
        exact = {"exponent": steps.SCORE_DIFFERENCE, "function": EXP_EXACT, "quotient": DIVIDED}
        ends = {"joined": BY_PRODUCT, "logarithm": LOGARITHMS[3]}
        return replace(plan, shift=0, lanes=COLUMN_BY_COLUMN, **ends, **exact)  # type: ignore[arg-type]

    # ---- the rows of causes ----------------------------------------------------------------------------------------

    def causes(self) -> Sequence[Cause]:
        return [*self._of_scores(), *self._of_weights(), *self._of_output()]

    def _of_scores(self) -> Iterator[Cause]:
        """Yield the causes in scores: masks, tiles, scales, heads, operands, adders."""
        usual = self.usual
        yield from steps.masks(causal=self.causal)
        yield from steps.tile_causes(usual.tile)
        yield from steps.scale_causes(self.number, self.q.shape[2])
        if self.scales is not None:
            yield from steps.head_scale_causes()
        if len(self.q) > 1:
            yield from steps.head_causes()
        yield from steps.query_causes()
        for name in "qkv" if not self.is_lse else "qk":
            for row in readings_of(self.operand):
                if row.rank < 2 and row.family in (AS_IT_IS.family, Family.FNUZ, Family.FLUSHED):
                    yield Cause(row.family, f"{name} is read {row.name}", f"{name}_read", row, row.source, row.rank)
        for adder in self._adders():
            yield Cause(Family.ACCUMULATOR, adder.name, "adder", adder, adder.source, 1 if adder.row else 2)

    def _adders(self) -> list[Adder]:
        """Return the adders that are quick to compute: profiles of the fast kernels, and the loop of fma."""
        known = adders(self.operand, self.operand)
        return [each for each in known if each == self.chain or (covers(each.row) if each.row else "fma" in each.name)]

    def _of_weights(self) -> Iterator[Cause]:
        """Yield the causes in weights: exponents, exponentials, sums, rounding of P."""
        usual = self.usual
        for row in steps.SCORE_EXPONENTS:
            yield row.cause("exponent")
        for row in EXPONENTIALS:
            yield row.cause("function")
        for shift in (0, SHIFT_OF_NARROW):
            says = f"weights are enlarged by 2^{shift}"
            yield Cause(Family.SCALE_RULE, says, "shift", shift, PTX["ex2"], int(shift != usual.shift))
        yield from state_causes(usual.lanes)
        for way in steps.SUMMED:
            family = Family.DOUBLE_ROUNDING
            yield Cause(family, way, "summed", way, PTX["cvt"], int(way != usual.summed))
        if not self.is_lse:
            for row in steps.WEIGHT_WAYS:
                yield row.cause("weights")
            yield from steps.narrowing_causes()

    def _of_output(self) -> Iterator[Cause]:
        """Yield the causes after the second product: quotient or logarithm, writing, placing."""
        if self.is_lse:
            for row in LOGARITHMS:
                yield row.cause("logarithm")
        else:
            for row in DIVISIONS:
                yield replace(row.cause("quotient"), says=f"o is divided {row.name}")
            if self.scales is not None:
                for row in VALUE_SCALINGS:
                    yield row.cause("scaled")
            yield from placing_causes()
        yield from WIDE_STEPS.causes_in(self)
        yield from writing_causes(self.format)

    # ---- what a plan writes ------------------------------------------------------------------------------------------

    def codes(self, plan: AttentionPlan, sample: Sample | None = None) -> Codes:
        """Return the codes that a plan writes: all rows, or a sample's. Raises DoesNotApplyError."""
        rows = np.arange(self.shape[0]) if sample is None else sample[0]
        values = np.zeros((len(rows), self.shape[1]), np.float32 if plan.wide is STEPS_IN_FLOAT32 else np.float64)
        with np.errstate(all="ignore"):
            for head in np.unique(rows // self.q.shape[1]).tolist():
                mine = rows // self.q.shape[1] == head
                of_head = self._of_head if plan.wide is STEPS_IN_FLOAT32 else self._wide
                values[mine] = of_head(plan, head, rows[mine] % self.q.shape[1])
            values = plan.wide.apply(values)
            way = plan.written
            if plan.narrowing != steps.NARROWED_APART:
                way = replace(way, rounding=plan.narrowing)  # type: ignore[arg-type]
            codes = written(values, way, self.format)
        return plan.placed.apply(codes) if sample is None else codes[:, sample[1]]

    def sums_of(self, plan: AttentionPlan, at: tuple[int, int], most: int) -> list[tuple[int, int]]:
        """Return pairs (key count, float32 pattern): one element computed from the keys before each of `most` ends."""
        head, row = divmod(at[0], self.q.shape[1])
        of_head, ends = (
            self._of_head if plan.wide is STEPS_IN_FLOAT32 else self._wide,
            ends_of_parts(self.k.shape[1], most),
        )
        with np.errstate(all="ignore"):
            values = [of_head(plan, head, np.array([row]), end)[0, at[1]] for end in ends]
        return [(end, int(np.float32(value).view(np.uint32))) for end, value in zip(ends, values, strict=True)]

    def _of_head(self, plan: AttentionPlan, head: int, rows: NDArray[np.int64], end: int | None = None) -> Floats:
        """Return O or the logarithms of some rows of a head, from the keys before `end`."""
        q_scale, k_scale, v_scale = self._head_scales(plan, head)
        factor = np.float32(np.float32(plan.factor) * (np.float32(1) if plan.function in NATURAL else LOG2_OF_E))
        factor = np.float32(np.float32(factor * q_scale) * k_scale)
        keys = self.k.shape[1] + plan.mask.pads
        seen, ends = self._seen(plan, rows, end)
        tile = plan.tile or -(-keys // 8) * 8
        s = self._scores(plan, head, rows, -(-keys // tile) * tile)
        s = np.where(np.arange(s.shape[1]) < seen[:, None], s, np.float32(-np.inf))
        v = padded(self._operand(plan.v_read, self.v, plan.heads[1], head), s.shape[1])
        start = np.full(len(rows), -np.inf, np.float32)
        lanes = 4 if plan.lanes == QUAD else 1
        columns = 0 if self.is_lse else self.v.shape[2]
        zeros = np.zeros((len(rows), lanes), np.float32), np.zeros((len(rows), columns), np.float32)
        state = OnlineState(start, np.zeros(len(rows), np.float32), *zeros)
        formats = (self.operand, plan.v_read.format or self.operand)
        for first in range(0, s.shape[1], tile):
            mine = np.flatnonzero(self._is_taken(plan, first, tile, ends))
            if len(mine):
                _take(plan, state, mine, s[mine, first : first + tile], v[first : first + tile], factor, formats)
        return self._finished(plan, state, v_scale)

    def _wide(self, plan: AttentionPlan, head: int, rows: NDArray[np.int64], end: int | None = None) -> Doubles:
        """Return O or the logarithms of some rows of a head with all steps in float64 and all keys at once."""
        q_scale, k_scale, v_scale = (float(each) for each in self._head_scales(plan, head))
        places = rows % steps.TILE_ROWS if plan.queries is None else rows + plan.queries
        q = plan.q_read.read(self.q[head][np.clip(places, 0, self.q.shape[1] - 1)], self.operand)[0]
        k, v = (
            self._operand(read, codes, heads, head)
            for read, codes, heads in ((plan.k_read, self.k, plan.heads[0]), (plan.v_read, self.v, plan.heads[1]))
        )
        sides = [
            decode(each, float_named(read.format or self.operand))
            for each, read in ((q, plan.q_read), (k, plan.k_read), (v, plan.v_read))
        ]
        seen, _ = self._seen(plan, rows, end)
        o, lse = wide_attention(sides, plan.factor * q_scale * k_scale, seen, plan.mask.pads)
        return lse if self.is_lse else o * v_scale

    def _head_scales(self, plan: AttentionPlan, head: int) -> list[np.float32]:
        if self.scales is None:
            return [np.float32(1)] * 3
        own = (head, head // self.group, head // self.group)
        ways = (plan.q_scale, plan.k_scale, plan.v_scale)
        return [steps.head_scale(*each, head) for each in zip(ways, self.scales, own, strict=True)]

    def _seen(
        self, plan: AttentionPlan, rows: NDArray[np.int64], end: int | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return how many keys each row sees, up to `end`, and how many the last row of its tile of 64 rows sees."""
        queries, keys = self.q.shape[1], self.k.shape[1]
        last = np.minimum(rows // steps.TILE_ROWS * steps.TILE_ROWS + steps.TILE_ROWS, queries) - 1
        usual = steps.CAUSAL if self.causal else steps.ALL
        ends = (usual if not plan.mask.pads else plan.mask).seen(last, queries, keys)
        if plan.mask.family is Family.MASK:
            ends = plan.mask.seen(last, queries, keys)
        seen, ends = plan.mask.seen(rows, queries, keys), ends - (plan.taken == steps.ONE_KEY_LESS)
        return (seen, ends) if end is None else (np.minimum(seen, end), np.minimum(ends, end))

    def _is_taken(self, plan: AttentionPlan, first: int, tile: int, ends: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether a plan takes the tile of keys from `first` on, for each row."""
        if plan.taken == steps.WHOLE_TILES:
            return np.asarray(ends >= first + tile)
        if plan.taken == steps.WITHOUT_LAST:
            return np.asarray(ends > first + tile)
        return np.asarray((ends > first) & ((first > 0) | (plan.taken != steps.WITHOUT_FIRST)))

    def _scores(self, plan: AttentionPlan, head: int, rows: NDArray[np.int64], width: int) -> Floats:
        """Return the products of Q and K, (rows, width); zeros after the last key."""
        parts = (plan.adder, plan.q_read, plan.k_read, plan.heads[0], plan.queries)
        key = (head, rows.tobytes(), width, *parts)
        if key not in self.scores:
            if len(self.scores) >= REMEMBERED:
                self.scores.clear()
            places = rows % steps.TILE_ROWS if plan.queries is None else rows + plan.queries
            q, format = plan.q_read.read(self.q[head][np.clip(places, 0, self.q.shape[1] - 1)], self.operand)
            k = padded(self._operand(plan.k_read, self.k, plan.heads[0], head), width)
            self.scores[key] = sum_of_products(plan.adder, q, k, None, (format, plan.k_read.format or self.operand))  # type: ignore[arg-type]
        return self.scores[key]

    def _operand(self, read: OperandReading, codes: NDArray[Any], heads: Way, head: int) -> NDArray[Any]:
        """Return the keys or values of a head; zeros for a head after the last."""
        place = heads.apply(head, self.group, len(codes))
        return read.read(codes[place] if place < len(codes) else np.zeros_like(codes[0]), self.operand)[0]

    def _finished(self, plan: AttentionPlan, state: OnlineState, v_scale: np.float32) -> Floats:
        """Return O, or the logarithms, from the state after the last tile."""
        total = lanes_met(state.sums)
        if self.is_lse:
            log2 = approximate("lg2", words(total), ftz=True).view(np.float32)
            natural = np.log(total.astype(np.float64)).astype(np.float32)
            base = state.base if plan.function not in NATURAL else state.base * LOG2_OF_E
            if plan.function in NATURAL and plan.logarithm is LOGARITHMS[3]:
                return (state.base + natural)[:, None]
            return np.asarray(plan.logarithm.apply(base, log2, natural, LN_2), np.float32)[:, None]
        below = np.where(total == 0, np.float32(1), total)[:, None]

        def divided(o: Floats) -> Floats:
            return np.asarray(plan.quotient.apply(np.ascontiguousarray(o), below), np.float32)

        if self.scales is None:
            o = divided(state.values)
        else:
            o = plan.scaled.apply(state.values, divided, divided(np.ones_like(below)), v_scale)
        return np.where(total[:, None] == 0, np.float32(0), o)

    def another(self, seed: int, *, wide: bool = False) -> "AttentionOfPlans":
        """Return as many heads with other numbers, fewer rows and some more keys."""
        random = np.random.default_rng(seed)
        queries, keys = min(self.q.shape[1], 24), min(self.k.shape[1], 160) + 40 * seed
        shapes = (len(self.q), queries), (len(self.k), keys), (len(self.k), keys)
        q, k, v = (encode(random.normal(0, 1, (*shape, self.q.shape[2])), self.operand) for shape in shapes)
        format = F32 if wide else self.format
        return replace(self, q=np.asarray(q), k=np.asarray(k), v=np.asarray(v), format=format, scores={})

    def described(self, plan: AttentionPlan) -> str:
        """Return the plan as text."""
        usual = self.usual
        if plan.wide is not STEPS_IN_FLOAT32:
            return f"attention: {plan.wide.name}"
        words = [f"attention: {plan.adder.name}", plan.exponent.name, plan.function.name]
        for one, own, said in (
            (plan.mask, usual.mask, plan.mask.name),
            (plan.taken, usual.taken, plan.taken),
            (plan.top, usual.top, plan.top),
            (plan.rescaled, usual.rescaled, plan.rescaled),
            (plan.weights, usual.weights, plan.weights.name),
            (plan.summed, usual.summed, plan.summed),
            (plan.quotient, usual.quotient, f"divided {plan.quotient.name}"),
        ):
            words += [said] if one != own else []
        return ", ".join(words)


def _take(
    plan: AttentionPlan,
    state: OnlineState,
    mine: NDArray[np.int64],
    s: Floats,
    v: NDArray[Any],
    factor: np.float32,
    formats: tuple[Format, Any],
) -> None:
    """Update the state of the rows `mine` with one more tile of keys and values."""
    before = state.top[mine]
    begin = before if plan.top == RUNNING_MAXIMUM else np.full_like(before, -np.inf)
    top = np.fmax(begin, np.fmax.reduce(s, axis=1, initial=-np.inf)).astype(np.float32)
    used = np.where(np.isneginf(top) | (plan.top == ZERO_MAXIMUM), np.float32(0), top).astype(np.float32)
    shift = np.float32(plan.shift)
    p = plan.function.apply(plan.exponent.apply(s, used[:, None], factor, shift))
    kept = factor_of_older(plan.function, plan.rescaled, plan.top, before, used, factor)
    held = steps.narrowed_weights(plan.weights, plan.narrowing, p, formats[0])
    added = lane_sums(plan.lanes, steps.summed_weights(plan.summed, p, held))
    of_sums = np.ones_like(kept) if plan.rescaled in (SUMS_KEPT, BOTH_KEPT) else kept
    of_values = np.ones_like(kept) if plan.rescaled in (VALUES_KEPT, BOTH_KEPT) else kept
    if state.values.shape[1]:
        older = state.values[mine] * of_values[:, None]
        state.values[mine] = sum_of_products(
            plan.adder, held[0], np.ascontiguousarray(v.T), older, (held[1], formats[1])
        )
    sums = state.sums[mine]
    factors = np.broadcast_to(of_sums[:, None], sums.shape)
    state.sums[mine] = (
        ieee.fma(sums, np.ascontiguousarray(factors), added) if plan.joined == BY_FMA else sums * factors + added
    )
    state.top[mine] = before if plan.top == STALE_MAXIMUM else top
    state.base[mine] = used * factor - shift


def wide_attention(
    sides: Sequence[Doubles], factor: float, seen: NDArray[np.int64], pads: int
) -> tuple[Doubles, Doubles]:
    """Return O and the logarithms of the sums (rows, 1) in float64.

    `sides` are the values of q, k and v; each row sees its first `seen` keys; `pads` zeros follow the keys.
    """
    q, k, v = sides[0], *(padded(each, len(each) + pads) for each in sides[1:])
    s = np.where(np.arange(len(k)) < seen[:, None], q @ k.T * factor, -np.inf)
    top = s.max(axis=1, keepdims=True, initial=-np.inf)
    top = np.where(np.isneginf(top), 0, top)
    p = np.exp(s - top)
    total = p.sum(axis=1, keepdims=True)
    return np.where(total == 0, 0, p @ v / np.where(total == 0, 1, total)), top + np.log(total)


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
    made = np.zeros((len(a), len(b)), np.float32)
    for first in range(0, len(a), AT_ONCE):
        part = slice(first, first + AT_ONCE)
        products = wide[0][part, None, :] * wide[1][None]
        beginning = np.zeros_like(products[:, :, :1]) if c is None else c[part, :, None]
        made[part] = np.add.accumulate(np.concatenate([beginning, products], axis=2), axis=2, dtype=np.float32)[
            :, :, -1
        ]
    return made
