"""Files that nobody should trust: each is a tensor or a RefsimError, in bounded memory and a bounded number of steps."""

import io
<<<<<<< HEAD:tests/test_files_hostile.py
import json
import os
=======
>>>>>>> 615749e (Tests in files that can be read at once, each with its subject; what the tests of devices launch is a CUDA file):tests/files/test_hostile.py
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from refsim import files
from refsim.errors import Kind, RefsimError
from refsim.files import Stored
from refsim.testing.kernel_files import load_kernel_file

made = load_kernel_file(Path(__file__).with_name("handmade.py"))
MIB, measured, npy, npy_of, safetensors = made.MIB, made.measured, made.npy, made.npy_of, made.safetensors

NPY_HEADER = "{'descr': '<f2', 'fortran_order': False, 'shape': (2,), }"
NPY = {
    "empty": (b"", "truncated-file"),
    "magic-only": (b"\x93NUMPY", "truncated-file"),
    "wrong-magic": (b"PK\x03\x04" + bytes(60), "bad-header"),
    "version-0": (npy(b"{}", version=0), "bad-header"),
    "version-9": (npy(b"{}", version=9), "bad-header"),
    "header-longer-than-file": (npy(b"{}", length=9000), "truncated-file"),
    "header-of-4-gib": (npy(b"{}", version=2, length=0xFFFFFFFF), "header-too-large"),
    "header-beyond-numpys-limit": (npy(NPY_HEADER.ljust(10_001), bytes(4)), "header-too-large"),
    "header-not-utf8": (npy(b"\xff{}", version=3), "bad-header"),
    "header-empty": (npy(b""), "bad-header"),
    "nested-9000-deep": (npy(b"(" * 9000), "bad-header"),
    "nested-dicts": (npy(b"{'a':" * 1900), "bad-header"),
    "unterminated-strings": (npy(b"'" + b'"' * 9000), "bad-header"),
    "escapes": (npy_of(descr="'<f2\\x00'"), "bad-header"),
    "expression": (npy_of(shape="(2**40,)"), "bad-header"),
    "call": (npy_of(shape="__import__('os').getpid()"), "bad-header"),
    "set-instead-of-dict": (npy("{'descr', 'fortran_order', 'shape'}"), "bad-header"),
    "duplicate-key": (npy("{'descr': '<f2', 'descr': '<f2', 'fortran_order': False, 'shape': (2,)}"), "bad-header"),
    "missing-key": (npy("{'descr': '<f2', 'shape': (2,)}", bytes(4)), "bad-header"),
    "extra-key": (npy("{'descr': '<f2', 'fortran_order': False, 'shape': (2,), 'x': 1}", bytes(4)), "bad-header"),
    "a-thousand-keys": (npy("{" + ",".join(f"'{i}':1" for i in range(1000)) + "}"), "bad-header"),
    "text-behind-header": (npy("{'descr': '<f2', 'fortran_order': False, 'shape': (2,)} 7", bytes(4)), "bad-header"),
    "negative-size": (npy_of(shape="(-2,)"), "bad-header"),
    "boolean-size": (npy_of(shape="(True,)"), "bad-header"),
    "list-shape": (npy_of(shape="[2]"), "bad-header"),
    "shape-without-comma": (npy_of(shape="(2)"), "bad-header"),
    "size-of-arabic-digits": (npy(NPY_HEADER.replace("2,", "\u0662,"), bytes(4), version=3), "bad-header"),
    "size-with-leading-zero": (npy_of(shape="(02,)"), "bad-header"),
    "python-2-long-in-version-3": (npy(NPY_HEADER.replace("2,", "2L,"), bytes(4), version=3), "bad-header"),
    "no-break-space": (npy(NPY_HEADER.replace(": ", ":\xa0").encode("latin-1"), bytes(4)), "bad-header"),
    "next-line-behind": (npy(f"{NPY_HEADER}\x85".encode("latin-1"), bytes(4)), "bad-header"),
    "newline-first": (npy(f"\n {NPY_HEADER}", bytes(4)), "bad-header"),
    "newline-in-text": (npy_of(descr="[('e4m3\n', '|u1')]"), "bad-header"),
    "field-in-tuples": (npy_of(descr="(('e4m3', '|u1'),)", payload=bytes(2)), "unsupported-dtype"),
    "field-as-a-list": (npy_of(descr="[['e4m3', '|u1']]", payload=bytes(2)), "unsupported-dtype"),
    "text-order": (npy_of(order="'C'"), "bad-header"),
    "5000-digit-size": (npy_of(shape=f"({'9' * 5000},)"), "bad-header"),
    "size-2-to-the-63": (npy_of(shape="(9223372036854775808,)"), "bad-shape"),
    "zero-times-2-to-the-62": (npy_of(shape="(0, 4611686018427387904)", payload=b""), "bad-shape"),
    "product-overflows": (npy_of(shape="(4294967296, 4294967296)"), "bad-shape"),
    "65-dimensions": (npy_of(shape=f"({'1, ' * 65})"), "bad-shape"),
    "4000-dimensions": (npy_of(shape=f"({'1,' * 4000})"), "bad-shape"),
    "claims-an-exabyte": (npy_of(shape="(576460752303423488,)"), "truncated-file"),
    "claims-a-gigabyte": (npy_of(shape="(536870912,)"), "truncated-file"),
    "one-byte-short": (npy_of(payload=bytes(3)), "truncated-file"),
    "one-byte-long": (npy_of(payload=bytes(5)), "trailing-bytes"),
    "pickle": (npy_of(descr="'|O'", payload=b"\x80\x04N."), "pickle-refused"),
    "pickle-in-a-field": (npy_of(descr="[('e4m3', '|O')]"), "pickle-refused"),
    "pickle-nested": (npy_of(descr="[('a', [('b', '|O8')])]"), "pickle-refused"),
    "float64": (npy_of(descr="'<f8'", payload=bytes(16)), "unsupported-dtype"),
    "complex": (npy_of(descr="'<c8'", payload=bytes(16)), "unsupported-dtype"),
    "text": (npy_of(descr="'<U4'", payload=bytes(32)), "unsupported-dtype"),
    "bool": (npy_of(descr="'|b1'", payload=bytes(2)), "unsupported-dtype"),
    "wide-void": (npy_of(descr="'|V999'", payload=bytes(1998)), "unsupported-dtype"),
    "date": (npy_of(descr="'<M8[ns]'", payload=bytes(16)), "unsupported-dtype"),
    "descr-number": (npy_of(descr="7"), "unsupported-dtype"),
    "descr-empty": (npy_of(descr="''"), "unsupported-dtype"),
    "descr-9000-letters": (npy_of(descr=f"'{'f' * 9000}'"), "unsupported-dtype"),
    "no-field": (npy_of(descr="[]"), "unsupported-dtype"),
    "two-fields": (npy_of(descr="[('e4m3', '|u1'), ('e8m0', '|u1')]"), "unsupported-dtype"),
    "field-with-shape": (npy_of(descr="[('e4m3', '|u1', (2,))]"), "unsupported-dtype"),
    "field-of-no-format": (npy_of(descr="[('e9m9', '|u1')]", payload=bytes(2)), "unsupported-dtype"),
    "field-name-9000-letters": (npy_of(descr=f"[('{'e4' * 4500}', '|u1')]"), "unsupported-dtype"),
    "field-of-wrong-width": (npy_of(descr="[('e4m3', '<u2')]"), "format-mismatch"),
    "field-of-floats": (npy_of(descr="[('bf16', '<f2')]"), "format-mismatch"),
    "field-code-too-large": (npy_of(descr="[('e2m1', '|u1')]", payload=b"\x0f\x10"), "code-out-of-range"),
}


