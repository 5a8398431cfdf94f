"""wgmma: every type, shape, major and swizzle against products of whole matrices that know neither fragments nor descriptors."""

from dataclasses import replace

import numpy as np
import pytest

from refsim import numerics, ptx
from refsim.errors import RefsimError
from refsim.formats import element_named
from refsim.layouts.families.wgmma import PRODUCTS
from refsim.numerics.dot.definition import dot_product
from refsim.ptx.async_ops.queue import POLICIES
from tests.ptx.wgmma_kernels import (
    BYTES,
    WAIT,
    Wgmma,
    as_matrix,
    codes,
    fragment_of,
    in_registers,
    kernel,
    place,
    tiled,
    word,
    words_of,
)

FENCED = "wgmma.fence.sync.aligned;"
B_START = 8192
KINDS = [
    Wgmma(16, row.k, d, a, b)
    for row in PRODUCTS
    for d in row.accumulators
    for a in row.types
    for b in row.types
    if a == b or (row.types[0], a) != ("f16", "f16")
]
FLOATS = [kind for kind in KINDS if not element_named(kind.a).is_integer]
INTEGERS = [kind for kind in KINDS if element_named(kind.a).is_integer]
DTYPES = {"f32": np.float32, "f16": np.float16, "s32": np.int32}


def name(kind: Wgmma) -> str:
    return kind.opcode.removeprefix("wgmma.mma_async.sync.aligned.")


def accumulator(generator: np.random.Generator, kind: Wgmma, *shape: int) -> np.ndarray:
    """What D begins with."""
    if kind.d == "s32":
        return generator.integers(-(2**31), 2**31 - 1, shape, np.int32).view(np.uint32)
    return generator.normal(size=shape).astype(DTYPES[kind.d]).view("u2" if kind.d == "f16" else "u4")


def expected(
    kind: Wgmma, a: np.ndarray, b: np.ndarray, c: np.ndarray | None, signs: tuple[int, int] = (1, 1)
) -> np.ndarray:
    """D as codes; integers by NumPy alone."""
    if kind.d == "s32":
        wide = [numbers(matrix, type) for matrix, type in ((a, kind.a), (b, kind.b))]
        total = wide[0] @ wide[1].T + (0 if c is None else c.view(np.int32).astype(np.int64))
        if kind.saturates:
            total = np.clip(total, -(2**31), 2**31 - 1)
        return total.astype(np.int32).view(np.uint32)
    result = numerics.mma(
        a,
        b,
        None if c is None else c.view(DTYPES[kind.d]),
        unit="wgmma",
        a_format=kind.a,
        b_format=kind.b,
        d_format=kind.d,
        k=kind.k,
        negate_a=signs[0] < 0,
        negate_b=signs[1] < 0,
    )
    return result.view("u2" if kind.d == "f16" else "u4")


def numbers(matrix: np.ndarray, type: str) -> np.ndarray:
    if type == "b1":
        return np.unpackbits(matrix, axis=1).astype(np.int64)
    return matrix.view(np.int8 if type == "s8" else np.uint8).astype(np.int64)


def launched(
    text: str, kind: Wgmma, image: np.ndarray, c: np.ndarray, a: np.ndarray | None, *words: int, **how
) -> np.ndarray:
    """D of one block, as registers."""
    held = in_registers(kind, c)
    out = np.zeros_like(held)
    fragment = np.zeros((128, 4), np.uint32) if a is None else fragment_of(kind, a)
    ptx.load(text).launch("k", (1,), (128,), [image, held, fragment, out, *words_of(*words)], **how)
    return out


