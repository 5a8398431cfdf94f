"""explain_diff on outputs of quantisers: planted by one in NumPy alone; neighbours that no row stands for stay unnamed."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.explained import arithmetic as own
from conformance.explained.quantiser_pairs import MX8, Steps, drawn, held_out, of_buffers, of_steps
from conformance.explained.trials import asked
from refsim import E4M3, F32, quantize
from refsim.causes import DiffOutcome, Family, QuantizedFrom, explain_diff
from refsim.errors import RefsimError
from refsim.scaling import recipes_of
from refsim.scaling.block_formats import BLOCK_FORMATS
from refsim.scaling.quantizing import quantize as by_groups

SHAPE = (16, 256)
LATER = pytest.mark.ci("others of the same kinds are named in every run")
EVERY_RUN = (
    "mxfp8, 16 x 256: toward zero, codes",
    "mxfp8, 16 x 256: abs forgotten, both",
    "mxfp8, 16 x 256: stored doubled, both",
    "mxfp8, 16 x 256: flushed, codes",
    "mxfp8, 16 x 256: codes of FNUZ, codes",
    "mxfp8, 16 x 256: ties away, codes",
    "mxfp4, 16 x 256: elements by the scale before, both",
    "mxfp4, 16 x 256: amax not begun anew, scales",
    "1x128, 16 x 256: bounded by 1e-10, codes",
    "mxfp8, 16 x 256: through bf16, both",
    "1x128, 16 x 256: inverted, codes",
)
HELD = ("held out: mxfp8, 16 x 256, some larger", "held out: 1x128, 16 x 256, every third", "equal: mxfp4, 16 x 256")


def some(pairs, names):
    return [pytest.param(pair, id=pair.name, marks=() if pair.name in names else LATER) for pair in pairs]


@pytest.mark.parametrize("pair", some(of_steps(0, SHAPE), EVERY_RUN))
def test_the_step_that_was_done_otherwise_is_named(pair):
    row = asked(pair, seconds=1.5)
    assert row["right"], row


def test_the_pairs_of_every_run_are_there():
    names = {pair.name for pair in (*of_steps(0, SHAPE), *held_out(0, SHAPE))}
    assert not {*EVERY_RUN, *HELD} - names


@pytest.mark.parametrize("pair", [*of_buffers(1, (40, 256))], ids=lambda pair: pair.name)
def test_where_scales_lie_and_what_nobody_wrote_is_named(pair):
    row = asked(pair, seconds=1.0)
    assert row["right"], row


@pytest.mark.parametrize("pair", some(held_out(0, SHAPE), HELD))
def test_neighbours_of_what_is_planted_stay_unexplained(pair):
    row = asked(pair, seconds=0.5)
    assert row["right"], row


def wide(shape):
    """Numbers of all magnitudes, NaN and infinity, blocks of zeros and of -0."""
    random = np.random.default_rng(0)
    x = (random.normal(0, 1, shape) * 2.0 ** random.integers(-130, 100, (shape[0], 1))).astype(np.float32)
    x[3, 5], x[4, 9], x[5], x[6, :40] = np.nan, np.inf, 0, -0.0
    return x


@pytest.mark.parametrize("row", BLOCK_FORMATS, ids=str)
def test_every_rule_gives_what_its_recipe_gives(row):
    """Step by step the bits are those of refsim.quantize, for every recipe that a library has."""
    x = wide((16, 128))
    given = QuantizedFrom(x=x, to=row.name)
    codes = given.explained(x.shape, row.element)
    scales = given.explained((len(x), x.shape[1] // row.width), row.scale)
    for of_codes, of_scales, recipe in zip(codes.rules, scales.rules, [rule.name for rule in codes.rules], strict=True):
        right = quantize(x, row.name, recipe=recipe)
        assert (codes.codes(codes.usual.but(rule=of_codes)) == right.codes).all(), recipe
        assert (scales.codes(scales.usual.but(rule=of_scales)) == right.scales).all(), recipe
    assert len(codes.rules) == len(recipes_of(row.name))


@pytest.mark.parametrize("group", ["1x128", "128x128"])
def test_groups_give_what_quantize_gives(group):
    x = wide((140, 300))
    right = by_groups(x, group=tuple(int(each) for each in group.split("x")))
    given = QuantizedFrom(x=x, to=group)
    codes, scales = given.explained(x.shape, E4M3), given.explained(right.scales.shape, F32)
    assert (codes.codes(codes.usual) == right.codes).all()
    assert (scales.codes(scales.usual) == right.scales.view(np.uint32)).all()


def test_codes_alone_say_what_the_scales_would_be():
    x = drawn(0, SHAPE)
    [pair] = [each for each in of_steps(0, SHAPE) if each.name == "mxfp8, 16 x 256: abs forgotten, codes"]
    found = explain_diff(pair.got, format="e4m3", quantized=pair.quantized, seconds=2)
    changed = Steps(amax=lambda x, kind: np.maximum(x.reshape(len(x), -1, kind.width).max(axis=2), 0)).run(x, MX8)[1]
    count = int((changed != Steps().run(x, MX8)[1]).sum())
    assert any(f"{count} of {changed.size} scales would be others" in text for text in found.beside)


def test_codes_and_scales_of_different_causes_have_no_one_cause():
    """Each alone has a name; no one cause explains both, and what explains each is said beside it."""
    x = drawn(2, SHAPE)
    codes = Steps(element=lambda values, kind: own.e4m3(values, ties="away")).run(x, MX8)[0]
    random = np.random.default_rng(3).permutation(len(x))
    scales = Steps().run(x, MX8)[1][random]
    found = explain_diff(codes, format="e4m3", quantized=QuantizedFrom(x=x, to="mxfp8", scales=scales), seconds=1)
    assert found.outcome is DiffOutcome.UNEXPLAINED
    assert found.beside[0].startswith("codes alone: explained, tie handling")
    assert found.beside[1].startswith("scales alone: explained, elements in other places: A holds")


def test_a_buffer_is_compared_with_its_layout():
    """E8M0 scales of groups, MN-major words of four: nothing differs."""
    x = drawn(4, (24, 512))
    right = by_groups(x, scale="e8m0").scales
    words = np.ascontiguousarray(right.reshape(24, 1, 4).transpose(1, 0, 2))
    given = QuantizedFrom(x=x, to="1x128", layout="deepgemm_mn_ue8m0")
    assert explain_diff(words, format="e8m0", quantized=given).outcome is DiffOutcome.EQUAL


def test_a_row_that_ends_within_a_block_goes_on_with_zeros():
    x = drawn(5, (16, 128))[:, :80]
    padded = np.pad(x, ((0, 0), (0, 16)))
    right = quantize(padded, "mxfp8").codes[:, :80]
    assert explain_diff(right, format="e4m3", quantized=QuantizedFrom(x=x, to="mxfp8")).outcome is DiffOutcome.EQUAL


def test_one_scale_for_the_tensor():
    x = drawn(6, SHAPE)
    scale = np.float32(448) / np.abs(x).max()
    given = QuantizedFrom(x=x, to="tensor")
    right = own.e4m3(x * scale)
    assert explain_diff(right, format="e4m3", quantized=given).outcome is DiffOutcome.EQUAL
    flushed = np.where(right & 0x78, right, right & 0x80).astype(np.uint8)
    found = explain_diff(flushed, format="e4m3", quantized=given, seconds=1)
    assert {cause.family for each in found.named for cause in each.causes} == {Family.FLUSHED}


def test_the_two_codes_of_a_byte_are_exchanged():
    """NVFP4, whose scales have no code for every byte."""
    x = drawn(8, SHAPE)
    right = quantize(x, "nvfp4", tensor_scale=2.0**8).codes
    exchanged = right.reshape(-1, 2)[:, ::-1].reshape(right.shape)
    given = QuantizedFrom(x=x, to="nvfp4", tensor_scale=2.0**8)
    found = explain_diff(exchanged, format="e2m1", quantized=given, seconds=3)
    assert [cause.family for each in found.named for cause in each.causes] == [Family.PACKING]
    assert found.a_is.startswith("quantised by"), "a choice of the quantiser, not what the codes alone say"
    moved = np.roll(right, 1, axis=0)[np.random.default_rng(1).permutation(len(x))]
    [named] = explain_diff(moved, format="e2m1", quantized=given, seconds=0.3).named
    assert str(named) == "elements in other places: A holds B's rows in another order"


def test_pads_are_all_that_differs():
    """One scale that holds what the pads hold, and no name of theirs stands."""
    [pair] = [each for each in of_buffers(1, (40, 256)) if each.name.endswith("pads hold NaN, alone")]
    wrong, right = pair.got.copy(), pair.want.copy()
    wrong[1], right[1] = 0xFF, 0
    named = explain_diff(wrong, right, "e8m0", seconds=0.5).named
    assert Family.PADS not in {cause.family for each in named for cause in each.causes}


def test_a_tile_is_all_that_differs():
    [pair] = [each for each in of_buffers(1, (40, 256)) if each.name.endswith("a tile of zeros")]
    wrong = pair.got.copy()
    wrong[20, 70] = pair.want[20, 70]  # somebody wrote there
    assert wrong[20, 70]
    named = explain_diff(wrong, pair.want, "e4m3", seconds=0.5).named
    assert Family.TAIL not in {cause.family for each in named for cause in each.causes}


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"to": "mxfp9"}, "unknown-name"),
        ({"scales": np.zeros((4, 4), np.uint16)}, "bad-dtype"),
        ({"scales": np.zeros((3, 5), np.uint8)}, "bad-shape"),
        ({"want_scales": np.zeros((4, 2), np.uint8)}, "usage"),
        ({"x": np.zeros(64, np.float32)}, "bad-shape"),
        ({"x": np.zeros((4, 128), np.float32)}, "format-mismatch"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_what_no_quantiser_gives_is_refused(changed, code):
    given = QuantizedFrom(x=np.zeros((4, 64), np.float32), to="mxfp8")
    with pytest.raises(RefsimError) as error:
        explain_diff(np.zeros((4, 64), np.uint8), format="e4m3", quantized=replace(given, **changed))
    assert error.value.code == code
