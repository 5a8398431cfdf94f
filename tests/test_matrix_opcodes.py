"""Opcodes of matrix instructions taken apart: the type of each operand, whichever of them the opcode names."""

import pytest

from refsim.matrix_opcodes import matrix_opcode


@pytest.mark.parametrize(
    ("opcode", "types"),
    [
        ("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32", {"d": "f32", "a": "e4m3", "b": "e5m2", "c": "f32"}),
        ("mma.sp.sync.aligned.m16n8k32.row.col.f16.f16.f16.f16", {"d": "f16", "a": "f16", "b": "f16", "c": "f16"}),
        (
            "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32",
            {"d": "f32", "a": "bf16", "b": "bf16", "c": "f32"},
        ),
        ("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16", {"d": "f32", "a": "bf16", "b": "bf16"}),
        ("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f16", {"d": "f32", "c": "f16", "a": "f16", "b": "f16"}),
        ("wmma.mma.sync.aligned.row.col.m8n8k32.s32.u4.u4.s32", {"d": "s32", "a": "u4", "b": "u4", "c": "s32"}),
        ("wmma.load.a.sync.aligned.row.m16n16k16.f16", {"a": "f16"}),
        ("wmma.store.d.sync.aligned.row.m16n16k16.f32", {"d": "f32"}),
    ],
)
def test_types_stand_by_operand(opcode: str, types: dict[str, str]) -> None:
    found = matrix_opcode(opcode)
    assert found is not None
    assert found.types == types


BLOCK = "mma.sync.aligned.m16n8k64.row.col.kind::{}.block_scale{}.f32.e2m1.e2m1.f32.{}"


@pytest.mark.parametrize(
    ("kind", "vector", "scale", "expected"),
    [
        ("mxf8f6f4", "", "ue8m0", "1x"),
        ("mxf4", "", "ue8m0", "2x"),
        ("mxf4nvf4", ".scale_vec::4X", "ue4m3", "4x"),
        ("mxf4nvf4", ".scale_vec::2X", "ue8m0", "2x"),
        ("mxf8f6f4", ".scale_vec::4X", "ue8m0", "4x"),
    ],
)
def test_the_type_of_scales_is_no_operands_and_the_vector_may_be_left_out(kind, vector, scale, expected) -> None:
    found = matrix_opcode(BLOCK.format(kind, vector, scale))
    assert found is not None
    assert (found.kind, found.vector, found.majors) == (kind, expected, ("row", "col"))
    assert found.types == {"d": "f32", "a": "e2m1", "b": "e2m1", "c": "f32"}


@pytest.mark.parametrize("operand", ["a", "b", "c", "d"])
def test_an_operand_may_be_named_behind_the_opcode(operand: str) -> None:
    found = matrix_opcode(f"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32.{operand}")
    assert found is not None
    assert (found.operand, found.shape, found.k, len(found.types)) == (operand, "m16n8k16", 16, 4)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mma",
        "add.rn.f32",
        "wgmma.fence.sync.aligned",
        "mma.sync.m16n8k16.row.col.f32.bf16.bf16.f32",
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16",
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16",
    ],
)
def test_what_is_no_product_is_none(text: str) -> None:
    assert matrix_opcode(text) is None
