"""Laws of the linear layers' oracle: what may not matter does not, and what it says is what slower definitions say."""

from dataclasses import dataclass
from functools import reduce

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from refsim import oracles
from refsim.conversions import decode, round_bits
from refsim.layouts import scale_layout
from refsim.numerics.dot.definition import dot_product
from refsim.numerics.profiles import profile
from refsim.oracles.linear_layers import Reduction, weights
from refsim.reference.rational_float import GRIDS, ExactNumber, add
from refsim.sources import PTX
from refsim.testing.matrices import Values, values

Codes = NDArray[np.unsignedinteger]
TARGETS = ("sm_80", "sm_89", "sm_90a", "sm_100a")
NAN = 0x7FFF
F32, BF16 = (GRIDS[name] for name in ("f32", "bf16"))


@dataclass(frozen=True)
class Layer:
    """A small problem; a residual or none, and one way to sum over K."""

    batch: int
    output: int
    reduction: int
    x: Values
    w: Values
    r: Values | None
    target: str
    row: Reduction

    def operands(self) -> tuple[Codes, Codes, Codes | None]:
        r = None if self.r is None else self.r.codes("bf16", self.batch, self.output)
        x, w = self.x.codes("bf16", self.batch, self.reduction), self.w.codes("bf16", self.output, self.reduction)
        return x, w, r

    def how(self) -> dict[str, object]:
        return {"target": self.target, "reduction": self.row}


rows = st.builds(
    lambda splits, tile, in_turn, rounding, order: Reduction(
        "drawn", splits, tile, PTX["mma"], in_turn, rounding, order
    ),
    st.integers(1, 5),
    st.sampled_from([16, 32, 64]),
    st.booleans(),
    st.sampled_from(["f32", "bf16"]),
    st.sampled_from(["from-zero", "ascending", "pairwise"]),
)
layers = st.builds(
    Layer,
    st.integers(1, 16),
    st.integers(1, 12),
    st.integers(1, 100),
    values("bf16"),
    values("bf16"),
    st.none() | values("bf16"),
    st.sampled_from(TARGETS),
    rows,
)


def added(numbers: list[ExactNumber], order: str) -> ExactNumber:
    """Partial sums added in f32 over fractions; by pairs: the first 2^n of them, then all others."""

    def plus(left: ExactNumber, right: ExactNumber) -> ExactNumber:
        return F32.decode(F32.encode(add(left, right)))

    if order == "pairwise" and len(numbers) > 1:
        first = 1 << (len(numbers) - 1).bit_length() - 1
        return plus(added(numbers[:first], order), added(numbers[first:], order))
    zero = [F32.decode(0)] if order == "from-zero" else []
    return reduce(plus, [*zero, *numbers]) if order != "pairwise" else numbers[0]


