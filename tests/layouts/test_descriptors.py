"""Descriptors against CuTe's canonical layouts, walks against tiles and planted faults, and what is misuse."""

import re
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.layouts.descriptors import descriptor, operand_descriptor, operand_named, walk
from refsim.layouts.families import fragments
from refsim.layouts.tiles import tile

WGMMA, TCGEN05 = descriptor("wgmma-smem"), descriptor("tcgen05-smem")
BASE = 1024


def cute(layout: str, *coordinate: NDArray[np.int64], **strides: int) -> NDArray[np.int64]:
    """The offset of a coordinate in a CuTe layout string with named strides."""
    shape, stride = (eval(part, {}, {"n": 1 << 20, "k": 1 << 20, "X": 0, **strides}) for part in layout.split(":"))
    total = np.zeros(1, np.int64)
    for extents, steps, along in zip(shape, stride, coordinate, strict=True):
        index = along
        for extent, step in zip(np.atleast_1d(extents).tolist(), np.atleast_1d(steps).tolist(), strict=True):
            total, index = total + index % extent * step, index // extent
    return total


# make_gmma_desc and make_umma_desc: canonical layouts in units of 16 bytes, (MN, K); the row stride of the last is that
# of Layout_MN_SW128_32B_Atom_Bits
CANONICAL = [
    ("K", "none", "((8,n),2):((1,SBO),LBO)"),
    ("K", "32B", "((8,n),2):((2,SBO),1)"),
    ("K", "64B", "((8,n),2):((4,SBO),1)"),
    ("K", "128B", "((8,n),2):((8,SBO),1)"),
    ("MN", "none", "((1,n),(8,k)):((X,SBO),(1,LBO))"),
    ("MN", "32B", "((2,n),(8,k)):((1,LBO),(2,SBO))"),
    ("MN", "64B", "((4,n),(8,k)):((1,LBO),(4,SBO))"),
    ("MN", "128B", "((8,n),(8,k)):((1,LBO),(8,SBO))"),
    ("MN", "128B_32B_atom", "((8,n),(4,k)):((1,LBO),(8,SBO))"),
]
SWIZZLES = {"none": (0, 4, 3), "32B": (1, 4, 3), "64B": (2, 4, 3), "128B": (3, 4, 3), "128B_32B_atom": (2, 5, 2)}


