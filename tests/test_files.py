"""refsim.files: every format through every container, and what NumPy, safetensors and torch make of the same bytes."""

import io
import json
import os
import struct
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from refsim import files
from refsim.errors import Kind, RefsimError
from refsim.files.access import write_atomically
from refsim.formats import E2M1, E4M3, F16, F32, FORMATS, MXINT8, TF32, UE4M3, Format

SUFFIXES = (".npy", ".npz", ".safetensors", ".bin", ".raw")
SHAPES = ((), (1,), (3,), (4, 6), (2, 3, 5), (0, 2))


def codes_of(format: Format, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).integers(0, format.code_limit, size=shape, dtype=np.uint64)
    return np.asarray(drawn.astype(format.code_dtype))


def error_of(call: object, *arguments: object, **options: object) -> RefsimError:
    with pytest.raises(RefsimError) as caught:
        call(*arguments, **options)  # type: ignore[operator]
    return caught.value


def header_of(path: Path) -> dict[str, object]:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    assert length % 8 == 0
    return json.loads(content[8 : 8 + length])


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_codes_and_format_come_back(tmp_path, format, suffix):
    is_raw = suffix in (".bin", ".raw")
    for shape in SHAPES:
        codes = codes_of(format, shape)
        files.save(tmp_path / f"w{suffix}", codes, format)
        said = {"format": format, "shape": shape} if is_raw else {}
        stored = files.load(tmp_path / f"w{suffix}", **said)
        assert stored.format is format
        assert stored.shape == shape
        assert stored.codes.dtype == format.code_dtype
        assert stored.codes.flags.c_contiguous
        np.testing.assert_array_equal(stored.codes, codes)
        assert stored.container == ("raw" if is_raw else suffix[1:])
        assert stored.key == ("x" if suffix in (".npz", ".safetensors") else "w")


@pytest.mark.parametrize("format", [row for row in FORMATS if row.bits <= 8], ids=str)
def test_every_code_of_a_narrow_format_survives(tmp_path, format):
    every = np.arange(format.code_limit, dtype=format.code_dtype)
    for suffix in (".npy", ".npz", ".safetensors", ".bin"):
        files.save(tmp_path / f"all{suffix}", every, format)
        np.testing.assert_array_equal(files.load(tmp_path / f"all{suffix}", format).codes, every)


# ---- NumPy ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_numpy_reads_npy_and_npz(tmp_path, format):
    codes = codes_of(format, (3, 4))
    files.save(tmp_path / "w.npy", codes, format)
    files.save(tmp_path / "w.npz", codes, format, key="layer.0")
    with np.load(tmp_path / "w.npz") as archive:
        assert archive.files == ["layer.0"]
        arrays = [np.load(tmp_path / "w.npy"), archive["layer.0"]]
    for array in arrays:
        if format in (F16, F32):
            assert array.dtype == np.dtype(f"f{format.code_dtype.itemsize}")
        else:
            assert array.dtype.names == (format.name,)
        words = array.view(format.code_dtype) if array.dtype.names is None else array[format.name]
        assert words.dtype == format.code_dtype
        np.testing.assert_array_equal(words, codes)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_header_versions(tmp_path, version):
    with (tmp_path / "x.npy").open("wb") as stream:
        np.lib.format.write_array(stream, np.float16([1, -2]), version=version)
    stored = files.load(tmp_path / "x.npy")
    assert stored.format is F16
    assert stored.codes.tolist() == [0x3C00, 0xC000]


@pytest.mark.parametrize("dtype", ["<f2", ">f2", "<f4", ">f4", "=f4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_float_arrays_of_either_order_are_their_bits(tmp_path, dtype, order):
    values = np.array(np.random.default_rng(1).normal(size=(3, 5)), dtype=dtype, order=order)
    native = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("=")))
    np.save(tmp_path / "x.npy", values)
    np.savez(tmp_path / "x.npz", a=values)
    np.savez_compressed(tmp_path / "z.npz", a=values)
    for name in ("x.npy", "x.npz", "z.npz"):
        stored = files.load(tmp_path / name)
        assert stored.format is (F16 if values.itemsize == 2 else F32)
        np.testing.assert_array_equal(stored.codes, native.view(f"u{values.itemsize}"))


