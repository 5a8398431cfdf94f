"""Archives that nobody should trust: each is a tensor or a RefsimError, in bounded memory and a bounded number of steps."""

import io
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from refsim import files
from refsim.errors import RefsimError
from refsim.files import Stored, npz
from refsim.testing.kernel_files import load_kernel_file

made = load_kernel_file(Path(__file__).with_name("handmade.py"))
MIB, expect, measured, npy_of = made.MIB, made.expect, made.measured, made.npy_of
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
PACKED = zipfile.ZipFile(io.BytesIO(DEFLATED)).infolist()[0].compress_size
HUGE = struct.pack("<I", 0xFFFFFFF0)
BOMB = npy_of(shape="(50000000,)", payload=bytes(100_000_000))

NPZ: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "bad-file"),
    "npy-instead": (lambda: ARRAY, "bad-file"),
    "no-members": (archive, "empty-file"),
    "directory-cut": (lambda: ONE[:-10], "bad-file"),
    "directory-missing": (lambda: ONE[: ONE.index(CENTRAL)], "bad-file"),
    "first-half-missing": (lambda: ONE[40:], "bad-file"),
    "directory-of-2-mib": (
        lambda: patched(bytes(3 * MIB) + ONE, END, 12, struct.pack("<I", 2 * MIB)),
        "unsafe-archive",
    ),
    "directory-of-4-gib": (lambda: patched(ONE, END, 12, HUGE), "bad-file"),
    "member-beyond-file": (lambda: patched(ONE, CENTRAL, 42, HUGE), "bad-file"),
    "member-name-differs": (lambda: patched(ONE, LOCAL, 30, b"y"), "bad-file"),
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
    "ratio-just-beyond-deflate": (
        lambda: patched(DEFLATED, CENTRAL, 24, struct.pack("<I", 1032 * (PACKED + 1) + 1)),
        "unsafe-archive",
    ),
    "claims-4-gib": (lambda: patched(DEFLATED, CENTRAL, 24, HUGE), "unsafe-archive"),
    "expands-less-than-said": (lambda: patched(DEFLATED, CENTRAL, 24, struct.pack("<I", 20_000)), "trailing-bytes"),
    "expands-more-than-said": (lambda: patched(DEFLATED, CENTRAL, 24, struct.pack("<I", 20)), "bad-file"),
    "wrong-checksum": (lambda: patched(ONE, CENTRAL, 16, b"\0\0\0\0"), "bad-file"),
    "deflate-garbage": (lambda: DEFLATED[:35] + b"\xff" * 20 + DEFLATED[55:], "bad-file"),
    "pickle-inside": (lambda: archive(("x.npy", npy_of(descr="'|O'"))), "pickle-refused"),
    "member-not-npy": (lambda: archive(("x.npy", b"hello, world")), "bad-file"),
    "member-claims-more": (lambda: archive(("x.npy", npy_of(shape="(99999999,)"))), "truncated-file"),
    "bomb-of-100-mb": (lambda: archive(("x.npy", BOMB), method=zipfile.ZIP_DEFLATED), "unsafe-archive"),
}


@pytest.mark.parametrize("name", NPZ)
def test_npz(tmp_path, name):
    build, code = NPZ[name]
    expect(tmp_path / "x.npz", build(), code)


def test_a_bomb_below_the_limit_is_bounded_by_max_bytes(tmp_path):
    content = archive(("x.npy", npy_of(shape="(16777216,)", payload=bytes(32 * MIB))), method=zipfile.ZIP_DEFLATED)
    assert len(content) < MIB
    expect(tmp_path / "x.npz", content, "too-large", max_bytes=16 * MIB)
    assert files.load(tmp_path / "x.npz").shape == (16777216,)


@pytest.mark.ci("writes a large file; bombs below the limit are read in every run")
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


def test_a_large_file_that_is_no_bomb_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(npz, "UNTRUSTED_BYTES", 1 << 10)
    np.savez_compressed(tmp_path / "x.npz", x=np.arange(1 << 12, dtype=np.uint16) % 251)
    assert files.load(tmp_path / "x.npz", format="bf16").codes.size == 1 << 12


@pytest.mark.parametrize("key", ["a\nb", "a/../b", "", "a\\b", "\x7f"])
def test_a_key_that_no_reader_takes_is_not_written(key):
    with pytest.raises(RefsimError, match="bad-key"):
        npz.require_key(key)


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


@pytest.mark.ci("writes 12,000 members; two alike of a few are refused in every run")
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
