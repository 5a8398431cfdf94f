"""Undefined bits of operands of tcgen05: copies move them as they move bytes, and products read no bit too many."""

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError
from refsim.ptx.isa.definedness.tracking import OpenBits
from tests.ptx.tcgen05_kernels import BYTES, DESCRIPTORS, MEET, WORDS, TensorKernel, registers, with_products
from tests.ptx.test_scaled_tensor_core import row_descriptor
from tests.ptx.test_tensor_core import A_START, B_START, KINDS, LAYOUTS, Case, drawn, image_of, opcode
from tests.ptx.test_tensor_core_pairs import images, pair_body

# Bits of the image are made undefined: the kernel reads an unwritten word, cuts it to the bits, and stores it.
LOST = ".shared .align 4 .b32 lost; ld.shared.b32 %x1, [lost]; and.b32 %x1, %x1, {bits}; @%first st.shared.b32 [%s+{at}], %x1;"
PROXY = "fence.proxy.async; bar.sync 0;"
SHAPES = [
    ("128x256b", "", 8), ("4x256b", "", 8), ("128x128b", "", 4), ("64x128b.warpx2::02_13", "", 4),
    ("64x128b.warpx2::01_23", "", 4), ("32x128b.warpx4", "", 4), ("128x256b", ".b8x16.b6x16_p32", 8),
    ("128x128b", ".b8x16.b4x16_p64", 4), ("32x128b.warpx4", ".b8x16.b6x16_p32", 4), ("4x256b", ".b8x16.b4x16_p64", 8),
]  # fmt: skip


@pytest.mark.parametrize(("bits", "at"), [(0xFFFFFFFF, 4), (0xF00, 0), (0x81, 64 + 8)])
@pytest.mark.parametrize(("shape", "narrow", "columns"), SHAPES)
def test_a_copy_moves_undefined_bits_as_it_moves_bits(
    shape: str, narrow: str, columns: int, bits: int, at: int
) -> None:
    """The bits as the only ones of the image show where they go; that they do not reach any other is then seen bit by bit."""
    copy = with_products(f"tcgen05.cp.cta_group::1.{shape}{narrow} [%base], %word0;")
    word = (row_descriptor(0, 32, leading=1024 if columns == 8 else 0),)
    image = np.zeros(BYTES, np.uint8)
    image[at : at + 4] = np.array([bits], np.uint32).view(np.uint8)
    clear = (
        f"tcgen05.st.sync.aligned.32x32b.x8.b32 [%own], {registers(8, 100)}; tcgen05.wait::st.sync.aligned; bar.sync 0;"
    )
    clear = "".join(f"mov.b32 %r{100 + n}, 0;" for n in range(8)) + clear
    reached, _ = TensorKernel(clear + copy, columns=32, filled=32).run(image, None, word)
    reached = reached[:, :8].copy()
    load = f"tcgen05.ld.sync.aligned.32x32b.x8.b32 {registers(8)}, [%own]; tcgen05.wait::ld.sync.aligned;"
    kept = "".join(
        f"ld.global.b32 %x2, [%tensor+{4 * n}]; and.b32 %r{n}, %r{n}, %x2; st.global.b32 [%out+{4 * n}], %r{n};"
        for n in range(8)
    )
    lost = LOST.format(bits=bits, at=at)
    kernel = TensorKernel(f"{clear} {lost} {PROXY} {copy} {load} {kept}", columns=8, filled=32, dumps=False)
    kept_bits = np.full((128, 32), 0xFFFFFFFF, np.uint32)
    kept_bits[:, :8] = ~reached
    _, trace = kernel.run(np.zeros(BYTES, np.uint8), kept_bits, word)
    assert trace.findings == ()
    places = np.argwhere(reached)
    for lane, column in places[:: max(1, len(places) - 1)]:
        one = kept_bits.copy()
        one[lane, column] |= reached[lane, column] & -reached[lane, column].astype(np.int64)
        with pytest.raises(RefsimError, match="an output"):
            kernel.run(np.zeros(BYTES, np.uint8), one, word)


