"""Tensor maps and the TMA boxes that they cut: the shared bytes to which global bytes are copied."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.integers import array_of, whole_number, whole_numbers
from refsim.layouts.swizzles import swizzle as swizzle_named
from refsim.render.cards import Card
from refsim.sources import CUDA_DRIVER, PTX, Source
from refsim.typed_arrays import words

ZEROS: Final = "zeros"
NAN_REQUEST: Final = "nan_request_zero_fma"
Interleave = Literal["none", "16B", "32B"]
SwizzleMode = Literal["none", "32B", "64B", "128B", "128B_32B_atom", "128B_32B_atom_8B_flip", "128B_64B_atom"]
L2Promotion = Literal["none", "64B", "128B", "256B"]
OobFill = Literal["zeros", "nan_request_zero_fma"]


@dataclass(frozen=True)
class DataType:
    """Describe an element type of a tensor map.

    16 elements take `group_bytes` in shared memory and 2 x element_bits bytes in global memory. A load of a `rounded`
    type changes bits: see `rounded_words`.
    """

    name: str
    code: int
    element_bits: int
    group_bytes: int
    floating: bool = False
    rounded: bool = False

    @property
    def padded(self) -> bool:
        """Return whether groups of 16 elements carry unused bytes in shared memory."""
        return self.group_bytes > 2 * self.element_bits

    @property
    def is_six_bit(self) -> bool:
        """Return whether elements have 6 bits; this type has modes of its own."""
        return self.element_bits == 6

    @property
    def packed(self) -> bool:
        """Return whether several elements share a byte."""
        return self.element_bits < 8


def rounded_words(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return float32 patterns as a load through a map of tf32 rounds them: to the nearest tf32, ties to even, one NaN.

    0x3f801000, halfway between 1 and the next tf32, becomes 0x3f800000. 0xff800001, a NaN, becomes 0x7fffe000. An H200
    gives these bits.
    """
    odd = words >> np.uint32(13) & np.uint32(1)
    with np.errstate(over="ignore"):  # only a NaN overflows, and it is replaced
        nearest = words + np.uint32(0xFFF) + odd & np.uint32(0xFFFFE000)
    return np.where(words & np.uint32(0x7FFFFFFF) > 0x7F800000, np.uint32(0x7FFFE000), nearest)


def _plain(name: str, code: int, bits: int, floating: bool = False, rounded: bool = False) -> DataType:
    return DataType(name, code, bits, 2 * bits, floating, rounded)


DATA_TYPES = (
    _plain("uint8", 0, 8),
    _plain("uint16", 1, 16),
    _plain("uint32", 2, 32),
    _plain("int32", 3, 32),
    _plain("uint64", 4, 64),
    _plain("int64", 5, 64),
    _plain("float16", 6, 16, True),
    _plain("float32", 7, 32, True),
    _plain("float64", 8, 64, True),
    _plain("bfloat16", 9, 16, True),
    _plain("float32_ftz", 10, 32, True),
    _plain("tfloat32", 11, 32, True, True),
    _plain("tfloat32_ftz", 12, 32, True, True),
    DataType("16u4_align8b", 13, 4, 8),
    DataType("16u4_align16b", 14, 4, 16),
    DataType("16u6_align16b", 15, 6, 16),
)
INTERLEAVES = get_args(Interleave)
SWIZZLE_MODES = get_args(SwizzleMode)
L2_PROMOTIONS = get_args(L2Promotion)
OOB_FILLS = get_args(OobFill)
# The value of every halfword, for 16- and 32-bit types: measured on an H200; the documents do not say.
NAN_FILL = 0x7FF7
_FAR = 1 << 32  # an instruction's coordinates are s32, a tensor has up to 2^32 elements in a row
MAP_BYTES, MAP_ALIGN = 128, 64  # of an encoded map
OFFSET_BITS = {3: 16, 4: 8, 5: 5}
"""The bits of one im2col offset, by rank; corners of the box of pixels have as many, sign included."""


