"""Runs of bytes that are combined with what is at their destination: every operation on every type, in both memories."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from refsim import ptx

TYPES: dict[str, Any] = {
    **{f"{kind}{bits}": np.dtype(f"{'i' if kind == 's' else 'u'}{bits // 8}") for kind in "usb" for bits in (32, 64)},
    **{f"f{bits}": np.dtype(f"f{bits // 8}") for bits in (16, 32, 64)},
    "bf16": np.dtype(ml_dtypes.bfloat16),
}
LOGIC = [(name, f"b{bits}") for name in ("and", "or", "xor") for bits in (32, 64)]
EXTREMES = [(name, type) for name in ("min", "max") for type in ("u32", "s32", "u64", "s64", "f16", "bf16")]
SUMS = [*(("add", type) for type in ("u32", "s32", "u64", "f32", "f64")), ("add.noftz", "f16"), ("add.noftz", "bf16")]
GLOBAL = [*LOGIC, *EXTREMES, *SUMS, ("inc", "u32"), ("dec", "u32")]
SHARED = [(name, type) for name, type in GLOBAL if type in ("b32", "u32", "s32") or (name, type) == ("add", "u64")]
TEXT = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 old, .param .u64 new) {{
    .reg .b32 %r<20>; .reg .b64 %d<20>; .reg .pred %p<8>;
    .shared .align 128 .b8 mine[512]; .shared .align 128 .b8 sum[512]; .shared .align 8 .b8 bar[8];
    ld.param.u64 %d1, [old]; ld.param.u64 %d2, [new]; mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; cvt.u64.u32 %d3, %r2;
    mov.u32 %r3, mine; mov.u32 %r4, sum; mov.u32 %r5, bar; add.s64 %d4, %d1, %d3; add.s64 %d5, %d2, %d3;
    ld.global.u32 %r6, [%d4]; ld.global.u32 %r7, [%d5]; add.u32 %r8, %r3, %r2; add.u32 %r9, %r4, %r2;
    st.shared.u32 [%r8], %r7; st.shared.u32 [%r9], %r6; setp.ne.u32 %p1, %r1, 0;
    @!%p1 mbarrier.init.shared.b64 [%r5], 1; @!%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r5], 256;
    fence.proxy.async; bar.sync 0; @%p1 bra $on; {body}
}}
"""
INTO_GLOBAL = """cp.reduce.async.bulk.global.shared::cta.bulk_group.{name}.{type} [%d1], [%r3], 256;
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
$on: ret;"""
INTO_SHARED = """cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.{name}.{type}
        [%r4], [%r3], 256, [%r5];
$on: mbarrier.try_wait.parity.shared.b64 %p2, [%r5], 0; @!%p2 bra $on;
    ld.shared.u32 %r10, [%r9]; st.global.u32 [%d4], %r10; ret;"""


def combined(name: str, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """What is left, by NumPy."""
    wide = [each.astype(np.float64) if each.dtype.itemsize == 2 else each for each in (old, new)]
    match name.partition(".")[0]:
        case "inc":
            return np.where(old >= new, 0, old + 1).astype(old.dtype)
        case "dec":
            return np.where((old == 0) | (old > new), new, old - 1).astype(old.dtype)
        case operation:
            functions = {
                "and": "bitwise_and",
                "or": "bitwise_or",
                "xor": "bitwise_xor",
                "min": "minimum",
                "max": "maximum",
            }
            return getattr(np, functions.get(operation, operation))(*wide).astype(old.dtype)


def ran(text: str, name: str, type: str) -> None:
    dtype, draw = TYPES[type], np.random.default_rng(len(name) + len(type))
    old, new = (draw.integers(0 if type[0] in "ub" else -40, 40, 256 // dtype.itemsize).astype(dtype) for _ in range(2))
    after = old.copy().view(np.uint8).view(np.uint32)
    ptx.load(text).launch("k", 1, 64, [after, new.view(np.uint8).view(np.uint32)], policy="lazy")
    assert np.array_equal(after.view(np.uint8), combined(name, old, new).view(np.uint8))


@pytest.mark.parametrize(("name", "type"), GLOBAL)
def test_a_run_is_combined_with_global_memory(name: str, type: str) -> None:
    ran(TEXT.format(body=INTO_GLOBAL.format(name=name, type=type)), name, type)


@pytest.mark.parametrize(("name", "type"), SHARED)
def test_a_run_is_combined_with_shared_memory(name: str, type: str) -> None:
    ran(TEXT.format(body=INTO_SHARED.format(name=name, type=type)), name, type)