@pytest.mark.parametrize("kind", KINDS, ids=name)
def test_a_product_of_every_type(kind: Wgmma) -> None:
    """A in shared memory and in registers, added to D, and begun at zero; each policy; three sums by the definition."""
    generator = np.random.default_rng(kind.k + len(kind.b))
    a, b = codes(generator, kind.a, 64, kind.k), codes(generator, kind.b, kind.n, kind.k)
    c = accumulator(generator, kind, 64, kind.n)
    image = np.zeros(BYTES, np.uint8)
    tiles = tiled(a, "K", "none"), tiled(b, "K", "none")
    place(image, a, tiles[0], 0), place(image, b, tiles[1], B_START)
    words = word(tiles[0], 0), word(tiles[1], B_START)
    for number, policy in enumerate(POLICIES):
        for source in ("%word0", "registers"):
            for add in ("%yes", "%no"):
                text = kernel(kind, [FENCED, kind.issue(source, add=add), *WAIT])
                got = as_matrix(kind, launched(text, kind, image, c, a, *words, policy=policy, seed=number))
                want = expected(kind, a, b, c if add == "%yes" else None)
                assert np.array_equal(got, want), (policy, source, add)
    if kind.d != "s32":
        row = numerics.profile("sm_90a", "wgmma", kind.a, kind.b, kind.d)
        for i, j in ((0, 0), (17, 3), (63, kind.n - 1)):
            sum_ = dot_product(a[i].tolist(), b[j].tolist(), 0, row, kind.k, a_format=kind.a, b_format=kind.b)
            assert int(got[i, j]) == sum_.result


@pytest.mark.parametrize("kind", FLOATS, ids=name)
def test_signs_are_turned(kind: Wgmma) -> None:
    generator = np.random.default_rng(3)
    a, b = codes(generator, kind.a, 64, kind.k), codes(generator, kind.b, kind.n, kind.k)
    c = accumulator(generator, kind, 64, kind.n)
    image = np.zeros(BYTES, np.uint8)
    tiles = tiled(a, "K", "none"), tiled(b, "K", "none")
    place(image, a, tiles[0], 0), place(image, b, tiles[1], B_START)
    for signs in ((-1, 1), (1, -1), (-1, -1)):
        for source in ("%word0", "registers"):
            text = kernel(kind, [FENCED, kind.issue(source, signs=signs), *WAIT])
            got = as_matrix(kind, launched(text, kind, image, c, a, word(tiles[0], 0), word(tiles[1], B_START)))
            assert np.array_equal(got, expected(kind, a, b, c, signs)), (signs, source)


@pytest.mark.parametrize("n", range(8, 257, 8))
def test_every_n(n: int) -> None:
    kind = Wgmma(n, 32, "f32", "e4m3", "e4m3")
    generator = np.random.default_rng(n)
    a, b = codes(generator, kind.a, 64, 32), codes(generator, kind.b, n, 32)
    c = accumulator(generator, kind, 64, n)
    image = np.zeros(BYTES, np.uint8)
    tiles = tiled(a, "K", "32B"), tiled(b, "K", "32B")
    place(image, a, tiles[0], B_START), place(image, b, tiles[1], 0)
    text = kernel(kind, [FENCED, kind.issue(), *WAIT])
    got = as_matrix(kind, launched(text, kind, image, c, None, word(tiles[0], B_START), word(tiles[1], 0)))
    assert np.array_equal(got, expected(kind, a, b, c))


@pytest.mark.parametrize("swizzle", ["none", "32B", "64B", "128B"])
@pytest.mark.parametrize("majors", ["KK", "KM", "MK", "MM"])
def test_every_major_and_swizzle(majors: str, swizzle: str) -> None:
    """Four steps of K out of tiles of 64 by 64 of f16, one chain; A and B each by its own major."""
    kind = Wgmma(64, 16, "f32", "f16", "f16")
    generator = np.random.default_rng(ord(swizzle[0]))
    a, b = codes(generator, "f16", 64, 64), codes(generator, "f16", 64, 64)
    c = accumulator(generator, kind, 64, 64)
    image = np.zeros(BYTES, np.uint8)
    tiles = [
        tiled(matrix, "MN" if major == "M" else "K", swizzle) for matrix, major in zip((a, b), majors, strict=True)
    ]
    place(image, a, tiles[0], 0), place(image, b, tiles[1], B_START)
    words = [word(tiles[side], start, k=16 * step) for step in range(4) for side, start in ((0, 0), (1, B_START))]
    turned = (int(majors[0] == "M"), int(majors[1] == "M"))
    body = [kind.issue(f"%word{2 * step}", f"%word{2 * step + 1}", turned=turned) for step in range(4)]
    for policy in POLICIES:
        got = launched(kernel(kind, [FENCED, *body, *WAIT]), kind, image, c, None, *words, policy=policy)
        assert np.array_equal(as_matrix(kind, got), expected(kind, a, b, c)), policy
    other = {"none": "32B", "32B": "64B", "64B": "128B", "128B": "64B"}[swizzle]
    if other == "32B" and "M" in majors:
        return
    swapped = [each & ~(3 << 62) | {"128B": 1, "64B": 2, "32B": 3}[other] << 62 for each in words]
    try:
        got = launched(kernel(kind, [FENCED, *body, *WAIT]), kind, image, c, None, *swapped)
    except RefsimError as error:
        assert error.code in ("invalid-operand", "out-of-bounds")
    else:
        assert not np.array_equal(as_matrix(kind, got), expected(kind, a, b, c))


