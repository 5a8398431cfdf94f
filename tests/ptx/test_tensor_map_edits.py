"""Tensor maps that a kernel makes or changes: the bytes that the host's encoder gives, and the fences before they are used.

Every check has a kernel that must be caught, which is the right one with one line changed.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsim import device, layouts
from refsim.errors import RefsimError
from refsim.kernels import Struct
from refsim.layouts.tma import INTERLEAVES, L2_PROMOTIONS, OOB_FILLS, TensorMap
from refsim.ptx.memory.tensor_map import FIELDS, decoded, encoded, replaced, set_in_vain
from tests.ptx.test_tensor_map import maps

POLICIES = ("sim:eager", "sim:lazy", "sim:random")
# Numbers of tensormap.replace that are not those of the driver: table "tensormap new_val validity" of the PTX ISA.
TYPES = {"float32_ftz": 8, "float64": 9, "bfloat16": 10}
SWIZZLES = {"none": (0, 0), "32B": (1, 0), "64B": (2, 0), "128B": (3, 0), "128B_32B_atom": (3, 1)}
SWIZZLES |= {"128B_32B_atom_8B_flip": (3, 2), "128B_64B_atom": (3, 3)}


def edits(made: TensorMap, *, atoms: bool = True) -> list[tuple[str, int, int]]:
    """(field, ordinal, value) of every replacement that makes a map out of zeros."""
    mode, atom = SWIZZLES[made.swizzle]
    whole = {
        "global_address": made.address,
        "rank": len(made.dims) - 1,
        "elemtype": TYPES.get(made.data_type.name, made.data_type.code),
        "interleave_layout": INTERLEAVES.index(made.interleave),
        "swizzle_mode": mode,
        "fill_mode": OOB_FILLS.index(made.oob_fill),
    } | ({"swizzle_atomicity": atom} if atoms else {})
    rows = {
        "global_dim": made.dims,
        "global_stride": made.strides,
        "box_dim": made.box,
        "element_stride": made.element_strides,
    }
    found = [(field, 0, value) for field, value in whole.items()]
    return [*found, *((field, axis, value) for field, values in rows.items() for axis, value in enumerate(values))]


@given(maps(), st.randoms(use_true_random=False))
def test_a_map_that_is_made_field_by_field_is_the_one_that_the_host_encodes(made: TensorMap, order: Any) -> None:
    changes, raw = edits(made), bytes(128)
    assert {field for field, _, _ in changes} == FIELDS.keys() - ({"global_stride"} if len(made.dims) == 1 else set())
    order.shuffle(changes)
    for change in changes:
        raw = replaced(raw, *change)
    promotion = bytes([L2_PROMOTIONS.index(made.l2_promotion)])  # the one parameter that the instruction cannot set
    want = encoded(made)
    assert raw[:84] + promotion + raw[85:124] == want[:124]
    if made.l2_promotion == "none":
        assert raw == want


@given(maps(), maps())
def test_a_map_becomes_another_one_field_by_field(before: TensorMap, after: TensorMap) -> None:
    raw = encoded(before)
    for change in edits(after):
        raw = replaced(raw, *change)
    assert str(decoded(raw)) == str(after)


BASE = {"data_type": "uint32", "dims": (32, 8), "box": (32, 4)}


def test_a_dimension_beyond_the_rank_is_set_in_vain() -> None:
    raw = encoded(layouts.tensor_map(**BASE))
    assert set_in_vain(raw) == ""
    third = replaced(raw, "global_stride", 1, 16)
    assert set_in_vain(third) == "global_stride 1, and its rank is 2"
    assert str(decoded(third)) == str(decoded(raw))
    assert set_in_vain(replaced(third, "rank", 0, 2)) == ""
    assert set_in_vain(replaced(replaced(bytes(128), "box_dim", 1, 4), "rank", 0, 0)) == "box_dim 1, and its rank is 1"
    assert set_in_vain(replaced(replaced(third, "rank", 0, 2), "rank", 0, 1)) == ""  # it had three of them


LACKS = [
    ("rank", 0),
    ("global_address", 0),
    ("box_dim", 1),
    ("global_dim", 0),
    ("global_stride", 0),
    ("element_stride", 1),
]


@pytest.mark.parametrize(("field", "ordinal"), LACKS)
def test_a_map_of_which_a_field_was_never_set_is_named(field: str, ordinal: int) -> None:
    raw = bytes(128)
    for change in edits(layouts.tensor_map(**BASE)):
        raw = raw if change[:2] == (field, ordinal) else replaced(raw, *change)
    with pytest.raises(RefsimError, match=f"its {field}.* was never set") as caught:
        decoded(raw)
    assert caught.value.code == "bad-tensor-map"


WRONG = [
    ("box_dim", 0, 257),
    ("box_dim", 0, 0),
    ("box_dim", 5, 1),
    ("global_stride", 4, 16),
    ("global_stride", 0, 8),
    ("global_stride", 0, 1 << 40),
    ("element_stride", 0, 0),
    ("element_stride", 0, 9),
    ("rank", 0, 5),
    ("elemtype", 0, 16),
    ("interleave_layout", 0, 3),
    ("swizzle_mode", 0, 4),
    ("swizzle_atomicity", 0, 4),
    ("fill_mode", 0, 2),
    ("global_address", 0, 8),
    ("global_dim", 0, 0),
]


@pytest.mark.parametrize(("field", "ordinal", "value"), WRONG)
def test_a_field_holds_what_the_driver_takes(field: str, ordinal: int, value: int) -> None:
    with pytest.raises(RefsimError) as caught:
        replaced(encoded(layouts.tensor_map(**BASE)), field, ordinal, value)
    assert caught.value.code == "bad-tensor-map"


# ---- kernels
HEAD = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 old, .param .u64 place, .param .u64 tensor, .param .u64 out, .param .align 4 .b8 at[8]) {
    .reg .b32 %r<40>; .reg .b64 %d<20>; .reg .pred %p<8>;
    .shared .align 1024 .b8 box[1024]; .shared .align 128 .b8 map[256]; .shared .align 8 .b8 bar[8];
    ld.param.u64 %d1, [old]; ld.param.u64 %d2, [place]; ld.param.u64 %d3, [tensor]; ld.param.u64 %d4, [out];
    mov.u32 %r1, %tid.x; mov.u32 %r2, map; mov.u32 %r3, box; mov.u32 %r4, bar; mov.u32 %r5, 0;
    setp.ne.u32 %p1, %r1, 0; setp.lt.u32 %p2, %r1, 32; mov.u32 %r6, %ctaid.x; setp.ne.u32 %p5, %r6, 0;
    ld.param.u32 %r7, [at]; ld.param.u32 %r8, [at+4];
"""
FETCH = """shl.b32 %r10, %r1, 2; cvt.u64.u32 %d10, %r10; add.s64 %d11, %d1, %d10; add.s32 %r11, %r2, %r10;
    @%p2 ld.global.u32 %r12, [%d11]; @%p2 st.shared.u32 [%r11], %r12;"""