@pytest.mark.parametrize("dtype", ["u1", "i1", "<u2", ">i2", "<u4", ">u4"])
def test_integer_words_need_a_format(tmp_path, dtype):
    words = np.array([[0, 1, 100], [3, 4, 5]], dtype=dtype)
    np.save(tmp_path / "x.npy", words)
    problem = error_of(files.load, tmp_path / "x.npy")
    assert (problem.code, problem.kind) == ("format-needed", Kind.USAGE)
    assert "format=" in problem.help
    format = {1: "e4m3", 2: "bf16", 4: "tf32"}[words.itemsize]
    assert f"{format}" in problem.help
    stored = files.load(tmp_path / "x.npy", format)
    np.testing.assert_array_equal(stored.codes, words)
    assert stored.codes.dtype == stored.format.code_dtype


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("e4m3", "float8_e4m3fn"), ("bf16", "bfloat16"), ("e2m1", "float4_e2m1fn"), ("e8m0", "float8_e8m0fnu")],
)
def test_ml_dtypes_arrays_lost_their_name_in_numpy(tmp_path, name, dtype):
    """np.save writes them as void: `<V1` or `<V2`."""
    values = np.array([1, 2, 4], dtype=getattr(ml_dtypes, dtype))
    np.save(tmp_path / "x.npy", values)
    problem = error_of(files.load, tmp_path / "x.npy")
    assert problem.code == "format-needed"
    assert "V" in problem.what
    stored = files.load(tmp_path / "x.npy", dtype)
    assert stored.format.name == name
    np.testing.assert_array_equal(stored.codes, values.view(stored.codes.dtype))


def test_signed_bytes_are_mxint8_codes(tmp_path):
    np.save(tmp_path / "x.npy", np.int8([-1, -128, 127]))
    assert files.load(tmp_path / "x.npy", "mxint8").codes.tolist() == [0xFF, 0x80, 0x7F]


def test_numpy_structured_array_names_its_format(tmp_path):
    np.save(tmp_path / "x.npy", np.array([(0x7E,), (0x80,)], dtype=[("float8_e4m3fn", "u1")]))
    stored = files.load(tmp_path / "x.npy")
    assert stored.format is E4M3
    assert stored.codes.tolist() == [0x7E, 0x80]


def test_npz_is_the_same_file_for_the_same_codes(tmp_path):
    for name in ("a.npz", "b.npz"):
        files.save(tmp_path / name, codes_of(E4M3, (9,)), "e4m3")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


# ---- safetensors ------------------------------------------------------------------------------------------------

TORCH_NAMES = {
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "e8m0": "float8_e8m0fnu",
    "e4m3fnuz": "float8_e4m3fnuz",
    "e5m2fnuz": "float8_e5m2fnuz",
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
}
UNSIGNED = {1: "uint8", 2: "uint16", 4: "uint32"}


@pytest.mark.peers("torch", "safetensors")
@pytest.mark.parametrize("name", TORCH_NAMES)
def test_torch_and_refsim_write_the_same_safetensors_file(tmp_path, name):
    import torch
    from safetensors import torch as peer

    codes = codes_of({row.name: row for row in FORMATS}[name], (4, 6))
    files.save(tmp_path / "ours.safetensors", codes, name, metadata={"made": "by us"})
    bits = torch.from_numpy(codes)
    peer.save_file(
        {"x": bits.view(getattr(torch, TORCH_NAMES[name]))}, tmp_path / "theirs.safetensors", {"made": "by us"}
    )
    assert (tmp_path / "ours.safetensors").read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()
    stored = files.load(tmp_path / "theirs.safetensors")
    assert stored.format.name == name
    np.testing.assert_array_equal(stored.codes, codes)
    if name != "e8m0":  # safetensors 0.8 saves this dtype from torch and cannot load it again
        read = peer.load_file(tmp_path / "ours.safetensors")["x"]
        assert read.dtype == getattr(torch, TORCH_NAMES[name])
        np.testing.assert_array_equal(read.view(getattr(torch, UNSIGNED[codes.itemsize])).numpy(), codes)