@dataclass(frozen=True)
class PixelBox:
    """Describe the pixels that an im2col map reads: each image from `lower` to `upper`, in the order W, H, D.

    `lower` is an offset from the first pixel of the image, `upper` an offset from its last pixel. A convolution of
    width 3 without padding has lower 0 and upper -2.
    """

    lower: tuple[int, ...]
    upper: tuple[int, ...]

    def walk(
        self, base: Sequence[int], extents: Sequence[int], steps: Sequence[int], count: int
    ) -> list[NDArray[np.int64]]:
        """Return W, H, D and N of each of `count` pixels from `base` on, in the order of im2col.

        The order is row by row within the corners, then the next image. A step that leaves the box continues at the
        lower corner, one step further along the next dimension.
        """
        left, found = np.arange(count), []
        for axis, (low, high) in enumerate(zip(self.lower, self.upper, strict=True)):
            last, step = extents[axis] - 1 + high, steps[axis]
            here, whole_row = (last - base[axis]) // step + 1, (last - low) // step + 1
            behind = left - here
            found.append(np.where(behind < 0, base[axis] + left * step, low + behind % whole_row * step))
            left = np.where(behind < 0, 0, 1 + behind // whole_row)
        return [*found, base[-1] + left]


@dataclass(frozen=True, repr=False)
class TensorMap(Card):
    """Describe the parameters of cuTensorMapEncodeTiled, or with `pixels` of cuTensorMapEncodeIm2col.

    Dimensions run from the innermost out. Sizes are elements, `strides` bytes of dimensions 1 and up. The box of an
    im2col map is its channels and its pixels. `tensor_map` and `im2col_map` build and check it.
    """

    data_type: DataType
    address: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: Interleave = "none"
    swizzle: SwizzleMode = "none"
    l2_promotion: L2Promotion = "none"
    oob_fill: OobFill = ZEROS
    pixels: PixelBox | None = None
    source: Source = CUDA_DRIVER["cuTensorMapEncodeTiled"]

    @property
    def loaded(self) -> tuple[int, ...]:
        """Return the elements that a box takes along each dimension: ceil(box / element stride), innermost unstrided.

        An im2col map takes its channels and pixels: its strides select pixels and do not change their number.
        """
        if self.pixels is not None:
            return self.box
        steps = (1, *self.element_strides[1:])
        return tuple(-(-extent // step) for extent, step in zip(self.box, steps, strict=True))

    @property
    def row_bytes(self) -> int:
        """Return the shared bytes of one row of the box, padding within groups included."""
        groups, rest = divmod(self.box[0], 16)
        return groups * self.data_type.group_bytes + -(-rest * self.data_type.element_bits // 8)

    @property
    def pitch_bytes(self) -> int:
        """Return the shared bytes from row to row: the row itself, or the whole swizzle span if there is a swizzle.

        The CUDA C++ Programming Guide requires the full span also where the row is narrower.
        """
        return self.row_bytes if self.swizzle == "none" else swizzle_named(self.swizzle).span_bytes

    @property
    def box_bytes(self) -> int:
        """Return the shared bytes that a box occupies: rows times pitch."""
        return int(np.prod(self.loaded[1:], dtype=np.int64)) * self.pitch_bytes

    def place(
        self, coordinates: Sequence[int], shared_address: int = 0, offsets: Sequence[int] | None = None
    ) -> "Placement":
        """Return the source and the destination of a box whose first element is `coordinates` (innermost first).

        Coordinates may be negative. `shared_address` is a multiple of 128 bytes; the swizzle acts on absolute
        addresses. bf16, box (64, 8), 128B at byte 0: element (k=8, row=1) goes to (128 + 16) ^ 16 = 128. In an im2col
        map the coordinates are the filter's base, within the box of pixels, and `offsets` (W, H, D, from 0 up) are
        added to each pixel.
        Raises RefsimError for a wrong number of coordinates, a misaligned destination and modes without a published
        pattern. A store goes the other way, from coordinates of 0 up: on an H200 a negative coordinate is an illegal
        instruction that ends the context.
        Source: PTX ISA, tensors and bounding boxes, im2col mode; CUDA C++ Programming Guide, tensor memory access.
        """
        at = list(whole_numbers("coordinate", coordinates, least=-_FAR, limit=_FAR))
        if self.pixels is None and offsets is not None:
            what = f"offsets {offsets!r} for a map of tiles"
            raise RefsimError("bad-box", what, rule="offsets are of the im2col mode")
        shape = self.loaded[::-1]
        self._check_place(at, shared_address)
        indices, line = self._boxed(at) if self.pixels is None else self._columns(self.pixels, at, offsets)
        inside, global_bits = np.ones(shape, bool), np.zeros(shape, np.int64)
        for axis, index in enumerate(indices):
            inside &= (index >= 0) & (index < self.dims[axis])
            global_bits += index * (8 * self.strides[axis - 1] if axis else self.data_type.element_bits)
        column = np.arange(self.box[0])
        within = column // 16 * self.data_type.group_bytes * 8 + column % 16 * self.data_type.element_bits
        linear = np.broadcast_to((shared_address + line * self.pitch_bytes) * 8 + within, shape)
        moved = swizzle_named(self.swizzle)(linear // 8) * 8 + linear % 8
        return Placement(self, tuple(at), shared_address, inside, np.where(inside, global_bits, -1), moved)

    def _boxed(self, at: list[int]) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        """Return the index of every element along each dimension, and the shared row of the element."""
        indices, line, rows = [], np.zeros((1,) * len(at), np.int64), 1
        for axis, (start, count) in enumerate(zip(at, self.loaded, strict=True)):
            number = np.arange(count).reshape((-1,) + (1,) * axis)
            indices.append(start + number * (self.element_strides[axis] if axis else 1))
            if axis:
                line, rows = line + number * rows, rows * count
        return indices, line

    def _columns(
        self, pixels: PixelBox, at: list[int], offsets: Sequence[int] | None
    ) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        """Return the indices and shared rows of an im2col map, as `_boxed` does: a row for each pixel."""
        moved = self._check_columns(pixels, at, offsets)
        channels, count = self.box
        walked = pixels.walk(at[1:], self.dims[1:-1], self.element_strides[1:-1], count)
        places = [(each + more)[:, None] for each, more in zip(walked, (*moved, 0), strict=True)]
        return [at[0] + np.arange(channels), *places], np.arange(count)[:, None]

    def _check_columns(self, pixels: PixelBox, at: list[int], offsets: Sequence[int] | None) -> tuple[int, ...]:
        """Return the offsets, zeros where none were given; raise if the filter's base is outside the box of pixels."""
        rule = str(PTX["im2col mode: bounding box, and the range of im2col offsets"])
        limits = zip(at[1:-1], pixels.lower, pixels.upper, self.dims[1:-1], strict=True)
        for axis, (base, low, high, extent) in enumerate(limits, 1):
            if not low <= base <= extent - 1 + high:
                what = f"coordinate {axis} is {base}: the filter's base lies in {low}..{extent - 1 + high}"
                raise RefsimError("bad-box", what, rule=rule)
        spatial = len(self.dims) - 2
        moved = whole_numbers("offset", (0,) * spatial if offsets is None else offsets)
        most = (1 << OFFSET_BITS[len(self.dims)]) - 1
        if len(moved) != spatial or not all(0 <= each <= most for each in moved):
            what = f"offsets {moved} of a tensor of rank {len(self.dims)}: {spatial} of 0..{most}"
            raise RefsimError("bad-box", what, rule=rule)
        if self.row_bytes % 16:
            raise RefsimError("bad-box", f"pixels of {self.row_bytes} bytes are not placed: no multiple of 16")
        return moved

    def _check_place(self, coordinates: Sequence[int], shared_address: int) -> None:
        """Raise where coordinates or destination are illegal, or the map's interleave has no published placement."""
        if len(coordinates) != len(self.dims):
            raise RefsimError("bad-box", f"{len(coordinates)} coordinates for a tensor of rank {len(self.dims)}")
        if self.interleave != "none":
            what = f"boxes of interleave {self.interleave} are not placed"
            raise RefsimError("bad-box", what, help='interleave="none"')
        if whole_number("shared address", shared_address) % 128:
            raise RefsimError(
                "bad-box",
                f"shared address {shared_address} is not a multiple of 128",
                rule=str(PTX["cp.async.bulk.tensor: the address in shared memory is 128-byte aligned"]),
            )
        if self.data_type.padded and coordinates[0] % 128:
            raise RefsimError(
                "bad-box",
                f"first coordinate {coordinates[0]} of a {self.data_type.name} tensor is not a multiple of 128",
                rule=str(PTX["restrictions on tensor copy instructions, sub-byte types"]),
            )

    def _repr_summary(self) -> str:
        return f"{self.data_type.name} {self.dims}, box {self.box}, swizzle {self.swizzle}"


@dataclass(frozen=True)
class Placement:
    """Describe one box by arrays of its shape (outermost first).

    `global_bits` counts from the tensor's address, -1 outside. `shared_bits` is the absolute bit address in shared
    memory at which each element begins; elements outside the tensor are written too, with the fill.
    """

    tensor_map: TensorMap
    coordinates: tuple[int, ...]
    shared_address: int
    inside: NDArray[np.bool_]
    global_bits: NDArray[np.int64]
    shared_bits: NDArray[np.int64]

    @property
    def global_bytes(self) -> NDArray[np.int64]:
        """Return the byte, from the tensor's address, in which each element begins; -1 outside the tensor."""
        return np.where(self.inside, self.global_bits // 8, -1)

    @property
    def shared_bytes(self) -> NDArray[np.int64]:
        """Return the absolute byte in shared memory in which each element begins."""
        return self.shared_bits // 8

    @property
    def transaction_bytes(self) -> int:
        """Return the bytes that complete_tx counts: all elements of the box, outside ones too, without padding."""
        return self.inside.size * self.tensor_map.data_type.element_bits // 8

    @property
    def pads(self) -> NDArray[np.int64]:
        """Return the shared bytes of the box that no element is written to, ascending; their contents are undefined."""
        taken = np.zeros(self.tensor_map.box_bytes, bool)
        width = self.tensor_map.data_type.element_bits
        for bit in range(0, width, min(width, 8)):
            taken[(self.shared_bits + bit) // 8 - self.shared_address] = True
            taken[(self.shared_bits + width - 1) // 8 - self.shared_address] = True
        return np.flatnonzero(~taken) + self.shared_address

    def load(self, memory: NDArray[np.uint8], *, pad: int = 0) -> NDArray[np.uint8]:
        """Return the box_bytes at the shared address after a load from `memory`, which begins at the tensor's address.

        Padding holds `pad`. Raises RefsimError if the tensor reaches past `memory`. Also raises if NaN fill is
        requested for float64 elements outside the tensor, since its bit pattern is neither published nor measured.
        """
        width = self.tensor_map.data_type.element_bits
        fills_nan = self.tensor_map.oob_fill == NAN_REQUEST
        if fills_nan and width > 32 and not self.inside.all():
            raise RefsimError("bad-box", f"the NaN fill of {width}-bit elements is not known", help="oob_fill zeros")
        needed = (int(self.global_bits.max()) + width + 7) // 8
        memory = words(array_of("memory", memory))
        if memory.dtype != np.uint8 or memory.ndim != 1 or memory.size < needed:
            raise RefsimError("bad-box", f"the box reads {needed} bytes; {memory.dtype} {memory.shape} has fewer")
        memory = memory[:needed]
        if self.tensor_map.data_type.rounded:
            memory = rounded_words(np.frombuffer(memory.tobytes(), np.uint32)).view(np.uint8)
        source = np.unpackbits(memory, bitorder="little")
        pads = np.full(self.tensor_map.box_bytes, whole_number("pad", pad, limit=256), np.uint8)
        image = np.unpackbits(pads, bitorder="little")
        bits = np.arange(width)
        fill = (NAN_FILL >> bits % 16 & 1 if fills_nan else 0 * bits).astype(np.uint8)
        read = source[np.where(self.inside, self.global_bits, 0)[..., None] + bits]
        values = np.where(self.inside[..., None], read, fill)
        image[self.shared_bits[..., None] - 8 * self.shared_address + bits] = values
        return np.packbits(image, bitorder="little")
