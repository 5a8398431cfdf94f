"""Addresses as values: of symbols in generic accesses, of functions, in tables that a module begins with."""

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"
SHARED, LOCAL = 0x0000_0020_0000_0000, 0x0000_0030_0000_0000


def run(body: str, declarations: str = "", threads: int = 4, memory: ptx.GlobalMemory | None = None) -> np.ndarray:
    """What each thread puts into %d4."""
    text = f"""{HEAD}{declarations}\n.visible .entry k(.param .u64 out) {{
    .reg .b32 %r<20>; .reg .b64 %d<16>; .reg .pred %p<4>;
    ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 8; add.s64 %d3, %d1, %d2;
    {body}
    st.global.u64 [%d3], %d4; ret; }}\n"""
    out = np.zeros(threads, np.uint64)
    ptx.load(text).launch("k", (1,), (threads,), [out], memory=memory)
    return out


def test_a_symbol_in_a_generic_access_is_in_its_window() -> None:
    """Shared, local and global: through the bare name and through a register made generic by hand."""
    body = """.shared .align 8 .b32 pad, s[8]; .local .align 8 .b32 l[2]; .reg .b64 %s;
    mov.u64 %s, s; cvta.shared.u64 %s, %s; @!%p1 bra A; A:
    st.u32 [s+4], 11; st.u32 [l+4], 22; st.u32 [g+4], 33; bar.sync 0;
    ld.shared.u32 %r2, [s+4]; ld.local.u32 %r3, [l+4]; ld.global.u32 %r4, [g+4]; ld.u32 %r5, [%s+4];
    ld.u32 %r6, [s+4]; ld.volatile.u32 %r7, [l+4]; ld.relaxed.gpu.u32 %r8, [g+4];
    mul.lo.u32 %r3, %r3, %r8; add.u32 %r2, %r2, %r3; sub.u32 %r5, %r5, %r6; add.u32 %r2, %r2, %r5;
    sub.u32 %r7, %r7, 22; add.u32 %r2, %r2, %r7; cvt.u64.u32 %d4, %r2;"""
    body = body.replace("@!%p1", "setp.eq.u32 %p1, %r1, 99; @!%p1")
    assert (run(body, ".global .u32 g[2];", threads=1) == 11 + 22 * 33).all()


def test_an_atomic_on_a_bare_name_counts_in_shared_memory() -> None:
    body = """.shared .b32 s; setp.eq.u32 %p1, %r1, 0; @%p1 st.shared.u32 [s], 0; bar.sync 0;
    atom.add.u32 %r2, [s], 2; red.add.u32 [s], 1; bar.sync 0; ld.shared.u32 %r3, [s]; cvt.u64.u32 %d4, %r3;"""
    assert (run(body, threads=40) == 120).all()


def test_a_move_gives_the_place_in_the_window_and_no_generic_address() -> None:
    body = """.shared .b32 a; .shared .b32 s; .reg .b64 %s; mov.u64 %s, s; cvta.shared.u64 %d5, %s; sub.u64 %d4, %d5, %s;
    st.shared.u32 [%s], 5; st.shared.u32 [s], 5;"""
    assert (run(body, threads=1) == SHARED).all()


def test_a_module_begins_with_addresses_of_its_variables() -> None:
    declarations = """.global .u32 x[4] = {10, 11, 12, 13}; .const .u32 c[2] = {20, 21};
    .global .u64 table[4] = {x, generic(x)+4, c+4, 0}; .global .u64 chain = table;
    .global .align 8 .u8 bytes[8] = {0xff(x), 0xff00(x), 0xff0000(x), 0xff000000(x), 0xff00000000(x), 0xff0000000000(x),
    0xff000000000000(x), 0xff00000000000000(x)};"""
    body = """ld.global.u64 %d5, [chain]; ld.global.u64 %d6, [%d5+8]; ld.global.u32 %r2, [%d6+4];
    ld.global.u64 %d6, [%d5+16]; ld.const.u32 %r3, [%d6]; mul.lo.u32 %r2, %r2, 100; add.u32 %r2, %r2, %r3;
    ld.global.u64 %d7, [bytes]; ld.global.u64 %d8, [%d5]; mov.u64 %d9, x; sub.u64 %d7, %d7, %d8; sub.u64 %d8, %d8, %d9;
    cvt.u64.u32 %d4, %r2; add.u64 %d4, %d4, %d7; add.u64 %d4, %d4, %d8;"""
    assert (run(body, declarations) == 1221).all()


