"""What tolerance hides: gates measure what they say, mistakes fit their files, the pages are of what was recorded.

Two mistakes are tried again in ci, on a smaller problem, all of them at night; `python -m conformance.tolerance` records them.
"""

import numpy as np
import pytest

from conformance.tolerance import page
from conformance.tolerance.gates import GATES, References
from conformance.tolerance.mutants import BY_ID, MUTANTS, Edit
from conformance.tolerance.results import results_of
from conformance.tolerance.trials import tried

RESULTS = results_of("sim")
CAUGHT_BY = {
    "DeepGEMM": lambda y: y * 1.05,
    "FlashInfer": lambda y: y + 0.15 * np.roll(y, 1, 0),
    "vLLM": lambda y: with_one(y, 2.0),
    "vLLM mean": lambda y: y * 1.002,
    "PyTorch": lambda y: with_one(y, 1.2),
    "PyTorch rows": lambda y: with_one(y, 1.2),
    "Triton": lambda y: with_one(y, 1.03),
    "aiter": lambda y: np.where(np.arange(y.size).reshape(y.shape) % 19, y, 0.0),
}
"""Results that a gate must refuse, each a little beyond its limit."""
ALLOWED = {
    "DeepGEMM": lambda y: y * 1.04,
    "FlashInfer": lambda y: 1000 * y + 100 * np.roll(y, 1, 0),
    "vLLM": lambda y: with_one(y, 1.4),
    "vLLM mean": lambda y: with_one(y, 2.0),
    "PyTorch": lambda y: with_one(y, 1.06),
    "PyTorch rows": lambda y: with_one(y, 1.06),
    "Triton": lambda y: with_one(y, 1.01),
    "aiter": lambda y: np.where(np.arange(y.size).reshape(y.shape) % 21, y, 0.0),
}


def with_one(y, factor):
    """One element of 4,096, which is 40 and more, is that many times as large."""
    found = y.copy()
    found[3, 5] *= factor
    return found


@pytest.fixture
def reference():
    y = np.random.default_rng(7).standard_normal((64, 64)) * 45
    y[3, 5] = 40.0
    return y


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)
def test_gate_has_the_limit_that_it_says(gate, reference):
    references = References(reference, reference)
    assert gate.passes(gate.measures(reference, references))
    assert gate.passes(gate.measures(ALLOWED[gate.name](reference), references))
    assert not gate.passes(gate.measures(CAUGHT_BY[gate.name](reference), references))


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)
def test_no_gate_lets_nan_through(gate, reference):
    references = References(reference, reference)
    everywhere_nan = np.full_like(reference, np.nan)
    assert not gate.passes(gate.measures(everywhere_nan, references))


@pytest.mark.parametrize("gate", [gate for gate in GATES if gate.name in ("DeepGEMM", "FlashInfer", "PyTorch")])
def test_gate_compares_with_operands_before_they_were_quantised(gate, reference):
    assert not gate.passes(gate.measures(reference, References(-reference, reference)))


def test_mistakes_fit_their_files():
    for mutant in MUTANTS:
        assert bool([*mutant.changes()]) == bool(mutant.edits), mutant.id
    assert [mutant.id for mutant in MUTANTS if not mutant.edits] == list(page.CONTROLS)


def test_a_text_that_stands_twice_is_no_place_to_edit():
    with pytest.raises(ValueError, match="stands 2 times"):
        Edit("file", "wait();", "").applied("wait(); wait();")


def test_every_mistake_is_recorded_and_caught_and_nothing_right_is():
    assert list(RESULTS) == list(BY_ID)
    assert [id for id in RESULTS if not RESULTS[id].is_caught] == list(page.CONTROLS)
    for id in page.CONTROLS:
        assert all(RESULTS[id].passes(gate.name) for gate in GATES), id


def test_page_and_readme_are_of_what_was_recorded():
    assert page.PAGE.read_text("utf-8") == page.page(RESULTS, results_of("cuda"))
    readme = page.README.read_text("utf-8")
    assert page.with_table(readme, RESULTS) == readme
    other = {**RESULTS, "tail-columns": RESULTS["correct"]}
    assert page.with_table(readme, other) != readme


def test_readme_shows_mistakes_that_cosine_accepts():
    assert all(RESULTS[id].passes("FlashInfer") for id in page.README_MUTANTS)


def test_table_needs_its_markers():
    with pytest.raises(ValueError, match="markers"):
        page.with_table("# A page without\n", RESULTS)


@pytest.mark.ci("what is recorded of all mistakes is compared in every run")
@pytest.mark.parametrize("id", ["bf16-cut", "no-meeting"])
def test_small_problem_tells_a_mistake(id, device):
    if id == "no-meeting" and not device.is_simulated:
        pytest.skip("a race may go well on silicon; the simulator reports it")
    result = tried(BY_ID[id], device, (64, 64, 256))
    assert result.passes("FlashInfer")
    assert result.is_caught
    assert result.finding == RESULTS[id].finding


@pytest.mark.ci("takes minutes")
def test_all_is_again_as_recorded(refsim_profile, device):
    if refsim_profile != "night" or device.name != "sim":
        pytest.skip("tried again at night on the simulated GPU; python -m conformance.tolerance writes it")
    from conformance.tolerance.results import tried_on

    for id, recorded in RESULTS.items():
        again = tried_on("sim", id)
        assert (again.differing, again.finding, again.special) == (
            recorded.differing,
            recorded.finding,
            recorded.special,
        )
        for gate in GATES:
            assert again.passes(gate.name) == recorded.passes(gate.name), (id, gate.name)
            assert again.measures[gate.name] == pytest.approx(recorded.measures[gate.name], rel=1e-3, abs=1e-9)
