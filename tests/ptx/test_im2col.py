"""The im2col mode of copies: pixels against a second definition that steps through them, and a convolution against its sum."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from refsim import device, layouts
from refsim.errors import RefsimError
from refsim.kernels import Struct
from refsim.layouts.tma import DATA_TYPES
from refsim.ptx.memory.tensor_map import decoded, encoded, replaced
from refsim.reference import boxes

POLICIES = ("sim:eager", "sim:lazy", "sim:random")
ROOM = 16384
TEXT = Path(__file__).with_name("tensor_maps.ptx").read_text()


def alone(entry: str) -> str:
    """The file with one of its entries."""
    head, *entries = TEXT.split(".visible .entry ")
    return head + ".visible .entry " + next(each for each in entries if each.startswith(f"{entry}("))


def numbers(values: Any, count: int, type: Any) -> Struct:
    return Struct(np.array([*values, *[0] * 9][:count], type).tobytes(), np.dtype(type).itemsize)


def launch(
    gpu: Any, kind: str, made: Any, base: Any, offsets: Any, to: int, words: int, data: Any, rank: int | None = None
) -> None:
    amount = int(np.prod(made.box)) * made.data_type.element_bits // 8
    rest = [
        numbers(base, 5, np.int32),
        numbers(offsets, 3, np.uint16),
        *(np.uint32(each) for each in (to, amount, words)),
    ]
    gpu.launch(f"{kind}_{rank or len(made.dims)}d", 1, 64, [made, *rest, data])


@st.composite
def columns(draw: st.DrawFn) -> tuple[dict[str, Any], tuple[int, ...], tuple[int, ...], int]:
    """A small im2col map, a filter's base within its pixels, offsets that may lead outside, a shared address."""
    row = draw(st.sampled_from([row for row in DATA_TYPES if not row.packed]))
    spatial, size = draw(st.integers(1, 3)), row.element_bits // 8
    swizzle = draw(st.sampled_from(("none", "32B", "64B", "128B")))
    span = {"none": 64, "32B": 32, "64B": 64, "128B": 128}[swizzle]
    channels = (span if swizzle != "none" else draw(st.sampled_from((16, 32, 64)))) // size
    images = [draw(st.integers(1, 6)) for _ in range(spatial)]
    dims = [draw(st.integers(1, 2 * channels)), *images, draw(st.integers(1, 3))]
    lower = [draw(st.integers(-2, 1)) for _ in images]
    upper = [draw(st.integers(low - extent + 1, 2)) for low, extent in zip(lower, images, strict=True)]
    strides, pitch = [], dims[0] * size
    for extent in dims[1:]:
        strides.append(-(-pitch // 16) * 16)
        pitch = strides[-1] * extent
    fields = {
        "data_type": row,
        "dims": dims,
        "channels": channels,
        "pixels": draw(st.integers(1, min(60, ROOM // 2 // (channels * size)))),
        "lower": lower,
        "upper": upper,
        "strides": strides,
        "element_strides": [1, *(draw(st.integers(1, 3)) for _ in images), 1],
        "swizzle": swizzle,
        "oob_fill": "nan_request_zero_fma" if row.floating and size <= 4 and draw(st.booleans()) else "zeros",
    }
    limits = zip(lower, upper, images, strict=True)
    base = [
        draw(st.integers(-channels, dims[0])) // (16 // size) * (16 // size),
        *(draw(st.integers(low, extent - 1 + high)) for low, high, extent in limits),
    ]
    offsets = tuple(draw(st.integers(0, 4)) for _ in images)
    return fields, (*base, draw(st.integers(0, dims[-1]))), offsets, 128 * draw(st.integers(0, 9))


def memory_of(made: Any, seed: int) -> np.ndarray:
    reach = made.strides[-1] * made.dims[-1]
    return np.random.default_rng(seed).integers(0, 256, reach, np.uint8)


@given(columns(), st.sampled_from(POLICIES))
def test_pixels_are_loaded_as_the_definition_says(column: Any, policy: str) -> None:
    fields, base, offsets, to = column
    made = layouts.im2col_map(**fields)
    memory, size = memory_of(made, 1), made.box_bytes
    with device.open(policy, "sm_90a").loaded(alone(f"load_{len(made.dims)}d"), "tensor_maps.ptx") as gpu:
        x, out = gpu.upload(memory, name="x"), gpu.output(size // 4, np.uint32, name="out")
        launch(gpu, "load", layouts.im2col_map(**fields, address=x.address), base, offsets, to, size // 4, out)
        want = boxes.loaded(made, base, to, memory, np.zeros(to + size, np.uint8), offsets)[to:]
        assert np.array_equal(gpu.read(out).view(np.uint8), want)
        assert gpu.findings().notes == ()


@pytest.mark.parametrize(("address", "code"), [("map", ""), ("%d1", "out-of-bounds")], ids=["param", "generic"])
def test_a_prefetch_from_parameters_takes_an_address_in_parameters(address: str, code: str) -> None:
    """With a generic one an H200 stops: misaligned address."""
    text = alone("load_3d").replace("prefetch.tensormap [%d1]", f"prefetch.param.tensormap [{address}]")
    with device.open("sim", "sm_90a").loaded(text, "tensor_maps.ptx") as gpu:
        x, out = gpu.upload(np.arange(32, dtype=np.uint32), name="x"), gpu.output(32, np.uint32, name="out")
        made = layouts.im2col_map("uint32", (8, 4, 1), 8, 4, lower=(0,), upper=(0,), address=x.address)
        try:
            launch(gpu, "load", made, (0, 0, 0), (0,), 0, 32, out)
        except RefsimError as stopped:
            assert (stopped.code, "generic" in stopped.what) == (code, True)
        else:
            assert (code, gpu.read(out).tolist()) == ("", list(range(32)))


@given(columns())
def test_pixels_are_stored_as_the_definition_says(column: Any) -> None:
    fields, base, _, to = column
    made = layouts.im2col_map(**fields)
    base = tuple(max(at, 0) for at in base)
    assume(
        all(
            low <= at < extent + high
            for at, low, high, extent in zip(
                base[1:-1], made.pixels.lower, made.pixels.upper, made.dims[1:-1], strict=True
            )
        )
    )
    memory = memory_of(made, 2)
    window = np.random.default_rng(3).integers(0, 256, to + made.box_bytes, np.uint8)
    with device.open("sim:lazy", "sm_90a").loaded(alone(f"store_{len(made.dims)}d"), "tensor_maps.ptx") as gpu:
        y = gpu.upload(memory, name="y", writable=True)
        given_ = gpu.upload(window[to:].view(np.uint32), name="in")
        here = layouts.im2col_map(**fields, address=y.address)
        launch(gpu, "store", here, base, (), to, made.box_bytes // 4, given_)
        assert np.array_equal(gpu.read(y), boxes.stored(made, base, to, memory, window, (0,) * len(made.pixels.lower)))


def test_a_reduction_adds_to_every_pixel() -> None:
    made = {"data_type": "uint32", "dims": (4, 3, 2, 1), "channels": 4, "pixels": 8, "lower": (0, 0), "upper": (0, 0)}
    with device.open("sim:eager", "sm_90a").loaded(alone("add_4d"), "tensor_maps.ptx") as gpu:
        y = gpu.upload(np.arange(24, dtype=np.uint32), name="y", writable=True)
        x = gpu.upload(np.arange(100, 132, dtype=np.uint32), name="x")
        launch(gpu, "add", layouts.im2col_map(**made, address=y.address), (0, 1, 0, 0), (), 0, 32, x)
        assert gpu.read(y).tolist() == [0, 1, 2, 3, *(104 + 2 * each for each in range(20))]


def convolved(x: np.ndarray, w: np.ndarray, step: int, pad: int, apart: int) -> np.ndarray:
    """[N, P, Q, K] of x [N, H, W, C] and w [K, R, S, C], term by term."""
    count, height, width, channels = x.shape
    filters, rows, columns, _ = w.shape
    p, q = (
        (extent + 2 * pad - apart * (taps - 1) - 1) // step + 1 for extent, taps in ((height, rows), (width, columns))
    )
    out = np.zeros((count, p, q, filters), np.int64)
    for n, i, j, k, r, s in product(range(count), range(p), range(q), range(filters), range(rows), range(columns)):
        y, z = i * step - pad + r * apart, j * step - pad + s * apart
        if 0 <= y < height and 0 <= z < width:
            out[n, i, j, k] += sum(int(x[n, y, z, c]) * int(w[k, r, s, c]) for c in range(channels))
    return out


@pytest.mark.parametrize(("step", "pad", "apart"), [(1, 1, 1), (2, 1, 1), (1, 2, 2), (1, 0, 1)])
def test_a_convolution_is_the_sum_of_its_columns_times_the_filter(step: int, pad: int, apart: int) -> None:
    """A matrix product for every tap of the filter, over the rows that one copy brings."""
    draw = np.random.default_rng(step + pad + apart)
    x, w = draw.integers(-9, 9, (2, 5, 6, 4)).astype(np.int32), draw.integers(-9, 9, (3, 3, 2, 4)).astype(np.int32)
    want = convolved(x, w, step, pad, apart)
    rows = want[..., 0].size
    upper = [pad - apart * (taps - 1) for taps in (2, 3)]
    made = layouts.im2col_map(
        "int32", (4, 6, 5, 2), 4, rows, lower=(-pad, -pad), upper=upper, element_strides=(1, step, step, 1)
    )
    got = np.zeros((rows, 3), np.int64)
    for r, s in product(range(3), range(2)):
        placed = made.place((0, -pad, -pad, 0), offsets=(s * apart, r * apart))
        column = placed.load(x.view(np.uint8).reshape(-1)).view(np.int32).reshape(rows, 4)
        got += column.astype(np.int64) @ w[:, r, s].T
    assert np.array_equal(got, want.reshape(rows, 3))


def test_a_multicast_brings_the_pixels_to_every_block() -> None:
    text = alone("load_3d").replace(
        "[%r23], [%d1, {%r0, %r1, %r2}], [%r24], {%h0};", "[%r23], [%d1, {%r0, %r1, %r2}], [%r24], {%h0}, 3;"
    )
    text = text.replace("complete_tx::bytes [%r23]", "complete_tx::bytes.multicast::cluster [%r23]")
    rank = "    @%p1 bra $begun; mbarrier.init.shared.b64 [%r24], 1; mbarrier.arrive.expect_tx.shared.b64 _, [%r24], %r21;\n"
    rank += "$begun: fence.mbarrier_init.release.cluster; barrier.cluster.arrive; barrier.cluster.wait;\n"
    rank += "    mov.u32 %r30, %cluster_ctarank; setp.ne.or.u32 %p1, %r30, 0, %p1;\n"
    text = text.replace("    @%p1 bra $wait;", rank + "    @%p1 bra $wait;")
    text = text.replace(
        "    mbarrier.init.shared.b64 [%r24], 1;\n    mbarrier.arrive.expect_tx.shared.b64 _, [%r24], %r21;\n", "", 1
    )
    text = text.replace("$done: ret;", "$done: barrier.cluster.arrive; barrier.cluster.wait; ret;")
    made = {"data_type": "uint32", "dims": (4, 6, 2), "channels": 4, "pixels": 8, "lower": (0,), "upper": (0,)}
    with device.open("sim:lazy", "sm_90a").loaded(text, "tensor_maps.ptx") as gpu:
        x, out = gpu.upload(np.arange(48, dtype=np.uint32), name="x"), gpu.output(32, np.uint32, name="out")
        here = layouts.im2col_map(**made, address=x.address)
        rest = [
            numbers((0, 2, 0), 5, np.int32),
            numbers((1,), 3, np.uint16),
            *(np.uint32(each) for each in (0, 128, 32)),
        ]
        gpu.launch("load_3d", 2, 64, [here, *rest, out], cluster=2)
        # Pixels 2 to 5 of the first image, moved by one, then those of the second image from 0 on.
        rows = [12, 16, 20, None, 28, 32, 36, 40]
        want = [0 if row is None else row + channel for row in rows for channel in range(4)]
        assert gpu.read(out).tolist() == want


MAP = {"data_type": "uint32", "dims": (4, 6, 5, 2), "channels": 4, "pixels": 8, "lower": (-1, 0), "upper": (-1, 0)}
REFUSED = [
    ({"dims": (4, 6), "lower": (), "upper": ()}, "bad-tensor-map"),
    ({"lower": (0,)}, "bad-tensor-map"),
    ({"lower": (-129, 0)}, "bad-tensor-map"),
    ({"upper": (0, 128)}, "bad-tensor-map"),
    ({"upper": (-8, 0)}, "bad-tensor-map"),
    ({"channels": 257}, "bad-tensor-map"),
    ({"channels": 0}, "bad-tensor-map"),
    ({"upper": (-7, 0)}, "bad-tensor-map"),
    ({"pixels": 1025}, "bad-tensor-map"),
    ({"element_strides": (1, 9, 1, 1)}, "bad-tensor-map"),
    ({"address": 8}, "bad-tensor-map"),
    ({"channels": 16, "swizzle": "32B"}, "bad-tensor-map"),
    ({"swizzle": "256B"}, "unknown-swizzle"),
    ({"oob_fill": "nan_request_zero_fma"}, "bad-tensor-map"),
]


@pytest.mark.parametrize(("change", "code"), REFUSED)
def test_a_map_that_the_driver_refuses_is_named(change: dict[str, Any], code: str) -> None:
    with pytest.raises(RefsimError) as caught:
        layouts.im2col_map(**MAP | change)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("base", "offsets", "words"),
    [
        ((0, -2, 0, 0), (0, 0), "coordinate 1 is -2: the filter's base lies in -1..4"),
        ((0, 5, 0, 0), (0, 0), "coordinate 1 is 5"),
        ((0, 0, 0, 0), (256, 0), "offsets (256, 0) of a tensor of rank 4: 2 of 0..255"),
        ((0, 0, 0), (0, 0), "3 coordinates for a tensor map of rank 4"),
    ],
)
def test_a_base_or_an_offset_that_a_copy_does_not_take_is_a_fault(base: Any, offsets: Any, words: str) -> None:
    with device.open("sim", "sm_90a").loaded(alone(f"load_{len(base)}d"), "tensor_maps.ptx") as gpu:
        x, out = gpu.upload(np.zeros(240, np.uint32), name="x"), gpu.output(32, np.uint32, name="out")
        made = layouts.im2col_map(**MAP, address=x.address)
        with pytest.raises(RefsimError) as caught:
            launch(gpu, "load", made, base, offsets, 0, 32, out, rank=len(base))
        assert caught.value.code == "invalid-operand"
        assert words in caught.value.what


def test_the_mode_of_a_copy_is_that_of_its_map() -> None:
    with device.open("sim", "sm_90a").loaded(alone("load_4d"), "tensor_maps.ptx") as gpu:
        x, out = gpu.upload(np.zeros(240, np.uint32), name="x"), gpu.output(32, np.uint32, name="out")
        tiled = layouts.tensor_map("uint32", (4, 6, 5, 2), (4, 2, 2, 2), address=x.address)
        with pytest.raises(RefsimError, match="a copy in im2col mode by a tensor map for tile mode"):
            launch(gpu, "load", tiled, (0, 0, 0, 0), (0, 0), 0, 32, out)


@given(columns())
def test_an_im2col_map_comes_back_from_its_bytes_and_no_tile_is_changed_in_it(column: Any) -> None:
    made = layouts.im2col_map(**column[0])
    raw = encoded(made)
    assert decoded(raw) == made
    with pytest.raises(RefsimError, match="im2col"):
        replaced(raw, "box_dim", 0, 1)