@pytest.mark.parametrize("name", NPY)
def test_npy(tmp_path, name):
    content, code = NPY[name]
    expect(tmp_path / "x.npy", content, code)


def as_numpy_reads(content: bytes) -> np.ndarray | Exception:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a header of Python 2
        try:
            return np.load(io.BytesIO(content), allow_pickle=False)
        except Exception as refused:
            return refused


PIECES = [
    *"{}()[],:LRub\t\n\r\f\v\0#\\'\"\x85\xa0\xb2\xb3\xb9\u0662\uff13",
    *("'descr'", "'fortran_order'", "'shape'", "'<f2'", "'|u1'", "[('e4m3', '|u1')]", "True", "False", "None"),
    *("0", "2", "3,", "02", "1_0", "0x2", "2L", "-2", "+2", "2.0", "2**1", "  "),
]
DESCRS = ["'<f2'", "'>f2'", "'f2'", "'|u1'", "'<V2'", "'=i2'", "[('e4m3', '|u1')]", "[('bf16', '<u2')]"]


@given(
    descr=st.sampled_from(DESCRS),
    changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 2), st.sampled_from(PIECES)), max_size=3),
    end=st.sampled_from(["", "\n", "   \n", "\n ", "\n\n"]),
    version=st.sampled_from([1, 1, 2, 3]),
    count=st.integers(0, 6),
)
def test_what_numpy_refuses_is_refused(*, folder, descr, changes, end, version, count):
    """The converse does not hold: comments, escapes and bytes behind the array are NumPy's alone."""
    text = NPY_HEADER.replace("'<f2'", descr)
    for place, length, piece in changes:
        at = int(place * len(text))
        text = text[:at] + piece + text[at + length :]
    content = npy((text + end).encode("utf-8" if version == 3 else "latin-1", "replace"), bytes(count), version)
    (folder / "both.npy").write_bytes(content)
    read = as_numpy_reads(content)
    for format in ("f16", "e4m3", "bf16"):
        outcome, _, _ = measured(folder / "both.npy", format=format)
        if isinstance(outcome, Stored):
            assert isinstance(read, np.ndarray), f"NumPy: {read}"
            assert outcome.shape == read.shape
            assert outcome.codes.astype(outcome.codes.dtype.newbyteorder("<")).tobytes() == read.copy("C").tobytes()


