"""From which bytes an H200 read operands of wgmma that begin anywhere in an atom, replayed without a GPU.

The model of descriptors is compared with every recorded address. The simulator multiplies what the GPU multiplied.
"""

import hashlib

import numpy as np
import pytest

import refsim
from conformance.operand_places import NOWHERE, addresses, crcs, places, single_forms, single_words
from refsim.layouts.descriptors import descriptor, walk
from refsim.silicon.operand_starts import START_FORMS, STEM, SWIZZLE_CODES, paired_words
from refsim.silicon.vectors import recordings, sidecar

SINGLE = {name: (form, side, swizzle) for name, form, side, swizzle in single_forms()}
SWIZZLED = [name for name in SINGLE if not name.endswith("none")]
DEVICE = refsim.device.open("sim", "sm_90a").probing()


@pytest.fixture(scope="module")
def recorded():
    return recordings(STEM)


def recorded_places(recording):
    return np.cumsum(recording.arrays["places"], axis=-1, dtype=np.uint16)


@pytest.mark.parametrize("name", SINGLE)
def test_a_descriptor_reads_the_bytes_that_the_gpu_read(recorded, name):
    form, side, swizzle = SINGLE[name]
    words = recorded[name].arrays["words"]
    assert np.array_equal(words, single_words(swizzle))
    assert np.array_equal(recorded_places(recorded[name]), addresses(form, side, words))


@pytest.mark.parametrize("name", SINGLE)
def test_the_simulator_reads_the_bytes_that_the_gpu_read(recorded, name):
    """64 of the descriptors of each recording."""
    form, side, _ = SINGLE[name]
    some = slice(SWIZZLE_CODES[name.rpartition(".")[2]] + 1, None, 11)
    with DEVICE.launcher(form.code) as launcher:
        found = places(launcher, form, side, recorded[name].arrays["words"][some])
    assert np.array_equal(found, recorded_places(recorded[name])[some])


@pytest.mark.parametrize("form", START_FORMS, ids=lambda form: form.name)
def test_operands_that_are_shifted_apart_give_the_products_of_the_gpu(recorded, form):
    recording = recorded[f"{form.name}.pairs"]
    words = recording.arrays["words"]
    assert np.array_equal(words, paired_words(form))
    assert np.array_equal(recording.arrays["crcs"], crcs(form.predicted(words)))
    with DEVICE.launcher(form.code) as launcher:
        assert np.array_equal(recording.arrays["crcs"], crcs(form.pairs(launcher, words)))


def test_every_chunk_is_read_in_one_piece(recorded):
    assert sum(int((recorded_places(recorded[name]) == NOWHERE).sum()) for name in SINGLE) == 0
    assert sum(recorded_places(recorded[name]).size for name in SINGLE) == 2_957_312


def at_another_base(word):
    """The pattern begins 128 bytes further on."""
    return word & ~(7 << 49) | ((word >> 49) + 1 & 7) << 49


def added_base(word):
    """base_offset is added to the number of a row, not subtracted."""
    return word & ~(7 << 49) | (-(word >> 49) & 7) << 49


def relative_to_the_start(word):
    """The start of the operand is the start of the pattern."""
    return word & ~(7 << 49) | (word >> 3 & 7) << 49


@pytest.mark.parametrize("mutant", [at_another_base, added_base, relative_to_the_start])
@pytest.mark.parametrize("name", SWIZZLED)
def test_another_rule_is_refused(recorded, name, mutant):
    """The pattern of 32B repeats after two rows: there, adding is subtracting."""
    form, side, _ = SINGLE[name]
    words = recorded[name].arrays["words"][:512]
    wrong = np.array([mutant(int(word)) for word in words], np.uint64)
    differ = (recorded_places(recorded[name])[:512] != addresses(form, side, wrong)).any()
    assert differ == (mutant is not added_base or not name.endswith("32B"))


def test_base_offset_without_a_swizzle_is_not_read(recorded):
    found = recorded_places(recorded["f16.K.K.a.none"])[:512].reshape(64, 8, -1)
    assert (found == found[:, :1]).all()


def test_a_run_into_the_next_row_reads_the_next_row(recorded):
    """K of 32 bytes from byte 112 of a row of 128: `walk` calls it a problem, the GPU reads on."""
    words = recorded["f16.K.K.a.128B"].arrays["words"]
    at = next(at for at, word in enumerate(words.tolist()) if word & 0x3FFF == 112 >> 4 and not word >> 49 & 7)
    assert recorded_places(recorded["f16.K.K.a.128B"])[at, :2].tolist() == [112, 128 ^ 16]
    assert walk(descriptor("wgmma-smem"), int(words[at]), "wgmma.m64n64k16.f16.a").problems


def test_probe_is_still_what_the_gpu_ran(recorded):
    ran = sidecar(STEM)["sha256"]
    assert {f"{form.name}.ptx": hashlib.sha256(form.ptx.encode()).hexdigest() for form in START_FORMS} == ran
    assert sidecar(STEM)["device"] == "NVIDIA H200"
