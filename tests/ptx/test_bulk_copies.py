"""The copy engine: boxes and runs against a second definition, under every policy; its groups, phases and blocks."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refsim import device, layouts
from refsim.device.compile import compile_ptx
from refsim.errors import Kind, RefsimError
from refsim.kernels import Struct
from refsim.layouts.tma import DATA_TYPES, TensorMap
from refsim.reference import boxes

SOURCE = Path(__file__).with_name("bulk_copies.cu")
POLICIES = ("sim:eager", "sim:lazy", "sim:random")
LARGEST = 32 << 10


@lru_cache(maxsize=1)
def text() -> str:
    try:
        return compile_ptx(SOURCE, "sm_90a").text
    except RefsimError as error:
        if error.kind is not Kind.MISSING:
            raise
        pytest.skip(f"the kernels cannot be compiled here: {error.what}")


def opened(policy: str = "sim:eager", ptx: str = "") -> Any:
    return device.open(policy, "sm_90a").loaded(ptx or text(), "bulk_copies.ptx")


def corner_of(corner: Sequence[int]) -> Struct:
    return Struct(np.array([*corner, 0, 0, 0, 0, 0][:5], np.int32).tobytes(), 4)


def tensor(made: TensorMap, seed: int) -> np.ndarray:
    """Bytes of a buffer that the tensor fills."""
    reach = sum((extent - 1) * stride for extent, stride in zip(made.dims[1:], made.strides, strict=True))
    return np.random.default_rng(seed).integers(
        0, 256, reach + made.dims[0] * made.data_type.element_bits // 8, np.uint8
    )


@st.composite
def copies(draw: st.DrawFn) -> tuple[dict[str, Any], tuple[int, ...], int]:
    """A small tensor map, the corner of a box that may lie outside, and a shared address."""
    row = draw(st.sampled_from([row for row in DATA_TYPES if not row.packed]))
    rank, size = draw(st.integers(1, 5)), row.element_bits // 8
    swizzle = draw(st.sampled_from(("none", "32B", "64B", "128B")))
    span = {"none": 256, "32B": 32, "64B": 64, "128B": 128}[swizzle]
    inner = draw(st.integers(1, min(span // 16, 256 * size // 16))) * 16 // size
    box = [inner, *(draw(st.integers(1, 6)) for _ in range(rank - 1))]
    dims = [draw(st.integers(1, 3 * inner)), *(draw(st.integers(1, 9)) for _ in range(rank - 1))]
    strides, pitch = [], dims[0] * size
    for extent in dims[1:]:
        strides.append(-(-pitch // 16) * 16 + 16 * draw(st.integers(0, 1)))
        pitch = strides[-1] * extent
    steps = [1, *(draw(st.integers(1, 2)) for _ in range(rank - 1))]
    nan = row.floating and size <= 4 and draw(st.booleans())
    fields = {
        "data_type": row,
        "dims": dims,
        "box": box,
        "strides": strides,
        "element_strides": steps,
        "swizzle": swizzle,
        "oob_fill": "nan_request_zero_fma" if nan else "zeros",
    }
    corner = tuple(draw(st.integers(-extent, own)) for extent, own in zip(box, dims, strict=True))
    return fields, corner, 128 * draw(st.integers(0, 9))


def loaded(gpu: Any, fields: dict[str, Any], corner: tuple[int, ...], offset: int, entry: str) -> tuple[Any, Any]:
    """What a load brings, and what it should."""
    made = layouts.tensor_map(**fields)
    memory, size = tensor(made, 1), min(offset + made.box_bytes, LARGEST) - offset
    x, out = gpu.upload(memory, name="x"), gpu.output(size // 4, np.uint32, name="out")
    made = layouts.tensor_map(**fields, address=x.address)
    amount = int(np.prod(made.loaded)) * made.data_type.element_bits // 8
    given: Any = made if entry == "box_in" else gpu.upload(np.frombuffer(bytes(gpu.encode(made)), np.uint8), name="map")
    numbers = (np.uint32(each) for each in (len(corner), offset, amount, size))
    gpu.launch(entry, 1, 64, [given, corner_of(corner), *numbers, out], LARGEST)
    want = boxes.loaded(made, corner, offset, memory, np.zeros(offset + size, np.uint8))[offset:]
    return gpu.read(out).view(np.uint8), want


@settings(max_examples=40)
@given(copies(), st.sampled_from(POLICIES), st.sampled_from(["box_in", "box_in_by_pointer"]))
def test_a_box_is_loaded_as_the_definition_says(copy: Any, policy: str, entry: str) -> None:
    """With a box narrower than its swizzle's span the gaps stay unwritten, so that only whole rows are read back."""
    fields, corner, offset = copy
    made = layouts.tensor_map(**fields)
    if made.pitch_bytes != made.row_bytes:
        fields = {**fields, "swizzle": "none"}
    with opened(policy) as gpu:
        got, want = loaded(gpu, fields, corner, offset, entry)
        assert np.array_equal(got, want)
        assert gpu.findings().notes == ()


