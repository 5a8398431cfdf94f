"""tcgen05.mma with scales by block, brought to tensor memory by stores or from a preshuffled matrix by tcgen05.cp."""

from typing import Any

import numpy as np
import pytest

from refsim import numerics, pack
from refsim.errors import RefsimError
from refsim.formats import element_named
from refsim.layouts import fragment, scale_layout, swizzle, tile
from refsim.layouts.descriptors import descriptor
from refsim.ptx.async_ops.queue import POLICIES
from tests.ptx.tcgen05_kernels import AWAIT, BYTES, COMMIT, TensorKernel, with_products
from tests.ptx.test_tensor_core import Case, accumulator, image_of

SFA, SFB = 64, 68
NARROW = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
# kind, scale vector, what the opcode says of it, format of the scales
KINDS = [
    ("mxf8f6f4", "1x", "", "e8m0"),
    ("mxf8f6f4", "1x", ".scale_vec::1X", "e8m0"),
    ("mxf8f6f4", "1x", ".block32", "e8m0"),
    ("mxf4", "2x", "", "e8m0"),
    ("mxf4", "2x", ".block32", "e8m0"),
    ("mxf4nvf4", "2x", ".scale_vec::2X", "e8m0"),
    ("mxf4nvf4", "4x", ".block16", "ue4m3"),
    ("mxf4nvf4", "4x", ".scale_vec::4X", "e8m0"),
]
IDS = {"1x": (0, 1, 2, 3), "2x": (0, 2), "4x": (0,)}


def drawn(generator: np.random.Generator, case: Case, vector: str, stored: str) -> Any:
    """Codes of A and B, and scales that keep sums near one another; some are of any size, NaN among them."""
    blocks = int(vector[0])
    codes = [
        generator.integers(0, element_named(type).code_limit, (rows, case.k)).astype(np.uint8)
        for type, rows in ((case.a, case.m), (case.b, case.n))
    ]
    middle, limit = (56, 128) if stored == "ue4m3" else (127, 256)
    scales = [generator.integers(middle - 5, middle + 6, (rows, blocks)).astype(np.uint8) for rows in (case.m, case.n)]
    for each in scales:
        each[generator.random(each.shape) < 0.02] = generator.integers(0, limit)
    return (*codes, *scales)


def with_scales(tensor: np.ndarray, codes: np.ndarray, name: str, column: int) -> None:
    """Scales in the words of tensor memory where the layout says."""
    row = fragment(name)
    lane, byte = row.holders(*np.indices(row.shape))
    matrix = codes if codes.shape == row.shape else codes.T
    tensor.view(np.uint8).reshape(128, -1)[lane, 4 * column + byte] = matrix[..., None]


def scale_name(side: str, extent: int, vector: str, identity: int) -> str:
    which = "m" if side == "sfa" else "n"
    return f"tcgen05.{which}{extent}.{vector}.{side}" + (f".id{identity}" if identity else "")


def expected(case: Case, drawn: Any, stored: str, *, exact: bool = False) -> np.ndarray:
    a, b, sa, sb = drawn
    how: dict[str, Any] = {"a_format": case.a, "b_format": case.b, "a_scale": sa, "b_scale": sb, "scale_format": stored}
    if exact:
        return numerics.exact_product(a, b, **how).view(np.uint32)
    return numerics.mma(a, b, unit=case.unit, target="sm_100a", **how).view(np.uint32)


