"""Parameters: arrays, scalars and structs, each at its own alignment."""

from dataclasses import dataclass

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import Kind, RefsimError

# Copies eight bytes of a struct that lies behind a byte parameter.
TEXT = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u8 first, .param .align 8 .b8 pair[16], .param .u64 out)
{
    .reg .b64 %d<4>; .reg .b32 %r<2>;
    ld.param.u64 %d1, [out]; ld.param.u64 %d2, [pair+8]; st.global.u64 [%d1], %d2;
    ld.param.u32 %r1, [pair]; st.global.u32 [%d1+8], %r1;
    ret;
}
"""
PAIR = np.dtype([("a", np.int32), ("b", np.uint64)], align=True)


@dataclass
class Struct:
    """A struct of the host: bytes and how they are aligned."""

    raw: bytes
    align: int

    def __bytes__(self) -> bytes:
        return self.raw


def launched(pair) -> tuple[int, int]:
    out = np.zeros(2, np.uint64)
    ptx.load(TEXT).launch("k", 1, 1, [np.uint8(9), pair, out])
    return int(out[1]), int(out[0])


RAW = (7).to_bytes(8, "little") + (1 << 40).to_bytes(8, "little")


@pytest.mark.parametrize(
    "pair",
    [
        RAW,
        bytearray(RAW),
        memoryview(RAW),
        np.frombuffer(RAW, PAIR)[0],
        np.frombuffer(RAW, np.uint8),
        Struct(RAW, 8),
        Struct(RAW, 4),
    ],
    ids=lambda pair: type(pair).__name__,
)
def test_a_struct_reaches_the_kernel(pair):
    assert launched(pair) == (7, 1 << 40)


@pytest.mark.parametrize(
    ("pair", "code"),
    [
        (RAW[:12], "bad-argument"),
        (np.zeros(1, [("a", np.int32), ("b", np.uint64)])[0], "bad-argument"),
        (Struct(RAW, 16), "bad-argument"),
        (Struct(RAW[:8], 8), "bad-argument"),
        (7, "bad-argument"),
        ("text", "bad-argument"),
        (None, "bad-argument"),
        (np.float64(1), "bad-argument"),
    ],
)
def test_what_is_no_such_struct_is_refused(pair, code):
    with pytest.raises(RefsimError) as caught:
        launched(pair)
    assert (caught.value.code, caught.value.kind) == (code, Kind.USAGE)
    assert caught.value.rule
