"""Who comes behind whom at tensor memory: what completed operations need, what tcgen05.fence makes of relaxed ones, and what is
handed on in flight."""

import re

import numpy as np
import pytest

from refsim.errors import RefsimError
from refsim.ptx.async_ops.queue import POLICIES
from tests.ptx.tcgen05_kernels import AWAIT, BEFORE, COMMIT, TensorKernel, registers
from tests.ptx.test_tensor_core import Case, accumulator, drawn, expected, image_of, opcode

CASE = Case("f16", "bf16", "bf16")
PRODUCT = f"@%first {opcode(CASE)} [%base], %word0, %word1, %v0, %no;"
SECOND = "setp.eq.u32 %lane, %warp, 1;"  # the second warp
STORE = f"{SECOND} @%lane tcgen05.st.sync.aligned.32x32b.x1.b32 [%own], {{%t}}; @%lane tcgen05.wait::st.sync.aligned;"
LOAD = f"{SECOND} @%lane tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r0}}, [%own]; @%lane tcgen05.wait::ld.sync.aligned;"
PAIR = "@%first mbarrier.init.shared::cta.b64 [%s+30720], 1; bar.sync 0; add.u32 %x7, %s, 30720;"
FENCE_BEFORE, FENCE_AFTER = "tcgen05.fence::before_thread_sync;", "tcgen05.fence::after_thread_sync;"
TO_FIRST, TO_SECOND = ("%t, 32", "%zero"), ("%t, 0", "%lane")
END = f"{COMMIT} {AWAIT} {FENCE_AFTER}"


def handed(way: tuple[str, str], meaning: str = "relaxed.cluster", before: str = "", after: str = "") -> str:
    """A thread arrives, and a whole warp waits: the first thread of the second warp and the first warp, or the other way."""
    one, waiting = way
    arrive, wait = (f".{meaning}", f".{meaning}") if meaning else ("", "")
    return (
        f"setp.eq.u32 %done, {one}; {before} @%done mbarrier.arrive{arrive}.shared::cta.b64 _, [%x7]; {SECOND}"
        f"@!{waiting} bra PASSED; SPIN: mbarrier.try_wait.parity{wait}.shared::cta.b64 %done, [%x7], 0; @!%done bra SPIN;"
        f"{after} PASSED:"
    )


def run(body: str, policy: str = "eager", *, is_product: bool = True) -> None:
    generator = np.random.default_rng(1)
    a, b = drawn(generator, "bf16", 128, 16), drawn(generator, "bf16", 32, 16)
    image, words = image_of(CASE, a, b)
    image[30720:30736] = 0
    out, trace = TensorKernel(f"{PAIR} {body}", columns=32, filled=32).run(
        image, None, words, (CASE.word(),), policy=policy, seed=2
    )
    assert trace.findings == ()
    if is_product:
        want = expected(CASE, a, b, None)
        np.testing.assert_array_equal(accumulator(out, CASE), want.view(np.uint32))


def found(body: str, policy: str = "eager") -> RefsimError:
    with pytest.raises(RefsimError) as caught:
        run(body, policy)
    return caught.value


# What the first thread's product overwrites is stored or loaded by the second warp before.
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("move", [STORE, LOAD])
@pytest.mark.parametrize(
    "order",
    [
        "bar.sync 0;",
        handed(TO_FIRST, ""),
        handed(TO_FIRST, before=FENCE_BEFORE, after=FENCE_AFTER),
    ],
    ids=["barrier", "release", "fences"],
)
def test_a_product_comes_behind_moves_that_are_complete(move: str, order: str, policy: str) -> None:
    """A barrier or a release that is acquired is enough, as CUTLASS and Triton have it; relaxed ones need both fences."""
    run(f"{move} {order} {PRODUCT} {END}", policy)


@pytest.mark.parametrize("move", [STORE, LOAD])
@pytest.mark.parametrize(
    "order",
    [
        "",
        handed(TO_FIRST),
        handed(TO_FIRST, before=FENCE_BEFORE),
        handed(TO_FIRST, after=FENCE_AFTER),
    ],
    ids=["nothing", "no fence", "no fence behind", "no fence before"],
)
def test_a_product_that_nothing_puts_behind_moves(move: str, order: str) -> None:
    error = found(f"{move} {order} {PRODUCT} {END}", "lazy" if order else "eager")
    assert error.code == "race"
    assert "columns 0 to 31 of tensor memory" in str(error)
    assert "thread (32, 0, 0)" in str(error)


