"""The copy engine: boxes and runs against a second definition, under every policy; its groups, phases and blocks."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
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
    first, *others = (draw(st.integers(-extent, own)) for extent, own in zip(box, dims, strict=True))
    return fields, (first // (16 // size) * (16 // size), *others), 128 * draw(st.integers(0, 9))


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
        first = 16 // dtype.itemsize
        gpu.launch(f"box_{operation}", 1, 64, [made, np.int32(first), np.int32(6), size, x], int(size))
        want = old.copy()
        for _ in range(2):
            want[6:9, first:15] = reduced(operation, want[6:9, first:15], new[:3, : 15 - first])
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
    missing = r"of block \(1, 0, 0\): 0 of 1 arrivals and 2560 bytes are missing"
    with opened() as gpu, pytest.raises(RefsimError, match=missing) as caught:
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


def cluster_ring(policy: str, ptx: str = "", count: int = 5) -> tuple[bool, Any]:
    with opened(policy, ptx) as gpu:
        values = np.random.default_rng(9).integers(0, 1 << 20, (count, 256), np.uint32)
        x, out = gpu.upload(values, name="x"), gpu.output(512, np.uint32, name="out")
        made = layouts.tensor_map("uint8", (128, 8 * count), (128, 4), address=x.address)
        gpu.launch("cluster_ring", 2, 64, [made, np.uint32(count), out], 2048, cluster=2)
        return bool((gpu.read(out).reshape(2, 256) == values.sum(axis=0)).all()), gpu.findings()


@pytest.mark.parametrize("policy", [*POLICIES, "sim"])
def test_a_ring_over_a_cluster_is_right_and_without_findings(policy: str) -> None:
    assert cluster_ring(policy)[0]


# ---- what is found: single words of the kernels' PTX changed
def changed(entry: str, old: str, new: str, times: int = 1) -> str:
    """The PTX with a text replaced in one entry, the first `times` of it."""
    before, found, after = text().partition(f".visible .entry {entry}(")
    assert found
    assert old in after.partition("\n.visible .entry ")[0], old
    return before + found + after.replace(old, new, times)


def without(entry: str, line: str) -> str:
    """The PTX without the first line of an entry that contains some text."""
    before, found, after = text().partition(f".visible .entry {entry}(")
    body = after.splitlines(keepends=True)
    at = next(number for number, each in enumerate(body) if line in each)
    return before + found + "".join(body[:at] + body[at + 1 :])


def said(run: Any, ptx: str) -> tuple[str, str]:
    """Code and words of what a run of changed PTX is refused for, under the default campaign."""
    with pytest.raises(RefsimError) as caught:
        run("sim", ptx)
    return caught.value.code, caught.value.what


def groups(policy: str, ptx: str, count: int = 5) -> None:
    with opened(policy, ptx) as gpu:
        out = gpu.output(128 * count, np.uint32, name="out")
        gpu.launch("groups", 1, 128, [out, np.uint32(count)], 1024)


def runs(policy: str, ptx: str) -> None:
    with opened(policy, ptx) as gpu:
        x, out = gpu.upload(np.arange(256, dtype=np.uint32), name="x"), gpu.output(256, np.uint32, name="out")
        sums = gpu.upload(np.zeros(256, np.uint32), name="sums", writable=True)
        gpu.launch("runs", 1, 32, [x, out, sums, np.uint32(1024)], 1024)


def test_bytes_that_expect_tx_did_not_announce_are_told() -> None:
    code, what = said(ring, changed("ring", ", 1024;", ", 1008;"))
    assert (code, "16 bytes more have come than expect_tx announced" in what) == ("deadlock", True)
    code, what = said(ring, changed("ring", ", 1024;", ", 1040;"))
    assert (code, "and 16 bytes are missing" in what) == ("deadlock", True)


def test_a_stage_is_not_read_before_its_phase_was_seen_complete() -> None:
    """The wait of those that read passes at once."""
    before, found, after = text().partition(".visible .entry ring(")
    waits = [line for line in after.partition("// -- End function")[0].splitlines() if "mbarrier.try_wait" in line]
    assert len(waits) >= 2
    passed = waits[1].replace("selp.u32", "setp.eq.u32 p, 0, 0; selp.u32")
    second = after.index(waits[1], after.index(waits[0]) + 1)
    code, _ = said(ring, before + found + after[:second] + passed + after[second + len(waits[1]) :])
    assert code in ("read-before-wait", "race")


def test_a_source_is_not_written_while_it_is_read() -> None:
    code, what = said(groups, changed("groups", "wait_group.read 1;", "wait_group.read 2;", -1))
    assert (code, "still reads them" in what) == ("race", True)
    assert "N = 1 would wait for it" in what
    code, what = said(groups, changed("groups", "cp.async.bulk.commit_group;", "", -1))
    assert (code, "it lacks a cp.async.bulk.commit_group" in what) == ("race", True)


@pytest.mark.parametrize("change", ["cp.async.bulk.wait_group.read 0;", ""])
def test_a_thread_sees_its_own_copy_behind_the_wait_for_its_group(change: str) -> None:
    code, what = said(runs, changed("runs", "cp.async.bulk.wait_group 0;", change))
    assert (code, "with no wait of that thread between for the bulk group" in what) == ("race", True)


@pytest.mark.parametrize(("entry", "run"), [("groups", groups), ("runs", runs)])
def test_what_threads_wrote_needs_a_proxy_fence(entry: str, run: Any) -> None:
    assert said(run, without(entry, "fence.proxy.async"))[0] == "missing-proxy-fence"


def refused(gpu: Any, entry: str, args: list[Any], shared_bytes: int = 4096) -> str:
    with pytest.raises(RefsimError) as caught:
        gpu.launch(entry, 1, 64, args, shared_bytes)
    return f"{caught.value.code}: {caught.value.what}"


def test_addresses_and_sizes_are_aligned() -> None:
    with opened() as gpu:
        x = gpu.upload(np.zeros(256, np.uint32), name="x", writable=True)
        odd = gpu.upload(np.zeros(256, np.uint32), name="odd", writable=True, misalign_bytes=8)
        made = layouts.tensor_map("uint8", (64, 4), (64, 4), address=x.address)
        box = [made, corner_of([0, 0]), np.uint32(2), np.uint32(64), np.uint32(256), np.uint32(256), odd]
        assert (
            refused(gpu, "box_in", box)
            == "misaligned: the shared address 0x840 of a box is not a multiple of 128 bytes"
        )
        size = refused(gpu, "runs", [x, x, x, np.uint32(248)])
        assert size == "misaligned: the size 0xf8 is not a multiple of 16 bytes"
        assert refused(gpu, "runs", [odd, x, x, np.uint32(256)]).startswith("misaligned: the source address 0x")


def test_a_pointer_that_leads_to_no_tensor_map_is_named() -> None:
    with opened() as gpu:
        junk, out = gpu.upload(np.zeros(256, np.uint8), name="junk"), gpu.output(64, np.uint32, name="out")
        rest = [corner_of([0, 0]), *(np.uint32(each) for each in (2, 0, 256, 256)), out]
        found = refused(gpu, "box_in_by_pointer", [junk, *rest])
        assert found.startswith("invalid-operand: the 128 bytes at global address 0x")
        assert found.endswith("(byte 0 of junk) are not a tensor map")
        stray = refused(gpu, "box_in_by_pointer", [np.uint64(junk.address + 16), *rest])
        assert stray.endswith("is not a multiple of 64 bytes")
        nowhere = refused(gpu, "box_in_by_pointer", [np.uint64(0), *rest])
        assert nowhere.startswith("out-of-bounds")


def test_a_store_begins_inside_the_tensor_and_coordinates_fit_its_rank() -> None:
    with opened() as gpu:
        y, x = (
            gpu.upload(np.zeros(4096, np.uint8), name="y", writable=True),
            gpu.upload(np.zeros(64, np.uint32), name="x"),
        )
        made = layouts.tensor_map("uint8", (64, 64), (64, 4), address=y.address)
        words = {
            (-16, 0): "invalid-operand: a store to coordinates (-16, 0)",
            (0,): "invalid-operand: 1 coordinates for a tensor map of rank 2",
            (8, 0): "misaligned: first coordinate 8 of uint8 is not a multiple of 16 bytes in a row of the tensor",
        }
        for corner, what in words.items():
            numbers = (np.uint32(each) for each in (len(corner), 0, 256))
            assert refused(gpu, "box_out", [made, corner_of(corner), *numbers, x]) == what


def test_what_nobody_wrote_is_followed_through_the_copy_engine() -> None:
    with opened() as gpu:
        x, out = gpu.output(64, np.uint32, name="x"), gpu.output(64, np.uint32, name="out")
        made = layouts.tensor_map("uint8", (64, 4), (64, 4), address=x.address)
        numbers = (np.uint32(each) for each in (2, 0, 256, 256))
        found = refused(gpu, "box_in", [made, corner_of([0, 0]), *numbers, out])
        assert found.startswith("uninitialised")
        assert "(byte 0 of x) were never written" in found
