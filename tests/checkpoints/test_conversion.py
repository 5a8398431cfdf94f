"""Files of tensors quantised and back: the bits of refsim.quantize, whatever the parts, and runs that were stopped."""

import errno
import json
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import refsim
from refsim import files
from refsim.checkpoints import conversion as checkpoints
from refsim.checkpoints.conversion import dequantize_file, quantize_file
from refsim.errors import Kind, RefsimError
from refsim.files import parts

FORMATS = ("mxfp8", "mxfp6_e2m3", "mxfp4", "nvfp4")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    random = np.random.default_rng(11)
    tensors = {
        "a.weight": random.standard_normal((40, 96)).astype(ml_dtypes.bfloat16),
        "b.weight": random.standard_normal((3, 8, 64)).astype(np.float32),
        "b.bias": random.standard_normal(64).astype(np.float16),
        "odd.weight": random.standard_normal((4, 33)).astype(ml_dtypes.bfloat16),
        "codes": (np.arange(64, dtype=np.uint8).reshape(2, 32), "ue4m3"),
    }
    path = tmp_path / "model.safetensors"
    files.save_all(path, tensors, metadata={"author": "us"})
    return path


@pytest.mark.parametrize("piece", [1 << 24, 700])
@pytest.mark.parametrize("format", FORMATS)
def test_a_file_has_the_bits_of_its_tensors(
    model: Path, tmp_path: Path, format: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "PIECE_BYTES", piece)
    told = quantize_file(model, tmp_path / "small.safetensors", format)
    assert [(each.key, each.done) for each in sorted(told, key=lambda each: each.key)] == [
        ("a.weight", "quantized"),
        ("b.bias", "copied"),
        ("b.weight", "quantized"),
        ("codes", "copied"),
        ("odd.weight", "copied"),
    ]
    given, made = files.load_all(model), files.load_all(tmp_path / "small.safetensors")
    for key in ("a.weight", "b.weight"):
        wanted = refsim.quantize(given[key].typed(), format)
        np.testing.assert_array_equal(made[key].codes, wanted.codes)
        np.testing.assert_array_equal(made[f"{key}.scales"].codes, wanted.scales)
        assert made[f"{key}.scales"].format == wanted.format.scale
        if wanted.tensor_scale is not None:
            assert made[f"{key}.tensor_scale"].typed().tolist() == [wanted.tensor_scale]
    for key in ("b.bias", "codes", "odd.weight"):
        np.testing.assert_array_equal(made[key].codes, given[key].codes)
        assert made[key].format == given[key].format
    assert made["codes"].metadata["author"] == "us"
    back = dequantize_file(tmp_path / "small.safetensors", tmp_path / "back.safetensors", "f32")
    values = files.load_all(tmp_path / "back.safetensors")
    assert set(values) == set(given)
    for key in ("a.weight", "b.weight"):
        np.testing.assert_array_equal(values[key].typed(), refsim.quantize(given[key].typed(), format).dequantize())
    assert [each.done for each in back].count("dequantized") == 2


def test_a_stopped_run_goes_on(model: Path, tmp_path: Path) -> None:
    to, seen = tmp_path / "small.safetensors", []

    def stop(key: str, done: int, planned: int) -> None:
        seen.append((key, done, planned))
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_file(model, to, "nvfp4", report=stop)
    assert not to.exists()
    assert sorted(path.name for path in tmp_path.glob("small*")) == [
        "small.safetensors.part",
        "small.safetensors.part.json",
    ]
    part = tmp_path / "small.safetensors.part"
    at = part.stat().st_ino
    first = seen[0][0]
    with part.open("r+b") as stream:  # what is done is not written again: a mark in it stays
        stream.seek(-1, 2)
    quantize_file(model, to, "nvfp4")
    assert to.stat().st_ino == at
    assert [path.name for path in tmp_path.glob("small*")] == ["small.safetensors"]
    whole = tmp_path / "whole.safetensors"
    quantize_file(model, whole, "nvfp4")
    assert to.read_bytes() == whole.read_bytes()
    assert first in files.load_all(to)


