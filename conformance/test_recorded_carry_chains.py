"""What silicon returned for every chain of instructions through the carry flag, replayed on the simulator without a GPU.

Profile quick replays the stored rows of every sixteenth chain, ci those of all, night both chunks of 65,536 rows by
their digests.
"""

import hashlib

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError
from refsim.silicon import carry_chains
from refsim.silicon.scalar_probe import probe_module
from refsim.silicon.vectors import digest, recordings, sidecar

CHAINS = carry_chains.forms()


@pytest.fixture(scope="module")
def recorded():
    try:
        return recordings("carry_chains")["chains"]
    except RefsimError:
        pytest.skip("carry_chains is not recorded yet: gpu/probes/record_carry_chains.py on a GPU")


def run(form, operands):
    """The results of one chain on the simulator."""
    results = np.zeros(len(operands[0]), np.uint64)
    arguments = [*(column.copy() for column in operands), results, np.uint32(len(results))]
    ptx.load(probe_module([form])).launch("form_0", (-(-len(results) // 256),), (256,), arguments)
    return results


@pytest.mark.parametrize("part", range(16))
def test_simulator_returns_what_silicon_returned(part, recorded, refsim_profile):
    rows = [column[: carry_chains.STORED_ROWS] for column in carry_chains.operands(0)]
    for number in range(part, len(CHAINS), 16)[:: 16 if refsim_profile == "quick" else 1]:
        wrong = np.flatnonzero(run(CHAINS[number], rows) != recorded.arrays["stored"][number])
        assert not len(wrong), f"{CHAINS[number].name} of {[hex(int(column[wrong[0]])) for column in rows]}"
        if refsim_profile == "night":
            got = [int(digest(run(CHAINS[number], carry_chains.operands(chunk)))) for chunk in (0, 1)]
            assert got == recorded.arrays["chunk_digests"][number].tolist(), CHAINS[number].name


def test_chains_are_still_those_that_the_gpu_ran(recorded):
    assert recorded.facts["chains"] == [form.name for form in CHAINS]
    assert (
        hashlib.sha256(carry_chains.ptx().encode()).hexdigest() == sidecar("carry_chains")["sha256"]["carry_chains.ptx"]
    )


def test_a_borrow_in_the_flag_would_be_caught(recorded):
    """The same chain recorded with subc in the place of addc differs in stored rows."""
    names = [form.name for form in CHAINS]
    first, second = (names.index(f"sub.cc.u32 + {reader}.u32") for reader in ("addc", "subc"))
    assert (recorded.arrays["stored"][first] != recorded.arrays["stored"][second]).any()
