"""tcgen05.mma: every kind, shape, major and swizzle against products of whole matrices; what its checks find."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from refsim import numerics, pack
from refsim.errors import RefsimError
from refsim.formats import element_named
from refsim.layouts import fragment, operand_descriptor, tile
from refsim.layouts.descriptors import descriptor
from refsim.layouts.tiles import Tile
from refsim.ptx.async_ops.queue import POLICIES
from tests.ptx.tcgen05_kernels import AWAIT, BYTES, COMMIT, TensorKernel, registers, with_products

A_START, B_START = 0, 16384
CONTAINERS = {"f16": 16, "tf32": 32, "f8f6f4": 8, "i8": 8, "mxf8f6f4": 8, "mxf4": 4, "mxf4nvf4": 4}
DTYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "s32": np.int32}


@dataclass(frozen=True)
class Case:
    """One product: its kind and types, M, N, the majors and swizzles of A and B, and whether A lies in tensor memory."""

    kind: str
    a: str
    b: str
    d: str = "f32"
    m: int = 128
    n: int = 32
    majors: tuple[str, str] = ("K", "K")
    swizzles: tuple[str, str] = ("128B", "128B")
    in_columns: bool = False

    @property
    def k(self) -> int:
        return 256 // CONTAINERS[self.kind]

    @property
    def unit(self) -> Any:
        return f"tcgen05.{self.kind}"

    def word(self, **fields: Any) -> int:
        d_format = {} if self.kind.startswith("mx") else {"d_format": self.d}
        given = {"a_format": self.a, "b_format": self.b, "a_major": self.majors[0], "b_major": self.majors[1]}
        return descriptor(f"tcgen05-instr.{self.kind}").encode(
            **(given | d_format | {"m": self.m, "n": self.n} | fields)
        )

    def tiling(self, side: str) -> Tile:
        at = side == "b"
        rows, size = (self.n if at else self.m), max(1, CONTAINERS[self.kind] // 8)
        span = {"none": 16, "32B": 32, "64B": 64, "128B": 128, "128B_32B_atom": 128}[self.swizzles[at]]
        k = 32 // size if self.majors[at] == "MN" else max(span, 32) // size
        if self.majors[at] == "MN":
            rows = max(rows, span // size)
        return tile(self.majors[at], self.swizzles[at], size, (rows, k))


def contained(codes: np.ndarray, type: str, kind: str) -> np.ndarray:
    """Codes as they lie in shared memory, by 16-byte chunks: narrow ones of bytes are packed at a chunk's low end."""
    bits, container = element_named(type).code_bits, CONTAINERS[kind]
    if bits == 8 or bits > 8:
        return codes
    packed = pack(codes.reshape(*codes.shape[:-1], -1, 128 // container), type)
    chunks = np.full((*packed.shape[:-1], 16), 0xEE, np.uint8)  # nobody reads the rest
    chunks[..., : packed.shape[-1]] = packed
    return chunks.reshape(*codes.shape[:-1], -1)


def place(image: np.ndarray, codes: np.ndarray, tiling: Tile, start: int) -> None:
    row, column = np.indices(codes.shape)
    size = codes.dtype.itemsize
    at = np.asarray(tiling.address(row, column, start))
    image[at[..., None] + np.arange(size)] = codes.view(np.uint8).reshape(*codes.shape, size)


def drawn(generator: np.random.Generator, type: str, *shape: int) -> np.ndarray:
    row = element_named(type)
    if row.is_integer or row.code_bits <= 8:
        return generator.integers(0, row.code_limit, shape).astype(np.uint8)
    values = generator.normal(size=shape)
    if type == "f16":
        return values.astype(np.float16).view(np.uint16)
    words = values.astype(np.float32).view(np.uint32)
    return (words >> 16).astype(np.uint16) if type == "bf16" else words


def image_of(case: Case, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, tuple[int, int]]:
    """Shared memory with A and B, and their descriptors."""
    image = np.random.default_rng(1).integers(0, 256, BYTES).astype(np.uint8)
    words = []
    for side, codes, type, start in (("a", a, case.a, A_START), ("b", b, case.b, B_START)):
        held, tiling = contained(codes, type, case.kind), case.tiling(side)
        place(image, held, tiling, start)
        words.append(operand_descriptor("tcgen05-smem", tiling, start))
    return image, (words[0], words[1])


def accumulator(out: np.ndarray, case: Case, first: int = 0) -> np.ndarray:
    """D's codes (m, n) out of the words of tensor memory."""
    row, column = np.indices((case.m, case.n))
    lane, at = fragment(f"tcgen05.m{case.m}n{case.n}.1sm.d").holder(row, column)
    return out[lane, first + at].astype(np.uint16 if case.d == "f16" else np.uint32)


def in_words(matrix: np.ndarray, case: Case, columns: int = 32) -> np.ndarray:
    """The words of tensor memory whose first columns hold a matrix as D."""
    tensor = np.full((128, columns), 0xDEADBEEF, np.uint32)
    row, column = np.indices(matrix.shape)
    lane, at = fragment(f"tcgen05.m{case.m}n{case.n}.1sm.d").holder(row, column)
    tensor[lane, at] = matrix.view(f"u{matrix.dtype.itemsize}")
    return tensor


def expected(case: Case, a: np.ndarray, b: np.ndarray, c: np.ndarray | None, **how: Any) -> np.ndarray:
    given = {"a_format": case.a, "b_format": case.b, "d_format": case.d, "target": "sm_100a", "k": case.k} | how
    return numerics.mma(a, b, c, unit=case.unit, **given)


NARROW = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
KINDS = [
    Case("f16", "f16", "f16"),
    Case("f16", "bf16", "bf16"),
    Case("f16", "f16", "f16", "f16"),
    Case("tf32", "tf32", "tf32"),
    *(Case("f8f6f4", a, NARROW[4 - at], d) for at, a in enumerate(NARROW) for d in ("f32", "f16")),
    *(Case("i8", a, b, "s32") for a in ("s8", "u8") for b in ("s8", "u8")),
]
LAYOUTS = [
    Case("f16", "bf16", "bf16", m=m, n=n, majors=majors, swizzles=swizzles)
    for m, n in ((64, 8), (64, 64), (128, 16), (128, 128))
    for majors, swizzles in (
        (("K", "K"), ("none", "32B")),
        (("MN", "K"), ("128B", "64B")),
        (("K", "MN"), ("64B", "128B")),
        (("MN", "MN"), ("64B", "32B")),
    )
    if majors[1] == "K" or n >= 64
]
LAYOUTS += [
    Case("tf32", "tf32", "tf32", majors=("MN", "K"), swizzles=("128B_32B_atom", "128B")),
    Case("f8f6f4", "e4m3", "e5m2", n=128, majors=("MN", "MN"), swizzles=("128B", "64B")),
    Case("i8", "s8", "u8", "s32", n=128, majors=("K", "MN"), swizzles=("none", "128B")),
]


def opcode(case: Case, suffix: str = "") -> str:
    return f"tcgen05.mma.cta_group::1.kind::{case.kind}{suffix}"


def run(case: Case, seed: int = 0, *, adds: bool = False, **how: Any) -> None:
    """One product, compared."""
    generator = np.random.default_rng(seed)
    a, b = drawn(generator, case.a, case.m, case.k), drawn(generator, case.b, case.n, case.k)
    c = generator.normal(0, 4, (case.m, case.n)).astype(DTYPES[case.d]) if adds else None
    image, words = image_of(case, a, b)
    filled = -(-case.n // 32) * 32
    tensor = in_words(np.zeros((case.m, case.n), np.uint32) if c is None else c, case, filled)
    body = with_products(f"{opcode(case)} [%base], %word0, %word1, %v0, %{'yes' if adds else 'no'};")
    out, trace = TensorKernel(body, columns=filled, filled=filled).run(image, tensor, words, (case.word(),), **how)
    assert trace.findings == ()
    exact = how.get("arithmetic") == "exact"
    given = {"a_format": case.a, "b_format": case.b, "d_format": case.d}
    want = numerics.exact_product(a, b, c, **given) if exact else expected(case, a, b, c)
    np.testing.assert_array_equal(accumulator(out, case), want.view(f"u{want.dtype.itemsize}"))
    untouched = np.ones(out.shape, np.bool_)
    row, column = np.indices((case.m, case.n))
    untouched[fragment(f"tcgen05.m{case.m}n{case.n}.1sm.d").holder(row, column)] = False
    assert (out[untouched] == 0xDEADBEEF).all()


@pytest.mark.parametrize("case", KINDS, ids=str)
def test_every_kind_and_type(case: Case) -> None:
    run(case, adds=case.d != "f16")


@pytest.mark.parametrize("case", LAYOUTS, ids=str)
def test_every_major_and_swizzle(case: Case) -> None:
    run(case, 1)


@pytest.mark.parametrize("swizzle", ["32B", "64B", "128B"])
def test_a_start_in_an_atom_is_assumed(swizzle: str) -> None:
    """A begins at byte 128, swizzled by absolute address: the product is right, and no chip of sm_100a confirms it."""
    case, generator = Case("f16", "bf16", "bf16", m=64, swizzles=(swizzle, "128B")), np.random.default_rng(2)
    a, b = drawn(generator, "bf16", 64, 16), drawn(generator, "bf16", 32, 16)
    image, words = image_of(case, a, b)
    plain = np.zeros(BYTES, np.uint8)
    place(plain, a, case.tiling("a"), 0)
    pattern, at = case.tiling("a").swizzle, np.arange(8192)
    image[pattern(at + 128)] = plain[pattern(at)]
    body = with_products(f"{opcode(case)} [%base], %word0, %word1, %v0, %no;")
    for start, is_assumed in ((128, True), (0, False)):
        given = (words[0] + (start >> 4), words[1])
        out, trace = TensorKernel(body, columns=32, filled=32).run(image, None, given, (case.word(),))
        assert bool(trace.assumed) == is_assumed
        right = accumulator(out, case) == expected(case, a, b, None).view(np.uint32)
        assert right.all() == is_assumed
    assert (
        "as on sm_90a, unverified on sm_100a"
        in TensorKernel(body, columns=32, filled=32)
        .run(image, None, (words[0] + 8, words[1]), (case.word(),))[1]
        .assumed[0]
    )
    with pytest.raises(RefsimError, match="open-bits"):
        TensorKernel(body, columns=32, filled=32).run(
            image, None, (words[0] + 8, words[1]), (case.word(),), arithmetic="known"
        )
    late = (words[0] + (112 if swizzle == "128B" else 16 if swizzle == "32B" else 48) // 16, words[1])
    with pytest.raises(RefsimError, match="run into the next row"):
        TensorKernel(body, columns=32, filled=32).run(image, None, late, (case.word(),))


@pytest.mark.parametrize("policy", POLICIES)
def test_products_of_one_thread_are_a_chain(policy: str) -> None:
    """Four steps of K through one tile, by descriptors that lead 32 bytes on, then a product elsewhere and one of these."""
    case, generator = Case("f16", "bf16", "bf16", n=64), np.random.default_rng(3)
    a, b = drawn(generator, "bf16", 128, 64), drawn(generator, "bf16", 64, 64)
    image, words = image_of(case, a[:, :16], b[:, :16])
    place(image, a, case.tiling("a"), A_START)
    place(image, b, case.tiling("b"), B_START)
    step = "add.u64 %word0, %word0, 2; add.u64 %word1, %word1, 2;"
    first = f"@%first {opcode(case)} [%base], %word0, %word1, %v0, %no;"
    more = "".join(f"{step} @%first {opcode(case)} [%base], %word0, %word1, %v0, %yes;" for _ in range(3))
    other = f"@%first {opcode(case)} [%base+64], %word0, %word1, %v0, %no;"
    again = f"@%first {opcode(case)} [%base], %word0, %word1, %v0, %yes;"
    body = "\n".join([first, more, other, again, COMMIT, AWAIT])
    for arithmetic in ("silicon", "exact"):
        out, trace = TensorKernel(body, columns=128).run(
            image, None, words, (case.word(),), policy=policy, seed=5, arithmetic=arithmetic
        )
        assert trace.findings == ()
        if arithmetic == "silicon":
            want = expected(case, np.hstack([a, a[:, 48:]]), np.hstack([b, b[:, 48:]]), None)
            np.testing.assert_array_equal(accumulator(out, case), want.view(np.uint32))
            last = expected(case, a[:, 48:], b[:, 48:], None)
            np.testing.assert_array_equal(accumulator(out, case, 64), last.view(np.uint32))
        else:
            total: Any = None
            for start in (0, 16, 32, 48, 48):
                some = slice(start, start + 16)
                total = numerics.exact_product(a[:, some], b[:, some], total, a_format="bf16", b_format="bf16")
            np.testing.assert_array_equal(accumulator(out, case), total.view(np.uint32))


@pytest.mark.parametrize(
    "case",
    [
        KINDS[1],
        KINDS[3],
        Case("f8f6f4", "e4m3", "e5m2"),
        Case("f8f6f4", "e2m1", "e4m3"),
        Case("i8", "s8", "u8", "s32"),
        Case("f16", "f16", "f16", m=64, n=8),
    ],
    ids=str,
)
def test_a_comes_from_tensor_memory(case: Case) -> None:
    generator = np.random.default_rng(7)
    a, b = drawn(generator, case.a, case.m, case.k), drawn(generator, case.b, case.n, case.k)
    image, words = image_of(case, a, b)
    tensor = np.zeros((128, 96), np.uint32)
    lane = fragment(f"tcgen05.m{case.m}n{case.n}.1sm.d").holder(np.arange(case.m), 0)[0]
    tensor[lane, 64:72] = np.ascontiguousarray(a).view(np.uint32).reshape(case.m, 8)
    body = with_products(f"{opcode(case)} [%base], [%base+64], %word1, %v0, %no;")
    out, trace = TensorKernel(body, columns=64, filled=96).run(image, tensor, words, (case.word(),))
    assert trace.findings == ()
    want = expected(case, a, b, None)
    np.testing.assert_array_equal(accumulator(out, case), want.view(f"u{want.dtype.itemsize}"))


def test_signs_lanes_and_a_division_of_d() -> None:
    """A negated, some lanes of D left as they are, D divided by 8 before it is added; i8 that saturates."""
    case, generator = Case("f16", "f16", "f16"), np.random.default_rng(9)
    a, b = drawn(generator, "f16", 128, 16), drawn(generator, "f16", 32, 16)
    c = generator.normal(size=(128, 32)).astype(np.float32)
    image, words = image_of(case, a, b)
    tensor = in_words(c, case)
    masks = tuple(generator.integers(0, 1 << 32, 4).tolist())
    body = with_products(f"{opcode(case)} [%base], %word0, %word1, %v0, {{%v1, %v2, %v3, %v4}}, %yes, 3;")
    out, _ = TensorKernel(body, columns=32, filled=32).run(image, tensor, words, (case.word(negate_a=1), *masks))
    want = expected(case, a, b, (c / 8).astype(np.float32), negate_a=True).view(np.uint32)
    off = np.array([masks[lane // 32] >> lane % 32 & 1 for lane in range(128)], np.bool_)
    np.testing.assert_array_equal(out, np.where(off[:, None], tensor, want))


def test_integers_saturate_where_the_descriptor_says_so() -> None:
    case = Case("i8", "u8", "u8", "s32")
    a, b = np.full((128, 32), 255, np.uint8), np.full((32, 32), 255, np.uint8)
    image, words = image_of(case, a, b)
    tensor = in_words(np.full((128, 32), 2**31 - 9, np.uint32), case)
    body = with_products(f"{opcode(case)} [%base], %word0, %word1, %v0, %yes;")
    out, _ = TensorKernel(body, columns=32, filled=32).run(image, tensor, words, (case.word(saturate=1),))
    assert (out == 2**31 - 1).all()


@pytest.mark.parametrize(("m", "n"), [(32, 64), (32, 256), (64, 64), (128, 64)])
def test_a_stationary_b(m: int, n: int) -> None:
    """Rows fewer than lanes: the columns of D lie in parts below each other."""
    case, generator = Case("f16", "bf16", "bf16", m=m, n=n), np.random.default_rng(m + n)
    a, b = drawn(generator, "bf16", m, 16), drawn(generator, "bf16", n, 16)
    if n == 256:
        case = Case("f16", "bf16", "bf16", m=m, n=n, swizzles=("32B", "32B"))
    image, words = image_of(case, a, b)
    opcode_ws = "tcgen05.mma.ws.cta_group::1.kind::f16.collector::b1::fill"
    body = with_products(*(f"{opcode_ws} [%base], %word0, %word1, %v0, %{add};" for add in ("no", "yes")))
    out, trace = TensorKernel(body, columns=64, filled=64).run(image, None, words, (case.word(),))
    assert trace.findings == ()
    row, column = np.indices((m, n))
    got = out[fragment(f"tcgen05.m{m}n{n}.ws.d").holder(row, column)]
    want = expected(case, np.hstack([a, a]), np.hstack([b, b]), None)
    np.testing.assert_array_equal(got, want.view(np.uint32))


PRODUCT = f"@%first {opcode(KINDS[1])} [%base], %word0, %word1, %v0, %no;"
READ = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r0}, [%own]; tcgen05.wait::ld.sync.aligned;"
STORE = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%own], {%r0};"


@pytest.mark.parametrize("policy", ["eager", "lazy"])
@pytest.mark.parametrize(
    ("body", "code", "what"),
    [
        (f"{PRODUCT} {COMMIT} {READ} {AWAIT}", "tensor-memory-in-flight", "no wait has seen its commit complete"),
        (f"{PRODUCT} bar.sync 0; {READ}", "tensor-memory-in-flight", "kind::f16"),
        (f"{PRODUCT} {COMMIT} {STORE} {AWAIT}", "tensor-memory-in-flight", "columns 0 to 0"),
        (f"{PRODUCT} {COMMIT} @%first st.shared.b32 [%s], %t; {AWAIT}", "race", "which are read by tcgen05.mma"),
        (f"{STORE} bar.sync 0; {PRODUCT} {COMMIT} {AWAIT}", "tensor-memory-in-flight", "lacks a tcgen05.wait::st"),
        (
            f"{PRODUCT} {COMMIT} @%zero tcgen05.dealloc.cta_group::1.sync.aligned.b32 %base, 512;",
            "tensor-memory-in-flight",
            "columns 0 to 511",
        ),
        (f"{PRODUCT} {AWAIT}", "deadlock", "1 of 1 arrivals are missing"),
        (
            f"{PRODUCT} setp.eq.u32 %lane, %t, 32; @%lane {PRODUCT.partition(' ')[2]} {COMMIT} {AWAIT}",
            "tensor-memory-in-flight",
            "thread \\(0, 0, 0\\)",
        ),
    ],
)
def test_what_is_in_flight_is_left_alone(body: str, code: str, what: str, policy: str) -> None:
    case = KINDS[1]
    image, words = image_of(case, np.zeros((128, 16), np.uint16), np.zeros((32, 16), np.uint16))
    with pytest.raises(RefsimError, match=what) as caught:
        TensorKernel(body, columns=32, filled=32).run(image, None, words, (case.word(),), policy=policy)
    assert caught.value.code == code


def test_a_proxy_fence_stands_between_stores_and_products() -> None:
    case = KINDS[1]
    image, words = image_of(case, np.zeros((128, 16), np.uint16), np.zeros((32, 16), np.uint16))
    body = f"st.shared.b32 [%s], 0; bar.sync 0; {with_products(PRODUCT.partition(' ')[2])}"
    with pytest.raises(RefsimError, match=r"tcgen05\.mma") as caught:
        TensorKernel(body, columns=32, filled=32).run(image, None, words, (case.word(),))
    assert caught.value.code == "missing-proxy-fence"


@pytest.mark.parametrize(
    ("kind", "word", "target", "what"),
    [
        ("f16", KINDS[1].word() | 1 << 2, "sm_100a", "A is sparse"),
        ("f16", KINDS[1].word(m=256), "sm_100a", "no m256"),
        ("i8", KINDS[-1].word(n=40), "sm_100a", "N = 40 of kind::i8 is not a multiple of 16"),
        ("f16", 0xFFFFFFFF, "sm_100a", "instruction descriptor"),
    ],
)
def test_descriptors_that_no_instruction_takes(kind: str, word: int, target: str, what: str) -> None:
    body = with_products(f"tcgen05.mma.cta_group::1.kind::{kind} [%base], %word0, %word1, %v0, %no;")
    with pytest.raises(RefsimError, match=what) as caught:
        TensorKernel(body, columns=32, filled=32, target=target).run(None, None, (1 << 46, 1 << 46), (word,))
    assert caught.value.code == "invalid-operand"


def test_what_chips_lack_is_refused() -> None:
    for text, target, code in (
        ("kind::i8 [%base], %word0, %word1, %v0, %no;", "sm_103a", "wrong-target"),
        ("kind::f16 [%base], %word0, %word1, %v0, %no, 2;", "sm_110a", "invalid-operand"),
        ("kind::f16 [%base], %word0, %word1, %v0, %no, 16;", "sm_100a", "invalid-operand"),
    ):
        with pytest.raises(RefsimError) as caught:
            TensorKernel(with_products(f"tcgen05.mma.cta_group::1.{text}"), columns=32, filled=32, target=target).run()
        assert caught.value.code == code


@pytest.mark.parametrize(
    ("start", "stored", "is_reached"),
    [
        # a chunk of row 0 of A: the words of lane 0
        (A_START, "@%first st.global.b32 [%out], %r9;", True),
        (A_START, "setp.ne.u32 %lane, %t, 0; @%lane st.global.b32 [%out], %r0;", False),
        # a chunk of row 1 of B: column 1
        (B_START + 16, "st.global.b32 [%out], %r1;", True),
        (B_START + 16, "st.global.b32 [%out], %r0;", False),
    ],
)
def test_undefined_operands_reach_their_row_or_column_of_d(start: int, stored: str, is_reached: bool) -> None:
    case = Case("f16", "bf16", "bf16", swizzles=("none", "none"))
    image, words = image_of(case, np.zeros((128, 16), np.uint16), np.zeros((32, 16), np.uint16))
    lost = f".shared .align 16 .b8 lost[16]; ld.shared.b32 %x1, [lost]; @%first st.shared.b32 [%s+{start}], %x1;"
    load = f"tcgen05.ld.sync.aligned.32x32b.x32.b32 {registers(32)}, [%own]; tcgen05.wait::ld.sync.aligned;"
    body = f"{lost} fence.proxy.async; bar.sync 0; {with_products(PRODUCT.partition(' ')[2])} {load} {stored}"
    kernel = TensorKernel(body, columns=32, dumps=False)
    if is_reached:
        with pytest.raises(RefsimError, match="an output") as caught:
            kernel.run(image, None, words, (case.word(),))
        assert caught.value.code == "uninitialised"
    else:
        _, trace = kernel.run(image, None, words, (case.word(),))
        assert trace.findings == ()


@pytest.mark.parametrize(("type", "used"), [("e2m1", 8), ("e2m3", 12), ("e4m3", 16)])
def test_the_padding_of_narrow_elements_is_not_read(type: str, used: int) -> None:
    """Of a chunk's last word, undefined, a row of D depends only where it holds elements."""
    case = Case("f8f6f4", type, "e4m3", swizzles=("none", "none"))
    zeros = np.zeros((128, 32), np.uint8)
    image, words = image_of(case, zeros, zeros[:32])
    for at in (used - 4, 12):
        lost = f".shared .align 16 .b8 lost[16]; ld.shared.b32 %x1, [lost]; @%first st.shared.b32 [%s+{A_START + at}], %x1;"
        load = f"tcgen05.ld.sync.aligned.32x32b.x32.b32 {registers(32)}, [%own]; tcgen05.wait::ld.sync.aligned;"
        product = with_products(f"{opcode(case)} [%base], %word0, %word1, %v0, %no;")
        body = f"{lost} fence.proxy.async; bar.sync 0; {product} {load} @%first st.global.b32 [%out], %r9;"
        kernel = TensorKernel(body, columns=32, dumps=False)
        if at < used:
            with pytest.raises(RefsimError, match="an output"):
                kernel.run(image, None, words, (case.word(),))
        else:
            assert kernel.run(image, None, words, (case.word(),))[1].findings == ()
