"""tcgen05 of two CTAs: each holds half of A's rows, half of B's columns, and the rows of D that the layout says."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError
from refsim.layouts import fragment
from refsim.layouts.scales import scale_layout
from refsim.ptx.async_ops.queue import POLICIES
from tests.ptx.tcgen05_kernels import AWAIT, BYTES, MEET, TensorKernel, with_products
from tests.ptx.test_scaled_tensor_core import expected as expected_scaled
from tests.ptx.test_scaled_tensor_core import row_descriptor
from tests.ptx.test_tensor_core import A_START, KINDS, Case, drawn, expected, image_of, opcode

COMMIT = (
    "mov.b16 %both, 3; @%lead tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 "
    "[%bar], %both;"
)
HEAD = ".reg .b16 %both;"


def pair_body(*statements: str) -> str:
    """What the first thread of the first CTA asks for; both CTAs wait at their own mbarrier."""
    asked = [f"@%lead {each}" for each in statements]
    return "\n".join([HEAD, *asked, COMMIT, AWAIT, "tcgen05.fence::after_thread_sync;"])


def images(case: Case, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, tuple[int, int]]:
    """Shared memory of both CTAs, and the descriptors, which are the same in both."""
    half = replace(case, m=case.m // 2, n=case.n // 2)
    rows, columns = half.m, half.n
    first, words = image_of(half, a[:rows], b[:columns])
    second, _ = image_of(half, a[rows:], b[columns:])
    return np.concatenate([first, second]), words


def accumulator(out: np.ndarray, case: Case) -> np.ndarray:
    """D (m, n) out of the words of both CTAs."""
    row, column = np.indices((case.m, case.n))
    return out[fragment(f"tcgen05.m{case.m}n{case.n}.2sm.d").holder(row, column)]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("m", [128, 256])
def test_a_product_of_two_ctas(m: int, policy: str) -> None:
    case, generator = Case("f16", "bf16", "bf16", m=m, n=64), np.random.default_rng(m)
    a, b = drawn(generator, "bf16", m, 16), drawn(generator, "bf16", 64, 16)
    image, words = images(case, a, b)
    opcode = "tcgen05.mma.cta_group::2.kind::f16"
    body = pair_body(*(f"{opcode} [%base], %word0, %word1, %v0, %{add};" for add in ("no", "yes")))
    out, trace = TensorKernel(body, columns=64, filled=64, ctas=2).run(
        image, None, words, (case.word(),), policy=policy, seed=3
    )
    assert trace.findings == ()
    want = expected(case, np.hstack([a, a]), np.hstack([b, b]), None)
    np.testing.assert_array_equal(accumulator(out, case), want.view(np.uint32))


def test_lanes_of_both_ctas_are_left_out_by_one_mask() -> None:
    case, generator = Case("f16", "f16", "f16", m=256), np.random.default_rng(2)
    a, b = drawn(generator, "f16", 256, 16), drawn(generator, "f16", 32, 16)
    image, words = images(case, a, b)
    tensor = generator.integers(0, 1 << 32, (256, 32), np.uint64).astype(np.uint32)
    masks = tuple(generator.integers(0, 1 << 32, 7).tolist())
    mask = ", ".join(f"%v{1 + at}" for at in range(7))
    body = pair_body(f"tcgen05.mma.cta_group::2.kind::f16 [%base], %word0, %word1, %v0, {{{mask}, %v1}}, %no;")
    out, _ = TensorKernel(body, columns=32, filled=32, ctas=2).run(image, tensor, words, (case.word(), *masks))
    held = [*masks, masks[0]]
    off = np.array([held[lane // 32] >> lane % 32 & 1 for lane in range(256)], np.bool_)
    want = np.where(off[:, None], tensor, expected(case, a, b, None).view(np.uint32))
    np.testing.assert_array_equal(out, want)


def test_scales_of_two_ctas_come_by_copies() -> None:
    """Each CTA copies the scales of its own rows of A, and of all columns of B."""
    case = Case("mxf8f6f4", "e4m3", "e4m3", m=256, n=64, swizzles=("32B", "32B"))
    generator = np.random.default_rng(6)
    a, b = (generator.integers(0, 120, (rows, 32)).astype(np.uint8) for rows in (256, 64))
    sa, sb = (generator.integers(120, 135, (rows, 4)).astype(np.uint8) for rows in (256, 64))
    image, words = images(case, a, b)
    layout, places = scale_layout("nvidia_128x4"), (8192, 8704)
    for cta in range(2):
        at = cta * BYTES
        image[at + places[0] : at + places[0] + 512] = layout.shuffle(sa[128 * cta : 128 * cta + 128]).ravel()
        image[at + places[1] : at + places[1] + 512] = layout.shuffle(sb, fill=0xFF).ravel()
    copies = [f"tcgen05.cp.cta_group::2.32x128b.warpx4 [%base+{64 + 4 * at}], %word{2 + at};" for at in range(2)]
    opcode = "tcgen05.mma.cta_group::2.kind::mxf8f6f4.block_scale"
    body = pair_body(*copies, f"{opcode} [%base], %word0, %word1, %v0, [%base+64], [%base+68], %no;")
    given = (*words, *(row_descriptor(start, 32) for start in places))
    out, trace = TensorKernel(body, columns=64, ctas=2).run(
        image, None, given, (case.word(a_scale_id=2, b_scale_id=2),)
    )
    assert trace.findings == ()
    some: Any = (a, b, np.ascontiguousarray(sa[:, 2:3]), np.ascontiguousarray(sb[:, 2:3]))
    np.testing.assert_array_equal(accumulator(out, case), expected_scaled(case, some, "e8m0"))


@pytest.mark.parametrize(
    ("kind", "division", "target"), [("f16", 16, "sm_100a"), ("f8f6f4", 1, "sm_100a"), ("f16", 3, "sm_110a")]
)
def test_what_divides_no_d(kind: str, division: int, target: str) -> None:
    case = next(each for each in KINDS if each.kind == kind)
    body = with_products(f"{opcode(case)} [%base], %word0, %word1, %v0, %yes, {division};")
    with pytest.raises(RefsimError, match=f"scale-input-d {division} with kind::{kind} on {target}") as caught:
        TensorKernel(body, columns=32, filled=32, target=target).run(None, None, (1 << 46, 1 << 46), (case.word(),))
    assert caught.value.code == "invalid-operand"


def test_a_pair_needs_a_cluster() -> None:
    case = Case("f16", "bf16", "bf16", m=256)
    body = "@%first tcgen05.mma.cta_group::2.kind::f16 [%base], %word0, %word1, %v0, %no;"
    with pytest.raises(RefsimError, match="cta_group::2 in a cluster of 1") as caught:
        TensorKernel(body, columns=32, filled=32, group=2).run(None, None, (1 << 46, 1 << 46), (case.word(),))
    assert caught.value.code == "invalid-operand"


def test_what_one_cta_asked_for_is_in_flight_in_the_other() -> None:
    case = Case("f16", "bf16", "bf16", m=256)
    image, words = images(case, np.zeros((256, 16), np.uint16), np.zeros((32, 16), np.uint16))
    product = "@%lead tcgen05.mma.cta_group::2.kind::f16 [%base], %word0, %word1, %v0, %no;"
    read = "setp.eq.u32 %lane, %cta, 1; @%lane tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r0}, [%own];"
    meet = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    with pytest.raises(RefsimError, match="no wait has seen its commit complete") as caught:
        TensorKernel(f"{product} {meet} {read}", columns=32, filled=32, ctas=2).run(image, None, words, (case.word(),))
    assert caught.value.code == "tensor-memory-in-flight"


# ---- a cluster that meets by relaxed arrivals at its end
RELAXED = MEET.replace("arrive.aligned", "arrive.relaxed.aligned")


def ended(body: str, after: str, policy: str) -> None:
    """Run a pair whose CTAs, after the body, only meet as `after` says, free their columns and exit."""
    case, generator = Case("f16", "bf16", "bf16", m=256, n=64), np.random.default_rng(8)
    image, words = images(case, drawn(generator, "bf16", 256, 16), drawn(generator, "bf16", 64, 16))
    text = TensorKernel(body, columns=64, filled=64, ctas=2, dumps=False).text
    before, _, rest = text.partition(body)
    text = before + body + after + rest[rest.index("@%zero tcgen05.dealloc") :]
    given = [image.view(np.uint32), np.zeros((256, 64), np.uint32), np.zeros((256, 64), np.uint32)]
    numbers = [*map(np.uint64, (*words, 0, 0, 0, 0)), np.uint32(case.word()), *[np.uint32(0)] * 7]
    trace = ptx.load(text).launch("k", (2,), (128,), [*given, *numbers], cluster=2, policy=policy, seed=4)
    assert trace.findings == ()


PRODUCT = "tcgen05.mma.cta_group::2.kind::f16 [%base], %word0, %word1, %v0, %no;"
LAST = "tcgen05.fence::before_thread_sync;"


@pytest.mark.parametrize("policy", POLICIES)
def test_relaxed_arrivals_are_enough_before_a_pair_frees_its_columns_and_exits(policy: str) -> None:
    """Who sees the commit knows that no product reads its shared memory; alloc and dealloc are no operations in flight."""
    ended(pair_body(PRODUCT) + LAST, RELAXED, policy)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("after", ["", RELAXED], ids=["nothing", "relaxed"])
def test_a_block_must_not_exit_before_it_knows_of_a_product_that_reads_it(after: str, policy: str) -> None:
    unseen = pair_body(PRODUCT).replace(AWAIT, f"setp.eq.u32 %done, %cta, 1; @%done bra SEEN; {AWAIT} SEEN:")
    with pytest.raises(RefsimError) as caught:
        ended(unseen + LAST * (not after), after, policy)
    assert caught.value.code in ("out-of-bounds", "race", "tensor-memory-in-flight")


@pytest.mark.parametrize("fence", [LAST, ""], ids=["fenced", "unfenced"])
def test_a_move_needs_its_fence_before_a_relaxed_arrival_frees_its_columns(fence: str) -> None:
    """The second warp loads; the first one frees."""
    second = "setp.eq.u32 %lane, %warp, 1; @%lane tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r0}, [%own];"
    body = f"{HEAD} {second} @%lane tcgen05.wait::ld.sync.aligned; {fence}"
    if fence:
        ended(body, RELAXED, "eager")
        return
    with pytest.raises(RefsimError, match=r"tcgen05\.ld") as caught:
        ended(body, RELAXED, "eager")
    assert caught.value.code == "race"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("row", "stored"), [(0, 0), (127, 127), (21, 22)])
@pytest.mark.parametrize("owner", [0, 1])
def test_one_row_of_a_that_a_thread_stores_beside_the_product_of_a_pair(
    owner: int, row: int, stored: int, policy: str
) -> None:
    """Each CTA holds 128 rows of A in core matrices of 8 rows, and loads its own rows of D. One row is stored."""
    case = Case("f16", "bf16", "bf16", m=256, n=32, swizzles=("none", "none"))
    image, words = images(case, np.zeros((256, 16), np.uint16), np.zeros((32, 16), np.uint16))
    pair = pair_body(PRODUCT)
    late = (
        f".reg .pred %it; setp.eq.and.u32 %it, %cta, {owner}, %first; @%it st.shared.b32 [%s+{A_START + 16 * row}], %t;"
    )
    load = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r0}, [%own]; tcgen05.wait::ld.sync.aligned;"
    some = f".reg .pred %some; setp.eq.u32 %some, %t, {stored}; setp.eq.and.u32 %some, %cta, {owner}, %some;"
    body = pair.replace(AWAIT, late + AWAIT) + load + some + "@%some st.global.b32 [%out], %r0;"
    kernel = TensorKernel(body, columns=32, dumps=False, ctas=2)
    if row != stored:
        assert kernel.run(image, None, words, (case.word(),), policy=policy)[1].findings == ()
        return
    with pytest.raises(RefsimError, match=f"rows {row} to {row} of D") as caught:
        kernel.run(image, None, words, (case.word(),), policy=policy)
    assert caught.value.code == "race"


ALLOCATING = """
.version 9.0
.target sm_100a
.address_size 64
.visible .entry k() {{
.shared .align 4 .b32 slot; .reg .b32 %t, %at; .reg .pred %first, %lead;
mov.u32 %t, %tid.x; mov.u32 %at, slot; setp.lt.u32 %first, %t, 32;
@!%first tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%at], 64;
{meet}
@%first tcgen05.dealloc.cta_group::2.sync.aligned.b32 0, 64;
ret; }}
"""


@pytest.mark.parametrize("policy", POLICIES)
def test_a_relaxed_barrier_orders_alloc_and_dealloc(policy: str) -> None:
    """They are synchronous: no tcgen05.fence is about them."""
    trace = ptx.load(ALLOCATING.format(meet=RELAXED)).launch("k", (2,), (64,), [], cluster=2, policy=policy, seed=5)
    assert trace.findings == ()


def test_dealloc_needs_an_order() -> None:
    """The first warp comes late enough, but nothing says so."""
    late = "mov.u32 %t, 0; WAIT: add.u32 %t, %t, 1; setp.lt.u32 %lead, %t, 64; @%lead bra WAIT;"
    with pytest.raises(RefsimError, match=r"tcgen05\.alloc") as caught:
        ptx.load(ALLOCATING.format(meet=f"@!%first bra ON; {late} ON:")).launch("k", (2,), (64,), [], cluster=2)
    assert caught.value.code == "race"