@pytest.mark.parametrize(("major", "mode", "layout"), CANONICAL)
@pytest.mark.parametrize("unit", ["wgmma", "tcgen05"])
def test_walk_equals_the_canonical_layout(unit: str, major: str, mode: str, layout: str) -> None:
    if unit == "wgmma" and mode == "128B_32B_atom":
        with pytest.raises(RefsimError, match="no swizzle is called"):
            WGMMA.encode(start_address=0, swizzle=mode)
        return
    leading, stride = 8192, 4096
    row = WGMMA if unit == "wgmma" else TCGEN05
    word = row.encode(start_address=BASE, leading_byte_offset=leading, stride_byte_offset=stride, swizzle=mode)
    name = "wgmma.m64n64k16.bf16.b" if unit == "wgmma" else "tcgen05.m128n64k16.f16.b"
    got = walk(row, word, name, major=major, window=(0, 1 << 20)).addresses
    mn, k = np.mgrid[:64, :16]
    units = (mn, k // 8) if major == "K" else (mn // 8, k)
    linear = BASE + cute(layout, *units, LBO=leading // 16, SBO=stride // 16) * 16
    bits, base, shift = SWIZZLES[mode]
    want = (linear ^ (linear >> shift & (1 << bits) - 1 << base)) + (k if major == "K" else mn) % 8 * 2
    assert (got == want).all()


OPERANDS = [
    ("wgmma", "wgmma.m64n128k16.f16.b", 2),
    ("wgmma", "wgmma.m64n128k32.e4m3.b", 1),
    ("wgmma", "wgmma.m64n128k8.tf32.b", 4),
    ("tcgen05", "tcgen05.m128n64k32.f8f6f4.a", 1),
    ("tcgen05", "tcgen05.m128n128k8.tf32.b", 4),
    ("tcgen05", "tcgen05.m128n64k16.f16.a", 2),
]
WALKED = [
    *((*operand, mode, major) for operand in OPERANDS for mode in SWIZZLES for major in ("K", "MN") if "_" not in mode),
    *((*operand, "128B_32B_atom", "MN") for operand in OPERANDS if operand[0] == "tcgen05"),  # what has that swizzle
]


@pytest.mark.parametrize(("unit", "operand", "element_bytes", "mode", "major"), WALKED)
def test_every_k_step_of_a_tile_is_walked_right(
    unit: str, operand: str, element_bytes: int, mode: str, major: str
) -> None:
    """operand_descriptor and walk against the tile itself: every element of every K step at its own address."""
    narrow = unit == "wgmma" and element_bytes != 2
    made = tile(major, mode, element_bytes, (128, 128))
    shape = operand_named(operand)
    row = WGMMA if unit == "wgmma" else TCGEN05
    for k in range(0, 128, shape.k):
        word = operand_descriptor(f"{unit}-smem", made, BASE, k=k)
        if narrow and major == "MN":
            with pytest.raises(RefsimError, match="K-major only"):
                walk(row, word, operand, major=major)
            return
        found = walk(row, word, operand, major=major)
        mn, step = np.ogrid[:128, k : k + shape.k]
        assert (found.addresses == made.address(mn, step, start=BASE)).all()
        assert found.bytes_read.size == 128 * 32
        assert found.problems == ()
        assert found.overlaps.size == found.out_of_range.size == 0
        assert (found.banks == found.addresses // 4 % 32).all()
        if mode == "128B":
            assert found.conflicts.excess == 0


def test_walk_finds_planted_faults() -> None:
    good = {"start_address": BASE, "leading_byte_offset": 16, "stride_byte_offset": 1024, "swizzle": "128B"}
    name = "wgmma.m64n64k16.bf16.a"
    zero = walk(WGMMA, WGMMA.encode(**{**good, "stride_byte_offset": 0}), name)
    assert zero.overlaps.size == 8 * 16
    assert "stride_byte_offset 0" in zero.problems[0]
    assert zero.readers(BASE) == [(row, 0) for row in range(0, 64, 8)]
    swapped = walk(WGMMA, WGMMA.encode(**{**good, "stride_byte_offset": 16}), name)
    assert swapped.overlaps.size
    past = walk(WGMMA, WGMMA.encode(**good), name, window=(0, BASE + 7 * 1024))
    assert past.out_of_range.min() >= BASE + 7 * 1024
    assert past.out_of_range.size == 8 * 32
    late = walk(WGMMA, WGMMA.encode(**{**good, "start_address": BASE + 112}), name)
    assert "run into the next row" in late.problems[0]
    unswizzled = walk(WGMMA, WGMMA.encode(**{**good, "swizzle": "none", "leading_byte_offset": 128}), name)
    assert (unswizzled.addresses != walk(WGMMA, WGMMA.encode(**good), name).addresses).any()
    assert "0 bytes are read as two elements" in str(unswizzled)


def test_base_offset_moves_the_pattern() -> None:
    """A tile at 1024 + 256 whose pattern starts there is the tile at 1024, 256 bytes further on."""
    aligned = WGMMA.encode(start_address=1024, stride_byte_offset=1024, swizzle="128B")
    moved = WGMMA.encode(start_address=1280, stride_byte_offset=1024, base_offset=2, swizzle="128B")
    first, second = (walk(WGMMA, word, "wgmma.m64n64k16.bf16.a") for word in (aligned, moved))
    assert (second.addresses - first.addresses == 256).all()
    assert second.problems == ()
    assert "base_offset 2" in str(WGMMA.explain(moved))


def test_a_start_in_an_atom_is_swizzled_by_absolute_address() -> None:
    """128B, K-major, from byte 256 on: row r lies 256 + 128 r bytes on, in chunk (r + 2) % 8 ^ c."""
    fields = {"start_address": 1024 + 256, "stride_byte_offset": 1024, "swizzle": "128B"}
    found = walk(WGMMA, WGMMA.encode(**fields), "wgmma.m64n64k16.bf16.a")
    row, chunk = np.arange(64)[:, None], np.arange(2)[None, :]
    want = 1024 + 256 + 128 * row + 16 * ((row + 2) % 8 ^ chunk)
    assert np.array_equal(found.addresses[:, ::8], want)
    assert (found.problems, found.assumed) == ((), False)
    tensor = walk(TCGEN05, TCGEN05.encode(**fields), "tcgen05.m128n64k16.f16.b")
    assert np.array_equal(tensor.addresses, found.addresses)
    assert "not for tcgen05" in str(tensor)
    moved = walk(TCGEN05, TCGEN05.encode(**fields, base_offset=2), "tcgen05.m128n64k16.f16.b")
    assert (tensor.assumed, moved.assumed) == (True, False)


def test_wgmma_reads_no_base_offset_without_a_swizzle() -> None:
    word, other = (WGMMA.encode(start_address=0, swizzle="none", base_offset=base) for base in (0, 7))
    first, second = (walk(WGMMA, each, "wgmma.m64n64k16.bf16.a").addresses for each in (word, other))
    assert np.array_equal(first, second)
    assert TCGEN05.problems(TCGEN05.encode(start_address=0, swizzle="none") | 7 << 49)


def test_narrow_elements_stand_in_their_chunks() -> None:
    """kind::f8f6f4: 16 elements of 4 or 6 bits at the low end of 16 bytes; mxf4: 32 elements fill them."""
    word = TCGEN05.encode(start_address=BASE, stride_byte_offset=1024, swizzle="128B")
    four = walk(TCGEN05, word, "tcgen05.m128n8k32.f8f6f4.e2m1.b")
    assert four.bits[0, :18].tolist() == [8 * BASE + 4 * k for k in range(16)] + [8 * BASE + 128, 8 * BASE + 132]
    assert (four.bytes_read.size, four.overlaps.size) == (8 * 16, 0)
    six = walk(TCGEN05, word, "tcgen05.m128n8k32.mxf8f6f4.e3m2.b")
    assert six.bytes_read.size == 8 * 24
    assert six.readers(BASE + 1) == [(0, 1), (0, 2)]
    packed_four = walk(TCGEN05, word, "tcgen05.m128n8k64.mxf4nvf4.b")
    assert packed_four.bits[0, 31] == 8 * BASE + 124
    assert packed_four.bytes_read.size == 8 * 32


def test_wgmma_operands_are_those_of_its_products() -> None:
    """Every shape that has an accumulator has both operands, and no other shape has."""
    accumulators = {name.removesuffix(".d") for name in fragments("wgmma") if name.endswith(".d")}
    stems = {
        (match[1], match[2]) for name in accumulators if (match := re.fullmatch(r"wgmma\.m64n\d+(k\d+)\.(\w+)", name))
    }
    assert ("k256", "b1") in stems
    for k, type in stems:
        for n in range(8, 257, 8):
            stem = f"wgmma.m64n{n}{k}.{type}"
            if stem in accumulators:
                assert (operand_named(f"{stem}.a").rows, operand_named(f"{stem}.b").rows) == (64, n)
            else:
                with pytest.raises(RefsimError, match="bad-shape"):
                    operand_named(f"{stem}.b")


def test_two_blocks_halve_the_rows() -> None:
    assert operand_named("tcgen05.m256n128k16.f16.a", ctas=2).rows == 128
    assert operand_named("tcgen05.m256n128k16.f16.b", ctas=2).rows == 64


def test_explanation_reads_aloud() -> None:
    word = WGMMA.encode(start_address=1056, leading_byte_offset=16, stride_byte_offset=1024, swizzle="128B")
    text = str(WGMMA.explain(word))
    assert text.startswith("wgmma-smem 0x4000004000010042\n")
    assert "bits 0..13   start_address        1056: first byte" in text
    assert "start 0x420 lies 32 bytes into the 1024-byte pattern of 128B" in text
    assert "problem" not in text
    assert "problem: bit 3 (saturate) must hold 0, not 1" in str(descriptor("tcgen05-instr.f16").explain(8))


def test_problems_name_bits() -> None:
    word = TCGEN05.encode(start_address=0, swizzle="128B")
    assert TCGEN05.problems(word) == ()
    assert TCGEN05.problems(word | 3 << 14) == ("reserved bits 14..15 must be 0",)
    assert TCGEN05.problems(word | 1 << 61) == ("bits 61..63 (swizzle) hold 3, which has no meaning",)
    assert TCGEN05.problems(word & ~(1 << 46)) == ("bits 46..48 (version) must hold 1, not 0",)
    assert TCGEN05.decode(word | 1 << 61)["swizzle"] == 3
    instruction = descriptor("tcgen05-instr.mxf8f6f4")
    assert "bits 27..28 (m) hold 0, outside 128..256" in instruction.problems(0)
    generic = descriptor("tcgen05-instr")
    assert generic.decode(generic.encode(a_format=5, b_format=3, d_format="f32", m=128, n=64))["a_format"] == 5


@pytest.mark.parametrize(
    ("call", "code", "says"),
    [
        (lambda: WGMMA.encode(start_address=8, swizzle="none"), "bad-descriptor", "bits 0..13"),
        (
            lambda: WGMMA.encode(start_address=1 << 18, swizzle="none"),
            "out-of-range",
            "bits 0..13 hold at most 16383 units of 16",
        ),
        (lambda: WGMMA.encode(start_address=-16, swizzle="none"), "out-of-range", "0..262128"),
        (lambda: WGMMA.encode(start_address="x", swizzle="none"), "bad-descriptor", "bits 0..13"),
        (lambda: WGMMA.encode(start_address=0), "bad-descriptor", "swizzle is needed"),
        (lambda: WGMMA.encode(start_address=0, swizzle="128"), "unknown-swizzle", "128B"),
        (lambda: WGMMA.encode(start_address=0, swizzle=1), "bad-descriptor", "128B"),
        (lambda: WGMMA.encode(start_address=0, swizzle="none", lbo=0), "unknown-name", "leading"),
        (lambda: TCGEN05.encode(start_address=0, swizzle="none", base_offset=1), "bad-descriptor", "base_offset"),
        (lambda: TCGEN05.encode(start_address=0, swizzle="64B", leading_mode="absolute"), "bad-descriptor", ""),
        (lambda: WGMMA.decode(1 << 64), "bad-descriptor", "64-bit"),
        (lambda: WGMMA.decode("0x0"), "bad-descriptor", "64-bit"),  # type: ignore[arg-type]
        (lambda: descriptor("wgmma"), "unknown-name", "wgmma-smem"),
        (lambda: descriptor("tcgen05-instr.tf32").encode(m=128, n=12), "bad-descriptor", "bits 17..22"),
        (lambda: descriptor("tcgen05-instr.tf32").encode(m=128, n=264), "out-of-range", "8..256"),
        (lambda: descriptor("tcgen05-instr.tf32").encode(m=96, n=64), "bad-descriptor", "bits 24..28"),
        (
            lambda: descriptor("tcgen05-instr.mxf4").encode(m=128, n=64, a_scale_id=1),
            "bad-descriptor",
            "0 or 2",
        ),
        (lambda: descriptor("tcgen05-instr.mxf4").encode(m=128, n=64, k=96, sparse=1), "bad-descriptor", "96"),
        (
            lambda: descriptor("tcgen05-instr.mxf8f6f4").encode(
                a_format="e2m1", b_format="e4m3", m=128, n=64, a_major="MN"
            ),
            "bad-descriptor",
            "a_major",
        ),
        (lambda: descriptor("tcgen05-instr.tf32").encode(m=256, n=64, max_shift=8), "bad-descriptor", ".ws"),
        (
            lambda: descriptor("tcgen05-instr.tf32").encode(m=128, n=64, sparsity_selector=1),
            "bad-descriptor",
            "dense",
        ),
        (lambda: walk(descriptor("tcgen05-instr.tf32"), 0, "tcgen05.m128n64k8.tf32.a"), "bad-descriptor", "no memory"),
        (lambda: walk(WGMMA, 0, "tcgen05.m128n64k8.tf32.a"), "bad-descriptor", "tcgen05"),
        (lambda: walk(WGMMA, 3 << 14, "wgmma.m64n64k8.tf32.a"), "bad-descriptor", "bits 14..15"),
        (lambda: walk(WGMMA, 0, "wgmma.m64n64k8.tf32.a", major="N"), "bad-tile", "K or MN"),
        (lambda: walk(TCGEN05, 1 << 46, "tcgen05.m128n8k64.mxf4.b", major="MN"), "bad-tile", "K-major only"),
        (
            lambda: walk(
                TCGEN05,
                TCGEN05.encode(start_address=0, swizzle="128B", leading_mode="absolute"),
                "tcgen05.m128n8k64.mxf4.b",
            ),
            "bad-descriptor",
            "48 bytes",
        ),
        (lambda: operand_named("wgmma.m64n12k16.bf16.a"), "bad-shape", "steps of 8"),
        (lambda: operand_named("wgmma.m64n64k16.e4m3.a"), "bad-shape", "k 32"),
        (lambda: operand_named("wgmma.m64n64k16.e4m3.bf16.a"), "bad-dtype", "wgmma"),
        (lambda: operand_named("tcgen05.m128n64k16.bf16.a"), "bad-dtype", "kind"),
        (lambda: operand_named("tcgen05.m128n64k32.i8.e4m3.a"), "bad-dtype", "s8"),
        (lambda: operand_named("tcgen05.m64n64k16.f16.a", ctas=2), "bad-shape", "two blocks"),
        (lambda: operand_named("wgmma.m64n40k32.s8.b"), "bad-shape", "steps of 16, and 8 and 24"),
        (lambda: operand_named("wgmma.m64n40k256.b1.b"), "bad-shape", "steps of 16, and 8 and 24"),
        (lambda: operand_named("wgmma.m64n64k16.f16.bf16.b"), "bad-dtype", "wgmma multiplies no f16.bf16"),
        (lambda: operand_named("wgmma.m64n64k16.f16.a", ctas=2), "bad-descriptor", "wgmma"),
        (lambda: operand_named("mma.m16n8k16.bf16.a"), "unknown-name", "wgmma"),
        (
            lambda: operand_descriptor("tcgen05-instr", tile("K", "128B", 2, (8, 64)), 0),
            "unknown-name",
            "",
        ),
        (lambda: operand_descriptor("wgmma-smem", tile("K", "128B", 2, (8, 64)), 576), "bad-tile", "multiple of 128"),
        (lambda: operand_descriptor("wgmma-smem", tile("K", "128B", 2, (8, 64)), 0, k=4), "bad-tile", "corner"),
        (lambda: operand_descriptor("wgmma-smem", tile("K", "128B", 2, (8, 64)), 0, mn=1), "bad-tile", "corner"),
    ],
)
def test_misuse_is_refused(call: Callable[[], object], code: str, says: str) -> None:
    with pytest.raises(RefsimError) as caught:
        call()
    assert caught.value.code == code
    assert says in str(caught.value)


@pytest.mark.parametrize(("kind", "k"), [("mxf4", 96), ("mxf4nvf4", 96), ("mxf8f6f4", 64)])
def test_an_operand_of_the_longer_k_has_it(kind: str, k: int) -> None:
    """PTX ISA, tcgen05 instruction descriptor, bit 31: K = 96 of FP4, 64 of the others, and nothing beside."""
    assert operand_named(f"tcgen05.m128n64k{k}.{kind}.a").k == k
    with pytest.raises(RefsimError, match="bad-shape"):
        operand_named(f"tcgen05.m128n64k{k + 1}.{kind}.a")


def test_an_opcode_of_wgmma_names_what_it_reads() -> None:
    opcode = "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e5m2"
    for side in "ab":
        assert operand_named(f"{opcode}.{side}") == operand_named(f"wgmma.m64n32k32.e4m3.e5m2.{side}")
    with pytest.raises(RefsimError):
        operand_named("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32.b")
