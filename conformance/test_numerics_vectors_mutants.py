"""The recorded vectors, put to the test: arithmetic that is wrong in one parameter must be refused by stored words.

Every profile that an H200 verified is changed in one thing at a time and replayed on a few features and cells. The only
change that nothing refuses is another zero exponent where no step can reach it, and that is computed, not listed.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from refsim.bringup.tensor_cores import instruction_named
from refsim.formats import F16, F32, element_named, format_named
from refsim.numerics.methods import ASCENDING, BYTE_PAIRS, EARLY, LATE, RNE_F16, RZ_E8M13, RZ_F32, Rounding
from refsim.silicon.tensor_features import Feature, feature_words
from refsim.silicon.tensor_features import features as asked_of_shape
from refsim.silicon.tensor_probe import cell_c, cell_operands, cells, sample_words, shape_of
from refsim.silicon.vectors import recordings

RECORDED = recordings("numerics")
features = cache(asked_of_shape)
# fmt: off
ONE_OF_EACH = [
    *(f"mma.sync.aligned.m16n8k{k}.row.col.{types}.{types[:3]}" for k, types in (
        (16, "f32.f16.f16"), (16, "f16.f16.f16"), (16, "f32.bf16.bf16"), (8, "f32.tf32.tf32"), (32, "f32.e4m3.e4m3"),
        (32, "f32.e5m2.e4m3"), (32, "f16.e4m3.e4m3"), (32, "f16.e5m2.e5m2"))),
    *(f"wgmma.mma_async.sync.aligned.m64n8k{k}.{types}" for k, types in (
        (16, "f32.f16.f16"), (16, "f16.f16.f16"), (16, "f32.bf16.bf16"), (8, "f32.tf32.tf32"), (32, "f32.e4m3.e4m3"),
        (32, "f32.e4m3.e5m2"), (32, "f16.e4m3.e4m3"), (32, "f16.e5m2.e5m2"))),
]
# fmt: on
FEATURES = ("three_products", "c_precision", "tiny", "output_rounding_c", "order", "permuted_chain")
CLASSES = ("narrow", "spread", "swamping", "cancelling")
RNE_E8M13 = Rounding("rne-e8m13", F32, 13, nearest=True)
RNE_F32_FUSED = Rounding("rne-f32-fused", F32, 23, nearest=True)
RZ_F16 = Rounding("rz-f16", F16, 10)
WRONG_ROUNDING = {RZ_F32: (RNE_F32_FUSED, RZ_E8M13), RZ_E8M13: (RNE_E8M13, RZ_F32), RNE_F16: (RZ_F16,)}


def row_of(name):
    return instruction_named(name).profile("sm_90a")


def mutants_of(row):
    """Each wrong row by what is wrong in it."""
    found = {
        "one bit less": {"fraction": row.fraction - 1},
        "one bit more": {"fraction": row.fraction + 1},
        "steps of half the length": {"length": row.length // 2, "order": ASCENDING},
        "C late for early, early for late": {"c_enters": LATE if row.c_enters == EARLY else EARLY},
    }
    found |= {f"rounded {rounding}": {"rounding": rounding} for rounding in WRONG_ROUNDING[row.rounding]}
    if row.order == BYTE_PAIRS:
        found["contiguous halves"] = {"order": ASCENDING}
        found["one step for the whole instruction"] = {"order": ASCENDING, "length": 2 * row.length}
    return {what: replace(row, **changes) for what, changes in found.items()}


def refused_by(name, row, *, fused=1):
    """The first stored words that another row contradicts: how many, and of which feature or cells; None if none do.

    `fused` takes that many instructions for one.
    """
    recording = RECORDED[name]
    shape = shape_of(recording)
    asked = features(shape)
    longer = replace(shape, k=fused * shape.k)
    for key in FEATURES:
        if key in asked and asked[key].a.shape[1] % longer.k == 0:
            differing = np.count_nonzero(
                feature_words(longer, asked[key], row=row) != recording.arrays[f"feature {key}"]
            )
            if differing:
                return differing, key
    if fused > 1:
        return None
    chosen = [cell for cell in cells(shape) if cell[0] in CLASSES and cell[1] in ("none", "near")]
    stored = recording.arrays["sample"][[cells(shape).index(cell) for cell in chosen]]
    differing = np.count_nonzero(sample_words(shape, chosen, row=row) != stored)
    return (differing, "cells") if differing else None


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_the_profile_itself_is_not_refused(name):
    assert refused_by(name, row_of(name)) is None


@pytest.mark.parametrize(("name", "what"), [(name, what) for name in ONE_OF_EACH for what in mutants_of(row_of(name))])
def test_a_wrong_profile_is_refused(name, what):
    assert refused_by(name, mutants_of(row_of(name))[what]) is not None


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_two_instructions_as_one_are_refused(name):
    """A step of twice the length: D between the instructions is rounded, and its sum starts over."""
    row = row_of(name)
    k = instruction_named(name).k
    assert refused_by(name, replace(row, k=(2 * k,), length=2 * k, order=ASCENDING), fused=2) is not None


def reaches_the_zero_exponent(row, name):
    """Whether any sum can tell the zero exponent from one more or less.

    It raises the exponent of a step whose terms all lie below it, and is seen only if a term is then cut: if the last
    bit of some product lies below 2^(zero exponent - fraction), or that of a C which is not zero and small enough.
    """
    raised = row.zero_exponent + 1
    formats = [format_named(format) for format in (instruction_named(name).a_format, instruction_named(name).b_format)]
    last_bit = sum(1 - format.bias - format.mantissa_bits for format in formats)
    accumulator = format_named(row.d_format)
    c_is_below = row.c_enters == EARLY and 1 - accumulator.bias < raised
    c_last_bit = 1 - accumulator.bias - accumulator.mantissa_bits
    return last_bit < raised - row.fraction or (c_is_below and c_last_bit < raised - row.fraction)


@pytest.mark.parametrize("step", [-1, 1])
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_wrong_zero_exponent_is_refused_where_a_sum_can_reach_it(name, step):
    row = row_of(name)
    refused = refused_by(name, replace(row, zero_exponent=row.zero_exponent + step))
    assert (refused is not None) == reaches_the_zero_exponent(row, name)


def test_which_zero_exponents_can_be_reached():
    """Of f16 into f32 and of FP8 they cannot: the smallest product is 2^-48, 2^-32 or 2^-18."""
    reached = {
        name.split(".col.")[-1].removeprefix("wgmma.mma_async.sync.aligned.")
        for name in ONE_OF_EACH
        if reaches_the_zero_exponent(row_of(name), name)
    }
    assert reached == {
        "f16.f16.f16.f16",
        "f32.bf16.bf16.f32",
        "f32.tf32.tf32.f32",
        "m64n8k16.f16.f16.f16",
        "m64n8k16.f32.bf16.bf16",
        "m64n8k8.f32.tf32.tf32",
    }


DOUBLE = "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64"


def refused_double(change, row=None):
    """Whether f64 features changed by a function, or another row, contradict the stored words."""
    shape = shape_of(RECORDED[DOUBLE])
    asked = features(shape)
    return [
        key
        for key in ("specials", "permuted")
        if not np.array_equal(
            feature_words(shape, change(asked[key]), row=row), RECORDED[DOUBLE].arrays[f"feature {key}"]
        )
    ]


def test_f64_in_another_order_is_refused():
    def same(feature):
        return feature

    def descending(feature):
        return Feature(feature.name, feature.a[:, ::-1], feature.b[:, ::-1], feature.c)

    def operands_swapped(feature):
        return Feature(feature.name, feature.b, feature.a, feature.c)

    assert refused_double(same) == []
    assert "permuted" in refused_double(descending)
    assert refused_double(operands_swapped) == ["specials"]  # the product is the same, the NaN that is kept is not
    assert refused_double(same, replace(row_of(DOUBLE), keeps_nan=False)) == ["specials"]


def test_saturation_and_wrong_signs_of_integers_are_refused():
    name = "wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.u8"
    shape, stored = shape_of(RECORDED[name]), RECORDED[name].arrays["sample"]
    places = {cell: number for number, cell in enumerate(cells(shape))}
    a, b = cell_operands(shape, "extreme", 0, batch=1, rows=8, columns=8)
    c = cell_c(shape, "extreme", "limit", 0, a, b)
    want = stored[places["extreme", "limit"]].reshape(1, 8, 8)
    total = a.view(np.int8).astype(np.int64) @ b.astype(np.int64).swapaxes(1, 2) + c.view(np.int32)
    assert np.array_equal(total.astype(np.int32).view(np.uint32), want)
    assert np.count_nonzero(np.clip(total, -(1 << 31), (1 << 31) - 1).astype(np.int32).view(np.uint32) != want) > 8
    for wrong in (("u8", "u8"), ("s8", "s8"), ("u8", "s8")):
        other = replace(shape, a_format=element_named(wrong[0]), b_format=element_named(wrong[1]))
        assert not np.array_equal(other.codes(a, b, c), want)
