"""Scale layouts against the permutes and loops of the libraries that use them, on matrices of distinct codes."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.layouts.scales import SCALE_LAYOUTS, scale_layout

SHAPES = [(128, 4), (1, 1), (33, 5), (128, 8), (130, 5), (256, 12), (300, 17)]
POISON = 0xA5
Matrix = NDArray[np.int32]


def numbered(shape: tuple[int, int]) -> Matrix:
    """Every element its own number from 1 up, so that nothing can be mistaken; 0 is a pad."""
    return np.arange(1, shape[0] * shape[1] + 1, dtype=np.int32).reshape(shape)


def padded(matrix: Matrix, rows: int, blocks: int) -> Matrix:
    return np.pad(matrix, [(0, -extent % to) for extent, to in zip(matrix.shape, (rows, blocks), strict=True)])


def to_blocked(matrix: Matrix) -> Matrix:
    """128x4 as torchao writes it: tiles of 128 x 4, each (4, 32, 4) with the first two axes exchanged."""
    whole = padded(matrix, 128, 4)
    tiles = whole.reshape(whole.shape[0] // 128, 128, whole.shape[1] // 4, 4).transpose(0, 2, 1, 3)
    return tiles.reshape(-1, 4, 32, 4).swapaxes(1, 2).ravel()


def row_indices(rows: int, group: int) -> list[int]:
    """flashinfer's table: the row at position p of a group goes to destination[p]."""
    table = {
        16: [0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15],
        32: [destination for first in range(8) for destination in range(first, 32, 8)],
    }[group]
    order = [0] * rows
    for row in range(rows):
        order[row - row % group + table[row % group]] = row
    return order


def deepgemm_words(matrix: Matrix) -> Matrix:
    """The PyTorch reference of DeepGEMM: pad, see four blocks as one word, transpose."""
    whole = padded(matrix, 4, 4)
    return whole.reshape(whole.shape[0], -1, 4).swapaxes(0, 1)


