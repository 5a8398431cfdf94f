"""The probe of sparse products: ptxas takes it, the simulator runs it, and its operands tell the hypotheses apart."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from refsim import ptx
from refsim.reference import assembler
from refsim.silicon.sparse_probe import (
    CLASSES,
    HYPOTHESES,
    SparseInstruction,
    classes_of,
    differing,
    forms,
    hypotheses,
    module,
    problems,
)
from refsim.silicon.sparse_probe import ptx as probe

pytestmark = pytest.mark.filterwarnings("ignore::refsim.numerics.UnverifiedProfileWarning")
FORMS = forms()
FIRST = "as the model infers"
# For some types one form of a warp and one of a warpgroup.
CHOSEN = list({(form.a, form.unit): form for form in FORMS if form.a in ("f16", "tf32", "e4m3", "s8")}.values())
SAME = {"order ascending", "C early"}  # what the rows of Hopper say already; FP8 products of a warp are the others


def run(form: SparseInstruction, chosen: slice) -> np.ndarray:
    problem = problems(form).part(chosen)
    words, images = form.inputs(problem)
    out = np.zeros((len(words), form.counts[2]), np.uint32)
    ptx.load(module([form])).launch("form_0", (len(problem.a),), (form.threads,), [words, images, out])
    return form.results(out)


def test_ptxas_takes_the_module(tmp_path: Path) -> None:
    text = tmp_path / "sparse.ptx"
    text.write_text(probe())
    command = [assembler.releases()[-1][1], "-arch", "sm_90a", str(text), "-o", str(tmp_path / "sparse.cubin")]
    subprocess.run(command, check=True, capture_output=True)
    assert len({form.name for form in FORMS}) == len(FORMS)


@pytest.mark.parametrize("form", CHOSEN, ids=lambda form: form.name)
def test_the_simulator_does_what_the_model_infers(form: SparseInstruction) -> None:
    """Two problems of each class; words that a thread loads lie where the kernel looks for them."""
    chosen = slice(0, None, form.problems // 2)
    want = HYPOTHESES[FIRST](form, problems(form).part(chosen))
    np.testing.assert_array_equal(run(form, chosen), want)


@pytest.mark.parametrize(
    "form", [form for form in CHOSEN if form.unit == "mma.sync" and form.a != "tf32"], ids=lambda form: form.name
)
def test_every_hypothesis_shows(form: SparseInstruction) -> None:
    problem = problems(form)
    found = differing(form, problem, HYPOTHESES[FIRST](form, problem))
    assert set(found) == set(hypotheses(form))
    assert not any(found.pop(FIRST).values())
    same = {"order by pairs of bytes", "C late", "steps half as long"} if form.a == "e4m3" else SAME
    for name, wrong in found.items():
        assert (sum(wrong.values()) == 0) == (name in same), name


def test_classes_ask_what_they_say() -> None:
    form = FORMS[0]
    problem = problems(form)
    parts = {
        name: problem.part(slice(form.problems * n, form.problems * (n + 1))) for n, name in enumerate(classes_of(form))
    }
    assert set(parts) == set(CLASSES)
    results = {name: HYPOTHESES[FIRST](form, part).view(np.float32) for name, part in parts.items()}
    assert len(np.unique(results["layout"])) == form.shape.k  # each element of B is met, and known again
    assert np.isfinite(results["absent specials"]).all()
    assert not np.isfinite(parts["absent specials"].b.view(np.float16)).all()
    assert 0 < np.isnan(results["met specials"]).mean() < 1
    assert (parts["fewer nonzeros"].a == 0).mean() > 0.4
    falling = parts["falling"].positions.reshape(-1, 2)
    assert (falling[:, 0] > falling[:, 1]).all()
