"""wgmma.mma_async.sp against products of whole matrices that know neither fragments nor descriptors; what it refuses."""

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refsim import numerics, ptx
from refsim.errors import RefsimError
from refsim.formats import element_named
from refsim.layouts import descriptor, fragment, operand_named, walk
from refsim.layouts.families.sparse import SPARSE_WARPGROUP_SHAPES, SparseShape
from refsim.numerics.sparse import sparsity_of
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

pytestmark = pytest.mark.filterwarnings("ignore::refsim.numerics.UnverifiedProfileWarning")
B_START, METADATA = 6144, BYTES - 512  # bytes of a block's image
KINDS = [
    (shape, Wgmma(16, shape.k // 2, d, a, b))
    for shape in SPARSE_WARPGROUP_SHAPES
    for d in shape.accumulators
    for a in shape.types
    for b in shape.types
]
LOAD = (
    ".reg .b32 %e; mul.wide.u32 %p5, %r0, 4; add.u64 %p5, %p4, %p5;",
    f"ld.global.b32 %e, [%p5+{METADATA}];",
)
DTYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "s32": np.int32}


def issue(
    kind: Wgmma,
    selector: int = 0,
    *,
    a: str = "%word0",
    b: str = "%word1",
    add: str = "%yes",
    sign: int = 1,
    turned: tuple[int, int] = (0, 0),
) -> str:
    """The statement; registers and constants are those of the dense instruction of half the K."""
    dense = kind.issue(a, b, add, turned=turned, signs=(1, sign))
    opcode = kind.opcode.replace("mma_async", "mma_async.sp").replace(f"k{kind.k}.", f"k{2 * kind.k}.")
    operands = dense.removeprefix(kind.opcode)
    return opcode + operands.replace(f", {b}, ", f", {b}, %e, {selector}, ", 1)


def metadata(positions: np.ndarray, shape: SparseShape, type: str, selector: int) -> np.ndarray:
    """A word for each thread; those that give none have what no instruction takes."""
    row = fragment(shape.metadata(type, selector))
    rows, columns = row.elements
    fields = np.uint8([0x4, 0xE])[positions] if shape.position_bits == 4 else positions
    shifts = np.arange(row.values, dtype=np.uint32) * np.uint32(row.element_bits)
    words = (fields[rows, columns].astype(np.uint32) << shifts).sum(axis=1, dtype=np.uint32)
    return np.where(rows[:, 0] < 0, np.uint32(0xFFFFFFFF), words)


def operands(
    shape: SparseShape, kind: Wgmma, rising: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """What is stored of A, three in ten of it zero, its positions, B, and what D begins with."""
    generator = np.random.default_rng(shape.k + len(kind.a))
    sparsity = sparsity_of(element_named(kind.a))
    a, b = codes(generator, kind.a, 64, kind.k), codes(generator, kind.b, kind.n, shape.k)
    a[generator.random(a.shape) < 0.3] = 0
    ranks = np.argsort(generator.random((64, kind.k // sparsity.kept, sparsity.group)), axis=-1)[..., : sparsity.kept]
    positions = (np.sort(ranks, axis=-1) if rising else ranks).reshape(64, kind.k).astype(np.uint8)
    c = generator.integers(-100, 100, (64, kind.n)).astype(DTYPES[kind.d])
    return a, positions, b, c.view("u2" if kind.d == "f16" else "u4")


def expected(shape: SparseShape, kind: Wgmma, given: Any, *, adds: bool = True) -> np.ndarray:
    a, positions, b, c = given
    how: dict[str, Any] = {"a_format": kind.a, "b_format": kind.b, "d_format": kind.d, "k": shape.k}
    start = c.view(DTYPES[kind.d]) if adds else None
    return numerics.mma(a, b, start, unit="wgmma", metadata=positions, **how).view(c.dtype)


def launched(shape: SparseShape, kind: Wgmma, given: Any, selector: int, body: list[str], **how: Any) -> np.ndarray:
    """D of one block; A at the beginning of shared memory and in registers, B behind it, both by the swizzles asked for."""
    a, positions, b, c = given
    majors, swizzles = how.pop("majors", "KK"), how.pop("swizzles", ("none", "none"))
    image = np.zeros(BYTES, np.uint8)
    tiles = [tiled(m, "MN" if M == "M" else "K", s) for m, M, s in zip((a, b), majors, swizzles, strict=True)]
    place(image, a, tiles[0], 0), place(image, b, tiles[1], 8192 if swizzles[1] != "none" else B_START)
    image[METADATA:] = how.pop("metadata", metadata(positions, shape, kind.a, selector)).view(np.uint8)
    words = word(tiles[0], 0), word(tiles[1], 8192 if swizzles[1] != "none" else B_START)
    held = in_registers(kind, c)
    out = np.zeros_like(held)
    text = kernel(kind, [*LOAD, *body])
    ptx.load(text).launch("k", (1,), (128,), [image, held, fragment_of(kind, a), out, *words_of(*words)], **how)
    return as_matrix(kind, out)


@pytest.mark.parametrize(("shape", "kind"), KINDS, ids=str)
def test_a_product_of_every_type(shape: SparseShape, kind: Wgmma) -> None:
    """A in shared memory and in registers, added to D, and begun at zero, under each policy; every selector."""
    for selector in shape.selectors:
        given = operands(shape, kind, rising=selector == 0)
        cases = [("%word0", "%yes", "eager"), ("registers", "%no", "lazy"), ("registers", "%yes", "random")]
        assert {policy for *_, policy in cases} == set(POLICIES)
        for source, add, policy in cases:
            body = [FENCED, issue(kind, selector, a=source, add=add), *WAIT]
            got = launched(shape, kind, given, selector, body, policy=policy)
            np.testing.assert_array_equal(got, expected(shape, kind, given, adds=add == "%yes"))


@pytest.mark.parametrize("swizzles", [("32B", "64B"), ("64B", "128B"), ("none", "64B")], ids=str)
@pytest.mark.parametrize("majors", ["KK", "KM", "MK", "MM"])
def test_every_major(majors: str, swizzles: tuple[str, str]) -> None:
    """f16: 16 stored columns of A, 32 of B; tiles that are no wider than a swizzle's span are not to be had."""
    shape, kind = SPARSE_WARPGROUP_SHAPES[0], Wgmma(64, 16, "f32", "f16", "f16")
    given = operands(shape, kind)
    turned = (int(majors[0] == "M"), int(majors[1] == "M"))
    wide = tuple("64B" if side == "M" and each == "128B" else each for side, each in zip(majors, swizzles, strict=True))
    if majors[0] == "K" and swizzles[0] == "64B":
        wide = ("32B", wide[1])
    if majors[1] == "K" and swizzles[1] == "128B":
        wide = (wide[0], "64B")
    got = launched(shape, kind, given, 0, [FENCED, issue(kind, turned=turned), *WAIT], majors=majors, swizzles=wide)
    np.testing.assert_array_equal(got, expected(shape, kind, given))


def test_a_chain_and_the_next_group() -> None:
    """Two products of one group that add to one another, a third that begins at zero for nobody, and exact sums."""
    shape, kind = SPARSE_WARPGROUP_SHAPES[1], Wgmma(16, 16, "f32", "bf16", "bf16")
    given = operands(shape, kind)
    body = [FENCED, issue(kind), issue(kind, a="registers", sign=-1), issue(kind), *WAIT]
    once = expected(shape, kind, given)
    a, positions, b, _ = given
    down = expected(shape, kind, (a, positions, b ^ np.uint16(0x8000), once))
    for policy in POLICIES:
        got = launched(shape, kind, given, 0, body, policy=policy)
        np.testing.assert_array_equal(got, expected(shape, kind, (a, positions, b, down)))
    exact = launched(shape, kind, given, 0, [FENCED, issue(kind), *WAIT], arithmetic="exact")
    whole = numerics.decompress(a, positions, "bf16")
    want = numerics.exact_product(whole, b, given[3].view(np.float32), a_format="bf16", b_format="bf16")
    np.testing.assert_array_equal(exact.view(np.float32), want)


def test_metadata_that_no_instruction_takes_is_a_fault() -> None:
    shape, kind = SPARSE_WARPGROUP_SHAPES[3], Wgmma(8, 32, "f32", "e4m3", "e4m3")
    given = operands(shape, kind)
    words = np.full(128, 0x44444444, np.uint32)
    words[37] = 0x44A44444
    with pytest.raises(
        RefsimError, match="row 25, stored column 10 on is 0b1010: it names one element twice"
    ) as caught:
        launched(shape, kind, given, 0, [FENCED, issue(kind), *WAIT], metadata=words)
    assert caught.value.code == "invalid-operand"
    assert "thread (37, 0, 0)" in str(caught.value)
    with pytest.raises(RefsimError, match="the sparsity selector is 1"):
        launched(shape, kind, given, 0, [FENCED, issue(kind, 1), *WAIT])


def test_rows_of_b_are_twice_as_long_as_those_of_a() -> None:
    """64 bytes of K do not fit a swizzle of 32: what runs past a row is read from the next ones."""
    shape, kind = SPARSE_WARPGROUP_SHAPES[0], Wgmma(8, 16, "f32", "f16", "f16")
    a, positions, b, c = operands(shape, kind)
    narrow = tiled(b, "K", "32B")
    image = np.zeros(BYTES, np.uint8)
    place(image, b, narrow, 8192)
    found = walk(descriptor("wgmma-smem"), word(narrow, 8192), "wgmma.sp.m64n8k32.f16.b")
    assert "64 bytes of K from byte 0 of a 32-byte row" in found.problems[0]
    read = image.view(np.uint16)[found.addresses // 2]
    assert (read != b).any()
    body = [FENCED, issue(kind), *WAIT]
    got = launched(shape, kind, (a, positions, b, c), 0, body, swizzles=("32B", "32B"))
    np.testing.assert_array_equal(got, expected(shape, kind, (a, positions, read, c)))
    assert [operand_named(f"wgmma.sp.m64n128k64.e4m3.{side}").k for side in "ab"] == [32, 64]
    tile = tiled(np.zeros((16, 64), np.uint8), "K", "64B")
    assert walk(descriptor("wgmma-smem"), word(tile, 0), "wgmma.sp.m64n16k64.e4m3.b").bytes_read.size == 1024
    for name in ("wgmma.sp.m64n16k32.e4m3.b", "wgmma.sp.m64n16k512.b1.b", "tcgen05.sp.m64n16k32.i8.b"):
        with pytest.raises(RefsimError):
            operand_named(name)


@pytest.mark.parametrize(
    ("code", "body"),
    [
        ("register-in-flight", lambda s: [FENCED, s, "add.f32 %d1, %d1, %d1;", *WAIT]),
        ("register-in-flight", lambda s: [FENCED, s, "mov.b32 %a2, 0;", *WAIT]),
        ("unfenced-register", lambda s: ["mov.b32 %a2, 0;", s, *WAIT]),
    ],
)
def test_registers_are_looked_after_as_those_of_dense_products(code: str, body: Any) -> None:
    shape, kind = SPARSE_WARPGROUP_SHAPES[0], Wgmma(8, 16, "f32", "f16", "f16")
    with pytest.raises(RefsimError) as caught:
        launched(shape, kind, operands(shape, kind), 0, body(issue(kind, a="registers")))
    assert caught.value.code == code


def test_metadata_is_read_when_the_instruction_is_issued() -> None:
    """Its register is neither an accumulator nor a part of A: another value may be written at once."""
    shape, kind = SPARSE_WARPGROUP_SHAPES[0], Wgmma(8, 16, "f32", "f16", "f16")
    given = operands(shape, kind)
    body = [FENCED, issue(kind), "mov.b32 %e, 0;", *WAIT]
    for policy in POLICIES:
        np.testing.assert_array_equal(
            launched(shape, kind, given, 0, body, policy=policy), expected(shape, kind, given)
        )


@pytest.mark.parametrize(
    ("word", "reached"),
    [(0x44444444, None), (0xEEEEEEEE, "an output"), (None, "the metadata of a sparse product")],
    ids=["not met", "met", "metadata"],
)
def test_undefined_bits_go_where_they_matter(word: int | None, reached: str | None) -> None:
    """B's first row of K, elements 2 and 3, never written: rows that store elements 0 and 1 of each group do not meet them."""
    shape, kind = SPARSE_WARPGROUP_SHAPES[0], Wgmma(8, 16, "f32", "f16", "f16")
    a, positions, b, c = operands(shape, kind)
    body = [".shared .align 16 .b8 u[1024]; .reg .b32 %u, %v; .reg .b64 %wide;"]
    body += ["mov.u32 %u, u; mad.lo.u32 %v, %r0, 4, %u; setp.ne.u32 %no, %r0, 1;"]
    body += ["@%no st.shared.b32 [%v], 0; st.shared.b32 [%v+512], 0; setp.ne.u32 %no, 0, 0;"]
    body += ["fence.proxy.async.shared::cta; bar.sync 0;"]
    body += ["ld.shared.b32 %e, [%u+4];" if word is None else f"mov.b32 %e, {word:#x};"]
    distances = 128 // 16 << 16 | 512 // 16 << 32  # from chunk to chunk along K, from eight rows to the next
    body += [f"shr.u32 %u, %u, 4; cvt.u64.u32 %wide, %u; or.b64 %wide, %wide, {distances:#x};"]
    b_word = "%word1" if word is None else "%wide"
    body += [FENCED, issue(kind, b=b_word), *WAIT]
    if reached is None:
        launched(shape, kind, (a, positions, b, c), 0, body)
    else:
        with pytest.raises(RefsimError, match=reached) as caught:
            launched(shape, kind, (a, positions, b, c), 0, body)
        assert caught.value.code == "uninitialised"


@pytest.mark.parametrize(("shape", "kind"), KINDS[:1] + KINDS[5:6], ids=str)
def test_ptxas_takes_these_kernels(shape: SparseShape, kind: Wgmma, tmp_path: Path) -> None:
    program = find_ptxas() or pytest.skip("ptxas is not installed: pip install 'nvidia-cuda-nvcc==13.0.*'")
    text = tmp_path / "k.ptx"
    text.write_text(kernel(kind, [*LOAD, FENCED, issue(kind), issue(kind, a="registers", add="%no"), *WAIT]))
    command = [program, "--gpu-name=sm_90a", str(text), "-o", str(tmp_path / "k.cubin")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
