"""Recipes: the same tensor from the same line, and nothing but a recipe from a file."""

import hashlib
import json
from dataclasses import dataclass

import numpy as np
import pytest

import refsim
from refsim.conversions import decode, encode
from refsim.errors import RefsimError
from refsim.formats import format_named
from refsim.reference.operands import special_codes
from refsim.testing import Kernel, run_campaign, strategies
from refsim.testing.matrices import MATRIX_FILLS, Values
from refsim.testing.recipes import (
    EDGE_SIZES,
    FILLS,
    Launch,
    Tensor,
    check_patches,
    corpus_tensors,
    from_json,
    spelled,
    to_json,
)

FORMATS = ("bf16", "f16", "f32", "e4m3", "e5m2", "e2m1", "e8m0", "tf32")


@dataclass(frozen=True)
class Pair:
    left: Tensor
    right: Tensor | None = None
    scale: float = 1.0
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bits:
    launch: Launch
    scale_bits: int = 0


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("fill", list(FILLS))
def test_fill_gives_legal_codes_and_repeats(format, fill):
    tensor = Tensor(100, format, fill, seed=7)
    codes = tensor.codes()
    row = format_named(format)
    assert codes.dtype == row.code_dtype
    assert (codes < row.code_limit).all()
    assert np.array_equal(codes, Tensor(100, format, fill, seed=7).codes())
    assert Tensor(0, format, fill).codes().shape == (0,)


def test_a_seed_draws_what_it_always_drew():
    """Saved cases hold a fill and a seed: a fill that drew otherwise would be another case."""
    drawn = hashlib.sha256()
    for fill in MATRIX_FILLS:
        for format in ("bf16", "f16", "f32", "e4m3", "e5m2", "e2m1"):
            drawn.update(Values(fill, seed=7).codes(format, 9, 31).tobytes())
    assert drawn.hexdigest()[:16] == "cd42fcf0f918ceb9"


def test_fills_are_what_they_are_called():
    assert not Tensor(9, "bf16").codes().any()
    assert (Tensor(9, "bf16", "ones").codes() == 0x3F80).all()
    assert np.count_nonzero(Tensor(9, "bf16", "one-hot").codes()) == 1
    subnormal = np.abs(decode(Tensor(99, "f16", "subnormals").codes(), "f16"))
    assert ((subnormal > 0) & (subnormal < 2.0**-14)).all()
    cycle = Tensor(200, "e4m3", "specials").codes()
    assert set(special_codes("e4m3")) == set(cycle.tolist())
    assert len(np.unique(Tensor(500, "f32", "bits").codes())) == 500


