"""Tensor maps and the TMA boxes that they cut: the shared bytes to which global bytes are copied."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError, check_named, named
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
            rule = str(PTX["cp.async.bulk.tensor: the address in shared memory is 128-byte aligned"])
            raise RefsimError("bad-box", f"shared address {shared_address} is not a multiple of 128", rule=rule)
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


_TYPES = {row.name: row for row in DATA_TYPES}
_PADDED_SWIZZLES = ("none", "128B", "128B_32B_atom", "128B_64B_atom")
_MOST_PIXELS = 1024


def tensor_map(
    data_type: str | DataType,
    dims: Sequence[int],
    box: Sequence[int],
    *,
    strides: Sequence[int] | None = None,
    address: int = 0,
    element_strides: Sequence[int] | None = None,
    interleave: Interleave = "none",
    swizzle: SwizzleMode = "none",
    l2_promotion: L2Promotion = "none",
    oob_fill: OobFill = ZEROS,
) -> TensorMap:
    """Return a tensor map whose parameters the driver accepts; sizes in elements, strides and address in bytes.

    `dims` and `box` run from the innermost dimension out; `strides` (dimensions 1 and up) default to a dense tensor.
    Raises RefsimError with the broken rule of cuTensorMapEncodeTiled.
    tensor_map("uint8", (64, 64), (32, 32)).box_bytes is 1024. Source: CUDA Driver API, cuTensorMapEncodeTiled.
    """
    type = _type_named(data_type)
    extents = _extents(type, dims, strides, address, box, element_strides)
    made = TensorMap(type, *extents, interleave, swizzle, l2_promotion, oob_fill)
    for check in (_check_words, _check_ranks, _check_sizes, _check_alignment, _check_box, _check_modes):
        check(made)
    return made


def im2col_map(
    data_type: str | DataType,
    dims: Sequence[int],
    channels: int,
    pixels: int,
    *,
    lower: Sequence[int],
    upper: Sequence[int],
    strides: Sequence[int] | None = None,
    address: int = 0,
    element_strides: Sequence[int] | None = None,
    interleave: Interleave = "none",
    swizzle: SwizzleMode = "none",
    l2_promotion: L2Promotion = "none",
    oob_fill: OobFill = ZEROS,
) -> TensorMap:
    """Return a tensor map for the im2col mode of copies: `pixels` rows of `channels` elements.

    The mode computes convolutions as matrix products. `dims` are C, W, H, D, N (3 to 5 of them, the innermost first) in
    elements. `lower` and `upper` are the corners of the box in which the filter's base moves, W first: offsets from the
    first and from the last pixel of an image. For a filter of S columns with padding p and dilation d they are -p and p
    - (S - 1) * d. `element_strides` says by how many
    elements the base moves in each dimension. Raises RefsimError with the broken rule of
    cuTensorMapEncodeIm2col.
    im2col_map("uint8", (64, 9, 14, 2), 16, 64, lower=(-1, -1), upper=(-1, -1)).box_bytes is 1024.
    Source: CUDA Driver API, cuTensorMapEncodeIm2col; PTX ISA, im2col mode.
    """
    row = _type_named(data_type)
    box = (whole_number("channels", channels), whole_number("pixels", pixels))
    corners = (whole_numbers("corner", corner, least=-(1 << 31)) for corner in (lower, upper))
    extents, source = (
        _extents(row, dims, strides, address, box, element_strides),
        CUDA_DRIVER["cuTensorMapEncodeIm2col"],
    )
    made = TensorMap(row, *extents, interleave, swizzle, l2_promotion, oob_fill, PixelBox(*corners), source)
    for check in (_check_words, _check_pixels, _check_sizes, _check_alignment, _check_box, _check_modes):
        check(made)
    return made


def _extents(
    row: DataType,
    dims: Sequence[int],
    strides: Sequence[int] | None,
    address: int,
    box: Sequence[int],
    element_strides: Sequence[int] | None,
) -> tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return address, dimensions, strides, box and element strides as whole numbers."""
    extents = whole_numbers("dimension", dims)
    return (
        whole_number("address", address),
        extents,
        whole_numbers("stride", _dense(row, extents) if strides is None else strides),
        whole_numbers("box dimension", box),
        whole_numbers("element stride", (1,) * len(extents) if element_strides is None else element_strides),
    )


def _type_named(name: str | DataType) -> DataType:
    return name if isinstance(name, DataType) else named("tensor map type", name, _TYPES)


def _dense(row: DataType, dims: Sequence[int]) -> list[int]:
    strides, size = [], dims[0] * row.element_bits // 8 if dims else 0
    for extent in dims[1:]:
        strides.append(size)
        size *= extent
    return strides


def _refuse(what: str, rule: str, where: str = "", help: str = "", *, im2col: bool = False) -> RefsimError:
    call = "cuTensorMapEncodeIm2col" if im2col else "cuTensorMapEncodeTiled"
    return RefsimError("bad-tensor-map", what, where=where, rule=str(CUDA_DRIVER[f"{call}: {rule}"]), help=help)


def _check_words(made: TensorMap) -> None:
    for name, value, known in (
        ("interleave", made.interleave, INTERLEAVES),
        ("swizzle", made.swizzle, SWIZZLE_MODES),
        ("L2 promotion", made.l2_promotion, L2_PROMOTIONS),
        ("out-of-bounds fill", made.oob_fill, OOB_FILLS),
    ):
        check_named(name, value, known)


def _check_ranks(made: TensorMap) -> None:
    rank = len(made.dims)
    least = 3 if made.interleave != "none" else 1
    if not least <= rank <= 5:
        raise _refuse(f"rank {rank} is outside {least}..5", "rank 1 to 5, at least 3 if interleaved")
    _check_counts(rank, strides=(made.strides, rank - 1), box=(made.box, rank), steps=(made.element_strides, rank))


