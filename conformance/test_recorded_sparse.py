"""What silicon did with every product of a sparse A, replayed on the simulator and by the model without a GPU."""

import hashlib
from typing import Any

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError
from refsim.silicon import sparse_probe
from refsim.silicon.sparse_probe import HYPOTHESES, problems
from refsim.silicon.vectors import recordings, sidecar

FORMS = sparse_probe.forms()
pytestmark = pytest.mark.filterwarnings("ignore::refsim.numerics.UnverifiedProfileWarning")


@pytest.fixture(scope="module")
def recorded() -> Any:
    try:
        return recordings("sparse")
    except RefsimError:
        pytest.skip("sparse products are not recorded yet: gpu/probes/record_sparse.py on a GPU")


@pytest.mark.parametrize("number", range(len(FORMS)), ids=lambda number: FORMS[number].name)
def test_model_and_simulator_did_what_silicon_did(number: int, recorded: Any) -> None:
    """The model every problem, the simulator two of each class."""
    form = FORMS[number]
    problem, results = problems(form), recorded[form.name].arrays["results"]
    model = HYPOTHESES["as the model infers"](form, problem)
    wrong = (model != results).reshape(-1, form.problems, *results.shape[1:]).sum(axis=(1, 2, 3))
    assert not wrong.any(), wrong
    some = slice(0, None, form.problems // 2)
    words, images = form.inputs(problem.part(some))
    out = np.zeros((len(words), form.counts[2]), np.uint32)
    blocks = len(words) // form.threads
    ptx.load(sparse_probe.module([form])).launch("form_0", (blocks,), (form.threads,), [words, images, out])
    np.testing.assert_array_equal(form.results(out), results[some])


def test_forms_are_still_those_that_the_gpu_ran(recorded: Any) -> None:
    assert list(recorded) == [form.name for form in FORMS]
    assert hashlib.sha256(sparse_probe.ptx().encode()).hexdigest() == sidecar("sparse")["sha256"]["sparse.ptx"]
