"""Commands that take checkpoints: dequantize, files, show, diff, scales check, with FILE:KEY, folders and indexes."""

import json
from math import inf
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from refsim.checkpoints.comparison import compare_checkpoints
from refsim.checkpoints.tensors import load_tensor
from refsim.files.parts import TensorFile
from tests.checkpoints.handmade import (
    awq,
    bnb,
    deepseek_v3,
    fp8_channel_flat,
    fp8_tensor,
    gpt_oss,
    gptq,
    modelopt_nvfp4,
    save,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model in two shards with an index."""
    made = deepseek_v3(np.random.default_rng(1))
    shards = {"one.safetensors": list(made.tensors)[:1], "two.safetensors": list(made.tensors)[1:]}
    for name, keys in shards.items():
        save(tmp_path / name, {key: made.tensors[key] for key in keys})
    index = {"weight_map": {key: name for name, keys in shards.items() for key in keys}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


WANT = deepseek_v3(np.random.default_rng(1)).want.astype(np.float32)


@pytest.mark.parametrize("place", ["", "model.safetensors.index.json"])
def test_a_folder_is_dequantized(refsim, folder: Path, place: str, tmp_path: Path) -> None:
    for name in ("out.npy", "out.npz", "out.safetensors"):
        found = refsim("dequantize", f"{folder / place}:m.q.weight", "-o", str(tmp_path / name))
        assert found.code == 0, found.err
        assert found.out.startswith("layout deepseek-fp8: F8_E4M3 .weight with F32 .weight_scale_inv")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), WANT)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["m.q.weight"], WANT)
    again = refsim("dequantize", str(folder / place), str(tmp_path / "out.npy"))
    assert (again.code, "[file-exists]" in again.err) == (2, True)
    both = refsim("dequantize", str(folder / place), str(tmp_path / "x.npy"), "-o", str(tmp_path / "y.npy"))
    assert (both.code, "contradicts" in both.err) == (2, True)


def test_a_weight_is_values_everywhere(refsim, folder: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "want.npy", WANT)
    for word in (f"{folder}", f"{folder}:m.q.weight", f"{folder / 'model.safetensors.index.json'}:m.q.weight"):
        found = refsim("diff", word, str(tmp_path / "want.npy"))
        assert found.code == 0, found.err
        assert found.out.startswith("m.q.weight: values by layout deepseek-fp8 (")
        shown = refsim("show", word, "--rows", "0:1", "--cols", "0:2", "--as", "json")
        assert shown.code == 0, shown.err
        assert json.loads(shown.out)["read_as"][0].startswith("m.q.weight: values by layout deepseek-fp8")
    codes = refsim("show", f"{folder / 'one.safetensors'}", "-t", "e4m3", "--rows", "0:1", "--cols", "0:2")
    assert (codes.code, "layout" in codes.out) == (0, False)


def test_scales_of_a_weight_are_checked(refsim, folder: Path) -> None:
    found = refsim("scales", "check", f"{folder}:m.q.weight", "--as", "json")
    assert found.code == 0, found.err
    assert json.loads(found.out)["read_as"][0].startswith("m.q.weight: scales by layout deepseek-fp8")
    assert "24 B for 2 x 3 scales" in refsim("scales", "check", f"{folder}:m.q.weight", "--as", "md").out


def test_files_lists_what_a_checkpoint_holds(refsim, tmp_path: Path) -> None:
    made = modelopt_nvfp4(np.random.default_rng(2))
    made.tensors["p.weight_scale"] = made.tensors["p.weight_scale"].copy()
    made.tensors["p.weight_scale"].view(np.uint8)[0, 0] = 0x7F
    save(tmp_path / "m.safetensors", {**made.tensors, "p.k_scale": np.array(0.5, np.float32)})
    found = refsim("files", str(tmp_path / "m.safetensors"), "--as", "json")
    assert found.code == 0, found.err
    rows = {row["tensor"]: row for row in json.loads(found.out)["tensors"]}
    assert rows["p.weight"]["layout"] == "modelopt-nvfp4"
    assert rows["p.weight"]["bits"] == "4"
    assert rows["p.weight_scale"]["layout"] == "of p.weight"
    assert rows["p.weight_scale"]["nan"] == 1
    assert rows["p.k_scale"]["layout"] == "cache scale"
    known = made.tensors["p.weight_scale"].astype(np.float64)
    assert rows["p.weight"]["scales"] == f"{np.nanmin(known):g} to {np.nanmax(known):g}"


def test_files_of_a_name_counts_what_it_lists(refsim, tmp_path: Path) -> None:
    made, other = gptq(np.random.default_rng(2)), modelopt_nvfp4(np.random.default_rng(3))
    save(tmp_path / "m.safetensors", {**{f"g.{key}": each for key, each in made.tensors.items()}, **other.tensors})
    for key in ("g.p.weight", "g.p.qweight", "g.*qw*"):
        found = refsim("files", f"{tmp_path / 'm.safetensors'}:{key}", "--layout", "gptq", "--as", "json")
        assert found.code == 0, found.err
        (row,) = json.loads(found.out)["tensors"]
        assert (row["tensor"], row["layout"], row["bits"]) == ("g.p.qweight", "gptq", "4")
        assert refsim("files", f"{tmp_path / 'm.safetensors'}:{key}", "--layout", "gptq").out.startswith(
            "1 in layout gptq:"
        )


def test_a_plain_tensor_of_a_folder_is_read_by_its_type(refsim, folder: Path) -> None:
    held = {"m.i": np.array([1, -2, 3], np.int32), "m.d": np.array([0.5, 1e300]), "m.u": np.array([1, 2], np.uint8)}
    save(folder / "three.safetensors", held)
    (folder / "model.safetensors.index.json").unlink()
    for word in (folder, folder / "three.safetensors"):
        shown = {key: refsim("show", f"{word}:{key}", "--as", "csv") for key in held}
        assert {key: each.code for key, each in shown.items()} == {"m.i": 0, "m.d": 0, "m.u": 2}
        assert "-2" in shown["m.i"].out
        assert "1e300" in shown["m.d"].out.replace("+", "")
        assert "[format-needed]" in shown["m.u"].err
        assert "give -t FORMAT" in shown["m.u"].err
        assert refsim("show", f"{word}:m.u", "-t", "u8").code == 0
        assert "[format-mismatch] a code of e4m3" in refsim("show", f"{word}:m.i", "-t", "e4m3").err


def test_a_whole_weight_of_a_shard_is_read(refsim, folder: Path, tmp_path: Path) -> None:
    """The codes of another weight of the shard have their scales in the next shard."""
    made, (name, cut) = deepseek_v3(np.random.default_rng(6)), ("m.q.weight", "n.q.weight")
    tensors = {**made.tensors, cut: made.tensors[name]}
    save(tmp_path / "m-00001-of-00002.safetensors", tensors)
    found = refsim("dequantize", f"{tmp_path / 'm-00001-of-00002.safetensors'}", str(tmp_path / "x.npz"))
    assert found.code == 3
    assert "'n.q.weight_scale_inv' is missing" in found.err
    assert "give the folder or its index.json" in found.err
    shown = refsim("show", f"{tmp_path / 'm-00001-of-00002.safetensors'}:{name}", "--rows", "0:1", "--cols", "0:1")
    assert (shown.code, shown.out.startswith("m.q.weight: values by layout deepseek-fp8")) == (0, True)
    shown = refsim("show", f"{tmp_path / 'm-00001-of-00002.safetensors'}:{cut}", "--rows", "0:1", "--cols", "0:1")
    assert (shown.code, "'n.q.weight_scale_inv' is missing" in shown.err) == (3, True)


def test_names_of_two_files_are_gathered_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from refsim.checkpoints import comparison

    save(tmp_path / "a.safetensors", {f"t{at}": np.zeros(1, np.float32) for at in range(50)})
    asked = []
    names = comparison._names
    monkeypatch.setattr(comparison, "_names", lambda side: asked.append(side) or names(side))
    assert len(compare_checkpoints(tmp_path / "a.safetensors", tmp_path / "a.safetensors")) == 50
    assert len(asked) == 2


def test_two_readings_need_a_layout(refsim, tmp_path: Path) -> None:
    made = gptq(np.random.default_rng(4))
    made.save(tmp_path, config=False)
    asked = refsim("dequantize", str(tmp_path), "-o", str(tmp_path / "x.npz"))
    assert asked.code == 3
    assert "gptq, gptq_v2" in asked.err
    assert "--layout gptq" in asked.err
    assert refsim("dequantize", str(tmp_path), "-o", str(tmp_path / "x.npz"), "--layout", "gptq").code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "x.npz")["p.weight"], made.want.astype(np.float32))
    shown = refsim("show", str(tmp_path), "--layout", "gptq", "--rows", "0:1", "--cols", "0:1")
    assert "by layout gptq" in shown.out
    assert "[unknown-layout]" in refsim("dequantize", str(tmp_path), "--layout", "gtpq").err


def test_a_layout_is_given_where_commands_compare(refsim, tmp_path: Path) -> None:
    """It holds for the operands that have it: the other one may be of another layout, or no checkpoint."""
    made = gptq(np.random.default_rng(4))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    made.save(tmp_path / "a", config=False)
    save(
        tmp_path / "b" / "m.safetensors",
        {"p.weight": made.want.T.astype(np.float32), "q.weight": np.ones((2, 2), np.float32)},
    )
    np.save(tmp_path / "want.npy", made.want.astype(np.float32))
    a, want = str(tmp_path / "a"), str(tmp_path / "want.npy")
    for command in (("diff",), ("explain-diff", "--seconds", "1")):
        assert "--layout gptq" in refsim(*command, a, want).err
        found = refsim(*command, a, want, "--layout", "GPTQ")
        assert (found.code, "by layout gptq (" in found.out) == (0, True), found.err
        assert refsim(*command, a, want, "--layout", "gptq_v2").code in (1, 5)
        assert "[unknown-layout]" in refsim(*command, a, want, "--layout", "gtpq").err
    both = refsim("diff", a, str(tmp_path / "b"), "--layout", "gptq", "--as", "json")
    assert both.code == 1, both.err
    assert [row["tensor"] for row in json.loads(both.out)["tensors"]] == ["q.weight"]
    assert "scales by layout gptq" in refsim("scales", "check", a, "--layout", "gptq").out


def test_a_layout_is_given_for_one_of_two_files(tmp_path: Path) -> None:
    """The file of AWQ has no weight in layout gptq, and is read by its own."""
    for made in (gptq(np.random.default_rng(4)), awq(np.random.default_rng(4))):
        path = made.save(tmp_path, config=False)
        stored, told = load_tensor(path, None, None, None, "gptq")
        assert stored is not None
        assert f"by layout {made.layout} (" in told
        np.testing.assert_array_equal(stored.codes.view(np.float32), made.want.astype(np.float32))


@pytest.mark.parametrize("make", [bnb, gpt_oss, fp8_tensor, fp8_channel_flat, awq])
def test_scales_of_any_shape_are_rows_and_columns(refsim, make, tmp_path: Path) -> None:
    """Scales of f16 and bf16 are shown as f32, those of experts one matrix after another."""
    make(np.random.default_rng(6)).save(tmp_path)
    found = refsim("scales", "check", str(tmp_path))
    assert found.code == 0, found.err
    assert "scales by layout" in found.out


def test_worst_first_and_what_one_file_lacks(refsim, tmp_path: Path) -> None:
    made = deepseek_v3(np.random.default_rng(5))
    a, b = dict(made.tensors), dict(made.tensors)
    b["m.norm.weight"] = (b["m.norm.weight"].astype(np.float32) * 1.5).astype(ml_dtypes.bfloat16)
    b["extra.weight"] = np.zeros((2, 2), np.float32)
    b["m.count"] = np.arange(3, dtype=np.int64)
    a["m.count"] = np.array([0, 1, 7], np.int64)
    save(tmp_path / "a.safetensors", a)
    save(tmp_path / "b.safetensors", b)
    found = compare_checkpoints(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert [row.key for row in found] == ["extra.weight", "m.count", "m.norm.weight", "m.q.weight"]
    assert [row.worst for row in found] == [inf, 2.5, pytest.approx(1 / 3, rel=0.01), 0]
    told = refsim("diff", str(tmp_path / "a.safetensors"), str(tmp_path / "b.safetensors"), "--as", "json")
    assert told.code == 1
    answer = json.loads(told.out)
    assert (answer["tensors_compared"], answer["differing"]) == (4, 3)
    assert [row["tensor"] for row in answer["tensors"]] == ["extra.weight", "m.count", "m.norm.weight"]
    assert refsim("diff", str(tmp_path / "a.safetensors"), str(tmp_path / "a.safetensors")).code == 0


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    """A folder of two shards with 16 weights of 64 MiB each, whose bytes the disk does not hold."""
    index = {}
    for shard in range(2):
        header, end = {}, 0
        for at in range(8):
            key = f"layers.{8 * shard + at}.w"
            for name, dtype, shape, size in (
                ("weight", "F8_E4M3", [8192, 8192], 1),
                ("weight_scale_inv", "F32", [64, 64], 4),
            ):
                length = shape[0] * shape[1] * size
                header[f"{key}.{name}"] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + length]}
                index[f"{key}.{name}"] = f"m-{shard}.safetensors"
                end += length
        text = json.dumps(header).encode()
        with (tmp_path / f"m-{shard}.safetensors").open("wb") as stream:
            stream.write(len(text).to_bytes(8, "little") + text)
            stream.truncate(8 + len(text) + end)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "most"),
    [
        (("files", "{at}"), 1 << 17),
        (("show", "{at}:layers.3.w.weight", "--rows", "5:7", "--cols", "0:4"), 1 << 17),
        (("show", "{at}:layers.3.w.weight", "-t", "e4m3", "--rows", "5:7", "--cols", "0:4"), 1 << 17),
        (("show", "{at}/m-0.safetensors:layers.3.w.weight", "-t", "e4m3", "--rows", "5:7", "--cols", "0:4"), 1 << 17),
        (("dequantize", "{at}:layers.3.w.weight", "-o", "{at}/x.npy", "--to", "bf16"), (64 << 20) + (1 << 16)),
    ],
)
def test_nothing_is_read_beyond_what_is_asked(refsim, sparse: Path, words, most: int, monkeypatch) -> None:
    read = []
    take = TensorFile.take

    def counted(self, region, offset, count):
        read.append((region.dtype, count))
        return take(self, region, offset, count)

    monkeypatch.setattr(TensorFile, "take", counted)
    found = refsim(*(word.format(at=sparse) for word in words))
    assert found.code == 0, found.err
    assert sum(count for dtype, count in read if dtype in ("F8_E4M3", "F32")) <= most
