"""The suite of special functions: groups on the simulated GPU, and whole input spaces on a stand-in that replays a recording."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from refsim.bringup import special_functions, suites
from refsim.bringup.report import DIFFERS
from refsim.device.sim import SimDevice
from refsim.errors import RefsimError
from refsim.kernels import Buffer
from refsim.numerics.special import SPECIAL_FORMS
from refsim.silicon.special_functions import recorded
from refsim.silicon.vectors import CHUNK, weights
from refsim.testing.verdicts import PASS

FORMS = {form.instruction: form for form in SPECIAL_FORMS}


def test_every_recorded_form_has_a_case():
    assert [task.name for task in special_functions.tasks(SimDevice())] == list(FORMS)


@pytest.mark.parametrize(
    ("name", "words", "coverage"),
    [
        ("ex2.approx.f16", CHUNK, "all 65,536 inputs, against the model and the recording"),
        ("ex2.approx.ftz.f32", 1 << 20, "groups 0x3f8 of 4,096, against the model and the recording"),
        ("div.approx.f32", CHUNK, "65,536 pairs, against the model"),
    ],
)
def test_a_sample_agrees_on_the_simulated_gpu(name, words, coverage):
    case = special_functions._sampled(SimDevice(), FORMS[name])
    assert (case.status, case.words, case.differing, case.coverage, case.note) == (PASS, words, 0, coverage, "")


def test_another_target_is_as_on_the_recorded_one():
    case = special_functions._sampled(SimDevice("sm_80"), FORMS["ex2.approx.f16"])
    assert (case.status, case.note) == (PASS, "as on sm_90")
    (task,) = [task for task in special_functions.tasks(SimDevice("sm_80")) if task.name == "ex2.approx.ftz.bf16"]
    with pytest.raises(RefsimError, match="exists from sm_90 on"):
        task.run()


def test_a_result_that_differs_comes_with_its_simplest_operand():
    form = FORMS["ex2.approx.f16"]

    def wrong(codes):
        return form.words(codes) ^ (codes == 0x3C01) ^ (codes == 0x3FFF).astype(np.uint16)

    case = special_functions._sampled(SimDevice(), replace(form, words=wrong))
    assert (case.status, case.differing) == (DIFFERS, 2)
    assert case.difference.smallest == ("operand a = 0x3c01",)
    assert int(case.difference.got, 16) ^ int(case.difference.want, 16) == 1


@pytest.mark.parametrize("name", ["ex2.approx.f16", "ex2.approx.ftz.f32"])
def test_a_recording_that_differs_is_told_from_a_model_that_does(name, monkeypatch):
    for known in ("results", "recorded"):
        real = getattr(special_functions, known)
        monkeypatch.setattr(special_functions, known, lambda *arguments, real=real: real(*arguments) ^ np.uint16(1))
    case = special_functions._sampled(SimDevice(), FORMS[name])
    assert (case.status, case.differing) == (DIFFERS, 1)
    assert "the recording does not" in case.difference.explanation


class Replay:
    """A launcher whose digest kernels leave digests that fold to what was recorded; single instructions run simulated."""

    def __init__(self, change):
        self.change, self.memory = change, {}

    def output(self, count, dtype, *, name):
        return Buffer(name, 0, count, np.dtype(dtype))

    def launch(self, entry, grid, block, args):
        buffer = args[0]
        assert grid[0] == buffer.count
        words = recorded(entry.removeprefix("digest_"))
        factor = np.uint64(pow(int(weights()[0]), -2 if "div" in entry else -1, 1 << 64))
        digests = np.zeros((len(words), buffer.count // len(words)), np.uint64)
        digests[:, 0] = words * factor
        self.memory[buffer.name] = self.change(digests.reshape(-1))

    def read(self, buffer):
        return self.memory[buffer.name]


class Chip(SimDevice):
    change = staticmethod(lambda digests: digests)

    @contextmanager
    def launcher(self, kernel_file):
        assert kernel_file == special_functions.PROBES
        yield Replay(self.change)


@pytest.mark.parametrize(("name", "words"), [("ex2.approx.ftz.f32", 1 << 32), ("div.full.f32", 1 << 34)])
def test_digests_of_all_inputs(name, words):
    case = special_functions._whole(Chip(), FORMS[name])
    assert (case.status, case.differing) == (PASS, 0)
    assert case.words >= words
    changed = Chip()
    changed.change = lambda digests: digests ^ (np.arange(len(digests)) == 3).astype(np.uint64)
    case = special_functions._whole(changed, FORMS[name])
    assert (case.status, case.differing) == (DIFFERS, 1)
    assert case.difference.smallest == ("group 0x000",)
    assert case.note == "digests of 1 of 4,096 groups differ"


def test_exhaustive_is_asked_of_a_real_gpu_alone():
    with pytest.raises(RefsimError, match="--exhaustive goes with a GPU"):
        special_functions.tasks(SimDevice(), exhaustive="all")
    asked = special_functions.tasks(SimDevice())
    assert [task.run.func for task in asked] == [special_functions._sampled] * len(FORMS)
    real = Chip()
    real.__class__ = type("Real", (Chip,), {"is_simulated": False})
    assert [task.run.func for task in special_functions.tasks(real, exhaustive="all")] == [
        special_functions._whole
    ] * len(FORMS)


def test_the_option_reaches_the_suite():
    suite = suites.suite_named("special-functions")
    whole = suites.exhaustively(suite, "all")
    assert whole.tasks.keywords == {"exhaustive": "all"}
    assert whole.fingerprint() == f"{suite.fingerprint()} all"
    assert suites.exhaustively(suite, "fp8") is suites.exhaustively(suite, None) is suite
    assert suites.suites_of(["layouts", "special-functions"], "all")[1].tasks.keywords == {"exhaustive": "all"}


def test_an_extent_that_no_suite_has_is_refused():
    for names, extent in ((["layouts", "kernels"], "all"), (["special-functions"], "fp8")):
        with pytest.raises(RefsimError, match=f"--exhaustive {extent} asks nothing more of {names[0]}"):
            suites.suites_of(names, extent)
    assert suites.suites_of(["layouts"], None) == [suites.suite_named("layouts")]
