"""Operands of a statement against the operands of a form: addresses with coordinates, results that are read, vectors."""

from collections.abc import Iterator

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError
from refsim.ptx.isa import forms
from refsim.ptx.machine.program import forget
from refsim.sources import PTX

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"


@pytest.fixture
def trial() -> Iterator[dict[str, list[object]]]:
    """Three instructions that no GPU has: each shows what its clause was given."""
    seen: dict[str, list[object]] = {}
    forms.clauses()

    @forms.instruction("trial.coords.u32 d, [a, {c:s32}], b?", source=PTX["mov"])
    def coords(address: np.ndarray, places: list[np.ndarray], b: np.ndarray | None) -> np.ndarray:
        seen["coords"] = [int(address[0]), [int(place[0]) for place in places], None if b is None else int(b[0])]
        return np.array([sum(int(place[0]) for place in places)], np.uint32)

    @forms.instruction("trial.both.u32 +d**, a", source=PTX["mov"])
    def both(d: list[np.ndarray], a: np.ndarray) -> list[np.ndarray]:
        return [part + a for part in d]

    @forms.instruction("trial.scalar.u32 +d, a", source=PTX["mov"])
    def scalar(d: np.ndarray, a: np.ndarray) -> np.ndarray:
        return d * a

    forget()
    yield seen
    del forms._CLAUSES["trial"]
    forms._matches.cache_clear()
    forms._bound.cache_clear()


def run(body: str, threads: int = 4) -> np.ndarray:
    text = f"""{HEAD}.visible .entry k(.param .u64 out) {{
    .reg .b32 %r<20>; .reg .b64 %d<6>; .reg .b16 %h<9>; .reg .pred %p<4>;
    ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4; add.s64 %d3, %d1, %d2;
    {body}
    st.global.u32 [%d3], %r2; ret; }}\n"""
    out = np.zeros(threads, np.uint32)
    ptx.load(text).launch("k", (1,), (threads,), [out])
    return out


def test_an_address_has_coordinates(trial: dict[str, list[object]]) -> None:
    assert (run("mov.b64 %d4, 64; mov.b32 %r3, 7; trial.coords.u32 %r2, [%d4+16, {%r3, 5, -2}];") == 10).all()
    assert trial["coords"] == [80, [7, 5, -2], None]
    run("mov.b64 %d4, 64; mov.b32 %r3, 7; trial.coords.u32 %r2, [%d4, {%r3}], 9;")
    assert trial["coords"] == [64, [7], 9]


@pytest.mark.parametrize("operands", ["[%d4]", "[%d4], {1, 2}", "[%d4, {1}, {2}]", "[%d4, {1}], {2}"])
def test_coordinates_stand_in_the_brackets_and_nowhere_else(trial: dict[str, list[object]], operands: str) -> None:
    with pytest.raises(RefsimError) as caught:
        run(f"mov.b64 %d4, 64; trial.coords.u32 %r2, {operands};")
    assert caught.value.code == "malformed-ptx"


def test_a_load_takes_no_coordinates() -> None:
    with pytest.raises(RefsimError) as caught:
        run("mov.b64 %d4, 64; ld.global.u32 %r2, [%d4, {1}];")
    assert caught.value.code == "malformed-ptx"


@pytest.mark.parametrize("count", [1, 3, 8])
def test_a_result_may_be_read_as_well(trial: dict[str, list[object]], count: int) -> None:
    registers = [f"%r{10 + place}" for place in range(count)]
    set_up = "".join(f"mov.u32 {register}, {place + 1};" for place, register in enumerate(registers))
    total = "mov.u32 %r2, 0;" + "".join(f"add.u32 %r2, %r2, {register};" for register in registers)
    assert (
        run(f"{set_up} trial.both.u32 {{{', '.join(registers)}}}, 100; {total}")
        == 100 * count + count * (count + 1) // 2
    ).all()


def test_a_result_that_is_read_keeps_lanes_that_a_guard_holds_back(trial: dict[str, list[object]]) -> None:
    body = "mov.u32 %r2, 3; bar.sync 0; setp.lt.u32 %p1, %r1, 2; @%p1 trial.scalar.u32 %r2, 5;"
    assert run(body).tolist() == [15, 15, 3, 3]


def test_a_register_of_128_bits_packs_and_unpacks() -> None:
    body = """.reg .b128 %q, %s; .reg .b64 %e<4>; mov.b64 %d4, 0x1122334455667788; cvt.u64.u32 %d5, %r1;
    mov.b128 %q, {%d4, %d5}; bar.sync 0; mov.b128 %s, %q; mov.b128 {%r3, %r4, %r5, %r6}, %s; mov.b128 {%e1, %e2}, %s;
    setp.eq.u64 %p1, %e1, %d4; selp.b32 %r2, %r5, 99, %p1; add.u32 %r2, %r2, %r6; sub.u32 %r3, %r3, 0x55667788;
    add.u32 %r2, %r2, %r3; sub.u32 %r4, %r4, 0x11223344; add.u32 %r2, %r2, %r4;"""
    assert run(body).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "statement", ["mov.b64 %d1, %q;", "mov.b128 %q, %d1;", "add.u64 %d1, %q, 1;", "mov.b128 %d1, %q;"]
)
def test_a_register_of_128_bits_stands_where_one_belongs(statement: str) -> None:
    with pytest.raises(RefsimError) as caught:
        run(f".reg .b128 %q; {statement}")
    assert caught.value.code == "malformed-ptx"
