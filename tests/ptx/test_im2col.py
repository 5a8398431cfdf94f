"""The im2col mode of copies: pixels against a second definition that steps through them, and a convolution against its sum."""

from functools import cache
from itertools import product
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
HEAD = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .align 64 .b8 map[128], .param .align 4 .b8 base[20], .param .align 2 .b8 moved[6], .param .u32 to,
                  .param .u32 bytes, .param .u32 words, .param .u64 data) {
    .reg .b32 %r<40>; .reg .b16 %h<8>; .reg .b64 %d<20>; .reg .pred %p<8>;
    .shared .align 1024 .b8 room[16384]; .shared .align 8 .b8 bar[8];
    mov.b64 %d1, map; cvta.param.u64 %d1, %d1; ld.param.u64 %d2, [data]; ld.param.u32 %r20, [to]; ld.param.u32 %r21, [bytes];
    ld.param.u32 %r22, [words]; mov.u32 %r23, room; add.u32 %r23, %r23, %r20; mov.u32 %r24, bar; mov.u32 %r25, %tid.x;
    setp.ne.u32 %p1, %r25, 0; ld.param.u16 %h0, [moved]; ld.param.u16 %h1, [moved+2]; ld.param.u16 %h2, [moved+4];
    ld.param.u32 %r0, [base]; ld.param.u32 %r1, [base+4]; ld.param.u32 %r2, [base+8]; ld.param.u32 %r3, [base+12];
    ld.param.u32 %r4, [base+16];
"""
LOAD = """    @%p1 bra $wait;
    prefetch.param.tensormap [%d1];
    cp.async.bulk.prefetch.tensor.{rank}d.L2.global.im2col [%d1, {{{at}}}], {{{by}}};
    mbarrier.init.shared.b64 [%r24], 1;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r24], %r21;
    {copy} [%r23], [%d1, {{{at}}}], [%r24], {{{by}}};
$wait: bar.sync 0;
$poll: mbarrier.try_wait.parity.shared.b64 %p2, [%r24], 0; @!%p2 bra $poll;
$more: setp.ge.u32 %p3, %r25, %r22; @%p3 bra $done;
    shl.b32 %r26, %r25, 2; add.u32 %r27, %r23, %r26; ld.shared.u32 %r28, [%r27]; cvt.u64.u32 %d3, %r26; add.s64 %d3, %d2, %d3;
    st.global.u32 [%d3], %r28; add.u32 %r25, %r25, 64; bra $more;
$done: ret;
}}
"""
STORE = """
$more: setp.ge.u32 %p3, %r25, %r22; @%p3 bra $done;
    shl.b32 %r26, %r25, 2; add.u32 %r27, %r23, %r26; cvt.u64.u32 %d3, %r26; add.s64 %d3, %d2, %d3; ld.global.u32 %r28, [%d3];
    st.shared.u32 [%r27], %r28; add.u32 %r25, %r25, 64; bra $more;
