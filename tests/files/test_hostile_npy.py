"""npy files that nobody should trust: each is a tensor or a RefsimError, in bounded memory and a bounded number of steps."""

import io
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsim.files import Stored
from refsim.testing.kernel_files import load_kernel_file

made = load_kernel_file(Path(__file__).with_name("handmade.py"))
expect, measured, npy, npy_of = made.expect, made.measured, made.npy, made.npy_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


NPY_HEADER = "{'descr': '<f2', 'fortran_order': False, 'shape': (2,), }"
NPY = {
    "empty": (b"", "truncated-file"),
    "magic-only": (b"\x93NUMPY", "truncated-file"),
    "wrong-magic": (b"PK\x03\x04" + bytes(60), "bad-file"),
    "version-0": (npy(b"{}", version=0), "bad-file"),
    "version-9": (npy(b"{}", version=9), "bad-file"),
    "header-longer-than-file": (npy(b"{}", length=9000), "truncated-file"),
    "header-of-4-gib": (npy(b"{}", version=2, length=0xFFFFFFFF), "too-large"),
    "header-beyond-numpys-limit": (npy(NPY_HEADER.ljust(10_001), bytes(4)), "too-large"),
    "header-not-utf8": (npy(b"\xff{}", version=3), "bad-file"),
    "header-empty": (npy(b""), "bad-file"),
    "nested-9000-deep": (npy(b"(" * 9000), "bad-file"),
    "nested-dicts": (npy(b"{'a':" * 1900), "bad-file"),
    "unterminated-strings": (npy(b"'" + b'"' * 9000), "bad-file"),
    "escapes": (npy_of(descr="'<f2\\x00'"), "unsupported-dtype"),
    "expression": (npy_of(shape="(2**40,)"), "bad-file"),
    "call": (npy_of(shape="__import__('os').getpid()"), "bad-file"),
    "set-instead-of-dict": (npy("{'descr', 'fortran_order', 'shape'}"), "bad-file"),
    "duplicate-key": (npy("{'descr': '<f2', 'descr': '|O', 'fortran_order': False, 'shape': (2,)}"), "pickle-refused"),
    "minus-signs": (npy_of(shape=f"({'-' * 9000}2,)"), "bad-file"),
    "numbers-added": (npy_of(shape=f"({'+'.join(['1'] * 4000)},)"), "bad-file"),
    "bytes-instead-of-text": (npy_of(descr="b'<f2'"), "unsupported-dtype"),
    "missing-key": (npy("{'descr': '<f2', 'shape': (2,)}", bytes(4)), "bad-file"),
    "extra-key": (npy("{'descr': '<f2', 'fortran_order': False, 'shape': (2,), 'x': 1}", bytes(4)), "bad-file"),
    "a-thousand-keys": (npy("{" + ",".join(f"'{i}':1" for i in range(1000)) + "}"), "bad-file"),
    "text-behind-header": (npy("{'descr': '<f2', 'fortran_order': False, 'shape': (2,)} 7", bytes(4)), "bad-file"),
    "negative-size": (npy_of(shape="(-2,)"), "bad-file"),
    "boolean-size": (npy_of(shape="(True,)"), "bad-file"),
    "list-shape": (npy_of(shape="[2]"), "bad-file"),
    "shape-without-comma": (npy_of(shape="(2)"), "bad-file"),
    "size-of-arabic-digits": (npy(NPY_HEADER.replace("2,", "\u0662,"), bytes(4), version=3), "bad-file"),
    "size-with-leading-zero": (npy_of(shape="(02,)"), "bad-file"),
    "python-2-long-in-version-3": (npy(NPY_HEADER.replace("2,", "2L,"), bytes(4), version=3), "bad-file"),
    "no-break-space": (npy(NPY_HEADER.replace(": ", ":\xa0").encode("latin-1"), bytes(4)), "bad-file"),
    "next-line-behind": (npy(f"{NPY_HEADER}\x85".encode("latin-1"), bytes(4)), "bad-file"),
    "newline-first": (npy(f"\n {NPY_HEADER}", bytes(4)), "bad-file"),
    "newline-in-text": (npy_of(descr="[('e4m3\n', '|u1')]"), "bad-file"),
    "field-in-tuples": (npy_of(descr="(('e4m3', '|u1'),)", payload=bytes(2)), "unsupported-dtype"),
    "field-as-a-list": (npy_of(descr="[['e4m3', '|u1']]", payload=bytes(2)), "unsupported-dtype"),
    "text-order": (npy_of(order="'C'"), "bad-file"),
    "5000-digit-size": (npy_of(shape=f"({'9' * 5000},)"), "bad-file"),
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
    "float128": (npy_of(descr="'<f16'", payload=bytes(32)), "unsupported-dtype"),
    "complex": (npy_of(descr="'<c8'", payload=bytes(16)), "unsupported-dtype"),
    "text": (npy_of(descr="'<U4'", payload=bytes(32)), "unsupported-dtype"),
    "bool-of-8": (npy_of(descr="'<b8'", payload=bytes(16)), "unsupported-dtype"),
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
    "field-code-too-large": (npy_of(descr="[('e2m1', '|u1')]", payload=b"\x0f\x10"), "out-of-range"),
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
    """The converse does not hold: bytes behind the array are NumPy's alone."""
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
    """What it would read, were its bytes there, is refused here too: True as 1."""
    bad = {name: content for name, (content, code) in NPY.items() if code in ("bad-file", "too-large")}
    read = [name for name, content in bad.items() if not isinstance(as_numpy_reads(content), Exception)]
    assert read == []