def test_a_table_is_written_once_a_memory() -> None:
    """A later launch finds what an earlier one left there."""
    memory = ptx.GlobalMemory()
    declarations = ".global .u32 x; .global .u64 p = x;"
    body = "ld.global.u64 %d4, [p]; mov.u64 %d5, 7; bar.sync 0; st.global.u64 [p], %d5;"
    first, second = (run(body, declarations, 1, memory)[0] for _ in range(2))
    assert first > 1 << 38
    assert second == 7


def test_functions_have_addresses_of_their_own_in_no_window() -> None:
    declarations = ".func f() { ret; }\n.func g() { ret; }\n.global .u64 t[2] = {f, g};"
    body = "mov.u64 %d5, f; mov.u64 %d6, g; ld.global.u64 %d7, [t+8]; sub.u64 %d7, %d7, %d6; sub.u64 %d4, %d6, %d5;"
    body += "add.u64 %d4, %d4, %d7;"
    assert (run(body, declarations) == 16).all()
    with pytest.raises(RefsimError) as caught:
        run("mov.u64 %d5, f; ld.u64 %d4, [%d5];", declarations)
    assert caught.value.code == "out-of-bounds"


def test_an_address_of_nobody_is_said_so() -> None:
    with pytest.raises(RefsimError, match="'nobody'"):
        run("mov.u64 %d4, 0;", ".global .u64 t = nobody;")


def test_values_behind_names_and_registers() -> None:
    """`r+1` where a value stands, elements of arrays by number and by register."""
    declarations = ".global .u32 x[4] = {10, 11, 12, 13}; .global .u64 w[2] = {100, 200};"
    body = """st.global.u32 [%d3], %r1+(1+2)*4; ld.global.u32 %r2, [%d3]; ld.global.u32 %r3, x[3]; ld.global.u32 %r4, x[%r1];
    add.u32 %r5, %r1, 1; ld.global.u64 %d5, w[1]; @!%p1 bra A; A: mov.u64 %d6, x+4; ld.global.u32 %r6, [%d6];
    mov.u64 %d7, w[%r5+-1];
    ld.global.u64 %d8, [%d7]; add.u32 %r2, %r2, %r3; add.u32 %r2, %r2, %r4; add.u32 %r2, %r2, %r6; cvt.u64.u32 %d4, %r2;
    add.u64 %d4, %d4, %d5; add.u64 %d4, %d4, %d8;""".replace("@!%p1", "setp.eq.u32 %p1, %r1, 99; @!%p1")
    lane = np.arange(2)
    assert (run(body, declarations, 2) == (lane + 12) + 13 + (10 + lane) + 11 + 200 + 100 * (1 + lane)).all()


def test_vector_registers_and_their_elements() -> None:
    declarations = ".global .v4 .u32 x[2] = {{1, 2, 3, 4}, {5, 6, 7, 8}};"
    body = """.reg .v4 .u32 v, w<2>; .reg .v2 .u64 d; ld.global.v4.u32 v, [x+16]; mov.v4.u32 w1, v; add.u32 w1.y, w1.x, v.w;
    st.global.v4.u32 [x], w1; ld.global.u32 %r2, x[0]; ld.global.u32 %r3, [x+4]; mad.lo.u32 %r2, %r3, 100, w1.b; mov.u64 d.x, 3;
    cvt.u64.u32 d.y, %r2; mul.lo.u64 %d4, d.x, d.y;"""
    assert (run(body, declarations, 1) == 3 * (1300 + 7)).all()
