"""Statements side by side that one call computes have the bits of one call each; one that reads another's result stands alone."""

import numpy as np
import pytest

from refsim import ptx
from refsim.ptx.isa.real import fma_single
from refsim.ptx.lowering import codegen

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
COUNT = 6


def text(last: str) -> str:
    """`y[i * 6 + j] = fma(a, x[i] + j, 1)` for six j, the last one of `last`."""
    lines = [f"fma.rn.f32 %y{j}, %a, %x{j}, %c;" for j in range(COUNT - 1)] + [last]
    makes = [f"add.f32 %x{j}, %x, 0f{np.float32(j).view(np.uint32):08X};" for j in range(COUNT)]
    stores = [f"st.global.f32 [%d4+{4 * j}], %y{j};" for j in range(COUNT)]
    return f"""{HEAD}.visible .entry k(.param .u64 from, .param .u64 to) {{
    .reg .f32 %x, %a, %c, %x<{COUNT}>, %y<{COUNT}>; .reg .b32 %r1; .reg .b64 %d<5>;
    ld.param.u64 %d1, [from]; ld.param.u64 %d2, [to]; mov.u32 %r1, %tid.x;
    mul.wide.u32 %d3, %r1, 4; add.u64 %d3, %d1, %d3; mul.wide.u32 %d4, %r1, {4 * COUNT}; add.u64 %d4, %d2, %d4;
    ld.global.f32 %x, [%d3]; mov.f32 %a, 0f40490FDB; mov.f32 %c, 0f3F800000;
    {" ".join(makes)} {" ".join(lines)} {" ".join(stores)} ret; }}"""


@pytest.mark.parametrize("last", ["fma.rn.f32 %y5, %a, %x5, %c;", "fma.rn.f32 %y5, %y4, %x5, %c;"])
def test_a_run_has_the_bits_of_its_statements(last: str) -> None:
    x = np.array([1.5, -2.25, np.nan, np.inf, 1e-40, 3e38, 0.1, -0.0], np.float32)
    y = np.zeros((len(x), COUNT), np.float32)
    ptx.load(text(last)).launch("k", 1, len(x), [x, y])
    a, c, how = np.array([np.pi], np.float32), np.ones(1, np.float32), {"rounding": "rn", "ftz": False, "sat": False}
    with np.errstate(all="ignore"):
        want = [fma_single(a, x + np.float32(j), c, **how) for j in range(COUNT)]
        if "%y4" in last:
            want[5] = fma_single(want[4], x + np.float32(5), c, **how)
    assert (y.view(np.uint32) == np.array(want, np.float32).T.view(np.uint32)).all()


def test_a_statement_that_reads_another_s_result_is_no_part_of_its_run() -> None:
    for last, lengths in (("%a, %x5, %c", [6]), ("%y4, %x5, %c", [5, 1]), ("%a, %x5, %y0", [5, 1])):
        code = ptx.load(text(f"fma.rn.f32 %y5, {last};")).code("k")
        steps = [step for step in code.steps if step.statement.opcode == "fma.rn.f32"]
        assert [len(run) for run in codegen.runs(steps)] == lengths


def test_many_lanes_are_computed_piece_by_piece_or_each_for_itself() -> None:
    generator = np.random.default_rng(3)
    for lanes in (1, 7, 600, 5000):
        x = [generator.standard_normal(lanes).astype(np.float32) for _ in range(30)]
        seen: list[tuple[int, ...]] = []

        def doubled(a: np.ndarray, b: np.ndarray, seen: list[tuple[int, ...]] = seen) -> np.ndarray:
            seen.append(np.shape(a))
            return a + b

        found = codegen.in_one_call(doubled, lambda row: row, 30, x, x[0][:1])
        assert (np.array(found) == np.array(x) + x[0][0]).all()
        assert len(seen) == {1: 1, 7: 1, 600: 3, 5000: 30}[lanes]
