"""Damaged checkpoints: each is one error that names the file, or values that are those of an undamaged part."""

import io
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from refsim.checkpoints.conversion import dequantize_file
from refsim.checkpoints.tensors import listed
from refsim.errors import Kind, RefsimError
from tests.checkpoints.handmade import (
    MAKERS,
    Made,
    bnb,
    ct_packed,
    ct_packed_zeros,
    deepseek_v3,
    fp8_block,
    fp8_experts,
    fp8_tensor,
    gptq,
    gptq_v2,
    modelopt_nvfp4,
    save,
)

DTYPES = ("U8", "I8", "I32", "F32", "F16", "F8_E4M3", "F8_E8M0", "BF16", "I64", "BOOL", "X9")


def damaged(made: Made, path: Path, rng: np.random.Generator) -> Iterator[str]:
    """Write the file with one fault at a time, and yield what the fault is."""
    whole = made.save(path.parent, path.name).read_bytes()
    size = struct.unpack("<Q", whole[:8])[0]
    header, body = json.loads(whole[8 : 8 + size]), whole[8 + size :]

    def write(fields: dict) -> None:
        text = json.dumps(fields).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + body)

    keys = [key for key in header if key != "__metadata__"]
    for key in keys:
        path.unlink()
        save(path, {k: v for k, v in made.tensors.items() if k != key}, made.metadata)
        yield f"{key} is missing"
        for dtype in rng.permutation(DTYPES)[:3]:
            if dtype != header[key]["dtype"]:
                write({**header, key: {**header[key], "dtype": str(dtype)}})
                yield f"{key} claims {dtype}"
        shape = header[key]["shape"]
        for lie in ([*shape, 1], shape[:-1], shape[::-1], [2 * n for n in shape], [0, *shape], [1, *shape]):
            if lie != shape:
                write({**header, key: {**header[key], "shape": lie}})
                yield f"{key} claims shape {lie}"
        write({k if k != key else key + "_": v for k, v in header.items()})
        yield f"{key} has another name"
    for cut in (0, 4, 8, 8 + size // 2, 8 + size, len(whole) - 1):
        path.write_bytes(whole[:cut])
        yield f"cut after {cut} bytes"
    path.write_bytes(whole + b"\0")
    yield "a byte too many"
    if made.metadata:
        for text in ("", "[1]", '{"_type": 3}', "{" * 500, '{"_type": "MXTensor", "_data": 7}'):
            write({**header, "__metadata__": {**made.metadata, made.key: text}})
            yield f"metadata {text[:20]}"


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_a_fault_is_one_error(make, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    made, path = make(rng), tmp_path / "model.safetensors"
    faults = refused = 0
    for fault in damaged(made, path, rng):
        faults += 1
        for ask in (
            lambda: dequantize_file(path, tmp_path / "out.npz", overwrite=True),
            lambda: listed(path, None, None, True),
        ):
            try:
                ask()
            except RefsimError as error:
                refused += 1
                assert error.kind in (Kind.UNREADABLE, Kind.USAGE), (fault, error)
                assert error.where, (fault, error)
    assert faults > 15
    assert refused > faults // 2


@pytest.mark.parametrize(
    ("code", "write"),
    [
        ("bad-file", lambda at: (at / "config.json").write_text("{")),
        ("bad-file", lambda at: (at / "config.json").write_text("[]")),
        ("bad-file", lambda at: (at / "m.safetensors.index.json").write_text('{"weight_map": {}}')),
        (
            "bad-file",
            lambda at: (at / "m.safetensors.index.json").write_text('{"weight_map": {"x": "../a.safetensors"}}'),
        ),
        ("bad-file", lambda at: (at / "config.json").write_text('{"a": 1, "a": 2}')),
        (
            "bad-file",
            lambda at: (at / "m.safetensors.index.json").write_text(
                '{"weight_map": {"p.weight": "b.safetensors", "p.weight": "a.safetensors"}}'
            ),
        ),
        (
            "no-such-file",
            lambda at: (at / "m.safetensors.index.json").write_text('{"weight_map": {"x": "b.safetensors"}}'),
        ),
        ("bad-file", lambda at: (at / "m.safetensors.index.json").write_text('{"weight_map": {"x": "a.safetensors"}}')),
        ("bad-file", lambda at: save(at / "b.safetensors", fp8_tensor(np.random.default_rng(0)).tensors)),
        ("not-a-file", lambda at: (at / "a.safetensors").unlink()),
    ],
)
def test_a_folder_that_does_not_fit(code: str, write, tmp_path: Path) -> None:
    fp8_tensor(np.random.default_rng(0)).save(tmp_path, "a.safetensors")
    write(tmp_path)
    with pytest.raises(RefsimError) as found:
        dequantize_file(tmp_path, tmp_path / "out" / "x.npz")
    assert found.value.code == code
    assert found.value.kind is Kind.UNREADABLE


def test_two_readings_are_listed_and_config_decides(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for make in (gptq, gptq_v2):
        made = make(rng)
        path = made.save(tmp_path, config=False)
        with pytest.raises(RefsimError, match=r"gptq, gptq_v2") as found:
            dequantize_file(path, tmp_path / "x.npz", overwrite=True)
        assert found.value.code == "ambiguous-name"
        dequantize_file(path, tmp_path / "x.npz", layout=made.layout, overwrite=True)
        np.testing.assert_array_equal(np.load(tmp_path / "x.npz")["p.weight"], made.want.astype(np.float32))
        made.save(tmp_path)
        told = dequantize_file(path, tmp_path / "x.npz", overwrite=True)
        assert "config.json says" in told[-1].why
        np.testing.assert_array_equal(np.load(tmp_path / "x.npz")["p.weight"], made.want.astype(np.float32))
        (tmp_path / "config.json").unlink()


def test_a_file_of_an_old_library_decides(tmp_path: Path) -> None:
    made = gptq(np.random.default_rng(1))
    path = made.save(tmp_path, config=False)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "quantize_config.json").write_text('{"bits": 4, "group_size": 32, "desc_act": true, "sym": true}')
    told = dequantize_file(path, tmp_path / "x.npz")
    assert told[-1].why.endswith("; quantize_config.json says gptq")
    np.testing.assert_array_equal(np.load(tmp_path / "x.npz")["p.weight"], made.want.astype(np.float32))


@pytest.mark.parametrize("make", [fp8_tensor, modelopt_nvfp4])
def test_codes_without_a_scale_are_numbers_only_where_nothing_is_quantized(make, tmp_path: Path) -> None:
    made = make(np.random.default_rng(1))
    path = save(tmp_path / "m.safetensors", {"p.weight": made.tensors["p.weight"]}) or tmp_path / "m.safetensors"
    assert listed(path, None, None, True)[1] == ()
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "fp8"}}')
    with pytest.raises(RefsimError, match=r"'p\.weight': .* is missing"):
        listed(path, None, None, True)


