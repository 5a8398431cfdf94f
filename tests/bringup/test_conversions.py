"""The conversions suite: samples on the simulated GPU, and whole input spaces on a stand-in that replays a recording."""

from contextlib import contextmanager

import numpy as np
import pytest

from refsim.bringup import conversions
from refsim.bringup.report import DIFFERS
from refsim.device.sim import SimDevice
from refsim.errors import RefsimError
from refsim.kernels import Buffer
from refsim.silicon.scalar_probe import ScalarForm
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
    case = conversions._whole(chip(lambda array: array), RECORDED[name])
    assert case.status == PASS
    assert case.words == (1 << 32 if "digests" in RECORDED[name].arrays else CHUNK)


def test_a_model_that_left_the_recording_is_noticed(monkeypatch):
    real = conversions.expected
    monkeypatch.setattr(conversions, "expected", lambda row, chunk: real(row, chunk) ^ 1)
    case = conversions._whole(chip(lambda array: array), FP8)
    assert case.status == DIFFERS
    assert case.difference.smallest[0].startswith("chunks 0x0000, 0x0080, ")
    assert case.difference.explanation == "a fault of the model: device and recording agree"


def test_a_chunk_that_differs_is_run_alone():
    """Here the instruction alone is right: the report says that the probe file and it disagree."""
    case = conversions._whole(chip(broken_chunk), FP8)
    assert case.status == DIFFERS
    assert case.note.startswith("digests of 1 of 65536 chunks")
    assert "alone agrees" in case.difference.explanation


def test_a_table_that_differs_names_its_operand():
    def change(array):
        return np.where(np.arange(CHUNK) == 77, array ^ 1, array)

    case = conversions._whole(chip(change), RECORDED["cvt.rn.f16x2.e4m3x2"])
    assert (case.status, case.differing) == (DIFFERS, 1)
    assert case.difference.smallest == ("operand 0x4d",)


def test_a_header_that_differs_names_the_chunk():
    case = conversions._whole(chip(broken_chunk), RECORDED["cuda.satfinite.e2m3.f32"])
    assert case.status == DIFFERS
    assert case.difference.smallest == ("patterns from 0x3f800000 on, 65,536 of them",)


def test_the_simplest_operand_that_differs_is_shown(monkeypatch):
    """An instruction that is wrong for 1.5 and for one pattern beside it: 1.5 has fewer bits."""
    real = ScalarForm.launch

    def wrong(form, launcher, operands, name):
        got = real(form, launcher, operands, name).copy()
        (patterns, _) = operands
        got[(patterns == 0x3FC00000) | (patterns == 0x3FC00033)] ^= 1
        return got

    monkeypatch.setattr(ScalarForm, "launch", wrong)
    case = conversions._compared(SimDevice(), FP8, [0x3FC0])
    assert (case.status, case.differing) == (DIFFERS, 2)
    assert case.difference.smallest[0] == "operand 0 = 0x3fc00000"
    assert int(case.difference.got, 16) ^ int(case.difference.want, 16) == 1


def test_the_program_is_written_for_the_devices_target():
    text = conversions.form_of(FP8).program("sm_89")
    assert ".target sm_89\n" in text
    assert "sm_90a" not in text


# ---- whole input spaces of the model ---------------------------------------------------------------------------------


def test_words_are_those_of_the_model_and_those_of_the_recording():
    """Of 2^32 words 14 chunks are the model's; of a table all are."""
    case = conversions._whole(chip(lambda array: array), FP8)
    assert (case.words, case.recorded) == (1 << 32, (CHUNK - 14) << 16)
    assert case.coverage == "all 2^32 patterns against the recording, 14 chunks of 65,536 also against the model"
    table = conversions._whole(chip(lambda array: array), RECORDED["cuda.decode.e2m3.f16"])
    assert (table.words, table.recorded) == (CHUNK, 0)


def test_exhaustive_asks_the_model_for_every_chunk(monkeypatch):
    """One chunk in which the model strays is named; the digests are looked up here instead of computed."""
    asked = []

    def digests(row, chunks):
        asked.extend(chunks)
        found = row.arrays["digests"][chunks].copy()
        found[0x1234] += np.uint64(1)
        return found

    monkeypatch.setattr(conversions, "model_digests", digests)
    case = conversions._whole(chip(lambda array: array), FP8, exhaustive=True)
    assert asked == list(range(CHUNK))
    assert (case.status, case.recorded, case.difference.smallest) == (DIFFERS, 0, ("chunks 0x1234",))
    assert case.coverage == "all 2^32 patterns against the recording and the model"


def test_exhaustive_is_of_a_chip(monkeypatch):
    with pytest.raises(RefsimError, match="--exhaustive goes with a GPU"):
        conversions.tasks(SimDevice(), exhaustive="all")
    device = chip(lambda array: array)
    monkeypatch.setattr(Chip, "is_simulated", False)
    chosen = {extent: conversions.tasks(device, exhaustive=extent) for extent in ("", "fp8", "all")}
    counts = {extent: sum(task.run.keywords["exhaustive"] for task in tasks) for extent, tasks in chosen.items()}
    assert counts == {"": 0, "fp8": 28, "all": len(RECORDED)}


@pytest.mark.ci("other processes take seconds to begin")
def test_many_chunks_are_shared_among_processes():
    chunks = list(range(0x3F00, 0x3F00 + conversions.ALONE + 1))
    found = conversions.model_digests(FP8, chunks)
    assert np.array_equal(found, FP8.arrays["digests"][chunks])


def test_the_model_of_every_table_and_of_some_chunks_is_what_was_recorded():
    for row in RECORDED.values():
        if "results" in row.arrays:
            assert np.array_equal(conversions.expected(row, 0), row.arrays["results"]), row.name
    chunks = [0x3F80, 0xC2A7]
    assert np.array_equal(conversions.model_digests(FP8, chunks), FP8.arrays["digests"][chunks])