def test_exact_sums_are_rounded_once_by_each_instruction() -> None:
    kind = Wgmma(64, 16, "f32", "bf16", "bf16")
    generator = np.random.default_rng(9)
    a, b = codes(generator, "bf16", 64, 64), codes(generator, "bf16", 64, 64)
    c = accumulator(generator, kind, 64, 64)
    image = np.zeros(BYTES, np.uint8)
    tiles = tiled(a, "K", "128B"), tiled(b, "K", "128B")
    place(image, a, tiles[0], 0), place(image, b, tiles[1], B_START)
    words = [word(tiles[side], start, k=16 * step) for step in range(4) for side, start in ((0, 0), (1, B_START))]
    body = [kind.issue(f"%word{2 * step}", f"%word{2 * step + 1}") for step in range(4)]
    got = launched(kernel(kind, [FENCED, *body, *WAIT]), kind, image, c, None, *words, arithmetic="exact")
    want = c.view(np.float32)
    for step in range(4):
        part = slice(16 * step, 16 * step + 16)
        want = numerics.exact_product(a[:, part], b[:, part], want, a_format="bf16", b_format="bf16", d_format="f32")
    assert np.array_equal(as_matrix(kind, got), want.view(np.uint32))


def test_integers_wrap_or_saturate() -> None:
    kind = Wgmma(8, 32, "s32", "s8", "s8")
    image = np.ones(BYTES, np.uint8)
    c = np.full((64, 8), 2**31 - 1, np.uint32)
    a = np.ones((64, 32), np.uint8)
    words = word(tiled(a, "K", "none"), 0), word(tiled(a[:8], "K", "none"), B_START)
    for saturates, want in ((False, -(2**31) + 31), (True, 2**31 - 1)):
        some = replace(kind, saturates=saturates)
        text = kernel(some, [FENCED, some.issue(), *WAIT])
        assert (as_matrix(some, launched(text, some, image, c, None, *words)).view(np.int32) == want).all()


