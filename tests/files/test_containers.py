"""refsim.files: every format through every container, and what NumPy, safetensors and torch make of the same bytes."""

import io
import json
import struct
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from refsim import files
from refsim.errors import Kind, RefsimError
from refsim.files.access import read_whole
from refsim.formats import E2M1, E4M3, F16, F32, FORMATS, MXINT8, TF32, Format

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


@pytest.mark.parametrize("dtype", ["u1", "<u2", ">u2", "<u4", ">u4"])
def test_integer_words_need_a_format(tmp_path, dtype):
    words = np.array([[0, 1, 100], [3, 4, 5]], dtype=dtype)
    np.save(tmp_path / "x.npy", words)
    problem = error_of(files.load, tmp_path / "x.npy")
    assert (problem.code, problem.kind) == ("format-needed", Kind.USAGE)
    assert "format=" in problem.help
    format = {1: "e4m3", 2: "bf16", 4: "tf32"}[words.itemsize]
    assert f"{format}" in problem.rule
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


def test_a_file_of_just_the_limit_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"abc")
    assert read_whole(path, 3, "a text") == b"abc"
    assert error_of(read_whole, path, 2, "a text").code == "too-large"
