"""Tensor maps on a device against their definition: the pixels of the im2col mode, and maps that a kernel makes or changes."""

from pathlib import Path

import numpy as np
import pytest

from refsim import layouts
from refsim.kernel_code import KernelCode
from refsim.kernels import Struct
from refsim.reference import boxes

SOURCE = Path(__file__).parents[1] / "tests/ptx/tensor_maps.ptx"
CASES = 24


@pytest.fixture
def loaded(device):
    """A launcher of one entry of the file."""
    if int("".join(filter(str.isdigit, device.target))) < 90:
        pytest.skip(f"{device.target} has no tensor maps: sm_90 and newer")
    head, *entries = SOURCE.read_text().split(".visible .entry ")
    texts = {text.partition("(")[0]: f"{head}.visible .entry {text}" for text in entries}
    return lambda entry: device.launcher(KernelCode(ptx=texts[entry]))


def numbers(values, count, type):
    return Struct(np.array([*values, *[0] * 9][:count], type).tobytes(), np.dtype(type).itemsize)


def drawn(seed):
    """Parameters of an im2col map, a filter's base within its pixels, and offsets that may lead outside."""
    draw = np.random.default_rng(seed)
    spatial, swizzle = int(draw.integers(1, 4)), ("none", "32B", "64B", "128B")[draw.integers(4)]
    channels = {"none": 16, "32B": 8, "64B": 16, "128B": 32}[swizzle]
    images = [int(each) for each in draw.integers(2, 7, spatial)]
    dims = [int(draw.choice([channels, 2 * channels, channels - 4])), *images, int(draw.integers(1, 4))]
    lower = [int(each) for each in draw.integers(-2, 2, spatial)]
    upper = [int(draw.integers(low - extent + 1, 3)) for low, extent in zip(lower, images, strict=True)]
    fields = {
        "data_type": "uint32",
        "dims": dims,
        "channels": channels,
        "pixels": int(draw.integers(1, 41)),
        "lower": lower,
        "upper": upper,
        "element_strides": [1, *(int(each) for each in draw.integers(1, 4, spatial)), 1],
        "swizzle": swizzle,
    }
    base = [
        int(draw.choice([0, 4, -4])),
        *(int(draw.integers(low, extent + high)) for low, high, extent in zip(lower, upper, images, strict=True)),
        int(draw.integers(0, dims[-1])),
    ]
    return fields, tuple(base), tuple(int(each) for each in draw.integers(0, 4, spatial))


@pytest.mark.parametrize("seed", range(CASES))
def test_a_copy_takes_the_pixels_that_the_definition_names(seed, loaded):
    fields, base, offsets = drawn(seed)
    memory = np.arange(int(np.prod(fields["dims"])), dtype=np.uint32) + 1
    made = layouts.im2col_map(**fields)
    with loaded(f"load_{len(made.dims)}d") as gpu:
        x, out = gpu.upload(memory, name="x"), gpu.output(made.box_bytes // 4, np.uint32, name="out")
        want = boxes.loaded(made, base, 0, memory.view(np.uint8), np.zeros(made.box_bytes, np.uint8), offsets)
        args = [
            layouts.im2col_map(**fields, address=x.address),
            numbers(base, 5, np.int32),
            numbers(offsets, 3, np.uint16),
            *(np.uint32(each) for each in (0, made.box_bytes, made.box_bytes // 4)),
            out,
        ]
        gpu.launch(f"load_{len(made.dims)}d", 1, 64, args)
        assert gpu.read(out).tolist() == want.view(np.uint32).tolist()


@pytest.mark.parametrize("entry", ["changed_in_shared", "made_in_shared", "made_in_global"])
def test_a_map_that_the_kernel_makes_or_changes_is_the_one_that_a_copy_uses(entry, loaded):
    data = np.arange(512, dtype=np.uint32)
    with loaded(entry) as gpu:
        x, out = gpu.upload(data, name="x"), gpu.output(128, np.uint32, name="out")
        old = layouts.tensor_map("uint32", (32, 8), (32, 4), address=x.address)
        held = gpu.upload(np.frombuffer(bytes(gpu.encode(old)), np.uint8), name="old")
        place = gpu.upload(np.zeros(128, np.uint8), name="place", writable=True)
        gpu.launch(entry, 1, 64, [held, place, np.uint64(x.address + 1024), out, numbers((-4, 3), 2, np.int32)])
        rows = np.pad(data[256:].reshape(8, 32), ((0, 4), (4, 0)))[3:7, :32]
        assert np.array_equal(gpu.read(out).reshape(4, 32), rows)