@pytest.mark.parametrize(("row", "fails"), [(0, True), (1, True), (2, False), (7, False)])
def test_an_element_of_a_chunk_that_spans_rows_reaches_its_own_row(row: int, fails: bool) -> None:
    """The first word of an MN-major A holds rows 0 and 1 of its first column, and its chunk rows 0 to 7."""
    case = Case("f16", "bf16", "bf16", majors=("MN", "K"), swizzles=("none", "none"))
    image, words = image_of(case, np.zeros((128, 16), np.uint16), np.zeros((32, 16), np.uint16))
    product = with_products("tcgen05.mma.cta_group::1.kind::f16 [%base], %word0, %word1, %v0, %no;")
    load = f"tcgen05.ld.sync.aligned.32x32b.x32.b32 {registers(32)}, [%own]; tcgen05.wait::ld.sync.aligned;"
    stored = f"setp.eq.u32 %lane, %t, {row}; @%lane st.global.b32 [%out], %r0;"
    body = f"{LOST.format(bits=-1, at=A_START)} {PROXY} {product} {load} {stored}"
    said(TensorKernel(body, columns=32, dumps=False), fails, image, None, words, (case.word(),))


def said(kernel: TensorKernel, fails: bool, *given) -> None:
    """A kernel runs, and undefined bits reach its output or not."""
    if fails:
        with pytest.raises(RefsimError, match="an output") as caught:
            kernel.run(*given)
        assert caught.value.code == "uninitialised"
    else:
        assert kernel.run(*given)[1].findings == ()


@pytest.mark.parametrize("owner", [0, 1])
@pytest.mark.parametrize(
    ("at", "stored", "fails"),
    [
        (A_START, "setp.eq.u32 %lane, %t, 0; @%lane st.global.b32 [%out], %r5;", "own"),
        (A_START, "setp.ne.u32 %lane, %t, 0; @%lane st.global.b32 [%out], %r5;", "none"),
        (B_START, "st.global.b32 [%out], %r0;", "first"),
        (B_START, "st.global.b32 [%out], %r16;", "second"),
        (B_START, "st.global.b32 [%out], %r1;", "none"),
    ],
)
@pytest.mark.parametrize("storing", [0, 1])
def test_a_pair_reads_the_memory_of_both(owner: int, at: int, stored: str, fails: str, storing: int) -> None:
    """A word of one CTA: of row 0 of its half of A, which is its own row of D, or of column 0 of its half of B."""
    case = Case("f16", "bf16", "bf16", m=256, n=32, swizzles=("none", "none"))
    image, words = images(case, np.zeros((256, 16), np.uint16), np.zeros((32, 16), np.uint16))
    chosen = f".reg .pred %it; setp.eq.and.u32 %it, %cta, {owner}, %first; @%it st"
    lost = LOST.format(bits=-1, at=at).replace("@%first st", chosen)
    product = pair_body("tcgen05.mma.cta_group::2.kind::f16 [%base], %word0, %word1, %v0, %no;")
    load = f"tcgen05.ld.sync.aligned.32x32b.x32.b32 {registers(32)}, [%own]; tcgen05.wait::ld.sync.aligned;"
    body = f"{lost} fence.proxy.async; {MEET} {product} {load} setp.ne.u32 %lane, %cta, {storing};"
    body += f"@%lane bra BEHIND; {stored} BEHIND:"
    is_reached = {"own": owner == storing, "first": owner == 0, "second": owner == 1, "none": False}[fails]
    said(TensorKernel(body, columns=32, dumps=False, ctas=2), is_reached, image, None, words, (case.word(),))


@pytest.mark.parametrize("identity", [0, 1, 2, 3])
def test_a_product_reads_one_byte_of_a_word_of_scales(identity: int) -> None:
    """Bytes 0 and 2 of the words of A's scales are defined; the product takes the byte of its id."""
    case = Case("mxf8f6f4", "e4m3", "e4m3", swizzles=("none", "none"))
    image, words = image_of(case, np.zeros((128, 32), np.uint8), np.zeros((32, 32), np.uint8))
    lost = ".shared .align 4 .b32 lost; ld.shared.b32 %r100, [lost]; and.b32 %r100, %r100, 0xff00ff00; add.u32 %x1, %own, 64;"
    scales = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%x1], {%r100}; tcgen05.wait::st.sync.aligned;"
    fence = "tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;"
    opcode = "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale"
    product = with_products(f"{opcode} [%base], %word0, %word1, %v0, [%base+64], [%base+68], %no;")
    load = f"tcgen05.ld.sync.aligned.32x32b.x32.b32 {registers(32)}, [%own]; tcgen05.wait::ld.sync.aligned;"
    kernel = TensorKernel(
        f"{lost} {scales} {fence} {product} {load} st.global.b32 [%out], %r0;", columns=32, filled=96, dumps=False
    )
    said(kernel, identity % 2 == 1, image, None, words, (case.word(a_scale_id=identity),))


