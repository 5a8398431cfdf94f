"""The right kernels of the suite need every fence, order and scope that they have: take any away and it is found.

What is spare is named here with its reason; nothing else may be.
"""

from pathlib import Path

import pytest

from refsim.testing.barrier_sweep import NO_DIFFERENCE, sweep
from refsim.testing.kernel_files import load_kernel_file

table = load_kernel_file(Path(__file__).parent / "suite" / "table.py")
suite = table.suite

# The first turns and the last ones of a loop that was unrolled wait for nobody.
LAST_TURN = {
    "reuse": ["bar.sync"],
    "broadcast": ["bar.sync"],
    "pipeline": ["bar.sync"],
    "two_stages": ["bar.sync", "bar.sync"],
    "three_stages": ["cp.async.commit_group"],
    "stages_of_phases": ["mbarrier.arrive.shared.b64"] * 2,
    "stages_of_copies": ["mbarrier.arrive.shared.b64"] * 2,
}
# Behind it every thread reads only what it wrote itself, or what all write alike.
NOT_HANDED_ON = {
    "rotate_in_place": ["bar.warp.sync"],
    "rotate_global": ["bar.warp.sync"],
    "tree_sum": ["bar.warp.sync"],
    "any_seen": ["bar.sync"],
    "in_place": ["bar.sync"] * 3,
    "stored_after_wait": ["cp.async.wait_all"],
    "volatile_between": ["st.volatile.shared.u32 as st.shared.u32", "bar.sync"],
}
# Both sides are in one block.
ONE_BLOCK = {
    "lane_atomics_global": ["atom.global.add.u32 as atom.cta.global.add.u32"],
    "zeroed_by_one_lane": ["atom.global.max.u32 as atom.cta.global.max.u32"],
    "counted_global": ["atom.global.add.u32 as atom.cta.global.add.u32"],
    "extremes": ["atom.global.max.u32 as atom.cta.global.max.u32"],
    "global_flag": [
        "st.release.gpu.global.u32 as st.release.cta.global.u32",
        "ld.acquire.gpu.global.u32 as ld.acquire.cta.global.u32",
    ],
    "global_flag_fenced": ["membar.gl as membar.cta"] * 2,
    "global_lock_shared_data": [
        "atom.acquire.gpu.global.cas.b32 as atom.acquire.cta.global.cas.b32",
        "atom.release.gpu.global.exch.b32 as atom.release.cta.global.exch.b32",
    ],
}
# A barrier of the block comes between this store and everything that looks at the flag.
BEFORE_A_BARRIER = {"fenced_flag": ["st.volatile.shared.u32 as st.shared.u32"]}
# A __syncwarp orders these accesses: volatile is for the compiler. The last __syncwarp of the sum hands nothing on.
VOLATILE = {
    "volatile_sum": [
        "bar.warp.sync",
        *["ld.volatile.shared.u32 as ld.shared.u32"] * 11,
        *["st.volatile.shared.u32 as st.shared.u32"] * 6,
    ],
    "volatile_branch": [
        "st.volatile.global.u32 as st.global.u32",
        "ld.volatile.global.u32 as ld.global.u32",
    ],
    "volatile_turns": ["st.volatile.shared.u32 as st.shared.u32"],
}
SPARE = LAST_TURN | NOT_HANDED_ON | ONE_BLOCK | BEFORE_A_BARRIER | VOLATILE

FILES = (
    "warp.cu",
    "barriers.cu",
    "flags.cu",
    "passing_on.cu",
    "locks.cu",
    "atomics.cu",
    "grid.cu",
    "copies.cu",
    "mbarriers.cu",
)
# Polls that are unrolled, a lock that only one block ever takes, a path that no block takes: most of it never runs or waits.
NOT_SWEPT = ("grid_rounds", "made_once", "two_paths")
SWEPT = [kernel for kernel in table.RIGHT if kernel.file in FILES and kernel.name not in NOT_SWEPT]
QUICK = (
    "neighbour",
    "half_mask",
    "acquired_lock",
    "handover",
    "relay",
    "fenced_flag",
    "global_flag",
    "blocks_fenced",
    "chain_of_blocks",
    "foreign_fence",
    "last_block",
    "grid_barrier",
    "look_back_released",
    "copied_reverse",
    "phase",
    "elected",
    "copies_counted",
)


@pytest.mark.parametrize("file", FILES)
def test_every_order_of_a_right_kernel_is_needed(file, refsim_profile) -> None:
    """The quick profile sweeps some kernels of each file."""
    for kernel in SWEPT:
        if kernel.file != file or (refsim_profile == "quick" and kernel.name not in QUICK):
            continue
        swept = sweep(suite.declared(kernel), [suite.Once()], target=suite.TARGET)
        missed = [each for each in swept if not each.caught]
        assert {each.finding for each in missed} <= {NO_DIFFERENCE}
        spare = [f"{each.opcode} as {each.instead}" if each.instead else each.opcode for each in missed]
        assert sorted(spare) == sorted(SPARE.get(kernel.name, [])), (kernel.name, *map(str, missed))


def test_what_is_spare_belongs_to_kernels_that_are_swept() -> None:
    assert set(SPARE) <= {kernel.name for kernel in SWEPT}
    assert set(QUICK) <= {kernel.name for kernel in SWEPT}
    assert {table.RIGHT_BY_NAME[name].file for name in QUICK} == set(FILES)