def test_what_config_says_and_the_file_lacks(tmp_path: Path) -> None:
    """Without the zeros or g_idx that config.json speaks of, values would be others."""
    group = {"weights": {"num_bits": 4, "group_size": 32, "symmetric": False}}
    for make, end, config in (
        (ct_packed_zeros, ".weight_zero_point", {"config_groups": {"group_0": group}}),
        (gptq, ".g_idx", gptq(np.random.default_rng(0)).config | {"desc_act": True}),
    ):
        made = make(np.random.default_rng(1))
        made.config = config
        dequantize_file(made.save(tmp_path), tmp_path / "x.npz", overwrite=True)
        np.testing.assert_array_equal(np.load(tmp_path / "x.npz")["p.weight"], made.want.astype(np.float32))
        del made.tensors["p" + end]
        with pytest.raises(RefsimError, match="is missing") as found:
            dequantize_file(made.save(tmp_path), tmp_path / "x.npz", overwrite=True)
        assert found.value.code == "bad-shape"


@pytest.mark.parametrize(
    "said", [[1, 1], [], {}, 1e5, False, True, -4, 0, 10**30, "4", None, [10**30, 10**30], [[1], [1]]]
)
def test_config_may_say_anything(said: object, tmp_path: Path) -> None:
    """What is no size counts as not said; the file is read as if it were not there, or does not fit."""
    names = ("num_bits", "group_size", "block_structure", "symmetric", "weight_block_size", "desc_act", "format")
    for make in (ct_packed, fp8_block, fp8_experts, gptq):
        made = make(np.random.default_rng(1))
        for config in (
            dict.fromkeys(names, said),
            {"config_groups": {"a": {"weights": dict.fromkeys(names, said)}}},
        ):
            made.config = {"quant_method": "gptq", **config}
            try:
                dequantize_file(made.save(tmp_path), tmp_path / "x.npz", overwrite=True)
            except RefsimError as error:
                assert error.code == "bad-shape"
                assert said in ([1, 1], 10**30, True, False)
            else:
                np.testing.assert_array_equal(np.load(tmp_path / "x.npz")[made.key], made.want.astype(np.float32))