$done: fence.proxy.async.shared::cta; bar.sync 0; @%p1 ret;
    {copy} [%d1, {{{at}}}], [%r23];
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; ret;
}}
"""


@cache
def kernel(kind: str, rank: int) -> str:
    body = LOAD if kind == "load" else STORE
    copies = {
        "load": f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes",
        "store": f"cp.async.bulk.tensor.{rank}d.global.shared::cta.im2col_no_offs.bulk_group",
        "add": f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.add.im2col_no_offs.bulk_group",
    }
    at, by = ", ".join(f"%r{axis}" for axis in range(rank)), ", ".join(f"%h{axis}" for axis in range(rank - 2))
    return HEAD + body.format(rank=rank, at=at, by=by, copy=copies[kind])


def numbers(values: Any, count: int, type: Any) -> Struct:
    return Struct(np.array([*values, *[0] * 9][:count], type).tobytes(), np.dtype(type).itemsize)


def launch(gpu: Any, made: Any, base: Any, offsets: Any, to: int, words: int, data: Any) -> None:
    amount = int(np.prod(made.box)) * made.data_type.element_bits // 8
    rest = [
        numbers(base, 5, np.int32),
        numbers(offsets, 3, np.uint16),
        *(np.uint32(each) for each in (to, amount, words)),
    ]
    gpu.launch("k", 1, 64, [made, *rest, data])


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
        draw(st.integers(-channels, dims[0])),
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
    with device.open(policy, "sm_90a").loaded(kernel("load", len(made.dims)), "im2col.ptx") as gpu:
        x, out = gpu.upload(memory, name="x"), gpu.output(size // 4, np.uint32, name="out")
        launch(gpu, layouts.im2col_map(**fields, address=x.address), base, offsets, to, size // 4, out)
        want = boxes.loaded(made, base, to, memory, np.zeros(to + size, np.uint8), offsets)[to:]
        assert np.array_equal(gpu.read(out).view(np.uint8), want)
        assert gpu.findings().notes == ()


@given(columns())
def test_pixels_are_stored_as_the_definition_says(column: Any) -> None:
    fields, base, _, to = column
    made = layouts.im2col_map(**fields)
    base = tuple(max(at, 0) for at in base)
    assume(all(low <= at < extent + high for at, low, high, extent in
               zip(base[1:-1], made.pixels.lower, made.pixels.upper, made.dims[1:-1], strict=True)))  # fmt: skip
    memory = memory_of(made, 2)
    window = np.random.default_rng(3).integers(0, 256, to + made.box_bytes, np.uint8)
    with device.open("sim:lazy", "sm_90a").loaded(kernel("store", len(made.dims)), "im2col.ptx") as gpu:
        y = gpu.upload(memory, name="y", writable=True)
        given_ = gpu.upload(window[to:].view(np.uint32), name="in")
        here = layouts.im2col_map(**fields, address=y.address)
        launch(gpu, here, base, (), to, made.box_bytes // 4, given_)
        assert np.array_equal(gpu.read(y), boxes.stored(made, base, to, memory, window, (0,) * len(made.pixels.lower)))


def test_a_reduction_adds_to_every_pixel() -> None:
    made = {"data_type": "uint32", "dims": (4, 3, 2, 1), "channels": 4, "pixels": 8, "lower": (0, 0), "upper": (0, 0)}
    with device.open("sim:eager", "sm_90a").loaded(kernel("add", 4), "im2col.ptx") as gpu:
        y = gpu.upload(np.arange(24, dtype=np.uint32), name="y", writable=True)
        x = gpu.upload(np.arange(100, 132, dtype=np.uint32), name="x")
        launch(gpu, layouts.im2col_map(**made, address=y.address), (0, 1, 0, 0), (), 0, 32, x)
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
    text = kernel("load", 3).replace(
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
    with device.open("sim:lazy", "sm_90a").loaded(text, "im2col.ptx") as gpu:
        x, out = gpu.upload(np.arange(48, dtype=np.uint32), name="x"), gpu.output(32, np.uint32, name="out")
        here = layouts.im2col_map(**made, address=x.address)
        rest = [
            numbers((0, 2, 0), 5, np.int32),
            numbers((1,), 3, np.uint16),
            *(np.uint32(each) for each in (0, 128, 32)),
        ]
        gpu.launch("k", 2, 64, [here, *rest, out], cluster=2)
        # Pixels 2 to 5 of the first image, moved by one, then those of the second image from 0 on.
        rows = [12, 16, 20, None, 28, 32, 36, 40]
        want = [0 if row is None else row + channel for row in rows for channel in range(4)]
        assert gpu.read(out).tolist() == want


MAP = {"data_type": "uint32", "dims": (4, 6, 5, 2), "channels": 4, "pixels": 8, "lower": (-1, 0), "upper": (-1, 0)}
REFUSED = [
    ({"dims": (4, 6), "lower": (), "upper": ()}, "tensormap-rank"), ({"lower": (0,)}, "tensormap-rank"),
    ({"lower": (-129, 0)}, "tensormap-corner"), ({"upper": (0, 128)}, "tensormap-corner"),
    ({"upper": (-8, 0)}, "tensormap-corner"), ({"channels": 257}, "tensormap-box"), ({"channels": 0}, "tensormap-box"),
    ({"pixels": 1025}, "tensormap-box"), ({"element_strides": (1, 9, 1, 1)}, "tensormap-step"),
    ({"address": 8}, "tensormap-alignment"), ({"channels": 16, "swizzle": "32B"}, "swizzle-span"),
    ({"swizzle": "256B"}, "unknown-swizzle"), ({"oob_fill": "nan_request_zero_fma"}, "tensormap-fill"),
]  # fmt: skip


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
    with device.open("sim", "sm_90a").loaded(kernel("load", len(base)), "im2col.ptx") as gpu:
        x, out = gpu.upload(np.zeros(240, np.uint32), name="x"), gpu.output(32, np.uint32, name="out")
        with pytest.raises(RefsimError) as caught:
            launch(gpu, layouts.im2col_map(**MAP, address=x.address), base, offsets, 0, 32, out)
        assert caught.value.code == "invalid-operand"
        assert words in caught.value.what


def test_the_mode_of_a_copy_is_that_of_its_map() -> None:
    with device.open("sim", "sm_90a").loaded(kernel("load", 4), "im2col.ptx") as gpu:
        x, out = gpu.upload(np.zeros(240, np.uint32), name="x"), gpu.output(32, np.uint32, name="out")
        tiled = layouts.tensor_map("uint32", (4, 6, 5, 2), (4, 2, 2, 2), address=x.address)
        with pytest.raises(RefsimError, match="a copy in im2col mode by a tensor map for tile mode"):
            launch(gpu, tiled, (0, 0, 0, 0), (0, 0), 0, 32, out)


@given(columns())
def test_an_im2col_map_comes_back_from_its_bytes_and_no_tile_is_changed_in_it(column: Any) -> None:
    made = layouts.im2col_map(**column[0])
    raw = encoded(made)
    assert decoded(raw) == made
    with pytest.raises(RefsimError, match="im2col"):
        replaced(raw, "box_dim", 0, 1)