@pytest.mark.parametrize(("kind", "vector", "spelled", "stored"), KINDS)
def test_every_kind_and_scale_vector(kind: str, vector: str, spelled: str, stored: str) -> None:
    """Every byte that may come first; bytes that hold no scale are NaN. As the chip sums, and exactly."""
    types = ("e4m3", "e2m3") if kind == "mxf8f6f4" else ("e2m1", "e2m1")
    case = Case(kind, *types, n=48)
    for identity in IDS[vector]:
        generator = np.random.default_rng(identity)
        other = IDS[vector][-1 - IDS[vector].index(identity)]
        given = drawn(generator, case, vector, stored)
        image, words = image_of(case, *given[:2])
        tensor = np.full((128, 96), 0xFFFFFFFF, np.uint32)
        with_scales(tensor, given[2], scale_name("sfa", 128, vector, identity), SFA)
        with_scales(tensor, given[3], scale_name("sfb", 48, vector, other), SFB)
        opcode = f"tcgen05.mma.cta_group::1.kind::{kind}.block_scale{spelled}"
        body = with_products(f"{opcode} [%base], %word0, %word1, %v0, [%base+{SFA}], [%base+{SFB}], %no;")
        word = case.word(scale_format=stored, a_scale_id=identity, b_scale_id=other)
        for arithmetic in ("silicon", "exact"):
            out, trace = TensorKernel(body, columns=64, filled=96).run(
                image, tensor, words, (word,), arithmetic=arithmetic
            )
            assert trace.findings == ()
            want = expected(case, given, stored, exact=arithmetic == "exact")
            np.testing.assert_array_equal(accumulator(out, case), want)
            assert np.isfinite(want.view(np.float32)).mean() > 0.5


@pytest.mark.parametrize(("a", "b"), [(a, NARROW[-1 - at]) for at, a in enumerate(NARROW)])
def test_every_narrow_type_and_a_in_tensor_memory(a: str, b: str) -> None:
    case, generator = Case("mxf8f6f4", a, b), np.random.default_rng(5)
    given = drawn(generator, case, "1x", "e8m0")
    image, words = image_of(case, *given[:2])
    tensor = np.full((128, 96), 0x7F7F7F7F, np.uint32)
    with_scales(tensor, given[2], scale_name("sfa", 128, "1x", 0), SFA)
    with_scales(tensor, given[3], scale_name("sfb", 32, "1x", 0), SFB)
    tensor[:, 80:88] = given[0].view(np.uint32)
    for source in ("%word0", "[%base+80]"):
        opcode = "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale"
        body = with_products(f"{opcode} [%base], {source}, %word1, %v0, [%base+{SFA}], [%base+{SFB}], %no;")
        out, _ = TensorKernel(body, columns=32, filled=96).run(image, tensor, words, (case.word(),))
        np.testing.assert_array_equal(accumulator(out, case), expected(case, given, "e8m0"))