@pytest.mark.parametrize(
    ("make", "end", "dtype"), [(ct_packed_zeros, ".weight_zero_point", np.int64), (gptq, ".g_idx", np.int64)]
)
def test_a_part_of_another_type_is_not_passed_over(make, end: str, dtype: type, tmp_path: Path) -> None:
    made = make(np.random.default_rng(1))
    made.tensors["p" + end] = made.tensors["p" + end].astype(dtype)
    with pytest.raises(RefsimError, match="is I64, not I32"):
        dequantize_file(made.save(tmp_path), tmp_path / "x.npz")


def test_a_symmetric_group_beside_another_needs_no_zeros(tmp_path: Path) -> None:
    made = ct_packed(np.random.default_rng(1))
    said = {name: {"weights": {"num_bits": 4, "symmetric": name == "a"}} for name in "ab"}
    made.config = {"quant_method": "compressed-tensors", "config_groups": said}
    dequantize_file(made.save(tmp_path), tmp_path / "x.npz")
    np.testing.assert_array_equal(np.load(tmp_path / "x.npz")["p.weight"], made.want.astype(np.float32))


def test_a_state_of_too_many_dimensions(tmp_path: Path) -> None:
    made = bnb(np.random.default_rng(1))
    key = "p.weight.quant_state.bitsandbytes__nf4"
    state = json.loads(made.tensors[key].tobytes())
    state["shape"] = [1] * 63 + state["shape"]
    made.tensors[key] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    with pytest.raises(RefsimError, match="65 dimensions"):
        listed(made.save(tmp_path), None, None, True)


def test_nothing_is_left_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fp8_tensor(np.random.default_rng(1)).save(tmp_path)
    (tmp_path / "folder.npz").mkdir()
    (tmp_path / "folder.safetensors").mkdir()
    before = set(tmp_path.iterdir())
    long = "x" * 300
    for name, code in (
        ("folder.npz", "not-a-file"),
        ("folder.safetensors", "not-a-file"),
        (f"{long}.npz", "cannot-write"),
        (f"{long}.safetensors", "cannot-write"),
        ("absent/x.npz", "cannot-write"),
    ):
        with pytest.raises(RefsimError) as found:
            dequantize_file(path, tmp_path / name, overwrite=True)
        assert (found.value.code, found.value.where[: len(str(tmp_path))]) == (code, str(tmp_path)), name
        assert name[:20] in found.value.where
        assert set(tmp_path.iterdir()) == before

    class FullDisk(io.FileIO):
        def truncate(self, size: int | None = None) -> int:
            raise OSError(28, "No space left on device")

    real = Path.open
    monkeypatch.setattr(Path, "open", lambda at, mode="r": FullDisk(at, "w+") if "w+" in mode else real(at, mode))
    with pytest.raises(RefsimError, match="no space left") as found:
        dequantize_file(path, tmp_path / "x.safetensors")
    assert found.value.code == "cannot-write"
    assert set(tmp_path.iterdir()) == before