CLEAR = "shl.b32 %r10, %r1, 2; add.s32 %r11, %r2, %r10; @%p2 st.shared.u32 [%r11], 0;"
MEET = "bar.warp.sync -1;"
COPY = "@%p2 tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%d2], [%r2], 128;"
ACQUIRE = "@%p2 fence.proxy.tensormap::generic.acquire.gpu [%d2], 128;"
RELEASE = "@%p2 fence.proxy.tensormap::generic.release.gpu;"
SYNC = "bar.sync 0;"
LOAD = """@%p1 bra $wait;
    mbarrier.init.shared.b64 [%r4], 1;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r4], 512;
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r3], [%d2, {%r7, %r8}], [%r4];
$wait: bar.sync 1, 64;
$poll: mbarrier.try_wait.parity.shared.b64 %p3, [%r4], 0; @!%p3 bra $poll;
    shl.b32 %r20, %r1, 3; add.s32 %r21, %r3, %r20; ld.shared.v2.u32 {%r22, %r23}, [%r21];
    cvt.u64.u32 %d12, %r20; add.s64 %d12, %d4, %d12; st.global.v2.u32 [%d12], {%r22, %r23};"""
ADDRESS = "@!%p1 tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r2], %d3;"
RIGHT_END = "\n".join([ACQUIRE, SYNC, LOAD])
RIGHT = "\n".join([FETCH, MEET, ADDRESS, MEET, COPY, RIGHT_END])


def kernel(body: str) -> str:
    return f"{HEAD}    {body}\n    ret;\n}}\n"


def opened(body: str, policy: str = "sim:eager") -> Any:
    return device.open(policy, "sm_90a").loaded(kernel(body), "maps.ptx")


CORNER = (-4, 3)


def run(gpu: Any, blocks: int = 1) -> Any:
    """The box at a corner of the second half of x, by a map that the kernel leaves; that map, and the host's."""
    data = np.arange(512, dtype=np.uint32)
    x, out = gpu.upload(data, name="x"), gpu.output(128, np.uint32, name="out")
    made = layouts.tensor_map(**BASE, address=x.address)
    old = gpu.upload(np.frombuffer(bytes(gpu.encode(made)), np.uint8), name="old")
    place = gpu.upload(np.zeros(128, np.uint8), name="place", writable=True)
    corner = Struct(np.array(CORNER, np.int32).tobytes(), 4)
    more = {"cluster": blocks} if blocks > 1 else {}
    gpu.launch("k", blocks, 64, [old, place, np.uint64(x.address + 1024), out, corner], **more)
    rows = np.pad(data[256:].reshape(8, 32), ((0, 4), (4, 0)))[3:7, :32]
    assert np.array_equal(gpu.read(out).reshape(4, 32), rows)
    assert gpu.findings().notes == ()
    want = layouts.tensor_map(**BASE, address=x.address + 1024)
    return gpu.read(place).tobytes(), bytes(gpu.encode(want))


