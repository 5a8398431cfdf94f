"""refsim.silicon.scalar_probe: operands are a fixed function of the row, and reach what they are meant to reach."""

import numpy as np
import pytest

from refsim.errors import RefsimError
from refsim.silicon.scalar_probe import (
    TABLE_ROWS,
    ScalarForm,
    chunk_operands,
    kind_bits,
    operand_rows,
    probe_module,
    table_operands,
)


def test_operands_do_not_depend_on_where_a_run_starts():
    whole = operand_rows(("f32", "u32", "f16x2"), 0, 300)
    part = operand_rows(("f32", "u32", "f16x2"), 200, 100)
    assert all(np.array_equal(a[200:], b) for a, b in zip(whole, part, strict=True))


def test_operands_have_the_width_of_their_kind():
    kinds = ("f16", "bf16", "f16x2", "bf16x2", "f32", "f64", "u16", "u32", "u64", "shift")
    columns = [operand_rows((kind,), 0, 4)[0] for kind in kinds]
    assert [column.dtype.itemsize * 8 for column in columns] == [kind_bits(kind) for kind in kinds]


def test_table_pits_every_corner_against_every_corner():
    a, b = table_operands(("f32", "f32"))
    pairs = set(zip(a[:256].tolist(), b[:256].tolist(), strict=True))
    assert len(a) == TABLE_ROWS
    assert len(pairs) == 256
    assert {(0, 0x80000000), (0x80000000, 0), (0x7F800000, 0xFF800000)} <= pairs


def test_chunks_reach_cancellation_and_underflow():
    with np.errstate(all="ignore"):
        a, b, c = (column.view(np.float32).astype(np.float64) for column in chunk_operands(("f32",) * 3, 0))
        product = a * b
        cancelled = np.abs(product + c) < np.abs(product) * 2.0**-20
        tiny = (np.abs(product) < 2.0**-126) & (np.abs(product) > 2.0**-150)
    assert cancelled.mean() > 0.02
    assert tiny.mean() > 0.02


def test_kernel_text_holds_the_body_between_loads_and_store():
    text = probe_module([ScalarForm("add.rn.f32", ("f32", "f32"), 32, "add.rn.f32 %d, %a, %b;")])
    lines = [line.strip() for line in text.splitlines()]
    body = lines.index("add.rn.f32 %d, %a, %b;")
    assert text.startswith(".version 9.0\n.target sm_90a\n")
    assert lines.index("ld.global.b32 %b, [%address];") < body < lines.index("st.global.b32 [%cell], %d;")


def test_unknown_kinds_and_rows_are_errors():
    with pytest.raises(RefsimError, match="no operand kind is called 'f8'"):
        operand_rows(("f8",), 0, 1)
    with pytest.raises(RefsimError, match="do not exist"):
        operand_rows(("f32",), -1, 1)
