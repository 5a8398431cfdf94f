"""What accesses of shared memory cost an H200, replayed against the wavefronts of the model without a GPU."""

import numpy as np
import pytest

from refsim.layouts.banks import bank_conflicts
from refsim.silicon.vectors import recordings

RECORDED = {name: row for name, row in recordings("layouts").items() if row.facts["kind"] == "cycles"}
CYCLES = sorted(RECORDED)


def cycles_per_access(recording):
    return recording.arrays["cycles"] / (recording.facts["warps"] * recording.facts["accesses"])


def wavefronts(recording, width=None):
    """What the model says one access of each pattern costs, all phases together."""
    addresses = recording.arrays["addresses"].astype(np.int64)
    return bank_conflicts(addresses, width or recording.facts["width"]).wavefronts.sum(axis=-1)


def pairs_share(recording):
    """Patterns of wide loads in which lanes 2i and 2i + 1 ask for the same address.

    The H200 serves twice as many lanes in a phase then; the model's phases, which are the documented ones, say more.
    """
    addresses = recording.arrays["addresses"]
    wide_load = recording.facts["entry"] in ("cycles_load_8", "cycles_load_16")
    return wide_load & (addresses[:, ::2] == addresses[:, 1::2]).all(axis=1)


@pytest.mark.parametrize("name", CYCLES)
def test_an_access_takes_a_cycle_per_wavefront_on_the_h200(name):
    """Sixteen warps keep the unit busy: cycles per access, within 2 percent."""
    recording = RECORDED[name]
    plain = ~pairs_share(recording)
    ratio = cycles_per_access(recording) / wavefronts(recording)
    assert np.count_nonzero(plain) >= 47
    assert np.abs(ratio[plain] - 1).max() < 0.02


@pytest.mark.parametrize("name", ["cycles.load.8", "cycles.load.16"])
def test_pairs_of_lanes_that_share_an_address_take_half_the_phases_on_the_h200(name):
    recording = RECORDED[name]
    shared = pairs_share(recording)
    ratio = cycles_per_access(recording)[shared] / wavefronts(recording)[shared]
    assert np.count_nonzero(shared) == 3
    assert ((ratio > 0.5) & (ratio < 0.58)).all()


@pytest.mark.parametrize(("name", "width"), [("cycles.load.16", 4), ("cycles.load.4", 16), ("cycles.store.8", 4)])
def test_wrong_phases_are_refused(name, width):
    recording = RECORDED[name]
    aligned = (recording.arrays["addresses"] % width == 0).all(axis=1)
    got = cycles_per_access(recording)[aligned]
    addresses = recording.arrays["addresses"][aligned].astype(np.int64)
    want = bank_conflicts(addresses, width).wavefronts.sum(axis=-1)
    assert np.abs(got / want - 1).max() > 0.5
