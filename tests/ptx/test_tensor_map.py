"""The bytes of a simulated tensor map: nothing is lost in them, and what is none is seen."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsim import device, layouts
from refsim.errors import RefsimError
from refsim.layouts.tma import DATA_TYPES, SWIZZLE_MODES
from refsim.ptx.memory.tensor_map import decoded, encoded


@st.composite
def maps(draw):
    """Maps that the driver accepts, of every rank, of types of at least a byte."""
    row = draw(st.sampled_from([row for row in DATA_TYPES if not row.packed]))
    rank, size = draw(st.integers(1, 5)), row.element_bits // 8
    dims = [draw(st.integers(1, 1 << 32)) for _ in range(rank)]
    box = [16 // size, *(draw(st.integers(1, 256)) for _ in range(rank - 1))]
    return layouts.tensor_map(
        row,
        dims,
        box,
        strides=[16 * draw(st.integers(0, (1 << 36) - 1)) for _ in range(rank - 1)],
        address=16 * draw(st.integers(0, 1 << 56)),
        element_strides=[draw(st.integers(1, 8)) for _ in range(rank)],
        swizzle=draw(st.sampled_from(SWIZZLE_MODES)),
        l2_promotion=draw(st.sampled_from(["none", "64B", "128B", "256B"])),
        oob_fill=draw(st.sampled_from(["zeros", "nan_request_zero_fma"])) if row.floating else "zeros",
    )


@given(maps(), st.integers(0, 127), st.integers(1, 255))
def test_a_map_comes_back_from_its_bytes_and_no_other_byte_will_do(made, at, change):
    raw = encoded(made)
    assert decoded(raw) == made
    broken = bytearray(raw)
    broken[at] ^= change
    assert decoded(bytes(broken)) is None


def test_zeros_and_parts_are_no_maps():
    raw = encoded(layouts.tensor_map("uint8", (64, 64), (32, 32)))
    assert decoded(bytes(128)) is None
    assert decoded(raw[:64] + bytes(64)) is None


ECHO = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 out) {
    .reg .b64 %d<9>; .reg .b32 %r<9>; .reg .pred %p;
    ld.param.u64 %d1, [out]; mov.b64 %d2, map; mov.u32 %r1, 0;
L:  ld.param.u64 %d3, [%d2]; st.global.u64 [%d1], %d3;
    add.u64 %d1, %d1, 8; add.u64 %d2, %d2, 8; add.u32 %r1, %r1, 1; setp.lt.u32 %p, %r1, 16; @%p bra L;
    ret;
}
"""


def test_a_map_is_an_argument_of_128_bytes():
    with device.open("sim").loaded(ECHO, "echo.ptx") as gpu:
        x, out = gpu.upload(np.zeros(4096, np.uint8), name="x"), gpu.output(16, np.uint64, name="out")
        made = layouts.tensor_map("uint8", (64, 32), (32, 32), address=x.address + 1024)
        gpu.launch("k", 1, 1, [made, out])
        assert decoded(gpu.read(out).tobytes()) == made
        assert bytes(gpu.encode(made)) == gpu.read(out).tobytes()


@pytest.mark.parametrize(("dims", "offset"), [((64, 49), 1024), ((64, 1), 4096), ((64, 1), -16)])
def test_a_tensor_lies_within_one_buffer(dims, offset):
    with device.open("sim").loaded(ECHO, "echo.ptx") as gpu:
        x = gpu.upload(np.zeros(4096, np.uint8), name="x")
        made = layouts.tensor_map("uint8", dims, (32, 1), address=x.address + offset)
        with pytest.raises(RefsimError) as caught:
            gpu.encode(made)
        assert caught.value.code == "bad-tensor-map"