def test_bad_headers_are_those_that_numpy_refuses():
    """What it would read, were its bytes there, is refused here too: the last of two equal keys, True as 1."""
    bad = {name: content for name, (content, code) in NPY.items() if code in ("bad-header", "header-too-large")}
    read = [name for name, content in bad.items() if not isinstance(as_numpy_reads(content), Exception)]
    assert read == []


def expect(path: Path, content: bytes, code: str, **said: object) -> None:
    """The file is refused by `code`, naming itself, before much is allocated."""
    path.write_bytes(content)
    outcome, peak, calls = measured(path, **said)
    assert isinstance(outcome, RefsimError), f"{path.name} was read"
    assert outcome.code == code, str(outcome)
    assert path.name in outcome.where
    assert outcome.kind == Kind.UNREADABLE
    assert len(str(outcome)) < 2000
    assert peak < 2 * MIB + 32 * len(content)
    assert calls < 2000 + 10 * len(content)


def tensors(payload: int, **entries: tuple[object, object, object]) -> bytes:
    header = {key: dict(zip(("dtype", "shape", "data_offsets"), entry, strict=True)) for key, entry in entries.items()}
    return safetensors(header, bytes(payload))


SAFETENSORS = {
    "empty": (b"", "truncated-file"),
    "seven-bytes": (bytes(7), "truncated-file"),
    "no-header": (bytes(8), "bad-header"),
    "no-tensors": (safetensors(b"{}"), "no-tensors"),
    "only-metadata": (safetensors({"__metadata__": {"a": "b"}}), "no-tensors"),
    "header-of-16-eib": (safetensors(b"{}", length=2**64 - 1), "header-too-large"),
    "header-of-100-mb": (safetensors(b"{}", length=100_000_000), "header-too-large"),
    "header-longer-than-file": (safetensors(b"{}", length=4_000_000), "truncated-file"),
    "not-utf8": (safetensors(b'{"\xff": 1}'), "bad-header"),
    "utf16": (safetensors('{"x": 1}'.encode("utf-16")), "bad-header"),
    "not-json": (safetensors(b"{'x': 1}"), "bad-header"),
    "list": (safetensors(b"[]"), "bad-header"),
    "spaces-first": (safetensors(b" {}"), "bad-header"),
    "text-behind": (safetensors(b"{} {}"), "bad-header"),
    "nested-a-million-deep": (safetensors(b'{"x":' + b"[" * 1_000_000), "bad-header"),
    "nested-dicts": (safetensors(b'{"x":' * 200_000), "bad-header"),
    "a-million-empty-lists": (safetensors(b'{"x":{"shape":[' + b"[]," * 1_000_000), "bad-header"),
    "unterminated-string": (safetensors(b'{"' + b'\\"' * 1_000_000), "bad-header"),
    "thousands-of-quotes": (safetensors(b'{"x"' + b'""' * 200_000), "bad-header"),
    "huge-integer": (tensors(4, x=("U8", [10**4000], [0, 4])), "bad-header"),
    "20-digit-integer": (tensors(4, x=("U8", [4], [0, 2**64])), "bad-header"),
    "half-surrogate": (safetensors(b'{"\\ud800":{"dtype":"F16","shape":[0],"data_offsets":[0,0]}}'), "bad-header"),
    "nan": (safetensors(b'{"x":{"dtype":"F16","shape":[NaN],"data_offsets":[0,0]}}'), "bad-header"),
    "float-offset": (tensors(4, x=("F16", [2], [0, 4.0])), "bad-header"),
    "exponent": (safetensors(b'{"x":{"dtype":"F16","shape":[1e400],"data_offsets":[0,0]}}'), "bad-header"),
    "negative-offset": (tensors(4, x=("F16", [2], [-4, 0])), "bad-header"),
    "negative-size": (tensors(4, x=("F16", [-2], [0, 4])), "bad-header"),
    "boolean-size": (tensors(4, x=("F16", [True, 2], [0, 4])), "bad-header"),
    "null-shape": (tensors(4, x=("F16", None, [0, 4])), "bad-header"),
    "text-offsets": (tensors(4, x=("F16", [2], "04")), "bad-header"),
    "one-offset": (tensors(4, x=("F16", [2], [0])), "bad-header"),
    "three-offsets": (tensors(4, x=("F16", [2], [0, 4, 4])), "bad-header"),
    "dtype-number": (tensors(4, x=(16, [2], [0, 4])), "bad-header"),
    "dtype-list": (tensors(4, x=(["F16"], [2], [0, 4])), "bad-header"),
    "end-before-begin": (tensors(4, x=("F16", [2], [4, 0])), "bad-header"),
    "end-before-begin-unknown-dtype": (tensors(0, x=("F16", [2], [0, 4]), y=("F7", [2], [4, 0])), "bad-header"),
    "first-begins-late": (tensors(8, x=("F16", [2], [4, 8])), "bad-header"),
    "hole": (tensors(10, x=("F16", [2], [0, 4]), y=("F16", [2], [6, 10])), "bad-header"),
    "overlap": (tensors(6, x=("F16", [2], [0, 4]), y=("F16", [2], [2, 6])), "bad-header"),
    "same-range-twice": (tensors(4, x=("F16", [2], [0, 4]), y=("F16", [2], [0, 4])), "bad-header"),
    "size-says-less": (tensors(4, x=("F16", [1], [0, 4])), "bad-header"),
    "size-says-more": (tensors(4, x=("F16", [3], [0, 4])), "bad-header"),
    "f4-of-odd-count": (tensors(2, x=("F4", [3], [0, 2])), "bad-header"),
    "f6-of-odd-count": (tensors(4, x=("F6_E2M3", [5], [0, 4])), "bad-header"),
    "size-wraps-64-bits": (tensors(4, x=("F16", [2**62, 4, 2], [0, 4])), "bad-shape"),
    "zero-times-2-to-the-62": (tensors(0, x=("F16", [0, 2**62], [0, 0])), "bad-shape"),
    "a-million-dimensions": (tensors(2, x=("F16", [1] * 1_000_000, [0, 2])), "bad-header"),
    "65-dimensions": (tensors(2, x=("F16", [1] * 65, [0, 2])), "bad-shape"),
    "claims-a-terabyte": (tensors(4, x=("U8", [2**40], [0, 2**40])), "truncated-file"),
    "cut-short": (tensors(3, x=("F16", [2], [0, 4])), "truncated-file"),
    "bytes-behind": (tensors(5, x=("F16", [2], [0, 4])), "trailing-bytes"),
    "missing-field": (safetensors({"x": {"dtype": "F16", "shape": [0]}}), "bad-header"),
    "extra-field": (
        safetensors({"x": {"dtype": "F16", "shape": [0], "data_offsets": [0, 0], "strides": [1]}}),
        "bad-header",
    ),
    "tensor-is-a-list": (safetensors({"x": [1]}), "bad-header"),
    "key-twice": (safetensors(b'{"x":{"dtype":"F16","shape":[0],"data_offsets":[0,0]},"x":{}}'), "bad-header"),
    "field-twice": (safetensors(b'{"x":{"dtype":"F16","dtype":"F16","shape":[0],"data_offsets":[0,0]}}'), "bad-header"),
    "unknown-dtype": (tensors(4, x=("F7", [4], [0, 4])), "unsupported-dtype"),
    "float64": (tensors(8, x=("F64", [1], [0, 8])), "unsupported-dtype"),
    "metadata-number": (safetensors({"__metadata__": {"a": 1}}), "bad-header"),
    "metadata-list": (safetensors({"__metadata__": []}), "bad-header"),
    "metadata-nested": (safetensors({"__metadata__": {"a": {"b": {"c": "d"}}}}), "bad-header"),
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
        ("e4m3", "F64", 8, "unsupported-dtype"),
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


# ---- archives ---------------------------------------------------------------------------------------------------

ARRAY = npy_of()


def archive(*members: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as opened, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a duplicate name is the point of one case
        for name, content in members:
            opened.writestr(name, content)
    return packed.getvalue()


def patched(content: bytes, signature: bytes, offset: int, value: bytes) -> bytes:
    """`content` with `value` at `offset` of the last record that starts with `signature`."""
    start = content.rindex(signature) + offset
    return content[:start] + value + content[start + len(value) :]


LOCAL, CENTRAL, END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
ONE = archive(("x.npy", ARRAY))
DEFLATED = archive(("x.npy", ARRAY), method=zipfile.ZIP_DEFLATED)
HUGE = struct.pack("<I", 0xFFFFFFF0)
BOMB = npy_of(shape="(50000000,)", payload=bytes(100_000_000))

# fmt: off
NPZ: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "bad-archive"),
    "npy-instead": (lambda: ARRAY, "bad-archive"),
    "no-members": (archive, "no-tensors"),
    "directory-cut": (lambda: ONE[:-10], "bad-archive"),
    "directory-missing": (lambda: ONE[: ONE.index(CENTRAL)], "bad-archive"),
    "first-half-missing": (lambda: ONE[40:], "bad-archive"),
    "directory-of-2-mib": (
        lambda: patched(bytes(3 * MIB) + ONE, END, 12, struct.pack("<I", 2 * MIB)), "unsafe-archive",
    ),
    "directory-of-4-gib": (lambda: patched(ONE, END, 12, HUGE), "bad-archive"),
    "member-beyond-file": (lambda: patched(ONE, CENTRAL, 42, HUGE), "bad-archive"),
    "member-name-differs": (lambda: patched(ONE, LOCAL, 30, b"y"), "bad-archive"),
    "two-names-alike": (lambda: archive(("x.npy", ARRAY), ("x.npy", ARRAY)), "unsafe-archive"),
    "parent": (lambda: archive(("../x.npy", ARRAY)), "unsafe-archive"),
    "absolute": (lambda: archive(("/etc/x.npy", ARRAY)), "unsafe-archive"),
    "backslashes": (lambda: archive(("..\\x.npy", ARRAY)), "unsafe-archive"),
    "drive": (lambda: archive(("c:x.npy", ARRAY)), "unsafe-archive"),
    "a-folder": (lambda: archive(("x.npy/", b"")), "unsafe-archive"),
    "a-script": (lambda: archive(("x.py", b"import os")), "unsafe-archive"),
    "encrypted": (lambda: patched(ONE, CENTRAL, 8, b"\x01\x00"), "unsafe-archive"),
    "bzip2": (lambda: archive(("x.npy", ARRAY), method=zipfile.ZIP_BZIP2), "unsafe-archive"),
    "lzma": (lambda: archive(("x.npy", ARRAY), method=zipfile.ZIP_LZMA), "unsafe-archive"),
    "unknown-method": (lambda: patched(ONE, CENTRAL, 10, b"\x63\x00"), "unsafe-archive"),
    "stored-but-larger": (lambda: patched(ONE, CENTRAL, 24, struct.pack("<I", 200)), "unsafe-archive"),
    "packed-beyond-file": (lambda: patched(ONE, CENTRAL, 20, HUGE + HUGE), "truncated-file"),
    "ratio-beyond-deflate": (lambda: patched(DEFLATED, CENTRAL, 24, struct.pack("<I", MIB)), "unsafe-archive"),
    "claims-4-gib": (lambda: patched(DEFLATED, CENTRAL, 24, HUGE), "unsafe-archive"),
    "expands-less-than-said": (lambda: patched(DEFLATED, CENTRAL, 24, struct.pack("<I", 20_000)), "trailing-bytes"),
    "expands-more-than-said": (lambda: patched(DEFLATED, CENTRAL, 24, struct.pack("<I", 20)), "bad-archive"),
    "wrong-checksum": (lambda: patched(ONE, CENTRAL, 16, b"\0\0\0\0"), "bad-archive"),
    "deflate-garbage": (lambda: DEFLATED[:35] + b"\xff" * 20 + DEFLATED[55:], "bad-archive"),
    "pickle-inside": (lambda: archive(("x.npy", npy_of(descr="'|O'"))), "pickle-refused"),
    "member-not-npy": (lambda: archive(("x.npy", b"hello, world")), "bad-header"),
    "member-claims-more": (lambda: archive(("x.npy", npy_of(shape="(99999999,)"))), "truncated-file"),
    "bomb-of-100-mb": (lambda: archive(("x.npy", BOMB), method=zipfile.ZIP_DEFLATED), "unsafe-archive"),
}
# fmt: on


