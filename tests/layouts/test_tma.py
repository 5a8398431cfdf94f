"""TMA boxes against a loop over elements, and tensor maps against the rules of the driver's header."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from refsim.conversions import pack
from refsim.errors import RefsimError
from refsim.layouts.descriptors import descriptor
from refsim.layouts.descriptors.tensormaps import driver_arguments
from refsim.layouts.tiles import tile
from refsim.layouts.tma import DATA_TYPES, TensorMap, im2col_map, tensor_map

TENSORMAP = descriptor("tensormap")
KEYS = {"none": 0, "32B": 1, "64B": 3, "128B": 7}


def image_of(made: TensorMap, memory: NDArray[np.uint8], coordinates: tuple[int, ...], pad: int) -> NDArray[np.uint8]:
    """The shared memory after a copy of whole-byte elements to address 0, element by element."""
    size = made.data_type.element_bits // 8
    span = {"none": made.box[0] * size, "32B": 32, "64B": 64, "128B": 128}[made.swizzle]
    steps = (1, *made.element_strides[1:])
    counts = [-(-extent // step) for extent, step in zip(made.box, steps, strict=True)]
    image = np.full(int(np.prod(counts[1:])) * span, pad, np.uint8)
    for line, outer in enumerate(product(*(range(count) for count in reversed(counts[1:])))):
        for column in range(made.box[0]):
            index = [at + n * step for at, n, step in zip(coordinates, (column, *reversed(outer)), steps, strict=True)]
            inside = all(0 <= at < extent for at, extent in zip(index, made.dims, strict=True))
            begin = index[0] * size + sum(at * stride for at, stride in zip(index[1:], made.strides, strict=True))
            place = line * span + column * size
            place ^= (place >> 7 & KEYS[made.swizzle]) << 4
            image[place : place + size] = memory[begin : begin + size] if inside else 0
    return image


CASES = [
    (tensor_map("bfloat16", (40, 20), (64, 8), swizzle="128B"), (0, 0)),
    (tensor_map("bfloat16", (40, 20), (32, 16), swizzle="64B"), (24, 12)),
    (tensor_map("uint8", (64, 20), (32, 9), swizzle="32B"), (-16, -3)),
    (tensor_map("float32", (12, 10), (8, 5)), (8, 7)),
    (tensor_map("float32", (12, 10), (8, 8), swizzle="128B"), (4, 4)),
    (tensor_map("uint8", (16, 7, 5, 3), (16, 4, 3, 2), swizzle="128B"), (0, 5, -1, 2)),
    (tensor_map("float64", (10, 30), (2, 16), element_strides=(2, 3)), (4, 1)),
    (tensor_map("uint16", (32, 9), (16, 4), strides=(96,)), (16, 6)),
]


@pytest.mark.parametrize(("made", "coordinates"), CASES)
def test_box_equals_the_loop(made: TensorMap, coordinates: tuple[int, ...]) -> None:
    size = made.strides[-1] * made.dims[-1]
    memory = np.random.default_rng(11).integers(1, 256, size, dtype=np.uint8)
    placed = made.place(coordinates)
    want = image_of(made, memory, coordinates, pad=0xA5)
    assert (placed.load(memory, pad=0xA5) == want).all()
    pads = np.flatnonzero((want == 0xA5) & (placed.load(memory, pad=0x5A) == 0x5A))
    assert (placed.pads == pads).all()
    assert placed.transaction_bytes == made.box_bytes - pads.size


@pytest.mark.parametrize("mode", ["none", "32B", "64B", "128B"])
def test_boxes_of_one_span_make_a_k_major_tile(mode: str) -> None:
    """What TMA writes is what the tensor core reads: one box per swizzle span, at a start that is not 0."""
    span = {"none": 16, "32B": 32, "64B": 64, "128B": 128}[mode]
    made, rows, columns = tensor_map("bfloat16", (128, 64), (span // 2, 64), swizzle=mode), 64, span // 2
    whole = tile("K", mode, 2, (64, columns))
    placed = made.place((columns, 0), shared_address=2048)
    mn, k = np.ogrid[:rows, :columns]
    assert (placed.shared_bytes == whole.address(mn, k, start=2048)).all()
    assert (placed.global_bytes == mn * 256 + (columns + k) * 2).all()


def test_swizzle_acts_on_the_absolute_address() -> None:
    made = tensor_map("uint8", (128, 8), (128, 2), swizzle="128B")
    assert made.place((0, 0), shared_address=128).shared_bytes[0, ::16].tolist() == [
        128 + 16 * (column ^ 1) for column in range(8)
    ]


@pytest.mark.parametrize(
    ("data_type", "code", "used"),
    [("16u4_align16b", "e2m1", 8), ("16u6_align16b", "e2m3", 12), ("16u4_align8b", "e2m1", 8)],
)
def test_packed_elements_keep_their_order_in_their_groups(data_type: str, code: str, used: int) -> None:
    codes = np.random.default_rng(2).integers(0, 16, (4, 256), dtype=np.uint8)
    memory = pack(codes, code).reshape(-1)
    made = tensor_map(data_type, (256, 4), (128, 4), swizzle="none")
    placed = made.place((128, 0))
    group = 16 if data_type != "16u4_align8b" else 8
    image = placed.load(memory, pad=0xEE).reshape(4, 8, group)
    assert (image[..., :used] == pack(codes[:, 128:], code).reshape(4, 8, used)).all()
    assert (image[..., used:] == 0xEE).all()
    assert placed.transaction_bytes == 4 * 8 * used
    assert placed.pads.size == 4 * 8 * (group - used)


def test_padded_rows_are_swizzled_like_bytes() -> None:
    plain = tensor_map("uint8", (128, 8), (128, 8), swizzle="128B").place((0, 0)).shared_bytes
    padded = tensor_map("16u4_align16b", (128, 8), (128, 8), swizzle="128B").place((0, 0)).shared_bytes
    assert (padded[:, ::16] == plain[:, ::16]).all()
    assert (padded[:, 15::16] - padded[:, ::16] == 7).all()


def test_driver_arguments_are_the_enums_of_the_header() -> None:
    arguments = TENSORMAP.encode(
        data_type="bfloat16",
        dims=(256, 64),
        box=(64, 8),
        swizzle="128B",
        l2_promotion="256B",
        address=1 << 20,
        oob_fill="nan_request_zero_fma",
    )
    assert arguments == {
        "tensorDataType": 9,
        "tensorRank": 2,
        "globalAddress": 1 << 20,
        "globalDim": (256, 64),
        "globalStrides": (512,),
        "boxDim": (64, 8),
        "elementStrides": (1, 1),
        "interleave": 0,
        "swizzle": 3,
        "l2Promotion": 3,
        "oobFill": 1,
    }
    made = TENSORMAP.decode(arguments)
    assert (made.data_type.name, made.strides, made.swizzle) == ("bfloat16", (512,), "128B")
    walked = TENSORMAP.walk(arguments, (64, 8), shared_address=1024)
    assert (walked.shared_bytes == made.place((64, 8), 1024).shared_bytes).all()
    text = str(TENSORMAP.explain(arguments))
    assert "boxDim          box              (64, 8): elements that one copy spans" in text
    assert "one box is 1024 bytes of shared memory, rows 128 bytes apart" in text
    assert "the pattern repeats every 1024 bytes: align the box to that" in text


def test_types_are_in_the_order_of_the_header() -> None:
    assert [row.code for row in DATA_TYPES] == list(range(16))


def refused(**changes: object) -> Callable[[], object]:
    """A legal map with some parameters changed."""
    legal: dict[str, object] = {"data_type": "uint8", "dims": (256, 64), "box": (64, 8)}
    return lambda: TENSORMAP.encode(**{**legal, **changes})


ARGUMENTS = TENSORMAP.encode(data_type="uint8", dims=(256, 64), box=(64, 8))
MAP = tensor_map("uint8", (256, 64), (64, 8))


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (refused(data_type="int4"), "unknown-name"),
        (refused(swizzle="256B"), "unknown-swizzle"),
        (refused(fill=0), "unknown-name"),
        (refused(dims=()), "bad-tensor-map"),
        (refused(dims=(16,) * 6, box=(16,) * 6), "bad-tensor-map"),
        (refused(interleave="16B"), "bad-tensor-map"),
        (refused(box=(64,)), "bad-tensor-map"),
        (refused(strides=()), "bad-tensor-map"),
        (refused(dims=(0, 64)), "bad-tensor-map"),
        (refused(dims=((1 << 32) + 16, 64)), "bad-tensor-map"),
        (refused(box=(272, 8)), "bad-tensor-map"),
        (refused(box=(8, 8)), "bad-tensor-map"),
        (refused(element_strides=(1, 9)), "bad-tensor-map"),
        (refused(strides=(264,)), "bad-tensor-map"),
        (refused(strides=(1 << 40,)), "bad-tensor-map"),
        (refused(address=8), "bad-tensor-map"),
        (refused(box=(256, 8), swizzle="128B"), "bad-tensor-map"),
        (refused(box=(64, 8), swizzle="32B"), "bad-tensor-map"),
        (refused(oob_fill="nan_request_zero_fma"), "bad-tensor-map"),
        (refused(data_type="16u4_align16b", box=(64, 8)), "bad-tensor-map"),
        (refused(data_type="16u4_align16b", dims=(192, 8), strides=(96,), box=(128, 8)), "bad-tensor-map"),
        (refused(data_type="16u4_align16b", box=(128, 8), swizzle="64B"), "bad-tensor-map"),
        (refused(data_type="16u4_align16b", box=(128, 8), swizzle="128B_64B_atom"), "bad-tensor-map"),
        (refused(data_type="16u4_align8b", dims=(33, 8), strides=(32,), box=(32, 8)), "bad-tensor-map"),
        (refused(dims=(64, 8, 8), box=(64, 8, 8), interleave="32B"), "bad-tensor-map"),
        (
            refused(data_type="16u6_align16b", dims=(128, 8, 8), box=(128, 8, 8), interleave="16B"),
            "bad-tensor-map",
        ),
        (
            refused(dims=(64, 8, 8), box=(64, 8, 8), strides=(80, 640), interleave="32B", swizzle="32B"),
            "bad-tensor-map",
        ),
        (lambda: TENSORMAP.encode(dims=(16,), box=(16,)), "bad-descriptor"),
        (lambda: TENSORMAP.decode({**ARGUMENTS, "tensorRank": 3}), "bad-tensor-map"),
        (lambda: TENSORMAP.decode({**ARGUMENTS, "swizzle": 9}), "bad-descriptor"),
        (lambda: TENSORMAP.decode({**ARGUMENTS, "pixels": 9}), "unknown-name"),
        (lambda: TENSORMAP.decode({"swizzle": 0}), "bad-descriptor"),
        (lambda: MAP.place((0,)), "bad-box"),
        (lambda: MAP.place((0, 0), shared_address=64), "bad-box"),
        (lambda: tensor_map("uint8", (64, 8), (64, 8), swizzle="128B_64B_atom").place((0, 0)), "bad-swizzle"),
        (lambda: tensor_map("16u4_align16b", (256, 8), (128, 8)).place((64, 0)), "bad-box"),
        (lambda: tensor_map("uint8", (64, 8, 8), (64, 8, 8), interleave="16B").place((0, 0, 0)), "bad-box"),
        (lambda: MAP.place((0, 0)).load(np.zeros(64, np.uint8)), "bad-box"),
        (
            lambda: (
                tensor_map("float64", (64, 8), (16, 8), oob_fill="nan_request_zero_fma")
                .place((0, 4))
                .load(np.zeros(4096, np.uint8))
            ),
            "bad-box",
        ),
    ],
)
def test_misuse_is_refused(call: Callable[[], object], code: str) -> None:
    with pytest.raises(RefsimError) as caught:
        call()
    assert caught.value.code == code


def test_a_map_of_pixels_goes_to_the_driver_and_back() -> None:
    fields = {"dims": (16, 5, 4, 2), "lower": (-1, 0), "upper": (-2, -1), "element_strides": (1, 2, 1, 1)}
    made = im2col_map("bfloat16", channels=8, pixels=3, **fields)
    arguments = TENSORMAP.encode(data_type="bfloat16", channels=8, pixels=3, **fields)
    assert list(arguments)[5:9] == ["pixelBoxLowerCorner", "pixelBoxUpperCorner", "channelsPerPixel", "pixelsPerColumn"]
    assert arguments == driver_arguments(made)
    assert TENSORMAP.decode(arguments) == made
    explained = TENSORMAP.explain(arguments)
    shown = {each.name: each.value for each in explained.readings}
    assert (shown["lower"], shown["channels"], shown["pixels"]) == ("(-1, 0)", "8", "3")
    assert explained.source == made.source
    walked, placed = TENSORMAP.walk(arguments, (8, -1, 2, 0), 128, (1, 0)), made.place((8, -1, 2, 0), 128, (1, 0))
    assert (walked.shared_bits == placed.shared_bits).all()
    assert (walked.global_bits == placed.global_bits).all()


def test_the_ends_of_every_range_are_taken() -> None:
    assert tensor_map("uint8", (1 << 32,), (256,), element_strides=(8,)).dims == (1 << 32,)
    assert tensor_map("uint8", (16, 1), (16, 1), strides=((1 << 40) - 16,)).strides == ((1 << 40) - 16,)
    made = im2col_map("uint8", (256, 120, 9, 2), 256, 1024, lower=(-128, 8), upper=(-119, 0))
    assert (made.box, made.pixels and made.pixels.lower) == ((256, 1024), (-128, 8))
    assert im2col_map("uint8", (16, 9, 9, 1), 16, 1, lower=(127, -128), upper=(127, 127)).box == (16, 1)


def test_span_error_names_the_rule_and_the_way_out() -> None:
    with pytest.raises(RefsimError) as caught:
        tensor_map("bfloat16", (256, 64), (128, 64), swizzle="128B")
    assert str(caught.value).splitlines() == [
        "[bad-tensor-map] one box row is 256 B, more than the 128 B span of swizzle 128B",
        "  at: box=(128, 64) of bfloat16: 256 B in a row",
        "  rule: CUDA driver API, cuda.h 13.0, cuTensorMapEncodeTiled: boxDim[0] x element size <= swizzle span",
        "  help: boxes of 64 columns, or swizzle none",
    ]


def test_a_load_of_tf32_rounds_to_the_nearest_and_makes_one_nan_of_all() -> None:
    """Ties to even, a carry into the exponent, the largest float32, infinity, NaN and a subnormal."""
    given = [0x3F801000, 0x3F803000, 0x3F801001, 0xBFFFF000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0xFFFFFFFF, 0x00001001]
    wanted = [
        0x3F800000,
        0x3F804000,
        0x3F802000,
        0xC0000000,
        0x7F800000,
        0x7F800000,
        0x7FFFE000,
        0x7FFFE000,
        0x00002000,
    ]
    memory = np.array([*given, *([0] * 7)], np.uint32)
    box = tensor_map("tfloat32", (16,), (16,)).place((0,))
    assert box.load(memory.view(np.uint8)).view(np.uint32)[: len(given)].tolist() == wanted
    plain = tensor_map("float32", (16,), (16,)).place((0,))
    assert plain.load(memory.view(np.uint8)).view(np.uint32).tolist() == memory.tolist()


NO_NUMBERS = [1.5, "x", None, True, [[1], [2, 3]], object, {}]
TILED = {"dims": (64, 64), "box": (32, 32), "strides": (64,), "element_strides": (1, 1)}
COLUMNS = {"dims": (64, 9, 14, 2), "lower": (-1, -1), "upper": (-1, -1), "element_strides": (1, 1, 1, 1)}
SIZES = {"channels": 16, "pixels": 64}
WORDS = ("interleave", "swizzle", "l2_promotion", "oob_fill")


def misused(wrong: Any) -> Iterator[Callable[[], object]]:
    """Calls in which one argument, or the last number of one, is wrong."""
    for name, numbers in TILED.items():
        yield partial(tensor_map, "uint8", **{**TILED, name: (*numbers[1:], wrong)})
        if wrong is not None:
            yield partial(tensor_map, "uint8", **{**TILED, name: wrong})
    for name, numbers in COLUMNS.items():
        yield partial(im2col_map, "uint8", **{**SIZES, **COLUMNS, name: (*numbers[1:], wrong)})
    for name in SIZES:
        yield partial(im2col_map, "uint8", **{**SIZES, **COLUMNS, name: wrong})
    for name in ("address", *WORDS):
        yield partial(tensor_map, "uint8", **TILED, **{name: wrong})
    made = tensor_map("uint8", (64, 64), (32, 32))
    yield partial(tensor_map, wrong, (64, 64), (32, 32))
    yield partial(made.place, wrong)
    yield partial(made.place, (wrong, 0))
    yield partial(made.place, (0, 0), wrong)
    yield partial(made.place((0, 0)).load, wrong)
    yield partial(made.place((0, 0)).load, np.zeros(4096, np.uint8), pad=wrong)


@pytest.mark.parametrize("wrong", [*NO_NUMBERS, [5]], ids=repr)
def test_what_is_no_number_and_no_name_is_refused(wrong: Any) -> None:
    for call in misused(wrong):
        with pytest.raises(RefsimError):
            call()