FIRST_WAITS = f"@!%zero bra OTHERS; {AWAIT} OTHERS:"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "order", ["bar.sync 0;", handed(TO_SECOND, ""), handed(TO_SECOND, before=FENCE_BEFORE, after=FENCE_AFTER)]
)
def test_who_meets_one_that_has_waited_for_a_product_comes_behind_it(order: str, policy: str) -> None:
    run(f"{PRODUCT} {COMMIT} {FIRST_WAITS} {order} {LOAD}", policy)


@pytest.mark.parametrize("policy", ["eager", "random"])
@pytest.mark.parametrize(
    "order", [handed(TO_SECOND), handed(TO_SECOND, before=FENCE_BEFORE), handed(TO_SECOND, after=FENCE_AFTER)]
)
def test_that_somebody_has_waited_for_a_product_is_not_enough(order: str, policy: str) -> None:
    error = found(f"{PRODUCT} {COMMIT} {FIRST_WAITS} {order} {LOAD}", policy)
    assert error.code == "race"
    assert "that a tensor core by tcgen05.mma" in str(error)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_commit_counts_what_was_complete_before_it(policy: str) -> None:
    """Others have seen an earlier commit of the same thread complete; who waits for the later one alone comes behind both."""
    other = "shared::cta.b64 _, [%s+30728]"
    seen = f"{AWAIT} setp.eq.u32 %done, %t, 64; @%done mbarrier.arrive.relaxed.cluster.{other};"
    told = "LOOK: mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 %done, [%s+30728], 0; @!%done bra LOOK;"
    wait = "SPIN: mbarrier.try_wait.parity.shared::cta.b64 %done, [%x7], 0; @!%done bra SPIN; PASSED:"
    run(
        f"@%first mbarrier.init.shared::cta.b64 [%s+30728], 1; bar.sync 0; {PRODUCT} {COMMIT}"
        f"setp.eq.u32 %lane, %warp, 2; @!%lane bra SEEN; {seen} SEEN: @!%first bra TOLD; {told} TOLD:"
        f"{COMMIT.replace('[%bar]', '[%x7]')} {SECOND} @!%lane bra PASSED; {wait} {LOAD}",
        policy,
    )


def test_shared_memory_is_not_handed_on_by_these_fences() -> None:
    """They order tensor memory alone: bytes of shared memory need a release and an acquire."""
    order = handed(TO_FIRST, before=FENCE_BEFORE, after=FENCE_AFTER)
    body = (
        f"{SECOND} @%lane st.shared.b32 [%s], %t; {order} @%first ld.shared.b32 %r9, [%s]; bar.sync 0; {PRODUCT} {END}"
    )
    assert found(body).code == "race"


def test_columns_are_given_back_behind_everybody() -> None:
    load = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r0}, [%own]; tcgen05.wait::ld.sync.aligned;"
    again = "bar.sync 0; @%zero tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%at], 512; bar.sync 0;"
    back = "@%zero tcgen05.dealloc.cta_group::1.sync.aligned.b32 %base, 512;"
    store = f"tcgen05.st.sync.aligned.32x32b.x32.b32 [%own], {registers(32)}; tcgen05.wait::st.sync.aligned;"
    run(f"{load} bar.sync 0; {back} {again} {store}", is_product=False)
    assert found(f"{load} {back} {again} {store}").code == "race"


def test_columns_are_given_back_behind_a_relaxed_wait() -> None:
    """tcgen05.dealloc is synchronous: the fence that a move needs stands before the arrival, and none after the wait."""
    again = "bar.sync 0; @%zero tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%at], 512; bar.sync 0;"
    back = f"@%zero tcgen05.dealloc.cta_group::1.sync.aligned.b32 %base, 512; {again}"
    store = f"tcgen05.st.sync.aligned.32x32b.x32.b32 [%own], {registers(32)}; tcgen05.wait::st.sync.aligned;"
    run(f"{LOAD} {handed(TO_FIRST, before=FENCE_BEFORE)} {back} {store}", is_product=False)
    assert found(f"{LOAD} {handed(TO_FIRST)} {back} {store}").code == "race"


