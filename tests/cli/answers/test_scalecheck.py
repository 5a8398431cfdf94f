"""refsim scales check: the layout and the recipe of a buffer are found among all, wrong ones are called so."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from refsim import files
from refsim.layouts import SCALE_LAYOUTS, scale_layout
from refsim.scaling.blocks import quantize


@pytest.fixture
def x(tmp_path: Path) -> np.ndarray:
    random = np.random.default_rng(3)
    values = random.standard_normal((130, 384)) * np.exp2(random.integers(-20, 20, (130, 12))).repeat(32, axis=1)
    drawn = values.astype(ml_dtypes.bfloat16)
    files.save(tmp_path / "x.npy", drawn)
    return drawn


def check(refsim, *words: str) -> tuple[int, dict]:
    found = refsim("scales", "check", *words, "--as", "json")
    return found.code, json.loads(found.out)


BYTES = [row.name for row in SCALE_LAYOUTS if row.element_bytes == 1 and row.pads]


@pytest.mark.parametrize("name", BYTES)
def test_the_layout_and_the_recipe_are_found(refsim, tmp_path: Path, x: np.ndarray, name: str) -> None:
    layout = scale_layout(name)
    scales = quantize(x, "mxfp8", recipe="floor").scales
    files.save(tmp_path / "s.bin", layout.shuffle(scales, fill=0xFF).reshape(-1), "e8m0")
    code, answer = check(refsim, "s.bin", "-t", "e8m0", "--shape", "130x12", "--values", "x.npy")
    assert code == 0
    agreeing = {row["layout"] for row in answer["layouts"] if row["differ"] == 0}
    same = {"nvidia_128x4", "nvidia_128x4_5d", "nvidia_128x4_k8"} if name.startswith("nvidia_128x4") else {name}
    if name.startswith("cdna4_16"):
        same = {"cdna4_16", "cdna4_16_m256"}
    assert name in agreeing
    assert agreeing <= same
    mine = next(row for row in answer["layouts"] if row["layout"] == name)
    assert mine["recipe"].startswith("floor (mxfp8)")
    assert mine["chips"] == layout.chips != ""
    assert mine["pads"] == f"{layout.pads_of((130, 12)).size}: 0xff"
    best = answer["recipes"]
    assert best[0]["differ"] == 0
    assert next(row for row in best if (row["format"], row["recipe"]) == ("mxfp8", "rceil"))["differ"] > 0


@pytest.mark.parametrize("mistake", ["shuffled twice", "transposed"])
@pytest.mark.parametrize("name", ["nvidia_128x4", "cdna4_32"])
def test_a_mistake_is_told_by_name(refsim, tmp_path: Path, x: np.ndarray, name: str, mistake: str) -> None:
    layout, scales = scale_layout(name), quantize(x, "mxfp8").scales
    twice = layout.shuffle(layout.shuffle(scales).reshape(layout.padded((130, 12))))
    files.save(tmp_path / "s.bin", (layout.shuffle(scales.T) if mistake == "transposed" else twice).reshape(-1), "e8m0")
    code, answer = check(refsim, "s.bin", "-t", "e8m0", "--shape", "130x12", "--values", "x.npy")
    assert code == 1
    told = {row["layout"] for row in answer["layouts"] if row["fits"] == "mistake"}
    assert f"{name}, {mistake}" in told
    assert all(mistake in each for each in told)
    assert answer["recipes"][0]["differ"] == 0


def test_transposed_rows_are_told(refsim, tmp_path: Path, x: np.ndarray) -> None:
    files.save(tmp_path / "s.bin", np.ascontiguousarray(quantize(x, "mxfp8").scales.T).reshape(-1), "e8m0")
    code, answer = check(refsim, "s.bin", "-t", "e8m0", "--shape", "130x12", "--values", "x.npy")
    assert (code, answer["layouts"][0]["layout"], answer["layouts"][0]["fits"]) == (1, "rows, transposed", "mistake")


def test_a_buffer_of_another_size_fits_nothing(refsim, tmp_path: Path) -> None:
    files.save(tmp_path / "s.bin", np.full(777, 127, np.uint8), "e8m0")
    code, answer = check(refsim, "s.bin", "-t", "e8m0", "--shape", "130x12")
    assert code == 1
    assert {row["fits"] for row in answer["layouts"]} == {"cannot be"}
    nvidia = next(row for row in answer["layouts"] if row["layout"] == "nvidia_128x4")
    assert nvidia["why"] == "needs 3072 B, the buffer has 777"


def test_scales_that_no_recipe_makes(refsim, tmp_path: Path, x: np.ndarray) -> None:
    scales = quantize(x, "mxfp8").scales ^ np.uint8(2)
    files.save(tmp_path / "s.npy", scales, "e8m0")
    code, answer = check(refsim, "s.npy", "--values", "x.npy")
    assert code == 1
    assert all(row["differ"] > 0 for row in answer["recipes"])


def test_signs_tell_formats_apart(refsim, tmp_path: Path) -> None:
    files.save(tmp_path / "s.npy", np.full((4, 4), 0x7E, np.uint8), "e4m3")
    assert check(refsim, "s.npy")[1]["scale_formats"] == ["e8m0", "ue4m3"]
    files.save(tmp_path / "t.npy", np.full((4, 4), 0x80, np.uint8), "e8m0")
    assert check(refsim, "t.npy")[1]["scale_formats"] == ["e8m0"]
    files.save(tmp_path / "f.npy", np.ones((4, 4), np.float32))
    answer = check(refsim, "f.npy")[1]
    assert answer["scale_formats"] == ["f32"]
    assert next(row for row in answer["layouts"] if row["layout"] == "deepgemm_mn_f32")["fits"] == "fits"
    files.save(tmp_path / "h.npy", np.ones((4, 4), np.float16))
    assert "[bad-dtype]" in refsim("scales", "check", "h.npy").err
    assert "[bad-shape]" in refsim("scales", "check", "s.npy", "--values", "t.npy", "--shape", "3x4").err


def test_a_tensor_of_other_rows_is_refused(refsim, tmp_path: Path) -> None:
    """Eight rows of 64 are no four rows, though four divides them."""
    files.save(tmp_path / "x.npy", np.ones((8, 64), np.float32))
    files.save(tmp_path / "s.npy", np.zeros((4, 4), np.uint8), "e8m0")
    found = refsim("scales", "check", "s.npy", "--values", "x.npy")
    assert found.code == 2
    assert "[bad-shape]" in found.err
