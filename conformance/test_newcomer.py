"""Kernels that a newcomer wrote pass; mistakes in them, listed beforehand, are caught; the report newcomer.md is of that list.

Some of each in every run; `python -m conformance.newcomer` tries them all and writes the page.
"""

from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from refsim.testing.kernel_files import load_kernel_file

FOLDER = Path(__file__).parent / "newcomer"
trials = load_kernel_file(FOLDER / "trials.py")
BUGS = {bug.id: bug for bug in trials.read_bugs()}
PACKAGES = {"triton_matmul": "triton", "triton_softmax": "triton", "numba_reduction": "numba"}
SAMPLE = (
    "next-row-normed",
    "tile-not-awaited",
    "last-columns-not-added",
)
OFTEN_ENOUGH = pytest.mark.ci("other mistakes in the same kernels are caught in every run")


def needed(name):
    if package := PACKAGES.get(name):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install -e '.[dev]'")
    if package == "numba" and find_spec("numba_cuda") and not hasattr(np, "row_stack"):
        pytest.skip(f"numba-cuda up to 0.30.4 asks for numpy.row_stack, which NumPy {np.__version__} has not")


LARGER = pytest.mark.ci("seconds; others of their kind pass in every run, and so do the kernels of tests/ptx")
SLOW = ("histogram", "triton_matmul", "triton_softmax", "group_quantise")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=LARGER) if name in SLOW else name for name in trials.KERNELS]
)
def test_kernel_passes(name, device):
    needed(name)
    if device.name != "sim":
        pytest.skip("refsim verify runs them on a GPU; here the reports of the simulator are what is tested")
    for kernel in trials.declared(name):
        said = trials.tried(kernel, cases=3)
        assert said.status == "pass", said.text


@pytest.mark.sampled(12, "other mistakes in the same kernels are caught in CI")
@pytest.mark.parametrize("id", [id if id in SAMPLE else pytest.param(id, marks=OFTEN_ENOUGH) for id in BUGS])
def test_mistake_is_caught_and_never_named_wrongly(id, device):
    bug = BUGS[id]
    needed(bug.kernel)
    if device.name != "sim":
        pytest.skip("a race may go well on silicon; the simulator reports it")
    outcomes = trials.tried_with(bug, seconds=1.0)
    assert trials.is_caught(bug, outcomes), "\n".join(each.text for each in outcomes)
    assert trials.naming(bug, outcomes) != "wrong", "\n".join(each.text for each in outcomes)


def test_mistakes_are_of_many_causes():
    counts = Counter(bug.cause for bug in BUGS.values())
    assert counts.total() == 40
    assert len(counts) >= 15
    assert max(counts.values()) <= 3
    assert sum(count for cause, count in counts.items() if cause not in trials.SUSPECTED) >= 9


def test_mistakes_fit_their_files():
    for bug in BUGS.values():
        text = (FOLDER / "kernels" / bug.file).read_text("utf-8")
        assert bug.applied(text) != text


def test_page_is_of_this_list():
    """Every mistake has its row, with the cause that the list gives it, and every row says that it was caught."""
    page = (FOLDER.parent / "reports/newcomer.md").read_text("utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    assert [cells[:4] for cells in rows if cells[1] in BUGS] == [
        [bug.kernel, bug.id, bug.cause, "yes"] for bug in BUGS.values()
    ]
    assert {cells[0] for cells in rows if cells[1] == "pass"} >= set(trials.KERNELS) - {"triton_matmul"}