def test_a_relaxed_arrival_at_the_cluster_is_named_where_columns_are_given_back() -> None:
    """The finding names the statement that would have ordered the two, if it had released."""
    meet = "barrier.cluster.arrive.{}.aligned; barrier.cluster.wait.acquire.aligned;"
    back = "@%zero tcgen05.dealloc.cta_group::1.sync.aligned.b32 %base, 512;"
    again = "bar.sync 0; @%zero tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%at], 512; bar.sync 0;"
    store = f"tcgen05.st.sync.aligned.32x32b.x32.b32 [%own], {registers(32)}; tcgen05.wait::st.sync.aligned;"
    error = found(f"{LOAD} {meet.format('relaxed')} {back} {again} {store}")
    assert (error.code, "tcgen05.dealloc" in error.where) == ("race", True)
    said = r"that the other acquires: barrier\.cluster\.arrive\.relaxed\.aligned at PTX line \d+ releases nothing"
    assert re.search(said, error.what)
    run(f"{LOAD} {meet.format('release')} {back} {again} {store}", is_product=False)
    assert found(f"{LOAD} {back} {again} {store}").what.endswith("that the other acquires")


# ---- operations in flight
COPY_WORD = 1 << 46 | 1 << 16 | 8 << 32  # rows of 16 bytes, one after another, from byte 0 of the image
COPIED = "@%first tcgen05.cp.cta_group::1.128x128b [%base+32], %word2;"
BY_SECOND = "setp.eq.u32 %done, %t, 32; @%done"
FROM_COLUMNS = f"{BY_SECOND} {opcode(CASE)} [%base], [%base+32], %word1, %v0, %no;"
AGAIN = f"{BY_SECOND} {opcode(CASE)} [%base], %word0, %word1, %v0, %yes;"
SECOND_COMMITS = f"{BY_SECOND} {COMMIT.partition(' ')[2]} {AWAIT} {FENCE_AFTER}"


def pipeline(
    first: str, order: str, second: str, policy: str = "lazy"
) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple]:
    """One thread's operation, and another's behind it."""
    generator = np.random.default_rng(1)
    a, b = drawn(generator, "bf16", 128, 16), drawn(generator, "bf16", 32, 16)
    image, words = image_of(CASE, a, b)
    out, trace = TensorKernel(f"{PAIR} {first} {order} {second} {SECOND_COMMITS}", columns=32, filled=64).run(
        image, None, (*words, COPY_WORD), (CASE.word(),), policy=policy, seed=2
    )
    return out, a, b, trace.findings


FENCED = handed(TO_SECOND, before=FENCE_BEFORE, after=FENCE_AFTER)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("order", [FENCED, BEFORE], ids=["relaxed", "barrier"])
def test_a_product_is_handed_on_before_it_is_done(order: str, policy: str) -> None:
    """The same accumulator, shape and kind: a pipeline of two threads, of which the second commits."""
    out, a, b, findings = pipeline(PRODUCT, order, AGAIN, policy)
    assert findings == ()
    want = expected(CASE, np.hstack([a, a]), np.hstack([b, b]), None)
    np.testing.assert_array_equal(accumulator(out, CASE), want.view(np.uint32))


@pytest.mark.parametrize(
    ("first", "order", "second"),
    [
        (PRODUCT, "bar.sync 0;", AGAIN),
        (PRODUCT, FENCED.replace(FENCE_BEFORE, ""), AGAIN),
        (PRODUCT, FENCED.replace(FENCE_AFTER, ""), AGAIN),
        (COPIED, "bar.sync 0;", FROM_COLUMNS),
        (PRODUCT, FENCED, AGAIN.replace("[%base]", "[%base+8]")),
        (COPIED, FENCED, f"{SECOND} @%lane tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r0}}, [%own+32];"),
    ],
    ids=["barrier alone", "no fence before", "no fence behind", "copy", "other accumulator", "load"],
)
def test_what_is_in_flight_is_not_handed_on_without_fences(first: str, order: str, second: str) -> None:
    """A barrier orders what is complete; and a load follows no pipeline."""
    with pytest.raises(RefsimError, match="is in flight") as caught:
        pipeline(first, order, second)
    assert caught.value.code == "tensor-memory-in-flight"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_copy_is_handed_on_to_a_product(policy: str) -> None:
    _, _, _, findings = pipeline(COPIED, FENCED, FROM_COLUMNS, policy)
    assert findings == ()
