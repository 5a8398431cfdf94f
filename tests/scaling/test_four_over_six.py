"""NVFP4 4over6: what references of the libraries gave, the slow definition, ties, special numbers and files."""

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refsim
from refsim import files, scaling
from refsim.checkpoints.conversion import dequantize_file, quantize_file
from refsim.errors import RefsimError
from refsim.reference.special_functions import reciprocal
from refsim.reference.two_level_quantize import TWO_LEVELS, Single, TwoLevels, two_level_quantize
from refsim.scaling import four_over_six
from refsim.scaling.four_over_six import FOUR_OVER_SIX_RECIPES
from tests.checkpoints.handmade import save

RECORDED = np.load(Path(__file__).parent / "recorded_four_over_six.npz")
"""Codes and scales of Transformer Engine's and FlashInfer's references in Python and of the authors' one in torch."""
NAMES = [each.name for each in FOUR_OVER_SIX_RECIPES]
LIBRARY = sorted(name.removesuffix(".codes") for name in RECORDED.files if name.endswith(".codes"))


@pytest.mark.parametrize("key", LIBRARY)
def test_every_recorded_tensor_of_a_library(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum that torch adds in another order may choose the other scale: none of these tensors has such a block."""
    kind, name, rows = key.split(".")
    block, kept = (16, 16) if rows == "16" else None, None
    if name.startswith("flashinfer"):  # its reference divides, as its kernels do where the fast way is disabled
        monkeypatch.setattr(four_over_six, "approximate_reciprocal", lambda values: np.float32(1) / values)
        kept = np.float32(6 * (256 if "256" in name else 448)) / np.abs(refsim.decode(RECORDED[kind], "bf16")).max()
    found = refsim.quantize(RECORDED[kind], "nvfp4", recipe=name, block=block, tensor_scale=kept, input_format="bf16")
    np.testing.assert_array_equal(found.row_scales, RECORDED[f"{key}.scales"])
    np.testing.assert_array_equal(found.codes, RECORDED[f"{key}.codes"])


@pytest.mark.parametrize("name", NAMES)
def test_each_scale_is_taken_somewhere(name: str) -> None:
    """6 and 5 by scale 1 are 6 and 4; by scale 1.5 they are 6 and 4.5. 6 alone is exact by both, and 6 stays."""
    x = np.zeros((1, 48), np.float32)
    bound = 448 if "448" in name or name in ("flashinfer_4over6", "flashinfer_4over6_mse") else 256
    x[0, [0, 16, 17, 32]] = 6 * bound, 6, 5, 6
    found = refsim.quantize(x, "nvfp4", recipe=name)
    assert float(found.factor) == 1
    assert found.scales[0, 1:].tolist() == [0x3C, 0x38]
    assert found.codes[0, [16, 17, 32]].tolist() == [6, 5, 7]


def test_errors_choose_differently() -> None:
    """Of 1024 blocks of normal numbers each kind of error takes 4 where another one takes 6."""
    x = np.random.default_rng(2).standard_normal((64, 256)).astype(np.float32)
    made = {name: refsim.quantize(x, "nvfp4", recipe=name) for name in NAMES}
    errors = {name: np.abs(each.dequantize() - x).reshape(-1, 16) for name, each in made.items()}
    best = {"fouroversix": (errors, 2), "fouroversix_mae": (errors, 1)}
    for name, (of, power) in best.items():
        others = [of[each] for each in ("fouroversix", "fouroversix_mae", "fouroversix_abs_max") if each != name]
        assert all((of[name] ** power).sum() < (each**power).sum() for each in others)
    assert errors["fouroversix_abs_max"].max(axis=1).sum() < errors["fouroversix"].max(axis=1).sum()
    plain = refsim.quantize(x, "nvfp4", recipe="te").dequantize()
    assert all((each**2).sum() < ((plain - x) ** 2).sum() for each in errors.values())


def rcp(number: Single) -> Single:
    return Single(reciprocal(number.number))


def flashinfer(most: Single, kind: str) -> TwoLevels:
    """The formulas of FlashInfer's kernel, with the slow definition of rcp.approx.ftz."""
    return TwoLevels(
        lambda amax: Single.of(1) / amax * most,
        lambda peak, s: s * (peak * rcp(Single.of(6))),
        lambda x, v, s: x * rcp(v * rcp(s)),
        four=lambda peak, s: s * (peak * rcp(Single.of(6))) * Single.of(1.5),
        value=lambda q, v, s: q * v * rcp(s),
        kind=kind,
    )


SLOW = TWO_LEVELS | {
    "flashinfer_4over6" + bound + end: flashinfer(Single.of(most), kind)
    for bound, most in (("", 2688), ("_256", 1536))
    for end, kind in (("", "mae"), ("_mse", "mse"))
}


@pytest.mark.parametrize("shape", [(4, 16), (16, 16)])
@given(seed=st.integers(0, 2**32 - 1), power=st.integers(-20, 20), name=st.sampled_from(NAMES))
def test_quantising_is_the_slow_definition(shape, seed: int, power: int, name: str) -> None:
    """The error of 16 x 16 is added by rows, then in a tree."""
    x = (np.random.default_rng(seed).standard_normal(shape) * 2.0**power).astype(np.float32)
    is_square = shape == (16, 16)
    found = refsim.quantize(x, "nvfp4", recipe=name, block=(16, 16) if is_square else None)
    blocks = [x.ravel()] if is_square else list(x)
    with mock.patch.dict(TWO_LEVELS, SLOW):
        for block, codes, scale in zip(blocks, found.codes.reshape(len(blocks), -1), found.scales, strict=True):
            wanted = two_level_quantize(block.tolist(), float(np.abs(x).max()), name)
            assert (codes.tolist(), int(scale[0])) == wanted


def near_ties(seed: int, rows: int) -> np.ndarray:
    """Blocks whose two errors nearly agree: the order of the sum decides in some of them."""
    x = (np.random.default_rng(seed).integers(-600, 601, (rows, 16)) / np.float32(100)).astype(np.float32)
    x[:: 16 if rows == 1024 else 1, 0] = 6
    return x


def test_errors_are_added_in_order() -> None:
    """Added from the last element on, the errors of this block choose the other scale."""
    x = near_ties(0, 20000)[1940:1941]
    found = refsim.quantize(x, "nvfp4", recipe="te_4over6", tensor_scale=1536.0)
    wanted = two_level_quantize(x[0].tolist(), 0.0, "te_4over6", 1536.0)
    assert (found.codes[0].tolist(), int(found.scales[0, 0])) == wanted


def test_errors_of_rows_are_added_in_a_tree() -> None:
    """Added by neighbors, the errors of the rows of this square choose the other scale."""
    x = near_ties(35, 1024)[41 * 16 :][:16]
    found = refsim.quantize(x, "nvfp4", recipe="te_4over6", block=(16, 16), tensor_scale=1536.0)
    wanted = two_level_quantize(x.ravel().tolist(), 0.0, "te_4over6", 1536.0)
    assert (found.codes.ravel().tolist(), int(found.scales[0, 0])) == wanted


@pytest.mark.parametrize("name", NAMES)
def test_special_numbers_do_not_choose(name: str) -> None:
    """An error of NaN or infinity is not smaller: the scale that makes the largest 6 stays."""
    x = np.ones((1, 16), np.float32) * 5
    x[0, 0] = 6
    wanted = refsim.quantize(x, "nvfp4", recipe=name, tensor_scale=1.0)
    x[0, 7] = np.nan
    found = refsim.quantize(x, "nvfp4", recipe=name, tensor_scale=1.0)
    row = scaling.recipe_named(name, "nvfp4")
    six = refsim.encode(row.scale(np.float32([6]), np.ones(1, np.float32)), "ue4m3")
    if row.nan == "ignored":
        assert found.scales[0].tolist() == six.tolist()
    else:
        assert found.scales[0].tolist() == [0x7F]
    assert wanted.scales.shape == found.scales.shape
    zeros = refsim.quantize(np.zeros((2, 32), np.float32), "nvfp4", recipe=name)
    assert zeros.codes.sum() == (0 if name != "modelopt_4over6" else 7 * 64)  # 0 / 0, as modelopt


def test_scales_of_model_optimizer_end_at_the_smallest_code() -> None:
    """A block of 1e-6 in a tensor of 1: its scale of 256 * 1e-6 is below 2^-9, the value of code 1.

    1e-6 / (2^-9 / (6 * 256)) = 0.786 is nearest to 1, whose code is 2.
    """
    x = np.ones((2, 16), np.float32)
    x[1] = 1e-6
    found = refsim.quantize(x, "nvfp4", recipe="modelopt_4over6")
    assert found.scales[1].tolist() == [1]
    assert found.codes[1].tolist() == [2] * 16


def test_stochastic_rounding_is_refused() -> None:
    with pytest.raises(RefsimError) as caught:
        refsim.quantize(np.ones((1, 16), np.float32), "nvfp4", recipe="te_4over6", random=np.zeros((1, 16), np.uint8))
    assert caught.value.code == "random-bits"


@pytest.mark.parametrize("to", ["nvfp4", "modelopt-nvfp4", "ct-nvfp4"])
@pytest.mark.parametrize("name", [*NAMES, "te", "torchao", "modelopt", "compressed_tensors"])
def test_files_give_the_values_back(to: str, name: str, tmp_path: Path) -> None:
    """The layout keeps a factor or a divisor, whatever the recipe keeps."""
    x = np.random.default_rng(3).standard_normal((24, 64)).astype(np.float32)
    given, made, back = (tmp_path / f"{each}.safetensors" for each in ("given", "made", "back"))
    save(given, {"a.weight": x})
    quantize_file(given, made, to, recipe=name)
    dequantize_file(made, back)
    found = files.load(back, key="a.weight").codes.view(np.float32)
    wanted = refsim.quantize(x, "nvfp4", recipe=name).dequantize()
    np.testing.assert_allclose(found, wanted, rtol=3e-7 if to == "ct-nvfp4" else 0)
