"""What silicon did with every load, store and product of wmma, replayed on the simulator without a GPU."""

import hashlib

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError
from refsim.silicon import wmma_probe
from refsim.silicon.vectors import recordings, sidecar

FORMS = wmma_probe.forms()
POISON = 0xA5


@pytest.fixture(scope="module")
def recorded():
    try:
        return recordings("wmma")["wmma"]
    except RefsimError:
        pytest.skip("wmma is not recorded yet: gpu/probes/record_wmma.py on a GPU")


def run(form):
    """The bytes of `out` after a form ran on the simulator over the recording's poison."""
    results = np.full(wmma_probe.WARPS * wmma_probe.STRETCH, POISON, np.uint8)
    ptx.load(wmma_probe.module([form])).launch("form_0", (1,), (32 * wmma_probe.WARPS,), [form.inputs(), results])
    return results


@pytest.mark.parametrize("number", range(len(FORMS)), ids=lambda number: FORMS[number].name)
def test_simulator_did_what_silicon_did(number, recorded):
    wrong = np.flatnonzero(run(FORMS[number]) != recorded.arrays["results"][number])
    assert not len(wrong), f"bytes {wrong[:8]}"


def test_forms_are_still_those_that_the_gpu_ran(recorded):
    assert recorded.facts["forms"] == [form.name for form in FORMS]
    assert hashlib.sha256(wmma_probe.ptx().encode()).hexdigest() == sidecar("wmma")["sha256"]["wmma.ptx"]