@pytest.mark.parametrize("policy", [*POLICIES, "sim"])
def test_a_map_changed_in_shared_memory_is_used_behind_its_fences(policy: str) -> None:
    with opened(RIGHT, policy) as gpu:
        got, want = run(gpu)
        assert got == want


def statements(made: TensorMap, space: str, register: str) -> str:
    """PTX of thread 0 that makes a map out of zeros."""
    lines = []
    for field, ordinal, value in edits(made, atoms=False):
        wide = "b64" if field in ("global_address", "global_stride") else "b32"
        given = f", {ordinal}" if field in ("global_dim", "global_stride", "box_dim", "element_stride") else ""
        held = "%d3" if field == "global_address" else str(value)
        lines.append(f"@!%p1 tensormap.replace.tile.{field}{space}.b1024.{wide} [{register}]{given}, {held};")
    return "\n".join(lines)


def test_a_map_made_from_zeros_in_shared_memory_has_the_bytes_of_the_host() -> None:
    body = [CLEAR, MEET, statements(layouts.tensor_map(**BASE), ".shared::cta", "%r2"), MEET, COPY, RIGHT_END]
    with opened("\n".join(body)) as gpu:
        got, want = run(gpu)
        assert got == want


@pytest.mark.parametrize("space", [".global", ""])
def test_a_map_made_from_zeros_in_global_memory_has_the_bytes_of_the_host(space: str) -> None:
    body = [statements(layouts.tensor_map(**BASE), space, "%d2"), RELEASE, MEET, RIGHT_END]
    with opened("\n".join(body)) as gpu:
        got, want = run(gpu)
        assert got == want


def caught(body: str, blocks: int = 1) -> tuple[str, str]:
    with opened(body, "sim") as gpu, pytest.raises(RefsimError) as found:
        run(gpu, blocks)
    return found.value.code, found.value.what


# Block 0 makes the map, and both blocks of the cluster use it.
CLUSTERS = "\n".join(
    [
        "@%p5 bra $made;",
        FETCH,
        MEET,
        ADDRESS,
        MEET,
        COPY,
        "$made: barrier.cluster.arrive; barrier.cluster.wait;",
        RIGHT_END,
    ]
)


@pytest.mark.parametrize("scopes", [("gpu", "gpu"), ("cluster", "cluster"), ("sys", "cluster")])
def test_a_map_goes_to_another_block_within_its_scope(scopes: tuple[str, str]) -> None:
    body = CLUSTERS.replace("release.gpu", f"release.{scopes[0]}").replace("acquire.gpu", f"acquire.{scopes[1]}")
    with opened(body) as gpu:
        run(gpu, blocks=2)


@pytest.mark.parametrize("scopes", [("cta", "gpu"), ("gpu", "cta")])
def test_a_map_does_not_go_to_another_block_beyond_its_scope(scopes: tuple[str, str]) -> None:
    body = CLUSTERS.replace("release.gpu", f"release.{scopes[0]}").replace("acquire.gpu", f"acquire.{scopes[1]}")
    code, what = caught(body, blocks=2)
    assert (code, RELEASE_WORDS in what) == ("missing-proxy-fence", True)


def entry(name: str, body: str) -> str:
    """The kernel under another name, to stand behind the first one."""
    return kernel(body).partition(".address_size 64")[2].replace("entry k(", f"entry {name}(")


MAKING = kernel("\n".join([FETCH, MEET, ADDRESS, MEET, COPY]))
THREE = MAKING + entry("use", RIGHT_END) + entry("bare", LOAD)


@pytest.mark.parametrize("policy", ["sim:eager", "sim"])
def test_a_map_that_a_launch_before_made_needs_an_acquire_and_one_of_the_host_none(policy: str) -> None:
    with device.open(policy, "sm_90a").loaded(THREE, "maps.ptx") as gpu:
        x, out = gpu.upload(np.arange(512, dtype=np.uint32), name="x"), gpu.output(128, np.uint32, name="out")
        made = bytes(gpu.encode(layouts.tensor_map(**BASE, address=x.address)))
        old = gpu.upload(np.frombuffer(made, np.uint8), name="old")
        place = gpu.upload(np.frombuffer(made, np.uint8), name="place", writable=True)
        corner = Struct(np.array(CORNER, np.int32).tobytes(), 4)
        args = [old, place, np.uint64(x.address + 1024), out, corner]
        gpu.launch("bare", 1, 64, args)
        gpu.launch("k", 1, 64, args)
        gpu.launch("use", 1, 64, args)
        rows = np.pad(np.arange(256, 512).reshape(8, 32), ((0, 4), (4, 0)))[3:7, :32]
        assert np.array_equal(gpu.read(out).reshape(4, 32), rows)
        with pytest.raises(RefsimError, match="which an earlier launch made, and no fence") as found:
            gpu.launch("bare", 1, 64, args)
        assert found.value.code == "missing-proxy-fence"


