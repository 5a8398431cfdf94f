"""Who writes and reads some bytes: accesses of every kind, and the ways to say which bytes are meant."""

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError
from refsim.ptx.memory.space import GLOBAL_BASE, SHARED_BASE, WINDOWS
from refsim.ptx.observers.steps import Stretch

PTX = """.version 9.0
.target sm_90a
.address_size 64
.global .align 4 .u32 limit = 7;
.visible .entry k(.param .u64 x, .param .u64 y)
{
    .reg .b32 %r<8>; .reg .b64 %d<6>; .reg .pred %p<2>;
    .shared .align 16 .b8 _ZZ1kE4tile[512];
    .shared .align 4 .b8 flags[64];
    ld.param.u64 %d1, [x]; ld.param.u64 %d2, [y]; mov.u32 %r1, %tid.x; mov.u32 %r2, _ZZ1kE4tile;
    mad.wide.u32 %d3, %r1, 16, %d1; mad.lo.u32 %r3, %r1, 16, %r2;
    cp.async.cg.shared.global [%r3], [%d3], 16;
    cp.async.wait_all;
    bar.sync 0;
    ld.shared.u32 %r4, [_ZZ1kE4tile+16];
    ld.global.u32 %r5, [limit];
    add.u32 %r4, %r4, %r5;
    atom.global.cas.b32 %r6, [%d2], 0, %r4;
    mov.u32 %r7, flags; mad.lo.u32 %r7, %r1, 2, %r7;
    st.shared.u8 [%r7], %r1;
    ret;
}
"""


def watched(at: str | Stretch, *, policy: str = "eager", blocks: int = 1, most: int = 100) -> ptx.AddressWatch:
    program = ptx.load(PTX)
    stretch = ptx.stretch_named(program, "k", at) if isinstance(at, str) else at
    watch = ptx.AddressWatch(stretch, most)
    x = np.arange(128, dtype=np.uint32)
    program.launch("k", (blocks,), (32,), [x, np.zeros(2, np.uint32)], policy=policy, watching=watch)
    return watch


@pytest.mark.parametrize("policy", ["eager", "lazy", "random"])
def test_a_copy_and_the_reads_of_what_it_brought(policy: str) -> None:
    copied, read = watched("tile+16", policy=policy).touched
    assert (copied.kind, copied.statement.opcode, copied.threads) == ("copy", "cp.async.cg.shared.global", (1,))
    assert copied.bits == (sum(value << 32 * place for place, value in enumerate((4, 5, 6, 7))),)
    assert (read.kind, read.threads, read.bits) == ("read", tuple(range(32)), (4,) * 32)
    assert set(read.addresses) == {SHARED_BASE + 16}
    assert not any(read.wrote)


def test_an_atomic_says_who_wrote() -> None:
    (update,) = watched("arg1").touched
    assert update.kind == "update"
    assert update.wrote == (True,) + (False,) * 31
    assert set(update.bits) == {11}


def test_bytes_of_one_variable_are_not_those_of_the_next() -> None:
    assert {touch.statement.opcode for touch in watched("flags").touched} == {"st.shared.u8"}
    assert watched("flags+1:1").touched == []
    (store,) = watched("flags+4:2").touched
    assert store.threads == (2,)


def test_a_module_variable_and_a_parameter_are_found_by_name() -> None:
    (read,) = watched("limit").touched
    assert (read.statement.opcode, set(read.bits)) == ("ld.global.u32", {7})
    assert [touch.kind for touch in watched("y").touched] == ["update"]
    assert watched("y+4").touched == []
    assert {touch.statement.opcode for touch in watched("x").touched} == {"cp.async.cg.shared.global"}


def test_threads_count_over_the_launch() -> None:
    stores = watched("flags+4:2", blocks=3).touched
    assert sorted(thread for store in stores for thread in store.threads) == [2, 34, 66]


def test_what_is_too_much_is_counted() -> None:
    whole = watched("tile", blocks=2)
    few = watched("tile", blocks=2, most=1)
    assert (len(few.touched), few.left_out) == (1, len(whole.touched) - 1)


@pytest.mark.parametrize(
    ("text", "stretch"),
    [
        ("0x410", Stretch("shared", 0x410, 0x414)),
        ("1040:16", Stretch("shared", 1040, 1056)),
        (hex(GLOBAL_BASE + 512), Stretch("global", 512, 516)),
        (f"{WINDOWS['shared'] + 1024:#x}+16:1", Stretch("shared", 1040, 1041)),
        (hex(WINDOWS["local"] + 8), Stretch("local", 8, 12)),
        ("tile", Stretch("shared", SHARED_BASE, SHARED_BASE + 512)),
        ("_ZZ1kE4tile+0x20:8", Stretch("shared", SHARED_BASE + 32, SHARED_BASE + 40)),
        ("flags+4", Stretch("shared", SHARED_BASE + 516, SHARED_BASE + 520)),
        ("arg1+256:4", Stretch("global", 256, 260, "argument 1")),
        ("y+256:4", Stretch("global", 256, 260, "argument 1")),
    ],
)
def test_bytes_are_named_by_address_variable_or_argument(text: str, stretch: Stretch) -> None:
    assert ptx.stretch_named(ptx.load(PTX), "k", text) == stretch


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("tiel", "unknown-symbol"),
        ("arg2", "unknown-symbol"),
        ("", "bad-address"),
        ("tile:0", "bad-address"),
        ("0x500000000", "bad-address"),
        ("tile+x", "bad-address"),
        ("ile", "unknown-symbol"),
    ],
)
def test_what_names_no_bytes_is_refused(text: str, code: str) -> None:
    with pytest.raises(RefsimError) as caught:
        ptx.stretch_named(ptx.load(PTX), "k", text)
    assert caught.value.code == code


def test_a_launch_that_begins_again_is_seen_once() -> None:
    """A read of what nobody wrote is followed in a second run from the start."""
    program = ptx.load(PTX.replace("st.shared.u8 [%r7], %r1;", "ld.shared.u8 %r5, [%r7]; st.global.u32 [%d2], %r4;"))
    watch = ptx.AddressWatch(ptx.stretch_named(program, "k", "limit"))
    trace = program.launch("k", (1,), (32,), [np.arange(128, dtype=np.uint32), np.zeros(2, np.uint32)], watching=watch)
    assert trace.notes
    assert len(watch.touched) == 1
