"""Headers of files written by hand, right and wrong; what loading a file costs, and how a bad one is refused."""

import json
import struct
import sys
import tracemalloc
from pathlib import Path
from types import FrameType

from refsim import files
from refsim.errors import Kind, RefsimError
from refsim.files import Stored

MIB = 1 << 20


def measured(path: Path, **said: object) -> tuple[Stored | RefsimError, int, int]:
    """What load makes of the file, the peak of what it allocated in bytes, and how many functions it called."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    tracemalloc.start()
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        outcome: Stored | RefsimError = files.load(path, **said)  # type: ignore[arg-type]
    except RefsimError as problem:
        outcome = problem
    finally:
        sys.setprofile(before)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return outcome, peak, calls


def npy(header: str | bytes, payload: bytes = b"", version: int = 1, length: int | None = None) -> bytes:
    text = header.encode() if isinstance(header, str) else header
    size = (len(text) if length is None else length).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + text + payload


def npy_of(descr: str = "'<f2'", shape: str = "(2,)", order: str = "False", payload: bytes = bytes(4)) -> bytes:
    return npy(f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n", payload)


def safetensors(header: object, payload: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + payload


def expect(path: Path, content: bytes, code: str, **said: object) -> None:
    """The file is refused by `code`, naming itself, before much is allocated."""
    path.write_bytes(content)
    outcome, peak, calls = measured(path, **said)
    assert isinstance(outcome, RefsimError), f"{path.name} was read"
    assert outcome.code == code, str(outcome)
    assert path.name in outcome.where
    assert outcome.kind == Kind.UNREADABLE
    assert len(str(outcome)) < 2000
    assert peak < 4 * MIB + 32 * len(content)  # the syntax tree of a header of 10 KB has 3 MiB
    assert calls < 2000 + 10 * len(content)
