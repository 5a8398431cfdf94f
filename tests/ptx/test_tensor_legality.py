"""Every opcode of tcgen05 on every target of its families: refsim takes what ptxas takes, and refuses what it refuses."""

from pathlib import Path

import pytest

from refsim.ptx.isa.forms import clauses
from refsim.ptx.isa.instances import instances
from refsim.reference.assembler import refusals, releases
from refsim.targets import has, lacking

FAMILIES = ("tensor_core", "tensor_memory")
MOST = 8  # opcodes of one clause: the first, and those that differ from it in one word
OURS = [clause for clause in clauses() if clause.function.__module__.rsplit(".", 1)[1] in FAMILIES]
BOUNDS = [bound for clause in OURS for bound in instances(clause, MOST) if bound.clause is clause]
OFTEN = ("sm_100a", "sm_100f", "sm_107a", "sm_110f")
SELDOM = ("sm_90a", "sm_100", "sm_103a", "sm_103f", "sm_107f", "sm_110a", "sm_120a", "sm_121a")
NEWEST, CUDA_13 = (13, 4), (13, 0)
rest = pytest.mark.ci("one family of targets after another, put to each ptxas")


def judge(asked: tuple[int, int]) -> int:
    """The place of the newest assembler that is no newer than a release, or a stated reason."""
    found = [at for at, (release, _) in enumerate(releases()) if CUDA_13 <= release <= asked]
    if not found:
        pytest.skip(f"no ptxas from 13.0 to {asked[0]}.{asked[1]} is here to judge these forms")
    return found[-1]


CASES = [
    *((NEWEST, target) for target in OFTEN),
    *(pytest.param(NEWEST, target, marks=rest) for target in SELDOM),
    *(pytest.param(CUDA_13, target, marks=rest) for target in (*OFTEN, *SELDOM) if "107" not in target),
]


@pytest.mark.parametrize(("asked", "target"), CASES)
def test_refsim_and_ptxas_take_the_same_opcodes(asked: tuple[int, int], target: str, tmp_path: Path) -> None:
    """A function has instructions of one CTA or of two: those of each are a listing of their own."""
    at = judge(asked)
    if "107" in target and releases()[at][0] < NEWEST:
        pytest.skip(f"this ptxas does not know {target}")
    refused = dict[str, str]()
    for other in ("cta_group::2", "cta_group::1"):
        refused |= refusals([bound for bound in BOUNDS if other not in bound.opcode], target, tmp_path, at)
    ours = {bound.opcode for bound in BOUNDS if has(target, bound.since) and lacking(target, bound.opcode) is None}
    theirs = {bound.opcode for bound in BOUNDS} - refused.keys()
    assert sorted(ours ^ theirs) == []
