"""What is asked of files: which tensor by which key, in which format, how many bytes; what is no answer is an error."""

import os

import numpy as np
import pytest

from refsim import files
from refsim.errors import Kind, RefsimError
from refsim.formats import E4M3, FORMATS, UE4M3, Format


def codes_of(format: Format, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).integers(0, format.code_limit, size=shape, dtype=np.uint64)
    return np.asarray(drawn.astype(format.code_dtype))


def error_of(call: object, *arguments: object, **options: object) -> RefsimError:
    with pytest.raises(RefsimError) as caught:
        call(*arguments, **options)  # type: ignore[operator]
    return caught.value


# ---- several tensors, keys --------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_several_tensors(tmp_path, suffix):
    path = tmp_path / f"w{suffix}"
    given = {row.name: (codes_of(row, (2, 4), seed), row) for seed, row in enumerate(FORMATS)}
    files.save_all(path, given)
    stored = files.load_all(path)
    assert set(stored) == set(given)
    for key, (codes, row) in given.items():
        assert stored[key].format is row
        np.testing.assert_array_equal(stored[key].codes, codes)
        np.testing.assert_array_equal(files.load(path, key=key).codes, codes)
    files.save_all(tmp_path / f"again{suffix}", stored)
    assert (tmp_path / f"again{suffix}").read_bytes() == path.read_bytes()
    problem = error_of(files.load, path)
    assert problem.code == "key-needed"
    assert "'e4m3'" in problem.rule
    problem = error_of(files.load, path, key="e9m9")
    assert problem.code == "unknown-key"
    assert "'e4m3'" in problem.help


def test_formats_by_key(tmp_path):
    np.savez(tmp_path / "w.npz", q=np.uint8([1]), s=np.uint8([2]), y=np.float16([1]))
    stored = files.load_all(tmp_path / "w.npz", {"q": "e4m3", "s": "ue8m0"})
    assert {key: str(tensor.format) for key, tensor in stored.items()} == {"q": "e4m3", "s": "e8m0", "y": "f16"}
    assert error_of(files.load_all, tmp_path / "w.npz", {"q": "e4m3"}).code == "format-needed"
    assert error_of(files.load_all, tmp_path / "w.npz", {"p": "e4m3"}).code == "unknown-key"
    assert error_of(files.load_all, tmp_path / "w.npz", "e4m3").code == "format-mismatch"


def test_the_sum_of_all_tensors_is_bounded(tmp_path):
    files.save_all(tmp_path / "w.npz", {"a": (np.zeros(600, np.uint8), "e4m3"), "b": (np.zeros(600, np.uint8), "e4m3")})
    assert error_of(files.load_all, tmp_path / "w.npz", max_bytes=1000).code == "too-large"
    assert files.load(tmp_path / "w.npz", key="b", max_bytes=600).shape == (600,)


def test_containers_without_names_refuse_keys_and_second_tensors(tmp_path):
    one = (np.uint8([1]), "e4m3")
    for suffix in (".npy", ".bin"):
        assert error_of(files.save, tmp_path / f"w{suffix}", *one, key="k").code == "bad-key"
        assert error_of(files.save_all, tmp_path / f"w{suffix}", {"a": one, "b": one}).code == "bad-key"
        files.save(tmp_path / f"w{suffix}", *one)
        assert error_of(files.load, tmp_path / f"w{suffix}", "e4m3", key="k").code == "unknown-key"
        assert list(files.load_all(tmp_path / f"w{suffix}", "e4m3")) == ["w"]


@pytest.mark.parametrize("key", ["", "../x", "/x", "a//b", "a\\b", "c:x", "a\0b", "\ud800", 7])
def test_npz_keys_that_could_leave_a_directory(tmp_path, key):
    assert error_of(files.save, tmp_path / "w.npz", [1], "e4m3", key=key).code == "bad-key"
    assert os.listdir(tmp_path) == []


def test_npz_keys_may_have_slashes(tmp_path):
    files.save(tmp_path / "w.npz", [1], "e4m3", key="model/layer.0")
    assert files.load(tmp_path / "w.npz").key == "model/layer.0"


@pytest.mark.parametrize("key", ["__metadata__", "\ud800", "a\0b"])
def test_safetensors_keys(tmp_path, key):
    assert error_of(files.save, tmp_path / "w.safetensors", [1], "e4m3", key=key).code == "bad-key"


