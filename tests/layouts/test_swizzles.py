"""Swizzles and canonical tiles against bit strings and CuTe layouts evaluated from their published strings."""

import numpy as np
import pytest

from refsim.errors import RefsimError
from refsim.layouts.swizzles import SWIZZLES, swizzle
from refsim.layouts.tiles import K, tile

# name, bytes that stay together, bytes of a row, bytes until the pattern repeats
DOCUMENTED = [
    ("none", 16, 16, 16),
    ("32B", 16, 32, 256),
    ("64B", 16, 64, 512),
    ("128B", 16, 128, 1024),
    ("128B_32B_atom", 32, 128, 512),
]
# CUTLASS, GMMA and UMMA Layout_*_Atom_Bits: shape and stride in bits, the first mode is MN
CUTE_ATOMS = [
    ("K", "none", "(8,128):(128,1)"),
    ("K", "32B", "(8,256):(256,1)"),
    ("K", "64B", "(8,512):(512,1)"),
    ("K", "128B", "(8,1024):(1024,1)"),
    ("MN", "none", "(128,8):(1,128)"),
    ("MN", "32B", "(256,8):(1,256)"),
    ("MN", "64B", "(512,8):(1,512)"),
    ("MN", "128B", "(1024,8):(1,1024)"),
    ("MN", "128B_32B_atom", "(1024,4):(1,1024)"),
]
CUTE_SWIZZLES = {"none": (0, 4, 3), "32B": (1, 4, 3), "64B": (2, 4, 3), "128B": (3, 4, 3), "128B_32B_atom": (2, 5, 2)}


def bit_by_bit(address: int, bits: int, base: int, shift: int) -> int:
    """CuTe's Swizzle over a list of single bits: bit base+i becomes itself xor bit base+shift+i."""
    digits = [address >> place & 1 for place in range(64)]
    for place in range(bits):
        digits[base + place] ^= address >> base + shift + place & 1
    return sum(digit << place for place, digit in enumerate(digits))


def cute(layout: str, *coordinate: np.ndarray) -> np.ndarray:
    """The offset of a coordinate in a CuTe layout string, one mode after the other, nested modes colexicographic."""
    shapes, strides = (eval(part) for part in layout.split(":"))
    total = 0
    for shape, stride, along in zip(shapes, strides, coordinate, strict=True):
        index = along
        for extent, step in zip(np.atleast_1d(shape).tolist(), np.atleast_1d(stride).tolist(), strict=True):
            total, index = total + index % extent * step, index // extent
    return np.asarray(total)


@pytest.mark.parametrize(("name", "chunk", "span", "repeat"), DOCUMENTED)
def test_mode_has_the_documented_sizes(name: str, chunk: int, span: int, repeat: int) -> None:
    row = swizzle(name)
    assert (row.chunk_bytes, row.span_bytes, row.repeat_bytes) == (chunk, span, repeat)


@pytest.mark.parametrize("name", CUTE_SWIZZLES)
def test_mode_equals_cute_bit_by_bit(name: str) -> None:
    addresses = np.arange(4096)
    want = [bit_by_bit(address, *CUTE_SWIZZLES[name]) for address in addresses.tolist()]
    assert swizzle(name)(addresses).tolist() == want
    spelled = "Swizzle<{},{},{}>".format(*CUTE_SWIZZLES[name])
    assert swizzle(spelled)(addresses).tolist() == want


def test_128b_rows_are_the_published_pattern() -> None:
    chunks = swizzle("128B")(np.arange(0, 1024, 16)).reshape(8, 8) % 128 // 16
    assert chunks.tolist() == [[column ^ row for column in range(8)] for row in range(8)]


def test_negative_shift_moves_low_bits_up() -> None:
    assert swizzle("Sw<2, 0, -3>")(np.array([0, 1, 2, 3, 9])).tolist() == [0, 9, 18, 27, 1]