def test_names_that_an_archive_cannot_hold_are_told_first(tmp_path: Path) -> None:
    made = fp8_tensor(np.random.default_rng(1))
    path = tmp_path / "m.safetensors"
    save(path, {key.replace("p.", "a/../p."): each for key, each in made.tensors.items()})
    with pytest.raises(RefsimError, match="cannot name a member"):
        dequantize_file(path, tmp_path / "x.npz")
    assert list(tmp_path.iterdir()) == [path]


def test_a_name_that_ends_like_scales_is_a_plain_tensor(tmp_path: Path) -> None:
    save(tmp_path / "m.safetensors", {"layer_scales": np.ones(3, np.float32), "x.weight": np.ones((2, 2), np.float32)})
    assert [row[0] for row in listed(tmp_path / "m.safetensors", None, None, True)[0]] == ["layer_scales", "x.weight"]
    save(tmp_path / "m.safetensors", {"layer_scales": np.ones(3, np.uint8)})
    with pytest.raises(RefsimError, match="belongs to a weight"):
        listed(tmp_path / "m.safetensors", None, None, True)


def test_a_file_without_tensors(tmp_path: Path) -> None:
    save(tmp_path / "m.safetensors", {})
    with pytest.raises(RefsimError, match="holds no tensor") as found:
        listed(tmp_path / "m.safetensors", None, None, True)
    assert (found.value.code, found.value.kind) == ("empty-file", Kind.UNREADABLE)


def test_the_misfit_told_is_that_of_the_tensors_there(tmp_path: Path) -> None:
    made = fp8_tensor(np.random.default_rng(1))
    made.tensors["p.weight_scale"] = np.ones(5, np.float32)
    path = made.save(tmp_path)
    with pytest.raises(RefsimError, match="has shape") as found:
        dequantize_file(path, tmp_path / "x.npz")
    assert "is missing" not in found.value.what


def test_shards_of_a_model_are_one_file(tmp_path: Path) -> None:
    made = deepseek_v3(np.random.default_rng(2))
    for at, (key, tensor) in enumerate(made.tensors.items()):
        save(tmp_path / f"model-{at}.safetensors", {key: tensor})
    index = {"weight_map": {key: f"model-{at}.safetensors" for at, key in enumerate(made.tensors)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    for given in (tmp_path, tmp_path / "model.safetensors.index.json"):
        dequantize_file(given, tmp_path / "out.npz", overwrite=True)
        np.testing.assert_array_equal(np.load(tmp_path / "out.npz")[made.key], made.want.astype(np.float32))
    (tmp_path / "model-1.safetensors").unlink()
    with pytest.raises(RefsimError) as found:
        dequantize_file(tmp_path, tmp_path / "out.npz", overwrite=True)
    assert found.value.code == "no-such-file"


def test_an_npy_file_takes_one_weight(tmp_path: Path) -> None:
    one, two = modelopt_nvfp4(np.random.default_rng(1)), fp8_tensor(np.random.default_rng(2))
    tensors = {**one.tensors, **{key.replace("p.", "q."): each for key, each in two.tensors.items()}}
    save(tmp_path / "m.safetensors", tensors)
    with pytest.raises(RefsimError) as found:
        dequantize_file(tmp_path / "m.safetensors", tmp_path / "x.npy")
    assert found.value.code == "key-needed"
    dequantize_file(tmp_path / "m.safetensors", tmp_path / "x.npy", "f16", keys=("q.*",))
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), two.want.astype(np.float16))
