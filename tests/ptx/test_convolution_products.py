"""tcgen05.shift, .ashift, and .ws with A in tensor memory, a sparse A, and columns of B that count as zeros or are shifted."""

from dataclasses import replace

import numpy as np
import pytest

from refsim.errors import RefsimError
from refsim.layouts import fragment
from refsim.ptx.async_ops.queue import POLICIES
from refsim.ptx.execution.tensor_product import zero_columns
from tests.ptx.tcgen05_kernels import TensorKernel, with_products
from tests.ptx.test_sparse_tensor_core import KINDS as SPARSE
from tests.ptx.test_sparse_tensor_core import META, Sparse, draw, put_metadata
from tests.ptx.test_tensor_core import Case, accumulator, drawn, expected, image_of, opcode, place

pytestmark = pytest.mark.filterwarnings("ignore::refsim.numerics.UnverifiedProfileWarning")
NUMBERS = np.arange(128 * 64, dtype=np.uint32).reshape(128, 64)
A = 128


@pytest.mark.parametrize("policy", POLICIES)
def test_a_shift_moves_31_lanes_of_a_warp_down(policy: str) -> None:
    body = with_products("tcgen05.shift.cta_group::1.down [%base+2097157];")  # lane 32, column 5
    out, trace = TensorKernel(body, columns=64, filled=64).run(tensor=NUMBERS, policy=policy, seed=1)
    assert trace.findings == ()
    want = NUMBERS.copy()
    for lane in range(33, 64):
        want[lane, 5:13] = NUMBERS[lane - 1, 5:13]
    np.testing.assert_array_equal(out, want)


def test_a_shift_and_a_copy_of_four_rows_bring_a_row_on() -> None:
    """What the shift leaves free, the first lane of a warp, is where 4x256b copies to: the two are done in turn."""
    image = np.random.default_rng(2).integers(0, 256, 32768).astype(np.uint8)
    rows = np.concatenate([image[:64].reshape(4, 16), image[128:192].reshape(4, 16)], axis=1).view(np.uint32)
    shifts = [f"tcgen05.shift.cta_group::1.down [%base+{warp << 21}];" for warp in range(4)]
    body = with_products(*shifts, "tcgen05.cp.cta_group::1.4x256b [%base], %word0;")
    out, trace = TensorKernel(body, columns=64, filled=64).run(image, NUMBERS, (1 << 46 | 8 << 16 | 8 << 32,))
    assert trace.findings == ()
    want = NUMBERS.copy()
    for lane in range(128):
        want[lane, :8] = rows[lane // 32] if lane % 32 == 0 else NUMBERS[lane - 1, :8]
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize(
    ("text", "code", "what"),
    [
        (
            "tcgen05.shift.cta_group::1.down [%base+1048576];",
            "tensor-memory-misuse",
            "lane 16 begins no lanes of a warp",
        ),
        ("tcgen05.shift.cta_group::1.down [%base+508];", "out-of-bounds", "columns 508 to 515"),
        ("tcgen05.shift.cta_group::2.down [%base];", "malformed-ptx", "have the same .cta_group"),
    ],
)
def test_mistakes_of_shifts(text: str, code: str, what: str) -> None:
    with pytest.raises(RefsimError, match=what) as caught:
        TensorKernel(with_products(text), columns=32, filled=32).run()
    assert caught.value.code == code


def test_what_a_shift_moves_is_in_flight_until_its_commit_is_seen() -> None:
    read = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r0}, [%own]; tcgen05.wait::ld.sync.aligned;"
    with pytest.raises(RefsimError, match="no wait has seen its commit complete") as caught:
        TensorKernel(f"@%first tcgen05.shift.cta_group::1.down [%base]; bar.sync 0; {read}", filled=32).run()
    assert caught.value.code == "tensor-memory-in-flight"