def _check_counts(rank: int, **given: tuple[Sequence[int], int]) -> None:
    for name, (values, need) in given.items():
        if len(values) != need:
            what = f"{len(values)} {name.replace('steps', 'element strides')} for rank {rank}"
            raise _refuse(what, f"{need} are needed")


def _check_pixels(made: TensorMap) -> None:
    """Raise where the rank, the corners, the channels or the pixels of an im2col map break a rule of the driver."""
    rank, box = len(made.dims), made.pixels
    assert box is not None
    if rank not in OFFSET_BITS:
        raise _refuse(f"rank {rank} of an im2col map is outside 3..5", "tensorRank", im2col=True)
    steps = (made.element_strides, rank)
    _check_counts(
        rank, strides=(made.strides, rank - 1), steps=steps, lower=(box.lower, rank - 2), upper=(box.upper, rank - 2)
    )
    most = 1 << OFFSET_BITS[rank] - 1
    for name, corner in (("lower", box.lower), ("upper", box.upper)):
        if not all(-most <= at < most for at in corner):
            what = f"{name} corner {corner} is outside {-most}..{most - 1}"
            raise _refuse(what, f"corners of rank {rank}", im2col=True)
    for axis, (low, high, extent) in enumerate(zip(box.lower, box.upper, made.dims[1:-1], strict=True), 1):
        if extent - 1 + high < low:
            what = f"the box of pixels along dimension {axis} is {low}..{extent - 1 + high}"
            raise _refuse(what, "the bounding box has a non-zero area", im2col=True)
    channels, pixels = made.box
    if not 1 <= channels <= 256 or not 1 <= pixels <= _MOST_PIXELS:
        what = f"{channels} channels of {pixels} pixels"
        raise _refuse(what, f"channels to 256, pixels to {_MOST_PIXELS}", im2col=True)


def _check_sizes(made: TensorMap) -> None:
    """Raise where dimensions, box or element strides are out of the driver's range."""
    for axis, extent in enumerate(made.dims):
        if not 1 <= extent <= 1 << 32:
            raise _refuse(f"dimension {axis} is {extent}", "globalDim is 1 to 2^32")
    for axis, extent in enumerate(made.box if made.pixels is None else ()):
        if not 1 <= extent <= 256:
            raise _refuse(f"box dimension {axis} is {extent}", "boxDim is 1 to 256")
    for axis, step in enumerate(made.element_strides):
        if not 1 <= step <= 8:
            raise _refuse(f"element stride {axis} is {step}", "elementStrides are 1 to 8")
    if made.data_type.padded and made.dims[0] % 128:
        raise _refuse(f"dimension 0 is {made.dims[0]}", "globalDim[0] of padded types is a multiple of 128")
    if made.data_type.packed and made.dims[0] % 2:
        raise _refuse(f"dimension 0 is {made.dims[0]}", "globalDim[0] of 4-bit types is even")


def _check_alignment(made: TensorMap) -> None:
    """Raise where the address or a stride is misaligned, or a stride is too large."""
    quantum = 32 if made.interleave == "32B" or made.data_type.padded else 16
    for name, value in (("address", made.address), *((f"stride {i + 1}", v) for i, v in enumerate(made.strides))):
        if value % quantum:
            raise _refuse(
                f"{name} {value} is not a multiple of {quantum} bytes",
                "16 bytes; 32 with interleave 32B and for padded types",
                help=f"pad the rows to {quantum} bytes",
            )
    for axis, stride in enumerate(made.strides, 1):
        if stride >= 1 << 40:
            raise _refuse(f"stride {axis} is {stride}", "globalStrides are less than 2^40")


def _check_box(made: TensorMap) -> None:
    """Raise where a box row has a wrong width or exceeds the span of its swizzle."""
    row = made.data_type
    shown = f"box={made.box} of {row.name}: {made.row_bytes} B in a row"
    if row.padded and made.box[0] != 128:
        raise _refuse(f"box dimension 0 is {made.box[0]}", "boxDim[0] of padded types is 128", shown)
    if made.pixels is None and made.interleave == "none" and made.row_bytes % 16:
        raise _refuse(f"one box row is {made.row_bytes} B", "a box row is a multiple of 16 bytes", shown)
    span = {"none": 0, "32B": 32, "64B": 64}.get(made.swizzle, 128)
    if made.interleave == "none" and span and made.row_bytes > span:
        raise _refuse(
            f"one box row is {made.row_bytes} B, more than the {span} B span of swizzle {made.swizzle}",
            "boxDim[0] x element size <= swizzle span",
            shown,
            help=f"boxes of {span * 8 // row.element_bits} columns, or swizzle none",
        )


def _check_modes(made: TensorMap) -> None:
    """Raise where interleave, swizzle or fill contradict the data type or each other."""
    row = made.data_type
    if made.interleave == "32B" and made.swizzle != "32B":
        raise _refuse(f"interleave 32B with swizzle {made.swizzle}", "interleave 32B needs swizzle 32B")
    if row.is_six_bit and made.interleave != "none":
        raise _refuse(f"{row.name} with interleave {made.interleave}", "6-bit types are not interleaved")
    legal = _PADDED_SWIZZLES if row.is_six_bit else _PADDED_SWIZZLES[:3]
    if row.padded and made.swizzle not in legal:
        raise _refuse(f"{row.name} with swizzle {made.swizzle}", f"padded types: {', '.join(legal)}")
    if made.oob_fill == NAN_REQUEST and not row.floating:
        raise _refuse(f"NaN fill of {row.name}", "NaN fill is for floating types that are not packed")
