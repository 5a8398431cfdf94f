"""Schedules that let other threads run before one strong access: they show protocols that only luck keeps right."""

from pathlib import Path

import numpy as np
import pytest

import refsim.device
from refsim.device.schedules import MOST_HELD, _held
from refsim.errors import RefsimError
from refsim.ptx.text.source_names import spelled

FILE = Path(__file__).with_name("protocols.cu")
RIGHT = {
    "claim": list(range(3, 35)),
    "versions": [7],
    "counter": [12],
    "lock": [12],
    "used": [0, 1, 1],
    "turns": [12] * 32,
    "counted": [12] * 32,
}
RACES = ("lock", "turns", "counted")
NAMES = tuple(RIGHT)
SIM = refsim.device.open("sim", "sm_80")


def ran(name, less, blocks=3):
    with SIM.launcher(FILE) as launcher:
        entry = next(entry for entry in launcher.program.entries if spelled(entry).startswith(f"{name}<{less}>"))
        x = launcher.upload(np.arange(3, 35, dtype=np.uint32), name="x")
        y, work = (launcher.upload(np.zeros(32, np.uint32), name=name, writable=True) for name in ("y", "work"))
        launcher.launch(entry, blocks, 32, [x, y, work])
        return launcher.read(y), launcher.traces[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_right_protocol_is_silent(name):
    y, trace = ran(name, 0)
    assert y[: len(RIGHT[name])].tolist() == RIGHT[name]
    assert trace.contended or name in ("claim", "counter")


@pytest.mark.parametrize("name", NAMES)
def test_a_protocol_that_others_can_disturb_is_found(name):
    """Under the first schedule all blocks may run in step: then the oracle differs. Others are disturbed under another."""
    try:
        y, _ = ran(name, 1)
        assert y[: len(RIGHT[name])].tolist() != RIGHT[name]
    except RefsimError as error:
        assert error.code == ("race" if name in RACES else "schedule-dependent")


def test_one_block_has_no_others():
    for name in ("claim", "counter", "lock"):
        assert ran(name, 1, blocks=1)[1].contended == ()


def test_schedules_are_few_and_name_the_access():
    _, trace = ran("versions", 0)
    held = list(_held(trace))
    assert 2 <= len(held) <= MOST_HELD
    assert all("protocols.cu" in str(order) for order in held)