@pytest.mark.parametrize("metadata", [{"a": 1}, {1: "a"}, {"refsim.format.x": "e4m3"}, {"a": "\ud800"}])
def test_metadata_is_text(tmp_path, metadata):
    assert error_of(files.save, tmp_path / "w.safetensors", [1], "e4m3", metadata=metadata).code == "bad-metadata"
    assert error_of(files.save, tmp_path / "w.npz", [1], "e4m3", metadata=metadata).code == "bad-metadata"


def test_unicode_keys_and_metadata(tmp_path):
    files.save(tmp_path / "w.safetensors", [1], "ue4m3", key='Größe"☃', metadata={"ключ": 'a\n"b"'})
    stored = files.load(tmp_path / "w.safetensors")
    assert (stored.key, stored.format, dict(stored.metadata)) == ('Größe"☃', UE4M3, {"ключ": 'a\n"b"'})


# ---- formats and codes ------------------------------------------------------------------------------------------


def test_a_format_that_contradicts_the_file_is_refused(tmp_path):
    files.save(tmp_path / "w.safetensors", [1, 2], "bf16")
    problem = error_of(files.load, tmp_path / "w.safetensors", "f16")
    assert problem.code == "format-mismatch"
    assert "bf16" in problem.what
    np.save(tmp_path / "x.npy", np.uint8([1]))
    assert error_of(files.load, tmp_path / "x.npy", "bf16").code == "format-mismatch"


@pytest.mark.parametrize(("held", "asked"), [("e4m3", "ue4m3"), ("f32", "tf32")])
def test_a_format_with_the_same_values_may_be_asked_for(tmp_path, held, asked):
    files.save(tmp_path / "w.safetensors", [0x38, 0x7E], held)
    assert files.load(tmp_path / "w.safetensors", asked).format.name == asked
    assert error_of(files.load, tmp_path / "w.safetensors", "bf16").code == "format-mismatch"


def test_codes_that_the_format_does_not_have(tmp_path):
    np.save(tmp_path / "x.npy", np.uint8([[1, 2], [3, 0x83]]))
    problem = error_of(files.load, tmp_path / "x.npy", "ue4m3")
    assert (problem.code, problem.kind) == ("out-of-range", Kind.UNREADABLE)
    assert "0x83" in problem.what
    assert "(1, 1)" in problem.where
    problem = error_of(files.save, tmp_path / "y.npy", [1, 16], "e2m1")
    assert (problem.code, problem.kind) == ("out-of-range", Kind.USAGE)


@pytest.mark.parametrize(
    "codes",
    [[1.0], np.float16([1]), np.float64([1]), ["a"], [[1], [2, 3]], [-1], [None], [True]],
)
def test_values_are_not_codes(tmp_path, codes):
    assert error_of(files.save, tmp_path / "w.npy", codes, "e4m3").code == "wrong-type"
    assert os.listdir(tmp_path) == []


def test_wide_integers_and_big_endian_words_are_codes(tmp_path):
    for codes in (np.int64([1, 0xFFFF]), np.array([1, 0xFFFF], ">u2"), np.uint32([[1, 0], [0xFFFF, 0]])[:, 0]):
        files.save(tmp_path / "w.bin", codes, "bf16")
        assert (tmp_path / "w.bin").read_bytes() == b"\x01\x00\xff\xff"


@pytest.mark.parametrize("format", ["e9m9", 8, None, Format("mine", 4, 3, 7, E4M3.specials, E4M3.source)])
def test_formats_that_no_file_can_name(tmp_path, format):
    assert error_of(files.save, tmp_path / "w.npy", [1], format).kind == Kind.USAGE


# ---- raw --------------------------------------------------------------------------------------------------------


def test_raw_needs_a_format(tmp_path):
    (tmp_path / "w.bin").write_bytes(b"\x01")
    assert error_of(files.load, tmp_path / "w.bin").code == "format-needed"
    assert error_of(files.load_all, tmp_path / "w.bin").code == "format-needed"


@pytest.mark.parametrize(
    ("format", "content", "codes"),
    [
        ("bf16", b"\x80\x3f\x00\x40", [0x3F80, 0x4000]),
        ("tf32", b"\x00\xe0\xff\x7f", [0x7FFFE000]),
        ("e2m1", b"\x21\x43", [1, 2, 3, 4]),
        ("e2m3", b"\x81\x30\x10", [1, 2, 3, 4]),
        ("ue4m3", b"\x7e\x00", [0x7E, 0]),
    ],
)
def test_raw_bytes(tmp_path, format, content, codes):
    (tmp_path / "w.raw").write_bytes(b"HEAD" + content)
    assert files.load(tmp_path / "w.raw", format, offset=4).codes.tolist() == codes
    files.save(tmp_path / "w.bin", codes, format)
    assert (tmp_path / "w.bin").read_bytes() == content


