"""Tensor maps and the TMA boxes they cut: which global bytes land at which shared bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError, unknown
from refsim.integers import whole
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
    """An element type of a tensor map; 16 elements take `group_bytes` in shared memory, 2 x element_bits in global."""

    name: str
    code: int
    element_bits: int
    group_bytes: int
    floating: bool = False

    @property
    def padded(self) -> bool:
        """Whether groups of 16 elements carry unused bytes in shared memory."""
        return self.group_bytes > 2 * self.element_bits

    @property
    def is_six_bit(self) -> bool:
        """Which has modes of its own."""
        return self.element_bits == 6

    @property
    def packed(self) -> bool:
        return self.element_bits < 8


def _plain(name: str, code: int, bits: int, floating: bool = False) -> DataType:
    return DataType(name, code, bits, 2 * bits, floating)


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
    _plain("tfloat32", 11, 32, True),
    _plain("tfloat32_ftz", 12, 32, True),
    DataType("16u4_align8b", 13, 4, 8),
    DataType("16u4_align16b", 14, 4, 16),
    DataType("16u6_align16b", 15, 6, 16),
)
INTERLEAVES = get_args(Interleave)
SWIZZLE_MODES = get_args(SwizzleMode)
L2_PROMOTIONS = get_args(L2Promotion)
OOB_FILLS = get_args(OobFill)
# In every halfword, for 16- and 32-bit types: measured on an H200, the documents do not say.
NAN_FILL = 0x7FF7
_TYPES = {row.name: row for row in DATA_TYPES}
MAP_BYTES, MAP_ALIGN = 128, 64  # of an encoded map
_PADDED_SWIZZLES = ("none", "128B", "128B_32B_atom", "128B_64B_atom")


@dataclass(frozen=True, repr=False)
class TensorMap(Card):
    """The parameters of cuTensorMapEncodeTiled. Dimensions run from the innermost out, sizes in elements.

    `strides` are bytes of dimensions 1 and up. Built and checked by `tensor_map`.
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
    source: Source = CUDA_DRIVER["cuTensorMapEncodeTiled"]

    @property
    def loaded(self) -> tuple[int, ...]:
        """Elements that a box takes along each dimension: ceil(box / element stride), the innermost unstrided."""
        steps = (1, *self.element_strides[1:])
        return tuple(-(-extent // step) for extent, step in zip(self.box, steps, strict=True))

    @property
    def row_bytes(self) -> int:
        """Shared bytes of one row of the box, pads within groups included."""
        groups, rest = divmod(self.box[0], 16)
        return groups * self.data_type.group_bytes + -(-rest * self.data_type.element_bits // 8)

    @property
    def pitch_bytes(self) -> int:
        """Shared bytes from row to row: the row itself, or the whole swizzle span if there is a swizzle.

        The CUDA C++ Programming Guide asks for the full span also where the row is narrower.
        """
        return self.row_bytes if self.swizzle == "none" else swizzle_named(self.swizzle).span_bytes

    @property
    def box_bytes(self) -> int:
        """Shared bytes that a box occupies: rows times pitch."""
        return int(np.prod(self.loaded[1:], dtype=np.int64)) * self.pitch_bytes

    def place(self, coordinates: Sequence[int], shared_address: int = 0) -> "Placement":
        """Where a box whose first element is `coordinates` (innermost first, negative allowed) comes from and goes.

        `shared_address` is a multiple of 128 bytes; the swizzle acts on absolute addresses. bf16, box (64, 8), 128B at
        byte 0: element (k=8, row=1) goes to (128 + 16) ^ 16 = 128. Raises RefsimError for a wrong number of
        coordinates, a misaligned destination and modes without a published pattern. A store goes the other way, from
        coordinates of 0 up: on an H200 a negative one is an illegal instruction that ends the context.
        Source: PTX ISA, tensors and bounding boxes; CUDA C++ Programming Guide, tensor memory access.
        """
        self._check_place(coordinates, shared_address)
        rank, steps = len(self.dims), (1, *self.element_strides[1:])
        inside = np.ones(self.loaded[::-1], bool)
        global_bits = np.zeros(self.loaded[::-1], np.int64)
        shared_line = np.zeros(self.loaded[::-1], np.int64)
        pitch = self.pitch_bytes
        for axis in range(rank):
            number = np.arange(self.loaded[axis]).reshape((-1,) + (1,) * axis)
            index = int(coordinates[axis]) + number * steps[axis]
            inside &= (index >= 0) & (index < self.dims[axis])
            global_bits += index * (8 * self.strides[axis - 1] if axis else self.data_type.element_bits)
            if axis:
                shared_line += number * pitch
                pitch *= self.loaded[axis]
        column = np.arange(self.box[0])
        within = column // 16 * self.data_type.group_bytes * 8 + column % 16 * self.data_type.element_bits
        linear = (shared_address + shared_line) * 8 + within
        moved = swizzle_named(self.swizzle)(linear // 8) * 8 + linear % 8
        return Placement(
            self, tuple(int(at) for at in coordinates), shared_address, inside, np.where(inside, global_bits, -1), moved
        )

    def _check_place(self, coordinates: Sequence[int], shared_address: int) -> None:
        if len(coordinates) != len(self.dims):
            raise RefsimError(
                "tma-coordinates", f"{len(coordinates)} coordinates for a tensor of rank {len(self.dims)}"
            )
        if self.interleave != "none":
            raise RefsimError(
                "tma-interleave", f"boxes of interleave {self.interleave} are not placed", help='interleave="none"'
            )
        if int(whole("shared address", shared_address)) % 128:
            raise RefsimError(
                "tma-destination",
                f"shared address {shared_address} is no multiple of 128",
                rule=str(PTX["cp.async.bulk.tensor: the address in shared memory is 128-byte aligned"]),
            )
        if self.data_type.padded and coordinates[0] % 128:
            raise RefsimError(
                "tma-coordinates",
                f"first coordinate {coordinates[0]} of a {self.data_type.name} tensor is no multiple of 128",
                rule=str(PTX["restrictions on tensor copy instructions, sub-byte types"]),
            )

    def _line(self) -> str:
        return f"{self.data_type.name} {self.dims}, box {self.box}, swizzle {self.swizzle}"


@dataclass(frozen=True)
class Placement:
    """One box: arrays of its shape (outermost first). `global_bits` counts from the tensor's address, -1 outside.

    `shared_bits` is the absolute bit address in shared memory at which each element begins; elements outside the
    tensor are written too, with the fill.
    """

    tensor_map: TensorMap
    coordinates: tuple[int, ...]
    shared_address: int
    inside: NDArray[np.bool_]
    global_bits: NDArray[np.int64]
    shared_bits: NDArray[np.int64]

    @property
    def global_bytes(self) -> NDArray[np.int64]:
        """The byte, from the tensor's address, in which each element begins; -1 outside the tensor."""
        return np.where(self.inside, self.global_bits // 8, -1)

    @property
    def shared_bytes(self) -> NDArray[np.int64]:
        """The absolute byte in shared memory in which each element begins."""
        return self.shared_bits // 8

    @property
    def transaction_bytes(self) -> int:
        """Bytes that complete_tx counts: all elements of the box, outside ones too, without pads."""
        return self.inside.size * self.tensor_map.data_type.element_bits // 8

    @property
    def pads(self) -> NDArray[np.int64]:
        """Shared bytes of the box that no element is written to, ascending: they keep or get undefined contents."""
        taken = np.zeros(self.tensor_map.box_bytes, bool)
        width = self.tensor_map.data_type.element_bits
        for bit in range(0, width, min(width, 8)):
            taken[(self.shared_bits + bit) // 8 - self.shared_address] = True
            taken[(self.shared_bits + width - 1) // 8 - self.shared_address] = True
        return np.flatnonzero(~taken) + self.shared_address

    def load(self, memory: NDArray[np.uint8], *, pad: int = 0) -> NDArray[np.uint8]:
        """The box_bytes at the shared address after a load from `memory`, the bytes from the tensor's address on.

        Pads hold `pad`. Raises RefsimError if the tensor reaches past `memory`, or if NaN fill is asked for float64
        elements outside it, since its bit pattern is neither published nor measured.
        """
        width = self.tensor_map.data_type.element_bits
        fills_nan = self.tensor_map.oob_fill == NAN_REQUEST
        if fills_nan and width > 32 and not self.inside.all():
            raise RefsimError("tma-fill", f"the NaN fill of {width}-bit elements is not known", help="oob_fill zeros")
        needed = (int(self.global_bits.max()) + width + 7) // 8
        memory = words(memory)
        if memory.dtype != np.uint8 or memory.ndim != 1 or memory.size < needed:
            raise RefsimError("tma-memory", f"the box reads {needed} bytes; {memory.dtype} {memory.shape} has fewer")
        source = np.unpackbits(memory[:needed], bitorder="little")
        image = np.unpackbits(np.full(self.tensor_map.box_bytes, pad, np.uint8), bitorder="little")
        bits = np.arange(width)
        fill = (NAN_FILL >> bits % 16 & 1 if fills_nan else 0 * bits).astype(np.uint8)
        read = source[np.where(self.inside, self.global_bits, 0)[..., None] + bits]
        values = np.where(self.inside[..., None], read, fill)
        image[self.shared_bits[..., None] - 8 * self.shared_address + bits] = values
        return np.packbits(image, bitorder="little")


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
    """A tensor map whose parameters the driver accepts; sizes in elements, strides and address in bytes.

    `dims` and `box` run from the innermost dimension out; `strides` (dimensions 1 and up) default to a dense tensor.
    Raises RefsimError with the rule of cuTensorMapEncodeTiled that is broken.
    tensor_map("uint8", (64, 64), (32, 32)).box_bytes is 1024. Source: CUDA Driver API, cuTensorMapEncodeTiled.
    """
    row = _type_named(data_type)
    for name, value, known in (
        ("interleave", interleave, INTERLEAVES),
        ("swizzle", swizzle, SWIZZLE_MODES),
        ("L2 promotion", l2_promotion, L2_PROMOTIONS),
        ("out-of-bounds fill", oob_fill, OOB_FILLS),
    ):
        if value not in known:
            raise unknown(name, value, list(known))
    rank = len(dims)
    made = TensorMap(
        row,
        int(whole("address", address)),
        tuple(int(whole("dimension", extent)) for extent in dims),
        tuple(int(whole("stride", stride)) for stride in (_dense(row, dims) if strides is None else strides)),
        tuple(int(whole("box dimension", extent)) for extent in box),
        tuple(int(whole("element stride", step)) for step in (element_strides or (1,) * rank)),
        interleave,
        swizzle,
        l2_promotion,
        oob_fill,
    )
    for check in (_check_ranks, _check_sizes, _check_alignment, _check_box, _check_modes):
        check(made)
    return made


def _type_named(name: str | DataType) -> DataType:
    if isinstance(name, DataType):
        return name
    if name not in _TYPES:
        raise unknown("tensor map type", name, list(_TYPES))
    return _TYPES[name]


def _dense(row: DataType, dims: Sequence[int]) -> list[int]:
    strides, size = [], int(dims[0]) * row.element_bits // 8 if dims else 0
    for extent in dims[1:]:
        strides.append(size)
        size *= int(extent)
    return strides


def _refuse(code: str, what: str, rule: str, where: str = "", help: str = "") -> RefsimError:
    return RefsimError(code, what, where=where, rule=str(CUDA_DRIVER[f"cuTensorMapEncodeTiled: {rule}"]), help=help)


def _check_ranks(made: TensorMap) -> None:
    rank = len(made.dims)
    least = 3 if made.interleave != "none" else 1
    if not least <= rank <= 5:
        raise _refuse("tensormap-rank", f"rank {rank} is outside {least}..5", "rank 1 to 5, at least 3 if interleaved")
    for name, count, need in (
        ("strides", len(made.strides), rank - 1),
        ("box", len(made.box), rank),
        ("element strides", len(made.element_strides), rank),
    ):
        if count != need:
            raise _refuse("tensormap-rank", f"{count} {name} for rank {rank}", f"{need} are needed")


def _check_sizes(made: TensorMap) -> None:
    for axis, extent in enumerate(made.dims):
        if not 1 <= extent <= 1 << 32:
            raise _refuse("tensormap-dim", f"dimension {axis} is {extent}", "globalDim is 1 to 2^32")
    for axis, extent in enumerate(made.box):
        if not 1 <= extent <= 256:
            raise _refuse("tensormap-box", f"box dimension {axis} is {extent}", "boxDim is 1 to 256")
    for axis, step in enumerate(made.element_strides):
        if not 1 <= step <= 8:
            raise _refuse("tensormap-step", f"element stride {axis} is {step}", "elementStrides are 1 to 8")
    if made.data_type.padded and made.dims[0] % 128:
        raise _refuse(
            "tensormap-dim", f"dimension 0 is {made.dims[0]}", "globalDim[0] of padded types is a multiple of 128"
        )
    if made.data_type.packed and made.dims[0] % 2:
        raise _refuse("tensormap-dim", f"dimension 0 is {made.dims[0]}", "globalDim[0] of 4-bit types is even")


def _check_alignment(made: TensorMap) -> None:
    quantum = 32 if made.interleave == "32B" or made.data_type.padded else 16
    for name, value in (("address", made.address), *((f"stride {i + 1}", v) for i, v in enumerate(made.strides))):
        if value % quantum:
            raise _refuse(
                "tensormap-alignment",
                f"{name} {value} is no multiple of {quantum} bytes",
                "16 bytes; 32 with interleave 32B and for padded types",
                help=f"pad the rows to {quantum} bytes",
            )
    for axis, stride in enumerate(made.strides, 1):
        if stride >= 1 << 40:
            raise _refuse("tensormap-stride", f"stride {axis} is {stride}", "globalStrides are less than 2^40")


def _check_box(made: TensorMap) -> None:
    row = made.data_type
    shown = f"box={made.box} of {row.name}: {made.row_bytes} B in a row"
    if row.padded and made.box[0] != 128:
        raise _refuse("tensormap-box", f"box dimension 0 is {made.box[0]}", "boxDim[0] of padded types is 128", shown)
    if made.interleave == "none" and made.row_bytes % 16:
        raise _refuse(
            "tensormap-box", f"one box row is {made.row_bytes} B", "a box row is a multiple of 16 bytes", shown
        )
    span = {"none": 0, "32B": 32, "64B": 64}.get(made.swizzle, 128)
    if made.interleave == "none" and span and made.row_bytes > span:
        raise _refuse(
            "swizzle-span",
            f"one box row is {made.row_bytes} B, more than the {span} B span of swizzle {made.swizzle}",
            "boxDim[0] x element size <= swizzle span",
            shown,
            help=f"boxes of {span * 8 // row.element_bits} columns, or swizzle none",
        )


def _check_modes(made: TensorMap) -> None:
    row = made.data_type
    if made.interleave == "32B" and made.swizzle != "32B":
        raise _refuse(
            "tensormap-interleave", f"interleave 32B with swizzle {made.swizzle}", "interleave 32B needs swizzle 32B"
        )
    if row.is_six_bit and made.interleave != "none":
        raise _refuse(
            "tensormap-interleave", f"{row.name} with interleave {made.interleave}", "6-bit types are not interleaved"
        )
    legal = _PADDED_SWIZZLES if row.is_six_bit else _PADDED_SWIZZLES[:3]
    if row.padded and made.swizzle not in legal:
        raise _refuse(
            "tensormap-swizzle", f"{row.name} with swizzle {made.swizzle}", f"padded types: {', '.join(legal)}"
        )
    if made.oob_fill == NAN_REQUEST and not row.floating:
        raise _refuse("tensormap-fill", f"NaN fill of {row.name}", "NaN fill is for floating types that are not packed")