@pytest.mark.peers("torch", "safetensors")
def test_torch_packs_e2m1_as_we_do(tmp_path):
    import torch
    from safetensors import torch as peer

    packed = torch.tensor([[0x21, 0x43], [0x65, 0x87]], dtype=torch.uint8)
    peer.save_file({"x": packed.view(torch.float4_e2m1fn_x2)}, tmp_path / "theirs.safetensors")
    stored = files.load(tmp_path / "theirs.safetensors")
    assert stored.format is E2M1
    assert stored.codes.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    files.save(tmp_path / "ours.safetensors", stored.codes, stored.format)
    assert (tmp_path / "ours.safetensors").read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()


@pytest.mark.peers("safetensors")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_safetensors_for_numpy_agrees(tmp_path, dtype):
    from safetensors import numpy as peer

    values = np.random.default_rng(2).normal(size=(3, 4)).astype(dtype)
    files.save(tmp_path / "ours.safetensors", values.view(f"u{values.itemsize}"), dtype)
    assert peer.load_file(tmp_path / "ours.safetensors")["x"].tobytes() == values.tobytes()
    peer.save_file({"x": values}, tmp_path / "theirs.safetensors")
    assert files.load(tmp_path / "theirs.safetensors").codes.tobytes() == values.tobytes()


@pytest.mark.peers("safetensors")
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_the_safetensors_package_accepts_every_format(tmp_path, format):
    import safetensors

    codes = codes_of(format, (4, 2))
    files.save(tmp_path / "w.safetensors", codes, format)
    ((key, found),) = safetensors.deserialize((tmp_path / "w.safetensors").read_bytes())
    assert key == "x"
    assert found["shape"] == [4, 2]
    assert len(found["data"]) == (6 if format.bits == 6 else 4 if format.bits == 4 else codes.nbytes)


@pytest.mark.parametrize(
    ("format", "dtype", "noted"),
    [
        ("e4m3", "F8_E4M3", None),
        ("e2m3", "F6_E2M3", None),
        ("ue4m3", "U8", "ue4m3"),
        ("ue5m3", "U8", "ue5m3"),
        ("mxint8", "I8", "mxint8"),
        ("tf32", "U32", "tf32"),
    ],
)
def test_safetensors_dtype_and_note(tmp_path, format, dtype, noted):
    files.save(tmp_path / "w.safetensors", np.uint8([1, 2, 3, 4]), format, key="q", metadata={"step": "7"})
    header = header_of(tmp_path / "w.safetensors")
    assert header["q"]["dtype"] == dtype
    assert header["__metadata__"] == {"step": "7"} | ({"refsim.format.q": noted} if noted else {})
    assert dict(files.load(tmp_path / "w.safetensors").metadata) == {"step": "7"}


def test_e2m1_codes_that_do_not_fill_bytes_are_kept_one_a_byte(tmp_path):
    files.save(tmp_path / "w.safetensors", [1, 2, 3], "e2m1")
    assert header_of(tmp_path / "w.safetensors")["x"]["dtype"] == "U8"
    stored = files.load(tmp_path / "w.safetensors")
    assert stored.format is E2M1
    assert stored.codes.tolist() == [1, 2, 3]


