"""What silicon left when its copy engine added, rounded and flushed, replayed on the simulator without a GPU."""

import hashlib

import numpy as np
import pytest

import refsim
from refsim.errors import RefsimError
from refsim.silicon.copy_arithmetic import COPY_FORMS, STEM
from refsim.silicon.vectors import recordings, sidecar


@pytest.fixture(scope="module")
def recorded():
    try:
        return recordings(STEM)
    except RefsimError:
        pytest.skip(f"{STEM} is not recorded yet: gpu/probes/record_{STEM}.py on a GPU")


def test_simulator_leaves_what_silicon_left(recorded):
    device = refsim.device.open("sim", "sm_90a").probing()  # in one order: nothing here waits for another block
    differing = {}
    for form in COPY_FORMS:
        if form.name in recorded:
            with device.launcher(form.code) as launcher:
                differing[form.name] = int((form.run(launcher) != recorded[form.name].arrays["words"]).sum())
    assert differing
    assert {name: count for name, count in differing.items() if count} == {}


def test_forms_are_still_those_that_the_gpu_ran(recorded):
    ran = sidecar(STEM)["sha256"]
    assert {form.name: hashlib.sha256(form.ptx.encode()).hexdigest() for form in COPY_FORMS if form.name in ran} == ran


def test_another_rounding_would_be_seen(recorded):
    """Cut off, sums of bf16 differ in many words."""
    form = next(form for form in COPY_FORMS if form.name == "run add.noftz.bf16")
    held, given = ((each.astype(np.uint32) << 16).view(np.float32) for each in form.operands())
    with np.errstate(all="ignore"):
        cut = ((held + given).view(np.uint32) >> 16).astype(np.uint16)
    assert (cut != recorded[form.name].arrays["words"]).sum() > 100
