"""Weights of public checkpoints, built by hand: their layout is told, and every value is right."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import refsim
from refsim import files, scaling
from refsim.checkpoints import conversion
from refsim.checkpoints.conversion import dequantize_file
from refsim.checkpoints.layouts import CHECKPOINT_LAYOUTS, CheckpointLayout
from refsim.checkpoints.reading import weights_of
from refsim.errors import RefsimError
from refsim.files.parts import source
from tests.checkpoints.handmade import MAKERS, Made


@pytest.fixture(params=MAKERS, ids=lambda make: make.__name__)
def made(request) -> Made:
    return request.param(np.random.default_rng(7))


def test_values_are_those_of_the_library(made: Made, tmp_path: Path) -> None:
    path, to = made.save(tmp_path), tmp_path / "values.npz"
    told = dequantize_file(path, to)
    layout = next(each.why for each in told if each.key == made.key).split(":")[0]
    assert layout == made.layout
    got = files.load(to, key=made.key).typed()
    np.testing.assert_array_equal(got, made.want.astype(np.float32))
    assert {each.key for each in told if each.done == "copied"} == {
        key for key in made.tensors if key.endswith(("norm.weight", "bias", "input_scale"))
    }


def test_parts_of_a_weight_are_the_rows_of_the_whole(made: Made, tmp_path: Path) -> None:
    with source(made.save(tmp_path)) as file:
        (weight,) = weights_of(file).values()
        count = weight.rows[0]
        whole = weight.values(0, count)
        np.testing.assert_array_equal(whole.reshape(weight.shape), made.want.astype(whole.dtype))
        rng = np.random.default_rng(1)
        for _ in range(8):
            first = int(rng.integers(count))
            last = int(rng.integers(first, count)) + 1
            np.testing.assert_array_equal(weight.values(first, last - first), whole[first:last])


def test_every_layout_is_built_by_hand() -> None:
    rng = np.random.default_rng(0)
    built = {make(rng).layout for make in MAKERS}
    assert {row.name for row in CHECKPOINT_LAYOUTS if not row.name.startswith("gguf")} - built == {"refsim"}


WRITTEN = [row for row in CHECKPOINT_LAYOUTS if row.made]


@pytest.mark.parametrize("piece", [1 << 24, 5000])
@pytest.mark.parametrize("row", WRITTEN, ids=str)
def test_there_and_back(row: CheckpointLayout, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that is written is one of its layout, and its values are those of the codes that refsim.quantize makes."""
    monkeypatch.setattr(conversion, "PIECE_BYTES", piece)
    key = "m.weight" if row.becomes else "m"
    x = np.random.default_rng(5).standard_normal((300, 160)).astype(np.float32)
    files.save_all(tmp_path / "given.safetensors", {key: x, "m.bias": x[0]})
    told = conversion.quantize_file(tmp_path / "given.safetensors", tmp_path / "made.safetensors", row.name)
    assert {each.key: each.done for each in told} == {key: "quantized", "m.bias": "copied"}
    back = dequantize_file(tmp_path / "made.safetensors", tmp_path / "back.npz")
    assert {each.why.split(":")[0] for each in back if each.done == "dequantized"} == {row.name}
    got = np.load(tmp_path / "back.npz")[key]
    first, _, recipe = row.made.partition(" ")
    if first[0].isdigit():
        group = tuple(int(n) or size for n, size in zip(first.split("x"), x.shape, strict=True))
        kind = "e8m0" if row.name == "deepseek-v4-fp8" else "f32"
        made = scaling.quantize(x, group=group, scale=kind)
        factors = np.repeat(np.repeat(made.factors.astype(np.float64), group[0], 0), group[1], 1)[:300, :160]
        want = made.codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64) * factors
    else:
        blocks = refsim.quantize(x, first, recipe=recipe or None)
        scales = refsim.decode(blocks.scales, blocks.format.scale, np.float64)
        want = refsim.decode(blocks.codes, blocks.format.element, np.float64)
        want *= np.repeat(scales, blocks.format.width, 1)
        if blocks.tensor_scale is not None:
            want = (np.divide if row.divides else np.multiply)(want, np.float64(blocks.tensor_scale))
    np.testing.assert_array_equal(got, want.astype(np.float32))
    held = {name: file.dtype for name, file in _regions(tmp_path / "made.safetensors").items()}
    assert set(held) == {"m.bias", *(key.removesuffix(".weight") + end for end in _ends(row))}


def _regions(path: Path) -> dict:
    with source(path) as file:
        return dict(file.regions)


def _ends(row: CheckpointLayout) -> list[str]:
    return [row.codes.ends[0], *(each.ends[0] for role, each in row.parts.items() if role in ("scales", "factor"))]


def test_a_layout_that_is_only_read_is_refused(tmp_path: Path) -> None:
    files.save(tmp_path / "a.safetensors", np.zeros((8, 64), np.float32), key="p.weight")
    with pytest.raises(RefsimError, match="only read") as found:
        conversion.quantize_file(tmp_path / "a.safetensors", tmp_path / "b.safetensors", "awq")
    assert found.value.code == "unsupported-format"


def test_a_config_that_says_otherwise_is_named(tmp_path: Path) -> None:
    """Names and types decide; the answer says that config.json names another method."""
    made = next(make for make in MAKERS if make.__name__ == "ct_nvfp4")(np.random.default_rng(3))
    for config, said in (({"quant_method": "awq"}, "awq"), (made.config or {"format": "nvfp4-pack-quantized"}, "")):
        made.config = config
        with source(made.save(tmp_path)) as file:
            (weight,) = weights_of(file).values()
        assert ("config.json says" in weight.why) == bool(said), weight.why
        assert not said or f"config.json says {said}, which these tensors are not" in weight.why
