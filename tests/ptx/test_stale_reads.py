"""Reads through the cache for read-only data, of bytes that the launch wrote, in every way of writing them."""

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError

TEXT = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y)
{{
    .reg .b32 %r<8>; .reg .b64 %d<6>;
    ld.param.u64 %d1, [x]; ld.param.u64 %d2, [y]; mov.u32 %r1, %tid.x; mov.u32 %r6, 0;
    mad.wide.u32 %d1, %r1, 8, %d1; mad.wide.u32 %d2, %r1, 8, %d2;
    {body}
    st.global.u32 [%d2+4], %r6; ret;
}}
"""
NC = "ld.global.nc.u32 %r6, [%d1];"
WRITES = {
    "store": "st.global.u32 [%d1], %r1;",
    "one byte of it": "st.global.u8 [%d1+3], %r1;",
    "red": "red.global.add.u32 [%d1], %r1;",
    "an atomic that swaps": "atom.global.cas.b32 %r5, [%d1], 0, 7;",
}


def launched(body: str, threads: int = 32, **checks: object) -> ptx.Trace:
    x, y = np.zeros(2 * threads, np.uint32), np.zeros(2 * threads, np.uint32)
    return ptx.load(TEXT.format(body=body)).launch("k", (1,), (threads,), [x, y], checks=ptx.Checks(**checks))


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("load", [NC, "ldu.global.u32 %r6, [%d1];", "ld.global.nc.v2.u32 {%r6, %r5}, [%d1];"])
@pytest.mark.parametrize("between", ["", "bar.sync 0;", "membar.gl;"])
def test_what_the_launch_wrote_is_not_read_as_read_only(write: str, load: str, between: str) -> None:
    with pytest.raises(RefsimError, match="stale-read") as caught:
        launched(write + between + load)
    assert "byte 0 of argument 0" in caught.value.what


@pytest.mark.parametrize(
    "body",
    [
        NC + "st.global.u32 [%d1], %r1;",  # in place: what is read is what was there before
        "st.global.u32 [%d1+4], %r1;" + NC,  # its neighbour
        "st.global.u32 [%d1], %r1; ld.global.u32 %r6, [%d1];",
        "st.global.u32 [%d1], %r1; ld.global.u32 %r6, [%d1];" + NC.replace("%d1", "%d2"),
    ],
)
def test_other_reads_are_as_good_as_ever(body: str) -> None:
    assert not launched(body).findings


def test_a_launch_reads_what_an_earlier_one_wrote() -> None:
    program = ptx.load(TEXT.format(body=NC + "st.global.u32 [%d2], %r1;"))
    memory = ptx.GlobalMemory()
    for _ in range(2):
        assert not program.launch("k", (1,), (4,), [np.zeros(8, np.uint32)] * 2, memory=memory).findings


def test_it_is_noted_where_findings_are() -> None:
    body = WRITES["store"] + NC
    assert [each.code for each in launched(body, races="record").findings] == ["stale-read"]
    assert launched(body, off=("stale-read",)).off == ("stale-read",)