def test_undefined_words_move_with_a_shift() -> None:
    """Lane 0 is stored to, lane 1 is not; behind the shift lane 1 is defined and lane 2 is not."""
    store = "tcgen05.st.sync.aligned.32x32b.x8.b32 [%own], {%r0,%r1,%r2,%r3,%r4,%r5,%r6,%r7};"
    lost = ".shared .align 4 .b32 lost; ld.shared.b32 %x1, [lost]; @%first mov.u32 %x1, 7;"
    moves = " ".join(f"mov.u32 %r{at}, %x1;" for at in range(8))
    shift = with_products("tcgen05.shift.cta_group::1.down [%base];")
    read = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r9}, [%own]; tcgen05.wait::ld.sync.aligned;"
    body = f"{lost} {moves} {store} tcgen05.wait::st.sync.aligned; bar.sync 0; {shift} {read}"
    body += "setp.eq.u32 %lane, %t, {lane}; @%lane st.global.b32 [%out], %r9;"
    out, _ = TensorKernel(body.replace("{lane}", "1"), columns=1, dumps=False).run()
    assert out[1] == 7
    with pytest.raises(RefsimError, match="reached an output"):
        TensorKernel(body.replace("{lane}", "2"), columns=1, dumps=False).run()


@pytest.mark.parametrize("collector", ["", ".collector::a::lastuse", ".collector::a::discard"])
def test_a_is_shifted_by_a_row(collector: str) -> None:
    case, generator = Case("f16", "bf16", "bf16"), np.random.default_rng(3)
    a, b = drawn(generator, "bf16", 128, 16), drawn(generator, "bf16", 32, 16)
    image, words = image_of(case, a, b)
    tensor = np.zeros((128, 96), np.uint32)
    tensor[:, 64:72] = a.view(np.uint32)
    body = with_products(f"{opcode(case, '.ashift')}{collector} [%base], [%base+64], %word1, %v0, %no;")
    out, _ = TensorKernel(body, columns=32, filled=96).run(image, tensor, words, (case.word(),))
    rows = [0, *range(127)]
    np.testing.assert_array_equal(accumulator(out, case), expected(case, a[rows], b, None).view(np.uint32))


def test_an_undefined_row_of_a_shifted_a_is_that_of_its_next_lane() -> None:
    """The last lane of A is undefined: shifted, no row of D comes from it; lane 126 is that of the last row."""
    case, (a, b) = Case("f16", "bf16", "bf16"), (np.zeros((rows, 16), np.uint16) for rows in (128, 32))
    image, words = image_of(case, a, b)
    lost = (
        ".shared .align 4 .b32 lost; mov.u32 %x1, 0; setp.eq.u32 %lane, %t, {lane}; @%lane ld.shared.b32 %x1, [lost];"
    )
    store = (
        f"tcgen05.st.sync.aligned.32x32b.x8.b32 [%own+64], {{{', '.join(['%x1'] * 8)}}}; tcgen05.wait::st.sync.aligned;"
    )
    body = with_products(f"{opcode(case, '.ashift')} [%base], [%base+64], %word1, %v0, %no;")
    for lane, undefined in ((127, False), (126, True), (0, True)):
        text = f"{lost.format(lane=lane)} {store} bar.sync 0; {body}"
        kernel = TensorKernel(text, columns=32, filled=64)
        if undefined:
            with pytest.raises(RefsimError, match="reached an output"):
                kernel.run(image, np.zeros((128, 96), np.uint32), words, (case.word(),))
        else:
            kernel.run(image, np.zeros((128, 96), np.uint32), words, (case.word(),))


def test_a_shift_of_a_needs_all_lanes() -> None:
    case = Case("f16", "bf16", "bf16", m=64)
    body = with_products(f"{opcode(case, '.ashift')} [%base], [%base+64], %word1, %v0, %no;")
    with pytest.raises(RefsimError, match=r"\.ashift with M = 64") as caught:
        TensorKernel(body, columns=32, filled=96).run(None, None, (1 << 46, 1 << 46), (case.word(),))
    assert caught.value.code == "invalid-operand"


