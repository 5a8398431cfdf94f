"""wgmma: every type, shape, major and swizzle against products of whole matrices that know neither fragments nor descriptors."""

import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import refsim
from refsim import numerics, ptx
from refsim.errors import RefsimError
from refsim.formats import element_named
from refsim.layouts.families.wgmma import PRODUCTS
from refsim.numerics.dot.definition import dot_product
from refsim.ptx.async_ops.queue import POLICIES
from refsim.ptx.machine.assemblers import find_ptxas
from tests.ptx.wgmma_kernels import (
    BYTES,
    FENCED,
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


OTHER_SIZES = pytest.mark.ci("the smallest, the largest and one between are multiplied in every run")


@pytest.mark.parametrize(
    "n", [n if n in (8, 104, 256) else pytest.param(n, marks=OTHER_SIZES) for n in range(8, 257, 8)]
)
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


@pytest.mark.parametrize("past", [0, 1, 4, 7])
def test_a_pattern_may_begin_past_its_own_boundary(past: int) -> None:
    """base_offset: rows of 128 bytes whose swizzle counts from 128 times it past a boundary of 1024."""
    kind = Wgmma(64, 32, "f32", "e4m3", "e4m3")
    generator = np.random.default_rng(past)
    a, b = (codes(generator, "e4m3", 48 + 16, 128)[:, :64] for _ in "ab")
    c = accumulator(generator, kind, 64, 64)
    a, b = np.pad(a, ((0, 0), (0, 64))), np.pad(b, ((0, 0), (0, 64)))
    image, tiles = np.zeros(2 * BYTES, np.uint8), (tiled(a, "K", "128B"), tiled(b, "K", "128B"))
    place(image[128 * past :], a, tiles[0], 0)
    place(image[128 * past + 8192 :], b, tiles[1], 0)
    moved = (past << 49) + (128 * past >> 4)
    words = [word(tiles[side], 8192 * side, k=32 * step) + moved for step in range(2) for side in range(2)]
    body = [FENCED, kind.issue(), kind.issue("%word2", "%word3"), *WAIT]
    text = kernel(kind, body).replace(str(BYTES), str(2 * BYTES))
    got = as_matrix(kind, launched(text, kind, image, c, None, *words))
    assert np.array_equal(got, expected(kind, a[:, :64], b[:, :64], c))


def begun_in_an_atom(
    kind: Wgmma, swizzle: str, majors: str, starts: tuple[int, int], *, relative: bool, base: bool
) -> tuple[np.ndarray, np.ndarray]:
    """D of operands that begin so many bytes past a boundary of 1024, and A B^T: 64 x 64 of 16 bits.

    The bytes are swizzled by absolute address as TMA leaves them, or from the start of each operand.
    """
    generator = np.random.default_rng(sum(starts))
    a, b = codes(generator, kind.a, 64, 64), codes(generator, kind.b, 64, 64)
    c = accumulator(generator, kind, 64, 64)
    image, words = np.zeros(2 * BYTES, np.uint8), []
    for matrix, major, start, region in zip((a, b), majors, starts, (0, BYTES), strict=True):
        tiling = tiled(matrix, "MN" if major == "M" else "K", swizzle)
        here = np.zeros(2 * BYTES, np.uint8)
        place(here, matrix, tiling, 0)
        pattern, at = refsim.layouts.swizzle(swizzle), np.arange(8192)
        held = here[pattern(at)]
        image[region + (pattern(at) + start if relative else pattern(at + start))] = held
        moved = (start // 128 % 8 << 49) * base + (start >> 4)
        words.append([word(tiling, region, k=kind.k * step) + moved for step in range(64 // kind.k)])
    turned = (int(majors[0] == "M"), int(majors[1] == "M"))
    body = [kind.issue(f"%word{2 * step}", f"%word{2 * step + 1}", turned=turned) for step in range(64 // kind.k)]
    text = kernel(kind, [FENCED, *body, *WAIT]).replace(str(BYTES), str(2 * BYTES))
    given = [each for pair in zip(*words, strict=True) for each in pair]
    return as_matrix(kind, launched(text, kind, image, c, None, *given)), expected(kind, a, b, c)


@pytest.mark.parametrize("starts", [(256, 256), (256, 0), (0, 640), (896, 256)], ids=str)
@pytest.mark.parametrize("swizzle", ["32B", "64B", "128B"])
@pytest.mark.parametrize("majors", ["KK", "MM", "KM"])
def test_operands_begin_anywhere_in_an_atom(majors: str, swizzle: str, starts: tuple[int, int]) -> None:
    """Swizzled by absolute address with base_offset 0, or from the start with the base_offset of the start: both right.
    One with the other's field is wrong. Shifts of A and B that are alike may hide it: they may permute k alike."""
    kind = Wgmma(64, 16, "f32", "f16", "f16")
    for relative in (False, True):
        got, want = begun_in_an_atom(kind, swizzle, majors, starts, relative=relative, base=relative)
        assert np.array_equal(got, want)
    wrong, want = begun_in_an_atom(kind, swizzle, majors, starts, relative=True, base=False)
    repeat = refsim.layouts.swizzle(swizzle).repeat_bytes
    if len({start % repeat for start in starts}) > 1:
        assert not np.array_equal(wrong, want)


def test_accumulators_that_nobody_reads_take_no_other_registers_place() -> None:
    """They are written when the product is complete; registers that live then lie elsewhere."""
    kind = Wgmma(8, 32, "f32", "e4m3", "e4m3")
    unread = kind.issue(add="%no").replace("%d", "%f")
    body = [".reg .f32 %f<4>, %e<4>;", FENCED, unread, *(f"mov.f32 %e{n}, 0f3f800000;" for n in range(4)), *WAIT]
    body += [FENCED, kind.issue(), *WAIT, *(f"add.f32 %d{n}, %d{n}, %e{n};" for n in range(4))]
    zeros = np.zeros((64, 32), np.uint8)
    words = word(tiled(zeros, "K", "none"), 0), word(tiled(zeros[:8], "K", "none"), B_START)
    image, c = np.zeros(BYTES, np.uint8), np.zeros((64, 8), np.uint32)
    for policy in POLICIES:
        out = launched(kernel(kind, body), kind, image, c, None, *words, policy=policy)
        assert (out.view(np.float32) == 1).all(), policy


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


@pytest.mark.parametrize(
    "kind",
    [Wgmma(16, 32, "f32", "e4m3", "e4m3"), Wgmma(64, 16, "f16", "f16", "f16"), Wgmma(24, 256, "s32", "b1", "b1")],
    ids=name,
)
def test_ptxas_takes_these_kernels(kind: Wgmma, tmp_path: Path) -> None:
    program = find_ptxas() or pytest.skip("ptxas is not installed: pip install 'nvidia-cuda-nvcc==13.0.*'")
    text = tmp_path / "k.ptx"
    text.write_text(kernel(kind, [FENCED, kind.issue(), kind.issue("registers", add="%no"), *WAIT]))
    command = [program, "--gpu-name=sm_90a", str(text), "-o", str(tmp_path / "k.cubin")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
