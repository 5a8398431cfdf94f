"""Scale and weight layouts in global memory: the place of element (row, block) of a matrix after its shuffle."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refsim.errors import RefsimError, unknown
from refsim.evidence import Evidence
from refsim.integers import array_of, whole
from refsim.layouts.drawing import drawn
from refsim.layouts.evidence import evidence as evidence_of
from refsim.render.cards import Card
from refsim.sources import AITER, CUBLAS, DEEPGEMM, FLASHINFER, MIRAGE, TRITON, Source
from refsim.typed_arrays import words

Indices = NDArray[np.int64]
Shape = tuple[int, int]
Place = Callable[[Indices, Indices, Shape], Indices]


@drawn
@dataclass(frozen=True, repr=False)
class ScaleLayout(Card):
    """Describe a layout of (rows, blocks) elements: padded to multiples of `tile`, then placed by `place`.

    `place` gives the index of element (row, block) within one matrix of the padded shape. `element_bytes` is 1, or 4
    where the layout moves float32. `pads` is False where the tile must be filled and nothing may be added.
    `packed_dims` gives the shape in which the result is returned, flat if None.
    nvidia_128x4: scale (33, 5) of a (128, 8) matrix lies at byte 512 + 16 + 4 + 1 = 533.
    """

    name: str
    tile: Shape
    place: Place
    source: Source
    summary: str
    element_bytes: int = 1
    pads: bool = True
    packed_dims: Callable[[Shape], tuple[int, ...]] | None = None

    @property
    def evidence(self) -> Evidence:
        """Return the evidence for the layout: its formula, an independent package, or a run on a chip."""
        return evidence_of(self.name)

    @property
    def chips(self) -> str:
        """Return the chips whose kernels read this layout; "" where only software uses it."""
        return next((chips for prefix, chips in _CHIPS.items() if self.name.startswith(prefix)), "")

    def padded(self, shape: Shape) -> Shape:
        """Return rows and blocks after padding: (130, 5) becomes (256, 8) in nvidia_128x4."""
        rows, blocks = _extents(shape, self.name)
        whole_tiles = (-(-rows // self.tile[0]) * self.tile[0], -(-blocks // self.tile[1]) * self.tile[1])
        if not self.pads and whole_tiles != (rows, blocks):
            what = f"{rows} x {blocks} is not filled by tiles of {self.tile[0]} x {self.tile[1]}"
            help = f"pad the matrix itself to {whole_tiles[0]} x {whole_tiles[1]} first"
            raise RefsimError("bad-shape", what, where=self.name, rule=str(self.source), help=help)
        return whole_tiles

    def packed_shape(self, shape: Shape) -> tuple[int, ...]:
        """Return the shape of the shuffled matrix, without leading axes."""
        padded = self.padded(shape)
        return self.packed_dims(padded) if self.packed_dims else (padded[0] * padded[1],)

    def size_bytes(self, shape: Shape) -> int:
        """Return the bytes of one shuffled matrix, padding included: 2048 for (130, 5) in nvidia_128x4."""
        padded = self.padded(shape)
        return padded[0] * padded[1] * self.element_bytes

    def offset(self, row: ArrayLike, block: ArrayLike, shape: Shape | None = None) -> Indices:
        """Return the byte at which element (row, block) begins; arrays broadcast.

        `shape` is the matrix's (rows, blocks) before padding. Without it only the first tile is known, since the place
        of the next depends on the shape. Rows and blocks of the padding are legal, too: they have a place.
        Raises RefsimError outside the padded shape.
        """
        padded = self.tile if shape is None else self.padded(shape)
        try:
            rows, blocks = whole("row", row, limit=padded[0]), whole("block", block, limit=padded[1])
            np.broadcast_shapes(rows.shape, blocks.shape)
        except RefsimError as error:
            if shape is None:
                error.help = f"shape=(rows, blocks): without it only the first tile of {self.name} is known"
            raise
        except ValueError as error:
            what = f"rows of shape {np.shape(row)} and blocks of shape {np.shape(block)}"
            raise RefsimError("bad-shape", what, where=self.name, rule="arrays that broadcast") from error
        return np.asarray(self.place(rows, blocks, padded) * self.element_bytes)

    def coord(self, byte_offset: ArrayLike, shape: Shape) -> tuple[Indices, Indices]:
        """Return the element (row, block) of the padded shape whose bytes hold each offset; derived from `place`.

        Rows or blocks at or past `shape` are padding.
        """
        padded = self.padded(shape)
        at = whole("byte offset", byte_offset, limit=self.size_bytes(shape)) // self.element_bytes
        elements = np.empty(padded[0] * padded[1], np.int64)
        elements[self._places(padded).ravel()] = np.arange(elements.size)
        index = elements[at]
        return np.asarray(index // padded[1]), np.asarray(index % padded[1])

    def shuffle(self, matrix: ArrayLike, *, fill: int | float = 0) -> NDArray[Any]:
        """Return the matrix (..., rows, blocks) as hardware reads it: (..., *packed_shape), same dtype.

        `matrix` may be an array of ml_dtypes. Every element of the padding holds `fill`, a code where the matrix holds
        codes: 0 as the libraries write, or a poison (0xFF is NaN in E8M0, 0x7F in UE4M3).
        Raises RefsimError for a dtype of another width, or a shape that a layout without padding does not fill.
        """
        given = array_of("matrix", matrix)
        source = self._checked(words(given), 2)
        shape = (source.shape[-2], source.shape[-1])
        padded = self.padded(shape)
        packed = np.full((*source.shape[:-2], padded[0] * padded[1]), _fill(fill, source.dtype))
        packed[..., self._places(padded)[: shape[0], : shape[1]]] = source
        return packed.reshape(*source.shape[:-2], *self.packed_shape(shape)).view(given.dtype)

    def unshuffle(self, packed: ArrayLike, shape: Shape) -> NDArray[Any]:
        """Return the matrix (..., rows, blocks) of `shape` out of its shuffled form; the values of padding are dropped.

        `packed` is (..., *packed_shape(shape)), (..., n) flat, or equal bytes as (..., padded rows, padded blocks), the
        shape in which vLLM, FlashInfer and Transformer Engine keep them. Raises RefsimError for another size.
        """
        dims = self.packed_shape(shape)
        array = array_of("packed", packed)
        padded = self.padded(shape)
        count = padded[0] * padded[1]
        tail = next((len(each) for each in (dims, padded) if array.shape[max(0, array.ndim - len(each)) :] == each), 1)
        if array.ndim < 1 or int(np.prod(array.shape[array.ndim - tail :])) != count:
            what = f"{array.shape} is not the shuffled form of {shape[0]} x {shape[1]}"
            rule = f"{shape[0]} x {shape[1]} pads to {padded[0]} x {padded[1]}: {count} elements, shape {dims}"
            raise RefsimError("bad-shape", what, where=self.name, rule=rule)
        flat = self._checked(array.reshape(*array.shape[: array.ndim - tail], count), 1)
        return np.asarray(flat[..., self._places(padded)[: shape[0], : shape[1]]])

    def pads_of(self, shape: Shape) -> Indices:
        """Return the byte offsets, ascending, of elements that no scale of `shape` fills; hardware reads them."""
        free = np.ones(self.size_bytes(shape) // self.element_bytes, bool)
        free[self._places(self.padded(shape))[: shape[0], : shape[1]]] = False
        return np.flatnonzero(free) * self.element_bytes

    def _places(self, padded: Shape) -> Indices:
        rows, blocks = np.arange(padded[0])[:, None], np.arange(padded[1])[None, :]
        return np.broadcast_to(self.place(rows, blocks, padded), padded)

    def _checked(self, array: NDArray[Any], axes: int) -> NDArray[Any]:
        if array.dtype.itemsize != self.element_bytes:
            what = f"{self.name} moves elements of {self.element_bytes} byte(s), not {array.dtype}"
            help = "codes are uint8 arrays" if self.element_bytes == 1 else "float32, or its uint32 view"
            raise RefsimError("bad-dtype", what, help=help)
        if array.ndim < axes:
            what = f"this array has {array.ndim} axes"
            raise RefsimError("bad-shape", what, where=self.name, rule="a matrix has rows and blocks")
        return array

    def _repr_summary(self) -> str:
        return f"{self.name}: tiles of {self.tile[0]} x {self.tile[1]}"


def _extents(shape: Shape, where: str) -> Shape:
    """Return rows and blocks, both whole numbers."""
    if array_of("shape", shape).shape != (2,):
        raise RefsimError("bad-shape", f"shape {shape!r}", where=where, rule="(rows, blocks)")
    return int(whole("rows", shape[0])), int(whole("blocks", shape[1]))


def _fill(value: int | float, dtype: np.dtype[Any]) -> NDArray[Any]:
    try:
        found = np.asarray(value, dtype)
        is_other = found.shape != () or (dtype.kind in "iu" and found != value)
    except (OverflowError, ValueError, TypeError):
        is_other = True
    if is_other:
        rule = "one code, which fills every pad: 0, or a poison"
        raise RefsimError("out-of-range", f"fill {value!r} is no {dtype} element", rule=rule)
    return found


def _tiles_in_row(tile: Shape, within: Callable[[Indices, Indices], Indices]) -> Place:
    """Return a `Place` of tiles along a row of tiles, then row by row; `within` places an element in its tile."""

    def place(row: Indices, block: Indices, padded: Shape) -> Indices:
        index = row // tile[0] * (padded[1] // tile[1]) + block // tile[1]
        return index * (tile[0] * tile[1]) + within(row % tile[0], block % tile[1])

    return place


def _nvidia_atom(row: Indices, block: Indices) -> Indices:
    """Return bytes of a 128 x 4 tile: 16 a row of the lowest 32, the four groups of 32 rows side by side."""
    return row % 32 * 16 + row // 32 * 4 + block


_128X4 = _tiles_in_row((128, 4), _nvidia_atom)


def _rows_moved(rows_in_group: int, then: Place | None = None) -> Place:
    """Return a `Place` that moves rows 0, s, 2s ... of a group to its front (s = group / 8).

    The rows of one thread become neighbors. `then` places the moved rows.
    """
    step = rows_in_group // 8

    def place(row: Indices, block: Indices, padded: Shape) -> Indices:
        within = row % rows_in_group
        moved = row - within + within % step * 8 + within // step
        return then(moved, block, padded) if then else moved * padded[1] + block

    return place


def _mn_major(row: Indices, block: Indices, padded: Shape) -> Indices:
    return block * padded[0] + row


def _mn_major_words(row: Indices, block: Indices, padded: Shape) -> Indices:
    return (block // 4 * padded[0] + row) * 4 + block % 4


def _cdna4_32(row: Indices, block: Indices) -> Indices:
    return block % 2 * 128 + row * 4 + block // 2


def _cdna4_16(row: Indices, block: Indices) -> Indices:
    return block % 4 * 64 + row % 16 * 4 + block // 4 * 2 + row // 16


def _mirage(row: Indices, block: Indices, padded: Shape) -> Indices:
    """Return places within 16 x 16 (n, k) tiles of Mirage.

    Lane 4g + a finds k = 2a, 2a+1, 2a+8, 2a+9 of n = g, then of n = g + 8, in 8 bytes.
    """
    n, k = row % 16, block % 16
    lane = k % 8 // 2
    moved_n = 2 * (n % 8) + lane // 2
    moved_k = lane % 2 * 8 + n // 8 * 4 + k // 8 * 2 + k % 2
    return (row - n + moved_n) * padded[1] + block - k + moved_k


def _as_tiles(padded: Shape) -> tuple[int, ...]:
    return (1, padded[0] // 128, padded[1] // 4, 2, 256)


_CUBLAS = CUBLAS["1D block scaling factors layout"]
_SHUFFLE = FLASHINFER["shuffle_matrix_a: shuffle block of 16 rows, 32 where the epilogue tile is a multiple of 128"]
_SHUFFLE_SF = FLASHINFER["shuffle_matrix_sf_a: the same rows, then 128x4"]

# fmt: off
SCALE_LAYOUTS = (
    ScaleLayout(
        "nvidia_128x4", (128, 4), _128X4, _CUBLAS, "cuBLAS, CUTLASS and tcgen05: 512 bytes a tile, tiles along K first"
    ),
    ScaleLayout(
        "nvidia_128x4_5d", (128, 4), _128X4, TRITON["tutorial 10, block scaled matmul"],
        "the bytes of nvidia_128x4 as (1, M/128, K/4, 2, 256), which TMA loads as a box", packed_dims=_as_tiles,
    ),
    ScaleLayout(
        "nvidia_128x4_k8", (128, 8), _128X4, TRITON["triton_kernels, BlackwellMXScaleLayout"],
        "nvidia_128x4 with blocks padded to 8: other offsets where ceil(K/4) is odd and rows exceed 128",
    ),
    ScaleLayout(
        "nvidia_8x4", (8, 4), _tiles_in_row((8, 4), lambda row, block: row * 4 + block),
        FLASHINFER["get_sf_out_offset_8x4"], "small M of TensorRT-LLM: 32 bytes a tile, rows within it in order",
    ),
    ScaleLayout(
        "flashinfer_rows_16", (16, 1), _rows_moved(16), _SHUFFLE, "rows 0, 2 .. 14, 1, 3 .. 15 of every 16", pads=False,
        packed_dims=lambda padded: padded,
    ),
    ScaleLayout(
        "flashinfer_rows_32", (32, 1), _rows_moved(32), _SHUFFLE, "rows 0, 4 .. 28, 1, 5 .. 31 of every 32", pads=False,
        packed_dims=lambda padded: padded,
    ),
    ScaleLayout(
        "flashinfer_sf_16", (128, 4), _rows_moved(16, _128X4), _SHUFFLE_SF, "flashinfer_rows_16, then nvidia_128x4",
        pads=False,
    ),
    ScaleLayout(
        "flashinfer_sf_32", (128, 4), _rows_moved(32, _128X4), _SHUFFLE_SF, "flashinfer_rows_32, then nvidia_128x4",
        pads=False,
    ),
    ScaleLayout(
        "deepgemm_mn_f32", (4, 1), _mn_major, DEEPGEMM["get_mn_major_tma_aligned_tensor"],
        "float32 scales, rows contiguous, padded to 16 bytes: shape (blocks, aligned rows)", element_bytes=4,
        packed_dims=lambda padded: (padded[1], padded[0]),
    ),
    ScaleLayout(
        "deepgemm_mn_ue8m0", (4, 4), _mn_major_words, DEEPGEMM["get_mn_major_tma_aligned_packed_ue8m0_tensor"],
        "four E8M0 codes of a row to a 32-bit word, words as deepgemm_mn_f32: shape (words, aligned rows, 4)",
        packed_dims=lambda padded: (padded[1] // 4, padded[0], 4),
    ),
    ScaleLayout(
        "cdna4_32", (32, 8), _tiles_in_row((32, 8), _cdna4_32), TRITON["tutorial 10, block scaled matmul, CDNA4"],
        "for mfma 32x32x64: view(M/32, 32, K/8, 4, 2).permute(0, 2, 4, 1, 3)",
    ),
    ScaleLayout(
        "cdna4_16", (32, 8), _tiles_in_row((32, 8), _cdna4_16), TRITON["tutorial 10, block scaled matmul, CDNA4"],
        "for mfma 16x16x128: view(M/32, 2, 16, K/8, 2, 4).permute(0, 3, 5, 2, 4, 1)",
    ),
    ScaleLayout(
        "cdna4_16_m256", (256, 8), _tiles_in_row((32, 8), _cdna4_16), AITER["fp4_utils.e8m0_shuffle"],
        "cdna4_16 with rows padded to 256, as AITER allocates it", packed_dims=lambda padded: padded,
    ),
    ScaleLayout(
        "mirage_fp8_16x16", (16, 16), _mirage, MIRAGE["demo/qwen3/prepare_fp8_safetensor.py, make_block_indices"],
        "FP8 weights (N, K), not scales: each 16 x 16 tile reordered for 8-byte loads of mma B fragments", pads=False,
        packed_dims=lambda padded: padded,
    ),
)
# fmt: on
_BLACKWELL = "sm_100 to sm_121"
_CHIPS = {
    "nvidia_128x4": _BLACKWELL,
    "nvidia_8x4": "sm_100, sm_103",
    "flashinfer": _BLACKWELL,
    "deepgemm_mn_f32": "sm_90",
    "deepgemm_mn_ue8m0": "sm_100",
    "cdna4": "gfx950",
}
"""Chips by the beginning of a layout's name; Mirage's order of weights is no scale layout of a chip."""
_BY_NAME = {row.name: row for row in SCALE_LAYOUTS}


def scale_layout(name: str | ScaleLayout) -> ScaleLayout:
    """Return the layout of a name, or the layout itself; an unknown name is an error with the three nearest.

    scale_layout("nvidia_128x4").size_bytes((100, 3)) is 512. Raises RefsimError `unknown-layout`.
    Source: the layout's.
    """
    if isinstance(name, ScaleLayout):
        return name
    if not isinstance(name, str) or name not in _BY_NAME:
        raise unknown("scale layout", str(name), sorted(_BY_NAME))
    return _BY_NAME[name]