ACQUIRE_WORDS, RELEASE_WORDS = "no fence.proxy.tensormap::generic.acquire", "no fence.proxy.tensormap::generic.release"
IN_GLOBAL = "\n".join([statements(layouts.tensor_map(**BASE), ".global", "%d2"), RELEASE, MEET, RIGHT_END])
# The right kernel, what of it changes, the finding and some of its words.
MUTANTS = {
    "no acquire": (RIGHT, ACQUIRE, "", "missing-proxy-fence", ACQUIRE_WORDS),
    "the acquire of another map": (RIGHT, "acquire.gpu [%d2]", "acquire.gpu [%d1]", "missing-proxy-fence", ACQUIRE_WORDS),
    "an acquire behind the copy": (RIGHT, f"{ACQUIRE}\n{SYNC}\n{LOAD}", f"{SYNC}\n{LOAD}\n{ACQUIRE}", "missing-proxy-fence",
                                   ACQUIRE_WORDS),
    "a plain fence in its place": (RIGHT, ACQUIRE, "fence.acq_rel.sys; fence.proxy.async;", "missing-proxy-fence",
                                   ACQUIRE_WORDS),
    "an acquire before the change": (RIGHT, f"{COPY}\n{ACQUIRE}", f"{ACQUIRE}\n{COPY}", "missing-proxy-fence", ACQUIRE_WORDS),
    "no release": (IN_GLOBAL, RELEASE, "", "missing-proxy-fence", RELEASE_WORDS),
    "a release before the change": (IN_GLOBAL, IN_GLOBAL, f"{RELEASE}\n{IN_GLOBAL.replace(RELEASE, '')}",
                                    "missing-proxy-fence", RELEASE_WORDS),
    "no meeting before the copy": (RIGHT, f"{MEET}\n{COPY}", COPY, "race", ""),
    "no meeting before the change": (RIGHT, f"{FETCH}\n{MEET}", FETCH, "race", ""),
    "a box of 257": (RIGHT, ADDRESS, f"{ADDRESS} @!%p1 tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%r2], 1, 257;",
                     "invalid-operand", "box_dim 257 is outside 1..256"),
    "a rank of 6": (RIGHT, ADDRESS, f"{ADDRESS} @!%p1 tensormap.replace.tile.rank.shared::cta.b1024.b32 [%r2], 5;",
                    "invalid-operand", "rank 5 is outside 0..4"),
    "a row beyond the swizzle": (RIGHT, ADDRESS,
                                 f"{ADDRESS} @!%p1 tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [%r2], 1;",
                                 "invalid-operand", "more than the 32 B span of swizzle 32B"),
    "a type of Blackwell": (RIGHT, ADDRESS, f"{ADDRESS} @!%p1 tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [%r2], 13;",
                            "invalid-operand", "elemtype 13 on sm_90a"),
    "half made": (RIGHT, f"{FETCH}\n{MEET}", f"{CLEAR}\n{MEET}", "invalid-operand", "its global_dim 0 was never set"),
    "no map": (RIGHT, "@%p2 st.shared.u32 [%r11], %r12;", "@%p2 st.shared.u32 [%r11], 1;", "invalid-operand",
               "neither a tensor map nor zeros"),
    "a map at 64 bytes": (RIGHT, FETCH, f"add.u32 %r2, %r2, 64; {FETCH}", "misaligned", "not a multiple of 128 bytes"),
    "a target at 32 bytes": (RIGHT, FETCH, f"add.s64 %d2, %d2, 32; {FETCH}", "misaligned", "not a multiple of 64 bytes"),
    "changed while it is read": (RIGHT, "$wait:", "tensormap.replace.tile.rank.global.b1024.b32 [%d2], 1;\n$wait:",
                                 "read-before-wait", "still reads it"),
    "shared memory never written": (RIGHT, "@%p2 st.shared.u32 [%r11], %r12;", "", "uninitialised", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_map_that_is_not_right_is_found(name: str) -> None:
    text, old, new, code, words = MUTANTS[name]
    if old == new:
        pytest.fail("the mutant changes nothing")
    assert old in text
    found = caught(text.replace(old, new))
    assert found[0] == code, found
    assert words in found[1]
