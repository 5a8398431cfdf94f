"""Two checkpoints of one model: equal by value in other layouts, in bits in one layout, the worst difference first."""

from pathlib import Path

import numpy as np
import pytest

from refsim.checkpoints.comparison import compare_checkpoints
from refsim.checkpoints.conversion import dequantize_file
from tests.checkpoints.handmade import BF16, FP4, Made, gpt_oss, gptq, modelopt_nvfp4, save


@pytest.fixture
def made() -> Made:
    return modelopt_nvfp4(np.random.default_rng(3))


@pytest.mark.parametrize("format", ["f32", "bf16"])
def test_a_weight_and_its_values_agree(made: Made, format: str, tmp_path: Path) -> None:
    path = made.save(tmp_path)
    dequantize_file(path, tmp_path / "v.safetensors", format)
    found = compare_checkpoints(path, tmp_path / "v.safetensors")
    assert {row.key: (row.compared, row.differing) for row in found} == {
        "p.weight": ("values", 0),
        "p.input_scale": ("bits", 0),
    }


def test_one_code_is_one_byte_and_its_distance(made: Made, tmp_path: Path) -> None:
    path = made.save(tmp_path)
    changed = {key: each.copy() for key, each in made.tensors.items()}
    changed["p.weight"][0, 0] ^= 0x01
    save(tmp_path / "b.safetensors", changed)
    worst, *others = compare_checkpoints(path, tmp_path / "b.safetensors")
    assert (worst.key, worst.compared, worst.differing) == ("p.weight", "bits", 1)
    other = made.want.copy()
    code = int(changed["p.weight"][0, 0] & 15)
    other[0, 0] = FP4[code] * float(made.tensors["p.weight_scale"][0, 0]) * float(made.tensors["p.weight_scale_2"])
    apart = abs(np.float32(other[0, 0]) - np.float32(made.want[0, 0])) / np.abs(other.astype(np.float32)).max()
    assert worst.worst == pytest.approx(float(apart), rel=1e-6)
    assert all(row.worst == 0 for row in others)


def test_a_turned_matrix_is_compared_with_rows_of_n(tmp_path: Path) -> None:
    made = gptq(np.random.default_rng(4))
    (tmp_path / "a").mkdir()
    made.save(tmp_path / "a")
    save(tmp_path / "b.safetensors", {"p.weight": made.want.T.astype(np.float32)})
    (row,) = compare_checkpoints(tmp_path / "a", tmp_path / "b.safetensors")
    assert (row.compared, row.differing, row.count) == ("values, turned", 0, made.want.size)


@pytest.mark.parametrize("rows", [10, 96])
@pytest.mark.parametrize("turned", [False, True])
def test_experts_of_gpt_oss_are_compared_as_transformers_turns_them(rows: int, turned: bool, tmp_path: Path) -> None:
    """convert_moe_packed_tensors returns (experts, K, N); the blocks lie (experts, N, K). 96 x 96 fits both ways."""
    made = gpt_oss(np.random.default_rng(6))
    blocks, scales = (made.tensors[f"{made.key}_{end}"] for end in ("blocks", "scales"))
    more = -(-rows // blocks.shape[1])
    made.tensors = {
        f"{made.key}_blocks": np.tile(blocks, (1, more, 1, 1))[:, :rows],
        f"{made.key}_scales": np.tile(scales, (1, more, 1))[:, :rows],
    }
    want = np.tile(made.want, (1, more, 1))[:, :rows].astype(BF16)
    path = made.save(tmp_path)
    save(tmp_path / "b.safetensors", {made.key: np.swapaxes(want, 1, 2) if turned else want})
    for pair in ((path, tmp_path / "b.safetensors"), (tmp_path / "b.safetensors", path)):
        (row,) = compare_checkpoints(*pair)
        assert (row.compared, row.differing, row.count) == (
            "values, turned" if turned else "values",
            0,
            want.size,
        )
