"""refsim quantize and dequantize, and diffpolicy between recipes: files in blocks, and what is said where that cannot be."""

import json
from pathlib import Path

import numpy as np
import pytest

from refsim import files, scaling
from refsim.scaling.blocks import quantize


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    x = np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32)
    files.save_all(path, {"w": x, "b": np.zeros(8, np.float32)})
    return path


def test_there_and_back(refsim, model: Path) -> None:
    made = refsim("quantize", "nvfp4", str(model), "--recipe", "modelopt")
    assert made.code == 0, made.err
    assert "quantized" in made.out
    assert "no matrix" in made.out
    small = model.with_name("model.nvfp4.safetensors")
    back = refsim("dequantize", str(small), "-t", "f32", "--as", "json")
    assert back.code == 0, back.err
    rows = json.loads(back.out)["tensors"]
    assert {row["tensor"]: row["done"] for row in rows} == {"w": "dequantized", "b": "copied"}
    values = files.load_all(model.with_name("model.nvfp4.f32.safetensors"))["w"].typed()
    x = files.load_all(model)["w"].typed()
    np.testing.assert_array_equal(values, quantize(x, "nvfp4", recipe="modelopt").dequantize())


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("unknown-format", ["mxfp5", "{model}"]),
        ("unknown-suffix", ["mxfp8", "x.npy"]),
        ("file-exists", ["mxfp8", "{model}", "{model}"]),
        ("unsupported-format", ["mxfp8", "{model}", "--recipe", "modelopt"]),
    ],
)
def test_what_is_refused(refsim, model: Path, code: str, words: list[str]) -> None:
    found = refsim("quantize", *(word.format(model=model) for word in words))
    assert found.code == 2
    assert f"[{code}]" in found.err


def test_two_recipes_on_a_tensor(refsim, model: Path) -> None:
    found = refsim("diffpolicy", "mxfp8", "rceil", "floor", "--on", str(model), "--key", "w", "--as", "json")
    assert found.code == 1, found.err
    answer = json.loads(found.out)
    x = files.load_all(model)["w"].typed()
    one, other = (quantize(x, "mxfp8", recipe=name) for name in ("rceil", "floor"))
    scales = one.scales != other.scales
    (row,) = answer["differences"]
    assert (row["blocks"], row["what"]) == (int(scales.sum()), "another scale")
    assert row["elements"] == int((one.codes != other.codes).sum())
    first = tuple(np.argwhere(scales)[0])
    assert (row["row"], row["block"]) == first
    assert [row["scale"], row["other_scale"]] == [f"0x{made.scales[first]:02x}" for made in (one, other)]


def test_recipes_that_agree(refsim, model: Path) -> None:
    found = refsim("diffpolicy", "mxfp4", "rceil", "aiter", "--on", str(model), "--key", "w")
    assert found.code == 0, found.err
    assert "agree on all 16 blocks" in found.out


def test_recipes_of_a_format_are_named(refsim, model: Path) -> None:
    found = refsim("diffpolicy", "nvfp4")
    assert found.code == 2
    assert all(each.name in found.err for each in scaling.recipes_of("nvfp4"))
    assert "[missing-argument]" in refsim("diffpolicy", "nvfp4", "te", "torchao").err
