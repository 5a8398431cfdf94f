"""refsim.silicon.vectors: the digest against its definition in plain integers, and the reader's errors."""

import json
import lzma
import zipfile
from io import BytesIO

import numpy as np
import pytest

from refsim.errors import RefsimError
from refsim.silicon import vectors
from refsim.silicon.vectors import (
    CHUNK,
    arrays_sha256,
    chunk_patterns,
    digest,
    locate,
    pack_digests,
    recordings,
    sidecar,
    splitmix64,
    unpack_digests,
    weights,
)

MODULUS = 1 << 64


@pytest.mark.parametrize("header", [b"{'descr': '<u8', (", b"{'descr': \x00", b'{\'descr\': """', b"\xff" * 40, b""])
def test_a_member_that_is_no_array_is_a_damaged_recording(tmp_path, monkeypatch, header):
    """NumPy raises what its tokenizer raises, of a header as of no other text."""
    monkeypatch.setattr(vectors, "vectors_folder", lambda device: tmp_path)
    facts = {"arrays": {"results": "a"}}
    (tmp_path / "x.json").write_text(json.dumps({"recordings": {"one": facts}}))
    text = header.ljust(53) + b"\n"
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as stored:
        stored.writestr("a.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
    with pytest.raises(RefsimError) as caught:
        recordings("x")
    assert caught.value.exit_code == 3


def plain_weight(i):
    z = (i + 1) * 0x9E3779B97F4A7C15 % MODULUS
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % MODULUS
    z = (z ^ z >> 27) * 0x94D049BB133111EB % MODULUS
    return z ^ z >> 31 | 1


def results(dtype, seed=3):
    return np.random.default_rng(seed).integers(0, 1 << np.dtype(dtype).itemsize * 8, CHUNK, dtype=dtype)


def test_splitmix64_is_the_published_generator():
    assert hex(splitmix64(np.zeros(1, np.uint64))[0]) == "0xe220a8397b1dcdaf"


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_digest_is_its_definition(dtype):
    words = results(dtype)
    want = sum(plain_weight(i) * int(word) for i, word in enumerate(words)) % MODULUS
    assert int(digest(words)) == want


def test_digest_counts_a_long_result_as_two_words():
    words = results(np.uint64)
    low = sum(plain_weight(i) * (int(word) & 0xFFFFFFFF) for i, word in enumerate(words))
    high = sum(plain_weight(CHUNK + i) * (int(word) >> 32) for i, word in enumerate(words))
    assert int(digest(words)) == (low + high) % MODULUS


def test_digest_of_ones():
    assert hex(digest(np.ones(CHUNK, np.uint16))) == "0xcbff58fb1c827bb2"
    assert digest(np.zeros((2, CHUNK), np.uint8)).tolist() == [0, 0]


def test_weights_are_odd_and_distinct():
    assert len(set(weights().tolist())) == 2 * CHUNK
    assert np.all(weights() & np.uint64(1))


def test_digest_sees_order_and_many_equal_errors():
    words = results(np.uint64)
    assert digest(words) != digest(words[::-1])
    signs = words ^ np.uint64(1 << 63)
    assert digest(signs) != digest(words)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_locate_finds_a_single_wrong_result(dtype):
    words = results(dtype)
    changed = words.copy()
    changed[12345] ^= 0x5A
    assert locate(int(digest(changed)), int(digest(words))) == (12345, int(changed[12345]) - int(words[12345]))
    assert locate(int(digest(words)), int(digest(words))) is None


def test_locate_gives_up_on_two_wrong_results():
    words = results(np.uint16)
    changed = words.copy()
    changed[[5, 50000]] ^= 0x8001
    assert locate(int(digest(changed)), int(digest(words))) is None


def test_packing_of_digests_is_reversible():
    words = results(np.uint64)
    assert np.array_equal(unpack_digests(pack_digests(words)), words)


def test_chunk_patterns():
    assert chunk_patterns(0x3F80).view(np.float32)[0] == 1.0
    assert chunk_patterns(0xFFFF)[-1] == 0xFFFFFFFF
    with pytest.raises(RefsimError, match="there is no chunk 65536"):
        chunk_patterns(65536)


@pytest.mark.parametrize("bad", [np.zeros(4, np.uint8), np.zeros(CHUNK, np.int32), np.uint8(0)])
def test_digest_refuses_other_shapes_and_types(bad):
    with pytest.raises(RefsimError) as caught:
        digest(np.asarray(bad))
    assert caught.value.code == "bad-shape"


def test_recordings_are_plain_integers_with_their_facts():
    found = recordings("conversions")["cvt.rn.satfinite.e4m3x2.f16x2"]
    assert found.arrays["results"].dtype == np.uint16
    assert found.arrays["results"][0x3C00] & 0xFF == 0x38  # f16 1.0 in the lower half is E4M3 1.0
    assert found.facts["sass"][-1] == "F2FP.SATFINITE.E4M3.F16.UNPACK_B_MERGE_C"
    assert set(sidecar("conversions")) >= {"device", "driver", "compiler", "flags", "date", "sha256", "recordings"}


# ---- one stream for all arrays, and devices whose words are another's ------------------------------------------------


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A folder of two devices: h200 with one recording as one stream, h100 that is equal to it."""
    for device in ("h200", "h100"):
        (tmp_path / device).mkdir()
    monkeypatch.setattr(vectors, "vectors_folder", lambda device="h200": tmp_path / device)
    plain = BytesIO()
    np.savez(plain, a=np.arange(9, dtype=np.uint32))
    (tmp_path / "h200" / "x.npz.xz").write_bytes(lzma.compress(plain.getvalue()))
    rows = {"one": {"arrays": {"results": "a"}}}
    (tmp_path / "h200" / "x.json").write_text(json.dumps({"device": "NVIDIA H200", "recordings": rows}))
    same = {"device": "NVIDIA H100", "equal_to": "h200", "arrays_sha256": arrays_sha256(recordings("x"))}
    (tmp_path / "h100" / "x.json").write_text(json.dumps(same))
    return tmp_path


def test_a_device_with_the_same_words_has_a_hash_of_its_own(shelf):
    assert recordings("x", "h100")["one"].arrays["results"].tolist() == list(range(9))
    assert sidecar("x", "h100")["device"] == "NVIDIA H100"
    assert sidecar("x", "h100")["recordings"] == sidecar("x")["recordings"]


def test_words_that_changed_are_no_longer_those_of_the_other_device(shelf):
    plain = BytesIO()
    np.savez(plain, a=np.arange(1, 10, dtype=np.uint32))
    (shelf / "h200" / "x.npz").write_bytes(plain.getvalue())
    assert recordings("x", "h100")["one"].arrays["results"][0] == 0  # the stream goes first
    (shelf / "h200" / "x.npz.xz").unlink()
    assert recordings("x")["one"].arrays["results"][0] == 1
    with pytest.raises(RefsimError, match="the arrays of h200 are not those that it was equal to"):
        recordings("x", "h100")


@pytest.mark.parametrize("other", ["h100", "b300", 7, ["h200"]])
def test_equal_to_names_a_device_whose_arrays_are_here(shelf, other):
    (shelf / "h100" / "x.json").write_text(json.dumps({"equal_to": other, "arrays_sha256": "00"}))
    with pytest.raises(RefsimError) as caught:
        recordings("x", "h100")
    assert (caught.value.code, caught.value.exit_code) == ("bad-file", 3)


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:-9], lambda raw: b"PK" + raw, lambda raw: b"", lambda raw: raw[:30]]
)
def test_a_damaged_stream_is_one_clear_error(shelf, damage):
    file = shelf / "h200" / "x.npz.xz"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(RefsimError) as caught:
        recordings("x")
    assert (caught.value.code, caught.value.exit_code) == ("bad-file", 3)


def test_a_stream_that_grows_without_end_is_refused(shelf, monkeypatch):
    monkeypatch.setattr(vectors, "MAX_UNPACKED_BYTES", 1 << 20)
    (shelf / "h200" / "x.npz.xz").write_bytes(lzma.compress(bytes(1 << 21), preset=0))
    with pytest.raises(RefsimError, match="the stream does not end"):
        recordings("x")


def test_special_functions_of_an_h100_are_those_of_the_h200():
    assert sidecar("special_functions", "h100")["device"] == "NVIDIA H100 80GB HBM3"
    assert recordings("special_functions", "h100").keys() == recordings("special_functions").keys()