@pytest.mark.parametrize("name", NPZ)
def test_npz(tmp_path, name):
    build, code = NPZ[name]
    expect(tmp_path / "x.npz", build(), code)


def test_a_bomb_below_the_limit_is_bounded_by_max_bytes(tmp_path):
    content = archive(("x.npy", npy_of(shape="(16777216,)", payload=bytes(32 * MIB))), method=zipfile.ZIP_DEFLATED)
    assert len(content) < MIB
    expect(tmp_path / "x.npz", content, "too-large", max_bytes=16 * MIB)
    assert files.load(tmp_path / "x.npz").shape == (16777216,)


def test_the_limit_is_of_the_file_not_of_a_member(tmp_path):
    """Members that are small each: 40 of 4 MiB, in 160 kB; and twice as many that all lie over the same bytes."""
    member = npy_of(shape="(2097152,)", payload=bytes(4 * MIB))
    content = archive(*((f"{index}.npy", member) for index in range(40)), method=zipfile.ZIP_DEFLATED)
    assert len(content) < MIB
    expect(tmp_path / "x.npz", content, "unsafe-archive", key="7")
    with pytest.raises(RefsimError) as caught:
        files.load_all(tmp_path / "x.npz")
    assert f"max_bytes={40 * len(member)}" in caught.value.help
    with pytest.raises(RefsimError) as caught:
        files.load_all(tmp_path / "x.npz", max_bytes=32 * MIB)
    assert caught.value.code == "too-large"
    assert len(files.load_all(tmp_path / "x.npz", max_bytes=40 * len(member))) == 40