def test_six_bit_codes_are_dense_and_little_endian(tmp_path):
    files.save(tmp_path / "w.safetensors", [0x3F, 0, 0x15, 0x20], "e3m2")
    packed = (tmp_path / "w.safetensors").read_bytes()[-3:]
    assert int.from_bytes(packed, "little") == 0x3F | 0x15 << 12 | 0x20 << 18


def test_large_packed_tensors_are_joined_without_a_seam(tmp_path):
    for format, count in (("e2m1", (1 << 18) + 5), ("e2m3", 2 * (1 << 18) + 7)):
        codes = codes_of({row.name: row for row in FORMATS}[format], (count,))
        files.save(tmp_path / "w.bin", codes, format)
        np.testing.assert_array_equal(files.load(tmp_path / "w.bin", format, shape=(count,)).codes, codes)


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
    assert "'e4m3'" in problem.help
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
        assert error_of(files.save, tmp_path / f"w{suffix}", *one, key="k").code == "key-not-kept"
        assert error_of(files.save_all, tmp_path / f"w{suffix}", {"a": one, "b": one}).code == "one-tensor"
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
    assert (problem.code, problem.kind) == ("code-out-of-range", Kind.UNREADABLE)
    assert "0x83" in problem.what
    assert "(1, 1)" in problem.where
    problem = error_of(files.save, tmp_path / "y.npy", [1, 16], "e2m1")
    assert (problem.code, problem.kind) == ("code-out-of-range", Kind.USAGE)


@pytest.mark.parametrize(
    "codes",
    [[1.0], np.float16([1]), np.float64([1]), ["a"], [[1], [2, 3]], [-1], [None], [True]],
)
def test_values_are_not_codes(tmp_path, codes):
    assert error_of(files.save, tmp_path / "w.npy", codes, "e4m3").code == "not-codes"
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
    assert error_of(files.load, tmp_path / "w.bin", "e2m1", shape=(3,)).code == "trailing-bits"


# ---- arguments --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"shape": (-1,)}, "bad-shape"),
        ({"shape": 3}, "bad-shape"),
        ({"shape": (1.0,)}, "bad-shape"),
        ({"shape": (1,) * 65}, "bad-shape"),
        ({"shape": (0, 1 << 62)}, "bad-shape"),
        ({"offset": -1}, "bad-offset"),
        ({"offset": 1.5}, "bad-offset"),
        ({"max_bytes": -1}, "bad-limit"),
        ({"max_bytes": "1"}, "bad-limit"),
        ({"format": "e4m9"}, "unknown-format"),
        ({"format": 4}, "not-a-format"),
    ],
)
def test_arguments_are_checked(tmp_path, said, code):
    (tmp_path / "w.bin").write_bytes(b"\x01")
    problem = error_of(files.load, tmp_path / "w.bin", **{"format": "e4m3"} | said)
    assert (problem.code, problem.kind) == (code, Kind.USAGE)


def test_raw_options_elsewhere(tmp_path):
    files.save(tmp_path / "w.npy", [1], "e4m3")
    assert error_of(files.load, tmp_path / "w.npy", shape=(1,)).code == "raw-only"
    assert error_of(files.load, tmp_path / "w.npy", offset=1).code == "raw-only"


@pytest.mark.parametrize("path", ["w.pt", "w", "w.npy.gz"])
def test_unknown_suffix(tmp_path, path):
    assert error_of(files.load, tmp_path / path).code == "unknown-suffix"
    assert error_of(files.save, tmp_path / path, [1], "e4m3").code == "unknown-suffix"


@pytest.mark.parametrize("path", ["", "a\0.npy", b"w.npy", 3, "\ud800.npy"])
def test_things_that_are_not_paths(path):
    assert error_of(files.load, path).code == "not-a-path"
    assert error_of(files.save, path, [1], "e4m3").code == "not-a-path"