@settings(max_examples=40)
@given(copies(), st.sampled_from(POLICIES))
def test_a_box_is_stored_as_the_definition_says(copy: Any, policy: str) -> None:
    fields, corner, offset = copy
    corner = tuple(max(at, 0) for at in corner)
    made = layouts.tensor_map(**fields)
    memory, size = tensor(made, 2), made.box_bytes
    window = np.random.default_rng(3).integers(0, 256, offset + size, np.uint8)
    with opened(policy) as gpu:
        y, given_ = (
            gpu.upload(each, name=name, writable=True) for each, name in ((memory, "y"), (window[offset:], "in"))
        )
        made = layouts.tensor_map(**fields, address=y.address)
        numbers = (np.uint32(each) for each in (len(corner), offset, size))
        gpu.launch("box_out", 1, 64, [made, corner_of(corner), *numbers, given_], offset + size)
        assert np.array_equal(gpu.read(y), boxes.stored(made, corner, offset, memory, window))
        assert gpu.findings().notes == ()


def reduced(operation: str, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """What one reduction leaves."""
    match operation:
        case "inc":
            return np.where(old >= new, 0, old + 1).astype(old.dtype)
        case "dec":
            return np.where((old == 0) | (old > new), new, old - 1).astype(old.dtype)
        case "and" | "or" | "xor":
            return {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[operation](old, new)
    return {"add": np.add, "min": np.minimum, "max": np.maximum}[operation](old, new).astype(old.dtype)


INTEGERS = {"uint32": np.uint32, "int32": np.int32, "uint64": np.uint64, "int64": np.int64}
REALS = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}
REDUCTIONS = [(op, type) for op in ("add", "min", "max", "and", "or", "xor") for type in INTEGERS]
REDUCTIONS += [("inc", "uint32"), ("dec", "uint32"), *(("add", type) for type in REALS)]
REDUCTIONS += [(op, type) for op in ("min", "max") for type in ("float16", "bfloat16")]


@pytest.mark.parametrize(("operation", "type"), REDUCTIONS)
def test_a_box_is_reduced_into_a_tensor_element_by_element(operation: str, type: str) -> None:
    """Twice, by two threads; a column and a row of the box lie outside."""
    dtype, draw = np.dtype({**INTEGERS, **REALS}[type]), np.random.default_rng(5)
    old, new = (draw.integers(-50, 50, (9, 16)).astype(dtype) for _ in range(2))
    with opened() as gpu:
        y = gpu.upload(old.view(f"u{dtype.itemsize}"), name="y", writable=True)
        x = gpu.upload(new[:4].view(np.uint8).reshape(-1).view(np.uint32), name="x")
        made = layouts.tensor_map(type, (15, 9), (16, 4), strides=(16 * dtype.itemsize,), address=y.address)
        size = np.uint32(4 * 16 * dtype.itemsize)
        gpu.launch(f"box_{operation}", 1, 64, [made, np.int32(1), np.int32(6), size, x], int(size))
        want = old.copy()
        for _ in range(2):
            want[6:9, 1:15] = reduced(operation, want[6:9, 1:15], new[:3, :14])
        assert np.array_equal(gpu.read(y).view(np.uint8), want.view(np.uint8).reshape(-1))


@pytest.mark.parametrize("policy", POLICIES)
def test_runs_of_bytes_in_and_out_and_into_a_sum(policy: str) -> None:
    given_ = np.arange(256, dtype=np.uint32)
    with opened(policy) as gpu:
        x, out = gpu.upload(given_, name="x"), gpu.output(256, np.uint32, name="out")
        sums = gpu.upload(given_ * 5, name="sums", writable=True)
        gpu.launch("runs", 1, 32, [x, out, sums, np.uint32(1024)], 1024)
        assert gpu.read(out).tolist() == [1001, *range(2, 257)]
        assert gpu.read(sums).tolist() == [6 * number + 1 for number in range(256)]


@pytest.mark.parametrize("policy", POLICIES)
def test_blocks_of_a_cluster_send_to_each_other(policy: str) -> None:
    with opened(policy) as gpu:
        out = gpu.output(256, np.uint32, name="out")
        gpu.launch("exchange", 4, 32, [out], cluster=2)
        sent = [100 * (block ^ 1) + lane for block in range(4) for lane in range(32)]
        want = [list(sent[32 * block :][:32]) for block in range(4)]
        assert gpu.read(out).reshape(4, 2, 32).tolist() == [[row, [7 + each for each in row]] for row in want]


def multicast(gpu: Any, mask: int) -> None:
    draw = np.random.default_rng(7)
    tile, run = draw.integers(0, 256, (16, 128), np.uint8), draw.integers(0, 256, 512, np.uint8)
    x, y = gpu.upload(tile, name="x"), gpu.upload(run.view(np.uint32), name="y")
    out = gpu.output(1280, np.uint32, name="out")
    made = layouts.tensor_map("uint8", (128, 16), (128, 8), address=x.address)
    gpu.launch("multicast", 2, 64, [made, y, out, np.uint32(mask)], 2560, cluster=2)
    want = np.concatenate([tile.reshape(-1), run])
    assert np.array_equal(gpu.read(out).view(np.uint8), np.tile(want, 2))


@pytest.mark.parametrize("policy", POLICIES)
def test_every_block_of_a_mask_gets_its_copy(policy: str) -> None:
    with opened(policy) as gpu:
        multicast(gpu, 3)


def test_a_mask_that_leaves_a_block_out_is_a_deadlock_with_the_missing_bytes() -> None:
    with opened() as gpu, pytest.raises(RefsimError, match="and 2560 bytes are missing") as caught:
        multicast(gpu, 1)
    assert caught.value.code == "deadlock"


def test_a_mask_names_blocks_of_the_cluster() -> None:
    with opened() as gpu, pytest.raises(RefsimError, match="mask 0x0005 in a cluster of 2") as caught:
        multicast(gpu, 5)
    assert caught.value.code == "invalid-operand"


def ring(policy: str, ptx: str = "", count: int = 5) -> tuple[bool, Any]:
    with opened(policy, ptx) as gpu:
        values = np.random.default_rng(9).integers(0, 1 << 20, (count, 256), np.uint32)
        x, out = gpu.upload(values, name="x"), gpu.output(256, np.uint32, name="out")
        made = layouts.tensor_map("uint8", (128, 8 * count), (128, 8), address=x.address)
        gpu.launch("ring", 1, 96, [made, np.uint32(count), out], 2048)
        return bool((gpu.read(out) == values.sum(axis=0)).all()), gpu.findings()


@pytest.mark.parametrize("policy", [*POLICIES, "sim"])
def test_a_ring_of_stages_is_right_and_without_findings(policy: str) -> None:
    right, findings = ring(policy)
    assert right
    assert findings.inexact == ()


@pytest.mark.parametrize("policy", [*POLICIES, "sim"])
def test_groups_let_buffers_be_filled_again(policy: str) -> None:
    with opened(policy) as gpu:
        out = gpu.output(640, np.uint32, name="out")
        gpu.launch("groups", 1, 128, [out, np.uint32(5)], 1024)
        assert gpu.read(out).tolist() == [1000 * turn + thread for turn in range(5) for thread in range(128)]