@pytest.mark.parametrize(("bits", "fails"), [(0xF0F0F0F0, False), (0x08000000, True)])
def test_narrow_elements_of_a_in_tensor_memory_are_the_low_bits_of_bytes(bits: int, fails: bool) -> None:
    case = Case("f8f6f4", "e2m1", "e4m3", swizzles=("none", "none"))
    image, words = image_of(case, np.zeros((128, 32), np.uint8), np.zeros((32, 32), np.uint8))
    lost = (
        f".shared .align 4 .b32 lost; ld.shared.b32 %r100, [lost]; and.b32 %r100, %r100, {bits}; add.u32 %x1, %own, 64;"
    )
    stored = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%x1], {%r100}; tcgen05.wait::st.sync.aligned;"
    fence = "tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;"
    product = with_products("tcgen05.mma.cta_group::1.kind::f8f6f4 [%base], [%base+64], %word1, %v0, %no;")
    load = f"tcgen05.ld.sync.aligned.32x32b.x32.b32 {registers(32)}, [%own]; tcgen05.wait::ld.sync.aligned;"
    kernel = TensorKernel(
        f"{lost} {stored} {fence} {product} {load} st.global.b32 [%out], %r0;", columns=32, filled=96, dumps=False
    )
    said(kernel, fails, image, None, words, (case.word(),))


JUDGED = [*KINDS, *LAYOUTS]


@pytest.mark.parametrize("case", JUDGED, ids=str)
def test_no_completion_of_a_word_changes_a_bit_that_is_not_marked(case: Case, refsim_profile: str) -> None:
    """Four bits of a word of A, then of B, have each of 16 values, or some; a tracked run marks the words of D."""
    generator = np.random.default_rng(JUDGED.index(case))
    a, b = drawn(generator, case.a, case.m, case.k), drawn(generator, case.b, case.n, case.k)
    image, words = image_of(case, a, b)
    values = (0, 1, 6, 8, 15) if refsim_profile == "quick" else range(16)
    columns = -(-case.n // 32) * 32
    for start, rows in ((A_START, case.m), (B_START, case.n)):
        at = start + 4 * int(generator.integers(rows * 32 // 4))
        bits = 0x11110000 if generator.random() < 0.5 else 0x80018001
        body = f"{{source}} and.b32 %x1, %x1, {bits}; mov.b32 %x2, 0; @%first ld.shared.b32 %x2, [%s+{at}];"
        body += f"and.b32 %x2, %x2, {~bits}; or.b32 %x1, %x1, %x2; @%first st.shared.b32 [%s+{at}], %x1; {PROXY}"
        body += with_products(f"{opcode(case)} [%base], %word0, %word1, %v0, %no;")
        unwritten = TensorKernel(
            body.format(source=".shared .align 4 .b32 lost; ld.shared.b32 %x1, [lost];"), columns=columns
        )
        written = TensorKernel(body.format(source="mov.b32 %x1, %v7;"), columns=columns, filled=columns)
        outputs = [
            written.run(
                image, np.zeros((128, columns), np.uint32), words, (case.word(), *[0] * 6, spread(value, bits))
            )[0].copy()
            for value in values
        ]
        varied = np.bitwise_or.reduce([each ^ outputs[0] for each in outputs])
        assert (varied & ~marked(unwritten, image, words, case.word()) == 0).all()


def spread(value: int, bits: int) -> int:
    """The bits of a number at the places of a mask."""
    places = [place for place in range(32) if bits >> place & 1]
    return sum((value >> number & 1) << place for number, place in enumerate(places))


def marked(kernel: TensorKernel, image: np.ndarray, words: tuple[int, ...], value: int) -> np.ndarray:
    """The undefined bits of the words that a kernel stores."""
    memory, tracker = ptx.GlobalMemory(), OpenBits()
    size = 4 * 128 * kernel.columns
    out = memory.allocate(size, "out")
    given = [np.uint64(word) for word in (*words, *[0] * (DESCRIPTORS - len(words)))]
    given += [np.uint32(each) for each in (value, *[0] * (WORDS - 1))]
    arguments = [image.view(np.uint32), np.zeros((128, kernel.columns), np.uint32), np.uint64(out), *given]
    ptx.load(kernel.text).launch("k", (1,), (128,), arguments, memory=memory, following=tracker)
    return tracker.open_in(memory, out, size).view(np.uint32).reshape(128, -1)