def test_elements_take_their_size_from_the_base() -> None:
    in_bf16 = swizzle("128B").in_elements(2)
    assert in_bf16.name == "Swizzle<3,3,3>"
    elements = np.arange(512)
    assert (in_bf16(elements) * 2 == swizzle("128B")(elements * 2)).all()


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: swizzle("96B"), "unknown-swizzle"),
        (lambda: swizzle("Swizzle<4,3,3>"), "bad-swizzle"),
        (lambda: swizzle("Swizzle<-1,3,3>"), "bad-swizzle"),
        (lambda: swizzle("Swizzle<3,60,3>"), "bad-swizzle"),
        (lambda: swizzle("128B_64B_atom"), "bad-swizzle"),
        (lambda: swizzle("128B")(-1), "out-of-range"),
        (lambda: swizzle("128B")(np.array([1.5])), "not-whole"),
        (lambda: swizzle("32B").in_elements(3), "bad-dtype"),
        (lambda: swizzle("32B").in_elements(32), "bad-dtype"),
        (lambda: tile("M", "128B", 2, (8, 64)), "unknown-name"),
        (lambda: tile("K", "128B", 8, (8, 64)), "bad-dtype"),
        (lambda: tile("K", "128B", 2, (8, 32)), "bad-tile"),
        (lambda: tile("K", "128B_32B_atom", 4, (32, 32)), "bad-tile"),
        (lambda: tile("K", "Swizzle<3,3,3>", 2, (8, 64)), "bad-tile"),
        (lambda: tile("K", "128B", 2, (16, 64), mn_stride_bytes=512), "bad-tile"),
        (lambda: tile("K", "128B", 2, (16, 64), mn_stride_bytes=1032), "bad-tile"),
        (lambda: tile("K", "128B", 2, (8, 64)).offset(8, 0), "out-of-range"),
        (lambda: tile("K", "128B", 2, (8, 64)).address(0, 0, start=8), "bad-tile"),
    ],
)
def test_misuse_is_refused(call: object, code: str) -> None:
    with pytest.raises(RefsimError) as caught:
        call()  # type: ignore[operator]
    assert caught.value.code == code


def test_more_bits_than_shift_is_no_involution() -> None:
    """Why B > S is refused: bits that were XORed are XOR sources too, and a second pass does not lead back."""
    assert any(bit_by_bit(bit_by_bit(address, 4, 0, 3), 4, 0, 3) != address for address in range(256))


@pytest.mark.parametrize("element_bytes", [1, 2, 4])
@pytest.mark.parametrize(("major", "name", "layout"), CUTE_ATOMS)
def test_atom_equals_cute(major: str, name: str, layout: str, element_bytes: int) -> None:
    bits = 8 * element_bytes
    first, second = eval(layout.partition(":")[0])
    shape = (first, second // bits) if major == K else (first // bits, second)
    made = tile(major, name, element_bytes, shape)
    assert made.atom == shape
    mn, k = np.mgrid[: shape[0], : shape[1]]
    in_bits = cute(layout, mn, k * bits) if major == K else cute(layout, mn * bits, k)
    want = [bit_by_bit(address, *CUTE_SWIZZLES[name]) for address in (in_bits // 8).ravel().tolist()]
    assert made.address(mn, k).ravel().tolist() == want


def test_compact_tile_puts_atoms_along_mn_first() -> None:
    """CUTLASS, tile_to_shape(Layout_K_SW128_Atom<bf16>, (128, 128)), and its MN-major counterpart."""
    mn, k = np.mgrid[:128, :128]
    k_major = cute("((8,16),(64,2)):((64,512),(1,8192))", mn, k) * 2
    assert (tile("K", "128B", 2, (128, 128)).offset(mn, k) == k_major).all()
    mn_major = cute("((64,2),(8,16)):((1,512),(64,1024))", mn, k) * 2
    assert (tile("MN", "128B", 2, (128, 128)).offset(mn, k) == mn_major).all()


def test_tile_is_documented_by_its_numbers() -> None:
    made = tile("K", "128B", 2, (128, 64))
    assert (int(made.offset(9, 1)), int(made.address(9, 1)), made.size_bytes) == (1154, 1170, 16384)


def test_coord_of_gaps_is_minus_one() -> None:
    made = tile("K", "64B", 1, (16, 64), mn_stride_bytes=1024)
    mn, k = made.coord(np.array([0, 511, 512, 1023, 1024, 1535, 1536]))
    assert mn.tolist() == [0, 7, -1, -1, 8, 15, -1]
    assert (k < 0).tolist() == [False, False, True, True, False, False, True]
    assert made.coord(0, start=1024)[0] == -1


def test_every_row_cites() -> None:
    assert all(row.source.place for row in SWIZZLES)
    assert tile("K", "128B", 2, (8, 64)).source.place
