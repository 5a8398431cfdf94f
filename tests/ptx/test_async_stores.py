"""st.async and red.async: bytes that go to another block of the cluster, whose mbarrier counts them."""

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError

HEAD = """.version 8.5
.target sm_90
.address_size 64
.visible .entry k(.param .u64 out) {
    .reg .b32 %r<16>; .reg .b64 %d<8>; .reg .pred %p<8>; .shared .align 16 .b8 got[1024]; .shared .align 8 .b64 full;
    ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mov.u32 %r2, %cluster_ctarank; xor.b32 %r3, %r2, 1; mov.u32 %r4, got;
    mov.u32 %r5, full; setp.eq.u32 %p1, %r1, 0; mad.lo.u32 %r6, %r2, 1000, %r1; add.u32 %r6, %r6, 7;
    @%p1 mbarrier.init.shared.b64 [%r5], 1; @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r5], BYTES;
    shl.b32 %r7, %r1, 4; add.u32 %r7, %r7, %r4; mapa.shared::cluster.u32 %r8, %r7, %r3; mapa.shared::cluster.u32 %r9, %r5, %r3;
    mov.b32 %r10, 100; st.shared.v4.b32 [%r7], {%r10, %r10, %r10, %r10};
    MEET
"""
MEET = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
WAIT = "$wait: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r5], 0; @!%p2 bra $wait;"
TAIL = f"""ld.shared.v4.b32 {{%r11, %r12, %r13, %r14}}, [%r7]; mad.lo.u32 %r10, %r2, 32, %r1; mul.wide.u32 %d2, %r10, 16;
    add.s64 %d2, %d1, %d2; st.global.v4.b32 [%d2], {{%r11, %r12, %r13, %r14}}; {MEET} ret; }}"""
COUNTED = "shared::cluster.mbarrier::complete_tx::bytes"
ST, RED = f"st.async.{COUNTED}", f"red.async.relaxed.cluster.{COUNTED}"
POLICIES = pytest.mark.parametrize(("policy", "seed"), [("eager", 0), ("lazy", 0), ("random", 1), ("random", 2)])


def run(body: str, bytes_: int, wait: str = WAIT, **options: object) -> np.ndarray:
    out = np.zeros((2, 32, 4), np.uint32)
    text = HEAD.replace("BYTES", str(bytes_)).replace("MEET", MEET) + body + wait + TAIL
    ptx.load(text).launch("k", 2, 32, [out], cluster=2, **options)
    return out


def sent() -> np.ndarray:
    """What each thread gets: the number of the other block's thread."""
    return np.array([[1000 * (1 - rank) + thread + 7 for thread in range(32)] for rank in (0, 1)], np.uint32)


@POLICIES
def test_stores_are_there_when_the_phase_is(policy: str, seed: int) -> None:
    one = run(f"{ST}.u32 [%r8], %r6, [%r9];", 128, policy=policy, seed=seed)
    assert (one[..., 0] == sent()).all()
    assert (one[..., 1:] == 100).all()
    four = run(f"{ST}.v4.b32 [%r8], {{%r6, %r1, %r6, %r10}}, [%r9];", 512, policy=policy, seed=seed)
    assert (four[..., 0] == sent()).all()
    assert (four[..., 1] == np.arange(32)).all()
    generic = "cvt.u64.u32 %d3, %r7; cvta.shared.u64 %d3, %d3; mapa.u64 %d3, %d3, %r3; cvt.u64.u32 %d4, %r5; "
    generic += "cvta.shared.u64 %d4, %d4; mapa.u64 %d4, %d4, %r3; cvt.u64.u32 %d5, %r6;"
    generic += ST.replace(".shared::cluster", ".weak") + ".b64 [%d3], %d5, [%d4];"
    assert (run(generic, 256, policy=policy, seed=seed)[..., 0] == sent()).all()


@POLICIES
@pytest.mark.parametrize(
    ("operation", "want"),
    [
        ("add.u32", lambda x: x + 100),
        ("max.s32", lambda x: np.maximum(x, 100)),
        ("and.b32", lambda x: x & 100),
        ("inc.u32", lambda x: np.where(x <= 100, 0, 101)),
        ("min.u32", lambda x: np.minimum(x, 100)),
    ],
)
def test_reductions(operation, want, policy: str, seed: int) -> None:
    got = run(f"{RED}.{operation} [%r8], %r6, [%r9];", 128, policy=policy, seed=seed)
    assert (got[..., 0] == want(sent())).all()


@POLICIES
def test_reductions_to_one_place_are_atomic(policy: str, seed: int) -> None:
    """All threads of a block add to one word of the other block, beside atomic additions; a store there is a race."""
    add, how = (
        f"mapa.shared::cluster.u32 %r8, %r4, %r3; {RED}.add.u32 [%r8], %r6, [%r9];",
        {"policy": policy, "seed": seed},
    )
    assert run(add, 128, **how)[:, 0, 0].tolist() == (sent().sum(1) + 100).tolist()
    beside = add + "atom.relaxed.cluster.shared::cluster.add.u32 %r11, [%r8], 1;"
    assert run(beside, 128, **how)[:, 0, 0].tolist() == (sent().sum(1) + 132).tolist()
    fails("race", add + "st.shared::cluster.u32 [%r8], %r6;", 128, **how)
    fails("race", add.replace(RED + ".add", ST), 128, **how)
    fails("read-before-wait|race", add, 128, "", **how)


def error(code: str, *given: object, **options: object) -> RefsimError:
    with pytest.raises(RefsimError) as caught:
        run(*given, **options)
    assert caught.value.code in code.split("|")
    return caught.value


def fails(code: str, *given: object, **options: object) -> str:
    return error(code, *given, **options).what


@POLICIES
def test_what_goes_wrong(policy: str, seed: int) -> None:
    store, how = f"{ST}.u32 [%r8], %r6, [%r9];", {"policy": policy, "seed": seed}
    early = error("read-before-wait|race", store, 128, "", **how)
    assert early.code == "race" or "st.async and red.async: their bytes" in early.rule
    assert "and 4 bytes are missing" in fails("deadlock", store, 132, **how)
    assert "not in the block" in fails("invalid-operand", store.replace("%r9", "%r5"), 128, **how)
    fails("misaligned", store.replace("%r8]", "%r8+2]"), 128, **how)