def test_max_bytes_counts_the_codes_not_the_packed_bytes(tmp_path):
    files.save(tmp_path / "w.safetensors", np.zeros(64, np.uint8), "e2m1")
    assert files.load(tmp_path / "w.safetensors", max_bytes=64).shape == (64,)
    problem = error_of(files.load, tmp_path / "w.safetensors", max_bytes=63)
    assert problem.code == "too-large"
    assert "max_bytes=64" in problem.help


# ---- writing ----------------------------------------------------------------------------------------------------


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "w.npy"
    files.save(path, [1], "e4m3")
    before = path.read_bytes()

    def fail_midway(stream):
        stream.write(b"half")
        raise OSError(28, "No space left on device")

    problem = error_of(write_atomically, path, fail_midway, overwrite=True)
    assert problem.code == "cannot-write"
    assert "no space left" in problem.what
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["w.npy"]


def test_an_interrupted_write_leaves_nothing(tmp_path):
    def interrupt(stream):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "w.npy", interrupt, overwrite=True)
    assert os.listdir(tmp_path) == []


def test_a_leftover_of_a_killed_writer_is_not_touched(tmp_path):
    leftover = tmp_path / f".refsim-{os.getpid()}-0.part"
    leftover.write_bytes(b"old")
    files.save(tmp_path / "w.npy", [1], "e4m3")
    assert leftover.read_bytes() == b"old"
    assert files.load(tmp_path / "w.npy").codes.tolist() == [1]


def test_overwriting_is_the_callers_choice(tmp_path):
    files.save(tmp_path / "w.npy", [1], "e4m3", overwrite=False)
    problem = error_of(files.save, tmp_path / "w.npy", [2], "e4m3", overwrite=False)
    assert problem.code == "file-exists"
    files.save(tmp_path / "w.npy", [3], "e4m3")
    assert files.load(tmp_path / "w.npy").codes.tolist() == [3]


def test_the_new_file_obeys_the_umask_and_follows_a_link(tmp_path):
    plain = tmp_path / "plain"
    plain.touch()
    (tmp_path / "link.npy").symlink_to(tmp_path / "real.npy")
    files.save(tmp_path / "link.npy", [1], "e4m3")
    assert (tmp_path / "link.npy").is_symlink()
    assert (tmp_path / "real.npy").stat().st_mode == plain.stat().st_mode


def test_places_that_cannot_be_written_or_read(tmp_path):
    (tmp_path / "d.npy").mkdir()
    assert error_of(files.save, tmp_path / "d.npy", [1], "e4m3").code == "not-a-file"
    assert error_of(files.load, tmp_path / "d.npy").code == "not-a-file"
    assert error_of(files.save, tmp_path / "none" / "w.npy", [1], "e4m3").code == "cannot-write"
    problem = error_of(files.load, tmp_path / "none.npy")
    assert (problem.code, problem.kind) == ("no-such-file", Kind.UNREADABLE)
    os.mkfifo(tmp_path / "pipe.npy")
    assert error_of(files.load, tmp_path / "pipe.npy").code == "not-a-file"


def test_npz_members_are_plain_npy_files(tmp_path):
    files.save(tmp_path / "w.npz", [1, 2], "e5m2", key="k")
    files.save(tmp_path / "w.npy", [1, 2], "e5m2")
    with zipfile.ZipFile(tmp_path / "w.npz") as archive:
        assert archive.read("k.npy") == (tmp_path / "w.npy").read_bytes()
    ours = (tmp_path / "w.npy").read_bytes()
    numpys = io.BytesIO()
    np.save(numpys, np.array([(1,), (2,)], dtype=[("e5m2", "u1")]))
    assert ours == numpys.getvalue()


def test_special_rows_survive_with_their_meaning(tmp_path):
    files.save(tmp_path / "t.npy", [0x3F800000], TF32)
    files.save(tmp_path / "m.npy", [0xFF], MXINT8)
    assert (files.load(tmp_path / "t.npy").format, files.load(tmp_path / "m.npy").format) == (TF32, MXINT8)
