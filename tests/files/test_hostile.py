"""safetensors, raw files, what is no file: each is a tensor or a RefsimError, in bounded memory and a bounded number of steps."""

import json
import os
import sys
from pathlib import Path
from types import FrameType

import pytest

from refsim import files
from refsim.errors import RefsimError
from refsim.testing.kernel_files import load_kernel_file

made = load_kernel_file(Path(__file__).with_name("handmade.py"))
MIB, expect, measured, safetensors = made.MIB, made.expect, made.measured, made.safetensors


def tensors(payload: int, **entries: tuple[object, object, object]) -> bytes:
    header = {key: dict(zip(("dtype", "shape", "data_offsets"), entry, strict=True)) for key, entry in entries.items()}
    return safetensors(header, bytes(payload))


SAFETENSORS = {
    "empty": (b"", "truncated-file"),
    "seven-bytes": (bytes(7), "truncated-file"),
    "no-header": (bytes(8), "bad-file"),
    "empty-file": (safetensors(b"{}"), "empty-file"),
    "only-metadata": (safetensors({"__metadata__": {"a": "b"}}), "empty-file"),
    "header-of-16-eib": (safetensors(b"{}", length=2**64 - 1), "too-large"),
    "header-of-100-mb": (safetensors(b"{}", length=100_000_000), "too-large"),
    "header-longer-than-file": (safetensors(b"{}", length=4_000_000), "truncated-file"),
    "not-utf8": (safetensors(b'{"\xff": 1}'), "bad-file"),
    "utf16": (safetensors('{"x": 1}'.encode("utf-16")), "bad-file"),
    "not-json": (safetensors(b"{'x': 1}"), "bad-file"),
    "list": (safetensors(b"[]"), "bad-file"),
    "spaces-first": (safetensors(b" {}"), "bad-file"),
    "text-behind": (safetensors(b"{} {}"), "bad-file"),
    "nested-a-million-deep": (safetensors(b'{"x":' + b"[" * 1_000_000), "bad-file"),
    "nested-dicts": (safetensors(b'{"x":' * 200_000), "bad-file"),
    "a-million-empty-lists": (safetensors(b'{"x":{"shape":[' + b"[]," * 1_000_000), "bad-file"),
    "unterminated-string": (safetensors(b'{"' + b'\\"' * 1_000_000), "bad-file"),
    "thousands-of-quotes": (safetensors(b'{"x"' + b'""' * 50_000), "bad-file"),
    "huge-integer": (tensors(4, x=("U8", [10**4000], [0, 4])), "bad-file"),
    "20-digit-integer": (tensors(4, x=("U8", [4], [0, 2**64])), "bad-file"),
    "half-surrogate": (safetensors(b'{"\\ud800":{"dtype":"F16","shape":[0],"data_offsets":[0,0]}}'), "bad-file"),
    "nan": (safetensors(b'{"x":{"dtype":"F16","shape":[NaN],"data_offsets":[0,0]}}'), "bad-file"),
    "float-offset": (tensors(4, x=("F16", [2], [0, 4.0])), "bad-file"),
    "exponent": (safetensors(b'{"x":{"dtype":"F16","shape":[1e400],"data_offsets":[0,0]}}'), "bad-file"),
    "negative-offset": (tensors(4, x=("F16", [2], [-4, 0])), "bad-file"),
    "negative-size": (tensors(4, x=("F16", [-2], [0, 4])), "bad-file"),
    "boolean-size": (tensors(4, x=("F16", [True, 2], [0, 4])), "bad-file"),
    "null-shape": (tensors(4, x=("F16", None, [0, 4])), "bad-file"),
    "text-offsets": (tensors(4, x=("F16", [2], "04")), "bad-file"),
    "one-offset": (tensors(4, x=("F16", [2], [0])), "bad-file"),
    "three-offsets": (tensors(4, x=("F16", [2], [0, 4, 4])), "bad-file"),
    "dtype-number": (tensors(4, x=(16, [2], [0, 4])), "bad-file"),
    "dtype-list": (tensors(4, x=(["F16"], [2], [0, 4])), "bad-file"),
    "end-before-begin": (tensors(4, x=("F16", [2], [4, 0])), "bad-file"),
    "end-before-begin-unknown-dtype": (tensors(0, x=("F16", [2], [0, 4]), y=("F7", [2], [4, 0])), "bad-file"),
    "first-begins-late": (tensors(8, x=("F16", [2], [4, 8])), "bad-file"),
    "hole": (tensors(10, x=("F16", [2], [0, 4]), y=("F16", [2], [6, 10])), "bad-file"),
    "overlap": (tensors(6, x=("F16", [2], [0, 4]), y=("F16", [2], [2, 6])), "bad-file"),
    "same-range-twice": (tensors(4, x=("F16", [2], [0, 4]), y=("F16", [2], [0, 4])), "bad-file"),
    "size-says-less": (tensors(4, x=("F16", [1], [0, 4])), "bad-file"),
    "size-says-more": (tensors(4, x=("F16", [3], [0, 4])), "bad-file"),
    "f4-of-odd-count": (tensors(2, x=("F4", [3], [0, 2])), "bad-file"),
    "f6-of-odd-count": (tensors(4, x=("F6_E2M3", [5], [0, 4])), "bad-file"),
    "size-wraps-64-bits": (tensors(4, x=("F16", [2**62, 4, 2], [0, 4])), "bad-shape"),
    "zero-times-2-to-the-62": (tensors(0, x=("F16", [0, 2**62], [0, 0])), "bad-shape"),
    "a-million-dimensions": (tensors(2, x=("F16", [1] * 1_000_000, [0, 2])), "bad-file"),
    "65-dimensions": (tensors(2, x=("F16", [1] * 65, [0, 2])), "bad-shape"),
    "claims-a-terabyte": (tensors(4, x=("U8", [2**40], [0, 2**40])), "truncated-file"),
    "cut-short": (tensors(3, x=("F16", [2], [0, 4])), "truncated-file"),
    "bytes-behind": (tensors(5, x=("F16", [2], [0, 4])), "trailing-bytes"),
    "bad-file": (safetensors({"x": {"dtype": "F16", "shape": [0]}}), "bad-file"),
    "extra-field": (
        safetensors({"x": {"dtype": "F16", "shape": [0], "data_offsets": [0, 0], "strides": [1]}}),
        "bad-file",
    ),
    "tensor-is-a-list": (safetensors({"x": [1]}), "bad-file"),
    "key-twice": (safetensors(b'{"x":{"dtype":"F16","shape":[0],"data_offsets":[0,0]},"x":{}}'), "bad-file"),
    "field-twice": (safetensors(b'{"x":{"dtype":"F16","dtype":"F16","shape":[0],"data_offsets":[0,0]}}'), "bad-file"),
    "unsupported-dtype": (tensors(4, x=("F7", [4], [0, 4])), "unsupported-dtype"),
    "complex64": (tensors(8, x=("C64", [1], [0, 8])), "unsupported-dtype"),
    "metadata-number": (safetensors({"__metadata__": {"a": 1}}), "bad-file"),
    "metadata-list": (safetensors({"__metadata__": []}), "bad-file"),
    "metadata-nested": (safetensors({"__metadata__": {"a": {"b": {"c": "d"}}}}), "bad-file"),
}