def test_what_is_done_is_not_done_again(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(key: str, done: int, planned: int) -> None:
        if done > planned // 2:
            raise KeyboardInterrupt

    calls: list[str] = []
    write = parts.PartFile.write_bytes
    monkeypatch.setattr(
        parts.PartFile, "write_bytes", lambda made, key, *rest: (calls.append(key), write(made, key, *rest))
    )
    with pytest.raises(KeyboardInterrupt):
        quantize_file(model, tmp_path / "s.safetensors", "mxfp8", report=stop)
    before = set(calls)
    calls.clear()
    quantize_file(model, tmp_path / "s.safetensors", "mxfp8")
    assert before
    assert not before & set(calls)
    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        quantize_file(model, tmp_path / "t.safetensors", "mxfp8", report=stop)
    calls.clear()
    quantize_file(model, tmp_path / "t.safetensors", "mxfp8", recipe="floor")  # other wishes: nothing is kept
    assert before <= set(calls)


def interrupted(model: Path, to: Path, format: str = "nvfp4") -> None:
    """Quantize until half of the file is done."""

    def stop(key: str, done: int, planned: int) -> None:
        if done > planned // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_file(model, to, format, report=stop)


@pytest.mark.parametrize("format", ["mxfp8", "nvfp4"])
def test_an_input_that_changed_but_kept_size_and_time_is_read_anew(model: Path, tmp_path: Path, format: str) -> None:
    to, whole = tmp_path / "s.safetensors", tmp_path / "whole.safetensors"
    interrupted(model, to, format)
    (done, *_), times = json.loads((tmp_path / "s.safetensors.part.json").read_text())["read"], model.stat()
    with parts.source(model) as given:
        begin = given.readers[0][1] + given.regions[done].begin
    with model.open("r+b") as stream:  # one byte of a finished tensor, as `cp -p` of another model would change it
        stream.seek(begin)
        byte = stream.read(1)[0]
        stream.seek(begin)
        stream.write(bytes([byte ^ 0x40]))
    os.utime(model, ns=(times.st_atime_ns, times.st_mtime_ns))
    quantize_file(model, to, format)
    quantize_file(model, whole, format)
    assert to.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("read", [None, [], {"a": 1}, {"no such tensor": "0"}])
def test_a_journal_without_hashes_of_the_input_is_not_continued(model: Path, tmp_path: Path, read: object) -> None:
    to, whole = tmp_path / "s.safetensors", tmp_path / "whole.safetensors"
    interrupted(model, to)
    journal = tmp_path / "s.safetensors.part.json"
    noted = json.loads(journal.read_text())
    journal.write_text(json.dumps({**noted, "read": {**noted["read"], **read} if isinstance(read, dict) else read}))
    part = tmp_path / "s.safetensors.part"
    part.write_bytes(bytes(part.stat().st_size))
    quantize_file(model, to, "nvfp4")
    quantize_file(model, whole, "nvfp4")
    assert to.read_bytes() == whole.read_bytes()


def test_what_is_refused(model: Path, tmp_path: Path) -> None:
    to = tmp_path / "small.safetensors"
    for code, call in (
        ("unknown-key", lambda: quantize_file(model, to, "mxfp8", keys=("c.*",))),
        ("bad-shape", lambda: quantize_file(model, to, "mxfp8", keys=("odd.weight",))),
        ("nothing-to-do", lambda: dequantize_file(model, to)),
        ("unsupported-format", lambda: dequantize_file(model, to, "e4m3")),
        ("unknown-recipe", lambda: quantize_file(model, to, "mxfp8", recipe="x")),
    ):
        with pytest.raises(RefsimError) as caught:
            call()
        assert caught.value.code == code
        assert not to.exists()
    quantize_file(model, to, "mxfp8", keys=("a.*",))
    with pytest.raises(RefsimError, match="file-exists"):
        quantize_file(model, to, "mxfp8")
    again = tmp_path / "again.safetensors"
    files.save_all(again, {"w": np.zeros((1, 32), np.float32), "w.scales": np.zeros(1, np.float32)})
    with pytest.raises(RefsimError, match="name-taken"):
        quantize_file(again, tmp_path / "x.safetensors", "mxfp8")
    only = tmp_path / "only.safetensors"
    files.save_all(only, {"w": np.zeros(32, np.float32)})
    with pytest.raises(RefsimError, match="nothing-to-do"):
        quantize_file(only, tmp_path / "x.safetensors", "mxfp8")


# What a file says of itself, and what is wrong with it then.
BROKEN = {
    "a format that is none": ("unknown-format", {"note": "mxfp5 floor"}),
    "no format": ("unknown-format", {"note": ""}),
    "a recipe that is none": ("unknown-recipe", {"note": "nvfp4 floors"}),
    "a recipe of another format": ("unsupported-format", {"note": "nvfp4 rceil"}),
    "another width": ("bad-shape", {"note": "mxfp4 rceil"}),
    "no scales": ("unknown-key", {"without": "w.scales"}),
    "no factor": ("unknown-key", {"without": "w.tensor_scale"}),
    "scales of other rows": ("bad-shape", {"w.scales": (np.zeros((4, 8), np.uint8), "ue4m3")}),
    "scales that are numbers": ("bad-dtype", {"w.scales": np.ones((8, 4), np.float32)}),
    "codes that are numbers": ("bad-dtype", {"w": np.ones((8, 64), np.float32)}),
    "codes of two bytes": ("bad-dtype", {"w": np.ones((8, 64), np.float16)}),
    "two factors": ("bad-dtype", {"w.tensor_scale": np.ones(2, np.float32)}),
    "a factor of two bytes": ("bad-dtype", {"w.tensor_scale": np.ones(1, np.float16)}),
}


@pytest.mark.parametrize("wrong", BROKEN)
def test_a_file_that_contradicts_itself_is_one_clear_error(wrong: str, tmp_path: Path) -> None:
    code, changes = BROKEN[wrong]
    made = refsim.quantize(np.ones((8, 64), np.float32), "nvfp4")
    tensors: dict[str, object] = {
        "w": (made.codes, "e2m1"),
        "w.scales": (made.scales, "ue4m3"),
        "w.tensor_scale": np.ones(1, np.float32),
    }
    tensors |= {key: value for key, value in changes.items() if key in tensors}
    tensors.pop(changes.get("without", ""), None)
    path = tmp_path / "w.safetensors"
    files.save_all(path, tensors, metadata={"refsim.blocks.w": changes.get("note", "nvfp4 te")})
    with pytest.raises(RefsimError) as caught:
        dequantize_file(path, tmp_path / "back.safetensors")
    assert caught.value.code == code
    assert (caught.value.kind, caught.value.where) == (Kind.UNREADABLE, str(path))
    assert caught.value.rule or caught.value.help
    assert [each.name for each in tmp_path.iterdir()] == ["w.safetensors"]


@pytest.mark.parametrize("cut", [0, 7, 40, -1])
def test_a_truncated_file_leaves_nothing_behind(model: Path, tmp_path: Path, cut: int) -> None:
    whole = model.read_bytes()
    model.write_bytes(whole[: cut if cut >= 0 else len(whole) + cut])
    with pytest.raises(RefsimError) as caught:
        quantize_file(model, tmp_path / "small.safetensors", "mxfp8")
    assert caught.value.kind is Kind.UNREADABLE
    assert [each.name for each in tmp_path.iterdir()] == [model.name]


def test_a_disk_that_is_full_is_one_clear_error_and_the_run_goes_on_later(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to, write, written = tmp_path / "small.safetensors", parts.PartFile.write_bytes, []

    def full(made: parts.PartFile, key: str, *rest: object) -> None:
        if written:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(key)
        write(made, key, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(parts.PartFile, "write_bytes", full)
        with pytest.raises(RefsimError, match="no space left") as caught:
            quantize_file(model, to, "mxfp8")
    assert (caught.value.code, caught.value.where) == ("cannot-write", str(to))
    assert not to.exists()
    quantize_file(model, to, "mxfp8")
    whole = tmp_path / "whole.safetensors"
    quantize_file(model, whole, "mxfp8")
    assert to.read_bytes() == whole.read_bytes()
    assert not [*tmp_path.glob("*.part*")]
