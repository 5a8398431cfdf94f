"""Special registers against an independent count of blocks, clusters and threads."""

import itertools

import numpy as np
import pytest

from refsim import ptx
from refsim.ptx.execution.geometry import Geometry


def read(register: str, grid, block, *, target="sm_90a", type="u32", **options) -> np.ndarray:
    """The register as each thread of each block sees it, blocks and threads counted x first."""
    threads, blocks = int(np.prod(block)), int(np.prod(grid))
    mov = f"mov.pred %p1, {register}; selp.u32 %r9, 1, 0, %p1;" if type == "pred" else f"mov.u32 %r9, {register};"
    text = f""".version 9.0
.target {target}
.address_size 64
.visible .entry k(.param .u64 out)
{{
    .reg .b32 %r<12>; .reg .b64 %d<4>; .reg .pred %p<2>;
    ld.param.u64 %d1, [out];
    mov.u32 %r1, %ctaid.z; mov.u32 %r2, %nctaid.y; mov.u32 %r3, %ctaid.y; mad.lo.u32 %r1, %r1, %r2, %r3;
    mov.u32 %r2, %nctaid.x; mov.u32 %r3, %ctaid.x; mad.lo.u32 %r1, %r1, %r2, %r3;
    mov.u32 %r4, {threads}; mov.u32 %r5, %tid.x; mad.lo.u32 %r1, %r1, %r4, %r5;
    mul.wide.u32 %d2, %r1, 4; add.s64 %d1, %d1, %d2;
    {mov} st.global.u32 [%d1], %r9; ret;
}}
"""
    out = np.zeros(blocks * threads, np.uint32)
    ptx.load(text).launch("k", grid, (threads,), [out], **options)
    return out.reshape(blocks, threads)


GRID, CLUSTER = (4, 6, 2), (2, 3, 1)


def coordinates(grid) -> np.ndarray:
    """(blocks, 3): x, y, z of each block, x fastest."""
    return np.array([(x, y, z) for z, y, x in itertools.product(*map(range, reversed(grid)))])


@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize("cluster", [None, CLUSTER, (4, 1, 1), (1, 2, 2)])
def test_clusters_along_each_axis(axis, cluster):
    at, size, name = coordinates(GRID)[:, axis], (cluster or (1, 1, 1))[axis], "xyz"[axis]
    want = {
        "clusterid": at // size,
        "cluster_ctaid": at % size,
        "nclusterid": GRID[axis] // size,
        "cluster_nctaid": size,
        "ctaid": at,
        "nctaid": GRID[axis],
    }
    for stem, values in want.items():
        got = read(f"%{stem}.{name}", GRID, (3,), cluster=cluster)
        assert (got == np.broadcast_to(values, len(at))[:, None]).all(), stem


@pytest.mark.parametrize("cluster", [None, CLUSTER, (1, 2, 2)])
def test_ranks_in_a_cluster(cluster):
    x, y, z = coordinates(GRID).T
    a, b, c = cluster or (1, 1, 1)
    assert (read("%cluster_ctarank", GRID, (3,), cluster=cluster)[:, 0] == x % a + a * (y % b + b * (z % c))).all()
    assert (read("%cluster_nctarank", GRID, (3,), cluster=cluster) == a * b * c).all()
    assert (read("%is_explicit_cluster", GRID, (3,), cluster=cluster, type="pred") == (cluster is not None)).all()


@pytest.mark.parametrize(("target", "sms"), [("sm_80", 108), ("sm_90a", 132), ("sm_100a", 148)])
def test_multiprocessors_of_the_chip(target, sms):
    assert (read("%nsmid", 1, (32,), target=target) == sms).all()
    assert (read("%smid", 300, (1,), target=target)[:, 0] == np.arange(300) % sms).all()


def test_shared_memory_sizes():
    assert (read("%dynamic_smem_size", 1, (1,), shared_bytes=130) == 130).all()
    assert (read("%total_smem_size", 1, (1,), shared_bytes=130) == 256).all()


def test_environment_registers_hold_the_workspace_of_a_cooperative_launch():
    for register in ("%envreg0", "%envreg1", "%envreg2", "%envreg31"):
        assert (read(register, 1, (1,)) == 0).all()
    memory = ptx.GlobalMemory()
    high, low = (int(read(name, 2, (1,), memory=memory, cooperative=True)[0, 0]) for name in ("%envreg1", "%envreg2"))
    assert memory.read(high << 32 | low, 8).view(np.uint32).tolist() == [8, 0]


def test_a_lane_is_named_by_its_place_in_the_grid():
    geometry = Geometry((4, 4, 1), (8, 1, 1), 4, 4, (2, 2, 1))
    assert geometry.numbers.tolist() == [2, 3, 6, 7]
    assert geometry.describe(8 * 2 + 5) == "thread (5, 0, 0) of block (2, 1, 0)"


@pytest.mark.parametrize("register", ["%clock", "%clock_hi", "%globaltimer_lo", "%globaltimer_hi"])
def test_no_result_rests_on_the_hour(register):
    def hours(policy, seeds):
        return {int(read(register, (1,), (1,), policy=policy, seed=seed)[0, 0]) >> 8 for seed in seeds}

    assert len(hours("random", range(4))) == 4
    assert len(hours("eager", range(2))) == 1