def mirage_blocks(weights: Matrix) -> Matrix:
    """The loops of make_block_indices: what each lane's eight bytes hold, then (K, N) back to (N, K)."""
    source_k, source_n = np.empty((2, 16, 16), np.int64)
    for a in range(4):
        for column in range(8):
            base, new = a % 2 * 8, 2 * column + a // 2
            source_k[base : base + 8, new] = [2 * a, 2 * a + 1, 2 * a + 8, 2 * a + 9] * 2
            source_n[base : base + 8, new] = [column] * 4 + [column + 8] * 4
    k, n = weights.T.shape
    blocks = weights.T.reshape(k // 16, 16, n // 16, 16).swapaxes(1, 2)
    return blocks[:, :, source_k, source_n].swapaxes(1, 2).reshape(k, n).T


def cdna4(matrix: Matrix, name: str, rows: int = 32) -> Matrix:
    """The views and permutes of the tutorial and of AITER."""
    whole = padded(matrix, rows, 8)
    m, k = whole.shape
    if name == "cdna4_32":
        return whole.reshape(m // 32, 32, k // 8, 4, 2, 1).transpose(0, 2, 4, 1, 3, 5).ravel()
    return whole.reshape(m // 32, 2, 16, k // 8, 2, 4, 1).transpose(0, 3, 5, 2, 4, 1, 6).ravel()


def eights(matrix: Matrix) -> Matrix:
    whole = padded(matrix, 8, 4)
    return whole.reshape(whole.shape[0] // 8, 8, whole.shape[1] // 4, 4).swapaxes(1, 2).ravel()


REFERENCES: dict[str, Callable[[Matrix], Matrix]] = {
    "nvidia_128x4": to_blocked,
    "nvidia_128x4_5d": to_blocked,
    "nvidia_128x4_k8": lambda matrix: to_blocked(padded(matrix, 128, 8)),
    "nvidia_8x4": eights,
    "flashinfer_rows_16": lambda matrix: matrix[row_indices(len(matrix), 16)],
    "flashinfer_rows_32": lambda matrix: matrix[row_indices(len(matrix), 32)],
    "flashinfer_sf_16": lambda matrix: to_blocked(matrix[row_indices(len(matrix), 16)]),
    "flashinfer_sf_32": lambda matrix: to_blocked(matrix[row_indices(len(matrix), 32)]),
    "deepgemm_mn_f32": lambda matrix: padded(matrix, 4, 1).T,
    "deepgemm_mn_ue8m0": deepgemm_words,
    "cdna4_32": lambda matrix: cdna4(matrix, "cdna4_32"),
    "cdna4_16": lambda matrix: cdna4(matrix, "cdna4_16"),
    "cdna4_16_m256": lambda matrix: cdna4(matrix, "cdna4_16", rows=256),
    "mirage_fp8_16x16": mirage_blocks,
}


def bytes_of(numbers: NDArray[np.int32], byte: int) -> NDArray[np.uint8]:
    return (numbers >> 8 * byte).astype(np.uint8)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", REFERENCES)
def test_shuffle_equals_the_library(name: str, shape: tuple[int, int]) -> None:
    """Three byte planes of the element's number, since a layout of bytes has only 256 codes to tell places apart."""
    layout = scale_layout(name)
    if not layout.pads:
        shape = (-(-shape[0] // 128) * 128, -(-shape[1] // 16) * 16)
    matrix = numbered(shape)
    want = REFERENCES[name](matrix).ravel()
    if layout.element_bytes == 4:
        assert (layout.shuffle(matrix).ravel() == want).all()
        return
    for byte in range(3):
        assert (layout.shuffle(bytes_of(matrix, byte)).ravel() == bytes_of(want, byte)).all()


def test_every_layout_has_a_reference_and_a_source() -> None:
    assert {layout.name for layout in SCALE_LAYOUTS} == set(REFERENCES)
    assert all(layout.source.place and layout.summary for layout in SCALE_LAYOUTS)


@pytest.mark.parametrize("layout", SCALE_LAYOUTS, ids=lambda layout: layout.name)
def test_pads_hold_the_poison_and_nothing_else_does(layout: object) -> None:
    row = scale_layout(layout)  # type: ignore[arg-type]
    shape = (130, 5) if row.pads else (128, 16)
    dtype = np.uint8 if row.element_bytes == 1 else np.uint32
    packed = row.shuffle(np.zeros(shape, dtype), fill=POISON)
    assert packed.shape == row.packed_shape(shape)
    assert packed.size * row.element_bytes == row.size_bytes(shape)
    held = np.flatnonzero(packed.ravel() == POISON) * row.element_bytes
    assert (held == row.pads_of(shape)).all()
    assert len(held) == packed.size - shape[0] * shape[1]


def test_documented_offset() -> None:
    layout = scale_layout("nvidia_128x4")
    assert int(layout.offset(33, 5, (128, 8))) == 533
    rows, blocks = np.mgrid[:300, :17]
    want = (rows // 128 * 5 + blocks // 4) * 512 + rows % 32 * 16 + rows % 128 // 32 * 4 + blocks % 4
    assert (layout.offset(rows, blocks, (300, 17)) == want).all()


def test_blocks_padded_to_eight_differ_only_where_the_sheet_says() -> None:
    """Odd ceil(blocks / 4) and more than one tile of rows."""
    four, eight = scale_layout("nvidia_128x4"), scale_layout("nvidia_128x4_k8")
    for shape in [(128, 4), (256, 8), (256, 4), (256, 5), (129, 12)]:
        rows, blocks = np.ogrid[: shape[0], : shape[1]]
        same = bool((four.offset(rows, blocks, shape) == eight.offset(rows, blocks, shape)).all())
        assert same == (shape[0] <= 128 or -(-shape[1] // 4) % 2 == 0)


def test_five_dimensions_are_what_tma_loads() -> None:
    assert scale_layout("nvidia_128x4_5d").packed_shape((300, 17)) == (1, 3, 5, 2, 256)


def test_words_are_little_endian() -> None:
    packed = scale_layout("deepgemm_mn_ue8m0").shuffle(np.array([[0x70, 0x71, 0x72, 0x73, 0x74]], np.uint8))
    assert [hex(word) for word in packed.view("<u4")[:, 0, 0]] == ["0x73727170", "0x74"]


def test_float_scales_may_be_padded_with_nan() -> None:
    packed = scale_layout("deepgemm_mn_f32").shuffle(np.ones((3, 2), np.float32), fill=float("nan"))
    assert np.isnan(packed).tolist() == [[False, False, False, True]] * 2


def test_leading_axes_are_separate_matrices() -> None:
    layout = scale_layout("cdna4_32")
    batch = np.random.default_rng(3).integers(0, 256, (2, 3, 40, 9), dtype=np.uint8)
    packed = layout.shuffle(batch)
    assert packed.shape == (2, 3, 64 * 16)
    assert (packed[1, 2] == layout.shuffle(batch[1, 2])).all()
    assert (layout.unshuffle(packed, (40, 9)) == batch).all()


def test_coord_knows_the_pads() -> None:
    layout = scale_layout("nvidia_8x4")
    assert [int(number) for number in layout.coord(8 * 4 + 5, (9, 5))] == [1, 5]
    assert int(layout.offset(1, 5, (9, 5))) == 37


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: scale_layout("nvidia_128x8"), "unknown-layout"),
        (lambda: scale_layout("nvidia_128x4").offset(128, 0), "out-of-range"),
        (lambda: scale_layout("nvidia_128x4").offset(0, 8, (128, 5)), "out-of-range"),
        (lambda: scale_layout("nvidia_128x4").shuffle(np.zeros((4, 4), np.float32)), "bad-dtype"),
        (lambda: scale_layout("deepgemm_mn_f32").shuffle(np.zeros((4, 4), np.uint8)), "bad-dtype"),
        (lambda: scale_layout("nvidia_128x4").shuffle(np.zeros(4, np.uint8)), "bad-shape"),
        (lambda: scale_layout("nvidia_128x4").shuffle(np.zeros((4, 4), np.uint8), fill=256), "out-of-range"),
        (lambda: scale_layout("nvidia_128x4").shuffle(np.zeros((4, 4), np.uint8), fill=0.5), "out-of-range"),
        (lambda: scale_layout("nvidia_128x4").unshuffle(np.zeros(512, np.uint8), (4, 4, 4)), "bad-shape"),
        (lambda: scale_layout("nvidia_128x4").unshuffle(np.zeros(512, np.uint8), 4), "bad-shape"),  # type: ignore[arg-type]
        (lambda: scale_layout("nvidia_128x4").unshuffle(np.zeros((4, 128), np.uint8), (4, 4)), "bad-shape"),
        (lambda: scale_layout("flashinfer_rows_16").shuffle(np.zeros((17, 4), np.uint8)), "bad-shape"),
        (lambda: scale_layout("mirage_fp8_16x16").unshuffle(np.zeros((16, 8), np.uint8), (16, 8)), "bad-shape"),
        (lambda: scale_layout("nvidia_128x4").unshuffle(np.zeros(511, np.uint8), (128, 4)), "bad-shape"),
        (lambda: scale_layout("nvidia_128x4").coord(512, (128, 4)), "out-of-range"),
        (lambda: scale_layout(["nvidia_128x4"]), "unknown-layout"),
        (lambda: scale_layout("nvidia_128x4").unshuffle(np.zeros(512, np.uint8), None), "bad-shape"),
        (lambda: scale_layout("nvidia_128x4").unshuffle(np.zeros(512, np.uint8), (128,)), "bad-shape"),
        (lambda: scale_layout("nvidia_128x4").unshuffle(np.zeros(512, np.uint8), (1, 128, 4)), "bad-shape"),
        (lambda: scale_layout("nvidia_128x4").unshuffle(np.zeros(512, np.uint8), (-1, 4)), "out-of-range"),
        (lambda: scale_layout("nvidia_128x4").unshuffle(np.zeros(512, np.uint8), (128, 4.0)), "not-whole"),
        (lambda: scale_layout("nvidia_128x4").unshuffle([[0], [0, 0]], (128, 4)), "not-an-array"),
        (lambda: scale_layout("nvidia_128x4").shuffle([[0], [0, 0]]), "not-an-array"),
        (lambda: scale_layout("nvidia_128x4").shuffle(np.zeros((4, 4), np.uint8), fill=1.5), "out-of-range"),
        (lambda: scale_layout("nvidia_128x4").shuffle(np.zeros((4, 4), np.uint8), fill=None), "out-of-range"),
        (lambda: scale_layout("nvidia_128x4").shuffle(np.zeros((4, 4), np.uint8), fill=[0, 1]), "out-of-range"),
        (lambda: scale_layout("nvidia_128x4").offset([0, 1], [0, 1, 2], (4, 4)), "bad-shape"),
        (lambda: scale_layout("nvidia_128x4").coord(0, None), "bad-shape"),
    ],
)
def test_misuse_is_refused(call: Callable[[], object], code: str) -> None:
    with pytest.raises(RefsimError) as caught:
        call()
    assert caught.value.code == code


def test_shuffled_scales_may_come_in_the_shape_that_libraries_keep() -> None:
    layout, scales = (
        scale_layout("nvidia_128x4"),
        np.random.default_rng(5).integers(0, 256, (2, 130, 5)).astype(np.uint8),
    )
    held = layout.shuffle(scales).reshape(2, 256, 8)
    np.testing.assert_array_equal(layout.unshuffle(held, (130, 5)), scales)
    np.testing.assert_array_equal(layout.unshuffle(held[1], (130, 5)), scales[1])


def test_error_without_shape_says_the_way_out() -> None:
    with pytest.raises(RefsimError, match="shape=\\(rows, blocks\\)"):
        scale_layout("nvidia_128x4").offset(200, 0)