@pytest.mark.parametrize(
    ("size", "said", "code", "counts"),
    [
        (7, {"format": "bf16"}, "truncated-file", (8, 7)),
        (5, {"format": "e2m3"}, "truncated-file", (6, 5)),
        (6, {"format": "f32", "shape": (2,)}, "truncated-file", (8, 6)),
        (3, {"format": "e4m3", "shape": (2,)}, "trailing-bytes", (2, 3)),
        (3, {"format": "e4m3", "offset": 4}, "truncated-file", (4, 3)),
        (2, {"format": "e2m1", "shape": (2, 1)}, "trailing-bytes", (1, 2)),
        (1, {"format": "e2m1", "shape": (1 << 40, 1 << 10)}, "truncated-file", (1 << 49, 1)),
    ],
)
def test_raw_sizes_that_do_not_fit(tmp_path, size, said, code, counts):
    (tmp_path / "w.bin").write_bytes(bytes(size))
    problem = error_of(files.load, tmp_path / "w.bin", **said)
    assert (problem.code, problem.kind) == (code, Kind.UNREADABLE)
    assert f"expected {counts[0]}" in problem.what
    assert f"found {counts[1]}" in problem.what
    assert "w.bin" in problem.where


def test_raw_bits_behind_the_last_code(tmp_path):
    (tmp_path / "w.bin").write_bytes(b"\x21\x03")
    assert files.load(tmp_path / "w.bin", "e2m1", shape=(3,)).codes.tolist() == [1, 2, 3]
    (tmp_path / "w.bin").write_bytes(b"\x21\x43")
    assert error_of(files.load, tmp_path / "w.bin", "e2m1", shape=(3,)).code == "trailing-bytes"


# ---- arguments --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"shape": (-1,)}, "bad-shape"),
        ({"shape": 3}, "bad-shape"),
        ({"shape": (1.0,)}, "bad-shape"),
        ({"shape": (1,) * 65}, "bad-shape"),
        ({"shape": (0, 1 << 62)}, "bad-shape"),
        ({"offset": -1}, "wrong-type"),
        ({"offset": 1.5}, "wrong-type"),
        ({"max_bytes": -1}, "wrong-type"),
        ({"max_bytes": "1"}, "wrong-type"),
        ({"format": "e4m9"}, "unknown-format"),
        ({"format": 4}, "wrong-type"),
    ],
)
def test_arguments_are_checked(tmp_path, said, code):
    (tmp_path / "w.bin").write_bytes(b"\x01")
    problem = error_of(files.load, tmp_path / "w.bin", **{"format": "e4m3"} | said)
    assert (problem.code, problem.kind) == (code, Kind.USAGE)


def test_raw_options_elsewhere(tmp_path):
    files.save(tmp_path / "w.npy", [1], "e4m3")
    assert error_of(files.load, tmp_path / "w.npy", shape=(1,)).code == "usage"
    assert error_of(files.load, tmp_path / "w.npy", offset=1).code == "usage"


@pytest.mark.parametrize("path", ["w.pt", "w", "w.npy.gz"])
def test_unknown_suffix(tmp_path, path):
    assert error_of(files.load, tmp_path / path).code == "unknown-suffix"
    assert error_of(files.save, tmp_path / path, [1], "e4m3").code == "unknown-suffix"


@pytest.mark.parametrize("path", ["", "a\0.npy", b"w.npy", 3, "\ud800.npy"])
def test_things_that_are_not_paths(path):
    assert error_of(files.load, path).code == "wrong-type"
    assert error_of(files.save, path, [1], "e4m3").code == "wrong-type"


def test_max_bytes_counts_the_codes_not_the_packed_bytes(tmp_path):
    files.save(tmp_path / "w.safetensors", np.zeros(64, np.uint8), "e2m1")
    assert files.load(tmp_path / "w.safetensors", max_bytes=64).shape == (64,)
    problem = error_of(files.load, tmp_path / "w.safetensors", max_bytes=63)
    assert problem.code == "too-large"
    assert "max_bytes=64" in problem.help