def test_members_that_lie_over_one_another_count_the_file_once(tmp_path):
    """The directory of a zip may name one stretch of the file many times, and call it large each time."""
    noise = npy_of(descr="'|u1'", shape="(1048576,)", payload=np.random.default_rng(5).bytes(MIB))
    whole = archive(("000.npy", noise))
    local, directory = whole[: whole.index(CENTRAL)], whole[whole.index(CENTRAL) : whole.rindex(END)]
    many = b"".join(directory for _ in range(200))
    end = struct.pack("<4s4H2LH", END, 0, 0, 200, 200, len(many), len(local), 0)
    expect(tmp_path / "same.npz", local + many + end, "unsafe-archive")
    named = b"".join(directory.replace(b"000.npy", b"%03d.npy" % index) for index in range(200))
    expect(tmp_path / "x.npz", local + named + end, "unsafe-archive", key="000")


def test_a_member_whose_size_is_a_lie_costs_what_it_holds(tmp_path):
    """Header and directory agree on 64 MiB - the deflate stream ends after 60 KiB of payload."""
    header = npy_of(shape="(33554432,)", payload=b"")
    noise = np.random.default_rng(3).bytes(60_000)
    content = archive(("x.npy", header + noise), method=zipfile.ZIP_DEFLATED)
    said = struct.pack("<I", len(header) + (64 << 20))
    expect(tmp_path / "x.npz", patched(content, CENTRAL, 24, said), "unsafe-archive")
    said = struct.pack("<I", len(header) + (32 << 20))
    header = npy_of(shape="(16777216,)", payload=b"")
    content = archive(("x.npy", header + noise), method=zipfile.ZIP_DEFLATED)
    expect(tmp_path / "x.npz", patched(content, CENTRAL, 24, said), "truncated-file")


