"""Limits per target, and how many blocks an SM holds."""

import pytest

from refsim.errors import RefsimError
from refsim.ptx.machine.launch_rules import (
    LIMITS,
    ctas_per_sm,
    limits_of,
    parameter_limit,
    round_up,
    total_shared,
    warp_registers,
)

# cuda_occupancy.h of 13.0: warps of an SM of 64 warps by registers of a thread.
WARPS_BY_REGISTERS = {
    32: 64,
    40: 48,
    48: 40,
    56: 36,
    64: 32,
    72: 28,
    80: 24,
    96: 20,
    128: 16,
    168: 12,
    255: 8,
}


@pytest.mark.parametrize(("registers", "warps"), WARPS_BY_REGISTERS.items())
def test_registers_leave_so_many_warps(registers, warps):
    assert 4 * (16384 // warp_registers(registers)) == warps
    assert ctas_per_sm(limits_of("sm_90a"), 64, 0, registers) == min(warps // 2, 32)


@pytest.mark.parametrize(
    ("target", "threads", "shared", "registers", "ctas"),
    [
        ("sm_90a", 1024, 0, 32, 2),
        ("sm_90a", 1024, 0, 33, 1),
        ("sm_90a", 32, 0, 16, 32),
        ("sm_89", 1024, 0, 32, 1),
        ("sm_89", 32, 0, 16, 24),
        ("sm_86", 32, 0, 16, 16),
        ("sm_90a", 128, 232448, 32, 1),
        ("sm_90a", 128, 116224 - 512, 32, 2),
        ("sm_90a", 128, 116224, 32, 1),
        ("sm_80", 128, 166912, 32, 1),
        ("sm_90a", 33, 0, 16, 32),
        ("sm_90a", 96, 0, 255, 2),
    ],
)
def test_ctas_of_an_sm(target, threads, shared, registers, ctas):
    assert ctas_per_sm(limits_of(target), threads, shared, registers) == ctas


@pytest.mark.parametrize("row", LIMITS, ids=lambda row: row.target)
def test_one_cta_with_all_the_shared_memory_it_may_have_fits(row):
    assert ctas_per_sm(row, 128, row.opt_in, 32) == 1
    assert row.opt_in + row.reserved == row.shared
    assert row.cluster in ((8, 16) if row.number >= 90 else (0,))


@pytest.mark.parametrize(
    ("target", "row"),
    [
        ("sm_90a", "sm_90"),
        ("sm_100f", "sm_100"),
        ("sm_88", "sm_87"),
        ("sm_101a", "sm_110"),
        ("sm_52", "sm_75"),
        ("sm_107a", "sm_103"),
        ("sm_121a", "sm_121"),
    ],
)
def test_a_target_without_a_row_has_that_of_the_one_before(target, row):
    assert limits_of(target).target == row


def test_a_target_that_is_none_is_refused():
    with pytest.raises(RefsimError, match="unknown-target"):
        limits_of("compute_90")


@pytest.mark.parametrize(
    ("version", "target", "most"),
    [
        ("8.0", "sm_90a", 4352),
        ("8.1", "sm_90a", 32764),
        ("9.0", "sm_70", 32764),
        ("8.1", "sm_60", 4352),
        ("7.0", "sm_80", 4352),
        ("10.0", "sm_80", 32764),
    ],
)
def test_parameters_by_version_and_target(version, target, most):
    assert parameter_limit(version, target) == most


def test_shared_memory_is_told_in_units():
    assert [total_shared(size) for size in (0, 1, 128, 129)] == [0, 128, 128, 256]
    assert round_up(33, 32) == 64