def row_descriptor(start: int, rows: int, *, leading: int = 0) -> int:
    """The word for rows of 16 bytes in a row, 8 of them a core matrix; `leading` bytes to the next 16 of each row."""
    return descriptor("tcgen05-smem").encode(
        start_address=start, stride_byte_offset=128, leading_byte_offset=leading, swizzle="none"
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_preshuffled_scales_come_by_a_copy(policy: str) -> None:
    """128 x 4 tiles of scales from shared memory to tensor memory, and four products that take one byte each."""
    case, generator = Case("mxf8f6f4", "e4m3", "e4m3", n=128, swizzles=("32B", "32B")), np.random.default_rng(6)
    a, b = (generator.integers(0, 120, (128, 32)).astype(np.uint8) for _ in "ab")
    sa, sb = (generator.integers(120, 135, (128, 4)).astype(np.uint8) for _ in "ab")
    image, words = image_of(case, a, b)
    layout = scale_layout("nvidia_128x4")
    places = (8192, 8192 + 512)
    for codes, start in ((sa, places[0]), (sb, places[1])):
        image[start : start + 512] = layout.shuffle(codes).view(np.uint8).ravel()
    copy = "tcgen05.cp.cta_group::1.32x128b.warpx4"
    copies = [f"{copy} [%base+{to}], %word{2 + at};" for at, to in enumerate((256, 260))]
    opcode = "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale"
    products = [
        f"{opcode} [%base], %word0, %word1, %v{at}, [%base+256], [%base+260], %{'yes' if at else 'no'};"
        for at in range(4)
    ]
    given = (*words, *(row_descriptor(start, 32) for start in places))
    values = tuple(case.word(a_scale_id=at, b_scale_id=at) for at in range(4))
    out, trace = TensorKernel(with_products(*copies, *products), columns=128).run(
        image, None, given, values, policy=policy, seed=2
    )
    assert trace.findings == ()
    want = expected(case, (np.tile(a, 4), np.tile(b, 4), sa, sb), "e8m0")
    np.testing.assert_array_equal(accumulator(out, case), want)


def lanes_of(shape: str) -> list[list[int]]:
    """The lanes that get each row."""
    if shape == "4x256b":
        return [[32 * row] for row in range(4)]
    if shape.startswith("64x128b"):
        pairs = [(0, 2), (1, 3)] if shape.endswith("02_13") else [(0, 1), (2, 3)]
        return [[32 * warp + row % 32 for warp in pairs[row // 32]] for row in range(64)]
    if shape.startswith("32x128b"):
        return [[32 * warp + row for warp in range(4)] for row in range(32)]
    return [[row] for row in range(128)]


SHAPES = ("128x256b", "4x256b", "128x128b", "64x128b.warpx2::02_13", "64x128b.warpx2::01_23", "32x128b.warpx4")


@pytest.mark.parametrize("narrow", ["", ".b8x16.b6x16_p32", ".b8x16.b4x16_p64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_copy_brings_rows_to_lanes(shape: str, narrow: str) -> None:
    rows, wide = lanes_of(shape), "256b" in shape
    generator = np.random.default_rng(8)
    chunks = generator.integers(0, 256, (2 if wide else 1, len(rows), 16)).astype(np.uint8)
    image = np.zeros(BYTES, np.uint8)
    image[1024 : 1024 + chunks[0].size] = chunks[0].ravel()
    if wide:
        image[8192 : 8192 + chunks[1].size] = chunks[1].ravel()
    if narrow:
        bits = 6 if "b6x16" in narrow else 4
        kept = np.unpackbits(chunks, axis=-1, bitorder="little")[..., : 16 * bits].reshape(*chunks.shape[:2], 16, bits)
        chunks = np.packbits(kept, axis=-1, bitorder="little")[..., 0]
    word = row_descriptor(1024, len(rows), leading=8192 - 1024)
    tensor = np.full((128, 32), 0xDEADBEEF, np.uint32)
    body = with_products(f"tcgen05.cp.cta_group::1.{shape}{narrow} [%base+3], %word0;")
    out, trace = TensorKernel(body, columns=32, filled=32).run(image, tensor, (word,))
    assert trace.findings == ()
    want = tensor.copy()
    for row, lanes in enumerate(rows):
        for lane in lanes:
            for at, chunk in enumerate(chunks):
                want[lane, 3 + 4 * at : 7 + 4 * at] = np.ascontiguousarray(chunk[row]).view(np.uint32)
    np.testing.assert_array_equal(out, want)


def test_a_copy_that_begins_in_an_atom_is_assumed() -> None:
    """Rows of 16 bytes in atoms of 8 x 32 bytes, from the second row on, swizzled by absolute address."""
    rows = np.random.default_rng(9).integers(0, 1 << 32, (128, 4), np.uint32)
    image = np.zeros(BYTES, np.uint8)
    pattern = swizzle("32B")
    for row in range(128):
        image[pattern(32 + row * 32) + np.arange(16)] = rows[row].view(np.uint8)
    body = with_products("tcgen05.cp.cta_group::1.128x128b [%base], %word0;")
    for start in (32, 0):
        word = descriptor("tcgen05-smem").encode(start_address=start, stride_byte_offset=256, swizzle="32B")
        out, trace = TensorKernel(body, columns=32, filled=32).run(image, None, (word,))
        assert bool(trace.assumed) == (start == 32) == np.array_equal(out[:, :4], rows)


COPY = "@%first tcgen05.cp.cta_group::1.128x128b [%base], %word0;"
READ = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r0}, [%own]; tcgen05.wait::ld.sync.aligned;"


@pytest.mark.parametrize(
    ("body", "code", "what"),
    [
        (f"{COPY} bar.sync 0; {READ}", "tensor-memory-in-flight", "tcgen05.cp"),
        (f"{COPY} {COMMIT} st.shared.b32 [%s+1024], %t; {AWAIT}", "race", "which are read by tcgen05.cp"),
        (COPY.replace("[%base]", "[%base+510]"), "out-of-bounds", "columns 510 to 513"),
        (COPY.replace("%word0", "%word1"), "invalid-operand", "the descriptor of the copy"),
    ],
)
def test_mistakes_of_copies(body: str, code: str, what: str) -> None:
    with pytest.raises(RefsimError, match=what) as caught:
        TensorKernel(body, columns=32, filled=32).run(None, None, (row_descriptor(1024, 128), 7 << 61))
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("kind", "target", "what"),
    [
        ("mxf4", "sm_100a", "K = 96 .bit 31., which sm_103 and sm_107 have and sm_100a has not"),
        ("mxf4nvf4", "sm_110a", "K = 96"),
        ("mxf8f6f4", "sm_100a", "K = 64 .bit 31., which sm_107 has and sm_100a has not"),
        ("mxf8f6f4", "sm_103a", "K = 64"),
        ("mxf8f6f4", "sm_110a", "K = 64"),
    ],
)
def test_a_longer_k_is_checked_against_the_target(kind: str, target: str, what: str) -> None:
    case = Case(kind, *(("e2m1", "e2m1") if kind != "mxf8f6f4" else ("e4m3", "e4m3")))
    stored = "ue4m3" if kind == "mxf4nvf4" else "e8m0"
    word = case.word(scale_format=stored) | 1 << 31
    vector = ".block16" if kind == "mxf4nvf4" else ".block32"
    body = with_products(
        f"tcgen05.mma.cta_group::1.kind::{kind}.block_scale{vector} [%base], %word0, %word1, %v0, [%base], [%base], %no;"
    )
    with pytest.raises(RefsimError, match=what) as caught:
        TensorKernel(body, columns=32, filled=32, target=target).run(None, None, (1 << 46, 1 << 46), (word,))
    assert caught.value.code == "invalid-operand"


def put_scales(tensor: np.ndarray, codes: np.ndarray, first: int, column: int) -> None:
    """Scales (rows, blocks) from byte `first` on: four bytes of a row stand in a column, the next four behind those of all
    tiles of 128 rows; each warp has them again."""
    held = tensor.view(np.uint8).reshape(128, -1, 4)
    step = 4 * -(-len(codes) // 128)
    for row, block in np.ndindex(codes.shape):
        at = first + block
        held[row % 32 :: 32, column + at // 4 * step + row // 32, at % 4] = codes[row, block]


@pytest.mark.parametrize(
    ("kind", "vector", "stored", "target", "k", "ids"),
    [
        ("mxf4", ".block32", "e8m0", "sm_103a", 96, (3, 1)),
        ("mxf4nvf4", ".block32", "e8m0", "sm_107a", 96, (0, 2)),
        ("mxf4nvf4", ".block16", "ue4m3", "sm_103a", 96, (2, 0)),
        ("mxf8f6f4", ".block32", "e8m0", "sm_107a", 64, (0, 2)),
    ],
)
@pytest.mark.parametrize("n", [48, pytest.param(128, marks=pytest.mark.ci("the same, more columns"))])
@pytest.mark.filterwarnings("ignore::refsim.numerics.UnverifiedProfileWarning")
def test_a_longer_k(kind: str, vector: str, stored: str, target: str, k: int, ids: tuple[int, int], n: int) -> None:
    """96 elements of 4 bits begin 32 bytes before the end of a row of 128 bytes, and go on where the leading address says:
    for A, and for B where it is large, in the same rows, of which they use other chunks."""
    types = ("e2m1", "e2m1") if k == 96 else ("e4m3", "e5m2")
    case, generator = Case(kind, *types, n=n), np.random.default_rng(n)
    block = 16 if stored == "ue4m3" else 32
    limits = [element_named(type).code_limit for type in types]
    a, b = (
        generator.integers(0, limit, (rows, k)).astype(np.uint8) for limit, rows in zip(limits, (128, n), strict=True)
    )
    middle = 56 if stored == "ue4m3" else 127
    sa, sb = (generator.integers(middle - 5, middle + 6, (rows, k // block)).astype(np.uint8) for rows in (128, n))
    image, words = np.zeros(BYTES, np.uint8), []
    for codes, start in ((a, 0), (b, 16384)):
        span, offset = (128, 96) if k == 96 else (64, 0)
        held, tiles = pack(codes, "e2m1") if k == 96 else codes, tile("K", f"{span}B", 1, (len(codes), span))
        row, column = np.indices(held.shape)
        further = start + (6144 if len(codes) == 48 else 0)
        where = column + offset
        image[np.asarray(tiles.address(row, where % span, 0)) + np.where(where < span, start, further)] = held
        given = {"start_address": start + offset, "stride_byte_offset": 8 * span, "swizzle": f"{span}B"}
        if k == 96:
            given |= {"leading_byte_offset": further, "leading_mode": "absolute"}
        words.append(descriptor("tcgen05-smem").encode(**given))
    tensor = np.full((128, 224), 0xFFFFFFFF, np.uint32)
    put_scales(tensor, sa, ids[0], 160)
    put_scales(tensor, sb, ids[1], 176)
    opcode = f"tcgen05.mma.cta_group::1.kind::{kind}.block_scale{vector}"
    product = f"{opcode} [%base], %word0, %word1, %v0, [%base+160], [%base+176], %no;"
    absolute = "shl.b64 %q, %q, 16; add.u64 %word0, %word0, %q; add.u64 %word1, %word1, %q;" * (k == 96)
    word = case.word(scale_format=stored, k=k, a_scale_id=ids[0], b_scale_id=ids[1])
    kernel = TensorKernel(absolute + with_products(product), columns=160, filled=224, target=target)
    how: dict[str, Any] = {
        "a_format": types[0],
        "b_format": types[1],
        "a_scale": sa,
        "b_scale": sb,
        "scale_format": stored,
    }
    out, trace = kernel.run(image, tensor, tuple(words), (word,))
    assert trace.findings == ()
    (assumed,) = trace.assumed
    assert "nothing is published of the longer K" in assumed
    want = numerics.mma(a, b, unit=case.unit, target=target, k=k, **how)
    np.testing.assert_array_equal(accumulator(out, case), want.view(np.uint32))
    out, _ = kernel.run(image, tensor, tuple(words), (word,), arithmetic="exact")
    np.testing.assert_array_equal(accumulator(out, case), numerics.exact_product(a, b, **how).view(np.uint32))


@pytest.mark.parametrize("name", ["m128.3x.sfa.id2", "m128.6x.sfa", "n160.6x.sfb.id2", "n256.3x.sfb.id3", "n8.3x.sfb"])
def test_scales_of_96_elements_go_on_behind_whole_tiles(name: str) -> None:
    """Every scale lies where they are put one by one."""
    row = fragment(f"tcgen05.{name}")
    extent, blocks = max(row.shape), int(name.split(".")[1][0])
    codes = np.random.default_rng(1).integers(1, 256, (extent, blocks)).astype(np.uint8)
    tensor = np.zeros((128, 16), np.uint32)
    put_scales(tensor, codes, int(name[-1]) if "id" in name else 0, 0)
    found = np.zeros((128, 64), np.uint8)
    lane, byte = row.holders(*np.indices(row.shape))
    found[lane, byte] = (codes if row.shape[0] == extent else codes.T)[..., None]
    np.testing.assert_array_equal(found, tensor.view(np.uint8).reshape(128, -1))