@pytest.mark.parametrize("wide", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("target", ["e4m3", "e5m2"])
def test_ties_lie_halfway_once_scaled_by_their_own_maximum(wide, target):
    values = np.abs(decode(Tensor(3000, wide, "ties", 5, target).codes(), wide))
    assert values.max() == values[0]
    scaled = values * (format_named(target).max_value / values[0])
    below, above = (decode(encode(scaled, target, rounding=way), target) for way in ("toward-zero", "up"))
    halfway = scaled - below == above - scaled
    exact_ties = halfway & (below != above)
    assert exact_ties.sum() > 500
    assert (~halfway).sum() > 500  # the neighbours on both sides


def test_near_overflow_reaches_beyond_the_target():
    values = np.abs(decode(Tensor(1000, "f32", "near-overflow", 1, "e4m3").codes(), "f32"))
    assert ((values > 464) & (values < 600)).any()
    assert ((values > 400) & (values < 448)).any()


def test_special_codes_hold_both_ends_of_every_range():
    assert {0x00, 0x80, 0x01, 0x07, 0x08, 0x38, 0x7E, 0xFE, 0x7F, 0xFF} <= set(special_codes("e4m3"))
    assert {0x7F80, 0xFF80, 0x7F81, 0x7FC0, 0x7FFF, 0x7F7F, 0x007F, 0x0080} <= set(special_codes("bf16"))
    assert set(special_codes("e8m0")) >= {0x00, 0xFE, 0xFF}
    assert all(code % (1 << 13) == 0 for code in special_codes("tf32") if code & 0x7FFFFFFF < 0x7F800000)


def test_patches_and_offset():
    tensor = Tensor(4, "bf16", patches=((0, 0x7F80), (3, 1)), misalign_elements=3)
    assert tensor.codes().tolist() == [0x7F80, 0, 0, 1]
    assert tensor.misalign_bytes == 6
    assert repr(tensor) == "Tensor(n=4, format='bf16', patches=((0, 0x7f80), (3, 0x1),), misalign_elements=3)"
    assert eval(repr(tensor), {"Tensor": Tensor}) == tensor


def test_a_matrix_may_have_a_shape_of_numpy():
    assert np.array_equal(Values("bits").codes("f32", np.int32(2), np.int64(3)), Values("bits").codes("f32", 2, 3))


def test_recipe_is_spelled_without_its_defaults():
    pair = Pair(Tensor(1, "bf16"), Tensor(2, "f16", seed=3), flags=("a",))
    text = "Pair(left=Tensor(n=1, format='bf16'), right=Tensor(n=2, format='f16', seed=3), flags=('a',))"
    assert spelled(pair) == text
    assert spelled(Bits(Launch(), 0x7F80)) == "Bits(launch=Launch(), scale_bits=0x7f80)"


def test_corpus_holds_every_edge_and_every_fill():
    corpus = corpus_tensors("f16", "e5m2")
    assert {tensor.n for tensor in corpus} >= set(EDGE_SIZES)
    assert {tensor.fill for tensor in corpus} == set(FILLS)
    assert any(tensor.misalign_elements % 2 for tensor in corpus)
    assert max(tensor.n for tensor in corpus) > 1 << 20
    assert max(tensor.n for tensor in corpus_tensors("f16", large=False)) < 1 << 12


@pytest.mark.parametrize(
    "fields",
    [
        {"n": -1},
        {"n": 1 << 40},
        {"n": True},
        {"n": 2.0},
        {"format": "bf17"},
        {"fill": "random"},
        {"seed": -1},
        {"patches": ((4, 0),)},
        {"patches": ((0, 1 << 16),)},
        {"misalign_elements": 65},
        {"target": "e9m9"},
    ],
)
def test_wrong_recipe_is_refused(fields):
    with pytest.raises(RefsimError):
        Tensor(**{"n": 4, "format": "bf16", **fields})


@pytest.mark.parametrize("arguments", [(33,), (2048,), (0,), (256, 1 << 20), (256, -1), (256, 0, 0)])
def test_wrong_launch_is_refused(arguments):
    with pytest.raises(RefsimError):
        Launch(*arguments)


@pytest.mark.parametrize(
    ("launch", "n", "blocks"), [(Launch(), 0, 1), (Launch(), 4096, 1), (Launch(), 4097, 2), (Launch(64, 3), 10**6, 3)]
)
def test_launch_covers_the_tensor_or_keeps_its_blocks(launch, n, blocks):
    class Recorder:
        def launch(self, entry, grid, block, args):
            self.call = (entry, grid, block, args)

    recorder = Recorder()
    launch.run(recorder, "copy", n, 7)
    assert recorder.call == ("copy", (blocks,), (launch.threads,), (7,))


def test_json_round_trip():
    pair = Pair(Tensor(3, "bf16", "ties", 1, patches=((1, 2),)), None, 0.1, ("a",))
    text = json.dumps(to_json(pair))
    assert from_json(Pair, json.loads(text)) == pair
    assert from_json(Pair, to_json(Pair(pair.left, pair.left))) == Pair(pair.left, pair.left)
    assert to_json(Tensor(1, "bf16")) == {"n": 1, "format": "bf16"}


@pytest.mark.parametrize(
    ("record", "where"),
    [
        ([], "problem"),
        ({}, "problem"),
        ({"left": {"n": 1, "format": "bf16", "colour": "red"}}, "problem.left"),
        ({"left": {"n": "1", "format": "bf16"}}, "problem.left.n"),
        ({"left": {"n": 1.5, "format": "bf16"}}, "problem.left.n"),
        ({"left": {"n": 1, "format": "bf16", "patches": [[0]]}}, "problem.left.patches[0]"),
        ({"left": {"n": 1, "format": "bf16"}, "flags": "abc"}, "problem.flags"),
        ({"left": {"n": 1, "format": "bf16"}, "scale": "inf"}, "problem.scale"),
    ],
)
def test_json_of_another_shape_is_refused_where_it_stands(record, where):
    with pytest.raises(RefsimError) as caught:
        from_json(Pair, record)
    assert caught.value.where == where


def test_recipe_of_arrays_has_no_json():
    with pytest.raises(RefsimError, match="bad-recipe"):
        to_json(np.zeros(3))


@pytest.mark.parametrize("patch", [(0, 1 << 64), (0, -1), (1 << 63, 0), (0,), [0, 0]])
def test_a_patch_is_an_index_and_a_code_of_64_bits(patch):
    check_patches(((0, (1 << 64) - 1), ((1 << 63) - 1, 0)))
    with pytest.raises(RefsimError, match="bad-recipe"):
        check_patches((patch,))


RUNNING = """
extern "C" __global__ void amax(const float* x, unsigned* y, unsigned n) {
  float most = 0;
  for (unsigned i = threadIdx.x; i < n; i += STRIDE) most = RESETS ? fabsf(x[i]) > most || isnan(x[i]) ? fabsf(x[i]) : most
                                                                   : fmaxf(most, fabsf(x[i]));
  if (most == most) atomicMax(y, __float_as_uint(most));
}"""


@pytest.mark.parametrize("stride", [32, 64, 128, 256])
def test_a_running_maximum_that_a_nan_resets_does_not_pass(stride):
    def run(launcher, case):
        x, y = launcher.upload(case.codes(), name="x"), launcher.upload(np.zeros(1, np.uint32), name="y", writable=True)
        launcher.launch("amax", 1, stride, [x, y, np.uint32(case.n)])
        return {"y": launcher.read(y)}

    def oracle(case):
        x = np.abs(case.codes().view(np.float32))
        return {"y": np.array([np.max(x[~np.isnan(x)], initial=0)], np.float32).view(np.uint32)}

    corpus, device = corpus_tensors("f32", large=False), refsim.device.open("sim")
    given = {"corpus": corpus, "source": RUNNING, "outputs": {"y": "f32"}, "recipe": Tensor, "run": run}
    for resets, status in ((0, "pass"), (1, "fail")):
        defines = {"STRIDE": stride, "RESETS": resets}
        kernel = Kernel("amax", oracle, strategies.tensors(["f32"]), defines=defines, **given)
        assert run_campaign(kernel, device, cases=0, suspect_seconds=0).status == status