@pytest.mark.parametrize("name", SAFETENSORS)
def test_safetensors(tmp_path, name):
    content, code = SAFETENSORS[name]
    expect(tmp_path / "x.safetensors", content, code)


@pytest.mark.parametrize(
    ("noted", "dtype", "size", "code"),
    [
        ("e9m9", "U8", 1, "unsupported-dtype"),
        ("e" * 1_000_000, "U8", 1, "unsupported-dtype"),
        ("e4m3", "BF16", 2, "format-mismatch"),
        ("bf16", "U8", 1, "format-mismatch"),
        ("e4m3", "F64", 8, "format-mismatch"),
    ],
)
def test_a_note_that_contradicts_its_tensor(tmp_path, noted, dtype, size, code):
    header = {
        "__metadata__": {"refsim.format.x": noted},
        "x": {"dtype": dtype, "shape": [1], "data_offsets": [0, size]},
    }
    expect(tmp_path / "x.safetensors", safetensors(header, bytes(size)), code)


def test_one_strange_tensor_does_not_hide_the_others(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(tensors(12, a=("F16", [2], [0, 4]), b=("F7", [9], [4, 12])))
    assert files.load(path, key="a").shape == (2,)


LATER = pytest.mark.ci("text of another kind of entry is tried in every run")


@pytest.mark.parametrize(
    "entry", [pytest.param('"{}":"x"', marks=LATER), '"{}":1', pytest.param('"{}":{{}}', marks=LATER)]
)
def test_a_safetensors_header_of_nothing_but_names(tmp_path, entry):
    """Text that JSON turns into the most objects: 4 MiB may cost 128 MiB, and no file may have more."""
    text = "{" + ",".join(entry.format(index) for index in range(100_000)) + "}"
    expect(tmp_path / "x.safetensors", safetensors(text.encode()), "bad-file")


def test_many_empty_tensors_are_read_in_steps_of_their_number(tmp_path):
    """A few calls a tensor, notes of the file once: 70,000 took 4 s, and with notes in their hundreds minutes."""

    def calls(count: int) -> int:
        entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
        notes = {f"note{index}": "x" for index in range(count // 8)}
        header = {"__metadata__": notes, **{f"{index}": entry for index in range(count)}}
        path = tmp_path / "x.safetensors"
        path.write_bytes(safetensors(json.dumps(header, separators=(",", ":")).encode()))
        seen = 0

        def count_call(frame: FrameType, event: str, argument: object) -> None:
            nonlocal seen
            seen += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(count_call)
        try:
            loaded = files.load_all(path)
        finally:
            sys.setprofile(before)
        assert len(loaded) == count
        assert len({id(stored.metadata) for stored in loaded.values()}) == 1
        return seen

    assert calls(2000) < 45 * 2000
    assert calls(4000) < 45 * 4000


# ---- files that are none ----------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_opening_never_waits_for_the_writer_of_a_pipe(tmp_path, monkeypatch):
    """Not even where the pipe takes the name of a file between the question and the opening."""
    os.mkfifo(tmp_path / "x.npy")
    (tmp_path / "file").write_bytes(b"")
    plain = (tmp_path / "file").stat()
    with pytest.raises(RefsimError) as caught:
        files.load(tmp_path / "x.npy", "e4m3")
    assert caught.value.code == "not-a-file"
    monkeypatch.setattr(Path, "stat", lambda path: plain)
    with pytest.raises(RefsimError) as caught:
        files.load(tmp_path / "x.npy", "e4m3")
    assert caught.value.code == "not-a-file"


# ---- raw --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system has no /proc")
def test_files_whose_size_is_a_lie(tmp_path):
    (tmp_path / "x.bin").symlink_to("/proc/self/status")
    assert files.load(tmp_path / "x.bin", "e4m3").shape == (0,)
    (tmp_path / "x.raw").symlink_to("/dev/zero")
    with pytest.raises(RefsimError) as caught:
        files.load(tmp_path / "x.raw", "e4m3")
    assert caught.value.code == "not-a-file"


def test_a_sparse_file_larger_than_the_limit(tmp_path):
    with (tmp_path / "x.bin").open("wb") as stream:
        stream.truncate(1 << 40)
    outcome, peak, calls = measured(tmp_path / "x.bin", format="e4m3")
    assert isinstance(outcome, RefsimError)
    assert outcome.code == "too-large"
    assert peak < MIB
    assert calls < 2000
