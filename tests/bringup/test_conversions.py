"""The conversions suite: samples on the simulated GPU, and whole input spaces on a stand-in that replays a recording."""

from contextlib import contextmanager

import numpy as np
import pytest

from refsim.bringup import conversions
from refsim.bringup.report import DIFFERS
from refsim.device.sim import SimDevice
from refsim.kernels import Buffer
from refsim.silicon.vectors import CHUNK, recordings, weights
from refsim.testing.verdicts import PASS

RECORDED = recordings("conversions")
FP8 = RECORDED["cvt.rn.satfinite.e4m3x2.f32"]
NAMES = [
    "cvt.rn.satfinite.e4m3x2.f32",
    "cvt.rn.bf16.f32",
    "cvt.rpi.u16.f32",
    "cvt.rn.satfinite.e5m2x2.f16x2",
    "cvt.rn.f16x2.e4m3x2",
]


def test_the_simulated_gpu_has_a_case_for_every_recorded_instruction():
    names = [task.name for task in conversions.tasks(SimDevice())]
    assert names == [name for name in RECORDED if name.startswith("cvt")]


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_agrees_on_the_simulated_gpu(name):
    case = conversions._sampled(SimDevice(), RECORDED[name])
    assert (case.status, case.differing) == (PASS, 0)
    whole = "results" in RECORDED[name].arrays
    assert case.words == (CHUNK if whole else CHUNK * len(conversions.SAMPLED))
    assert case.coverage.startswith("all 65,536" if whole else f"{len(conversions.SAMPLED)} of 65536 chunks")


class Replay:
    """A launcher whose kernels leave what a recording holds, with some words changed."""

    target = "sm_90a"

    def __init__(self, change):
        self.change, self.memory = change, {}

    def output(self, count, dtype, *, name):
        return Buffer(name, 0, count, np.dtype(dtype))

    def launch(self, entry, grid, block, args):
        (row,) = [row for row in RECORDED.values() if row.facts["entry"] == entry]
        array = row.arrays.get("digests", row.arrays.get("results"))
        buffer = args[0]
        assert grid[0] * block[0] >= buffer.count
        self.memory[buffer.name] = self.change(array.astype(buffer.dtype))

    def read(self, buffer):
        return self.memory[buffer.name]


class Chip(SimDevice):
    """A device whose probe file replays recordings; single instructions run on the simulated GPU."""

    change = staticmethod(lambda array: array)

    @contextmanager
    def launcher(self, kernel_file):
        assert kernel_file == conversions.PROBES
        yield Replay(self.change)


def chip(change):
    device = Chip()
    device.change = change
    return device


def broken_chunk(array):
    changed = array.copy()
    changed[0x3F80] += weights()[0x123]
    return changed


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_a_whole_space_agrees_with_its_recording(name):
    case = conversions._exhaustive(chip(lambda array: array), RECORDED[name])
    assert case.status == PASS
    assert case.words == (1 << 32 if "digests" in RECORDED[name].arrays else CHUNK)


def test_a_model_that_left_the_recording_is_noticed(monkeypatch):
    real = conversions.expected
    monkeypatch.setattr(conversions, "expected", lambda row, chunk: real(row, chunk) ^ 1)
    case = conversions._exhaustive(chip(lambda array: array), FP8)
    assert case.status == DIFFERS
    assert case.difference.smallest[0].startswith("chunks 0x0000, 0x0080, ")
    assert case.difference.explanation == "a fault of the model: device and recording agree"


def test_a_chunk_that_differs_is_run_alone():
    """Here the instruction alone is right: the report says that the probe file and it disagree."""
    case = conversions._exhaustive(chip(broken_chunk), FP8)
    assert case.status == DIFFERS
    assert case.note.startswith("digests of 1 of 65536 chunks")
    assert "alone agrees" in case.difference.explanation


def test_a_table_that_differs_names_its_operand():
    def change(array):
        return np.where(np.arange(CHUNK) == 77, array ^ 1, array)

    case = conversions._exhaustive(chip(change), RECORDED["cvt.rn.f16x2.e4m3x2"])
    assert (case.status, case.differing) == (DIFFERS, 1)
    assert case.difference.smallest == ("operand 0x4d",)


def test_a_header_that_differs_names_the_chunk():
    case = conversions._exhaustive(chip(broken_chunk), RECORDED["cuda.satfinite.e2m3.f32"])
    assert case.status == DIFFERS
    assert case.difference.smallest == ("patterns from 0x3f800000 on, 65,536 of them",)


def test_the_simplest_operand_that_differs_is_shown(monkeypatch):
    """An instruction that is wrong for 1.5 and for one pattern beside it: 1.5 has fewer bits."""
    real = conversions._results

    def wrong(launcher, row, chunk):
        got = real(launcher, row, chunk).copy()
        (patterns, _) = conversions.operands(row, chunk)
        got[(patterns == 0x3FC00000) | (patterns == 0x3FC00033)] ^= 1
        return got

    monkeypatch.setattr(conversions, "_results", wrong)
    case = conversions._compared(SimDevice(), FP8, [0x3FC0])
    assert (case.status, case.differing) == (DIFFERS, 2)
    assert case.difference.smallest[0] == "operand 0 = 0x3fc00000"
    assert int(case.difference.got, 16) ^ int(case.difference.want, 16) == 1


def test_the_program_is_written_for_the_devices_target():
    text = conversions._program(FP8, "sm_89")
    assert ".target sm_89\n" in text
    assert "sm_90a" not in text
