"""Every wrong access is one error that names PTX line, CUDA line, thread, block and address; memory is left as it was."""

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import Kind, RefsimError

TEXT = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 buffer, .param .u64 offset, .param .u64 out)
{{
    .reg .b32 %r<9>; .reg .b64 %d<9>;
    .shared .align 16 .b8 tile[64];
    ld.param.u64 %d1, [buffer]; ld.param.u64 %d2, [offset]; ld.param.u64 %d4, [out]; add.s64 %d3, %d1, %d2;
    mov.u32 %r5, tile;
    .loc 1 17 5
    {body}
    ret;
}}
.file 1 "kernel.cu"
"""


def fault(body: str, offset: int = 0, size: int = 64, *, initial: bool = True, writable: bool = True) -> RefsimError:
    memory = ptx.GlobalMemory()
    content = np.arange(size, dtype=np.uint8) if initial else None
    buffer = memory.allocate(size, "x", initial=content, writable=writable)
    out = memory.allocate(4, "out")
    before = memory.read(buffer, size)
    with pytest.raises(RefsimError) as caught:
        ptx.load(TEXT.format(body=body)).launch(
            "k", (2,), (32,), [np.uint64(buffer), np.uint64(offset & (2**64 - 1)), np.uint64(out)], memory=memory
        )
    assert (memory.read(buffer, size) == before).all()
    assert caught.value.kind == Kind.FAULT
    assert "PTX line 11 (kernel.cu:17)" in caught.value.where
    assert "thread (0, 0, 0) of block (0, 0, 0)" in caught.value.where
    return caught.value


@pytest.mark.parametrize(
    ("body", "offset", "code", "says"),
    [
        ("ld.global.u32 %r1, [%d3];", 64, "out-of-bounds", "0 B past the end of x (64 B)"),
        ("ld.global.u32 %r1, [%d3];", 61, "out-of-bounds", "it ends 1 B past the end of x"),
        ("st.global.v4.u32 [%d3], {%r1, %r1, %r1, %r1};", 56, "out-of-bounds", "it ends 8 B past the end of x"),
        ("ld.global.u8 %r1, [%d3];", -1, "out-of-bounds", "below every global buffer"),
        ("ld.u32 %r1, [%d2];", 0, "out-of-bounds", "below every global buffer"),
        ("ld.global.u32 %r1, [%d3];", 2, "misaligned", "not a multiple of 4"),
        ("ld.global.v2.u32 {%r1, %r2}, [%d3];", 4, "misaligned", "not a multiple of 8"),
        ("ld.shared.u32 %r1, [%r5+64];", 0, "out-of-bounds", "past the end of shared memory"),
        ("ld.shared.u32 %r1, [%r5]; ld.shared.u32 %r2, [%r1];", 0, "uninitialised", "byte 0 of shared memory"),
        ("ld.shared.u32 %r1, [0];", 0, "out-of-bounds", "shared"),
        ("atom.global.add.u32 %r1, [%d3], 1;", 64, "out-of-bounds", "past the end of x"),
    ],
)
def test_stray_accesses(body, offset, code, says):
    error = fault(body, offset)
    assert error.code == code
    assert says in error.what


def test_reading_an_output_before_it_is_written():
    error = fault("ld.global.u32 %r1, [%d3]; ld.shared.u32 %r2, [%r1];", 8, initial=False)
    assert error.code == "uninitialised"
    assert "byte 8 of x" in error.what


def test_writing_a_read_only_upload():
    assert fault("st.global.u32 [%d3], 1;", writable=False).code == "read-only"


def test_recording_instead_of_stopping():
    memory = ptx.GlobalMemory()
    buffer, out = memory.allocate(64, "x"), memory.allocate(8, "out")
    body = "ld.global.u32 %r1, [%d3]; st.global.u32 [%d4], 7; st.global.u32 [%d4+4], %r1;"
    trace = ptx.load(TEXT.format(body=body)).launch(
        "k", (1,), (32,), [np.uint64(buffer), np.uint64(0), np.uint64(out)], memory=memory, checks=ptx.Checks("record")
    )
    assert [error.code for error in trace.uninitialised] == ["uninitialised"]
    assert memory.read(out, 4).view(np.uint32)[0] == 7


def test_the_writer_of_a_byte_is_known():
    memory = ptx.GlobalMemory()
    buffer, out = memory.allocate(64, "x", initial=np.zeros(64, np.uint8)), memory.allocate(256, "out")
    memory.track_writers()
    body = """mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mad.lo.s32 %r3, %r2, 32, %r1; mul.wide.u32 %d5, %r3, 4;
    add.s64 %d6, %d4, %d5; st.global.u32 [%d6], %r3;"""
    ptx.load(TEXT.format(body=body)).launch(
        "k", (2,), (32,), [np.uint64(buffer), np.uint64(0), np.uint64(out)], memory=memory
    )
    assert memory.writer(out + 4 * 37) == 37
    assert memory.writer(buffer) == -1


@pytest.mark.parametrize(
    "statement",
    ["ldmatrix.sync.aligned.m8n8.x1.b16 {%r1}, [%d3];", "stmatrix.sync.aligned.m8n8.x1.b16 [%d3], {%r5};"],
)
def test_matrices_lie_in_shared_memory_alone(statement: str) -> None:
    """An address without a state space must fall into the window of shared memory."""
    error = fault(statement, size=512)
    assert error.code == "out-of-bounds"
    assert "not in shared memory" in error.what


def test_matrices_may_have_generic_addresses():
    memory = ptx.GlobalMemory()
    out = memory.allocate(4 * 32, "out")
    body = """mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 3; mul.wide.u32 %d6, %r2, 16; mov.u64 %d5, tile;
        cvta.shared.u64 %d5, %d5; add.s64 %d5, %d5, %d6; setp.lt.u32 %p1, %r1, 4;
        add.u32 %r3, %r1, 100; @%p1 st.v4.u32 [%d5], {%r3, %r3, %r3, %r3}; bar.sync 0;
        ldmatrix.sync.aligned.m8n8.x1.b16 {%r4}, [%d5];
        mul.wide.u32 %d7, %r1, 4; add.s64 %d4, %d4, %d7; st.global.u32 [%d4], %r4;"""
    text = TEXT.format(body=".reg .pred %p<2>; " + body)
    ptx.load(text).launch("k", (1,), (32,), [np.uint64(0), np.uint64(0), np.uint64(out)], memory=memory)
    rows = np.arange(32) // 4  # four lanes hold a row, and rows 4 to 7 are rows 0 to 3 again
    np.testing.assert_array_equal(memory.read(out, 128).view(np.uint32), 100 + rows % 4)
