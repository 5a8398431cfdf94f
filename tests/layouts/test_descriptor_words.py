"""Words of descriptors against the C bit fields of CUTLASS."""

import ctypes

import pytest

from refsim.layouts.descriptors import DESCRIPTORS, Descriptor, descriptor

WGMMA, TCGEN05 = descriptor("wgmma-smem"), descriptor("tcgen05-smem")
WORDS = [row for row in DESCRIPTORS if isinstance(row, Descriptor)]


class UmmaMatrix(ctypes.LittleEndianStructure):
    """The members of UMMA::SmemDescriptor, in order: the compiler lays them out, not we."""

    _fields_ = (
        ("start_address", ctypes.c_uint64, 14),
        ("a", ctypes.c_uint64, 2),
        ("leading_byte_offset", ctypes.c_uint64, 14),
        ("b", ctypes.c_uint64, 2),
        ("stride_byte_offset", ctypes.c_uint64, 14),
        ("version", ctypes.c_uint64, 2),
        ("c", ctypes.c_uint64, 1),
        ("base_offset", ctypes.c_uint64, 3),
        ("leading_mode", ctypes.c_uint64, 1),
        ("d", ctypes.c_uint64, 8),
        ("swizzle", ctypes.c_uint64, 3),
    )


class GmmaMatrix(ctypes.LittleEndianStructure):
    """The members of GmmaDescriptor, in order."""

    _fields_ = (
        ("start_address", ctypes.c_uint64, 14),
        ("a", ctypes.c_uint64, 2),
        ("leading_byte_offset", ctypes.c_uint64, 14),
        ("b", ctypes.c_uint64, 2),
        ("stride_byte_offset", ctypes.c_uint64, 14),
        ("c", ctypes.c_uint64, 2),
        ("d", ctypes.c_uint64, 1),
        ("base_offset", ctypes.c_uint64, 3),
        ("e", ctypes.c_uint64, 10),
        ("swizzle", ctypes.c_uint64, 2),
    )


class UmmaInstruction(ctypes.LittleEndianStructure):
    """The members of UMMA::InstrDescriptor, in order."""

    _fields_ = (
        ("sparsity_selector", ctypes.c_uint32, 2),
        ("sparse", ctypes.c_uint32, 1),
        ("saturate", ctypes.c_uint32, 1),
        ("d_format", ctypes.c_uint32, 2),
        ("a", ctypes.c_uint32, 1),
        ("a_format", ctypes.c_uint32, 3),
        ("b_format", ctypes.c_uint32, 3),
        ("negate_a", ctypes.c_uint32, 1),
        ("negate_b", ctypes.c_uint32, 1),
        ("a_major", ctypes.c_uint32, 1),
        ("b_major", ctypes.c_uint32, 1),
        ("n", ctypes.c_uint32, 6),
        ("b", ctypes.c_uint32, 1),
        ("m", ctypes.c_uint32, 5),
        ("c", ctypes.c_uint32, 1),
        ("max_shift", ctypes.c_uint32, 2),
    )


class UmmaScaled(ctypes.LittleEndianStructure):
    """The members of UMMA::InstrDescriptorBlockScaled, in order."""

    _fields_ = (
        ("a", ctypes.c_uint32, 2),
        ("sparse", ctypes.c_uint32, 1),
        ("b", ctypes.c_uint32, 1),
        ("b_scale_id", ctypes.c_uint32, 2),
        ("c", ctypes.c_uint32, 1),
        ("a_format", ctypes.c_uint32, 3),
        ("b_format", ctypes.c_uint32, 3),
        ("negate_a", ctypes.c_uint32, 1),
        ("negate_b", ctypes.c_uint32, 1),
        ("a_major", ctypes.c_uint32, 1),
        ("b_major", ctypes.c_uint32, 1),
        ("n", ctypes.c_uint32, 6),
        ("scale_format", ctypes.c_uint32, 1),
        ("m", ctypes.c_uint32, 5),
        ("a_scale_id", ctypes.c_uint32, 2),
        ("k", ctypes.c_uint32, 1),
    )


def packed(structure: type[ctypes.LittleEndianStructure], **members: int) -> int:
    return int.from_bytes(bytes(structure(**members)), "little")