def stationary(out: np.ndarray, m: int, n: int) -> np.ndarray:
    row, column = np.indices((m, n))
    return out[fragment(f"tcgen05.m{m}n{n}.ws.d").holder(row, column)]


@pytest.mark.parametrize(("m", "n"), [(32, 64), (64, 64), (128, 64)])
@pytest.mark.parametrize("are_equal", [True, False])
def test_each_part_of_d_takes_a_from_its_own_lanes(m: int, n: int, are_equal: bool) -> None:
    case, generator, parts = Case("f16", "bf16", "bf16", m=m, n=n), np.random.default_rng(m), 128 // m
    held, b = drawn(generator, "bf16", 128, 16), drawn(generator, "bf16", n, 16)
    if are_equal:
        held = np.tile(held[:m], (parts, 1))
    image, words = image_of(case, held[:m], b)
    tensor = np.zeros((128, 160), np.uint32)
    tensor[:, A : A + 8] = held.view(np.uint32)
    ws = "tcgen05.mma.ws.cta_group::1.kind::f16"
    body = with_products(*(f"{ws} [%base], [%base+{A}], %word1, %v0, %{add};" for add in ("no", "yes")))
    out, trace = TensorKernel(body, columns=64, filled=160).run(image, tensor, words, (case.word(),))
    assert trace.findings == ()
    step = n // parts
    for part in range(parts):
        a, some = held[part * m : part * m + m], b[part * step : part * step + step]
        want = expected(case, np.hstack([a, a]), np.hstack([some, some]), None).view(np.uint32)
        np.testing.assert_array_equal(stationary(out, m, n)[:, part * step : part * step + step], want)


@pytest.mark.parametrize("m", [32, 64, 128])
@pytest.mark.parametrize("kind", ["f16", "tf32", "f8f6f4", "i8"])
def test_a_stationary_b_meets_a_sparse_a(kind: str, m: int) -> None:
    """Metadata lies in the lanes of D's rows, once for each part of its columns."""
    case = replace(next(case for case in SPARSE if case.kind == kind), m=m, n=64)
    given = draw(case, m)
    image, words = image_of(case, given.a, given.b)
    tensor = np.full((128, 96), 0xFFFFFFFF, np.uint32)
    for first in range(0, 128, m):
        put_metadata(tensor, case, given.codes, META, np.arange(first, first + m))
    ws = f"tcgen05.mma.ws.sp.cta_group::1.kind::{kind}.collector::b3::lastuse"
    body = with_products(f"{ws} [%base], %word0, %word1, [%base+{META}], %v0, %no;")
    out, trace = TensorKernel(body, columns=64, filled=96).run(image, tensor, words, (case.word(sparse=1),))
    assert trace.findings == ()
    np.testing.assert_array_equal(stationary(out, m, 64), given.result(case, None).view(np.uint32))


def test_a_sparse_a_meets_128_columns_at_most() -> None:
    case = Sparse("f16", "f16", "f16", n=256)
    body = with_products("tcgen05.mma.ws.sp.cta_group::1.kind::f16 [%base], %word0, %word1, [%base], %v0, %no;")
    with pytest.raises(RefsimError, match="N = 256: with a sparse A a stationary B has 128 columns at most"):
        TensorKernel(body, columns=32, filled=32).run(None, None, (1 << 46, 1 << 46), (case.word(sparse=1),))


def mask_word(
    starts: tuple[int, ...], first: tuple[int, ...], skip: int, use: int, *, on: int = 1, shift: int = 0
) -> int:
    """A descriptor; starts and first values of mask 0 come first."""
    word = sum(start << 8 * at for at, start in enumerate(starts)) + sum(one << 32 + at for at, one in enumerate(first))
    return word | on << 39 | skip << 40 | use << 48 | shift << 56