def by_definition(layer: Layer, x: list[int], w: list[int], r: int | None) -> int:
    """One element: a chain of Python integers for each split, sums and roundings over fractions."""
    row, tiles = layer.row, -(-layer.reduction // layer.row.tile)
    unit, partials = profile(layer.target, "mma.sync", "bf16", "bf16", "f32"), []
    for split in range(row.splits):
        code = 0
        for k in range(0, layer.reduction, 16):
            tile = k // row.tile
            if (tile % row.splits if row.in_turn else tile // -(-tiles // row.splits)) == split:
                padding = [0] * (16 - len(x[k : k + 16]))
                codes = x[k : k + 16] + padding, w[k : k + 16] + padding
                code = dot_product(*codes, code, unit, 16, a_format="bf16", b_format="bf16").result
        partials.append(F32.decode(code))
    kept = GRIDS[str(row.partial_format)]
    met = [kept.decode(kept.encode(partial)) for partial in partials]
    y = BF16.encode(partials[0] if row.splits == 1 else added(met, str(row.order)))
    return y if r is None else BF16.encode(add(BF16.decode(y), BF16.decode(r)))


@given(layer=layers)
def test_splits_are_chains_of_mma_that_meet_in_order(layer):
    """The corners and the middle, by definitions that share no line with the oracle."""
    x, w, r = layer.operands()
    y = oracles.linear(x, w, r, **layer.how())
    for i, j in {(0, 0), (layer.batch - 1, layer.output - 1), (layer.batch // 2, layer.output // 2)}:
        residual = None if r is None else int(r[i, j])
        assert y[i, j] == by_definition(layer, x[i].tolist(), w[j].tolist(), residual)


@given(layer=layers, data=st.data())
def test_an_element_depends_on_its_row_its_column_and_its_residual_alone(layer, data):
    x, w, r = layer.operands()
    y = oracles.linear(x, w, r, **layer.how())
    row, column = data.draw(st.integers(0, layer.batch - 1)), data.draw(st.integers(0, layer.output - 1))
    single = None if r is None else r[row : row + 1, column : column + 1]
    alone = oracles.linear(x[row : row + 1], w[column : column + 1], single, **layer.how())
    assert alone[0, 0] == y[row, column]


@given(layer=layers, more=st.integers(1, 40))
def test_zeros_beyond_the_reduction_change_nothing_in_one_chain(layer, more):
    x, w, r = layer.operands()
    wider = [np.pad(each, ((0, 0), (0, more))) for each in (x, w)]
    np.testing.assert_array_equal(
        oracles.linear(*wider, r, target=layer.target), oracles.linear(x, w, r, target=layer.target)
    )


@given(layer=layers)
def test_every_nan_is_the_canonical_one(layer):
    x, w, r = layer.operands()
    y = oracles.linear(x, w, r, **layer.how())
    np.testing.assert_array_equal(np.isnan(decode(y, "bf16")), y == NAN)
    nan = np.isnan(decode(x, "bf16")).any(axis=1)[:, None] | np.isnan(decode(w, "bf16")).any(axis=1)[None, :]
    if r is not None:
        nan = nan | np.isnan(decode(r, "bf16"))
    assert (y[nan] == NAN).all()


@given(layer=layers)
def test_a_residual_of_zero_only_turns_minus_zero(layer):
    x, w, _ = layer.operands()
    y = oracles.linear(x, w, **layer.how())
    added = oracles.linear(x, w, np.zeros_like(y), **layer.how())
    np.testing.assert_array_equal(added, np.where(y == 0x8000, np.uint16(0), y))
    np.testing.assert_array_equal(oracles.linear(x, w, np.full_like(y, 0x8000), **layer.how()), y)


@given(
    layer=layers,
    codes=values("e4m3"),
    scales=values("bf16"),
    group=st.tuples(st.integers(1, 9), st.integers(1, 60)),
    decoder=st.sampled_from(["exact", "marlin", "mirage"]),
)
def test_fp8_weights_are_a_linear_layer_of_their_scaled_values(layer, codes, scales, group, decoder):
    """Element by element: the policy's value times the scale of its group, rounded once, computed in float64."""
    x, _, r = layer.operands()
    w = codes.codes("e4m3", layer.output, layer.reduction)
    grid = -(-layer.output // group[0]), -(-layer.reduction // group[1])
    factors = scales.codes("bf16", *grid)
    value = decode(w, "e4m3")
    if decoder != "exact":
        value = np.where(np.isnan(value), np.copysign(480.0, value), value)
    if decoder == "mirage":
        sign, place = np.where(w & 0x80, -1.0, 1.0), w & 0x7F
        value = np.where(place < 8, sign * 2.0**-7 * (1 + place / 8), value)
    factor = decode(factors, "bf16")
    spread = np.repeat(np.repeat(factor, group[0], axis=0), group[1], axis=1)[: layer.output, : layer.reduction]
    with np.errstate(invalid="ignore"):
        product = round_bits(value * spread, "bf16").astype(np.uint16)  # 4 + 8 bits: exact in float64
    np.testing.assert_array_equal(weights(w, factors, group=group, decode=decoder), product)
    got = oracles.linear_fp8_weight(x, w, factors, r, group=group, decode=decoder, **layer.how())
    np.testing.assert_array_equal(got, oracles.linear(x, product, r, **layer.how()))


@given(rows=st.integers(1, 4), columns=st.integers(1, 4), codes=values("e4m3"))
def test_shuffled_weights_come_back(rows, columns, codes):
    shuffle = scale_layout("mirage_fp8_16x16")
    w = codes.codes("e4m3", 16 * rows, 16 * columns)
    packed = shuffle.shuffle(w)
    np.testing.assert_array_equal(shuffle.unshuffle(packed, w.shape), w)
    tile = w[:16, :16]
    np.testing.assert_array_equal(packed[:16, :16], shuffle.shuffle(tile))  # each tile of 16 x 16 for itself