def test_twelve_thousand_members_of_which_two_are_alike(tmp_path):
    content = archive(*((f"{index}.npy", b"") for index in range(12_000)), ("0.npy", b""))
    expect(tmp_path / "x.npz", content, "unsafe-archive")


def test_members_are_read_once_each_not_together(tmp_path):
    """Fifty members of 1 MiB that deflate to nothing: load of one allocates one."""
    member = npy_of(shape="(524288,)", payload=bytes(MIB))
    content = archive(*((f"{index}.npy", member) for index in range(50)), method=zipfile.ZIP_DEFLATED)
    (tmp_path / "x.npz").write_bytes(content)
    outcome, peak, _ = measured(tmp_path / "x.npz", key="7")
    assert isinstance(outcome, Stored)
    assert peak < 5 * MIB
    with pytest.raises(RefsimError) as caught:
        files.load_all(tmp_path / "x.npz", max_bytes=10 * MIB)
    assert caught.value.code == "too-large"


LARGE = {
    ".npy": ("f32", np.uint32, 4),
    ".npz": ("bf16", np.uint16, 8),
    ".safetensors": ("e2m1", np.uint8, 16),
    ".bin": ("e3m2", np.uint8, 16),
}


@pytest.mark.parametrize("suffix", LARGE)
def test_loading_takes_about_twice_the_codes(tmp_path, suffix):
    format, dtype, count = LARGE[suffix]
    files.save(tmp_path / f"w{suffix}", np.zeros(count * MIB, dtype), format)
    outcome, peak, _ = measured(tmp_path / f"w{suffix}", format=format)
    assert isinstance(outcome, Stored)
    assert outcome.codes.nbytes == 16 * MIB
    assert peak < 40 * MIB


LATER = pytest.mark.ci("text of another kind of entry is tried in every run")


@pytest.mark.parametrize(
    "entry", [pytest.param('"{}":"x"', marks=LATER), '"{}":1', pytest.param('"{}":{{}}', marks=LATER)]
)
def test_a_safetensors_header_of_nothing_but_names(tmp_path, entry):
    """Text that JSON turns into the most objects: 4 MiB may cost 128 MiB, and no file may have more."""
    text = "{" + ",".join(entry.format(index) for index in range(100_000)) + "}"
    expect(tmp_path / "x.safetensors", safetensors(text.encode()), "bad-header")


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