@pytest.mark.parametrize(
    ("word", "want"),
    [
        (
            WGMMA.encode(start_address=0x12340, leading_byte_offset=16, stride_byte_offset=1024, swizzle="128B"),
            packed(GmmaMatrix, start_address=0x1234, leading_byte_offset=1, stride_byte_offset=64, swizzle=1),
        ),
        (
            WGMMA.encode(start_address=512, stride_byte_offset=512, base_offset=4, swizzle="64B"),
            packed(GmmaMatrix, start_address=32, stride_byte_offset=32, base_offset=4, swizzle=2),
        ),
        (
            TCGEN05.encode(start_address=0x3FFF0, leading_byte_offset=4096, stride_byte_offset=256, swizzle="32B"),
            packed(
                UmmaMatrix, start_address=0x3FFF, leading_byte_offset=256, stride_byte_offset=16, version=1, swizzle=6
            ),
        ),
        (
            TCGEN05.encode(start_address=0, leading_byte_offset=2048, leading_mode="absolute", swizzle="128B"),
            packed(UmmaMatrix, leading_byte_offset=128, version=1, leading_mode=1, swizzle=2),
        ),
        (
            TCGEN05.encode(start_address=0, swizzle="128B_32B_atom", base_offset=3),
            packed(UmmaMatrix, version=1, base_offset=3, swizzle=1),
        ),
        (
            descriptor("tcgen05-instr.f16").encode(
                a_format="bf16", b_format="f16", d_format="f32", m=64, n=8, b_major="MN"
            ),
            packed(UmmaInstruction, a_format=1, d_format=1, m=4, n=1, b_major=1),
        ),
        (
            descriptor("tcgen05-instr.tf32").encode(m=128, n=256, max_shift=32, negate_a=1),
            packed(UmmaInstruction, a_format=2, b_format=2, d_format=1, m=8, n=32, max_shift=3, negate_a=1),
        ),
        (
            descriptor("tcgen05-instr.f8f6f4").encode(
                a_format="e3m2", b_format="e2m1", d_format="f16", m=256, n=16, sparse=1, sparsity_selector=2
            ),
            packed(UmmaInstruction, a_format=4, b_format=5, m=16, n=2, sparse=1, sparsity_selector=2),
        ),
        (
            descriptor("tcgen05-instr.i8").encode(a_format="u8", b_format="s8", m=128, n=64, saturate=1),
            packed(UmmaInstruction, b_format=1, d_format=2, m=8, n=8, saturate=1),
        ),
        (
            descriptor("tcgen05-instr.mxf8f6f4").encode(
                a_format="e4m3", b_format="e2m3", m=256, n=128, a_scale_id=3, b_scale_id=1
            ),
            packed(UmmaScaled, b_format=3, m=16, n=16, scale_format=1, a_scale_id=3, b_scale_id=1),
        ),
        (
            descriptor("tcgen05-instr.mxf4nvf4").encode(m=128, n=256, scale_format="ue4m3", k=96),
            packed(UmmaScaled, a_format=1, b_format=1, m=8, n=32, k=1),
        ),
        (
            descriptor("tcgen05-instr.mxf4").encode(m=128, n=256, b_scale_id=2),
            packed(UmmaScaled, a_format=1, b_format=1, m=8, n=32, scale_format=1, b_scale_id=2),
        ),
    ],
)
def test_word_equals_the_bit_fields_of_cutlass(word: int, want: int) -> None:
    assert hex(word) == hex(want)


def test_nvfp4_word_of_a_published_kernel() -> None:
    word = descriptor("tcgen05-instr.mxf4nvf4").encode(m=128, n=128, scale_format="ue4m3")
    assert word == 1 << 7 | 1 << 10 | 128 >> 3 << 17 | 128 >> 7 << 27


@pytest.mark.parametrize("row", WORDS, ids=lambda row: row.kind)
def test_fields_do_not_overlap_and_rows_cite(row: Descriptor) -> None:
    covered = 0
    for field in row.fields:
        mask = (1 << field.width) - 1 << field.low
        assert not covered & mask
        assert mask < 1 << row.bits
        covered |= mask
    assert row.source.place
    assert row.summary


def test_products_with_scales_may_be_negated() -> None:
    made = descriptor("tcgen05-instr.mxf8f6f4").encode(a_format="e4m3", b_format="e4m3", m=128, n=128, negate_b=1)
    assert made == packed(UmmaScaled, n=16, scale_format=1, m=8, negate_b=1)