def test_warpgroups_and_blocks_that_differ_in_all_they_have() -> None:
    """Two blocks of two warpgroups, each with its own image; the second group skips the sum of the first product."""
    kind = Wgmma(24, 32, "f32", "e5m2", "e4m3")
    generator = np.random.default_rng(4)
    image, c = np.zeros((2, BYTES), np.uint8), accumulator(generator, kind, 4, 64, 24)
    a, b = (
        np.stack([codes(generator, type, rows, 64) for _ in range(4)]) for type, rows in ((kind.a, 64), (kind.b, 24))
    )
    tiles = tiled(a[0], "K", "64B"), tiled(b[0], "K", "64B")
    starts = ((0, 4096), (8192, 12288))
    for number in range(4):
        place(image[number // 2], a[number], tiles[0], starts[number % 2][0])
        place(image[number // 2], b[number], tiles[1], starts[number % 2][1])
    words = [word(tiles[0], 0), word(tiles[1], 4096), word(tiles[0], 0, k=32), word(tiles[1], 4096, k=32)]
    own = ["shr.u32 %r4, %r0, 7; setp.eq.u32 %yes, %r4, 0; setp.eq.u32 %no, %r4, 1; selp.u32 %r5, 512, 0, %no;"]
    own += [f"cvt.u64.u32 %p8, %r5; add.u64 %word{number}, %word{number}, %p8;" for number in range(4)]
    body = [*own, FENCED, kind.issue(), "setp.eq.u32 %no, 0, 0;", kind.issue("%word2", "%word3", "%no"), *WAIT]
    held = np.stack([in_registers(kind, each) for each in c])
    want = np.stack(
        [expected(kind, a[number], b[number], c[number] if number % 2 == 0 else None) for number in range(4)]
    )
    for number, policy in enumerate((*POLICIES, "random")):
        out = np.zeros_like(held)
        fragment = np.zeros((512, 4), np.uint32)
        ptx.load(kernel(kind, body)).launch(
            "k", (2,), (256,), [image, held, fragment, out, *words_of(*words)], policy=policy, seed=number
        )
        assert np.array_equal(np.stack([as_matrix(kind, each) for each in out]), want), policy


# ---- mistakes
KIND = Wgmma(16, 32, "f32", "e4m3", "e4m3")
RIGHT = [FENCED, KIND.issue(), *WAIT]


def run(body: list[str], *, sets: int = 1, threads: int = 128, words: tuple[int, ...] = (), fill: int = 0, **how):
    """Codes of ones (0x38) in all of shared memory."""
    image = np.full(BYTES, fill, np.uint8)
    a = np.zeros((64, 32), np.uint8)
    words = words or (word(tiled(a, "K", "none"), 0), word(tiled(a[:16], "K", "none"), B_START))
    held = np.zeros((threads, KIND.registers * sets), np.uint32)
    out = np.zeros_like(held)
    fragment = np.zeros((threads, 4), np.uint32)
    ptx.load(kernel(KIND, body, sets=sets)).launch(
        "k", (1,), (threads,), [image, held, fragment, out, *words_of(*words)], **how
    )
    return out.view(np.float32)


ADD = "add.f32 %d0, %d0, %d0;"
MISTAKES = {
    "no wait": ("register-in-flight", [*RIGHT[:-1]], "lacks|would wait"),
    "no commit": ("register-in-flight", [*RIGHT[:-2], RIGHT[-1]], "wgmma.commit_group"),
    "a group too few": ("register-in-flight", [*RIGHT[:-1], "wgmma.wait_group.sync.aligned 1;"], "N = 0 would wait"),
    "read in flight": ("register-in-flight", [*RIGHT[:2], "mov.f32 %d1, %d0;", *WAIT], "in flight"),
    "written in flight": ("register-in-flight", [*RIGHT[:2], "mov.f32 %d7, 0f00000000;", *WAIT], "writes %d7"),
    "a part of A read in flight": (
        "register-in-flight",
        [FENCED, KIND.issue("registers"), "mov.b32 %r4, %a2;", *WAIT],
        "a part of A",
    ),
    "no fence": ("unfenced-register", [KIND.issue(), *WAIT], "no wgmma.fence stands before the first"),
    "no fence behind a write": ("unfenced-register", [*RIGHT, ADD, KIND.issue(), *WAIT], "add.f32"),
    "no fence behind a read": ("unfenced-register", [*RIGHT, "mov.f32 %d1, %d0;", KIND.issue(), *WAIT], "wrote|read"),
    "no fence behind a write of A": (
        "unfenced-register",
        [*RIGHT, "mov.b32 %a0, 0;", KIND.issue("registers"), *WAIT],
        "uses %a0",
    ),
    "another shape": (
        "unfenced-register",
        [*RIGHT[:2], Wgmma(16, 16, "f32", "f16", "f16").issue(), *WAIT],
        "accumulated as m64n16k32",
    ),
    "operands overwritten": ("race", [*RIGHT[:2], "st.shared.b32 [s], %r0;", *WAIT], "read by wgmma"),
    "descriptors that differ": (
        "invalid-operand",
        ["cvt.u64.u32 %p8, %r0; shr.u64 %p8, %p8, 5; add.u64 %word1, %word1, %p8;", *RIGHT],
        "descriptor of B",
    ),
    "half of the warps add": ("invalid-operand", ["setp.lt.u32 %yes, %r0, 64;", *RIGHT], "scale-d"),
    "a warp elsewhere": (
        "divergent-sync",
        ["setp.lt.u32 %no, %r0, 32; @%no bra AWAY;", *RIGHT, "bar.sync 1, 128;", "AWAY:"],
        "four warps|warpgroup",
    ),
}


def test_what_the_mistakes_are_made_of_is_right() -> None:
    """Products of ones: 32; and register accesses that a fence and a wait keep apart."""
    assert (run(RIGHT, fill=0x38) == 32).all()
    assert (run([*RIGHT, ADD, *RIGHT], fill=0x38)[:, 0] == 96).all()
    assert (run([FENCED, KIND.issue(), KIND.issue(), *WAIT], fill=0x38) == 64).all()
    both = [FENCED, KIND.issue(), WAIT[0], KIND.issue(first=8), WAIT[0], "wgmma.wait_group.sync.aligned 1;", ADD]
    assert (run([*both, "wgmma.wait_group.sync.aligned 0;"], sets=2, fill=0x38)[:, [0, 1, 8]] == [64, 32, 32]).all()
    guarded = [*RIGHT[:2], "@%no mov.f32 %d0, 0f00000000;", *WAIT]
    assert (run(guarded, fill=0x38) == 32).all()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str, policy: str) -> None:
    code, body, said = MISTAKES[mistake]
    with pytest.raises(RefsimError, match=said) as found:
        run(body, policy=policy)
    assert found.value.code == code


def test_a_warpgroup_of_three_warps_is_a_finding() -> None:
    with pytest.raises(RefsimError, match="96 of the warpgroup's 128 threads") as found:
        run(RIGHT, threads=96)
    assert found.value.code == "divergent-sync"


@pytest.mark.parametrize(
    ("word_", "said"),
    [
        (1 << 14, "reserved"),
        (1 << 63 | 1 << 46, "reserved"),
        (1 << 49, "base_offset"),
        (1 << 62 | 1 << 32 | 7, "run into the next row"),
        (1 << 32 | 0x3FBF, "out-of-bounds"),
    ],
)
def test_a_descriptor_that_leads_nowhere_is_a_fault(word_: int, said: str) -> None:
    with pytest.raises(RefsimError, match=said) as found:
        run(RIGHT, words=(word_, word_))
    assert found.value.code in ("invalid-operand", "out-of-bounds")


def test_constants_that_do_not_exist_are_a_fault() -> None:
    with pytest.raises(RefsimError, match="imm-scale-b is 2"):
        run([FENCED, KIND.issue(signs=(1, 2)), *WAIT])


def test_a_register_that_nobody_wrote_may_be_begun_at_zero_and_not_be_added_to() -> None:
    """A second set of accumulators that nothing has written; the kernel stores the first one."""
    kind = Wgmma(8, 32, "f32", "e4m3", "e4m3")
    fresh = "{" + ", ".join(f"%f{n}" for n in range(4)) + "}"
    declared = ".reg .f32 %f<4>;"
    for add, fails in (("%no", False), ("%yes", True)):
        issue = kind.issue(add=add).replace("{%d0, %d1, %d2, %d3}", fresh)
        body = [declared, FENCED, issue, *WAIT, "mov.f32 %d0, %f0;"]
        if fails:
            with pytest.raises(RefsimError, match="uninitialised"):
                run(body)
        else:
            assert (run(body) == 0).all()


UNWRITTEN = [
    ".shared .align 1024 .b8 t[4096];",
    "mov.u32 %r4, t; shl.b32 %r5, %r0, 4; add.u32 %r5, %r5, %r4; mov.b32 %r6, 0;",
    "setp.lt.u32 %no, %r0, WRITTEN; @%no st.shared.v4.b32 [%r5], {%r6, %r6, %r6, %r6};",
    "setp.ne.u32 %no, 0, 0;",
    "fence.proxy.async; bar.sync 0;",
    "mov.u64 %p8, t; shr.u64 %p8, %p8, 4; ld.param.u64 %word0, [word0]; add.u64 %word0, %word0, %p8;",
    *RIGHT,
]


@pytest.mark.parametrize(("written", "row", "fails"), [(128, 0, False), (127, 0, True), (64, 0, True)])
def test_an_unwritten_row_of_a_reaches_the_rows_of_d(written: int, row: int, fails: bool) -> None:
    """128 chunks of 16 bytes are A; the last one is the second half of row 63."""
    body = [line.replace("WRITTEN", str(written)) for line in UNWRITTEN]
    if fails:
        with pytest.raises(RefsimError, match="uninitialised"):
            run(body)
    else:
        assert (run(body) == 0).all()


def test_an_unwritten_row_that_is_not_stored_passes() -> None:
    """Row 63 alone is undefined, in registers 2, 3, 6 and 7 of the last quad: these are set to zero after the wait."""
    body = [line.replace("WRITTEN", "127") for line in UNWRITTEN]
    clear = [f"mov.f32 %d{number}, 0f00000000;" for number in (2, 3, 6, 7)]
    assert (run([*body, *clear]) == 0).all()
    with pytest.raises(RefsimError, match="uninitialised"):
        run([*body, *clear[1:]])
