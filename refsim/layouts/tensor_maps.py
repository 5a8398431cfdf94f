"""Tensor maps that the driver accepts, tiled and im2col: the driver's rules, each checked once for both devices."""

from collections.abc import Sequence

from refsim.errors import RefsimError, check_named, named
from refsim.integers import whole_number, whole_numbers
from refsim.layouts.tma import (
    DATA_TYPES,
    INTERLEAVES,
    L2_PROMOTIONS,
    NAN_REQUEST,
    OFFSET_BITS,
    OOB_FILLS,
    SWIZZLE_MODES,
    ZEROS,
    DataType,
    Interleave,
    L2Promotion,
    OobFill,
    PixelBox,
    SwizzleMode,
    TensorMap,
)
from refsim.sources import CUDA_DRIVER

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
    made = TensorMap(
        _type_named(data_type),
        *_extents(_type_named(data_type), dims, strides, address, box, element_strides),
        interleave,
        swizzle,
        l2_promotion,
        oob_fill,
    )
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
    made = TensorMap(
        row,
        *_extents(row, dims, strides, address, box, element_strides),
        interleave,
        swizzle,
        l2_promotion,
        oob_fill,
        PixelBox(*corners),
        CUDA_DRIVER["cuTensorMapEncodeIm2col"],
    )
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
    _check_counts(
        rank,
        strides=(made.strides, rank - 1),
        steps=(made.element_strides, rank),
        lower=(box.lower, rank - 2),
        upper=(box.upper, rank - 2),
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
