"""Registers of 128 bits in memory: loads, stores, exchange and compare-and-swap move patterns, never numbers."""

import numpy as np
import pytest

from refsim import ptx

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"
BODY = """.visible .entry k(.param .u64 out, .param .u64 table) {
    .reg .b32 %r<4>; .reg .b64 %d<8>; .reg .b128 %q<5>;
    mov.u32 %r1, %tid.x; ld.param.u64 %d1, [out]; ld.param.u64 %d2, [table];
    mul.wide.u32 %d3, %r1, 16; add.u64 %d4, %d1, %d3; add.u64 %d5, %d2, %d3;
    BODY
    ret; }"""
# A quiet and a signalling NaN, -0.0, a subnormal: patterns that arithmetic or comparison of floats would change.
PATTERNS = np.array(
    [0x7FF8000000000001, 0x7FF0000000000001, 1 << 63, 1, 0, (1 << 64) - 1, 0x7FF0000000000000, 42], np.uint64
)
LANES = 64
TABLE = np.stack([PATTERNS[np.arange(LANES) % 8], PATTERNS[np.arange(LANES) // 8 % 8]], 1)


def run(body: str, out: np.ndarray, policy: str = "eager") -> np.ndarray:
    ptx.load(HEAD + BODY.replace("BODY", body)).launch("k", (1,), (LANES,), [out, TABLE.copy()], policy=policy)
    return out


@pytest.mark.parametrize("space", [".global", ""])
def test_a_copy_through_a_wide_register_keeps_every_bit(space: str) -> None:
    body = f"ld{space}.b128 %q1, [%d5]; mov.b128 %q2, %q1; st{space}.b128 [%d4], %q2;"
    assert np.array_equal(run(body, np.zeros((LANES, 2), np.uint64)), TABLE)


def test_shared_memory_and_halves() -> None:
    body = """.shared .align 16 .b8 s[1024]; .reg .b32 %a; mov.u32 %a, s; mad.lo.u32 %a, %r1, 16, %a;
        ld.global.b128 %q1, [%d5]; st.shared.b128 [%a], %q1; ld.shared.b128 %q2, [%a]; mov.b128 {%d6, %d7}, %q2;
        mov.b128 %q3, {%d7, %d6}; st.global.b128 [%d4], %q3;"""
    assert np.array_equal(run(body, np.zeros((LANES, 2), np.uint64)), TABLE[:, ::-1])


def test_compare_and_swap_compares_bits_and_not_numbers() -> None:
    """Against memory that holds the same NaN the swap happens; against -0.0 for +0.0 it does not."""
    body = """ld.global.b128 %q1, [%d5]; mov.b64 %d6, 5; mov.b128 %q2, {%d6, %d6};
        atom.global.cas.b128 %q3, [%d4], %q1, %q2;"""
    memory = TABLE.copy()
    memory[::2, 0] ^= np.uint64(1 << 63)
    want = np.where((memory == TABLE).all(axis=1, keepdims=True), np.uint64(5), memory)
    assert np.array_equal(run(body, memory.copy()), want)
    assert (want == 5).all(axis=1).sum() == LANES // 2


def test_exchanges_on_one_word_form_a_chain() -> None:
    """Every pattern is found by exactly one other thread, or stays."""
    body = "ld.global.b128 %q1, [%d5]; atom.global.exch.b128 %q2, [%d1+1024], %q1; st.global.b128 [%d4], %q2;"
    out = run(body, np.concatenate([np.zeros((LANES, 2), np.uint64), np.full((1, 2), 9, np.uint64)]))
    assert sorted(map(tuple, out.tolist())) == sorted(map(tuple, [*TABLE.tolist(), [9, 9]]))


def test_compare_and_swap_by_all_threads_lets_one_through() -> None:
    body = """mov.b64 %d6, 9; mov.b128 %q1, {%d6, %d6}; ld.global.b128 %q2, [%d5];
        atom.global.cas.b128 %q3, [%d1+1024], %q1, %q2; st.global.b128 [%d4], %q3;"""
    out = run(body, np.concatenate([np.zeros((LANES, 2), np.uint64), np.full((1, 2), 9, np.uint64)]))
    assert (out[:LANES] == 9).all(axis=1).sum() == 1
    assert (out[-1] == out[1]).all()


def test_movmatrix_transposes() -> None:
    body = """.reg .b32 %m<3>; ld.global.b32 %m1, [%d5]; movmatrix.sync.aligned.m8n8.trans.b16 %m2, %m1;
        st.global.b32 [%d4], %m2;"""
    elements = np.arange(2 * 64, dtype=np.uint16).reshape(2, 8, 8)
    table = np.zeros((LANES, 4), np.uint32)
    table[:, 0] = elements.reshape(LANES, 2).view(np.uint32)[:, 0]
    out = np.zeros((LANES, 4), np.uint32)
    ptx.load(HEAD + BODY.replace("BODY", body)).launch("k", (1,), (LANES,), [out, table])
    got = np.ascontiguousarray(out[:, 0]).view(np.uint16).reshape(2, 8, 8)
    assert np.array_equal(got, elements.transpose(0, 2, 1))
