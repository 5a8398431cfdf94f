"""Files damaged and made up at random: each is a tensor or a RefsimError, in bounded memory and a bounded number of steps."""

import io
import json
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsim import files
from refsim.errors import Kind, RefsimError
from refsim.files import Stored
from refsim.testing.kernel_files import load_kernel_file

made = load_kernel_file(Path(__file__).with_name("handmade.py"))
MIB, measured, npy, npy_of, safetensors = made.MIB, made.measured, made.npy, made.npy_of, made.safetensors
NAMES = ("e4m3", "e2m1", "e3m2", "ue4m3", "bf16", "f16", "f32", "tf32", None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@pytest.fixture(scope="module")
def valid(folder) -> list[tuple[str, bytes]]:
    """Small valid files of every container, ours and NumPy's."""
    small = {"a": (np.uint8([[1, 2, 3, 4]]), "e2m1"), "b": (np.uint16([5, 6]), "bf16"), "c": (np.uint8([7]), "ue4m3")}
    made = []
    for suffix in (".npz", ".safetensors"):
        files.save_all(folder / f"seed{suffix}", small)
        made.append((suffix, (folder / f"seed{suffix}").read_bytes()))
        files.save(folder / f"seed{suffix}", [1, 2], "f16")
        made.append((suffix, (folder / f"seed{suffix}").read_bytes()))
    for format in ("e4m3", "f32"):
        files.save(folder / "seed.npy", [[1, 2], [3, 4]], format)
        made.append((".npy", (folder / "seed.npy").read_bytes()))
    packed = io.BytesIO()
    np.savez_compressed(packed, x=np.zeros(100, np.float16), y=np.uint8([1, 2]))
    return [*made, (".npz", packed.getvalue()), (".bin", bytes(range(24)))]


def survives(path: Path, content: bytes, **said: object) -> None:
    path.write_bytes(content)
    outcome, peak, calls = measured(path, max_bytes=MIB, **said)
    assert isinstance(outcome, Stored | RefsimError)
    if isinstance(outcome, Stored):
        assert outcome.codes.dtype == outcome.format.code_dtype
        assert outcome.codes.size == 0 or int(outcome.codes.max()) < outcome.format.code_limit
        assert outcome.codes.nbytes <= MIB
    else:
        assert str(outcome).startswith(f"[{outcome.code}]")
        assert outcome.kind in (Kind.USAGE, Kind.UNREADABLE)
    assert peak < 4 * MIB + 24 * len(content)
    assert calls < 2000 + 10 * len(content)


@st.composite
def edits(draw: st.DrawFn) -> list[tuple[str, float, bytes]]:
    """Where (as a fraction of the file) and how to damage a file; replayed in order."""
    kinds = st.sampled_from(["set", "insert", "delete", "copy", "cut"])
    interesting = st.sampled_from(
        [b"\xff" * 4, b"\0" * 8, b"[" * 9, b"9" * 30, b'"', b"'", b"}", b"PK\x05\x06", b"\x80"]
    )
    return draw(
        st.lists(
            st.tuples(kinds, st.floats(0, 1, exclude_max=True), interesting | st.binary(min_size=1, max_size=9)),
            min_size=1,
            max_size=6,
        )
    )


def damaged(content: bytes, changes: list[tuple[str, float, bytes]]) -> bytes:
    for kind, place, piece in changes:
        at = int(place * len(content))
        match kind:
            case "set":
                content = content[:at] + piece + content[at + len(piece) :]
            case "insert":
                content = content[:at] + piece + content[at:]
            case "delete":
                content = content[:at] + content[at + len(piece) :]
            case "copy":
                content = content[:at] + content[at // 2 :]
            case _:
                content = content[:at]
    return content


@given(seed=st.integers(0, 7), changes=edits(), format=st.sampled_from(NAMES), key=st.sampled_from([None, "a", "x"]))
def test_damaged_files(*, folder, valid, seed, changes, format, key):
    suffix, content = valid[seed]
    survives(folder / f"damaged{suffix}", damaged(content, changes), format=format, key=key)


@given(
    content=st.binary(max_size=400),
    suffix=st.sampled_from([".npy", ".npz", ".safetensors", ".bin"]),
    start=st.sampled_from([b"", b"\x93NUMPY\x01\x00", b"PK\x03\x04", b"\x20\0\0\0\0\0\0\0{"]),
    format=st.sampled_from(NAMES),
)
def test_random_bytes(folder, content, suffix, start, format):
    survives(folder / f"random{suffix}", start + content, format=format)


HEADER_TEXT = st.lists(
    st.sampled_from(
        [
            "{",
            "}",
            "(",
            ")",
            "[",
            "]",
            ",",
            ":",
            "'descr'",
            "'fortran_order'",
            "'shape'",
            "'<f2'",
            "'e4m3'",
            "'|u1'",
            "'|O'",
            "True",
            "False",
            "0",
            "7",
            "99999999999",
            " ",
            "\n",
            "L",
            "'",
            '"',
            "\\",
            "-",
            "é",
        ]
    ),
    max_size=40,
)


@given(tokens=HEADER_TEXT, version=st.integers(1, 3), payload=st.binary(max_size=16))
def test_random_npy_headers(folder, tokens, version, payload):
    survives(folder / "header.npy", npy("".join(tokens), payload, version))


@given(
    descr=st.sampled_from(["'<f2'", "'>f4'", "'|u1'", "[('e2m1', '|u1')]", "[('bf16', '>u2')]", "'<V2'", "'|S3'"]),
    shape=st.lists(st.integers(0, 5) | st.integers(2**30, 2**66), max_size=4).map(tuple),
    order=st.booleans(),
    payload=st.binary(max_size=80),
    format=st.sampled_from(NAMES),
)
def test_npy_headers_that_parse(*, folder, descr, shape, order, payload, format):
    survives(folder / "shaped.npy", npy_of(descr, str(shape), str(order), payload), format=format)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
SIZES = st.lists(st.integers(-1, 4) | st.integers(2**31, 2**70), max_size=4)
ENTRIES = JSON_VALUES | st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F4", "F6_E3M2", "F8_E4M3", "U8", "BF16", "F64", "F7"]) | JSON_VALUES,
        "shape": SIZES | JSON_VALUES,
        "data_offsets": st.lists(st.integers(0, 12), min_size=2, max_size=2) | SIZES | JSON_VALUES,
    }
)


@given(
    header=st.dictionaries(st.sampled_from(["a", "x", "__metadata__", ""]), ENTRIES, max_size=3) | JSON_VALUES,
    payload=st.binary(max_size=12),
    padding=st.integers(-3, 8),
    format=st.sampled_from(NAMES),
)
def test_random_safetensors_headers(folder, header, payload, padding, format):
    text = json.dumps(header).encode("utf-8", "replace")
    content = safetensors(text, payload, length=max(0, len(text) + padding))
    survives(folder / "header.safetensors", content, format=format)


def test_the_fuzz_bound_would_notice_an_allocation(tmp_path):
    """The peak is that of NumPy too: 8 MiB of codes are seen, so a claim that is believed would be."""
    (tmp_path / "x.bin").write_bytes(bytes(8 * MIB))
    outcome, peak, _ = measured(tmp_path / "x.bin", format="e4m3")
    assert isinstance(outcome, Stored)
    assert peak > 8 * MIB
    assert sys.getsizeof(outcome.codes) < peak
    assert zlib.crc32(outcome.codes.tobytes()) == zlib.crc32(bytes(8 * MIB))
