"""Laws of fragments: each is a bijection or says how often it repeats, and instructions that meet agree on the bits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from refsim.layouts import FAMILIES, Fragment, fragment, fragments

NAMES = fragments()
# Eight registers of a lane hold 16 f16; operands of 8 and 16 lines fill a quarter and half of them.
REPEATED = {
    f"wmma.{shape}.f16.{operand}": copies
    for shape, operand, copies in (
        ("m16n16k16", "a", 2),
        ("m16n16k16", "b", 2),
        ("m32n8k16", "b", 4),
        ("m8n32k16", "a", 4),
    )
}
REPEATED |= {f"tcgen05.sp.m{m}k{k}.ws.meta": 128 // m for m in (32, 64) for k in ("16.tf32", "32.f16", "64.f8f6f4")}
names = st.sampled_from(NAMES)
Codes = NDArray[np.uint64]


# The bits that registers, and the rows of ldmatrix and stmatrix, are made of: elements of `width` bits, lowest first.


def to_bits(codes: Codes, width: int) -> NDArray[np.uint8]:
    """The bits of every code along the last axis, lowest first: shape (..., count * width)."""
    spread = codes[..., None] >> np.arange(width, dtype=np.uint64) & np.uint64(1)
    return spread.reshape(*codes.shape[:-1], -1).astype(np.uint8)


def from_bits(bits: NDArray[np.uint8], width: int) -> Codes:
    split = bits.reshape(*bits.shape[:-1], -1, width).astype(np.uint64)
    return (split << np.arange(width, dtype=np.uint64)).sum(axis=-1, dtype=np.uint64)


def registers(row: Fragment, codes: Codes) -> NDArray[np.uint8]:
    """The bits that every thread's registers hold when the fragment holds the matrix `codes`: (threads, bits)."""
    rows, cols = row.elements
    held = np.where(rows >= 0, codes[rows, cols], 0).astype(np.uint64)
    return to_bits(held << np.uint64(row.element_shift), row.slot_bits)


def matrix(row: Fragment, held: NDArray[np.uint8]) -> Codes:
    """The matrix that registers hold: the inverse of `registers`."""
    codes = from_bits(held, row.slot_bits) >> np.uint64(row.element_shift)
    return codes[row.holder(*np.indices(row.shape))]


def ldmatrix(name: str, memory: NDArray[np.uint8], addresses: NDArray[np.int64]) -> NDArray[np.uint8]:
    """What the instruction leaves in the registers, lane i giving the byte address of row i of 16 bytes."""
    row = fragment(name)
    bytes_ = memory[addresses[: row.shape[0], None] + np.arange(16)]
    packed = to_bits(bytes_.astype(np.uint64), 8)[:, : row.shape[1] * row.memory_bits]
    return registers(row, from_bits(packed, row.memory_bits))


def stmatrix(name: str, held: NDArray[np.uint8], memory: NDArray[np.uint8], addresses: NDArray[np.int64]) -> None:
    row = fragment(name)
    bytes_ = from_bits(to_bits(matrix(row, held), row.memory_bits), 8)
    memory[addresses[: row.shape[0], None] + np.arange(16)] = bytes_.astype(np.uint8)


def swizzled(address: NDArray[np.int64], bits: int) -> NDArray[np.int64]:
    """128B, 64B and 32B swizzles have 3, 2 and 1 bits; 0 is none. Written out: the laws lean on no other layout."""
    return address ^ (address >> 7 & (1 << bits) - 1) << 4


seeds = st.integers(0, 2**32 - 1)
swizzle_bits = st.integers(0, 3)