@pytest.mark.parametrize(
    ("m", "word", "ends"),
    [
        (128, mask_word((0,), (0,), 4, 3, on=0), ("0000",)),
        (128, mask_word((0,), (0,), 2, 3), ("11100001110000",)),
        (64, mask_word((0, 0), (1, 0), 2, 3), ("11100001110000111", "00001110000111" + "0000")),
        (
            32,
            mask_word((0, 1, 2, 1), (1, 1, 0, 0), 2, 3, shift=2),
            ("00001110000111", "0000111000011", "111000011100", "1110000111000"),
        ),
    ],
)
def test_the_examples_of_the_isa(m: int, word: int, ends: tuple[str, ...]) -> None:
    """The low bits of each mask, lowest last, as the ISA prints them."""
    found = zero_columns(word, m, 128, 32)
    assert found.shift == word >> 56
    for part, end in zip(np.split(found.zero, 128 // m), ends, strict=True):
        assert "".join("01"[int(bit)] for bit in part[: len(end)][::-1]) == end


@pytest.mark.parametrize("tap", [0, 2])
def test_the_mask_of_a_convolution_zeroes_its_padding(tap: int) -> None:
    """Three taps over lines of 12 pixels with one of padding: CUTLASS's spans for a CTA that begins at pixel 5."""
    line, start, n = 12, 5, 64
    source = (start + np.arange(n)) % line + tap - 1
    padded = (source < 0) | (source >= line)
    skip, use = 1, line - 1
    index = start if tap == 0 else (start + 1) % line
    first = int(index < skip)
    count = index if first else use - (line - index)
    word = mask_word((count,), (first,), skip - 1, use - 1, shift=tap)
    np.testing.assert_array_equal(zero_columns(word, 128, n, 32).zero, padded)


@pytest.mark.parametrize("kind", ["f16", "i8"])
@pytest.mark.parametrize("shift", [0, 5])
def test_masked_columns_of_a_shifted_b_are_zeros(kind: str, shift: int) -> None:
    """Also where B holds NaN and A infinities in no masked place; undefined bits of masked columns reach nothing."""
    case = Case(kind, "f16", "f16", m=64, n=64) if kind == "f16" else Case(kind, "s8", "u8", "s32", m=64, n=64)
    generator = np.random.default_rng(shift)
    a, b = drawn(generator, case.a, 64, case.k), drawn(generator, case.b, 96, case.k)
    image, words = image_of(case, a, b[:64])
    place(image, b, replace(case, n=96).tiling("b"), 16384)
    word = mask_word((3, 0), (0, 1), 2, 8, shift=shift)
    zero = zero_columns(word, 64, 64, 8).zero
    used = np.where(zero[:, None], 0, b[shift : shift + 64]).astype(b.dtype)
    ws = f"tcgen05.mma.ws.cta_group::1.kind::{kind}"
    body = with_products(f"{ws} [%base], %word0, %word1, %v0, %no, %word2;").replace("%word2", "%q")
    body = "ld.param.u64 %q, [word2];" + body
    out, trace = TensorKernel(body, columns=32).run(image, None, (*words, word), (case.word(max_shift=8),))
    assert trace.findings == ()
    want = expected(case, a, used, None)
    np.testing.assert_array_equal(stationary(out, 64, 64), want.view(np.uint32))
    assert 0 < zero.sum() < 64


@pytest.mark.parametrize(
    ("word", "what"),
    [
        (mask_word((0,), (0,), 1, 1, shift=9), "a shift by 9 columns, M = 128 and the instruction descriptor allow 8"),
        (1 << 36, "bits 36 to 38 and 62 to 63 are reserved"),
    ],
)
def test_masks_that_nothing_means(word: int, what: str) -> None:
    case = Case("f16", "f16", "f16", n=64)
    text = "tcgen05.mma.ws.cta_group::1.kind::f16 [%base], %word0, %word1, %v0, %no, %q;"
    body = "ld.param.u64 %q, [word2];" + with_products(text)
    with pytest.raises(RefsimError, match=what) as caught:
        TensorKernel(body, columns=32).run(None, None, (1 << 46, 1 << 46, word), (case.word(max_shift=8),))
    assert caught.value.code == "invalid-operand"


def numbers(type: str, words: np.ndarray) -> np.ndarray:
    return words.view({"f32": np.float32, "s32": np.int32, "u32": np.uint32}[type])


@pytest.mark.parametrize("shape", ["32x32b", "16x32bx2"])
@pytest.mark.parametrize(
    ("suffix", "type"),
    [("min.u32", "u32"), ("max.s32", "s32"), ("max.f32", "f32"), ("min.abs.NaN.f32", "f32"), ("f32.max.NaN", "f32")],
)
def test_a_load_says_the_extreme_of_its_words(shape: str, suffix: str, type: str) -> None:
    """Each thread's own words, one by one: NaN is ignored or wins, -0 is below +0."""
    generator = np.random.default_rng(4)
    tensor = generator.integers(0, 1 << 32, (128, 32), np.uint64).astype(np.uint32)
    if type == "f32":
        tensor = generator.choice([0.0, -0.0, 1.5, -2.0, np.nan], (128, 32)).astype(np.float32).view(np.uint32)
        tensor[0] = 0x7FC00000
    split = ", 4" if "bx2" in shape else ""
    load = f"tcgen05.ld.red.sync.aligned.{shape}.x4.{suffix} {{%r0, %r1, %r2, %r3}}, %x1, [%own]{split};"
    store = "".join(
        f"st.global.b32 [%out+{4 * at}], %{name};" for at, name in enumerate(("r0", "r1", "r2", "r3", "x1"))
    )
    kernel = TensorKernel(f"{load} tcgen05.wait::ld.sync.aligned; {store}", 5, 32, "sm_103a", dumps=False)
    out, _ = kernel.run(tensor=tensor)
    for thread, words in enumerate(out):
        lane = thread if not split else thread // 32 * 32 + thread % 16
        first = 4 * (thread % 32 // 16) if split else 0
        np.testing.assert_array_equal(words[:4], tensor[lane, first : first + 4])
        held = numbers(type, words[:4].copy())
        if type == "f32":
            held = np.abs(held) if "abs" in suffix else held
            some = held[~np.isnan(held)]
            if not len(some) or ("NaN" in suffix and len(some) < 4):
                assert np.isnan(numbers(type, words[4:]))
                continue
            best = max(some) if "max" in suffix else min(some)
            signs = np.signbit(some[some == best])
            want = np.copysign(best, -1.0 if (signs.all() if "max" in suffix else signs.any()) else 1.0)
            assert words[4] == np.float32(want).view(np.uint32)
        else:
            assert numbers(type, words[4:])[0] == (held.max() if "max" in suffix else held.min())


def test_an_undefined_word_reaches_the_extreme_of_its_thread() -> None:
    load = "tcgen05.ld.red.sync.aligned.32x32b.x2.max.u32 {%r0, %r1}, %x1, [%own+31]; tcgen05.wait::ld.sync.aligned;"
    with pytest.raises(RefsimError, match="reached an output"):
        TensorKernel(f"{load} st.global.b32 [%out], %x1;", 1, 32, "sm_103a", dumps=False).run()
    TensorKernel(f"{load} st.global.b32 [%out], %r0;", 1, 32, "sm_103a", dumps=False).run()


def test_chips_that_have_no_such_load() -> None:
    load = "tcgen05.ld.red.sync.aligned.32x32b.x2.max.u32 {%r0, %r1}, %x1, [%own];"
    with pytest.raises(RefsimError, match="sm_100a has no") as caught:
        TensorKernel(load, 1, 32, dumps=False).run()
    assert caught.value.code == "wrong-target"
