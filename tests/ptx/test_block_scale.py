"""mma.sync of sm_120 with narrow and block-scaled operands: every kind, type and selector against whole products."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from refsim import numerics, pack, ptx
from refsim.errors import RefsimError
from refsim.formats import element_named
from refsim.layouts import fragment
from refsim.layouts.families.mma import MMA_SCALINGS, THREAD_IDS, Scaling
from tests.ptx.test_sparse import matrix_of
from tests.ptx.test_sparse import registers as registers_of

NARROW = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
SCALED = [
    (scaling, stored)
    for scaling in MMA_SCALINGS
    for stored in (("ue4m3", "ue8m0") if scaling.blocks == 4 else ("ue8m0",))
]
WARPS = 2
HEAD = """
.version 9.0
.target {target}
.address_size 64
.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 px, .param .u64 py, .param .u64 pd) {{
.reg .b32 %lane, %x, %y, %a<4>, %b<2>, %c<4>;
.reg .b64 %p, %at;
mov.u32 %lane, %tid.x;
ld.param.u64 %p, [pa]; mad.wide.u32 %at, %lane, 16, %p; ld.global.v4.b32 {{%a0, %a1, %a2, %a3}}, [%at];
ld.param.u64 %p, [pb]; mad.wide.u32 %at, %lane, 8, %p; ld.global.v2.b32 {{%b0, %b1}}, [%at];
ld.param.u64 %p, [pc]; mad.wide.u32 %at, %lane, {stride}, %p; ld.global.v{count}.b32 {c}, [%at];
ld.param.u64 %p, [px]; mad.wide.u32 %at, %lane, 4, %p; ld.global.b32 %x, [%at];
ld.param.u64 %p, [py]; mad.wide.u32 %at, %lane, 4, %p; ld.global.b32 %y, [%at];
{opcode} {c}, {{%a0, %a1, %a2, %a3}}, {{%b0, %b1}}, {c}{tail};
ld.param.u64 %p, [pd]; mad.wide.u32 %at, %lane, {stride}, %p; st.global.v{count}.b32 [%at], {c};
ret;
}}
"""


def kernel(opcode: str, tail: str = "", count: int = 4, target: str = "sm_120a") -> str:
    """A lane loads its registers of A, B, C and its words of scales, multiplies, and stores D."""
    c = "{" + ", ".join(f"%c{i}" for i in range(count)) + "}"
    return HEAD.format(target=target, opcode=opcode, tail=tail, count=count, stride=4 * count, c=c)


def run(text: str, operands: Any, names: tuple[str, ...], dtype: Any, **how: Any) -> np.ndarray:
    d = np.zeros_like(operands[2])
    ptx.load(text).launch("k", (1,), (32 * WARPS,), [*operands, d], **how)
    return matrix_of(d, names[2], dtype)


def opcode_of(scaling: Scaling, a: str, b: str, stored: str, *, spelled: bool = True) -> str:
    vector = f".scale_vec::{scaling.blocks}X" if spelled else ""
    return (
        f"mma.sync.aligned.m16n8k{scaling.k}.row.col.kind::{scaling.kind}.block_scale{vector}.f32.{a}.{b}.f32.{stored}"
    )


def held(codes: np.ndarray, type: str, k: int) -> np.ndarray:
    """What registers hold of codes: K = 32 has a byte for each, K = 64 a nibble."""
    return pack(codes, type, "f8f6f4") if k == 32 else codes


def scale_words(codes: np.ndarray, name: str) -> np.ndarray:
    """The scale words of each lane; bytes that hold no scale have the code of a NaN in either format."""
    row = fragment(name)
    words = np.full((len(codes), row.threads, 4), 0xFF, np.uint8)
    thread, byte = np.nonzero(row.elements[0] >= 0)
    words[:, thread, byte] = codes[:, row.elements[0][thread, byte], row.elements[1][thread, byte]]
    return words.view(np.uint32)[..., 0].reshape(-1)


def drawn(generator: np.random.Generator, type: str, *shape: int) -> np.ndarray:
    codes: np.ndarray = generator.integers(0, element_named(type).code_limit, shape).astype(np.uint8)
    codes[generator.random(shape) < 0.2] = 0
    return codes


def drawn_scales(generator: np.random.Generator, stored: str, *shape: int, seed: int) -> np.ndarray:
    """Scales that keep sums near one another; every other seed has codes of all kinds, NaN among them."""
    middle, limit = (56, 128) if stored == "ue4m3" else (127, 256)
    if seed % 2:
        return generator.integers(0, limit, shape).astype(np.uint8)
    return generator.integers(middle - 4, middle + 5, shape).astype(np.uint8)


def problem(scaling: Scaling, types: tuple[str, str], stored: str, ids: tuple[int, int, int, int], seed: int) -> Any:
    """Matrices of codes, the registers that hold them, and what numerics.mma is asked for."""
    generator, k = np.random.default_rng(seed), scaling.k
    a, b = (drawn(generator, type, WARPS, rows, k) for type, rows in zip(types, (16, 8), strict=True))
    c = generator.normal(0, 50, (WARPS, 16, 8)).astype(np.float32)
    sa, sb = (drawn_scales(generator, stored, WARPS, rows, scaling.blocks, seed=seed) for rows in (16, 8))
    stem = f"mma.m16n8k{k}"
    names = f"{stem}.{types[0]}.a", f"{stem}.{types[1]}.b", f"{stem}.{types[0]}.c"
    if k == 32:  # bytes, whatever stands in them
        names = f"{stem}.e4m3.a", f"{stem}.e4m3.b", f"{stem}.e4m3.c"
    words = [
        scale_words(codes, f"mma.{scaling}.{side}" + (f".byte{byte}.thread{thread}" if byte or thread else ""))
        for codes, side, byte, thread in ((sa, "sfa", *ids[:2]), (sb.swapaxes(1, 2), "sfb", *ids[2:]))
    ]
    operands = [
        registers_of(held(a, types[0], k), names[0]),
        registers_of(held(b, types[1], k).swapaxes(1, 2), names[1]),
        registers_of(c.view(np.uint32), names[2]),
        *words,
    ]
    scales = {"a_scale": sa, "b_scale": sb, "scale_format": stored}
    return operands, names, (a, b, c), {"a_format": types[0], "b_format": types[1], **scales}


def tail_of(ids: tuple[int, int, int, int]) -> str:
    return f", %x, {{{ids[0]}, {ids[1]}}}, {{%y}}, {{{ids[2]}, {ids[3]}}}"


SELECTED = [
    (scaling, stored, (byte_a, thread_a, byte_b, thread_b))
    for scaling, stored in SCALED
    for byte_a, thread_a in product(scaling.byte_ids, THREAD_IDS["sfa"])
    for byte_b, thread_b in [(scaling.byte_ids[-1 - scaling.byte_ids.index(byte_a)], 3 - 2 * thread_a)]
]


@pytest.mark.parametrize(("scaling", "stored", "ids"), SELECTED, ids=str)
def test_ids_choose_lanes_and_bytes_of_the_scales(
    scaling: Scaling, stored: str, ids: tuple[int, int, int, int]
) -> None:
    """Bytes that are not chosen are NaN: a wrong one shows. As the chip sums, and exactly."""
    types = ("e4m3", "e3m2") if scaling.k == 32 else ("e2m1", "e2m1")
    for seed in range(2):
        operands, names, (a, b, c), how = problem(scaling, types, stored, ids, seed)
        text = kernel(opcode_of(scaling, *types, stored), tail_of(ids))
        got = run(text, operands, names, np.uint32)
        want = numerics.mma(a, b, c, unit=f"mma.sync.{scaling.kind}", target="sm_120a", **how)
        np.testing.assert_array_equal(got, want.view(np.uint32))
        exact = run(text, operands, names, np.uint32, arithmetic="exact")
        np.testing.assert_array_equal(exact, numerics.exact_product(a, b, c, **how).view(np.uint32))
        assert seed or np.isfinite(want).mean() > 0.5


@pytest.mark.parametrize(("a_type", "b_type"), list(product(NARROW, NARROW)))
def test_a_product_of_every_pair_of_narrow_types(a_type: str, b_type: str) -> None:
    scaling, ids = MMA_SCALINGS[0], (1, 0, 2, 3)
    operands, names, (a, b, c), how = problem(scaling, (a_type, b_type), "ue8m0", ids, 4)
    text = kernel(opcode_of(scaling, a_type, b_type, "ue8m0", spelled=False), tail_of(ids))
    got = run(text, operands, names, np.uint32)
    want = numerics.mma(a, b, c, unit="mma.sync.mxf8f6f4", target="sm_120a", **how)
    np.testing.assert_array_equal(got, want.view(np.uint32))
    plain = {key: how[key] for key in ("a_format", "b_format")}
    opcode = f"mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.{a_type}.{b_type}.f32"
    got = run(kernel(opcode), operands, names, np.uint32)
    want = numerics.mma(a, b, c, unit="mma.sync", target="sm_120a", **plain)
    np.testing.assert_array_equal(got, want.view(np.uint32))
    got = run(kernel(opcode), operands, names, np.uint32, arithmetic="exact")
    np.testing.assert_array_equal(got, numerics.exact_product(a, b, c, **plain).view(np.uint32))


def test_narrow_products_sum_in_f16_too() -> None:
    operands, names, (a, b, _), how = problem(MMA_SCALINGS[0], ("e2m1", "e2m3"), "ue8m0", (0, 0, 0, 0), 2)
    c = np.random.default_rng(3).normal(0, 4, (WARPS, 16, 8)).astype(np.float16)
    operands[2] = registers_of(c.view(np.uint16), f"{names[2]}.f16")
    text = kernel("mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f16.e2m1.e2m3.f16", count=2)
    got = run(text, operands, (*names[:2], f"{names[2]}.f16"), np.uint16)
    plain = {key: how[key] for key in ("a_format", "b_format")}
    want = numerics.mma(a, b, c, unit="mma.sync", target="sm_120a", d_format="f16", **plain)
    np.testing.assert_array_equal(got, want.view(np.uint16))


@pytest.mark.parametrize(
    ("scaling", "ids", "what"),
    [
        (MMA_SCALINGS[0], (4, 0, 0, 0), "byte-id of the scales of A is 4"),
        (MMA_SCALINGS[1], (1, 0, 0, 0), "byte-id of the scales of A is 1"),
        (MMA_SCALINGS[3], (0, 0, 2, 0), "byte-id of the scales of B is 2"),
        (MMA_SCALINGS[1], (0, 2, 0, 0), "thread-id of the scales of A is 2"),
        (MMA_SCALINGS[1], (0, 0, 0, 4), "thread-id of the scales of B is 4"),
    ],
)
def test_ids_that_choose_nothing_are_a_fault(scaling: Scaling, ids: tuple[int, int, int, int], what: str) -> None:
    types = ("e4m3", "e4m3") if scaling.k == 32 else ("e2m1", "e2m1")
    stored = "ue4m3" if scaling.blocks == 4 else "ue8m0"
    operands, names, *_ = problem(scaling, types, stored, (0, 0, 0, 0), 0)
    with pytest.raises(RefsimError, match=what) as caught:
        run(kernel(opcode_of(scaling, *types, stored), tail_of(ids)), operands, names, np.uint32)
    assert caught.value.code == "invalid-operand"


@pytest.mark.filterwarnings("ignore::refsim.numerics.UnverifiedProfileWarning")
@pytest.mark.parametrize(
    ("target", "runs"), [("sm_121a", True), ("sm_120f", True), ("sm_120", False), ("sm_103a", False)]
)
def test_the_kinds_are_those_of_one_family(target: str, runs: bool) -> None:
    scaling, ids = MMA_SCALINGS[1], (2, 1, 0, 2)
    operands, names, (a, b, c), how = problem(scaling, ("e2m1", "e2m1"), "ue8m0", ids, 0)
    text = kernel(opcode_of(scaling, "e2m1", "e2m1", "ue8m0"), tail_of(ids), target=target)
    if not runs:
        with pytest.raises(RefsimError, match="mma with block scaling") as caught:
            run(text, operands, names, np.uint32)
        assert caught.value.code == "wrong-target"
        return
    got = run(text, operands, names, np.uint32)
    want = numerics.mma(a, b, c, unit="mma.sync.mxf4", target="sm_120a", **how)
    np.testing.assert_array_equal(got, want.view(np.uint32))


UNDEFINED = """
.version 9.0
.target sm_120a
.address_size 64
.visible .entry k(.param .u64 pd) {{
.shared .align 4 .b32 nothing;
.reg .b32 %lane, %at, %x, %y, %a<4>, %b<2>; .reg .f32 %c<4>; .reg .b64 %d, %address; .reg .pred %p;
mov.u32 %lane, %tid.x; ld.param.u64 %d, [pd];
mov.b32 %a0, 0; mov.b32 %a1, 0; mov.b32 %a2, 0; mov.b32 %a3, 0; mov.b32 %b0, 0; mov.b32 %b1, 0;
mov.f32 %c0, 0f00000000; mov.f32 %c1, 0f00000000; mov.f32 %c2, 0f00000000; mov.f32 %c3, 0f00000000;
mov.b32 %x, 0x7F7F7F7F; mov.b32 %y, 0x7F7F7F7F;
setp.eq.u32 %p, %lane, {lane}; mov.u32 %at, nothing;
@%p ld.shared.b32 %{register}, [%at];
mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.f32.e2m1.e2m1.f32.ue8m0 {{%c0, %c1, %c2, %c3}},
  {{%a0, %a1, %a2, %a3}}, {{%b0, %b1}}, {{%c0, %c1, %c2, %c3}}, %x, {{0, 1}}, %y, {{2, 3}};
mad.wide.u32 %address, %lane, 16, %d;
setp.{stores} %p, %lane, {row};
@%p st.global.v4.f32 [%address], {{%c0, %c1, %c2, %c3}};
ret;
}}
"""


@pytest.mark.parametrize(
    ("register", "lane", "stores", "row", "reached"),
    [
        # thread-id 1 of A: lanes 2 and 3 of each four have rows g and g + 8; lanes 0 and 1 are not read
        ("x", 2, "le.u32", 3, True),
        ("x", 2, "gt.u32", 3, False),
        ("x", 1, "ge.u32", 0, False),
        # thread-id 3 of B: lane 3 has column 0, which the lanes 0, 4, 8 ... hold
        ("y", 3, "eq.u32", 4, True),
        ("y", 3, "eq.u32", 5, False),
        ("y", 2, "ge.u32", 0, False),
        ("a0", 4, "le.u32", 3, False),
        ("a0", 4, "eq.u32", 7, True),
        ("b0", 4, "eq.u32", 0, True),
        ("b0", 4, "eq.u32", 1, False),
        ("c0", 4, "eq.u32", 4, True),
    ],
)
def test_undefined_bits_go_where_they_matter(register: str, lane: int, stores: str, row: int, reached: bool) -> None:
    refused_or_not(UNDEFINED.format(register=register, lane=lane, stores=stores, row=row), reached)


def test_one_undefined_scale_of_two_is_enough() -> None:
    """Byte 2 of thread-id 3: the first block of column 0; byte 3 beside it is defined."""
    read = "@%p ld.shared.b32 %y, [%at];"
    partly = f"{read} @%p and.b32 %y, %y, 0x00FFFFFF; @%p or.b32 %y, %y, 0x7F000000;"
    for stores, reached in ((4, True), (5, False)):
        text = UNDEFINED.format(register="y", lane=3, stores="eq.u32", row=stores)
        assert text.count(read) == 1
        refused_or_not(text.replace(read, partly), reached)


def refused_or_not(text: str, reached: bool) -> None:
    out = np.zeros((32, 4), np.float32)
    if reached:
        with pytest.raises(RefsimError, match="an output") as caught:
            ptx.load(text).launch("k", (1,), (32,), [out])
        assert caught.value.code == "uninitialised"
    else:
        trace = ptx.load(text).launch("k", (1,), (32,), [out])
        assert [note.code for note in trace.notes] == ["uninitialised-unused"]
