"""Fragments by what people have at hand: the opcode of a PTX listing, or a part of a name."""

import pytest

from refsim.errors import RefsimError
from refsim.layouts import fragment
from refsim.matrix_opcodes import matrix_opcode

MMA = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
FP4 = "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3"


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        (f"{MMA}.a", "mma.m16n8k16.bf16.a"),
        (f"{MMA}.d", "mma.m16n8k16.bf16.d"),
        ("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16.d", "mma.m16n8k16.f16.d.f16"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32.d", "mma.m16n8k16.f16.d"),
        ("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32.b", "mma.m16n8k32.e5m2.b"),
        ("mma.sync.aligned.m8n8k4.row.row.f32.f16.f16.f32.b", "mma.m8n8k4.f16.b.row"),
        ("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32.b", "mma.m8n8k4.f16.b"),
        (f"{FP4}.sfa", "mma.m16n8k64.mxf4nvf4.4x.sfa"),
        ("wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3.d", "wgmma.m64n128k32.e4m3.d"),
        ("wgmma.mma_async.sync.aligned.m64n64k16.f16.f16.f16.d", "wgmma.m64n64k16.f16.d.f16"),
        ("wmma.load.a.sync.aligned.row.m16n16k16.shared.f16", "wmma.m16n16k16.f16.a"),
        ("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f16.d", "wmma.m16n16k16.f32.d"),
        ("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", "ldmatrix.m8n8.x4.b16.trans"),
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16", "ldmatrix.m8n8.x4.b16"),
        ("stmatrix.sync.aligned.m8n8.x2.shared::cta.b16", "stmatrix.m8n8.x2.b16"),
        ("tcgen05.ld.sync.aligned.32x32b.x8.b32", "tcgen05.ld.32x32b.x8"),
        ("m16n8k16.bf16.a", "mma.m16n8k16.bf16.a"),
        ("sp.m16n8k16.bf16.a", "mma.sp.m16n8k16.bf16.a"),
        ("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f16.f16.f16.f16.d", "mma.sp.m16n8k32.f16.d.f16"),
        ("mma.sp.sync.aligned.m16n8k64.row.col.f32.e4m3.e5m2.f32.meta", "mma.sp.m16n8k64.e4m3.meta"),
        ("wgmma.mma_async.sp.sync.aligned.m64n128k64.f32.e4m3.e4m3.meta", "wgmma.sp.m64k64.e4m3.meta"),
        ("wgmma.mma_async.sp.sync.aligned.m64n128k64.f32.e4m3.e4m3.a", "wgmma.m64n128k32.e4m3.a"),
        ("m64n128k32.e4m3.d", "wgmma.m64n128k32.e4m3.d"),
    ],
)
def test_one_fragment_is_taken(spelled: str, name: str) -> None:
    assert fragment(spelled).name == name


@pytest.mark.parametrize(
    ("spelled", "asks"),
    [
        (MMA, "mma.m16n8k16.bf16.{a,b,c,d}"),
        ("mma.m16n8k16.bf16", "mma.m16n8k16.bf16.{a,b,c,d}"),
        ("m16n8k16", "mma.m16n8k16.f16.{a,b,c,d}"),
        (FP4, "mma.m16n8k64.e2m1.{a,b,c,d}, mma.m16n8k64.mxf4nvf4.4x.{sfa,sfb}"),
        ("wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e5m2", "wgmma.m64n128k32.e4m3.{a,d}"),
        ("ldmatrix", "ldmatrix.m8n8.x1.b16"),
    ],
)
def test_several_are_a_question(spelled: str, asks: str) -> None:
    with pytest.raises(RefsimError) as caught:
        fragment(spelled)
    assert caught.value.code == "ambiguous-name"
    assert asks in caught.value.help


@pytest.mark.parametrize(
    ("spelled", "code"),
    [
        ("mma.sync.aligned.m16n8k17.row.col.f32.bf16.bf16.f32", "illegal-fragment"),
        ("wgmma.mma_async.sync.aligned.m64n12k32.f32.e4m3.e4m3.d", "illegal-fragment"),
        ("mma.sync.aligned.m16n8k16", "unknown-fragment"),
        ("wgma.m64n8k16", "unknown-fragment"),
    ],
)
def test_what_no_instruction_has_is_refused(spelled: str, code: str) -> None:
    with pytest.raises(RefsimError) as caught:
        fragment(spelled)
    assert caught.value.code == code


def test_the_parts_of_an_opcode() -> None:
    found = matrix_opcode(FP4)
    assert found is not None
    assert found.types == {"d": "f32", "a": "e2m1", "b": "e2m1", "c": "f32"}
    assert (found.shape, found.k, found.kind, found.vector, found.operand) == ("m16n8k64", 64, "mxf4nvf4", "4x", "")
    assert matrix_opcode("add.rn.f32") is None
    assert matrix_opcode("mma.m16n8k16.bf16.a") is None
