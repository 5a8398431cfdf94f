"""A ring of stages that two blocks fill for each other and tensor cores empty: relaxed arrivals are enough, fewer are not."""

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from refsim import ptx
from refsim.device.compile import compile_ptx
from refsim.errors import Kind, RefsimError

SOURCE = Path(__file__).with_name("relaxed_ring.cu")
TURNS = 6
RELEASE = "mbarrier.arrive.relaxed.cluster.shared::cluster.b64"
SOME = pytest.mark.parametrize(("policy", "seed"), [("eager", 0), ("random", 1)])
POLICIES = pytest.mark.parametrize(("policy", "seed"), [("eager", 0), ("lazy", 0), ("random", 1), ("random", 2)])


@lru_cache(maxsize=1)
def text() -> str:
    try:
        return compile_ptx(SOURCE, "sm_90a").text
    except RefsimError as error:
        if error.kind is not Kind.MISSING:
            raise
        pytest.skip(f"the kernel cannot be compiled here: {error.what}")


def run(made: str, policy: str, seed: int, entry: str = "relaxed_ring") -> ptx.Trace:
    c, codes = np.zeros((256, 4), np.float32), np.full(TURNS * 2048, 0x38, np.uint8)
    options = {"cluster": 2, "policy": policy, "seed": seed}
    trace = ptx.load(made).launch(entry, 2, 160, [codes, c, np.uint32(TURNS)], **options)
    assert (c == 32 * TURNS).all()
    return trace


def codes_of(made: str) -> set[str]:
    """What is found under some schedule."""
    found = set()
    for policy, seed in (("eager", 0), ("lazy", 0), ("random", 1), ("random", 2), ("random", 3)):
        try:
            run(made, policy, seed)
        except RefsimError as error:
            found.add(error.code)
    return found


@POLICIES
@pytest.mark.parametrize("entry", ["relaxed_ring", "ring_of_one"])
def test_stages_that_only_tensor_cores_read_are_handed_on_by_relaxed_arrivals(
    policy: str, seed: int, entry: str
) -> None:
    """Or by one thread of the warpgroup without a scope: the group that it waited for is the warpgroup's."""
    trace = run(text(), policy, seed, entry)
    assert not [*trace.findings, *trace.warnings, *trace.notes]


@POLICIES
def test_a_stage_that_is_handed_back_before_the_wait_races_with_the_next_copy(policy: str, seed: int) -> None:
    """The products read until somebody has waited for them, however soon that is."""
    with pytest.raises(RefsimError, match=r"overwrites .* by wgmma.mma_async.* reads") as caught:
        run(text(), policy, seed, "hasty_ring")
    assert caught.value.code == "race"


@SOME
@pytest.mark.parametrize(
    ("entry", "said"), [("early_ring_of_one", 1), ("early_ring_of_lanes", 1), ("looking_ring_of_lanes", 0)]
)
def test_what_threads_read_is_handed_back_with_the_stage(policy: str, seed: int, entry: str, said: int) -> None:
    """Before products that were waited for, which is said once, or before the release of an arrival in the other block that
    names no scope: the pipelines of CUTLASS and DeepGEMM do either."""
    trace = run(text(), policy, seed, entry)
    assert not trace.findings
    assert [warning.code for warning in trace.warnings] == ["ordered-by-convergence"] * said
    assert {note.code for note in trace.notes} == {"unfenced-refill"}


@SOME
@pytest.mark.parametrize("entry", ["looking_ring", "early_ring", "looking_ring_of_one", "late_ring_of_one"])
def test_a_thread_that_reads_the_stage_races_with_the_next_copy(policy: str, seed: int, entry: str) -> None:
    """The same ring with a load of the stage by every thread: relaxed arrivals order no access of a thread, and one thread
    speaks for the others no further than up to the products."""
    with pytest.raises(RefsimError, match=r"overwrites .* reads") as caught:
        run(text(), policy, seed, entry)
    assert caught.value.code == "race"


@pytest.mark.parametrize(
    ("old", "new", "codes"),
    [
        (RELEASE, f"// {RELEASE}", {"deadlock"}),
        (
            "wgmma.wait_group.sync.aligned 0;",
            "wgmma.wait_group.sync.aligned 1;",
            {"register-in-flight", "race", "read-before-wait"},
        ),
        ("fence.mbarrier_init.release.cluster;\n", "", {"race", "barrier-misuse"}),
    ],
)
def test_what_the_ring_needs(old: str, new: str, codes: set[str]) -> None:
    """The first barrier of the cluster is relaxed: the fence of the inits is what shows them to the other block."""
    assert old in text()
    found = codes_of(text().replace(old, new))
    assert found <= codes
    assert bool(found) == bool(codes)
