"""Small right kernels and the same ones less one edge: the classes of races, of misuse of warps, and of unwritten bits."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from refsim import ptx
from refsim.testing.kernel_files import load_kernel_file

table = load_kernel_file(Path(__file__).parent / "suite" / "table.py")
suite = table.suite
RIGHT, WRONG, RIGHT_BY_NAME = table.RIGHT, table.WRONG, table.RIGHT_BY_NAME
RECORD = ptx.Checks(initialised="record", copies="record", races="record", divergence="record")
MEETS = ("bar", "barrier", "shfl", "vote", "match", "redux", "mma", "wgmma")
SEEDS = {"quick": 1, "ci": 5, "night": 10}
ACCESSES = ("ld", "ldmatrix", "st", "atom", "red", "cp", "wgmma", "tcgen05", *MEETS)


def schedules(profile: str) -> list[tuple[str, int]]:
    """Policies and seeds of a profile."""
    return [("eager", 1), ("lazy", 1), *(("random", seed) for seed in range(1, 1 + SEEDS[profile]))]


def some_schedules(profile: str) -> list[tuple[str, int]]:
    """Those in which a missing edge is looked for: in the quick profile one with a warp that comes late."""
    return [("random", 2)] if profile == "quick" else schedules(profile)


def test_the_suite_is_as_large_and_as_varied_as_it_says() -> None:
    assert len(RIGHT) >= 60
    assert len(WRONG) >= 70
    assert len(RIGHT_BY_NAME) == len(RIGHT)
    edges = Counter((wrong.space, wrong.agents, wrong.missing) for wrong in WRONG)
    assert [edge for edge, count in edges.items() if count > 1] == []
    assert {wrong.agents for wrong in WRONG} == {"lanes", "warps", "blocks"}
    claim = (Path(__file__).parents[2] / "docs/evidence.md").read_text("utf-8")
    assert f"has {len(RIGHT)} right kernels and {len(WRONG)} wrong ones" in claim


def test_every_kernel_of_the_sources_is_in_the_table() -> None:
    for file in {kernel.file for kernel in RIGHT}:
        mine = [kernel for kernel in RIGHT if kernel.file == file]
        instances = {suite.entry(kernel) for kernel in mine}
        instances |= {
            suite.entry(kernel, wrong.less) for kernel in mine for wrong in WRONG if wrong.less_of == kernel.name
        }
        assert set(suite.program(file).entries) == instances, file


def is_marked_in_the_code(wrong) -> bool:
    kernel = RIGHT_BY_NAME[wrong.less_of]
    program = suite.program(kernel.file)
    statements = program.module.functions[suite.entry(kernel, wrong.less)].statements
    marked = all(
        {item.opcode.split(".")[0] for item in statements if str(item.location) == line} & set(ACCESSES)
        for line in suite.source_lines(kernel, wrong.less)
    )
    right = program.module.functions[suite.entry(kernel)].statements
    shape = [[(item.opcode, str(item.operands)) for item in code] for code in (right, statements)]
    return marked and shape[0] != shape[1]


@pytest.mark.parametrize("file", sorted({kernel.file for kernel in RIGHT}))
def test_what_is_marked_in_the_source_stands_in_the_code(file) -> None:
    """The compiler has merged or dropped neither of the two accesses, and the right kernel has other code."""
    mine = [wrong for wrong in WRONG if RIGHT_BY_NAME[wrong.less_of].file == file]
    assert [str(wrong) for wrong in mine if not is_marked_in_the_code(wrong)] == []


@pytest.mark.parametrize("kernel", RIGHT, ids=str)
def test_a_right_kernel_computes_the_same_in_every_order_and_nothing_is_said(kernel, refsim_profile) -> None:
    for policy, seed in schedules(refsim_profile):
        output, trace = suite.run(kernel, policy, seed, checks=RECORD)
        assert np.array_equal(output, suite.wanted(kernel)), (policy, seed)
        assert [*trace.findings, *trace.warnings] == [], (policy, seed)


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_missing_edge_is_found_in_every_order(wrong, refsim_profile) -> None:
    """The code, both source lines, how far the two threads stand apart, and the edge that is missing."""
    kernel = RIGHT_BY_NAME[wrong.less_of]
    for policy, seed in some_schedules(refsim_profile):
        said = suite.findings(kernel, wrong, policy, seed, RECORD)
        assert any(suite.is_what_was_wanted(kernel, wrong, error) for error in said), (policy, seed, *map(str, said))


@pytest.mark.parametrize("wrong", [wrong for wrong in WRONG if wrong.warned], ids=str)
def test_a_warning_is_no_finding(wrong) -> None:
    kernel = RIGHT_BY_NAME[wrong.less_of]
    _, trace = suite.run(kernel, "eager", less=wrong.less, checks=RECORD)
    assert trace.findings == ()
    assert [warning.code for warning in trace.warnings] == list(wrong.codes)