def tile(
    seed: int, rows: int, row_bytes: int, bits: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.int64]]:
    """A random tile of bytes, a memory that holds it in a pitch of 128 bytes, swizzled, and the address of each 16 bytes."""
    random = np.random.default_rng(seed)
    content = random.integers(0, 256, (rows, row_bytes), dtype=np.uint8)
    memory = random.integers(0, 256, 128 * (rows + 8), dtype=np.uint8)
    start = 16 * int(random.integers(0, (128 - row_bytes) // 16 + 1))
    addresses = swizzled(np.arange(rows)[:, None] * 128 + start + np.arange(0, row_bytes, 16), bits)
    memory[addresses[..., None] + np.arange(16)] = content.reshape(rows, -1, 16)
    return content, memory, addresses


@pytest.mark.parametrize("family", FAMILIES)
def test_every_fragment_is_a_bijection_or_repeats_evenly(family: str) -> None:
    """Every element has the same number of holders: one, but for tcgen05 scale factors and the f16 operands of wmma."""
    for name in fragments(family):
        row = fragment(name)
        rows, cols = row.elements
        used = rows >= 0
        assert rows.shape == (row.threads, row.values)
        assert (used == (cols >= 0)).all()
        count = np.zeros(row.shape, dtype=np.int64)
        np.add.at(count, (rows[used], cols[used]), 1)
        assert (count == row.copies).all(), name
        scales = family == "tcgen05" and ".sf" in name
        assert row.copies == ((2 if ".2x2" in name else 4) if scales else REPEATED.get(name, 1))


@given(name=names, data=st.data())
def test_holders_are_the_inverse_of_coord(name: str, data: st.DataObject) -> None:
    row = fragment(name)
    at = data.draw(st.integers(0, row.shape[0] - 1)), data.draw(st.integers(0, row.shape[1] - 1))
    threads, values = row.holders(*at)
    rows, cols = row.coord(threads, values)
    assert set(zip(rows.tolist(), cols.tolist(), strict=True)) == {at}
    assert (np.diff(threads * row.values + values) > 0).all()
    assert row.holder(*at) == (threads[0], values[0])


@given(name=names, data=st.data())
def test_coord_is_held_where_it_says(name: str, data: st.DataObject) -> None:
    row = fragment(name)
    place = data.draw(st.integers(0, row.threads - 1)), data.draw(st.integers(0, row.values - 1))
    element = row.coord(*place)
    if element[0] >= 0:
        assert place in set(zip(*(axis.tolist() for axis in row.holders(*element)), strict=True))


# operand, ldmatrix, elements per register byte row: the x4 order is down the rows, then along K
A_LOADS = [
    ("mma.m16n8k16.bf16.a", "ldmatrix.m8n8.x4.b16"),
    ("mma.m16n8k8.f16.a", "ldmatrix.m8n8.x2.b16"),
    ("mma.m16n8k8.tf32.a", "ldmatrix.m8n8.x4.b16"),
    ("mma.m16n8k4.tf32.a", "ldmatrix.m8n8.x2.b16"),
    ("mma.m16n8k32.e4m3.a", "ldmatrix.m8n8.x4.b16"),
    ("mma.m16n8k16.s8.a", "ldmatrix.m8n8.x2.b16"),
    ("mma.m16n8k64.e2m1.a", "ldmatrix.m8n8.x4.b16"),
    ("mma.m16n8k32.s4.a", "ldmatrix.m8n8.x2.b16"),
    ("mma.m16n8k256.b1.a", "ldmatrix.m8n8.x4.b16"),
]
B_LOADS = [
    ("mma.m16n8k16.f16.b", "ldmatrix.m8n8.x2.b16"),
    ("mma.m16n8k8.bf16.b", "ldmatrix.m8n8.x1.b16"),
    ("mma.m16n8k8.tf32.b", "ldmatrix.m8n8.x2.b16"),
    ("mma.m16n8k32.e5m2.b", "ldmatrix.m8n8.x2.b16"),
    ("mma.m16n8k64.s4.b", "ldmatrix.m8n8.x2.b16"),
    ("mma.m16n8k32.s4.b", "ldmatrix.m8n8.x1.b16"),
    ("mma.m16n8k128.b1.b", "ldmatrix.m8n8.x1.b16"),
]


@given(pair=st.sampled_from(A_LOADS), seed=seeds, bits=swizzle_bits)
def test_ldmatrix_of_a_k_major_tile_is_the_a_fragment(pair: tuple[str, str], seed: int, bits: int) -> None:
    """Lanes 0-7 and 8-15 name rows 0-7 and 8-15, lanes 16-31 the same rows 16 bytes further along K."""
    operand, load = (fragment(name) for name in pair)
    width = operand.slot_bits
    content, memory, addresses = tile(seed, 16, operand.shape[1] * width // 8, bits)
    expected = registers(operand, from_bits(to_bits(content.astype(np.uint64), 8), width))
    np.testing.assert_array_equal(ldmatrix(load.name, memory, addresses.T.ravel()), expected)


@given(pair=st.sampled_from(B_LOADS), seed=seeds, bits=swizzle_bits)
def test_ldmatrix_of_a_k_major_tile_is_the_b_fragment(pair: tuple[str, str], seed: int, bits: int) -> None:
    """B lies as N rows of K: lanes 0-7 name the eight columns n, lanes 8-15 the same ones 16 bytes further along K."""
    operand, load = (fragment(name) for name in pair)
    width = operand.slot_bits
    content, memory, addresses = tile(seed, 8, operand.shape[0] * width // 8, bits)
    expected = registers(operand, from_bits(to_bits(content.astype(np.uint64), 8), width).T)
    np.testing.assert_array_equal(ldmatrix(load.name, memory, addresses.T.ravel()), expected)


@given(seed=seeds, bits=swizzle_bits)
def test_transposing_ldmatrix_of_an_mn_major_tile_is_the_fragment(seed: int, bits: int) -> None:
    """16-bit elements: 16 rows k of 8 columns n are B, 16 rows k of 16 rows m are A, both by .trans."""
    content, memory, addresses = tile(seed, 16, 16, bits)
    b = from_bits(to_bits(content.astype(np.uint64), 8), 16)
    loaded = ldmatrix("ldmatrix.m8n8.x2.b16.trans", memory, addresses.ravel())
    np.testing.assert_array_equal(loaded, registers(fragment("mma.m16n8k16.bf16.b"), b))

    content, memory, addresses = tile(seed, 16, 32, bits)
    a = from_bits(to_bits(content.astype(np.uint64), 8), 16).T
    lanes = addresses.reshape(2, 8, 2).transpose(0, 2, 1).ravel()  # k 0-7: m 0-7, m 8-15; then k 8-15
    loaded = ldmatrix("ldmatrix.m8n8.x4.b16.trans", memory, lanes)
    np.testing.assert_array_equal(loaded, registers(fragment("mma.m16n8k16.bf16.a"), a))


@given(seed=seeds, bits=swizzle_bits)
def test_transposing_ldmatrix_of_bytes_is_the_fragment(seed: int, bits: int) -> None:
    """8-bit elements: 32 rows k of 16 bytes are A of m16n8k32, or B of two neighbouring n tiles, by m16n16."""
    content, memory, addresses = tile(seed, 32, 16, bits)
    codes = content.astype(np.uint64)
    loaded = ldmatrix("ldmatrix.m16n16.x2.b8.trans", memory, addresses.ravel())
    np.testing.assert_array_equal(loaded, registers(fragment("mma.m16n8k32.e4m3.a"), codes.T))
    halves = loaded.reshape(32, 2, 2, 32)  # register 2 * matrix + half
    for half in (0, 1):
        b = registers(fragment("mma.m16n8k32.e4m3.b"), codes[:, 8 * half : 8 * half + 8])
        np.testing.assert_array_equal(halves[:, :, half].reshape(32, 64), b)


@given(type=st.sampled_from(["e3m2", "e2m3", "e2m1"]), seed=seeds, bits=swizzle_bits)
def test_unpacking_ldmatrix_is_the_f8f6f4_fragment(type: str, seed: int, bits: int) -> None:
    """FP6 arrives in place; FP4 arrives in bits 3:0 of its byte, and mma wants it in 5:2: a shift left by two mends it."""
    operand = fragment(f"mma.m16n8k32.{type}.a")
    is_fp4 = operand.element_bits == 4
    source = "b8x16.b4x16_p64" if is_fp4 else "b8x16.b6x16_p32"
    content, memory, addresses = tile(seed, 16, 32, bits)
    rows = content.reshape(16, 2, 16)[..., : 2 * operand.element_bits]
    codes = from_bits(to_bits(rows.astype(np.uint64), 8), operand.element_bits).reshape(16, 32)
    loaded = from_bits(ldmatrix(f"ldmatrix.m8n16.x4.{source}", memory, addresses.T.ravel()), 32)
    shifted = loaded << np.uint64(2 if is_fp4 else 0)
    np.testing.assert_array_equal(to_bits(shifted, 32), registers(operand, codes))
    if is_fp4:
        assert (loaded != shifted).any() or not codes.any()


STORES = [name for name in fragments("stmatrix") if ".b16" in name]


@given(name=st.sampled_from(STORES), seed=seeds, bits=swizzle_bits)
def test_stmatrix_undoes_ldmatrix(name: str, seed: int, bits: int) -> None:
    """Both ways: what is loaded is stored back where it was, what is stored is loaded back, and nothing else moves."""
    load = name.replace("stmatrix", "ldmatrix")
    count = fragment(name).shape[0]
    _, memory, addresses = tile(seed, count, 16, bits)
    held = ldmatrix(load, memory, addresses.ravel())
    fresh = np.random.default_rng(seed + 1).permuted(held, axis=1)
    after = memory.copy()
    stmatrix(name, held, after, addresses.ravel())
    np.testing.assert_array_equal(after, memory)
    stmatrix(name, fresh, after, addresses.ravel())
    np.testing.assert_array_equal(ldmatrix(load, after, addresses.ravel()), fresh)
    outside = np.ones(len(memory), dtype=bool)
    outside[(addresses.ravel()[:, None] + np.arange(16)).ravel()] = False
    np.testing.assert_array_equal(after[outside], memory[outside])


@given(seed=seeds, bits=swizzle_bits)
def test_stmatrix_of_bytes_writes_the_accumulator_transposed(seed: int, bits: int) -> None:
    """A 16 x 8 accumulator, one byte a value in one register, is stored as eight rows n of sixteen m."""
    d = fragment("mma.m16n8k32.e4m3.d")
    codes = np.random.default_rng(seed).integers(0, 256, (16, 8)).astype(np.uint64)
    held = to_bits(codes[d.elements], 8)
    _, memory, addresses = tile(seed, 8, 16, bits)
    stmatrix("stmatrix.m16n8.x1.b8.trans", held, memory, addresses.ravel())
    np.testing.assert_array_equal(memory[addresses + np.arange(16)], codes.T)


@given(n=st.sampled_from(range(8, 257, 8)))
def test_wgmma_is_mma_sync_side_by_side(n: int) -> None:
    """Warp w of a warpgroup holds its sixteen rows as mma.sync does, one m16n8 accumulator after the other."""
    rows, cols = fragment(f"wgmma.m64n{n}k16.bf16.d").elements
    tile_rows, tile_cols = fragment("mma.m16n8k16.bf16.d").elements
    for warp in range(4):
        for step in range(n // 8):
            part = np.s_[32 * warp : 32 * warp + 32, 4 * step : 4 * step + 4]
            np.testing.assert_array_equal(rows[part], tile_rows + 16 * warp)
            np.testing.assert_array_equal(cols[part], tile_cols + 8 * step)


@pytest.mark.parametrize("n", [8, 16, 64, 256])
def test_tcgen05_ld_of_m64_gives_the_wgmma_accumulator(n: int) -> None:
    """Each warp reads lanes 0-15 of its 32 by 16x256b: the registers are those of wgmma."""
    d, load = fragment(f"tcgen05.m64n{n}.1sm.d"), fragment(f"tcgen05.ld.16x256b.x{n // 8}")
    lanes, columns = load.elements
    rows, cols = (
        np.vstack(part) for part in zip(*(d.coord(lanes + 32 * warp, columns) for warp in range(4)), strict=True)
    )
    expected = fragment(f"wgmma.m64n{n}k16.bf16.d").elements
    np.testing.assert_array_equal(rows, expected[0])
    np.testing.assert_array_equal(cols, expected[1])


@pytest.mark.parametrize("k", [16, 32, 64])
def test_accumulator_feeds_the_next_a_only_at_16_bits(k: int) -> None:
    """Two neighbouring D tiles packed to 16 bits are A of m16n8k16 as they stand; at 8 and 4 bits bytes must move."""
    a = fragment({16: "mma.m16n8k16.bf16.a", 32: "mma.m16n8k32.e4m3.a", 64: "mma.m16n8k64.e2m1.a"}[k])
    rows, cols = fragment("mma.m16n8k16.bf16.d").elements
    fed_rows, fed_cols = np.tile(rows, (1, k // 8)), np.hstack([cols + 8 * step for step in range(k // 8)])
    same = np.array_equal(fed_rows, a.elements[0]) and np.array_equal(fed_cols, a.elements[1])
    assert same == (k == 16)


@given(name=st.sampled_from([name for name in fragments("mma") if ".sf" in name]))
def test_scale_selectors_only_move_the_scales(name: str) -> None:
    """byte-id shifts the bytes, thread-id the lanes: rows and blocks stay, and different choices never overlap."""
    row = fragment(name)
    stem, _, selector = name.partition(".byte")
    base = fragment(stem)
    byte, thread = (int(part) for part in selector.split(".thread")) if selector else (0, 0)
    lanes, bytes_ = base.holder(*np.indices(base.shape))
    step = 2 if ".sfa" in name else 1
    chosen = row.holder(*np.indices(row.shape))
    np.testing.assert_array_equal(chosen[0], lanes + step * thread)
    np.testing.assert_array_equal(chosen[1], bytes_ + byte)
