"""The judge of legality: releases in order, PTX versions, and that it refuses what is no instruction."""

from dataclasses import replace
from pathlib import Path

from refsim.ptx.isa.forms import bind
from refsim.reference import assembler


def test_releases_are_sorted_and_each_has_a_version_of_ptx() -> None:
    found = assembler.releases()
    assert list(found) == sorted(found)
    assert [assembler.ptx_version(release) for release in ((12, 9), (13, 0), (13, 4))] == ["8.8", "9.0", "9.4"]


def test_a_target_before_sm_75_is_judged_as_sm_75() -> None:
    assert [assembler.first_target(since) for since in ("sm_50", "sm_75", "sm_90", "sm_100a")] == [
        "sm_75",
        "sm_75",
        "sm_90",
        "sm_100a",
    ]


def test_what_is_no_instruction_is_refused_and_what_is_one_is_not(tmp_path: Path) -> None:
    good = bind("add.rn.f32")
    bad = replace(good, opcode="add.rn.cheese.f32")
    for release in range(len(assembler.releases())):
        assert list(assembler.refusals([good, bad], "sm_75", tmp_path, release)) == ["add.rn.cheese.f32"]
