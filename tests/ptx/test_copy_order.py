"""What comes before a copy into a stage, after one out of it, and before a block exits: by the order of accesses, under every
schedule."""

import numpy as np
import pytest

from refsim.errors import RefsimError
from tests.ptx.test_bulk_copies import POLICIES, changed, cluster_ring, groups, opened, said, text


@pytest.mark.parametrize(
    ("old", "new"),
    [("arrive.release.cluster", "arrive.relaxed.cluster"), ("acquire.cluster.", "relaxed.cluster.")],
)
def test_a_stage_that_threads_read_is_freed_by_a_release_and_an_acquire(old: str, new: str) -> None:
    assert said(cluster_ring, changed("cluster_ring", old, new))[0] == "race"


@pytest.mark.parametrize(
    ("old", "new"),
    [("arrive.release.cluster", "arrive"), ("acquire.cluster.", "acquire.cta."), ("acquire.cluster.", "")],
)
def test_no_scope_is_asked_of_either(old: str, new: str) -> None:
    """Reads of a block's own shared memory are over for everybody: CUTLASS's multicast pipelines name no scope."""
    assert cluster_ring("sim", changed("cluster_ring", old, new))[0]


def test_threads_write_to_the_source_of_a_copy_behind_the_wait_of_its_own() -> None:
    """The barrier behind the wait is missing: whether a thread is in time must not depend on luck."""
    before, found, after = text().partition(".visible .entry groups(")
    places = [at for at in range(len(after)) if after.startswith("bar.sync", at)][:10]
    assert len(places) == 10
    for at in places:
        end = after.index(";", at) + 1
        assert said(lambda policy, ptx: groups(policy, ptx, 11), before + found + after[:at] + after[end:])[0] == "race"


def test_a_block_stays_until_copies_have_read_its_memory() -> None:
    """The last barrier of the cluster: the other block has waited for the bytes, its sender has not."""
    before, found, after = text().partition(".visible .entry exchange(")
    at = after.rindex("barrier.cluster.wait", 0, after.index(".visible .entry "))
    end = after.index(";", at) + 1
    for policy in (*POLICIES, "sim"):
        with opened(policy, before + found + after[:at] + after[end:]) as gpu:
            with pytest.raises(RefsimError, match="which may have exited by then") as caught:
                gpu.launch("exchange", 4, 32, [gpu.output(256, np.uint32, name="out")], cluster=2)
            assert caught.value.code == "out-of-bounds"


@pytest.mark.parametrize("policy", [*POLICIES, "sim"])
@pytest.mark.parametrize("old", ["barrier.cluster.arrive.release", "barrier.cluster.wait"])
def test_a_block_stays_until_all_have_arrived_at_its_barriers(policy: str, old: str) -> None:
    """The last barrier of the cluster: its relaxed arrivals order nothing, and without its wait nobody stays."""
    before, found, after = text().partition(".visible .entry cluster_ring(")
    own, _, others = after.partition("\n.visible .entry ")
    at = own.rindex(old)
    end = own.index(";", at) + 1
    instead = "" if old.endswith("wait") else own[at:end].replace("release", "relaxed")
    with pytest.raises(RefsimError, match="exited") as caught:
        cluster_ring(
            policy, before + found + own[:at] + instead + own[end:] + ("\n.visible .entry " + others if others else "")
        )
    assert caught.value.code == "out-of-bounds"
